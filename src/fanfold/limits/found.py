"""The request rate a server sustains but does not tell, found from what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fanfold.limits.pace import Meter

#: The rate rises by this share per second at first, after a guess and after an estimate; the rise doubles every
#: `patience` seconds without a refusal, up to the steepest.
GUESS_RISE, ESTIMATE_RISE, STEEPEST_RISE = 0.05, 0.01, 0.25
LEAST_PATIENCE, MOST_PATIENCE = 2.0, 24.0
#: Patience is at least so many times what it takes to hear of a refusal: who hears late must rise slowly.
DELAYS = 4.0
#: A rate that has risen by so many powers of e limits nothing any more.
FORGOTTEN = 7.0
#: Seconds of quiet after a refusal that does not say how long; doubled while calls right after the quiet are refused.
PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: How far back the rate before a refusal is measured, and the least time between refusals worth an estimate.
LOOK_BACK = 2.0
#: Estimates are kept a little below what was measured, so that the server's allowance recovers.
CAUTION = 0.98
LEAST_RATE = 1 / 60


@dataclass(slots=True)
class _Episode:
    """One time the server said no: when, how much it had let through by then, and what an estimate starts from."""

    at: float
    admitted: float
    recent: tuple[float, float]
    since: tuple[float, float] | None
    #: Without such a start: the rate of the episode that has only just been, 0 if there was none.
    last_rate: float

    def rate(self) -> float:
        units, seconds = self.recent
        if self.since is None:
            return max(0.9 * units / max(seconds, 1.0), 0.7 * self.last_rate, LEAST_RATE)
        start, admitted = self.since
        # Callers that were slower than the server in between do not make the server slow: what went just now, less a
        # burst of a second, it can do as well.
        return CAUTION * max(
            (self.admitted - admitted) / (self.at - start), units / (seconds + 1.0), LEAST_RATE
        )


class FoundRate:
    """The rate to keep after refusals, and how long to stay quiet after each.

    Between two refusals the server was out of allowance at both ends, so what it let through in between, divided by the
    time, *is* its rate: no search is needed, only a second refusal.  The rate then rises, slowly at first and faster the
    longer nothing is refused, so that a limit that was raised, or never existed, soon stops mattering.  Whenever two
    estimates agree the rise becomes slower.

    Refusals of calls that left before the last refusal was heard belong to the same episode: they correct its estimate
    and punish no further.
    """

    __slots__ = ("_admitted", "_episode", "_last_call", "_opened_at", "_patience", "_streak")

    def __init__(self, admitted: Meter) -> None:
        self._admitted = admitted
        self._episode: _Episode | None = None
        self._patience = LEAST_PATIENCE
        self._opened_at = -math.inf
        self._last_call = -1
        self._streak = 0

    def rate(self, now: float) -> float:
        """Requests per second to keep now; infinite when nothing has been refused for long."""
        if self._episode is None:
            return math.inf
        first = GUESS_RISE if self._episode.since is None else ESTIMATE_RISE
        quiet = max(0.0, now - self._opened_at)
        curved = min(quiet, self._patience * math.log2(STEEPEST_RISE / first))
        risen = first * self._patience * (2.0 ** (curved / self._patience) - 1) / math.log(2)
        risen += STEEPEST_RISE * (quiet - curved)
        return self._episode.rate() * math.exp(risen) if risen < FORGOTTEN else math.inf

    def refused(self, call: int, calls: int, sent_at: float, retry_after: float | None, now: float) -> float:
        """Call number `call` of `calls` so far was refused, and is counted as admitted no longer: how long to stay quiet."""
        if self._episode is not None and call <= self._last_call:
            units, seconds = self._episode.recent
            self._episode.recent = (units - 1, seconds)
            self._episode.admitted -= 1
            return retry_after or 0.0
        self._streak = self._streak + 1 if sent_at - self._opened_at < 1.0 else 0
        pause = PAUSE if retry_after is None else retry_after
        if self._streak:
            pause = max(pause, min(LONGEST_PAUSE, PAUSE * 2.0**self._streak))
        self._begin(sent_at, now)
        self._last_call = calls
        self._opened_at = now + pause
        return pause

    def shift(self, seconds: float) -> None:
        self._episode = None
        self._opened_at += seconds

    def _begin(self, sent_at: float, now: float) -> None:
        last = self._episode if self.rate(now) < math.inf else None
        apart = last is not None and now - last.at >= LOOK_BACK
        since = (last.at, last.admitted) if last is not None and apart else None
        last_rate = 0.0 if last is None else last.rate()
        recent = self._admitted.recent(LOOK_BACK, now)
        self._episode = _Episode(now, self._admitted.total, recent, since, last_rate)
        agrees = since is not None and 0.85 < self._episode.rate() / last_rate < 1.15
        least = max(LEAST_PATIENCE, DELAYS * (now - sent_at))
        self._patience = max(least, min(2 * self._patience, MOST_PATIENCE)) if agrees else least
