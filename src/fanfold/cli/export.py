"""`fanfold export`: the trials or evaluations of a run as JSON lines, CSV or Parquet, row by row in flat memory."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fanfold.cli.output import examples, ledger_option, machine_readable, output_options, print_json, run_argument, say
from fanfold.errors import ConfigError, MissingExtra
from fanfold.files import replacing
from fanfold.texts import printable, printable_json, spreadsheet_cell

if TYPE_CHECKING:
    from fanfold.ledger.frame import Row, Rows

GROUP = 5000


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
    from fanfold.ledger import RunView
    from fanfold.ledger.frame import columns_of, flat, rows_of

    kind = kind or _guess(output)
    if kind == "parquet" and output == "-" and sys.stdout.isatty():
        raise ConfigError("Parquet is not for a terminal: give a file with -o")
    table: Rows = "evaluations" if evaluations else "trials"
    with RunView.open(ledger, name) as view:
        run = view.name
        kinds = {} if kind == "jsonl" else columns_of(view, table)
        rows = rows_of(view, table)
        with _opened(output) as file:
            if kind == "jsonl":
                count = _write_jsonl(rows, file)
            elif kind == "csv":
                count = _write_csv(map(flat, rows), kinds, file)
            else:
                count = _write_parquet(map(flat, rows), kinds, file)
    if output != "-":
        if machine_readable():
            print_json({"run": run, "file": output, "format": kind, "rows": count})
        say(f"{output}: {count} rows")


def _guess(output: str) -> str:
    endings = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
    if output == "-":
        return "jsonl"
    kind = endings.get(Path(output).suffix.lower())
    if kind is None:
        raise ConfigError(f"the ending of {output} names no format: say --format jsonl, csv or parquet")
    return kind


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
    """A terminal.  It gets text without control characters; files and pipes get the bytes unchanged."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._stream.write(printable(bytes(data).decode(errors="backslashreplace")).encode())
        return len(data)


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

    from fanfold.ledger.frame import fitted

    types = {int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_(), str: pyarrow.string()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    count = 0
    with parquet.ParquetWriter(file, schema) as writer:
        while group := list(itertools.islice(rows, GROUP)):
            columns = {name: [fitted(row.get(name), kind) for row in group] for name, kind in kinds.items()}
            writer.write_table(pyarrow.table(columns, schema=schema))
            count += len(group)
    return count


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return spreadsheet_cell(value)
    return str(value).lower() if isinstance(value, bool) else value
