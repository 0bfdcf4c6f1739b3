"""Rows given in Python by any library: dicts of values that prompts, JSON and the ledger have."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fanfold.errors import ConfigError

_PLAIN = frozenset({str, int, float, bool, type(None)})
#: What pandas calls a value that is not there.
_ABSENT = ("NAType", "NaTType")
#: How values of other libraries give those of Python.
_WAYS = ("as_py", "tolist", "to_list", "to_pytimedelta")


def records(rows: Any) -> Any:
    """The rows of a table of pandas, polars or Arrow as dicts; anything else as it is.

    What is missing in a table is None, also where pandas has a NaN in its place.
    """
    if hasattr(rows, "collect") and hasattr(rows, "collect_schema"):  # lazy, as polars has it
        rows = rows.collect()
    if hasattr(rows, "iter_rows"):
        return rows.iter_rows(named=True)
    if hasattr(rows, "to_pylist"):
        return rows.to_pylist()
    if hasattr(rows, "to_dict") and hasattr(rows, "columns") and not isinstance(rows, Mapping):
        if not rows.columns.is_unique:
            repeated = rows.columns[rows.columns.duplicated()][0]
            raise ConfigError(f"two columns of the data frame are called {repeated!r}: rename one")
        return [
            {name: None if _missing(value) else value for name, value in row.items()} for row in rows.to_dict("records")
        ]
    return rows


def _missing(value: Any) -> bool:
    return type(value).__name__ in _ABSENT or (isinstance(value, float) and value != value)


def plain_rows(rows: Iterable[Any]) -> Iterator[Any]:
    """The rows one after the other, each as `plain_row` has it; one value in the place of many is refused."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows := records(rows), Iterable):
        several = " (give one part of it, such as rows['train'])" if hasattr(rows, "column_names") else ""
        raise ConfigError(f"rows must be a list of rows, not one {type(rows).__name__}: {rows!r:.60}{several}")
    labels = label_names(getattr(rows, "features", None))
    return (named(plain_row(row), labels) for row in rows)


def label_names(features: Any) -> dict[str, Any]:
    """The columns of a Hugging Face dataset that number their labels, with the labels' names."""
    return {field: kind.names for field, kind in (features or {}).items() if getattr(kind, "names", None)}


def named(row: Any, labels: Mapping[str, Any]) -> Any:
    """A row with names in the place of numbered labels."""
    if not labels:
        return row
    known = {field: names[row[field]] for field, names in labels.items() if row.get(field) in range(len(names))}
    return {**row, **known}


def plain_row(row: Any) -> Any:
    """A row as a dict: of a mapping, a named tuple, a dataclass, a Pydantic model or a database; others as they are."""
    if isinstance(row, Mapping):
        simple = type(row) is dict and all(type(name) is str for name in row)
        if simple and all(type(value) in _PLAIN and value is plain(value) for value in row.values()):
            return row
        return {whole(str(name)): plain(value) for name, value in row.items()}
    if isinstance(row, type):
        return row
    if dataclasses.is_dataclass(row):
        return {field.name: plain(getattr(row, field.name)) for field in dataclasses.fields(row)}
    for way in ("model_dump", "_asdict"):
        if hasattr(row, way):
            return plain(getattr(row, way)())
    if hasattr(row, "keys"):
        names = list(row.keys())  # what it gives one after the other are values
        return {str(name): plain(row[name]) for name in names}
    return plain(row)


def plain(value: Any) -> Any:
    """A value of another library as one of Python: an array as a list, one that is absent as None."""
    kind = type(value)
    if kind in _PLAIN:
        return whole(value) if kind is str else value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {whole(str(name)): plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value), key=str)  # in the same order in every process
    if kind.__name__ in _ABSENT:
        return None
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime(warn=False)
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":  # numpy gives numbers for times to the nanosecond
        value = value.astype("datetime64[us]")
    return next((plain(getattr(value, way)()) for way in _WAYS if hasattr(value, way)), value)


def whole(text: str) -> str:
    """A text as UTF-8 can have it: half a character, as of an emoji that was cut, becomes the mark of a lost one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
