"""Tasks by name, and from files: JSON lines, CSV, Parquet, and Hugging Face datasets."""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fanfold.config import load_toml
from fanfold.errors import ConfigError, check_whole, nearest
from fanfold.tables import Row, rows_of
from fanfold.tasks.builtin import BUILTIN
from fanfold.tasks.forms import form_of, free_text, label_of, listed, longest_of, spelled_alike, tidied
from fanfold.tasks.graders import grader as make_grader
from fanfold.tasks.graders import kind_of
from fanfold.tasks.grading import options_of, right_option
from fanfold.tasks.task import USUAL_CLAUSES, USUAL_LABELS, Grader, Problem, Task, tupled

#: What the fields of a problem are usually called, the likeliest first.
USUAL: Mapping[str, tuple[str, ...]] = {
    role: tuple(names) for role, names in load_toml(Path(__file__).with_name("data") / "columns.toml").items()
}
#: Rows of a larger file that are kept unless said otherwise, and the bytes of their texts, at most.
ROWS, LARGEST = 5_000, 32_000_000
#: The share of rows without input or answer that is passed over, and graders that need no answer.
LACKING, UNANSWERED = 0.1, ("json", "regex", "judge")
_SETTINGS = {field.name for field in fields(Task)} - {"problems", "grader", "source"}


def load(
    source: str | Path,
    *,
    grader: str | Mapping[str, Any] | Grader | None = None,
    input: str | None = None,
    answer: str | None = None,
    id: str | None = None,
    options: str | None = None,
    limit: int | None = None,
    rows: int | None = ROWS,
    seed: int = 0,
    **settings: Any,
) -> Task:
    """A task: one that ships with Fanfold (`city`, `sentiment`, ...), or one made of a file or a dataset.

    A file ends in .jsonl, .csv, .tsv or .parquet; a dataset of the Hugging Face hub is `hf:NAME[:CONFIG][:SPLIT]`.
    `input`, `answer`, `id` and `options` name the fields to read; what is not said is guessed from usual names, and
    `Task.source` says what was read.  The form of the answers (options, JSON, numbers, a few labels, lines) decides how
    they are graded, unless a `grader` is named, and where replies end.  `limit` takes the first problems only.  Of a
    file with more than `rows` problems so many are kept, drawn by the `seed`; None keeps all.  `settings` are fields of
    `Task` (`description`, `seeds`, `max_tokens`, ...), also for a task that ships with Fanfold.
    """
    for name in settings:
        if name not in _SETTINGS:
            raise ConfigError(f"a task has no setting {name!r}{nearest(name, _SETTINGS)}")
    if limit is not None:
        check_whole(limit, "limit")
    name = str(source)
    named = {"input": input, "answer": answer, "id": id, "options": options}
    if name in BUILTIN:
        if any(named.values()):
            raise ConfigError(f"the task {name!r} ships with Fanfold: its fields are known, leave input=, answer= out")
        task = BUILTIN[name]()
        changes = tupled(settings) | ({} if grader is None else {"grader": make_grader(grader)})
        return replace(task, problems=task.problems[:limit], **changes)
    if not name.startswith("hf:") and not Path(name).suffix and len(Path(name).parts) <= 1:
        raise ConfigError(f"there is no task {name!r}{nearest(name, BUILTIN)} (or give a file, or hf:NAME:SPLIT)")
    kind = None if grader is None else kind_of(grader)
    draw = _Draw(named, kind not in UNANSWERED, rows, seed)
    try:
        draw.read(map(_asked_and_answered, itertools.islice(rows_of(name), limit)), name)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}") from error
    return _task(name, draw, grader, kind, tupled(settings))


