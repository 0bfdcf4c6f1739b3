"""Assembles the documentation site in build/docs and builds it in build/site (`make docs`).

The pages are those of docs/, the pages at the root of the repository, and a reference that is generated from the code.
Links between them keep working: the repository's paths are turned into the site's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import click
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.config import FieldHelp, describe
from fanfold.plugins import find_study, studies
from fanfold.run_options import RunOptions

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"

#: Where files from outside docs/ are in the site.
ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks/method.md",
}
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")


def place(path: str) -> str:
    """The path in the site of a file of the repository."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/").replace("benchmarks/results/", "benchmarks/")


def linked(text: str, source: str) -> str:
    """A page's text with its links as the site has them."""

    def turned(match: re.Match[str]) -> str:
        target, hash, anchor = match[2].partition("#")
        if "://" in target or not target:
            return match[0]
        path = os.path.normpath(PurePosixPath(source).parent / target)
        relative = os.path.relpath(place(path), PurePosixPath(place(source)).parent)
        return f"{match[1]}{relative}{hash}{anchor}{match[3]}"

    return LINK.sub(turned, text)


def copyable(text: str) -> str:
    """A page's text with its commands as a reader pastes them: without the prompt."""
    return CONSOLE.sub(lambda match: f"```sh\n{re.sub(r'^[$] ', '', match[1], flags=re.MULTILINE)}```", text)


def sources() -> Iterator[Path]:
    yield from sorted((ROOT / "docs").rglob("*.*"))
    yield from (ROOT / name for name in ELSEWHERE if name != "README.md")
    yield from sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    yield from (path for path in sorted((ROOT / "examples").iterdir()) if path.is_file())


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something by itself."""
    if not isinstance(command, click.Group):
        yield words
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        if (inner := command.get_command(context, name)) is not None and not inner.hidden:
            yield from commands(inner, (*words, name))


def command_reference() -> str:
    """Every command with its --help."""
    parts = []
    for words in commands(cli):
        help = CliRunner().invoke(cli, [*words, "--help"], prog_name="fanfold", terminal_width=100)
        parts.append(f"## {' '.join(words)}\n\n```text\n{help.output.rstrip()}\n```\n")
    return "\n".join(parts)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(fields: tuple[FieldHelp, ...]) -> str:
    lines = ["| field | what it is | value | default |", "|---|---|---|---|"]
    for field in fields:
        shown = json.dumps(field.default, default=str, ensure_ascii=False)
        default = "required" if field.required else "" if field.default in (None, (), []) else f"`{cell(shown)}`"
        lines.append(f"| `{field.name}` | {cell(field.help)} | {cell(field.type)} | {default} |")
    return "\n".join(lines)


def field_reference() -> str:
    """The options of a run, and every study with its fields."""
    parts = [f"## Options of a run\n\n{table(describe(RunOptions))}\n"]
    parts += [f"## {name}\n\n{table(describe(find_study(name).config))}\n" for name in sorted(studies())]
    return "\n".join(parts)


GENERATED: dict[str, Callable[[], str]] = {"commands": command_reference, "fields": field_reference}


def assemble() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in sources():
        source = path.relative_to(ROOT).as_posix()
        target = PAGES / place(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copy(path, target)
            continue
        text = copyable(linked(path.read_text(), source))
        for name, generate in GENERATED.items():
            if (mark := f"<!-- generated: {name} -->") in text:
                text = text.replace(mark, generate())
        target.write_text(text)


def main() -> int:
    assemble()
    return subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
