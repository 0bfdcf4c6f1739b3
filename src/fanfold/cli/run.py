"""`fanfold run` and `fanfold resume`: run a search, with progress, and print its result."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from fanfold.cli.options import ShellOptions, assumptions, rehearsal_options, run_flags, shell_options, with_values
from fanfold.cli.output import (
    colourless,
    complete_file,
    complete_run,
    complete_target,
    default_ledger,
    examples,
    json_alone,
    ledger_option,
    machine_readable,
    output_options,
    print_json,
    quiet,
    say,
)
from fanfold.errors import ConfigError, Interrupted, LedgerError, OnlyFailures

if TYPE_CHECKING:
    from fanfold.cli.target import Loaded
    from fanfold.config import FieldHelp
    from fanfold.ledger import Ledger
    from fanfold.running import Run
    from fanfold.study import Study


class RunCommand(click.Command):
    """`run`, whose help and completion also offer the fields of the study it was asked about."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["fanfold.arguments"] = list(args)
        return super().parse_args(ctx, with_values(args))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        from fanfold.cli.target import fields_of

        for argument in ctx.meta.get("fanfold.arguments", ()):
            fields = () if argument.startswith("-") else fields_of(argument)
            if fields:
                with formatter.section(f"Fields of {argument}"):
                    formatter.write_dl([(_flag(field.name), _field_help(field)) for field in fields])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        items = super().shell_complete(ctx, incomplete)
        fields = _fields_of_target(ctx) if incomplete.startswith("-") else ()
        flags = [CompletionItem(_flag(field.name), help=field.help) for field in fields]
        return [*items, *(flag for flag in flags if flag.value.startswith(incomplete))]


def _fields_of_target(ctx: click.Context) -> tuple[FieldHelp, ...]:
    """The fields of the study that a line names so far; none where it cannot be told."""
    from fanfold.cli.target import fields_of, study_of

    try:
        return fields_of(study_of(str(ctx.params.get("target_") or "")))
    except Exception:
        return ()  # a completion that fails must not disturb the person who types


