"""What the commands print: results on stdout, everything else on stderr, as text or as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fanfold.redaction import redact
from fanfold.texts import duration as duration
from fanfold.texts import number as number
from fanfold.texts import printable, printable_json
from fanfold.texts import shortened as shortened

F = TypeVar("F", bound=Callable[..., Any])

_JSON = "fanfold.json"
_QUIET = "fanfold.quiet"
_ASIDE = "fanfold.aside"


def output_options(command: F) -> F:
    """The options every command has; they are read with `machine_readable` and `quiet`."""

    def keep(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
        def callback(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
            ctx.meta[key] = value

        return callback

    def colour(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value or os.environ.get("NO_COLOR"):
            ctx.color = ctx.find_root().color = False  # errors are printed by the root

    flags = (
        ("--json", keep(_JSON), "Print the result as JSON on stdout."),
        ("--quiet", keep(_QUIET), "Print errors only, and the result if --json asks for it."),
        ("--no-color", colour, "No colours; the environment variable NO_COLOR does the same."),
    )
    for name, callback, help in reversed(flags):
        command = click.option(name, is_flag=True, expose_value=False, is_eager=True, callback=callback, help=help)(
            command
        )
    return command


def ledger_option(command: F) -> F:
    """`--ledger FILE`, by default the environment variable or a file in the current folder."""
    return click.option(
        "--ledger",
        envvar="FANFOLD_LEDGER",
        default="fanfold.db",
        show_default="$FANFOLD_LEDGER or fanfold.db",
        metavar="FILE",
        help="The file that keeps all runs.",
    )(command)


def run_argument(command: F) -> F:
    """RUN: a name, the beginning of one, or `last`."""
    return click.argument("name", metavar="RUN", shell_complete=complete_run)(command)


def complete_run(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fanfold.ledger import Ledger

    try:
        with Ledger(
            ctx.params.get("ledger") or os.environ.get("FANFOLD_LEDGER", "fanfold.db"), readonly=True
        ) as ledger:
            names = ["last", *(run.name for run in ledger.runs())]
    except Exception:
        return []  # a completion that fails must not disturb the person who types
    return [name for name in names if name.startswith(incomplete)]


def complete_target(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of installed studies; where none fits, the shell completes names of files."""
    from fanfold.plugins import studies

    names = [CompletionItem(name) for name in studies() if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


def machine_readable(ctx: click.Context | None = None) -> bool:
    return bool((ctx or click.get_current_context()).meta.get(_JSON))


def quiet() -> bool:
    return bool(click.get_current_context().meta.get(_QUIET))


def colourless() -> bool:
    return click.get_current_context().color is False


def speak_aside() -> None:
    """From now on what is for people goes to stderr: stdout carries rows."""
    click.get_current_context().meta[_ASIDE] = True


def say(text: str = "") -> None:
    """Print one line of a result for people, unless --json or --quiet was given."""
    if not machine_readable() and not quiet():
        echo(text, err=bool(click.get_current_context().meta.get(_ASIDE)))


def echo(text: str, *, err: bool = False, nl: bool = True, label: str = "") -> None:
    """Print text for people, without known keys and without control characters."""
    styled = click.style(f"{label}:", fg="red", bold=True) + " " if label else ""
    click.echo(styled + printable(redact(text)), err=err, nl=nl)


def print_json(value: Any) -> None:
    import msgspec

    click.echo(printable_json(redact(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())))


def print_error(message: str, label: str = "error") -> None:
    echo(message, err=True, label=label)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """Columns of text; those named in `right` are aligned to the right."""
    rows = [[printable(cell, lines=False) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = (text.rjust(w) if name in right else text.ljust(w) for text, w, name in zip(row, widths, head))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