def _task(
    name: str,
    draw: _Draw,
    grader: str | Mapping[str, Any] | Grader | None,
    kind: str | None,
    settings: Mapping[str, Any],
) -> Task:
    """The task of the rows that were read, with what their answers imply."""
    problems, used = draw.problems(), draw.used
    made: dict[str, Any] = {"name": name.split(":")[1] if name.startswith("hf:") else Path(name).stem}
    source = f"{name}: {draw.in_words}"
    if "answer" in used:
        own = (label_of(used["input"]), label_of(used["answer"]))
        made["labels"] = (own, *(labels for labels in USUAL_LABELS if labels != own))
        if grader is None or kind == "json":
            problems = tidied(problems)
        form = form_of(problems)
        if used["answer"].strip() in form.labels and Path(name).suffix in (".csv", ".tsv"):
            raise ConfigError(
                f"{name}: its first line looks like data ({', '.join(map(repr, used.values()))}): add one that names "
                "the columns"
            )
        if grader is None and form.grader is None:
            raise free_text(problems, name)
        if grader is None:
            grader, kind = form.grader, str((form.grader or {})["kind"])
            problems = spelled_alike(problems, form.labels)
        elif kind is not None:
            form = form.under(kind, longest_of(problems))
        if kind == "json":
            problems = listed(problems)
        told = f"Give the {_lowered(own[1])} for each {_lowered(own[0])}."
        clauses = {**USUAL_CLAUSES, "instruction": (told, *USUAL_CLAUSES["instruction"])}
        if kind is not None:
            made |= {"max_tokens": form.max_tokens, "stop": form.stop, "cover": bool(form.labels)}
            source += f"; {form.in_words(kind)}"
            clauses["format"] = (*form.clauses, *(text for text in clauses["format"] if text not in form.clauses))
        made["clauses"] = clauses
    assert grader is not None  # without answers one was named
    return Task(**{**made, **settings}, problems=problems, grader=make_grader(grader), source=source)


def _lowered(label: str) -> str:
    """A label inside a sentence; an acronym stays as it is."""
    return label if label.isupper() else label[:1].lower() + label[1:]


class _Draw:
    """Reads rows once and keeps so many of them, every one with the same chance; what is kept depends on the seed."""

    def __init__(self, named: Mapping[str, str | None], answered: bool, most: int | None, seed: int) -> None:
        self.used: dict[str, str] = {}
        self._named, self._answered = named, answered
        self._most = sys.maxsize if most is None else most
        self._rng = random.Random(seed)
        self._kept: list[_KeptRow] = []
        self._first: _KeptRow | None = None  # of those that lack something
        self._rows = self._lacking = 0

    def read(self, rows: Iterable[Row], source: str) -> None:
        room, chance = LARGEST, self._rng.random
        needed: tuple[str, ...] = ()
        for number, (row, where) in enumerate(rows, 1):
            if number == 1:
                self.used = _fields(row, self._named, where, self._answered)
                needed = tuple(self.used[role] for role in ("input", *(["answer"] if self._answered else [])))
            self._rows = number
            key = -chance()
            lacking = any(_blank(row.get(name, _blank)) for name in needed)
            if not lacking and len(self._kept) >= self._most and key <= self._kept[0].key:
                continue
            kept = _KeptRow(key, number, _cells(row, self.used, where), where)
            if lacking:
                self._lacking += 1
                self._first = self._first or kept
                continue
            if len(self._kept) >= self._most:
                room += heapq.heappop(self._kept).size
            heapq.heappush(self._kept, kept)
            room -= kept.size
            while room < 0 and len(self._kept) > 200:
                room += heapq.heappop(self._kept).size
                self._most = len(self._kept)
        if not self._rows:
            raise ConfigError(f"{source} is empty: give at least one problem")
        if self._first is not None and self._lacking > LACKING * self._rows:  # too many: the first is complained about
            self._kept, self._lacking = [*self._kept, self._first], self._lacking - 1

    def problems(self) -> tuple[Problem, ...]:
        problems: list[Problem] = []
        seen: dict[str, str] = {}
        for kept in sorted(self._kept, key=lambda kept: kept.number):
            problem = _problem(kept.row, self.used, kept.number, kept.where)
            if problem.id in seen:
                raise ConfigError(
                    f"{kept.where} has the id {problem.id!r}, which {seen[problem.id]} has too: make ids unique, "
                    "rename the column, or name another one with --id-field"
                )
            seen[problem.id] = kept.where
            problems.append(problem)
        self._kept = []
        self._count = len(problems)
        return tuple(problems)

    @property
    def in_words(self) -> str:
        whole = self._count + self._lacking == self._rows
        counted = f"{self._count:,} problems" if whole else f"{self._count:,} of {self._rows:,} rows (--rows)"
        lacking = f"{self._lacking:,} without input or answer left out" if self._lacking else ""
        read = (f"{role} from {field!r}" for role, field in self.used.items())
        return ", ".join(filter(None, (counted, lacking, *read)))


