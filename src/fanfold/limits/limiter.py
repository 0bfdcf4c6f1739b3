"""The limiter: callers wait in one line for pace, tokens, room in flight and the gate that a refusal closes."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Protocol

from fanfold.errors import FanfoldError
from fanfold.limits.inferred_rate import InferredRate
from fanfold.limits.known_rates import Cost, Paces
from fanfold.limits.pace import Pace, RateMeter
from fanfold.limits.values import Limits, Quota
from fanfold.limits.window import FIRST, Window

#: The longest a server can make everybody wait, whatever it says.
LONGEST_GATE = 300.0
#: Seconds of an inferred rate that may go at once: enough to make up for a late timer.
INFERRED_BURST = 0.1


class Permit:
    """Leave to make one call.  Say `done` exactly once when it is over; a second time does nothing.

    It is also a context: `with permit:` gives the place back when the block ends without `done`, as on cancellation.
    """

    __slots__ = ("_limiter", "cost", "input_tokens", "level", "number", "output_tokens", "sent_at")

    def __init__(
        self, limiter: Limiter, number: int, input_tokens: int, output_tokens: int, cost: Cost | None, sent_at: float
    ) -> None:
        self._limiter: Limiter | None = limiter
        self.number = number
        #: How many were in flight with this one.
        self.level = limiter.in_flight
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        #: What was charged; None when no rate was known.
        self.cost = cost
        self.sent_at = sent_at

    def done(
        self,
        ok: bool,
        *,
        refused: bool = False,
        overloaded: bool = False,
        retry_after: float | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        quota: Quota | None = None,
    ) -> None:
        """The call is over.

        `refused`: over a rate limit (429).  `overloaded`: the server could not (529, 5xx, a timeout).  Neither, with
        `ok=False`: it failed for reasons of its own.  Tokens are what was really used; None leaves the estimate.
        """
        limiter, self._limiter = self._limiter, None
        if limiter is None:
            return
        now = limiter._now()
        if input_tokens is not None or output_tokens is not None:
            estimate = (self.input_tokens, self.output_tokens)
            more = limiter._paces.correct(estimate, self.cost, (input_tokens, output_tokens), now)
            if limiter.lease is not None and more is not None:
                limiter.lease.correct(more)
        if quota is not None and limiter.limits.adaptive:
            limiter._learn(self, quota, now, _bounded(retry_after) if refused and retry_after is not None else None)
        if refused:
            limiter._was_refused(self, retry_after, now)
        elif overloaded:
            limiter._was_overloaded(self, retry_after, now)
        elif ok and limiter.limits.adaptive:
            limiter._window.ok(now - self.sent_at, self.level)
        limiter._leave(now)

    def release(self) -> None:
        """Give the place back without saying how the call went."""
        self.done(False)

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class LimitLease(Protocol):
    """The part of a limit that this process may use now, where others share it."""

    def ready_at(self, cost: Cost | None, now: float) -> float: ...
    def take(self, cost: Cost | None, now: float) -> None: ...
    def correct(self, more: Cost) -> None: ...
    def ended(self) -> None: ...
    def refused(self, seconds: float) -> None: ...
    def learnt(self, rates: Mapping[int, float]) -> None: ...


class Limiter:
    """Lets callers through in the order they came, as fast as `limits` and the resource allow.

    What holds a caller back: the told or learnt rates (requests, tokens), the number in flight, and a gate that a
    refusal closes for all.  Rates that are not told are learnt from the quota in replies; with no such quota, from what
    is refused.  Used from one event loop at a time.  With a `lease`, the limits are those of all who share it.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.lease: LimitLease | None = None
        self._paces = Paces(limits)
        cap = math.inf if limits.in_flight is None else float(limits.in_flight)
        self._window = Window(FIRST if limits.adaptive and not self._paces else cap, cap)
        self._inferred = InferredRate(RateMeter())
        #: Keeps the inferred rate; None while nothing is refused.
        self._inferred_pace: Pace | None = None
        self._gate = -math.inf
        #: Who waits, in the order of arrival, for a call of how many tokens.
        self._line: OrderedDict[asyncio.Future[Permit], tuple[int, int]] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_seen = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0
        self.granted = 0
        self.refused = 0

    async def acquire(self, input_tokens: int = 0, output_tokens: int = 0) -> Permit:
        """Wait in line, then have leave to make one call of about so many tokens."""
        if (permit := self.at_once(input_tokens, output_tokens)) is not None:
            return permit
        loop, now = asyncio.get_running_loop(), self._now()
        future: asyncio.Future[Permit] = loop.create_future()
        self._line[future] = (input_tokens, output_tokens)
        if len(self._line) == 1:
            self._admit(now)
        try:
            return await future
        except asyncio.CancelledError:
            if self._line.pop(future, None) is None and not future.cancelled():
                future.result().release()
            self._admit(self._now())
            raise

    def at_once(self, input_tokens: int = 0, output_tokens: int = 0) -> Permit | None:
        """Leave to make one call now; None where it has to wait."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._adopt(loop)
        if self._line:
            return None
        now = self._now()
        cost = self._paces.cost(input_tokens, output_tokens) if self._paces else None
        return self._grant(input_tokens, output_tokens, cost, now) if self._free_at(cost, now) <= now else None

    @property
    def closed_until(self) -> float | None:
        """When the gate that a refusal closed opens again; None while it is open."""
        return self._gate if self._gate > self._now() else None

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def window(self) -> int | None:
        """How many may be in flight now; None when nothing bounds it."""
        return None if self._window.size == math.inf else max(1, int(self._window.size))

    @property
    def rate(self) -> float | None:
        """Requests per second that are allowed now, as far as known."""
        rate = min(self._paces.requests, self._inferred.rate(self._last_seen))
        return rate if rate < math.inf else None

    @property
    def utilisation(self) -> float | None:
        """The share of the tightest known limit that was used over the last minute; None when none is known."""
        paces = self._paces.all
        if self._inferred_pace is not None:
            paces.append(self._inferred_pace)
        shares = []
        for pace in paces:
            units, seconds = pace.meter.recent(RateMeter.HORIZON, self._last_seen)
            shares.append(units / (max(seconds, 1.0) * pace.rate))
        return max(shares, default=None)

    def __repr__(self) -> str:
        return f"Limiter({self.limits!r}, in_flight={self.in_flight}, waiting={self.waiting})"

    # What follows is for the lease.

    @property
    def rates(self) -> Mapping[int, tuple[float, float]]:
        """Known rates per second and their bursts, by unit."""
        return self._paces.rates

    def queued(self) -> Iterator[Cost]:
        """What calls in line cost, the first one first."""
        return (self._paces.cost(*tokens) for tokens in self._line.values())

    def admit(self) -> None:
        """Look again who may go."""
        if self._loop is not None:
            self._admit(self._now())

    def hold(self, seconds: float) -> None:
        """Another sharer was refused: let nobody through for so long, and infer a rate where none is known."""
        now = self._now()
        if self.limits.adaptive and not self._paces and self._inferred.is_news(self.granted):
            self._infer(self.granted, now, seconds, now)
        else:
            self._close_gate(_bounded(seconds), now)

    def adopt(self, rates: Mapping[int, float]) -> None:
        """Another sharer has learnt these rates per second."""
        if self.limits.adaptive:
            for unit, rate in rates.items():
                self._paces.adopt(unit, rate, self._now())
            self._window.open()
            self.admit()

    # What follows is between the limiter and its permits.

    def _now(self) -> float:
        if self._loop is not None:
            self._last_seen = max(self._last_seen, self._loop.time())
        return self._last_seen

    def _free_at(self, cost: Cost | None, now: float) -> float:
        """When a call may go, as far as can be told now; infinite when it waits for another call to end."""
        ready = max(self._gate, self._window.ready_at(self.in_flight))
        if cost is not None:
            ready = max(ready, self._paces.ready_at(cost, now))
        if self._inferred_pace is not None:
            rate = self._inferred.rate(now)
            if rate == math.inf:
                self._inferred_pace = None
            else:
                self._inferred_pace.rise(rate, now)
                # It rises while the caller waits, so look again soon.
                ready = max(ready, min(self._inferred_pace.ready_at(1.0, now), now + 1.0))
        if self.lease is not None and ready <= now:
            ready = self.lease.ready_at(cost, now)
        return ready

    def _grant(self, input_tokens: int, output_tokens: int, cost: Cost | None, now: float) -> Permit:
        if cost is not None:
            self._paces.take(cost, now)
        if self.lease is not None:
            self.lease.take(cost, now)
        if self._inferred_pace is not None:
            self._inferred_pace.take(1.0, now)
        self._inferred.admitted.add(1.0, now)
        self._window.take(now)
        self.in_flight += 1
        self.granted += 1
        return Permit(self, self.granted, input_tokens, output_tokens, cost, now)

    def _admit(self, now: float) -> None:
        """Let through everyone who may go, and set the one timer for whoever is then first in line."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._line:
            future, (input_tokens, output_tokens) = next(iter(self._line.items()))
            if not future.done():
                cost = self._paces.cost(input_tokens, output_tokens) if self._paces else None
                ready = self._free_at(cost, now)
                if ready > now:
                    if ready < math.inf and self._loop is not None:
                        self._timer = self._loop.call_at(ready, self._on_timer, ready)
                    return
                future.set_result(self._grant(input_tokens, output_tokens, cost, now))
            self._line.popitem(last=False)

    def _on_timer(self, ready: float) -> None:
        self._timer = None
        # The loop calls up to its clock's resolution too early; without this it would be called again at once.
        self._last_seen = max(self._last_seen, ready)
        self._admit(self._now())

    def _leave(self, now: float) -> None:
        self.in_flight -= 1
        if self.lease is not None:
            self.lease.ended()
        if self._line:
            self._admit(now)

    def _learn(self, permit: Permit, quota: Quota, now: float, retry_after: float | None) -> None:
        cost = permit.cost or self._paces.cost(permit.input_tokens, permit.output_tokens)
        before = self._paces.rates if self.lease is not None else {}
        self._paces.learn(quota, cost, self.granted - permit.number, permit.sent_at, now, retry_after)
        if self.lease is not None:
            rates = {unit: rate for unit, (rate, _) in self._paces.rates.items()}
            if news := {unit: rate for unit, rate in rates.items() if unit not in before or before[unit][0] != rate}:
                self.lease.learnt(news)
        if self._paces:
            self._window.open()

    def _was_overloaded(self, permit: Permit, retry_after: float | None, now: float) -> None:
        if self.limits.adaptive:
            self._window.overloaded(permit.number, self.granted, permit.level, self.in_flight)
        if retry_after is not None:
            self._close_gate(_bounded(retry_after), now)

    def _was_refused(self, permit: Permit, retry_after: float | None, now: float) -> None:
        self.refused += 1
        self._inferred.admitted.add(-1.0, now)
        wait = None if retry_after is None else _bounded(retry_after)
        if not self.limits.adaptive:
            self._close_gate(wait or 0.0, now)
            if self.lease is not None and wait:
                self.lease.refused(wait)
            return
        news = self._inferred.is_news(permit.number)
        if news:
            self._paces.calm()
        pause = self._infer(permit.number, permit.sent_at, wait, now)
        if news and self.lease is not None:
            self.lease.refused(pause)

    def _infer(self, call: int, sent_at: float, retry_after: float | None, now: float) -> float:
        """Call number `call` was refused: close the gate, and keep the rate that this shows; for how long."""
        known = self._paces.requests
        pause = self._inferred.refused(call, self.granted, sent_at, now, retry_after=retry_after, known=known)
        self._close_gate(pause, now)
        if self._inferred_pace is None:
            self._inferred_pace = Pace(self._inferred.rate(now), min(self.limits.burst, INFERRED_BURST))
        self._inferred_pace.rate = self._inferred.rate(now)
        self._inferred_pace.leave(0.0, self._gate)
        return pause

    def _close_gate(self, seconds: float, now: float) -> None:
        self._gate = max(self._gate, now + seconds)
        self._paces.leave_nothing(self._gate)

    def _adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Work on another event loop, whose clock may read anything."""
        if self._line and self._loop is not None and not self._loop.is_closed():
            raise FanfoldError("a limiter was used from two event loops at once: make one for each, or share one loop")
        self._line.clear()
        self._timer = None
        change = loop.time() - self._last_seen
        if self._loop is None or change < 0:
            self._last_seen += change
            self._gate += change
            self._paces.shift(change)
            self._inferred.admitted.shift(change)
            self._inferred.shift(change)
            self._window.shift(change)
            self._inferred_pace = None
        self._loop = loop


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST_GATE) if not math.isnan(seconds) else 0.0
