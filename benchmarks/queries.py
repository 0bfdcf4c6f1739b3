"""How long the queries of a small run take in a file that other runs have filled."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import Line, Sizes, Table, Target, sampled

from fanfold import Case, RunView, Study, Sweep

TRIALS, CASES = 20, 5
#: One run in a hundred evaluations of the large one: 10,000 beside a million.
RUNS = 100
#: What people look at, as commands of the shell.
COMMANDS = ("runs", "show small", "show last", "compare small small", "export small", "report small")
QUERIES: dict[str, Callable[[RunView], object]] = {
    "open": lambda view: RunView.open(view.ledger, "small"),
    "info": lambda view: view.info,
    "status": lambda view: view.status,
    "progress": lambda view: view.progress(),
    "cases": lambda view: view.cases(),
    "siblings": lambda view: view.siblings(),
    "notes": lambda view: view.notes(),
    "trials, best first": lambda view: list(view.trials(order="best")),
    "lineage": lambda view: view.lineage(3),
    "results": lambda view: list(view.results()),
    "evaluations": lambda view: list(view.evaluations()),
    "matrix": lambda view: view.matrix(range(TRIALS)),
    "failures": lambda view: view.failures(),
    "timings": lambda view: view.timings(),
    "calls": lambda view: view.calls(),
    "costs": lambda view: view.costs(),
    "batches": lambda view: view.batches(),
    "waves": lambda view: view.waves(),
    "changes": lambda view: view.changes(0),
}
#: One run of others with as many trials, evaluations, calls, payments, batches and commits as are asked for.
FOREIGN = """
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count})
    INSERT INTO {table} SELECT {values} FROM n
"""
TABLES = {
    "trial": "2, i, '1', 0, i, 1.0, NULL, 1, 0.0, NULL",
    "evaluation": "2, i, 0, randomblob(16), NULL, 1.0, NULL, NULL, NULL, 0.0, 1.0, 0.1, 1, 0",
    "call": "randomblob(16), 2, 'm', '{{}}', '{{}}', 1, 1, 0.1, 1.0, 0.1, 1, NULL",
    "payment": "NULL, 2, randomblob(16), 'm', 0.1, 1, 1, 0, 0, 1.0, 0.1, 1, NULL, NULL",
    "batch": "'t' || i, 2, 'm', 'e', 'done', 'r', 1, 1.0 + i, NULL",
    "change": "2, i, 1.0, '[]', '[]', '[]'",
}


def measure(sizes: Sizes) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        Study(Sweep(range(TRIALS)), evaluate, cases=range(CASES)).run(ledger=path, run="small").ledger.close()
        fill(path, sizes.remembered)
        size = path.stat().st_size / 1e6
        with RunView.open(path, "small") as view:
            lines = [
                Line(name, sampled([_timed(query, view) for _ in range(sizes.repeats)]), Target("ms", 5.0))
                for name, query in QUERIES.items()
            ]
        yield Table(
            f"A run of {TRIALS * CASES} evaluations beside {sizes.remembered:,} of others ({size:.0f} MB)", lines
        )
        runs = add_runs(path, sizes.remembered // RUNS)
        shown = [
            Line(
                f"fanfold {command}",
                sampled([_looked(command, path) for _ in range(sizes.repeats)]),
                Target("CPU s", 0.2),
            )
            for command in COMMANDS
        ]
        yield Table(f"The same file with {runs:,} runs more, beyond the start of Python", shown)


def add_runs(path: Path, count: int) -> int:
    """Copies of the small run, by SQL."""
    columns = {"run_case": "position, id, seed, data", "trial": "number, candidate, asked_after, told, score, dropped"}
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count + 10})"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        head = "updated, elapsed, status, reason, identity, meta FROM run, n WHERE id = 1"
        db.execute(f"{numbers} INSERT INTO run SELECT i, 'run-' || i, created + i, {head}")
        for table, names in columns.items():
            db.execute(f"{numbers} INSERT INTO {table} (run, {names}) SELECT i, {names} FROM {table}, n WHERE run = 1")
    return count


def _looked(command: str, path: Path) -> dict[str, float]:
    from click.testing import CliRunner

    from fanfold.cli import cli

    name, *names = command.split()
    output = ["-o", str(path.with_name("out.csv"))] if name in ("export", "report") else []
    began = time.process_time()
    result = CliRunner().invoke(cli, [name, *names, *output, "--ledger", str(path)])
    if result.exit_code:
        raise RuntimeError(f"{command}: {result.output}")
    return {"CPU s": time.process_time() - began}


def fill(path: Path, count: int) -> None:
    """Add a large run to a ledger."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO run VALUES (2, 'large', 1.0, 1.0, 0, 'finished', NULL, '{}', '{}')")
        for table, values in TABLES.items():
            db.execute(FOREIGN.format(count=count, table=table, values=values.format()))


def _timed(query: Callable[[RunView], object], view: RunView) -> dict[str, float]:
    started = time.perf_counter()
    query(view)
    return {"ms": (time.perf_counter() - started) * 1e3}


def evaluate(candidate: int, case: Case) -> float:
    return float(candidate)
