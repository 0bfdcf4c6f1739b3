"""Today's models: what each takes is known or learnt, so that default flags work with all of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from peer_environments import run_in

from fanfold import Case, Study, Sweep
from fanfold.capabilities import UNKNOWN, capabilities_of
from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.events import Event, Notice
from fanfold.models import Model, model
from fanfold.models.http import Response
from fanfold.models.pricing import TABLE
from fanfold.models.providers import maker_of, providers
from fanfold.models.simulated import SimulatedTransport
from fanfold.models.transport import Transport
from fanfold.simulator import Simulator, SimulatorConfig, addresses, serve
from fanfold.testing import run_virtual

STUDIES = {
    "prompts": ("--task", "sentiment", "--trials", "2", "--train", "4", "--held-out", "4", "--model", "MODEL"),
    "critic": ("--model", "MODEL", "--total", "3"),
    "secrets": ("--models", "MODEL", "--num-interactions", "2", "--messages-per-interaction", "2", "--judge", "MODEL"),
}
#: The models of the price table, with the providers that have their prices.
NAMES = [name if "/" in name else f"{maker_of(name)}/{name}" for name in TABLE]
#: The providers whose requests look like litellm's own, or nearly so, under its names for them.
LIKE = {"openai": "openai", "anthropic": "anthropic", "mistral": "mistral", "groq": "groq", "xai": "xai"}
LIKE |= {"deepseek": "deepseek", "together": "together_ai"}
#: Which requests litellm's own check of parameters refuses, and why.
CHECK = """
import json, sys
import litellm
refused = set()
for provider, body in json.load(sys.stdin):
    others = {"model", "messages", "system"}
    names = {"stop_sequences": "stop", "random_seed": "seed"}
    given = {names.get(name, name): value for name, value in body.items() if name not in others}
    try:
        litellm.get_optional_params(model=body["model"], custom_llm_provider=provider, drop_params=False, **given)
    except Exception as error:
        refused.add(str(error))
