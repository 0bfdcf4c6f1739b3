"""Tasks by name, and from files: JSON lines, CSV, Parquet, and Hugging Face datasets."""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fanfold.errors import ConfigError, check_whole, nearest
from fanfold.tables import Row, open_table, plain_row, plain_rows, spreadsheet_encoding
from fanfold.tasks.builtin import BUILTIN
from fanfold.tasks.columns import Columns, lowered
from fanfold.tasks.forms import (
    AnswerForm,
    form_of,
    free_text,
    listed,
    longest_of,
    looks_like_data,
    shortened,
    spelled_alike,
    tidied,
)
from fanfold.tasks.graders import grader as make_grader
from fanfold.tasks.graders import kind_of
from fanfold.tasks.grading import options_of, right_option
from fanfold.tasks.programs import called, fenced, solved
from fanfold.tasks.reading import as_json
from fanfold.tasks.task import SETTINGS, USUAL_CLAUSES, USUAL_LABELS, Grader, Problem, Task, tupled

#: Rows of a larger file that are kept unless said otherwise, and the bytes of their texts, at most.
ROWS, LARGEST = 5_000, 32_000_000
#: The share of rows without input or answer that is passed over, and graders that need no answer.
LACKING, UNANSWERED = 0.1, ("json", "regex", "judge")
#: Rows that are looked at for the columns of a file.
HEAD = 100
_SETTINGS = {field.name for field in fields(Task)} - {"problems", "grader", "source"}


def load(
    source: str | Path | Iterable[Any],
    *,
    grader: str | Mapping[str, Any] | Grader | None = None,
    input: str | Sequence[str] | None = None,
    answer: str | None = None,
    id: str | None = None,
    options: str | None = None,
    limit: int | None = None,
    rows: int | None = ROWS,
    seed: int = 0,
    encoding: str | None = None,
    **settings: Any,
) -> Task:
    """A task: one that ships with Fanfold (`city`, `sentiment`, ...), or one made of a file, a dataset or rows.

    A file ends in .jsonl, .csv, .tsv or .parquet; a dataset of the Hugging Face hub is `hf:NAME[:CONFIG][:SPLIT]`.
    Rows are dicts (or dataclasses, Pydantic models, ...), or a table of pandas, polars or Arrow.
    `input`, `answer`, `id` and `options` name the fields to read; what is not said is guessed from usual names, and
    `Task.source` says what was read.  The form of the answers (options, JSON, numbers, a few labels, lines) decides how
    they are graded, unless a `grader` is named, and where replies end.  `limit` takes the first problems only.  Of a
    file with more than `rows` problems so many are kept, drawn by the `seed`; None keeps all.  A CSV file that is not
    in UTF-8 is read as Windows-1252 unless an `encoding` is named.  `settings` are fields of `Task` (`description`,
    `seeds`, `max_tokens`, ...), also for a task that ships with Fanfold.
    """
    for name in settings:
        if name not in _SETTINGS:
            raise ConfigError(f"a task has no setting {name!r}{nearest(name, _SETTINGS)}")
    if limit is not None:
        check_whole(limit, "limit")
    name = str(source) if isinstance(source, str | Path) else "rows"
    named = {"input": _joined(input), "answer": answer, "id": id, "options": options}
    if isinstance(source, str | Path) and name in BUILTIN:
        if any(named.values()):
            raise ConfigError(f"the task {name!r} ships with Fanfold: its fields are known, leave input=, answer= out")
        task = BUILTIN[name]()
        changes = tupled(settings) | ({} if grader is None else {"grader": make_grader(grader)})
        return replace(task, problems=task.problems[:limit], **changes)
    if (
        isinstance(source, str | Path)
        and not name.startswith("hf:")
        and not Path(name).suffix
        and len(Path(name).parts) <= 1
    ):
        raise ConfigError(f"there is no task {name!r}{nearest(name, BUILTIN)} (or give a file, or hf:NAME:SPLIT)")
    kind = None if grader is None else kind_of(grader)
    own = grader is not None and kind in (None, "own")
    draw = _Draw(named, kind not in UNANSWERED, rows, seed, needed=not own)
    try:
        if isinstance(source, str | Path):
            table = open_table(name, encoding=encoding or spreadsheet_encoding(Path(name)))
            rows_read: Iterator[Row] = ((plain_row(row), where) for row, where in table)
            inferred = table.inferred
        else:
            rows_read, inferred = _given(source), ""
        draw.read(map(_asked_and_answered, itertools.islice(rows_read, limit)), name)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}") from error
    draw.inferred = inferred
    return _task(name, draw, grader, kind, tupled(settings))


