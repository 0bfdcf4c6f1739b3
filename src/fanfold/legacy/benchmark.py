"""Sequential against asynchronous evaluation of the same prompts on the same problems, measured."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fanfold.config import from_mapping, option
from fanfold.errors import CallFailed, ConfigError
from fanfold.legacy.pipeline import AsyncEvaluationPipeline, evaluator, problems_of, task_of
from fanfold.legacy.settings import AsyncEvolutionConfig, Settings
from fanfold.legacy.words import PromptGenome, WordBreeder, as_candidate, tokens_of
from fanfold.studies.prompts.evaluator import cases


@dataclass(frozen=True)
class BenchmarkConfig(Settings):
    """What is measured: how many prompts and problems, the settings of the asynchronous side, and the model.

    Unless told otherwise a simulated model answers, so that nothing is paid for unasked, after the 0.2 seconds that a
    provider may take.  Seconds are those of the event loop's clock: real ones, except on a virtual clock.
    """

    population_size: int = option(30, "prompts")
    num_problems: int = option(50, "problems that each is scored on")
    async_batch_size: int = option(20, "problems of a prompt asked at once")
    max_concurrent_requests: int = option(10, "requests in flight for a prompt")
    genome_batch_size: int = option(10, "prompts open at once")
    max_concurrent_genomes: int = option(5, "prompts that have their full number of requests in flight")
    rate_limit_per_minute: float | None = option(3500.0, "requests a minute at most; none: learnt from the provider")
    model: str = option("simulated/solver", "the model that is asked")
    simulated_latency: float = option(0.2, "seconds that a simulated model takes to answer")
    seed: int = option(0, "of the prompts and the choice of problems")

    def __post_init__(self) -> None:
        self.check_types()
        for name in ("population_size", "num_problems"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def settings(self) -> AsyncEvolutionConfig:
        """The settings of the asynchronous side, which keeps nothing between runs."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        size, problems = own.pop("population_size"), own.pop("num_problems")
        return AsyncEvolutionConfig(**own, population_size=max(2, size), max_problems=problems, save_checkpoints=False)


