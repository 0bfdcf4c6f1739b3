"""Builds the study: what a config says becomes a strategy, an evaluator and slots for responses."""

from __future__ import annotations

from collections.abc import Iterator

from fanfold.studies.critic.config import CriticConfig
from fanfold.studies.critic.evaluator import CriticEvaluator, Slots, Step, slots
from fanfold.studies.critic.feedback import FeedbackSource
from fanfold.studies.critic.queries import load_queries
from fanfold.studies.critic.rules import WEAK
from fanfold.study import Study


def queries_of(config: CriticConfig) -> tuple[str, ...]:
    """The queries of a file, those that the simulated reader has a taste for, or our own."""
    if config.queries is None and config.feedback == "simulated":
        from fanfold.studies.critic.simulated import planted_queries

        return tuple(planted_queries(config.total, config.seed))
    return load_queries(config.queries)


def run_options(config: CriticConfig) -> dict[str, str]:
    """Run options that follow from the settings: as many calls at once as there can be."""
    return {"executor": f"async:{config.actor_critic.num_candidates * config.concurrent}"}


def study(config: CriticConfig, *, feedback: FeedbackSource | None = None) -> Study[Step]:
    """The search that a config describes; `feedback` replaces the source that it names."""
    from fanfold.studies.critic.conclusion import CriticConclusion  # these need numpy
    from fanfold.studies.critic.strategy import CriticStrategy

    queries = queries_of(config)
    settings = (config.model, config.feedback, config.ask, config.base_url, config.max_tokens)
    evaluate = CriticEvaluator(*settings, feedback, config.reasoning_effort, config.pinned, config.writer)
    assert evaluate.judged is not None  # a source of feedback that cannot be used is refused now
    return Study(
        CriticStrategy(config, queries),
        evaluate,
        slots(config.actor_critic.num_candidates),
        schedule=Slots(),
        seed=config.seed,
        window=config.concurrent,
        name="critic",
        conclude=CriticConclusion(config, queries),
        remarks=tuple(remarks(config, feedback is None)),
    )


def remarks(config: CriticConfig, by_name: bool = True) -> Iterator[str]:
    """What a run says when it begins: where prompts come from, and what its feedback is worth."""
    if not config.prompts:
        yield "no prompts given: the built-in clauses are used (--prompts TEXT for your own)"
    if config.writer is not None and not config.evolve:
        yield "evolve is off: the writer is never asked"
    if by_name and config.feedback == "rules":
        yield WEAK
