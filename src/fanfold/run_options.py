"""How a run is done: each option is written here once, and is argument of `Study.run`, key of [run] and flag alike."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from fanfold import executors
from fanfold.config import Settings, option
from fanfold.errors import ConfigError
from fanfold.events import Watcher
from fanfold.executors.base import Executor
from fanfold.stop import MaxCost, MaxEvaluations, MaxTime, MaxTrials, Rule, Target, limited
from fanfold.types import CacheMode

if TYPE_CHECKING:
    from concurrent.futures import Executor as PoolExecutor
else:
    PoolExecutor = Executor  # for those who read types; help texts answer faster without the real one

P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")
O = TypeVar("O")  # noqa: E741 - options


def _without_password(url: str) -> str:
    from fanfold.sharing import without_password  # loads the engine, which help does not need

    return without_password(url)


@dataclass(frozen=True)
class RunOptions(Settings):
    """How a study is run: the arguments of `Study.run`, the [run] table of a TOML file, the flags of `fanfold run`.

    Of each field, `metavar` is what its value is called in help texts, `shell` its default there where that differs,
    and `rule` the stopping rule it stands for.  Those with `planned` are flags of `fanfold estimate` as well, those
    with `once` are not taken over by a resume, and those with `python` are arguments only.
    """

    executor: str | Executor | PoolExecutor | Callable[[], PoolExecutor] = option(
        "inline", "Where evaluations run.", metavar="E", planned=True, shell="auto"
    )
    _: KW_ONLY
    resources: str | Mapping[str, float | str] | None = option(
        None,
        "What each evaluation needs where it runs: gpu=1,memory=8G, or what the cluster calls it.",
        metavar="NAME=N,...",
        planned=True,
    )
    batch_deadline: str | float | None = option(
        None, "Pay the full price for calls that batches have not answered after TIME.", metavar="TIME", planned=True
    )
    batch_fallback: Literal["batch", "realtime"] = option(
        "batch",
        "Where calls go that a batch gives no answer to: the next batch, or realtime at full price.",
        planned=True,
    )
    cancel_batches: bool = option(False, "On leaving, cancel open batches instead of keeping them.", planned=True)
    detach: bool = option(False, "Submit what is open to provider batches and leave; resume later.", once=True)
    max_trials: int | None = option(
        None, "Stop after N candidates.", least=1, metavar="N", rule=MaxTrials, planned=True
    )
    max_evaluations: int | None = option(
        None, "Stop before more than N evaluations.", least=1, metavar="N", rule=MaxEvaluations, planned=True
    )
    max_time: str | float | None = option(None, "Stop after 90s, 15m, 2h.", metavar="TIME", rule=MaxTime, planned=True)
    max_cost: float | None = option(
        None, "Stop once the evaluations have cost X.", above=0, metavar="X", rule=MaxCost, planned=True
    )
    target: float | None = option(None, "Stop once a candidate scores S.", metavar="S", rule=Target, planned=True)
    max_failures: int | None = option(
        50, "Stop when N evaluations in a row, or the first 25, fail in the same way; 0: never.", least=0, metavar="N"
    )
    cache: CacheMode = option(
        "on", "Whether model calls are answered from the ledger: refresh asks again, offline never asks."
    )
    share: str | None = option(
        None,
        "Share limits, replies and calls in flight with all who name this Redis or Valkey server.",
        metavar="URL",
        record=_without_password,
    )
    share_budget: float | None = option(
        None, "Let all sharers together spend at most X (a budget is named by URL?budget=NAME).", above=0, metavar="X"
    )
    reuse: Literal["run", "ledger", "never"] = option("run", "Whose finished evaluations may be reused.")
    ledger: str | Path | None = option(
        None, "The file that keeps all runs.", metavar="FILE", shell="$FANFOLD_LEDGER or fanfold.db"
    )
    blobs: str | Path | None = option(
        None,
        "Where large parts such as weights go instead of into the ledger: a folder, or a URL such as s3://bucket/x.",
        metavar="PLACE",
        record=lambda place: str(place) if "://" in str(place) else str(Path(place).expanduser().absolute()),
    )
    run: str | None = option(None, "The run's name; a name the ledger knows is continued.", metavar="NAME")
    grace: float = option(5.0, "Seconds that running evaluations have left after Ctrl-C.", least=0, metavar="S")
    accept_changes: bool = option(
        False, "Continue although the evaluator has changed: its code or its settings.", once=True
    )
    retry_failed: bool | Sequence[str] = option(
        False,
        "First evaluate again what failed: all of it, or only the kinds named, such as =timeout,network.",
        metavar="[=KIND,...]",
        once=True,
    )
    replay: bool = option(
        False, "On resume, ask and tell everything again from the beginning, and compare it with the record.", once=True
    )
    track: str | Sequence[str] = option(
        (),
        "Also send the figures to mlflow, wandb, tensorboard or otel, or to another's by its name.",
        metavar="NAME[:ADDRESS],...",
        once=True,
    )
    progress: bool | None = option(
        None,
        "Show the progress: True, False, or (None) at a terminal and in a notebook only.",
        python=True,
    )
    watch: Watcher | None = option(None, "Is told the events of the run.", python=True)
    meta: Mapping[str, Any] | None = option(None, "Kept with the run in the ledger.", python=True)

    def limit(self, own: Rule) -> Rule:
        """A study's stopping rule, with the limits set here in place of its own of the same kind."""
        for field in fields(self):
            if (kind := field.metadata.get("rule")) is not None and (value := getattr(self, field.name)) is not None:
                own = limited(own, kind(value))
        return own

    def place(self, fn: Callable[..., Any]) -> Executor:
        """The executor on which `fn` runs."""
        settings: dict[str, Any] = {}
        if self.batch_deadline is not None:
            settings["deadline"] = MaxTime(self.batch_deadline).seconds
        if self.batch_fallback != "batch":
            settings["fallback"] = self.batch_fallback
        if self.cancel_batches:
            settings["leave"] = "cancel"
        if self.detach:
            settings["detach"] = True
        return executors.make(self.executor, fn, resources=self.resources, **settings)

    def beside(self, executor: Executor, ledger: Path, run: str, meta: Mapping[str, Any]) -> RunOptions:
        """For a run that belongs to this one: on its executor and ledger, without its limits."""
        limits: dict[str, Any] = {field.name: None for field in fields(self) if "rule" in field.metadata}
        place: dict[str, Any] = {"batch_deadline": None, "batch_fallback": "batch"}  # the executor has them already
        place |= {"cancel_batches": False, "detach": False, "resources": None}
        options = replace(self, executor=executor, ledger=ledger, run=run, meta=meta, track=(), **place)
        return replace(options, replay=False, **limits)


def takes(options: Callable[P, O]) -> Callable[[Callable[[S, O], R]], Callable[Concatenate[S, P], R]]:
    """Gives a method of (self, options) the arguments that `options` is made of, typed, instead of the object."""

    def decorate(method: Callable[[S, O], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() & getattr(self, "__dataclass_fields__", {}).keys():
                what, where = type(self).__name__, method.__name__
                raise ConfigError(
                    f"{name} is an argument of {what}, not of {where}: {what}(..., {name}={kwargs[name]!r})"
                )
            return method(self, options(*args, **kwargs))

        own, taken = inspect.signature(method), inspect.signature(options)
        shown = [next(iter(own.parameters.values())), *taken.parameters.values()]
        call.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        return call

    return decorate
