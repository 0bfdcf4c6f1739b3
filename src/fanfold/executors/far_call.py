"""A call that runs in another process, as the driver sees it."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any, TypeAlias

from fanfold.context import here
from fanfold.executors.pace import CallPace

#: The reply to a call: what kind it is, its body, and the microseconds it took (0: not measured).
Reply: TypeAlias = tuple[bytes, bytes, int]


class FarCall:
    """A call on its way to a worker and back.  Its clock, where it has one, stands still until it begins there."""

    __slots__ = ("_meter", "_ticking", "answer", "clock", "context")

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self.context = contextvars.copy_context()
        self.clock, self._meter = here().clock, here().meter
        #: Its clock, once that runs.
        self._ticking: Any = None
        if self.clock is not None:
            self.clock.pause()

    def begin(self) -> None:
        """From now on its time counts."""
        if self.clock is not None:
            self._ticking, self.clock = self.clock, None
            self._ticking.resume()

    def wait(self) -> None:
        """It is to begin once more: until then its time stands still again."""
        if self._ticking is not None:
            self.clock, self._ticking = self._ticking, None
            self.clock.pause()

    def reply(self, reply: Reply, pace: CallPace) -> None:
        kind, body, microseconds = reply
        if self.answer.done():
            return
        if microseconds:
            pace.took(microseconds / 1e6)
            if self._meter is not None:
                self._meter.seconds += microseconds / 1e6
        self.answer.set_result((kind, body))

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
