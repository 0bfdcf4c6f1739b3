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
from fanfold.errors import ConfigError
from fanfold.legacy.pipeline import AsyncEvaluationPipeline, PromptGenome, split_of, task_of
from fanfold.legacy.settings import AsyncEvolutionConfig
from fanfold.prompting.words import WordBreeder, WordRates, first_words


@dataclass(frozen=True)
class BenchmarkConfig(AsyncEvolutionConfig):
    """What is measured: how many prompts and problems, the settings of the asynchronous side, and the model.

    By default a simulated model answers, so that nothing is paid for by accident, after the 0.2 seconds that a
    provider may take.  Seconds are those of the event loop's clock: real ones, except on a virtual clock.
    """

    population_size: int = option(30, "prompts", least=1)
    num_problems: int = option(50, "problems that each is scored on", least=1)
    rate_limit_per_minute: float | None = option(3500.0, "requests a minute at most; none: learnt", above=0)
    model: str = option("simulated/solver", "the model that is asked")
    simulated_latency: float = option(0.2, "seconds that a simulated model takes to answer", least=0)
    save_checkpoints: bool = option(False, "whether replies are kept in a file")

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_problems", self.num_problems)
        super().__post_init__()


class PerformanceBenchmark:
    """Measures what asynchronous evaluation gains: `run_comprehensive_benchmark()`, then `print_results_summary()`."""

    def __init__(self, config: Mapping[str, Any] | BenchmarkConfig | None = None) -> None:
        if config is not None and not isinstance(config, Mapping | BenchmarkConfig):
            raise ConfigError(f"the benchmark's config must be a dict of settings, not {config!r:.80}")
        own = config if isinstance(config, BenchmarkConfig) else from_mapping(BenchmarkConfig, config or {})
        self.config = own
        self.results: dict[str, Any] | None = None
        self._task = task_of(own)
        self.problems = split_of(own, self._task).train
        if len(self.problems) < own.num_problems:
            raise ConfigError(
                f"num_problems is {own.num_problems}, and the task {self._task.name} has {len(self.problems)} "
                "besides those held out: ask for fewer"
            )

    @classmethod
    def of(cls, config: AsyncEvolutionConfig, **changes: Any) -> PerformanceBenchmark:
        """A benchmark of the settings of an evolution, on the model that it asks."""
        own = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        fixed = {"model": config.models[0], "save_checkpoints": False}
        return cls(BenchmarkConfig(**{**own, **fixed, **changes}))

    @property
    def population(self) -> list[PromptGenome]:
        """The prompts that are scored, drawn as an evolution draws its first generation."""
        rng = random.Random(self.config.seed)
        breeder = WordBreeder(WordRates(), first_words(), first_words(), self._task.labels[0])
        drawn: dict[str, None] = {}
        while len(drawn) < self.config.population_size:
            drawn[breeder.sample(rng).candidate.head()] = None
        return [PromptGenome.of(text) for text in drawn]

    async def run_comprehensive_benchmark(self) -> dict[str, Any]:
        """Score the population one problem after the other, then asynchronously, then once more from the cache.

        `same_accuracies` says whether both sides agree on every prompt, as they do unless a model answers one request
        in two ways.
        """
        one_by_one = dataclasses.replace(self.config, enable_async_evaluation=False)
        sequential, alone = await self._timed(AsyncEvaluationPipeline(one_by_one, self.problems))
        pipeline = AsyncEvaluationPipeline(self.config, self.problems)
        asynchronous, together = await self._timed(pipeline)
        cached, _ = await self._timed(pipeline)
        self.results = {
            "config": dataclasses.asdict(self.config),
            "evaluations": len(together) * len(self.problems),
            "sequential": sequential,
            "async": asynchronous,
            "cached": cached,
            "speedup": sequential["total_time"] / asynchronous["total_time"],
            "same_accuracies": alone == together,
            "best_accuracy": max(together),
        }
        return self.results

    async def _timed(self, pipeline: AsyncEvaluationPipeline) -> tuple[dict[str, Any], list[float]]:
        clock = asyncio.get_running_loop().time
        begun, really = clock(), time.perf_counter()
        scored = await pipeline.evaluate_population(self.population)
        seconds, performance = clock() - begun, pipeline.performance.as_dict()
        names = ("api_calls", "cache_hit_rate", "failures", "retries", "rate_limited")
        return {
            "total_time": seconds,
            "real_seconds": time.perf_counter() - really,
            "throughput": len(scored) * len(self.problems) / seconds if seconds > 0 else 0.0,
            **{name: performance[name] for name in names},
        }, [genome.accuracy or 0.0 for genome in scored]

    def print_results_summary(self) -> None:
        """Print what was measured."""
        if self.results is None:
            raise ConfigError("there is nothing to print yet: await run_comprehensive_benchmark() first")
        results = self.results
        print(f"{self.config.population_size} prompts on {self.config.num_problems} problems of {self._task.name}")
        answers = f", answers after {self.config.simulated_latency:g} s" if self.config.model[:9] == "simulated" else ""
        print(f"asked: {self.config.model}{answers}")
        print(f"{'':<12}{'seconds':>10}{'per second':>12}{'API calls':>11}{'from cache':>12}{'failures':>10}")
        for name in ("sequential", "async", "cached"):
            row = results[name]
            print(
                f"{name:<12}{row['total_time']:>10.2f}{row['throughput']:>12.1f}{row['api_calls']:>11}"
                f"{row['cache_hit_rate']:>12.0%}{row['failures']:>10}"
            )
        print(f"asynchronous evaluation is {results['speedup']:.1f} times as fast")
        if not results["same_accuracies"]:
            print("the two sides do not agree on every prompt: the model answered a request in two ways, or not at all")
        real = sum(results[name]["real_seconds"] for name in ("sequential", "async", "cached"))
        measured = sum(results[name]["total_time"] for name in ("sequential", "async", "cached"))
        if real < 0.9 * measured:
            print(f"measured on a virtual clock: waiting took no time, and all of it {real:.1f} real seconds")