def _joined(input: str | Sequence[str] | None) -> str | None:
    return input if isinstance(input, str | None) else ",".join(input)


def _given(rows: Any) -> Iterator[Row]:
    """Rows of Python, each with its place."""
    for number, row in enumerate(plain_rows(rows), 1):
        if not isinstance(row, Mapping):
            raise ConfigError(f"row {number} is not a dict but {row!r:.60}: write {{'input': ..., 'answer': ...}}")
        yield row, f"row {number}"


def _task(
    name: str,
    draw: _Draw,
    grader: str | Mapping[str, Any] | Grader | None,
    kind: str | None,
    settings: Mapping[str, Any],
) -> Task:
    """The task of the rows that were read, with what their answers imply."""
    problems, columns = draw.problems(), draw.columns
    made: dict[str, Any] = {"name": name.split(":")[1] if name.startswith("hf:") else Path(name).stem}
    made["form"] = columns.form
    source = f"{name}: {draw.in_words}"
    if columns.answer is not None:
        if kind in (None, "json", "exact", "labels", "contains", "numeric", "code"):
            problems = tidied(problems)
        if kind in (None, "numeric"):
            problems = shortened(problems)
        form = form_of(problems)
        if Path(name).suffix in (".csv", ".tsv") and _unnamed(columns, form):
            first = ", ".join(map(repr, (*columns.input, columns.answer)))
            raise ConfigError(f"{name}: its first line looks like data ({first}): add one that names the columns")
        if grader is None and form.grader is None:
            raise free_text(problems, name)
        if grader is None:
            grader, kind = form.grader, str((form.grader or {})["kind"])
            problems = spelled_alike(problems, form.labels)
        elif kind is not None:
            form = form.under(kind, longest_of(problems))
        if kind in ("json", "labels"):
            problems = listed(problems)
        problems = solved(problems) if kind == "code" else problems
        form = form.with_room(settings.get("max_tokens"))
        own = (columns.labels[0], "Python") if kind == "code" else columns.labels
        made["labels"] = (own, *(labels for labels in USUAL_LABELS if own[0] and labels != own))
        bank = tupled(SETTINGS["code"])["clauses"] if kind == "code" else USUAL_CLAUSES
        told = f"Give the {lowered(own[1])} for each {columns.asked}."
        clauses = {**bank, "instruction": (*((told,) if kind != "code" else ()), *bank["instruction"])}
        if kind is not None:
            made |= {"max_tokens": form.max_tokens, "stop": form.stop, "cover": bool(form.labels)}
            source += f"; {form.in_words(kind)}"
            clauses["format"] = (*form.clauses, *(text for text in clauses["format"] if text not in form.clauses))
        made["clauses"] = clauses
    assert grader is not None  # without answers one was named
    return Task(**{**made, **settings}, problems=problems, grader=make_grader(grader), source=source)


def _unnamed(columns: Columns, form: AnswerForm) -> bool:
    """Whether the name of the answers is one of them, so that there is no line of names."""
    name = (columns.answer or "").strip()
    numbers = form.grader is not None and form.grader["kind"] == "numeric"
    return name in form.labels or (numbers and looks_like_data([name]))


def _repeated(problems: Sequence[Problem]) -> str:
    """How many problems repeat the input of another, in words."""
    first: dict[str, Problem] = {}
    repeats = [problem for problem in problems if first.setdefault(problem.gist, problem) is not problem]
    if not repeats:
        return ""

    def same(one: Problem, other: Problem) -> bool:
        return one.shown.strip().casefold() == other.shown.strip().casefold()

    other = {problem.gist for problem in repeats if not same(problem, first[problem.gist])}
    counted = "; of different answers to one the first counts" if other else ""
    return f"{len(repeats):,} repeat an input and are left out{counted}"


