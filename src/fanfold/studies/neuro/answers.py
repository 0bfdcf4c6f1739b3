"""What a table is to predict: classes, numbers or labels, by the values of its columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError, nearest
from fanfold.studies.neuro.columns import Column, bare, level, missing
from fanfold.studies.neuro.images import answers as checked
from fanfold.texts import shortened

#: Rows that a table needs, and different whole numbers up to which they are classes.
FEWEST, FEW_NUMBERS = 20, 20
#: Classes at most, and rows for each of them on average at least.
CLASSES, ROWS = 1000, 3
#: The share of the numbers up to the largest class that must be there.
DENSE = 0.9
#: Parts that rows are divided into: to learn from, to validate and to test.
PARTS = 3
#: The share of one class from which on an accuracy says little.
LOPSIDED = 0.9
#: What the column to predict is often called.
USUAL = ("target", "label", "class", "y", "outcome", "response")
#: What several labels in one text are separated by.
_SEPARATORS = re.compile(r"\s*[;|,]\s*")
#: Numbers with a comma, as they are written where the comma is a decimal point, and where it divides thousands.
_DECIMALS = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d*),\d*(e[-+]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+")
_MEASURED = re.compile(r"[-+]?\d[\d.,']* ?([a-zµ°²³/]+)|(?-i:([A-Z]{3}|Fr|Rs))\.? ?[-+]?\d[\d.,']*", re.IGNORECASE)
#: Different units that numbers of a column may come with.
UNITS = 3


def decimal_of(values: Sequence[Any], comma: bool) -> str:
    """What the decimal point of a column is: what most numbers tell; where none does, a comma if that is likelier."""
    texts = [bare(value) for value in values if isinstance(value, str) and "," in value]
    if not texts:
        return "," if comma and divided([value for value in values if isinstance(value, str)]) else "."
    decimals = [bool(_DECIMALS.fullmatch(text)) for text in texts]
    thousands = [bool(_THOUSANDS.fullmatch(text)) for text in texts]
    told = sum(decimals) - sum(thousands)  # those that may be either cancel out
    return "," if told > 0 or (told == 0 and comma and any(decimals)) else "."


def divided(texts: Iterable[str]) -> bool:
    """Whether points divide thousands: all do in 12.345 beside 987 or in 1.234.567, and decimals would differ."""
    numbers = [text for text in map(bare, texts) if text[-1:].isdecimal()]
    points = [text for text in numbers if "." in text]
    if not points or not all(map(_POINTS.fullmatch, points)):
        return False
    whole = [len(text.lstrip("+-")) for text in numbers if "." not in text]
    return max(whole) <= 3 if whole else any(text.count(".") > 1 for text in points)


def points_said(name: str, values: Sequence[Any], decimal: str) -> list[str]:
    """That points were taken to divide thousands, where no comma tells it."""
    texts = [value for value in values if isinstance(value, str)]
    if decimal == "." or any("," in text for text in texts):
        return []
    return [f"in {name!r}, points divide thousands, as in {sample([text for text in texts if '.' in text])}"]


def measured(texts: Sequence[str]) -> bool:
    """Whether texts are numbers with one of few units."""
    found = [match[1] or match[2] for text in texts if (match := _MEASURED.fullmatch(text))]
    return len(found) >= 0.9 * len(texts) and len(set(found)) <= UNITS


def sample(values: Sequence[Any]) -> str:
    return repr(shortened(str(values[0]), 40)) if values else ""


@dataclass(frozen=True, eq=False)
class Answers:
    """What is wanted of each row that has it.

    `values` are classes from 0, or float rows for `names`; `rows` are the places of those rows in the table, and
    `columns` what they were read from.
    """

    kind: str
    names: tuple[str, ...]
    values: NDArray[Any]
    rows: NDArray[np.int64]
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is predicted, in words."""
        some = ", ".join(self.names[:3]) + ("..." if len(self.names) > 3 else "")
        words = {
            "classes": f"{', '.join(self.columns)}, one of {len(self.names)} classes ({some})",
            "numbers": f"{some}, {'a number' if len(self.names) == 1 else 'numbers'} (regression)",
            "labels": f"{len(self.names)} labels, any of them at once ({some})",
        }
        return f"predicts {words[self.kind]}"

    @classmethod
    def of_array(cls, wanted: NDArray[Any], target: str, classes: int | Sequence[str] | None, where: str) -> Answers:
        """What an array holds: with `auto`, few whole numbers are classes, and several columns labels or numbers."""
        if target == "auto":
            whole = wanted.dtype.kind in "bui" or bool(np.equal(np.mod(wanted, 1), 0).all())
            binary = wanted.ndim == 2 and bool(np.isin(wanted, (0, 1)).all())
            fits = wanted.ndim == 1 and whole and (classes is not None or _are_classes(wanted))
            target = "labels" if binary else "classes" if fits else "numbers"
        values = checked(wanted, target, where)
        count = int(values.max()) + 1 if target == "classes" else values.shape[1]
        if target == "classes" and isinstance(classes, int):
            if classes < count:
                raise ConfigError(
                    f"{where}: the label {count - 1}, but {classes} classes: number them from 0 to {classes - 1}"
                )
            count = classes
        if target == "classes" and classes is None:
            _check_filled(values, count, where)
        names = tuple(map(str, range(count))) if classes is None or isinstance(classes, int) else tuple(classes)
        if len(names) < count:
            raise ConfigError(f"{where}: {count} {target}, but {len(names)} names: give one for each")
        if target == "classes" and len(names) < 2:
            raise ConfigError(f"{where}: classes can be told apart only if there are two or more; here is {count}")
        return cls(target, names, values, np.arange(len(values)), ("y",))


