"""Room in a provider's queue: how many tokens may wait there in batches, learnt from what the provider refuses."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import Counter

#: How a refusal for lack of room reads, and where it names the limit.
_FULL = re.compile(r"enqueued|processing queue|queue limit", re.IGNORECASE)
_LIMIT = re.compile(r"([\d,]{2,}) (?:enqueued|(?:input )?tokens)", re.IGNORECASE)
#: Seconds before a queue that others fill is tried again: at first, and at most.
RETRIES = (5.0, 300.0)


def is_full(text: str) -> bool:
    """Whether a refusal says that too much waits in the provider's queue."""
    return _FULL.search(text) is not None


class QueueRoom:
    """Input tokens that wait in batches, by model; no more than `limit`, or than refusals have shown to be too many.

    Our tokens are estimates, and other programs may fill the same queue.  So a refusal that the known limit does not
    explain lowers it by a fifth, down to a quarter of what the provider states; below that, time is what helps.
    """

    def __init__(self, limit: int | None) -> None:
        self._default = limit
        #: Tags of batches to which nothing happens for now: the provider works on them, or has no room for them.
        self.resting: set[str] = set()
        self._limits: dict[str, int] = {}
        self._held: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._rests: dict[str, float] = {}
        self._changed = asyncio.Event()

    def limit(self, model: str) -> int | None:
        return self._limits.get(model, self._default)

    def closed(self, model: str, tokens: int) -> float:
        """Seconds until so many more may wait; infinite: until a batch has ended."""
        rest = self._rests.get(model, 0.0) - asyncio.get_running_loop().time()
        if rest > 0:
            return rest
        limit, held = self.limit(model), self._held[model]
        return math.inf if limit is not None and held and held + tokens > limit else 0.0

    async def take(self, model: str, tokens: int, due: float) -> bool:
        """Wait for room, and take it; False if there is none when the time is `due`."""
        clock = asyncio.get_running_loop().time
        while (wait := self.closed(model, tokens)) > 0:
            if (left := due - clock()) <= 0:
                return False
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if (wait := min(wait, left)) == math.inf else wait):
                    await self._changed.wait()
        self._held[model] += tokens
        return True

    def free(self, model: str, tokens: int) -> None:
        self._held[model] -= tokens
        self._changed.set()

    def refused(self, model: str, tokens: int, calls: int, text: str) -> None:
        """A batch that holds room was refused: learn what fits, or wait longer where nothing is to be learnt."""
        limit, held = self.limit(model), self._held[model]
        match = _LIMIT.search(text)
        stated = int(match[1].replace(",", "")) if match is not None and match[1].strip(",") else None
        known = limit if stated is None or (limit is not None and limit < stated) else stated
        if known is None:
            lower = held - tokens or tokens // 2
        else:
            lower = known if held > known else max(held * 4 // 5, (stated or 0) // 4)
        if limit is None or lower < limit:
            self._limits[model] = lower
            if calls > 1:
                return
        first, longest = RETRIES
        self.rest(model, min(longest, first * 1.5 ** self._refusals[model]))
        self._refusals[model] += 1

    def rest(self, model: str, seconds: float) -> None:
        """Let nothing more into the queue for a while."""
        self._rests[model] = asyncio.get_running_loop().time() + seconds

    def accepted(self, model: str) -> None:
        self._refusals.pop(model, None)
