"""How long a resumed run takes until it evaluates something new: from a checkpoint, and by replaying its ledger."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from measure import Line, Sizes, Table, Target, sampled

from fanfold import Case, Float, MaxTrials, Random, Space, Study
from fanfold.ledger import Commits, Ledger, RunJournal
from fanfold.ledger.proof import Proof
from fanfold.snapshots import Checkpoint

SPACE = Space(x=Float(0, 1), y=Float(0, 1))
#: When the evaluator was called: on resume, the first call marks the end of the replay.
_calls: list[float] = []
#: The most trials of a real run, to which SQL adds the others; its checkpoint is then made to be of all of them.
REAL = 1000
GROWN = {
    "trial": "1, i, '{\"x\":0.' || abs(random()) || ',\"y\":0.5}', max(0, i - 255), i, i / 1e7, NULL, 1, 0.0, NULL",
    "evaluation": "1, i, 0, randomblob(16), NULL, i / 1e7, NULL, NULL, NULL, 0.0, 1.7e9, 0.001, 1, 0",
}


def measure(sizes: Sizes) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.db"
        _study(sizes.replayed).run(ledger=ledger, run="it").ledger.close()
        lines = [
            Line("replayed from the first trial", _resumed(ledger, sizes, sizes.replayed, "replay")),
            Line("from its checkpoint", _resumed(ledger, sizes, sizes.replayed)),
        ]
        grown = Path(folder) / "grown.db"
        grow(grown, sizes.remembered)
        size = grown.stat().st_size / 1e6
        values = _resumed(grown, sizes, sizes.remembered)
        note = f"ledger of {size:.0f} MB"
        lines.append(Line(f"{sizes.remembered:,} trials, from a checkpoint", values, Target("CPU s", 3.0), note))
    yield Table(f"Resume of {sizes.replayed:,} recorded trials, until the first new evaluation", lines)


def grow(path: Path, count: int) -> None:
    """Write a run of so many trials, most of them by SQL, with the checkpoint that it would have."""
    real = min(REAL, count // 2)
    _study(real).run(ledger=path, run="it").ledger.close()
    numbers = f"WITH RECURSIVE n(i) AS (SELECT {real} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count})"
    with closing(sqlite3.connect(path)) as db:
        for table, values in GROWN.items():
            db.execute(f"{numbers} INSERT INTO {table} SELECT {values} FROM n WHERE i < {count}")
        db.commit()
        checkpoint = Checkpoint.opened(db.execute("SELECT state FROM snapshot").fetchone()[0])
        assert checkpoint is not None
        checkpoint.told = checkpoint.asked = checkpoint.settled = count
        checkpoint.tally |= dict.fromkeys(("asked", "told", "told_evaluations", "told_calls", "evaluations"), count)
        with Ledger(path) as ledger:
            checkpoint.record = Proof(RunJournal(ledger, 1, Commits(ledger))).digest(count, count, count)
        db.execute("UPDATE snapshot SET told = ?1, asked = ?1, state = ?2", (count, checkpoint.sealed()))
        db.commit()


def _study(trials: int) -> Study[Any]:
    return Study(Random(SPACE), evaluate, stop=MaxTrials(trials))


def _resumed(ledger: Path, sizes: Sizes, recorded: int, *how: str) -> dict[str, Any]:
    """Resume a run of so many trials with one more allowed, in a process of its own."""
    samples = []
    for _ in range(sizes.repeats):
        copy = ledger.with_name("copy.db")
        copy.write_bytes(ledger.read_bytes())
        # By its name: what `__main__` evaluates by is another evaluator.
        command = [sys.executable, "-c", f"import replay; replay.main({str(copy)!r}, {recorded}, {bool(how)})"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parent)
        samples.append(json.loads(done.stdout))
        copy.unlink()
    return dict(sampled(samples))


def main(ledger: str, recorded: int, replay: bool) -> None:
    """Resume a run with one more trial allowed, and print what that took."""
    began, before, memory = time.perf_counter(), time.process_time(), _megabytes()
    run = _study(recorded + 1).run(ledger=ledger, run="it", replay=replay)
    cpu = time.process_time() - before
    run.ledger.close()
    if len(_calls) != 1 or run.progress.told != recorded + 1:
        raise RuntimeError(f"the resume evaluated {len(_calls)} times instead of once: {run.progress}")
    each = cpu / recorded * 1e6
    row = {"CPU s": cpu, "replay s": _calls[0] - began, "us per trial": each, "more MB": _megabytes() - memory}
    print(json.dumps(row))


def _megabytes() -> float:
    """The most memory that this process has used."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def evaluate(candidate: Any, case: Case) -> float:
    _calls.append(time.perf_counter())
    return float(candidate["x"])
