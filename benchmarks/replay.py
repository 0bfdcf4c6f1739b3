"""How long a resumed run takes to rebuild its search from the ledger before it evaluates anything new."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from fanfold import Case, Float, Genetic, MaxTrials, Random, Space, Strategy, Study
from measure import Line, Sizes, Table, Target, sampled

SPACE = Space(x=Float(0, 1), y=Float(0, 1))
#: When the evaluator was called: on resume, the first call marks the end of the replay.
_calls: list[float] = []


def measure(sizes: Sizes) -> list[Table]:
    lines = [
        _line("Random", Random(SPACE), sizes, Target("replay s", 20.0)),
        _line("Genetic steady", Genetic(SPACE, steady=True), sizes, None),
    ]
    return [Table(f"Replay of {sizes.replayed} recorded trials, until the first new evaluation", lines)]


def _line(name: str, strategy: Strategy[Any], sizes: Sizes, target: Target | None) -> Line:
    with tempfile.TemporaryDirectory() as folder:
        ledger, trials = Path(folder) / "ledger.db", sizes.replayed
        Study(strategy, evaluate, stop=MaxTrials(trials)).run(ledger=ledger, run="replayed").ledger.close()
        size = ledger.stat().st_size
        samples = []
        for _ in range(sizes.repeats if target else 1):
            samples.append(_resume(strategy, ledger, trials + 1))
            trials += 1
    return Line(name, sampled(samples), target, f"ledger {size / 1e6:.1f} MB")


def _resume(strategy: Strategy[Any], ledger: Path, trials: int) -> dict[str, float]:
    _calls.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    run = Study(strategy, evaluate, stop=MaxTrials(trials)).run(ledger=ledger, run="replayed")
    replayed = _calls[0] - wall
    run.ledger.close()
    if len(_calls) != 1 or run.progress.told != trials:
        raise RuntimeError(f"the resume evaluated {len(_calls)} times instead of once: {run.progress}")
    return {"replay s": replayed, "us per trial": replayed / trials * 1e6, "CPU s": time.process_time() - cpu}


def evaluate(candidate: Any, case: Case) -> float:
    _calls.append(time.perf_counter())
    return float(candidate["x"])
