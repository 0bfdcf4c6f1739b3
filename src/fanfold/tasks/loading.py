"""Tasks by name, and from files: JSON lines, CSV, Parquet, and Hugging Face datasets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fanfold.errors import ConfigError, check_whole, nearest
from fanfold.tables import Row, rows_of
from fanfold.tasks.builtin import BUILTIN
from fanfold.tasks.forms import form_of, label_of, parsed
from fanfold.tasks.grading import grader as make_grader
from fanfold.tasks.grading import options_of, right_option
from fanfold.tasks.task import USUAL_CLAUSES, USUAL_LABELS, Grader, Problem, Task, tupled

#: What the fields of a problem are usually called, the likeliest first.
USUAL: Mapping[str, tuple[str, ...]] = {
    "input": ("input", "question", "problem", "text", "sentence", "prompt", "query", "review", "content"),
    "answer": ("answer", "output", "target", "label", "solution", "response", "expected", "gold", "tests"),
    "id": ("id", "uid", "key", "problem_id", "question_id", "task_id", "idx"),
    "options": ("options", "choices"),
}
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
    **settings: Any,
) -> Task:
    """A task: one that ships with Fanfold (`city`, `sentiment`, ...), or one made of a file or a dataset.

    A file ends in .jsonl, .csv, .tsv or .parquet; a dataset of the Hugging Face hub is `hf:NAME[:CONFIG][:SPLIT]`.
    `input`, `answer`, `id` and `options` name the fields to read; what is not said is guessed from usual names, and
    `Task.source` says what was read.  Without a `grader` the form of the answers decides how they are graded and where
    replies end: options, JSON, numbers, a few labels, or one line.  `limit` takes the first problems only; `settings`
    are fields of `Task` (`description`, `seeds`, `max_tokens`, ...), also for a task that ships with Fanfold.
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
    try:
        problems, used = _problems(itertools.islice(rows_of(name), limit), named, name)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror or error}") from error
    problems = parsed(problems)
    said = f"{name}: {len(problems):,} problems, " + ", ".join(f"{role} from {field!r}" for role, field in used.items())
    made: dict[str, Any] = {"name": _stem(name)}
    if "answer" in used:
        own = (label_of(used["input"]), label_of(used["answer"]))
        made["labels"] = (own, *(labels for labels in USUAL_LABELS if labels != own))
    if grader is None:
        form = form_of(problems, name)
        grader = form.grader
        made |= {"max_tokens": form.max_tokens, "stop": form.stop, "cover": bool(form.labels)}
        if form.clauses:
            made["clauses"] = {**USUAL_CLAUSES, "format": (*form.clauses, *USUAL_CLAUSES["format"])}
        said += f"; {form.said}"
    return Task(**{**made, **tupled(settings)}, problems=problems, grader=make_grader(grader), source=said)


def _stem(name: str) -> str:
    return name.split(":")[1] if name.startswith("hf:") else Path(name).stem


def _problems(
    rows: Iterable[Row], named: Mapping[str, str | None], source: str
) -> tuple[tuple[Problem, ...], dict[str, str]]:
    """The problems in rows, and which field was read as what."""
    problems: list[Problem] = []
    used: dict[str, str] = {}
    seen: dict[str, str] = {}
    for number, (row, where) in enumerate(rows, 1):
        if not used:
            used = _fields(row, named, where)
        for role, name in used.items():
            if name not in row:
                raise ConfigError(f"{where} has no field {name!r}{nearest(name, row)}: it is read as {role}")
        problem = _problem(row, used, number, where)
        if problem.id in seen:
            raise ConfigError(
                f"{where} has the id {problem.id!r}, which {seen[problem.id]} has too: make ids unique, or name "
                f"another field with id="
            )
        seen[problem.id] = where
        problems.append(problem)
    if not problems:
        raise ConfigError(f"{source} is empty: give at least one problem")
    return tuple(problems), used


def _fields(row: Mapping[str, Any], named: Mapping[str, str | None], where: str) -> dict[str, str]:
    used: dict[str, str] = {}
    columns = ", ".join(map(str, row))
    for role, name in named.items():
        if name is None:
            name = _usual(role, [column for column in row if column not in (*named.values(), *used.values())])
        elif name not in row:
            flag = f"--{role}-field" if role in ("input", "answer") else f"{role}="
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
        raise ConfigError(f"{where}: {used['input']!r} is to be the input, and holds no text but {text!r:.60}")
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
