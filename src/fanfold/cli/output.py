"""What the commands print: results on stdout, everything else on stderr, as text or as JSON."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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
_RESULT = "fanfold.result"


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

    def noted(ctx: click.Context, parameter: click.Parameter, ledger: str) -> str:
        if not ctx.resilient_parsing:
            from fanfold.ledger.places import network_note

            if note := network_note(Path(ledger)):
                echo(f"note: {note}", err=True)
        return ledger

    return click.option(
        "--ledger",
        envvar="FANFOLD_LEDGER",
        default="fanfold.db",
        show_default="$FANFOLD_LEDGER or fanfold.db",
        metavar="FILE",
        shell_complete=complete_file,
        callback=noted,
        help="The file that keeps all runs.",
    )(command)


def default_ledger() -> str:
    return os.environ.get("FANFOLD_LEDGER") or "fanfold.db"


def ledger_flag(ledger: str) -> str:
    """What a command that is printed needs to find this ledger; nothing where it is the default."""
    return "" if ledger == default_ledger() else f" --ledger {shlex.quote(ledger)}"


def newest_run_argument(command: F) -> F:
    """RUN: a name, the beginning of one, or `last`; the newest where none is given, for commands that only read."""
    return click.argument("name", metavar="[RUN]", default="last", shell_complete=complete_run)(command)


def complete_run(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fanfold.ledger import Ledger

    try:
        with Ledger(ctx.params.get("ledger") or default_ledger(), readonly=True) as ledger:
            names = ["last", *ledger.names(incomplete)]
    except Exception:
        return []  # a completion that fails must not disturb the person who types
    return [name for name in names if name.startswith(incomplete)]


def complete_study(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fanfold.plugins import studies

    return [name for name in studies() if name.startswith(incomplete)]


def complete_target(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of installed studies, and of files that can be run; where none fits, the shell completes any file."""
    folder, _, start = incomplete.rpartition("/")
    try:
        paths = sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).iterdir())
    except OSError:
        paths = []
    shown = [path for path in paths if path.name.startswith(start) and not (path.name.startswith(".") and not start)]
    files = [str(path) for path in shown if path.suffix in (".py", ".toml", ".yaml", ".yml", ".json")]
    names = [*complete_study(ctx, parameter, incomplete), *files, *(f"{path}/" for path in shown if path.is_dir())]
    return [CompletionItem(name) for name in names] or complete_file(ctx, parameter, incomplete)


def complete_file(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


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
    text = styled + printable(redact(text))
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return  # closed, as by >&-
    if (stream.encoding or "ascii").lower() == "ascii":
        text = text.replace("…", "...")
    click.echo(text, err=err, nl=nl)


def print_json(value: Any) -> None:
    import msgspec

    text = printable_json(redact(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))
    click.echo(text, file=click.get_current_context().meta.get(_RESULT))


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """With --json, what the user's code prints meanwhile goes to stderr, also from C and from worker processes."""
    meta, stdout = click.get_current_context().meta, sys.stdout
    if not machine_readable() or _RESULT in meta or stdout is None or sys.stderr is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        meta[_RESULT] = stdout
        stack.callback(meta.pop, _RESULT)
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            out, err = stdout.fileno(), sys.stderr.fileno()
            stdout.flush()
            kept = os.fdopen(os.dup(out), "w", encoding=stdout.encoding, errors=stdout.errors)
            meta[_RESULT] = stack.enter_context(kept)
            os.dup2(err, out)
            stack.callback(os.dup2, kept.fileno(), out)
            stack.callback(stdout.flush)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def print_error(message: str, label: str = "error") -> None:
    echo(message, err=True, label=label)


#: The narrowest a column of a table gets, and the width of output that goes into a pipe.
NARROWEST, WIDEST = 8, 10_000


def screen_width() -> int:
    """Columns of the terminal, or of a usual one."""
    return max(NARROWEST, shutil.get_terminal_size((80, 24)).columns)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str] = (),
    width: int = 0,
    least: Sequence[str] = (),
    whole: Sequence[str] = (),
    narrowest: int = NARROWEST,
) -> str:
    """Columns of text; those named in `right` are aligned to the right.

    Where a terminal has less room, columns named in `least` are left out, the first of them first, and then texts are
    cut to `narrowest`; of columns named in `whole`, only the name. If that is not enough, each row is a block of lines.
    """
    width = width or shutil.get_terminal_size((WIDEST, 24)).columns
    rows = [[printable(cell, lines=False) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    if least and sum(widths) + 2 * len(widths) - 2 > width:
        kept = [i for i, name in enumerate(head) if name != least[0]]
        rest = [[row[i] for i in kept] for row in rows]
        return table([head[i] for i in kept], rest, right, width, least[1:], whole, narrowest)
    texts = [(i, [row[i] for row in rows if name in whole]) for i, name in enumerate(head) if name not in right]
    floors = {i: max([narrowest, *map(len, cells)]) for i, cells in texts}
    while sum(widths) + 2 * len(widths) - 2 > width and (wide := [i for i in floors if widths[i] > floors[i]]):
        widths[max(wide, key=widths.__getitem__)] -= 1
    if sum(widths) + 2 * len(widths) - 2 > width:
        return _stacked(head, rows, width)
    lines = []
    for row in [head, *rows]:
        cut = [text if len(text) <= w else shortened(text, w) for text, w in zip(row, widths)]
        cells = (text.rjust(w) if name in right else text.ljust(w) for text, w, name in zip(cut, widths, head))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _stacked(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """A table too wide for the terminal: a line for each cell, under the first one of its row."""
    most = min(max(map(len, head[1:]), default=0), width // 3)
    names = [shortened(name, most).ljust(most) for name in head[1:]]
    blocks = [
        [shortened(row[0], width), *(f"  {name}  {shortened(text, width)}"[:width] for name, text in cells)]
        for row in rows
        if (cells := [(name, text) for name, text in zip(names, row[1:]) if text]) or row
    ]
    return "\n".join(line for block in blocks for line in block)


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
