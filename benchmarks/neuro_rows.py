"""What the GPU benchmark of the neuro study measures with: networks of each size, engines timed, lines of tables."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from measure import Line, Sampled, Table, Target
from neuro_plain import Plain, in_threads
from neuro_plain import train as train_plain

from fanfold.studies.neuro import cuda_graph
from fanfold.studies.neuro.data import Resident, from_arrays
from fanfold.studies.neuro.genome import ACTIVATIONS, OPTIMISERS, Conv, Dense, NetworkGenome
from fanfold.studies.neuro.stacked_training import train_graphs
from fanfold.studies.neuro.training import TrainedNetwork, TrainingJob, TrainingSettings, train

BATCH = 128
#: Networks that our own sequential engine trains too, to compare accuracies.
COMPARED = 24


@dataclass(frozen=True)
class Size:
    """How much is measured: a small one shows that the script works."""

    train: int = 4096
    validation: int = 904
    repeats: int = 5
    plain: int = 12
    mixed: int = 64
    scale: int = 1


@dataclass
class Bench:
    """What all parts need, and the tables they fill."""

    pixels: Any
    labels: Any
    device: str
    size: Size
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def resident(self, dtype: str = "float32") -> Resident:
        used = self.size.train + self.size.validation
        x, y = self.pixels[:used], self.labels[:used]
        return Resident(from_arrays(x, y, validation=self.size.validation, test=0, name="mnist"), self.device, dtype, 1)

    def sync(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - STARTED:6.1f} s] {text}", flush=True)


STARTED = time.perf_counter()


# ---------------------------------------------------------------- the networks


def jobs_of(conv: Sequence[tuple[int, int]], nodes: int, count: int) -> list[TrainingJob]:
    """Networks of one shape, each with its own learning rate, dropout and seed."""
    rng = random.Random(7)
    layers = tuple(Conv(filters, kernel, "relu") for filters, kernel in conv)
    return [
        TrainingJob(
            NetworkGenome(
                layers, (Dense(nodes, "relu"),), "batch", rng.uniform(0.1, 0.4), "adam", 10 ** rng.uniform(-3.5, -2)
            ),
            n,
            1,
        )
        for n in range(count)
    ]


SIZES: dict[str, Callable[[int], list[TrainingJob]]] = {
    "tiny": lambda count: jobs_of([(4, 3), (8, 3)], 32, count),
    "small": lambda count: jobs_of([(16, 3), (32, 3)], 128, count),
    "medium": lambda count: jobs_of([(98, 5), (83, 3)], 153, count),
}


def mixed_jobs(count: int, seed: int = 11) -> list[TrainingJob]:
    """Networks of any shape: sizes evenly, as in the measurements that this repeats."""
    rng = random.Random(seed)

    def genome() -> NetworkGenome:
        conv = [Conv(rng.randint(4, 32), rng.choice((3, 5)), rng.choice(ACTIVATIONS)) for _ in range(rng.randint(1, 3))]
        dense = [Dense(rng.randint(32, 128), rng.choice(ACTIVATIONS)) for _ in range(rng.randint(1, 2))]
        rate = 10 ** rng.uniform(-3.5, -2)
        return NetworkGenome(tuple(conv), tuple(dense), "batch", rng.uniform(0.1, 0.5), rng.choice(OPTIMISERS), rate)

    return [TrainingJob(genome(), n, 1) for n in range(count)]


# ---------------------------------------------------------------- one line of a table


@dataclass(frozen=True)
class Timed:
    """One engine on one set of networks."""

    rate: Sampled
    captured: Sampled | None = None
    peak: float | None = None
    accuracy: float | None = None


def plainly(bench: Bench, jobs: Sequence[TrainingJob], run: Callable[[Sequence[NetworkGenome]], list[float]]) -> Timed:
    """Plain PyTorch: `run` gives the accuracies."""
    genomes, samples, accuracies = [job.genome for job in jobs], [], [0.0]
    run(genomes[:2])
    for _ in range(max(1, bench.size.repeats - 2)):
        bench.sync()
        began = time.perf_counter()
        accuracies = run(genomes)
        bench.sync()
        samples.append(len(jobs) / (time.perf_counter() - began))
    return Timed(Sampled(tuple(samples)), accuracy=float(np.mean(accuracies)))


def together(bench: Bench, jobs: Sequence[TrainingJob], resident: Resident, **how: Any) -> Timed:
    """Our engines from jobs to results in memory: first with the capture, then with what was captured."""
    rates, found = [], [0.0]
    cuda_graph.forget()
    if bench.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(1 + bench.size.repeats):
        bench.sync()
        began = time.perf_counter()
        found = [each.accuracy for each in train_graphs(jobs, resident, TrainingSettings(BATCH), **how)]
        rates.append(len(jobs) / (time.perf_counter() - began))
    peak = torch.cuda.max_memory_allocated() / 2**30 if bench.device == "cuda" else None
    cuda_graph.forget()
    return Timed(Sampled(tuple(rates[1:])), Sampled((rates[0],)), peak, float(np.mean(found)))


def line(name: str, timed: Timed, base: Timed | None, target: float | None = None, note: str = "") -> Line:
    base = base or timed
    values = {"models/s": timed.rate}
    values["x"] = Sampled(tuple(rate / base.rate.median for rate in timed.rate.samples))
    if timed.captured is not None:
        values["with capture"] = timed.captured
        values["with capture, x"] = Sampled(tuple(rate / base.rate.median for rate in timed.captured.samples))
    for column, value in (("peak GiB", timed.peak), ("accuracy", timed.accuracy)):
        if value is not None:
            values[column] = Sampled((value,))
    return Line(name, values, None if target is None else Target("x", target, at_most=False), note)


def usable(bench: Bench) -> bool:
    """Whether the GPU still answers: after some errors, no more in this process."""
    try:
        cuda_graph.forget()
        bench.sync()
    except RuntimeError:
        return False
    return True


class Rows:
    """The lines of one table; a line that fails says so, and the others continue."""

    def __init__(self, bench: Bench, title: str) -> None:
        self.bench, self.title, self.lines = bench, title, []
        self.base: Timed | None = None
        bench.say(title)

    def add(self, name: str, measure: Callable[[], Timed], target: float | None = None, base: bool = False) -> None:
        try:
            timed = measure()
            if base:
                self.base = timed
            self.lines.append(line(name, timed, self.base, target))
        except Exception as error:
            traceback.print_exc()
            self.lines.append(Line(name, note=f"failed: {type(error).__name__}: {str(error)[:160]}"))
            if not usable(self.bench):
                self.end()
                raise
        last = self.lines[-1]
        shown = ", ".join(f"{column} {value}" for column, value in last.values.items())
        self.bench.say(f"  {name}: {shown} {last.verdict}")

    def end(self) -> None:
        self.bench.tables.append(Table(self.title, self.lines))


def baselines(bench: Bench, rows: Rows, jobs: Sequence[TrainingJob], threads: Sequence[int] = (2, 4, 8)) -> None:
    plain = Plain.of(bench.resident())
    sequential = jobs[: bench.size.plain]
    rows.add(
        "plain PyTorch, one after another",
        lambda: plainly(bench, sequential, lambda some: [train_plain(each, plain, BATCH)[-1] for each in some]),
        base=True,
    )
    for count in threads:
        for streams in (False, True) if bench.device == "cuda" else (False,):
            rows.add(
                f"plain PyTorch, {count} threads, {'own streams' if streams else 'default stream'}",
                lambda count=count, streams=streams: plainly(
                    bench,
                    jobs[: 2 * bench.size.plain],
                    lambda some: [curve[-1] for curve in in_threads(some, plain, BATCH, count, streams)],
                ),
            )
    resident = bench.resident()
    rows.add("our sequential engine", lambda: ours_in_turn(bench, sequential, resident))


def ours_in_turn(bench: Bench, jobs: Sequence[TrainingJob], resident: Resident) -> Timed:
    train(jobs[0], resident, TrainingSettings(BATCH))
    bench.sync()
    began = time.perf_counter()
    found = [train(job, resident, TrainingSettings(BATCH)).accuracy for job in jobs]
    bench.sync()
    return Timed(Sampled((len(jobs) / (time.perf_counter() - began),)), accuracy=float(np.mean(found)))


def same_accuracy(
    bench: Bench, name: str, jobs: Sequence[TrainingJob], run: Callable[[list[TrainingJob]], list[TrainedNetwork]]
) -> None:
    """Whether networks trained together are as good as the same ones trained in turn.

    In float32 sums round differently, and some networks make much of that; how much, the same engine shows when it is
    only given other arithmetic: without TF32.
    """
    some, resident = list(jobs[: max(2, COMPARED // bench.size.scale)]), bench.resident()
    try:
        alone = [train(job, resident, TrainingSettings(BATCH)).accuracy for job in some]
        beside = [found.accuracy for found in run(some)]
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        control = [train(job, resident, TrainingSettings(BATCH)).accuracy for job in some]
    except Exception as error:
        traceback.print_exc()
        bench.notes.append(f"{name}: the comparison of accuracies failed: {error}")
        return
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    apart, usual = ([abs(one - other) for one, other in zip(alone, others)] for others in (beside, control))
    bench.notes.append(
        f"{name}: {len(some)} networks, mean accuracy {np.mean(alone):.4f} in turn and {np.mean(beside):.4f} together; "
        f"a network differs by {np.mean(apart):.4f} on average and {max(apart):.4f} at most (control: in turn, with "
        f"and without TF32, by {np.mean(usual):.4f} and {max(usual):.4f})"
    )
    bench.say(bench.notes[-1])
