"""Outcomes on their way to the disk and back: written down, durable, then ready for the search and for equal cells."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from fanfold.encoding import decode
from fanfold.errors import RowRefused
from fanfold.events import EvaluationFinished, Event
from fanfold.ledger import RunJournal
from fanfold.search_loop import Cell
from fanfold.stop import MaxFailures
from fanfold.tally import Tally
from fanfold.types import Failed, Ok, Outcome
from fanfold.wakeup import Wakeup
from fanfold.work import Keyed, Work

#: Cells that may wait for the disk although nothing was evaluated for them.
MOST_REUSED = 1000
#: How many keys of finished cells are kept in memory, to spare a look into the ledger for each new cell.
KNOWN_KEYS = 50_000

#: When an evaluation began, the seconds it took, and how often it was tried.
Times: TypeAlias = tuple[float, float, int]


class Outbox:
    """Keeps outcomes until they are durable.  Equal cells share one evaluation, which the first of them begins."""

    def __init__(
        self, journal: RunJournal, work: Work, tally: Tally, wakeup: Wakeup, emit: Callable[[Event], None] | None
    ) -> None:
        self.ready: deque[tuple[Cell[Any], Outcome]] = deque()
        #: Outcomes that are not on disk; and cells that a kill would repeat: being evaluated, or not on disk.
        self.unsaved = 0
        self.at_risk = 0
        self._journal = journal
        self._work = work
        self._tally = tally
        self._wakeup = wakeup
        self._emit = emit
        self._sharing: dict[bytes, tuple[Cell[Any], ...]] = {}
        #: The keys of all finished cells of the run while they are few and all of this process; None: ask the ledger.
        self._known: set[bytes] | None = None if journal.recorded else set()
        most = work.limits.max_failures
        self._failing = None if most is None else MaxFailures(most)

    def spare(self, slots: int) -> int:
        """How many cells may be begun now, so that a kill repeats little and what waits for the disk stays bounded.

        A disk that keeps up is not waited for: what is at risk then is what was evaluated in the last moment.
        """
        if self.unsaved > self.at_risk + MOST_REUSED:
            return 0
        most = self._work.most_cells
        return min(2 * slots * most - self.at_risk, most) if self._journal.commits.behind else most

    def answers(self, key: bytes, cell: Cell[Any]) -> bool:
        """Whether an equal cell has been or is being evaluated; if so this one shares its outcome."""
        reuse = self._work.limits.reuse
        if reuse == "never":
            return False
        if key in self._sharing:
            self._sharing[key] += (cell,)
            return True
        self._sharing[key] = ()
        if reuse == "run" and self._known is not None and key not in self._known:
            return False
        outcome = self._journal.lookup(key, everywhere=reuse != "run")
        if outcome is None:
            return False
        self._record(key, cell, outcome, (time.time(), 0.0, 0), reused=True)
        return True

    def begin(self, cells: list[Keyed]) -> None:
        self.at_risk += len(cells)

    def give_back(self, cells: list[Keyed]) -> list[Cell[Any]]:
        """The cells to queue again because their place was lost: these, and those that share them."""
        self.at_risk -= len(cells)
        return [waiting for key, cell in cells for waiting in (cell, *self._sharing.pop(key, ()))]

    def finish(self, key: bytes, cell: Cell[Any], outcome: Outcome, times: Times) -> None:
        """Take in the outcome of an evaluation."""
        self._record(key, cell, outcome, times)
        if self._failing is not None and (enough := self._failing.count(outcome)) is not None:
            self._wakeup.fail(enough)

    def _record(self, key: bytes, cell: Cell[Any], outcome: Outcome, times: Times, reused: bool = False) -> None:
        """Write an outcome down.  The search gets it, as the ledger will give it back, once it is durable."""
        self.unsaved += 1
        if self._known is not None:
            self._known.add(key)
            if len(self._known) > KNOWN_KEYS:
                self._known = None
        if reused:
            outcome = replace(outcome, cost=0.0)  # paid for where it was evaluated
        opened = outcome
        if isinstance(outcome, Ok) and outcome.data is not None:
            opened = replace(outcome, data=decode(outcome.data.text, self._journal.ledger.blob))

        def landed(error: BaseException | None) -> None:
            self.unsaved -= 1
            if isinstance(error, RowRefused) and isinstance(outcome, Ok):
                self._record(key, cell, Failed("bad-data", str(error), cost=outcome.cost), times)
                return
            self.at_risk -= not reused
            if error is not None:
                self._wakeup.fail(error)
                return
            self.ready.append((cell, opened))
            for twin in self._sharing.pop(key, ()):
                self._record(key, twin, outcome, (time.time(), 0.0, 0), reused=True)
            self._wakeup.ring()

        self._journal.evaluated(cell.trial.number, cell.position, key, outcome, times, reused, landed)
        self._tally.reused += reused
        if self._emit is not None:
            self._emit(EvaluationFinished(cell.trial.number, cell.case.id, opened, times[1]))
