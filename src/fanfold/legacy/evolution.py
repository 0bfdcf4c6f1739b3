"""The documented controllers of an evolution of prompts, over the engine's genetic search."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.errors import ConfigError, FanfoldError
from fanfold.events import EvaluationFinished, Event, RunStopped, TrialTold, Watcher
from fanfold.legacy.chronicle import Chronicle, elites_of, fitness
from fanfold.legacy.performance import Performance, ran
from fanfold.legacy.pipeline import (
    AnyProblem,
    AsyncEvaluationPipeline,
    evaluator,
    problems_of,
    task_of,
    typed,
)
from fanfold.legacy.settings import AsyncEvolutionConfig, EvolutionConfig
from fanfold.legacy.words import WordBreeder, as_candidate
from fanfold.schedules import Racing
from fanfold.strategies import Genetic
from fanfold.strategies.breeding import SelectionKind
from fanfold.studies.prompts.evaluator import cases
from fanfold.studies.prompts.tasks import Task
from fanfold.study import Study
from fanfold.sync import run_sync
from fanfold.types import Failed, Result

log = logging.getLogger("fanfold.legacy")

SELECTIONS: dict[str, SelectionKind] = {
    "tournament": "tournament",
    "roulette_wheel": "roulette",
    "rank_based": "rank",
    "stochastic_universal_sampling": "sus",
    "elitist": "elitist",
}


class Evolution(Genetic):
    """The engine's genetic search over lists of words, which also stops by the documented rules of convergence."""

    def __init__(self, config: EvolutionConfig, task: Task) -> None:
        clauses = [clause for bank in task.clauses.values() for clause in bank]
        breeder = WordBreeder(config, clauses, task.labels[0])
        own = [as_candidate(tokens, task.labels[0]) for tokens in breeder.seeds if config.seed_prompts is not None]
        super().__init__(
            breeder=breeder,
            population=config.population_size,
            elites=elites_of(config),
            tournament=config.tournament_size,
            selection=SELECTIONS[config.selection_method],
            pressure=config.selection_pressure,
            mutation_rate=config.mutation_rate,
            adaptive=config.adaptive_parameters,
            seeds=own[: config.population_size],
            generations=config.max_generations,
            merit=fitness,
        )
        self._chronicle = Chronicle(config)
        self._over = False

    def ask(self, n: int) -> list[Any]:
        before = self.generation
        candidates = [] if self._over else super().ask(n)
        # A new generation is bred once all of the last has been told: that one is complete now.
        if self.generation > before > 0 and self._chronicle.close() is not None:
            self._over = True
            return []
        return candidates

    def tell(self, result: Result[Any]) -> None:
        super().tell(result)
        self._chronicle.tell(result)

    def origin(self, candidate: Any) -> Any:
        return {**(super().origin(candidate) or {}), "generation": self.generation}


@dataclass
class Times:
    """A watcher that notes when each generation began and ended, and logs what was asked for."""

    config: EvolutionConfig
    watch: Watcher | None = None
    begun: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    evaluated: dict[int, int] = field(default_factory=dict)
    stopped: float = 0.0
    _starts: dict[int, float] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(event, EvaluationFinished):
            self._starts.setdefault(event.trial, now - event.seconds)
        elif isinstance(event, TrialTold):
            self._told(event, now)
        elif isinstance(event, RunStopped):
            self.stopped = now
            self._log(max(self.ended, default=0))
        if self.watch is not None:
            self.watch(event)

    def _told(self, event: TrialTold, now: float) -> None:
        generation = (event.result.trial.origin or {}).get("generation", 0)
        if generation not in self.ended:
            self._log(generation - 1)
        # Never before the end of the generation before: the clock of a test may be another than that of evaluations.
        start = max(self._starts.pop(event.result.number, now), self.ended.get(generation - 1, float("-inf")))
        self.begun[generation] = min(start, self.begun.get(generation, start))
        self.ended[generation] = now
        self.evaluated[generation] = self.evaluated.get(generation, 0) + len(event.result.outcomes)

    def of(self, generation: int) -> dict[str, float]:
        """Seconds spent on evaluating a generation, and on breeding the next one."""
        if generation not in self.ended:
            return {"evaluation_time": 0.0, "evolution_time": 0.0}
        end = self.ended[generation]
        return {
            "evaluation_time": end - self.begun[generation],
            "evolution_time": max(0.0, self.begun.get(generation + 1, max(end, self.stopped)) - end),
        }

    def performance(self, generation: int) -> dict[str, float]:
        seconds = self.of(generation)["evaluation_time"]
        evaluations = self.evaluated.get(generation, 0)
        return {"evaluations": evaluations, "throughput": evaluations / seconds if seconds > 0 else 0.0}

    def _log(self, generation: int) -> None:
        if generation < 1 or generation not in self.ended:
            return
        if isinstance(self.config, AsyncEvolutionConfig) and self.config.detailed_performance_logging:
            figures = {**self.of(generation), **self.performance(generation)}
            log.info(
                "generation %d: %s", generation, ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            )
        if self.config.file is not None and generation % self.config.checkpoint_interval == 0:
            log.info("generation %d is safe in %s", generation, self.config.file)