class _Draw:
    """Reads rows once and keeps so many of them, every one with the same chance; what is kept depends on the seed.

    Rows without an answer are left out of `answered` problems; whether there must be a column of answers is `needed`.
    """

    def __init__(
        self, named: Mapping[str, str | None], answered: bool, most: int | None, seed: int, *, needed: bool = True
    ) -> None:
        self._named, self._answered, self._needed = named, answered, answered and needed
        self._most = sys.maxsize if most is None else most
        self._rng = random.Random(seed)
        self._kept: list[_KeptRow] = []
        self._rows = self._lacking = 0
        self.inferred = ""  # about the file

    def read(self, rows: Iterable[Row], source: str) -> None:
        room, chance = LARGEST, self._rng.random
        first = ""  # what the first row that lacks something lacks
        head = list(itertools.islice(rows := iter(rows), HEAD))
        if head:
            self.columns = Columns.of([row for row, _ in head], self._named, head[0][1], answered=self._needed)
        for number, (row, where) in enumerate(itertools.chain(head, rows), 1):
            self._rows = number
            key = -chance()
            if lacking := self.columns.lacks(row, answered=self._answered):
                self._lacking += 1
                first = first or f"{lacking}: the first is {where}"
                continue
            if len(self._kept) >= self._most and key <= self._kept[0].key:
                continue
            kept = _KeptRow(key, number, self.columns.cells(row, where), where)
            if len(self._kept) >= self._most:
                room += heapq.heappop(self._kept).size
            heapq.heappush(self._kept, kept)
            room -= kept.size
            while room < 0 and len(self._kept) > 200:
                room += heapq.heappop(self._kept).size
                self._most = len(self._kept)
        if not self._rows:
            raise ConfigError(f"{source} is empty: give at least one problem")
        if self._lacking > LACKING * self._rows:
            raise ConfigError(
                f"{source}: {self._lacking:,} of {self._rows:,} rows have nothing in {first}. Fill them in, leave them "
                f"out of the file, or name another column (--input-field, --answer-field)"
            )

    def problems(self) -> tuple[Problem, ...]:
        kept = sorted(self._kept, key=lambda kept: kept.number)
        self._kept = []
        seen: dict[str, str] = {}
        for row in kept if self.columns.id else ():
            id = row.cells["id"]
            if id is not None and (other := seen.setdefault(str(id), row.where)) is row.where:
                continue
            if self._named["id"] is None:  # only guessed
                self.columns = self.columns.numbered()
                break
            if id is None:
                raise ConfigError(
                    f"{row.where} has nothing in {self.columns.id!r}: fill it in, or leave out --id-field"
                )
            raise ConfigError(
                f"{row.where} has the id {str(row.cells['id'])!r}, which {other} has too: make ids unique, or leave "
                "out --id-field"
            )
        identified = self.columns.id is not None
        self._problems = tuple(
            _problem(row, str(row.cells["id"]) if identified else str(row.number), self.columns) for row in kept
        )
        return self._problems

    @property
    def in_words(self) -> str:
        count = len(self._problems)
        whole = count + self._lacking == self._rows
        counted = f"{count:,} problems" if whole else f"{count:,} of {self._rows:,} rows (--rows)"
        lacking = f"{self._lacking:,} without input or answer left out" if self._lacking else ""
        return ", ".join(
            filter(None, (counted, lacking, _repeated(self._problems), self.inferred, self.columns.in_words))
        )


def _asked_and_answered(row: Row) -> Row:
    """A row; of a conversation (`messages`, as for fine-tuning) what was asked, and the last answer to it."""
    cells, where = called(row[0]), row[1]
    for name in ("messages", "conversations"):
        said = _turns(cells.get(name))
        if said and said[-1][0] == "assistant" and any(speaker == "user" for speaker, _ in said[:-1]):
            rest = {column: value for column, value in cells.items() if column != name}
            return {**rest, "input": _dialogue(said[:-1]), "answer": said[-1][1]}, where
    return cells, where


def _turns(value: Any) -> list[tuple[str, Any]]:
    """Who speaks in each turn of a conversation, and what; empty for anything else."""
    if not isinstance(value, list) or not all(isinstance(turn, Mapping) for turn in value):
        return []
    speakers = [str(turn.get("role", turn.get("from"))) for turn in value]
    said = [_content(turn.get("content", turn.get("value"))) for turn in value]
    return [(_SPEAKERS.get(speaker, speaker), text) for speaker, text in zip(speakers, said)]


