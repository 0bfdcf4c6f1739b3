"""The arithmetic of a rate: when the next units may go, and how fast they went lately."""

from __future__ import annotations

import math
from collections import deque


class RateMeter:
    """Counts units over time and tells how many came in the last seconds, to a quarter of a second."""

    __slots__ = ("_marks", "total")

    STEP = 0.25
    #: How far back it remembers.
    HORIZON = 60.0

    def __init__(self) -> None:
        self.total = 0.0
        self._marks: deque[tuple[float, float]] = deque(maxlen=int(self.HORIZON / self.STEP))

    def add(self, units: float, now: float) -> None:
        if not self._marks or now - self._marks[-1][0] >= self.STEP:
            self._marks.append((now, self.total))
        self.total += units

    def at(self, when: float) -> tuple[float, float]:
        """(time, total by then) of the last mark up to `when`, or of the first one there is."""
        mark = (when, self.total)
        for mark in reversed(self._marks):
            if mark[0] <= when:
                break
        return mark

    def recent(self, seconds: float, now: float) -> tuple[float, float]:
        """(units, seconds they took) over about the last `seconds`, or since the first unit if that is later."""
        start, before = self.at(now - seconds)
        return self.total - before, now - start

    def shift(self, seconds: float) -> None:
        self._marks = deque(((when + seconds, total) for when, total in self._marks), maxlen=self._marks.maxlen)


class Pace:
    """GCRA: units leave at `rate` per second, and at most `burst` seconds of it at once.

    `spent_until` is the theoretical arrival time: the moment up to which the rate is used up.  It may run ahead of now
    by `burst`.  A charge larger than a whole burst goes out alone once everything before it is paid for, so none waits
    forever.  No window of T seconds lets more than (T + burst) x rate through, plus one such charge.
    """

    __slots__ = ("_slowed_until", "burst", "full", "meter", "rate", "spent_until")

    def __init__(self, rate: float, burst: float, spent_until: float = -math.inf) -> None:
        self.rate = rate
        self.burst = burst
        self.spent_until = spent_until
        self.meter = RateMeter()
        self.full = rate
        self._slowed_until = -math.inf

    def ready_at(self, units: float, now: float) -> float:
        """When a charge may go; `now` or earlier means at once."""
        if self._slowed_until > -math.inf and now >= self._slowed_until:
            self._resume(now)
        allowance = self.burst - units / self.rate
        ready = self.spent_until - allowance if allowance > 0 else self.spent_until
        return min(ready, self._slowed_until) if self._slowed_until > now else ready

    def take(self, units: float, now: float) -> None:
        self.spent_until = max(self.spent_until, now) + units / self.rate
        self.meter.add(units, now)

    def correct(self, units: float, now: float) -> None:
        """A charge turned out larger (or smaller) by so many units."""
        self.spent_until += units / self.rate
        self.meter.add(units, now)

    def leave(self, units: float, now: float) -> None:
        """No more than so many units may go at once now, whatever we counted."""
        self.spent_until = max(self.spent_until, now + self.burst - units / self.rate)

    def change(self, rate: float) -> None:
        """The full rate is another one from now on."""
        self.full = rate
        if self._slowed_until == -math.inf:
            self.rate = rate

    def rise(self, rate: float, now: float) -> None:
        """The rate is higher now, and what was charged before is paid off at it as well."""
        if self.spent_until > now:
            self.spent_until = now + (self.spent_until - now) * self.rate / rate
        self.rate = self.full = rate

    def spread(self, units: float, now: float, until: float) -> None:
        """Only so many units are left until then: spread them."""
        self.rate = min(self.full, max(units, 0.1) / (until - now))
        self._slowed_until = until

    def normal(self) -> None:
        """Nothing speaks against the full rate."""
        self.rate, self._slowed_until = self.full, -math.inf

    def shift(self, seconds: float) -> None:
        self.spent_until += seconds
        self._slowed_until += seconds
        self.meter.shift(seconds)

    def _resume(self, now: float) -> None:
        self.normal()
        self.spent_until = now + self.burst - 1 / self.rate
