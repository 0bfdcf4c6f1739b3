"""Racing: run a trial's cases in random order and stop as soon as it is proven unlikely to beat the incumbent."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, check_whole
from fanfold.schedule import Plan, Schedule
from fanfold.schedules.rivals import Rivals
from fanfold.snapshots import packed, unpacked
from fanfold.types import Case, Dropped, Failed, Ok, Outcome, Result, Trial

#: The largest share of the wealth that one draw can lose: below 1, so that no single draw ends the test.
_STAKE = 0.75
#: Differences smaller than this share of the score range are rounding, not evidence.
_ROUNDING = 1e-9


@dataclass(eq=False)
class Racing(Schedule):
    """Drops a candidate once its scores show that it is unlikely to beat the incumbent's mean over all cases.

    The incumbent is the best complete result told before the plan was made. Both are compared on the same cases, in
    chunks of `step`, in an order drawn for each trial. The promise: a candidate whose mean over all cases is at least
    the incumbent's is dropped with a probability of at most `error`, over the random order. This holds however often
    the race looks and whatever the scores are within `bounds`. A score outside `bounds` would void the promise, so it
    is an error. The promise is about means: use it with a study that aggregates scores by their mean (the default).

    A dropped candidate gets the incumbent's mean plus its own mean difference to the incumbent on the cases it ran, so
    that candidates dropped after different cases stay comparable. A failed case drops its candidate at once, without a
    score. Without an incumbent, a trial runs all its cases together.
    """

    error: float = 0.05
    bounds: tuple[float, float] = (0.0, 1.0)
    step: int = 8
    _seed: int = field(default=0, init=False, repr=False)
    _best: float = field(default=-math.inf, init=False, repr=False)
    _incumbent: Mapping[str, float] = field(default_factory=dict, init=False, repr=False)
    _open: Rivals = field(default_factory=Rivals, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.error < 1.0:
            raise ConfigError(f"Racing(error={self.error!r}): give a probability between 0 and 1, such as 0.05")
        check_whole(self.step, "step of Racing")
        try:
            low, high = (float(bound) for bound in self.bounds)
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(
                f"Racing(bounds={self.bounds!r}): give the lowest and the highest possible score, such as (0.0, 1.0)"
            )
        self.bounds = (low, high)

    def begin(self, seed: int) -> None:
        self._seed = seed

    def mirrored(self) -> Racing:
        low, high = self.bounds
        return Racing(self.error, (-high, -low), self.step)

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        # Not a generator itself: the incumbent is the one of now, not the one of the moment the plan is first resumed.
        incumbent = self._open.of(trial.number, self._incumbent)
        if not incumbent or any(case.id not in incumbent for case in cases):
            return self._run_all(cases)
        return self._race(trial, cases, incumbent)

    def save(self) -> bytes:
        return packed(best=self._best, incumbent=self._incumbent, open=self._open.save())

    def load(self, state: bytes) -> None:
        saved = unpacked(state)
        self._best, self._incumbent = saved["best"], saved["incumbent"]
        self._open = Rivals.load(saved["open"])

    def tell(self, result: Result[Any]) -> None:
        self._open.settled(result.number)
        if not result.complete or result.score is None or result.score <= self._best:
            return
        scores = {case: outcome.score for case, outcome in result.outcomes.items() if isinstance(outcome, Ok)}
        if len(scores) == len(result.outcomes):  # a failure that was given a score cannot be compared case by case
            for case, score in scores.items():
                self._check(case, score)
            self._best, self._incumbent = result.score, scores

    def _run_all(self, cases: Sequence[Case]) -> Plan:
        outcomes = yield cases
        scores = self._scores(cases, outcomes)
        return scores if isinstance(scores, Dropped) else None

    def _race(self, trial: Trial[Any], cases: Sequence[Case], incumbent: Mapping[str, float]) -> Plan:
        order = list(cases)
        random.Random(derive_seed(self._seed, "racing", trial.number)).shuffle(order)
        total = len(order)
        rivals = [incumbent[case.id] for case in order]
        low, high = self.bounds
        bet = Bet([high - rival for rival in rivals], spread=high - low, error=self.error)
        for start in range(0, total, self.step):
            chunk = order[start : start + self.step]
            scores = self._scores(chunk, (yield chunk))
            if isinstance(scores, Dropped):
                return scores
            for score, rival in zip(scores, rivals[start : start + self.step]):
                bet.see(score - rival)
            if bet.won and bet.seen < total:
                behind = min(0.0, bet.total / bet.seen)
                score = min(high, max(low, math.fsum(rivals) / total + behind))
                return Dropped(f"raced out after {bet.seen} of {total} cases", score)
        return None

    def _scores(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> list[float] | Dropped:
        scores = []
        for case, outcome in zip(cases, outcomes):
            if isinstance(outcome, Failed):
                return Dropped(f"case {case.id} failed: {outcome.kind}")
            scores.append(self._check(case.id, outcome.score))
        return scores

    def _check(self, case: str, score: float) -> float:
        low, high = self.bounds
        if not low <= score <= high:
            raise ConfigError(
                f"case {case!r} gave the score {score!r}, outside Racing(bounds=({low}, {high})): "
                f"give bounds= the lowest and highest score an evaluation can have, or clip the score"
            )
        return score


class Bet:
    """A bet against a candidate, which grows large only if its mean difference to the incumbent is below zero.

    The differences d of all cases are seen one by one in random order, without replacement.  Suppose they sum to at
    least zero (the candidate is not worse).  Then, after a sum S of those seen, the expectation of the next is at least
    m = -S / (number left).  A rate >= 0 chosen before the draw multiplies the wealth by 1 + rate * (m - d), which is
    expected to be at most 1, and is positive because rate * (largest d - m) is kept below 1.  So the wealth is a
    positive supermartingale that starts at 1, and by Ville's inequality the probability that it ever reaches
    1 / error is at most `error`: at any number of looks, for any scores.

    `highest` are the largest possible differences, case by case in the order of the draws: once even those of the cases
    left cannot lift the sum to zero, the bet is won with certainty.
    """

    __slots__ = ("_error", "_highest", "_reach", "_spread", "_squares", "_top", "_wealth", "seen", "total", "won")

    def __init__(self, highest: Sequence[float], *, spread: float, error: float) -> None:
        self.seen = 0
        self.total = 0.0
        self.won = False
        self._highest = highest
        self._top = max(highest)
        self._reach = math.fsum(highest)
        self._spread = spread
        self._error = error
        self._squares = 0.0
        self._wealth = 1.0

    def see(self, difference: float) -> None:
        """Settle the stake on the next draw."""
        expected = -self.total / (len(self._highest) - self.seen)
        self._wealth *= 1.0 + self._rate(expected) * (expected - difference)
        self._reach -= self._highest[self.seen]
        self.seen += 1
        self.total += difference
        self._squares += difference * difference
        hopeless = self.total + self._reach < -_ROUNDING * self._spread * len(self._highest)
        self.won = self.won or hopeless or self._wealth * self._error >= 1.0

    def _rate(self, expected: float) -> float:
        """The rate that would have made the wealth grow fastest on the draws so far (Kelly), kept below ruin.

        One imagined draw of difference zero, half the range wide, keeps the first rates small.
        """
        edge = expected - self.total / (self.seen + 1)
        if edge <= 0.0:
            return 0.0
        scatter = self._squares - self.total * self.total / self.seen if self.seen else 0.0
        variance = (max(0.0, scatter) + self._spread * self._spread / 4.0) / (self.seen + 1)
        room = max(self._top - expected, _ROUNDING * self._spread)
        return min(edge / (variance + edge * edge), _STAKE / room)