def _check_filled(classes: NDArray[Any], count: int, where: str) -> None:
    """Refuse numbers that do not number classes, as no row has most of those up to the largest."""
    there = np.unique(classes)
    if count > 2 * len(there):
        absent = [repr(str(label)) for label in np.setdiff1d(np.arange(min(count, 1000)), there)]
        some = ", ".join(absent[:5]) + ("..." if len(absent) > 5 else "")
        raise ConfigError(
            f"{where}: no row is of class {some}: number the classes from 0, give them as texts, or predict numbers "
            "(target='numbers')"
        )


def _are_classes(numbers: NDArray[Any]) -> bool:
    """Whether whole numbers are few; or nearly all from 0 or 1 on, with some rows each, as classes are numbered."""
    distinct = len(np.unique(numbers))
    if distinct <= FEW_NUMBERS or numbers.dtype.kind == "f":
        return distinct <= FEW_NUMBERS
    least, most = int(numbers.min()), int(numbers.max())
    return least in (0, 1) and distinct >= DENSE * (most + 1 - least) and distinct * ROWS <= len(numbers)


def in_order(texts: Iterable[str]) -> list[str]:
    """Texts by the alphabet, or by their size if all are numbers."""
    every = sorted(set(texts))
    return sorted(every, key=float) if all(map(_plain, every)) else every


