"""A circuit breaker: during an outage calls wait together, and one at a time tries whether it is over."""

from __future__ import annotations

import asyncio
import math
from collections import deque

#: Nothing but failures for so long, and so many of them, is an outage; or so many in a row, however quickly.  Failures
#: are often quicker than successes, so there must also be so many for each call that may still succeed.
LEAST_FAILURES, LEAST_SECONDS, IN_A_ROW, PER_PENDING = 5, 2.0, 20, 2
#: By how much each pause is longer than the one before.
GROWTH = 1.5
#: For so long a server that has never answered is tried, in seconds.
FIRST_ANSWER = 30.0
#: After so many seconds of an outage people should hear of it, whether or not they watch.
LONG = 30.0


class Breaker:
    """Opens when calls fail and none succeeds; then one call per pause goes through, with pauses that grow.

    Failures among successes, however many, are not an outage: each is tried again.  A success closes the breaker
    and lets everybody continue.  While it is open nobody hammers a provider that is down, and nobody fails for having
    asked at the wrong time.
    """

    def __init__(self, pause: float = 1.0, longest: float = 30.0) -> None:
        self._first, self._longest = pause, longest
        self.open = False
        #: When the next call tries, by the clock of the event loop; and since when calls fail, None while they succeed.
        self.next_try = 0.0
        self.since: float | None = None
        #: How many calls have failed since the last success, and why the last one did.
        self.failures = 0
        self.why = ""
        self._answered = self._told = False
        self._last_ok = -math.inf
        self._pause = pause
        self._probing = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def deserted(self) -> bool:
        """Whether nobody has ever answered, or all have moved, and for long enough to give up."""
        if self._answered or self.since is None or self.failures < 2:
            return False
        return asyncio.get_running_loop().time() - self.since >= FIRST_ANSWER

    def news(self) -> bool:
        """Whether an outage has become a long one; true once for each."""
        long = self.since is not None and asyncio.get_running_loop().time() - self.since >= LONG
        told, self._told = self._told, self._told or long
        return long and not told

    async def turn(self) -> bool:
        """While it is open: wait, then whether the caller is to try for all; if not, look again."""
        loop = asyncio.get_running_loop()
        if not self._probing and loop.time() >= self.next_try:
            self._probing = True
            return True
        turn = loop.create_future()
        self._waiting.append(turn)
        self._set_timer(loop)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._release(1)  # its turn had come: it is the next one's
            raise
        return False

    def ok(self) -> None:
        """A call came back well."""
        self._answered = True
        self._last_ok = asyncio.get_running_loop().time()
        if self.failures:
            self.failures, self.since = 0, None
            self.open = self._probing = self._told = False
            self._pause = self._first
            self._release(len(self._waiting))

    def failed(
        self,
        why: str,
        began: float,
        *,
        probe: bool = False,
        answered: bool = False,
        moved: bool = False,
        pending: int = 0,
    ) -> None:
        """A call that began then failed, while `pending` others are under way.

        `answered`: by what the server itself said.  `moved`: it said to ask elsewhere, so nobody is here any more.
        """
        now = asyncio.get_running_loop().time()
        self._answered = answered or (self._answered and not moved)
        self.failures += 1
        self.since = began if self.since is None else min(self.since, began)
        self.why = why
        quiet = now - max(self.since, self._last_ok)
        outage = self.failures >= IN_A_ROW or (self.failures >= LEAST_FAILURES and quiet >= LEAST_SECONDS)
        outage = outage and self.failures >= PER_PENDING * pending
        if probe or (outage and not self.open):
            self.open, self._probing = True, False
            self.next_try = now + self._pause
            self._pause = min(self._pause * GROWTH, self._longest)
            self._release(len(self._waiting))  # they say until when they wait, which is later now

    def left(self, *, probe: bool = False) -> None:
        """A call that was let through ended without telling (cancelled): another may try."""
        if probe:
            self._probing = False
            self._release(1)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """One of those who wait gets its turn at the next try; while somebody tries, nobody does."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._probing:
            self._timer = loop.call_at(max(self.next_try, loop.time()), self._release, 1)

    def _release(self, count: int) -> None:
        while count > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1
