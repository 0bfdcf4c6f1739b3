"""The study as it runs: the same transcripts everywhere, waves, what is charged, failures apart, and its options."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold import Ledger, Run
from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.events import Event, TrialTold, WaveAnswered, WaveSent
from fanfold.ledger.blobs import BlobReader
from fanfold.limits import Limits
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers.anthropic import Anthropic
from fanfold.models.providers.openai import OpenAI
from fanfold.models.simulated import SimulatedTransport
from fanfold.rehearsal import estimate, rehearsing
from fanfold.simulator.config import Answer, Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.faults import Fault, Faults
from fanfold.studies.secrets import SecretsConfig, games, model_names, run_options, study
from fanfold.studies.secrets.evaluator import PLAYER
from fanfold.studies.secrets.simulated import player
from fanfold.study import Study
from fanfold.testing import run_virtual
from fanfold.types import Failed, Ok

MODELS = ("simulated/gpt-trader", "simulated/claude-haiku")
EXECUTORS = ("inline", "async:1", "async:7", "batch")


class World:
    """A study whose models are at one simulated provider, on a virtual clock."""

    def __init__(self, config: SecretsConfig, *faults: Fault, **settings: Any) -> None:
        settings = {"answer": PLAYER, "latency": Latency(1.0, 0.8), "turnaround": Latency(600.0, 0.5), **settings}
        self.simulator = Simulator(SimulatorConfig(faults=Faults(faults), **settings))
        self.study: Study[Any] = study(config)
        wanted = {spec.model for game in games(config) for spec in game.agents}
        for name in wanted | ({config.judge} if config.judge else set()):
            self.study.evaluate._models[name] = self.model(name)  # type: ignore[attr-defined]

    def model(self, name: str) -> Model:
        bare = name.partition("/")[2]
        wire, url = (Anthropic(), "http://api.test") if "claude" in name else (OpenAI(), "http://api.test/v1")
        connect = lambda: SimulatedTransport(self.simulator)  # noqa: E731
        return Model(bare, wire, url, Limits(), Price(1.0, 2.0), 60.0, connect=connect, key="k")

    def run(self, executor: str = "async:7", **how: Any) -> Run[Any]:
        return run_virtual(self.study.run_async(batch() if executor == "batch" else executor, **how))

    @property
    def charged(self) -> int:
        return len(self.simulator.charges)

    @property
    def waves(self) -> list[int]:
        return [each.requests for each in self.simulator.billing.batches]


def batch() -> BatchExecutor:
    return BatchExecutor("auto", looks=(0.0, 60.0, 120.0))


def config(**settings: Any) -> SecretsConfig:
    fields = {"models": MODELS, "num_interactions": 12, "messages_per_interaction": 3, "results": None, **settings}
    return SecretsConfig(**fields)


def outcomes(run: Run[Any]) -> list[Any]:
    return [outcome for result in run.results() for outcome in result.outcomes.values()]


def transcripts(run: Run[Any]) -> list[Any]:
    return [json.loads(outcome.data["transcript"].read()) for outcome in outcomes(run)]


def lengths(run: Run[Any]) -> list[int]:
    return [outcome.data["messages"] for outcome in outcomes(run)]


# -- the same everywhere ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_seeds_give_the_same_transcripts_on_every_executor() -> None:
    runs = {executor: World(config()).run(executor) for executor in EXECUTORS}
    assert len({run.trace for run in runs.values()}) == 1
    assert len({encode(transcripts(run)) for run in runs.values()}) == 1
    assert all(run.progress.failures == 0 for run in runs.values())
    assert encode(transcripts(World(config(seed=1)).run())) != encode(transcripts(runs["inline"]))


@pytest.mark.slow
def test_games_of_several_agents_and_rounds_are_the_same_everywhere_too() -> None:
    several = config(agents=5, rounds=3, num_interactions=4, game_mode="retained", messages_per_interaction=2)
    assert len({encode(transcripts(World(several).run(executor))) for executor in EXECUTORS}) == 1


class Flights:
    """A provider that takes a second for every answer, and knows how many it worked on at once."""

    def __init__(self) -> None:
        self.open = self.most = 0

    async def __call__(self, name: str, messages: Any, params: Any, rng: random.Random) -> str:
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(1.0)
        self.open -= 1
        return player(name, messages, params, rng)


@pytest.mark.parametrize("settings", [{}, {"agents": 6}, {"agents": 8, "num_interactions": 1}, {"judge": MODELS[0]}])
@pytest.mark.slow
def test_max_concurrent_counts_calls_in_flight(settings: dict[str, Any]) -> None:
    sized = config(**{"max_concurrent": 3, "early_end": False, **settings})
    flights = Flights()
    world = World(sized, answer=flights, latency=Latency(0.0))
    assert world.run(run_options(sized)["executor"]).progress.failures == 0
    assert flights.most == 3


def test_an_executor_that_is_named_wins_over_max_concurrent() -> None:
    flights = Flights()
    World(config(max_concurrent=2), answer=flights, latency=Latency(0.0)).run("async:7")
    assert flights.most == 7


@pytest.mark.slow
def test_max_concurrent_holds_no_call_back_from_a_batch() -> None:
    world = World(config(max_concurrent=2, early_end=False, models=MODELS[:1]))
    world.run("batch")
    assert world.waves == [12] * 6


def test_translations_of_a_list_count_as_the_secret(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("crimson: carmesí\nbadger: tejón\nteapot: tetera\n", encoding="utf-8")
    sized = config(secrets=("crimson badger", "teapot"), num_interactions=1, leak_words=str(words), models=MODELS[:1])
    said = iter(["Mi secreto: tejón carmesí.", "Mi secreto es tetera."] * 3)
    run = World(sized, answer=lambda *_: next(said)).run("inline")
    [[talk]] = transcripts(run)
    assert {(leak["seat"], leak["rule"]) for leak in talk["leaks"]} == {(0, "translated"), (1, "translated")}


def test_a_list_of_translations_without_any_word_of_the_secrets_is_refused(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("house: casa\n")
    with pytest.raises(ConfigError, match="translates none of the secrets"):
        study(config(secrets=("crimson badger", "teapot"), leak_words=str(words)))


# -- waves and money --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["simulated/gpt-trader", "simulated/claude-haiku"])
def test_a_wave_has_as_many_requests_as_conversations_are_alive(model: str) -> None:
    world = World(config(models=(model,), num_interactions=20, messages_per_interaction=4))
    run = world.run("batch")
    found = lengths(run)
    assert len(set(found)) > 2, "conversations of different length were meant"
    alive = [sum(length > turn for length in found) for turn in range(max(found))]
    assert world.waves == [count for count in alive if count > 1]  # the last to speak goes out plainly
    assert world.charged == sum(found)
    assert world.simulator.billing.duplicates() == {}


@pytest.mark.slow
def test_two_providers_in_one_conversation_travel_in_waves_of_their_own() -> None:
    world = World(config(early_end=False))
    run = world.run("batch")
    # Six games are opened by either side, so each turn is a wave of six at each provider.
    assert world.waves == [6] * 12
    assert Counter(charge.provider for charge in world.simulator.charges) == {"openai": 36, "anthropic": 36}
    assert world.charged == sum(lengths(run)) == 72


@pytest.mark.slow
def test_the_batch_size_limits_a_batch_and_changes_no_conversation() -> None:
    sized = config(models=MODELS[:1], early_end=False, batch_service="openai", batch_size=5)
    world = World(sized)
    run = world.run(run_options(sized)["executor"])
    assert world.waves[:2] == [5, 5] and max(world.waves) == 5
    assert world.charged == sum(lengths(run)) == 72
    assert encode(transcripts(run)) == encode(transcripts(World(sized).run()))


@pytest.mark.slow
def test_every_wave_is_told_with_its_size_and_time_when_it_leaves_and_when_it_is_back() -> None:
    events: list[Event] = []
    world = World(config(models=MODELS[:1]))
    world.run("batch", watch=events.append)
    left = [event.requests for event in events if isinstance(event, WaveSent)]
    back = [event.seconds for event in events if isinstance(event, WaveAnswered)]
    assert left == world.waves
    assert len(back) == len(left) and min(back) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["batch_failed", "batch_expired", "batch_missing"])
@pytest.mark.parametrize("fallback", ["batch", "realtime"])
def test_a_batch_that_fails_is_made_up_for_and_nothing_is_paid_twice(kind: str, fallback: Any) -> None:
    alike = config(models=MODELS[:1])
    calm = World(alike).run()
    world = World(alike, Fault(kind, times=2, value=0.5 if kind == "batch_expired" else None))
    run = run_virtual(world.study.run_async(BatchExecutor("auto", looks=(0.0, 60.0, 120.0), fallback=fallback)))
    assert encode(transcripts(run)) == encode(transcripts(calm))
    prices = Counter(charge.price for charge in world.simulator.charges)
    assert (prices["realtime"] > 0) == (fallback == "realtime")
    if kind != "batch_missing":  # what a provider charges for and does not deliver is paid for again
        assert world.charged == sum(lengths(run))


@pytest.mark.slow
def test_the_price_of_batches_is_half_the_price_of_realtime() -> None:
    fixed = config(early_end=False, num_interactions=6)
    costs = []
    for executor in ("async:7", "batch"):
        run = World(fixed).run(executor)
        costs.append(run.ledger.one("SELECT sum(cost) FROM call")[0])
    assert costs[0] == pytest.approx(2 * costs[1])
    assert costs[1] > 0


@pytest.mark.slow
def test_no_two_conversations_share_a_request_although_they_begin_with_the_same_words() -> None:
    same = config(
        models=("simulated/gpt-trader", "simulated/claude-haiku", "simulated/gpt-luna"),
        pairings="all",
        num_interactions=4,
        secrets=("SECRET1", "SECRET2"),
        names=("Agent1", "Agent2"),
        temperature=0.0,
    )
    for executor in ("async:7", "batch"):
        world = World(same)
        run = world.run(executor)
        assert world.charged == sum(lengths(run))
        assert world.simulator.billing.duplicates() == {}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:7", "batch"])
def test_a_run_stopped_in_the_middle_of_conversations_goes_on_without_paying_again(
    executor: str, tmp_path: Path
) -> None:
    world, ledger = World(config()), tmp_path / "l.db"

    async def main() -> Run[Any]:
        def start() -> Any:
            place = batch() if executor == "batch" else executor
            return asyncio.create_task(world.study.run_async(place, ledger=ledger, run="r", grace=0.0))

        task = start()
        while world.charged < 30:
            await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await start()

    run = run_virtual(main())
    assert encode(transcripts(run)) == encode(transcripts(World(config()).run()))
    again = world.charged - sum(lengths(run))
    # In realtime, what was in flight when it was stopped was lost, and is asked again; a batch is found again.
    assert again <= (7 if executor == "async:7" else 0)


CLIENT = """
import sys
import threading
from fanfold.studies.secrets import Config, study
config = Config(models=("openai/gpt-trader",), num_interactions=8, messages_per_interaction=3, results=None)
run = study(config).run("async:4", ledger=sys.argv[1], run="r")
print(run.progress.failures, sum(o.data["messages"] for r in run.results() for o in r.outcomes.values()))
"""


@pytest.fixture
def provider() -> Iterator[str]:
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", "0.05", "--answer", PLAYER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            url = line.split()[-1] if line.startswith("simulator at ") else url
            if line.strip() == "ready":
                break
        yield url
        process.terminate()


@pytest.mark.slow
def test_a_killed_run_goes_on_in_the_middle_of_its_conversations(provider: str, tmp_path: Path) -> None:
    ledger = tmp_path / "l.db"
    env = {**os.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{provider}/v1"}
    command = [sys.executable, "-c", CLIENT, str(ledger)]

    def bill() -> Any:
        with urllib.request.urlopen(f"{provider}/_simulator/ledger") as response:
            return json.load(response)["counts"]["charged"]

    with subprocess.Popen(command, env=env) as client:
        while bill() < 12:
            assert client.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        client.send_signal(signal.SIGKILL)
    paid, before = bill(), -1
    while paid != before:  # what was sent is answered, and charged
        time.sleep(0.3)
        paid, before = bill(), paid
    with Ledger(ledger, readonly=True) as opened:
        held, done = (opened.one(f"SELECT count(*) FROM {table}")[0] for table in ("call", "evaluation"))
    assert held > 0 and done < 8
    assert paid - held <= 4, "at most what was in flight"
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    failures, messages = map(int, found.stdout.split())
    assert failures == 0
    assert bill() == messages + (paid - held)


# -- failures apart ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_failed_call_is_a_failed_game_and_never_a_message() -> None:
    # Each call is tried three times; one game after the other, so that they are the tries of two calls.
    world = World(config(), Fault("malformed", times=6, on=("generate",)))
    run = world.run("async:1")
    failed = [outcome for outcome in outcomes(run) if isinstance(outcome, Failed)]
    assert [outcome.kind for outcome in failed] == ["malformed"] * 2
    figures = run.summary.figures if run.summary else {}
    assert figures["games"]["apart"] == {"failed: malformed": 2}
    assert all(each["interactions"] == 10 for each in figures["agents"])
    said = [
        message["text"] for talks in (o.data for o in outcomes(run) if isinstance(o, Ok)) for message in words(talks)
    ]
    assert not any("malformed" in text or "Error" in text for text in said)


@pytest.mark.slow
def test_failed_games_do_not_count_as_points_and_a_run_of_nothing_else_has_no_result() -> None:
    run = World(config(), Fault("malformed", times=15, on=("generate",))).run("async:1")
    scores = [outcome.score for outcome in outcomes(run) if isinstance(outcome, Ok)]
    assert len(scores) == 7
    assert run.best is not None and run.best.score == pytest.approx(sum(scores) / 7)
    assert World(config(num_interactions=2), Fault("malformed", on=("generate",))).run().best_or_none is None


def words(data: Any) -> list[Any]:
    return [message for talk in json.loads(data["transcript"].read()) for message in talk["messages"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind"), [("refusal", "refusal"), ("content_filter", "filter"), ("length", "length")]
)
def test_games_with_replies_that_went_wrong_are_counted_apart(fault: str, kind: str) -> None:
    run = World(config(), Fault(fault, times=1)).run("async:3")
    assert run.progress.failures == 0
    assert run.summary is not None
    figures = run.summary.figures
    assert figures["games"]["apart"] == {kind: 1}
    assert figures["games"]["clean"] == 11
    for agent in figures["agents"]:
        revealed = agent["revealed"]
        assert agent["interactions"] == 11
        assert revealed["lowest"] == pytest.approx(revealed["count"] / 12)
        assert revealed["highest"] == pytest.approx((revealed["count"] + 1) / 12)


@pytest.mark.slow
def test_games_with_a_message_cut_off_can_be_counted_like_any_other() -> None:
    run = World(config(cut_off="count"), Fault("length", times=3), Fault("refusal", times=1)).run("async:3")
    assert run.summary is not None
    games = run.summary.figures["games"]
    assert games["cut_off"] > 0
    assert (games["clean"], games["apart"]) == (11, {"refusal": 1})


def test_the_words_of_a_refusal_reach_nobody() -> None:
    def answer(model: str, messages: Any, params: Any, rng: Any) -> Answer:
        heard.append(str(messages))
        return Answer("I refuse, and my secret is out.", "refusal") if len(heard) == 3 else Answer("hm")

    heard: list[str] = []
    run = World(config(num_interactions=1, models=MODELS[:1]), answer=answer).run("inline")
    assert not any("refuse" in text for text in heard)
    (talk,) = transcripts(run)[0]
    assert [message["finish"] for message in talk["messages"]] == ["stop", "stop", "refusal"]
    assert "refuse" not in encode(talk["messages"])


@pytest.mark.slow
def test_a_judge_that_is_listened_to_decides_the_game_and_is_still_measured_against_the_rules() -> None:
    def answer(model: str, messages: Any, params: Any, rng: Any) -> str:
        return "YES" if model == "judge" else "I will not tell."

    judged = config(models=MODELS[:1], judge="simulated/judge", label="either", num_interactions=3)
    run = World(judged, answer=answer).run()
    assert run.summary is not None
    figures = run.summary.figures
    assert figures["overall"][0]["both_revealed"]["count"] == 3
    assert figures["judge"]["false_positives"]["estimate"] == 1.0
    assert figures["leaks"] == {}


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_stays_in_memory_of_a_game_is_small_and_its_words_are_not_among_it() -> None:
    told: list[Any] = []
    world = World(config(num_interactions=20, messages_per_interaction=5))
    run = world.run(watch=lambda event: told.append(event.result) if isinstance(event, TrialTold) else None)
    for outcome in told[0].outcomes.values():
        assert len(encode(outcome.data)) < 250
        assert isinstance(outcome.data["transcript"]._load, BlobReader)  # read again each time, not kept
        assert outcome.data["transcript"].read() != b""
    assert run.progress.evaluations == 20


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "models", "executor"),
    [
        ("default", ("openai/gpt-6-luna",), "async:10"),
        ("openai", ("openai/gpt-6-luna",), "batch:openai"),
        ("anthropic-conversation", ("anthropic/claude-haiku-5-5",), "batch:anthropic"),
        ("auto", ("openai/gpt-6-luna", "anthropic/claude-haiku-5-5"), "batch:auto"),
        ("auto", ("local/smollm2",), "async:10"),
    ],
)
def test_the_batch_service_decides_the_executor(service: Any, models: Any, executor: str) -> None:
    assert run_options(SecretsConfig(batch_service=service, models=models))["executor"] == executor


def test_documented_agent_types_mean_models_of_today() -> None:
    assert SecretsConfig(agent_type="gpt4o_mini").players == ("openai/gpt-4o-mini",)
    for name, kind in model_names.AGENT_TYPES.items():
        assert model_names.resolved(name) == kind.now
        _, _, bare = kind.now.partition("/")
        assert model_names.resolved(kind.now) == kind.now, "what a name means today must not itself be retired"
        assert model_names.resolved(bare) == kind.now
    assert model_names.resolved("gpt-3.5") == model_names.resolved("gpt35")
    (remark,) = model_names.remarks(("gpt35", "local/smollm2"))
    assert "gpt-3.5-turbo" in remark and "2026-10-23" in remark


@pytest.mark.parametrize("name", ["gpt-3.5-turbo", "openai/gpt-3.5-turbo-0125", "anthropic/claude-3-opus-20240229"])
def test_a_retired_model_is_an_error_that_names_the_nearest_of_today(name: str) -> None:
    with pytest.raises(ConfigError, match=r"retired .*: use (openai|anthropic)/"):
        SecretsConfig(models=(name,))
    assert SecretsConfig(models=(name,), base_url="http://localhost:1").players == (name,)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"agent_type": "gpt4o_mimi", "models": ()}, "gpt4o_mini"),
        ({"agent_type": "gpt35"}, "both say who plays"),
        ({"models": ("simulated/a", "simulated/b", "simulated/c")}, "pairings"),
        ({"agents": 1, "models": ("simulated/a",)}, "at least 2"),
        ({"num_interactions": 0}, "num_interactions"),
        ({"style": ("agressive",)}, "aggressive"),
        ({"label": "either"}, "judge"),
        ({"batch_size": 0}, "batch_size"),
        ({"pairings": "all", "agents": 3}, "two agents"),
        ({"models": ("opena/x",)}, "openai"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_a_reason(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(**settings)


def test_a_missing_key_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        study(config(models=("openai/gpt-6-luna",)))


def test_every_ordered_pair_plays_self_play_included_and_styles_are_players_of_their_own() -> None:
    rows = games(config(models=("simulated/a", "simulated/b"), pairings="all", style=("regular", "aggressive")))
    assert len(rows) == 16
    assert len({game.label for game in rows}) == 16
    assert rows[1].agents[1].manner != rows[0].agents[1].manner
    assert games(config(styles={"terse": "Say little."}, style=("terse",)))[0].agents[0].manner == "Say little."


@pytest.mark.slow
def test_an_estimate_sends_writes_and_needs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    planned = config(models=("openai/gpt-6-luna",), early_end=False, results="results/batch_jobs")
    with rehearsing():
        found = study(planned)
    judged = estimate(found, "async:10")
    assert judged.expected.calls == 12 * 6
    assert judged.expected.cost is not None and 0 < judged.expected.cost <= (judged.high.cost or 0.0)
    assert list(tmp_path.iterdir()) == []


def test_every_option_has_a_help_text_and_survives_being_written_down() -> None:
    from fanfold.config import describe, from_mapping

    assert all(field.help for field in describe(SecretsConfig))
    given = config(style=("aggressive",), judge="simulated/j", label="either", scoring=SecretsConfig().scoring)
    assert from_mapping(SecretsConfig, json.loads(encode(dataclasses.asdict(given)))) == given


def test_no_connection_to_the_ledger_is_read_by_two_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SQLite and the interpreter would each wait for the other, and the run would never end."""
    readers: dict[Ledger, set[int]] = {}
    read = Ledger.read

    def seen(ledger: Ledger, *query: Any) -> Any:
        readers.setdefault(ledger, set()).add(threading.get_ident())
        return read(ledger, *query)

    monkeypatch.setattr(Ledger, "read", seen)
    config = SecretsConfig(models=("simulated/gpt-4o-mini",), num_interactions=2, results=None)
    run = study(config).run("async:2", ledger=tmp_path / "ledger.db")
    assert run.summary is not None and len(readers) > 1
    assert [len(threads) for threads in readers.values()] == [1] * len(readers)


def test_what_is_given_and_not_used_is_said_when_a_run_begins() -> None:
    made = study(SecretsConfig(models=MODELS[:1], secrets=("a b", "c d", "e f"), targeted="a b", results=None))
    assert [remark.split(" are used")[0] for remark in made.remarks][:1] == ["only the first 2 of 3 secrets"]
    assert "targeted is not used" in made.remarks[1]
