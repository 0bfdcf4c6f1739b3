"""Measures how fast many networks are trained on one GPU: plain PyTorch, threads, stacked, and in CUDA graphs.

PYTHONPATH=src python benchmarks/neuro_gpu.py --out results --mnist mnist.npz
PYTHONPATH=src python benchmarks/neuro_gpu.py --out results --mnist mnist.npz --part mixed,end-to-end

One model is 32 steps of 128 over 4,096 images of MNIST, and validation on 904.  `models/s` counts everything from the
first job to results in memory where the steps of all families are captured already, `with capture` the first time.  `x`
divides by plain PyTorch, one model after another, in the same part: layers and optimisers of PyTorch with data on the
GPU, TF32 allowed and nothing read back inside an epoch.  The part `shell` is `fanfold run neuro`, ledger included.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from neuro_plain import Plain
from neuro_plain import train as train_plain
from neuro_rows import (
    BATCH,
    SIZES,
    STARTED,
    Bench,
    Rows,
    Size,
    baselines,
    mixed_jobs,
    plainly,
    same_accuracy,
    together,
    usable,
)

from fanfold.studies.neuro import cuda_graph
from fanfold.studies.neuro.layout import memory, operations
from fanfold.studies.neuro.memory import DeviceMemory, in_groups
from fanfold.studies.neuro.stacked_training import train_fused, train_graphs
from fanfold.studies.neuro.training import TrainedNetwork, TrainingJob, TrainingSettings, out_of_memory, train
from fanfold.tensors import unpack

# ---------------------------------------------------------------- the parts


def fused_part(name: str, counts: Sequence[int], target: tuple[int, float]) -> Callable[[Bench], None]:
    def part(bench: Bench) -> None:
        jobs = SIZES[name](max(max(counts) // bench.size.scale, 2))
        cost = 3 * BATCH * operations(jobs[0].genome, bench.resident().shape) / 1e9
        rows, resident = Rows(bench, f"{name}: {cost:.3f} GFLOP a step, one family"), bench.resident()
        baselines(bench, rows, jobs)
        for count in counts:
            some = jobs[: max(count // bench.size.scale, 2)]
            rows.add(
                f"stacked, K={len(some)}",
                lambda some=some: together(bench, some, resident, lanes=1, channels_last=False),
                target[1] if count == target[0] else None,
            )
        rows.end()
        same_accuracy(
            bench, f"{name}, stacked", jobs, lambda some: train_fused(some, bench.resident(), TrainingSettings(BATCH))
        )

    return part


def mixed_part(bench: Bench) -> None:
    jobs, resident = mixed_jobs(bench.size.mixed), bench.resident()
    cost = np.mean([3 * BATCH * operations(job.genome, resident.shape) for job in jobs]) / 1e9
    rows = Rows(bench, f"mixed: {len(jobs)} random networks, {cost:.3f} GFLOP a step on average")
    baselines(bench, rows, jobs, threads=(4, 8))
    for lanes in (8, 24) if bench.device == "cuda" else (1,):
        rows.add(
            f"{lanes} lanes",
            lambda lanes=lanes: together(bench, jobs, resident, lanes=lanes, channels_last=False),
            15.0 if lanes == 24 else None,
        )
    rows.end()
    same_accuracy(
        bench, "mixed, in lanes", jobs, lambda some: train_graphs(some, bench.resident(), TrainingSettings(BATCH))
    )


def alternatives_part(bench: Bench) -> None:
    """The ways not taken by default, each against the same baseline."""
    resident, one = bench.resident(), 1 if bench.device == "cuda" else 0
    for name, count in (("small", 128), ("tiny", 128), ("medium", 32)):
        jobs = SIZES[name](max(count // bench.size.scale, 2))
        rows, plain = Rows(bench, f"alternatives: {name}, K={len(jobs)}"), Plain.of(resident)
        rows.add(
            "plain PyTorch, one after another",
            lambda jobs=jobs, plain=plain: plainly(
                bench, jobs[:8], lambda some: [train_plain(each, plain, BATCH)[-1] for each in some]
            ),
            base=True,
        )
        ways: dict[str, dict[str, Any]] = {
            "channels first": {"channels_last": False},
            "channels last": {"channels_last": True},
            "channels first, bfloat16": {"half": True, "channels_last": False},
            "channels last, bfloat16": {"half": True, "channels_last": True},
            "channels first, not captured": {"graph": False, "channels_last": False},
        }
        for way, how in ways.items():
            if not how.get("half") or one:
                rows.add(way, lambda jobs=jobs, how=how: together(bench, jobs, resident, lanes=1, **how))
        with torch.backends.cudnn.flags(benchmark=True, allow_tf32=True):
            for way in ("channels first", "channels last"):
                rows.add(
                    f"{way}, cuDNN chooses by trying",
                    lambda jobs=jobs, how=ways[way]: together(bench, jobs, resident, lanes=1, **how),
                )
        rows.end()
    jobs = mixed_jobs(bench.size.mixed)
    rows = Rows(bench, f"alternatives: mixed, {len(jobs)} networks (no baseline here: x is to the first line)")
    for lanes in (24, 1, 8, 16, 32) if one else (1,):
        rows.add(
            f"{lanes} lanes", lambda lanes=lanes: together(bench, jobs, resident, lanes=lanes), base=rows.base is None
        )
    if one:
        rows.add("24 lanes, bfloat16", lambda: together(bench, jobs, resident, lanes=24, half=True))
    twice = mixed_jobs(2 * bench.size.mixed)
    rows.add(f"{len(twice)} networks", lambda: together(bench, twice, resident))
    rows.end()


def equality_part(bench: Bench) -> None:
    """In float64, on this device: networks trained together against the same trained in turn."""
    few = bench.size.scale > 1
    resident, training = bench.resident("float64"), TrainingSettings(BATCH, "float64", max_batches=2 if few else 10)
    mixed, stacked = mixed_jobs(2 if few else 16, seed=5), SIZES["tiny"](2 if few else 8)
    sets = {f"{len(mixed)} mixed": mixed, f"{len(stacked)} stacked": stacked}
    ways: dict[str, Callable[[list[TrainingJob]], list[TrainedNetwork]]] = {
        "8 lanes": lambda jobs: train_graphs(jobs, resident, training, 8),
        "8 lanes again": lambda jobs: train_graphs(jobs, resident, training, 8),
        "stacked": lambda jobs: train_fused(jobs, resident, training),
        "without capture": lambda jobs: train_graphs(jobs, resident, training, graph=False),
    }
    for name, jobs in sets.items():
        alone = [train(job, resident, training) for job in jobs]
        for way, run in ways.items():
            try:
                beside = run(jobs)
            except Exception as error:
                traceback.print_exc()
                bench.notes.append(f"float64, {name}, {way}: failed: {type(error).__name__}: {error}")
                continue
            worst = max(apart(one, other) for one, other in zip(alone, beside))
            wrong = sum(one.accuracy != other.accuracy for one, other in zip(alone, beside))
            verdict = "met" if worst <= 1e-10 else "MISSED"
            bench.notes.append(
                f"float64, {name}, {way}: after {alone[0].steps} steps a tensor differs by {worst:.1e} of itself at "
                f"most (<= 1e-10: {verdict}); {wrong} of {len(jobs)} accuracies differ"
            )
            bench.say(bench.notes[-1])
    cuda_graph.forget()


def apart(one: TrainedNetwork, other: TrainedNetwork) -> float:
    """The largest difference in a tensor over its largest number, of all tensors and moments."""
    mine, theirs = unpack(one.state), unpack(other.state)
    return max(float(np.abs(mine[name] - theirs[name]).max() / max(np.abs(mine[name]).max(), 1e-300)) for name in mine)


def oom_part(bench: Bench) -> None:
    """With the memory filled up, a group that does not fit is halved until it does, and every network is trained."""
    if bench.device != "cuda":
        return
    jobs, resident, tried = SIZES["small"](64), bench.resident(), []
    cuda_graph.forget()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(int(free - 1.5 * 2**30), dtype=torch.uint8, device="cuda")

    def run(some: Sequence[TrainingJob]) -> list[TrainedNetwork]:
        tried.append(len(some))
        bench.say(f"  oom: a group of {len(some)}")
        return train_fused(some, resident, TrainingSettings(BATCH))

    room = DeviceMemory(lambda: 2**60)
    found = in_groups(jobs, lambda job: memory(job.genome, resident.shape, BATCH), room, run, out_of_memory, lambda: 64)
    del ballast
    cuda_graph.forget()
    alone = train_fused(jobs, resident, TrainingSettings(BATCH))
    done = [each for each in found if isinstance(each, TrainedNetwork)]
    apart = [abs(one.accuracy - other.accuracy) for one, other in zip(done, alone)]
    bench.notes.append(
        f"out of memory: with 1.5 GiB left, groups of {tried} were tried; {len(done)} of {len(jobs)} networks "
        f"were trained, and their accuracies differ by {max(apart):.4f} at most from those with all the memory"
    )
    bench.say(bench.notes[-1])


def search_part(bench: Bench) -> None:
    import neuro_search

    table, notes = neuro_search.compared(bench.pixels, bench.labels, bench.device, bench.size.scale == 1, bench.say)
    bench.tables.append(table)
    bench.notes += notes


def shell_part(bench: Bench, apart: bool = False) -> None:
    import neuro_shell

    ways = neuro_shell.APART if apart else neuro_shell.WAYS
    images = bench.pixels[:5000], bench.labels[:5000]
    bench.tables.append(neuro_shell.searched(*images, bench.say, bench.size.scale, bench.device, ways))


def profile_part(bench: Bench) -> None:
    """Where the time of a GPU goes."""
    resident, training = bench.resident(), TrainingSettings(BATCH, max_batches=4)
    for name, jobs in (
        ("small, K=128", SIZES["small"](128 // bench.size.scale)),
        ("mixed", mixed_jobs(bench.size.mixed)),
    ):
        train_graphs(jobs, resident, training)
        with torch.profiler.profile() as profile:
            train_graphs(jobs, resident, training)
        text = profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=24, max_name_column_width=70)
        kept = [row[:70] + row[-100:] for row in text.splitlines()]
        print(f"\n{name}\n" + "\n".join(kept), flush=True)
        cuda_graph.forget()


PARTS: dict[str, Callable[[Bench], None]] = {
    "shell": shell_part,
    "workers": functools.partial(shell_part, apart=True),
    "equality": equality_part,
    "mixed": mixed_part,
    "small": fused_part("small", (32, 128, 512), (128, 20.0)),
    "tiny": fused_part("tiny", (128, 512), (128, 45.0)),
    "medium": fused_part("medium", (8, 32), (32, 4.0)),
    "end-to-end": search_part,
    "oom": oom_part,
    "alternatives": alternatives_part,
    "profile": profile_part,
}


# ---------------------------------------------------------------- the script


def described(bench: Bench) -> str:
    gpu = torch.cuda.get_device_name() if bench.device == "cuda" else "none"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{now}; GPU {gpu}; torch {torch.__version__}, Python {platform.python_version()}, numpy {np.__version__}"


def markdown(bench: Bench) -> str:
    parts = ["# Many networks on one GPU", described(bench)]
    for table in bench.tables:
        columns = list(dict.fromkeys(column for each in table.lines for column in each.values))
        rows = [["", *columns, ""], ["---"] * (len(columns) + 2)]
        for each in table.lines:
            cells = [str(each.values[column]) if column in each.values else "-" for column in columns]
            rows.append([each.name, *cells, each.verdict])
        parts += [f"## {table.title}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return "\n\n".join([*parts, *(f"- {note}" for note in bench.notes)]) + "\n"


def images_of(path: Path) -> tuple[Any, Any]:
    with np.load(path) as held:
        names = list(held)
        x, y = (
            held[next(name for name in names if name.lower() in known)] for known in (("x", "images"), ("y", "labels"))
        )
    # Files of MNIST come sorted by class.
    order = np.random.default_rng(0).permutation(len(x))
    return x.reshape(-1, 28, 28)[order].astype(np.uint8), y.astype(np.int64)[order]


def write(bench: Bench, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "neuro_gpu.md").write_text(markdown(bench))
    found = {"about": described(bench), "tables": [table.json() for table in bench.tables], "notes": bench.notes}
    (out / "neuro_gpu.json").write_text(json.dumps(found, indent=1))


def elsewhere(options: argparse.Namespace, parts: Sequence[str]) -> int:
    """The other parts in a process of their own; their tables go to a folder of their own."""
    left = options.seconds - (time.perf_counter() - STARTED)
    command = [sys.executable, __file__, "--out", str(options.out / "rest"), "--mnist", str(options.mnist)]
    command += ["--part", ",".join(parts), "--device", options.device, "--seconds", f"{left:.0f}"]
    return subprocess.run([*command, *(["--tiny"] if options.tiny else [])], check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for the tables")
    parser.add_argument("--mnist", type=Path, required=True, help="images of MNIST: an .npz with x and y")
    parser.add_argument("--part", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}, separated by commas")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument("--seconds", type=float, default=450, help="no further part is begun after so long")
    options = parser.parse_args(arguments)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    size = Size(256, 50, 1, 1, 2, 64) if options.tiny else Size()
    bench = Bench(*images_of(options.mnist), options.device, size)
    bench.say(described(bench))
    names = options.part.split(",")
    for name in names:
        if time.perf_counter() - STARTED > options.seconds:
            bench.notes.append(f"{name}: left out, there was no time")
            continue
        bench.say(f"part {name}")
        try:
            PARTS[name](bench)
            bench.sync()
        except Exception as error:
            traceback.print_exc()
            bench.notes.append(f"{name}: failed: {type(error).__name__}: {error}")
        write(bench, options.out)
        if not usable(bench):
            rest = names[names.index(name) + 1 :]
            return elsewhere(options, rest) if rest else 1
    print("\n" + "\n\n".join(map(str, bench.tables)) + "\n\n" + "\n".join(bench.notes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
