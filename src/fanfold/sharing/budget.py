"""One budget of all sharers: what each has spent and reserved is kept together, and more is reserved if it fits."""

from __future__ import annotations

import asyncio
import math
import secrets

from fanfold.errors import CallFailed
from fanfold.sharing.hub import ALIVE, PREFIX, SETTLE, Sharing
from fanfold.sharing.link import ShareAway, ShareRefused

#: Seconds between looks for money that other sharers' calls in flight may leave.
LOOK = 0.25


class SharedBudget:
    """What all sharers of an address may spend together, under the address's `?budget=NAME`.

    Each writes down its own sums, never changes of them: so nothing is counted twice, and a server that was restarted
    empty hears them again.  While the server is away, each has its part of what was left.
    """

    def __init__(self, sharing: Sharing, limit: float) -> None:
        self.limit = limit
        self._sharing = sharing
        self._id = f"{sharing.id}-{secrets.token_hex(2)}"
        self._key = f"{PREFIX}budget:{sharing.address.budget}"
        self._spent = self._reserved = 0.0
        #: What was left to all when last heard, and how many they were.
        self._left, self._sharers = 0.0, 1
        #: One at a time writes the sums, so that none is written over by an older one.
        self._turn = asyncio.Lock()
        self._stale = False
        self._alone_until = -math.inf
        sharing.budgets.add(self)

    @classmethod
    def of(cls, sharing: Sharing | None, limit: float | None) -> SharedBudget | None:
        """The shared budget of a run; None where it has none."""
        return None if sharing is None or limit is None else cls(sharing, limit)

    def close(self) -> None:
        self._sharing.budgets.discard(self)

    @property
    def _alone(self) -> bool:
        return asyncio.get_running_loop().time() < self._alone_until

    async def reserve(self, worst: float, model: str) -> None:
        """Set money aside; wait while calls in flight anywhere may leave enough; raise if they cannot."""
        while not await self._granted(worst, model):
            await asyncio.sleep(LOOK)

    def settle(self, worst: float, cost: float) -> None:
        """A call that `worst` was reserved for has cost so much."""
        self._reserved = max(0.0, self._reserved - worst)
        self._spent += cost
        self._left += (worst - cost) * (self._sharers if self._alone else 1)
        self.write()

    async def _granted(self, worst: float, model: str) -> bool:
        async with self._turn:
            try:
                if self._alone:
                    raise ShareAway("others may not be back")
                granted, reserved = await self._reserve(worst)
            except ShareAway:
                granted, reserved = self._left / self._sharers >= worst, 1.0
                self._left -= worst * self._sharers if granted else 0.0
            except (ShareRefused, ValueError, TypeError, IndexError):
                raise CallFailed(
                    "budget",
                    f"{self._sharing.address} holds something else than a budget under {self._key!r}: remove it, or "
                    "name another with ?budget=NAME",
                ) from None
            if granted:
                self._reserved += worst
        if not granted and reserved <= 1e-9:
            raise CallFailed(
                "budget",
                f"{self.limit - self._left:.4f} of the shared budget {self.limit:g} is spent by all who share "
                f"{self._sharing.address}, and one more call to {model} may cost up to {worst:.4f}: raise "
                "--share-budget, name another with ?budget=NAME, or lower max_tokens",
            )
        return granted

    async def _reserve(self, worst: float) -> tuple[bool, float]:
        """Whether so much more is set aside now, and how much is by all."""
        sums = (f"{self._spent:.12g}", f"{self._reserved + worst:.12g}", f"{worst:.12g}", f"{self.limit:.12g}")
        answer = await self._sharing.link.script("budget", [self._key], self._id, *sums, int(ALIVE))
        if not self._alone:
            self._left, self._sharers = float(answer[1]), max(1, int(answer[3]))
        return answer[0] == 1, float(answer[2])

    def write(self) -> None:
        """Write our sums down again: they are kept only for a while, and a server may forget them."""
        if not self._stale:
            self._stale = True
            self._sharing.spawn(self._written())

    async def _written(self) -> None:
        async with self._turn:
            self._stale = False
            await self._reserve(0.0)

    def changed(self, up: bool) -> None:
        """The server is away, or back: by the end of `SETTLE` all have said again what they spent."""
        self._alone_until = asyncio.get_running_loop().time() + SETTLE if up else math.inf
        if up:
            self.write()
