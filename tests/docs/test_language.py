"""Pages, help texts and docstrings use plain English, in lines of at most 120 characters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
CODE = [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *(ROOT / "examples").glob("*.py")]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / "benchmarks").glob("*.md"),
]

#: Words that make a reader stop, and what to write instead.
INSTEAD = {
    r"as it stands": "default",
    r"go(es|ing|ne)? on|went on": "continue",
    r"anew": "again",
    r"plainly": "directly, or leave it out",
    r"dear(er|est)?": "expensive",
    r"(?<!there )(is|are) no (?!longer|more|other|such|\w+er )\w+": "is not",
    r"what (came|comes|become|becomes|became) of": "result of",
    r"mend(s|ed|ing)?": "fix",
    r"for ever": "forever",
    r"ever after": "afterwards",
    r"and the like": "such as",
    r"unasked": "without asking",
    r"nobody need": "you do not have to",
    r"said aloud": "reported",
}
ODD = re.compile("|".join(rf"(?P<p{number}>\b(?:{words})\b)" for number, words in enumerate(INSTEAD)), re.IGNORECASE)


def odd(text: str) -> Iterator[str]:
    for match in ODD.finditer(re.sub(r"\s+", " ", text)):
        yield f"{match[0]!r}: write {list(INSTEAD.values())[int(str(match.lastgroup)[1:])]!r}"


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`]*`", "", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain_and_narrow(page: Path) -> None:
    assert list(odd(prose(page))) == []
    wide = [number for number, line in enumerate(page.read_text().splitlines(), 1) if len(line) > 120]
    assert wide == [], f"lines of more than 120 characters: {wide}"


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from commands(inner, (*words, name))


@pytest.mark.slow
def test_help_is_plain() -> None:
    from fanfold.cli import cli
    from fanfold.plugins import studies

    places = []
    for words in [*commands(cli), *(("run", study) for study in studies())]:
        shown = CliRunner().invoke(cli, [*words, "--help"])
        assert shown.exit_code == 0, words
        places += [f"fanfold {' '.join(words)}: {phrase}" for phrase in odd(shown.output)]
    assert places == []


@pytest.mark.slow
def test_docstrings_and_messages_are_plain() -> None:
    places = []
    for path in sorted(CODE):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                places += [f"{path.relative_to(ROOT)}:{node.lineno}: {phrase}" for phrase in odd(node.value)]
    assert places == []
