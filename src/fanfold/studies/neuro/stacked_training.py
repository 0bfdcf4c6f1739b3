"""Any mix of networks trained at once: stacks side by side, one optimiser for all, on a GPU one graph a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.studies.neuro import cuda_graph
from fanfold.studies.neuro.cuda_graph import Captured, Fork, in_turn
from fanfold.studies.neuro.data import DTYPES, Resident
from fanfold.studies.neuro.layout import layout
from fanfold.studies.neuro.network import dropout_bases, trained
from fanfold.studies.neuro.optimiser import corrections, joined
from fanfold.studies.neuro.stacks import Dropout, Ground, Mover, Stack, at_once, family
from fanfold.studies.neuro.training import (
    SCORED,
    Curve,
    TrainedNetwork,
    TrainingJob,
    TrainingProgress,
    TrainingSettings,
    finished,
    going,
    out_of_memory,
    right,
    unpacked,
)
from fanfold.tensors import Arrays

T = TypeVar("T")


@dataclass(frozen=True)
class StepOptions:
    """How a step is run: captured on so many branches or, with 0, not captured; and how the layers compute."""

    branches: int
    half: bool = False
    channels_last: bool = True


def train_graphs(
    jobs: Sequence[TrainingJob],
    resident: Resident,
    training: TrainingSettings,
    branches: int = 32,
    *,
    graph: bool | None = None,
    half: bool = False,
    channels_last: bool | None = None,
) -> list[TrainedNetwork]:
    """What `training.train` makes of each job, with all networks trained at once, whatever they are.

    Networks that have done equally many epochs share every step; those of a family are stacked.  With `graph` (if not
    said, on a GPU) a step is captured once, on so many branches, and replayed; else its operations run one after
    another.  With `half`, layers compute in bfloat16, which is no longer the same training.

    Raises `torch.OutOfMemoryError` where the networks do not fit; what they took is free again by then.
    """
    how = _how(resident, training, branches, graph, half, channels_last)
    starts = at_once(lambda job: unpacked(job, resident.shape, training.dtype), jobs)
    ends = dict(enumerate(starts))

    def unfinished(numbers: Iterable[int]) -> list[int]:
        return [n for n in numbers if going(ends[n].curve, ends[n].broken, jobs[n], training)]

    waiting = unfinished(ends)
    while waiting:
        level = min((len(ends[n].curve), ends[n].steps) for n in waiting)
        some = [n for n in waiting if (len(ends[n].curve), ends[n].steps) == level]
        ends |= zip(some, _trained([jobs[n] for n in some], [ends[n] for n in some], resident, training, how))
        waiting = unfinished(waiting)
    return at_once(lambda n: finished(ends[n], training), range(len(jobs)))


def _how(
    resident: Resident,
    training: TrainingSettings,
    branches: int,
    graph: bool | None,
    half: bool,
    channels_last: bool | None,
) -> StepOptions:
    if training.dtype != resident.dtype:
        raise ConfigError(f"a training in {training.dtype} was given data in {resident.dtype}: make both the same")
    if branches < 1:
        raise ConfigError(f"branches must be at least 1, not {branches!r}")
    on_gpu = torch.device(resident.device).type == "cuda"
    if graph and not on_gpu:
        raise ConfigError(f"graph=True: a step is captured on 'cuda', not on {resident.device!r}; leave graph out")
    if half and not on_gpu:
        raise ConfigError(
            f"half=True: layers compute in bfloat16 on 'cuda', not on {resident.device!r}; leave half out"
        )
    captured = on_gpu if graph is None else graph
    return StepOptions(branches if captured else 0, half, not on_gpu if channels_last is None else channels_last)


def _trained(
    jobs: Sequence[TrainingJob],
    starts: Sequence[TrainingProgress],
    resident: Resident,
    training: TrainingSettings,
    how: StepOptions,
) -> list[TrainingProgress]:
    """Where the jobs get to; when captured steps of others are in the way of memory, they are given up for it."""
    for again in (bool(cuda_graph.captured), False):
        try:
            return Group(jobs, starts, resident, training, how).ends()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            message = str(error)
        # Only here, where the error and with it the frames that hold tensors are gone, can memory be freed.
        cuda_graph.forget()
        if not again:
            break
    raise torch.OutOfMemoryError(message)


class Group:
    """Networks that have done equally many epochs, trained together.  `ends` is the way through; the rest its parts."""

    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        starts: Sequence[TrainingProgress],
        resident: Resident,
        training: TrainingSettings,
        how: StepOptions,
    ) -> None:
        self.jobs, self.resident, self.training = jobs, resident, training
        self.curves: list[Curve] = [start.curve for start in starts]
        self.broken = [False for _ in jobs]
        self.steps = starts[0].steps
        self.numbers, stacks = _stacked(jobs, resident)
        rows = min(training.batch, len(resident))
        self._key = (tuple(stack.key for stack in stacks), rows, resident.device, resident.dtype, how)
        self.together: Together
        self._step: Callable[[], None]
        self.together, self._step = cuda_graph.take(self._key) or _made(stacks, rows, resident, how)
        self.together.put(self._by_stack(jobs), self._by_stack(starts))
        self._seeds = self._by_stack([dropout_seed(job) for job in jobs])

    def ends(self) -> list[TrainingProgress]:
        """Train until every network is done, or so few are left that they are better put together again."""
        ends: dict[int, TrainingProgress] = {}
        while len(ends) < len(self.jobs):
            self.epoch()
            left = [n for n in range(len(self.jobs)) if n not in ends]
            live = [n for n in left if going(self.curves[n], self.broken[n], self.jobs[n], self.training)]
            over = [n for n in left if n not in live] if 2 * len(live) > len(self.jobs) else left
            if over:
                progress = self.progress()
                ends |= {n: progress[n] for n in over}
        self.leave()
        return [ends[n] for n in range(len(self.jobs))]

    def epoch(self) -> None:
        """One epoch of every network, and its validation."""
        number, size, count = len(self.curves[0]), self.training.batch, self.training.steps(len(self.resident))
        order, base = self.resident.order(number), self.resident.base(number)
        tables = self.together.tables(self._seeds, range(self.steps, self.steps + count))
        for losses in self.together.losses:
            losses.zero_()
        for row in range(count):
            images, labels = self.resident.batch(order[row * size : (row + 1) * size], base)
            self.together.at(row, tables, images, labels)
            self._step()
        self.steps += count
        seen = self.together.seen(*self.resident.validation).tolist()
        for n, total, hits, finite in zip([n for stacked in self.numbers for n in stacked], *seen):
            self.curves[n] += ((int(hits) / len(self.resident.validation[1]), total / count),)
            self.broken[n] = not math.isfinite(total) or not finite

    def progress(self) -> list[TrainingProgress]:
        """Where the networks stand."""
        stacks = self.together.taken(self.steps)
        by_number = {n: each for numbers, stacked in zip(self.numbers, stacks) for n, each in zip(numbers, stacked)}
        return [replace(by_number[n], curve=curve) for n, curve in enumerate(self.curves)]

    def leave(self) -> None:
        """Let others of the same families have the captured step."""
        if isinstance(self._step, Captured):
            cuda_graph.keep(self._key, (self.together, self._step))

    def _by_stack(self, each: Sequence[T]) -> list[list[T]]:
        return [[each[n] for n in numbers] for numbers in self.numbers]


def _stacked(jobs: Sequence[TrainingJob], resident: Resident) -> tuple[list[list[int]], list[Stack]]:
    """The numbers of the jobs of each family, and its stack: the most expensive first, in whatever order they came."""
    families: dict[str, list[int]] = {}
    for n, job in enumerate(jobs):
        families.setdefault(family(job.genome, resident.shape), []).append(n)
    pairs = [(numbers, Stack(jobs[numbers[0]].genome, resident.shape, len(numbers))) for numbers in families.values()]
    pairs.sort(key=lambda pair: (-pair[1].cost, pair[1].key))
    return [numbers for numbers, _ in pairs], [stack for _, stack in pairs]


def _made(
    stacks: Sequence[Stack], rows: int, resident: Resident, how: StepOptions
) -> tuple[Together, Callable[[], None]]:
    where = {"device": torch.device(resident.device), "dtype": DTYPES[resident.dtype]}
    together = Together(stacks, rows, where, how.channels_last, how.half)
    return together, Captured(together, how.branches) if how.branches else together.step


def train_fused(
    jobs: Sequence[TrainingJob],
    resident: Resident,
    training: TrainingSettings,
    *,
    graph: bool | None = None,
    half: bool = False,
) -> list[TrainedNetwork]:
    """What `training.train` makes of each job, with the networks of a family trained as one; families in turn.

    With `graph` (if not said, on a GPU) a step is captured once and replayed.  With `half`, the layers compute in
    bfloat16, which is no longer the same training.
    """
    families: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        families.setdefault(family(job.genome, resident.shape), []).append(number)
    networks: dict[int, TrainedNetwork] = {}
    for numbers in families.values():
        done = train_graphs([jobs[n] for n in numbers], resident, training, branches=1, graph=graph, half=half)
        networks |= dict(zip(numbers, done))
    return [networks[number] for number in range(len(jobs))]


class Together:
    """Stacks of networks that are trained on the same batches, step by step.

    All that a step reads or writes stays where it is: `images`, `labels` and what `at` sets are written before it, so
    a step can be captured and replayed.  Lists of lists are by stack and by network.
    """

    def __init__(
        self, stacks: Sequence[Stack], rows: int, where: Mapping[str, Any], channels_last: bool, half: bool = False
    ) -> None:
        self.stacks, self.half = stacks, half
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        shape = stacks[0].shape
        size = (rows, shape.channels, shape.height, shape.width)
        self.images = torch.empty(size, memory_format=self.layout, **where).zero_()
        self.labels = torch.zeros(rows, dtype=torch.int64, device=where["device"])
        self.losses = [torch.zeros(stack.count, **where) for stack in stacks]
        self.dropout = Dropout(stacks, rows, where)
        self.running = Ground([stack.running for stack in stacks], where)
        kinds: dict[str, list[int]] = {}
        for s, stack in enumerate(stacks):
            kinds.setdefault(stack.genome.optimiser, []).append(s)
        self.movers = [Mover(kind, some, [stacks[s].trained for s in some], where) for kind, some in kinds.items()]
        self._trained = {s: (mover, place) for mover in self.movers for place, s in enumerate(mover.stacks)}
        self._ones = torch.ones(max(stack.count for stack in stacks), **where)
        self._nets = [
            {name: view.detach() for name, view in self.running.views[s].items()} | mover.ground.views[place]
            for s, (mover, place) in sorted(self._trained.items())
        ]

    def put(self, jobs: Sequence[Sequence[TrainingJob]], starts: Sequence[Sequence[TrainingProgress]]) -> None:
        """Take up networks where they stand."""
        self.running.put(self.running.vector, [[start.arrays for start in stacked] for stacked in starts])
        self.dropout.put([[job.genome for job in stacked] for stacked in jobs])
        for mover in self.movers:
            ground, mine = mover.ground, [starts[s] for s in mover.stacks]
            ground.put(ground.vector, [[start.arrays for start in stacked] for stacked in mine])
            for name in ("first", "second"):
                moment = getattr(mover.moments, name)
                if moment is not None and all(getattr(start, name) is None for stacked in mine for start in stacked):
                    moment.zero_()
                elif moment is not None:
                    ground.put(
                        moment, [[_by_name(start, getattr(start, name)) for start in stacked] for stacked in mine]
                    )
            mover.rate.copy_(ground.spread([[job.genome.learning_rate for job in jobs[s]] for s in mover.stacks]))

    def taken(self, steps: int) -> list[list[TrainingProgress]]:
        """Where the networks stand after so many steps; their curves are not known here."""
        running = self.running.taken(self.running.vector)
        held: dict[int, list[tuple[Arrays, Arrays | None, Arrays | None]]] = {}
        for mover in self.movers:
            ground, moments = mover.ground, (mover.moments.first, mover.moments.second)
            numbers = ground.taken(ground.vector)
            first, second = (None if moment is None else ground.taken(moment) for moment in moments)
            for place, s in enumerate(mover.stacks):
                held[s] = [
                    (
                        numbers[place][k] | (running[s][k] if running[s] else {}),
                        None if first is None else first[place][k],
                        None if second is None else second[place][k],
                    )
                    for k in range(self.stacks[s].count)
                ]

        def progress(pair: tuple[int, int]) -> TrainingProgress:
            s, k = pair
            order = list(layout(self.stacks[s].genome, self.stacks[s].shape).tensors)
            arrays, *moments = held[s][k]
            one, two = (None if moment is None else _end_to_end(moment, order) for moment in moments)
            return TrainingProgress({name: arrays[name] for name in order}, one, two, steps, ())

        states = iter(at_once(progress, [(s, k) for s, stack in enumerate(self.stacks) for k in range(stack.count)]))
        return [[next(states) for _ in range(stack.count)] for stack in self.stacks]

    def tables(self, seeds: Sequence[Sequence[int]], steps: range) -> tuple[Tensor, Tensor]:
        """For `at`: what the steps need besides a batch, one row for each.  `seeds` are those of the dropout."""
        columns = self.dropout.columns(seeds)
        bases = dropout_bases([seed for seed, _ in columns], [layer for _, layer in columns], steps)
        scales = [[corrections(mover.kind, step + 1) for mover in self.movers] for step in steps]
        vector = self.movers[0].scales
        return torch.from_numpy(bases).to(vector.device), torch.tensor(scales, dtype=vector.dtype, device=vector.device)

    def at(self, row: int, tables: tuple[Tensor, Tensor], images: Tensor, labels: Tensor) -> None:
        """Make ready for a step: the batch, and its row of the tables."""
        bases, scales = tables
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.dropout.bases.copy_(bases[row])
        for m, mover in enumerate(self.movers):
            mover.scales.copy_(scales[row, m])

    def step(self, fork: Fork = in_turn) -> None:
        """Every network learns from the batch; its loss before is added to `losses`."""
        factors = self.dropout.factors()
        fork([partial(self._learn, s, factors[s]) for s in range(len(self.stacks))])
        fork([mover.move for mover in self.movers])

    def _learn(self, s: int, factors: Sequence[Tensor]) -> None:
        stack, (mover, place) = self.stacks[s], self._trained[s]
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=self.half, cache_enabled=False):
            scores = stack.scores(self._nets[s], self.images, factors)
        losses = stack.losses(scores.to(self.images.dtype), self.labels)
        slopes = torch.autograd.grad(losses, list(mover.ground.views[place].values()), self._ones[: stack.count])
        joined(slopes, out=mover.slope[mover.ground.parts[place]])
        self.losses[s].add_(losses.detach())

    @torch.no_grad()
    def seen(self, images: Tensor, labels: Tensor) -> Tensor:
        """Of every network: the sum of its losses so far, its right answers to images, and whether it is all finite."""
        found = []
        for s, stack in enumerate(self.stacks):
            rows = SCORED if stack.count == 1 else len(self.images)
            some = zip(torch.split(images, rows), torch.split(labels, rows))
            hits = torch.stack([right(self.scored(s, part), answers).sum(-1) for part, answers in some]).sum(0)
            found.append(torch.stack([self.losses[s].double(), hits.double(), self._finite(s).double()]))
        return torch.cat(found, 1)

    def scored(self, s: int, images: Tensor) -> Tensor:
        """What the networks of a stack make of images, learning nothing."""
        with torch.autocast(self.images.device.type, torch.bfloat16, enabled=self.half):
            return self.stacks[s].scores(self._nets[s], images.contiguous(memory_format=self.layout))

    def _finite(self, s: int) -> Tensor:
        mover, place = self._trained[s]
        if self.stacks[s].count == 1:
            return mover.ground.vector[mover.ground.parts[place]].isfinite().all().view(1)
        views = mover.ground.views[place].values()
        return torch.stack([view.flatten(1).isfinite().all(1) for view in views]).all(0)


def dropout_seed(job: TrainingJob) -> int:
    return derive_seed(job.seed, "dropout")


def _by_name(start: TrainingProgress, moment: NDArray[Any] | None) -> Arrays:
    """A moment, which is laid end to end in the order of the trained tensors, by the names of those."""
    parts, place = {}, 0
    for name, array in start.arrays.items():
        if trained(name):
            part = np.zeros(array.size, array.dtype) if moment is None else moment[place : place + array.size]
            parts[name] = part.reshape(array.shape)
            place += array.size
    return parts


def _end_to_end(arrays: Arrays, order: Sequence[str]) -> NDArray[Any]:
    return np.concatenate([arrays[name].ravel() for name in order if name in arrays])
