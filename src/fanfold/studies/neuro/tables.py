"""Tables to learn from: what each column is, and what cannot work, said before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError
from fanfold.studies.neuro.answers import Answers, answers_of, divided, sample
from fanfold.studies.neuro.columns import Column, TableEncoder, by_column, collected, missing
from fanfold.studies.neuro.data import Data, Part, assembled
from fanfold.studies.neuro.genome import Shape
from fanfold.studies.neuro.images import Images, array, counted, unmasked
from fanfold.studies.neuro.inference import column_of, ignore, telling, useless
from fanfold.studies.neuro.scales import declared
from fanfold.studies.neuro.splits import size_of, split, strata
from fanfold.tables import columns_in_words, open_table, spreadsheet_encoding
from fanfold.tables.encodings import WESTERN

Array = NDArray[Any]
#: Rows below which a fifth is set aside for each purpose, and a tenth above.
FEW = 2000
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class TableOptions:
    """How data are read: what is predicted and as what, what is left out, and what the file's bytes were.

    `features` are `rich`, or `plain` as in runs that were begun when there was nothing else.
    """

    predict: tuple[str, ...] = ()
    predict_as: str = "auto"
    ignore: tuple[str, ...] = ()
    encoding: str | None = None
    kind: str = "auto"
    stamp: str = ""
    features: str = "plain"

    def __repr__(self) -> str:
        """What evaluations are told apart by; of plain features, as when there was nothing else."""
        names = [each.name for each in fields(self) if each.name != "features" or self.features != "plain"]
        return f"TableOptions({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, eq=False)
class Frame:
    """A table by its columns.  `comma`: its columns are not separated by commas, which may be decimal points.

    The columns `declared` are categories, whatever they hold.
    """

    name: str
    columns: Mapping[str, Any]
    comma: bool = False
    inferred: str = ""
    declared: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def take(self, index: Array) -> dict[str, Any]:
        return {
            name: values[index] if isinstance(values, np.ndarray) else [values[row] for row in index]
            for name, values in self.columns.items()
        }


def read(name: str, encoding: str | None) -> Frame:
    """The columns of a file."""
    table = open_table(name, encoding=encoding)
    rows = [row for row, _ in table]
    if not rows:
        raise ConfigError(f"{name} has no rows: a first line with names, and a line for each row")
    names = dict.fromkeys(column for row in rows for column in row)
    if table.format == "csv":
        _check_names(name, list(names))
    comma = table.delimiter != ","
    columns = {column: _quick([row.get(column) for row in rows], comma) for column in names}
    return Frame(name, columns, comma, table.inferred)


def _check_names(where: str, names: Sequence[str]) -> None:
    """Refuse a first line that is a row: names may be numbers such as years, but then they count up or down."""
    named = [name for name in names if _NUMBER.fullmatch(name.strip())]
    numbers = [float(name) for name in named]
    steps = {b > a for a, b in pairwise(numbers) if a != b}
    if any(number % 1 for number in numbers) or len(steps) > 1 or len(set(numbers)) < len(numbers):
        raise ConfigError(
            f"{where}: the first line must hold the names of the columns, and {sample(named)} is a value: write a "
            "line of names above it"
        )


def _quick(values: list[Any], comma: bool) -> Any:
    """A column of nothing but plain numbers and gaps as an array, which is read many times as fast."""
    if not isinstance(values[0], str):
        return values
    try:
        if any("_" in value for value in values) or (comma and divided(values)):
            return values
        return np.array(["nan" if value == "" else value for value in values], np.float64)
    except (TypeError, ValueError):
        return values


def _encoding(path: Path, rich: bool) -> str | None:
    """The encoding of an old spreadsheet; runs of plain features took each for one of Western Europe."""
    try:
        return spreadsheet_encoding(path)
    except ConfigError:
        if rich:
            raise
        return WESTERN


def load(
    options: TableOptions, *, name: str, validation: float | int | None, test: float | int | None, seed: int
) -> Data:
    """The table of that name, as networks learn it."""
    frame = read(name, options.encoding or _encoding(Path(name), options.features == "rich"))
    unknown = [column for column in options.ignore if column not in frame.columns]
    if unknown:
        raise ConfigError(f"{name}: there is no column {unknown[0]!r} to ignore; there are {', '.join(frame.columns)}")
    columns = {column: values for column, values in frame.columns.items() if column not in options.ignore}
    answers = answers_of(name, columns, options.predict, options.predict_as, frame.comma)
    seen = {column: values for column, values in columns.items() if column not in answers.columns}
    kept = Frame(name, Frame(name, seen).take(answers.rows), frame.comma)
    share = 0.2 if len(kept) < FEW else 0.1
    counts = [
        size_of(part, share if value is None else value, len(kept), name)
        for part, value in (("validation", validation), ("test", test))
    ]
    index = split(strata(answers.values, answers.kind), counts, seed, name)
    notes = [f"of {Path(name).name}, {frame.inferred}"] if frame.inferred else []
    notes = [f"{note} (--encoding)" if "encoding" in note else note for note in notes]
    return _data(kept, answers, index, strict=True, rich=options.features == "rich", notes=notes)


def from_rows(
    x: Any,
    y: Any,
    *,
    validation: Part,
    test: Part,
    seed: int,
    name: str,
    classes: int | Sequence[str] | None = None,
    target: str = "auto",
    weights: Any = None,
) -> Data:
    """Rows of (n, features), or a frame of pandas or polars, and what is to be said of each."""
    pairs = [(x, y), *(part for part in (validation, test) if isinstance(part, tuple))]
    frames = [_frame(rows, name) for rows, _ in pairs]
    columns: dict[str, Any] = {}
    for column in frames[0].columns:
        if any(column not in frame.columns for frame in frames):
            raise ConfigError(f"{name}: a separate part has no column {column!r}: give all parts the same columns")
        columns[column] = [value for frame in frames for value in frame.columns[column]]
        if all(isinstance(frame.columns[column], np.ndarray) for frame in frames):
            columns[column] = np.concatenate([np.asarray(frame.columns[column]) for frame in frames])
    answered = [array(labels, name) for _, labels in pairs]
    answered = [rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows for rows in answered]
    if len({rows.shape[1:] for rows in answered}) > 1:
        raise ConfigError(f"{name}: a separate part has answers of another shape: give each row as many in all parts")
    wanted = np.concatenate(answered)
    if len(wanted) != len(next(iter(columns.values()), ())):
        raise ConfigError(f"{name}: {len(frames[0])} rows, but labels of {np.shape(y)}: give one label for each")
    answers = Answers.of_array(wanted, target, classes, name)
    n, ends = len(frames[0]), np.cumsum([len(frame) for frame in frames])
    counts = [
        0 if isinstance(value, tuple) else size_of(part, value, n, name)
        for part, value in (("validation", validation), ("test", test))
    ]
    index = split(strata(answers.values[:n], answers.kind), counts, seed, name)
    spans = iter([np.arange(first, last) for first, last in pairwise(ends)])
    index = [index[0], *(next(spans) if isinstance(v, tuple) else i for v, i in zip((validation, test), index[1:]))]
    if weights is not None:  # of the rows in `x`; separate parts are not learnt from
        weights = np.append(counted(weights, n, name), np.ones(len(wanted) - n, np.float32))
    categories = frozenset[str]().union(*(frame.declared for frame in frames))
    return _data(Frame(name, columns, declared=categories), answers, index, weights=weights)


def _frame(rows: Any, name: str) -> Frame:
    rows = collected(rows)
    columns = _columns(rows, name)
    if len({len(values) for values in columns.values()}) > 1:
        raise ConfigError(f"{name}: columns of different lengths: give every row a value in each, or None")
    return Frame(name, columns, declared=declared(rows))


def _columns(rows: Any, name: str) -> Mapping[str, Any]:
    """The columns of rows in any of the usual forms."""
    if isinstance(rows, Mapping):
        return {str(column): unmasked(values) for column, values in rows.items()}
    if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
        return by_column(rows, list(dict.fromkeys(column for row in rows for column in row)))
    if hasattr(rows, "columns"):
        names = [str(column) for column in rows.columns]
        if repeated := [column for column in names if names.count(column) > 1]:
            raise ConfigError(f"{name}: two columns are called {repeated[0]!r}: rename one")
        return by_column(rows, names)
    if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.dtype.kind in "OUT":
        return {f"x{place}": rows[:, place].tolist() for place in range(rows.shape[1])}
    table = array(rows, name)
    if table.ndim != 2 or not table.size:
        raise ConfigError(f"{name}: rows must be of (n, features), not of {table.shape}")
    if np.isinf(table).any():
        raise ConfigError(f"{name}: a row holds infinity: leave it out, or fill the gap")
    return {f"x{place}": table[:, place] for place in range(table.shape[1])}


def _data(
    frame: Frame,
    answers: Answers,
    index: Sequence[Array],
    *,
    weights: Any = None,
    strict: bool = False,
    rich: bool = True,
    notes: Sequence[str] = (),
) -> Data:
    encoder, dropped = fitted(frame, index[0], strict, rich)
    features = encoder.encode(frame.columns)
    rows = Images(features[:, :, None, None], answers.values, weights)
    shape = Shape(features.shape[1], 1, 1, len(answers.names), "table", answers.kind)
    train, validation, test = (rows.take(part) for part in index)
    text = f"{answers.text} from {_kinds(frame, encoder)}, {len(frame):,} rows"
    remarks: tuple[str, ...] = ()
    if strict:
        told = telling(encoder, features, answers, index[0])
        remarks = (f"{text} (--predict, --predict-as, --ignore)", *answers.notes, *dropped, *told, *notes)
    return assembled(frame.name, (train, validation, test), shape, answers.names, table=encoder, remarks=remarks)


def _kinds(frame: Frame, encoder: TableEncoder) -> str:
    kinds = [column.kind for column in encoder.columns]
    plurals = {"number": "numbers", "category": "categories", "date": "dates"}
    counts = [
        f"{count} {kind if count == 1 else plural}" for kind, plural in plurals.items() if (count := kinds.count(kind))
    ]
    share = float(np.mean([_gaps(column, frame.columns[column.name]) for column in encoder.columns]))
    return ", ".join([*counts, *([f"{max(1, round(100 * share))} % missing"] if share else [])])


def _gaps(column: Column, values: Any) -> float:
    """The share of values that say nothing."""
    if column.kind == "category":
        return float(np.mean([missing(value) for value in values]))
    return float(np.mean(~np.isfinite(column.numbers(values))))


def fitted(frame: Frame, train: Array, strict: bool = False, rich: bool = True) -> tuple[TableEncoder, list[str]]:
    """How the columns are encoded, learnt from the training part, and what was left out.

    With `strict`, the columns have names that people gave: what cannot help is refused.  Without `rich`, they are
    encoded as before frequent levels, long tails and parts of dates had features of their own.
    """
    columns: list[Column] = []
    dropped: dict[str, list[str]] = {"empty": [], "always the same": [], "numbers of the rows without a name": []}
    notes: list[str] = []
    refused: dict[str, ConfigError] = {}
    for name, values in frame.columns.items():
        try:
            if strict and (reason := useless(frame.name, name, values, rich)):
                dropped[reason].append(name or "the first")
                continue
            column, note = column_of(frame, name, train, rich)
        except ConfigError as error:
            refused[name] = error
            continue
        columns.append(column)
        notes += [note] if note else []
    if refused:
        raise _refusal(refused)
    for why, names in dropped.items():
        if names:
            notes.append(f"left out, because they are {why}: {', '.join(names)}")
    if not columns:
        raise ConfigError(f"{frame.name}: no column is left to predict from ({'; '.join(notes)})")
    return TableEncoder(tuple(columns)), notes


def _refusal(refused: Mapping[str, ConfigError]) -> ConfigError:
    """What is wrong with the first column, and how to leave out all that cannot be used."""
    first, *others = refused
    if not others:
        return refused[first]
    return ConfigError(
        f"{refused[first]}. Nor can {columns_in_words(map(repr, others))} be used: "
        f"{ignore(*refused)} leaves out all of them"
    )
