"""What one evaluation costs beyond itself: a no-op on every executor, with a file ledger and with a temporary one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Line, Sizes, Table, Target, sampled, stopwatch

from fanfold import Case, Float, MaxTrials, Random, Space, Study

SPACE = Space(x=Float(0, 1))
POOL = "ThreadPoolExecutor(8)"


@dataclass(frozen=True)
class Place:
    """An executor, whether its evaluator is a coroutine function, and what an evaluation may cost there."""

    executor: str
    coroutine: bool = False
    limit_ms: float | None = None


PLACES = (
    Place("inline"),
    Place("async:64", coroutine=True, limit_ms=0.3),
    Place("threads:8"),
    Place(POOL),
    Place("processes:1", limit_ms=1.0),
    Place("processes:2"),
)


def measure(sizes: Sizes) -> Iterator[Table]:
    """Places take turns within each repeat, so that a noisy minute falls on all of them."""
    found: dict[tuple[Place, bool], list[dict[str, float]]] = {
        (place, kept): [] for place in PLACES for kept in (True, False)
    }
    for _ in range(sizes.repeats):
        for (place, kept), samples in found.items():
            count = sizes.coroutines if place.coroutine else sizes.calls
            samples.append(_cost(place, kept, count))
    lines = []
    for (place, kept), samples in found.items():
        target = None if place.limit_ms is None else Target("wall ms", place.limit_ms)
        lines.append(Line(f"{place.executor}, {'file' if kept else 'temporary'} ledger", sampled(samples), target))
    yield Table("Overhead per evaluation of a no-op (start and end of the run included)", lines)


def _cost(place: Place, kept: bool, count: int) -> dict[str, float]:
    evaluate: Callable[[Any, Case], Any] = nothing_async if place.coroutine else nothing
    study = Study(Random(SPACE), evaluate, stop=MaxTrials(count))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as pool:
        executor: Any = pool if place.executor == POOL else place.executor
        with stopwatch() as watch:
            run = study.run(executor, ledger=Path(folder) / "ledger.db" if kept else None)
        run.ledger.close()
    if run.progress.evaluations != count or run.progress.failures:
        raise RuntimeError(f"{place.executor} made {run.progress} instead of {count} evaluations")
    return {"wall ms": watch.wall / count * 1e3, "parent CPU ms": watch.cpu / count * 1e3}


def nothing(candidate: Any, case: Case) -> float:
    return float(candidate["x"])


async def nothing_async(candidate: Any, case: Case) -> float:
    return float(candidate["x"])
