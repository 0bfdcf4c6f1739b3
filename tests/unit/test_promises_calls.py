"""What a run promises about its ledger and its model calls, seen from outside: rows, counts, and what was sent.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest

from fanfold import Case, MaxCost, Ok, Study, Sweep
from fanfold.calls import Metrics, traced
from fanfold.context import here
from fanfold.errors import LedgerError
from fanfold.events import EvaluationFinished, Event, WaveSent
from fanfold.ledger import Claims, Ledger
from fanfold.models import Model, model
from fanfold.models.simulated import SimulatedTransport
from fanfold.replies import KnownCalls, Replies
from fanfold.simulator import Latency, Simulator, SimulatorConfig
from fanfold.testing import run_virtual


def plain(candidate: float, case: Case) -> float:
    return float(candidate)


def simulated(config: SimulatorConfig | None = None, **options: Any) -> tuple[Model, Simulator]:
    """A model on a simulator of its own, in this process."""
    simulator = Simulator(config or SimulatorConfig())
    transport = SimulatedTransport(simulator)
    asked = replace(model("simulated/gpt-6-luna"), connect=lambda: transport, key="sk-canary", **options)
    return asked, simulator


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_run_whose_last_tell_cannot_be_written_does_not_end_as_if_it_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(sqlite3.Connection):
        def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if sql.startswith("UPDATE trial SET told"):
                raise sqlite3.OperationalError("database or disk is full")
            return super().executemany(sql, rows)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Full))
    with pytest.raises(LedgerError, match="full"):
        Study(Sweep([1]), plain).run(ledger=tmp_path / "ledger.db", run="run")


def test_a_free_slot_takes_the_next_evaluation_while_the_last_one_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is as slow as it can be: it does not move before the second evaluation has begun."""
    begun = threading.Semaphore(0)
    waited: list[bool] = []

    class Slow(sqlite3.Connection):
        def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:  # type: ignore[override]
            if "INTO evaluation" in sql and not waited:
                waited.append(begun.acquire(timeout=20) and begun.acquire(timeout=20))
            return super().executemany(sql, rows)

    async def evaluate(candidate: int, case: Case) -> float:
        begun.release()
        return float(candidate)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Slow))
    Study(Sweep(range(3)), evaluate, window=3).run("async:1", ledger=tmp_path / "ledger.db")
    assert waited == [True]


def test_what_is_shared_took_no_time_and_no_try(tmp_path: Path) -> None:
    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(0.01)
        return float(candidate)

    run = Study(Sweep([1, 1, 2, 1]), evaluate, window=4).run("async:4", ledger=tmp_path / "ledger.db")
    rows = list(run.ledger.read("SELECT trial, reused, seconds, tries FROM evaluation ORDER BY trial"))
    assert [row[1] for row in rows] == [0, 1, 0, 1]
    assert all((seconds, tries) == (0.0, 0) for _, reused, seconds, tries in rows if reused)
    assert all(seconds >= 0.009 and tries == 1 for _, reused, seconds, tries in rows if not reused)


def test_where_a_candidate_comes_from_is_kept_and_comes_back(tmp_path: Path) -> None:
    class Marked(Sweep[int]):
        def origin(self, candidate: int) -> Any:
            return None if candidate == 1 else {"parent": candidate - 1}

    run = Study(Marked([1, 2, 3]), plain).run(ledger=tmp_path / "ledger.db")
    origins = [origin for (origin,) in run.ledger.read("SELECT origin FROM trial ORDER BY number")]
    assert origins == [None, '{"parent":1}', '{"parent":2}']
    assert [result.trial.origin for result in run.results()] == [None, {"parent": 1}, {"parent": 2}]


