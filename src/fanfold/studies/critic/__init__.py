"""Actor-critic prompt optimisation: a population of prompts answers queries, one response is shown, and feedback on it
teaches a critic what is liked, an actor what to show, and the population what to become."""

from __future__ import annotations

from fanfold.plugins import StudyPlugin, World
from fanfold.studies.critic.config import ActorCriticParams, Config, EvolutionaryParams, RewardWeights
from fanfold.studies.critic.domain import Evaluate, Generate, Show, Shown, Slots, Step, slots
from fanfold.studies.critic.feedback import Feedback, Source, aggregate, read
from fanfold.studies.critic.genome import Prompt
from fanfold.studies.critic.queries import load_queries
from fanfold.study import Study

__all__ = [
    "ActorCriticParams",
    "Config",
    "EvolutionaryParams",
    "Feedback",
    "Generate",
    "Prompt",
    "RewardWeights",
    "Show",
    "Shown",
    "Source",
    "Step",
    "aggregate",
    "plugin",
    "queries_of",
    "read",
    "run_options",
    "study",
]


def queries_of(config: Config) -> tuple[str, ...]:
    """The queries of a file, those that the simulated reader has a taste for, or our own."""
    if config.queries is None and config.feedback == "simulated":
        from fanfold.studies.critic.simulated import planted_queries

        return tuple(planted_queries(config.total, config.seed))
    return load_queries(config.queries)


def run_options(config: Config) -> dict[str, str]:
    """Run options that follow from the settings: as many calls at once as there can be."""
    return {"executor": f"async:{config.actor_critic.num_candidates * config.concurrent}"}


def study(config: Config, *, feedback: Source | None = None) -> Study[Step]:
    """The search that a config describes; `feedback` is a source of one's own instead of the one it names."""
    from fanfold.studies.critic.conclusion import Conclusion  # these need numpy
    from fanfold.studies.critic.search import Search

    queries = queries_of(config)
    evaluate = Evaluate(config.model, config.feedback, config.ask, config.base_url, config.max_tokens, feedback)
    evaluate.check()
    return Study(
        Search(config, queries),
        evaluate,
        slots(config.actor_critic.num_candidates),
        schedule=Slots(),
        seed=config.seed,
        window=config.concurrent,
        name="critic",
        conclude=Conclusion(config, queries),
    )


def _world(config: Config) -> World[Config]:
    from fanfold.studies.critic.simulated import respond

    return World(config, respond)


plugin = StudyPlugin(Config, study, run_options, packages=("numpy",), world=_world)
