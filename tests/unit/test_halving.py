"""Successive halving keeps the best share of each cohort, whoever arrives first, and waits for nobody for ever."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.schedule import Plan
from fanfold.schedules import Halving, last_rung
from fanfold.testing.schedules import drive
from fanfold.types import Case, Dropped, Failed, Ok, Outcome, Result, Trial


def _cases(n: int) -> list[Case]:
    return [Case(f"r{i}") for i in range(1, n + 1)]


def _by_number(trial: Trial[Any], case: Case) -> Outcome:
    return Ok(float(trial.number))


def _rungs_run(results: dict[int, Result[Any]]) -> list[int]:
    return [len(results[number].outcomes) for number in sorted(results)]


def _start(halving: Halving, numbers: range, cases: list[Case]) -> dict[int, Plan]:
    plans = {number: halving.plan(Trial(number, "x"), cases) for number in numbers}
    for plan in plans.values():
        next(plan)
    return plans


def _end(plan: Plan, answer: list[Outcome] | tuple[()]) -> Dropped | None:
    with pytest.raises(StopIteration) as end:
        plan.send(answer)
    verdict: Dropped | None = end.value.value
    return verdict


def test_by_default_a_cohort_leaves_one_trial_at_the_top() -> None:
    results = drive(Halving(), _cases(4), _by_number, trials=27)
    assert _rungs_run(results) == [1] * 18 + [2] * 6 + [3] * 2 + [4]


def test_a_dropped_trial_is_told_where_and_keeps_its_score_at_that_rung() -> None:
    def rising(trial: Trial[Any], case: Case) -> Outcome:
        return Ok(trial.number + 100.0 * int(case.id[1:]))

    results = drive(Halving(), _cases(3), rising, trials=9)
    assert results[0].dropped == "below the best third at rung 1 of 3"
    assert results[0].score == 100.0
    assert results[6].dropped == "below the best third at rung 2 of 3"
    assert results[6].score == 206.0
    assert results[8].dropped is None


@pytest.mark.parametrize(("eta", "share"), [(2, "half"), (4, "quarter"), (5, "1/5")])
def test_the_reason_names_the_share(eta: int, share: str) -> None:
    results = drive(Halving(eta=eta), _cases(2), _by_number, trials=eta)
    assert results[0].dropped == f"below the best {share} at rung 1 of 2"


def test_of_equal_scores_the_earlier_trials_go_on() -> None:
    results = drive(Halving(eta=2, cohort=6), _cases(2), lambda trial, case: Ok(0.5), trials=6)
    assert _rungs_run(results) == [2, 2, 2, 1, 1, 1]


def test_cohorts_follow_the_order_of_asking_and_are_judged_apart() -> None:
    results = drive(Halving(cohort=3), _cases(2), _by_number, trials=6)
    assert _rungs_run(results) == [1, 1, 2, 1, 1, 2]


def test_the_first_decision_can_come_later() -> None:
    results = drive(Halving(first=3), _cases(4), _by_number, trials=3)
    assert _rungs_run(results) == [3, 3, 4]
    assert results[0].dropped == "below the best third at rung 3 of 4"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_first_decision_beyond_the_last_rung_means_none(asynchronous: bool) -> None:
    results = drive(Halving(first=9, asynchronous=asynchronous), _cases(4), _by_number, trials=10)
    assert _rungs_run(results) == [4] * 10


def test_a_cohort_that_cannot_fill_is_decided_with_those_present() -> None:
    results = drive(Halving(cohort=27), _cases(2), _by_number, trials=7)
    assert _rungs_run(results) == [1, 1, 1, 1, 1, 2, 2]


def test_a_window_smaller_than_a_cohort_makes_smaller_cohorts() -> None:
    results = drive(Halving(cohort=27), _cases(2), _by_number, trials=12, window=6)
    assert _rungs_run(results) == [1, 1, 1, 1, 2, 2] * 2


def test_members_wait_until_the_whole_cohort_has_arrived() -> None:
    halving = Halving(cohort=3)
    plans = _start(halving, range(3), _cases(2))
    assert list(plans[2].send([Ok(0.3)])) == []
    assert list(plans[0].send([Ok(0.9)])) == []
    assert list(plans[2].send(())) == []
    assert _end(plans[1], [Ok(0.1)]) == Dropped("below the best third at rung 1 of 2", 0.1)
    assert list(plans[0].send(())) == _cases(2)[1:]
    assert _end(plans[2], ()) == Dropped("below the best third at rung 1 of 2", 0.3)


def test_a_failed_rung_drops_its_trial_and_the_others_do_not_wait_for_it() -> None:
    halving = Halving(cohort=3)
    plans = _start(halving, range(3), _cases(2))
    assert list(plans[0].send([Ok(0.2)])) == []
    assert list(plans[1].send([Ok(0.1)])) == []
    assert _end(plans[2], [Failed("timeout", "slow")]) == Dropped("case r1 failed: timeout", None)
    assert list(plans[0].send(())) == _cases(2)[1:]


def test_a_plan_that_is_closed_is_not_waited_for() -> None:
    halving = Halving(cohort=2, eta=2)
    plans = _start(halving, range(2), _cases(2))
    assert list(plans[0].send([Ok(0.2)])) == []
    plans[1].close()
    assert list(plans[0].send(())) == _cases(2)[1:]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, None]), min_size=4, max_size=4), max_size=30),
    eta=st.integers(2, 4),
    cohort=st.none() | st.integers(1, 10),
    first=st.integers(1, 3),
    window=st.integers(1, 12),
    arrivals=st.tuples(st.integers(), st.integers()),
)
def test_the_verdicts_never_depend_on_the_order_of_arrival(
    scores: list[list[float | None]],
    eta: int,
    cohort: int | None,
    first: int,
    window: int,
    arrivals: tuple[int, int],
) -> None:
    def evaluate(trial: Trial[Any], case: Case) -> Outcome:
        score = scores[trial.number][int(case.id[1:]) - 1]
        return Failed("error", "none") if score is None else Ok(score)

    one, other = (
        drive(
            Halving(eta, cohort, first=first), _cases(4), evaluate, trials=len(scores), window=window, arrival=arrival
        )
        for arrival in arrivals
    )
    assert one == other


def test_memory_holds_open_cohorts_only() -> None:
    halving = Halving(cohort=3)
    drive(halving, _cases(3), _by_number, trials=300, window=9)
    assert len(halving._open) <= 4
    assert halving._told == {}


def _told(halving: Halving, *scores: float) -> None:
    for number, score in enumerate(scores):
        halving.tell(Result(Trial(number, "x"), score, {"r1": Ok(score)}, dropped="earlier"))


def _goes_on(halving: Halving, score: float, number: int = 99) -> bool:
    plan = halving.plan(Trial(number, "x"), _cases(2))
    next(plan)
    try:
        plan.send([Ok(score)])
    except StopIteration:
        return False
    return True


def test_asynchronously_a_trial_goes_on_if_it_is_within_the_best_share_told() -> None:
    halving = Halving(asynchronous=True)
    _told(halving, 0.5, 0.1, 0.9, 0.3, 0.7, 0.2)
    assert _goes_on(halving, 0.7)
    assert _goes_on(halving, 0.95)
    assert not _goes_on(halving, 0.69)


def test_asynchronously_a_trial_goes_on_while_too_little_is_known() -> None:
    halving = Halving(asynchronous=True)
    _told(halving, 0.5, 0.6)
    assert _goes_on(halving, 0.0)
    _told(halving, 0.7)
    assert not _goes_on(halving, 0.0, number=100)
    assert _goes_on(halving, 0.0)  # of the trial that was asked before


def test_asynchronously_the_evidence_is_frozen_when_the_trial_is_asked() -> None:
    halving = Halving(asynchronous=True)
    _told(halving, 0.1, 0.2, 0.3)
    plan = halving.plan(Trial(99, "x"), _cases(2))
    _told(halving, 0.9, 0.9, 0.9)
    next(plan)
    assert list(plan.send([Ok(0.5)])) == _cases(2)[1:]


def test_asynchronously_bad_trials_are_dropped_and_nobody_waits() -> None:
    rng = random.Random(1)
    ability = [rng.random() for _ in range(200)]
    results = drive(
        Halving(asynchronous=True), _cases(4), lambda trial, case: Ok(ability[trial.number]), trials=200, window=8
    )
    best = max(range(200), key=ability.__getitem__)
    assert results[best].dropped is None
    assert sum(_rungs_run(results)) < 0.6 * 4 * 200
    assert "below the best third at rung 1 of 4" in {result.dropped for result in results.values()}


def test_last_rung_is_the_last_score() -> None:
    assert last_rung([0.1, 0.9, 0.4]) == 0.4


@pytest.mark.parametrize(
    "options",
    [{"eta": 1}, {"eta": 2.5}, {"cohort": 0}, {"cohort": True}, {"first": 0}, {"cohort": 9, "asynchronous": True}],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(options))}[= ]"):
        Halving(**options)
