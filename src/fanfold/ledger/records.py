"""The rows of a ledger as values: what `RunView` gives to shell, report, conclusions and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fanfold.events import Progress
from fanfold.types import Objective


@dataclass(frozen=True, slots=True)
class RunHead:
    """A run in a list: its name, that of the run it belongs to, and what changes whenever something is written."""

    id: int
    name: str
    owner: str | None
    created: float
    updated: float
    status: str
    mark: int | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of a ledger.  Scores of rows are the engine's: `objective.natural(score)` is the evaluator's."""

    id: int
    name: str
    created: float
    updated: float
    elapsed: float
    status: str
    reason: str | None
    identity: Mapping[str, Any]
    meta: Mapping[str, Any]
    trials: int
    evaluations: int
    failures: int
    #: Of its evaluations, or where that is more of its model calls: a kill cuts off evaluations whose calls are paid.
    cost: float
    best: float | None
    #: Paid model calls of unknown price, which `cost` leaves out.
    unpriced: int = 0

    @property
    def objective(self) -> Objective:
        return Objective(self.identity.get("objective"), bool(self.identity.get("minimize")))

    @property
    def open_ended(self) -> bool:
        """Whether higher limits give more trials: a sweep has its candidates and no others."""
        return not str(self.identity.get("strategy")).startswith("Sweep")


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial.  `order` is its place in the order of telling, None while it is open."""

    number: int
    order: int | None
    score: float | None
    dropped: str | None
    cost: float | None
    evaluations: int | None
    failures: int
    candidate: Any
    origin: Any = None


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """An evaluation of a trial on a case.  `failure` is None where it succeeded; `reused` ones were not run."""

    trial: int
    position: int
    case: str
    score: float | None
    failure: str | None
    message: str | None
    detail: str | None
    cost: float | None
    started: float | None
    seconds: float | None
    tries: int | None
    reused: bool
    data: Any


@dataclass(frozen=True, slots=True)
class MatrixSlice:
    """Part of a run's matrix: a row of cells for each trial, in the order of `cases`.

    A cell is a score, the kind of a failure, or None where nothing is recorded.
    """

    trials: tuple[int, ...]
    cases: tuple[str, ...]
    cells: tuple[tuple[float | str | None, ...], ...]


@dataclass(frozen=True, slots=True)
class FailureKind:
    """All failures of one kind, with the first of them as an example."""

    kind: str
    count: int
    trial: int
    case: str
    message: str


@dataclass(frozen=True, slots=True)
class Timings:
    """How long the evaluations of a run took, in seconds; reused ones are left out.

    `quantiles` has the median, 90 % and 99 %.  `first` and `last` are when the first began and the last ended, in
    seconds since the epoch.
    """

    evaluations: int = 0
    busy: float = 0.0
    quantiles: Mapping[float, float] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A provider batch; `remote` is the provider's id.

    `state` is intent or submitted while it is open, then done, expired, cancelled, failed, or abandoned where it was
    never found at the provider.
    """

    tag: str
    run: str | None
    model: str
    endpoint: str
    state: str
    remote: str | None
    requests: int
    created: float
    note: str | None


@dataclass(frozen=True, slots=True)
class WaveRow:
    """A wave: the calls that left together in one batch, and what has come back of it so far."""

    number: int
    tag: str
    model: str
    state: str
    requests: int
    created: float
    answered: int
    #: From leaving to the last reply; None before the first.
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence for the user, and when it was said."""

    at: float
    text: str


@dataclass(slots=True)
class Metrics:
    """Counts of the calls of one run; `utilisation` is the share of its known rate limit that each model used."""

    calls: int = 0
    cached: int = 0
    shared: int = 0
    failed: int = 0
    retries: int = 0
    refused: int = 0
    unpriced: int = 0
    #: Tries that got no reply although they were sent, and what they may have cost at most.
    lost: int = 0
    at_risk: float = 0.0
    utilisation: dict[str, float] = field(default_factory=dict)

    def add(self, tries: int, priced: bool) -> None:
        self.calls += 1
        self.retries += max(0, tries - 1)
        self.unpriced += not priced

    def plus(self, earlier: Metrics) -> Metrics:
        names = ("calls", "cached", "shared", "failed", "retries", "refused", "unpriced", "lost", "at_risk")
        sums = {name: getattr(self, name) + getattr(earlier, name) for name in names}
        return Metrics(**sums, utilisation={**earlier.utilisation, **self.utilisation})


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """A run's paid calls to one model.

    `cost` sums the calls whose price is known, None where that is none; `unpriced` counts the others.  `latency` has
    the quantiles of calls that did not travel in a batch, in seconds.
    """

    model: str
    calls: int
    batched: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    unpriced: int
    retries: int
    seconds: float
    latency: Mapping[float, float]

    @property
    def simulated(self) -> bool:
        return self.model.partition("/")[0] == "simulated"


@dataclass(frozen=True, slots=True)
class CallRow:
    """A model call of a cell.  `request` is the body as it was sent; `cost` is None where the price is not known.

    A `cached` one was paid for by another evaluation, or by an earlier try of this one; its times are those of then.
    One that was asked `again` after the evaluation (`--cache refresh` or `off`) has only its request in common with it:
    the ledger holds the latest reply.
    """

    model: str
    request: Any
    text: str
    finish: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    started: float
    seconds: float
    tries: int
    cached: bool
    batch: str | None
    again: bool = False


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """A run's provider batches to one model in one state."""

    model: str
    state: str
    batches: int
    requests: int


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a run asked of models; empty for a run that asked none."""

    models: tuple[ModelCalls, ...] = ()
    batches: tuple[BatchCounts, ...] = ()
    counts: Metrics = field(default_factory=Metrics)


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """What was written since a mark: pass `mark` as `since` to get what follows.

    Trials were asked, told or amended.  Every row has its present values.  With `more`, the limit cut the list short.
    """

    mark: int
    more: bool
    status: str
    progress: Progress
    trials: tuple[TrialRow, ...]
    evaluations: tuple[EvaluationRow, ...]
    batches: tuple[BatchRow, ...]
    notes: tuple[Note, ...]