class PerformanceBenchmark:
    """Measures what asynchronous evaluation gains: `run_comprehensive_benchmark()`, then `print_results_summary()`."""

    def __init__(self, config: Mapping[str, Any] | BenchmarkConfig | None = None) -> None:
        if config is not None and not isinstance(config, Mapping | BenchmarkConfig):
            raise ConfigError(f"the benchmark's config must be a dict of settings, not {config!r:.80}")
        given = config if isinstance(config, BenchmarkConfig) else from_mapping(BenchmarkConfig, config or {})
        self.config = given
        self.results: dict[str, Any] | None = None
        self._settings = given.settings
        self._task = task_of(self._settings)
        self.problems = problems_of(self._settings, self._task).train
        if len(self.problems) < given.num_problems:
            raise ConfigError(
                f"num_problems is {given.num_problems}, and the task {self._task.name} has {len(self.problems)} "
                "besides those held out: ask for fewer"
            )

    @classmethod
    def of(cls, config: AsyncEvolutionConfig, **changes: Any) -> PerformanceBenchmark:
        """A benchmark of the settings of an evolution, on the model that it asks."""
        names = {field.name for field in dataclasses.fields(BenchmarkConfig)}
        shared = names & {field.name for field in dataclasses.fields(config)} - {"model"}
        own = {name: getattr(config, name) for name in shared}
        return cls(BenchmarkConfig(**{**own, "model": config.models[0], **changes}))

    @property
    def population(self) -> list[PromptGenome]:
        """The prompts that are scored, drawn as an evolution draws its first generation."""
        rng = random.Random(self.config.seed)
        breeder = WordBreeder(self._settings, (), self._task.labels[0])
        drawn: dict[str, PromptGenome] = {}
        while len(drawn) < self.config.population_size:
            text = breeder.sample(rng).candidate.head()
            drawn[text] = PromptGenome(tokens_of(text))
        return list(drawn.values())

    async def run_comprehensive_benchmark(self) -> dict[str, Any]:
        """Score the population one problem after the other, then asynchronously, then once more from the cache.

        `same_accuracies` says whether both sides agree on every prompt, as they do unless a model answers one request
        in two ways.
        """
        population = self.population
        sequential, one_by_one = await self._sequential(population)
        pipeline = AsyncEvaluationPipeline(self._settings, self.problems)
        asynchronous, together = await self._timed(pipeline, population)
        cached, _ = await self._timed(pipeline, population)
        self.results = {
            "config": dataclasses.asdict(self.config),
            "evaluations": len(population) * len(self.problems),
            "sequential": sequential,
            "async": asynchronous,
            "cached": cached,
            "speedup": sequential["total_time"] / asynchronous["total_time"],
            "same_accuracies": one_by_one == together,
            "best_accuracy": max(together),
        }
        return self.results

    async def _sequential(self, population: list[PromptGenome]) -> tuple[dict[str, Any], list[float]]:
        """As the documents' first system did it: a loop over prompts, and in it a loop over problems."""
        evaluate = evaluator(dataclasses.replace(self._settings, enable_async_evaluation=False), self._task)
        asked = cases(self.problems, self._settings.models)
        clock = asyncio.get_running_loop().time
        begun, really, right, failures = clock(), time.perf_counter(), [], 0
        for genome in population:
            candidate, scores = as_candidate(genome.tokens, self._task.labels[0]), []
            for case in asked:
                try:
                    scores.append((await evaluate(candidate, case)).score)
                except CallFailed as error:
                    if error.hopeless:
                        raise
                    scores.append(0.0)
                    failures += 1
            right.append(sum(scores) / len(scores))
        count = len(population) * len(asked)
        figures = {"api_calls": count, "cache_hit_rate": 0.0, "failures": failures}
        return _figures(count, clock() - begun, time.perf_counter() - really) | figures, right

    async def _timed(
        self, pipeline: AsyncEvaluationPipeline, population: list[PromptGenome]
    ) -> tuple[dict[str, Any], list[float]]:
        clock = asyncio.get_running_loop().time
        begun, really = clock(), time.perf_counter()
        scored = await pipeline.evaluate_population(population)
        took = _figures(len(population) * len(self.problems), clock() - begun, time.perf_counter() - really)
        names = ("api_calls", "cache_hit_rate", "failures", "retries", "rate_limited")
        figures = {name: value for name, value in pipeline.performance.as_dict().items() if name in names}
        return took | figures, [genome.accuracy or 0.0 for genome in scored]

    def print_results_summary(self) -> None:
        """Print what was measured."""
        if self.results is None:
            raise ConfigError("there is nothing to print yet: await run_comprehensive_benchmark() first")
        found = self.results
        print(f"{self.config.population_size} prompts on {self.config.num_problems} problems of {self._task.name}")
        answers = f", answers after {self.config.simulated_latency:g} s" if self.config.model[:9] == "simulated" else ""
        print(f"asked: {self.config.model}{answers}")
        print(f"{'':<12}{'seconds':>10}{'per second':>12}{'API calls':>11}{'from cache':>12}{'failures':>10}")
        for name in ("sequential", "async", "cached"):
            row = found[name]
            print(
                f"{name:<12}{row['total_time']:>10.2f}{row['throughput']:>12.1f}{row['api_calls']:>11}"
                f"{row['cache_hit_rate']:>12.0%}{row['failures']:>10}"
            )
        print(f"asynchronous evaluation is {found['speedup']:.1f} times as fast")
        if not found["same_accuracies"]:
            print("the two sides do not agree on every prompt: the model answered a request in two ways, or not at all")
        really = sum(found[name]["real_seconds"] for name in ("sequential", "async", "cached"))
        told = sum(found[name]["total_time"] for name in ("sequential", "async", "cached"))
        if really < 0.9 * told:
            print(f"measured on a virtual clock: waiting took no time, and all of it {really:.1f} real seconds")


def _figures(evaluations: int, seconds: float, really: float) -> dict[str, Any]:
    throughput = evaluations / seconds if seconds > 0 else 0.0
    return {"total_time": seconds, "real_seconds": really, "throughput": throughput}
