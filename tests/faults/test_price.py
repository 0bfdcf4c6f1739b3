"""A batch is a promise about the price: whatever a provider does with it, every call is paid once, at half price."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, Run, Study, Sweep
from fanfold.capabilities import Capabilities
from fanfold.events import Event, Notice, Ticked
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.http_exchange import Response
from fanfold.models.model import Model
from fanfold.models.naming import model
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Latency, Simulator, SimulatorConfig
from fanfold.simulator.faults import Fault, Faults
from fanfold.simulator.limits import AccountLimits
from fanfold.simulator.state import owner_of
from fanfold.studies.secrets.config import SecretsConfig
from fanfold.studies.secrets.evaluator import GameEvaluator
from fanfold.studies.secrets.game import Game
from fanfold.studies.secrets.study import study as secrets
from fanfold.testing import run_virtual

NAMES = {"openai": "gpt-4o-mini", "anthropic": "claude-haiku-4-5"}
STYLES = pytest.mark.parametrize("style", list(NAMES))
CONVERSATIONS = 40

pytestmark = pytest.mark.slow


class World:
    """A simulated provider, a model there, and the sentences that the user reads."""

    def __init__(self, style: str, *faults: Fault, **settings: Any) -> None:
        settings = {"turnaround": Latency(600.0, 0.5), "latency": Latency(1.0), **settings}
        self.simulator = Simulator(SimulatorConfig(faults=Faults(faults), **settings))
        transport = SimulatedTransport(self.simulator)
        self.model = replace(model(f"simulated/{NAMES[style]}"), connect=lambda: transport, key="k")
        self.said: list[str] = []
        self.waits: set[str] = set()

    def watch(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.said.append(event.message)
        if isinstance(event, Ticked) and event.waiting:
            self.waits.add(event.waiting)

    def converse(self, executor: Any, ledger: Path, **options: Any) -> Run[Any]:
        """The secret game, with its own conversations, replies and points."""
        config = SecretsConfig(
            models=(f"simulated/{self.model.name}",),
            num_interactions=CONVERSATIONS,
            messages_per_interaction=2,
            early_end=False,
            results=None,
        )
        study = secrets(config)
        study = replace(study, evaluate=Playing(models={f"simulated/{self.model.name}": self.model}))
        return run_virtual(study.run_async(executor, ledger=ledger, watch=self.watch, **options))

    @property
    def prices(self) -> dict[str, int]:
        prices = [charge.price for charge in self.simulator.charges]
        return {"batch": prices.count("batch"), "realtime": prices.count("realtime")}

    @property
    def waves(self) -> list[int]:
        return [batch.requests for batch in self.simulator.billing.batches]


@dataclass(frozen=True, eq=False)
class Playing(GameEvaluator):
    """The study's own evaluation on given models."""

    models: Mapping[str, Model] = field(default_factory=dict)

    def _model(self, name: str, game: Game) -> Model:
        return self.models[name]


def words(ledger: Path) -> list[tuple[str, str]]:
    """Every request and what was replied."""
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        rows = db.execute("SELECT request, reply FROM call").fetchall()
    return sorted((request, json.loads(reply)["text"]) for request, reply in rows)


