"""How busy the slots are when evaluations take different times: Fanfold beside a generation barrier and a plain gather.

Utilisation is the ideal makespan, max(sum of durations / slots, longest duration), over the actual one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Line, Sampled, Sizes, Table, Target

from fanfold import Case, Float, Genetic, MaxTrials, Random, Space, Strategy, Study, Sweep

SLOTS = 8
CORES = 2
GATHER = "asyncio.gather, no search"
MAP = "ProcessPoolExecutor.map"
COMPUTED = "computed, no overhead at all"
GENERATION = 32
SPACE = Space(x=Float(0, 1), y=Float(0, 1))
#: No evaluation takes longer than so many times the mean: the heavy tail would otherwise be one straggler's story.
CAP = 40.0

SHAPES: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda rng: 1.0,
    "lognormal 0.6": lambda rng: rng.lognormvariate(0.0, 0.6),
    "lognormal 1.0": lambda rng: rng.lognormvariate(0.0, 1.0),
    "lognormal 1.5": lambda rng: rng.lognormvariate(0.0, 1.5),
    "Pareto 1.5": lambda rng: rng.paretovariate(1.5),
}


@dataclass(frozen=True)
class Search:
    """A study on async slots: by default in order, with the window its strategy asks for."""

    steady: bool = False
    window: int | None = None
    in_order: bool = True

    def __call__(self, durations: Sequence[float]) -> float:
        waits = iter(durations)

        async def evaluate(candidate: Any, case: Case) -> float:
            await asyncio.sleep(next(waits))
            return float(candidate["x"])

        strategy: Strategy[Any] = Genetic(SPACE, steady=True) if self.steady else Random(SPACE)
        stop = MaxTrials(len(durations))
        study = Study(strategy, evaluate, stop=stop, window=self.window, in_order=self.in_order)
        return _timed(study, f"async:{SLOTS}")


def generations(durations: Sequence[float]) -> float:
    """The usual loop: a population is gathered, and only then the next one is bred."""

    async def main() -> None:
        free = asyncio.Semaphore(SLOTS)
        for start in range(0, len(durations), GENERATION):
            await asyncio.gather(*(_sleep(free, seconds) for seconds in durations[start : start + GENERATION]))

    return _seconds(lambda: asyncio.run(main()))


def gather(durations: Sequence[float]) -> float:
    """Everything known in advance, nothing searched or kept: what asyncio itself can do."""

    async def main() -> None:
        free = asyncio.Semaphore(SLOTS)
        await asyncio.gather(*(_sleep(free, seconds) for seconds in durations))

    return _seconds(lambda: asyncio.run(main()))


SLEEPERS: dict[str, Callable[[Sequence[float]], float]] = {
    "Random, in order (window 256)": Search(),
    "Random, in order, window=64": Search(window=64),
    "Genetic steady, in order (window 16)": Search(steady=True),
    "Genetic steady, in order, window=64": Search(steady=True, window=64),
    "Random, barrier-free": Search(in_order=False),
    "Genetic steady, barrier-free": Search(steady=True, in_order=False),
    f"generation barrier of {GENERATION}": generations,
    GATHER: gather,
}
TARGETS = {
    ("Random, in order (window 256)", "lognormal 0.6"): Target("utilisation", 0.95, at_most=False),
    ("Random, barrier-free", "lognormal 1.0"): Target("utilisation", 0.97, at_most=False),
    ("Genetic steady, barrier-free", "lognormal 1.0"): Target("utilisation", 0.97, at_most=False),
}


def spinning_study(durations: Sequence[float]) -> float:
    return _timed(Study(Sweep(list(durations)), spin_case), f"processes:{CORES}")


def spinning_map(durations: Sequence[float], chunks: int | None = None) -> float:
    """`map` of a process pool: one by one, or in so many chunks for each worker."""
    size = 1 if chunks is None else max(1, len(durations) // (CORES * chunks))

    def work() -> None:
        with ProcessPoolExecutor(CORES) as pool:
            list(pool.map(spin, durations, chunksize=size))

    return _seconds(work)


def spinning_chunks(durations: Sequence[float]) -> float:
    return spinning_map(durations, chunks=4)


def spinning_generations(durations: Sequence[float]) -> float:
    def work() -> None:
        with ProcessPoolExecutor(CORES) as pool:
            for start in range(0, len(durations), GENERATION):
                list(pool.map(spin, durations[start : start + GENERATION]))

    return _seconds(work)


SPINNERS: dict[str, Callable[[Sequence[float]], float]] = {
    f"Sweep on processes:{CORES}, file ledger": spinning_study,
    MAP: spinning_map,
    "ProcessPoolExecutor.map, 4 chunks per worker": spinning_chunks,
    f"ProcessPoolExecutor, generations of {GENERATION}": spinning_generations,
}


def measure(sizes: Sizes) -> Iterator[Table]:
    """Sleeping contenders run side by side (they need next to no CPU), so that all see the same noise."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(SLEEPERS), mp_context=context) as pool:
        list(pool.map(time.sleep, [0.2] * len(SLEEPERS)))  # every worker is up and has its imports
        for shape in SHAPES:
            samples: dict[str, list[float]] = {name: [] for name in (*SLEEPERS, COMPUTED)}
            count = sizes.sleeps_with_target if any(shape in key for key in TARGETS) else sizes.sleeps
            for repeat in range(sizes.repeats):
                durations = durations_of(shape, count, sizes.sleep, repeat)
                running = {name: pool.submit(sleeper, durations) for name, sleeper in SLEEPERS.items()}
                for name, future in running.items():
                    samples[name].append(ideal(durations, SLOTS) / future.result())
                samples[COMPUTED].append(ideal(durations, SLOTS) / greedy(durations, SLOTS))
            title = f"Slot utilisation, async:{SLOTS}, {count} evaluations, {shape}, mean {sizes.sleep * 1e3:g} ms"
            yield _table(title, samples, GATHER, shape)
    spun: dict[str, list[float]] = {name: [] for name in SPINNERS}
    for repeat in range(sizes.repeats):
        durations = durations_of("lognormal 1.0", sizes.spins, sizes.spin, repeat)
        for name, spinner in SPINNERS.items():
            spun[name].append(ideal(durations, CORES) / spinner(durations))
    title = f"Slot utilisation, {CORES} busy processes, {sizes.spins} evaluations, lognormal 1.0, starts included"
    yield _table(title, spun, MAP)