def _content(content: Any) -> Any:
    """What is said in a turn: a text, also one in parts; anything else, such as an image, as it is."""
    parts = content if isinstance(content, list) else []
    if parts and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        return "\n".join(part["text"] for part in parts)
    return content


def _dialogue(said: Sequence[tuple[str, Any]]) -> Any:
    """What was said by others than the system: one turn as it is, several with who speaks."""
    asked = [turn for turn in said if turn[0] != "system"]
    if len(asked) == 1:
        return asked[0][1]
    return "\n".join(
        f"{speaker.capitalize()}: {text}" for speaker, text in asked if text is not None
    )  # but calls of tools


def _spoken(value: Any) -> Any:
    """The text of a conversation in a column, such as a `prompt` of messages; anything else as it is."""
    said = _turns(value)
    known = said and all(speaker in _ROLES and isinstance(text, str) for speaker, text in said)
    return _dialogue(said) if known else value


#: What some datasets call those who speak.
_SPEAKERS = {"human": "user", "gpt": "assistant", "model": "assistant", "developer": "system"}
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True, order=True)
class _KeptRow:
    """A row that is kept as long as its key is among the largest."""

    key: float
    number: int
    cells: Mapping[str, Any]
    where: str

    @property
    def size(self) -> int:
        return sum(map(sys.getsizeof, self.cells.values()))


def _problem(kept: _KeptRow, id: str, columns: Columns) -> Problem:
    text, where = _spoken(kept.cells["input"]), kept.where
    if isinstance(text, int | float):
        text = as_json(text)
    if not isinstance(text, str) or not text.strip():
        within = (
            f"name what is in it, as in {columns.input[0]}.{next(iter(text))}"
            if isinstance(text, dict) and text
            else ""
        )
        raise ConfigError(
            f"{where}: {columns.input[0]!r} is to be the input, and holds no text but {text!r:.60} "
            f"(--input-field{f': {within}' if within else ''})"
        )
    answer = _right(_spoken(kept.cells.get("answer")), columns.answer or "")
    if isinstance(answer, bytes):
        raise ConfigError(f"{where}: {columns.answer!r} is to be the answer, and holds bytes: write it as texts")
    note: dict[str, Any] = {}
    if kept.cells.get("solution"):
        note["shown"] = fenced(kept.cells["solution"])
    if "options" in kept.cells:
        note["options"] = _options(kept.cells["options"], where)
        options = options_of(Problem(id, text, note=note))
        if isinstance(note["options"], Mapping) and str(answer) in options:  # its label, not its position
            answer = str(answer)
        if (
            isinstance(answer, str)
            and answer.strip().isdecimal()
            and not right_option(Problem(id, "", answer), options)
        ):
            answer = int(answer)
        if isinstance(answer, int):  # a position; as an example it is shown as a label
            answer = right_option(Problem(id, text, answer), options) or answer
        if not options_of(Problem(id, text)):  # the text does not list them, so a model would not see them
            text += "".join(f"\n{label}) {option}" for label, option in options.items())
    return Problem(id, text, answer, note or None)


def _right(answer: Any, column: str) -> Any:
    """An answer; several that are right, as `{"text": [...]}` or in a column `answers`, as a tuple."""
    plural = column.casefold().endswith("answers")
    several = answer.get("text") if isinstance(answer, Mapping) else answer if plural else None
    if not isinstance(several, list) or not several or not all(isinstance(text, str) for text in several):
        return answer
    right = tuple(dict.fromkeys(text.strip() for text in several))
    return right[0] if len(right) == 1 else right


def _options(given: Any, where: str) -> Any:
    if isinstance(given, str):  # in a CSV file
        given = [option.strip() for option in given.split("|")]
    if isinstance(given, Mapping) and set(given) == {"text", "label"}:  # two lists, as some datasets have it
        return dict(zip(map(str, given["label"]), map(str, given["text"])))
    if isinstance(given, Mapping):
        return {str(label): str(option) for label, option in given.items()}
    if isinstance(given, list | tuple) and given:
        return [str(option) for option in given]
    raise ConfigError(
        f"{where}: options must be a list of texts, or in CSV texts with | between them, not {given!r:.60}"
    )
