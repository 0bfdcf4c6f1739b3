"""Rehearse a study: run it on a virtual clock with simulated providers, and say what it would take and cost."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import math
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from fanfold import executors
from fanfold.context import within
from fanfold.errors import ConfigError
from fanfold.events import Progress
from fanfold.executors.base import name_of
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.http1 import Response
from fanfold.models.model import OUTPUT_GUESS, Model
from fanfold.models.simulated import SimulatedTransport
from fanfold.schedules import AllCases
from fanfold.simulator.answers import CHARACTERS_PER_TOKEN, named
from fanfold.simulator.config import Answer, AnswerFunction, Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.limits import AccountLimits
from fanfold.stop import MaxTrials
from fanfold.study import Study
from fanfold.sync import loop_runs_here
from fanfold.testing.clock import run_virtual

#: Tokens of a reply at its longest where a request sets no limit; what a cost limit reserves for it, too.
LONGEST = 4096
#: An endless study is estimated for so many trials.
ENDLESS = 100
#: Of an answer, and of a batch: about 100 tokens a second after half a second, and ten minutes.
LATENCY, TURNAROUND = Latency(0.5, 0.5, 0.01), Latency(600.0, 0.5)
#: The time of day at which every rehearsal begins, so that two of the same study are the same.
EPOCH = 1_800_000_000.0
#: How unequal the lengths of made-up replies are.
SPREAD = 0.5

_NOWHERE = "http://rehearsal"
_WORDS = ("the", "answer", "is", "one", "short", "clear", "reason", "for", "this", "case", "because", "it", "follows")


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What is taken for granted about the providers.

    `requests` and `tokens` are the limits per minute of every model; where they are None, a model's own told limits
    hold.  `reply_tokens` is the middle length of a reply, unless a request's max_tokens is shorter.
    """

    latency: Latency = LATENCY
    turnaround: Latency = TURNAROUND
    requests: float | None = None
    tokens: float | None = None
    reply_tokens: int = OUTPUT_GUESS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("requests", "tokens", "reply_tokens"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}={value!r} cannot be rehearsed with: give a number above 0")

    def limits(self, model: Model) -> AccountLimits:
        told = model.limits
        return AccountLimits(
            rpm=self.requests or told.requests_per_minute,
            tpm=self.tokens or told.tokens_per_minute,
            input_tpm=told.input_tokens_per_minute,
            output_tpm=told.output_tokens_per_minute,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a study asks of one model.  `cost` is None where the price is not known.

    `utilisation` is the used share of the tightest limit over the whole run, None without limits; `shortest` is the
    length of the shortest reply in tokens.
    """

    model: str
    calls: int
    batched: int
    refused: int
    input_tokens: int
    output_tokens: int
    shortest: int
    cost: float | None
    limits: Mapping[str, float]
    utilisation: float | None


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

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.usage)

    @property
    def cost(self) -> float | None:
        """The cost of all calls; None where that of some is not known."""
        costs = [each.cost for each in self.usage]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of an estimate, or its middle."""

    seconds: float
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None


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


#: How many tokens a reply counts as, given its model, its own length, and the most the request allows.
Length: TypeAlias = Callable[[str, int, int | None], int]


def as_written(model: str, own: int, most: int | None) -> int:
    return own


class Stage:
    """Stands in for the providers during a rehearsal: one simulator for each model that is asked."""

    def __init__(
        self, assumptions: Assumptions, length: Length = as_written, answer: AnswerFunction | None = None
    ) -> None:
        self.cast: dict[str, tuple[Model, Simulator]] = {}
        self._assumptions = assumptions
        self._length, self._answer = length, answer

    def connect(self, model: Model) -> SimulatedTransport:
        """A line to the simulator that plays this model."""
        if model.fingerprint not in self.cast:
            given = self._assumptions
            config = SimulatorConfig(
                seed=given.seed,
                limits=given.limits(model),
                latency=given.latency,
                turnaround=given.turnaround,
                epoch=EPOCH,
                answer=_Script(model.id, given.reply_tokens, self._length, self._answer),
            )
            dialect = model.provider.dialect()
            if dialect is None:
                raise ConfigError(f"{model.id} cannot be rehearsed: its provider has no dialect in the simulator")
            self.cast[model.fingerprint] = (model, Simulator(config, [dialect]))
        return _RehearsedLine(model, self.cast[model.fingerprint][1])

    def usage(self, seconds: float) -> tuple[Usage, ...]:
        return tuple(_usage(model, simulator, seconds) for model, simulator in self.cast.values())


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
    place = executors.make(executor, study.evaluate)
    if not isinstance(place, executors.Inline | executors.Async | BatchExecutor):
        raise ConfigError(
            f"executor={place.name!r} cannot be rehearsed: it leaves the virtual clock; use async:N or batch:..."
        )

    async def run() -> Forecast:
        with _seeded(study.seed), rehearsing(assumptions, length, answer) as stage:
            done = await study.run_async(place, **how)
            try:
                progress = done.progress
                failed = next(done.view.evaluations(failed=True, count=1), None)
                counts = (
                    progress.told,
                    progress.evaluations,
                    progress.failures,
                    None if failed is None else failed.message,
                )
                return Forecast(progress.elapsed, *counts, done.reason, stage.usage(progress.elapsed))
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
    as max_tokens allows, and every case run.
    """
    cases = len(study.seeded_cases)
    allowed = study.stop.allowance(Progress(cases=cases))
    endless = allowed == math.inf
    trials = ENDLESS if endless else int(allowed)
    sample = max(1, min(trials, sample or min(max(8, 2 * study.effective_window), 64)))
    # The study's other rules look at scores, which are made up, or at time and cost, which are the question.
    # What a study does once at its end cannot be extrapolated from a few trials.
    part = dataclasses.replace(study, stop=MaxTrials(sample), conclude=None)

    expected = rehearse(part, executor, assumptions)
    shortest = {each.model: each.shortest for each in expected.usage}
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
        _ordered(_scaled(low, trials), middle, min),
        middle,
        _ordered(_scaled(high, trials), middle, max),
    )


def _scaled(forecast: Forecast, trials: int) -> Bound:
    factor = trials / max(1, forecast.trials)
    tokens = [sum(getattr(each, name) for each in forecast.usage) for name in ("input_tokens", "output_tokens")]
    cost = None if forecast.cost is None else forecast.cost * factor
    calls, read, written = (round(value * factor) for value in (forecast.calls, *tokens))
    return Bound(forecast.seconds * factor, calls, read, written, cost)


def _ordered(bound: Bound, middle: Bound, pick: Callable[..., Any]) -> Bound:
    """`bound`, not on the wrong side of the middle: a search that sees other replies may take another course."""
    names = [each.name for each in dataclasses.fields(Bound) if each.name != "cost"]
    values = {name: pick(getattr(bound, name), getattr(middle, name)) for name in names}
    cost = None if bound.cost is None or middle.cost is None else pick(bound.cost, middle.cost)
    return Bound(**values, cost=cost)


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


def _usage(model: Model, simulator: Simulator, seconds: float) -> Usage:
    charges = simulator.charges
    direct = [charge for charge in charges if charge.price == "realtime"]
    cost = None
    if model.price is not None:
        cost = sum(
            model.price.cost(charge.input_tokens, charge.output_tokens, batch=charge.price == "batch")
            for charge in charges
        )
    taken, limits = sum(charge.input_tokens for charge in direct), simulator.config.limits
    written = sum(charge.output_tokens for charge in direct)
    known = {
        "requests/min": (limits.rpm, len(direct)),
        "tokens/min": (limits.tpm, taken + written),
        "input tokens/min": (limits.input_tpm, taken),
        "output tokens/min": (limits.output_tpm, written),
    }
    told = {name: (limit, used) for name, (limit, used) in known.items() if limit is not None}
    shares = [used / (limit * seconds / 60.0) for limit, used in told.values()] if seconds > 0 else []
    return Usage(
        model.id,
        len(charges),
        len(charges) - len(direct),
        simulator.billing.statuses[429],
        sum(charge.input_tokens for charge in charges),
        sum(charge.output_tokens for charge in charges),
        min((charge.output_tokens for charge in charges), default=0),
        cost,
        {name: limit for name, (limit, _) in told.items()},
        min(1.0, max(shares)) if shares else None,  # a burst at the beginning may exceed it
    )


class _Script:
    """Makes up replies: the same words for the same request, whatever length they are counted as."""

    def __init__(self, model: str, middle: int, length: Length, answer: AnswerFunction | None) -> None:
        self._model, self._middle, self._length, self._answer = model, middle, length, answer

    def __call__(self, name: str, messages: Any, body: Mapping[str, Any], rng: random.Random) -> Answer:
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        drawn = max(1, round(self._middle * math.exp(SPREAD * rng.gauss(0.0, 1.0))))
        own = min(drawn, most or LONGEST)
        if self._answer is not None and isinstance(said := self._answer(name, messages, body, rng), str):
            return Answer(said, output_tokens=self._length(self._model, own, most))
        text = " ".join(rng.choices(_WORDS, k=own))
        if isinstance(body.get("response_format"), Mapping):
            text = f'{{"answer": "{text[: max(0, drawn * CHARACTERS_PER_TOKEN - 14)]}"}}'
        text = text[: own * CHARACTERS_PER_TOKEN]
        return Answer(text, "stop" if own == drawn else "length", self._length(self._model, own, most))


@dataclass
class _RehearsedLine(SimulatedTransport):
    """Carries a model's requests, wherever they are addressed to, to its simulator, and its key nowhere."""

    model: Model
    simulator: Simulator

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        replay: bool = True,
    ) -> Response:
        provider = self.model.provider
        home = _NOWHERE + urlsplit(provider.default_url).path
        url = home + url.removeprefix(self.model.url)
        response = await super().request(
            method, url, {**headers, **provider.headers("rehearsal")}, body, deadline=deadline
        )
        # Times in headers are by the provider's clock, and results are fetched only from where the model is.
        date = formatdate(self.simulator.wall(), usegmt=True)
        text = response.body.replace(_NOWHERE.encode(), self.model.url.encode())
        return Response(response.status, {**response.headers, "date": date}, text)
