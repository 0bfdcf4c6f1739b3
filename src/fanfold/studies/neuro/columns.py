"""Rows of a table as the numbers that a network takes.

This module needs nothing but numpy: a saved network brings it along as `table.py`.

    encoder = TableEncoder.load("model.json")
    features = encoder.encode([{"age": 41, "city": "Bern"}])
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

#: Texts that stand for a missing value, those of spreadsheets' errors among them.
MISSING = frozenset(
    ("", "na", "n/a", "n.a.", "nan", "nat", "<na>", "null", "none", ".", "?", "-", "--")
    + ("#n/a", "#value!", "#div/0!", "#ref!", "#name?", "#num!")
)
#: A blank between groups of three digits, as French and Swedish write.
_BLANK = re.compile(r"(?<=\d)[ \u00a0\u202f](?=\d{3}(?!\d))")
_GROUPS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
_TIME = r"(?P<hour>\d{1,2})(?P<rest>:\d{2}.*?)(?: ?(?P<half>[ap])\.?m\.?)?"
_YEAR, _MONTH, _DAY = r"(?P<year>\d{4})", r"(?P<month>\d{1,2})", r"(?P<day>\d{1,2})"
_NAME = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"


def _pattern(date: str) -> re.Pattern[str]:
    return re.compile(rf"{date}(?:[ T,]+{_TIME})?", re.IGNORECASE)


#: How dates are written, by their order; names of months tell the order themselves.
_DATES = {
    order: _pattern(rf"{first}(?P<by>[./-]){second}(?P=by){third}")
    for order, first, second, third in (
        ("ymd", _YEAR, _MONTH, _DAY), ("dmy", _DAY, _MONTH, _YEAR), ("mdy", _MONTH, _DAY, _YEAR)
    )
}  # fmt: skip
_OTHERS = (
    _pattern(rf"{_DAY}[ .-]+{_NAME}[ ,-]+{_YEAR}"),
    _pattern(rf"{_NAME} {_DAY},? {_YEAR}"),
    re.compile(_TIME, re.IGNORECASE),
)
_EPOCH = datetime.datetime(1970, 1, 1)


def missing(value: Any) -> bool:
    """Whether there is no value: none, NaN, or a text that says so."""
    if isinstance(value, str):
        return value.strip().casefold() in MISSING
    return value is None or bool(isinstance(value, float | np.floating) and value != value)


def number(value: Any, decimal: str = ".") -> float:
    """A finite number, as people and programs write it, or NaN."""
    if isinstance(value, str):
        text = _BLANK.sub("", value.strip(" \t\u00a0%$€£")).replace("\u00a0", "").replace("'", "")
        if decimal == ",":
            text = text.replace(".", "").replace(",", ".")
        elif "," in text and _GROUPS.fullmatch(text):
            text = text.replace(",", "")
        value = "" if "_" in text else text
    elif isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    try:
        result = float(value)
    except (TypeError, ValueError):
        return math.nan
    return result if math.isfinite(result) else math.nan


def day(value: Any, order: str = "ymd") -> float:
    """Days since 1970 of a date, or the part of the day of a time, in one of the usual forms; or NaN."""
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(_iso(value.strip(), order))
        except ValueError:
            return math.nan
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, datetime.datetime):
        naive = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
        return (naive - _EPOCH).total_seconds() / 86400
    if isinstance(value, datetime.time):
        return (datetime.datetime.combine(_EPOCH, value.replace(tzinfo=None)) - _EPOCH).total_seconds() / 86400
    return float((value - _EPOCH.date()).days) if isinstance(value, datetime.date) else math.nan


def _iso(text: str, order: str) -> str:
    """A date or a time as ISO 8601 has it, if it is written otherwise."""
    found = next(filter(None, (pattern.fullmatch(text) for pattern in (_DATES[order], *_OTHERS))), None)
    if found is None:
        return text
    parts = {"year": "1970", "month": "1", "day": "1", **found.groupdict()}
    month = parts["month"] if parts["month"].isdigit() else str(_MONTHS.index(parts["month"].lower()) // 3 + 1)
    date = f"{parts['year']}-{month:0>2}-{parts['day']:0>2}"
    if not parts["hour"]:
        return date
    hour = int(parts["hour"]) % 12 + 12 * (parts["half"] in "pP") if parts["half"] else parts["hour"]
    return f"{date} {hour:0>2}{parts['rest']}"


def date_order(values: Iterable[Any]) -> str:
    """The order of days, months and years in texts that end in the year; empty where they do not tell.

    With dots the day is first everywhere.  With slashes or dashes, a number above 12 tells.
    """
    found = [_DATES["dmy"].fullmatch(value.strip()) for value in values if isinstance(value, str)]
    dates = [date for date in found if date is not None]
    if dates and all(date["by"] == "." for date in dates):
        return "dmy"
    first, second = (any(int(date[part]) > 12 for date in dates) for part in ("day", "month"))
    return "" if first == second else "dmy" if first else "mdy"


def level(value: Any) -> str:
    """The name of a category: whole numbers have one name, however they are written."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