def test_no_thread_is_left_behind_by_a_run(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    run = Study(Sweep([1, 2]), plain).run("threads:2", ledger=tmp_path / "ledger.db")
    left = [thread for thread in threading.enumerate() if thread not in before and "ledger" in thread.name]
    assert left == []
    run.ledger.close()


def test_every_evaluation_is_announced_once(tmp_path: Path) -> None:
    events: list[Event] = []
    Study(Sweep([1, 1, 2]), plain, cases=[0, 1]).run(watch=events.append)
    seen = [(event.trial, event.case) for event in events if isinstance(event, EvaluationFinished)]
    assert sorted(seen) == [(trial, case) for trial in range(3) for case in ("0", "1")]


# -- model calls -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_counts_of_calls_are_what_happened_over_all_parts_of_a_run(tmp_path: Path) -> None:
    asked, simulator = simulated()
    path = tmp_path / "ledger.db"

    async def evaluate(candidate: int, case: Case) -> float:
        replies = await asyncio.gather(*(asked.generate(f"Say {candidate % 4}.", max_tokens=5) for _ in range(2)))
        return float(len(replies[0].text))

    def go(candidates: range, name: str) -> Metrics:
        study = Study(Sweep(candidates), evaluate, window=2)
        run = run_virtual(study.run_async("async:2", ledger=path, run=name))
        return run.view.counts()

    first = go(range(4), "first")
    assert (first.calls, first.shared, first.cached, first.failed) == (4, 4, 0, 0)
    assert len(simulator.charges) == 4
    second = go(range(8), "second")
    assert (second.calls, second.cached) == (0, 16)
    assert len(simulator.charges) == 4, "nothing is paid for twice"


def test_a_call_in_flight_when_a_run_is_cancelled_is_kept_because_it_is_paid_for(tmp_path: Path) -> None:
    asked, simulator = simulated(SimulatorConfig(latency=Latency(10.0)))
    path = tmp_path / "ledger.db"
    begun = asyncio.Event()

    async def evaluate(candidate: int, case: Case) -> float:
        begun.set()
        return float(len((await asked.generate("Say something.", max_tokens=20)).text))

    evaluate.fingerprint = "asks one question"  # type: ignore[attr-defined]

    async def main() -> None:
        run = asyncio.create_task(Study(Sweep([1]), evaluate).run_async("async:1", ledger=path, run="run", grace=60.0))
        await begun.wait()
        await asyncio.sleep(1.0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    run_virtual(main())
    assert len(simulator.charges) == 1
    run = run_virtual(Study(Sweep([1]), evaluate).run_async("async:1", ledger=path, run="run"))
    assert run.progress.told == 1
    assert len(simulator.charges) == 1, "the reply of the cancelled part is used"


def test_only_a_call_that_is_on_its_way_is_shared_and_one_that_is_over_is_asked_again_or_remembered() -> None:
    for cache, charged, counts in (("refresh", 2, (2, 0, 0)), ("on", 1, (1, 0, 1))):
        asked, simulator = simulated()

        async def evaluate(candidate: int, case: Case, asked: Model = asked) -> float:
            for _ in range(2):
                await asked.generate("Say something.", max_tokens=5)
            return 0.0

        run = run_virtual(Study(Sweep([1]), evaluate).run_async("async:1", cache=cache))  # type: ignore[arg-type]
        metrics = run.view.counts()
        assert len(simulator.charges) == charged
        assert (metrics.calls, metrics.shared, metrics.cached) == counts


def test_with_the_cache_off_equal_calls_at_the_same_time_are_all_made() -> None:
    asked, simulator = simulated(SimulatorConfig(latency=Latency(1.0)))

    async def evaluate(candidate: int, case: Case) -> float:
        await asked.generate("the same for all", max_tokens=4)
        return float(candidate)

    run_virtual(Study(Sweep(range(3)), evaluate, window=3).run_async("async:3", cache="off"))
    assert len(simulator.charges) == 3


def test_a_call_that_fails_takes_nothing_from_the_budget() -> None:
    asked, simulator = simulated()

    async def evaluate(candidate: int, case: Case) -> float:
        await asked.generate("hello", max_tokens=4 if candidate else -1)  # the provider refuses a negative number
        return float(candidate)

    study = Study(Sweep(range(4)), evaluate, window=1, stop=MaxCost(0.9))
    run = run_virtual(study.run_async("async:1", cache="off"))
    assert (run.progress.failures, run.progress.told, len(simulator.charges)) == (1, 4, 3)


def test_what_a_block_paid_is_shared_by_its_cells() -> None:
    class Blocks:
        block_size = 4

        async def __call__(self, candidate: int, case: Case) -> float:
            raise AssertionError("cells come in blocks")

        async def evaluate_block(self, cells: Sequence[tuple[int, Case]]) -> list[float]:
            meter = here().meter
            assert meter is not None
            meter.cost += 0.6
            return [1.0 for _ in cells]

    run = Study(Sweep(range(4)), Blocks(), window=4).run("async:1")
    assert run.progress.cost == pytest.approx(0.6)
    assert [result.cost for result in run.results()] == pytest.approx([0.15] * 4)


def test_an_evaluator_that_reports_what_its_calls_cost_is_counted_once() -> None:
    asked, simulator = simulated()

    async def evaluate(candidate: int, case: Case) -> Ok:
        replies = [await asked.generate(f"{candidate} {n}", max_tokens=9) for n in range(3)]
        own = 7.0 if candidate == 3 else 0.0
        return Ok(1.0, cost=sum(reply.cost or 0.0 for reply in replies) if candidate < 3 else own)

    run = run_virtual(Study(Sweep(range(5)), evaluate).run_async("async:2"))
    assert len(simulator.charges) == 15 and run.money.cost > 0
    assert run.progress.cost == pytest.approx(run.money.cost + 7.0)


def test_a_call_that_its_evaluation_gave_up_is_part_of_its_cost_once_the_reply_is_there() -> None:
    asked, _ = simulated(SimulatorConfig(latency=Latency(median=1.0)))

    async def evaluate(candidate: int, case: Case) -> float:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.generate("slow", max_tokens=9), 0.1)
        await asked.generate("next", max_tokens=9)
        return 1.0

    run = run_virtual(Study(Sweep([1]), evaluate).run_async("async:1"))
    assert run.money.calls == 2
    assert [result.cost for result in run.results()] == [pytest.approx(run.money.cost)]


def test_calls_of_plain_functions_are_traced_with_their_replies() -> None:
    asked, _ = simulated()
    with traced() as trace:
        replies = [asked.generate_sync(text, max_tokens=5) for text in ("a", "b")]
    assert [reply for _, reply in trace] == replies and len(replies) == 2


def test_a_run_joins_the_others_on_its_ledger_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Path] = []

    class Counted(Claims):
        def __init__(self, path: Path) -> None:
            joined.append(path)
            super().__init__(path)

    monkeypatch.setattr("fanfold.replies.Claims", Counted)
    with Ledger(tmp_path / "ledger.db") as ledger:
        replies = Replies(ledger, None, None, "on")
        assert [replies.find(key) for key in (b"a", b"b", b"c")] == [None] * 3
        replies.close()
    assert joined == [tmp_path / "ledger.db"]


