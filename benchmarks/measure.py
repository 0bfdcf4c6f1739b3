"""What the benchmarks share: samples, targets, tables as text and JSON, and a description of the machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sqlite3
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGES = ("fanfold", "msgspec", "cloudpickle", "optuna", "joblib", "dask", "distributed", "ray", "torch")


@dataclass(frozen=True)
class Sizes:
    """How much work each section does."""

    repeats: int
    #: Evaluations per run where the overhead is measured: of coroutine functions, and of the others.
    coroutines: int
    calls: int
    #: Trials and mean seconds of a sleeping evaluation (more trials where there is a target: the tail at the end of a
    #: run, when slots idle for want of work, must not decide); the same for one that keeps a core busy.
    sleeps: int
    sleeps_with_target: int
    sleep: float
    spins: int
    spin: float
    replayed: int
    remembered: int
    peer_evaluations: int


FULL = Sizes(7, 20_000, 5_000, 2_000, 4_000, 0.100, 600, 0.010, 100_000, 1_000_000, 400)
QUICK = Sizes(3, 5_000, 2_000, 240, 1_200, 0.100, 200, 0.010, 100_000, 200_000, 400)
TINY = Sizes(1, 60, 20, 40, 40, 0.002, 8, 0.002, 300, 1_000, 8)


@dataclass(frozen=True)
class Sampled:
    """The samples of one quantity."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """From the least to the greatest sample, as a share of the median."""
        return (max(self.samples) - min(self.samples)) / self.median if self.median else 0.0

    def json(self) -> dict[str, Any]:
        return {"median": self.median, "spread": self.spread, "samples": list(self.samples)}

    def __str__(self) -> str:
        text = f"{self.median:.3g}" if abs(self.median) < 100 else f"{self.median:.0f}"
        return text if len(self.samples) == 1 else f"{text} ±{self.spread / 2:.0%}"


@dataclass(frozen=True)
class Target:
    """What the median of one column should be."""

    column: str
    limit: float
    at_most: bool = True

    def met(self, values: Mapping[str, Sampled]) -> bool:
        median = values[self.column].median
        return median <= self.limit if self.at_most else median >= self.limit

    def __str__(self) -> str:
        return f"{self.column} {'<=' if self.at_most else '>='} {self.limit:g}"


@dataclass(frozen=True)
class Line:
    """One line of a table: what was measured, its values by column, and what they should be."""

    name: str
    values: Mapping[str, Sampled] = field(default_factory=dict)
    target: Target | None = None
    note: str = ""

    @property
    def missed(self) -> bool:
        return self.target is not None and not self.target.met(self.values)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return self.note
        return f"{self.target}: {'MISSED' if self.missed else 'met'}{'; ' if self.note else ''}{self.note}"

    def json(self) -> dict[str, Any]:
        values = {column: sampled.json() for column, sampled in self.values.items()}
        target = None if self.target is None else {"target": str(self.target), "met": not self.missed}
        return {"name": self.name, "values": values, "note": self.note, **(target or {})}


@dataclass(frozen=True)
class Table:
    """The lines of one comparison."""

    title: str
    lines: Sequence[Line]

    def json(self) -> dict[str, Any]:
        return {"title": self.title, "lines": [line.json() for line in self.lines]}

    def __str__(self) -> str:
        columns = list(dict.fromkeys(column for line in self.lines for column in line.values))
        rows = [["", *columns, ""]]
        for line in self.lines:
            cells = [str(line.values[column]) if column in line.values else "-" for column in columns]
            rows.append([line.name, *cells, line.verdict])
        widths = [max(len(row[index]) for row in rows) for index in range(len(columns) + 1)]
        text = [f"  {row[0]:<{widths[0]}}  {_right(row[1:-1], widths[1:])}  {row[-1]}".rstrip() for row in rows]
        return "\n".join([self.title, *text])


def _right(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))


@dataclass
class Stopwatch:
    """Seconds of wall clock and of this process's CPU, all threads together."""

    wall: float = 0.0
    cpu: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time a block; read the watch after it."""
    watch, wall, cpu = Stopwatch(), time.perf_counter(), time.process_time()
    yield watch
    watch.wall, watch.cpu = time.perf_counter() - wall, time.process_time() - cpu


def sampled(samples: Sequence[Mapping[str, float]]) -> dict[str, Sampled]:
    """Columns of samples from one mapping per repeat."""
    return {column: Sampled(tuple(sample[column] for sample in samples)) for column in samples[0]}


def save_tables(tables: Iterable[Table], where: Mapping[str, Any], path: Path, strict: bool, **facts: Any) -> int:
    """Print each table as it is done and save them all; 1 only when `strict` and a target was missed."""
    done = []
    for table in tables:
        print(f"\n{table}", flush=True)
        done.append(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"machine": where, **facts, "tables": [table.json() for table in done]}
    path.write_text(json.dumps(report, indent=1) + "\n")
    missed = [line.name for table in done for line in table.lines if line.missed]
    print(f"\n{len(missed)} target(s) MISSED: {'; '.join(missed)}" if missed else "\nevery target met")
    print(f"written to {path}")
    return 1 if missed and strict else 0


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The finished cells of a benchmark, a line of JSON each."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Write down a finished cell, so that a run that is started again does not repeat it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lines:
        lines.write(json.dumps(row) + "\n")


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "processor": _processor(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "versions": versions,
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def some_of(sections: Collection[str]) -> Callable[[str], list[str]]:
    """For an option that takes names of sections, separated by commas."""

    def names(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",") if name.strip()]
        for name in chosen:
            if name not in sections:
                from fanfold.errors import nearest  # here, because those who measure other libraries do without us

                raise argparse.ArgumentTypeError(f"there is no section {name!r}{nearest(name, sections)}")
        return chosen

    return names
