"""Which columns of a file hold problem, answer, id and options: those that are named, else those of usual names."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fanfold.config import load_toml
from fanfold.errors import ConfigError, nearest
from fanfold.tables import columns_in_words, inside
from fanfold.tasks.forms import label_of, looks_like_data
from fanfold.tasks.programs import asserts_in
from fanfold.tasks.reading import as_json

_NAMES = load_toml(Path(__file__).with_name("data") / "columns.toml")
#: Columns that are one problem together.
TOGETHER: tuple[tuple[str, ...], ...] = tuple(map(tuple, _NAMES.pop("together")))
#: What the fields of a problem are usually called, the likeliest first.
USUAL: Mapping[str, tuple[str, ...]] = {role: tuple(names) for role, names in _NAMES.items()}
#: Columns with an option each, such as `A`, `option_b` and `choice 3`.
_OPTION = re.compile(r"([A-H])|(?:option|choice|answer)[ _]?([A-Ha-h1-8])")
_ABSENT = object()


@dataclass(frozen=True)
class Columns:
    """What is read of every row; several columns of the input are read together, each behind its name.

    A name with dots that no column has reaches into nested values (`data.text`).
    """

    input: tuple[str, ...]
    answer: str | None = None
    id: str | None = None
    options: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    #: Of tests, the column of the code that passes them.
    solution: str | None = None

    @classmethod
    def of(
        cls, rows: Sequence[Mapping[str, Any]], named: Mapping[str, str | None], where: str, *, answered: bool
    ) -> Columns:
        """The columns of a file that begins with such rows, the first of them at `where`; `named` the user names."""
        row = _outline(rows)
        for role, name in named.items():
            for part in _parts(row, name) if role == "input" else filter(None, [name]):
                if _cell(row, part) is _ABSENT:
                    flag = f"{role}=" if role == "options" else f"--{role}-field"
                    raise ConfigError(
                        f"{where} has no field {part!r}{_meant(part, row)}: {flag} "
                        f"names it (columns: {columns_in_words(row)})"
                    )
        input, answer, id, options, solution = _guessed(row, named)
        known = columns_in_words(row)
        if not input:
            nameless = not all(str(name).strip() for name in row)
            below = "; if a line further down names the columns, delete those above it" if nameless else ""
            data = "; if its first line is data, add one that names the columns" if looks_like_data(row) else below
            raise ConfigError(
                f"{where}: which field holds the input? Name it with --input-field (columns: {known}{data})"
            )
        if answer is None and answered:
            raise ConfigError(
                f"{where}: which field holds the answer? Name it with --answer-field (columns: {known}), or use "
                "--grader judge, which needs none"
            )
        read = {*input, answer, id, *options, solution}
        unused = tuple(str(column) for column in row if column not in read and str(column).strip())
        return cls(input, answer, id, options, tuple(name for name in unused if not _reached(name, read)), solution)

    def lacks(self, row: Mapping[str, Any], *, answered: bool) -> str:
        """The columns that a row must have something in and has nothing in; mostly none."""
        if all(_blank(_cell(row, name)) for name in self.input):
            return " and ".join(map(repr, self.input))
        return repr(self.answer) if answered and self.answer is not None and _blank(_cell(row, self.answer)) else ""

    def cells(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        """What is read of a row, by role."""
        needed = {"input": self.input[:1] if len(self.input) == 1 else (), "options": self.options}
        for role, names in {**needed, "answer": _listed(self.answer)}.items():
            for name in names:
                if _cell(row, name) is _ABSENT:
                    raise ConfigError(f"{where} has no field {name!r}{_meant(name, row)}: it is read as {role}")
        cells = {"input": _text(row, self.input)}
        if self.answer is not None:
            cells["answer"] = _cell(row, self.answer)
        if self.solution is not None:
            cells["solution"] = _cell(row, self.solution, None)
        if self.id is not None:
            cells["id"] = _cell(row, self.id, None)
        if len(self.options) > 1:
            texts = {_option_of(name): _cell(row, name) for name in self.options}
            cells["options"] = {label: str(text) for label, text in texts.items() if not _blank(text)}
        elif self.options:
            cells["options"] = _cell(row, self.options[0])
        return cells

    def numbered(self) -> Columns:
        """The same, with problems called by the number of their row."""
        return replace(self, id=None, unused=(*self.unused, *_listed(self.id)))

    @property
    def labels(self) -> tuple[str, str]:
        """What a prompt calls input and answer; several columns bring their own names."""
        assert self.answer is not None
        return label_of(self.input[0]) if len(self.input) == 1 else "", label_of(self.answer)

    @property
    def form(self) -> str:
        """How an input is put together; empty where it is a column as it is."""
        parts = [f"{label_of(name)}: ..." for name in self.input] if len(self.input) > 1 else ["..."]
        options = ["A) ...", "B) ..."] if self.options else []
        return "\n".join([*parts, *options]) if len([*parts, *options]) > 1 else ""

    @property
    def asked(self) -> str:
        """The input in a sentence."""
        return " and ".join(lowered(label_of(name)) for name in self.input)

    @property
    def in_words(self) -> str:
        roles = {"input": self.input, "answer": self.answer, "solution": self.solution}
        roles |= {"id": self.id, "options": self.options}
        read = [f"{role} from {', '.join(map(repr, _listed(names)))}" for role, names in roles.items() if names]
        return ", ".join(read + ([f"not read: {columns_in_words(self.unused, 6)}"] if self.unused else []))


def lowered(label: str) -> str:
    """A label inside a sentence; an acronym stays as it is."""
    return label if label.isupper() else label[:1].lower() + label[1:]


def _guessed(
    row: Mapping[str, Any], named: Mapping[str, str | None]
) -> tuple[tuple[str, ...], str | None, str | None, tuple[str, ...], str | None]:
    """Input, answer, id, options and solution; what is not named is guessed, and may not be found."""
    input = _parts(row, named["input"])
    answer, id, options = named["answer"], named["id"], tuple(filter(None, [named["options"]]))
    free = [name for name in row if name not in {*input, answer, id, *options}]
    if not input:
        input = _together(free) or tuple(filter(None, [_usual("input", free)]))
        free = [name for name in free if name not in input]
    answer = answer or next((name for name in USUAL["tests"] if name in free and asserts_in(row[name])), None)
    answer = answer or _usual("answer", [name for name in free if not _OPTION.fullmatch(str(name))])
    free = [name for name in free if name != answer]
    id = id or _usual("id", free)
    free = [name for name in free if name != id]
    options = options or tuple(filter(None, [_usual("options", free)])) or _optional(free, row, answer)
    tested = answer is not None and asserts_in(_cell(row, answer))
    solution = next((name for name in USUAL["solution"] if tested and name in free), None)
    rest = [name for name in free if name not in (*options, solution)]
    if not input and len(rest) == (1 if answer else 2) and str(answer or rest[1]).strip():  # nothing else can be meant
        input, answer = (rest[0],), answer or rest[1]
    elif answer is None and input and len(rest) == 1:
        answer = rest[0]
    return input, answer, id, options, solution


def _parts(row: Mapping[str, Any], name: str | None) -> tuple[str, ...]:
    """The columns that a name with commas stands for, unless a column is called so."""
    if name is None or name in row:
        return tuple(filter(None, [name]))
    return tuple(part.strip() for part in name.split(",") if part.strip())


def _together(columns: Sequence[Any]) -> tuple[str, ...]:
    by_word = {"".join(str(column).casefold().replace("_", " ").split()): str(column) for column in columns}
    return next((tuple(map(by_word.__getitem__, names)) for names in TOGETHER if by_word.keys() >= {*names}), ())


def _optional(columns: Sequence[Any], row: Mapping[str, Any], answer: str | None) -> tuple[str, ...]:
    """Columns with an option each, if there are several and the answer is the letter or the text of one."""
    found = [str(column) for column in columns if _OPTION.fullmatch(str(column))]
    right = str(row.get(answer or "", "")).strip().casefold()
    labels = {_option_of(name).casefold() for name in found}
    known = labels | {str(row[name]).strip().casefold() for name in found}
    fewest = 3 if all(len(name) == 1 for name in found) else 2
    return tuple(found) if len(labels) == len(found) >= fewest and right in known else ()


def _option_of(column: str) -> str:
    """The label of the option in a column such as `option_b`."""
    return column[-1].upper()


def _usual(role: str, columns: Sequence[Any]) -> str | None:
    """The column that is probably meant: one of a usual name, else one with a usual name among its words."""
    texts = [column for column in columns if isinstance(column, str)]
    for usual in USUAL[role]:
        if found := next((column for column in texts if column.casefold() == usual), None):
            return found
    words = {column: re.findall(r"\w+", label_of(column).casefold()) for column in texts}
    for usual in USUAL[role]:
        if found := next((column for column in texts if usual in words[column]), None):
            return found
    return None


def _cell(row: Mapping[str, Any], name: str, otherwise: Any = _ABSENT) -> Any:
    """A column's value, or one inside it."""
    value = row.get(name, _ABSENT)
    if value is _ABSENT and "." in name:
        value = inside(row, name, _ABSENT)
    return otherwise if value is _ABSENT else value


