"""The steps of a stack of networks: all they read or write stays in place, so they can be captured and replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fanfold.encoding import derive_seed
from fanfold.studies.neuro import network, targets
from fanfold.studies.neuro.augmentation import meant
from fanfold.studies.neuro.cuda_graph import Captured, CaptureLane
from fanfold.studies.neuro.data import DTYPES, Resident
from fanfold.studies.neuro.layout import layout
from fanfold.studies.neuro.network import dropout_bases
from fanfold.studies.neuro.optimiser import Moments, corrections, joined
from fanfold.studies.neuro.stacks import Dropout, Ground, Stack, copied, pinned
from fanfold.studies.neuro.training import SCORED, TrainingJob, TrainingProgress, TrainingSettings, step_size
from fanfold.tensors import Arrays

#: The most bytes that images take as networks see them; more are prepared batch by batch.
_MOST = 2**31


@dataclass(frozen=True)
class StepOptions:
    """How a step is run: captured in so many lanes or, with 0, not captured; and how the layers compute.

    `kernels`: plain convolutions by kernels of our own.
    """

    lanes: int
    half: bool = False
    channels_last: bool = True
    kernels: bool = False

    @property
    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format


@dataclass(frozen=True)
class EpochSpan:
    """What an epoch is of a training: its number, its first step, where the rung began, and how many steps it has."""

    epoch: int
    first: int
    began: int
    length: int


class Tables:
    """What some steps need besides numbers: a row for each, and the place of the next one."""

    def __init__(self, steps: int, rows: int, where: dict[str, Any]) -> None:
        device = where["device"]
        self.order = torch.zeros(steps, rows, dtype=torch.int64, device=device)
        #: The learning rate, and the corrections of the optimiser.
        self.scales = torch.zeros(steps, 3, **where)
        #: The number that decides how images are changed.
        self.base = torch.zeros((), dtype=torch.int64, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)

    def put(self, order: Tensor, base: int, scales: Sequence[Sequence[float]]) -> None:
        self.order[: len(order)].copy_(order)
        self.scales[: len(scales)].copy_(
            pinned(torch.tensor(scales, dtype=torch.float64), self.scales), non_blocking=True
        )
        self.base.fill_(base)
        self.at.zero_()


class StackState:
    """The numbers of the networks of a stack and what the optimiser remembers, on the device."""

    def __init__(self, stack: Stack, where: dict[str, Any]) -> None:
        self.stack = stack
        self.numbers, self.running = Ground(stack.trained, where), Ground(stack.running, where)
        self.moments = Moments(stack.genome.optimiser, self.numbers.vector)
        self.slope = torch.zeros_like(self.numbers.vector)
        #: The learning rates, one for each place, where networks differ.
        self.rate = torch.zeros_like(self.numbers.vector) if stack.count > 1 else None
        self.net = {name: view.detach() for name, view in self.running.views.items()} | self.numbers.views

    def put(self, jobs: Sequence[TrainingJob], starts: Sequence[TrainingProgress]) -> None:
        """Take up networks where they stand."""
        for ground in (self.numbers, self.running):
            ground.put(ground.vector, [start.arrays for start in starts])
        for name in ("first", "second"):
            moment, held = getattr(self.moments, name), [getattr(start, name) for start in starts]
            if moment is not None and all(each is None for each in held):
                moment.zero_()
            elif moment is not None:
                self.numbers.put(moment, [_by_name(start, each) for start, each in zip(starts, held)])
        if self.rate is not None:
            rates = self.numbers.spread([job.genome.learning_rate for job in jobs])
            self.rate.copy_(rates, non_blocking=True)

    def copies(self) -> list[Tensor | None]:
        """Copies of all numbers, as `taken` reads them once they are there."""
        moments = (self.moments.first, self.moments.second)
        return [copied(vector) for vector in (self.numbers.vector, self.running.vector, *moments)]

    def taken(self, copies: Sequence[Tensor | None], k: int, steps: int) -> TrainingProgress:
        """Where network `k` stands after so many steps; its curve is not known here."""
        order = list(layout(self.stack.genome, self.stack.shape).tensors)
        numbers, running, *moments = (
            None if host is None else ground.taken(host)
            for ground, host in zip((self.numbers, self.running, self.numbers, self.numbers), copies)
        )
        assert numbers is not None
        arrays = numbers[k] | (running[k] if running else {})
        first, second = (None if moment is None else _end_to_end(moment[k], order) for moment in moments)
        return TrainingProgress({name: arrays[name].copy() for name in order}, first, second, steps, ())

    def finite(self) -> Tensor:
        """Of every network, whether all its numbers are."""
        if self.stack.count == 1:
            return self.numbers.vector.isfinite().all().view(1)
        return torch.stack([view.flatten(1).isfinite().all(1) for view in self.numbers.views.values()]).all(0)


class StackSteps:
    """A stack of networks and its steps: captured where there is a lane, or run one operation after another."""

    def __init__(
        self,
        key: Hashable,
        stack: Stack,
        resident: Resident,
        training: TrainingSettings,
        how: StepOptions,
        lane: CaptureLane | None = None,
    ) -> None:
        self.key, self.stack, self.resident, self.how, self.lane = key, stack, resident, how, lane
        self.steps, rows = training.steps(len(resident)), min(training.batch, len(resident))
        where: dict[str, Any] = {"device": torch.device(resident.device), "dtype": DTYPES[resident.dtype]}
        self._step: Callable[[], None] = self.step
        self._validate: Callable[[], None] = self.validate
        self._mark: torch.cuda.Event | None = None
        with nullcontext() if lane is None else lane.preparing():
            self.state = StackState(stack, where)
            self.dropout = Dropout(stack, rows, self.steps, where)
            self.tables = Tables(self.dropout.steps, rows, where)
            self.losses = torch.zeros(stack.count, **where)
            #: Of every network: its score, the sum of its losses, and whether it is all finite.
            self.seen = torch.zeros(3, stack.count, dtype=torch.float64, device=where["device"])
            if lane is not None:
                self._step, self._validate = Captured(self.step, lane), Captured(self.validate, lane)

    def put(self, jobs: Sequence[TrainingJob], starts: Sequence[TrainingProgress]) -> None:
        with self.on_stream():
            self.state.put(jobs, starts)
            self.dropout.put([job.genome for job in jobs])

    def epoch(self, jobs: Sequence[TrainingJob], span: EpochSpan) -> Tensor:
        """One epoch and its validation, begun; what is `seen` then, once it has arrived.

        The jobs may be later ones than those it was made for: of the same family, with other rates.
        """
        genome, steps = jobs[0].genome, range(span.first, span.first + self.steps)
        seeds = [derive_seed(job.seed, "dropout") for job in jobs]
        columns = self.dropout.columns
        bases = dropout_bases([seeds[k] for _, k in columns], [layer for layer, _ in columns], steps)
        unit = 1.0 if self.state.rate is None else genome.learning_rate
        rates = [step_size(genome, step - span.began, span.length) / unit for step in steps]
        scales = [(rate, *corrections(genome.optimiser, step + 1)) for rate, step in zip(rates, steps)]
        order, base = (
            _order(self.resident, span.epoch, self.steps, self.tables.order.shape[1]),
            self.resident.base(span.epoch),
        )
        with self.on_stream():
            self.losses.zero_()
            for first in range(0, self.steps, self.dropout.steps):
                some = slice(first, first + self.dropout.steps)
                self.tables.put(order[some], base, scales[some])
                self.dropout.draw(torch.from_numpy(bases[some]))
                for _ in scales[some]:
                    self._step()
            self._validate()
            seen = torch.empty(self.seen.shape, dtype=self.seen.dtype, pin_memory=self.seen.is_cuda)
            seen.copy_(self.seen, non_blocking=True)
        self._mark = self._marked()
        return seen

    def _marked(self) -> torch.cuda.Event | None:
        """Passed when what was begun, on a GPU, has arrived."""
        if self.lane is not None or not self.seen.is_cuda:
            return None if self.lane is None else self.lane.mark()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    @property
    def arrived(self) -> bool:
        return self._mark is None or bool(self._mark.query())  # type: ignore[no-untyped-call]

    def copies(self) -> list[Tensor | None]:
        with self.on_stream():
            copies = self.state.copies()
        self._mark = self._marked()
        return copies

    def wait(self) -> None:
        """Return when the last copies, or what was begun last, have arrived."""
        if self._mark is not None:
            self._mark.synchronize()

    def on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.lane is None else self.lane.replaying()

    def step(self) -> None:
        """Every network learns from the next batch; its loss before is added to `losses`."""
        stack, state, genome = self.stack, self.state, self.stack.genome
        at = self.tables.at
        scales = self.tables.scales.index_select(0, at)[0]
        index = self.tables.order.index_select(0, at)[0]
        images, labels = self._batch(index)
        weights = None if self.resident.weights is None else self.resident.weights.index_select(0, index)
        with self._autocast():
            images = images.contiguous(memory_format=self.how.layout)
            outputs = stack.outputs(state.net, images, self.dropout.factors(at))
        outputs = (outputs.squeeze(0) if stack.count == 1 else outputs).to(self.losses.dtype)
        losses = targets.loss(outputs, labels, stack.shape.target, weights, genome.smoothing)
        joined(torch.autograd.grad(losses.sum(), list(state.numbers.views.values())), out=state.slope)
        rate = scales[0] if state.rate is None else state.rate * scales[0]
        with torch.no_grad():
            if genome.decay:
                state.numbers.vector.mul_(1.0 - (genome.decay * rate).clamp_max(1.0))
            if stack.kernels:
                from fanfold.studies.neuro.convolutions import moved

                moved(state.moments, state.numbers.vector, state.slope, state.rate, self.tables.scales, at)
            else:
                state.moments.move(state.numbers.vector, state.slope, rate, (scales[1], scales[2]))
            self.losses.add_(losses)
            at.add_(1)

    def _batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        genome, still = self.stack.genome, _STILL.get(self.resident)
        if still is None or any(meant(genome.augment, self.resident.data.augment)):
            return self.resident.batch(index, self.tables.base, genome.augment)
        return still.index_select(0, index), self.resident.labels.index_select(0, index)

    @torch.no_grad()
    def validate(self) -> None:
        """Set what is `seen`."""
        images, wanted = self.resident.validation
        images = images.contiguous(memory_format=self.how.layout)
        with self._autocast():
            parts = [
                self.stack.outputs(self.state.net, images[part])[:, new:] for part, new in self._parts(len(images))
            ]
        outputs = torch.cat(parts, 1).to(self.losses.dtype)
        self.seen[0].copy_(targets.score(outputs, wanted, self.stack.shape.scored))
        self.seen[1].copy_(self.losses)
        self.seen[2].copy_(self.state.finite())

    def _parts(self, count: int) -> list[tuple[slice, int]]:
        """Parts that are scored at once, and the first image of each that is new.

        Captured, all are as long as a batch, because for another length libraries would choose their kernels again:
        that takes longer than the few images that are scored twice.
        """
        rows = min(count, SCORED if self.lane is None and self.stack.count == 1 else self.tables.order.shape[1])
        starts = [min(first, count - rows) if self.lane is not None else first for first in range(0, count, rows)]
        return [(slice(at, at + rows), first - at) for at, first in zip(starts, range(0, count, rows))]

    def _autocast(self) -> AbstractContextManager[Any]:
        device = torch.device(self.resident.device).type
        return torch.autocast(device, torch.bfloat16, enabled=self.how.half, cache_enabled=False)


#: The images to learn from as networks see them, of data that fit; and the order of epochs, on the device.
_STILL: WeakKeyDictionary[Resident, Tensor] = WeakKeyDictionary()
_ORDERS: WeakKeyDictionary[Resident, dict[tuple[int, ...], Tensor]] = WeakKeyDictionary()
_KEPT_ORDERS = 64


def prepare(resident: Resident, training: TrainingSettings, jobs: Sequence[TrainingJob]) -> None:
    """Put on the device what all stacks share, before any stream uses it."""
    size = len(resident.labels) * math.prod(resident.pixels.shape[1:]) * resident.mean.element_size()
    if resident not in _STILL and size <= _MOST:
        index = torch.arange(len(resident.labels), device=resident.pixels.device)
        _STILL[resident] = resident.batch(index, 0, "none")[0].contiguous()
    steps, rows = training.steps(len(resident)), min(training.batch, len(resident))
    orders = _ORDERS.setdefault(resident, {})
    for epoch in range(max((job.epochs for job in jobs), default=0)):
        if (epoch, steps, rows) not in orders:
            while len(orders) >= _KEPT_ORDERS:
                orders.pop(next(iter(orders)))
            orders[epoch, steps, rows] = resident.order(epoch)[: steps * rows].view(steps, rows).contiguous()


def _order(resident: Resident, epoch: int, steps: int, rows: int) -> Tensor:
    order = _ORDERS[resident].get((epoch, steps, rows))
    return resident.order(epoch)[: steps * rows].view(steps, rows) if order is None else order


def _by_name(start: TrainingProgress, moment: NDArray[Any] | None) -> Arrays:
    """A moment, which is laid end to end in the order of the trained tensors, by the names of those."""
    parts, place = {}, 0
    for name, array in start.arrays.items():
        if network.trained(name):
            part = np.zeros(array.size, array.dtype) if moment is None else moment[place : place + array.size]
            parts[name] = part.reshape(array.shape)
            place += array.size
    return parts


def _end_to_end(arrays: Arrays, order: Sequence[str]) -> NDArray[Any]:
    return np.concatenate([arrays[name].ravel() for name in order if name in arrays])
