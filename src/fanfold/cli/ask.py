"""`fanfold ask`: one question to a model for every row of a table."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fanfold.cli.options import field_flags, run_flags, shell_options
from fanfold.cli.output import (
    examples,
    machine_readable,
    output_options,
    print_json,
    say,
    speak_aside,
    table,
)
from fanfold.config import describe, from_mapping
from fanfold.errors import ConfigError, FanfoldError
from fanfold.studies.ask.config import AskConfig

if TYPE_CHECKING:
    from fanfold.cli.options import ShellOptions
    from fanfold.rehearsal import Bound
    from fanfold.studies.ask.conclusion import AskOutput
    from fanfold.studies.ask.study import Asking
    from fanfold.tables import Table

#: Rows that are rehearsed for an estimate.
SAMPLE = 200
_FIELDS = tuple(field for field in describe(AskConfig) if field.name != "source")
#: Options of a search, and those that have another form here.
_NOT_HERE = ("max_trials", "max_evaluations", "target", "reuse", "seed", "retry_failed")


@click.command(
    short_help="Ask a model about every row of a table.",
    epilog=examples(
        "fanfold ask reviews.jsonl --prompt 'Translate: {text}' --model local/smollm2 -o out.jsonl",
        "fanfold ask reviews.csv --prompt @prompt.txt --model A,B --schema s.json -o out.csv --batch --max-cost 5",
        "fanfold ask reviews.csv --prompt 'Sum up: {text}' --model A --dry-run",
        "fanfold ask reviews.csv --prompt 'Sum up: {text}' --model A -o out.csv --failed",
        "cat names.txt | fanfold ask - --prompt 'Where is {text}?' --model A",
    ),
)
@click.argument("source", metavar="DATA")
@field_flags(_FIELDS)
@click.option("--dry-run", is_flag=True, help="Say what it would ask and cost; nothing is sent.")
@click.option("--failed", is_flag=True, help="Ask again about the rows that have an error.")
@click.option("--stream", is_flag=True, help="Write each row as soon as all rows before it are done.")
@run_flags(*_NOT_HERE)
@output_options
@click.pass_context
def ask(ctx: click.Context, /, source: str, dry_run: bool, failed: bool, stream: bool, **values: Any) -> None:
    """Ask one or more models about every row of DATA, and write every row with its answers.

    DATA is a file (.jsonl, .json, .csv, .tsv, .txt, .parquet), hf:NAME:SPLIT, a folder that a Hugging Face dataset was
    saved to, or - for standard input. The prompt names columns in braces. Rows keep their order and their columns. A
    row that could not be answered says why in the column `error`.

    Equal prompts are asked once. The same command continues where it was stopped and asks nothing again. It is a run
    of the study `ask`: `fanfold show`, `resume`, `report` and `export` work on it as on any other.
    """
    from fanfold.cli.target import check_addresses
    from fanfold.studies.ask.study import asking, run_options

    settings = {field.name: values[field.name] for field in _FIELDS if values.get(field.name) is not None}
    config = from_mapping(AskConfig, {"source": source, **settings}, "the command line")
    check_addresses({}, settings, "the command line")
    to_stdout = config.output in (None, "-")
    if to_stdout and not dry_run:
        if machine_readable():
            raise ConfigError("--json and rows on stdout do not go together: write the rows to a file with -o")
        speak_aside()
    with _rows_of(config) as rows:
        if dry_run:
            _plan(config, rows, values)
            return
        asked = asking(config, rows)
        _say_rows(config, asked)
        defaults = {**run_options(config), "run": asked.run, "cache": "refresh" if failed else "on"}
        options = shell_options({**values, "retry_failed": failed or None}, defaults, "ask")
        if to_stdout:
            _to_stdout(ctx, config, asked, options, stream)
        else:
            _to_file(ctx, config, asked, options, stream)


def _to_file(ctx: click.Context, config: AskConfig, asked: Asking, options: ShellOptions, stream: bool) -> None:
    from fanfold.cli.output import default_ledger
    from fanfold.cli.run import do
    from fanfold.studies.ask.conclusion import AnswerStream

    conclusion: Any = asked.study.conclude
    output: AskOutput = conclusion.output
    _check_output(output, str(options.ledger or default_ledger()), str(options.run), config)
    if not stream:
        do(ctx, asked.study, options, _meta(config, options))
        return
    if output.format != "jsonl":
        raise ConfigError(f"--stream writes JSON lines: give a file that ends in .jsonl, not {output.path}")
    config = dataclasses.replace(config, force=True)  # from here on the file is this run's
    study = dataclasses.replace(asked.study, conclude=dataclasses.replace(conclusion, force=True))
    with output.path.open("wb", buffering=0) as file:
        watch = AnswerStream(asked.rows, asked.fields, lambda row: _print_row(row, file))
        do(ctx, study, options, _meta(config, options), watch)


def _to_stdout(ctx: click.Context, config: AskConfig, asked: Asking, options: ShellOptions, stream: bool) -> None:
    """Rows on stdout as JSON lines: at the end, or as they come."""
    import itertools

    from fanfold.cli.export import opened
    from fanfold.cli.output import default_ledger
    from fanfold.cli.run import do
    from fanfold.ledger import RunView
    from fanfold.studies.ask.conclusion import AnswerStream, answered
    from fanfold.tables import write_rows

    with opened("-") as file:
        watch = AnswerStream(asked.rows, asked.fields, _Reader(file).print_row)
        try:
            do(ctx, asked.study, options, _meta(config, options), watch if stream else None)
        except (click.exceptions.Exit, FanfoldError) as end:
            if not isinstance(end, click.exceptions.Exit):
                raise
            code = end.exit_code
        else:
            code = 0
        with RunView.open(str(options.ledger or default_ledger()), str(options.run)) as view:
            rows = itertools.islice(answered(view, asked.rows, asked.fields), watch.written, None)
            write_rows(rows, "jsonl", file)
    ctx.exit(code)


class _Reader:
    """Whoever reads the rows on stdout; when it is gone, the run is stopped: nobody waits for further answers."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._gone = file, False

    def print_row(self, row: Mapping[str, Any]) -> None:
        if self._gone:
            return
        try:
            _print_row(row, self._file)
        except BrokenPipeError:
            self._gone = True
            say("note: nobody reads the rows any more, so the run stops")
            signal.raise_signal(signal.SIGTERM)