def answers_of(
    where: str, table: Mapping[str, Sequence[Any]], predict: Sequence[str], wanted: str, comma: bool
) -> Answers:
    """What the columns `predict` hold; without any, the one that is usually meant."""
    names = tuple(dict.fromkeys(predict)) or (_usual(table),)
    for name in names:
        if name not in table:
            hint = " (one with a comma is put in double quotes)" if any("," in known for known in table) else ""
            raise ConfigError(f"{where}: there is no column {name!r} to predict{nearest(name, table)}{hint}")
    if len(table) == 1:
        raise ConfigError(
            f"{where} has one column, {names[0]!r}: separate columns by a comma, a tab, a semicolon or a bar, and have "
            "one to predict and one to predict from"
        )
    if len(names) == len(table):
        raise ConfigError(f"{where}: all columns are to be predicted, and none is left to predict from")
    rows = np.array([r for r in range(len(table[names[0]])) if not any(missing(table[n][r]) for n in names)], np.int64)
    columns = [[table[name][row] for row in rows] for name in names]
    gaps = len(table[names[0]]) - len(rows)
    words = _words(value for name in names for value in table[name])
    if len(rows) < FEWEST:
        but = f", {gaps} of them without {names[0]}{words}" if gaps else ""
        raise ConfigError(f"{where}: {len(rows) + gaps} rows{but} are too few to learn from: at least {FEWEST}")
    unread: list[Any] = []
    if len(names) > 1:
        kind, made, values = _several(where, names, columns, wanted, comma)
    else:
        kind, made, values, fine = _one(where, names[0], columns[0], wanted, comma, words)
        unread = [value for value, read in zip(columns[0], fine) if not read]
        gaps, rows = gaps + len(unread), rows[fine]
    some = f"{gaps} row{'s' if gaps > 1 else ''} without {names[0]!r}{words} {'are' if gaps > 1 else 'is'} left out"
    if kind == "labels":
        some += " (so that rows may have none, predict columns of 0 and 1)"
    if unread:
        some += f", {len(unread)} of them because texts such as {sample(unread)} are not numbers"
    notes = [some] if gaps else []
    if kind == "numbers":
        notes += [said for n, c in zip(names, columns) for said in points_said(n, c, decimal_of(c, comma))]
    if kind == "classes":
        notes += [*_alike(names[0], made), *_lopsided(names[0], made, values), *_rare(names[0], made, values)]
    return Answers(kind, made, values, rows, names, tuple(notes))


def _words(values: Iterable[Any]) -> str:
    """Which words among the values count as missing, and what to do if they do not."""
    words = {value.strip() for value in values if isinstance(value, str) and missing(value)}
    named = sorted(word for word in words if any(map(str.isalpha, word)))
    some = f"{', '.join(map(repr, named[:3]))} {'counts' if len(named) == 1 else 'count'}"
    return f" ({some} as missing: rename what is a class)" if named else ""


def _alike(name: str, classes: Sequence[str]) -> list[str]:
    """Which classes may be one that was written in several ways."""
    written: dict[str, list[str]] = {}
    for each in classes:
        written.setdefault("".join(each.casefold().split()), []).append(each)
    alike = [ways for ways in written.values() if len(ways) > 1]
    some = "; ".join(", ".join(repr(shortened(each, 40)) for each in ways[:3]) for ways in alike[:3])
    text = f"classes of {name!r} differ in capitals or blanks alone ({some}): if they are the same, write them alike"
    return [text] if alike else []


def _lopsided(name: str, classes: Sequence[str], values: NDArray[Any]) -> list[str]:
    """What to know of an accuracy where nearly all rows are of one class."""
    counts = np.bincount(values, minlength=len(classes))
    share, most, least = counts.max() / len(values), classes[int(counts.argmax())], classes[int(counts.argmin())]
    if share < LOPSIDED:
        return []
    return [
        f"{100 * share:.1f} % of the rows have {name!r} {most!r}, and {counts.min()} {least!r}: always answering "
        f"{most!r} has an accuracy of {share:.3f}; with --balanced every class counts the same"
    ]


def _rare(name: str, classes: Sequence[str], values: NDArray[Any]) -> list[str]:
    """Which classes cannot be in every part."""
    rare = [repr(shortened(classes[each], 40)) for each in np.flatnonzero(np.bincount(values) < PARTS).tolist()]
    some = ", ".join(rare[:3]) + (", ..." if len(rare) > 3 else "")
    text = f"fewer than {PARTS} rows have {name!r} {some}: too few to learn from, to validate and to test"
    return [text] if rare else []


def _usual(table: Mapping[str, Sequence[Any]]) -> str:
    known = {name.strip().casefold(): name for name in reversed(list(table))}
    return next((known[name] for name in USUAL if name in known), list(table)[-1])