def durations_of(shape: str, count: int, mean: float, seed: int) -> list[float]:
    """The work of one repeat, the same for every contender: the n-th evaluation to start takes the n-th duration."""
    rng = random.Random(f"{shape} {seed}")
    raw = [SHAPES[shape](rng) for _ in range(count)]
    average = sum(raw) / count
    return [min(value / average, CAP) * mean for value in raw]


def ideal(durations: Sequence[float], slots: int) -> float:
    return max(sum(durations) / slots, max(durations))


def greedy(durations: Sequence[float], slots: int) -> float:
    """The makespan when each evaluation starts in the first slot that is free, and nothing else takes any time."""
    ends = [0.0] * slots
    for seconds in durations:
        heapq.heapreplace(ends, ends[0] + seconds)
    return max(ends)


def spin(seconds: float) -> float:
    """Keep a core busy until the time is over: other load on the machine then does not make the work longer."""
    end = time.perf_counter() + seconds
    for rounds in itertools.count():
        if time.perf_counter() >= end:
            return float(rounds)
    raise AssertionError


def spin_case(candidate: float, case: Case) -> float:
    return spin(candidate)


async def _sleep(free: asyncio.Semaphore, seconds: float) -> None:
    async with free:
        await asyncio.sleep(seconds)


def _timed(study: Study[Any], executor: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        run = study.run(executor, ledger=Path(folder) / "ledger.db")
        seconds = time.perf_counter() - started
        run.ledger.close()
    if run.progress.failures:
        raise RuntimeError(f"evaluations failed: {run.progress}")
    return seconds


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _table(title: str, samples: dict[str, list[float]], reference: str, shape: str = "") -> Table:
    """Beside the utilisation, its ratio to the reference in the same repeat: what clock and tail cost everyone."""
    lines = []
    for name, values in samples.items():
        ratios = tuple(value / other for value, other in zip(values, samples[reference], strict=True))
        columns = {"utilisation": Sampled(tuple(values)), f"over {reference}": Sampled(ratios)}
        lines.append(Line(name, columns, TARGETS.get((name, shape))))
    return Table(title, lines)
