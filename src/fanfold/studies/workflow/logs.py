"""The logs of a run as CSV, with the columns of the documented system, and its curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fanfold.rl.logs import Curves, csv_file, short
from fanfold.rl.updates import Update
from fanfold.studies.workflow.spaces import show
from fanfold.studies.workflow.trainings import FinishedTraining

#: The columns of the log of updates; the last, the lag of the policies that played, is of one policy's alone.
_UPDATES = (
    "Workflow_ID Workflow_Order Update Episodes Total_Episodes_Sampled Env_Reward Alignment_Bonus Total_Reward "
    "Compliance Avg_Fixes Collection_Time Update_Time Staleness"
)
_CHOICES = "Iteration Workflow UCB_Score Reward Final_Compliance Episodes_Trained GP_Updated"
COLUMNS, SAMPLING = _UPDATES.split(), _CHOICES.split()


def training_log(told: Sequence[FinishedTraining]) -> bytes:
    """Every update of every training.  How long an update took is not known, so its training's time is shared out."""
    rows, total = [], 0
    for each in told:
        for number, (episodes, reward, bonus, fixes, kept) in enumerate(each.data["curve"], 1):
            total += int(episodes)
            head = [each.number, show(each.workflow), number, int(episodes), total]
            share = kept / fixes if fixes else None
            took = each.seconds * episodes / each.data["episodes"]
            rest = short(reward, bonus, reward + bonus, share, fixes / episodes)
            rows.append([*head, *rest, *short(took, digits=4), ""])
    return csv_file(COLUMNS[:-1], rows)


def sampling_log(told: Sequence[FinishedTraining]) -> bytes:
    """Every choice, with the bound it was made by and its result."""
    rows = []
    for number, each in enumerate(told, 1):
        bound = each.origin.get("bound")
        rest = short(bound, each.score, each.data["compliance"])
        rows.append([number, show(each.workflow), *rest, each.data["episodes"], bound is not None])
    return csv_file(SAMPLING, rows)


def policy_log(updates: Sequence[Update], workflow: Sequence[str] | None) -> bytes:
    """Every update of one policy."""
    rows, total = [], 0
    for each in updates:
        total += each.episodes
        head = [0, "" if workflow is None else show(tuple(workflow)), each.number, each.episodes, total]
        bonus = sum(block.get("bonus", 0.0) for block in each.blocks) / max(1, each.episodes)
        fixes = sum(sum(block.get("fixes", ())) for block in each.blocks)
        rest = short(each.mean_return, bonus, each.mean_return + bonus, compliance_of(each))
        times = short(each.collection, each.learning, each.lag, digits=4)
        rows.append([*head, *rest, *short(fixes / max(1, each.episodes)), *times])
    return csv_file(COLUMNS, rows)


def compliance_of(update: Update) -> float | None:
    """The share of fixes that kept to the workflow, in the episodes of an update."""
    fixes, kept = (sum(sum(block.get(name, ())) for block in update.blocks) for name in ("fixes", "kept"))
    return kept / fixes if fixes else None


def compliance_curve(updates: Iterable[Update]) -> list[tuple[int, float]]:
    points, episodes = [], 0
    for update in updates:
        episodes += update.episodes
        if (rate := compliance_of(update)) is not None:
            points.append((episodes, rate))
    return points


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
