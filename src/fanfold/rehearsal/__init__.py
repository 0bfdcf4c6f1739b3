"""Rehearse a study: run it on a virtual clock with simulated providers, and say what it would take and cost."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import dataclasses
import math
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from fanfold import executors
from fanfold.context import within
from fanfold.encoding import words
from fanfold.errors import ConfigError
from fanfold.events import Progress
from fanfold.executors.base import name_of
from fanfold.ledger import CURRENCY
from fanfold.models.batch.executor import BatchExecutor
from fanfold.rehearsal.stage import LONGEST, Assumptions, Length, Stage, Usage, as_written
from fanfold.run_options import RunOptions
from fanfold.running import Conclude, Go, Run
from fanfold.schedules import AllCases
from fanfold.simulator.answers import named
from fanfold.simulator.config import AnswerFunction
from fanfold.stop import Both, Either, MaxCost, MaxTime, MaxTrials, Never, Rule, Target
from fanfold.study import Study
from fanfold.summary import Summary
from fanfold.sync import loop_runs_here
from fanfold.testing.clock import run_virtual

__all__ = ["Assumptions", "Bound", "Estimate", "Forecast", "Stage", "Usage", "estimate", "rehearse", "rehearsing"]

#: An endless study is estimated for so many trials, and rehearsed for so many.
ENDLESS, ENDLESS_REHEARSAL = 100, 1000
#: How far counts of tokens may be off, which are judged by the characters of a text, and the times that follow.
MISCOUNTED = 0.1
_TOKENS = ("input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of an estimate, or its middle."""

    seconds: float
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a rehearsal predicts.  Replies are made up, so scores, and what follows from them, are not predicted."""

    seconds: float
    trials: int
    evaluations: int
    failures: int
    #: The first failure, because made-up replies may be nothing an evaluator can read.
    failure: str | None
    reason: str
    usage: tuple[Usage, ...]
    #: What the end of the study takes (held-out cases and the like), which is among the above.
    end: Bound
    #: Why the end could not be rehearsed, because made-up replies may be nothing it can read.
    end_failure: str | None = None

    @property
    def calls(self) -> int:
        return sum(usage.calls for usage in self.usage)

    @property
    def cost(self) -> float | None:
        """The cost of all calls; None where that of some is not known."""
        costs = [usage.cost for usage in self.usage]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `trials` trials of a study would take and cost, judged by a rehearsal of `sample` trials.

    `endless` says that the study's own rules set no number of trials.  `cost_limit` is its MaxCost, at which it would
    stop; None without one.
    """

    trials: int
    cases: int
    sample: int
    endless: bool
    cost_limit: float | None
    low: Bound
    expected: Bound
    high: Bound
    #: What of each the end of the study takes, once: held-out cases and the like.
    end: Bound
    end_failure: str | None = None
    #: Whether all models are simulated, so that nobody would be paid.
    simulated: bool = False
    currency: str = CURRENCY


@contextlib.contextmanager
def rehearsing(
    assumptions: Assumptions | None = None, length: Length = as_written, answer: AnswerFunction | str | None = None
) -> Iterator[Stage]:
    """In this block nothing reaches a provider, and models need no key."""
    stage = Stage(assumptions or Assumptions(), length, named(answer) if isinstance(answer, str) else answer)
    with within(rehearsal=stage.connect):
        yield stage


