"""The documented settings of actor-critic prompt optimisation: those of the study, and the two about threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from fanfold.config import Settings, option
from fanfold.studies.critic import config
from fanfold.studies.critic.config import EvolutionaryParams, RewardWeights

__all__ = ["ActorCriticParams", "EvolutionaryParams", "RewardWeights", "TrainingConfig"]


@dataclass(frozen=True)
class ActorCriticParams(config.ActorCriticParams):
    """How responses are made, chosen and learnt from, and on how many threads."""

    parallel_eval: bool = option(False, "whether candidates are generated and scored several at a time")
    max_workers: int | None = option(None, "threads; none: min(number of candidates, 4)", least=1)


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """All settings of a training."""

    evolutionary: EvolutionaryParams = field(default_factory=EvolutionaryParams)
    actor_critic: ActorCriticParams = field(default_factory=ActorCriticParams)
    reward: RewardWeights = field(default_factory=RewardWeights)
    bootstrap_queries: int = option(20, "first queries, with a blind choice, to seed the critic", least=0)
    max_queries_per_phase: int | None = option(None, "queries of each phase at most; none: all", least=1)