def _print_row(row: Mapping[str, Any], file: IO[bytes]) -> None:
    from fanfold.tables import write_rows

    write_rows([row], "jsonl", file)
    file.flush()


def _meta(config: AskConfig, options: ShellOptions) -> dict[str, Any]:
    from fanfold import __version__

    fields = dataclasses.asdict(config)
    return {"target": "ask", "fields": fields, "options": options.recorded(), "version": __version__}


def _check_output(output: AskOutput, ledger: str, run: str, config: AskConfig) -> None:
    """Refuse to overwrite a file that is not of this run, before anything is asked."""
    from fanfold.ledger import Ledger, RunView

    summary, force = None, config.force
    if Path(ledger).is_file():
        with Ledger(ledger, readonly=True) as opened:
            if opened.find(run) is not None:
                view = RunView.open(opened, run)
                summary, fields = view.summary(), view.info.meta.get("fields", {})
                force = force or (fields.get("force") is True and fields.get("output") == config.output)
    output.check(summary, force)


def _say_rows(config: AskConfig, asked: Asking) -> None:
    """What was inferred, and what will not be asked."""
    inferred = getattr(asked.rows.table, "inferred", "")
    if inferred:
        say(f"note: {config.source}: {inferred} (--encoding, --delimiter)")
    if asked.survey.missing:
        names = ", ".join(asked.survey.lacking)
        say(
            f"note: {asked.survey.missing:,} of {asked.survey.count:,} rows lack a value ({names}) and are not asked "
            "(--allow-missing)"
        )


@contextlib.contextmanager
def _rows_of(config: AskConfig) -> Iterator[Table | None]:
    """The table on standard input, kept in a file as long as it is needed; None for any other source."""
    if config.source != "-":
        yield None
        return
    import shutil

    from fanfold.tables import open_table

    if sys.stdin.isatty():
        raise ConfigError("- reads rows from standard input: pipe some into it, or name a file")
    with tempfile.TemporaryDirectory(prefix="fanfold-") as folder:
        path = Path(folder) / "stdin"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        with path.open("rb") as file:
            start = file.read(4096).decode("utf-8-sig", "replace").lstrip()[:1]
        format = config.format or {"{": "jsonl", "[": "json"}.get(start, "txt")
        if config.format is None:
            say(f"note: standard input is read as {format} (--format)")
        yield open_table(str(path), format=format, encoding=config.encoding, delimiter=config.delimiter)


# -- estimates -------------------------------------------------------------------------------------------------------


def _plan(config: AskConfig, rows: Table | None, values: Mapping[str, Any]) -> None:
    """Say what would be asked, and what that would cost, judged by a rehearsal of some rows."""
    from fanfold.cli.models import bound_row, say_unpriced
    from fanfold.rehearsal import estimate, rehearsing
    from fanfold.studies.ask.study import asking, run_options, sampled

    with rehearsing():
        asked = asking(config, rows, count_different=True)
        survey = asked.survey
        sample, different = sampled(asked, min(SAMPLE, survey.count), config.seed)
        place = shell_options(values, run_options(config), "ask").place(sample.evaluate)
        judged = estimate(sample, place, sample=min(SAMPLE, survey.count))
    factor = survey.different / max(1, different)
    bounds = {name: _scaled(getattr(judged, name), factor) for name in ("low", "expected", "high")}
    calls = survey.different * len(config.model)
    if machine_readable():
        figures = {"rows": survey.count, "missing": survey.missing, "different": survey.different, "calls": calls}
        print_json({**figures, "models": config.model, **{k: dataclasses.asdict(b) for k, b in bounds.items()}})
    _say_rows(config, asked)
    equal = survey.count - survey.missing - survey.different
    dropped = f", {equal:,} of them equal to another and asked once" if equal else ""
    say(f"{survey.count:,} rows{dropped}: {calls:,} calls to {', '.join(config.model)}\n")
    head = ["", "cost", "time", "calls", "input tokens", "output tokens"]
    say(table(head, [bound_row(name, bound, judged.simulated) for name, bound in bounds.items()], right=head[1:]))
    say_unpriced(bounds["expected"])
    say(
        "\nNothing was sent. Low and high differ in the length of answers, which is assumed; --max-tokens bounds it. "
        "What the ledger already holds costs nothing again."
    )


def _scaled(bound: Bound, factor: float) -> Bound:
    counts = {name: round(getattr(bound, name) * factor) for name in ("calls", "input_tokens", "output_tokens")}
    cost = None if bound.cost is None else bound.cost * factor
    return dataclasses.replace(bound, seconds=bound.seconds * factor, cost=cost, **counts)
