"""The flags that say how a run is done, made from the fields of `RunOptions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from fanfold.config import FieldHelp, check_range, describe, from_mapping, from_text, option, range_name
from fanfold.errors import ConfigError
from fanfold.run_options import RunOptions

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class ShellOptions(RunOptions):
    """The options of a run, and those that only the shell has."""

    seed: int | None = option(None, "The seed of the search.", metavar="N", planned=True)
    report: str | None = option(None, "Write an HTML report at the end.", metavar="FILE", once=True)
    view: bool = option(False, "Open the live page of the run in the browser (see `fanfold view`).", once=True)

    def arguments(self, **changes: Any) -> dict[str, Any]:
        """For `Study.run`."""
        return {field.name: getattr(self, field.name) for field in fields(RunOptions)} | changes

    def recorded(self) -> dict[str, Any]:
        """What a resume takes over: all that was set, except decisions that hold for one time."""
        unset = shell_options({}, {}, "no flags")
        return {
            field.name: field.metadata.get("record", lambda value: value)(value)
            for field in fields(self)
            if (value := getattr(self, field.name)) != getattr(unset, field.name) and not field.metadata.get("once")
        }


def shell_options(values: Mapping[str, Any], beneath: Mapping[str, Any], where: str) -> ShellOptions:
    """The options among a command's parameters, laid over those that a file or a ledger (`where`) says."""
    flags = {field.name: values[field.name] for field in FIELDS if values.get(field.name) is not None}
    return from_mapping(ShellOptions, {"executor": "auto", **beneath, **flags}, where)


FIELDS = describe(ShellOptions)


def run_flags(*without: str, planned: bool = False) -> Callable[[F], F]:
    """A flag for every option of a run but those named; `planned`: only for those that matter before a run."""
    wanted = [
        _flag(field) for field in FIELDS if field.name not in without and (field.metadata.get("planned") or not planned)
    ]
    return lambda command: _with(command, wanted if planned else [*wanted, _TRUST_HOST])


def field_flags(fields: Sequence[FieldHelp]) -> Callable[[F], F]:
    """A flag for every field of a study's config; one with `short` has that name, too."""
    return lambda command: _with(command, [_flag(replace(field, help=sentence(field.help))) for field in fields])


def sentence(words: str) -> str:
    """The help of a field, which begins small and has no full stop, as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."


def _flag(field: FieldHelp) -> Callable[[F], F]:
    kinds = get_args(field.kind) or (field.kind,)
    kind: dict[str, Any] = {"callback": _read(field), "metavar": field.metadata.get("metavar")}
    if field.kind is bool:
        kind = {"is_flag": True, "default": None}
    elif get_origin(field.kind) is Literal:
        kind = {"type": click.Choice(kinds)}
    elif field.name == "executor":
        kind |= {"cls": ExecutorFlag, "shell_complete": _complete_executor}
    elif field.name == "track":
        kind |= {"shell_complete": _complete_tracker}
    names = [f"--{field.name.replace('_', '-')}", *field.metadata.get("short", ())]
    return click.option(*names, help=flag_help(field), **kind)


def with_values(args: Sequence[str]) -> list[str]:
    """Arguments in which flags that need no value have one: `--retry-failed RUN` must not take RUN for its value."""
    bare = {f"--{field.name.replace('_', '-')}" for field in FIELDS if bool in get_args(field.kind)}
    return [f"{word}=true" if word in bare else word for word in args]


def flag_help(field: FieldHelp) -> str:
    """What a field is for, with its range and its default."""
    default = field.metadata.get("shell", field.default)
    shown = "" if default in (None, False, "", ()) else f"default: {default}"
    notes = "; ".join(filter(None, (range_name(field.metadata["range"]), shown)))
    return f"{field.help}  [{notes}]" if notes else field.help


def _read(field: FieldHelp) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Reads a flag's text as the type of its field, as in a file."""

    def read(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        flag = f"--{field.name.replace('_', '-')}"
        value = flag_value(field, flag, text)
        check_range(field.metadata, value, f"the command line: {flag}")
        return value

    return read


def flag_value(field: FieldHelp, flag: str, text: str) -> Any:
    """The value that a flag's text stands for; nothing, as of a variable that is not set, only where it means so."""
    value = from_text(field.kind, text, flag, "the command line")
    nothing = value in ("", (), []) or (isinstance(field.default, tuple) and not text.strip(" ,"))
    if nothing and field.default != "":
        raise ConfigError(f"the command line: {flag} is empty: give {field.type}, or leave {flag} out")
    return value


class ExecutorFlag(click.Option):
    """`--executor`, whose help lists the executors that are installed."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from fanfold.executors import names

        flag, text = super().get_help_record(ctx) or ("", "")
        return flag, text.replace(".", f": {', '.join(names())}.", 1)


def _complete_executor(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fanfold.executors import spellings

    return [spelling.removesuffix(":N") for spelling in spellings(incomplete)]


def _complete_tracker(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from fanfold.trackers import known_trackers

    done, comma, start = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in known_trackers() if name.startswith(start)]


def _trust(ctx: click.Context, parameter: click.Parameter, hosts: tuple[str, ...]) -> None:
    """Add hosts to the environment for as long as the command runs: worker processes make models too."""
    if not hosts:
        return
    import os

    from fanfold.addresses import TRUSTED

    before = os.environ.get(TRUSTED)
    os.environ[TRUSTED] = ",".join([*hosts, *([before] if before else [])])
    ctx.call_on_close(lambda: os.environ.pop(TRUSTED, None) if before is None else os.environ.update({TRUSTED: before}))


def rehearsal_options(command: F) -> F:
    """What a rehearsal takes for granted."""
    options = (
        click.option("--latency", metavar="S", help="Seconds of a reply: median[,sigma[,per token]].  [0.5,0.5,0.01]"),
        click.option("--rpm", type=float, metavar="N", help="Requests per minute that each model allows."),
        click.option("--tpm", type=float, metavar="N", help="Tokens per minute that each model allows."),
        click.option("--reply-tokens", type=int, metavar="N", help="Tokens of a reply of middle length.  [256]"),
    )
    return _with(command, options)


def assumptions(values: Mapping[str, Any]) -> dict[str, Any]:
    """The rehearsal options among a command's parameters, under the names `Assumptions` has."""
    names = {"latency": "latency", "rpm": "requests", "tpm": "tokens", "reply_tokens": "reply_tokens"}
    return {names[name]: values[name] for name in names if values[name] is not None}


def _with(command: F, options: Sequence[Callable[[F], F]]) -> F:
    for add in reversed(options):
        command = add(command)
    return command


_TRUST_HOST = click.option(
    "--trust-host",
    metavar="HOST",
    multiple=True,
    expose_value=False,
    callback=_trust,
    help="A host that keys may be sent to although a file names it; also FANFOLD_TRUSTED_HOSTS=HOST,...",
)
