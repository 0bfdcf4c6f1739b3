"""The documented names of actor-critic prompt optimisation, over the critic study."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fanfold.legacy.prompt_rl.flow import FlowStepResult, HybridOptimizationFlow
    from fanfold.legacy.prompt_rl.parallel import (
        LLMBackend,
        generate_candidates,
        generate_candidates_parallel,
        map_parallel,
        run_parallel,
        score_batch_parallel,
    )
    from fanfold.legacy.prompt_rl.params import ActorCriticParams, EvolutionaryParams, RewardWeights, TrainingConfig
    from fanfold.legacy.prompt_rl.parts import (
        Candidate,
        CompositeReward,
        FeedbackAggregator,
        LearnedActor,
        LearnedCritic,
        PromptPopulation,
    )
    from fanfold.legacy.prompt_rl.training import TrainingLoop

# Imported on first use: the helpers for threads need no numpy, the learned parts do.
_HOMES = {
    "flow": ("FlowStepResult", "HybridOptimizationFlow"),
    "parallel": (
        "LLMBackend",
        "generate_candidates",
        "generate_candidates_parallel",
        "map_parallel",
        "run_parallel",
        "score_batch_parallel",
    ),
    "params": ("ActorCriticParams", "EvolutionaryParams", "RewardWeights", "TrainingConfig"),
    "parts": (
        "Candidate",
        "CompositeReward",
        "FeedbackAggregator",
        "LearnedActor",
        "LearnedCritic",
        "PromptPopulation",
    ),
    "training": ("TrainingLoop",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

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
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
