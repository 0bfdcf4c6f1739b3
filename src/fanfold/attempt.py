"""The only place where time limits, retries and backoff live."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

T = TypeVar("T")

#: After try number `n` (from 1) ended in `error`: seconds to wait before the next try, or None to give up.
Again: TypeAlias = Callable[[Exception, int], "float | None"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: before try n + 1, wait a random time up to `base * 2 ** (n - 1)`."""

    tries: int = 1
    base: float = 0.5
    cap: float = 60.0

    def __call__(self, error: Exception, n: int) -> float | None:
        if n >= self.tries:
            return None
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(n - 1, 60)))


class Clock:
    """An evaluation's own time: it stands still while its model calls wait for a limit, an outage or a batch.

    `pause` and `resume` come in pairs, and count: several calls of one evaluation may wait at once.
    """

    def __init__(self) -> None:
        self._paused = 0

    def pause(self) -> None:
        self._paused += 1

    def resume(self) -> None:
        self._paused -= 1


#: The clock of the evaluation this code belongs to; None outside one.
CLOCK: contextvars.ContextVar[Clock | None] = contextvars.ContextVar("fanfold_clock", default=None)


async def attempt(
    call: Callable[[], Awaitable[T]],
    *,
    again: Again | None = None,
    timeout: float | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Await `call()`, each try for at most `timeout` seconds, as often as `again` says; raise the last error.

    A try that runs out of time is cancelled and ends in TimeoutError, which `again` judges like any other error.
    Cancelling the attempt itself is never retried.  `sleep` waits between two tries.
    """
    tries = 0
    while True:
        tries += 1
        try:
            if timeout is None:
                return await call()
            async with asyncio.timeout(timeout):
                return await call()
        except Exception as error:
            wait = again(error, tries) if again is not None else None
            if wait is None:
                raise
        if wait > 0:
            await sleep(wait)
