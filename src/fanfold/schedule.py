"""What a schedule is: the decision which cases a trial runs next, and when its row is settled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

from fanfold.types import Case, Dropped, Outcome, Result, Trial

Plan: TypeAlias = Generator[Sequence[Case], Sequence[Outcome], "Dropped | None"]


class Schedule(ABC):
    """Decides which cases a trial runs next. Pure, like a strategy, and independent of the domain.

    `plan` is a generator, one per trial, made when the trial is asked. It yields the cases to run now, receives their
    outcomes in the same order once all have arrived, and returns None (the row is complete) or `Dropped`. To wait for
    other trials, it yields an empty sequence. It is then resumed with an empty answer after any other row moved, and
    after `idle`, which is called when nothing runs, nothing more is asked, and rows still wait.

    A run gives the same result whatever the timing. So a plan may use only what was told before it was made, its own
    outcomes and, when it waits, the complete outcomes of a fixed group of trials. It never uses who arrived first.
    Higher scores are better: of a study that minimises, it sees them times -1.
    """

    #: Whether plans depend on what was told or on other trials; a schedule that does not can be taken over mid-run.
    remembers: bool = True

    def begin(self, seed: int) -> None:  # noqa: B027 - most schedules need no randomness
        """Called once, before the first plan, with a seed of this run."""

    def mirrored(self) -> Schedule:
        """The schedule for a study that minimises, whose scores the engine counts as negatives."""
        return self

    @abstractmethod
    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        """The path of one trial through the cases."""

    def tell(self, result: Result[Any]) -> None:  # noqa: B027
        """Learn from a settled trial, in the order in which the strategy is told."""

    def idle(self) -> None:  # noqa: B027
        """Nothing can move until waiting rows are released: decide with the results so far."""
