"""The values that travel through the engine: cases, trials, outcomes and results."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

C = TypeVar("C")

#: Whether model calls are answered from the ledger; `refresh` asks again, `offline` never asks.
CacheMode: TypeAlias = Literal["on", "off", "refresh", "offline"]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to score a candidate on.

    A case carries every source of randomness of an evaluation: two evaluations of one candidate on one case give the
    same outcome, so candidates compared on the same cases are compared under the same luck.  A `seed` left at None is
    derived by the study from its own seed and the case's id.
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
    """A candidate that a strategy asked for, its number in the order of asking, and what the strategy says it is from.

    The origin (`Strategy.origin`) is kept for people, and no part of what is evaluated: equal candidates of different
    origins are evaluated once.
    """

    number: int
    candidate: C
    origin: Any = None


@dataclass(frozen=True, slots=True)
class Ok:
    """A finished evaluation: its score (higher is better), anything JSON-like worth keeping, and what it cost.

    Score and cost are finite numbers, the cost not below 0.  Data is kept as JSON: no NaN or infinity, and no more than
    64 MiB; large things belong into `Blob`s.  Otherwise the evaluation is `Failed`.
    """

    score: float
    data: Any = None
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """An evaluation that gave no score.  `kind` is one word for programs, `message` one sentence for people.

    Kinds the engine gives: `error` (the evaluator raised), `timeout`, `worker-died`, `bad-score` (None, NaN, infinite
    or not a number), `bad-data` (data, a cost or a kind that cannot be kept).
    """

    kind: str
    message: str
    detail: str = ""
    cost: float = 0.0


Outcome: TypeAlias = Ok | Failed


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why a schedule settled a trial before it had seen every case, and the score it is given for the search."""

    reason: str
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Result(Generic[C]):
    """A finished trial: what the strategy is told.

    `score` is None when a case failed (unless the study gives failures a score); `dropped` holds the reason when the
    schedule gave up on the candidate early.  Only complete results can be the best of a run.
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
    def failures(self) -> dict[str, Failed]:
        return {case: outcome for case, outcome in self.outcomes.items() if isinstance(outcome, Failed)}


class Blob:
    """A reference to bytes too big for a row (weights, images), kept once in the ledger under their hash.

    `Blob.of(data)` makes one; `blob.read()` gives the bytes back.  Blobs may stand anywhere inside a candidate or in
    `Ok.data`.  Sending one to another process sends its bytes along.  One holds less than 1e9 bytes.
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Blob.of, (self.read(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Blob({self.digest!r})"
