"""The shipped schedules keep the contract, and the conformance suite notices schedules that do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from fanfold import Study, Sweep
from fanfold.schedule import Plan, Schedule
from fanfold.schedules import AllCases, Halving, Racing
from fanfold.stop import Rule
from fanfold.testing.schedules import ScheduleConformance, drive
from fanfold.types import Case, Dropped, Ok, Result, Trial


class TestAllCases(ScheduleConformance):
    def make(self) -> Schedule:
        return AllCases()


class TestRacing(ScheduleConformance):
    cases = tuple(Case(f"case-{i}", seed=i) for i in range(60))

    def make(self) -> Schedule:
        return Racing(step=5)

    def test_some_trials_are_dropped_or_these_tests_show_nothing(self) -> None:
        results = drive(self.make(), self.cases, self.outcome, trials=40, window=7)
        assert any(result.dropped for result in results.values())


class TestHalving(ScheduleConformance):
    def make(self) -> Schedule:
        return Halving()


class TestHalvingInSmallCohorts(ScheduleConformance):
    def make(self) -> Schedule:
        return Halving(eta=2, cohort=6, first=2)


class TestAsynchronousHalving(ScheduleConformance):
    def make(self) -> Schedule:
        return Halving(asynchronous=True)


def test_all_cases_yields_every_case_at_once_and_never_drops() -> None:
    cases = (Case("a"), Case("b"))
    plan = AllCases().plan(Trial(0, "x"), cases)
    assert list(next(plan)) == list(cases)
    with pytest.raises(StopIteration) as end:
        plan.send([Ok(1.0), Ok(0.0)])
    assert end.value.value is None


def planned(plan: Any) -> type[Schedule]:
    """A schedule with this plan, which is wrong."""
    return type("Wrong", (Schedule,), {"plan": plan})


def returning(trial: Trial[Any], cases: Sequence[Case]) -> Iterator[Any]:
    yield cases
    return "bad"


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (lambda self, trial, cases: None, TypeError),
        (lambda self, trial, cases: iter([cases[0]]), TypeError),
        (lambda self, trial, cases: (case.id for case in [cases]), AttributeError),
        (lambda self, trial, cases: returning(trial, cases), TypeError),
        (lambda self, trial, cases: 1 / 0, ZeroDivisionError),
    ],
)
def test_a_schedule_that_goes_wrong_is_named(plan: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        Study(Sweep([1, 2]), lambda candidate, case: 1.0, cases=[1, 2], schedule=planned(plan)()).run()
    assert "Raised by Wrong.plan() of trial 0. What is finished is kept: fix it" in raised.value.__notes__[0]


def test_a_stopping_rule_that_goes_wrong_is_named() -> None:
    class Wrong(Rule):
        def check(self, progress: Any) -> bool:
            return bool(progress.nothing)

    with pytest.raises(AttributeError) as raised:
        Study(Sweep([1]), lambda candidate, case: 1.0, stop=Wrong()).run()
    assert "Raised by Wrong.check()" in raised.value.__notes__[0]


class _FirstComeFirstServed(Schedule):
    """Keeps the first two that arrive: depends on timing."""

    def __init__(self) -> None:
        self.arrived = 0

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        yield cases[:1]
        self.arrived += 1
        if self.arrived > 2:
            return Dropped("too late", 0.0)
        yield cases[1:]
        return None


class _NeverLetsGo(Schedule):
    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        while True:
            yield ()


class _Repeats(Schedule):
    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        yield cases
        yield cases[:1]
        return None


class _Invents(Schedule):
    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        yield [*cases, Case("mine")]
        return None


class _StopsShort(Schedule):
    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        yield cases[:1]
        return None


class _TripsOverFailures(Schedule):
    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        outcomes = yield cases
        assert all(isinstance(outcome, Ok) for outcome in outcomes)
        return None


class _SharesItsPast(Schedule):
    """Remembers in the class what it should remember in the instance."""

    told: list[Result[Any]] = []  # noqa: RUF012 - the mistake under test

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        yield cases[:1]
        if len(self.told) > 40:
            return Dropped("seen enough", 0.0)
        yield cases[1:]
        return None

    def tell(self, result: Result[Any]) -> None:
        self.told.append(result)


def _suite(make: type[Schedule]) -> Iterator[str]:
    """The names of the checks that a schedule fails."""
    suite = type("Suite", (ScheduleConformance,), {"make": lambda self: make()})()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except AssertionError:
                yield name


@pytest.mark.parametrize(
    ("faulty", "check"),
    [
        (_FirstComeFirstServed, "test_the_results_do_not_depend_on_who_arrives_first"),
        (_NeverLetsGo, "test_waiting_rows_are_let_go_when_too_few_trials_come"),
        (_Repeats, "test_every_plan_ends_and_runs_known_cases_at_most_once"),
        (_Invents, "test_every_plan_ends_and_runs_known_cases_at_most_once"),
        (_StopsShort, "test_a_row_that_is_not_dropped_has_every_case"),
        (_TripsOverFailures, "test_failed_outcomes_are_tolerated"),
        (_SharesItsPast, "test_a_copy_made_before_begin_is_independent"),
    ],
)
def test_the_conformance_suite_notices(faulty: type[Schedule], check: str) -> None:
    assert check in set(_suite(faulty))
