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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

#: Texts that stand for a missing value, those of spreadsheets' errors among them.
MISSING = frozenset(
    ("", "na", "n/a", "n.a.", "nan", "nat", "<na>", "null", "none", ".", "?", "-", "--")
    + ("#n/a", "#value!", "#div/0!", "#ref!", "#name?", "#num!")
)
#: Words for what programs hold as true and false.
_TRUTHS = {"true": True, "false": False}
#: A blank between groups of three digits, as French and Swedish write.
_BLANK = re.compile(r"(?<=\d)[ \u00a0\u202f](?=\d{3}(?!\d))")
#: Numbers whose thousands are divided, by their decimal point.
_GROUPS = {
    ".": re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?"),
    ",": re.compile(r"[-+]?\d{1,3}(\.\d{3})+(,\d*)?"),
}
#: A minus behind an amount, as SAP writes; a whole number may be a grade.
_BEHIND = re.compile(r"[\d.,' ]*[.,]\d\d-")
_MINUS = str.maketrans("\u2212\u2013\u2019", "--'")
#: What may stand around a number: blanks, percent and signs of currencies.
_AROUND = " \t\u00a0\u202f%$€£¥₹₽₩₺₴₫₪฿₱₦"
_TIME = r"(?P<hour>\d{1,2})(?P<rest>:\d{2}.*?)(?: ?(?P<half>[ap])\.?m\.?)?"
_YEAR, _MONTH, _DAY = r"(?P<year>\d{4})", r"(?P<month>\d{1,2})", r"(?P<day>\d{1,2})"
_NAME = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_WEEKDAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\.?,? )?"
#: The first year of two digits that is of the last century, as in POSIX.
_CENTURY = 69


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
    _pattern(rf"{_WEEKDAY}{_DAY}[ .-]+{_NAME}[ ,-]+(?P<year>\d{{4}}|\d\d)"),
    _pattern(rf"{_WEEKDAY}{_NAME} {_DAY},? {_YEAR}"),
    re.compile(_TIME, re.IGNORECASE),
)
_EPOCH = datetime.datetime(1970, 1, 1)
#: Deviations from the mean beyond which how far off a number is says no more: a network must be able to count with it.
FAR = 1e9
#: Days of the parts of a calendar that come again.
_YEAR_LONG, _WEEK = 365.2425, 7


def missing(value: Any) -> bool:
    """Whether there is no value: none, NaN, or a text that says so."""
    if isinstance(value, str):
        return value.strip().casefold() in MISSING
    if isinstance(value, float | np.floating):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")  # as pandas has them


def bare(value: str) -> str:
    """The text of a number alone, with its sign in front: (5.00), -$5.00 and 5.00- are -5.00."""
    text, sign = value.translate(_MINUS).strip(_AROUND), ""
    if text.startswith("(") and text.endswith(")"):
        text, sign = text[1:-1].strip(_AROUND), "-"
    elif text.startswith(("-", "+")):
        text, sign = text[1:].strip(_AROUND), text[0]
    elif _BEHIND.fullmatch(text):
        text, sign = text[:-1], "-"
    return sign + _BLANK.sub("", text).replace("\u00a0", "").replace("'", "")


def number(value: Any, decimal: str = ".") -> float:
    """A finite number, as people and programs write it, or NaN."""
    if isinstance(value, str):
        text, divider = bare(value), "," if decimal == "." else "."
        if divider in text and _GROUPS[decimal].fullmatch(text):
            text = text.replace(divider, "")
        value = "" if "_" in text or divider in text else text.replace(decimal, ".")
    elif isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    try:
        result = float(value)
    except (TypeError, ValueError):
        return math.nan
    return result if math.isfinite(result) else math.nan


