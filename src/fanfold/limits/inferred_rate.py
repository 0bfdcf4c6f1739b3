"""The request rate a server sustains but does not tell, found from what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fanfold.limits.pace import RateMeter

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
LEAST_GUESS, LEAST_RATE = 1.0, 1 / 60
#: A known rate is believed in spite of a refusal up to this, and up to ten times what was let through lately.
BELIEVED = 100.0


@dataclass(frozen=True, slots=True)
class _Episode:
    """One time the server said no: when, how much it had let through by then, and what an estimate starts from."""

    at: float
    admitted: float
    recent: tuple[float, float]
    #: When the last one was and what had been admitted by then; None if there was none, or only just.
    since: tuple[float, float] | None
    last_rate: float

    def rate(self) -> float:
        units, seconds = self.recent
        if self.since is None:
            least = 0.7 * self.last_rate if self.last_rate else LEAST_GUESS
            return max(0.9 * units / max(seconds, 1.0), least, LEAST_RATE)
        start, admitted = self.since
        between = (self.admitted - admitted) / (self.at - start)
        # Callers that were slower than the server in between do not make the server slow: what went just now, less a
        # burst of a second, it can do as well.  Nor does one time of paying for many refusals.
        return max(CAUTION * max(between, units / (seconds + 1.0)), 0.5 * self.last_rate, LEAST_RATE)


class InferredRate:
    """The rate to keep after refusals, and how long to stay quiet after each.

    Between two refusals the server was out of allowance at both ends, so what it let through in between, divided by
    the time, *is* its rate: no search is needed, only a second refusal.  The rate then rises, slowly at first and
    faster the longer nothing is refused, so that a limit that was raised, or never existed, soon stops mattering.
    Whenever two estimates agree the rise becomes slower.

    Refusals of calls that left before the first one was heard belong to the same episode and change nothing.
    """

    __slots__ = ("_episode", "_last_call", "_opened_at", "_patience", "_refusals", "_streak", "admitted")

    def __init__(self, admitted: RateMeter) -> None:
        self.admitted = admitted
        self._episode: _Episode | None = None
        self._patience = LEAST_PATIENCE
        self._opened_at = -math.inf
        self._last_call = -1
        self._refusals = 0
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

    def is_news(self, call: int) -> bool:
        """Whether call number `call` left after the last refusal was heard."""
        return call > self._last_call

    def refused(
        self, call: int, calls: int, sent_at: float, now: float, *, retry_after: float | None, known: float
    ) -> float:
        """Call number `call` of `calls` so far, sent then, was refused: how long to stay quiet.

        `known` is the rate that was told or learnt otherwise: probably right, so the first guess stays near it.
        """
        self._refusals += 1
        if not self.is_news(call):
            return retry_after or 0.0
        delay = now - sent_at
        self._streak = self._streak + 1 if sent_at - self._opened_at < 1.0 else 0
        # Without a word from the server: long enough for what was sent before its refusal was heard.
        pause = max(PAUSE, min(delay, 4 * PAUSE)) if retry_after is None else retry_after
        if self._streak:
            pause = max(pause, min(LONGEST_PAUSE, PAUSE * 2.0**self._streak))
        self._begin(call, sent_at, delay, known, now)
        self._last_call = calls
        self._opened_at = now + pause
        return pause

    def shift(self, seconds: float) -> None:
        self._episode = None
        self._opened_at += seconds

    def _begin(self, call: int, sent_at: float, delay: float, known: float, now: float) -> None:
        last = self._episode if self.rate(now) < math.inf else None
        # All calls up to this one were admitted, but for the refusals that were heard before.
        admitted = call - self._refusals
        start, before = self.admitted.at(sent_at - LOOK_BACK)
        recent = (admitted - before, sent_at - start)
        since = (last.at, last.admitted) if last is not None and sent_at - last.at >= LOOK_BACK else None
        believed = max(BELIEVED, 10 * recent[0] / max(recent[1], 1.0))
        last_rate = last.rate() if last is not None else known if known <= believed else 0.0
        self._episode = _Episode(sent_at, admitted, recent, since, last_rate)
        agrees = since is not None and 0.85 < self._episode.rate() / last_rate < 1.15
        least = max(LEAST_PATIENCE, DELAYS * delay)
        self._patience = max(least, min(2 * self._patience, MOST_PATIENCE)) if agrees else least
