"""Measures CAGE-2: steps per CPU-second alone and with the policy in the loop, and how good trained defenders are.

python benchmarks/cage2.py --quick
python benchmarks/cage2.py --json cage2.json --strict
python benchmarks/cage2.py --section defence --jobs 16
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from cage2_defence import defence
from measure import Line, Sampled, Table, Target, machine, sampled, save_tables

from fanfold.studies.workflow.cage2.engine import play, start
from fanfold.studies.workflow.cage2.env import Cage2, Cage2Vector
from fanfold.studies.workflow.cage2.policy import PolicyNetwork, PolicyTable
from fanfold.studies.workflow.cage2.rollout import rollout
from fanfold.studies.workflow.cage2.rules import Cage2Game

RESULTS = Path(__file__).parent / "results" / "cage2.json"
RATE = "M steps/CPU-s"
DISTINCT = "distinct obs"
LENGTH = 100
#: Steps per second of others (least, greatest), from the project's notes on one core of a 2.8 GHz Xeon; none runs here.
QUOTED = {
    "CybORG 2.1, one process": (284.0, 396.0),
    "MiniCAGE, 100 environments": (34_000.0, 42_000.0),
    "MiniCAGE, 1000 environments, its best": (65_000.0, 77_000.0),
}
#: What each must reach: the environment alone with 256 environments, then with the policy in the loop.
ALONE = 3.0
IN_THE_LOOP = {"b_line": 1.5, "meander": 0.5}


@dataclass(frozen=True)
class Sizes:
    """How often everything is measured, the CPU seconds of a sample, and the episodes of a block."""

    repeats: int
    seconds: float
    blocks: tuple[int, ...]


FULL = Sizes(9, 0.5, (200, 1_000, 5_000))
QUICK = Sizes(5, 0.15, (200, 1_000))
TINY = Sizes(1, 0.0, (20,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; 1 only when `--strict` was given and a target was missed."""
    options = _parse(arguments)
    sizes = QUICK if options.quick else FULL
    where = machine()
    print(f"{where['processor']}, {where['cores']} cores, load {where['load_before']:.1f}, Python {where['python']}")
    if options.section == "defence":
        seeds, episodes = (2, 10_000) if options.quick else (5, 100_000)
        file = options.json or RESULTS.with_name("cage2_defence.json")
        trained = defence(seeds, episodes, options.jobs, file.with_suffix(".jsonl"))
        return save_tables(trained, where, file, options.strict)
    tables = (part(sizes) for part in (environment, policy_in_the_loop))
    return save_tables(tables, where, options.json or RESULTS, options.strict, sizes=asdict(sizes))


def environment(sizes: Sizes) -> Table:
    """Blue acts at random; the actions are drawn beforehand."""
    contenders: dict[str, Callable[[], int]] = {}
    for red in ("b_line", "meander", "sleep"):
        contenders[f"256 environments step by step, {red}"] = _stepper(red, 256, 1)
    contenders["1024 environments step by step, all reds mixed"] = _stepper("mixed", 1024, 1)
    contenders["256 environments, whole episodes at once, mixed"] = _stepper("mixed", 256, LENGTH)
    contenders["256 in a Gymnasium vector environment, mixed"] = _vector(256)
    contenders["1 Gymnasium environment, b_line"] = _single()
    lines = []
    for name, samples in _turns(contenders, sizes):
        target = Target(RATE, ALONE, at_most=False) if "step by step" in name and "256" in name else None
        lines.append(Line(name, sampled(samples), target))
    for name, (least, greatest) in QUOTED.items():
        rates = Sampled((least / 1e6, greatest / 1e6))
        lines.append(
            Line(name, {RATE: rates}, note=f"quoted, not measured here: {least:,.0f} to {greatest:,.0f} a second")
        )
    return Table(f"The environment alone, {LENGTH} steps an episode", lines)


def policy_in_the_loop(sizes: Sizes) -> Table:
    """Every block is played by a new version of the policy, so each evaluates what it meets."""
    untrained = PolicyNetwork.initial(0, np.eye(5).ravel())
    policies = {"untrained": untrained, "decisive": replace(untrained, out=untrained.out * 60)}
    contenders: dict[str, Callable[[], int]] = {}
    shares: dict[str, float] = {}
    for red in IN_THE_LOOP:
        for which, network in policies.items():
            for size in sizes.blocks:
                name = f"{red}, {which} 77-64-64-145, blocks of {size} episodes"
                contenders[name] = _roller(red, network, size)
                block = rollout(PolicyTable(network), Cage2Game((red,), LENGTH), range(size))
                shares[name] = len(block.keys) / block.steps
    lines = []
    for name, samples in _turns(contenders, sizes):
        target = Target(RATE, IN_THE_LOOP[name.split(",")[0]], at_most=False)
        values = {**sampled(samples), DISTINCT: Sampled((shares[name],))}
        lines.append(Line(name, values, target))
    return Table("With the policy in the loop, evaluated once per distinct observation and version", lines)


def _turns(contenders: dict[str, Callable[[], int]], sizes: Sizes) -> Iterator[tuple[str, list[dict[str, float]]]]:
    """Contenders take turns within each repeat, so that a noisy minute falls on all of them; one turn is a warm-up."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for turn in range(sizes.repeats + 1):
        for name, some_steps in contenders.items():
            began, steps, spent = time.process_time(), 0, -1.0
            while spent < (sizes.seconds if turn else 0):
                steps += some_steps()
                spent = time.process_time() - began
            if turn:
                found[name].append({RATE: steps / max(spent, 1e-9) / 1e6})
    yield from found.items()


def _stepper(red: str, size: int, at_once: int) -> Callable[[], int]:
    game = Cage2Game(("b_line", "meander", "sleep") if red == "mixed" else (red,), LENGTH)
    actions = np.random.default_rng(0).integers(0, 145, (LENGTH // at_once, size, at_once)).astype(np.uint8)
    seen, rewards = np.zeros((size, at_once), np.uint64), np.zeros((size, at_once), np.int32)
    episodes, tables = np.arange(size), game.tables()
    states = start(game, 0, episodes)
    seed = 0

    def some_steps() -> int:
        nonlocal seed
        seed += 1
        start(game, seed, episodes, states)
        for row in actions:
            play(states, tables, row, seen, rewards)
        return actions.size

    return some_steps


def _vector(size: int) -> Callable[[], int]:
    env = Cage2Vector(size, ("b_line", "meander", "sleep"), length=LENGTH)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 145, (LENGTH, size))

    def some_steps() -> int:
        for row in actions:
            env.step(row)
        return actions.size

    return some_steps


def _single() -> Callable[[], int]:
    env = Cage2("b_line", length=LENGTH)
    actions = np.random.default_rng(0).integers(0, 145, LENGTH).tolist()

    def some_steps() -> int:
        env.reset()
        for action in actions:
            env.step(action)
        return LENGTH

    return some_steps


def _roller(red: str, network: PolicyNetwork, size: int) -> Callable[[], int]:
    game, table, version = Cage2Game((red,), LENGTH), PolicyTable(network), 0

    def some_steps() -> int:
        nonlocal version
        version += 1
        table.load(network, version)
        return rollout(table, game, np.arange(version * size, (version + 1) * size)).steps

    return some_steps


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats: half a minute")
    parser.add_argument("--section", choices=("speed", "defence"), default="speed", help="what is measured")
    parser.add_argument("--jobs", type=int, default=1, help="defenders trained at once")
    parser.add_argument("--json", type=Path, help="where the samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
