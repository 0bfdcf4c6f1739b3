"""Small searches whose evaluator leaves a trace of its own: one line per finished one, in a file."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fanfold import Case, Float, Genetic, Int, MaxTrials, Ok, Racing, Random, Space, Strategy, Study
from fanfold.encoding import encode
from fanfold.schedule import Schedule
from fanfold.schedules import AllCases

CASES = 4
SPACE = Space(x=Float(-1.0, 1.0), y=Float(-1.0, 1.0), n=Int(0, 3))


def score_of(candidate: Any, case: Case) -> Ok:
    """Between 0 and 1, different on each case, and the same whenever it is computed."""
    noise = random.Random(f"{case.seed} {encode(candidate)}").uniform(-0.05, 0.05)
    distance = (candidate["x"] - 0.3) ** 2 + (candidate["y"] + 0.2) ** 2 + 0.1 * candidate["n"]
    score = max(0.0, min(1.0, 1.0 - distance / 4 + noise))
    return Ok(score, data={"case": case.id, "noise": noise}, cost=0.001)


def note(side: str, candidate: Any, case: Case) -> None:
    """Append one line in one write, so that lines of several processes never mix."""
    file = os.open(side, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, f"{case.id}\t{encode(candidate)}\n".encode())
    finally:
        os.close(file)


def pause(case: Case, candidate: Any) -> float:
    """Two to eight milliseconds, uneven, so that evaluations overtake each other."""
    return 0.002 + 0.006 * random.Random(f"{case.id} {encode(candidate)}").random()


@dataclass(frozen=True)
class Plain:
    """Evaluates in a plain function."""

    side: str | None
    fingerprint: str = "searches"

    def __call__(self, candidate: Any, case: Case) -> Ok:
        found = score_of(candidate, case)
        if self.side is not None:
            time.sleep(pause(case, candidate))
            note(self.side, candidate, case)
        return found


@dataclass(frozen=True)
class Coroutine:
    """Evaluates in a coroutine."""

    side: str
    fingerprint: str = "searches"

    async def __call__(self, candidate: Any, case: Case) -> Ok:
        found = score_of(candidate, case)
        await asyncio.sleep(pause(case, candidate))
        note(self.side, candidate, case)
        return found


STRATEGIES: dict[str, Callable[[], Strategy[Any]]] = {
    "random": lambda: Random(SPACE),
    "genetic": lambda: Genetic(SPACE, population=12),
    "steady": lambda: Genetic(SPACE, population=12, steady=True),
}
SCHEDULES: dict[str, Callable[[], Schedule]] = {"all": AllCases, "racing": lambda: Racing(step=1, error=0.2)}


def search(
    strategy: str, schedule: str, evaluate: Callable[..., Any], *, in_order: bool = True, trials: int = 60
) -> Study[Any]:
    return Study(
        STRATEGIES[strategy](),
        evaluate,
        cases=range(CASES),
        schedule=SCHEDULES[schedule](),
        stop=MaxTrials(trials),
        seed=7,
        window=12,
        in_order=in_order,
    )
