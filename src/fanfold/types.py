"""The values that travel through the engine: cases, trials, outcomes and results."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeAlias, TypeVar

C = TypeVar("C")

#: Whether model calls are answered from the ledger; `refresh` asks again, `offline` never asks.
CacheMode: TypeAlias = Literal["on", "off", "refresh", "offline"]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to score a candidate on.

    A case carries all randomness of an evaluation. Two evaluations of one candidate on one case give the same outcome,
    so candidates on the same cases are compared under the same luck. If `seed` is None, the study derives it from its
    own seed and the case's id.
    """

    id: str
    data: Any = None
    seed: int | None = None

    def rng(self) -> random.Random:
        """A fresh generator seeded by this case: the one source of randomness an evaluation should use."""
        if self.seed is None:
            raise ValueError(f"case {self.id!r} has no seed yet: a study gives it one, or pass seed= yourself")
        return random.Random(self.seed)


@dataclass(frozen=True, slots=True)
class Trial(Generic[C]):
    """A candidate that a strategy asked for, its number in the order of asking, and its origin.

    The origin (`Strategy.origin`) is stored for people and is not part of the evaluation: equal candidates of different
    origins are evaluated once.
    """

    number: int
    candidate: C
    origin: Any = None


@dataclass(frozen=True, slots=True)
class Objective:
    """What is searched for among the scores that an evaluator returns: `name`, if they have names; high or low.

    The engine always looks for high scores.  Where low ones are wanted, it works with the score times -1, and `natural`
    turns that back for people and programs.
    """

    name: str | None = None
    minimize: bool = False

    def natural(self, score: float | None) -> float | None:
        return score if score is None or not self.minimize else -score

    def natural_outcome(self, outcome: Outcome) -> Outcome:
        return replace(outcome, score=-outcome.score) if self.minimize and isinstance(outcome, Ok) else outcome


@dataclass(frozen=True, slots=True)
class Ok:
    """A finished evaluation: its score, JSON-like data worth keeping, and its cost.

    Higher scores are better, unless the study says `minimize=True`. Several scores are a dict of names and numbers; the
    study's `objective` says which one is searched for, and all are kept in the data, under the key `scores`.
    Score and cost are finite numbers, and the cost is at least 0. Data is stored as JSON, without NaN or infinity and
    up to 64 MiB; put large things into `Blob`s. Otherwise the evaluation is `Failed`.
    """

    score: float
    data: Any = None
    cost: float = 0.0

    @property
    def scores(self) -> dict[str, float]:
        """All scores by name, of an evaluator that returns several."""
        scores = self.data.get("scores") if isinstance(self.data, dict) else None
        return dict(scores) if isinstance(scores, dict) else {}


@dataclass(frozen=True, slots=True)
class Failed:
    """An evaluation without a score. `kind` is one word for programs, `message` one sentence for people.

    The engine's kinds are `error` (the evaluator raised), `timeout`, `worker-died`, `place-lost`, `bad-score` (None,
    NaN, infinite or not a number) and `bad-data` (data, a cost or a kind that cannot be stored).
    """

    kind: str
    message: str
    detail: str = ""
    cost: float = 0.0


Outcome: TypeAlias = Ok | Failed
#: The kind of failure of a candidate that a model was to write, and did not.
UNWRITTEN = "unwritten"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why a schedule settled a trial before it had seen every case, and the score it is given for the search."""

    reason: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Result(Generic[C]):
    """A finished trial, as a strategy is told it.

    `score` is None if a case failed, unless the study gives failures a score. `dropped` is the reason if the schedule
    gave up on the candidate early. Only complete results can be the best of a run.
    """

    trial: Trial[C]
    score: float | None
    outcomes: Mapping[str, Outcome]
    dropped: str | None = None

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def candidate(self) -> C:
        return self.trial.candidate

    @property
    def complete(self) -> bool:
        return self.score is not None and self.dropped is None

    @property
    def cost(self) -> float:
        return sum(outcome.cost for outcome in self.outcomes.values())

    @property
    def scores(self) -> dict[str, float]:
        """The mean of each named score over the cases, of an evaluator that returns several."""
        return mean_scores(outcome.scores for outcome in self.outcomes.values() if isinstance(outcome, Ok))

    @property
    def failures(self) -> dict[str, Failed]:
        return {case: outcome for case, outcome in self.outcomes.items() if isinstance(outcome, Failed)}


def mean_scores(cells: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each named score over the cells that have it."""
    values: dict[str, list[float]] = {}
    for cell in cells:
        for name, score in cell.items():
            values.setdefault(name, []).append(score)
    return {name: sum(scores) / len(scores) for name, scores in values.items()}


@dataclass(frozen=True, slots=True)
class CompleteResult(Result[C]):
    """A result with a score on every case, as the best of a run is."""

    score: float

    @classmethod
    def of(cls, result: Result[C]) -> CompleteResult[C]:
        if result.score is None:
            raise ValueError(f"trial {result.number} has no score")
        return cls(result.trial, result.score, result.outcomes, result.dropped)


class Blob:
    """A reference to bytes too large for a row, such as weights or images. The ledger stores them once, under their
    hash.

    `Blob.of(data)` makes one and `blob.read()` returns its bytes. A blob may appear anywhere inside a candidate or in
    `Ok.data`. Sending one to another process sends its bytes along, or where they are if both can read a store. A
    blob holds less than 1e9 bytes.
    """

    __slots__ = ("_load", "digest")

    def __init__(self, digest: str, load: Callable[[str], bytes]) -> None:
        self.digest = digest
        self._load = load

    @classmethod
    def of(cls, data: bytes) -> Blob:
        digest = hashlib.blake2b(data, digest_size=20).hexdigest()
        kept = data if type(data) is bytes else bytes(memoryview(data))  # a bytearray may change later
        return cls(digest, lambda digest: kept)

    def read(self) -> bytes:
        return self._load(self.digest)

    def place(self) -> Any:
        """Where a store has it, as a function that reads it there; None where it is not in a store."""
        place = getattr(self._load, "place", None)
        return None if place is None else place(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        travelling = getattr(self._load, "travelling", None)
        reference = None if travelling is None else travelling(self.digest)
        return (Blob.of, (self.read(),)) if reference is None else (Blob, (self.digest, reference))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Blob({self.digest!r})"