def test_two_runs_on_one_ledger_that_ask_the_same_at_the_same_time_pay_once(tmp_path: Path) -> None:
    asked, simulator = simulated(SimulatorConfig(latency=Latency(10.0)))

    async def evaluate(candidate: int, case: Case) -> float:
        return float(len((await asked.generate(f"Say {candidate}.", max_tokens=20)).text))

    async def main() -> list[Any]:
        study = Study(Sweep(range(3)), evaluate, window=3)
        runs = [study.run_async("async:3", ledger=tmp_path / "ledger.db", run=name) for name in ("one", "two")]
        return list(await asyncio.gather(*runs))

    first, second = run_virtual(main())
    assert len(simulator.charges) == 3
    assert sorted(run.view.counts().cached for run in (first, second)) == [0, 3]
    assert [result.score for result in first.results()] == [result.score for result in second.results()]


# -- thousands at once -------------------------------------------------------------------------------------------------


def test_a_call_that_was_seen_is_known_and_nearly_no_other_is() -> None:
    keys = [hashlib.blake2b(str(number).encode(), digest_size=16).digest() for number in range(40_000)]
    known = KnownCalls()
    for key in keys[:20_000]:
        known.add(key)
    assert len(known) == 20_000 and all(key in known for key in keys[:20_000])
    assert sum(key in known for key in keys[20_000:]) < 200


def test_an_evaluation_that_waits_for_a_batch_keeps_few_coroutines() -> None:
    asked, _ = simulated()
    alive: list[int] = []

    async def evaluate(candidate: int, case: Case) -> float:
        reply = await asked.generate(f"what is {candidate}?")
        return float(len(reply.text))

    def look(event: Event) -> None:
        if isinstance(event, WaveSent):
            alive.append(sum(type(each) is CoroutineType for each in gc.get_objects()))

    before = sum(type(each) is CoroutineType for each in gc.get_objects())
    run = run_virtual(Study(Sweep(range(100)), evaluate, window=100).run_async("batch:auto", watch=look))
    assert run.progress.evaluations == 100 and not run.progress.failures
    assert (alive[0] - before) / 100 < 13  # the run, and what it awaits: each takes a quarter of a kilobyte
