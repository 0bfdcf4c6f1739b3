"""Measures mechanics of the prompt search on a planted model: what racing saves, what concurrency gains.

python benchmarks/prompts_mechanics.py --quick
python benchmarks/prompts_mechanics.py --only racing

How good the prompts are that a search finds is measured by `prompts.py`, on a real model.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Line, Sampled, Table, Target, sampled

from fanfold import AllCases, Racing, Study, Sweep
from fanfold.encoding import derive_seed
from fanfold.prompting.breeding import PromptBreeder
from fanfold.prompting.genome import Genome
from fanfold.prompting.operators import Material
from fanfold.schedule import Schedule
from fanfold.studies.prompts.evaluator import PromptsEvaluator, cases, shots
from fanfold.studies.prompts.simulated import quality
from fanfold.tasks import Split, Task, load
from models import RESULTS, publish, server

PLANTED = "simulated/gpt-6-luna"
PRESETS = ("conservative", "balanced", "aggressive", "adaptive")
LATENCY, RATE = 0.2, 3500.0


@dataclass(frozen=True)
class Sizes:
    """How much each section does: races, and calls in flight."""

    races: int
    racers: int
    race_cases: int
    #: Prompts and problems of each line of the concurrency table, and the calls of the sequential measurement.
    matrices: tuple[tuple[int, int], ...]
    sequential: int


FULL = Sizes(20, 60, 150, ((30, 50), (50, 100), (100, 100)), 150)
QUICK = Sizes(5, 40, 120, ((30, 50),), 60)
TINY = Sizes(1, 8, 24, ((3, 10),), 5)


def measure(sizes: Sizes, only: Sequence[str]) -> Iterator[Table]:
    if "racing" in only:
        yield raced(sizes)
    if "concurrency" in only:
        for population, problems in sizes.matrices:
            yield concurrent(population, problems, sizes.sequential)


def samples(task: Task, split: Split, seed: int, count: int) -> list[Genome]:
    """Prompts put together at random from what the task offers."""
    import random

    rng = random.Random(derive_seed(seed, "random search"))
    material = Material(task.clauses, task.labels, tuple(problem.id for problem in split.examples))
    breeder = PromptBreeder(material, [Genome.of(text) for text in task.seeds])
    return [breeder.sample(rng).candidate for _ in range(count)]  # type: ignore[misc]


# -- what racing saves -------------------------------------------------------------------------------------------------


def raced(sizes: Sizes) -> Table:
    """Prompts drawn at random, once with all cases and once raced, in the same order: cells run, and who wins."""
    task = load("city")
    rows: dict[str, list[dict[str, float]]] = {}
    for number in range(sizes.races):
        split = task.split(seed=number, examples=8, train=sizes.race_cases, validation=0, held_out=0)
        drawn = list(dict.fromkeys(samples(task, split, number, sizes.racers)))
        whole = contest(task, split, drawn, AllCases(), number)
        for error in (0.01, 0.05, 0.2):
            race = contest(task, split, drawn, Racing(error=error, step=4), number)
            rows.setdefault(f"racing, error {error:g}", []).append(
                {
                    "cells": race[1] / whole[1],
                    "same winner": float(race[0] == whole[0]),
                    "lost quality": value(task, split, whole[0]) - value(task, split, race[0]),
                }
            )
    lines = []
    for label, samples_ in rows.items():
        values = sampled(samples_)
        share = Sampled((sum(each["same winner"] for each in samples_) / len(samples_),))
        limit = Target("cells", 0.5) if label.endswith("0.05") else None
        lines.append(Line(label, {**values, "same winner": share}, limit))
    return Table(f"{sizes.racers} prompts, {sizes.race_cases} cases, {sizes.races} races: against all cells", lines)


def contest(task: Task, split: Split, genomes: list[Genome], schedule: Schedule, seed: int) -> tuple[Genome, int]:
    evaluate = PromptsEvaluator(task, shots(split.examples), (PLANTED,))
    work: Study[Any] = Study(
        Sweep(genomes), evaluate, cases(split.train, (PLANTED,)), schedule=schedule, window=4, seed=seed
    )
    run = work.run("async:64")
    assert run.best is not None
    run.ledger.close()
    return run.best.candidate, run.progress.evaluations


def value(task: Task, split: Split, genome: Genome) -> float:
    """The planted quality of a prompt."""
    from fanfold.prompting.genome import render

    before, _, after = render(genome, "\0", shots(split.examples)).partition("\0")
    return quality(task, before, after)


# -- what concurrency gains --------------------------------------------------------------------------------------------


def concurrent(population: int, problems: int, sequential: int) -> Table:
    """The same population on the same problems, one call after another and at once, under an enforced limit."""
    calls = population * problems
    limits = ["--rpm", str(RATE), "--burst", "5"]
    command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", str(LATENCY), *limits]
    os.environ["OPENAI_API_KEY"] = "benchmark"  # the simulator takes any
    with server([*command, "--answer", "fanfold.studies.prompts.simulated:solver"]) as url:
        took = asyncio.run(_all(url, population, problems, sequential))
    one = took.pop("sequential") / sequential
    lines = [
        Line(
            "sequential",
            {"seconds": Sampled((one * calls,)), "calls/s": Sampled((1 / one,))},
            note=f"{sequential} calls, scaled",
        )
    ]
    for name, seconds in took.items():
        values = {
            "seconds": Sampled((seconds,)),
            "calls/s": Sampled((calls / seconds,)),
            "speed-up": Sampled((one * calls / seconds,)),
            "of limit": Sampled((calls / seconds / (RATE / 60),)),
        }
        targets = {
            "balanced": Target("speed-up", 8, at_most=False),
            "aggressive": Target("speed-up", 12, at_most=False),
            "adaptive": Target("of limit", 0.9, at_most=False),
        }
        lines.append(Line(name, values, targets.get(name)))
    about = f"{population} prompts x {problems} problems, {LATENCY * 1e3:.0f} ms, {RATE:g} requests/min enforced"
    return Table(f"{about} ({calls / (RATE / 60):.1f} s at that rate; a burst of 5 s is let through)", lines)


async def _all(url: str, population: int, problems: int, sequential: int) -> dict[str, float]:
    """Every preset at once, each with a model (and so a limit) of its own: they wait most of the time."""
    task = load("arithmetic")
    split = task.split(seed=0, examples=8, train=problems, validation=0, held_out=0)
    genomes = list(dict.fromkeys(samples(task, split, 0, 4 * population)))[:population]

    async def timed(preset: str, executor: str, chosen: list[Genome], count: int) -> float:
        evaluate = PromptsEvaluator(task, shots(split.examples), (f"openai/{preset}",), f"{url}/v1", limits=preset)
        work: Study[Any] = Study(Sweep(chosen), evaluate, cases(split.train[:count], (f"openai/{preset}",)))
        began = time.perf_counter()
        run = await work.run_async(executor)
        assert run.progress.failures == 0, "every call must be answered"
        run.ledger.close()
        return time.perf_counter() - began

    names = [*PRESETS]
    lone = timed("adaptive", "inline", genomes[:1], min(sequential, problems))
    jobs = [timed(name, "async:512", genomes, problems) for name in names]
    each = await asyncio.gather(*jobs)
    alone = await lone
    done = dict(zip(names, each))
    return {"sequential": alone * sequential / min(sequential, problems), **done}


def main(arguments: Sequence[str] | None = None) -> int:
    import argparse

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes: a few minutes on two cores")
    parser.add_argument("--only", default="racing,concurrency", help="sections, separated by commas")
    parser.add_argument(
        "--json", type=Path, default=RESULTS / "prompts_mechanics.json", help="where the samples are written"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes, options.only.split(",")), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
