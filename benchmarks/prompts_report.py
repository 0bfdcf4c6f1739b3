"""The tables of the prompt benchmark: means, tasks, and paired differences with intervals."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from measure import machine

from fanfold.stats import bootstrap

OURS = "guided"
NAMES: Mapping[str, str] = {
    OURS: "**Fanfold, guided (default)**",
    "guided-calibrated": "Fanfold, guided, --calibrate where answers are labels",
    "genetic": "Fanfold, genetic",
    "random": "Fanfold without learning",
    "random-plain": "random prompts of our space, all scored",
    "random-calibrated": "the same, calibrated",
    "hand": "best of five hand-written",
    "examples": "all eight examples, no search",
    "examples-16": "sixteen examples, no search",
    "nearest": "the eight nearest examples, no search",
    "dspy-random": "DSPy BootstrapFewShotWithRandomSearch",
    "dspy-bare": "DSPy, the same without instruction",
    "dspy-bare-16": "DSPy, the same with sixteen examples",
    "mipro": "DSPy MIPROv2",
    "gepa": "GEPA",
    "gepa-16": "GEPA with sixteen examples",
    "capo": "CAPO (promptolution), its template",
    "capo-fields": "CAPO, the file's field names",
}


@dataclass(frozen=True)
class Outcome:
    """What a method found for a task, a seed and a number of calls, and how it did on held-out problems."""

    method: str
    task: str
    seed: int
    calls: int
    used: int
    accuracy: float
    scores: Sequence[float]
    prompt: Sequence[str]
    version: str
    commit: str
    date: str
    seconds: float


Cells = dict[tuple[str, int], float]


def cells(outcomes: Sequence[Outcome], method: str, calls: int) -> Cells:
    """Accuracy by task and seed."""
    return {(one.task, one.seed): one.accuracy for one in outcomes if one.method == method and one.calls == calls}


def difference(ours: Cells, theirs: Cells) -> tuple[float, float, float, int, int, int]:
    """The mean of ours minus theirs over shared tasks and seeds, its 95 % interval, and wins, ties and losses.

    Whole tasks are drawn again in the bootstrap: the seeds of a task share its problems.
    """
    tasks: dict[str, list[float]] = {}
    for cell in sorted(ours.keys() & theirs.keys()):
        tasks.setdefault(cell[0], []).append(ours[cell] - theirs[cell])
    interval = bootstrap(list(tasks.values()), _mean_of_all, seed=0)
    gaps = [gap for gaps in tasks.values() for gap in gaps]
    wins, losses = sum(gap > 1e-9 for gap in gaps), sum(gap < -1e-9 for gap in gaps)
    return interval.estimate, interval.low, interval.high, wins, len(gaps) - wins - losses, losses


def _mean_of_all(tasks: Sequence[Sequence[float]]) -> float:
    gaps = [gap for gaps in tasks for gap in gaps]
    return sum(gaps) / len(gaps)


def report(outcomes: Sequence[Outcome], commit: str) -> str:
    """Everything as a page in Markdown."""
    if not outcomes:
        return "Nothing is finished yet.\n"
    about = machine()
    lines = [
        "# Prompt search on ten small tasks",
        "",
        f"{time.strftime('%-d %B %Y')}, commit {commit}, Python {platform.python_version()}, {about['cores']} cores "
        f"({about['processor']}).",
        "SmolLM2-135M-Instruct (Q4_1) continues texts at temperature 0. Every method has the same 28 solved",
        "problems, to show as examples or to score on. What it finds is scored once on 60 held-out problems.",
    ]
    for calls in sorted({one.calls for one in outcomes}, reverse=True):
        lines += ["", f"## {calls} calls", "", *_means(outcomes, calls), "", *_by_task(outcomes, calls)]
    return "\n".join(lines) + "\n"


def _means(outcomes: Sequence[Outcome], calls: int) -> list[str]:
    ours = cells(outcomes, OURS, calls)
    lines = [
        "| method | runs | calls used | held-out | ours minus it, 95 % | won, tied, lost |",
        "|---|---|---|---|---|---|",
    ]
    rows = []
    for method in NAMES:
        theirs = cells(outcomes, method, calls)
        if not theirs:
            continue
        used = [one.used for one in outcomes if one.method == method and one.calls == calls]
        gap, record = "", ""
        if method != OURS and ours.keys() & theirs.keys():
            mean, low, high, *counts = difference(ours, theirs)
            gap, record = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]", ", ".join(map(str, counts))
        average = sum(theirs.values()) / len(theirs)
        low_used, high_used = min(used), max(used)
        span = str(low_used) if low_used == high_used else f"{low_used}-{high_used}"
        rows.append((average, f"| {NAMES[method]} | {len(theirs)} | {span} | {average:.3f} | {gap} | {record} |"))
    return lines + [row for _, row in sorted(rows, key=lambda row: -row[0])]


def _by_task(outcomes: Sequence[Outcome], calls: int) -> list[str]:
    """Means over seeds, a row for every task."""
    mine = [one for one in outcomes if one.calls == calls]
    methods = [method for method in NAMES if any(one.method == method for one in mine)]
    lines = [f"| task | {' | '.join(methods)} |", "|---" * (len(methods) + 1) + "|"]
    for task in dict.fromkeys(one.task for one in mine):
        shown: list[Any] = []
        for method in methods:
            values = [one.accuracy for one in mine if one.task == task and one.method == method]
            shown.append(f"{sum(values) / len(values):.3f}" if values else "")
        lines.append(f"| {task} | {' | '.join(shown)} |")
    return lines
