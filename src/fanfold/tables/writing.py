"""Rows written one after the other: JSON lines, CSV, Parquet."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import msgspec

from fanfold.errors import MissingExtra
from fanfold.texts import printable_json

#: Rows of a Parquet file that are written together.
GROUP = 5000

_encoder = msgspec.json.Encoder(enc_hook=str)


def write_rows(
    rows: Iterable[Mapping[str, Any]],
    format: str,
    file: IO[bytes],
    kinds: Mapping[str, Any] | None = None,
    delimiter: str = ",",
) -> int:
    """Write rows to a file as `jsonl`, `json` (one array), `csv`, `tsv` or `parquet`, and return their number.

    `kinds` are the columns of CSV and Parquet with their types, of Python or of Arrow.  Nested values become JSON
    there, unless they are of an Arrow type.
    """
    if format == "jsonl":
        return _write_jsonl(rows, file)
    if format == "json":
        return _write_json(rows, file)
    columns = kinds or {}
    if format == "parquet":
        return _write_parquet(iter(rows), columns, file)
    return _write_csv(rows, columns, file, "\t" if format == "tsv" else delimiter)


def kinds_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, type[Any] | None]:
    """The columns of rows in the order in which they appear, and the type that fits all values of each, if any."""
    kinds: dict[str, type[Any] | None] = {}
    for row in rows:
        for name, value in row.items():
            known = kinds.setdefault(name, None)
            if value is None:
                continue
            kind = _kind(value)
            if known is not kind:
                both_numbers = known in (int, float) and kind in (int, float)
                kinds[name] = kind if known is None else float if both_numbers else str
    return kinds


def fitted(value: Any, kind: Any) -> Any:
    """A value of a flat row as its column's type."""
    if value is None or not isinstance(kind, type) or isinstance(value, kind):
        return value
    return as_json(value) if kind is str else kind(value)


def as_json(value: Any) -> str:
    return _encoder.encode(value).decode()


def _kind(value: Any) -> type[Any]:
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return str  # more than a column of integers can hold
    return type(value) if isinstance(value, bool | int | float) else str


def _write_jsonl(rows: Iterable[Mapping[str, Any]], file: IO[bytes]) -> int:
    count = 0
    for row in rows:
        file.write(printable_json(as_json(row)).encode() + b"\n")
        count += 1
    return count


def _write_json(rows: Iterable[Mapping[str, Any]], file: IO[bytes]) -> int:
    """One array, with a line for each row."""
    count = 0
    for count, row in enumerate(rows, 1):
        file.write((",\n" if count > 1 else "[\n").encode() + printable_json(as_json(row)).encode())
    file.write(b"\n]\n" if count else b"[]\n")
    return count


def _write_csv(rows: Iterable[Mapping[str, Any]], kinds: Mapping[str, Any], file: IO[bytes], delimiter: str) -> int:
    import csv

    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        writer = csv.DictWriter(text, list(kinds), lineterminator="\n", extrasaction="ignore", delimiter=delimiter)
        writer.writeheader()
        count = 0
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})
            count += 1
        return count
    finally:
        text.detach()  # the file belongs to the caller


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return as_json(value) if isinstance(value, dict | list) else value


def _write_parquet(rows: Iterator[Mapping[str, Any]], kinds: Mapping[str, Any], file: IO[bytes]) -> int:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", "writing Parquet") from None

    types: dict[Any, Any] = {
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
        str: pyarrow.string(),
    }
    schema = pyarrow.schema([(name, types.get(kind, kind)) for name, kind in kinds.items()])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(itertools.islice(rows, GROUP)):
            columns = {name: [fitted(row.get(name), kind) for row in group] for name, kind in kinds.items()}
            writer.write_table(pyarrow.table(columns, schema=schema))
            count += len(group)
    return count
