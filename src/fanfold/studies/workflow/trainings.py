"""What the ledger holds of a run: finished trainings of workflows, or updates of one policy and those it ended with."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fanfold.studies.workflow.orders import Workflow, checked
from fanfold.studies.workflow.strategy import observed, report
from fanfold.types import Ok, Result


@dataclass(frozen=True, slots=True)
class FinishedTraining:
    """A finished training of a workflow."""

    number: int
    workflow: Workflow
    visit: int
    score: float
    data: Mapping[str, Any]
    origin: Mapping[str, Any]
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return observed(self.data, self.score).constraint or 0.0

    def standing(self, threshold: float) -> tuple[int, float]:
        """Surely compliant before probably compliant before neither; of these the best, or the most compliant."""
        sure = self.data["compliance_interval"][0] >= threshold
        likely = self.rate >= threshold
        return int(sure) + int(likely), self.score if likely else self.rate


def trainings(results: Iterable[Result[Any]], seconds: Mapping[int, float]) -> list[FinishedTraining]:
    """The trainings of a run in the order of telling, without those that failed."""
    finished = []
    for result in results:
        data, candidate = report(result), result.candidate
        if data is not None and result.score is not None:
            order, origin = checked(candidate["workflow"]), result.trial.origin or {}
            took = seconds.get(result.number, 0.0)
            finished.append(
                FinishedTraining(result.number, order, candidate["visit"], result.score, data, origin, took)
            )
    return finished


@dataclass(frozen=True, slots=True)
class Update:
    """What one update of the policy learnt from.  `lags` counts episodes by how many versions old their policy was."""

    number: int
    episodes: int
    mean_return: float
    bonus: float = 0.0
    fixes: int = 0
    kept: int = 0
    seconds: float = 0.0
    lags: Mapping[int, int] = field(default_factory=dict)

    @property
    def compliance(self) -> float | None:
        return self.kept / self.fixes if self.fixes else None

    @property
    def lag(self) -> float:
        return sum(lag * count for lag, count in self.lags.items()) / self.episodes


def curve(results: Iterable[Result[Any]], per_update: int, total: int, seconds: Mapping[int, float]) -> list[Update]:
    """The updates of a run, from its blocks in the order of telling; `seconds` is how long each block took."""
    updates: list[Update] = []
    told, blocks = 0, []
    for result in results:
        outcome = next(iter(result.outcomes.values()))
        if not isinstance(outcome, Ok) or not result.candidate["learn"]:
            continue
        blocks.append((result, outcome.data))
        told += result.candidate["episodes"]
        if sum(each.candidate["episodes"] for each, _ in blocks) >= per_update or told == total:
            updates.append(_update(len(updates), blocks, seconds))
            blocks = []
    return updates


def _update(number: int, blocks: list[tuple[Result[Any], Any]], seconds: Mapping[int, float]) -> Update:
    returns = [each for _, data in blocks for each in data["returns"]]
    lags: Counter[int] = Counter()
    for result, data in blocks:
        lags[number - result.candidate["version"]] += len(data["returns"])
    return Update(
        number + 1,
        len(returns),
        statistics.fmean(returns),
        sum(data.get("bonus", 0.0) for _, data in blocks) / len(returns),
        sum(sum(data.get("fixes", ())) for _, data in blocks),
        sum(sum(data.get("kept", ())) for _, data in blocks),
        sum(seconds.get(result.number, 0.0) for result, _ in blocks),
        lags,
    )


@dataclass(frozen=True, slots=True)
class EndPolicy:
    """One of the policies that training ended with, and what it did on held-out episodes."""

    name: str
    candidate: Mapping[str, Any]
    mean: float


def ending(results: Iterable[Result[Any]]) -> list[EndPolicy]:
    """The policies that training ended with; of one that was stopped before, the last that played."""
    plays: dict[tuple[str, bool], list[Result[Any]]] = {}
    last: Result[Any] | None = None
    for result in results:
        if result.score is None:
            continue
        if result.candidate["learn"]:
            last = result
        else:
            plays.setdefault((result.candidate["weights"].digest, result.candidate["greedy"]), []).append(result)
    if not plays and last is not None:
        return [EndPolicy("the last that played, sampled", {**last.candidate, "learn": False}, last.score or 0.0)]
    policies = []
    for (weights, greedy), played in plays.items():
        kind = "last" if weights == next(iter(plays))[0] else "averaged"
        episodes = sum(each.candidate["episodes"] for each in played)
        mean = sum((each.score or 0.0) * each.candidate["episodes"] for each in played) / episodes
        policies.append(EndPolicy(f"{kind}, {'greedy' if greedy else 'sampled'}", played[0].candidate, mean))
    return policies
