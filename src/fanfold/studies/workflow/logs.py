"""The logs of a run as CSV, with the columns of the documented system, and its curves."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from fanfold.studies.workflow.orders import show
from fanfold.studies.workflow.trainings import FinishedTraining, Update

#: What is drawn over the episodes learnt from, by name.
Curves: TypeAlias = dict[str, list[tuple[int, float]]]

#: The columns of the log of updates; the last, the lag of the policies that played, is of one policy's alone.
_UPDATES = (
    "Workflow_ID Workflow_Order Update Episodes Total_Episodes_Sampled Env_Reward Alignment_Bonus Total_Reward "
    "Compliance Avg_Fixes Collection_Time Update_Time Staleness"
)
_CHOICES = "Iteration Workflow UCB_Score Reward Final_Compliance Episodes_Trained GP_Updated"
COLUMNS, SAMPLING = _UPDATES.split(), _CHOICES.split()


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()


def _short(*values: float | None, digits: int = 6) -> list[str]:
    return ["" if value is None else f"{value:.{digits}g}" for value in values]


def training_log(told: Sequence[FinishedTraining]) -> bytes:
    """Every update of every training.  How long an update took is not known, so its training's time is shared out."""
    rows, total = [], 0
    for each in told:
        for number, (episodes, reward, bonus, fixes, kept) in enumerate(each.data["curve"], 1):
            total += int(episodes)
            head = [each.number, show(each.workflow), number, int(episodes), total]
            share = kept / fixes if fixes else None
            took = each.seconds * episodes / each.data["episodes"]
            rest = _short(reward, bonus, reward + bonus, share, fixes / episodes)
            rows.append([*head, *rest, *_short(took, digits=4), ""])
    return _csv(COLUMNS[:-1], rows)


def sampling_log(told: Sequence[FinishedTraining]) -> bytes:
    """Every choice, with the bound it was made by and its result."""
    rows = []
    for number, each in enumerate(told, 1):
        bound = each.origin.get("bound")
        rest = _short(bound, each.score, each.data["compliance"])
        rows.append([number, show(each.workflow), *rest, each.data["episodes"], bound is not None])
    return _csv(SAMPLING, rows)


def policy_log(updates: Sequence[Update], workflow: Sequence[str] | None) -> bytes:
    """Every update of one policy.  The time of an update is not known: a strategy has no clock."""
    rows, total = [], 0
    for each in updates:
        total += each.episodes
        head = [0, "" if workflow is None else show(tuple(workflow)), each.number, each.episodes, total]
        rest = _short(each.mean_return, each.bonus, each.mean_return + each.bonus, each.compliance)
        times = _short(each.seconds, None, each.lag, digits=4)
        rows.append([*head, *rest, *_short(each.fixes / each.episodes), *times])
    return _csv(COLUMNS, rows)


def search_curves(told: Sequence[FinishedTraining], threshold: float) -> Curves:
    """Every training's end, and the best compliant one so far."""
    curves: Curves = {"training/return": [], "training/compliance": [], "best/return": []}
    episodes, best = 0, -math.inf
    for each in told:
        episodes += each.data["episodes"]
        curves["training/return"].append((episodes, each.score))
        curves["training/compliance"].append((episodes, each.rate))
        if each.rate >= threshold:
            best = max(best, each.score)
        if math.isfinite(best):
            curves["best/return"].append((episodes, best))
    return curves


def policy_curves(updates: Iterable[Update]) -> Curves:
    """Return, staleness and compliance of every update."""
    curves: Curves = {"return/mean": [], "compliance": [], "staleness": []}
    episodes = 0
    for update in updates:
        episodes += update.episodes
        curves["return/mean"].append((episodes, update.mean_return))
        curves["staleness"].append((episodes, update.lag))
        if update.compliance is not None:
            curves["compliance"].append((episodes, update.compliance))
    return curves
