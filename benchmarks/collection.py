"""Measures collection: episodes per second of Fanfold's and of others', with the same policy in the same environments.

python benchmarks/collection.py --quick
python benchmarks/collection.py --only cartpole,slow --json collection.json --strict
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from collection_peers import SLOW_MEDIAN, SLOW_SIGMA, SLOW_STEPS
from measure import Line, Sampled, Table, Target, machine, sampled, save_tables

from fanfold import Study
from fanfold.executors import Executor, make
from fanfold.rl import network
from fanfold.rl.collect import Collect, Collector
from fanfold.strategies import Sweep
from fanfold.studies.workflow.cage2.rules import Cage2Game
from fanfold.studies.workflow.collect import Cage2Collector, cage2_policy
from fanfold.tensors import Arrays, pack
from fanfold.types import Blob

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "collection.json"
RATE, CPU_RATE, STEPS = "episodes/s", "episodes/CPU-s", "steps an episode"
TIMES, CPU_TIMES, SHARE = "x best of the others", "x best, by CPU-s", "of what could be"
CAGE2 = "fanfold.studies.workflow.cage2.env:fanfold/Cage2-v0"
#: Fanfold's best against the best of the others.
CARTPOLE, CAGE, BARRIER_FREE = 3.0, 10.0, 1.5
#: What the documented system says of itself: episodes of CAGE-2 per second, with so many workers, on other hardware.
QUOTED = {"ProcessPoolExecutor, 100 workers": 74.3, "ProcessPoolExecutor, 10 workers": 17.8, "one process": 2.6}
#: How many at once in the slow environment, where waiting is all there is to do.
AT_ONCE = 16

#: Plays at least so many episodes and says how many they were, how many steps, and the seconds they took.
Play = Callable[[int], tuple[int, int, float]]


@dataclass(frozen=True)
class Sizes:
    """How often everything is measured, the seconds of a sample, and the episodes of a block."""

    repeats: int
    seconds: float
    block: int
    cage2_block: int


FULL = Sizes(7, 1.5, 250, 1000)
QUICK = Sizes(3, 0.7, 250, 1000)
TINY = Sizes(1, 0.0, 4, 4)


# ---------------------------------------------------------------- Fanfold


class Kept(Executor):
    """An executor that stays open from run to run, so that no run is charged for the start of workers."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.name, self.slots, self.interruptible = inner, inner.name, inner.slots, inner.interruptible

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await self.inner.run(fn, *args)


