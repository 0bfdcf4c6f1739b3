"""What makes a network good besides being right: named objectives of a result, and how several are weighed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fanfold.strategies.breeding import Merit, scores
from fanfold.strategies.pareto import merits
from fanfold.types import Ok, Result


def accuracy(result: Result[Any]) -> float:
    return float("-inf") if result.score is None else result.score


def _less(name: str) -> Callable[[Result[Any]], float]:
    """Less is better: a number in the data of the last rung."""

    def objective(result: Result[Any]) -> float:
        for outcome in reversed(list(result.outcomes.values())):
            if isinstance(outcome, Ok) and name in outcome.data:
                return -float(outcome.data[name])
        return float("-inf")

    return objective


OBJECTIVES: Mapping[str, Callable[[Result[Any]], float]] = MappingProxyType(
    {
        "accuracy": accuracy,
        "parameters": _less("parameters"),
        "operations": _less("operations"),
        "latency": _less("latency"),
    }
)


def points_of(results: Sequence[Result[Any]], objectives: Sequence[str]) -> list[tuple[float, ...]]:
    """Each result's values of the objectives, higher being better."""
    return [tuple(OBJECTIVES[name](result) for name in objectives) for result in results]


def merit(objectives: Sequence[str]) -> Merit:
    """How results are ranked: by accuracy alone, or by a Pareto order."""
    if len(objectives) == 1:
        return scores
    return lambda results: merits(points_of(results, objectives))
