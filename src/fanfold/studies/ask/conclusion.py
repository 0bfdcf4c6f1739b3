"""The answers of a run beside their rows: counted, and written to a file that is there whole or not at all."""

from __future__ import annotations

import codecs
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.events import Event, TrialTold
from fanfold.files import replacing
from fanfold.ledger import EvaluationRow, RunView
from fanfold.running import Go, Run
from fanfold.stop import explained
from fanfold.studies.ask.rows import Question, Rows
from fanfold.summary import Section, Summary
from fanfold.tables import ENDINGS, Table, column_types, kinds_of, write_rows
from fanfold.texts import spreadsheet_cell
from fanfold.types import Failed, Ok, Outcome, Result

#: The kind of a row's error where its turn never came.
NOT_ASKED = "not-asked"


@dataclass(frozen=True)
class AskFields:
    """The columns that are added to a row: for each model one for its answer and one for its error."""

    answers: Mapping[str, str]
    errors: Mapping[str, str]

    @classmethod
    def of(cls, models: Sequence[str], field: str, columns: Iterable[str]) -> AskFields:
        """Named after `field`, and after the model where there are several; refused where a row has such a column."""
        known = set(columns)
        short = {name: name.rpartition("/")[2] for name in models}
        names = short if len(set(short.values())) == len(models) else {name: name for name in models}
        error = "error" if "error" not in known else f"{field}_error"  # as in rows that an earlier run wrote
        ends = {name: "" if len(models) == 1 else f"_{names[name]}" for name in models}
        fields = cls(*({name: word + end for name, end in ends.items()} for word in (field, error)))
        for added in (*fields.answers.values(), *fields.errors.values()):
            if added in known:
                raise ConfigError(f"the rows have a column {added!r} already: name another for the answer with --field")
        return fields

    def columns(self) -> Iterator[str]:
        """The added columns in their order."""
        for name in self.answers:
            yield self.answers[name]
            yield self.errors[name]

    def of_row(self, outcomes: Mapping[str, Outcome], stopped: str = "") -> dict[str, Any]:
        """What is added to a row, from its outcomes by model; without one, that the run `stopped`, and why."""
        added: dict[str, Any] = {}
        for name in self.answers:
            added[self.answers[name]], added[self.errors[name]] = _answer(outcomes.get(name), stopped)
        return added


def _answer(outcome: Outcome | None, stopped: str = "") -> tuple[Any, dict[str, str] | None]:
    """The answer in an outcome, and why there is none."""
    if outcome is None:
        return None, {"kind": NOT_ASKED, "message": f"the run stopped before this row's turn. {stopped}".rstrip()}
    if isinstance(outcome, Failed):
        return None, {"kind": outcome.kind, "message": outcome.message}
    data = outcome.data if isinstance(outcome.data, dict) else {}
    if "missing" in data:
        return None, {"kind": "missing", "message": f"the row has no value for {', '.join(data['missing'])}"}
    return data.get("answer"), None


def answered(view: RunView, rows: Rows, fields: AskFields) -> Iterator[dict[str, Any]]:
    """The rows with their answers, in order; a ConfigError where they are no longer those that were asked about."""
    cells, trials = view.evaluations(blobs=False), view.trials(blobs=False)
    cell, trial, stopped = next(cells, None), next(trials, None), explained(view.info.reason)
    for number, row in enumerate(rows):
        if trial is not None and trial.number == number:
            if not _same(rows.question(row), trial.candidate):
                raise _changed(rows, number)
            trial = next(trials, None)
        own: dict[str, Outcome] = {}
        while cell is not None and cell.trial <= number:
            own[cell.case] = _outcome(cell)
            cell = next(cells, None)
        yield {**row, **fields.of_row(own, stopped)}
    if trial is not None:
        raise _changed(rows, trial.number)


def _same(question: Question, asked: Any) -> bool:
    return question == asked or encode(question) == encode(asked)


def _changed(rows: Rows, number: int) -> ConfigError:
    name = rows.table.name if isinstance(rows.table, Table) else "the table"
    return ConfigError(
        f"{name} has changed while the run worked: row {number + 1} is not the one that was asked about, so no answers "
        "are written. Put the table back as it was and resume, or ask about it as it is: no equal question is paid "
        "for again"
    )


def _outcome(cell: EvaluationRow) -> Outcome:
    return Ok(1.0, cell.data) if cell.failure is None else Failed(cell.failure, cell.message or "")


class AnswerStream:
    """Gives rows with their answers to `write` as soon as all rows before them have theirs, while the run is going.

    It watches a run, and no result depends on it.
    """

    def __init__(self, rows: Rows, fields: AskFields, write: Callable[[dict[str, Any]], None]) -> None:
        self.written = 0
        self._rows, self._fields, self._write = iter(rows), fields, write
        self._question, self._waiting = rows.question, dict[int, Result[Any]]()

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialTold):
            self._waiting[event.result.number] = event.result
        while self.written in self._waiting:
            result = self._waiting.pop(self.written)
            row = next(self._rows, None)
            if row is None or not _same(self._question(row), result.candidate):
                return  # the table has changed: the end of the run says so
            self._write({**row, **self._fields.of_row(result.outcomes)})
            self.written += 1


