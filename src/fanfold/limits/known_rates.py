"""The known rates of a resource, told by the user or learnt from its replies, and what a call costs in each."""

from __future__ import annotations

import math
from typing import TypeAlias

from fanfold.limits.pace import Pace
from fanfold.limits.values import Limits, Quota

#: What one call costs: requests, tokens, input tokens, output tokens.
Cost: TypeAlias = tuple[float, float, float, float]

#: A quota with less than this share left, and its reset so many seconds away, is spread over the time until then.
SCARCE, SOON = 0.1, 2.0
LONGEST_RESET = 300.0
#: The share of the past that a token estimate's error remembers with every reply.
MEMORY = 0.98
#: Bursts never shrink below this many seconds, so that a late timer costs nothing.
LEAST_BURST = 0.05


class Paces:
    """One pace for each rate that is known; none for the others.

    Limits from replies count per minute, as providers state them, and can lower a told limit but not raise it.
    Estimates of tokens are scaled by how wrong they have been, and every charge is corrected by its reply.
    """

    __slots__ = ("_burst", "_input", "_known", "_output", "_told")

    def __init__(self, limits: Limits) -> None:
        per_minute = (
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.input_tokens_per_minute,
            limits.output_tokens_per_minute,
        )
        self._burst = limits.burst
        self._told = tuple(math.inf if limit is None else limit / 60 for limit in per_minute)
        self._known = {unit: Pace(rate, limits.burst) for unit, rate in enumerate(self._told) if rate < math.inf}
        #: Decaying sums of (estimated, used) tokens.
        self._input = (1.0, 1.0)
        self._output = (1.0, 1.0)

    def __bool__(self) -> bool:
        return bool(self._known)

    @property
    def all(self) -> list[Pace]:
        return list(self._known.values())

    @property
    def rates(self) -> dict[int, tuple[float, float]]:
        """Units per second and seconds of burst, by unit."""
        return {unit: (pace.full, pace.burst) for unit, pace in self._known.items()}

    @property
    def requests(self) -> float:
        """Requests per second."""
        return self._known[0].rate if 0 in self._known else math.inf

    def cost(self, input_tokens: int, output_tokens: int) -> Cost:
        inputs = input_tokens * self._input[1] / self._input[0]
        outputs = output_tokens * self._output[1] / self._output[0]
        return 1.0, inputs + outputs, inputs, outputs

    def ready_at(self, cost: Cost, now: float) -> float:
        ready = -math.inf
        for unit, pace in self._known.items():
            ready = max(ready, pace.ready_at(cost[unit], now))
        return ready

    def take(self, cost: Cost, now: float) -> None:
        for unit, pace in self._known.items():
            pace.take(cost[unit], now)

    def calm(self) -> None:
        """The server allows smaller bursts than we thought, or shares its limits with others."""
        for pace in self._known.values():
            pace.burst = max(min(pace.burst, LEAST_BURST), pace.burst / 2)

    def leave_nothing(self, when: float) -> None:
        """Callers that gather until `when` go at the rate from then on, not all at once."""
        for pace in self._known.values():
            pace.leave(0.0, when)

    def correct(
        self, estimate: tuple[int, int], charged: Cost | None, used: tuple[int | None, int | None], now: float
    ) -> Cost | None:
        """A call estimated at `estimate` (input, output) tokens used so many; None leaves the estimate.

        Returns how many units more it used than it was charged for.
        """
        inputs, outputs = used
        if inputs is not None:
            self._input = _decayed(self._input, estimate[0], inputs)
        if outputs is not None:
            self._output = _decayed(self._output, estimate[1], outputs)
        if charged is None:
            return None
        more_in = 0.0 if inputs is None else inputs - charged[2]
        more_out = 0.0 if outputs is None else outputs - charged[3]
        more = (0.0, more_in + more_out, more_in, more_out)
        for unit, pace in self._known.items():
            if unit:
                pace.correct(more[unit], now)
        return more

    def learn(
        self, quota: Quota, cost: Cost, unseen: int, sent_at: float, now: float, retry_after: float | None = None
    ) -> None:
        """A reply to a call of this cost, sent then and followed by `unseen` others, carried this quota.

        Who says `retry_after` has something again by then, whatever the time of the reset.
        """
        said = (
            (quota.requests_limit, quota.requests_remaining, quota.requests_reset),
            (quota.tokens_limit, quota.tokens_remaining, quota.tokens_reset),
            (quota.input_tokens_limit, quota.input_tokens_remaining, quota.input_tokens_reset),
            (quota.output_tokens_limit, quota.output_tokens_remaining, quota.output_tokens_reset),
        )
        for unit, (limit, remaining, reset) in enumerate(said):
            if limit is None or not 0 < limit < math.inf:
                continue
            pace = self.adopt(unit, limit / 60, now)
            if reset is not None and retry_after is not None:
                reset = min(reset, retry_after)
            if remaining is not None and 0 <= remaining < math.inf:
                # What the server had not seen yet when it counted, and what it has given back since.
                left = remaining - unseen * cost[unit] + pace.rate * (now - sent_at)
                pace.leave(max(left, cost[unit]), now)
                _spread(pace, limit, remaining, reset, left, now)

    def shift(self, seconds: float) -> None:
        for pace in self._known.values():
            pace.shift(seconds)

    def adopt(self, unit: int, rate: float, now: float) -> Pace:
        """The pace of a rate that was learnt: so many units per second, or as many as were told."""
        rate = min(rate, self._told[unit])
        pace = self._known.get(unit)
        if pace is None:
            # What was sent before is unknown here, so nothing is left of the burst.
            pace = self._known[unit] = Pace(rate, self._burst, spent_until=now + self._burst)
        elif pace.full != rate:
            pace.change(rate)
        return pace


def _spread(pace: Pace, limit: float, remaining: float, reset: float | None, left: float, now: float) -> None:
    scarce = remaining < SCARCE * limit and reset is not None and SOON < reset < math.inf
    if scarce and reset is not None and abs((limit - remaining) / reset - limit / 60) > limit / 240:
        pace.spread(left, now, now + min(reset, LONGEST_RESET))
    else:
        # A bucket that fills continuously, and reaches its brim by `reset`, needs no slower pace than its rate.
        pace.normal()


def _decayed(sums: tuple[float, float], estimated: int, used: int) -> tuple[float, float]:
    if estimated <= 0 or used < 0:
        return sums
    return MEMORY * sums[0] + estimated, max(MEMORY * sums[1] + used, 1e-3)
