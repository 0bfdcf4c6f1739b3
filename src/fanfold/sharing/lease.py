"""A part of a limit that all sharers keep together: leased from the server in small pieces, as callers need it."""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from collections.abc import Mapping

import msgspec

from fanfold.limits import Limiter
from fanfold.limits.known_rates import Cost
from fanfold.limits.pace import Pace
from fanfold.sharing.hub import PREFIX, SETTLE, Sharing
from fanfold.sharing.link import ShareAway, ShareRefused

#: Seconds of a rate that one lease takes: alone, and where others wait as well.
ALONE, CROWDED = 0.2, 0.02
#: Seconds that a lease may be used after its turn has come.
KEPT = 1.0
#: The most calls of a lease, and seconds between looks for room in flight.
MOST_CALLS, LOOK = 256, 0.05
#: Seconds until a limit is asked for again that the server would not give.
RETRY = 5.0
#: Rates per second that a sharer may tell others; everything else is foreign.
LEAST_RATE, MOST_RATE, LONGEST_HOLD = 1e-4, 1e9, 300.0


class LimitNews(msgspec.Struct):
    """What a sharer tells others of a limit: to hold back for so long, and what the server said of its rates."""

    sender: str
    hold: float = 0.0
    rates: dict[int, float] = {}


class Lease:
    """What one sharer may use of a limit now, and how it gets more.

    The server keeps a bucket for each rate (GCRA, on its own clock) and gives each sharer in turn what its line needs,
    up to 0.2 seconds of the rate, or a tenth of that where others wait.  So shares follow demand, and nobody waits for
    long.  While the server is away, each of the `sharers` last seen keeps to its part of the limit.
    """

    def __init__(self, sharing: Sharing, limiter: Limiter, name: tuple[str, ...]) -> None:
        place = hashlib.blake2b("\0".join(name).encode(), digest_size=16, person=b"fanfold limit").hexdigest()
        self.id = f"{sharing.id}-{secrets.token_hex(2)}"
        self.keys = [f"{PREFIX}{kind}:{place}" for kind in ("limit", "who", "queue", "news")]
        self.sharers = sharing.sharers
        self._sharing, self._limiter = sharing, limiter
        self._model = name[0]
        #: Whether the sharing is connected; one that only this limit names is joined with its first call.
        self.joined = sharing.met
        self._own = not sharing.met
        #: Leased and not used: units of each rate and, under -1, calls; and from when they may go.
        self._credit: dict[int, float] = {}
        self._start = -math.inf
        self._back: dict[int, float] = {}
        self._asking = self._again = False
        #: While the server is away: our part of each rate; None: it is here.
        self._alone: dict[int, Pace] | None = {} if sharing.met and not sharing.link.up else None
        sharing.leases.add(self)
        sharing.link.subscribe(self.channel)
        if self.joined:
            sharing.spawn(self._recall())

    async def join(self) -> None:
        """Connect; ConfigError where nobody answers."""
        await self._sharing.join()
        if self.joined:
            await self._sharing.leave()  # somebody else was quicker
        else:
            self.joined = True
            self._sharing.spawn(self._recall())

    async def close(self) -> None:
        self._sharing.leases.discard(self)
        if all(lease.channel != self.channel for lease in self._sharing.leases):
            self._sharing.link.unsubscribe(self.channel)
        if self._own and self.joined:
            await self._sharing.leave()

    @property
    def channel(self) -> str:
        return self.keys[3]

    @property
    def _cap(self) -> int | None:
        """The most calls in flight of all sharers, where that is told."""
        return self._limiter.limits.in_flight

    # -- for the limiter -----------------------------------------------------------------------------------------------

    def ready_at(self, cost: Cost | None, now: float) -> float:
        """When a call of this cost may go; infinite while the server is asked."""
        rates = self._limiter.rates
        if not rates and self._cap is None:
            return -math.inf
        if self._alone is not None:
            return self._ready_alone(cost, now, self._alone)
        if self._credit and now > self._start + KEPT:
            self._drop()
        needs = self._needs(cost, rates)
        if all(self._credit.get(unit, 0.0) >= need - 1e-6 for unit, need in needs.items()):
            return self._start
        self._soon()
        return math.inf

    def take(self, cost: Cost | None, now: float) -> None:
        rates = self._limiter.rates
        if self._alone is not None:
            for unit, pace in self._alone.items():
                pace.take(cost[unit] if cost is not None else 0.0, now)
            return
        for unit, need in self._needs(cost, rates).items():
            self._credit[unit] = self._credit.get(unit, 0.0) - need

    def correct(self, more: Cost) -> None:
        """Calls used so many more (or fewer) units than they leased: much is told at once, little with the next."""
        for unit, (rate, _) in self._limiter.rates.items():
            if unit:
                self._back[unit] = self._back.get(unit, 0.0) - more[unit]
                if more[unit] > ALONE * rate and self._alone is None:
                    self._soon()

    def ended(self) -> None:
        """A call is over: others may want its place."""
        if self._cap is not None and self._alone is None:
            self._soon(CROWDED)

    def refused(self, seconds: float) -> None:
        """All sharers hold back for so long."""
        self._drop(lost=True)
        self._tell(LimitNews(self.id, hold=seconds))

    def learnt(self, rates: Mapping[int, float]) -> None:
        self._tell(LimitNews(self.id, rates=dict(rates)))

    # -- for the sharing -----------------------------------------------------------------------------------------------

    def heard(self, message: bytes) -> None:
        try:
            news = msgspec.json.decode(message, type=LimitNews)
            bad = not 0 <= news.hold <= LONGEST_HOLD or not _usable(news.rates)
        except msgspec.MsgspecError:
            bad = True
        if bad:
            self._sharing.warn("news", f"{self._sharing.address} sends foreign news of limits, which are ignored")
        elif news.sender != self.id:
            if news.rates:
                self._limiter.adopt(news.rates)
            if news.hold:
                self._drop(lost=True)
                self._limiter.hold(news.hold)

    # -- between the two -----------------------------------------------------------------------------------------------

    def _needs(self, cost: Cost | None, rates: Mapping[int, tuple[float, float]]) -> dict[int, float]:
        needs = {unit: cost[unit] for unit in rates} if cost is not None else {}
        return needs if self._cap is None else {**needs, -1: 1.0}

    def _drop(self, *, lost: bool = False) -> None:
        """Let go of what was leased and not used; what is not `lost` goes back to the bucket."""
        if not lost:
            for unit, units in self._credit.items():
                if unit >= 0 and units > 0:
                    self._back[unit] = self._back.get(unit, 0.0) + units
        self._credit.clear()
        self._start = -math.inf

    def _soon(self, seconds: float = 0.0) -> None:
        """Ask the server; by then all who come now are in line."""
        if not self._asking:
            self._asking = True
            asyncio.get_running_loop().call_later(seconds, lambda: self._sharing.spawn(self._asked()))

    async def _asked(self) -> None:
        rates = dict(self._limiter.rates)
        wants, first, calls = self._demand(rates)
        room = True
        try:
            if calls or self._cap is not None or self._back:
                room = await self._leased(rates, wants, first, calls)
        except ShareAway:
            self.changed(False)
        except (ShareRefused, ValueError, TypeError, IndexError):
            self._sharing.warn("limit", f"{self._sharing.address} holds a foreign limit: each keeps to its part of it")
            self._part()
            asyncio.get_running_loop().call_later(RETRY, self._rejoin)
        finally:
            self._asking = False
        if not room:
            await asyncio.sleep(LOOK)
        self._limiter.admit()

    async def _leased(
        self, rates: dict[int, tuple[float, float]], wants: dict[int, float], first: dict[int, float], calls: int
    ) -> bool:
        """Lease what calls want, at least for the first of them; False where there is no room for it in flight."""
        back, self._back = self._back, {}
        words: list[str] = []
        for unit, (rate, burst) in rates.items():
            head = max(0.0, first.get(unit, 0.0) - self._credit.get(unit, 0.0))
            want = max(head, wants.get(unit, 0.0) - self._credit.get(unit, 0.0))
            words += [str(unit), *(f"{value:.9g}" for value in (rate, burst, want, head, back.get(unit, 0.0)))]
        flying = self._limiter.in_flight + int(self._credit.get(-1, 0.0))
        counts = (self.id, int(self._again), str(ALONE), str(CROWDED), self._cap or 0, flying, calls)
        answer = await self._sharing.link.script("lease", self.keys[:3], *counts, *words)
        wait, self.sharers, self._again = float(answer[0]), max(1, int(answer[1])), True
        if wait < 0:
            self._back = {unit: self._back.get(unit, 0.0) + back.get(unit, 0.0) for unit in {**back, **self._back}}
            return not calls
        if calls:
            for unit, amount in zip((-1, *rates), map(float, answer[2:]), strict=True):
                self._credit[unit] = self._credit.get(unit, 0.0) + amount
            self._start = asyncio.get_running_loop().time() + wait
        return True

    def _demand(self, rates: Mapping[int, tuple[float, float]]) -> tuple[dict[int, float], dict[int, float], int]:
        """What the calls in line want together, as far as a lease goes; what the first one wants; how many they are."""
        wants: dict[int, float] = {}
        first: dict[int, float] = {}
        calls = 0
        for calls, cost in enumerate(self._limiter.queued(), 1):
            for unit in rates:
                wants[unit] = wants.get(unit, 0.0) + cost[unit]
            if calls == 1:
                first = dict(wants)
            if calls >= MOST_CALLS or any(wants[unit] >= ALONE * rate for unit, (rate, _) in rates.items()):
                break
        return wants, first, calls

    def _tell(self, news: LimitNews) -> None:
        words = [word for unit, rate in news.rates.items() for word in (f"rate {unit}", f"{rate:.9g}")]
        burst = max((burst for _, burst in self._limiter.rates.values()), default=0.0)
        message, keys = msgspec.json.encode(news), [self.keys[0], self.channel]
        told: tuple[str | bytes, ...] = (message, f"{news.hold:.6f}", f"{burst:.6f}", *words)
        self._sharing.spawn(self._sharing.link.script("tell", keys, *told))

    async def _recall(self) -> None:
        """What others have learnt of this limit."""
        link = self._sharing.link
        await link.call("HSET", self.keys[0], "model", self._model)
        await link.call("EXPIRE", self.keys[0], 600)
        values = await link.call("HMGET", self.keys[0], *(f"rate {unit}" for unit in range(4)))
        try:
            rates = {unit: float(value) for unit, value in enumerate(values) if value is not None}
        except (TypeError, ValueError):
            rates = {0: math.nan}
        if not _usable(rates):
            self._sharing.warn("limit", f"{self._sharing.address} holds a foreign limit, which is ignored")
        elif rates:
            self._limiter.adopt(rates)

    def changed(self, up: bool) -> None:
        if not up:
            if self._alone is None:
                self._part()
                self._limiter.admit()
        elif self._alone is not None:
            asyncio.get_running_loop().call_later(SETTLE, self._rejoin)

    def _part(self) -> None:
        self._drop(lost=True)
        self._back.clear()
        self._alone = {}

    def _rejoin(self) -> None:
        if self._sharing.link.up:
            self._alone = None
            self._limiter.admit()

    def _ready_alone(self, cost: Cost | None, now: float, paces: dict[int, Pace]) -> float:
        """When a call may go by our part of the limit alone."""
        ready = -math.inf
        for unit, (rate, burst) in self._limiter.rates.items():
            part = rate / self.sharers
            pace = paces.get(unit)
            if pace is None:
                pace = paces[unit] = Pace(part, burst, spent_until=now + burst)
            elif pace.rate != part:
                pace.rate = part
            ready = max(ready, pace.ready_at(cost[unit] if cost is not None else 0.0, now))
        if self._cap is not None and self._limiter.in_flight >= max(1, self._cap // self.sharers):
            return math.inf
        return ready


def _usable(rates: Mapping[int, float]) -> bool:
    return all(0 <= unit < 4 and LEAST_RATE <= rate <= MOST_RATE for unit, rate in rates.items())


def lease_of(limiter: Limiter, name: tuple[str, ...], run: Sharing | None) -> Lease | None:
    """Share a limiter's limits: by the address that they name, else as the run does.  `name` says whose they are."""
    url = limiter.limits.shared
    sharing = run if url is None else Sharing.at(url)
    if sharing is not None:
        lease = limiter.lease = Lease(sharing, limiter, name)
        return lease
    return None
