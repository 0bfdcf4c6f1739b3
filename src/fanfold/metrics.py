"""The figures of a run.  A metric added here is shown by `fanfold show`, `fanfold compare` and the report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from fanfold.ledger import RunView
from fanfold.texts import duration, money, number
from fanfold.types import Ok, mean_scores


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure: its `key` and `value` for programs, its `label` and `text` for people."""

    key: str
    label: str
    value: Any
    text: str


def metrics(view: RunView) -> list[Metric]:
    """The figures of a run in the order of reading."""
    info, progress, timings, cost = view.info, view.progress(), view.timings(), cost_of(view)
    beside, natural = held_out(view), info.objective.natural
    kept = None if beside is None else beside.info.objective.natural(beside.trial(0).score)
    best = natural(info.best)
    dropped = len(view.numbers(which="dropped"))
    per_second = timings.evaluations / info.elapsed if info.elapsed > 0 else 0.0
    milliseconds = 1000 * timings.busy / timings.evaluations if timings.evaluations else None
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created))
    return [
        Metric("best", "best score", best, number(best)),
        *(Metric(f"scores.{name}", name, score, number(score)) for name, score in other_scores(view).items()),
        Metric("held_out", "held-out score", kept, number(kept)),
        Metric("trials", "trials", info.trials, f"{info.trials:,}"),
        Metric("dropped", "dropped early", dropped, f"{dropped:,}"),
        Metric("evaluations", "evaluations", info.evaluations, f"{info.evaluations:,}"),
        Metric("reused", "reused", progress.reused, f"{progress.reused:,}"),
        Metric("failures", "failures", info.failures, f"{info.failures:,}"),
        Metric("cost", "cost", cost.amount, cost.text),
        Metric("elapsed", "time", info.elapsed, duration(info.elapsed)),
        Metric("evaluations_per_second", "evaluations a second", per_second, f"{per_second:,.1f}"),
        Metric("milliseconds", "ms an evaluation", milliseconds, number(milliseconds)),
        Metric("created", "started", info.created, started),
    ]


@dataclass(frozen=True)
class RunCost:
    """What a run and those that belong to it cost, for programs and for people; an unknown cost is called unknown."""

    amount: float
    text: str
    #: Whether calls to simulated models are among it.
    simulated: bool


def cost_of(view: RunView) -> RunCost:
    cost, calls = view.cost(), view.costs()
    text = number(cost)
    if calls.calls:
        text = f"{money(cost)}, of which model calls {calls.cost_text}" if calls.below(cost) else calls.cost_text
    return RunCost(cost, text, bool(calls.simulated))


def other_scores(view: RunView) -> dict[str, float]:
    """The named scores of the best trial beside the one that was searched for, where the evaluator returns several."""
    objective = view.info.objective.name
    best = next(iter(view.numbers(order="best", which="complete", count=1)), None) if objective else None
    if best is None:
        return {}
    outcomes = view.outcomes(best).values()
    means = mean_scores(outcome.scores for outcome in outcomes if isinstance(outcome, Ok))
    return {name: score for name, score in means.items() if name != objective}


def held_out(view: RunView) -> RunView | None:
    """The run that scored what a search found on cases it had not seen: the last that belongs to it, once it is told.

    Its first trial is what was found.
    """
    siblings = view.siblings()
    return siblings[-1] if siblings and siblings[-1].progress().told else None
