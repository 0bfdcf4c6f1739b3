"""What pages of a run are made of: trials by page, the history of a search, failures by cause, the timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fanfold.ledger.records import TrialRow


@dataclass(frozen=True, slots=True)
class TrialPage:
    """Some trials in an order, and the key after which the next follow; None where these are the last."""

    rows: tuple[TrialRow, ...]
    next: tuple[float, float, int] | None


@dataclass(frozen=True, slots=True)
class TrialOrigin:
    """Where a trial came from: its parents, how it was made of them, and what it came to."""

    trial: int
    parents: tuple[int, ...]
    by: str
    generation: int | None
    order: int | None
    score: float | None
    dropped: str | None


@dataclass(frozen=True, slots=True)
class History:
    """Told trials in the order of telling, as columns of equal length.

    `best` is the best complete score up to then. `evaluations`, `cost` and `seconds` are those of the run up to then.
    """

    order: list[int] = field(default_factory=list)
    trial: list[int] = field(default_factory=list)
    score: list[float | None] = field(default_factory=list)
    best: list[float | None] = field(default_factory=list)
    complete: list[bool] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, *values: Any) -> None:
        """Add a trial to all columns but `seconds`."""
        columns: tuple[list[Any], ...] = (self.order, self.trial, self.score, self.best)
        for column, value in zip((*columns, self.complete, self.evaluations, self.cost), values, strict=True):
            column.append(value)


@dataclass(slots=True)
class FailureGroup:
    """Failures of one cause: how many, when the first and the last ended, and some of their cells.

    A cell is the trial, the position of the case and its id. `traceback` is that of the first.
    """

    kind: str
    message: str
    count: int = 0
    first: float | None = None
    last: float | None = None
    traceback: str = ""
    cells: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, trial: int, position: int, case: str, ended: float | None, most: int) -> None:
        """Count a failure; the first `most` are named."""
        self.count += 1
        if len(self.cells) < most:
            self.cells.append((trial, position, case))
        if ended is not None:
            self.first = ended if self.first is None else min(self.first, ended)
            self.last = ended if self.last is None else max(self.last, ended)


@dataclass(frozen=True, slots=True)
class Span:
    """An evaluation on the slot it took, from `start` to `end` in seconds since the run began."""

    slot: int
    start: float
    end: float
    trial: int
    position: int
    failed: bool
    tries: int


@dataclass(frozen=True, slots=True)
class WorkSlots:
    """Which evaluations ran beside each other; `left_out` counts those that are not among the spans."""

    count: int = 0
    spans: tuple[Span, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Throughput:
    """How many evaluations and calls ended per second, and what had been paid, over equal parts of the run's time.

    `seconds` is where each part ends, counted from the beginning of the run.
    """

    seconds: tuple[float, ...] = ()
    evaluations: tuple[float, ...] = ()
    calls: tuple[float, ...] = ()
    cost: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Comment:
    """What a person wrote about a run, or about one of its trials."""

    id: int
    trial: int | None
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What somebody asks of a run from elsewhere, or (`question`) what the run asks of people.

    `taken` is when it was obeyed or answered; None: not yet.
    """

    id: int
    at: float
    what: str
    value: Any
    taken: float | None = None
