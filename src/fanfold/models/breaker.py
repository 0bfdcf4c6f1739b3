"""A circuit breaker: during an outage calls wait together, and one at a time tries whether it is over."""

from __future__ import annotations

import asyncio
from collections import deque


class Breaker:
    """Opens after `threshold` failures in a row; then one call per pause goes through, with pauses that double.

    A success closes it and lets everybody go on.  While it is open nobody hammers a provider that is down, and nobody
    fails for having asked at the wrong time.
    """

    def __init__(self, threshold: int = 5, pause: float = 1.0, longest: float = 30.0) -> None:
        self._threshold, self._first, self._longest = threshold, pause, longest
        self._failures = 0
        self._pause = pause
        self._probe_at = 0.0
        self._probing = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        return self._failures >= self._threshold

    async def enter(self) -> None:
        """Return when a call may be made: at once while all is well."""
        while self.open:
            loop = asyncio.get_running_loop()
            if not self._probing and loop.time() >= self._probe_at:
                self._probing = True
                return
            turn = loop.create_future()
            self._waiting.append(turn)
            self._set_timer(loop)
            await turn

    def ok(self) -> None:
        self._failures, self._pause, self._probing = 0, self._first, False
        self._release(len(self._waiting))

    def failed(self) -> None:
        was_open = self.open
        self._failures += 1
        if not self.open:
            return
        loop = asyncio.get_running_loop()
        if not was_open or self._probing:
            self._probe_at = loop.time() + self._pause
            self._pause = min(self._pause * 2.0, self._longest)
        self._probing = False
        if self._waiting:
            self._set_timer(loop)

    def left(self) -> None:
        """A call that was let through ended without telling (cancelled): another may try."""
        self._probing = False
        self._release(1)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(max(self._probe_at, loop.time()), self._release, 1)

    def _release(self, count: int) -> None:
        while count > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1
