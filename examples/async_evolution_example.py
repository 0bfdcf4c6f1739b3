"""The documents' evolution under its old names: evolve a prompt for word problems, and look at what happened.

Asks a simulated model unless told otherwise: `python examples/async_evolution_example.py --model openai/gpt-6-luna`.
"""

import argparse
import asyncio
import os

from fanfold.legacy import AsyncEvolutionConfig, AsyncEvolutionController


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default=os.environ.get("FANFOLD_MODEL", "simulated/solver"))
    options.add_argument("--population", type=int, default=24)
    options.add_argument("--generations", type=int, default=12)
    options.add_argument("--problems", type=int, default=24)
    given = options.parse_args()

    config = AsyncEvolutionConfig.adaptive(
        model=given.model,
        population_size=given.population,
        max_generations=given.generations,
        max_problems=given.problems,
        save_checkpoints=False,
    )
    results = await AsyncEvolutionController(config=config).run_evolution_async()

    print("generation   best   mean  diversity  seconds")
    for record in results["generation_records"]:
        print(
            f"{record['generation']:>10} {record['best_fitness']:>6.3f} {record['mean_fitness']:>6.3f} "
            f"{record['diversity']:>10.3f} {record['evaluation_time']:>8.2f}"
        )
    performance = results["performance"]
    print(f"ended by {results['convergence_reason']}")
    print(f"best prompt: {results['best_text']}")
    print(f"fitness {results['best_fitness']:.3f}, held-out accuracy {results['held_out']['accuracy']:.3f}")
    print(
        f"{performance['api_calls']} calls in {results['total_time']:.2f} s, {performance['throughput']:.0f} a second"
    )


if __name__ == "__main__":
    asyncio.run(main())
