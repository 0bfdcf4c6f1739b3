"""Steps captured as CUDA graphs, the lanes they are captured and replayed in, and those kept for later networks."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

#: Stacks that stay captured, for the next networks of the same families.
KEPT = 256
#: Threads that capture.  The backward pass of each stays in its thread.
THREADS = 6


class CaptureLane:
    """Where captured steps run one after another: a stream, and memory for what lies between, which they share.

    They are captured on a stream of the lane by a thread, while others are replayed: most of a capture is work of the
    processor, and half of that is done outside the interpreter.
    """

    def __init__(self, device: torch.device, thread: ThreadPoolExecutor) -> None:
        self.device, self.thread = device, thread
        # Of another priority, because PyTorch has 32 streams of each, which it gives out again and again.
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.capturing = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        #: The memory, and a graph that holds it while there is no other: PyTorch takes up no pool that was let go.
        self._held: tuple[Any, torch.cuda.CUDAGraph] | None = None
        self.ready = thread.submit(self._warm_up)

    def capture(self, task: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The task as a graph.  It is not run."""
        self.ready.result()
        if self._held is None:
            pool, number = torch.cuda.graph_pool_handle(), torch.zeros(1, device=self.device)
            self._held = pool, self._captured(lambda: number.add_(1), pool)
        return self._captured(task, self._held[0])

    def _captured(self, task: Callable[[], Any], pool: Any) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`, which collects garbage and empties the cache before each capture.
        with torch.cuda.stream(self.capturing):
            graph.capture_begin(pool, capture_error_mode="relaxed")
            try:
                task()
            finally:  # also where memory ran out: the stream must leave the capture
                graph.capture_end()
        return graph

    def let_go(self) -> None:
        self._held = None

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """What is made inside is there before anything that is replayed afterwards."""
        with torch.cuda.stream(self.capturing):
            yield
        self.stream.wait_stream(self.capturing)

    def replaying(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream)

    def follow(self) -> None:
        """What the current stream has been given comes before anything in this lane."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        self.capturing.wait_stream(current)

    def mark(self) -> torch.cuda.Event:
        """Passed when the lane has done what it was given so far."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self.stream)
        return event

    def _warm_up(self) -> None:
        """What libraries keep for each thread and stream is made now: it must not be part of a graph's memory."""
        with torch.cuda.stream(self.capturing), torch.cuda.device(self.device):
            x = torch.ones(8, 8, device=self.device, requires_grad=True)
            y = torch.addmm(x[0], x, x) + torch.bmm(x[None], x[None])[0]
            image = torch.nn.functional.conv2d(y.view(1, 1, 8, 8), x[:3, :3].reshape(1, 1, 3, 3), padding=1)
            torch.autograd.grad(image.sum(), x)
            self.capturing.synchronize()


class Captured:
    """A task as a CUDA graph.  Called, it is replayed on the current stream: that of its lane.

    The task is captured without having been run.  Where something must be loaded first, which a capture may refuse, it
    is run once: so capture before anything is there that it could change.
    """

    def __init__(self, task: Callable[[], None], lane: CaptureLane) -> None:
        try:
            self._graph = lane.capture(task)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
                raise
            lane.let_go()  # of a capture that failed, the pool may still be marked as in use
            with lane.preparing():
                task()
            self._graph = lane.capture(task)

    def __call__(self) -> None:
        self._graph.replay()


_lock = threading.Lock()
_lanes: dict[torch.device, list[CaptureLane]] = {}
_threads: dict[torch.device, list[ThreadPoolExecutor]] = {}
captured: dict[Hashable, list[Any]] = {}


def lanes(device: torch.device, count: int) -> list[CaptureLane]:
    """The first lanes of a device, always the same: libraries keep workspace for every stream."""
    with _lock:
        known = _lanes.setdefault(device, [])
        threads = _threads.setdefault(device, [])
        while len(threads) < min(count, THREADS):
            threads.append(
                ThreadPoolExecutor(1, "fanfold-capture", torch.autograd.set_multithreading_enabled, (False,))
            )
        while len(known) < count:
            known.append(CaptureLane(device, threads[len(known) % len(threads)]))
        return known[:count]


def take(key: Hashable) -> Any | None:
    """Takes something captured away from the others, because its buffers serve one stack at a time."""
    with _lock:
        kept = captured.get(key)
        taken = kept.pop() if kept else None
        if kept is not None and not kept:
            del captured[key]
        return taken


def keep(key: Hashable, training: Any) -> None:
    """Let later networks of the same family use what was captured."""
    with _lock:
        captured.setdefault(key, []).append(training)
        while sum(map(len, captured.values())) > KEPT:
            oldest = next(iter(captured))
            captured[oldest].pop(0)
            if not captured[oldest]:
                del captured[oldest]


def forget() -> None:
    """Give up everything captured, and the memory it holds."""
    with _lock:
        captured.clear()
        for lane in (lane for known in _lanes.values() for lane in known):
            lane.let_go()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
