"""The request rate a server sustains but does not tell, found from what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fanfold.limits.pace import Meter

#: The rate rises by this share per second at first; the rise doubles every `patience` seconds without a refusal.
FIRST_RISE = 0.01
LEAST_PATIENCE, MOST_PATIENCE = 2.0, 24.0
#: Doublings after which the rate has grown so far that it no longer limits anything.
FORGOTTEN = 10
#: Seconds of quiet after a refusal that does not say how long; doubled while calls right after the quiet are refused.
PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: How far back the rate before a refusal is measured, and the least time between refusals worth an estimate.
LOOK_BACK = 2.0
#: Estimates are kept a little below what was measured, so that the server's allowance recovers.
CAUTION = 0.98


@dataclass(slots=True)
class _Episode:
    """One time the server said no: when, how much it had let through by then, and what an estimate starts from."""

    at: float
    admitted: float
    recent: tuple[float, float]
    since: tuple[float, float] | None
    repeated: bool

    def rate(self) -> float:
        units, seconds = self.recent
        before = max(units, 1.0) / max(seconds, 1.0)
        if self.since is None:
            return before * (0.7 if self.repeated else 0.9)
        start, admitted = self.since
        # Half of what went lately is the floor: callers that were idle in between do not make the server slow.
        return max(CAUTION * (self.admitted - admitted) / (self.at - start), before / 2)


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
        doublings = max(0.0, now - self._opened_at) / self._patience
        if self._episode is None or doublings > FORGOTTEN:
            return math.inf
        return self._episode.rate() * math.exp(FIRST_RISE * self._patience * (2.0**doublings - 1) / math.log(2))

    def refused(self, call: int, calls: int, retry_after: float | None, now: float) -> float:
        """Call number `call` of `calls` so far was refused, and is counted as admitted no longer: how long to stay quiet."""
        if self._episode is not None and call <= self._last_call:
            units, seconds = self._episode.recent
            self._episode.recent = (units - 1, seconds)
            self._episode.admitted -= 1
            return retry_after or 0.0
        self._streak = self._streak + 1 if now - self._opened_at < 1.0 else 0
        pause = PAUSE if retry_after is None else retry_after
        if self._streak:
            pause = max(pause, min(LONGEST_PAUSE, PAUSE * 2.0**self._streak))
        self._begin(now)
        self._last_call = calls
        self._opened_at = now + pause
        return pause

    def shift(self, seconds: float) -> None:
        self._episode = None
        self._opened_at += seconds

    def _begin(self, now: float) -> None:
        last = self._episode
        known = last is not None and self.rate(now) < math.inf and now - last.at >= LOOK_BACK
        since = (last.at, last.admitted) if last is not None and known else None
        recent = self._admitted.recent(LOOK_BACK, now)
        self._episode = _Episode(now, self._admitted.total, recent, since, repeated=last is not None)
        agrees = last is not None and known and 0.85 < self._episode.rate() / last.rate() < 1.15
        self._patience = min(2 * self._patience, MOST_PATIENCE) if agrees else LEAST_PATIENCE
