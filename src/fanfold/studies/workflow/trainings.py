"""What the ledger holds of a search: finished trainings of workflows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.studies.workflow.chooser import rate_shown
from fanfold.studies.workflow.spaces import Workflow
from fanfold.studies.workflow.strategy import report
from fanfold.types import Result


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
        return rate_shown(self.data)

    @property
    def finale(self) -> bool:
        """Whether it was not for choosing, but to make the best policy better."""
        return bool(self.origin.get("finale"))

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
            order, origin = tuple(candidate["workflow"]), {**(result.trial.origin or {})}
            origin["learnt"] = candidate.get("learnt", 0) + data["episodes"]
            took = seconds.get(result.number, 0.0)
            finished.append(
                FinishedTraining(result.number, order, candidate["visit"], result.score, data, origin, took)
            )
    return finished


def penalty_share(told: Sequence[FinishedTraining]) -> float | None:
    """What an untrained policy paid in an episode for breaking its workflow, over the largest return of any update.

    None: it paid nothing, or no return differs from 0.
    """
    begun = [each for each in told if "parent" not in each.origin and each.origin["learnt"] == each.data["episodes"]]
    paid = [-each.data["curve"][0][2] for each in begun]
    largest = max((abs(row[1]) for each in told for row in each.data["curve"]), default=0.0)
    return sum(paid) / len(paid) / largest if largest and sum(paid) > 0 else None
