"""The Matrix page: candidates by cases, in an order that a person chose, as tiles of bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from fanfold.errors import ConfigError
from fanfold.ledger import CellValues, Quantity
from fanfold.report.pages.parts import Payload, ShownRun, parents

#: Rows and columns of a tile, how much coarser each further level is, and the most trials that are named at once.
TILE, COARSER, MOST_BRIEFS = (64, 256), 4, 1000
#: How many of the best candidates must disagree on a case for it to count as disputed.
JUDGES = 20
_LEGENDS = {"score": "score", "seconds": "seconds", "cost": "cost in US dollars", "failure": "failed or not"}
_CHOICES = {
    "order": ("best", "number", "told", "similar"),
    "cases": ("position", "difficulty"),
    "colour": get_args(Quantity),
    "only": ("", "wrong", "disputed", "changed"),
}


@dataclass(frozen=True)
class Arrangement:
    """The rows and columns of a matrix as they are shown, and what its colours mean."""

    mark: int
    trials: Sequence[int]
    positions: Sequence[int]
    low: float
    high: float

    def levels(self) -> list[Payload]:
        """The matrix at full size, and ever coarser until it fits into one tile."""
        levels, factor = [], 1
        while True:
            rows, columns = -(-len(self.trials) // factor), -(-len(self.positions) // factor)
            levels.append({"factor": factor, "rows": rows, "columns": columns})
            if rows <= TILE[0] and columns <= TILE[1]:
                return levels
            factor *= COARSER

    def tile(self, values: CellValues, level: int, row: int, column: int) -> bytes:
        """The bytes of one tile, row by row."""
        levels = self.levels()
        if not 0 <= level < len(levels):
            raise ConfigError(f"there is no level {level}: this matrix has {len(levels)}")
        factor = levels[level]["factor"]
        tall, wide = TILE[0] * factor, TILE[1] * factor
        trials = self.trials[row * tall : (row + 1) * tall]
        positions = self.positions[column * wide : (column + 1) * wide]
        return values.tile(trials, positions, self.low, self.high, factor)


def choices(query: Mapping[str, str]) -> dict[str, str]:
    """What a query asks for, with defaults; an unknown choice is refused."""
    chosen = {name: query.get(name) or known[0] for name, known in _CHOICES.items()}
    for name, value in chosen.items():
        if value not in _CHOICES[name]:
            raise ConfigError(f"{name}={value!r:.40} is not known: use {', '.join(filter(None, _CHOICES[name]))}")
    return chosen


def arrange(shown: ShownRun, values: CellValues, chosen: Mapping[str, str]) -> Arrangement:
    """Put the rows and columns in order."""
    order = chosen["order"]
    low, high = scale(shown, values, chosen["colour"])
    trials: Sequence[int] = shown.view.numbers(order="best" if order == "similar" else order)  # type: ignore[arg-type]
    positions: Sequence[int] = range(values.columns)
    if chosen["cases"] == "difficulty":
        means = values.means()
        positions = sorted(positions, key=lambda at: (means[at] is None, means[at] or 0.0, at))
    if chosen["only"]:
        kept = _picked(shown, values, chosen["only"], low, high)
        positions = [at for at in positions if at in kept]
    if order == "similar":
        # Rows that agree on the same cases stand together; coarse values, so that noise does not separate them.
        rows = {trial: values.row(trial, low, high) for trial in trials}
        trials = sorted(trials, key=lambda trial: bytes(byte >> 6 if byte > 1 else 9 for byte in rows[trial]))
    return Arrangement(values.mark, trials, positions, low, high)


def head(shown: ShownRun, arranged: Arrangement, colour: str) -> Payload:
    """The names of rows and columns, and how tiles are to be asked for."""
    view, trials = shown.view, list(arranged.trials)
    ids = [case.id for case in view.cases()]
    scores = {origin.trial: origin.score for origin in view.origins()}
    few = len(trials) <= MOST_BRIEFS
    briefs = {row.number: shown.brief(row) for row in view.some_trials(trials)} if few else {}
    return {
        "rows": len(trials),
        "columns": len(arranged.positions),
        "trials": trials,
        "briefs": [briefs.get(trial, "") for trial in trials] if few else [],
        "scores": [shown.score(scores.get(trial)) for trial in trials],
        "cases": [ids[at] for at in arranged.positions],
        "positions": list(arranged.positions),
        "low": shown.score(arranged.low) if colour == "score" else arranged.low,
        "high": shown.score(arranged.high) if colour == "score" else arranged.high,
        "legend": _LEGENDS[colour],
        "tile": list(TILE),
        "levels": arranged.levels(),
        "mark": arranged.mark,
    }


def scale(shown: ShownRun, values: CellValues, colour: str) -> tuple[float, float]:
    """A fixed scale where the score has one; else from the lowest to the highest value."""
    if colour == "score" and shown.study.scale is not None:
        return shown.study.scale
    if colour == "failure" or not math.isfinite(values.low):
        return 0.0, 1.0
    low = values.low if colour == "score" else min(0.0, values.low)
    return low, values.high if values.high > low else low + 1.0


def _picked(shown: ShownRun, values: CellValues, only: str, low: float, high: float) -> set[int]:
    """The cases on which the best is wrong, the best disagree, or the best differs from its parents."""
    best = list(shown.view.numbers(order="best", which="complete", count=JUDGES))
    rows = [values.row(trial, low, high) for trial in best]
    if only == "changed" and best:
        family = parents(shown.view.trial(best[0]))
        before = [values.row(trial, low, high) for trial in family]
        return {at for at in range(values.columns) if any(row[at] != rows[0][at] for row in before)}
    middle = 128
    if only == "wrong":
        return {at for row in rows[:1] for at, byte in enumerate(row) if byte < middle}
    good = [[row[at] >= middle for row in rows if row[at]] for at in range(values.columns)]
    return {at for at, votes in enumerate(good) if len(set(votes)) > 1}
