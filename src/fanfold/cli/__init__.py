"""The command line: `fanfold run`, `resume`, `estimate`, `runs`, `show`, `batches`, `simulate` and more.

Command modules import only click; what a command needs it imports when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import click

from fanfold import __version__
from fanfold.cli.ask import ask
from fanfold.cli.batches import batches
from fanfold.cli.compare import compare
from fanfold.cli.doctor import completion, doctor
from fanfold.cli.examples import examples
from fanfold.cli.export import export
from fanfold.cli.init import init
from fanfold.cli.known_models import known_models
from fanfold.cli.ledger import ledger_group
from fanfold.cli.models import estimate, simulate
from fanfold.cli.output import echo, machine_readable, print_error, print_json
from fanfold.cli.prompt import prompt
from fanfold.cli.run import resume, run
from fanfold.cli.schema import schema
from fanfold.cli.show import report, runs, show
from fanfold.cli.studies import SHORT, renamed, study_group, study_names
from fanfold.cli.view import view
from fanfold.errors import ConfigError, FanfoldError, Interrupted, LedgerError, ReplayDivergence
from fanfold.texts import printable

#: What a system says where a disk, or the user's part of it, is full.
_FULL = (errno.ENOSPC, errno.EDQUOT)
_EPILOG = """\b
Exit codes:
  0    done
  1    the run ended without any complete result, or another failure
  2    bad usage or configuration
  3    a problem with the ledger (the run file)
  4    a resumed study is not the one that was recorded
  130  interrupted by Ctrl-C; `fanfold resume` continues from there
  143  interrupted by SIGTERM (docker stop, a scheduler); the same

\b
Examples:
  fanfold init prompts --data tickets.csv
  fanfold ask data.jsonl --prompt 'Translate: {text}' --model PROVIDER/MODEL -o out.jsonl
  fanfold run functions --dimensions 10 --executor processes
  fanfold run my_study.py --max-time 15m
  fanfold estimate prompts --model PROVIDER/MODEL
  fanfold resume last
  fanfold show last
  fanfold play results/rl/RUN
"""


class Commands(click.Group):
    """The commands, those of studies included, with one place that turns errors into a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *(name for name in self._studies(ctx) if name not in self.commands)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in SHORT and name not in self.commands:
            return study_group(SHORT[name]).get_command(ctx, name)
        return super().get_command(ctx, name) or (study_group(name) if name in self._studies(ctx) else None)

    def _studies(self, ctx: click.Context) -> list[str]:
        """The installed studies, looked up once: with many packages that takes longer than everything else in help."""
        if "fanfold.studies" not in ctx.meta:
            ctx.meta["fanfold.studies"] = study_names()
        names: list[str] = ctx.meta["fanfold.studies"]
        return names

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        words = renamed(args)
        if words != args:
            echo(f"note: `fanfold {args[0]} ...` is now `fanfold {' '.join(words[:2])} ...`", err=True)
        return super().resolve_command(ctx, words)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        with _legible():
            _check_texts(args)
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _legible():
                return super().invoke(ctx)
        except Interrupted as error:
            print_error(str(error), label="interrupted")
            ctx.exit(error.code)
        except FanfoldError as error:
            print_error(str(error))
            if machine_readable(ctx):
                print_json({"error": {"type": type(error).__name__, "message": str(error)}})
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            print_error("nothing was running that could be lost", label="interrupted")
            ctx.exit(130)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            print_error(f"{error.strerror}: what this command prints or writes is incomplete; give it another place")
            ctx.exit(1)


@contextmanager
def _legible() -> Iterator[None]:
    """What click says about bad usage quotes the arguments: they are shown, not obeyed."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = printable(error.message)  # click calls it final
        raise


def _check_texts(args: list[str]) -> None:
    """Bytes that do not decode can be neither written down nor compared: they are refused before anything is done."""
    for word in args:
        try:
            word.encode()
        except UnicodeEncodeError:
            encoding = sys.getfilesystemencoding()
            remedy = "write it in UTF-8, or rename the file" if encoding == "utf-8" else "set PYTHONUTF8=1"
            raise click.UsageError(f"{word} cannot be read as {encoding}: {remedy}") from None


def exit_code(error: FanfoldError) -> int:
    for kind, code in ((ConfigError, 2), (LedgerError, 3), (ReplayDivergence, 4)):
        if isinstance(error, kind):
            return code
    return 1


@click.group(cls=Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fanfold")
def cli() -> None:
    """Evaluate populations of expensive candidates, and never pay twice for a finished evaluation."""


for _command in (
    init,
    examples,
    ask,
    run,
    resume,
    estimate,
    runs,
    show,
    view,
    compare,
    export,
    report,
    prompt,
    batches,
    ledger_group,
    known_models,
    schema,
    simulate,
    doctor,
    completion,
):
    cli.add_command(_command)


def main() -> None:
    """The console entry point."""
    sys.excepthook = _say_traceback
    _hold_streams()
    cli(prog_name="fanfold")


def _hold_streams() -> None:
    """Nothing else may get the number of a standard stream that is closed, as by `>&-`: libraries break on it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _say_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A mistake of ours may quote a stranger's text, too."""
    echo("".join(traceback.format_exception(kind, error, trace)), err=True, nl=False)
