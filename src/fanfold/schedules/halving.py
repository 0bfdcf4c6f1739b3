"""Successive halving: cases are rungs from cheap to expensive, and only the best trials climb to the next."""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.errors import ConfigError, check_whole
from fanfold.schedule import Plan, Schedule
from fanfold.snapshots import packed, unpacked
from fanfold.types import Case, Dropped, Failed, Ok, Outcome, Result, Trial


def last_rung(scores: Sequence[float]) -> float:
    """The score on the last case: the `aggregate` for studies whose cases are rungs."""
    return scores[-1]


@dataclass(eq=False)
class Halving(Schedule):
    """Runs the cases in the order given (rungs, from cheap to expensive) and lets the best 1/eta continue at each.

    Trials form cohorts in the order of asking.  At each rung a trial waits until its whole cohort has a score there or
    has failed; then the best 1/eta (at least one; of equal scores the earlier trial) continue, and the others are
    dropped with their score at that rung.  A cohort has `cohort` members, by default enough to leave one at the last
    rung.  A cohort that cannot fill is decided with the members it has: the window should hold at least one cohort.

    `asynchronous=True` does not wait: a trial continues if its score is among the best 1/eta of the scores that had
    been told for that rung when the trial was asked, or if fewer than `eta` had been.

    `first` is the rung of the first decision: so many cases are run before anyone is dropped.  A failed case drops its
    trial.  Pass `aggregate=last_rung` to the study if the last rung is the score that counts.
    """

    eta: int = 3
    cohort: int | None = None
    asynchronous: bool = False
    first: int = 1
    _filling: _Cohort | None = field(default=None, init=False, repr=False)
    _open: list[_Cohort] = field(default_factory=list, init=False, repr=False)
    #: Ascending scores told for each case; only the asynchronous rule needs the past.
    _told: dict[str, list[float]] = field(default_factory=dict, init=False, repr=False)
    #: What each open trial climbs by: its cohort, or the thresholds of its cases.
    _climbing: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole(self.eta, "eta of Halving", 2)
        check_whole(self.first, "first of Halving")
        if self.cohort is not None:
            check_whole(self.cohort, "cohort of Halving")
        if self.asynchronous and self.cohort is not None:
            raise ConfigError(
                f"Halving(cohort={self.cohort}, asynchronous=True): the asynchronous rule has no cohorts; leave out one"
            )

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        # Not a generator itself: cohorts and evidence are those of now, when the trial is asked.
        number = trial.number
        if self.asynchronous:
            thresholds = self._climbing.setdefault(number, [self._threshold(case) for case in cases])
            return self._climb_alone(cases, thresholds)
        if number not in self._climbing:
            self._climbing[number] = self._join(number, cuts=len(cases) - self.first)
        return self._climb(number, cases, self._climbing[number])

    def save(self) -> bytes:
        if self.asynchronous:
            told = {case: array("d", scores).tobytes() for case, scores in self._told.items()}
            return packed(told=told, climbing=self._climbing)
        cohorts = list({id(cohort): cohort for cohort in (*self._open, *self._climbing.values())}.values())
        numbers = {id(cohort): number for number, cohort in enumerate(cohorts)}
        return packed(
            cohorts=[cohort.state for cohort in cohorts],
            filling=None if self._filling is None else numbers[id(self._filling)],
            open=[numbers[id(cohort)] for cohort in self._open],
            climbing={trial: numbers[id(cohort)] for trial, cohort in self._climbing.items()},
        )

    def load(self, state: bytes) -> None:
        saved = unpacked(state)
        if self.asynchronous:
            self._told = {case: array("d", scores).tolist() for case, scores in saved["told"].items()}
            self._climbing = saved["climbing"]
            return
        cohorts = [_Cohort.of(cohort, self.eta) for cohort in saved["cohorts"]]
        self._filling = None if saved["filling"] is None else cohorts[saved["filling"]]
        self._open = [cohorts[number] for number in saved["open"]]
        self._climbing = {trial: cohorts[number] for trial, number in saved["climbing"].items()}

    def tell(self, result: Result[Any]) -> None:
        self._climbing.pop(result.number, None)
        if self.asynchronous:
            for case, outcome in result.outcomes.items():
                if isinstance(outcome, Ok):
                    insort(self._told.setdefault(case, []), outcome.score)

    def idle(self) -> None:
        self._filling = None
        for cohort in self._open:
            cohort.decide_with_those_present()

    def _join(self, number: int, cuts: int) -> _Cohort:
        if self._filling is None:
            size = self.eta ** max(0, cuts) if self.cohort is None else self.cohort
            self._filling = _Cohort(size, self.eta)
            self._open = [cohort for cohort in self._open if cohort.live and cohort.decided < cuts]
            self._open.append(self._filling)
        cohort = self._filling
        cohort.join(number)
        if not cohort.filling:
            self._filling = None
        return cohort

    def _climb(self, number: int, cases: Sequence[Case], cohort: _Cohort) -> Plan:
        try:
            for cut, (rung, chunk) in enumerate(_rungs(cases, self.first)):
                score = _reached(chunk, (yield chunk))
                if isinstance(score, Dropped):
                    return score
                if rung == len(cases):
                    return None
                if cohort.decided == cut:  # not of a trial that is planned again after a resume
                    cohort.arrive(number, score)
                while cohort.decided == cut:
                    yield ()
                if not cohort.passes(number, cut):
                    return self._dropped(score, rung, len(cases))
            return None
        finally:
            cohort.leave(number)

    def _climb_alone(self, cases: Sequence[Case], thresholds: Sequence[float | None]) -> Plan:
        for rung, chunk in _rungs(cases, self.first):
            score = _reached(chunk, (yield chunk))
            if isinstance(score, Dropped):
                return score
            threshold = thresholds[rung - 1]
            if rung < len(cases) and threshold is not None and score < threshold:
                return self._dropped(score, rung, len(cases))
        return None

    def _threshold(self, case: Case) -> float | None:
        told = self._told.get(case.id, ())
        return told[-(len(told) // self.eta)] if len(told) >= self.eta else None

    def _dropped(self, score: float, rung: int, rungs: int) -> Dropped:
        share = {2: "half", 3: "third", 4: "quarter"}.get(self.eta, f"1/{self.eta}")
        return Dropped(f"below the best {share} at rung {rung} of {rungs}", score)


def _rungs(cases: Sequence[Case], first: int) -> list[tuple[int, Sequence[Case]]]:
    """The cases to run up to each decision, and the rung (from 1) that they reach."""
    chunks = [(min(first, len(cases)), cases[:first])]
    return chunks + [(rung + 1, cases[rung : rung + 1]) for rung in range(first, len(cases))]


def _reached(cases: Sequence[Case], outcomes: Sequence[Outcome]) -> float | Dropped:
    """The score at the last of these cases, or why the trial ends here."""
    score = 0.0
    for case, outcome in zip(cases, outcomes):
        if isinstance(outcome, Failed):
            return Dropped(f"case {case.id} failed: {outcome.kind}")
        score = outcome.score
    return score


class _Cohort:
    """Trials that climb together: `live` are still climbing, `decided` counts the decisions taken so far."""

    def __init__(self, size: int, eta: int) -> None:
        self.live: set[int] = set()
        self.decided = 0
        self._places = size
        self._eta = eta
        self._entered = 0
        self._scores: dict[int, float] = {}
        #: How many decisions each trial has passed.
        self._passed: dict[int, int] = {}

    @classmethod
    def of(cls, state: Sequence[Any], eta: int) -> _Cohort:
        cohort = cls(0, eta)
        live, cohort.decided, cohort._places, cohort._entered, cohort._scores, cohort._passed = state
        cohort.live = set(live)
        return cohort

    @property
    def state(self) -> list[Any]:
        return [sorted(self.live), self.decided, self._places, self._entered, self._scores, self._passed]

    @property
    def filling(self) -> bool:
        return self._places > 0

    def passes(self, number: int, cut: int) -> bool:
        """Whether a trial was among the best at a decision."""
        return cut < self._passed.get(number, 0)

    def join(self, number: int) -> None:
        self._places -= 1
        self._entered += 1
        self.live.add(number)

    def arrive(self, number: int, score: float) -> None:
        self._scores[number] = score
        self._decide_if_all_arrived()

    def leave(self, number: int) -> None:
        """Forget a trial that is settled; the others no longer wait for it."""
        if number in self.live:
            self.live.remove(number)
            self._scores.pop(number, None)
            self._decide_if_all_arrived()

    def decide_with_those_present(self) -> None:
        """Take no more members, and stop waiting for those who have not arrived."""
        self._places = 0
        self.live.intersection_update(self._scores)
        self._decide_if_all_arrived()

    def _decide_if_all_arrived(self) -> None:
        if self.filling or not self._scores or len(self._scores) < len(self.live):
            return
        ranked = sorted(self._scores, key=lambda number: (-self._scores[number], number))
        self.live = set(ranked[: max(1, self._entered // self._eta)])
        self._entered = len(self.live)
        self._scores = {}
        self.decided += 1
        self._passed |= dict.fromkeys(self.live, self.decided)
