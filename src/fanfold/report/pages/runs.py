"""The Runs page: every run of the ledgers, helpers under the run they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.ledger import Ledger, RunInfo, RunView
from fanfold.ledger.spending import Spending, cost_text
from fanfold.report.pages.parts import Payload, Shown, finite
from fanfold.texts import duration, number

#: Runs of one answer, the newest of a ledger that are listed at all, and points of a spark line.
PAGE, MOST, SPARK = 200, 2000, 40


def runs(ledgers: Mapping[int, Ledger], before: str | None = None) -> Payload:
    """A page of runs, newest first; `before` is the `next` of the page before."""
    rows = sorted(
        (row for id, ledger in ledgers.items() for row in run_rows(id, ledger)),
        key=lambda row: (row["created"], row["ledger"], row["name"]),
        reverse=True,
    )
    keys = [f"{row['created']!r}/{row['ledger']}/{row['name']}" for row in rows]
    first = keys.index(before) + 1 if before in keys else 0
    page = rows[first : first + PAGE]
    return {
        "ledgers": [{"id": id, "name": each.path.name, "path": str(each.path)} for id, each in ledgers.items()],
        "runs": page,
        "next": keys[first + PAGE - 1] if len(rows) > first + PAGE else None,
        "saved": False,
    }


def run_rows(id: int, ledger: Ledger) -> list[Payload]:
    """The runs of one ledger, with those that belong to one under it."""
    return [
        run_row(Shown(RunView(ledger, info.id), id))
        | {"helpers": [run_row(Shown(RunView(ledger, helper.id), id)) for helper in helpers]}
        for info, helpers in ledger.run_rows(count=MOST)
    ]


def run_row(shown: Shown) -> Payload:
    """One line about a run."""
    view, info = shown.view, shown.info
    return {
        "ledger": shown.ledger,
        "name": info.name,
        "study": shown.study_name,
        "state": view.status,
        "reason": info.reason or "",
        "headline": shown.headline(),
        "best": finite(info.best),
        "best_text": number(info.best),
        **_interval(view),
        "cost": finite(info.cost),
        "cost_text": cost(view.costs(), info),
        "trials": info.trials,
        "evaluations": info.evaluations,
        "failures": info.failures,
        "created": info.created,
        "updated": info.updated,
        "elapsed": info.elapsed,
        "elapsed_text": duration(info.elapsed),
        "spark": view.spark(SPARK),
        "helpers": [],
    }


def _interval(view: RunView) -> Payload:
    """The interval of the result, where the study's conclusion has one."""
    summary = view.summary()
    figures: Any = {} if summary is None else summary.figures.get("held_out")
    held_out = figures if isinstance(figures, dict) else {}
    return {name: finite(held_out.get(name)) for name in ("low", "high")}


def cost(paid: Spending, info: RunInfo) -> str:
    """What a run cost: its model calls, or what its evaluations say themselves."""
    if paid.calls:
        return paid.cost_text
    return cost_text(info.cost) if info.cost else ""
