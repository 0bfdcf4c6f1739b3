"""The rows of a run as flat tables: for data frames, CSV and Parquet."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fanfold.errors import ConfigError, MissingExtra
from fanfold.tables.writing import as_json, fitted, kinds_of
from fanfold.types import Objective, Ok, mean_scores

if TYPE_CHECKING:
    from fanfold.ledger.records import EvaluationRow, TrialRow
    from fanfold.ledger.view import RunView

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = Literal["trials", "evaluations"]

#: The columns of a table and the type of each; those of candidates come after.
KINDS: dict[Rows, dict[str, type[Any]]] = {
    "trials": {
        "number": int, "order": int, "score": float, "dropped": str, "cost": float, "evaluations": int, "failures": int,
    },
    "evaluations": {
        "trial": int, "case": str, "score": float, "failure": str, "message": str, "cost": float, "started": float,
        "seconds": float, "tries": int, "reused": bool, "data": str,
    },
}  # fmt: skip


def rows_of(view: RunView, rows: Rows) -> Iterator[Row]:
    """The told trials in the order of telling, or all evaluations, as plain dicts with nested values."""
    if rows not in KINDS:
        raise ConfigError(f"a table has a row for each of 'trials' or 'evaluations', not {rows!r}")
    objective = view.info.objective
    if rows == "trials":
        trials = view.trials(order="told", which="told", blobs=False)
        scores = _trial_scores(view) if objective.name else {}
        return (_named(row, (*KINDS[rows], "candidate"), objective, scores.get(row.number)) for row in trials)
    cells = view.evaluations(blobs=False)
    return (_named(row, KINDS[rows], objective, _cell_scores(row) if objective.name else None) for row in cells)


def _named(
    row: TrialRow | EvaluationRow, names: Iterable[str], objective: Objective, scores: Mapping[str, float] | None
) -> Row:
    """The row by names of columns, its score in the evaluator's units, and its other scores where there are several."""
    named = {name: getattr(row, name) for name in names} | {"score": objective.natural(row.score)}
    return named if scores is None else {**named, "scores": dict(scores)}


def _cell_scores(row: EvaluationRow) -> dict[str, float]:
    return Ok(0.0, row.data).scores


def _trial_scores(view: RunView) -> dict[int, dict[str, float]]:
    by_trial = groupby(view.evaluations(failed=False, blobs=False), key=lambda row: row.trial)
    return {trial: mean_scores(map(_cell_scores, cells)) for trial, cells in by_trial}


def columns_of(view: RunView, rows: Rows) -> dict[str, type[Any]]:
    """The columns of a table and the type that fits all values of each, found in one pass."""
    if rows == "trials" or view.info.objective.name:
        return _more_kinds(rows_of(view, rows), KINDS[rows])
    return KINDS[rows]


def flat(row: Row) -> Row:
    """A row of single values: the candidate's dicts spread over columns, everything else nested as JSON."""
    columns: Row = {}
    for name, value in row.items():
        _spread(name, value, columns, deep=name in ("candidate", "scores"))
    return columns


def build(view: RunView, rows: Rows, library: str | None) -> Any:
    """A data frame of the library, or of the first that is installed."""
    if library not in (None, "pandas", "polars"):
        raise ConfigError(f"a frame is one of 'pandas' or 'polars', not {library!r}")
    table = [flat(row) for row in rows_of(view, rows)]
    kinds = columns_of(view, rows)
    columns = {name: [fitted(row.get(name), kind) for row in table] for name, kind in kinds.items()}
    for name in ("pandas", "polars") if library is None else (library,):
        try:
            package = importlib.import_module(name)
        except ImportError:
            continue
        return package.DataFrame(columns)
    raise MissingExtra(library or "pandas", library or "pandas", "a data frame")


def _spread(name: str, value: Any, into: Row, deep: bool) -> None:
    if deep and isinstance(value, dict) and value:
        for key, item in value.items():
            _spread(f"{name}.{key}", item, into, deep)
    elif isinstance(value, dict | list) or (name == "data" and value is not None):
        into[name] = as_json(value)
    else:
        into[name] = value


def _more_kinds(rows: Iterable[Row], own: Mapping[str, type[Any]]) -> dict[str, type[Any]]:
    kinds = {name: kind for name, kind in kinds_of(map(flat, rows)).items() if kind and name not in own}
    return {**own, **{name: kinds[name] for name in sorted(kinds)}}
