"""What an evaluation costs on the embedded model, by how many requests are answered at once.

    python benchmarks/local.py                        # settings of this version
    python benchmarks/local.py --against ../older     # and the defaults of another checkout (four in flight)

The requests are like those of `make demo`: prompts of eight examples, scored on four reviews at a time, four prompts in
turn.  Each setting runs in its own process, and settings take turns, so that a noisy minute falls on all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEP, CASES, WINDOW = 4, 8, 4
#: Settings of the model, and requests in flight.
SETTINGS: dict[str, tuple[dict[str, int], int]] = {
    "one at a time": ({"slots": 1}, 1),
    "2 slots, 2 in flight": ({"slots": 2}, 2),
    "2 slots, 8 in flight": ({"slots": 2}, 8),
    "2 slots, 16 in flight": ({"slots": 2}, 16),
    "1 slot, 2 threads": ({"slots": 1, "threads": 2}, 1),
}


def requests(prompts: int) -> list[str]:
    """The prompts in the order in which a search asks them."""
    from fanfold.tasks import load

    rng = random.Random(0)
    problems = rng.sample(list(load("sentiment").problems), 24)
    shown, scored = problems[:16], problems[16:]
    heads = []
    for _ in range(prompts):
        examples = rng.sample(shown, 8)
        heads.append("".join(f"Review: {one.input}\nSentiment: {one.answer}\n\n" for one in examples))
    order = []
    for start in range(0, prompts, WINDOW):
        for step in range(0, CASES, STEP):
            for head in heads[start : start + WINDOW]:
                order += [f"{head}Review: {one.input}\nSentiment:" for one in scored[step : step + STEP]]
    return order


async def replay(settings: dict[str, int], in_flight: int, texts: list[str]) -> dict[str, Any]:
    from fanfold.models.local import LocalModel

    model = LocalModel(**settings)  # type: ignore[arg-type]
    gate = asyncio.Semaphore(in_flight)
    await model.complete("Hello", max_tokens=1)

    async def ask(text: str) -> tuple[str, dict[str, Any]]:
        async with gate:
            reply = await model.complete(text, max_tokens=8, stop=["\n"])
            return reply["choices"][0]["text"], reply["usage"]

    cpu, wall = time.process_time(), time.perf_counter()
    replies = await asyncio.gather(*map(ask, texts))
    read = [usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] for _, usage in replies]
    return {
        "cpu": (time.process_time() - cpu) / len(texts),
        "wall": (time.perf_counter() - wall) / len(texts),
        "read": sum(read) / len(texts),
        "texts": [text for text, _ in replies],
    }


def measured(source: Path, settings: dict[str, int], in_flight: int, texts: list[str]) -> dict[str, Any]:
    """One replay in a process of its own, by the version in `source`."""
    done = subprocess.run(
        [sys.executable, __file__, "--child"],
        input=json.dumps([settings, in_flight, texts]),
        env=os.environ | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--only", nargs="*", help="settings to measure")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(asyncio.run(replay(*json.load(sys.stdin)))))
        return
    here = Path(__file__).parents[1] / "src"
    plans = {name: (here, *plan) for name, plan in SETTINGS.items() if not options.only or name in options.only}
    if options.against:
        plans["the other checkout"] = (options.against / "src", {}, 4)
    texts = requests(options.prompts)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in plans}
    for _, (name, plan) in itertools.product(range(options.repeats), plans.items()):
        results[name].append(measured(*plan, texts))
    first = next(iter(results.values()))
    print(f"{len(texts)} requests, medians of {options.repeats}; per evaluation:")
    print(f"{'':24}{'CPU s':>8}{'wall s':>8}{'tokens read':>13}{'CPU ratio':>11}{'other answers':>15}")
    for name, runs in results.items():
        cpu, wall, read = (statistics.median(run[key] for run in runs) for key in ("cpu", "wall", "read"))
        ratio = statistics.median(run["cpu"] / one["cpu"] for run, one in zip(runs, first, strict=True))
        other = max(sum(a != b for a, b in zip(run["texts"], first[0]["texts"], strict=True)) for run in runs)
        print(f"{name:24}{cpu:8.3f}{wall:8.3f}{read:13.1f}{ratio:11.2f}{other:15}")


if __name__ == "__main__":
    main()
