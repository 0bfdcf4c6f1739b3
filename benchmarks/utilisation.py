"""How busy the slots are when evaluations take different times: Fanfold beside a generation barrier and a plain gather.

Utilisation is the ideal makespan, max(sum of durations / slots, longest duration), over the actual one.
"""

from __future__ import annotations

import asyncio
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

from fanfold import Case, Float, Genetic, MaxTrials, Random, Space, Strategy, Study, Sweep
from measure import Line, Sampled, Sizes, Table, Target

SLOTS = 8
CORES = 2
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
    "asyncio.gather, no search": gather,
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
    "ProcessPoolExecutor.map, one by one": spinning_map,
    "ProcessPoolExecutor.map, 4 chunks per worker": spinning_chunks,
    f"ProcessPoolExecutor, generations of {GENERATION}": spinning_generations,
}


def measure(sizes: Sizes) -> list[Table]:
    """Sleeping contenders run side by side (they need next to no CPU), so that all see the same noise."""
    tables = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(SLEEPERS), mp_context=context) as pool:
        list(pool.map(time.sleep, [0.2] * len(SLEEPERS)))  # every worker is up and has its imports
        for shape in SHAPES:
            samples: dict[str, list[float]] = {name: [] for name in SLEEPERS}
            for repeat in range(sizes.repeats):
                durations = durations_of(shape, sizes.sleeps, sizes.sleep, repeat)
                running = {name: pool.submit(sleeper, durations) for name, sleeper in SLEEPERS.items()}
                for name, future in running.items():
                    samples[name].append(ideal(durations, SLOTS) / future.result())
            tables.append(_table(f"Slot utilisation, async:{SLOTS}, {shape} durations", samples, shape))
    spun: dict[str, list[float]] = {name: [] for name in SPINNERS}
    for repeat in range(sizes.repeats):
        durations = durations_of("lognormal 1.0", sizes.spins, sizes.spin, repeat)
        for name, spinner in SPINNERS.items():
            spun[name].append(ideal(durations, CORES) / spinner(durations))
    tables.append(_table(f"Slot utilisation, {CORES} processes kept busy, lognormal 1.0 durations", spun, ""))
    return tables


def durations_of(shape: str, count: int, mean: float, seed: int) -> list[float]:
    """The work of one repeat, the same for every contender: the n-th evaluation to start takes the n-th duration."""
    rng = random.Random(f"{shape} {seed}")
    raw = [SHAPES[shape](rng) for _ in range(count)]
    average = sum(raw) / count
    return [min(value / average, CAP) * mean for value in raw]


def ideal(durations: Sequence[float], slots: int) -> float:
    return max(sum(durations) / slots, max(durations))


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


def _table(title: str, samples: dict[str, list[float]], shape: str) -> Table:
    def lines() -> Iterator[Line]:
        for name, values in samples.items():
            yield Line(name, {"utilisation": Sampled(tuple(values))}, TARGETS.get((name, shape)))

    return Table(title, list(lines()))
