"""`fanfold export`: the trials or evaluations of a run as JSON lines, CSV or Parquet, row by row in flat memory."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
from array import array
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import click

from fanfold.cli.output import examples, ledger_option, machine_readable, output_options, print_json, run_argument, say
from fanfold.errors import ConfigError, MissingExtra
from fanfold.files import replacing
from fanfold.texts import printable, printable_json, spreadsheet_cell

if TYPE_CHECKING:
    from fanfold.ledger import Ledger

Row: TypeAlias = dict[str, Any]

GROUP = 5000
PAGE = 1000
_TRIALS = """
    SELECT number, told, score, dropped, cost, evaluations, (
        SELECT count(*) FROM evaluation e WHERE e.run = t.run AND e.trial = t.number AND e.failure IS NOT NULL
    ), candidate FROM trial t WHERE run = ? AND number IN (SELECT value FROM json_each(?)) ORDER BY told
"""
_EVALUATIONS = """
    SELECT e.position, e.trial, c.id, e.score, CAST(e.failure AS BLOB), CAST(e.message AS BLOB), e.cost, e.started,
        e.seconds, e.tries, e.reused, CAST(e.data AS BLOB)
    FROM evaluation e JOIN run_case c ON c.run = e.run AND c.position = e.position
    WHERE e.run = ? AND (e.trial, e.position) > (?, ?) ORDER BY e.trial, e.position LIMIT ?
"""
_TRIAL_KINDS: dict[str, type[Any]] = {
    "number": int, "order": int, "score": float, "dropped": str, "cost": float, "evaluations": int, "failures": int,
}  # fmt: skip
_EVALUATION_KINDS: dict[str, type[Any]] = {
    "trial": int, "case": str, "score": float, "failure": str, "message": str, "cost": float, "started": float,
    "seconds": float, "tries": int, "reused": bool, "data": str,
}  # fmt: skip


@click.command(
    short_help="Write trials or evaluations as JSON lines, CSV or Parquet.",
    epilog=examples(
        "fanfold export last -o trials.csv",
        "fanfold export first-try --evaluations -o evaluations.parquet",
        "fanfold export last --format jsonl | head",
    ),
)
@run_argument
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "csv", "parquet"]), help="[default: by FILE's ending, or jsonl]"
)
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write; - is stdout.  [default: -]")
@click.option("--evaluations", is_flag=True, help="One row for each evaluation instead of each trial.")
@ledger_option
@output_options
def export(name: str, kind: str | None, output: str, evaluations: bool, ledger: str) -> None:
    """Write the trials of RUN, one row each, in the order in which they were told.

    In CSV and Parquet a candidate that is a dict has one column for each key (candidate.x); other nested values are
    JSON. In CSV a text that a spreadsheet would take for a formula has an apostrophe in front.
    """
    from fanfold.ledger import Ledger
    from fanfold.report import find_run

    kind = kind or _guess(output)
    if kind == "parquet" and output == "-" and sys.stdout.isatty():
        raise ConfigError("Parquet is not for a terminal: give a file with -o")
    with Ledger(ledger, readonly=True) as opened:
        info = find_run(opened, name)

        read = _evaluations if evaluations else _trials
        kinds = {} if kind == "jsonl" else _EVALUATION_KINDS if evaluations else _trial_kinds(read(opened, info.id))
        # A reader that goes away (`| head`) must not leave the query open behind a closed ledger.
        with _opened(output) as file, contextlib.closing(read(opened, info.id)) as rows:
            if kind == "jsonl":
                count = _write_jsonl(rows, file)
            elif kind == "csv":
                count = _write_csv(map(_flat, rows), kinds, file)
            else:
                count = _write_parquet(map(_flat, rows), kinds, file)
    if output != "-":
        if machine_readable():
            print_json({"run": info.name, "file": output, "format": kind, "rows": count})
        say(f"{output}: {count} rows")


def _guess(output: str) -> str:
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
    if output == "-":
        return "jsonl"
    found = endings.get(Path(output).suffix.lower())
    if found is None:
        raise ConfigError(f"the ending of {output} names no format: say --format jsonl, csv or parquet")
    return found


@contextlib.contextmanager
def _opened(output: str) -> Iterator[IO[bytes]]:
    """The place to write to.  A file appears under its name only when it is whole."""
    if output == "-":
        stream: IO[bytes] = sys.stdout.buffer
        yield _Screen(stream) if sys.stdout.isatty() else stream  # type: ignore[misc]
        stream.flush()
        return
    try:
        with replacing(Path(output)) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}; give another file with -o") from error


class _Screen(io.RawIOBase):
    """A terminal: it is given whole texts, without what it would obey.  Files and pipes get the bytes as they are."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(printable(bytes(data).decode(errors="backslashreplace")).encode())
        return len(data)