@contextmanager
def fanfold(spec: str, env: str, weights: Arrays, block: int, folder: Path) -> Iterator[Play]:
    """Whole studies with a durable ledger: blocks are played, folded for the learner, sent back and written down."""
    collector = Cage2Collector(game=Cage2Game(("b_line",))) if env == CAGE2 else Collector(env)
    blob = Blob.of(pack(weights))
    inner, first, runs = make(spec), 0, 0
    with asyncio.Runner() as runner:

        async def opened() -> None:
            await inner.__aenter__()

        def play(episodes: int) -> tuple[int, int, float]:
            nonlocal first, runs
            count, runs = -(-episodes // block), runs + 1
            blocks = [Collect(0, blob, first + number * block, block) for number in range(count)]
            first += count * block
            study = Study(Sweep(blocks), collector, seed=1, window=4 * inner.slots)
            began = time.perf_counter()
            done = runner.run(study.run_async(Kept(inner), ledger=folder / f"{spec.replace(':', '-')}-{runs}.db"))
            spent = time.perf_counter() - began
            returns = [each for result in done.results() for each in result.outcomes["0"].data["returns"]]  # type: ignore[union-attr]
            done.ledger.close()
            assert len(returns) == count * block
            # In CartPole and the slow environment the return is the number of steps; CAGE-2's episodes have 100.
            return count * block, 100 * len(returns) if env == CAGE2 else round(sum(returns)), spent

        runner.run(opened())
        try:
            yield play
        finally:
            runner.run(inner.__aexit__(None, None, None))


# ---------------------------------------------------------------- the others


@contextmanager
def peer(contender: str, env: str, weights: Arrays, folder: Path, *options: int) -> Iterator[Play]:
    """Another way to collect, in a process of its own and, where it needs one, an environment of its own."""
    python = ROOT / ".venv-peers" / "sb3" / "bin" / "python" if contender == "subproc_vec" else Path(sys.executable)
    file = folder / "weights.npz"
    if not file.exists():
        np.savez(file, **{name: array for name, array in weights.items() if name.startswith("policy")})
    job = {"contender": contender, "env": env, "file": str(file), "options": options}
    script = [str(python), str(Path(__file__).with_name("collection_peers.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(script, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        entry, answers = process.stdin, process.stdout

        def ask(line: str) -> dict[str, Any]:
            print(line, file=entry, flush=True)
            for answer in answers:
                if answer.startswith("{"):
                    found: dict[str, Any] = json.loads(answer)
                    return found
            raise RuntimeError(f"{contender} ended without an answer")

        def play(episodes: int) -> tuple[int, int, float]:
            answer = ask(str(episodes))
            return answer["episodes"], answer["steps"], answer["s"]

        ask(json.dumps(job))
        yield play
        entry.close()


# ---------------------------------------------------------------- tables


def balancing() -> Arrays:
    """Weights by hand that keep CartPole's pole up, so that episodes last 500 steps: what a learner ends with."""
    weights = network.initial(4, 2, 64, 0)
    for layer in range(3):
        weights[f"policy.{layer}.weight"][:] = 0
    weights["policy.0.weight"][:, 0] = np.array([0.05, 0.1, 1.0, 0.5]) * 0.5
    weights["policy.1.weight"][0, 0] = 1
    weights["policy.2.weight"][0] = [-100, 100]
    return weights


def cartpole(sizes_: Sizes) -> Iterator[Table]:
    for title, weights in (("untrained", network.initial(4, 2, 64, 0)), ("balancing", balancing())):
        block = sizes_.block if title == "untrained" else max(sizes_.block // 4, 1)
        names = ["inline", "threads:2", "processes:2", "ray:2"]
        others = {
            "one after the other": ("sequential",),
            "ProcessPoolExecutor(2), an episode a task": ("process_pool",),
            "Ray tasks, 2 CPUs, an episode a task": ("ray_tasks",),
            "Gymnasium AsyncVectorEnv, 2": ("async_vector", 2),
            "Gymnasium AsyncVectorEnv, 16": ("async_vector", 16),
            "Stable-Baselines3 SubprocVecEnv, 2": ("subproc_vec", 2),
            "Stable-Baselines3 SubprocVecEnv, 16": ("subproc_vec", 16),
        }
        lines = compared("CartPole-v1", weights, names, others, sizes_, block, CARTPOLE)
        yield Table(f"CartPole-v1, policy 4-64-64-2, {title}", lines)


def cage2(sizes_: Sizes) -> Iterator[Table]:
    others = {
        "one after the other": ("sequential",),
        "ProcessPoolExecutor(2), an episode a task": ("process_pool",),
        "Ray tasks, 2 CPUs, an episode a task": ("ray_tasks",),
        "Gymnasium AsyncVectorEnv, 2": ("async_vector", 2),
        "Gymnasium AsyncVectorEnv, 16": ("async_vector", 16),
    }
    weights = cage2_policy().initial(0)
    names = ["inline", "threads:2", "processes:2", "ray:2"]
    lines = compared(CAGE2, weights, names, others, sizes_, sizes_.cage2_block, CAGE)
    for name, rate in QUOTED.items():
        lines.append(Line(f"CybORG, {name}", {RATE: Sampled((rate,))}, note="quoted from the document, other hardware"))
    yield Table("CAGE-2 (the others step Fanfold's own Gymnasium environment), policy 52-64-64-145", lines)


def slow(sizes_: Sizes) -> Iterator[Table]:
    others = {
        f"Gymnasium AsyncVectorEnv, {AT_ONCE}": ("async_vector", AT_ONCE),
        f"Stable-Baselines3 SubprocVecEnv, {AT_ONCE}": ("subproc_vec", AT_ONCE),
        f"ProcessPoolExecutor({AT_ONCE}), an episode a task": ("process_pool", AT_ONCE),
    }
    names = [f"threads:{AT_ONCE}", f"processes:{AT_ONCE}"]
    weights = network.initial(4, 2, 64, 0)
    mean = SLOW_STEPS * SLOW_MEDIAN * math.exp(SLOW_SIGMA**2 / 2)
    vectors = [name for name in others if "Env" in name]
    lines = compared(
        "collection_peers:Slow-v0", weights, names, others, sizes_, 1, BARRIER_FREE, vectors, AT_ONCE / mean
    )
    how = f"a step waits {SLOW_MEDIAN * 1e3:g} ms in the median, sigma {SLOW_SIGMA:g}"
    yield Table(f"A slow environment: {how}; {AT_ONCE} at once; {TIMES}: those with a barrier", lines)


def workers(sizes_: Sizes) -> Iterator[Table]:
    """What the document's table of workers comes to here."""
    lines = []
    for env, weights, block in (
        (CAGE2, cage2_policy().initial(0), sizes_.cage2_block),
        ("CartPole-v1", network.initial(4, 2, 64, 0), sizes_.block),
    ):
        names = [f"processes:{count}" for count in (1, 2, 4)]
        for line in compared(env, weights, names, {}, sizes_, block, None):
            rate = line.values[RATE]
            whole = {"s for 100,000 episodes": Sampled(tuple(1e5 / each for each in rate.samples))}
            kind = "CAGE-2" if env == CAGE2 else env
            lines.append(Line(f"{kind}, {line.name}", {**line.values, **whole}))
    yield Table("Workers", lines)


SECTIONS = {"cartpole": cartpole, "cage2": cage2, "slow": slow, "workers": workers}


def compared(
    env: str,
    weights: Arrays,
    ours: Sequence[str],
    others: dict[str, Any],
    sizes_: Sizes,
    block: int,
    target: float | None,
    rivals: Sequence[str] | None = None,
    ideal: float | None = None,
) -> list[Line]:
    """Everyone's rates, one after the other: an idle Ray still takes a part of a core, so no two are open at once."""
    # Where a block is one episode, every slot should have several, or a sample is all beginning and end.
    least = 2 * block if block > 1 else 4 * AT_ONCE
    samples: dict[str, list[dict[str, float]]] = {}
    absent: list[Line] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for spec in ours:
            with fanfold(spec, env, weights, block, folder) as play:
                samples[f"Fanfold {spec}"] = _samples(play, sizes_, least)
        for name, (contender, *options) in others.items():
            try:
                with peer(contender, env, weights, folder, *options) as play:
                    samples[name] = _samples(play, sizes_, least if block == 1 else 16)
            except (OSError, RuntimeError):
                absent.append(Line(name, note="not installed: make bench-peers"))
    values_of = {name: sampled(found) for name, found in samples.items()}
    against = [values_of[name] for name in (rivals or others) if name in values_of]
    own = [name for name in samples if name.startswith("Fanfold")]
    fastest = max(own, key=lambda name: values_of[name][RATE].median)
    lines = []
    for name, found in samples.items():
        values = values_of[name]
        if name in own and against:
            for column, times in ((RATE, TIMES), (CPU_RATE, CPU_TIMES)):
                best = max(other[column].median for other in against)
                values[times] = Sampled(tuple(each[column] / best for each in found))
        if ideal is not None:
            values[SHARE] = Sampled(tuple(each[RATE] / ideal for each in found))
        aimed = target is not None and against and name == fastest
        lines.append(Line(name, values, Target(TIMES, target or 0.0, at_most=False) if aimed else None))
    return [*lines, *absent]


def _samples(play: Play, sizes_: Sizes, least: int) -> list[dict[str, float]]:
    """Two turns are a warm-up, and say how many episodes fill a sample; fewer than `least` are none."""
    play(least)
    episodes, _, spent = play(least)
    count = max(least, round(episodes / spent * sizes_.seconds))
    found = []
    for _ in range(sizes_.repeats):
        before = cpu_seconds()
        episodes, steps, spent = play(count)
        used = cpu_seconds() - before
        found.append({RATE: episodes / spent, CPU_RATE: episodes / max(used, 0.01), STEPS: steps / episodes})
    return found


def cpu_seconds() -> float:
    """What this process and all that descend from it have used: whoever else is busy on the machine does not count."""
    parents, used = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended in the meantime
        process = int(status.parent.name)
        parents[process], used[process] = int(fields[1]), sum(map(int, fields[11:15]))
    family, found = {os.getpid()}, 0
    while found < len(family):
        found = len(family)
        family |= {process for process, parent in parents.items() if parent in family}
    return sum(used.get(process, 0) for process in family) / os.sysconf("SC_CLK_TCK")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and save; 1 only when `--strict` was given and a target was missed."""
    options = _parse(arguments)
    sizes_ = QUICK if options.quick else FULL
    where = machine()
    print(f"{where['processor']}, {where['cores']} cores, load {where['load_before']:.1f}, Python {where['python']}")
    if where["load_before"] > where["cores"] / 2:
        print("the machine is busy with other work: rates by the clock mean little, those by CPU-seconds more")
    sections = options.only.split(",") if options.only else SECTIONS
    tables = (table for section in sections for table in SECTIONS[section](sizes_))
    return save_tables(tables, where, options.json, options.strict, sizes=asdict(sizes_))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats: some minutes")
    parser.add_argument("--only", help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the samples are written")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
