"""`Run`: the result of a run, and everything it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

from fanfold.cards import card, picture
from fanfold.encoding import decode, encode
from fanfold.errors import LedgerError, NoResult
from fanfold.events import Progress
from fanfold.ledger import EvaluationRow, Ledger, RunView, Spending
from fanfold.metrics import metrics
from fanfold.natural import natural_result
from fanfold.stop import explained
from fanfold.summary import Summary
from fanfold.texts import count, number, pretty
from fanfold.types import C, CompleteResult, Result

#: Characters of a candidate that a notebook shows.
_LONGEST = 2000


@dataclass(frozen=True)
class Run(Generic[C]):
    """The result of a run.

    `best` is the best complete result; it raises `NoResult` if there is none, with the first failure's traceback.
    `best_or_none` is None instead. `reason` says why the run stopped. `trace` identifies the whole search: equal traces
    asked and were told the same. `summary` is what the study's `conclude` returned.
    """

    id: str
    best_or_none: CompleteResult[C] | None
    progress: Progress
    reason: str
    trace: str
    ledger: Ledger
    summary: Summary | None = None

    @property
    def best(self) -> CompleteResult[C]:
        """The best complete result; the first of equals."""
        if self.best_or_none is None:
            raise NoResult(self._why_nothing())
        return self.best_or_none

    @property
    def view(self) -> RunView:
        """Everything the run holds, read from the ledger."""
        return RunView(self.ledger, self.ledger.named(self.id))

    @property
    def money(self) -> Spending:
        """What the run and its siblings have paid for model calls, read from the ledger."""
        return self.view.costs()

    @property
    def failures(self) -> list[EvaluationRow]:
        """The failed evaluations, each with its kind (`failure`), `message` and traceback (`detail`)."""
        return list(self.cells(failed=True))

    def results(self) -> Iterator[Result[Any]]:
        """Every told trial in the order of telling, read from the ledger (candidates as plain values)."""
        view = self.view
        objective = view.info.objective  # read once: it counts the whole run
        return (natural_result(objective, result) for result in view.results())

    def cells(self, *, failed: bool | None = None) -> Iterator[EvaluationRow]:
        """Every evaluation in the order of trials and cases, or only those that failed, or only those that did not."""
        view = self.view
        natural = view.info.objective.natural
        return (replace(row, score=natural(row.score)) for row in view.evaluations(failed=failed))

    def frame(self, rows: Literal["trials", "evaluations"] = "trials") -> Any:
        """A data frame of pandas or polars, whichever is installed; see `RunView.frame`."""
        return self.view.frame(rows)

    def __repr__(self) -> str:
        best = self.best_or_none
        text = "nothing" if best is None else f"{number(best.score)} ({best.candidate!r})"
        return f"<Run {self.id}: best {text}, {count(self.progress.told, 'trial')}, stopped because {self.reason}>"

    def _repr_html_(self) -> str:
        """The run as a notebook shows it."""
        view, best = self.view, self.best_or_none
        facts = {metric.label: metric.text for metric in metrics(view) if metric.value}
        if best is not None:
            facts["best score"] = number(best.score)
            facts["best candidate"] = _cut(pretty(decode(encode(best.candidate))))
        curve: list[tuple[float, float]] = []
        for order, score, complete in view.scores():
            if complete and (not curve or score > curve[-1][1]):
                curve.append((order + 1, score))
        curve += [(float(self.progress.told), curve[-1][1])] if curve else []
        sign = -1.0 if view.info.objective.minimize else 1.0
        chart = picture([(x, sign * y) for x, y in curve], "best score", "trials")
        return card(self.id, explained(self.reason), facts, chart)

    def _why_nothing(self) -> str:
        head = f"run {self.id!r} has no complete result after {count(self.progress.told, 'trial')}"
        try:
            first = next(self.cells(failed=True), None)
        except LedgerError:  # it was closed
            first = None
        if first is None:
            return f"{head}: {explained(self.reason)}"
        where = f"{count(self.progress.failures, 'evaluation')} failed, the first in trial {first.trial} on case"
        return f"{head}: {where} {first.case!r}\n{first.detail or first.message}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
