"""The stand-ins for the providers during a rehearsal: simulators that make up replies, and what they were asked."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.flights import SIMULATED
from fanfold.models.http_exchange import Response
from fanfold.models.line import OUTPUT_GUESS
from fanfold.models.model import Model
from fanfold.models.simulated import SimulatedTransport
from fanfold.models.transport import Transport
from fanfold.simulator.answers import CHARACTERS_PER_TOKEN
from fanfold.simulator.config import Answer, AnswerFunction, Latency, SimulatorConfig
from fanfold.simulator.core import Simulator
from fanfold.simulator.limits import AccountLimits

#: Tokens of a reply at its longest where a request sets no limit; what a cost limit reserves for it, too.
LONGEST = 4096
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
    #: Whether nobody would be paid: the model is simulated in the run itself, too.
    simulated: bool = False


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
            assumed = self._assumptions
            config = SimulatorConfig(
                seed=assumed.seed,
                limits=assumed.limits(model),
                latency=assumed.latency,
                turnaround=assumed.turnaround,
                epoch=EPOCH,
                answer=_Script(model, assumed.reply_tokens, self._length, self._answer),
            )
            dialect = model.provider.dialect()
            if dialect is None:
                raise ConfigError(f"{model.id} cannot be rehearsed: its provider has no dialect in the simulator")
            self.cast[model.fingerprint] = (model, Simulator(config, [dialect]))
        return _RehearsedLine(model, self.cast[model.fingerprint][1])

    def usage(self, seconds: float) -> tuple[Usage, ...]:
        return tuple(_usage(model, simulator, seconds) for model, simulator in self.cast.values())


def _usage(model: Model, simulator: Simulator, seconds: float) -> Usage:
    charges = simulator.charges
    simulated = model.url.startswith(SIMULATED)
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
        f"simulated/{model.name}" if simulated else model.id,
        len(charges),
        len(charges) - len(direct),
        simulator.billing.statuses[429],
        sum(charge.input_tokens for charge in charges),
        sum(charge.output_tokens for charge in charges),
        min((charge.output_tokens for charge in charges), default=0),
        cost,
        {name: limit for name, (limit, _) in told.items()},
        min(1.0, max(shares)) if shares else None,  # a burst at the beginning may exceed it
        simulated,
    )


class _Script:
    """Makes up replies: the same words for the same request, whatever length they are counted as."""

    def __init__(self, model: Model, middle: int, length: Length, answer: AnswerFunction | None) -> None:
        self._model, self._middle, self._length, self._answer = model.id, middle, length, answer
        self._limit = model.provider.parameters.get("max_tokens", "max_tokens")
        self._takes = model.capabilities

    def __call__(self, name: str, messages: Any, body: Mapping[str, Any], rng: random.Random) -> Answer | None:
        if self._answer is None and ("tools" in body or '"json_schema"' in encode(body)):
            return None  # what fits a schema, the simulated model knows best
        groups = [body, *(part for part in body.values() if isinstance(part, Mapping))]  # some group their options
        most = next((part[self._limit] for part in groups if part.get(self._limit)), body.get("max_tokens"))
        drawn = max(1, round(self._middle * math.exp(SPREAD * rng.gauss(0.0, 1.0))))
        # What a request allows beside its text is for reasoning, which is billed like text and may take all of it.
        reasoning = self._takes.room(1, body.get("reasoning_effort")) - 1
        own = min(drawn, max(1, most - reasoning) if most else LONGEST)
        if self._answer is not None and isinstance(text := self._answer(name, messages, body, rng), str):
            return Answer(text, output_tokens=self._length(self._model, own, most))
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

    stream = Transport.stream

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
        keyed = {**headers, **provider.signed(method, url, body or b"", "rehearsal")}
        response = await super().request(method, url, keyed, body, deadline=deadline)
        # Times in headers are by the provider's clock, and results are fetched only from where the model is.
        date = formatdate(self.simulator.wall(), usegmt=True)
        text = response.body.replace(_NOWHERE.encode(), self.model.url.encode())
        return Response(response.status, {**response.headers, "date": date}, text)
