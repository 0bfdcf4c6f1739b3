"""Scores in the units of the evaluator, where a study minimises and the engine works with their negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fanfold.encoding import brief
from fanfold.errors import ConfigError
from fanfold.events import EvaluationFinished, Event, Progress, RunStopped, Ticked, TrialTold, Watcher
from fanfold.types import C, Objective, Result


def natural_result(objective: Objective, result: Result[C]) -> Result[C]:
    if not objective.minimize:
        return result
    outcomes = {case: objective.natural_outcome(outcome) for case, outcome in result.outcomes.items()}
    return replace(result, score=objective.natural(result.score), outcomes=outcomes)


def natural_progress(objective: Objective, progress: Progress) -> Progress:
    return replace(progress, best=objective.natural(progress.best)) if objective.minimize else progress


def natural_watcher(objective: Objective, watch: Watcher | None) -> Watcher | None:
    """A watcher that is told every score in the evaluator's units."""
    if watch is None or not objective.minimize:
        return watch

    def natural(event: Event) -> None:
        if isinstance(event, TrialTold):
            event = replace(event, result=natural_result(objective, event.result))
        elif isinstance(event, EvaluationFinished):
            event = replace(event, outcome=objective.natural_outcome(event.outcome))
        if isinstance(event, TrialTold | Ticked | RunStopped):
            event = replace(event, progress=natural_progress(objective, event.progress))
        watch(event)

    return natural


@dataclass(frozen=True)
class Negated:
    """An aggregate of scores for a search that works with their negatives."""

    aggregate: Callable[[Sequence[float]], Any]

    def __call__(self, scores: Sequence[float]) -> float:
        return -one_number(self.aggregate([-score for score in scores]))


def one_number(value: Any) -> float:
    """What an aggregate gave, as the score of a trial."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"aggregate must give one number, not {brief(value)}") from error
