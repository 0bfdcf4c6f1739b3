"""`fanfold export`: the trials or evaluations of a run as JSON lines, CSV or Parquet, row by row in flat memory."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fanfold.cli.output import examples, ledger_option, machine_readable, output_options, print_json, run_argument, say
from fanfold.errors import ConfigError
from fanfold.files import replacing
from fanfold.texts import printable, spreadsheet_cell

if TYPE_CHECKING:
    from fanfold.ledger.frame import Row, Rows


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
    from fanfold.tables import write_rows

    kind = kind or _guess(output)
    if kind == "parquet" and output == "-" and sys.stdout.isatty():
        raise ConfigError("Parquet is not for a terminal: give a file with -o")
    table: Rows = "evaluations" if evaluations else "trials"
    with RunView.open(ledger, name) as view:
        run = view.name
        kinds = {} if kind == "jsonl" else columns_of(view, table)
        rows = rows_of(view, table)
        if kind != "jsonl":
            rows = map(flat, rows)
        with opened(output) as file:
            count = write_rows(map(_safe, rows) if kind == "csv" else rows, kind, file, kinds)
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
def opened(output: str) -> Iterator[IO[bytes]]:
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


def _safe(row: Row) -> Row:
    """A flat row whose texts no spreadsheet takes for formulas."""
    return {name: spreadsheet_cell(value) if isinstance(value, str) else value for name, value in row.items()}
