"""The Runs page: every run of the ledgers, helpers under the run they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fanfold.errors import FanfoldError
from fanfold.ledger import Ledger, RunHead, RunView
from fanfold.metrics import RunCost, cost_of
from fanfold.report.pages.parts import Payload, ShownRun, clipped, finite
from fanfold.texts import duration, number

#: Runs of one answer, and points of a spark line.
PAGE, SPARK = 200, 40


def row_of(id: int, ledger: Ledger, head: RunHead) -> Payload:
    """One line about the run of that head; of one that is damaged, what is wrong with it."""
    try:
        return run_row(ShownRun(RunView(ledger, head.id), id))
    except Exception as error:  # whatever a stranger's rows lead to, the other runs are listed
        reason = str(error) if isinstance(error, FanfoldError) else "its rows cannot be read"
        texts = dict.fromkeys(("study", "headline", "best_text", "cost_text", "elapsed_text"), "")
        counts = dict.fromkeys(("trials", "evaluations", "failures", "elapsed"), 0)
        unknown = dict.fromkeys(("best", "low", "high", "cost"))
        times = {"created": finite(head.created) or 0, "updated": finite(head.updated) or 0}
        lists: Payload = {"spark": [], "helpers": []}
        named = {"ledger": id, "name": head.name, "state": "failed", "reason": clipped(reason, 500)}
        return {**named, **texts, **counts, **unknown, **times, **lists}


def runs(
    ledgers: Mapping[int, Ledger],
    before: str | None = None,
    row: Callable[[int, Ledger, RunHead], Payload] = row_of,
) -> Payload:
    """A page of runs, newest first; `before` is the `next` of the page before."""
    heads = sorted(
        ((id, head) for id, ledger in ledgers.items() for head in ledger.run_heads()),
        key=lambda place: (place[1].created, *place[:1], place[1].id),
        reverse=True,
    )
    names = {(id, head.name) for id, head in heads}
    helpers: dict[tuple[int, str | None], list[RunHead]] = {}
    for id, head in reversed(heads):
        helpers.setdefault((id, head.owner), []).append(head)
    top = [(id, head) for id, head in heads if (id, head.owner) not in names]
    keys = [f"{id}/{head.id}" for id, head in top]
    first = keys.index(before) + 1 if before in keys else 0
    page = []
    for id, head in top[first : first + PAGE]:
        belonging = [row(id, ledgers[id], helper) for helper in helpers.get((id, head.name), [])]
        page.append({**row(id, ledgers[id], head), "helpers": belonging})
    return {
        "ledgers": [{"id": id, "name": each.path.name, "path": str(each.path)} for id, each in ledgers.items()],
        "runs": page,
        "next": keys[first + PAGE - 1] if len(keys) > first + PAGE else None,
        "saved": False,
    }


def run_row(shown: ShownRun) -> Payload:
    """One line about a run."""
    view, info, cost = shown.view, shown.info, cost_of(shown.view)
    best = shown.score(info.best) if shown.study.unit is None else None
    return {
        "ledger": shown.ledger,
        "name": info.name,
        "study": shown.study_name,
        "state": view.status,
        "reason": shown.reason,
        "headline": shown.headline(),
        "best": best,
        "best_text": number(best) if shown.study.unit is None else "",
        **_interval(view),
        "cost": finite(cost.amount),
        "cost_text": cost_text(view, cost),
        "trials": info.trials,
        "evaluations": info.evaluations,
        "failures": info.failures,
        "created": info.created,
        "updated": info.updated,
        "elapsed": info.elapsed,
        "elapsed_text": duration(info.elapsed),
        "spark": [shown.score(score) for score in view.spark(SPARK)] if shown.study.unit is None else [],
        "helpers": [],
    }


def _interval(view: RunView) -> Payload:
    """The interval of the result, where the study's conclusion has one."""
    summary = view.summary()
    figures: Any = {} if summary is None else summary.figures.get("held_out")
    held_out = figures if isinstance(figures, dict) else {}
    return {name: finite(held_out.get(name)) for name in ("low", "high")}


def cost_text(view: RunView, cost: RunCost) -> str:
    """What a run cost; empty for nothing."""
    return cost.text if cost.amount or view.info.unpriced else ""
