"""Actor-critic prompt optimisation: a population of prompts answers queries, one response is shown, and feedback on it
teaches a critic what is liked, an actor what to show, and the population what to become."""

from typing import TYPE_CHECKING, Any

from fanfold.plugins import Starter, StudyPlugin
from fanfold.studies.critic.commands import commands
from fanfold.studies.critic.config import (
    ActorCriticParams,
    CriticConfig,
    EvolutionaryParams,
    RewardWeights,
    StudyEvolution,
)
from fanfold.studies.critic.evaluator import Generate, Show, Shown, Step
from fanfold.studies.critic.feedback import Feedback, FeedbackSource, aggregate, read
from fanfold.studies.critic.shown import shown
from fanfold.studies.critic.study import queries_of, run_options, study

if TYPE_CHECKING:
    from fanfold.studies.critic.application import Critic, ShownAnswer

__all__ = [
    "ActorCriticParams",
    "Critic",
    "CriticConfig",
    "EvolutionaryParams",
    "Feedback",
    "FeedbackSource",
    "Generate",
    "RewardWeights",
    "Show",
    "Shown",
    "ShownAnswer",
    "Step",
    "StudyEvolution",
    "aggregate",
    "plugin",
    "queries_of",
    "read",
    "run_options",
    "study",
]


def __getattr__(name: str) -> Any:
    if name not in ("Critic", "ShownAnswer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fanfold.studies.critic import application  # needs numpy

    return getattr(application, name)


plugin = StudyPlugin(
    CriticConfig,
    study,
    run_options,
    commands=commands,
    packages=("numpy",),
    world="fanfold.studies.critic.simulated:respond",
    shown=shown,
    starter=Starter(
        "Learn from feedback which system prompt and which answer people like.",
        {"total": 30},
        data="queries",
        model="model",
        offer={
            "prompts": ["Your own system prompt.", "Another to choose from."],
            "pinned": "What every system prompt must contain.",
            "feedback": "judge:PROVIDER/MODEL",
            "writer": "PROVIDER/MODEL",
        },
    ),
)
