"""A time limit for what is done thousands of times a second."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Deadline:
    """What `asyncio.timeout` is, for a quarter of its CPU: the block ends in TimeoutError when its time is over."""

    __slots__ = ("_before", "_seconds", "_task", "_timer", "expired")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self.expired = False

    def __enter__(self) -> Self:
        if self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task, self._before = task, task.cancelling()
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Whoever else cancelled the task meanwhile has its way.
        if self.expired and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self.expired = True
        self._task.cancel()
