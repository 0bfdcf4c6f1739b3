"""What each column of a table is, by its values; what cannot be learnt from is refused with the remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError
from fanfold.studies.neuro.answers import FEWEST, Answers, decimal_of, measured, points_said, sample
from fanfold.studies.neuro.columns import Column, TableEncoder, date_order, level, missing
from fanfold.studies.neuro.scales import LEVELS, categories, standardised
from fanfold.tables import columns_in_words

if TYPE_CHECKING:
    from fanfold.studies.neuro.tables import Frame

Array = NDArray[Any]
#: The share of a column that must be numbers, or dates, for the rest to count as missing.
MOSTLY = 0.9
#: Rows that are looked at for columns that tell the answer, and those of the rarer classes that must be among them.
LOOKED, RARER = 10_000, 10
#: The share of the rarer classes that such a column may miss, and the correlation of its order with that of numbers.
MISSED, ORDERED = 0.01, 0.999
_OTHER_DATES = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b.*")
_NUMBERING = re.compile(r"(.*[ _-])?(id|index|idx|nr|row|rowid|key|uuid)|unnamed: \d+|", re.IGNORECASE)
#: Where PassengerId and customerID become two words.
_JOINED = re.compile(r"([a-z])(I[Dd])$")


def ignore(*names: str) -> str:
    """The option that leaves these columns out, as a shell takes it."""
    return f"--ignore {shlex.quote(','.join(_quoted(name) for name in names))}"


def _quoted(name: str) -> str:
    return f'"{name}"' if "," in name else name


def useless(where: str, name: str, values: Any, rich: bool) -> str:
    """Why a column of a file is left out; a key of what `fitted` lists, or empty."""
    numeric = isinstance(values, np.ndarray) and values.dtype.kind in "buif"
    present = values[np.isfinite(values)] if numeric else [value for value in values if not missing(value)]
    distinct = len(np.unique(present)) if numeric else len({level(value) for value in present})
    if distinct <= 1 and len(present) in (0, len(values)):
        return "always the same" if len(present) else "empty"
    return "numbers of the rows without a name" if _numbering(where, name, present, distinct, rich) else ""


def _numbering(where: str, name: str, present: Sequence[Any], distinct: int, rich: bool) -> bool:
    """Whether a column without a name numbers the rows; one with a name, which would be learnt by heart, is refused."""
    if not isinstance(present, np.ndarray) and any(isinstance(v, list | dict | tuple | set) for v in present):
        raise ConfigError(
            f"{where}: the column {name!r} holds lists or objects: make columns of them, or leave it out "
            f"({ignore(name)})"
        )
    plain = _JOINED.sub(r"\1 \2", name.strip()) if rich else name.strip()
    if distinct < len(present) or distinct < FEWEST or not (named := _NUMBERING.fullmatch(plain)):
        return False
    numbers = Column(name, "number").numbers(present)
    if np.isfinite(numbers).all() and (np.mod(numbers, 1) != 0).any():
        return False
    if named[2]:
        raise ConfigError(
            f"{where}: the column {name!r} numbers the rows, which says nothing: {ignore(name)}, or rename it if it "
            "does say something"
        )
    return True


def column_of(frame: Frame, name: str, train: Array, rich: bool) -> tuple[Column, str]:
    """What a column is, by all of its values; and its levels and statistics, by those that are learnt from."""
    values: Sequence[Any] = frame.columns[name]
    if isinstance(values, np.ndarray) and values.dtype.kind in "buif":
        return standardised(Column(name, "number", truths=values.dtype.kind == "b"), values, train, rich), ""
    present = [value for value in values if not missing(value)]
    order, decimal = date_order(present), decimal_of(present, frame.comma)
    truths = bool(present) and all(isinstance(value, bool | np.bool_) for value in present)
    kinds = [Column(name, "number", decimal=decimal, truths=truths), Column(name, "date")]
    for column in [*kinds, *([Column(name, "date", order=order)] if order else [])]:
        read = np.isfinite(column.numbers(present))
        if not present or read.mean() >= MOSTLY:
            if present and name in frame.declared and column.kind == "number" and not truths:
                return categories(name, values, train, rich)
            odd = [value for value, fine in zip(present, read) if not fine]
            count = f"{len(odd)} text{'s' if len(odd) > 1 else ''} such as {sample(odd)}"
            note = f"in {name!r}, {count} {'count' if len(odd) > 1 else 'counts'} as missing" if odd else ""
            notes = points_said(name, present, column.decimal)
            if column.order != "ymd":
                first = "the day" if order == "dmy" else "the month"
                notes.append(f"{name!r} has dates such as {sample(present)}, {first} first")
            return standardised(column, values, train, rich), "; ".join(filter(None, (*notes, note)))
    _check_known(frame.name, name, present, decimal)
    return categories(name, values, train, rich)


def _check_known(where: str, name: str, present: Sequence[Any], decimal: str) -> None:
    """Refuse dates that cannot be told, and texts that hardly come again."""
    texts = [level(value) for value in present]
    if sum(bool(_OTHER_DATES.fullmatch(text)) for text in texts) >= MOSTLY * len(texts):
        raise ConfigError(
            f"{where}: the column {name!r} holds dates such as {sample(texts)}, which do not tell day from month or "
            f"have years of two digits: write them as 2026-01-31, or leave it out ({ignore(name)})"
        )
    distinct = len(set(texts))
    if distinct > LEVELS and 2 * distinct > len(texts):
        if hasattr(present[0], "to_timestamp"):
            raise ConfigError(
                f"{where}: the column {name!r} holds periods such as {sample(texts)}: make dates of them "
                f"(frame[{name!r}].dt.to_timestamp()), or leave it out ({ignore(name)})"
            )
        read = np.isfinite(Column(name, "number", decimal=decimal).numbers(present))
        odd = [value for value, fine in zip(present, read) if not fine]
        if read.mean() >= 0.5:
            raise ConfigError(
                f"{where}: the column {name!r} holds numbers, but also {len(odd):,} texts such as {sample(odd)}: make "
                f"numbers of them or leave them empty, or leave it out ({ignore(name)})"
            )
        if measured(texts):
            raise ConfigError(
                f"{where}: the column {name!r} holds numbers with a unit, such as {sample(texts)}: write plain "
                f"numbers, or leave it out ({ignore(name)})"
            )
        raise ConfigError(
            f"{where}: the column {name!r} has {distinct:,} different texts in {len(texts):,} rows, such as "
            f"{sample(texts)}: that is learnt by heart; make categories of it, or leave it out ({ignore(name)})"
        )


def telling(encoder: TableEncoder, features: Array, answers: Answers, train: Array) -> list[str]:
    """That columns alone tell what is to be predicted: often they are known only after it."""
    if answers.kind == "labels" or len(answers.columns) > 1:
        return []
    rows = np.random.default_rng(0).permutation(train)[:LOOKED]  # of equals, neighbours in the file say nothing
    names, first = [], 0
    for column in encoder.columns:
        block = features[rows, first : first + len(column.features)].astype(np.float64)
        first += block.shape[1]
        if column.kind == "category":
            values = block @ np.arange(1, block.shape[1] + 1)
        else:
            values = block[:, 0].copy()
            values[(block[:, -1] > 0) & column.marked] = values.min() - np.ptp(values) - 1
        if _tells(values, answers.values[rows]):
            names.append(column.name)
    text = f"{columns_in_words(map(repr, names))} alone {'tell' if len(names) > 1 else 'tells'} {answers.columns[0]!r}"
    return [f"{text} of nearly all rows: if known only afterwards, {ignore(*names)}"] if names else []


def _tells(values: Array, wanted: Array) -> bool:
    """Whether rows with the nearest values are of one class, or the values are in the order of the numbers."""
    order = np.argsort(values, kind="stable")
    values, wanted = values[order], wanted[order]
    if wanted.ndim > 1:
        ranks = np.argsort(np.argsort(wanted[:, 0], kind="stable"))
        return bool(abs(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1]) >= ORDERED)
    steps = np.concatenate([[np.inf], np.diff(values), [np.inf]])
    nearest = np.arange(len(values)) + np.where(steps[:-1] <= steps[1:], -1, 1)
    rarer = len(wanted) - np.bincount(wanted).max()
    return bool(rarer >= RARER and (wanted != wanted[nearest]).sum() <= MISSED * rarer)
