"""The documented settings of actor-critic prompt optimisation: those of the study, and the two about threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from fanfold.config import option
from fanfold.errors import ConfigError
from fanfold.legacy.settings import KeywordSettings
from fanfold.studies.critic import config


@dataclass(frozen=True)
class EvolutionaryParams(KeywordSettings, config.EvolutionaryParams):
    """How the population of prompts is kept and renewed."""


@dataclass(frozen=True)
class RewardWeights(KeywordSettings, config.RewardWeights):
    """What the parts of the reward count."""


@dataclass(frozen=True)
class ActorCriticParams(KeywordSettings, config.ActorCriticParams):
    """How responses are made, chosen and learnt from, and on how many threads."""

    parallel_eval: bool = option(False, "whether candidates are generated and scored several at a time")
    max_workers: int | None = option(None, "threads; none: min(number of candidates, 4)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_workers is not None and (not isinstance(self.max_workers, int) or self.max_workers < 1):
            raise ConfigError(f"max_workers must be a whole number of at least 1, or None, not {self.max_workers!r}")


@dataclass(frozen=True)
class TrainingConfig(KeywordSettings):
    """All settings of a training."""

    evolutionary: EvolutionaryParams = field(default_factory=EvolutionaryParams)
    actor_critic: ActorCriticParams = field(default_factory=ActorCriticParams)
    reward: RewardWeights = field(default_factory=RewardWeights)
    bootstrap_queries: int = option(20, "first queries, with a blind choice, to seed the critic")
    max_queries_per_phase: int | None = option(None, "queries of each phase at most; none: all that are given")

    def __post_init__(self) -> None:
        if self.bootstrap_queries < 0:
            raise ConfigError(f"bootstrap_queries must be at least 0, not {self.bootstrap_queries}")
        if self.max_queries_per_phase is not None and self.max_queries_per_phase < 1:
            raise ConfigError(f"max_queries_per_phase must be at least 1, or None, not {self.max_queries_per_phase}")
