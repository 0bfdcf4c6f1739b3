"""The one retry policy of model calls: which failures pass, how long to wait, and when to give up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from fanfold.attempt import Again, attempt
from fanfold.calls import waiting
from fanfold.errors import CallFailed

T = TypeVar("T")

#: How long a call is tried after its first failure, outages included, in seconds.
PATIENCE = 3600.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed try is repeated: passing failures, after growing random pauses, for at most `tries` tries.

    A rate limit is the provider's ordinary way to say "later": the limiter paces what follows, so such tries are
    counted apart and generously.  Replies that cannot be read may have been paid for, so there are few such tries.
    """

    tries: int = 10
    refusals: int = 40
    unreadable: int = 3
    cap: float = 60.0
    #: The longest first pause in seconds; each further one may be twice as long.
    first: float = 0.5
    #: The longest pause of our own; a server that is down altogether is the breaker's concern.
    longest: float = 4.0

    def __call__(self, error: Exception, n: int) -> float | None:
        if not isinstance(error, CallFailed) or not (error.passing or error.kind == "malformed"):
            return None
        unreadable = min(self.tries, self.unreadable)
        if n >= {"rate-limit": self.refusals, "malformed": unreadable}.get(error.kind, self.tries):
            return None
        if error.retry_after is not None:
            return min(error.retry_after, self.cap) * random.uniform(1.0, 1.1)
        return random.uniform(0.0, min(self.longest, self.first * 2.0 ** min(n - 1, 20)))


def if_refused(error: Exception, n: int) -> float | None:
    """For what must not happen twice: try again only where the provider refused, or never received the request."""
    if isinstance(error, CallFailed) and (error.kind == "rate-limit" or not error.sent):
        return RetryPolicy()(error, n)
    return None


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Do what can be done again without harm, until it succeeds or will not."""
    return await attempt(call, again=RetryPolicy())


class Tries:
    """The tries of one call under a policy.  The last failure says how many there were, and for how long.

    The policy is asked with the number of failures of the same sort: refusals for the rate limit, replies that cannot
    be read, and all others are counted apart.  Failures during an outage use up no tries: the outage is waited out.
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
