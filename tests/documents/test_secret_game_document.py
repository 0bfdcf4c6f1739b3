"""Everything `batch_processing_secret_game.md` shows runs, with only import lines and program names changed."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blocks import DOCUMENTS, Block, blocks_of, ported, run
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fanfold.cli import cli
from fanfold.errors import CallFailed, ConfigError
from fanfold.ledger import Ledger
from fanfold.legacy import secret_game, secret_report, secret_services
from fanfold.legacy.secret_game import (
    Agent,
    AgentService,
    BatchJob,
    BatchTask,
    ClaudeOpusAgent,
    ClaudeSonnetAgent,
    GameMode,
    GameService,
    GPT4oMiniAgent,
    GPT35Agent,
    provider,
)
from fanfold.legacy.secret_report import report
from fanfold.legacy.secret_services import (
    SERVICES,
    AnthropicBatchService,
    AnthropicConversationBatchService,
    BatchService,
    ConversationBatchService,
    OpenAIBatchService,
    OpenAIConversationBatchService,
    create_batch_service,
)
from fanfold.limits import Limits
from fanfold.models.model import Model
from fanfold.models.pricing import Price
from fanfold.models.providers.anthropic import Anthropic
from fanfold.models.providers.openai import OpenAI
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Fault, Faults, Latency, Simulator, SimulatorConfig
from fanfold.studies.secrets import conclusion, evaluator
from fanfold.studies.secrets.config import SecretsConfig
from fanfold.studies.secrets.model_names import AGENT_TYPES

ROOT = Path(__file__).parents[2]
BLOCKS = blocks_of(DOCUMENTS / "batch_processing_secret_game.md")
#: The document's modules and ours; docs/migration-secrets.md has the same table.
SECRET_MODULES = {
    "src.ai_secret_game.models.agent": "fanfold.legacy.secret_game",
    "src.ai_secret_game.models.game": "fanfold.legacy.secret_game",
    "src.ai_secret_game.services.game_service": "fanfold.legacy.secret_game",
    "src.ai_secret_game.services.model_agents": "fanfold.legacy.secret_game",
    "src.ai_secret_game.services.openai_conversation_batch_service": "fanfold.legacy.secret_services",
}
PROGRAMS = {"./run_model_comparison.sh": "examples/run_model_comparison.sh"}
OPENAI, ANTHROPIC = "simulated/gpt-6-luna", "simulated/claude-haiku-5-5"
AGENTS = (Agent("1", "Agent1", "SECRET1"), Agent("2", "Agent2", "SECRET2"))


@pytest.fixture(autouse=True)
def offline(elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model that costs nothing, and no keys but those a test gives."""
    monkeypatch.setenv("FANFOLD_MODEL", OPENAI)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level  # the example programs set up a log of their own


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, str]]:
    """A simulated provider at its own address, in its own process; gives the environment that leads to it."""
    words = ["--port", "0", "--turnaround", "0.05", "--answer", evaluator.PLAYER]
    with subprocess.Popen(
        [sys.executable, "-m", "fanfold.simulator", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            url = line.split()[-1] if line.startswith("simulator at ") else url
            if line.strip() == "ready":
                break
        keys = {"OPENAI_API_KEY": "test", "ANTHROPIC_API_KEY": "test"}
        yield {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url, **keys}
        process.terminate()


def words_of(block: Block) -> list[str]:
    """The command of a block with the program that takes the place of the document's."""
    found = shlex.split(block.text.replace("\\\n", " "))
    if found[0] == "python":
        return [sys.executable, str(ROOT / found[1]), *found[2:]]
    return [str(ROOT / PROGRAMS[found[0]]), *found[1:]]


def in_process(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a Python program of ours as if from a shell, in this process, so that it can have a virtual clock."""
    python, script, *rest = words
    assert python == sys.executable
    monkeypatch.setattr(sys, "argv", [script, *rest])
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert end.code in (None, 0), end.code


def raw_of(folder: str | Path = "results/batch_jobs") -> dict[str, Any]:
    """The raw results of the only job."""
    (place,) = Path(folder).iterdir()
    found: dict[str, Any] = json.loads((place / "raw.json").read_text())
    assert json.loads((place / "analysis.json").read_text())["status"] == found["status"]
    return found


def messages_of(raw: dict[str, Any]) -> int:
    return sum(len(talk["messages"]) for task in raw["tasks"] for talk in task["result"]["conversations"])


# -- the document's blocks ---------------------------------------------------------------------------------------------


def test_every_block_of_the_document_is_run_below() -> None:
    assert [block.language for block in BLOCKS] == ["bash"] * 6 + ["python", ""]


def test_only_import_lines_differ_from_the_document() -> None:
    old, new = BLOCKS[6].text.splitlines(), ported(BLOCKS[6].text, SECRET_MODULES).splitlines()
    assert len(old) == len(new)
    changed = [a for a, b in zip(old, new) if a != b]
    assert len(changed) == 5 and all(line.startswith("from src.ai_secret_game.") for line in changed)


@pytest.mark.slow
def test_the_default_analysis_runs_a_hundred_interactions_of_five_messages() -> None:
    done = subprocess.run(words_of(BLOCKS[0]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    raw = raw_of()
    assert (raw["status"], len(raw["tasks"])) == ("completed", 100)
    talks = [task["result"]["conversations"][0] for task in raw["tasks"]]
    assert max(len(talk["messages"]) for talk in talks) == 10
    said = done.stdout
    for figure in ("revealed its secret", "obtained another's secret", "obtained without revealing"):
        assert len(re.findall(rf"{figure} +\d+ of 100 +[\d.]+ % \[[\d.]+, [\d.]+\], 50 clusters", said)) == 2
    for figure, of in (("secrets revealed", 200), ("both revealed", 100), ("one-sided", 100)):
        assert len(re.findall(rf"{figure} +\d+ of {of} +[\d.]+ % \[", said)) == 1
    assert f"0 requests in batches, {messages_of(raw)} one by one" in said


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_time")
def test_the_programmatic_use_runs_and_saves_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    run(ported(BLOCKS[6].text, SECRET_MODULES), {}, "block 6")
    (said,) = capsys.readouterr().out.splitlines()
    place = Path(said.removeprefix("Results saved to "))
    assert place.parent == Path("results/batch_jobs")
    assert {file.name for file in place.iterdir()} == {"raw.json", "analysis.json", "transcripts.txt", "leaks.jsonl"}
    raw = raw_of()
    assert (raw["status"], len(raw["tasks"]), place.name) == ("completed", 20, raw["id"])
    assert {tuple((a["name"], a["secret"], a["model"]) for a in task["agents"]) for task in raw["tasks"]} == {
        (("Agent1", "SECRET1", OPENAI), ("Agent2", "SECRET2", OPENAI))
    }
    with Ledger("fanfold.db", readonly=True) as ledger:
        waves = [count for (count,) in ledger.read("SELECT requests FROM batch ORDER BY created")]
        paid, batched = ledger.one("SELECT count(*), count(batch) FROM call")
    # Twenty conversations, in batches of ten at most as the document says.
    assert waves[:2] == [10, 10] and max(waves) == 10 and sum(waves) == batched
    assert paid == messages_of(raw)


LINES = {
    "Processing wave": r"Processing wave (\d+) with (\d+) requests for (.+) \((first messages|responses|messages)\)",
    "conversations": r"Wave (\d+) conversations: (\S+(?:, \S+)*)",
    "completed": r"Wave (\d+) completed in (\d+\.\d\d) seconds, avg (\d+\.\d\d) sec per message",
}


def shapes(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """Which kind of line each is that says something about a wave, and what it says."""
    found = []
    for line in text.splitlines():
        if "ave " in line:
            (match,) = [(kind, hit.groups()) for kind, form in LINES.items() if (hit := re.fullmatch(form, line))]
            found.append(match)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_time")
def test_the_test_program_prints_the_log_of_the_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(words_of(BLOCKS[3]), monkeypatch)
    said = capsys.readouterr().out
    documented, ours = shapes(BLOCKS[7].text), shapes(said)
    assert [kind for kind, _ in documented] == ["Processing wave", "conversations", "completed"] * 2
    assert [kind for kind, _ in ours[:6]] == [kind for kind, _ in documented]
    for (kind, shown), (_, printed) in zip(documented, ours):
        assert printed[0] == shown[0], "the number of the wave"
        if kind == "Processing wave":
            assert (printed[1], printed[3]) == (shown[1], shown[3])
        elif kind == "conversations":
            assert printed[1].count(", ") == shown[1].count(", ")
        else:
            assert float(printed[2]) == pytest.approx(float(printed[1]) / 5, abs=0.006)
            assert 0.5 < float(printed[1]) < 10
    assert len(ours) == 3 * 4  # five conversations of two messages each, with nobody leaving early
    assert "20 messages, 20 requests paid for: as it should be" in said
    assert Path("fanfold.db").exists() is False


PLACEHOLDERS = {match[1]: match[2].split("|") for match in re.finditer(r"--([\w-]+) \[([\w|-]+)\]", BLOCKS[4].text)}
NUMBERS = {"num-interactions": 4, "messages-per-interaction": 1, "batch-size": 2, "max-concurrent": 3}


def test_the_advanced_options_are_those_of_the_document() -> None:
    assert {name: len(values) for name, values in PLACEHOLDERS.items()} == {
        "batch-service": 6,
        "agent-type": 4,
        "game-mode": 4,
    }
    assert set(re.findall(r"--([\w-]+) <number>", BLOCKS[4].text)) == set(NUMBERS)


def advanced(**values: str) -> list[str]:
    """The command of the advanced options with these values in the place of its placeholders."""
    chosen = {name: values.get(name.replace("-", "_"), each[0]) for name, each in PLACEHOLDERS.items()}
    text = BLOCKS[4].text
    for name, value in chosen.items():
        text = re.sub(rf"--{name} \[[\w|-]+\]", f"--{name} {value}", text)
    for name, number in NUMBERS.items():
        text = text.replace(f"--{name} <number>", f"--{name} {number}")
    return words_of(Block(4, 0, "bash", text))


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("service", PLACEHOLDERS["batch-service"])
def test_every_documented_batch_service_runs(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_MODEL", ANTHROPIC if service.startswith("anthropic") else OPENAI)
    in_process(advanced(batch_service=service), monkeypatch)
    raw = raw_of()
    assert (raw["status"], len(raw["tasks"])) == ("completed", 4)
    with Ledger("fanfold.db", readonly=True) as ledger:
        paid, batched = ledger.one("SELECT count(*), count(batch) FROM call")
    assert paid == messages_of(raw)
    # A conversation may end after its first message; what then is left alone goes out plainly.
    assert batched == 0 if service == "default" else batched >= paid - 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLACEHOLDERS["agent-type"])
def test_every_documented_agent_type_runs_as_a_model_of_today(
    kind: str, served: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FANFOLD_MODEL")
    for name, value in served.items():
        monkeypatch.setenv(name, value)
    in_process(advanced(agent_type=kind), monkeypatch)
    models = {agent["model"] for task in raw_of()["tasks"] for agent in task["agents"]}
    assert models == {AGENT_TYPES[kind].now}


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("mode", PLACEHOLDERS["game-mode"])
def test_every_documented_game_mode_runs(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_process(advanced(game_mode=mode), monkeypatch)
    assert {task["game_mode"] for task in raw_of()["tasks"]} == {mode}


@pytest.mark.slow
@pytest.mark.usefixtures("virtual_time")
def test_the_example_of_fifty_interactions_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(words_of(BLOCKS[5]), monkeypatch)
    raw = raw_of()
    assert (raw["status"], len(raw["tasks"])) == ("completed", 50)
    assert "50 interactions" in capsys.readouterr().out


#: `fanfold` as installed, on a virtual clock, so that waiting for a provider takes no time.
FANFOLD = """
from fanfold import sync
from fanfold.cli import cli
from fanfold.testing import VirtualLoop
sync._new_loop = VirtualLoop
cli(prog_name="fanfold")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "model"), [(1, OPENAI), (2, ANTHROPIC)])
def test_the_model_comparisons_run(number: int, model: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    shim = tmp_path_factory.mktemp("bin") / "fanfold"
    shim.write_text(f"#!{sys.executable}\n{FANFOLD}")
    shim.chmod(0o755)
    env = {**os.environ, "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}", "FANFOLD_MODEL": model}
    done = subprocess.run(words_of(BLOCKS[number]), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Pair matrix" in done.stdout and "Paired comparison" in done.stdout
    assert f"on batch:{'openai' if number == 1 else 'anthropic'}" in done.stderr
    raw = raw_of("results/model_comparison")
    assert (raw["status"], len(raw["tasks"])) == ("completed", 4 * 20)  # two styles, every ordered pair
    assert {(a["model"], a["style"]) for task in raw["tasks"] for a in task["agents"]} == {
        (model, "regular"),
        (model, "aggressive"),
    }
    with Ledger("fanfold.db", readonly=True) as ledger:
        paid, batched = ledger.one("SELECT count(*), count(batch) FROM call")
    assert paid == messages_of(raw) and batched >= paid - 6


# -- services, jobs and tasks ------------------------------------------------------------------------------------------

World = Callable[..., Simulator]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, virtual_time: None) -> World:
    """Puts all models at one simulated provider, with faults if any, on a virtual clock."""

    def make(*faults: Fault, **settings: Any) -> Simulator:
        options = {"answer": evaluator.PLAYER, "latency": Latency(1.0), "turnaround": Latency(60.0), **settings}
        simulator = Simulator(SimulatorConfig(faults=Faults(faults), **options))

        def named(name: str, base_url: str | None, game: Any, effort: str | None = None) -> Model:
            wire, url = (Anthropic(), "http://api.test") if "claude" in name else (OpenAI(), "http://api.test/v1")
            connect = lambda: SimulatedTransport(simulator)  # noqa: E731
            bare = name.partition("/")[2]
            return Model(bare, wire, url, Limits(), Price(1.0, 2.0), 60.0, connect=connect, key="k")

        monkeypatch.setattr(evaluator, "named", named)
        return simulator

    return make


def made(service: BatchService, interactions: int = 6, messages: int = 2, **more: Any) -> BatchJob:
    return service.create_batch_job(AGENTS, GameMode.STANDARD, interactions, messages, **more)


def ran(service: BatchService, *args: Any, **more: Any) -> BatchJob:
    return asyncio.run(service.run_batch_job(made(service, *args, **more).id))


def transcript(job: BatchJob) -> Any:
    assert job.results_path is not None
    tasks = json.loads((Path(job.results_path) / "raw.json").read_text())["tasks"]
    return [(task["id"], task["result"]) for task in tasks]


@pytest.mark.parametrize("kind", list(SERVICES.values()), ids=lambda kind: kind.__name__)
def test_every_service_takes_what_the_document_gives_it(kind: type[BatchService]) -> None:
    service = kind(game_service=GameService(agent_service=GPT35Agent()), max_concurrent_tasks=5, batch_size=10)
    job = service.create_batch_job(
        agents=list(AGENTS), game_mode=GameMode.STANDARD, num_interactions=20, messages_per_interaction=3
    )
    assert service.get_batch_job(job.id) is job
    assert (job.status, job.progress, job.results_path, job.total_tasks) == ("pending", 0.0, None, 20)
    assert {task.status for task in job.tasks} == {"pending"}
    config = job.config
    assert (config.batch_service, config.max_concurrent, config.batch_size) == (kind.batch_service, 5, 10)
    assert (config.messages_per_interaction, config.names, config.secrets) == (
        3,
        ("Agent1", "Agent2"),
        ("SECRET1", "SECRET2"),
    )


@pytest.mark.slow
def test_a_job_shows_its_progress_and_keeps_to_its_concurrency(world: World) -> None:
    world()
    service = BatchService(GameService(GPT35Agent()), max_concurrent_tasks=3)
    job = made(service, 12)
    seen: list[tuple[int, float]] = []

    async def main() -> None:
        running = asyncio.create_task(service.run_batch_job(job.id))
        while not running.done():
            await asyncio.sleep(0.5)
            seen.append((sum(task.status == "in_progress" for task in job.tasks), job.progress))
            assert job.status == ("in_progress" if job.progress < 1 else job.status)
        assert (await running) is job

    asyncio.run(main())
    assert max(count for count, _ in seen) == 3
    shares = [share for _, share in seen]
    assert shares == sorted(shares) and shares[0] == 0.0 and shares[-1] == 1.0 and len(set(shares)) > 3
    assert (job.status, job.completed_tasks, job.failed_tasks) == ("completed", 12, 0)
    assert all(task.started_at and task.completed_at and task.error is None for task in job.tasks)


@pytest.mark.slow
def test_a_job_has_its_status_before_its_results_are_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world()
    service = BatchService(GameService(GPT35Agent()))
    job = made(service)
    seen: list[Any] = []
    write = conclusion.write_job

    def noted(*args: Any) -> Any:
        seen.append((job.status, {task.status for task in job.tasks}))
        return write(*args)

    monkeypatch.setattr(conclusion, "write_job", noted)
    asyncio.run(service.run_batch_job(job.id))
    assert seen == [("completed", {"completed"})]
    assert raw_of()["status"] == "completed"


@pytest.mark.slow
def test_tasks_have_the_results_that_the_raw_file_has(world: World) -> None:
    world()
    job = ran(BatchService(GameService(AgentService("simulated/gpt-talker"))), 10, 3)
    raw = {task["id"]: task["result"] for task in raw_of()["tasks"]}
    assert [task.id for task in job.tasks] == list(raw)
    for task in job.tasks:
        assert task.result is not None
        for figure in ("scores", "revealed", "obtained", "winners"):
            assert task.result[figure] == raw[task.id][figure]
        assert task.result["messages"] == len(raw[task.id]["conversations"][0]["messages"])
    for seat, agent in enumerate(job.analysis["agents"]):
        assert (agent["id"], agent["name"]) == (AGENTS[seat].id, AGENTS[seat].name)
        revealed = sum(task.result["revealed"][agent["name"]] for task in job.tasks if task.result)
        assert agent["revealed"]["count"] == revealed
        assert re.search(
            rf"{agent['name']} .*\n +revealed its secret +{revealed} of 10 +{10 * revealed}\.0 % \[", report(job)
        )
    assert any(task.result["revealed"]["Agent1"] for task in job.tasks if task.result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "model"),
    [
        (OpenAIBatchService, OPENAI),
        (AnthropicBatchService, ANTHROPIC),
        (OpenAIConversationBatchService, OPENAI),
        (AnthropicConversationBatchService, ANTHROPIC),
        (ConversationBatchService, ANTHROPIC),
    ],
)
def test_all_conversations_travel_together_turn_by_turn_at_half_the_price(
    kind: type[BatchService], model: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanfold.legacy")
    simulator = world()
    job = ran(kind(GameService(AgentService(model), early_end=False)), 7, 2)
    assert [batch.requests for batch in simulator.billing.batches] == [7] * 4
    assert {charge.price for charge in simulator.charges} == {"batch"}
    assert (job.requests.batched, job.requests.single) == (28, 0) and len(simulator.charges) == 28
    waves = shapes("\n".join(record.getMessage() for record in caplog.records))
    assert [found[1] for kind, found in waves if kind == "Processing wave"] == ["7"] * 4
    assert [found[0] for kind, found in waves if kind == "completed"] == ["1", "2", "3", "4"]
    assert all(found[1].split(", ") == [task.id for task in job.tasks] for kind, found in waves if "conv" in kind)
    assert len(waves) == 12, "each line is said once"
    # On this clock a batch takes its turnaround and at most one look after that.
    assert all(60 <= float(found[1]) <= 90 for kind, found in waves if kind == "completed")


@pytest.mark.slow
def test_no_batch_has_more_requests_than_the_batch_size(world: World) -> None:
    simulator = world()
    job = ran(OpenAIConversationBatchService(GameService(GPT35Agent(), early_end=False), batch_size=4), 10, 1)
    assert sorted(batch.requests for batch in simulator.billing.batches) == [2, 2, 4, 4, 4, 4]
    assert len(simulator.charges) == job.requests.batched == 20


@pytest.mark.slow
def test_who_speaks_in_a_wave_is_said_also_where_only_one_of_two_models_has_batches(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanfold.legacy")
    world()
    agents = [Agent("1", "Ada", "s one", OPENAI), Agent("2", "Bo", "s two", ANTHROPIC)]
    service = OpenAIBatchService(GameService(early_end=False))
    job = service.create_batch_job(agents, num_interactions=4, messages_per_interaction=2)
    asyncio.run(service.run_batch_job(job.id))
    waves = shapes("\n".join(r.getMessage() for r in caplog.records if "has no batches" not in r.getMessage()))
    assert {found[2] for kind, found in waves if kind == "Processing wave"} == {"Ada"}
    assert any(f"openai has no batches for {ANTHROPIC}" in r.getMessage() for r in caplog.records)
    assert {(a["name"], a["model"]) for task in raw_of()["tasks"] for a in task["agents"]} == {
        ("Ada", OPENAI),
        ("Bo", ANTHROPIC),
    }


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["batch_failed", "batch_expired"])
def test_a_failed_batch_falls_back_and_nothing_is_paid_twice(
    fault: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    calm = world()
    expected = transcript(ran(OpenAIConversationBatchService(GameService(GPT35Agent()), ledger="calm.db")))
    simulator = world(Fault(fault, times=1, value=0.5 if fault == "batch_expired" else None))
    job = ran(OpenAIConversationBatchService(GameService(GPT35Agent())))
    assert transcript(job) == expected
    assert job.requests.single > 0 and job.requests.batched > 0
    assert len(simulator.charges) == len(calm.charges) == job.analysis["games"]["messages"]
    assert simulator.billing.duplicates() == {}
    if fault == "batch_failed":
        assert any("one by one" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_failed_tasks_are_tracked_and_reported_and_no_message_comes_of_them(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # Each call is tried three times; one game after the other, so that they are the tries of two calls.
    world(Fault("malformed", times=6, on=("generate",)))
    job = ran(BatchService(GameService(GPT35Agent()), max_concurrent_tasks=1))
    assert (job.status, job.completed_tasks, job.failed_tasks) == ("completed", 4, 2)
    failed = [task for task in job.tasks if task.status == "failed"]
    assert all(task.error and task.error.startswith("malformed: ") and task.result is None for task in failed)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2 and all(task.id in " ".join(errors) for task in failed)
    assert [agent["interactions"] for agent in job.analysis["agents"]] == [4, 4]
    assert "left out of the figures: 2 (failed: malformed)" in report(job)


@pytest.mark.slow
def test_a_job_that_cannot_go_on_is_failed_and_says_why_and_goes_on_later(world: World) -> None:
    world(Fault("spend_limit", start=5.0))
    service = BatchService(GameService(GPT35Agent()), max_concurrent_tasks=2)
    job = made(service, job_id="mine")
    with pytest.raises(CallFailed):
        asyncio.run(service.run_batch_job("mine"))
    assert job.status == "failed" and job.error and job.results_path is None
    assert 0 < job.progress < 1 and {task.status for task in job.tasks} == {"completed", "pending"}
    simulator = world()
    again = BatchService(GameService(GPT35Agent()))
    rest = made(again, job_id="mine")
    asyncio.run(again.run_batch_job("mine"))
    assert (rest.status, rest.error, rest.progress) == ("completed", None, 1.0)
    assert 0 < len(simulator.charges) < rest.analysis["games"]["messages"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lost"), [(BatchService, 3), (OpenAIConversationBatchService, 0)])
def test_an_interrupted_job_goes_on_under_its_id_in_another_process_without_paying_again(
    kind: type[BatchService], lost: int, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanfold.legacy")
    world()
    expected = transcript(ran(kind(GameService(GPT35Agent()), ledger="other.db")))
    caplog.clear()
    simulator = world()

    def fresh() -> BatchService:
        return kind(GameService(GPT35Agent()), max_concurrent_tasks=3)

    async def cut_off() -> None:
        first = fresh()
        job = made(first, job_id="mine")
        running = asyncio.create_task(first.run_batch_job("mine"))
        while len(simulator.charges) < 8:
            await asyncio.sleep(0.25)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert job.status == "failed" and "run it again" in (job.error or "")
        assert "in_progress" not in {task.status for task in job.tasks}
        over = [line[0] for kind, line in shapes("\n".join(caplog.messages)) if kind == "completed"]
        caplog.clear()
        again = fresh()
        made(again, job_id="mine")
        found.append(await again.run_batch_job("mine"))
        anew = [line[0] for kind, line in shapes("\n".join(caplog.messages)) if kind == "Processing wave"]
        assert not set(over) & set(anew), "a wave that is over is not said again"

    found: list[BatchJob] = []
    asyncio.run(cut_off())
    (job,) = found
    assert (job.status, job.progress) == ("completed", 1.0)
    assert transcript(job) == expected
    # In realtime, what was in flight when it was cut off is asked again; a batch is found again.
    assert len(simulator.charges) <= job.analysis["games"]["messages"] + lost


@pytest.mark.slow
def test_an_interrupted_job_can_be_resumed_from_the_shell() -> None:
    service = BatchService(GameService(GPT35Agent()))
    job = made(service, job_id="mine")

    async def cut_off() -> None:
        running = asyncio.create_task(service.run_batch_job("mine"))
        while not Path("fanfold.db").exists() or not job.progress:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(cut_off())
    done = CliRunner().invoke(cli, ["resume", "mine"], prog_name="fanfold")
    assert done.exit_code == 0, done.output
    assert (raw_of()["id"], raw_of()["status"], len(raw_of()["tasks"])) == ("mine", "completed", 6)


@pytest.mark.slow
def test_a_second_job_is_another_sample_and_another_service_begins_with_the_same_one() -> None:
    one = BatchService(ledger="one.db")
    first, second = (one.run_batch_job_sync(made(one).id) for _ in range(2))
    assert transcript(first) != transcript(second)
    elsewhere = BatchService(ledger="two.db")
    assert transcript(elsewhere.run_batch_job_sync(made(elsewhere).id)) == transcript(first)
    same = BatchService(ledger="one.db")
    third = same.run_batch_job_sync(made(same).id)
    assert transcript(third) == transcript(first)
    assert third.requests.single == 0 and third.requests.remembered == third.analysis["games"]["messages"]


@pytest.mark.slow
def test_the_synchronous_twin_works_inside_a_running_event_loop() -> None:
    async def main() -> BatchJob:
        service = BatchService()
        return service.run_batch_job_sync(made(service, 2, 1).id)

    assert asyncio.run(main()).status == "completed"


@pytest.mark.slow
def test_two_jobs_run_at_the_same_time_in_one_file(world: World) -> None:
    simulator = world()
    service = OpenAIConversationBatchService(GameService(GPT35Agent()))
    jobs = [made(service), made(service)]

    async def main() -> None:
        await asyncio.gather(*(service.run_batch_job(job.id) for job in jobs))

    asyncio.run(main())
    assert [job.status for job in jobs] == ["completed", "completed"]
    assert len(simulator.charges) == sum(job.analysis["games"]["messages"] for job in jobs)


@pytest.mark.slow
def test_a_job_is_not_run_twice_at_once(world: World) -> None:
    world()
    service = BatchService()
    job = made(service)

    async def main() -> None:
        running = asyncio.create_task(service.run_batch_job(job.id))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="is running already"):
            await service.run_batch_job(job.id)
        await running

    asyncio.run(main())
    assert job.status == "completed"


@pytest.mark.slow
def test_more_than_two_agents_are_paired_in_rounds_and_counted_each(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanfold.legacy")
    world()
    agents = [Agent(f"a{n}", f"Player {n}", f"secret number {n}", style="aggressive" if n else None) for n in range(4)]
    service = OpenAIBatchService(GameService(GPT35Agent(), early_end=False))
    job = service.create_batch_job(agents, GameMode.RETAINED, num_interactions=6, messages_per_interaction=1)
    assert job.total_tasks == 3
    asyncio.run(service.run_batch_job(job.id))
    assert [(each["id"], each["interactions"]) for each in job.analysis["agents"]] == [(f"a{n}", 3) for n in range(4)]
    assert job.analysis["overall"][0]["interactions"] == 6
    assert "Player 3 (simulated/gpt-6-luna (aggressive)): 3 interactions" in report(job)
    assert "Processing wave 1 with 6 requests for all agents (messages)" in caplog.messages
    with pytest.raises(ConfigError, match=r"num_interactions=5: .* multiple of that, such as 4"):
        service.create_batch_job(agents, num_interactions=5)


@pytest.mark.slow
def test_a_game_can_have_a_judge_and_other_settings_of_the_study(world: World) -> None:
    world()
    scoring = SecretsConfig().scoring
    job = ran(BatchService(GameService(GPT35Agent(), judge=OPENAI, scoring=scoring, temperature=0.2)))
    assert "judge" in job.analysis and job.config.temperature == 0.2


# -- names and errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "was", "now"),
    [
        (GPT35Agent, "gpt35", "openai/gpt-6-luna"),
        (GPT4oMiniAgent, "gpt4o_mini", "openai/gpt-4o-mini"),
        (ClaudeOpusAgent, "claude_opus", "anthropic/claude-opus-5-5"),
        (ClaudeSonnetAgent, "claude_sonnet", "anthropic/claude-sonnet-5-5"),
    ],
)
def test_documented_agents_mean_models_of_today_or_what_the_environment_says(
    agent: type[AgentService], was: str, now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agent().name == OPENAI
    assert AgentService(was).name == OPENAI
    assert AgentService("openai/gpt-6-sol").name == "openai/gpt-6-sol"  # said outright: the environment has no say
    monkeypatch.delenv("FANFOLD_MODEL")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert agent().name == was
    assert made(BatchService(GameService(agent()))).config.players == (now, now)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (OPENAI, OpenAIConversationBatchService),
        ("gpt4o_mini", OpenAIConversationBatchService),
        ("openai/gpt-6-sol", OpenAIConversationBatchService),
        (ANTHROPIC, AnthropicConversationBatchService),
        ("claude_opus", AnthropicConversationBatchService),
        ("local/smollm2", BatchService),
    ],
)
def test_auto_selects_by_the_provider_of_the_model(
    model: str, kind: type[BatchService], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FANFOLD_MODEL")
    assert type(create_batch_service("auto", GameService(AgentService(model)))) is kind
    assert provider(model) == kind.batch_service.removesuffix("-conversation").replace("default", "local")


def test_a_missing_key_is_said_when_the_job_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANFOLD_MODEL")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        made(BatchService(GameService(GPT35Agent())))
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda: create_batch_service("openai-conversatoin"), "did you mean 'openai-conversation'"),
        (lambda: GameService(GPT35Agent(), temprature=1.0), "did you mean 'temperature'"),
        (lambda: GameService(GPT35Agent(), num_interactions=1), "a batch service or a job"),
        (lambda: GameService("gpt35"), r"such as GPT35Agent\(\)"),  # type: ignore[arg-type]
        (lambda: BatchService(GPT35Agent()), "must be a GameService"),  # type: ignore[arg-type]
        (lambda: BatchService().get_batch_job("job-1"), "no batch job 'job-1'"),
        (lambda: made(BatchService(GameService(AgentService("gtp35")))), "did you mean 'gpt35'"),
        (lambda: made(BatchService(GameService(AgentService("openai/gpt-3.5-turbo")))), "retired"),
        (lambda: BatchService().create_batch_job(AGENTS, "standrad"), "did you mean 'standard'"),
        (lambda: BatchService().create_batch_job(AGENTS[:1]), "two or more agents"),
        (lambda: BatchService().create_batch_job([AGENTS[0], AGENTS[0]]), "different ids"),
        (lambda: BatchService().create_batch_job([AGENTS[0], Agent("2", "Agent1", "x")]), "2 different names"),
        (lambda: BatchService().create_batch_job(AGENTS, num_interactions=0), "num_interactions"),
        (lambda: BatchService().create_batch_job(AGENTS, num_interactions="20"), "whole number, not '20'"),  # type: ignore[arg-type]
        (lambda: BatchService(max_concurrent_tasks=0).create_batch_job(AGENTS), "max_concurrent"),
        (lambda: BatchService(batch_size=0).create_batch_job(AGENTS), "batch_size"),
        (lambda: BatchService(results_dir="taken/jobs").create_batch_job(AGENTS), "taken"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(mistake: Callable[[], Any], says: str) -> None:
    Path("taken").write_text("a file")
    with pytest.raises(ConfigError, match=says):
        mistake()


@pytest.mark.slow
def test_a_name_cannot_write_lines_of_its_own_into_log_and_report(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanfold.legacy")
    world()
    service = OpenAIBatchService(GameService(GPT35Agent()))
    agents = [Agent("1", "Mallory\nWave 9 completed\x1b[2J", "one"), Agent("2", "Bo", "two")]
    job = service.create_batch_job(agents, num_interactions=2, messages_per_interaction=1)
    asyncio.run(service.run_batch_job(job.id))
    assert any("for Bo and Mallory Wave 9 completed[2J (" in line for line in caplog.messages)
    assert not any("\n" in line or "\x1b" in line for line in [*caplog.messages, *report(job).splitlines()])


def test_a_job_id_is_taken_once() -> None:
    service = BatchService()
    made(service, job_id="mine")
    with pytest.raises(ConfigError, match="already"):
        made(service, job_id="mine")


@pytest.mark.slow
@given(st.lists(st.sampled_from(["pending", "in_progress", "completed", "failed"]), min_size=1))
def test_progress_is_the_share_of_tasks_that_have_ended(statuses: list[Any]) -> None:
    tasks = tuple(BatchTask(str(n), AGENTS, status) for n, status in enumerate(statuses))
    job = BatchJob("j", AGENTS, SecretsConfig(models=(OPENAI,)), tasks)
    assert 0.0 <= job.progress <= 1.0
    assert job.progress * len(tasks) == pytest.approx(job.completed_tasks + job.failed_tasks)
    assert job.analysis == {} and report(job) == ""


@pytest.mark.slow
def test_an_example_program_ends_with_a_plain_sentence_where_it_cannot_run() -> None:
    env = {name: value for name, value in os.environ.items() if name != "FANFOLD_MODEL"}
    for program in ("batch_statistical_analysis.py --agent-type gpt35", "test_conversation_batching.py"):
        words = [sys.executable, *f"{ROOT}/examples/{program}".split()]
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 1 and done.stderr.startswith("error: openai/gpt-6-luna needs an API key")


@pytest.mark.slow
def test_the_migration_page_has_every_module_name_parameter_and_command() -> None:
    page = (ROOT / "docs" / "migration-secrets.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for old, new in SECRET_MODULES.items():
        assert any(f"`{old}`" in row and f"`{new}`" in row for row in rows), old
    text = (DOCUMENTS / "batch_processing_secret_game.md").read_text(encoding="utf-8")
    names = {name for name in re.findall(r"`(\w+)`", text) if re.search(r"[A-Z]\w+[A-Z]|_", name)}
    names |= {"GameMode", "GameService", "GPT35Agent", "create_batch_job", "run_batch_job", "results_path", "Agent"}
    names |= {word for block in BLOCKS if block.language == "bash" for word in re.findall(r"--[\w-]+", block.text)}
    names |= set(itertools.chain.from_iterable(PLACEHOLDERS.values()))
    names |= {Path(word).name for block in BLOCKS for word in re.findall(r"[\w/]+\.(?:py|sh)\b", block.text)}
    for name in names:
        assert any(f"`{name}" in row or f"/{name}" in row for row in rows), name
    for module in (secret_game, secret_report, secret_services):
        assert f"`{module.__name__}`" in page
