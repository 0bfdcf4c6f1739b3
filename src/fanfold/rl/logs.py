"""The updates of a policy as a CSV file and as curves."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from fanfold.rl.updates import Update

#: What is drawn over the episodes or steps learnt from, by name.
Curves: TypeAlias = dict[str, list[tuple[int, float]]]

#: The columns of the log of updates.  Times are seconds: those in which episodes were played, and those of the update.
_NAMES = "Update Episodes Total_Episodes Steps Total_Steps Mean_Return Failed_Episodes Collection_Time Update_Time"
COLUMNS = [*_NAMES.split(), "Staleness"]


def csv_file(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue().encode()


def short(*values: float | None, digits: int = 6) -> list[str]:
    return ["" if value is None else f"{value:.{digits}g}" for value in values]


def training_log(updates: Sequence[Update]) -> bytes:
    """Every update, its episodes and its times."""
    rows, episodes, steps = [], 0, 0
    for each in updates:
        episodes, steps = episodes + each.episodes, steps + each.steps
        head = [each.number, each.episodes, episodes, each.steps, steps, *short(each.mean_return), each.failed]
        rows.append([*head, *short(each.collection, each.learning, each.lag, digits=4)])
    return csv_file(COLUMNS, rows)


def policy_curves(updates: Iterable[Update]) -> Curves:
    """Return, length of episodes and staleness of every update, over the episodes learnt from."""
    curves: Curves = {"return/mean": [], "episode/length": [], "staleness": []}
    episodes = 0
    for update in updates:
        episodes += update.episodes
        if not update.episodes:
            continue
        curves["return/mean"].append((episodes, update.mean_return))
        curves["staleness"].append((episodes, update.lag))
        if update.steps:
            curves["episode/length"].append((episodes, update.steps / update.episodes))
    return curves
