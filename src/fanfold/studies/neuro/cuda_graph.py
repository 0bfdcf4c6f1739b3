"""A training step captured as a CUDA graph with branches, and the captured steps that are kept for later groups."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch

#: Steps that stay captured, for the next networks of the same families.
KEPT = 4

#: Runs tasks that do not depend on each other, and returns when what follows may depend on all of them.
Fork = Callable[[Sequence[Callable[[], None]]], None]


class Capturable(Protocol):
    """What is captured: all that a step reads or writes stays where it is."""

    images: torch.Tensor

    def step(self, fork: Fork = ...) -> None: ...


def in_turn(tasks: Sequence[Callable[[], None]]) -> None:
    """One task after another: no fork."""
    for task in tasks:
        task()


class Captured:
    """A step as a CUDA graph, whose independent parts are on branches.  Called, it is replayed."""

    def __init__(self, step: Capturable, branches: int) -> None:
        device = step.images.device
        self._main, *self._streams = _streams(device, branches)
        self._main.wait_stream(torch.cuda.current_stream(device))
        # What is loaded, chosen or allocated at its first use cannot be while a stream is captured.
        with torch.cuda.stream(self._main):
            step.step(self._fork)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may keep using the GPU meanwhile.
        with torch.cuda.graph(self._graph, stream=self._main, capture_error_mode="thread_local"):
            step.step(self._fork)

    def __call__(self) -> None:
        self._graph.replay()

    def _fork(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Tasks come with the most expensive first: dealt forth and back, the branches take about as long."""
        if not self._streams or len(tasks) == 1:
            in_turn(tasks)
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
captured: dict[Hashable, tuple[Any, Captured]] = {}


def _streams(device: torch.device, branches: int) -> list[torch.cuda.Stream]:
    """The main stream and those of the branches, always the same: libraries keep workspace for every stream."""
    with _lock:
        streams = _all_streams.setdefault(device, [])
        while len(streams) < 1 + branches:
            streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        return streams[: 1 + branches] if branches > 1 else streams[:1]


def take(key: Hashable) -> tuple[Any, Captured] | None:
    """Takes the captured step away from the others, because its buffers serve one group at a time."""
    with _lock:
        return captured.pop(key, None)


def keep(key: Hashable, step: tuple[Any, Captured]) -> None:
    """Let later groups of the same families use the step."""
    with _lock:
        captured[key] = step
        while len(captured) > KEPT:
            captured.pop(next(iter(captured)))


def forget() -> None:
    """Give up all captured steps, and the memory they hold."""
    with _lock:
        captured.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
