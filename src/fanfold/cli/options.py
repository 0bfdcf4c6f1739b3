"""How a run is to be done: the options that `run` and `resume` share with the [run] table of a TOML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from fanfold.errors import ConfigError

if TYPE_CHECKING:
    from fanfold.stop import Rule

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RunOptions:
    """Everything but the study itself; None means: not said."""

    executor: str | None = None
    ledger: str | None = None
    run: str | None = None
    reuse: Literal["run", "ledger", "never"] | None = None
    seed: int | None = None
    max_trials: int | None = None
    max_evaluations: int | None = None
    max_time: str | float | None = None
    max_cost: float | None = None
    target: float | None = None
    report: str | None = None
    cache: Literal["on", "off", "refresh", "offline"] | None = None
    cancel_batches: bool | None = None
    batch_deadline: str | float | None = None
    max_failures: int | None = None

    def place(self) -> Any:
        """The executor, with what was said about provider batches."""
        name, _, provider = (self.executor or "auto").partition(":")
        if name != "batch":
            if self.cancel_batches or self.batch_deadline is not None:
                raise ConfigError("--cancel-batches and --batch-deadline are for --executor batch:...")
            return self.executor or "auto"
        from fanfold.models.batch.executor import BatchExecutor
        from fanfold.stop import MaxTime

        deadline = None if self.batch_deadline is None else MaxTime(_seconds(self.batch_deadline)).seconds
        return BatchExecutor(provider or None, deadline=deadline, leave="cancel" if self.cancel_batches else "keep")

    def over(self, other: RunOptions) -> RunOptions:
        """These options, and `other` where these say nothing."""
        return RunOptions(**{**asdict(other), **self.given()})

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def stop(self, own: Rule) -> Rule:
        """The study's own stopping rule, with the limits given here in place of its own of the same kind."""
        from fanfold import stop

        for name, kind in _STOPS.items():
            value = getattr(self, name)
            if value is not None:
                own = stop.limited(own, getattr(stop, kind)(_seconds(value)))
        return own


_STOPS = {
    "max_trials": "MaxTrials",
    "max_evaluations": "MaxEvaluations",
    "max_time": "MaxTime",
    "max_cost": "MaxCost",
    "target": "Target",
}


def _seconds(value: Any) -> Any:
    """A text that is a plain number is one: `--max-time 90` means 90 seconds."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def from_flags(values: Mapping[str, Any]) -> RunOptions:
    """The options among a command's parameters."""
    known = {field.name for field in fields(RunOptions)}
    return RunOptions(**{name: value for name, value in values.items() if name in known})


def how_options(command: F) -> F:
    """Everything that says how a run is done and what comes of it."""
    options = (
        click.option(
            "--cache",
            type=click.Choice(["on", "off", "refresh", "offline"]),
            help="Whether model calls are answered from the ledger: refresh asks anew, offline never asks.",
        ),
        click.option("--report", metavar="FILE", help="Write an HTML report at the end."),
        click.option(
            "--accept-changes",
            is_flag=True,
            help="Continue although the evaluator has changed: its code or its settings.",
        ),
        click.option(
            "--trust-host",
            metavar="HOST",
            multiple=True,
            expose_value=False,
            callback=_trust,
            help="A host that keys may be sent to although a file names it; also FANFOLD_TRUSTED_HOSTS=HOST,...",
        ),
    )
    return plan_options(_with(command, options))


def _trust(ctx: click.Context, parameter: click.Parameter, hosts: tuple[str, ...]) -> None:
    """Add hosts to the environment for as long as the command runs: worker processes make models too."""
    if not hosts:
        return
    import os

    from fanfold.addresses import TRUSTED

    before = os.environ.get(TRUSTED)
    os.environ[TRUSTED] = ",".join([*hosts, *([before] if before else [])])
    ctx.call_on_close(lambda: os.environ.pop(TRUSTED, None) if before is None else os.environ.update({TRUSTED: before}))


def plan_options(command: F) -> F:
    """`--executor` and the stopping rules."""
    options = (
        click.option(
            "--executor",
            metavar="E",
            shell_complete=_executors,
            help="inline, async:N, threads:N, processes:N, ray:N, batch:openai, batch:anthropic, auto.",
        ),
        click.option(
            "--batch-deadline", metavar="TIME", help="After TIME the rest of a provider batch goes out in realtime."
        ),
        click.option(
            "--cancel-batches",
            is_flag=True,
            default=None,
            help="On leaving, cancel open batches instead of keeping them.",
        ),
        click.option("--max-trials", type=int, metavar="N", help="Stop after N candidates."),
        click.option("--max-evaluations", type=int, metavar="N", help="Stop before more than N evaluations."),
        click.option("--max-time", metavar="TIME", help="Stop after 90s, 15m, 2h."),
        click.option("--max-cost", type=float, metavar="X", help="Stop once the evaluations have cost X."),
        click.option(
            "--max-failures",
            type=click.IntRange(min=0),
            metavar="N",
            help="Stop when N evaluations in a row fail in the same way (or the first 25); 0: never.  [50]",
        ),
        click.option("--target", "target", type=float, metavar="S", help="Stop once a candidate scores S."),
    )
    return _with(command, options)


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
    for option in reversed(options):
        command = option(command)
    return command


def _executors(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    known = ("inline", "async", "threads", "processes", "batch:openai", "batch:anthropic", "auto")
    return [name for name in known if name.startswith(incomplete)]
