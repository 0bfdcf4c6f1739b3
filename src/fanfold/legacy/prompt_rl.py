"""The documented names of actor-critic prompt optimisation, all of which the critic study has under others."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fanfold.mapping import map_parallel, run_parallel, score_batch_parallel
from fanfold.studies.critic.config import EvolutionaryParams, RewardWeights
from fanfold.studies.critic.config import OnlineConfig as TrainingConfig
from fanfold.studies.critic.config import OnlineParams as ActorCriticParams
from fanfold.studies.critic.feedback import FeedbackAggregator
from fanfold.studies.critic.responses import LLMBackend, generate_candidates, generate_candidates_parallel

if TYPE_CHECKING:
    from fanfold.studies.critic.online import CompositeReward, LearnedActor, LearnedCritic, PromptPopulation
    from fanfold.studies.critic.online import OnlineResponse as Candidate
    from fanfold.studies.critic.online_loop import OnlineOptimiser as HybridOptimizationFlow
    from fanfold.studies.critic.online_loop import OnlineStep as FlowStepResult
    from fanfold.studies.critic.online_loop import OnlineTraining as TrainingLoop

# Imported on first use: the helpers for threads need no numpy, the learned parts do.
_LEARNED = {
    "Candidate": "online.OnlineResponse",
    "CompositeReward": "online.CompositeReward",
    "FlowStepResult": "online_loop.OnlineStep",
    "HybridOptimizationFlow": "online_loop.OnlineOptimiser",
    "LearnedActor": "online.LearnedActor",
    "LearnedCritic": "online.LearnedCritic",
    "PromptPopulation": "online.PromptPopulation",
    "TrainingLoop": "online_loop.OnlineTraining",
}

__all__ = [
    "ActorCriticParams",
    "Candidate",
    "CompositeReward",
    "EvolutionaryParams",
    "FeedbackAggregator",
    "FlowStepResult",
    "HybridOptimizationFlow",
    "LLMBackend",
    "LearnedActor",
    "LearnedCritic",
    "PromptPopulation",
    "RewardWeights",
    "TrainingConfig",
    "TrainingLoop",
    "generate_candidates",
    "generate_candidates_parallel",
    "map_parallel",
    "run_parallel",
    "score_batch_parallel",
]


def __getattr__(name: str) -> Any:
    if name not in _LEARNED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own = _LEARNED[name].partition(".")
    return getattr(importlib.import_module(f"fanfold.studies.critic.{module}"), own)
