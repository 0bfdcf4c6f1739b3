"""What racing and halving promise through the engine: how much is evaluated, who is dropped where, and with what score.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fanfold import Case, Failed, Halving, Ok, Racing, Result, Study, Sweep
from fanfold.schedules import last_rung
from fanfold.types import Dropped, Trial


def plain(candidate: float, case: Case) -> float:
    return float(candidate)


def of(run: Any) -> list[Result[Any]]:
    return list(run.results())


@pytest.mark.slow
def test_racing_through_the_engine_saves_evaluations() -> None:
    """The first trial runs everything; a clearly worse one is dropped after a few cases, and gets no more of them."""
    study = Study(Sweep([0.9] + [0.1] * 9), plain, cases=range(40), schedule=Racing(step=1), window=1)
    run = study.run(reuse="never")
    counts = [len(result.outcomes) for result in of(run)]
    assert counts[0] == 40
    assert counts[1:] == [5] * 9
    assert run.progress.evaluations == sum(counts)
    assert run.best is not None and run.best.candidate == 0.9


@pytest.mark.slow
def test_how_soon_a_worse_candidate_is_dropped_depends_on_how_much_worse_it_is() -> None:
    """Pinned, because a bet that is merely too timid keeps every other promise and saves less."""
    candidates = [0.5, 0.05, 0.15, 0.25, 0.35]
    study = Study(Sweep(candidates), plain, cases=range(200), schedule=Racing(step=1), window=1)
    assert [len(result.outcomes) for result in of(study.run(reuse="never"))] == [200, 7, 9, 11, 16]


def test_a_raced_out_trial_has_the_score_that_the_schedule_gave_it_not_the_mean_of_a_few_cases() -> None:
    def evaluate(candidate: float, case: Case) -> float:
        return max(0.0, case.data / 40 - candidate)

    study = Study(Sweep([0.0, 0.5]), evaluate, cases=range(41), schedule=Racing(step=1), window=1)
    first, second = of(study.run())
    ran = [outcome.score for outcome in second.outcomes.values() if isinstance(outcome, Ok)]
    rivals = [first.outcomes[case].score for case in second.outcomes]  # type: ignore[union-attr]
    difference = (sum(ran) - sum(rivals)) / len(ran)
    assert second.dropped == f"raced out after {len(ran)} of 41 cases"
    assert second.score == pytest.approx(0.5 + difference)
    assert second.score != pytest.approx(sum(ran) / len(ran), abs=0.01)


def test_a_raced_out_trial_is_never_scored_above_the_one_it_could_not_beat() -> None:
    """The bet may be won in the middle of a chunk whose other cases were wins: those do not lift the score."""
    racing = Racing(step=30, error=0.5)
    racing.tell(Result(Trial(0, "incumbent"), 0.5, {str(i): Ok(0.5) for i in range(60)}))
    plan = racing.plan(Trial(1, "candidate"), [Case(str(i)) for i in range(60)])
    next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send([Ok(0.0)] * 12 + [Ok(1.0)] * 18)
    assert end.value.value == Dropped("raced out after 30 of 60 cases", 0.5)


@pytest.mark.slow
def test_a_trial_with_a_failure_that_was_given_a_score_does_not_end_the_race() -> None:
    """It cannot be compared case by case, so the one before it stays the one to beat."""

    def evaluate(candidate: float, case: Case) -> Any:
        return Failed("odd", "no") if candidate == 0.9 and case.data == 7 else float(candidate)

    class OnlyRace(Racing):
        """Does not drop for a failure."""

        def _scores(self, cases: Sequence[Case], outcomes: Sequence[Any]) -> Any:
            return [outcome.score if isinstance(outcome, Ok) else 0.9 for outcome in outcomes]

    study = Study(
        Sweep([0.8, 0.9, 0.1]), evaluate, cases=range(40), schedule=OnlyRace(step=1), window=1, failed_score=0.9
    )
    _, second, third = of(study.run(reuse="never"))
    assert second.score == pytest.approx(0.9) and second.dropped is None
    assert third.dropped is not None and len(third.outcomes) < 20


@pytest.mark.slow
def test_a_better_candidate_becomes_the_one_to_beat() -> None:
    """What is told counts at once: the third trial, as good as the first but worse than the second, is dropped."""
    study = Study(Sweep([0.5, 0.95, 0.5]), plain, cases=range(40), schedule=Racing(step=1), window=1)
    first, second, third = of(study.run(reuse="never"))
    assert (first.dropped, second.dropped) == (None, None)
    assert third.dropped is not None and len(third.outcomes) < 20


def test_halving_stops_trials_at_the_right_rungs() -> None:
    study = Study(
        Sweep(range(27)),
        plain,
        cases=["one", "two", "three", "four"],
        schedule=Halving(),
        aggregate=last_rung,
        window=27,
    )
    run = study.run("async:5", reuse="never")
    by_number = {result.number: result for result in of(run)}
    assert [len(by_number[number].outcomes) for number in range(27)] == [1] * 18 + [2] * 6 + [3] * 2 + [4]
    assert by_number[0].dropped == "below the best third at rung 1 of 4"
    assert by_number[18].dropped == "below the best third at rung 2 of 4"
    assert run.best is not None and run.best.candidate == 26
    assert run.progress.evaluations == 18 + 2 * 6 + 3 * 2 + 4


def test_each_cohort_is_judged_apart_and_has_just_enough_members_to_leave_one_at_the_top() -> None:
    """Two cohorts of nine; with a first decision at the second rung, six of three."""
    for first, cohort in ((1, 9), (2, 3)):
        schedule = Halving(first=first)
        study = Study(Sweep(range(18)), plain, cases=range(3), schedule=schedule, aggregate=last_rung, window=18)
        results = of(study.run("async:5", reuse="never"))
        complete = sorted(result.number for result in results if result.dropped is None)
        assert complete == list(range(cohort - 1, 18, cohort))


def test_asynchronous_halving_through_the_engine_learns_from_what_was_told() -> None:
    study = Study(
        Sweep([5, 4, 3, 2, 1, 6]),
        plain,
        cases=["one", "two", "three"],
        schedule=Halving(eta=2, asynchronous=True),
        aggregate=last_rung,
        window=1,
    )
    assert [len(result.outcomes) for result in of(study.run(reuse="never"))] == [3, 3, 1, 1, 1, 3]


def test_a_cohort_that_cannot_fill_is_decided_with_those_present() -> None:
    study = Study(Sweep(range(7)), plain, cases=["one", "two"], schedule=Halving(eta=3, cohort=5), window=7)
    counts = [len(result.outcomes) for result in sorted(of(study.run()), key=lambda result: result.number)]
    assert counts == [1, 1, 1, 1, 2, 1, 2]
