"""Any mix of networks trained at once: one step of all of them, on a GPU captured in one CUDA graph with branches."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from fanfold.errors import ConfigError
from fanfold.studies.neuro.data import DTYPES, Resident
from fanfold.studies.neuro.fused import Stack, Together, at_once, dropout_seed, family, plainly
from fanfold.studies.neuro.training import (
    Curve,
    Job,
    Progress,
    Trained,
    Training,
    finished,
    going,
    out_of_memory,
    unpacked,
)

#: Steps that stay captured, for the next networks of the same families.
KEPT = 4

T = TypeVar("T")


@dataclass(frozen=True)
class How:
    """How a step is run: captured on so many branches or, with 0, not captured; and how the layers compute."""

    branches: int
    half: bool = False
    channels_last: bool = True


def train_graphs(
    jobs: Sequence[Job],
    resident: Resident,
    training: Training,
    branches: int = 32,
    *,
    graph: bool | None = None,
    half: bool = False,
    channels_last: bool | None = None,
) -> list[Trained]:
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
    training: Training,
    branches: int,
    graph: bool | None,
    half: bool,
    channels_last: bool | None,
) -> How:
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
    return How(branches if captured else 0, half, not on_gpu if channels_last is None else channels_last)


def _trained(
    jobs: Sequence[Job], starts: Sequence[Progress], resident: Resident, training: Training, how: How
) -> list[Progress]:
    """Where the jobs get to; when captured steps of others are in the way of memory, they are given up for it."""
    for again in (bool(_captured), False):
        try:
            return Group(jobs, starts, resident, training, how).ends()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            message = str(error)
        # Only here, where the error and with it the frames that hold tensors are gone, can memory be freed.
        forget()
        if not again:
            break
    raise torch.OutOfMemoryError(message)


class Group:
    """Networks that have done equally many epochs, trained together.  `ends` is the way through; the rest its parts."""

    def __init__(
        self, jobs: Sequence[Job], starts: Sequence[Progress], resident: Resident, training: Training, how: How
    ) -> None:
        self.jobs, self.resident, self.training = jobs, resident, training
        self.curves: list[Curve] = [start.curve for start in starts]
        self.broken = [False for _ in jobs]
        self.steps = starts[0].steps
        self.numbers, stacks = _stacked(jobs, resident)
        rows = min(training.batch, len(resident))
        self._key = (tuple(stack.key for stack in stacks), rows, resident.device, resident.dtype, how)
        self.together, self._step = _captured_for(self._key) or _made(stacks, rows, resident, how)
        self.together.put(self._by_stack(jobs), self._by_stack(starts))
        self._seeds = self._by_stack([dropout_seed(job) for job in jobs])

    def ends(self) -> list[Progress]:
        """Train until every network is done, or so few are left that they are better put together anew."""
        ends: dict[int, Progress] = {}
        while len(ends) < len(self.jobs):
            self.epoch()
            left = [n for n in range(len(self.jobs)) if n not in ends]
            live = [n for n in left if going(self.curves[n], self.broken[n], self.jobs[n], self.training)]
            over = [n for n in left if n not in live] if 2 * len(live) > len(self.jobs) else left
            if over:
                found = self.progress()
                ends |= {n: found[n] for n in over}
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
        for n, total, right, finite in zip([n for stacked in self.numbers for n in stacked], *seen):
            self.curves[n] += ((int(right) / len(self.resident.validation[1]), total / count),)
            self.broken[n] = not math.isfinite(total) or not finite

    def progress(self) -> list[Progress]:
        """Where the networks stand."""
        found = self.together.taken(self.steps)
        by_number = {n: each for numbers, stacked in zip(self.numbers, found) for n, each in zip(numbers, stacked)}
        return [replace(by_number[n], curve=curve) for n, curve in enumerate(self.curves)]

    def leave(self) -> None:
        """Let others of the same families have the captured step."""
        if isinstance(self._step, Captured):
            _keep(self._key, (self.together, self._step))

    def _by_stack(self, each: Sequence[T]) -> list[list[T]]:
        return [[each[n] for n in numbers] for numbers in self.numbers]


def _stacked(jobs: Sequence[Job], resident: Resident) -> tuple[list[list[int]], list[Stack]]:
    """The numbers of the jobs of each family, and its stack: the most expensive first, in whatever order they came."""
    families: dict[str, list[int]] = {}
    for n, job in enumerate(jobs):
        families.setdefault(family(job.genome, resident.shape), []).append(n)
    pairs = [(numbers, Stack(jobs[numbers[0]].genome, resident.shape, len(numbers))) for numbers in families.values()]
    pairs.sort(key=lambda pair: (-pair[1].cost, pair[1].key))
    return [numbers for numbers, _ in pairs], [stack for _, stack in pairs]


def _made(stacks: Sequence[Stack], rows: int, resident: Resident, how: How) -> tuple[Together, Callable[[], None]]:
    where = {"device": torch.device(resident.device), "dtype": DTYPES[resident.dtype]}
    together = Together(stacks, rows, where, how.channels_last, how.half)
    return together, Captured(together, how.branches) if how.branches else together.step


# ---------------------------------------------------------------- capturing


class Captured:
    """A step as a CUDA graph, whose independent parts are on branches.  Called, it is replayed."""

    def __init__(self, together: Together, branches: int) -> None:
        device = together.images.device
        self._main, *self._streams = _streams(device, branches)
        self._main.wait_stream(torch.cuda.current_stream(device))
        # What is loaded, chosen or allocated at its first use cannot be while a stream is captured.
        with torch.cuda.stream(self._main):
            together.step(self._fork)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the GPU meanwhile.
        with torch.cuda.graph(self._graph, stream=self._main, capture_error_mode="thread_local"):
            together.step(self._fork)

    def __call__(self) -> None:
        self._graph.replay()

    def _fork(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Tasks come with the most expensive first: dealt forth and back, the branches take about as long."""
        if not self._streams or len(tasks) == 1:
            plainly(tasks)
            return
        used = self._streams[: len(tasks)]
        turn = [*used, *reversed(used)]
        for stream in used:
            stream.wait_stream(self._main)
        try:
            for number, task in enumerate(tasks):
                with torch.cuda.stream(turn[number % len(turn)]):
                    task()
        finally:  # also where memory ran out: a capture cannot be ended with branches open
            for stream in used:
                self._main.wait_stream(stream)


_lock = threading.Lock()
_all_streams: dict[torch.device, list[torch.cuda.Stream]] = {}
_captured: dict[Hashable, tuple[Together, Captured]] = {}


def _streams(device: torch.device, branches: int) -> list[torch.cuda.Stream]:
    """The main stream and those of the branches, always the same: libraries keep workspace for every stream."""
    with _lock:
        streams = _all_streams.setdefault(device, [])
        while len(streams) < 1 + branches:
            streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        return streams[: 1 + branches] if branches > 1 else streams[:1]


def _captured_for(key: Hashable) -> tuple[Together, Captured] | None:
    """Takes the captured step away from the others, because its buffers serve one group at a time."""
    with _lock:
        return _captured.pop(key, None)


def _keep(key: Hashable, step: tuple[Together, Captured]) -> None:
    with _lock:
        _captured[key] = step
        while len(_captured) > KEPT:
            _captured.pop(next(iter(_captured)))


def forget() -> None:
    """Give up all captured steps, and the memory they hold."""
    with _lock:
        _captured.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
