"""Compares what neuroevolution finds with others that have as much CPU time, on images and tables.

python benchmarks/neuro.py --quick
PYTHONPATH=src python benchmarks/neuro.py --jobs 16 --out results/neuro.jsonl

A cell is one set with one split.  In it the search runs first; then each of the others gets the CPU seconds that it
took: a network written by hand, support vectors and gradient boosting of scikit-learn with random settings chosen by
cross-validation, and Optuna's random search with successive halving over the same space of networks.  All are scored
once on the same test part: accuracy, or R2 where numbers are predicted.  Every result is a line of the JSONL file;
those in it already are not computed again.  `--report` makes the table of a file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from typing import Any

import torch
from measure import add_row, read_rows
from neuro_data import SETS, VALIDATION, Rows, boosting, by_hand, rows, support_vectors

from fanfold.stats import mean
from fanfold.studies.neuro import NeuroConfig, study
from fanfold.studies.neuro.data import Data, Resident, from_arrays
from fanfold.studies.neuro.export import best
from fanfold.studies.neuro.space import random_genome
from fanfold.studies.neuro.training import TrainingJob, TrainingSettings, scored, train

HERE = Path(__file__).parent
OURS = "Fanfold"
#: How much is searched: networks tried, epochs of those that get to the last rung, and images in a step.
SEARCH: dict[str, dict[str, int]] = {
    "mnist-5000": {"trials": 16, "epochs": 18, "population": 8, "batch_size": 64},
    "digits": {"trials": 32, "epochs": 24, "population": 8, "batch_size": 32},
}
TABLE = {"trials": 24, "epochs": 18, "population": 8, "batch_size": 32}
QUICK = {"trials": 16, "epochs": 9, "population": 8, "batch_size": 32}
QUICK_SETS = ("digits", "wine", "diabetes")
MNIST = ("mnist-5000", 0.990)


def data_of(part: Rows, seed: int) -> Data:
    target = "numbers" if part.numbers else "classes"
    test = (part.test_x, part.test_y)
    return from_arrays(part.x, part.y, validation=VALIDATION, test=test, seed=seed, target=target, name="benchmark")


def ours(part: Rows, limit: float, seed: int, settings: dict[str, int]) -> float:
    """The search with its defaults."""
    config = NeuroConfig(**settings, seed=seed, engine="sequential", device="cpu", results=None, baselines="no")
    data = data_of(part, seed)
    run = study(config, data).run("inline", progress=False)
    with run.ledger:
        network = best(run, data)
    scores = network.scores(data.test.pixels)
    return part.score(scores[:, 0] if part.numbers else scores.argmax(1))


def optuna_halving(part: Rows, limit: float, seed: int, settings: dict[str, int]) -> float:
    """Random genomes of the same space, cut by successive halving, until the time is up; the best by validation."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    config, data, began = NeuroConfig(**settings), data_of(part, seed), time.process_time()
    space, images = config.space.within(data.shape), Resident(data, seed=seed)
    training = TrainingSettings(batch=config.batch_size)
    top: list[tuple[float, Any, Any]] = []

    def objective(trial: Any) -> float:
        genome = random_genome(space, Random(f"{seed} {trial.suggest_int('genome', 0, 2**31)}"))
        state = None
        for rung in config.ladder:
            done = train(TrainingJob(genome, trial.number, rung, state), images, training)
            state = done.state
            trial.report(done.accuracy, rung)
            if rung == config.ladder[-1]:
                top.append((done.accuracy, genome, done.weights))
            elif trial.should_prune():
                raise optuna.TrialPruned
            if time.process_time() - began > limit:
                trial.study.stop()
        return done.accuracy

    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=config.ladder[0], reduction_factor=config.eta)
    search = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed), pruner=pruner)
    search.optimize(objective, timeout=20 * limit)
    _, genome, weights = max(top, key=lambda each: each[0])
    net = {name: torch.tensor(array) for name, array in weights.items()}
    outputs = scored([(genome, net)], images.prepared(data.test.pixels)).numpy()
    if part.numbers:
        mean, scale = data.units[0]
        return part.score(outputs[:, 0] * scale + mean)
    return part.score(outputs.argmax(1))


METHODS = {
    "network by hand": lambda part, limit, seed, settings: by_hand(part, limit, seed),
    "support vectors": lambda part, limit, seed, settings: support_vectors(part, limit, seed),
    "gradient boosting": lambda part, limit, seed, settings: boosting(part, limit, seed),
    "Optuna random + halving": optuna_halving,
}


