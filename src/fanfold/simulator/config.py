"""How a simulator behaves: one frozen dataclass with the answers, limits, times and faults."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.errors import ConfigError
from fanfold.simulator.faults import Faults
from fanfold.simulator.limits import AccountLimits


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says to one request.

    `finish` is `stop`, `length`, `content_filter` or `refusal`; each provider is given its own word for it.
    `output_tokens` is counted from the text when it is None.  `calls` are tools to call, by name and arguments (a text:
    as it is).
    """

    text: str
    finish: str = "stop"
    output_tokens: int | None = None
    calls: Sequence[tuple[str, Mapping[str, Any] | str]] = ()


Messages = Sequence[Mapping[str, Any]]
#: `answer(model, messages, params, rng)`; `params` is the body of the request, `rng` is seeded by the request.  None:
#: what the simulated model would say of itself.
AnswerFunction = Callable[
    [str, Messages, Mapping[str, Any], random.Random], "Answer | str | Awaitable[Answer | str | None] | None"
]


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds: lognormal around `median` (constant when `sigma` is 0), plus `per_token` for every token written."""

    median: float = 0.0
    sigma: float = 0.0
    per_token: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= value < math.inf for value in (self.median, self.sigma, self.per_token)):
            raise ConfigError(f"a latency has no negative or infinite part: {self}; give seconds >= 0")

    @staticmethod
    def parse(text: str) -> Latency:
        """A latency written as `median`, `median,sigma` or `median,sigma,per_token`."""
        try:
            parts = [float(part) for part in text.split(",")]
            if len(parts) > 3:
                raise ValueError
        except ValueError:
            raise ConfigError(
                f"{text!r} is not a latency: write median[,sigma[,per_token]] in seconds, such as 0.5 or 0.5,0.4,0.01"
            ) from None
        return Latency(*parts)

    def draw(self, rng: random.Random, tokens: int = 0) -> float:
        """Seconds for one answer of so many tokens."""
        spread = math.exp(self.sigma * rng.gauss(0.0, 1.0)) if self.sigma else 1.0
        return self.median * spread + self.per_token * tokens


@dataclass(frozen=True)
class SimulatorConfig:
    """Everything that decides what a simulator does; two simulators with equal settings and seeds behave alike."""

    seed: int = field(default=0, metadata={"help": "of answers, latencies and turnarounds"})
    models: tuple[str, ...] = field(default=(), metadata={"help": "the models that exist; none given: every model"})
    keys: tuple[str, ...] | None = field(default=None, repr=False, metadata={"help": "accepted API keys; none: any"})
    limits: AccountLimits = field(default_factory=AccountLimits, metadata={"help": "of every key and model"})
    model_limits: Mapping[str, AccountLimits] = field(
        default_factory=dict, metadata={"help": "instead, for these models"}
    )
    latency: Latency = field(default_factory=Latency, metadata={"help": "of a realtime answer"})
    turnaround: Latency = field(default_factory=lambda: Latency(1.0), metadata={"help": "of a batch"})
    prompt_cache: int | None = field(
        default=None, metadata={"help": "tokens a dialogue must have before its last message to be cached; none: never"}
    )
    usage: bool = field(default=True, metadata={"help": "whether replies say how many tokens they took"})
    reasoning: int = field(
        default=0, metadata={"help": "tokens that a model which reasons takes for it before it answers"}
    )
    cancel_seconds: float = field(default=0.2, metadata={"help": "how long a batch stays cancelling"})
    expires_after: float = field(default=24 * 3600.0, metadata={"help": "seconds until a batch expires"})
    faults: Faults = field(default_factory=Faults)
    answer: AnswerFunction | str | None = field(
        default=None, metadata={"help": "a quick function, also as text module:function; else seeded words"}
    )
    upstream: AnswerFunction | None = field(default=None, metadata={"help": "a real model; a sync one gets threads"})
    epoch: float | None = field(default=None, metadata={"help": "the time of day at loop time 0; none: the real one"})
    clock_skew: float = field(default=0.0, metadata={"help": "seconds by which the provider's clock is ahead"})

    def __post_init__(self) -> None:
        if self.answer is not None and self.upstream is not None:
            raise ConfigError("a simulator has an answer function or an upstream model, not both: leave one out")
        if self.expires_after <= 0 or self.cancel_seconds < 0:
            raise ConfigError("expires_after must be above 0 and cancel_seconds at least 0 seconds")
