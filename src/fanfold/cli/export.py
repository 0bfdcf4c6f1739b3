"""`fanfold export`: the rows of a run as JSON lines, CSV or Parquet, one after the other in flat memory."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fanfold.cli.output import (
    examples,
    ledger_option,
    machine_readable,
    newest_run_argument,
    output_options,
    print_json,
    say,
)
from fanfold.errors import ConfigError, nearest
from fanfold.files import replacing
from fanfold.texts import number, printable, spreadsheet_cell

if TYPE_CHECKING:
    from fanfold.ledger import RunView
    from fanfold.ledger.frame import Row, Rows


@click.command(
    short_help="Write trials or evaluations as JSON lines, CSV or Parquet.",
    epilog=examples(
        "fanfold export last -o trials.csv",
        "fanfold export first-try --rows evaluations -o evaluations.parquet",
        "fanfold export last --rows messages -o messages.csv     (of the study `secrets`)",
        "fanfold export last --format jsonl | head",
    ),
)
@newest_run_argument
@click.option(
    "--format", "kind", type=click.Choice(["jsonl", "csv", "parquet"]), help="[default: by FILE's ending, or jsonl]"
)
@click.option("-o", "--output", metavar="FILE", default="-", help="Where to write; - is stdout.  [default: -]")
@click.option("--rows", metavar="TABLE", help="trials, evaluations, or a table of the study's own.  [default: trials]")
@click.option("--evaluations", is_flag=True, help="The same as --rows evaluations.")
@ledger_option
@output_options
def export(name: str, kind: str | None, output: str, rows: str | None, evaluations: bool, ledger: str) -> None:
    """Write the trials of RUN, one row each, in the order in which they were told; or another of its tables.

    In CSV and Parquet a candidate that is a dict has one column for each key (candidate.x); other nested values are
    JSON. In CSV a text that a spreadsheet would take for a formula has an apostrophe in front.
    """
    from fanfold.ledger import RunView
    from fanfold.ledger.frame import flat
    from fanfold.tables import write_rows

    kind = kind or _guess(output)
    if kind == "parquet" and output == "-" and sys.stdout.isatty():
        raise ConfigError("Parquet is not for a terminal: give a file with -o")
    if evaluations and rows not in (None, "evaluations"):
        raise ConfigError(f"--evaluations and --rows {rows} name two tables: give one of them")
    with RunView.open(ledger, name) as view:
        run = view.name
        read, columns = _table(view, "evaluations" if evaluations else rows or "trials")
        kinds = {} if kind == "jsonl" else columns()
        sums = Sums()
        told = map(sums.add, read())
        written = told if kind == "jsonl" else map(flat, told)
        with opened(output) as file:
            count = write_rows(map(_safe, written) if kind == "csv" else written, kind, file, kinds)
        rest = view.info.cost - sums.cost if rows in (None, "trials", "evaluations") else 0.0
        rest = rest if rest > 1e-9 * sums.cost else 0.0
    if output != "-":
        if machine_readable():
            print_json({"run": run, "file": output, "format": kind, "rows": count, "cost_not_in_rows": rest})
        say(f"{output}: {count} rows")
        if rest:
            say(f"not in these rows: {number(rest)} that the run paid for evaluations cut off or not told")


class Sums:
    """What the rows that pass by cost together."""

    def __init__(self) -> None:
        self.cost = 0.0

    def add(self, row: Row) -> Row:
        self.cost += row.get("cost") or 0.0
        return row


def _table(view: RunView, name: str) -> tuple[Callable[[], Iterator[Row]], Callable[[], dict[str, type[Any]]]]:
    """How the rows of a table are read, and how its columns are found: the engine's, or those of the study's own."""
    from fanfold.ledger.frame import KINDS, columns_of, flat, rows_of
    from fanfold.plugins import presentation_of
    from fanfold.tables.writing import kinds_of

    if name in KINDS:
        own: Rows = name
        return lambda: rows_of(view, own), lambda: columns_of(view, own)
    tables = presentation_of(view.info.meta).tables
    if name not in tables:
        raise ConfigError(f"run {view.name!r} has no rows {name!r}{nearest(name, [*KINDS, *tables])}")

    def read() -> Iterator[Row]:
        return (dict(row) for row in tables[name](view))

    return read, lambda: {column: kind or str for column, kind in kinds_of(map(flat, read())).items()}


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
