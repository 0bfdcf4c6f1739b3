"""How the values of a column become features: levels, scales and parts of dates, learnt from the training rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.studies.neuro.columns import Column, level, missing, part_of
from fanfold.studies.neuro.images import units_of

Array = NDArray[Any]
#: Levels that get a feature each, and the features that more of them share.
LEVELS, BUCKETS = 30, 64
#: More levels get a feature each if so many rows have them: at most so many, and so many values of a table.
SEEN, MOST, VALUES = 4, 256, 2**25
#: Deviations from the mean, or widths of the middle half, from which on a column has long tails.
TAILS = 8.0
#: Numbers of a column with long tails whose ranks are kept: at most twice so many.
KNOTS = 64
#: Days from which on dates are in different parts of the year.
APART = 28


def declared(rows: Any) -> frozenset[str]:
    """The columns that a frame of pandas or polars holds as categories.  Those in an order say more than a name."""
    if not hasattr(rows, "columns") or not hasattr(rows, "dtypes"):
        return frozenset()
    kinds = [str(kind).partition("(")[0].casefold() for kind in rows.dtypes]
    ordered = [bool(getattr(kind, "ordered", False)) for kind in rows.dtypes]
    return frozenset(
        str(name)
        for name, kind, order in zip(rows.columns, kinds, ordered)
        if kind in ("category", "categorical", "enum") and not order
    )


def categories(name: str, values: Sequence[Any], train: Array, rich: bool) -> tuple[Column, str]:
    """The levels of a column of texts, and what to know if they are many."""
    learnt = [values[row] for row in train]
    marked = any(map(missing, learnt))
    counts = Counter(level(value) for value in learnt if not missing(value))
    if len(counts) <= LEVELS:
        return Column(name, "category", levels=tuple(sorted(counts)) or ("",), marked=marked), ""
    most = min(MOST, max(LEVELS, VALUES // len(values))) if rich else 0
    frequent = sorted((text for text in counts if counts[text] >= SEEN), key=lambda text: (-counts[text], text))[:most]
    buckets = BUCKETS if len(frequent) < len(counts) else 0
    column = Column(name, "category", levels=tuple(sorted(frequent)), buckets=buckets, marked=marked)
    distinct = len({level(value) for value in values if not missing(value)})
    if not buckets:
        return column, ""
    others = f"which share {BUCKETS} features"
    if frequent:
        others = f"of which the {len(frequent)} most frequent have a feature each, and the others share {BUCKETS}"
    return column, f"{name!r} has {distinct} categories, {others}"


def standardised(column: Column, values: Sequence[Any], train: Array, rich: bool) -> Column:
    """The column with its scale, by the numbers that are learnt from."""
    numbers = column.numbers(values)[train]
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        return column
    ((mean, scale),) = units_of(known[:, None])
    column = replace(column, mean=mean, scale=scale, marked=len(known) < len(numbers))
    if rich and column.kind == "date":
        column = replace(column, parts=_parts(known))
    low, middle, high = np.quantile(known, (0.25, 0.5, 0.75))
    if rich and len(np.unique(known)) > LEVELS:
        far = np.abs(known - middle).max() > TAILS * (high - low)
        return _ranked(column, known) if far or np.abs(known - mean).max() > TAILS * scale else column
    if np.abs(known - mean).max() > TAILS * scale and high > low:
        return replace(column, mean=float(middle), scale=float(high - low), bent=True)
    return column


def _ranked(column: Column, known: Array) -> Column:
    """A column with long tails: a number counts by how many are below it, and half of those that are equal."""
    # By rows, so that what many rows hold has a rank; by distinct numbers, so that the others are told apart.
    places = (np.arange(KNOTS) + 0.5) / KNOTS
    knots = np.unique([np.quantile(each, places, method="nearest") for each in (known, np.unique(known))])
    ordered = np.sort(known)
    below = (np.searchsorted(ordered, knots, "left") + np.searchsorted(ordered, knots, "right")) / 2
    return replace(column, knots=tuple(knots.tolist()), ranks=tuple((below / len(known)).tolist()))


def _parts(days: Array) -> tuple[str, ...]:
    """The parts of the calendar in which dates differ."""
    parts = ["year"] if np.ptp(days) >= APART else []
    parts += [part for part in ("week", "day") if np.ptp(part_of(days, part)) > 0]
    return tuple(parts)
