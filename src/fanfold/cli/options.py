"""How a run is to be done: the options that `run` and `resume` share with the [run] table of a TOML file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

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
    """`--executor`, the stopping rules and `--report`."""
    options = (
        click.option(
            "--executor", metavar="E", shell_complete=_executors, help="inline, async:N, threads:N, processes:N, auto."
        ),
        click.option("--max-trials", type=int, metavar="N", help="Stop after N candidates."),
        click.option("--max-evaluations", type=int, metavar="N", help="Stop before more than N evaluations."),
        click.option("--max-time", metavar="TIME", help="Stop after 90s, 15m, 2h."),
        click.option("--max-cost", type=float, metavar="X", help="Stop once the evaluations have cost X."),
        click.option("--target", "target", type=float, metavar="S", help="Stop once a candidate scores S."),
        click.option("--report", metavar="FILE", help="Write an HTML report at the end."),
        click.option("--accept-changes", is_flag=True, help="Go on although the evaluator's code has changed."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _executors(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in ("inline", "async", "threads", "processes", "auto") if name.startswith(incomplete)]
