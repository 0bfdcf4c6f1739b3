"""Trains defenders of CAGE-2 and scores them on fresh episodes: the section `defence` of `cage2.py`.

Every cell (attacker, memory, seed) is a run of `fanfold run workflow --mode ppo` in a process of its own; it is written
to a file of JSON lines when it is finished, and not trained again by a run that finds it there.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from measure import Line, Sampled, Table, Target, add_row, read_rows, stopwatch

RETURN, LEAST, CPU = "return", "worst seed", "CPU-s"
#: What the median over the seeds must reach; the challenge's winner has -13.76 against B-line.
GOALS = {"B_lineAgent": -14.0, "MeanderAgent": -17.5}
#: How far one defender against both may stay behind the mean of two specialists.
BEHIND = 1.5
RANDOM = "random"


class Cell(NamedTuple):
    """One training."""

    red: str
    memory: bool
    seed: int
    episodes: int


def cells(seeds: int, episodes: int) -> list[Cell]:
    return [Cell(*each, episodes) for each in itertools.product((*GOALS, RANDOM), (True, False), range(seeds))]


def trained(cell: Cell) -> dict[str, Any]:
    """The return of a defender on fresh episodes, and what it cost to train, choose and score."""
    from fanfold.studies.workflow.config import WorkflowConfig
    from fanfold.studies.workflow.study import study

    def config(episodes: int, **more: Any) -> WorkflowConfig:
        return WorkflowConfig("ppo", red_agent=cell.red, total_episodes=episodes, results=None, **more)

    study(config(4, memory=cell.memory, length=4, fresh_episodes=4)).run()  # compiles, or loads what was compiled
    with stopwatch() as watch:
        run = study(config(cell.episodes, memory=cell.memory, seed=cell.seed)).run()
    assert run.summary is not None
    figures = {name: run.summary.figures[name] for name in ("return", "return_interval", "policy", "fresh_episodes")}
    return {**cell._asdict(), **figures, "cpu": round(watch.cpu, 2)}


def finished(file: Path) -> dict[Cell, dict[str, Any]]:
    """The cells in a file."""
    return {Cell(*(row[name] for name in Cell._fields)): row for row in read_rows(file)}


def defence(seeds: int, episodes: int, jobs: int, file: Path) -> Iterator[Table]:
    """Train what the file does not hold yet, with so many processes of one thread at once; then the table."""
    wanted = cells(seeds, episodes)
    done = finished(file)
    missing = [cell for cell in wanted if cell not in done]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # read by the processes that are started from here
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for future in as_completed([pool.submit(trained, cell) for cell in missing]):
            row = future.result()
            add_row(file, row)
            print("  {red}, memory {memory}, seed {seed}: {return:.2f}, {cpu:.0f} CPU-s".format(**row), flush=True)
    yield table([finished(file)[cell] for cell in wanted], seeds, episodes)


def table(rows: list[dict[str, Any]], seeds: int, episodes: int) -> Table:
    """Medians over the seeds; the goal of the defender against both follows from the specialists'."""
    lines, medians = [], {}
    for red, memory in itertools.product((*GOALS, RANDOM), (True, False)):
        mine = [row for row in rows if (row["red"], row["memory"]) == (red, memory)]
        returns = [row["return"] for row in mine]
        medians[red, memory] = statistics.median(returns)
        goal = GOALS.get(red, statistics.fmean(medians.get((name, True), 0.0) for name in GOALS) - BEHIND)
        values = {
            RETURN: Sampled(tuple(returns)),
            LEAST: Sampled((min(returns),)),
            CPU: Sampled(tuple(row["cpu"] for row in mine)),
        }
        name = f"{red}, {'with' if memory else 'without'} memory"
        lines.append(Line(name, values, Target(RETURN, round(goal, 2), at_most=False) if memory else None))
    return Table(f"Defenders after {episodes:,} episodes, median of {seeds} seeds on fresh episodes", lines)
