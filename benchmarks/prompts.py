"""Measures the search for prompts: what it finds for a number of calls, what racing saves, what concurrency gains.

python benchmarks/prompts.py --quick
python benchmarks/prompts.py --only racing,concurrency
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Line, Sampled, Table, Target, sampled

from fanfold import AllCases, MaxEvaluations, Racing, Study, Sweep
from fanfold.encoding import derive_seed
from fanfold.models import model
from fanfold.prompting.breeding import PromptBreeder
from fanfold.prompting.genome import Genome
from fanfold.prompting.operators import Material
from fanfold.schedule import Schedule
from fanfold.stats import bootstrap
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.evaluator import PromptsEvaluator, cases, shots
from fanfold.studies.prompts.simulated import quality
from fanfold.tasks import Split, Task, load
from models import RESULTS, ROOT, publish, server

PLANTED, LOCAL = "simulated/gpt-6-luna", "local/smollm2"
SIZES: dict[str, dict[str, Any]] = {
    PLANTED: {"examples": 8, "train": 24, "validation": 24, "held_out": 60},
    LOCAL: {"examples": 8, "train": 12, "validation": 8, "held_out": 40},
}
PRESETS = ("conservative", "balanced", "aggressive", "adaptive")
LATENCY, RATE = 0.2, 3500.0


@dataclass(frozen=True)
class Sizes:
    """How much each section does: searches by seed and calls, races, calls in flight."""

    seeds: int
    planted_calls: int
    local_calls: int
    races: int
    racers: int
    race_cases: int
    #: Prompts and problems of each line of the concurrency table, and the calls of the sequential measurement.
    matrices: tuple[tuple[int, int], ...]
    sequential: int


FULL = Sizes(5, 4000, 800, 20, 60, 150, ((30, 50), (50, 100), (100, 100)), 150)
QUICK = Sizes(5, 2000, 200, 5, 40, 120, ((30, 50),), 60)
TINY = Sizes(2, 60, 0, 1, 8, 24, ((3, 10),), 5)


def measure(sizes: Sizes, only: Sequence[str]) -> Iterator[Table]:
    if "planted" in only:
        yield searched(PLANTED, "city", sizes.planted_calls, sizes.seeds)
    if "local" in only and sizes.local_calls:
        yield searched(LOCAL, "sentiment", sizes.local_calls, sizes.seeds)
    if "racing" in only:
        yield raced(sizes)
    if "concurrency" in only:
        for population, problems in sizes.matrices:
            yield concurrent(population, problems, sizes.sequential)


# -- what is found for a number of calls -------------------------------------------------------------------------------


def searched(name: str, task: str, calls: int, seeds: int) -> Table:
    """The best prompt of each search at the same number of calls, scored on the same held-out problems."""
    contenders = {
        "Fanfold, racing": {},
        "Fanfold, racing, model as writer": {"writer": name},
        "generational GA, all cases": {"schedule": "all"},
        "random search": {"schedule": "all", "random": True},
    }
    if name == LOCAL:  # a model of this size writes no usable prompts, slowly
        del contenders["Fanfold, racing, model as writer"]
    found: dict[str, list[float]] = {label: [] for label in contenders}
    found["GEPA"] = []
    made: dict[str, list[float]] = {label: [] for label in found}
    notes: dict[str, str] = {}
    with gepa_server(name) as url:
        for seed in range(seeds):
            for label, settings in contenders.items():
                score, used = ours(name, task, calls, seed, dict(settings))
                found[label].append(score)
                made[label].append(used)
            try:
                score, used = gepa(url, name, task, calls, seed)
                found["GEPA"].append(score)
                made["GEPA"].append(used)
            except RuntimeError as error:
                notes["GEPA"] = str(error)
    lines = []
    for label, scores in found.items():
        if not scores:
            lines.append(Line(label, note=notes.get(label, "")))
            continue
        low, high = spread(scores)
        note = f"median in [{low:.2f}, {high:.2f}]; " + " ".join(f"{score:.2f}" for score in scores)
        lines.append(Line(label, {"held-out": Sampled(tuple(scores)), "calls": Sampled(tuple(made[label]))}, note=note))
    return Table(f"{task} on {name}: held-out accuracy after {calls} calls, {seeds} seeds", lines)


def ours(name: str, task: str, calls: int, seed: int, settings: dict[str, Any]) -> tuple[float, float]:
    random = settings.pop("random", False)
    config = PromptsConfig(task=task, model=(name,), trials=100_000, seed=seed, finalists=2, **SIZES[name], **settings)
    # The calls on validation problems belong to the search, those on held-out problems do not.
    validation = 0 if random else config.finalists * SIZES[name]["validation"]
    work = study(config)
    if random:
        split = load(task).split(seed=seed, **SIZES[name])
        work = dataclasses.replace(work, strategy=Sweep(samples(load(task), split, seed, calls)), window=8)
    work = dataclasses.replace(work, stop=MaxEvaluations(calls - validation))
    if random:
        conclude = dataclasses.replace(work.conclude, config=dataclasses.replace(config, finalists=1))  # type: ignore[type-var]
        work = dataclasses.replace(work, conclude=conclude)
    run = work.run("async:64" if name == PLANTED else "async:4")
    assert run.summary is not None
    figures = run.summary.figures
    used = figures["calls"]["made"] + validation
    run.ledger.close()
    return float(figures["held_out"]["accuracy"]), float(used)


def samples(task: Task, split: Split, seed: int, count: int) -> list[Genome]:
    """Prompts put together at random from what the task offers."""
    import random

    rng = random.Random(derive_seed(seed, "random search"))
    material = Material(task.clauses, task.labels, tuple(problem.id for problem in split.examples))
    breeder = PromptBreeder(material, [Genome.of(text) for text in task.seeds])
    return [breeder.sample(rng).candidate for _ in range(count)]  # type: ignore[misc]


def gepa(url: str | None, name: str, task: str, calls: int, seed: int) -> tuple[float, float]:
    python = ROOT / ".venv-peers" / "gepa" / "bin" / "python"
    if url is None or not python.exists():
        raise RuntimeError("not installed: make bench-peers")
    work = load(task)
    split = work.split(seed=seed, **SIZES[name])
    # What the others search and choose on, this one may search on altogether.
    problems = [{"input": each.input, "answer": each.answer} for each in split.train]
    options = {"max_tokens": work.max_tokens, "temperature": 0.0, "stop": list(work.stop)}
    job = {"url": url, "model": "gpt-6-luna", "train": problems, "budget": calls, "seed": seed, "options": options}
    job["reflection_tokens"] = 120 if name == LOCAL else 400
    told = json.dumps({**job, "seed_prompt": work.seeds[0]})
    script = [str(python), str(Path(__file__).with_name("gepa_peer.py"))]
    done = subprocess.run(script, input=told, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise RuntimeError(f"failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1][:160]}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    genome = Genome.of(answer["instruction"])
    evaluate = PromptsEvaluator(work, shots(split.examples), (name,))
    run = Study(Sweep([genome]), evaluate, cases(split.held_out, (name,))).run("async:4")
    assert run.best is not None and run.best.score is not None
    run.ledger.close()
    return run.best.score, float(answer["calls"])


@contextmanager
def gepa_server(name: str) -> Iterator[str | None]:
    """The same model behind HTTP, for a library that lives elsewhere."""
    if not (ROOT / ".venv-peers" / "gepa").exists():
        yield None
        return
    if name == PLANTED:
        command = ["-m", "fanfold.simulator", "--port", "0", "--answer", "fanfold.studies.prompts.simulated:solver"]
    else:
        command = [str(Path(__file__)), "--serve-local"]
    with server([sys.executable, *command]) as url:
        yield url


async def serve_local() -> None:
    """The local model behind the simulator's front: the same text in, the same text out."""
    from fanfold.simulator import Simulator, SimulatorConfig, serve

    asked = model(LOCAL)

    async def upstream(name: str, messages: Any, body: Any, rng: Any) -> str:
        wanted = {key: body[key] for key in ("max_tokens", "temperature", "stop") if key in body}
        return (await asked.generate(messages[-1]["content"], **wanted)).text

    async with serve(Simulator(SimulatorConfig(upstream=upstream)), port=0) as url:
        print(f"simulator at {url}\nready", flush=True)
        await asyncio.Event().wait()


def spread(scores: Sequence[float]) -> tuple[float, float]:
    """An interval for the median over seeds, by bootstrap."""
    import statistics

    interval = bootstrap(list(scores), statistics.median, seed=0)
    return float(interval.low), float(interval.high)


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
    parser.add_argument("--quick", action="store_true", help="smaller sizes: about a quarter of an hour on two cores")
    parser.add_argument("--only", default="planted,local,racing,concurrency", help="sections, separated by commas")
    parser.add_argument("--json", type=Path, default=RESULTS / "prompts.json", help="where the samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--serve-local", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve_local:
        asyncio.run(serve_local())
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes, options.only.split(",")), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