def cell(name: str, seed: int, method: str, limit: float, quick: bool, path: Path) -> float:
    """One method on one split of one set, written when it is done; gives its CPU seconds."""
    torch.set_num_threads(1)
    settings = QUICK if quick else SEARCH.get(name, TABLE)
    part, began = rows(name, seed), time.process_time()
    line: dict[str, Any] = {"set": name, "seed": seed, "method": method}
    try:
        line["score"] = (ours if method == OURS else METHODS[method])(part, limit, seed, settings)
    except ModuleNotFoundError as error:
        line["note"] = f"{error.name} is not installed"
    line["cpu"] = time.process_time() - began
    add_row(path, line)
    print(json.dumps(line), flush=True)
    return float(line["cpu"])


def measure(cells: Sequence[tuple[str, int]], jobs: int, quick: bool, path: Path) -> None:
    """What is not in the file yet: the search on every split, and once it is done, the others with its CPU time."""
    known = {(line["set"], line["seed"], line["method"]): line["cpu"] for line in read_rows(path)}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        searches = {pool.submit(cell, *at, OURS, 0.0, quick, path): at for at in cells if (*at, OURS) not in known}
        others = []

        def follow(at: tuple[str, int], limit: float) -> None:
            missing = [method for method in METHODS if (*at, method) not in known]
            others.extend(pool.submit(cell, *at, method, limit, quick, path) for method in missing)

        for at in cells:
            if (*at, OURS) in known:
                follow(at, known[*at, OURS])
        for done in as_completed(searches):
            follow(searches[done], done.result())
        for done in as_completed(others):
            done.result()


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Mean scores with the paired difference of ours to each, and mean ranks."""
    scores: dict[tuple[str, int], dict[str, float]] = {}
    cpu: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        if "score" in line:
            scores.setdefault((line["set"], line["seed"]), {})[line["method"]] = line["score"]
            cpu.setdefault((line["set"], line["method"]), []).append(line["cpu"])
    methods = [method for method in (OURS, *METHODS) if any(method in row for row in scores.values())]
    names = [name for name in SETS if any(name == at for at, _ in scores)]
    out = [f"| set | CPU-s | {' | '.join(methods)} |", f"|---|---|{'---|' * len(methods)}"]
    for name in names:
        splits = [row for (at, _), row in sorted(scores.items()) if at == name]
        cells = [f"{statistics.fmean(cpu[name, OURS]):.0f}"]
        for method in methods:
            both = [(row[OURS], row[method]) for row in splits if method in row and OURS in row]
            mean_of = f"{statistics.fmean(theirs for _, theirs in both):.4f}" if both else "-"
            cells.append(mean_of + _difference(both, method))
        out.append(f"| {name} ({len(splits)}) | {' | '.join(cells)} |")
    whole = [row for row in scores.values() if set(row) == set(methods)]
    ranks = {method: statistics.fmean(_rank(row, method) for row in whole) for method in methods} if whole else {}
    out.append("| mean rank | | " + " | ".join(f"{ranks.get(method, 0):.2f}" for method in methods) + " |")
    return "\n".join(out)


def _difference(both: Sequence[tuple[float, float]], method: str) -> str:
    if method == OURS or len(both) < 2:
        return ""
    apart = mean([mine - theirs for mine, theirs in both])
    return f" ({apart.low:+.4f} to {apart.high:+.4f})"


def _rank(row: dict[str, float], method: str) -> float:
    """1 is the best; equals share the mean of their places."""
    better = sum(score > row[method] for score in row.values())
    return better + (sum(score == row[method] for score in row.values()) + 1) / 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits, wine and diabetes, two splits, short searches")
    parser.add_argument("--jobs", type=int, default=1, help="methods at once, each in a process of its own")
    parser.add_argument("--seeds", type=int, default=None, help="splits of each set; 5, or 2 with --quick")
    parser.add_argument("--sets", default=None, help="names of sets, with commas between")
    parser.add_argument("--out", type=Path, default=None, help="the JSONL file of results; it is continued")
    parser.add_argument("--report", action="store_true", help="only make the table")
    options = parser.parse_args(arguments)
    path = options.out or HERE / "results" / ("neuro_quick.jsonl" if options.quick else "neuro.jsonl")
    names = options.sets.split(",") if options.sets else list(QUICK_SETS if options.quick else SETS)
    cells = [(name, seed) for name in names for seed in range(options.seeds or (2 if options.quick else 5))]
    cells.sort(key=lambda cell: cell[0] != MNIST[0])  # the longest first
    path.parent.mkdir(parents=True, exist_ok=True)
    if not options.report:
        measure(cells, options.jobs, options.quick, path)
    lines = read_rows(path)
    text = table(lines)
    print(text)
    if not options.quick:
        date = time.strftime("%Y-%m-%d")
        path.with_suffix(".md").write_text(f"# Neuroevolution at equal CPU time ({date})\n\n{__doc__}\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
