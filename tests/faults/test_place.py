"""A place that is short of something, or lost, fails no candidate: the run continues on less, or stops and says why."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fault_world import Start, look

from fanfold import Case, Ledger, Study, Sweep
from fanfold.attempt import Losses
from fanfold.errors import ExecutorBroken, PlaceLost, WorkerDied
from fanfold.events import Event, Notice, Ticked
from fanfold.executors import Executor, Processes, Ray
from fanfold.executors.base import no_worker
from fanfold.running import Run
from fanfold.testing import run_virtual


class Place(Executor):
    """Eight slots of which `having(seconds since the start)` can be had."""

    name = "place:8"
    slots = 8

    def __init__(self, having: Callable[[float], int], seconds: float = 1.0) -> None:
        self._having, self._seconds = having, seconds
        self.running = self.lost = self.most = 0
        self._begun = 0.0

    async def __aenter__(self) -> Place:
        self._begun = asyncio.get_running_loop().time()
        return self

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        if self.running >= self._having(loop.time() - self._begun):
            self.lost += 1
            raise PlaceLost("a worker process could not be started (Too many open files): raise the limit")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self._seconds)
            return fn(*args)
        finally:
            self.running -= 1


def score(candidate: int, case: Case) -> float:
    return float(candidate)


def on(place: Place, events: list[Event] | None = None, **options: Any) -> Run[Any]:
    watch = None if events is None else events.append
    return run_virtual(Study(Sweep(range(200)), score).run_async(place, watch=watch, **options))


@pytest.mark.slow
def test_a_place_with_too_few_workers_does_all_the_work_with_those_it_has() -> None:
    place, events = Place(lambda seconds: 3), []
    run = on(place, events)
    assert (run.progress.evaluations, run.progress.failures) == (200, 0)
    assert place.most == 3
    assert run.progress.elapsed < 1.3 * 200 / 3
    assert place.lost < 60  # tried now and then, not for every evaluation
    (said,) = [
        event.message for event in events if isinstance(event, Notice) and "could not be started" in event.message
    ]
    assert "raise the limit" in said and "of 8 slots" in said


@pytest.mark.slow
def test_a_place_that_is_lost_for_a_while_is_waited_for_and_used_in_full_again() -> None:
    place, events = Place(lambda seconds: 0 if 5 < seconds < 35 else 8), []
    run = on(place, events)
    assert (run.progress.evaluations, run.progress.failures, place.most) == (200, 0, 8)
    assert run.progress.elapsed < 35 + 30 + 200 / 8 + 10
    waits = [event.waiting for event in events if isinstance(event, Ticked) and event.waiting]
    assert any("waiting for a worker, next try in" in wait for wait in waits)


@pytest.mark.slow
def test_a_place_that_stays_lost_ends_the_run_and_costs_nothing_that_was_finished(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    place = Place(lambda seconds: 8 if seconds < 5 else 0)
    with pytest.raises(ExecutorBroken, match=r"no worker could be had for a minute.*raise the limit"):
        on(place, ledger=ledger, run="r")
    kept = look(ledger)
    assert len(kept.evaluations) >= 32 and all(row[1] is None for row in kept.evaluations.values())
    with Ledger(ledger, readonly=True) as left:
        assert left.run("r").failures == 0
    again = on(Place(lambda seconds: 8), ledger=ledger, run="r")
    assert (again.progress.evaluations, again.progress.failures) == (200, 0)


def test_a_lost_place_uses_up_no_tries_and_twins_share_the_next_one() -> None:
    class Fickle(Place):
        async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
            self.lost += 1
            await asyncio.sleep(0.1)
            if self.lost < 4:
                raise PlaceLost("a node was lost")
            return fn(*args)

    place = Fickle(lambda seconds: 8)
    run = run_virtual(Study(Sweep([1, 1, 1, 1]), score).run_async(place))
    assert (run.progress.evaluations, run.progress.failures, place.lost) == (4, 0, 4)


@pytest.mark.slow
def test_blocks_of_a_lost_place_are_evaluated_elsewhere() -> None:
    class Blocks:
        block_size = 16
        fingerprint = "blocks"

        def __call__(self, candidate: int, case: Case) -> float:
            return float(candidate)

        def evaluate_block(self, cells: Any) -> list[float]:
            return [float(candidate) for candidate, _ in cells]

    place = Place(lambda seconds: 2)
    run = run_virtual(Study(Sweep(range(200)), Blocks()).run_async(place))
    assert (run.progress.evaluations, run.progress.failures) == (200, 0)


class Falling(Place):
    """Candidate 2 takes its node down, and whatever else runs there, as long as `falls` says so."""

    slots = 2
    patience = 3600.0

    def __init__(self, falls: Callable[[], bool]) -> None:
        super().__init__(lambda seconds: 8)
        self._falls = falls

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        await asyncio.sleep(1.0)
        cells = args[0] if isinstance(args[0], list) else [args]
        if self._falls() and any(candidate == 2 for candidate, _ in cells):
            self.lost += 1
            raise PlaceLost("a node was lost")
        return fn(*args)


class Together:
    """Evaluates alone and in blocks."""

    block_size = 4
    fingerprint = "together"

    def __call__(self, candidate: int, case: Case) -> float:
        return float(candidate)

    def evaluate_block(self, cells: Any) -> list[float]:
        return [float(candidate) for candidate, _ in cells]


@pytest.mark.parametrize("evaluate", [score, Together()])
def test_a_place_that_is_lost_whenever_one_candidate_runs_is_said_and_can_be_tried_again(
    evaluate: Any, tmp_path: Path
) -> None:
    study, events = Study(Sweep(range(6)), evaluate), list[Event]()
    ledger = {"ledger": tmp_path / "ledger.db", "run": "r"}
    place = Falling(lambda: True)
    run = run_virtual(study.run_async(place, watch=events.append, **ledger))
    failures = {result.candidate: failure for result in run.results() for failure in result.failures.values()}
    assert failures.keys() == {2} and failures[2].kind == "place-lost", "those that were lost with it are done"
    assert run.progress.told == 6 and 10 <= place.lost < 40
    (said,) = [event.message for event in events if isinstance(event, Notice) and "again and again" in event.message]
    assert "trial 2 on case" in said and "--retry-failed=place-lost" in said
    again = run_virtual(study.run_async(Falling(lambda: False), retry_failed=["place-lost"], **ledger))
    assert (again.progress.failures, again.progress.told) == (0, 6)


def test_a_place_that_is_lost_nine_times_under_one_candidate_is_nobodys_failure() -> None:
    left = iter(range(9))
    run = run_virtual(Study(Sweep(range(6)), score).run_async(Falling(lambda: next(left, None) is not None)))
    assert (run.progress.failures, run.progress.told) == (0, 6) and next(left, None) is None


def test_a_place_may_be_lost_ten_times_or_for_an_hour() -> None:
    losses = Losses()
    assert [losses.again(b"cell", 6.0 * n) for n in range(10)] == [True] * 9 + [False]
    assert all(losses.again(b"at once", 0.01 * n) for n in range(100)), "many at once are one"
    assert not losses.repeated(b"at once") and not losses.repeated(b"never") and losses.repeated(b"cell")
    assert losses.again(b"long", 0.0) and losses.again(b"long", 3599.0) and not losses.again(b"long", 3600.0)


# ---------------------------------------------------------------- real shortages


def said_by(process: Any) -> str:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return str(output)


@pytest.mark.slow
def test_a_place_short_of_open_files_continues_with_fewer_workers(start: Start, tmp_path: Path) -> None:
    said = said_by(start("crowded.py", 9, tmp_path / "ledger.db"))
    assert "done: 40 0" in said
    assert "ulimit -n" in said and said.count("note:") == 1


@pytest.mark.slow
def test_a_place_without_any_open_file_left_says_what_to_raise(start: Start, tmp_path: Path) -> None:
    said = said_by(start("crowded.py", 3, tmp_path / "ledger.db", 1.0))
    assert "broken:" in said and "ulimit -n" in said
    assert look(tmp_path / "ledger.db").evaluations == {}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_a_place_that_may_recover_is_told_from_one_that_cannot(number: int) -> None:
    assert isinstance(no_worker(OSError(number, os.strerror(number)), "process"), PlaceLost)
    assert isinstance(no_worker(OSError(errno.ENOENT, "no such file"), "process"), ExecutorBroken)
    assert isinstance(no_worker(RuntimeError("can't start new thread"), "thread"), PlaceLost)


def die(candidate: int, case: Case) -> float:
    if candidate == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@pytest.mark.slow
def test_a_worker_that_dies_twice_in_a_living_place_is_its_candidates_failure() -> None:
    run = Study(Sweep(range(4)), die).run("processes:2")
    failures = [failure.kind for result in run.results() for failure in result.failures.values()]
    assert failures == ["worker-died"]


def test_a_place_short_of_threads_loses_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    started, begin = 0, threading.Thread.start

    def start(self: threading.Thread) -> None:
        nonlocal started
        if self.name.startswith("fanfold-call"):
            started += 1
            if started > 2:
                raise RuntimeError("can't start new thread")
        begin(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    run = Study(Sweep(range(30)), score).run("threads:8")
    assert (run.progress.evaluations, run.progress.failures) == (30, 0)


# ---------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def ray() -> ModuleType:
    found: ModuleType = pytest.importorskip("ray")
    pytest.importorskip("ray.exceptions")
    return found


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NodeDiedError", PlaceLost),
        ("LocalRayletDiedError", PlaceLost),
        ("OutOfDiskError", PlaceLost),
        ("RuntimeEnvSetupError", PlaceLost),
        ("TaskUnschedulableError", PlaceLost),
        ("WorkerCrashedError", WorkerDied),
        ("OutOfMemoryError", WorkerDied),
        ("RaySystemError", ExecutorBroken),
    ],
)
def test_a_place_lost_by_ray_is_no_dead_worker(ray: ModuleType, name: str, kind: type[Exception]) -> None:
    executor = Ray(2)
    executor._ray = ray
    error = getattr(ray.exceptions, name)
    failure = error() if name in ("LocalRayletDiedError", "WorkerCrashedError") else error("gone")
    assert type(executor._failure(failure, score)) is kind


@pytest.mark.slow
def test_a_place_that_recovers_is_used_again_and_nothing_was_left_open() -> None:
    import resource

    async def main() -> int:
        async with Processes(2) as executor:
            gc.collect()  # what earlier tests left open and a later collection would close is no room for a worker
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            taken = [os.dup(1)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, hard))
            try:
                while True:
                    taken.append(os.dup(1))
            except OSError:
                os.close(taken.pop())  # one is left free: not enough for a worker
            try:
                for _ in range(5):
                    with pytest.raises(PlaceLost, match="ulimit -n"):
                        await executor.run(score, 1, None)
                taken.append(os.dup(1))  # the one is still free
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for number in taken:
                    os.close(number)
            return int(await executor.run(score, 7, None))

    assert asyncio.run(main()) == 7