def _several(
    where: str, names: tuple[str, ...], columns: list[list[Any]], wanted: str, comma: bool
) -> tuple[str, tuple[str, ...], NDArray[Any]]:
    numbers = []
    for name, values in zip(names, columns):
        read = Column(name, "number", decimal=decimal_of(values, comma)).numbers(values)
        if not np.isfinite(read).all():
            odd = sample([value for value, fine in zip(values, np.isfinite(read)) if not fine])
            raise ConfigError(f"{where}: {name!r} holds {odd}: several columns to predict must be numbers, or 0 and 1")
        numbers.append(read)
    rows = np.column_stack(numbers)
    binary = bool(np.isin(rows, (0, 1)).all())
    kind = ("labels" if binary else "numbers") if wanted == "auto" else wanted
    if kind == "classes" or (kind == "labels" and not binary):
        raise ConfigError(f"{where}: several columns to predict are numbers, or labels of 0 and 1, not {kind}")
    _check_varied(where, names, rows)
    return kind, names, rows


def _one(
    where: str, name: str, values: list[Any], wanted: str, comma: bool, words: str
) -> tuple[str, tuple[str, ...], NDArray[Any], NDArray[np.bool_]]:
    """The kind, the names, the values, and which rows have one; `words` says what counts as missing."""
    every = np.ones(len(values), np.bool_)
    if wanted == "labels" or any(isinstance(value, list | tuple) for value in values):
        held = [
            {level(each) for each in (value if isinstance(value, list | tuple) else _SEPARATORS.split(level(value)))}
            for value in values
        ]
        labels = tuple(sorted(set().union(*held) - {""}))
        _check_count(where, name, len(labels), len(values), "labels")
        table = np.array([[label in some for label in labels] for some in held], np.float64)
        return "labels", labels, table, every
    numbers = Column(name, "number", decimal=decimal_of(values, comma)).numbers(values)
    read = np.isfinite(numbers)
    whole = bool((np.mod(numbers[read], 1) == 0).all())
    many = len(np.unique(numbers[read])) > FEW_NUMBERS
    kind = wanted if wanted != "auto" else "numbers" if read.mean() >= 0.9 and (many or not whole) else "classes"
    if kind == "numbers":
        if read.mean() < 0.5:
            odd = sample([value for value, fine in zip(values, read) if not fine])
            raise ConfigError(f"{where}: {name!r} holds texts such as {odd}, not numbers: --predict-as classes")
        _check_varied(where, (name,), numbers[read][:, None])
        return "numbers", (name,), numbers[read][:, None], read
    texts = [level(value) for value in values]
    numeric = read.all()
    classes = sorted(set(texts), key=lambda text: (float(text) if numeric and _plain(text) else 0.0, text))
    if wanted == "auto" and len(classes) > FEW_NUMBERS and measured(texts):
        raise ConfigError(
            f"{where}: {name!r} holds numbers with a unit, such as {sample(texts)}: write plain numbers, or if they "
            "are names, --predict-as classes"
        )
    if len(classes) == 1 and words:
        raise ConfigError(f"{where}: {name!r} is always {classes[0]!r}, or missing{words}")
    _check_count(where, name, len(classes), len(values), "classes")
    places = {text: place for place, text in enumerate(classes)}
    return "classes", tuple(classes), np.array([places[text] for text in texts], np.int64), every


def _plain(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_count(where: str, name: str, count: int, rows: int, what: str) -> None:
    if count < (2 if what == "classes" else 1):
        raise ConfigError(f"{where}: {name!r} is always the same, so there is nothing to predict: --predict another")
    if count > CLASSES or (what == "classes" and count * ROWS > rows):
        raise ConfigError(
            f"{where}: {name!r} has {count:,} different values in {rows:,} rows, too many {what} to learn: predict "
            f"another column (--predict), group them, or, if they are numbers, --predict-as numbers"
        )


def _check_varied(where: str, names: Sequence[str], rows: NDArray[Any]) -> None:
    for name, column in zip(names, rows.T):
        if np.ptp(column) == 0:
            raise ConfigError(f"{where}: {name!r} is always {column[0]:g}, so there is nothing to predict")
