"""The running counts of a run, and its best result."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.events import Progress
from fanfold.types import UNWRITTEN, Failed, Outcome, Result


@dataclass(slots=True)
class Tally:
    """The running counts of a run, and its best result."""

    asked: int = 0
    told: int = 0
    told_evaluations: int = 0
    told_calls: int = 0
    evaluations: int = 0
    failures: int = 0
    reused: int = 0
    cost: float = 0.0
    since_best: int = 0
    best: Result[Any] | None = None
    #: A digest of every tell so far, each on top of the one before.
    trace: bytes = bytes(16)

    def count(self, outcome: Outcome) -> None:
        self.evaluations += 1
        self.failures += isinstance(outcome, Failed)
        self.cost += outcome.cost

    def tell(self, result: Result[Any], text: str, current: Result[Any] | None = None) -> None:
        """Count a told trial; `current` is what it came to since, where failures of it were evaluated again."""
        self.told += 1
        self.told_evaluations += len(result.outcomes)
        self.told_calls += _calls(result)
        self.since_best += 1
        line = f"{result.number}\t{text}\t{result.score!r}\t{result.dropped}\n".encode()
        self.trace = hashlib.blake2b(self.trace + line, digest_size=16).digest()
        if current is not None:
            self.failures += len(current.failures) - len(result.failures)
            self.cost += current.cost - result.cost
            result = current
        if result.complete and (self.best is None or (result.score or 0.0) > (self.best.score or 0.0)):
            self.best, self.since_best = result, 0

    def save(self, open_outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The counts as data, without those of evaluations of open trials: a resume counts these again."""
        state = {name: getattr(self, name) for name in _SAVED}
        state["evaluations"] -= len(open_outcomes)
        state["failures"] -= sum(isinstance(outcome, Failed) for outcome in open_outcomes)
        state["cost"] = max(0.0, math.fsum([self.cost, *(-outcome.cost for outcome in open_outcomes)]))
        return {**state, "best": None if self.best is None else self.best.number}

    @classmethod
    def load(cls, state: Mapping[str, Any], reused: int, best: Result[Any] | None) -> Tally:
        return cls(**{name: state[name] for name in _SAVED}, reused=reused, best=best)

    def progress(self, cases: int, elapsed: float) -> Progress:
        return Progress(
            asked=self.asked,
            told=self.told,
            told_evaluations=self.told_evaluations,
            told_calls=self.told_calls,
            cases=cases,
            evaluations=self.evaluations,
            failures=self.failures,
            reused=self.reused,
            cost=self.cost,
            best=None if self.best is None else self.best.score,
            since_best=self.since_best,
            elapsed=elapsed,
        )


#: What is kept of a tally; how many evaluations were reused is counted in the ledger.
_SAVED = (
    *("asked", "told", "told_evaluations", "told_calls", "evaluations", "failures"),
    *("cost", "since_best", "trace"),
)


def _calls(result: Result[Any]) -> int:
    """One for every evaluation, and one for a candidate that a model had to write; if it did not, nothing else ran."""
    origin = result.trial.origin
    ran = sum(not (isinstance(outcome, Failed) and outcome.kind == UNWRITTEN) for outcome in result.outcomes.values())
    return ran + bool(isinstance(origin, Mapping) and origin.get("written"))