print(json.dumps(sorted(refused)))
"""


def requests(path: Path) -> list[dict[str, Any]]:
    with sqlite3.connect(path) as db:
        return [json.loads(body) for (body,) in db.execute("SELECT request FROM call")]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A simulator on a socket, to which the variables of all providers point."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def main() -> None:
        async with serve(Simulator()) as url:
            urls.append(url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),), daemon=True)
    thread.start()
    ready.wait()
    for variable, address in addresses(urls[0]).items():
        monkeypatch.setenv(variable, address)
    for provider in providers().values():
        if provider.key_variable:
            monkeypatch.setenv(provider.key_variable, "a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    yield urls[0]
    loop.call_soon_threadsafe(over.set)
    thread.join()


@pytest.mark.slow
def test_default_flags_of_every_study_suit_every_model_of_the_price_table(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sent = []
    for number, (study, name) in enumerate(itertools.product(STUDIES, NAMES)):
        flags = [flag.replace("MODEL", name) for flag in STUDIES[study]]
        ledger = Path(f"{number}.db")
        result = CliRunner().invoke(cli, ["run", study, *flags, "--ledger", str(ledger), "--json"])
        assert result.exit_code == 0, (study, name, result.output)
        with sqlite3.connect(ledger) as db:
            assert db.execute("SELECT message FROM evaluation WHERE failure IS NOT NULL").fetchall() == [], name
        bodies = requests(ledger)
        assert bodies, name
        provider = name.partition("/")[0]
        sent += [(LIKE[provider], body) for body in bodies if provider in LIKE]
    assert run_in("litellm", CHECK, sent) == []


# -- what is known ----------------------------------------------------------------------------------------------------


def simulated(name: str, config: SimulatorConfig | None = None) -> tuple[Model, Simulator]:
    simulator = Simulator(config or SimulatorConfig())
    transport = SimulatedTransport(simulator)
    return replace(model(f"simulated/{name}"), connect=lambda: transport), simulator


def body_of(asked: Model, **parameters: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(asked.call("x", **parameters).body)
    return body


def test_a_model_is_sent_what_it_takes_and_nothing_else() -> None:
    wished = {"temperature": 0.0, "stop": ["\n"], "seed": 1}
    assert body_of(model("simulated/gpt-4o-mini"), **wished)["temperature"] == 0.0
    assert set(body_of(model("simulated/gpt-6-luna"), **wished)) == {"model", "messages", "seed"}
    calm = body_of(model("simulated/gpt-6-luna"), reasoning_effort="none", **wished)
    assert calm["temperature"] == 0.0 and "stop" not in calm
    assert model("simulated/gpt-6-luna").call("x", **wished).dropped == ("temperature",)


def test_the_neutral_value_of_a_parameter_is_sent_to_everybody() -> None:
    assert body_of(model("simulated/gpt-6-astra"), temperature=1)["temperature"] == 1


def test_a_dated_name_takes_what_its_model_takes_and_an_unknown_one_anything() -> None:
    assert capabilities_of("gpt-6-luna-2026-10-01") == capabilities_of("gpt-6-luna")
    assert capabilities_of("gpt-99") is UNKNOWN and UNKNOWN.takes("temperature", 0.3)


def test_max_tokens_is_the_visible_text() -> None:
    """The limit that is sent has room for reasoning, never more than the model can write."""
    assert body_of(model("simulated/gpt-4o-mini"), max_tokens=50)["max_completion_tokens"] == 50
    assert body_of(model("simulated/gpt-6-luna"), max_tokens=50)["max_completion_tokens"] == 50 + 8192
    assert body_of(model("simulated/gpt-6-luna"), max_tokens=50, reasoning_effort="none")["max_completion_tokens"] == 50
    assert body_of(model("simulated/gpt-6-luna"), max_tokens=127_000)["max_completion_tokens"] == 128_000
    old = body_of(model("simulated/claude-haiku-4-5"), max_tokens=50, reasoning_effort="low", temperature=0.5)
    assert old["thinking"] == {"type": "enabled", "budget_tokens": 4096} and old["max_tokens"] == 4146
    assert "temperature" not in old
    new = body_of(model("simulated/claude-haiku-5-5"), max_tokens=50, reasoning_effort="low")
    assert new["output_config"] == {"effort": "low"} and new["thinking"] == {"type": "adaptive"}


def test_an_effort_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="reasoning_effort must be one of none, minimal, low"):
        model("simulated/gpt-6-luna").call("x", reasoning_effort="lots")


def answering(text: str) -> SimulatorConfig:
    return SimulatorConfig(answer=lambda model, messages, params, rng: text)


@pytest.mark.parametrize("name", ["gpt-6-luna", "gpt-4o-mini", "claude-haiku-5-5"])
def test_a_reply_ends_before_the_stop_text_whether_or_not_the_model_has_one(name: str) -> None:
    asked, _ = simulated(name, answering("Paris\nand more"))
    reply = run_virtual(asked.generate("x", stop=["Z", "\n"]))
    assert (reply.text, reply.finish) == ("Paris", "stop")


# -- reasoning that takes all -----------------------------------------------------------------------------------------


class Said:
    def __init__(self, asked: Model, **parameters: Any) -> None:
        self.asked, self.parameters = asked, parameters

    async def __call__(self, candidate: int, case: Case) -> float:
        return float(len((await self.asked.generate(f"question {candidate}", **self.parameters)).text))


@pytest.mark.parametrize("name", ["gpt-6-luna", "claude-haiku-5-5"])
def test_a_reply_cut_inside_its_reasoning_is_paid_and_fails_with_the_remedy(name: str, tmp_path: Path) -> None:
    asked, simulator = simulated(name, SimulatorConfig(reasoning=20_000))
    study = Study(Sweep(range(2)), Said(asked, max_tokens=10, reasoning_effort="low"), name="said")
    run = study.run(ledger=tmp_path / "a.db", run="a")
    assert len(simulator.charges) == 2
    with sqlite3.connect(tmp_path / "a.db") as db:
        rows = db.execute("SELECT failure, message FROM evaluation").fetchall()
        (paid,) = db.execute("SELECT sum(cost) FROM payment").fetchone()
    assert {failure for failure, _ in rows} == {"reasoning"} and run.progress.failures == 2
    assert all("raise max_tokens, or ask for less with reasoning_effort" in message for _, message in rows)
    assert paid > 0


# -- what is learnt ---------------------------------------------------------------------------------------------------

REFUSALS: dict[str, Any] = {
    "openai": {"error": {"message": "Unsupported value: 'temperature' does not support 0.5", "param": "temperature"}},
    "plain": {"error": {"message": "unknown field: temperature"}},
}


class Server(Transport):
    """Refuses requests with a temperature in the words of a refusal, and answers the others."""

    def __init__(self, refusal: Any, answer: str = "fine") -> None:
        self.refusal, self.answer, self.refused = refusal, answer, 0
        self.bodies: list[dict[str, Any]] = []

    async def request(self, method: str, url: str, headers: Any, body: bytes | None = None, **how: Any) -> Response:
        sent = json.loads(body or b"")
        self.bodies.append(sent)
        if "temperature" in sent:
            self.refused += 1
            return Response(400, {}, json.dumps(self.refusal).encode())
        choice = {"message": {"role": "assistant", "content": self.answer}, "finish_reason": "stop"}
        return Response(200, {}, json.dumps({"choices": [choice], "model": "m"}).encode())


def at(server: Server) -> Model:
    return replace(model("any", base_url="http://127.0.0.1:9/v1"), connect=lambda: server)


def notices(study: Study, **how: Any) -> tuple[Any, list[str]]:
    said: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Notice):
            said.append(event.message)

    return study.run(watch=watch, **how), [text for text in said if "does not take" in text]


@pytest.mark.parametrize("shape", REFUSALS)
@pytest.mark.slow
def test_a_parameter_that_a_server_refuses_is_dropped_once_said_once_and_remembered(shape: str, tmp_path: Path) -> None:
    server = Server(REFUSALS[shape])
    study = Study(Sweep(range(20)), Said(at(server), temperature=0.5), name="said")
    run, said = notices(study, executor="async:1", ledger=tmp_path / "a.db", run="a")
    assert run.progress.failures == 0 and server.refused == 1
    assert len(said) == 1 and "temperature" in said[0]
    again = Server(REFUSALS[shape])
    study = Study(Sweep(range(20, 30)), Said(at(again), temperature=0.5), name="said")
    run, said = notices(study, executor="async:1", ledger=tmp_path / "a.db", run="b")
    assert run.progress.failures == 0 and again.refused == 0 and said == []


def test_a_refused_value_is_no_refused_parameter() -> None:
    refusal = {"error": {"message": "temperature must be at most 0.2", "param": "temperature"}}
    server = Server(refusal)
    run = Study(Sweep(range(1)), Said(at(server), temperature=0.5), name="said").run()
    assert run.progress.failures == 1 and server.refused == 1


def test_a_known_refusal_is_said_once_before_anything_is_refused(tmp_path: Path) -> None:
    asked, simulator = simulated("gpt-6-luna")
    study = Study(Sweep(range(5)), Said(asked, temperature=0.5), name="said")
    run, said = notices(study, ledger=tmp_path / "a.db")
    assert run.progress.failures == 0 and len(simulator.charges) == 5
    assert said == ["openai/gpt-6-luna does not take temperature: its requests leave it out"]


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.slow
def test_a_study_reasons_as_much_as_its_flag_says(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag reaches every call, those of judges too; an effort that does not exist is refused before the first."""
    monkeypatch.chdir(tmp_path)
    flags = [flag.replace("MODEL", "simulated/gpt-6-luna") for flag in STUDIES[study]]
    for effort, sent in (("low", "low"), ("off", "none"), ("none", "none")):
        options = ["--reasoning-effort", effort, "--ledger", f"{effort}.db", "--json"]
        result = CliRunner().invoke(cli, ["run", study, *flags, *options])
        assert result.exit_code == 0, result.output
        bodies = requests(Path(f"{effort}.db"))
        assert bodies and {body.get("reasoning_effort") for body in bodies} == {sent}
    refused = CliRunner().invoke(cli, ["run", study, *flags, "--reasoning-effort", "frantic"])
    assert refused.exit_code != 0 and "frantic" in refused.output


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.slow
def test_the_effort_is_part_of_what_must_stay_the_same(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [flag.replace("MODEL", "simulated/gpt-6-luna") for flag in STUDIES[study]]
    run = ["run", study, *flags, "--ledger", "l.db", "--run", "a"]
    assert CliRunner().invoke(cli, run).exit_code == 0
    assert CliRunner().invoke(cli, run).exit_code == 0
    changed = CliRunner().invoke(cli, [*run, "--reasoning-effort", "high"])
    assert changed.exit_code != 0 and "changed" in changed.output