class EvolutionController:
    """Evolves prompts, one evaluation after the other.

    `run_evolution()` gives a dict: `best_fitness`, `best_accuracy`, `best_genome` (a `PromptGenome`), `best_text`,
    `total_time`, `generations` (how many), `generation_records`, `convergence_reason`, `performance`, `held_out` (the
    best prompt's accuracy on problems the search never saw), `run` and `ledger`.  `run=` names the run; one of a name
    that the file knows goes on where it stopped, and nothing is evaluated twice.
    """

    def __init__(self, config: EvolutionConfig | None = None, problems: Sequence[AnyProblem] | None = None) -> None:
        if config is not None and not isinstance(config, EvolutionConfig):
            raise ConfigError(f"config must be an EvolutionConfig or an AsyncEvolutionConfig, not {config!r:.80}")
        self.config = self._taken(config)
        self.task = task_of(self.config, problems)
        self.split = problems_of(self.config, self.task)

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
        return Study(
            Evolution(self.config, self.task),
            evaluator(self.config, self.task),
            cases(self.split.train, self.config.models),
            schedule=Racing(step=self.config.step),
            window=self.config.window,
            seed=self.config.seed,
            name="evolution",
        )

    async def _run(self, run: str | None, watch: Watcher | None) -> dict[str, Any]:
        config, times = self.config, Times(self.config, watch)
        done = await ran(self.study(), config, times, run or f"evolution-{secrets.token_hex(6)}")
        with done.ledger:
            told = list(done.results())
            performance = Performance.of(done)
        chronicle = chronicled(config, told)
        if chronicle.best is None:
            raise FanfoldError(f"no prompt could be scored on all its problems: {_first_failure(told)}")
        records = []
        for generation in chronicle.generations:
            record = {**dataclasses.asdict(generation), **times.of(generation.generation)}
            record["convergence_status"] = record.pop("status")
            record["performance"] = times.performance(generation.generation)
            records.append(record)
        return {
            "best_fitness": chronicle.best.fitness,
            "best_accuracy": chronicle.best.accuracy,
            "best_genome": chronicle.best,
            "best_text": chronicle.best.text,
            "total_time": performance.seconds,
            "generations": len(records),
            "generation_records": records,
            "convergence_reason": chronicle.reason or done.reason,
            "converged": chronicle.reason is not None,
            "performance": performance.as_dict(),
            "held_out": await self._held_out(chronicle.best.text),
            "run": done.id,
            "ledger": config.file,
        }

    async def _held_out(self, text: str) -> dict[str, Any] | None:
        """The accuracy of the best prompt on problems that took no part in the search, scored once."""
        if not self.split.held_out:
            return None
        scored = await AsyncEvaluationPipeline(self.config, self.split.held_out).evaluate_genome(text)
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


def chronicled(config: EvolutionConfig, told: Sequence[Result[Any]]) -> Chronicle:
    """What happened in an evolution, from the results its ledger holds."""
    chronicle, generation = Chronicle(config), 1
    for result in told:
        origin = result.trial.origin or {}
        while origin.get("generation", generation) > generation:
            chronicle.close()
            generation += 1
        chronicle.tell(typed(result))
    if told:
        chronicle.close()
    return chronicle


def _first_failure(told: Sequence[Result[Any]]) -> str:
    for result in told:
        for case, outcome in result.outcomes.items():
            if isinstance(outcome, Failed):
                return f"on problem {case}: {outcome.message}"
    return "nothing was evaluated"
