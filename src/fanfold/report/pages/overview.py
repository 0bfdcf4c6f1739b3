"""The Overview of a run, which is also the frame of its other pages."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fanfold.events import Progress
from fanfold.ledger import RunView, requests_of
from fanfold.metrics import cost_of, metrics
from fanfold.plugins import described
from fanfold.report.pages.parts import (
    MOST_POINTS,
    Payload,
    ShownRun,
    clipped,
    comments,
    finite,
    parents,
    plain,
    sections,
)
from fanfold.report.pages.runs import cost_text
from fanfold.texts import duration

#: Bins of the population's quantiles, and trials that tell the pace of late.
BINS, MOST_LATE = 60, 200
KINDS = {
    **{"MaxTrials": "max_trials", "MaxEvaluations": "max_evaluations", "MaxCalls": "max_calls"},
    **{"MaxCost": "max_cost", "MaxTime": "max_time"},
}


def overview(shown: ShownRun) -> Payload:
    """Everything the Overview shows."""
    view, info = shown.view, shown.info
    state, best = view.status, shown.best()
    return {
        "ledger": shown.ledger,
        "name": info.name,
        "study": shown.study_name,
        "unit": shown.unit,
        "units": f"{shown.unit}s",
        "state": state,
        "reason": shown.reason,
        "headline": shown.headline(),
        "created": info.created,
        "mark": view.mark,
        **standing(shown, view.progress()),
        "metrics": [
            {"key": metric.key, "label": metric.label, "text": metric.text, "value": finite(metric.value)}
            for metric in metrics(view)
            if shown.study.unit is None or metric.key not in ("best", "held_out")
        ],
        "can": can(shown, state),
        "limits": limits(shown),
        "next": next_steps(shown, state),
        "pages": pages(shown),
        "scale": shown.study.scale,
        "history": history(shown),
        "best": None if best is None else shown.trial(best),
        "sections": sections(_sections(shown)),
        "notes": [{"at": note.at, "text": clipped(note.text, 2000)} for note in view.notes()[-200:]],
        "comments": comments(view),
        "settings": plain({"started as": dict(info.meta), "identity": dict(info.identity)}),
    }


def _sections(shown: ShownRun) -> list[Any]:
    live = list(described(shown.study.overview, shown.view) or ())
    summary = shown.view.summary()
    return [*live, *(summary.sections if summary is not None else ())]


def standing(shown: ShownRun, progress: Progress) -> Payload:
    """How far a run has come: the part of the frame that changes while it is running."""
    known = limits(shown)
    goal, of = _goal(known, progress)
    counts = ("asked", "told", "cases", "evaluations", "failures", "reused")
    running = shown.view.status == "running"
    return {
        "progress": {**{name: getattr(progress, name) for name in counts}, "goal": goal, "goal_of": of},
        "eta": eta(shown, known, progress) if running else None,
        "cost_text": cost_text(shown.view, cost_of(shown.view)),
        "elapsed_text": duration(progress.elapsed),
    }


def limits(shown: ShownRun) -> Payload:
    """The limits of a run: those of its last start, as far as they are recorded, and those given since."""
    known: dict[str, float | None] = dict.fromkeys(KINDS.values())
    for kind, amount in re.findall(r"(Max\w+)\('?([\d.]+[smh]?)'?\)", str(shown.info.meta.get("stop", ""))[:500]):
        if kind in KINDS:
            known[KINDS[kind]] = _amount(amount)
    for request in requests_of(shown.view.ledger, shown.view.id):
        if request.what == "budget" and isinstance(request.value, dict):
            for name in known.keys() & request.value.keys():
                known[name] = max(known[name] or 0, _amount(request.value[name]) or 0) or None
    return known


def _amount(value: Any) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
    if match is None:
        return None
    amount = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
    return int(amount) if amount == int(amount) else amount


def _done(name: str, progress: Progress) -> float:
    done = {"max_trials": progress.told, "max_evaluations": progress.told_evaluations, "max_calls": progress.told_calls}
    return done.get(name, progress.cost if name == "max_cost" else progress.elapsed)


def _goal(known: Mapping[str, float | None], progress: Progress) -> tuple[float | None, str]:
    """The limit that is nearest to being reached; one that was passed long ago was replaced when the run resumed."""
    shares = {name: _done(name, progress) / limit for name, limit in known.items() if limit}
    shares = {name: share for name, share in shares.items() if share <= 1}
    nearest = max(shares, key=lambda name: shares[name], default=None)
    return (None, "") if nearest is None else (known[nearest], nearest.removeprefix("max_"))


def eta(shown: ShownRun, known: Mapping[str, float | None], progress: Progress) -> tuple[float, float] | None:
    """The seconds until the nearest limit, as a range: at the pace of the whole run, and at the pace of late."""
    now, ranges = progress.elapsed, []
    late = _late(shown.view, progress)
    for name, limit in known.items():
        done = _done(name, progress)
        if limit is None or now <= 0 or done <= 0:
            continue
        left = max(0.0, limit - done)
        if name == "max_time":
            ranges.append((left, left))
            continue
        pace = [done / now, done / now * late]
        spread = 1 + 1 / math.sqrt(max(1, progress.told))
        ranges.append((left / max(pace) / spread, left / min(pace) * spread))
    return min(ranges) if ranges else None


def _late(view: RunView, progress: Progress) -> float:
    """How much faster the last quarter of the trials came than all of them, within a factor of four."""
    seconds, told = view.history(MOST_LATE).seconds, progress.told
    if len(seconds) < 8 or told < 8 or progress.elapsed <= 0:
        return 1.0
    at = seconds[-len(seconds) // 4]
    took = max(seconds[-1] - at, 1e-9)
    return float(min(4.0, max(0.25, (len(seconds) // 4 / took) / (len(seconds) / max(seconds[-1], 1e-9)))))


def can(shown: ShownRun, state: str) -> dict[str, bool]:
    """What can be done about a run from its page."""
    meta, running = shown.info.meta, state == "running"
    resumable = isinstance(meta.get("target"), str) and not isinstance(meta.get("continue"), str)
    resume = resumable and not running and not isinstance(meta.get("belongs_to"), str)
    return {
        "stop": running,
        "resume": resume,
        "retry": resume and shown.info.failures > 0,
        "budget": running or resume,
        "note": True,
        "feedback": shown.study.feedback is not None,
    }


def next_steps(shown: ShownRun, state: str) -> list[Payload]:
    """What to do next, as commands that work when they are pasted."""
    name, ledger = shlex.quote(shown.info.name), f"--ledger {shlex.quote(str(shown.view.ledger.path))}"
    steps = []
    if can(shown, state)["resume"]:
        if state in ("interrupted", "stopped"):
            steps.append({"text": "Continue where it stopped", "command": f"fanfold resume {name} {ledger}"})
        if shown.info.failures:
            retry = f"fanfold resume {name} --retry-failed {ledger}"
            steps.append({"text": "Evaluate what failed again", "command": retry})
        if state == "finished" and (trials := shown.info.trials) and shown.study.unit is None and shown.info.open_ended:
            more = f"fanfold resume {name} --max-trials {2 * trials} {ledger}"
            steps.append({"text": "Search twice as long", "command": more})
    if shown.study_name == "prompts" and state == "finished":
        steps.append({"text": "Print the winning prompt", "command": f"fanfold prompt {name} {ledger}"})
    file = shlex.quote(f"{shown.info.name}.html")
    steps.append({"text": "Save this page as a file to send", "command": f"fanfold report {name} {ledger} -o {file}"})
    table = shlex.quote(f"{shown.info.name}.csv")
    return [*steps, {"text": "Export all rows", "command": f"fanfold export {name} {ledger} -o {table}"}]


def pages(shown: ShownRun) -> list[str]:
    """The pages that a run has."""
    best = shown.view.trials(order="best", which="complete", count=20, blobs=False)
    lineage = ["lineage"] if any(parents(row) for row in best) else []
    failures = ["failures"] if shown.info.failures else []
    return ["overview", "trials", "matrix", *lineage, "work", *failures, "settings"]


def history(shown: ShownRun) -> Payload:
    """Scores in the order of telling, the best so far and the quantiles of the population, thinned."""
    columns = asdict(shown.view.history(MOST_POINTS))
    told = {name: [finite(value) for value in column] for name, column in columns.items()}
    scores = {name: [shown.score(score) for score in columns[name]] for name in ("score", "best")}
    return {**told, **scores, "quantiles": _quantiles(shown)}


def _quantiles(shown: ShownRun) -> Payload:
    scores = [(order, shown.score(score)) for order, score, _ in shown.view.scores()]
    size = max(1, -(-len(scores) // BINS))
    columns: Payload = {"order": [], "low": [], "mid": [], "high": []}
    for first in range(0, len(scores), size):
        part = scores[first : first + size]
        ordered = sorted(score for _, score in part)
        columns["order"].append(part[-1][0])
        for name, share in (("low", 0.1), ("mid", 0.5), ("high", 0.9)):
            columns[name].append(finite(ordered[round(share * (len(ordered) - 1))]))
    return columns