def _asked_and_answered(row: Row) -> Row:
    """A row; of a conversation (`messages`, as for fine-tuning) what was asked last, and the answer to it."""
    cells, where = row
    turns = cells.get("messages")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        return row
    by_role = {turn.get("role"): turn.get("content") for turn in turns}
    if not {"user", "assistant"} <= by_role.keys():
        return row
    rest = {name: value for name, value in cells.items() if name != "messages"}
    return {**rest, "input": by_role["user"], "answer": by_role["assistant"]}, where


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _cells(row: Mapping[str, Any], used: Mapping[str, str], where: str) -> dict[str, Any]:
    """What is read of a row."""
    for role, name in used.items():
        if name not in row:
            raise ConfigError(f"{where} has no field {name!r}{nearest(name, row)}: it is read as {role}")
    return {name: row[name] for name in used.values()}


@dataclass(frozen=True, slots=True, order=True)
class _KeptRow:
    """A row that is kept as long as its key is among the largest."""

    key: float
    number: int
    row: Mapping[str, Any]
    where: str

    @property
    def size(self) -> int:
        return sum(map(sys.getsizeof, self.row.values()))


def _fields(row: Mapping[str, Any], named: Mapping[str, str | None], where: str, answered: bool) -> dict[str, str]:
    """Which field is read as what."""
    used: dict[str, str] = {}
    columns = ", ".join(map(str, row))
    for role, name in named.items():
        if name is None:
            name = _usual(role, [column for column in row if column not in (*named.values(), *used.values())])
        elif name not in row:
            flag = f"{role}=" if role == "options" else f"--{role}-field"
            raise ConfigError(
                f"{where} has no field {name!r}{nearest(name, row)}: {flag} names it (columns: {columns})"
            )
        if name is not None:
            used[role] = name
    rest = [column for column in row if column not in used.values()]
    if "input" not in used and len(rest) == (1 if "answer" in used else 2):  # nothing else can be meant
        used = {"input": rest[0], **used} if "answer" in used else {"input": rest[0], "answer": rest[1], **used}
    elif "answer" not in used and "input" in used and len(rest) == 1:
        used["answer"] = rest[0]
    if "input" not in used:
        raise ConfigError(f"{where}: which field holds the input? Name it with --input-field (columns: {columns})")
    if "answer" not in used and answered:
        raise ConfigError(
            f"{where}: which field holds the answer? Name it with --answer-field (columns: {columns}), or use --grader "
            "judge, which needs none"
        )
    return used


def _usual(role: str, columns: Sequence[Any]) -> str | None:
    """The column that is probably meant: one of a usual name, else one with a usual name among its words."""
    texts = [column for column in columns if isinstance(column, str)]
    for usual in USUAL[role]:
        if found := next((column for column in texts if column.casefold() == usual), None):
            return found
    for usual in USUAL[role]:
        if found := next((column for column in texts if usual in label_of(column).casefold().split()), None):
            return found
    return None


def _problem(row: Mapping[str, Any], used: Mapping[str, str], number: int, where: str) -> Problem:
    text = row[used["input"]]
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            f"{where}: {used['input']!r} is to be the input, and holds no text but {text!r:.60} (--input-field)"
        )
    id = str(row[used["id"]]) if "id" in used else str(number)
    answer = row[used["answer"]] if "answer" in used else None
    note: dict[str, Any] = {}
    if "options" in used:
        note["options"] = _options(row[used["options"]], where)
        if isinstance(answer, int):  # a position; as an example it is shown as a label
            answer = right_option(Problem(id, text, answer), options_of(Problem(id, text, note=note))) or answer
        if not options_of(Problem(id, text)):  # the text does not list them, so a model would not see them
            listed = options_of(Problem(id, text, note=note))
            text += "".join(f"\n{label}) {option}" for label, option in listed.items())
    return Problem(id, text, answer, note or None)


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
