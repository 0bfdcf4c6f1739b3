"""What large ledgers cost: a resume of many trials, one small run beside them, and a list of many runs."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fanfold import Case, Float, MaxTrials, Random, Space, Study

SPACE = Space(x=Float(0, 1), y=Float(0, 1))


class Counting:
    """An evaluator that costs nothing. On resume, its first call ends the replay."""

    calls = 0
    first = 0.0  # CPU seconds of this process at the first call

    def __call__(self, candidate: Any, case: Case) -> float:
        if not self.calls:
            self.first = time.process_time()
        self.calls += 1
        return float(candidate["x"])


def searched(ledger: Path, name: str, trials: int) -> dict[str, float]:
    """Run up to so many trials; the CPU until the first evaluation, and for each of them."""
    counting, started = Counting(), time.process_time()
    run = Study(Random(SPACE), counting, stop=MaxTrials(trials)).run(ledger=ledger, run=name)
    run.ledger.close()
    per = (time.process_time() - started) / counting.calls * 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"resume CPU s": counting.first - started, "evaluated": counting.calls, "CPU us": per, "peak MB": peak}


def in_process(*words: object) -> dict[str, float]:
    """The same in a process of its own, which remembers nothing."""
    command = [sys.executable, str(Path(__file__)), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["without a word"])[-1][:150])
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def shell(*words: str) -> float:
    """The CPU seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fanfold", *words]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env={**os.environ, "NO_COLOR": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def large(folder: Path, trials: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    """Make a run of so many trials, resume it with one more, and look at a small run in the same file."""
    ledger, alone = folder / "large.db", folder / "alone.db"
    made = in_process(ledger, "large", trials)
    size = ledger.stat().st_size / trials
    resumed = [in_process(ledger, "large", trials + 1 + repeat) for repeat in range(repeats)]
    if any(sample["evaluated"] != 1 for sample in resumed):
        raise RuntimeError(f"a resume evaluated {[sample['evaluated'] for sample in resumed]} times instead of once")
    for path in (ledger, alone):
        in_process(path, "small", 100)
    shown = [_beside(("show", "small"), ledger, alone) for _ in range(repeats)]
    return {
        "made": [{"CPU us per evaluation": made["CPU us"], "bytes per evaluation": size, "peak MB": made["peak MB"]}],
        "resumed": [{"CPU s": sample["resume CPU s"], "peak MB": sample["peak MB"]} for sample in resumed],
        "shown": shown,
    }


def listed(folder: Path, runs: int, repeats: int) -> list[dict[str, float]]:
    many, alone = folder / "many.db", folder / "one.db"
    for path in (many, alone):
        in_process(path, "first", 5)
    copies(many, runs - 1)
    return [_beside(("runs",), many, alone) for _ in range(repeats)]


def _beside(words: Sequence[str], ledger: Path, alone: Path) -> dict[str, float]:
    """What a command costs with this ledger, and how much of that is due to what else is in the file."""
    with_others, without = (shell(*words, "--ledger", str(path)) for path in (ledger, alone))
    return {"CPU s": with_others, "more than alone, CPU s": with_others - without}


def copies(path: Path, count: int) -> None:
    """Add copies of the first run under other names, whatever columns this version has."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in names:
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            changed = {"id": "id + i", "name": "name || '-' || i", "created": "created - i"} if table == "run" else {}
            changed |= {"run": "run + i"} if "run" in columns else {}
            if changed and table in ("run", "run_case", "trial", "evaluation"):
                values = ", ".join(changed.get(column, column) for column in columns)
                db.execute(f"{numbers} INSERT INTO {table} SELECT {values} FROM {table}, n WHERE true")


if __name__ == "__main__":
    print(json.dumps(searched(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