def rehearse(
    study: Study[Any],
    executor: str | executors.Executor = "auto",
    assumptions: Assumptions | None = None,
    *,
    length: Length = as_written,
    answer: AnswerFunction | str | None = None,
    **how: Any,
) -> Forecast:
    """Run a study in virtual time against simulated providers; nothing is sent, paid or kept.

    `answer` says what models reply (made-up words without it; their length is assumed either way); `how` are further
    arguments of `Study.run_async`.  The evaluator must be a coroutine function.  An evaluator or a conclusion that
    writes files has a method `rehearsed()` that gives one that does not.
    """
    if not executors.is_coroutine_function(study.evaluate):
        raise ConfigError(
            f"{name_of(study.evaluate)} cannot be rehearsed: it is a plain function, and on a virtual clock only what "
            "awaits takes time; make it `async def` and await model.generate(...)"
        )
    study = dataclasses.replace(study, evaluate=_rehearsed(study.evaluate), conclude=_rehearsed(study.conclude))
    if _size(study) == math.inf:
        study = dataclasses.replace(study, stop=study.stop | _Enough(RunOptions(**how).limit(study.stop)))
    place = executors.make(executor, study.evaluate)
    if not isinstance(place, executors.Inline | executors.Async | BatchExecutor):
        raise ConfigError(
            f"executor={place.name!r} cannot be rehearsed: it leaves the virtual clock; use async:N or batch:..."
        )

    async def run() -> Forecast:
        with _seeded(study.seed), rehearsing(assumptions, length, answer) as stage:
            end = _End(study.conclude, stage)
            played = study if study.conclude is None else dataclasses.replace(study, conclude=end)
            done = await played.run_async(place, **{"progress": False, **how})
            try:
                progress = done.progress
                failed = next(done.view.evaluations(failed=True, count=1), None)
                counts = (
                    progress.told,
                    progress.evaluations,
                    progress.failures,
                    None if failed is None else failed.message,
                )
                seconds = progress.elapsed + end.bound.seconds
                return Forecast(seconds, *counts, done.reason, stage.usage(seconds), end.bound, end.failure)
            finally:
                done.ledger.close()
                for _, simulator in stage.cast.values():
                    await simulator.close()

    return _virtually(run)


def estimate(
    study: Study[Any],
    executor: str | executors.Executor = "auto",
    assumptions: Assumptions | None = None,
    sample: int | None = None,
) -> Estimate:
    """What a study would take and cost, from rehearsals of a few trials extrapolated to all that its rules allow.

    Low: every reply as short as the shortest one seen, and rows dropped as in the rehearsal.  High: every reply as long
    as max_tokens allows, and every case run.  Both allow another 10 % for how tokens are counted.  What the study does
    once at its end (held-out cases) is added once.
    """
    cases = len(study.seeded_cases)
    allowed = min(_size(study), study.stop.allowance(Progress(cases=cases)))
    endless = allowed == math.inf
    trials = ENDLESS if endless else int(allowed)
    sample = max(1, min(trials, sample or min(max(8, 2 * study.effective_window), 64)))
    # The study's other rules look at scores, which are made up, or at time and cost, which are the question.
    part = dataclasses.replace(study, stop=MaxTrials(sample))

    expected = rehearse(part, executor, assumptions)
    shortest = {usage.model: usage.shortest for usage in expected.usage}
    low = rehearse(part, executor, assumptions, length=lambda model, own, most: shortest.get(model, own))
    full = dataclasses.replace(part, schedule=AllCases())
    high = rehearse(full, executor, assumptions, length=lambda model, own, most: most or LONGEST)

    if expected.trials < sample:  # the strategy came to its end by itself
        trials, endless = expected.trials, False
    limit = study.stop.cost_limit()
    middle = _scaled(expected, trials)
    return Estimate(
        trials,
        cases,
        expected.trials,
        endless,
        None if limit == math.inf else limit,
        _ordered(_scaled(low, trials), middle, min, 1.0 - MISCOUNTED),
        middle,
        _ordered(_scaled(high, trials), middle, max, 1.0 + MISCOUNTED),
        expected.end,
        expected.end_failure,
        bool(expected.usage) and all(usage.simulated for usage in expected.usage),
    )


