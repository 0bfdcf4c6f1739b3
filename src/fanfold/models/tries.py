"""The tries of one model call: which of them count, what is waited for in between, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fanfold.attempt import Again, attempt
from fanfold.calls import waiting
from fanfold.errors import CallFailed

T = TypeVar("T")

#: How long a call is tried after its first failure, outages included, in seconds.
PATIENCE = 3600.0


class Tries:
    """Makes a call as often as `again` says, and at last fails with how often that was and for how long.

    `again` is asked with the number of failures of the same sort: refusals for the rate limit, replies that cannot be
    read, and all others are counted apart.  An outage is waited out: what fails during it uses up no tries.
    """

    __slots__ = ("_again", "_failed_at", "_failures", "_in_outage", "_name", "_what", "made")

    def __init__(self, name: str, again: Again) -> None:
        self.made = 0
        self._name, self._again = name, again
        self._failures: dict[str, int] = {}
        self._failed_at: float | None = None
        self._in_outage = False
        self._what = ""

    async def make(self, once: Callable[[], Awaitable[T]], outage: Callable[[], bool]) -> T:
        """The result of `once()`; `outage()` says whether the server is known to be down."""
        clock = asyncio.get_running_loop().time
        begun = clock()

        async def one() -> T:
            self.made += 1
            self._in_outage = outage()
            return await once()

        try:
            return await attempt(one, again=self._judge, sleep=self._sleep)
        except CallFailed as error:
            if self.made == 1:
                raise
            text = f"{error} (tried {self.made} times in {clock() - begun:.0f} s)"
            raise CallFailed(error.kind, text, retry_after=error.retry_after, sent=error.sent) from error

    def _judge(self, error: Exception, n: int) -> float | None:
        now = asyncio.get_running_loop().time()
        if self._failed_at is None:
            self._failed_at = now
        if now - self._failed_at >= PATIENCE or not isinstance(error, CallFailed):
            return None
        sort = error.kind if error.kind in ("rate-limit", "malformed") else ""
        failures = self._failures[sort] = self._failures.get(sort, 0) + (not self._in_outage)
        refused = error.kind == "rate-limit"
        self._what = f"the rate limit of {self._name}" if refused else f"another try of {self._name} ({error})"
        return self._again(error, max(1, failures))

    async def _sleep(self, seconds: float) -> None:
        with waiting(self._what, asyncio.get_running_loop().time() + seconds):
            await asyncio.sleep(seconds)
