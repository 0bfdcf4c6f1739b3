"""Makes the failed evaluations of a run again, before its search continues (ADR 13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fanfold.errors import ConfigError
from fanfold.events import Progress
from fanfold.ledger import Insert, RunJournal
from fanfold.ledger.commits import Then
from fanfold.schedule import Schedule
from fanfold.search_loop import Cell, Rules, SearchLoop
from fanfold.strategy import Strategy
from fanfold.tally import Tally
from fanfold.types import Outcome, Result, Trial


class Refill(SearchLoop[Any]):
    """A search that asks for nothing new: its cells are the failed ones of a run.

    The search itself is not told again: what it asked later it asked because of what it was told.
    """

    def __init__(
        self, strategy: Strategy[Any], schedule: Schedule, rules: Rules, journal: RefillJournal, cells: list[Cell[Any]]
    ) -> None:
        tally = Tally(asked=journal.recorded, told=journal.recorded_told)
        super().__init__(strategy, schedule, rules, journal, tally=tally)
        self._refill = journal
        self._cells = cells
        self._missing = Counter(cell.trial.number for cell in cells)

    def start(self, reopened: Iterable[Trial[Any]] = (), waits: bool = False) -> list[Cell[Any]]:
        return self._take()

    def arrive(self, cell: Cell[Any], outcome: Outcome) -> list[Cell[Any]]:
        self.tally.count(outcome)
        self._missing[cell.trial.number] -= 1
        if not self._missing[cell.trial.number] and cell.trial.number in self._refill.told_numbers:
            outcomes = self._refill.ledger.outcomes(self._refill.run, cell.trial.number)
            named = {self.rules.cases[position].id: outcome for position, outcome in outcomes.items()}
            self._refill.amended(Result(cell.trial, self.rules.score(outcomes.values()), named))
        return []

    def idle(self) -> list[Cell[Any]]:
        return []

    def save(self, least: int = 1) -> None:
        """The search is as it was."""

    def check(self, progress: Progress | None = None) -> None:
        """No stopping rule applies: the user asked for this pass."""


class RefillJournal(RunJournal):
    """Replaces failed outcomes, and keeps those that the search has already used."""

    def __init__(self, journal: RunJournal, schedule: Schedule) -> None:
        super().__init__(journal.ledger, journal.run, journal.commits)
        self.told_numbers = set(self.script())
        # Rows that are compared with each other have had their effect before they are told.
        self._all_count = schedule.remembers
        self._spent: dict[tuple[int, int], float] = {}

    def failed_cells(
        self,
        kinds: Collection[str] | None,
        candidate: Callable[[int, Any], Any],
        rules: Rules,
        *,
        named_here: bool = True,
    ) -> list[Cell[Any]]:
        """The cells to evaluate again: those that failed (with one of these kinds), except those of dropped trials.

        `candidate` gives that of a trial by its number and its recorded value.
        Kinds that were `named_here`, and not for a run that this one belongs to, must be among those that failed.
        """
        rows = self.failed_rows()
        known = sorted({row[2] for row in rows})
        if named_here and rows and kinds is not None and not set(kinds) & set(known):
            raise ConfigError(f"no evaluation of this run failed with {', '.join(kinds)}; known: {', '.join(known)}")
        cells = []
        for number, position, failure, cost, text, origin in rows:
            if kinds is None or failure in kinds:
                self._spent[number, position] = cost
                trial = Trial(number, candidate(number, self.ledger.value(text)), self.ledger.origin(origin))
                previous = self.ledger.outcomes(self.run, number).get(position - 1) if position else None
                cells.append(Cell(trial, text, position, rules.cases[position], previous))
        return cells

    def recall(self, trial: int) -> Mapping[int, Outcome]:
        return {}

    def evaluated(
        self,
        trial: int,
        position: int,
        key: bytes,
        outcome: Outcome,
        times: tuple[float, float, int],
        reused: bool,
        then: Then,
    ) -> None:
        if self._all_count or trial in self.told_numbers:
            self.commits.put(Insert.SUPERSEDED, (self.run, trial, position))
        # What the failure cost was paid, too.
        outcome = replace(outcome, cost=outcome.cost + self._spent[trial, position])
        super().evaluated(trial, position, key, outcome, times, reused, then)


def kinds_of(retry_failed: object) -> tuple[str, ...] | None:
    """The kinds of failure that `retry_failed` names; None: all of them."""
    if retry_failed is True:
        return None
    if isinstance(retry_failed, str) or not isinstance(retry_failed, Iterable):
        raise ConfigError(
            f"retry_failed must be True, False or a list of kinds such as ['timeout'], not {retry_failed!r}"
        )
    return tuple(map(str, retry_failed))
