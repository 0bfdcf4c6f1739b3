"""The rows of a run as flat tables: for data frames, CSV and Parquet."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fanfold.errors import ConfigError, MissingExtra
from fanfold.tables.writing import as_json, fitted, kinds_of

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
    if rows == "trials":
        names = (*KINDS[rows], "candidate")
        return (_named(row, names) for row in view.trials(order="told", which="told", blobs=False))
    if rows == "evaluations":
        return (_named(row, KINDS[rows]) for row in view.evaluations(blobs=False))
    raise ConfigError(f"a table has a row for each of 'trials' or 'evaluations', not {rows!r}")


def _named(row: TrialRow | EvaluationRow, names: Iterable[str]) -> Row:
    return {name: getattr(row, name) for name in names}


def columns_of(view: RunView, rows: Rows) -> dict[str, type[Any]]:
    """The columns of a table and the type that fits all values of each, found in one pass."""
    return _trial_kinds(rows_of(view, rows)) if rows == "trials" else KINDS[rows]


def flat(row: Row) -> Row:
    """A row of single values: the candidate's dicts spread over columns, everything else nested as JSON."""
    columns: Row = {}
    for name, value in row.items():
        _spread(name, value, columns, deep=name == "candidate")
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


def _trial_kinds(rows: Iterable[Row]) -> dict[str, type[Any]]:
    kinds = {name: kind for name, kind in kinds_of(map(flat, rows)).items() if kind and name not in KINDS["trials"]}
    return {**KINDS["trials"], **{name: kinds[name] for name in sorted(kinds)}}