def truth(value: Any, decimal: str = ".") -> float:
    """What is true or false, as a value or as a word; or a number."""
    return number(_TRUTHS.get(value.strip().casefold(), value) if isinstance(value, str) else value, decimal)


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
    year = parts["year"] if len(parts["year"]) > 2 else f"{20 - (int(parts['year']) >= _CENTURY)}{parts['year']}"
    date = f"{year}-{month:0>2}-{parts['day']:0>2}"
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

    A `number` or a `date` is standardised.  One with long tails goes through the inverse hyperbolic sine (`bent`), or
    becomes its rank, which `ranks` say of some numbers, the `knots`: below which share of the rows each is.  Of a date,
    `parts` are features of their own: where in the `year`, which day of the `week`, when on the `day`.  A `category`
    becomes a 1 at its level, and one without a level in one of so many `buckets`.  A missing value is 0 everywhere; in
    a `marked` column one more feature says so.
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
    knots: tuple[float, ...] = ()
    ranks: tuple[float, ...] = ()
    parts: tuple[str, ...] = ()
    #: Whether the numbers are values that are true or false, which may also come as words.
    truths: bool = False

    @property
    def features(self) -> list[str]:
        """What the features are called."""
        names = [f"{self.name}={value}" for value in (*self.levels, *range(self.buckets))] or [self.name]
        for part in self.parts:
            sides = range(_WEEK) if part == "week" else ("sine", "cosine")
            names += [f"{self.name}: {part} {side}" for side in sides]
        return names + [f"{self.name} is missing"] * self.marked

    def numbers(self, values: Iterable[Any]) -> np.ndarray[Any, Any]:
        """The values as numbers; what is missing or not a number is NaN."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "buif":
            return np.ma.filled(values.astype(np.float64), np.nan)
        read, how = (day, self.order) if self.kind == "date" else (truth if self.truths else number, self.decimal)
        return np.array(_once(lambda value: math.nan if missing(value) else read(value, how), values), np.float64)

    def encoded(self, values: Sequence[Any]) -> np.ndarray[Any, Any]:
        """The features of the values, (rows, features)."""
        if self.kind != "category":
            numbers = self.numbers(values)
            gaps = ~np.isfinite(numbers)
            with np.errstate(over="ignore"):
                standard = self._ranked(numbers) if self.knots else (numbers - self.mean) / self.scale
            standard = np.clip(np.arcsinh(standard) if self.bent else standard, -FAR, FAR)
            columns = [np.where(gaps, 0.0, each) for each in (standard, *self._calendar(np.where(gaps, 0.0, numbers)))]
            return np.column_stack(columns + [gaps] * self.marked).astype(np.float32)
        table = np.zeros((len(values), len(self.features)), np.float32)
        places = {name: place for place, name in enumerate(self.levels)}
        words = {_TRUTHS[name.casefold()]: name for name in self.levels if name.casefold() in _TRUTHS}

        def place(value: Any) -> int:
            if missing(value):
                return table.shape[1] - 1 if self.marked else -1
            name = level(value)
            if isinstance(value, bool | np.bool_) and name not in places:
                name = words.get(bool(value), name)
            return places.get(name, len(places) + _bucket(name, self.buckets) if self.buckets else -1)

        found = np.array(_once(place, values), np.int64)
        table[np.flatnonzero(found >= 0), found[found >= 0]] = 1.0
        return table

    def _ranked(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The ranks of numbers, in deviations of a normal distribution; beyond the knots, by their distance."""
        knots, scores = np.array(self.knots), [NormalDist().inv_cdf(rank) for rank in self.ranks]
        middle = knots[len(knots) // 2]
        above = np.maximum(numbers - knots[-1], 0.0) / (knots[-1] - middle)
        below = np.maximum(knots[0] - numbers, 0.0) / (middle - knots[0])
        return np.asarray(np.interp(numbers, knots, scores) + np.arcsinh(above) - np.arcsinh(below))

    def _calendar(self, days: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """The features of the parts of a date."""
        columns: list[np.ndarray[Any, Any]] = []
        for part in self.parts:
            if part == "week":
                columns += [part_of(days, part) == number for number in range(_WEEK)]
            else:
                angle = 2.0 * np.pi * part_of(days, part)
                columns += [np.sin(angle), np.cos(angle)]
        return columns


def part_of(days: np.ndarray[Any, Any], part: str) -> np.ndarray[Any, Any]:
    """Where days since 1970 are in their year or day, from 0 to 1, or which day of the week they are."""
    if part == "week":
        return np.asarray(np.floor(days) % _WEEK)
    return np.asarray(days % 1.0 if part == "day" else days % _YEAR_LONG / _YEAR_LONG)


def _once(read: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """What each value reads as; a text that comes again is not read again."""
    known: dict[str, Any] = {}
    result = []
    for value in values:
        if not isinstance(value, str):
            result.append(read(value))
            continue
        if value not in known:
            known[value] = read(value)
        result.append(known[value])
    return result


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
        return cls(tuple(Column(**{name: _fixed(value) for name, value in column.items()}) for column in columns))


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def by_column(rows: Any, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """The columns of those names, each as a sequence of values; a missing column is an error."""
    rows = collected(rows)
    if isinstance(rows, Mapping) and rows and all(np.ndim(value) == 0 for value in rows.values()):
        rows = [rows]  # a single row
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):  # a frame of pandas
        table: dict[str, Any] = {str(name): rows.iloc[:, place] for place, name in enumerate(rows.columns)}
        table = {name: _values(column) for name, column in table.items()}
    elif isinstance(rows, Mapping):  # columns already
        table = dict(rows)
    elif isinstance(rows, np.ndarray):
        rows = np.atleast_2d(rows)
        _check_length(rows[:1], names)
        table = {name: rows[:, place] for place, name in enumerate(names)}
    else:
        rows = rows.to_dicts() if hasattr(rows, "to_dicts") else list(rows)  # a frame of polars
        if rows and not isinstance(rows[0], Mapping):
            rows = [rows] if np.ndim(rows[0]) == 0 else rows
            _check_length(rows, names)
            rows = [dict(zip(names, row)) for row in rows]
        table = {
            name: [row.get(name) for row in rows] for name in names if not rows or any(name in row for row in rows)
        }
    absent = [name for name in names if name not in table]
    if absent:
        raise ValueError(f"the rows have no column {absent[0]!r}; needed are {', '.join(names)}")
    return {name: table[name] for name in names}


def _check_length(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> None:
    """Refuse rows without names that have another number of values: which is which, nobody can tell."""
    for row in rows:
        if len(row) != len(names):
            raise ValueError(
                f"a row has {len(row)} values, and {len(names)} are needed, in this order: {', '.join(names)}; or give "
                "rows by name"
            )


def collected(rows: Any) -> Any:
    """A query of polars as a frame, and a table of Arrow as its columns; anything else as it is."""
    if hasattr(rows, "collect_schema") and not hasattr(rows, "to_dicts"):
        rows = rows.collect()
    return rows.to_pydict() if hasattr(rows, "to_pydict") else rows


def _values(column: Any) -> Any:
    if getattr(column.dtype, "kind", "O") in "buif" and (numbers := column.to_numpy()).dtype.kind in "buif":
        return numbers
    return [None if gap else value for value, gap in zip(column.tolist(), column.isna().tolist())]
