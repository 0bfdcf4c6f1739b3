"""The settings of the critic study."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from fanfold.addresses import check_address
from fanfold.config import option
from fanfold.errors import ConfigError


@dataclass(frozen=True)
class EvolutionaryParams:
    """How the population of prompts is kept and renewed."""

    population_size: int = option(10, "prompts in the population")
    elite_size: int = option(2, "best prompts that are never replaced")
    mutation_rate: float = option(0.3, "how likely each section of a child is changed")
    crossover_rate: float = option(0.5, "how likely a child has two parents")
    evolution_interval: int = option(5, "answered queries between two generations")
    min_improvement: float = option(0.01, "what counts as a better best fitness")
    patience: int = option(5, "generations without a better one after which evolution stops")

    def __post_init__(self) -> None:
        _at_least(self, population_size=1, elite_size=0, evolution_interval=1, patience=1)
        _between(self, mutation_rate=(0.0, 1.0), crossover_rate=(0.0, 1.0), min_improvement=(0.0, math.inf))
        if self.elite_size > self.population_size:
            raise ConfigError(f"elite_size {self.elite_size} is more than population_size {self.population_size}")


@dataclass(frozen=True)
class ActorCriticParams:
    """How responses are made, chosen and learnt from."""

    num_candidates: int = option(5, "responses to every query, one of which is shown")
    update_interval: int = option(10, "answered queries between two updates of the actor")
    exploration: float = option(0.1, "how much is tried out at first; it fades as evidence grows")

    def __post_init__(self) -> None:
        _at_least(self, num_candidates=1, update_interval=1)
        _between(self, exploration=(0.0, 1.0))


@dataclass(frozen=True)
class RewardWeights:
    """What the parts of the reward count."""

    lambda_feedback: float = option(1.0, "weight of the feedback")
    lambda_critic: float = option(0.8, "weight of what the critic expects")
    lambda_coherence: float = option(0.3, "weight of coherence")
    lambda_tokens: float = option(-0.001, "weight of every token written")
    lambda_safety: float = option(-1.0, "weight of what is unsafe in a response")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number, not {value!r}")


@dataclass(frozen=True)
class CriticConfig:
    """What is asked, who answers, who judges, and how it is learnt from."""

    model: str = option("local/smollm2", "the model that answers, as provider/name")
    base_url: str | None = option(None, "an OpenAI-compatible server that serves it")
    queries: str | None = option(None, "a file of queries: lines of text, or JSON lines with a `query`; none: our own")
    total: int = option(60, "queries answered in all; a shorter list is gone through again")
    feedback: str = option("rules", "who judges: rules, human, judge:MODEL, simulated, or module:function")
    ask: Literal["score", "rating", "thumbs", "pair"] = option("score", "what is asked for; a pair shows two responses")
    prompts: tuple[str, ...] = option((), "prompts to begin with; the rest is composed")
    evolution: EvolutionaryParams = field(default_factory=EvolutionaryParams)
    actor_critic: ActorCriticParams = field(default_factory=ActorCriticParams)
    reward: RewardWeights = field(default_factory=RewardWeights)
    bootstrap_queries: int = option(20, "first queries, with prompts in turn and a blind choice, to seed the critic")
    critic: bool = option(True, "whether the critic's expectations are used")
    actor: Literal["learned", "random"] = option("learned", "who chooses what is shown")
    evolve: bool = option(True, "whether the population evolves")
    temperatures: tuple[float, ...] = option((0.3, 0.7, 1.0), "sampling temperatures the actor chooses from")
    max_tokens: int = option(128, "length limit of a response")
    concurrent: int = option(1, "queries under way at once; more is faster and learns from older feedback")
    fitness_threshold: float = option(0.5, "at the end, prompts with less fitness than this are dropped")
    seed: int = option(0, "of the search")

    def __post_init__(self) -> None:
        check_address(self.base_url or "")
        _at_least(self, total=1, bootstrap_queries=0, max_tokens=1, concurrent=1)
        if not self.temperatures or not all(0 <= value <= 2 for value in self.temperatures):
            raise ConfigError(f"temperatures must be one or more numbers from 0 to 2, not {self.temperatures!r}")
        if not math.isfinite(self.fitness_threshold):
            raise ConfigError(f"fitness_threshold must be a finite number, not {self.fitness_threshold!r}")
        if self.ask == "pair" and self.actor_critic.num_candidates < 2:
            raise ConfigError("ask='pair' shows two responses: set actor_critic.num_candidates to 2 or more")
        if self.actor_critic.num_candidates > self.evolution.population_size:
            raise ConfigError(
                f"actor_critic.num_candidates is {self.actor_critic.num_candidates} and evolution.population_size only "
                f"{self.evolution.population_size}: every candidate response has a prompt of its own"
            )


def _at_least(settings: Any, **least: int) -> None:
    for name, low in least.items():
        if getattr(settings, name) < low:
            raise ConfigError(f"{name} must be at least {low}, not {getattr(settings, name)!r}")


def _between(settings: Any, **limits: tuple[float, float]) -> None:
    for name, (low, high) in limits.items():
        if not low <= getattr(settings, name) <= high:
            raise ConfigError(f"{name} must be from {low:g} to {high:g}, not {getattr(settings, name)!r}")
