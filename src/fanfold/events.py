"""Facts for watchers (progress displays, dashboards, logs).  Dropping every event changes no result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fanfold.types import Outcome, Result


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.  Counts are of the whole run, earlier parts of a resumed run included."""

    asked: int = 0
    told: int = 0
    #: Evaluations of told trials, and cases in a full row: what `MaxEvaluations` plans with.
    told_evaluations: int = 0
    cases: int = 1
    #: The same with one more for each candidate that a model had to write first: what `MaxCalls` plans with.
    told_calls: int = 0
    #: Evaluations that have finished, told or not, and how many of them failed.
    evaluations: int = 0
    failures: int = 0
    #: Evaluations answered from the ledger instead of being run.
    reused: int = 0
    cost: float = 0.0
    best: float | None = None
    #: Trials told since the best last improved.
    since_best: int = 0
    elapsed: float = 0.0

    @property
    def open(self) -> int:
        return self.asked - self.told

    @property
    def only_failures(self) -> bool:
        """Whether there were evaluations, and every one failed."""
        return 0 < self.evaluations == self.failures


@dataclass(frozen=True, slots=True)
class RunStarted:
    run_id: str
    ledger: str | None
    executor: str
    slots: int
    #: True while recorded trials are being replayed rather than evaluated.
    resumed: bool
    study: str = ""
    #: The settings that the run was started with, where it came from a file or the shell.
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Trials that were told before: they are told again in a replay.
    told: int = 0


@dataclass(frozen=True, slots=True)
class EvaluationFinished:
    trial: int
    case: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialTold:
    result: Result[Any]
    progress: Progress


@dataclass(frozen=True, slots=True)
class Ticked:
    """Comes about twice a second while a run works, so that displays need no timer of their own."""

    progress: Progress
    running: int
    queued: int
    #: What all the work waits for at the moment, since when and how long still; None where something moves.
    waiting: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence the user should read: a window too small for the slots, a worker replaced, a stop begun.

    `topic` is `parameters` where it is about what a model takes, and `outage` where no call gets on.
    """

    message: str
    topic: str = ""


@dataclass(frozen=True, slots=True)
class PersonAsked:
    """A person is asked something at the terminal, which is left to them until they are `done`."""

    done: bool


@dataclass(frozen=True, slots=True)
class WaveSent:
    """Model calls leave together, in the provider batch `tag`; waves are numbered by this process."""

    number: int
    model: str
    requests: int
    tag: str
    #: Whose calls they are: the trial, the case, and which of the evaluation's calls, counted from 0.
    calls: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class WaveAnswered:
    """The answers to a wave are here, `seconds` after it left."""

    number: int
    model: str
    requests: int
    tag: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BatchChanged:
    """A provider batch has come to another state: see `BatchRow`."""

    tag: str
    model: str
    state: str
    requests: int


@dataclass(frozen=True, slots=True)
class RunStopped:
    reason: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class RunConcluded:
    """The study has made its summary of a run that ended by itself."""

    run_id: str
    figures: Mapping[str, Any]


Event: TypeAlias = (
    RunStarted
    | EvaluationFinished
    | TrialTold
    | Ticked
    | Notice
    | PersonAsked
    | WaveSent
    | WaveAnswered
    | BatchChanged
    | RunStopped
    | RunConcluded
)
Watcher: TypeAlias = Callable[[Event], None]


def together(*watchers: Watcher | None) -> Watcher | None:
    """One watcher in place of several."""
    present = [watch for watch in watchers if watch is not None]

    def watch(event: Event) -> None:
        for each in present:
            each(event)

    return watch if present else None


def shielded(watch: Watcher | None) -> Watcher | None:
    """A watcher whose errors stay outside the run: the first one is shown as a warning and ends its watching."""
    if watch is None:
        return None
    broken = False

    def shield(event: Event) -> None:
        nonlocal broken
        if broken:
            return
        try:
            watch(event)
        except Exception as error:
            broken = True
            warnings.warn(f"the watcher {watch!r} failed and is left out from now on: {error!r}", stacklevel=2)

    return shield
