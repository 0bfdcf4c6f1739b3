"""What it takes to learn: steps, CPU and wall time to the usual thresholds, beside others.

python benchmarks/rl.py --quick             # 3 seeds; about 40 CPU-minutes, most of them the others'
python benchmarks/rl.py --jobs 16           # 5 seeds, so many cells at once
make bench-peers                            # once, for Stable-Baselines3; without it, only Fanfold is measured

A cell is a method, a task and a seed, and a process of its own with one thread.  A task is solved when the mean return
of the last 100 episodes played to learn from reaches its threshold.  Finished cells are kept in a file, so that a
benchmark that was stopped continues.  On the slow environment, where episodes take lognormal time (sigma 1.5), the
wall time counts: barrier-free collection against our own synchronous way, both with eight threads, and against
Stable-Baselines3 with eight processes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from measure import add_row, machine, read_rows

HERE = Path(__file__).parent
OURS, SYNCHRONOUS, SB3, CLEANRL = "Fanfold", "Fanfold, synchronous", "stable-baselines3", "cleanrl"
TASKS = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "Pendulum-v1")
SLOW, WORKERS = "Slow-v1", 8
#: What is promised: steps at most so many times those of Stable-Baselines3, CPU and wall time at most such a share.
STEPS, CPU, WALL = 1.3, 1 / 3, 1 / 2
Cell = tuple[str, str, int]


def cells(seeds: int) -> list[Cell]:
    """All cells, the longest first."""
    slow = [(method, SLOW, seed) for method in (OURS, SYNCHRONOUS, SB3) for seed in range(seeds)]
    order = (SB3, CLEANRL, OURS)
    fast = [(method, task, seed) for task in TASKS for method in order for seed in range(seeds)]
    return sorted(fast, key=lambda cell: (TASKS.index(cell[1]) != 2, order.index(cell[0]))) + slow


# ---------------------------------------------------------------- a cell


def ours(task: str, seed: int, synchronous: bool = False) -> dict[str, Any]:
    """Our own study, with its ledger in memory, until the threshold is reached."""
    import rl_peers

    from fanfold.events import Progress
    from fanfold.rl.config import RlConfig
    from fanfold.rl.learner import Learner
    from fanfold.rl.training import study_of
    from fanfold.stop import Rule
    from fanfold.types import Ok, Result

    goal = rl_peers.TASKS[task]
    watch, counted = rl_peers.Watch(goal), [0]

    class Watched(Learner):
        def tell(self, result: Result[Any]) -> None:
            super().tell(result)
            outcome = next(iter(result.outcomes.values()))
            if isinstance(outcome, Ok) and result.candidate.learn:
                counted[0] = self.counts.steps
                for each in outcome.data["returns"]:
                    watch.add(each, self.counts.steps)

        def __deepcopy__(self, _: Any) -> Learner:
            return Watched(self.plan)

    class Reached(Rule):
        def check(self, progress: Progress) -> str | None:
            return "the threshold is reached, or the CPU time used up" if watch.over else None

    slow = {"in_order": synchronous, "synchronous": synchronous, "in_flight": WORKERS if synchronous else 2 * WORKERS}
    name = f"rl_peers:{SLOW}" if task == SLOW else task
    config = RlConfig(name, total_steps=goal.steps, seed=seed, fresh_episodes=4, **(slow if task == SLOW else {}))
    study = study_of(config)
    assert isinstance(study.strategy, Learner)
    study = replace(study, strategy=Watched(study.strategy.plan), stop=Reached(), conclude=None)
    study.run(f"threads:{WORKERS}" if task == SLOW else "inline")
    return watch.result(counted[0])


def measured(cell: Cell) -> dict[str, Any]:
    """A cell in a process of its own; what it could not do is said in its place."""
    method, task, seed = cell
    if method in (OURS, SYNCHRONOUS):
        command = [sys.executable, str(HERE / "rl.py"), "--cell", method, task, str(seed)]
    else:
        own = HERE.parent / ".venv-peers/sb3/bin/python"
        command = [str(own if own.exists() else sys.executable), str(HERE / "rl_peers.py"), method, task, str(seed)]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **threads}, check=False)
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        return {"error": (ended.stderr.strip().splitlines() or ["no answer"])[-1]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


# ---------------------------------------------------------------- the table


def table(found: Mapping[Cell, Mapping[str, Any]]) -> list[str]:
    """One row for each task and method: medians over seeds, and ratios to Stable-Baselines3's."""
    rows = [
        "| task | method | solved | steps | CPU-s | wall s | steps, CPU, wall against SB3 |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in (*TASKS, SLOW):
        medians = {method: _medians(found, method, task) for method in (OURS, SYNCHRONOUS, SB3, CLEANRL)}
        for method, values in medians.items():
            if values is None:
                continue
            reference = medians[SB3]
            ratios = "" if reference is None or method == SB3 else _ratios(values, reference)
            numbers = f"{values['steps']:,.0f} | {values['cpu']:.1f} | {values['wall']:.1f}"
            rows.append(f"| {task} | {method} | {values['solved']:.0f} of {values['of']:.0f} | {numbers} | {ratios} |")
    return rows


def _medians(found: Mapping[Cell, Mapping[str, Any]], method: str, task: str) -> dict[str, float] | None:
    own = [each for (by, at, _), each in found.items() if (by, at) == (method, task) and "error" not in each]
    if not own:
        return None
    middle = {name: statistics.median(each[name] for each in own) for name in ("steps", "cpu", "wall")}
    return {**middle, "solved": sum(each["solved"] for each in own), "of": len(own)}


def _ratios(values: Mapping[str, float], reference: Mapping[str, float]) -> str:
    return ", ".join(f"{values[name] / reference[name]:.2f}" for name in ("steps", "cpu", "wall"))


def misses(found: Mapping[Cell, Mapping[str, Any]]) -> list[str]:
    """What was promised and not kept."""
    said = []
    for task in TASKS:
        mine, theirs = _medians(found, OURS, task), _medians(found, SB3, task)
        if mine is None or theirs is None:
            continue
        if mine["solved"] < mine["of"]:
            said.append(f"{task}: solved by {mine['solved']:.0f} of {mine['of']:.0f} seeds")
        for name, most in (("steps", STEPS), ("cpu", CPU)):
            if mine[name] > most * theirs[name]:
                said.append(f"{task}: {name} {mine[name] / theirs[name]:.2f} times those of {SB3}, at most {most:.2f}")
    mine, barrier = _medians(found, OURS, SLOW), _medians(found, SYNCHRONOUS, SLOW)
    if mine and barrier and mine["wall"] > WALL * barrier["wall"]:
        said.append(f"{SLOW}: wall time {mine['wall'] / barrier['wall']:.2f} times the barrier's, at most {WALL:.2f}")
    return said


def report(found: Mapping[Cell, Mapping[str, Any]], seeds: int, most: float = math.inf) -> str:
    where = machine()
    errors = sorted(
        {f"{method}, {task}: {each['error']}" for (method, task, _), each in found.items() if "error" in each}
    )
    day = datetime.date.today().isoformat()
    lines = [
        "# Learning: what it takes to the threshold",
        "",
        f"{day}, {where['processor']}, {where['cores']} cores, Python {where['python']}; medians of {seeds} seeds, one",
        "thread a cell. A task is solved when the mean return of the last 100 episodes reaches 475 (CartPole), -100",
        "(Acrobot), 200 (LunarLander), -200 (Pendulum), 17 (the slow one). Fanfold has its defaults everywhere;",
        "Stable-Baselines3 has the settings of RL Baselines3 Zoo, CleanRL those of its scripts. What is not",
        f"solved counts as far as it got{'' if math.isinf(most) else f', at most {most:g} CPU-s'}.",
        "",
        *table(found),
        "",
        *(f"- missed: {each}" for each in misses(found)),
        *(f"- not measured: {each}" for each in errors),
    ]
    return "\n".join(lines).rstrip() + "\n"


def read(path: Path) -> dict[Cell, dict[str, Any]]:
    return {tuple(each["cell"]): each["result"] for each in read_rows(path)}  # type: ignore[misc]


def measure(chosen: Iterable[Cell], kept: Path, jobs: int) -> dict[Cell, dict[str, Any]]:
    """Every cell that is not yet in the file, so many at once."""
    found = read(kept)
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(measured, cell): cell for cell in chosen if cell not in found}
        for ended in as_completed(waiting):
            cell, result = waiting[ended], ended.result()
            found[cell] = result
            add_row(kept, {"cell": cell, "result": result})
            print(*cell, json.dumps(result), flush=True)
    return {cell: found[cell] for cell in chosen}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 seeds instead of 5")
    parser.add_argument("--only", help="tasks and methods, separated by commas", default="")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--most-cpu", default="inf", help="CPU seconds after which a cell ends unsolved")
    parser.add_argument("--cells", type=Path, default=HERE / "results/rl.jsonl", help="where finished cells are kept")
    parser.add_argument("--output", type=Path, default=HERE / "results/rl.md")
    parser.add_argument("--strict", action="store_true", help="fail when a promise is not kept")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cell:
        method, task, seed = options.cell
        print(json.dumps(ours(task, int(seed), method == SYNCHRONOUS)))
        return 0
    os.environ["MOST_CPU"] = options.most_cpu
    seeds, only = 3 if options.quick else 5, set(filter(None, options.only.split(",")))
    chosen = [cell for cell in cells(seeds) if not only or only & set(cell[:2])]
    found = measure(chosen, options.cells, options.jobs)
    text = report(found, seeds, float(options.most_cpu))
    options.output.write_text(text)
    print(text)
    return int(options.strict and bool(misses(found)))


if __name__ == "__main__":
    sys.exit(main())