@dataclass(frozen=True)
class AskOutput:
    """A file for the rows with their answers."""

    path: Path
    #: Where the rows come from: CSV and Parquet keep its form.
    table: Table | None = None

    def __post_init__(self) -> None:
        if self.format not in ("jsonl", "json", "csv", "tsv", "parquet"):
            raise ConfigError(f"the ending of {self.path} names no format: use .jsonl, .json, .csv, .tsv or .parquet")

    @property
    def format(self) -> str:
        return ENDINGS.get(self.path.suffix.lower(), "")

    def write(self, rows: Callable[[], Iterator[dict[str, Any]]], fields: AskFields) -> str:
        """Write the rows; the hash of the file says later whether it is still the same."""
        flat = self.format not in ("jsonl", "json")
        written = _flat(rows(), fields, formulas=self.format == "parquet") if flat else rows()
        delimiter = self.table.delimiter if self.table is not None and self.table.format == "csv" else ","
        try:
            with replacing(self.path) as file:
                if self.table is not None and self.table.marked and self.format in ("csv", "tsv"):
                    file.write(codecs.BOM_UTF8)
                write_rows(written, self.format, file, self._kinds(rows, fields) if flat else None, delimiter)
        except OSError as error:
            raise self._unwritable(error) from error
        return digest_of(self.path)

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f"{self.path} cannot be written: {error.strerror}; give another file with -o")

    def _kinds(self, rows: Callable[[], Iterator[dict[str, Any]]], fields: AskFields) -> dict[str, Any]:
        """The columns: those of the table, with the types that they have there, and those that are added."""
        added = dict.fromkeys(fields.columns(), str)
        if self.format == "parquet" and self.table is not None and self.table.format == "parquet":
            return {**column_types(self.table.path), **added}
        kinds = kinds_of({name: row[name] for name in row if name not in added} for row in rows())
        return {**{name: kind or str for name, kind in kinds.items()}, **added}

    def check(self, summary: Summary | None, force: bool) -> None:
        """Refuse a place where no file can be, and to overwrite a file that is not what this run wrote."""
        if not self.path.parent.is_dir() or self.path.is_dir():
            problem = "is a folder" if self.path.is_dir() else "is in a folder that does not exist"
            raise ConfigError(f"{self.path} {problem}: give another file with -o")
        if not self.path.exists() or self.path.is_file():  # a pipe needs no room beside it
            try:
                tempfile.TemporaryFile(dir=self.path.parent).close()
            except OSError as error:
                raise self._unwritable(error) from error
        if force or not self.path.is_file():
            return
        before = {} if summary is None else summary.figures.get("output", {})
        if before.get("digest") != digest_of(self.path):
            raise ConfigError(
                f"{self.path} exists, and this run did not write it: give another file with -o, or --force to overwrite"
            )


def _flat(rows: Iterator[dict[str, Any]], fields: AskFields, formulas: bool = True) -> Iterator[dict[str, Any]]:
    """Rows for CSV and Parquet: an error is one text, and without `formulas` no answer is taken for one."""
    answers, errors = set(fields.answers.values()), set(fields.errors.values())
    for row in rows:
        for name in errors:
            if row[name] is not None:
                row[name] = f"{row[name]['kind']}: {row[name]['message']}"
        for name in answers if not formulas else ():
            if isinstance(row[name], str):
                row[name] = spreadsheet_cell(row[name])
        yield row


def digest_of(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True)
class AskConclusion:
    """Counts the answers of a run and, where a file is named, writes all rows with them."""

    rows: Rows
    count: int
    fields: AskFields
    output: AskOutput | None = None
    force: bool = False
    #: The output decides no result, and large tables are not to be looked through.
    fingerprint: str = field(default="fanfold.ask/1", init=False)

    def rehearsed(self) -> AskConclusion:
        return replace(self, output=None)

    def check_ready(self, former: Summary | None) -> None:
        """Refuse an output that the end of the run could not write."""
        if self.output is not None:
            self.output.check(former, self.force)

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        view = run.view
        errors: dict[str, Counter[str]] = {name: Counter() for name in self.fields.answers}
        cut, asked = Counter[str](), Counter[str]()
        for cell in view.evaluations(blobs=False):
            asked[cell.case] += 1
            _, error = _answer(_outcome(cell))
            if error is not None:
                errors[cell.case][error["kind"]] += 1
            elif isinstance(cell.data, dict) and cell.data.get("finish") == "length":
                cut[cell.case] += 1
        figures: dict[str, Any] = {"rows": self.count, "models": {}}
        for name in self.fields.answers:
            if left := self.count - asked[name]:
                errors[name][NOT_ASKED] = left
            answers = self.count - errors[name].total()
            figures["models"][name] = {"answered": answers, "errors": dict(errors[name]), "cut": cut[name]}
        if self.output is not None:
            self.output.check(view.summary(), self.force)
            digest = self.output.write(lambda: answered(view, self.rows, self.fields), self.fields)
            figures["output"] = {"path": str(self.output.path), "digest": digest}
        return Summary(figures, tuple(_sections(figures)))


def _sections(figures: Mapping[str, Any]) -> Iterator[Section]:
    models = figures["models"]
    kinds = sorted({kind for model in models.values() for kind in model["errors"]})
    columns = ("model", "answered", *kinds, "cut at max_tokens")
    if len(models) > 1 or kinds or any(model["cut"] for model in models.values()):
        rows = [
            (name, model["answered"], *(model["errors"].get(kind, 0) for kind in kinds), model["cut"])
            for name, model in models.items()
        ]
        yield Section("Answers", "", columns, tuple(rows))
    if "output" in figures:
        yield Section("Output", figures["output"]["path"])
