"""The documented names of actor-critic prompt optimisation, over the critic study."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fanfold.legacy.prompt_rl.parallel import LLMBackend, generate_candidates, generate_candidates_parallel
from fanfold.legacy.prompt_rl.params import ActorCriticParams, EvolutionaryParams, RewardWeights, TrainingConfig
from fanfold.mapping import map_parallel, run_parallel, score_batch_parallel

if TYPE_CHECKING:
    from fanfold.legacy.prompt_rl.flow import FlowStepResult, HybridOptimizationFlow
    from fanfold.legacy.prompt_rl.parts import (
        Candidate,
        CompositeReward,
        FeedbackAggregator,
        LearnedActor,
        LearnedCritic,
        PromptPopulation,
    )
    from fanfold.legacy.prompt_rl.training import TrainingLoop

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
    # Imported on first use: the helpers for threads need no numpy, the learned parts do.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"FlowStepResult": "flow", "HybridOptimizationFlow": "flow", "TrainingLoop": "training"}.get(name, "parts")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