def _text(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The input: one column as it is, several with a line for each that has something in it."""
    if len(names) == 1:
        return _cell(row, names[0])
    values = {name: _cell(row, name) for name in names}
    return "\n".join(
        f"{label_of(name)}: {value if isinstance(value, str) else as_json(value)}"
        for name, value in values.items()
        if not _blank(value) and value is not _ABSENT
    )


def _meant(name: str, row: Mapping[str, Any]) -> str:
    """The column that was probably meant, if one is alike."""
    close = nearest(name, map(str, row))
    return close if "did you mean" in close else ""


def _listed(names: str | Sequence[str] | None) -> Sequence[str]:
    return [names] if isinstance(names, str) else names or ()


def _reached(column: str, read: set[str | None]) -> bool:
    return any(name is not None and name.startswith(f"{column}.") for name in read)


def _blank(value: Any) -> bool:
    """Whether there is nothing in a cell; one that is missing is another matter."""
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, Mapping):  # as questions without an answer have it
        return value.get("text") == []
    return value is None or (isinstance(value, str) and not value.strip())


def _outline(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All columns of some rows, each with the first value that is there: JSON may leave out what is empty."""
    outline: dict[str, Any] = {}
    for row in rows:
        outline |= {name: value for name, value in row.items() if name not in outline or _blank(outline[name])}
    return outline
