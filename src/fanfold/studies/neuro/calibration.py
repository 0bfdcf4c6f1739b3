"""How fast each engine trains networks on this machine: a table to choose by, measured and not guessed."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch

from fanfold.encoding import derive_seed
from fanfold.errors import FanfoldError
from fanfold.events import EvaluationFinished, Event
from fanfold.executors import usable_cores
from fanfold.strategies import Sweep
from fanfold.studies.neuro import layout as layouts
from fanfold.studies.neuro.config import NeuroConfig, source, training
from fanfold.studies.neuro.data import resident
from fanfold.studies.neuro.engines import TrainingEngine, engine, has_gpu
from fanfold.studies.neuro.evaluator import Trainer, free_on_gpu
from fanfold.studies.neuro.genome import Individual
from fanfold.studies.neuro.memory import SHARE, free_memory
from fanfold.studies.neuro.space import random_genome
from fanfold.study import Study
from fanfold.summary import Section
from fanfold.types import Case

#: Networks that each engine trains, and steps of each: about a second of work where a step takes ten milliseconds.
NETWORKS, STEPS = 8, 12


@dataclass(frozen=True)
class Row:
    """What one engine did: networks per second once it was going, and how long it took to get going."""

    engine: TrainingEngine
    rate: float
    start: float


def calibration(config: NeuroConfig) -> list[Section]:
    """Networks per second of every engine that runs here, the best first, and how many networks fit."""
    rng = Random(derive_seed(config.seed, "calibration"))
    many = NETWORKS if not has_gpu() else 8 * NETWORKS
    individuals = [Individual(random_genome(config.space, rng)) for _ in range(many)]
    rows, notes = [], []
    for candidate in candidates():
        try:
            rows.append(measured(candidate, individuals, config))
        except FanfoldError as error:
            notes.append(f"{candidate.name}: {error}")
    rows.sort(key=lambda row: -row.rate)
    base = next((row.rate for row in rows if row.engine.name == "sequential"), rows[0].rate)
    table = tuple(
        (row.engine.name, row.engine.executor, row.engine.group, row.rate, row.rate / base, row.start) for row in rows
    )
    head = ("engine", "executor", "as one", "networks/s", "x sequential", "seconds to start")
    text = (
        f"{usable_cores()} cores{', a GPU' if has_gpu() else ''}. {len(individuals)} random networks of the space on "
        f"{config.dataset}, {STEPS} steps of {config.batch_size} images each. Fastest here: "
        f"--engine {rows[0].engine.name} --concurrent {at_once(rows[0].engine)}."
    )
    return [Section("Engines on this machine", "\n".join([text, *notes]), head, table), room(config, individuals)]


def fastest(config: NeuroConfig) -> TrainingEngine:
    """The engine that trains most networks a second here, of those that start at once."""
    rng = Random(derive_seed(config.seed, "calibration"))
    individuals = [Individual(random_genome(config.space, rng)) for _ in range(NETWORKS)]
    quick = [each for each in candidates() if each.name != "processes" and config.device in ("auto", *each.devices)]
    return max(quick, key=lambda each: measured(each, individuals, config).rate)


def candidates() -> Iterator[TrainingEngine]:
    """The engines that are worth trying here."""
    yield engine("sequential", "cpu")
    for name in ("threads", "processes"):
        for many in sorted({2, usable_cores(), 2 * usable_cores()}):
            if name == "threads" or many <= usable_cores():
                yield engine(name, "cpu", many)
    if has_gpu():
        yield dataclasses.replace(engine("sequential", "cuda"), name="sequential, GPU")
        yield engine("streams", "cuda", 4)
        for group in (16, 32, 64):
            yield engine("graph", "cuda", group)


def at_once(found: TrainingEngine) -> int:
    return max(found.group, found.calls)


def measured(candidate: TrainingEngine, individuals: list[Individual], config: NeuroConfig) -> Row:
    """Train the networks on one engine, through the study's own road."""
    settings = dataclasses.replace(training(config), max_batches=STEPS)
    trainer = Trainer(source(config), settings, candidate, seed=derive_seed(config.seed, "images"))
    ends: list[float] = []

    def watch(event: Event) -> None:
        if isinstance(event, EvaluationFinished):
            ends.append(time.perf_counter())

    case = Case("calibration", {"epochs": 1}, derive_seed(config.seed, "networks"))
    began = time.perf_counter()
    study = Study(Sweep(individuals), trainer, [case], window=len(individuals), name="calibration")
    study.run(candidate.executor, watch=watch, progress=False)
    return Row(candidate, *pace(began, ends))


def pace(began: float, ends: list[float]) -> tuple[float, float]:
    """Networks per second between the first end and the last, and the seconds before that beyond one network's share.

    Where all end at once (a group), the time from the beginning is all there is.
    """
    first, last, between = ends[0], ends[-1], len(ends) - 1
    if last - first < 0.1 * (last - began):
        return len(ends) / (last - began), 0.0
    rate = between / (last - first)
    return rate, max(0.0, first - began - 1.0 / rate)


def room(config: NeuroConfig, individuals: list[Individual]) -> Section:
    """What networks of the space take, and how many of the typical ones fit."""
    shape = resident(source(config), "cpu", config.dtype, derive_seed(config.seed, "images")).shape
    sizes = sorted(layouts.memory(individual.genome, shape, config.batch_size) for individual in individuals)
    typical = int(statistics.median(sizes))
    rows = [("memory", free_memory(), int(SHARE * free_memory() / typical))]
    if has_gpu():
        rows.append((torch.cuda.get_device_name(), free_on_gpu(), int(SHARE * free_on_gpu() / typical)))
    text = (
        f"A typical network takes about {typical:,} bytes in training, the largest of these {sizes[-1]:,} (predicted)."
    )
    return Section("Room", text, ("where", "free bytes", "typical networks that fit"), tuple(rows))