class _Enough(Rule):
    """Ends the rehearsal of a study that its own rule may never end."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def check(self, progress: Progress) -> str | None:
        if progress.told < ENDLESS_REHEARSAL or _ends(self._rule, progress):
            return None
        return f"{progress.told} trials, as no end of the study is known"

    def allowance(self, progress: Progress) -> float:
        return math.inf if _ends(self._rule, progress) else max(0, ENDLESS_REHEARSAL - progress.asked)


def _size(study: Study[Any]) -> float:
    """How many candidates there are; infinite where the strategy does not say."""
    size = getattr(study.strategy, "known_size", None)  # a strategy need not be a subclass of ours
    known = size() if callable(size) else None
    return math.inf if known is None else known


def _ends(rule: Rule, progress: Progress) -> bool:
    """Whether a rule ends a search whose scores are made up, as far as that has come."""
    if isinstance(rule, Either | Both):
        return (any if isinstance(rule, Either) else all)(_ends(part, progress) for part in rule.rules)
    if isinstance(rule, MaxTime | MaxCost):  # of nothing there is never enough
        return (progress.elapsed if isinstance(rule, MaxTime) else progress.cost) > 0
    return not isinstance(rule, Never | Target)


class _End:
    """The end of a study, and what it takes beside the search."""

    def __init__(self, conclude: Conclude | None, stage: Stage) -> None:
        self._conclude, self._stage = conclude, stage
        self.bound = Bound(0.0, 0, 0, 0, 0.0)
        self.failure: str | None = None

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        assert self._conclude is not None
        clock = asyncio.get_running_loop().time
        before, began = _used(self._stage.usage(1.0)), clock()
        try:
            return await self._conclude(run, go)
        except Exception as error:
            self.failure = words(error)
            return Summary()
        finally:
            after = _used(self._stage.usage(1.0))
            calls, read, written = (now - then for now, then in zip(after[:3], before[:3]))
            cost = None if after[3] is None or before[3] is None else after[3] - before[3]
            self.bound = Bound(clock() - began, calls, read, written, cost)


def _used(usage: Sequence[Usage]) -> tuple[int, int, int, float | None]:
    costs = [each.cost for each in usage]
    cost = None if None in costs else math.fsum(cost for cost in costs if cost is not None)
    calls, read, written = (
        sum(getattr(each, name) for each in usage) for name in ("calls", "input_tokens", "output_tokens")
    )
    return calls, read, written, cost


def _scaled(forecast: Forecast, trials: int) -> Bound:
    """The search extrapolated to all trials, and the end once."""
    factor, end = trials / max(1, forecast.trials), forecast.end
    calls, read, written, cost = _used(forecast.usage)
    if cost is not None and end.cost is not None:
        cost = (cost - end.cost) * factor + end.cost
    calls, read, written = (
        round((all_of - last) * factor) + last
        for all_of, last in ((calls, end.calls), (read, end.input_tokens), (written, end.output_tokens))
    )
    return Bound((forecast.seconds - end.seconds) * factor + end.seconds, calls, read, written, cost)


def _ordered(bound: Bound, middle: Bound, pick: Callable[..., Any], spread: float) -> Bound:
    """`bound`, on its own side of the middle: a search that sees other replies may take another course.

    What is counted in tokens, and the time, is spread further by how far that may be off.
    """
    read, written = (round(spread * pick(getattr(bound, name), getattr(middle, name))) for name in _TOKENS)
    cost = None if bound.cost is None or middle.cost is None else spread * pick(bound.cost, middle.cost)
    return Bound(spread * pick(bound.seconds, middle.seconds), pick(bound.calls, middle.calls), read, written, cost)


def _rehearsed(part: Any) -> Any:
    """A part of a study that keeps nothing: its own, or a copy (a model made without a key stays there)."""
    own = getattr(part, "rehearsed", None)
    return copy.copy(part) if own is None else own()


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """In this block the jitter of retries and polls is the same each time."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def _virtually(run: Callable[[], Coroutine[Any, Any, Forecast]]) -> Forecast:
    if not loop_runs_here():
        return run_virtual(run())
    with ThreadPoolExecutor(1) as beside:  # a loop runs here (a notebook), and two cannot in one thread
        return beside.submit(contextvars.copy_context().run, lambda: run_virtual(run())).result()