@dataclass(frozen=True)
class Column:
    """One column, and what it becomes.

    A `number` or a `date` is standardised; `bent` ones, which have long tails, through the inverse hyperbolic sine.
    A `category` becomes a 1 at its level, or in one of so many `buckets` where there are many.  A missing value is 0
    everywhere; in a `marked` column one more feature says so.
    """

    name: str
    kind: str
    mean: float = 0.0
    scale: float = 1.0
    bent: bool = False
    decimal: str = "."
    levels: tuple[str, ...] = ()
    buckets: int = 0
    marked: bool = False
    #: In which order a date says year, month and day.
    order: str = "ymd"

    @property
    def features(self) -> list[str]:
        """What the features are called."""
        names = [f"{self.name}={value}" for value in self.levels or range(self.buckets)] or [self.name]
        return names + [f"{self.name} is missing"] * self.marked

    def numbers(self, values: Iterable[Any]) -> np.ndarray[Any, Any]:
        """The values as numbers; what is missing or not a number is NaN."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "buif":
            return values.astype(np.float64)
        read, how = (day, self.order) if self.kind == "date" else (number, self.decimal)
        return np.array([math.nan if missing(value) else read(value, how) for value in values], np.float64)

    def encoded(self, values: Sequence[Any]) -> np.ndarray[Any, Any]:
        """The features of the values, (rows, features)."""
        if self.kind != "category":
            numbers = self.numbers(values)
            gaps = ~np.isfinite(numbers)
            standard = (numbers - self.mean) / self.scale
            standard = np.arcsinh(standard) if self.bent else standard
            columns = [np.where(gaps, 0.0, standard)]
            return np.column_stack(columns + [gaps] * self.marked).astype(np.float32)
        table = np.zeros((len(values), len(self.features)), np.float32)
        places = {name: place for place, name in enumerate(self.levels)}
        for row, value in enumerate(values):
            if missing(value):
                table[row, -1] = self.marked
            elif self.buckets:
                table[row, _bucket(level(value), self.buckets)] = 1.0
            elif (place := places.get(level(value))) is not None:
                table[row, place] = 1.0
        return table


def _bucket(name: str, buckets: int) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % buckets


@dataclass(frozen=True)
class TableEncoder:
    """All columns that a network sees, in their order."""

    columns: tuple[Column, ...]

    @property
    def features(self) -> list[str]:
        return [name for column in self.columns for name in column.features]

    def encode(self, rows: Any) -> np.ndarray[Any, Any]:
        """The features, (rows, features), of rows: mappings by name, lists in the order of the columns, or a frame."""
        table = by_column(rows, [column.name for column in self.columns])
        return np.concatenate([column.encoded(table[column.name]) for column in self.columns], axis=1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> TableEncoder:
        """The encoder that a saved network's `model.json` holds, or what `as_dict` gave."""
        card = source if isinstance(source, Mapping) else json.loads(Path(source).read_text(encoding="utf-8"))
        columns = card.get("table", card)["columns"]
        return cls(tuple(Column(**{**column, "levels": tuple(column["levels"])}) for column in columns))


def by_column(rows: Any, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The columns of those names, each as a sequence of values; a missing column is an error."""
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):  # a frame of pandas
        table: dict[str, Any] = {str(name): rows.iloc[:, place] for place, name in enumerate(rows.columns)}
        table = {name: _values(column) for name, column in table.items()}
    elif isinstance(rows, Mapping):  # columns already
        table = dict(rows)
    elif isinstance(rows, np.ndarray):
        table = {name: rows[:, place] for place, name in enumerate(names)} if rows.shape[1] == len(names) else {}
    else:
        rows = rows.to_dicts() if hasattr(rows, "to_dicts") else list(rows)  # a frame of polars
        if rows and not isinstance(rows[0], Mapping):
            rows = [dict(zip(names, row)) for row in rows]
        table = {
            name: [row.get(name) for row in rows] for name in names if not rows or any(name in row for row in rows)
        }
    absent = [name for name in names if name not in table]
    if absent:
        raise ValueError(f"the rows have no column {absent[0]!r}; needed are {', '.join(names)}")
    return {name: table[name] for name in names}


def _values(column: Any) -> Any:
    if column.dtype.kind in "buif" if hasattr(column.dtype, "kind") else False:
        return column.to_numpy()
    return [None if gap else value for value, gap in zip(column.tolist(), column.isna().tolist())]
