"""Searches through the shell, ledger included: `fanfold run neuro` as a user types it, timed by the run itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import Line, Sampled, Table, Target

from fanfold.ledger import Ledger

#: The space of the first measurements: plain networks, so that the figures can be compared.
PLAIN = (
    *("--no-handmade", "--conv-layers", "1,3", "--filters", "4,32", "--blocks", "plain", "--heads", "flat"),
    *("--dense-layers", "1,2", "--nodes", "32,128", "--dense-blocks", "plain", "--dense-norms", "none"),
    *("--attentions", "0", "--schedules", "constant", "--decays", "0", "--smoothings", "0", "--augments", "data"),
)
COMMON = ("--epochs", "8", "--rungs", "1", "--seed", "3", "--finalists", "0", "--baselines", "no", "--results", "none")


@dataclass(frozen=True)
class Way:
    """One search: its name, its flags, how many networks, and what it must reach."""

    name: str
    networks: int
    flags: tuple[str, ...]
    target: float | None = None


WAYS = (
    Way("sequential", 32, ("--engine", "sequential", "--population", "32")),
    Way("mixed, graph", 128, ("--engine", "graph", "--population", "64"), 25.0),
    Way("families of eight, graph", 512, ("--engine", "graph", "--population", "128", "--litter", "8"), 60.0),
    Way(
        "families of eight, graph, 3 rungs",
        512,
        ("--engine", "graph", "--population", "128", "--litter", "8", "--rungs", "3", "--epochs", "9"),
    ),
)

#: The last of them again: weights in a store, in a worker of its own, and in two workers that share a GPU.
FAMILIES = WAYS[-1].flags
APART = (
    Way("in this process", 512, FAMILIES),
    Way("in this process, --blobs", 512, (*FAMILIES, "--blobs", "blobs-1")),
    Way("--gpus 1", 512, (*FAMILIES, "--gpus", "1")),
    Way("--gpus 1, --blobs", 512, (*FAMILIES, "--gpus", "1", "--blobs", "blobs-2")),
    Way("two workers, --blobs", 512, (*FAMILIES, "--gpus", "2", "--resources", "gpu=0.5", "--blobs", "blobs-3")),
)


def searched(
    pixels: Any,
    labels: Any,
    say: Callable[[str], None],
    scale: int = 1,
    device: str = "cuda",
    ways: Sequence[Way] = WAYS,
) -> Table:
    """Each search in a process of its own; seconds are those of the run, without the start of the process.

    Workers start within the run: some seconds for PyTorch and the GPU.
    """
    lines, base = [], None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        np.savez(path / "images.npz", x=pixels, y=labels)
        for way in ways:
            networks = max(4, way.networks // scale)
            seconds, accuracy, size, beside = _run(path, way, networks, device, scale)
            rate = networks / seconds
            base = base or rate
            values = {"networks": networks, "seconds": seconds, "networks/s": rate, "x": rate / base}
            values |= {"best validation": accuracy, "ledger MB": size / 1e6}
            if ways is APART:
                values["store MB"] = beside / 1e6
            goal = None if way.target is None or scale > 1 else Target("x", way.target, at_most=False)
            lines.append(Line(way.name, {name: Sampled((float(value),)) for name, value in values.items()}, goal))
            sizes = f"{size / 1e6:.0f} + {beside / 1e6:.0f} MB"
            say(f"  {way.name}: {seconds:.1f} s, {rate:.2f} networks/s, x {rate / base:.1f}, {sizes}")
    title = "families of eight, 3 rungs, 9 epochs" if ways is APART else "8 epochs"
    return Table(f"through the shell: 5,000 images of MNIST, {title}, plain networks", lines)


def _run(folder: Path, way: Way, networks: int, device: str, scale: int) -> tuple[float, float, int, int]:
    file = folder / f"{way.name.replace(' ', '-').replace(',', '')}.db"
    command = [sys.executable, "-m", "fanfold", "run", "neuro", "--dataset", f"arrays:{folder / 'images.npz'}"]
    flags = [flag for flag in way.flags if device != "cpu" or flag not in ("--resources", "gpu=0.5")]
    command += [*PLAIN, *COMMON, *flags, *(("--max-batches", "2") if scale > 1 else ())]
    command += ["--trials", str(networks), "--device", device, "--ledger", str(file), "--run", "r"]
    before = _stored(folder)
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{way.name}: {done.stderr[-2000:] or done.stdout[-2000:]}")
    with Ledger(file) as ledger:
        run = ledger.run("r")
        assert run.best is not None and run.trials == networks
        return run.elapsed, run.best, file.stat().st_size, _stored(folder) - before


def _stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("blobs-*/**/*") if path.is_file())
