"""A prompt as a sketch: `{choice: this | that}` is one of several wordings, `{pinned: ...}` never changes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from fanfold.config import content, load_toml
from fanfold.errors import ConfigError, nearest
from fanfold.prompting.genome import SECTIONS, SLOT, Genome, Labels
from fanfold.prompting.material import Part

#: A template: a text with marks, or as in TOML a list of texts, in which a list of texts is a choice.
Template: TypeAlias = str | Sequence[str | Sequence[str]]
#: Wordings that the choices of one sentence may make together.
MOST_WORDINGS = 64

_WORDS = ("choice", "pinned")
_MARK = re.compile(r"\{([a-z]+):")
#: Where a mark stood while a text is cut into sentences; the second one ends a sentence.
_PLACE = re.compile("[\ue000-\uf8ff](?:\u2e3b\\.)?")


def sketch_of(template: Template, labels: Labels | None = None) -> tuple[Genome, tuple[Part, ...]]:
    """The prompt with the first of all choices, and its parts that are chosen or pinned."""
    text = ""
    options: list[tuple[str, ...]] = []
    for piece in _pieces(template):
        if isinstance(piece, str):
            text += piece
            continue
        ends = all(option.endswith((".", "!", "?")) for option in piece if option)
        text += chr(0xE000 + len(options)) + ("\u2e3b." if ends else "")
        options.append(piece)
    genome = Genome.of(text, labels)
    parts: list[Part] = []
    sections: dict[str, Any] = {}
    for name in SECTIONS:
        clauses = []
        for clause in getattr(genome, name):
            if _PLACE.search(clause):
                parts.append(Part(name, _wordings(clause, options)))
                clause = parts[-1].wordings[0]
            clauses += [clause] if clause else []
        sections[name] = tuple(clauses)
    return replace(genome, **sections), tuple(parts)


def _pieces(template: Template) -> Iterator[str | tuple[str, ...]]:
    """Texts as they stand, and between them the wordings of each choice; of a pinned part there is one."""
    if not isinstance(template, str):
        for number, item in enumerate(template):
            yield " " if number else ""
            if isinstance(item, str):
                yield from _pieces(item)
            else:
                yield _checked(tuple(option.strip() for option in item), f"choice {list(item)}")
        return
    at = 0
    for mark in _MARK.finditer(template):
        hint = nearest(mark[1], _WORDS)
        if mark.start() < at or (mark[1] not in _WORDS and "mean" not in hint):
            continue
        end = _closing(template, mark.start())
        where = template[mark.start() : end + 1]
        if mark[1] not in _WORDS:
            raise ConfigError(f"{where!r:.60} is neither {{choice: ...}} nor {{pinned: ...}}{hint}")
        inside = template[mark.end() : end].strip()
        if mark[1] == "choice":
            bare = inside[1:-1] if inside.startswith("[") and inside.endswith("]") else inside
            wordings = tuple(option.strip().replace("\\|", "|") for option in re.split(r"(?<!\\)\|", bare))
        else:
            wordings = (inside,)
        yield template[at : mark.start()]
        yield _checked(wordings, where)
        at = end + 1
    yield template[at:]


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
    raise ConfigError(f"{text[start:]!r:.60} is not closed: a brace is missing")


def _checked(wordings: tuple[str, ...], where: str) -> tuple[str, ...]:
    if not any(wordings):
        raise ConfigError(f"{where!r:.60} says nothing: write {{choice: this | that}} or {{pinned: a text}}")
    if any(SLOT in wording for wording in wordings):
        raise ConfigError(f"{where!r:.60} holds {SLOT}: put that outside the mark; it is never lost")
    return tuple(dict.fromkeys(wordings))


def _wordings(clause: str, options: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Everything that a clause with places may say, the first of all choices first."""
    places = [ord(found[0][0]) - 0xE000 for found in _PLACE.finditer(clause)]
    breaks = clause[: len(clause) - len(clause.lstrip("\n"))]
    made = []
    for chosen in itertools.islice(itertools.product(*(options[place] for place in places)), MOST_WORDINGS + 1):
        rest = iter(chosen)
        text = _PLACE.sub(lambda _: next(rest), clause)  # noqa: B023 - used at once
        text = re.sub(r"[ \t]+(?=[ \t.,;:!?]|$)", "", text).strip()
        made.append(breaks + text if any(letter.isalnum() for letter in text) else "")
    if len(made) > MOST_WORDINGS:
        raise ConfigError(
            f"the choices of one sentence make more than {MOST_WORDINGS} wordings: put them into several sentences"
        )
    return tuple(dict.fromkeys(made))


def bank_of(clauses: str | Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """A clause bank by section: a table, a TOML file with one, or a text file with a clause on each line."""
    table = clauses
    if isinstance(clauses, str):
        path = Path(clauses.removeprefix("@"))
        if path.suffix == ".toml":
            table = load_toml(path)
            table = table.get("clauses", table)
        else:
            lines = content(f"@{path}", "clauses").splitlines()
            table = {}
            for line in filter(None, map(str.strip, lines)):
                section = next(name for name, part in Genome.of(line).sections.items() if part)
                table[section] = (*table.get(section, ()), line)
    if not isinstance(table, Mapping) or not any(table.values()):
        raise ConfigError(
            f"clauses: {clauses!r:.60} holds none: give lists by section, or a file with one on each line"
        )
    for name, bank in table.items():
        if name not in SECTIONS:
            raise ConfigError(f"clauses: a prompt has no section {name!r}{nearest(name, SECTIONS)}")
        if isinstance(bank, str) or not all(isinstance(clause, str) for clause in bank):
            raise ConfigError(f"clauses: {name} must be a list of texts, not {bank!r:.60}")
    return {name: tuple(bank) for name, bank in table.items()}