def states(ledger: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        return [state for (state,) in db.execute("SELECT DISTINCT state FROM batch ORDER BY state")]


FAILING = "batches that fail"
TROUBLES: dict[str, dict[str, Any]] = {
    "an enqueued limit of 5,000 tokens": {"limits": AccountLimits(enqueued_tokens=5000)},
    "batches that expire 40 % done": {"faults": [Fault("batch_expired", value=0.4)]},
    "40 % of batches expire": {"faults": [Fault("batch_expired", probability=0.4)], "most": 10},
    "half of the batches are cancelled": {"faults": [Fault("batch_cancelled", probability=0.5)], "most": 10},
    "batches that are cancelled half done": {"faults": [Fault("batch_cancelled", value=0.5)]},
    FAILING: {"faults": [Fault("batch_failed", times=3)], "most": 10},  # a call that fails alone would be at fault
    "lines that fail for now": {"faults": [Fault("batch_overloaded", value=0.2)]},
}


@functools.cache
def calmly(style: str) -> tuple[int, str, list[tuple[str, str]]]:
    """The same conversations in realtime and without trouble: their calls, their trace and their words."""
    world = World(style)
    with tempfile.TemporaryDirectory() as folder:
        run = world.converse("async:20", Path(folder) / "realtime.db")
        run.ledger.close()
        return len(world.simulator.charges), run.trace, words(Path(folder) / "realtime.db")


#: Anthropic validates no batch as a whole: each of its lines fails alone.
STRUCK = [(trouble, style) for trouble in TROUBLES for style in NAMES if (trouble, style) != (FAILING, "anthropic")]


@pytest.mark.parametrize(("trouble", "style"), STRUCK)
def test_the_price_is_half_for_every_call_and_paid_once_and_the_words_are_those_of_realtime(
    trouble: str, style: str, tmp_path: Path
) -> None:
    settings = dict(TROUBLES[trouble])
    most = settings.pop("most", CONVERSATIONS)
    calls, trace, said = calmly(style)
    world = World(style, *settings.pop("faults", ()), **settings)
    run = world.converse(f"batch:{style}:{most}", tmp_path / "batch.db")
    assert world.prices == {"batch": calls, "realtime": 0}
    assert not world.simulator.billing.duplicates()
    assert run.progress.failures == 0 and run.trace == trace
    assert words(tmp_path / "batch.db") == said
    assert run.money.lines()[1] == f"{calls} of {calls} calls at half price"
    assert len(world.waves) > calls / most, "the trouble has struck"
    assert any("into the next batch" in text or "two halves" in text for text in world.said)


# -- the provider's queue ----------------------------------------------------------------------------------------------


@STYLES
def test_the_limit_of_the_queue_is_learnt_from_one_refusal_and_said(style: str, tmp_path: Path) -> None:
    world = World(style, limits=AccountLimits(enqueued_tokens=5000))
    world.converse(f"batch:{style}", tmp_path / "l.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "l.db")) as db:
        (note,) = db.execute("SELECT note FROM batch WHERE state = 'failed'").fetchone()
        assert db.execute("SELECT state, count(*) FROM batch WHERE state = 'failed'").fetchall() == [("failed", 1)]
    assert "5,000" in note
    told = [text for text in world.said if "fit into the provider's queue" in text]
    assert len(told) == 1 and f"{CONVERSATIONS} calls to" in told[0] and "Limit: 5,000 enqueued tokens" in told[0]


@STYLES
def test_a_queue_that_others_fill_is_waited_for_and_costs_nothing_more(style: str, tmp_path: Path) -> None:
    world = World(style, limits=AccountLimits(enqueued_tokens=5000))
    state = world.simulator._state

    async def main() -> Run[Any]:
        account = state.account(owner_of("k"), NAMES[style])
        account.enqueued += 4990
        asyncio.get_running_loop().call_later(1800.0, lambda: setattr(account, "enqueued", account.enqueued - 4990))
        return await asks(world, 20).run_async(f"batch:{style}", ledger=tmp_path / "l.db", watch=world.watch)

    run = run_virtual(main())
    assert run.progress.failures == 0 and world.prices == {"batch": 20, "realtime": 0}
    assert any("room in the batch queue" in text for text in world.waits), world.waits
    refusals = [state for state in all_states(tmp_path / "l.db") if state == "failed"]
    assert 1 < len(refusals) < 30, "half an hour of a full queue"


@dataclass(frozen=True)
class Asks:
    """An evaluator of some calls, each about what the one before said."""

    model: Model
    turns: int
    fingerprint: str = "asks"

    async def __call__(self, candidate: int, case: Case) -> float:
        text = ""
        for turn in range(self.turns):
            text = (await self.model.generate(f"say {candidate} {turn} {text}", max_tokens=20)).text
        return float(len(text))


def asks(world: World, count: int, turns: int = 1) -> Study[Any]:
    return Study(Sweep(range(count)), Asks(world.model, turns), window=count, name="asks")


def all_states(ledger: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        return [state for (state,) in db.execute("SELECT state FROM batch ORDER BY created")]


# -- full price ----------------------------------------------------------------------------------------------------


@STYLES
def test_only_the_deadline_costs_the_full_price_and_the_end_says_so(style: str, tmp_path: Path) -> None:
    world = World(style, Fault("batch_stuck", value=0.9, times=1))
    study = asks(world, 20)
    run = run_virtual(study.run_async(f"batch:{style}", batch_deadline="1h", ledger=tmp_path / "l.db"))
    assert world.prices == {"batch": 18, "realtime": 2} and not world.simulator.billing.duplicates()
    assert run.money.lines()[1] == "18 of 20 calls at half price; 2 at full price: deadline"
    assert states(tmp_path / "l.db") == ["cancelled"]


@STYLES
def test_the_deadline_counts_from_the_first_batch_of_a_call_and_while_it_waits_for_room(
    style: str, tmp_path: Path
) -> None:
    world = World(style, Fault("batch_expired", value=0.5), turnaround=Latency(1800.0))
    run = run_virtual(asks(world, 16).run_async(f"batch:{style}", batch_deadline=4000.0))
    assert run.money.full_price == {"deadline": world.prices["realtime"]} and world.waves == [16, 8, 4]
    assert run.progress.elapsed < 4100.0 and not world.simulator.billing.duplicates()
    world = World(style, limits=AccountLimits(enqueued_tokens=40), turnaround=Latency(1800.0))
    executor = BatchExecutor(style, enqueued=150, deadline=1000.0)
    run = run_virtual(asks(world, 16).run_async(executor))
    assert run.progress.failures == 0 and run.progress.elapsed < 1200.0
    assert run.money.full_price == {"deadline": world.prices["realtime"]} and world.prices["realtime"] >= 12
    assert not world.simulator.billing.duplicates() and world.waves == [4]


# -- calls that no batch will ever take -------------------------------------------------------------------------------


class Poisoned(SimulatedTransport):
    """Refuses a whole batch because of one call in it: Anthropic without a word which one, OpenAI by its line."""

    async def request(self, method: str, url: str, headers: Any, body: bytes | None = None, **options: Any) -> Response:
        if method == "POST" and url.endswith("/messages/batches") and b"say 3 0" in (body or b""):
            return Response(400, {}, b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}')
        if method == "POST" and url.endswith("/files") and body is not None:
            lines = body.split(b"\n")
            body = b"\n".join(line.replace(b'"POST"', b'"PUT"') if b"say 3 0" in line else line for line in lines)
        return await super().request(method, url, headers, body, **options)


@STYLES
def test_a_call_that_spoils_its_batch_fails_alone_and_the_others_keep_their_price(style: str) -> None:
    world = World(style)
    transport = Poisoned(world.simulator)
    world.model = replace(world.model, connect=lambda: transport)
    run = run_virtual(asks(world, 11).run_async(f"batch:{style}", watch=world.watch))
    assert run.progress.failures == 1 and world.prices == {"batch": 10, "realtime": 0}
    assert [result.number for result in run.results() if result.score is None or result.score != result.score] == [3]


@STYLES
def test_lines_that_are_refused_for_ever_are_the_failures_of_their_calls_only(style: str) -> None:
    world = World(style, Fault("batch_errors", value=0.4))
    run = run_virtual(asks(world, 20).run_async(f"batch:{style}"))
    assert 0 < run.progress.failures < 20 and world.waves == [20], "a 400 is not tried again"
    assert world.prices == {"batch": 20 - run.progress.failures, "realtime": 0}


@pytest.mark.parametrize("name", ["gpt-6-luna", "claude-opus-5-5"])
def test_a_parameter_that_lines_are_refused_for_is_left_out_of_the_next_batch(name: str, tmp_path: Path) -> None:
    style = "openai" if name.startswith("gpt") else "anthropic"
    world = World(style)
    transport = SimulatedTransport(world.simulator)
    world.model = replace(model(f"simulated/{name}"), connect=lambda: transport, key="k")
    object.__setattr__(world.model, "_capabilities", Capabilities())  # a table that knows nothing of this model

    async def evaluate(candidate: int, case: Case) -> float:
        return float(len((await world.model.generate(f"say {candidate}", temperature=0.5, max_tokens=20)).text))

    study = Study(Sweep(range(6)), evaluate, window=6)
    run = run_virtual(study.run_async(f"batch:{style}", ledger=tmp_path / "l.db", watch=world.watch))
    assert run.progress.failures == 0 and world.waves == [6, 6]
    assert world.prices == {"batch": 6, "realtime": 0}
    assert sum("does not take temperature" in text for text in world.said) == 1


# -- a day of waiting ----------------------------------------------------------------------------------------------


class Polled(SimulatedTransport):
    """Notes when each batch is looked at, and at first asks not to be disturbed for four minutes."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__(simulator)
        self.looks: list[float] = []

    async def request(self, method: str, url: str, headers: Any, body: bytes | None = None, **options: Any) -> Response:
        if method == "GET" and "/batches/" in url:
            self.looks.append(asyncio.get_running_loop().time())
            if len(self.looks) == 1:
                return Response(429, {"retry-after": "240"}, b"{}")
        return await super().request(method, url, headers, body, **options)


@STYLES
def test_a_batch_of_hours_is_looked_at_seldom_and_when_the_provider_asks(style: str) -> None:
    world = World(style, turnaround=Latency(6 * 3600.0))
    transport = Polled(world.simulator)
    world.model = replace(world.model, connect=lambda: transport)
    run = run_virtual(asks(world, 5).run_async(f"batch:{style}"))
    assert run.progress.failures == 0 and world.prices == {"batch": 5, "realtime": 0}
    assert transport.looks[1] - transport.looks[0] >= 240.0
    assert len(transport.looks) < 250
    assert transport.looks[-1] - 6 * 3600.0 < 700.0, "the end is seen soon"


@pytest.mark.parametrize("jump", [-9 * 3600.0, 9 * 3600.0])
@STYLES
def test_a_clock_that_jumps_while_a_laptop_sleeps_cancels_nothing(
    style: str, jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(style, turnaround=Latency(3600.0))
    wall = time.time

    async def main() -> Run[Any]:
        asyncio.get_running_loop().call_later(900.0, lambda: monkeypatch.setattr(time, "time", lambda: wall() + jump))
        return await asks(world, 5, turns=2).run_async(
            f"batch:{style}", batch_deadline="8h", ledger=tmp_path / "l.db", watch=world.watch
        )

    run = run_virtual(main())
    assert run.progress.failures == 0 and world.prices == {"batch": 10, "realtime": 0}
    assert states(tmp_path / "l.db") == ["done"] and world.said == []


@STYLES
def test_a_run_can_leave_each_wave_to_the_provider_and_is_picked_up_later(style: str, tmp_path: Path) -> None:
    world, ledger = World(style, turnaround=Latency(3 * 3600.0)), tmp_path / "l.db"
    took: list[float] = []

    async def main() -> Run[Any]:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            run = await asks(world, 5, turns=3).run_async(f"batch:{style}", ledger=ledger, run="r", detach=True)
            took.append(clock() - began)
            if run.reason != "detached":
                return run
            run.ledger.close()
            await asyncio.sleep(8 * 3600.0)

    run = run_virtual(main())
    assert run.progress.failures == 0 and world.prices == {"batch": 15, "realtime": 0}
    assert not world.simulator.billing.duplicates() and world.waves == [5, 5, 5]
    assert len(took) == 4 and max(took) < 30.0, "three submissions, one collection, none of them a wait"
    assert run.view.info.status == "finished" and all_states(ledger) == ["done"] * 3
