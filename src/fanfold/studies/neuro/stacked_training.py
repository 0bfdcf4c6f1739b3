"""Any mix of networks trained at once: those of a family stacked, stacks side by side, each step a CUDA graph."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

import torch
from torch import Tensor

from fanfold.errors import ConfigError
from fanfold.studies.neuro import cuda_graph
from fanfold.studies.neuro.cuda_graph import CaptureLane
from fanfold.studies.neuro.data import Resident
from fanfold.studies.neuro.stack_steps import EpochSpan, StackSteps, StepOptions, prepare
from fanfold.studies.neuro.stacks import Stack, at_once, family, stackable
from fanfold.studies.neuro.training import (
    Curve,
    TrainedNetwork,
    TrainingJob,
    TrainingProgress,
    TrainingSettings,
    finished,
    going,
    out_of_memory,
    unpacked,
)

#: Lanes in which stacks are trained side by side; PyTorch has streams for 32.
LANES = 24
#: Seconds between two looks at what a GPU has done.
_LOOK = 0.0002


def train_graphs(
    jobs: Sequence[TrainingJob],
    resident: Resident,
    training: TrainingSettings,
    lanes: int = LANES,
    *,
    graph: bool | None = None,
    half: bool = False,
    channels_last: bool | None = None,
) -> list[TrainedNetwork]:
    """What `training.train` makes of each job, with all networks trained at once, whatever they are.

    Networks of a family that stand equally far are stacked.  With `graph` (if not said, on a GPU) the step of each
    stack is captured once and replayed, in so many lanes: while some are captured, others are trained.  Else stacks are
    trained one after another.  With `half`, layers compute in bfloat16, which is no longer the same training.

    Raises `torch.OutOfMemoryError` where the networks do not fit; what they took is free again by then.
    """
    how = _how(resident, training, lanes, graph, half, channels_last)
    starts = at_once(lambda job: unpacked(job, resident.shape, training.dtype), jobs)
    for again in (bool(cuda_graph.captured), False):
        try:
            ends = _trained(jobs, starts, resident, training, how)
            break
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            message = str(error)
        # Only here, where the error and with it the frames that hold tensors are gone, can memory be freed.
        cuda_graph.forget()
        if not again:
            raise torch.OutOfMemoryError(message)
    return at_once(lambda end: finished(end, training), ends)


def train_fused(
    jobs: Sequence[TrainingJob],
    resident: Resident,
    training: TrainingSettings,
    *,
    graph: bool | None = None,
    half: bool = False,
) -> list[TrainedNetwork]:
    """What `training.train` makes of each job, with the networks of a family trained as one; families in turn."""
    return train_graphs(jobs, resident, training, 1, graph=graph, half=half)


def _how(
    resident: Resident,
    training: TrainingSettings,
    lanes: int,
    graph: bool | None,
    half: bool,
    channels_last: bool | None,
) -> StepOptions:
    if training.dtype != resident.dtype:
        raise ConfigError(f"a training in {training.dtype} was given data in {resident.dtype}: make both the same")
    if lanes < 1:
        raise ConfigError(f"lanes must be at least 1, not {lanes!r}")
    on_gpu = torch.device(resident.device).type == "cuda"
    if graph and not on_gpu:
        raise ConfigError(f"graph=True: a step is captured on 'cuda', not on {resident.device!r}; leave graph out")
    if half and not on_gpu:
        raise ConfigError(
            f"half=True: layers compute in bfloat16 on 'cuda', not on {resident.device!r}; leave half out"
        )
    captured = on_gpu if graph is None else graph
    return StepOptions(lanes if captured else 0, half, not on_gpu if channels_last is None else channels_last)


def _trained(
    jobs: Sequence[TrainingJob],
    starts: Sequence[TrainingProgress],
    resident: Resident,
    training: TrainingSettings,
    how: StepOptions,
) -> list[TrainingProgress]:
    """Where the jobs get to."""
    ends = dict(enumerate(starts))
    stacks: dict[object, list[int]] = {}
    for n, (job, start) in enumerate(zip(jobs, starts)):
        if going(start.curve, start.broken, job, training):
            level = (len(start.curve), start.steps, job.epochs)
            alone = None if stackable(job.genome) else n
            stacks.setdefault((family(job.genome, resident.shape), level, alone), []).append(n)
    prepare(resident, training, jobs)
    groups = [Group(numbers, jobs, starts, resident, training) for numbers in stacks.values()]
    groups.sort(key=lambda group: (-group.stack.cost, group.stack.key))
    if how.lanes:
        _in_lanes(groups, how)
    else:
        for group in groups:
            group.prepare(how)
            while group.going:
                group.begin()
                group.steps.wait()
                group.read()
            group.leave()
    for group in groups:
        ends |= group.ends
    return [ends[n] for n in range(len(jobs))]


def _in_lanes(groups: Sequence[Group], how: StepOptions) -> None:
    """Train stacks in lanes: each begins when it is captured, and all that have begun are trained in turn."""
    if not groups:
        return
    device = torch.device(groups[0].resident.device)
    lanes = cuda_graph.lanes(device, min(how.lanes, len(groups)))
    loads = [(0.0, at) for at in range(len(lanes))]
    capturing: dict[Future[None], Group] = {}
    leaving: list[Future[None]] = []
    training: list[Group] = []
    for lane in lanes:
        lane.follow()
    with ThreadPoolExecutor(4, thread_name_prefix="fanfold-results") as pool:
        try:
            for group in groups:
                load, at = heapq.heappop(loads)
                heapq.heappush(loads, (load + group.stack.cost, at))
                capturing[lanes[at].thread.submit(group.prepare, how, lanes[at])] = group
            while capturing or training:
                done = [future for future in capturing if future.done()]
                for future in done:
                    future.result()
                    training.append(capturing.pop(future))
                    training[-1].begin()
                arrived = [group for group in training if group.steps.arrived]
                for group in arrived:
                    group.read()
                    if group.going:
                        group.begin()
                    else:
                        training.remove(group)
                        leaving.append(pool.submit(group.leave))
                if not done and not arrived:
                    time.sleep(_LOOK) if training else wait(capturing, return_when=FIRST_COMPLETED)
            for future in leaving:
                future.result()
        except BaseException:
            for future in capturing:
                future.cancel()
            wait(capturing)
            wait(leaving)
            for lane in lanes:
                lane.mark().synchronize()
            raise


class Group:
    """The networks of one stack on their way: prepared, trained an epoch at a time, and given back in `ends`."""

    def __init__(
        self,
        numbers: Sequence[int],
        jobs: Sequence[TrainingJob],
        starts: Sequence[TrainingProgress],
        resident: Resident,
        training: TrainingSettings,
    ) -> None:
        self.numbers, self.jobs, self.starts = numbers, [jobs[n] for n in numbers], [starts[n] for n in numbers]
        self.resident, self.training = resident, training
        self.stack = Stack(self.jobs[0].genome, resident.shape, len(numbers))
        first, steps = self.starts[0], training.steps(len(resident))
        self.span = EpochSpan(
            len(first.curve), first.steps, first.steps, (self.jobs[0].epochs - len(first.curve)) * steps
        )
        self.curves: list[Curve] = [start.curve for start in self.starts]
        self.ends: dict[int, TrainingProgress] = {}
        self._steps: StackSteps | None = None
        self._seen: Tensor | None = None
        #: The networks that were done at some step, and copies of all of them then where others continued.
        self._over: list[tuple[list[int], int, list[Tensor | None] | None]] = []

    @property
    def steps(self) -> StackSteps:
        assert self._steps is not None
        return self._steps

    def prepare(self, how: StepOptions, lane: CaptureLane | None = None) -> None:
        """Take up the networks, in buffers of their own or in those of others of their family before."""
        key = (self.stack.key, id(self.resident), self.training.batch, self.training.max_batches, how)
        self._steps = cuda_graph.take(key) or StackSteps(key, self.stack, self.resident, self.training, how, lane)
        self.steps.put(self.jobs, self.starts)
        self.starts = []

    @property
    def going(self) -> bool:
        return sum(len(places) for places, _, _ in self._over) < len(self.numbers)

    def begin(self) -> None:
        """Begin an epoch and its validation."""
        self._seen = self.steps.epoch(self.jobs, self.span)
        self.span = replace(self.span, epoch=self.span.epoch + 1, first=self.span.first + self.steps.steps)

    def read(self) -> None:
        """Take in an epoch that is over; networks that are done with it are copied."""
        assert self._seen is not None
        before = {k for places, _, _ in self._over for k in places}
        over = []
        for k, (score, total, finite) in enumerate(self._seen.T.tolist()):
            if k not in before:
                self.curves[k] += ((score, total / self.steps.steps),)
                if not going(self.curves[k], not (math.isfinite(total) and finite), self.jobs[k], self.training):
                    over.append(k)
        if over:
            last = len(before) + len(over) == len(self.numbers)
            self._over.append((over, self.span.first, None if last else self.steps.copies()))

    def leave(self) -> None:
        """Give the networks back, and let others of the same family have what was captured."""
        final = self.steps.copies()
        self.steps.wait()
        for places, steps, copies in self._over:
            for k in places:
                end = self.steps.state.taken(copies or final, k, steps)
                self.ends[self.numbers[k]] = replace(end, curve=self.curves[k])
        if self.steps.lane is not None:
            cuda_graph.keep(self.steps.key, self.steps)
        self._steps = None
