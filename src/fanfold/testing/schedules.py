"""The conformance suite for schedules: what the engine relies on, checked without an engine."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.schedule import Plan, Schedule
from fanfold.snapshots import saves, take_over, unsaved
from fanfold.types import Case, Dropped, Failed, Ok, Outcome, Result, Trial

Evaluate = Callable[[Trial[Any], Case], Outcome]


class ScheduleConformance:
    """Subclass it in a test module as `class TestMine(ScheduleConformance)` and give it `make`; pytest does the rest.

    `outcome` must be a function of the trial's number and the case.  The defaults suit scores between 0 and 1.
    """

    trials = 40
    windows: tuple[int, ...] = (1, 7, 64)
    cases: tuple[Case, ...] = tuple(Case(f"case-{i}", seed=i) for i in range(4))

    def make(self) -> Schedule:
        """A fresh schedule, before `begin`."""
        raise NotImplementedError("give your subclass a make() that returns a new schedule")

    def outcome(self, trial: Trial[Any], case: Case) -> Outcome:
        ability = derive_seed(1, trial.number) % 1000 / 1000
        luck = derive_seed(2, trial.number, case.id) % 1000 / 1000
        return Ok(0.7 * ability + 0.3 * luck, cost=1.0)

    def outcome_with_failures(self, trial: Trial[Any], case: Case) -> Outcome:
        if derive_seed(3, trial.number, case.id) % 5 == 0:
            return Failed("error", "made to fail")
        return self.outcome(trial, case)

    def test_every_plan_ends_and_runs_known_cases_at_most_once(self) -> None:
        # `drive` itself insists on known cases, on none twice, and on rows being let go.
        for window in self.windows:
            results = self._drive(self.make(), window=window, arrival=0)
            assert sorted(results) == list(range(self.trials))

    def test_a_row_that_is_not_dropped_has_every_case(self) -> None:
        for window in self.windows:
            for number, result in self._drive(self.make(), window=window, arrival=0).items():
                if result.dropped is None:
                    missing = {case.id for case in self.cases} - set(result.outcomes)
                    assert not missing, f"trial {number} counts as complete without {sorted(missing)}"

    def test_the_results_do_not_depend_on_who_arrives_first(self) -> None:
        for evaluate in (self.outcome, self.outcome_with_failures):
            for window in self.windows:
                expected = self._drive(self.make(), window=window, arrival=0, evaluate=evaluate)
                for arrival in range(1, 6):
                    assert self._drive(self.make(), window=window, arrival=arrival, evaluate=evaluate) == expected

    def test_failed_outcomes_are_tolerated(self) -> None:
        def all_fail(trial: Trial[Any], case: Case) -> Outcome:
            return Failed("error", "made to fail")

        for evaluate in (self.outcome_with_failures, all_fail):
            for window in self.windows:
                results = self._drive(self.make(), window=window, arrival=1, evaluate=evaluate)
                assert sorted(results) == list(range(self.trials))

    def test_a_copy_made_before_begin_is_independent(self) -> None:
        original = self.make()
        twin = copy.deepcopy(original)
        window = self.windows[-1]
        first = self._drive(original, window=window, arrival=0)
        assert self._drive(twin, window=window, arrival=0) == first

    def test_waiting_rows_are_let_go_when_too_few_trials_come(self) -> None:
        for trials in (1, 2, 3, 5):
            assert len(self._drive(self.make(), window=self.windows[-1], arrival=0, trials=trials)) == trials

    def test_a_saved_schedule_continues_as_if_it_had_not_been_interrupted(self) -> None:
        """Where it has `save` and `load`: the heir plans the open trials again, and every result is the same."""
        if unsaved(self.make()) is not None or not saves(self.make()):
            return
        for window in self.windows:
            for evaluate in (self.outcome, self.outcome_with_failures):
                arguments: dict[str, Any] = {"trials": self.trials, "window": window, "arrival": 1}
                whole = drive(self.make(), self.cases, evaluate, **arguments)
                assert drive(self.make(), self.cases, evaluate, heir=self.make, **arguments) == whole

    def _drive(
        self,
        schedule: Schedule,
        *,
        window: int,
        arrival: int,
        evaluate: Evaluate | None = None,
        trials: int | None = None,
    ) -> dict[int, Result[Any]]:
        trials = self.trials if trials is None else trials
        return drive(schedule, self.cases, evaluate or self.outcome, trials=trials, window=window, arrival=arrival)


def drive(
    schedule: Schedule,
    cases: Sequence[Case],
    evaluate: Evaluate,
    *,
    trials: int,
    window: int = 64,
    arrival: int = 0,
    seed: int = 0,
    heir: Callable[[], Schedule] | None = None,
) -> dict[int, Result[Any]]:
    """Run so many trials through a schedule as a study would, with chunks arriving in an order drawn from `arrival`.

    With `heir`, which makes a fresh schedule, one takes over from the other after every third tell.
    """
    run = _Run(schedule, cases, evaluate, random.Random(arrival))
    schedule.begin(seed)
    asked = told = 0
    while told < trials:
        while asked < min(trials, told + window):
            run.ask(asked)
            asked += 1
        if told in run.settled:
            run.schedule.tell(run.settled[told])
            told += 1
            if heir is not None and told % 3 == 0:
                following = heir()
                following.begin(seed)
                run.hand_over(following, range(told, asked))
        elif run.running:
            run.one_chunk_arrives()
        else:
            run.let_go()
    return run.settled


class _Run:
    """Rows between their ask and their end: `running` wait for outcomes, `waiting` for other rows."""

    def __init__(self, schedule: Schedule, cases: Sequence[Case], evaluate: Evaluate, rng: random.Random) -> None:
        self.schedule = schedule
        self.cases = cases
        self.evaluate = evaluate
        self.rng = rng
        self.rows: dict[int, tuple[Trial[Any], Plan, dict[str, Outcome]]] = {}
        self.running: dict[int, Sequence[Case]] = {}
        self.waiting: list[int] = []
        self.settled: dict[int, Result[Any]] = {}

    def ask(self, number: int) -> None:
        trial = Trial(number, number)
        self.rows[number] = (trial, self.schedule.plan(trial, self.cases), {})
        self._resume(number, None)
        self._wake()

    def hand_over(self, heir: Schedule, open_trials: Iterable[int]) -> None:
        """Continue with another schedule, which plans the open trials again."""
        assert saves(self.schedule)
        take_over(heir, self.schedule.save(), self.settled.__getitem__)
        self.schedule = heir
        self.rows, self.running, self.waiting = {}, {}, []
        for number in open_trials:
            self.settled.pop(number, None)
            self.ask(number)

    def one_chunk_arrives(self) -> None:
        number = self.rng.choice(sorted(self.running))
        trial, _, outcomes = self.rows[number]
        chunk = self.running.pop(number)
        answer = [self.evaluate(trial, case) for case in chunk]
        outcomes.update(zip((case.id for case in chunk), answer))
        self._resume(number, answer)
        self._wake()

    def let_go(self) -> None:
        assert self.waiting, "no row runs, none waits, and yet some are not settled"
        before = list(self.waiting)
        self.schedule.idle()
        self._wake()
        assert sorted(self.waiting) != sorted(before), f"idle() let none of the waiting rows go: {before}"

    def _wake(self) -> None:
        moved = True
        while moved:
            order, self.waiting = self.waiting, []
            self.rng.shuffle(order)
            moved = False
            for number in order:
                moved = self._resume(number, ()) or moved

    def _resume(self, number: int, answer: Sequence[Outcome] | None) -> bool:
        """Send a row its answer; True if it did something other than wait."""
        trial, plan, outcomes = self.rows[number]
        try:
            chunk = next(plan) if answer is None else plan.send(answer)
        except StopIteration as end:
            self._settle(trial, outcomes, end.value)
            return True
        if not chunk:
            self.waiting.append(number)
            return False
        for case in chunk:
            assert case in self.cases, f"trial {number} was given a case the study does not have: {case!r}"
        ids = [*outcomes, *(case.id for case in chunk)]
        assert len(ids) == len(set(ids)), f"trial {number} was given a case twice: {ids}"
        self.running[number] = list(chunk)
        return True

    def _settle(self, trial: Trial[Any], outcomes: dict[str, Outcome], verdict: Dropped | None) -> None:
        assert verdict is None or isinstance(verdict, Dropped), f"a plan returns None or Dropped, not {verdict!r}"
        scores = [outcome.score for outcome in outcomes.values() if isinstance(outcome, Ok)]
        score: float | None = sum(scores) / len(scores) if scores and len(scores) == len(outcomes) else None
        if verdict is not None:
            score = verdict.score
        self.settled[trial.number] = Result(trial, score, outcomes, verdict.reason if verdict else None)
        del self.rows[trial.number]
