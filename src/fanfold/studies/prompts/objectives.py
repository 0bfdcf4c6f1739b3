"""What makes a prompt good besides being right: named objectives of a result, and how several are weighed together."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import distance
from fanfold.stats import Interval, clustered_mean, clustered_rate, rate
from fanfold.strategies.breeding import Merit
from fanfold.strategies.pareto import merits
from fanfold.types import Ok, Result

#: Words of a prompt at which `efficiency` is nil, and the documented penalty for long ones.
LONG = 50
FREE_WORDS, PENALTY, MOST_PENALTY = 30, 0.01, 0.5
#: Into how many parts the cases are divided to see whether a prompt is right everywhere alike.
PARTS = 4


def accuracy(result: Result[Any]) -> float:
    return 0.0 if result.score is None else result.score


def words(result: Result[Any]) -> int:
    """Words of the prompt besides its examples."""
    return len(genome_of(result).head().split())


def length(result: Result[Any]) -> float:
    """Less is better: tokens of the whole prompt where they were counted, else words."""
    tokens = [outcome.data["tokens"] for outcome in oks(result) if isinstance(outcome.data, Mapping)]
    return -(statistics.fmean(tokens) if tokens else float(words(result)))


def cost(result: Result[Any]) -> float:
    """Less is better: what running the prompt costs per case at the list price, whoever asked it before."""
    prices = [outcome.data["price"] for outcome in oks(result) if "price" in (outcome.data or ())]
    return -(statistics.fmean(prices) if prices else result.cost / max(1, len(result.outcomes)))


def consistency(result: Result[Any]) -> float:
    """1 when every part of the cases is solved alike, 0 when some are solved always and as many never."""
    scores = [outcome.score for outcome in oks(result)]
    parts = [scores[at::PARTS] for at in range(PARTS) if scores[at::PARTS]]
    if len(parts) < 2:
        return 1.0
    return max(0.0, 1.0 - 2.0 * statistics.pstdev([statistics.fmean(part) for part in parts]))


def efficiency(result: Result[Any]) -> float:
    """1 for an empty prompt, 0 for one of `LONG` words."""
    return max(0.0, 1.0 - words(result) / LONG)


def brevity(result: Result[Any]) -> float:
    """The documented penalty for words above 30, as a negative number."""
    return -min(MOST_PENALTY, PENALTY * max(0, words(result) - FREE_WORDS))


def diversity(results: Sequence[Result[Any]]) -> list[float]:
    """How far each prompt is from the others on average."""
    genomes = [genome_of(result) for result in results]
    sums = [0.0] * len(genomes)
    for at, one in enumerate(genomes):
        for beside in range(at):
            apart = _distance(one, genomes[beside])
            sums[at] += apart
            sums[beside] += apart
    return [total / max(1, len(genomes) - 1) for total in sums]


#: Members stay from one generation to the next, and so do the distances between them.
_distance = functools.lru_cache(maxsize=50_000)(distance)


Objective = Callable[[Sequence[Result[Any]]], Sequence[float]]


def _each(function: Callable[[Result[Any]], float]) -> Objective:
    return lambda results: [function(result) for result in results]


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        "accuracy": _each(accuracy),
        "cost": _each(cost),
        "length": _each(length),
        "consistency": _each(consistency),
        "efficiency": _each(efficiency),
        "brevity": _each(brevity),
        "diversity": diversity,
    }
)


def merit(objectives: Sequence[str], weights: Sequence[float] | None) -> Merit:
    """How results are ranked: a weighted sum, a Pareto order, or accuracy, and of equals the shorter prompt first."""
    if weights is not None:
        return _Weighted(tuple(objectives), tuple(weights))
    return _Pareto(tuple(objectives)) if len(objectives) > 1 else _shortest_of_the_best


def _shortest_of_the_best(results: Sequence[Result[Any]]) -> list[float]:
    keys = [(accuracy(result), length(result)) for result in results]
    places = {key: float(place) for place, key in enumerate(sorted(set(keys)))}
    return [places[key] for key in keys]


class _Weighted:
    """The weighted mean of the objectives; `brevity` counts as it is, being a penalty."""

    def __init__(self, objectives: tuple[str, ...], weights: tuple[float, ...]) -> None:
        self._parts = list(zip(objectives, weights))

    def __call__(self, results: Sequence[Result[Any]]) -> list[float]:
        total = sum(weight for name, weight in self._parts if name != "brevity") or 1.0
        sums = [0.0] * len(results)
        for name, weight in self._parts:
            share = weight if name == "brevity" else weight / total
            for at, value in enumerate(OBJECTIVES[name](results)):
                sums[at] += share * value
        return sums


class _Pareto:
    """Who is dominated by nobody comes first; within a front, who has more room around."""

    def __init__(self, objectives: tuple[str, ...]) -> None:
        self._objectives = objectives

    def __call__(self, results: Sequence[Result[Any]]) -> list[float]:
        return merits(points_of(results, self._objectives))


def points_of(results: Sequence[Result[Any]], objectives: Sequence[str]) -> list[tuple[float, ...]]:
    """Each result's values of the objectives."""
    columns = [OBJECTIVES[name](results) for name in objectives]
    return [tuple(column[at] for column in columns) for at in range(len(results))]


def by_problem(result: Result[Any]) -> dict[str, list[float]]:
    """The scores of each problem: one, or where several models were asked one of each (`problem@provider/model`)."""
    split = {case: case.rpartition("@") for case in result.outcomes}
    problems, models = ({parts[at] for parts in split.values()} for at in (0, 2))
    marked = all(parts[0] for parts in split.values())
    several = marked and (all("/" in model for model in models) or 1 < len(models) == len(split) / len(problems))
    scores: dict[str, list[float]] = {}
    for case, outcome in result.outcomes.items():
        if isinstance(outcome, Ok):
            scores.setdefault(split[case][0] if several else case, []).append(outcome.score)
    return scores


def interval_of(result: Result[Any]) -> Interval:
    """The accuracy with its interval; the answers of several models to one problem are not independent."""
    problems = by_problem(result)
    values = {score for scores in problems.values() for score in scores}
    if values in ({0.0}, {1.0}):  # which shows nothing of how alike the models are: each problem counts once
        once = rate(round(sum(scores[0] for scores in problems.values())), len(problems))
        return replace(once, n=sum(map(len, problems.values())))
    if values <= {0.0, 1.0}:
        return clustered_rate({problem: (round(sum(scores)), len(scores)) for problem, scores in problems.items()})
    shares = all(0.0 <= value <= 1.0 for value in values)  # a grader of a package may give other scores
    return clustered_mean(problems, within=(0.0, 1.0) if shares else None)


def oks(result: Result[Any]) -> list[Ok]:
    """The outcomes that have a score."""
    return [outcome for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
