"""What a batch answers all at once continues in slices, between which the event loop does everything else."""

from __future__ import annotations

import asyncio
import time
from collections import deque

#: Seconds that a slice should take, and the most that continue in one.
BUSY, MOST = 0.02, 32


class Slices:
    """Lets tasks that are ready at the same moment continue a few at a time: as many as take about 20 ms."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._few = self._left = 8
        self._open = False
        self._began = 0.0

    async def turn(self) -> None:
        """Wait until this task's slice has come; at once if nothing else is in the way."""
        if not self._open:
            self._open = True
            self._began = time.perf_counter()
            self._loop.call_soon(self._next)
        if self._left > 0:
            self._left -= 1
            return
        mine: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(mine)
        await mine

    def _next(self) -> None:
        now = time.perf_counter()
        took, self._began = now - self._began, now
        if took > BUSY:
            self._few = max(1, self._few // 2)
        elif took < BUSY / 2:
            self._few = min(MOST, 2 * self._few)
        self._left = self._few
        self._open = bool(self._waiting)
        while self._waiting and self._left:
            mine = self._waiting.popleft()
            if not mine.done():  # or its task was cancelled
                mine.set_result(None)
                self._left -= 1
        if self._open:
            self._loop.call_soon(self._next)
