"""How long a resumed run takes to rebuild its search from the ledger before it evaluates anything new."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Line, Sizes, Table, Target, sampled, stopwatch

from fanfold import Case, Float, MaxTrials, Random, Space, Study

SPACE = Space(x=Float(0, 1), y=Float(0, 1))
#: When the evaluator was called: on resume, the first call marks the end of the replay.
_calls: list[float] = []


def measure(sizes: Sizes) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.db"
        _study(sizes.replayed).run(ledger=ledger, run="replayed").ledger.close()
        size = ledger.stat().st_size / 1e6
        samples = [_resume(ledger, sizes.replayed + repeat) for repeat in range(sizes.repeats)]
    line = Line("Random", sampled(samples), Target("replay s", 20.0), f"ledger of {size:.1f} MB")
    yield Table(f"Replay of {sizes.replayed} recorded trials, until the first new evaluation", [line])


def _study(trials: int) -> Study[Any]:
    return Study(Random(SPACE), evaluate, stop=MaxTrials(trials))


def _resume(ledger: Path, recorded: int) -> dict[str, float]:
    """Resume a run of so many trials with one more allowed."""
    _calls.clear()
    with stopwatch() as watch:
        started = time.perf_counter()
        run = _study(recorded + 1).run(ledger=ledger, run="replayed")
    run.ledger.close()
    if len(_calls) != 1 or run.progress.told != recorded + 1:
        raise RuntimeError(f"the resume evaluated {len(_calls)} times instead of once: {run.progress}")
    seconds = _calls[0] - started
    return {"replay s": seconds, "us per trial": seconds / recorded * 1e6, "CPU s": watch.cpu}


def evaluate(candidate: Any, case: Case) -> float:
    _calls.append(time.perf_counter())
    return float(candidate["x"])
