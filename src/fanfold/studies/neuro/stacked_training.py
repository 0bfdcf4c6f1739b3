"""Any mix of networks trained at once: those of a family stacked, stacks side by side, each step a CUDA graph."""

from __future__ import annotations

import heapq
import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fanfold.errors import ConfigError
from fanfold.studies.neuro import cuda_graph
from fanfold.studies.neuro.cuda_graph import CaptureLane
from fanfold.studies.neuro.data import DTYPES, Resident
from fanfold.studies.neuro.stack_steps import EpochSpan, StackSteps, StepOptions, prepare
from fanfold.studies.neuro.stacks import Stack, at_once, family, simple, stackable
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
    unpacked,
)

#: Makes something of a network that is done, maybe in a thread of its own while others are trained.
Ended: TypeAlias = Callable[[TrainingJob, TrainedNetwork], Any]

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
    kernels: bool = True,
    ended: Ended | None = None,
) -> list[Any]:
    """What `training.train` makes of each job, with all networks trained at once, whatever they are.

    Networks of a family that stand equally far are stacked.  With `graph` (if not said, on a GPU) the step of each
    stack is captured once and replayed, in so many lanes: while some are captured, others are trained.  Else stacks are
    trained one after another.  With `half`, layers compute in bfloat16, which is no longer the same training.  On a GPU
    `kernels` of our own compute plain convolutions, unless there is `half` or `channels_last`.

    With `ended`, the result is what that makes of each network.

    Raises `torch.OutOfMemoryError` where the networks do not fit; what they took is free again by then.
    """
    how = _how(resident, training, lanes, graph, half, channels_last, kernels)
    starts = at_once(lambda job: _start(job, resident, training) if job.heir is None else None, jobs)
    for again in (bool(cuda_graph.captured), False):
        try:
            return _trained(jobs, starts, resident, training, how, ended or _as_it_is)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            message = str(error)
        # Only here, where the error and with it the frames that hold tensors are gone, can memory be freed.
        cuda_graph.forget()
        if not again:
            break
    raise torch.OutOfMemoryError(message)


def train_fused(
    jobs: Sequence[TrainingJob],
    resident: Resident,
    training: TrainingSettings,
    *,
    graph: bool | None = None,
    half: bool = False,
    ended: Ended | None = None,
) -> list[Any]:
    """What `training.train` makes of each job, with the networks of a family trained as one; families in turn."""
    return train_graphs(jobs, resident, training, 1, graph=graph, half=half, ended=ended)


def _as_it_is(job: TrainingJob, network: TrainedNetwork) -> TrainedNetwork:
    return network


def _how(
    resident: Resident,
    training: TrainingSettings,
    lanes: int,
    graph: bool | None,
    half: bool,
    channels_last: bool | None,
    kernels: bool,
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
    last = not on_gpu if channels_last is None else channels_last
    own = kernels and on_gpu and not half and not last and kernels_ready(resident.device, resident.dtype)
    return StepOptions(lanes if captured else 0, half, last, own)


def kernels_ready(device: str, dtype: str) -> bool:
    """Whether kernels of our own work on a GPU.  They need Triton, which does not come with PyTorch everywhere."""
    if importlib.util.find_spec("triton") is None:
        return False
    from fanfold.studies.neuro import convolutions

    return convolutions.ready(torch.device(device), DTYPES[dtype])


def _start(job: TrainingJob, resident: Resident, training: TrainingSettings) -> TrainingProgress:
    return unpacked(job, resident.shape, training.dtype)


def _trained(
    jobs: Sequence[TrainingJob],
    starts: Sequence[TrainingProgress | None],
    resident: Resident,
    training: TrainingSettings,
    how: StepOptions,
    ended: Ended,
) -> list[Any]:
    """What the jobs become.  Starts that are not known yet are made while other networks are trained."""
    ends: dict[int, Any] = {}
    stacks: dict[object, list[int]] = {}
    for n, (job, start) in enumerate(zip(jobs, starts)):
        curve, steps, broken = ((), 0, False) if start is None else (start.curve, start.steps, start.broken)
        if not going(curve, broken, job, training):
            ends[n] = ended(job, finished(start or _start(job, resident, training), training))
        else:
            level = (len(curve), steps, job.epochs)
            alone = None if stackable(job.genome) else n
            stacks.setdefault((family(job.genome, resident.shape), level, alone), []).append(n)
    prepare(resident, training, jobs)
    groups = [Group(numbers, jobs, starts, resident, training, how, ended) for numbers in stacks.values()]
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
        starts: Sequence[TrainingProgress | None],
        resident: Resident,
        training: TrainingSettings,
        how: StepOptions,
        ended: Ended,
    ) -> None:
        self.numbers, self.jobs, self.starts = numbers, [jobs[n] for n in numbers], [starts[n] for n in numbers]
        self.resident, self.training, self.ended = resident, training, ended
        genome, images = self.jobs[0].genome, max(training.batch, SCORED)
        kernels = how.kernels and simple(genome, resident.shape, len(numbers), images)
        self.stack = Stack(genome, resident.shape, len(numbers), kernels)
        self.curves: list[Curve] = [() if start is None else start.curve for start in self.starts]
        epochs, done = len(self.curves[0]), 0 if self.starts[0] is None else self.starts[0].steps
        left = (self.jobs[0].epochs - epochs) * training.steps(len(resident))
        self.span = EpochSpan(epochs, done, done, left)
        self.ends: dict[int, Any] = {}
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
        starts = [start or _start(job, self.resident, self.training) for start, job in zip(self.starts, self.jobs)]
        self.steps.put(self.jobs, starts)
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
                end = replace(self.steps.state.taken(copies or final, k, steps), curve=self.curves[k])
                self.ends[self.numbers[k]] = self.ended(self.jobs[k], finished(end, self.training))
        if self.steps.lane is not None:
            cuda_graph.keep(self.steps.key, self.steps)
        self._steps = None
