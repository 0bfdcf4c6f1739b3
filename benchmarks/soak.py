"""Runs a mixed study for some minutes and looks at what the driver holds: memory, descriptors, threads, children.

Workers are killed, evaluations raise and hang, models are asked over a socket and refuse.  One run follows another in
one process, as in a service or a notebook.  A figure grows if even the lower end of the 95 % interval of its slope is
above what is tolerated.
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import Line, Sampled, Table, Target
from memory import resident

from fanfold import Case, Float, Genetic, MaxTrials, Space, Study
from fanfold.limits import Limits
from fanfold.models import Model, model
from models import server

#: How much each may grow in an hour, by the lower end of the interval of its slope.
TOLERATED = {"memory MB": 20.0, "descriptors": 2.0, "threads": 2.0, "children": 2.0}
#: The beginning is left out: imports, caches and pools fill.
WARM = 0.25
FAULTS = {"internal": 0.02, "overloaded": 0.02, "disconnect": 0.01, "lost_drop": 0.01}
SPACE = Space(x=Float(0, 1), y=Float(0, 1))


@dataclass(frozen=True)
class Mixed:
    """An evaluator that asks a model, and now and then raises, hangs, or kills its worker."""

    asked: Model

    def __call__(self, candidate: dict[str, float], case: Case) -> float:
        chance = random.random()
        if chance < 0.01:
            os.kill(os.getpid(), signal.SIGKILL)
        if chance < 0.02:
            raise ValueError("one of those")
        if chance < 0.022:
            time.sleep(60)
        reply = self.asked.generate_sync(f"{candidate['x']:.2f} {case.id}", max_tokens=8)
        return candidate["x"] + len(reply.text) / 1000


async def plain(candidate: dict[str, float], case: Case) -> float:
    if candidate["y"] < 0.01:
        raise ValueError("one of those")
    return candidate["x"]


def measure(minutes: float) -> Iterator[Table]:
    """Samples over so many minutes, and the slope of each figure."""
    with tempfile.TemporaryDirectory() as folder:
        faults = Path(folder) / "faults.json"
        strikes = [{"kind": kind, "probability": chance} for kind, chance in FAULTS.items()]
        faults.write_text(json.dumps({"faults": strikes}))
        command = [sys.executable, "-m", "fanfold.simulator", "--port", "0", "--latency", "0.005"]
        with server([*command, "--faults", str(faults)]) as url:
            samples, evaluations, failures = _soaked(url, Path(folder), minutes * 60)
    yield slopes(samples, f"{evaluations:,} evaluations ({failures:,} failed on purpose) in {minutes:g} minutes")


def _soaked(url: str, folder: Path, seconds: float) -> tuple[list[dict[str, float]], int, int]:
    asked = model("openai/soak", base_url=f"{url}/v1", key="no-key", limits=Limits(), price=(1, 2))
    samples, evaluations, failures, number = [], 0, 0, 0
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        for evaluate, executor, trials in ((plain, "async:64", 2_000), (Mixed(asked), "processes:2", 60)):
            search: Genetic = Genetic(SPACE, population=16, steady=True)
            study = Study(search, evaluate, range(2), stop=MaxTrials(trials), seed=number, timeout=2.0)
            run = study.run(executor, ledger=folder / "soak.db", run=f"run-{number}", max_failures=None, progress=False)
            evaluations, failures = evaluations + run.progress.evaluations, failures + run.progress.failures
            run.ledger.close()
            number += 1
        del run, study
        samples.append({"minutes": (time.monotonic() - begun) / 60, **held()})
    return samples, evaluations, failures


def held() -> dict[str, float]:
    """What this process holds now."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "memory MB": resident() / 1e6,
        "descriptors": float(len(os.listdir("/proc/self/fd"))),  # noqa: PTH208 - a count
        "threads": float(len(os.listdir("/proc/self/task"))),  # noqa: PTH208
        "children": float(len(children)),
    }


def slopes(samples: Sequence[dict[str, float]], what: str) -> Table:
    """One line for each figure: its growth in an hour by least squares, with a 95 % interval."""
    later = [sample for sample in samples if sample["minutes"] >= WARM * samples[-1]["minutes"]]
    lines = []
    for name, tolerated in TOLERATED.items():
        slope, half = fitted([sample["minutes"] / 60 for sample in later], [sample[name] for sample in later])
        values = {"first": later[0][name], "last": later[-1][name], "an hour": slope, "at least": slope - half}
        shown = {column: Sampled((value,)) for column, value in values.items()}
        lines.append(Line(name, shown, Target("at least", tolerated), f"± {half:.2g}"))
    return Table(f"Soak: {what}, {len(later)} samples", lines)


def fitted(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """The slope of a line through the points, and half the width of its 95 % interval."""
    if len(xs) < 3 or len(set(ys)) == 1:
        return 0.0, 0.0
    slope, intercept = statistics.linear_regression(xs, ys)
    rest = sum((y - slope * x - intercept) ** 2 for x, y in zip(xs, ys)) / (len(xs) - 2)
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    return slope, 1.96 * math.sqrt(rest / spread)
