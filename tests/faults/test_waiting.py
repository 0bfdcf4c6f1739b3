"""A time limit counts the evaluator's own time; what is waited for is said; and whoever never ends is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, Failed, MaxCost, Ok, Study, Sweep
from fanfold.errors import CallFailed
from fanfold.events import Event, Notice, Ticked
from fanfold.limits import Limits
from fanfold.models import Model, model
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.pricing import Price
from fanfold.models.simulated import SimulatedTransport
from fanfold.running import Run
from fanfold.simulator import Latency, Simulator, SimulatorConfig
from fanfold.testing import run_virtual


def simulated(latency: float = 0.5, **options: Any) -> Model:
    """A model on a simulator of its own, in this process."""
    transport = SimulatedTransport(Simulator(SimulatorConfig(latency=Latency(latency), turnaround=Latency(600.0))))
    return replace(model("simulated/gpt-6-luna"), connect=lambda: transport, key="k", **options)


def expensive(latency: float) -> Model:
    """One that does not reason: what its calls may cost is little more than what they do cost."""
    return simulated(latency, price=Price(1000.0, 1000.0), name="gpt-4.1-mini")


@dataclass(frozen=True)
class Asks:
    """Asks a model `calls` times, works for `own` seconds of its own, and is done."""

    model: Model
    calls: int = 1
    own: float = 0.0
    fingerprint: str = "asks"

    async def __call__(self, candidate: Any, case: Case) -> float:
        for call in range(self.calls):
            await self.model.generate(f"{candidate}/{call}", max_tokens=10)
        await asyncio.sleep(self.own)
        return float(candidate)


async def hang(candidate: Any, case: Case) -> float:
    await asyncio.get_running_loop().create_future()
    return 0.0


def virtual(run: Coroutine[Any, Any, Run[Any]]) -> Run[Any]:
    return run_virtual(run)


# ---------------------------------------------------------------- whose time it is


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [1.0, 5.0])
def test_waiting_at_a_rate_limit_fails_nobody(timeout: float) -> None:
    evaluate = Asks(simulated(limits=Limits(requests_per_minute=120)))
    run = virtual(Study(Sweep(range(40)), evaluate, timeout=timeout).run_async("async:64"))
    assert run.progress.evaluations == 40 and run.progress.failures == 0
    assert run.progress.elapsed > 15


@pytest.mark.slow
def test_waiting_for_a_batch_fails_nobody() -> None:
    executor = BatchExecutor("openai")
    evaluate = Asks(replace(simulated(), provider=model("openai/gpt-6-luna", key="k").provider), calls=2)
    run = virtual(Study(Sweep(range(20)), evaluate, timeout=5).run_async(executor))
    assert run.progress.evaluations == 20 and run.progress.failures == 0
    assert run.progress.elapsed > 1200


class AsksFromElsewhere:
    """Asks a model many times from a thread or a process of its own; the calls are made at home."""

    fingerprint = "elsewhere"

    def __init__(self, calls: int) -> None:
        self.calls = calls

    async def __call__(self, candidate: Any, case: Case) -> float:
        asked = model("simulated/gpt-6-luna", limits=Limits(requests_per_minute=600))
        for call in range(self.calls):
            await asked.generate(f"{candidate}/{call}", max_tokens=10)
        return float(candidate)


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "timeout", "calls"), [("threads:8", 1.0, 4), ("processes:2", 2.5, 16)])
def test_waiting_elsewhere_for_a_call_that_is_made_at_home_fails_nobody(
    executor: str, timeout: float, calls: int
) -> None:
    many = 8 if executor.startswith("threads") else 2
    begun = time.monotonic()
    run = Study(Sweep(range(many)), AsksFromElsewhere(calls), timeout=timeout).run(executor)
    assert run.progress.failures == 0, [result.failures for result in run.results()]
    assert time.monotonic() - begun > timeout


@pytest.mark.slow
def test_own_time_between_waits_adds_up() -> None:
    """Three seconds of its own are too much for two, however long the waits in between."""
    evaluate = Asks(simulated(latency=1.0, limits=Limits(requests_per_minute=6)), calls=3)
    kinds = [
        [outcome.kind for result in run.results() for outcome in result.failures.values()]
        for limit in (2.0, 4.0)
        for run in [virtual(Study(Sweep(range(4)), evaluate, timeout=limit).run_async("async:4"))]
    ]
    assert kinds == [["timeout"] * 4, []]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:4", "threads:4"])
def test_an_evaluator_that_hangs_while_others_are_waiting_still_times_out(executor: str) -> None:
    asks = Asks(simulated(limits=Limits(requests_per_minute=120)))

    async def evaluate(candidate: Any, case: Case) -> float:
        return await (hang if candidate == 3 else asks)(candidate, case)

    if executor == "async:4":
        run = virtual(Study(Sweep(range(20)), evaluate, timeout=2).run_async(executor))
    else:
        run = Study(Sweep(range(4)), lambda n, case: time.sleep(30 * (n == 3)), failed_score=0, timeout=0.3).run(
            executor
        )
    failed = {result.number: [failure.kind for failure in result.failures.values()] for result in run.results()}
    assert failed[3] == ["timeout"]


def test_each_try_has_a_clock_of_its_own() -> None:
    tries = 0

    async def evaluate(candidate: Any, case: Case) -> float:
        nonlocal tries
        tries += 1
        await asyncio.sleep(10 if tries < 3 else 0.9)
        return 1.0

    study = Study(Sweep([1]), evaluate, timeout=1, retries=2)
    run = virtual(study.run_async("async:1"))
    assert (tries, run.progress.failures) == (3, 0)


@pytest.mark.slow
def test_waiting_for_a_neighbour_that_blocks_the_loop_fails_nobody() -> None:
    blocked = False

    async def evaluate(candidate: Any, case: Case) -> float:
        nonlocal blocked
        await asyncio.sleep(0.1)
        if candidate == 5 and not blocked:
            blocked = True
            time.sleep(2)  # a neighbour that computes in the event loop
        for _ in range(3):
            await asyncio.sleep(0.1)
        return 1.0

    run = Study(Sweep(range(10)), evaluate, timeout=1).run("async:10")
    assert blocked and run.progress.failures == 0


@pytest.mark.slow
def test_an_evaluation_beside_a_blocked_loop_has_its_own_time_and_no_more() -> None:
    async def evaluate(candidate: Any, case: Case) -> float:
        if candidate == 0:
            time.sleep(0.8)
            return 1.0
        return await hang(candidate, case)

    begun = time.monotonic()
    run = Study(Sweep(range(2)), evaluate, timeout=0.5).run("async:2")
    assert run.progress.failures == 1
    assert time.monotonic() - begun > 1.2  # and it ends at all


# ---------------------------------------------------------------- who never ends


@dataclass(frozen=True)
class Deaf:
    """Swallows every cancellation; `stubborn` ones even the closing of their coroutine."""

    stubborn: bool = False
    fingerprint: str = "deaf"

    async def __call__(self, candidate: Any, case: Case) -> float:
        while candidate == 1:
            try:
                await asyncio.sleep(3600)
            except BaseException as error:
                if isinstance(error, GeneratorExit) and not self.stubborn:
                    raise
        await asyncio.sleep(0.01)
        return float(candidate)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a stubborn one that is forgotten
@pytest.mark.parametrize("stubborn", [False, True])
def test_waiting_for_an_evaluator_that_swallows_its_cancellation_ends_with_its_grace(stubborn: bool) -> None:
    events: list[Event] = []
    run = Study(Sweep(range(8)), Deaf(stubborn), timeout=0.2).run("async:2", grace=0.2, watch=events.append)
    assert [outcome.kind for result in run.results() for outcome in result.failures.values()] == ["timeout"]
    assert run.progress.evaluations == 8
    said = [event.message for event in events if isinstance(event, Notice)]
    assert sum("swallowed its cancellation" in message for message in said) == 1


def test_the_end_of_a_run_is_not_kept_waiting_by_whoever_swallows_its_cancellation() -> None:
    """Without a time limit it is left behind when the run ends, here because a rule says so."""
    events: list[Event] = []

    async def main() -> Run[Any]:
        study = Study(Sweep([2, 1, 3]), Deaf(), in_order=False, stop=MaxCost(1e9))
        task = asyncio.create_task(study.run_async("async:3", grace=0.2, watch=events.append))
        await asyncio.sleep(1)
        task.cancel()
        return await task

    with pytest.raises(asyncio.CancelledError):
        run_virtual(main())
    assert any("swallowed" in event.message for event in events if isinstance(event, Notice))


@pytest.mark.slow
def test_the_end_of_a_program_is_not_kept_waiting_by_tasks_an_evaluator_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.sync.PATIENCE", 0.2)
    left: list[asyncio.Task[float]] = []

    async def evaluate(candidate: Any, case: Case) -> float:
        left.append(asyncio.create_task(Deaf()(1, case)))
        await asyncio.sleep(0.05)
        return 1.0

    assert Study(Sweep(range(3)), evaluate).run("async:3").progress.evaluations == 3
    assert len(left) == 3, "each would sleep for an hour"
    for task in left:
        task.get_coro().close()  # type: ignore[union-attr]


# ---------------------------------------------------------------- the end of the money


@pytest.mark.slow
def test_a_run_out_of_money_is_not_waiting_out_its_grace_period(tmp_path: Path) -> None:
    asked = expensive(0.5)
    study = Study(Sweep(range(100)), Asks(asked), stop=MaxCost(1.0))

    async def main() -> tuple[Run[Any], float]:
        begun = asyncio.get_running_loop().time()
        run = await study.run_async("async:8", ledger=tmp_path / "ledger.db", grace=600)
        return run, asyncio.get_running_loop().time() - begun

    run, seconds = run_virtual(main())
    assert "is spent" in run.reason and run.progress.told > 0
    assert seconds < 10


@pytest.mark.slow
def test_what_is_being_paid_when_the_money_runs_out_is_waited_for(tmp_path: Path) -> None:
    """A call in flight is paid whatever happens, so its evaluation is given the time to end."""
    slow, quick = expensive(20.0), expensive(0.1)

    async def evaluate(candidate: Any, case: Case) -> Ok:
        asked = slow if candidate == 0 else quick
        return Ok((await asked.generate(f"{candidate}", max_tokens=10)).output_tokens)

    study = Study(Sweep(range(100)), evaluate, stop=MaxCost(1.0), in_order=False)
    run = virtual(study.run_async("async:8", ledger=tmp_path / "ledger.db", grace=60))
    done = {trial for (trial,) in run.ledger.read("SELECT trial FROM evaluation")}
    assert 0 in done and run.progress.elapsed >= 20


# ---------------------------------------------------------------- what is waited for is said


def test_what_a_run_is_waiting_for_is_said() -> None:
    events: list[Event] = []
    evaluate = Asks(simulated(limits=Limits(requests_per_minute=4)))
    virtual(Study(Sweep(range(3)), evaluate).run_async("async:3", watch=events.append))
    said = [event.waiting for event in events if isinstance(event, Ticked) and event.waiting is not None]
    assert any("waiting for the rate limit of openai/gpt-6-luna since 5 s" in text for text in said), said


def test_a_failed_call_is_still_a_failure() -> None:
    async def evaluate(candidate: Any, case: Case) -> float:
        raise CallFailed("bad-request", "no such thing")

    run = virtual(Study(Sweep(range(3)), evaluate, timeout=1).run_async("async:3"))
    assert {type(outcome) for result in run.results() for outcome in result.outcomes.values()} == {Failed}
