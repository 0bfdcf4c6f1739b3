"""The documented training: a first phase that seeds the critic, the main loop, and a refinement at the end."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from fanfold.errors import ConfigError
from fanfold.legacy.prompt_rl.flow import FlowStepResult, HybridOptimizationFlow
from fanfold.legacy.prompt_rl.params import TrainingConfig

#: Feedback on a response: a value, or a function of (query, response) that is asked once the response exists.
AnyFeedback = Any

PHASES = ("initialise", "main", "refine", "done")


class TrainingLoop:
    """Runs a flow through its phases.

    `initialise` shows responses blindly, to seed the critic; `main` updates the actor every `update_interval` queries
    and evolves the population every `evolution_interval`, until the best improves less than `min_improvement` over
    `patience` generations (`evolution_stopped`); `refine` drops duplicates and weak prompts.  `run` does all three.
    """

    def __init__(self, flow: HybridOptimizationFlow, config: TrainingConfig | None = None) -> None:
        self.flow = flow
        self.config = config or TrainingConfig()
        self.phase = PHASES[0]
        self.steps: list[FlowStepResult] = []
        self._answered = 0
        self._fitness: list[float] = []

    @property
    def evolution_stopped(self) -> bool:
        return self.flow.population.stopped

    def run(self, queries: Iterable[str], feedback: AnyFeedback, threshold: float = 0.5) -> list[FlowStepResult]:
        """All phases: the first `bootstrap_queries` of the queries seed the critic, the others are the main loop."""
        if isinstance(queries, str):
            raise ConfigError(f"queries must be a list of texts, not the text {queries!r:.60}")
        left = iter(queries)
        self.initialise(left, feedback)
        self.main(left, feedback)
        self.refine(threshold)
        return self.steps

    def initialise(self, queries: Iterable[str], feedback: AnyFeedback) -> list[FlowStepResult]:
        """Answer up to `bootstrap_queries` queries with a blind choice."""
        self.phase = "initialise"
        limit = self.config.bootstrap_queries
        if self.config.max_queries_per_phase is not None:
            limit = min(limit, self.config.max_queries_per_phase)
        return [self._step(query, feedback, blind=True) for query in islice(queries, limit)]

    def main(self, queries: Iterable[str], feedback: AnyFeedback) -> list[FlowStepResult]:
        """Answer queries, learn and evolve."""
        self.phase = "main"
        done = []
        for query in islice(queries, self.config.max_queries_per_phase):
            done.append(self._step(query, feedback, blind=False))
            self._answered += 1
            if self._answered % self.config.actor_critic.update_interval == 0:
                self._update()
            if self._answered % self.config.evolutionary.evolution_interval == 0:
                self.flow.population.renew(self._answered)
        return done

    def refine(self, threshold: float = 0.5) -> list[str]:
        """Drop duplicates and prompts whose fitness is under the threshold; gives the prompts that stay."""
        self.phase = "refine"
        self.flow.population.refine(threshold)
        self.phase = "done"
        return self.flow.population.prompts

    def metrics(self, window: int = 20) -> dict[str, Any]:
        """Fitness over time, variance between prompts, satisfaction in a window, slope, diversity per generation."""
        heard = [step.feedback_score for step in self.steps if step.feedback_score is not None]
        generations = self.flow.population.generations
        worth = [member.fitness for member in self.flow.population.members]
        return {
            "fitness": list(self._fitness),
            "variance": statistics.pvariance(worth),
            "satisfaction": statistics.fmean(heard[-window:]) if heard else None,
            "slope": _slope(self._fitness[-window:]),
            "diversity": [generation.diversity for generation in generations],
            "generations": len(generations),
            "evolution_stopped": self.evolution_stopped,
        }

    def _step(self, query: str, feedback: AnyFeedback, blind: bool) -> FlowStepResult:
        step = self.flow.step(query, feedback, blind=blind)
        self.steps.append(step)
        self._fitness.append(self.flow.population.best.fitness)
        return step

    def _update(self) -> None:
        """The group-relative update of the actor; the critic has learnt from each answer when it came."""
        update: Callable[[], Any] | None = getattr(self.flow.actor, "update", None)
        if callable(update):
            update()


def _slope(values: Sequence[float]) -> float:
    """How much a value changes from one query to the next, by a straight line through the last of them."""
    if len(values) < 2:
        return 0.0
    return statistics.linear_regression(range(len(values)), values).slope
