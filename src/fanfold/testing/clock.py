"""A virtual clock for asyncio: an hour of backoff takes a millisecond, and takes exactly an hour."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a fresh `VirtualLoop`."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and jumps to the next timer as soon as nothing else can happen.

    Time stands still while anything is runnable, while a file descriptor is ready, and while a call given to
    `run_in_executor` (so also `asyncio.to_thread`) is awaited: such calls take no virtual time.  Threads and processes
    that reach the loop in another way are not waited for when there is a timer to jump to.

    When there is nothing to wait for but file descriptors and other threads, the loop waits for them really, and
    raises RuntimeError after `patience` real seconds without a sign of life, instead of hanging forever.
    """

    def __init__(self, patience: float = 5.0) -> None:
        self._now = 0.0
        self._calls_outside = 0
        self._patience = patience
        super().__init__(_Jumping(self._wait))

    def time(self) -> float:
        return self._now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._calls_outside += 1
        future.add_done_callback(self._came_back)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # The base class joins the pool from a thread and, from Python 3.12 on, under a timer, which would fire at once.
        self._calls_outside += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._calls_outside -= 1

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self._calls_outside -= 1

    def _wait(self, select: _Select) -> _Ready:
        """What the loop does when nothing is runnable and no file descriptor is ready."""
        if self._calls_outside:
            return select(None)
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        if timers:
            # Not `time += timeout`, which could miss the timer by a rounding error.
            self._now = max(self._now, timers[0].when())
            return []
        ready = select(self._patience)
        if not ready:
            raise RuntimeError(
                f"deadlock: no task can run, no timer is set, and nothing came from outside for {self._patience:g} s; "
                f"waiting: {', '.join(sorted(task.get_name() for task in asyncio.all_tasks(self))) or 'no task'}"
            )
        return ready


_Ready = list[tuple[selectors.SelectorKey, int]]
_Select = Callable[[float | None], _Ready]


class _Jumping(selectors.DefaultSelector):
    """A selector that polls, and leaves the decision how to wait to `wait`."""

    def __init__(self, wait: Callable[[_Select], _Ready]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> _Ready:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self._wait(super().select)
