"""Sequential against asynchronous evaluation, measured: the benchmark of the documents under its old names.

By default a simulated model answers after 0.2 seconds, on a virtual clock, so that minutes of waiting take no time;
with `--real` every second is waited for, and with `--model` a real model is asked (and paid).
"""

import argparse
import asyncio

from fanfold.legacy import AsyncEvolutionConfig, PerformanceBenchmark
from fanfold.legacy.settings import BATCHES
from fanfold.testing import run_virtual


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--population", type=int, default=10, help="prompts")
    options.add_argument("--problems", type=int, default=30, help="problems that each is scored on")
    options.add_argument("--preset", choices=sorted(BATCHES), default="balanced")
    options.add_argument("--model", default="simulated/solver")
    options.add_argument("--latency", type=float, default=0.2, help="seconds a simulated model takes")
    options.add_argument("--real", action="store_true", help="wait for every second")
    given = options.parse_args()

    config = AsyncEvolutionConfig.preset(given.preset, model=given.model, simulated_latency=given.latency)
    benchmark = PerformanceBenchmark.of(config, population_size=given.population, num_problems=given.problems)
    real = given.real or not given.model.startswith("simulated/")
    (asyncio.run if real else run_virtual)(benchmark.run_comprehensive_benchmark())
    benchmark.print_results_summary()


if __name__ == "__main__":
    main()
