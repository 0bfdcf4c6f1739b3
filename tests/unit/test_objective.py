"""Low scores can be the goal, and evaluators may return several by name: people see the evaluator's own units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fanfold import (
    Case,
    ConfigError,
    Float,
    Genetic,
    Halving,
    MaxTrials,
    Ok,
    Plateau,
    Racing,
    ReplayDivergence,
    Space,
    Study,
    Sweep,
    Target,
)
from fanfold.errors import OnlyFailures
from fanfold.events import EvaluationFinished, Event, TrialTold
from fanfold.metrics import metrics

SPACE = Space(x=Float(-3, 3))


def loss(candidate: dict[str, float], case: Case) -> float:
    return (candidate["x"] - 1) ** 2 + float(case.data)


def gain(candidate: dict[str, float], case: Case) -> float:
    return -loss(candidate, case)


def several(candidate: int, case: Case) -> dict[str, float]:
    return {"accuracy": candidate / 10, "latency": 5.0 - candidate + case.data}


@pytest.mark.parametrize("executor", ["inline", "threads:2", "processes:2"])
@pytest.mark.slow
def test_minimising_a_loss_is_the_search_that_maximises_its_negative(executor: str) -> None:
    low = Study(Genetic(SPACE), loss, cases=[0, 1], stop=MaxTrials(60), minimize=True).run(executor)
    high = Study(Genetic(SPACE), gain, cases=[0, 1], stop=MaxTrials(60)).run()
    assert low.trace == high.trace and low.best.candidate == high.best.candidate
    assert low.best.score == -high.best.score == low.progress.best
    assert [result.score for result in low.results()] == [-(result.score or 0) for result in high.results()]
    assert [row.score for row in low.cells()] == [-(row.score or 0) for row in high.cells()]


def test_whoever_watches_or_reads_sees_the_loss_itself(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    events: list[Event] = []
    study = Study(Sweep([{"x": 0.0}, {"x": 1.0}, {"x": 2.0}]), loss, cases=[0, 1], minimize=True)
    run = study.run(watch=events.append)
    assert [event.result.score for event in events if isinstance(event, TrialTold)] == [1.5, 0.5, 1.5]
    assert [event.progress.best for event in events if isinstance(event, TrialTold)] == [1.5, 0.5, 0.5]
    outcomes = [event.outcome for event in events if isinstance(event, EvaluationFinished)]
    assert [outcome.score for outcome in outcomes if isinstance(outcome, Ok)] == [1, 2, 0, 1, 1, 2]
    assert list(run.frame()["score"]) == [1.5, 0.5, 1.5]
    assert list(run.frame("evaluations")["score"]) == [1, 2, 0, 1, 1, 2]
    assert {metric.key: metric.value for metric in metrics(run.view)}["best"] == 0.5
    assert "best 0.5" in repr(run) and ">0.5<" in run._repr_html_()


def test_a_low_target_stops_where_low_is_good() -> None:
    candidates = [{"x": float(x)} for x in (3, 2, 1, 0, 2)]
    run = Study(Sweep(candidates), loss, cases=[0], stop=Target(1.5) | Plateau(50), minimize=True, window=1).run()
    assert run.progress.told == 2 and run.best.score == 1.0 and run.reason == "target of 1.5 reached"


def test_what_a_study_says_about_scores_is_in_the_evaluators_units() -> None:
    def sometimes(candidate: int, case: Case) -> float:
        if candidate == 2 and case.data == 1:
            raise ValueError("no")
        return candidate + case.data

    run = Study(Sweep([1, 2, 3]), sometimes, cases=[0, 1], aggregate=max, failed_score=9.0, minimize=True).run()
    assert [result.score for result in run.results()] == [2, 9, 4] and run.best.candidate == 1


def test_races_and_rungs_keep_the_lowest() -> None:
    def error_rate(candidate: float, case: Case) -> float:
        return float(case.rng().random() < candidate)

    sweep = Sweep([0.1, 0.9, 0.8, 0.95, 0.2])
    raced = Study(sweep, error_rate, cases=range(100), schedule=Racing(), minimize=True, window=1).run()
    assert raced.best.candidate == 0.1 and raced.progress.evaluations < 400
    halved = Study(sweep, error_rate, cases=range(9), schedule=Halving(eta=2), minimize=True, window=5).run()
    assert halved.best.candidate == 0.1 and halved.progress.evaluations < 45


def test_an_evaluator_that_continues_gets_back_the_score_it_returned() -> None:
    seen: list[float] = []

    class Train:
        continues = True

        def __call__(self, candidate: float, case: Case, previous: Ok | None) -> Ok:
            seen.extend([] if previous is None else [previous.score])
            return Ok(candidate + case.data)

    Study(Sweep([0.5]), Train(), cases=[3, 2, 1], schedule=Halving(eta=2), minimize=True).run()
    assert seen == [3.5, 2.5]


def test_a_study_that_turns_round_is_another_study(tmp_path: Path) -> None:
    ledger, candidates = tmp_path / "runs.db", [{"x": 0.0}, {"x": 1.0}]
    low = Study(Sweep(candidates), loss, cases=[0], minimize=True)
    high = Study(Sweep(candidates), loss, cases=[0])
    assert low.run(ledger=ledger, run="one").best.candidate == {"x": 1.0}
    assert low.run(ledger=ledger, run="one").best.score == 0.0  # replayed
    with pytest.raises(ReplayDivergence, match="minimize was True, is None"):
        high.run(ledger=ledger, run="one")
    other = high.run(ledger=ledger, run="other", reuse="ledger")
    assert other.progress.reused == 0 and other.best.score == 1.0  # cells of opposite signs are never shared


def test_one_of_several_scores_is_searched_for_and_all_are_kept() -> None:
    pytest.importorskip("pandas")
    study = Study(Sweep(range(4)), several, cases=[0, 1], objective="accuracy")
    run = study.run()
    assert run.best.candidate == 3 and run.best.score == 0.3 and run.best.scores == {"accuracy": 0.3, "latency": 2.5}
    fast = Study(Sweep(range(4)), several, cases=[0, 1], objective="latency", minimize=True).run()
    assert fast.best.candidate == 3 and fast.best.score == 2.5 and fast.best.scores["accuracy"] == 0.3
    figures = {metric.key: metric.value for metric in metrics(run.view)}
    assert figures["best"] == 0.3 and figures["scores.latency"] == 2.5 and "scores.accuracy" not in figures
    assert list(run.frame()["scores.latency"]) == [5.5, 4.5, 3.5, 2.5]
    assert list(run.frame("evaluations")["scores.latency"]) == [5, 6, 4, 5, 3, 4, 2, 3]


def test_several_scores_stand_beside_the_data_of_an_outcome() -> None:
    def evaluate(candidate: int, case: Case) -> Ok:
        scores: Any = {"good": candidate, "fast": 1}
        return Ok(scores, {"text": "hello"} if candidate else ["a", "list"], cost=0.5)

    run = Study(Sweep([0, 1]), evaluate, objective="good").run()
    cells = [row.data for row in run.cells()]
    assert cells[1] == {"text": "hello", "scores": {"good": 1.0, "fast": 1.0}}
    assert cells[0] == {"data": ["a", "list"], "scores": {"good": 0.0, "fast": 1.0}} and run.progress.cost == 1.0


@pytest.mark.parametrize(
    ("value", "objective", "words"),
    [
        (
            {"a": 1, "b": 2},
            None,
            "a, b, and not one number: say which one counts, as in Study(..., objective='a'",
        ),
        ({"accuracy": 1, "b": 2}, "acuracy", "no score 'acuracy', the objective; did you mean 'accuracy'?"),
        ({"a": 1, "b": float("nan")}, "a", "the score 'b'"),
        ({"a": 1, "b": "x"}, "a", "the score 'b'"),
        ({"score": 1, "reason": "x"}, None, "return numbers, and what else is to be kept as Ok(score, data)"),
        ({}, None, "which is not one number"),
    ],
)
def test_scores_that_cannot_be_read_say_what_to_do(value: Any, objective: str | None, words: str) -> None:
    run = Study(Sweep([1]), lambda candidate, case: value, objective=objective).run()
    assert words in (run.failures[0].message or "") and run.failures[0].failure == "bad-score"


def test_a_run_whose_scores_have_no_objective_stops_early_with_the_remedy() -> None:
    with pytest.raises(OnlyFailures, match=r"objective='accuracy'"):
        Study(Sweep(range(100)), several, cases=[0]).run()


def test_an_objective_is_a_name() -> None:
    with pytest.raises(ConfigError, match="objective must be the name of a score"):
        Study(Sweep([1]), several, objective="")
