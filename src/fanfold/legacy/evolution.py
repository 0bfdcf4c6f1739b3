"""The documented controllers of an evolution of prompts, over the study `prompts`."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.errors import ConfigError, FanfoldError
from fanfold.events import Event, Watcher
from fanfold.legacy.performance import Performance, StudyRuns
from fanfold.legacy.pipeline import (
    AnyProblem,
    AsyncEvaluationPipeline,
    PromptGenome,
    fitness,
    split_of,
    study_of,
    task_of,
)
from fanfold.legacy.settings import AsyncEvolutionConfig, EvolutionConfig
from fanfold.prompting.breeding import genome_of
from fanfold.strategies.generations import GenerationRecord, Generations, GenerationTimes
from fanfold.studies.prompts.objectives import accuracy, diversity, words
from fanfold.study import Study
from fanfold.sync import run_sync
from fanfold.types import Result

log = logging.getLogger("fanfold.legacy")


class EvolutionController:
    """Evolves prompts, one evaluation after the other.

    `run_evolution()` gives a dict: `best_fitness`, `best_accuracy`, `best_genome` (a `PromptGenome`), `best_text`,
    `total_time`, `generations` (how many), `generation_records`, `convergence_reason`, `performance`, `held_out` (the
    best prompt's accuracy on problems the search never saw), `run` and `ledger`.  `run=` names the run; one of a name
    that the file knows continues where it stopped, and nothing is evaluated twice.
    """

    def __init__(self, config: EvolutionConfig | None = None, problems: Sequence[AnyProblem] | None = None) -> None:
        if config is not None and not isinstance(config, EvolutionConfig):
            raise ConfigError(f"config must be an EvolutionConfig or an AsyncEvolutionConfig, not {config!r:.80}")
        self.config = self._taken(config)
        self.task = task_of(self.config, problems)
        self.split = split_of(self.config, self.task)

    def _taken(self, config: EvolutionConfig | None) -> EvolutionConfig:
        """One evaluation after the other, also with settings of the asynchronous kind."""
        config = config or EvolutionConfig()
        if isinstance(config, AsyncEvolutionConfig):
            return dataclasses.replace(config, enable_async_evaluation=False)
        return config

    def run_evolution(self, run: str | None = None, watch: Watcher | None = None) -> dict[str, Any]:
        """Evolve to the end; from synchronous code, also where an event loop is running."""
        return run_sync(lambda: self._run(run, watch))

    def study(self) -> Study[Any]:
        """The search as the engine knows it: run it, resume it, report on it like any other."""
        return study_of(self.config, self.task)

    async def _run(self, run: str | None, watch: Watcher | None) -> dict[str, Any]:
        config, times = self.config, GenerationTimes(self._log)

        def watched(event: Event) -> None:
            times(event)
            if watch is not None:
                watch(event)

        done = await StudyRuns(config).run(self.study(), run or f"evolution-{secrets.token_hex(6)}", watched)
        with done.ledger:
            told = list(done.results())
            performance = Performance.of(done)
        generations = generations_of(config, told)
        best = best_of(generations)
        if best is None:
            raise FanfoldError(f"no prompt could be scored on all its problems: {_first_failure(told)}")
        return {
            "best_fitness": best.fitness,
            "best_accuracy": best.accuracy,
            "best_genome": best,
            "best_text": best.text,
            "total_time": performance.seconds,
            "generations": len(generations.records),
            "generation_records": [_documented(record, times) for record in generations.records],
            "convergence_reason": generations.reason or done.reason,
            "converged": generations.reason is not None,
            "performance": performance.as_dict(),
            "held_out": await self._held_out(best),
            "run": done.id,
            "ledger": config.file,
        }

    def _log(self, generation: int, figures: Mapping[str, float]) -> None:
        config = self.config
        if isinstance(config, AsyncEvolutionConfig) and config.detailed_performance_logging:
            log.info("generation %d: %s", generation, ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
        if config.file is not None and generation % config.checkpoint_interval == 0:
            log.info("generation %d is safe in %s", generation, config.file)

    async def _held_out(self, best: PromptGenome) -> dict[str, Any] | None:
        """The accuracy of the best prompt on problems that took no part in the search, scored once."""
        if not self.split.held_out:
            return None
        scored = await AsyncEvaluationPipeline(self.config, self.split.held_out).evaluate_genome(best)
        return {"accuracy": scored.accuracy, "problems": len(self.split.held_out)}


class AsyncEvolutionController(EvolutionController):
    """Evolves prompts with many evaluations under way; results as from `EvolutionController`.

    Settings of the sequential kind are taken as they are; with `enable_async_evaluation=False` one evaluation follows
    the other.
    """

    def _taken(self, config: EvolutionConfig | None) -> EvolutionConfig:
        return AsyncEvolutionConfig.of(config or AsyncEvolutionConfig())

    async def run_evolution_async(self, run: str | None = None, watch: Watcher | None = None) -> dict[str, Any]:
        """Evolve to the end; cancelling it keeps what is finished."""
        return await self._run(run, watch)

    async def compare_performance(
        self, population_size: int | None = None, num_problems: int | None = None
    ) -> dict[str, Any]:
        """Measure these settings against one evaluation after the other, on the same prompts and problems."""
        from fanfold.legacy.benchmark import PerformanceBenchmark

        sizes = {
            "population_size": population_size or self.config.population_size,
            "num_problems": num_problems or len(self.split.train),
        }
        benchmark = PerformanceBenchmark.of(AsyncEvolutionConfig.of(self.config), **sizes)
        return await benchmark.run_comprehensive_benchmark()


def generations_of(config: EvolutionConfig, told: Sequence[Result[Any]] = ()) -> Generations:
    """What happened in an evolution, generation by generation, from the results its ledger holds."""
    elites = min(config.elite_size, config.population_size - 1)
    return Generations.of(told, config.until, elites, fitness, diversity)


def best_of(generations: Generations) -> PromptGenome | None:
    """The best prompt of an evolution, with the fitness it had when it was new."""
    best = generations.best
    if best is None:
        return None
    origin = best.trial.origin or {}
    return PromptGenome(
        tuple(genome_of(best).head().split()),
        fitness=generations.merit_of(best),
        accuracy=accuracy(best),
        generation=next(record.number for record in generations.records if best in record.members),
        parents=tuple(origin.get("parents", ())),
        mutations=tuple(part for part in str(origin.get("by", "")).split("+") if part),
        number=best.number,
    )


def population_of(record: GenerationRecord) -> dict[str, Any]:
    """The documented figures of a generation's population."""
    scored = [member for member in record.members if member.score is not None]
    values, right = list(record.merits.values()), [accuracy(member) for member in scored]
    return {
        "size": len(record.members),
        "elites": record.elites,
        "evaluated": len(record.members) - record.elites,
        "raced_out": sum(member.dropped is not None for member in scored),
        "failed": len(record.members) - len(scored),
        "unique": len({genome_of(member).head() for member in scored}),
        "fitness_std": statistics.pstdev(values) if values else 0.0,
        "fitness_min": min(values, default=None),
        "fitness_max": max(values, default=None),
        "mean_accuracy": statistics.fmean(right) if right else None,
        "best_accuracy": max(right, default=None),
        "mean_length": statistics.fmean(words(member) for member in scored) if scored else 0.0,
    }


def _documented(record: GenerationRecord, times: GenerationTimes) -> dict[str, Any]:
    figures = times.figures(record.number)
    return {
        "generation": record.number,
        "best_fitness": record.best,
        "mean_fitness": record.mean,
        "diversity": record.diversity or 0.0,
        "convergence_status": record.reason or "searching",
        "population": population_of(record),
        "evaluation_time": figures.pop("evaluation_time"),
        "evolution_time": figures.pop("evolution_time"),
        "performance": figures,
    }


def _first_failure(told: Sequence[Result[Any]]) -> str:
    failures = ((case, failed.message) for result in told for case, failed in result.failures.items())
    return next((f"on problem {case}: {message}" for case, message in failures), "nothing was evaluated")