# Rows are read in pages, each in full: a reader that pauses (`| less`) in the middle of a query would keep a run that
# works on the same file from clearing its write-ahead log.


def _trials(ledger: Ledger, run: int) -> Generator[Row, None, None]:
    told = "SELECT number FROM trial WHERE run = ? AND told IS NOT NULL ORDER BY told"
    numbers = array("q", (number for (number,) in ledger.read(told, (run,))))
    for first in range(0, len(numbers), PAGE):
        page = str(numbers[first : first + PAGE].tolist())
        for *values, candidate in list(ledger.read(_TRIALS, (run, page))):
            row = _row(_TRIAL_KINDS, values)
            found = ledger.value(candidate, blobs=False, what=f"trial {row['number']} of run {run}")
            yield {**row, "candidate": found}


def _evaluations(ledger: Ledger, run: int) -> Generator[Row, None, None]:
    last = (-1, -1)
    while page := list(ledger.read(_EVALUATIONS, (run, *last, PAGE))):
        last = (page[-1][1], page[-1][0])
        for _, *values, reused, data in page:
            row = _row(_EVALUATION_KINDS, values)
            yield {**row, "reused": bool(reused), "data": None if data is None else _value(data)}


def _row(kinds: dict[str, type[Any]], values: Iterable[Any]) -> Row:
    return {name: _readable(kind, value) for (name, kind), value in zip(kinds.items(), values)}


def _readable(kind: type[Any], value: Any) -> Any:
    """A value of a row; one that is not of its kind, which an earlier version could write, counts as none."""
    if kind is str and isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, int | float if kind is float else kind) else None


def _value(data: bytes) -> Any:
    """The data of an outcome; its text where that is not JSON."""
    import msgspec

    from fanfold.encoding import decode

    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="replace")


def _write_jsonl(rows: Iterator[Row], file: IO[bytes]) -> int:
    import msgspec

    count = 0
    for row in rows:
        file.write(printable_json(msgspec.json.encode(row).decode()).encode() + b"\n")
        count += 1
    return count


def _write_csv(rows: Iterator[Row], kinds: dict[str, type[Any]], file: IO[bytes]) -> int:
    import csv

    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        writer = csv.DictWriter(text, list(kinds), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        count = 0
        for row in rows:
            writer.writerow({name: _cell(value) for name, value in row.items()})
            count += 1
        return count
    finally:
        text.detach()  # the file belongs to the caller


def _write_parquet(rows: Iterator[Row], kinds: dict[str, type[Any]], file: IO[bytes]) -> int:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", "exporting to Parquet") from None

    types = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(itertools.islice(rows, GROUP)):
            columns = {name: [_cast(row.get(name), kind) for row in group] for name, kind in kinds.items()}
            writer.write_table(pyarrow.table(columns, schema=schema))
            count += len(group)
    return count


def _flat(row: Row) -> Row:
    """A row of single values: the candidate's dicts spread over columns, everything else nested as JSON."""
    flat: Row = {}
    for name, value in row.items():
        _spread(name, value, flat, deep=name == "candidate")
    return flat


def _spread(name: str, value: Any, into: Row, deep: bool) -> None:
    if deep and isinstance(value, dict) and value:
        for key, item in value.items():
            _spread(f"{name}.{key}", item, into, deep)
    elif isinstance(value, dict | list) or (name == "data" and value is not None):
        into[name] = _json(value)
    else:
        into[name] = value


def _trial_kinds(rows: Iterable[Row]) -> dict[str, type[Any]]:
    """The columns of the trials and the type that fits all values of each: one pass, so that writing needs none."""
    kinds: dict[str, type[Any]] = {}
    for row in rows:
        for name, value in _flat(row).items():
            if value is None:
                continue
            kind, known = _kind(value), kinds.get(name)
            both_numbers = known in (int, float) and kind in (int, float)
            kinds[name] = kind if known in (None, kind) else float if both_numbers else str
    columns = sorted(name for name in kinds if name not in _TRIAL_KINDS)
    return {**_TRIAL_KINDS, **{name: kinds[name] for name in columns}}


def _kind(value: Any) -> type[Any]:
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return str  # more than a column of integers can hold
    return type(value)


def _cast(value: Any, kind: type[Any]) -> Any:
    if value is None or isinstance(value, kind):
        return value
    return _json(value) if kind is str else kind(value)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return spreadsheet_cell(value)
    return _json(value) if isinstance(value, bool) else value


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