def _complete_value(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The values of the field that a line ends with: those it has a list of, or else files."""
    written = ctx.params.get("flags") or ("",)
    for field in _fields_of_target(ctx):
        if _flag(field.name) == written[-1] and (choices := _choices(field.kind)):
            return [CompletionItem(choice) for choice in choices if choice.startswith(incomplete)]
    return complete_file(ctx, parameter, incomplete)


def _choices(kind: Any) -> list[str]:
    """The words that a value of this kind can be, where there are only a few."""
    if get_origin(kind) is Literal:
        return [str(value) for value in get_args(kind)]
    return ["true", "false"] if kind is bool else [word for part in get_args(kind) for word in _choices(part)]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _field_help(field: Any) -> str:
    default = "required" if field.required else f"default: {field.default}"
    return f"{field.help or field.name} ({field.type}; {default})"


@click.command(
    cls=RunCommand,
    short_help="Run a search.",
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "fanfold run functions --dimensions 10 --function ackley",
        "fanfold run my_study.py --executor processes:8 --max-time 15m",
        "fanfold run search.toml --run first-try --report first-try.html",
        "fanfold run                             (the settings file in this folder)",
        "fanfold run prompts --model PROVIDER/MODEL --rehearse --rpm 500",
        "fanfold run functions --help            (with the study's own fields)",
    ),
)
@click.argument("target_", metavar="[TARGET]", required=False, shell_complete=complete_target)
@click.argument("flags", metavar="[FIELDS]...", nargs=-1, type=click.UNPROCESSED, shell_complete=_complete_value)
@run_flags()
@click.option("--rehearse", is_flag=True, help="Predict time and cost with simulated models: nothing is sent or kept.")
@rehearsal_options
@output_options
@click.pass_context
def run(ctx: click.Context, /, target_: str | None, flags: tuple[str, ...], **values: Any) -> None:
    """Run a search: TARGET is a file.py, a file.py:name, a file.toml, or the name of an installed study.

    A Python file holds a Study called `study` (or a function of that name that returns one). A TOML, YAML or JSON
    file says study = "NAME", the study's fields, and options in a table [run]; flags override the file. Without a
    TARGET, the only such file in the folder is run; `fanfold init` writes one. A stopping rule given here
    replaces the study's own of the same kind, and joins the others.
    """
    from fanfold import __version__
    from fanfold.cli.edited import settings_file
    from fanfold.cli.trust import file_digest

    ctx.with_resource(json_alone())
    target_, flags = target_of(target_, flags)
    assumed = assumptions(values)
    if values["rehearse"]:
        from fanfold.cli.models import rehearsed

        rehearsed(ctx, target_, flags, values, assumed)
        return
    if assumed:
        raise ConfigError("--latency, --rpm, --tpm and --reply-tokens are assumptions of a rehearsal: add --rehearse")
    loaded, options = loaded_target(ctx, target_, flags, values)
    fields = dict(loaded.fields)
    meta = {"target": loaded.target, "fields": fields, "options": options.recorded(), "version": __version__}
    if (digest := file_digest(loaded.target)) is not None:
        meta["digest"] = digest
    if (settings := settings_file(target_)) is not None:
        meta["settings"] = settings
    do(ctx, loaded.study, options, meta)


def target_of(target: str | None, flags: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """What to run; where only fields were given, the settings file of the current folder."""
    if target is not None and not target.startswith("--"):
        return target, flags
    from fanfold.cli.target import only_settings_file

    file = only_settings_file()
    say(f"settings: {file}")
    return file, flags if target is None else (target, *flags)


def loaded_target(
    ctx: click.Context, target: str, flags: Sequence[str], values: Mapping[str, Any]
) -> tuple[Loaded, ShellOptions]:
    """The study that a command names, and how it is to be run: flags over the file's [run] table."""
    from fanfold.cli.target import load

    own = [name for parameter in ctx.command.params for name in parameter.opts if name.startswith("--")]
    loaded = load(target, flags, values["seed"], own)
    options = shell_options(values, loaded.options, f"{target} [run]")
    if options.seed != values["seed"]:
        loaded = load(target, flags, options.seed, own)
    return loaded, options


class ResumeCommand(click.Command):
    """`resume`, whose --retry-failed needs no value and never takes the run's name for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_values(args))


@click.command(
    cls=ResumeCommand,
    short_help="Continue a run where it stopped.",
    epilog=examples(
        "fanfold resume last",
        "fanfold resume last --retry-failed",
        "fanfold resume last --detach           (submit what is open to provider batches, and leave)",
        "fanfold resume functions-2026 --max-trials 2000",
        "fanfold resume first-try --ledger runs.db --executor processes:8",
    ),
)
@click.argument("name", metavar="RUN", required=False, shell_complete=complete_run)
@run_flags("ledger", "run", "seed")
@click.option("--trust", is_flag=True, help="Do not ask whether what the ledger names outside this folder may be used.")
@ledger_option
@output_options
@click.pass_context
def resume(ctx: click.Context, /, name: str | None, ledger: str, trust: bool, **values: Any) -> None:
    """Continue RUN where it stopped; nothing finished is evaluated again.

    RUN is a run's name, the beginning of one, or `last`. A stopping rule given here replaces the one of its
    kind that the run was started with; a settings file that was changed since is not read again. Ask for a report
    again with --report. You are asked first if the ledger belongs to another user, or names Python code, files or
    folders outside the current folder and its own.
    """
    from fanfold.cli.edited import edited
    from fanfold.cli.target import reload
    from fanfold.cli.trust import agree
    from fanfold.ledger import Ledger, RunView

    ctx.with_resource(json_alone())
    with Ledger(ledger, readonly=True) as opened:
        if name is None:
            raise ConfigError(_resumable(opened))
        info = RunView.open(opened, name).info
        if isinstance(whole := info.meta.get("belongs_to"), str):
            info = opened.run(whole)
    target = info.meta.get("target")
    if not isinstance(target, str):
        raise ConfigError(
            f"run {info.name!r} was started from Python code, which cannot be found from here: call "
            f"study.run(run={info.name!r}, ledger={ledger!r}) there again"
        )
    if isinstance(how := info.meta.get("continue"), str):
        raise ConfigError(f"run {info.name!r} belongs to an application and is never over: continue it with {how}")
    agree(info.name, Path(ledger), info.meta, trust)
    recorded = {**info.meta.get("options", {}), "report": None}  # a ledger could name any file to be overwritten
    options = shell_options({**values, "ledger": ledger, "run": info.name}, recorded, f"run {info.name!r}")
    study = reload(target, info.meta.get("fields", {}), options.seed)
    remarks = edited(info.meta, info.name, options, Path(ledger))
    do(ctx, dataclasses.replace(study, remarks=(*remarks, *study.remarks)), options, dict(info.meta))


def _resumable(ledger: Ledger) -> str:
    """Which runs may be meant by a `resume` that names none: the newest that are not finished."""
    from fanfold.ledger import RunView

    newest = [(info.name, RunView(ledger, info.id).status) for info, _ in ledger.run_rows(None, 50)]
    if not newest:
        return f"there is nothing to resume: {ledger.path} has no runs"
    open_ = [f"{name} ({status})" for name, status in newest if status not in ("finished", "running")]
    name, status = newest[0]
    last = f"the newest, {name}, {'is running' if status == 'running' else 'has finished'}"
    which = f"not finished: {', '.join(open_[:5])}" if open_ else last
    return f"name the run to resume, or `last`; in {ledger.path} {which}"


def do(
    ctx: click.Context,
    study: Study[Any],
    options: ShellOptions,
    meta: dict[str, Any],
    also: Callable[[Any], None] | None = None,
) -> None:
    """Run the study, report, and leave with the right exit code; `also` watches the run, too."""
    from fanfold.display import display
    from fanfold.events import together
    from fanfold.plugins import presentation_of

    study = dataclasses.replace(study, stop=options.limit(study.stop))
    meta = {**meta, "stop": repr(study.stop)}  # pages say how far the run is on its way there
    ledger = str(options.ledger or default_ledger())
    if options.report:
        from fanfold.report import check_report

        check_report(options.report)
    if options.view:
        from fanfold.cli.view import page_beside

        ctx.with_resource(page_beside(ledger))
    try:
        unit = presentation_of(meta).unit
        with display(study.stop, study.shown, not quiet(), colourless=colourless(), unit=unit) as shown:
            watch = together(shown, also)
            done = study.run(**options.arguments(ledger=ledger, watch=watch, progress=False, meta=meta))
    except Interrupted as error:
        _interrupted(error, ledger, options.report)
        kept = _kept(error.run_id, ledger, "interrupted")
        raise Interrupted(kept, run_id=error.run_id, ledger=ledger, code=error.code) from None
    except OnlyFailures as error:
        command = f"fanfold resume {error.run_id} --retry-failed --ledger {shlex.quote(ledger)}"
        error.args = (f"{error}\nContinue with\n  {command}",)
        raise
    try:
        if done.reason == "detached":
            say(_kept(done.id, ledger, done.reason))
            return
        fruitful = _conclude(done, ledger, options.report)
    finally:
        done.ledger.close()
    if not fruitful:
        ctx.exit(1)


def _conclude(done: Run[Any], ledger: str, report: str | None) -> bool:
    """Print the result of a run; whether it has one at all."""
    from fanfold.encoding import decode, encode

    progress, best, money = done.progress, done.best_or_none, done.money
    candidate = None if best is None else decode(encode(best.candidate))
    if machine_readable():
        result = None if best is None else {"score": best.score, "trial": best.number, "candidate": candidate}
        counts = {name: getattr(progress, name) for name in ("evaluations", "failures", "reused", "elapsed")}
        head = {"run": done.id, "ledger": ledger, "reason": done.reason, "best": result, "trials": progress.told}
        figures = {} if done.summary is None else dict(done.summary.figures)
        paid = {"cost": done.view.cost(), "unpriced": money.unpriced, "money": dataclasses.asdict(money)}
        print_json({**head, **counts, **paid, "trace": done.trace, "summary": figures})
    from fanfold.cli.ending import say_ending

    written = None
    if report:
        from fanfold.report import write_report

        written = str(write_report(done.ledger, done.id, report))
    return say_ending(done, candidate, ledger, written)


def _interrupted(error: Interrupted, ledger: str, report: str | None) -> None:
    if report and Path(ledger).exists():
        from fanfold.report import write_report

        try:
            write_report(ledger, error.run_id, report)
        except (LedgerError, ConfigError):
            pass  # the run may have been stopped before it was written down


def _kept(run: str, ledger: str, reason: str) -> str:
    """What is safe of a run that has not ended, and the command that continues from there."""
    from fanfold.ledger import RunView

    try:
        with RunView.open(ledger, run) as view:
            info, batches = view.info, view.batches(open=True)
    except LedgerError:
        return "the run had not begun, there is nothing to continue"
    if machine_readable():
        head = {"run": info.name, "ledger": ledger, "reason": reason, "trials": info.trials}
        print_json({**head, "open_batches": len(batches)})
    requests = sum(batch.requests for batch in batches)
    waiting = f"{len(batches)} provider batches with {requests} requests are still open, and kept. " if batches else ""
    return (
        f"{info.trials} trials and {info.evaluations} evaluations of run {info.name!r} are kept. {waiting}Continue "
        f"with\n  fanfold resume {info.name} --ledger {shlex.quote(ledger)}"
    )
