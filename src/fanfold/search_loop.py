"""The search side of a run: a pure state machine that asks, collects the outcomes of each row, and tells in order.

It knows nothing of time, executors or files, so the same code serves a live run and the replay of a recorded one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Generic, Protocol

from fanfold.checkpoints import Record, Saver, captured
from fanfold.encoding import apart, brief, decode, encode, own_result, words
from fanfold.errors import RESUMABLE, Blamed, ConfigError, ReplayDivergence
from fanfold.events import Notice, Progress, TrialTold, Watcher
from fanfold.natural import one_number
from fanfold.schedule import Plan, Schedule
from fanfold.snapshots import Checkpoint, Unsaved
from fanfold.stop import Rule
from fanfold.strategy import Strategy
from fanfold.tally import Tally
from fanfold.types import C, Case, Dropped, Failed, Outcome, Result, Trial


@dataclass(frozen=True, slots=True)
class Cell(Generic[C]):
    """One evaluation to be made: a trial's candidate on one case.

    `text` is the candidate's canonical JSON, `previous` its outcome on the case before, where that is known.
    """

    trial: Trial[C]
    text: str
    position: int
    case: Case
    previous: Outcome | None = None


class Journal(Protocol):
    """Where asks and tells are written down as they happen (or checked against what is written already)."""

    def asked(self, trial: Trial[Any], text: str, asked_after: int) -> None: ...

    def candidate(self, trial: int) -> str: ...

    def told(self, order: int, result: Result[Any]) -> None: ...

    def current(self, trial: int) -> Mapping[int, Outcome]: ...

    def amended(self, result: Result[Any]) -> None: ...

    def keep(self, checkpoint: Checkpoint, elapsed: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What a search needs to know besides the strategy and the schedule."""

    cases: Sequence[Case]
    window: int
    in_order: bool
    stop: Rule
    aggregate: Callable[[Sequence[float]], float]
    failed_score: float | None
    clock: Callable[[], float]

    def score(self, outcomes: Iterable[Outcome]) -> float | None:
        """The score of a complete row, of its outcomes in the order of the cases; None where one failed."""
        scores: list[Any] = [self.failed_score if isinstance(each, Failed) else each.score for each in outcomes]
        if not scores or None in scores:
            return None
        try:
            score = one_number(self.aggregate(scores))
        except OverflowError:  # the mean of scores near 1e308 is such
            return None
        except Exception as error:
            error.add_note(f"Raised by the study's aggregate for the scores {brief(scores)}")
            raise
        return score if math.isfinite(score) else None


@dataclass(slots=True)
class _Row(Generic[C]):
    trial: Trial[C]
    text: str
    plan: Plan
    batch: Sequence[Case] = ()
    missing: int = 0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    dropped: Dropped | None = None


class SearchLoop(Generic[C]):
    """Asks up to the window, plans each row, and tells settled rows: from the head, or as they settle.

    `record` is what an earlier, interrupted part of the same run asked and told.
    """

    def __init__(
        self,
        strategy: Strategy[C],
        schedule: Schedule,
        rules: Rules,
        journal: Journal,
        record: Record | None = None,
        tally: Tally | None = None,
        watch: Watcher | None = None,
    ) -> None:
        self.strategy = strategy
        self.schedule = schedule
        self.rules = rules
        self.tally = tally or Tally()
        self.stopped: str | None = None
        self._watch = watch
        self._journal = journal
        self._record = record or Record()
        self._saver = Saver(strategy, self.tally.told)
        self._positions = {case.id: position for position, case in enumerate(rules.cases)}
        self._open: dict[int, _Row[C]] = {}
        self._settled: dict[int, _Row[C]] = {}
        self._parked: dict[int, _Row[C]] = {}
        self._cells: list[Cell[C]] = []

    # -- what the dispatcher calls -------------------------------------------------------------------------------------

    def start(self, reopened: Iterable[Trial[C]] = (), waits: bool = False) -> list[Cell[C]]:
        """Reopen what a checkpoint left open, ask the first window, and give the cells to run.

        If the strategy `waits`, it is not asked again before something is told.
        """
        for trial in reopened:
            self._plan(trial, encode(trial.candidate))
        self._saver.waits = waits
        if self.tally.told:  # a run that was over is over, and a checkpoint may be of before a rule saw the last tell
            self.check()
        if not (waits and self._open):
            self._fill()
        self._tell()
        if not self._open and self.tally.told == 0 and self.stopped is None:
            if self.rules.stop.allowance(self.progress) < 1:
                raise ConfigError(
                    f"the stopping rule {self.rules.stop!r} allows no trial of {len(self.rules.cases)} cases: raise it"
                )
            raise ConfigError(
                f"{type(self.strategy).__name__}.ask() gave no candidate at all: nothing to evaluate. "
                "Give the strategy something to propose"
            )
        return self._take()

    def arrive(self, cell: Cell[C], outcome: Outcome) -> list[Cell[C]]:
        """Take in one outcome; give the cells that can run because of it."""
        row = self._open[cell.trial.number]
        row.outcomes[cell.case.id] = outcome
        self.tally.count(outcome)
        row.missing -= 1
        if row.missing == 0:
            self._advance(row)
            self._wake()
            self._tell()
        return self._take()

    def idle(self) -> list[Cell[C]]:
        """Nothing runs: let waiting rows go with what there is.  No cells back means the run is over."""
        if self._parked and self.stopped is None:
            if len(self._open) < self.rules.window and self.rules.stop.allowance(self.progress) < 1:
                self._saver.told = None  # what follows depends on the limit, and a higher one may be set
            self.schedule.idle()
            self._wake()
            self._tell()
        if self._parked and not self._cells and self.stopped is None:
            raise ConfigError(
                f"{type(self.schedule).__name__} keeps trials {sorted(self._parked)} waiting although nothing else "
                "runs: its idle() must let them go"
            )
        if self._record.script and not self._cells and self.stopped is None:
            raise ReplayDivergence(
                f"the ledger says trial {self._record.script[0]} was told next, but the strategy and schedule did not "
                "get that far with the recorded outcomes: they have changed. Undo the change, or start a new run"
            )
        return self._take()

    def save(self, least: int = 1) -> None:
        """Keep a checkpoint, if one can be made and at least so many trials were told since the last."""
        if self._record.script or not self._saver.new(self.tally.told, least):
            return
        try:
            parts = (self.strategy, self.schedule, self.rules.stop, self.tally, self._open, self._saver.waits)
            self._journal.keep(captured(*parts), self.rules.clock())
            self._saver.told = self.tally.told
        except Exception as error:
            self._saver.told = None
            if not isinstance(error, Unsaved) and self._watch is not None:
                self._watch(Notice(f"no checkpoint can be made ({words(error)}): a resume will replay the run"))

    def stop(self, reason: str) -> None:
        if self.stopped is None:
            self.stopped = reason

    @property
    def progress(self) -> Progress:
        return self.tally.progress(len(self.rules.cases), self.rules.clock())

    def check(self, progress: Progress | None = None) -> None:
        """Stop if a rule says so.

        Rules see every tell, also in replay, because some count; but what was told was told, whatever they say now.
        """
        with Blamed(self.rules.stop, "check()"):
            reason = self.rules.stop.reason(progress or self.progress)
        if not self._record.script and self.stopped is None:
            self.stopped = reason

    # -- asking ---------------------------------------------------------------------------------------------------

    def _fill(self, progress: Progress | None = None) -> None:
        if self.stopped is not None:
            return
        # What the run already holds may be asked again even if the rules have become tighter since.
        asked, told, recorded = self.tally.asked, self.tally.told, self._record.left(self.tally.asked)
        allowance = max(self.rules.stop.allowance(progress or self.progress), recorded)
        room = int(min(self.rules.window - len(self._open), allowance))
        if room > 0 and recorded > 0:
            room = self._record.room(asked, told, room)
        if room < 1:
            return
        name = type(self.strategy).__name__
        candidates = self._ask(room)
        self._saver.waits = len(candidates) < room
        for candidate in candidates:
            text = encode(candidate, f"{name}'s candidate of trial {self.tally.asked}")
            if self._record.left(self.tally.asked) > 0:
                candidate, text = self._as_recorded(candidate, text)
            trial = Trial(self.tally.asked, apart(candidate), self._origin(candidate))
            self._journal.asked(trial, text, self.tally.told)
            self.tally.asked += 1
            self._plan(trial, text)

    def _ask(self, room: int) -> Sequence[C]:
        try:
            with Blamed(self.strategy, f"ask({room})"):
                answer: Any = self.strategy.ask(room)
                if type(answer) is not list:
                    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping | Set):
                        raise ConfigError(
                            f"{type(self.strategy).__name__}.ask({room}) gave {brief(answer)}: it must give a list of "
                            f"candidates, an empty one where there is nothing to ask. {RESUMABLE}"
                        )
                    answer = list(islice(answer, room + 1))  # an endless generator must not hang
        except StopIteration as error:  # which would become another error on its way through a coroutine
            raise ConfigError(
                f"{type(self.strategy).__name__}.ask({room}) raised StopIteration: give an empty list where there is "
                f"nothing more to ask. {RESUMABLE}"
            ) from error
        if len(answer) > room:
            raise ConfigError(
                f"{type(self.strategy).__name__}.ask({room}) gave {len(answer)} candidates: it must give at most "
                f"{room}. {RESUMABLE}"
            )
        candidates: list[C] = answer
        return candidates

    def _as_recorded(self, candidate: C, text: str) -> tuple[C, str]:
        """The candidate, or in replay the one that an earlier version recorded, if the strategy follows that."""
        follow = getattr(self.strategy, "follow", None)
        recorded = self._journal.candidate(self.tally.asked) if follow is not None else text
        if follow is None or recorded == text:
            return candidate, text
        followed = follow(candidate, decode(recorded))
        return (candidate, text) if followed is None else (followed, recorded)

    def _origin(self, candidate: C) -> Any:
        # A strategy need not be a subclass of ours.
        origin = getattr(self.strategy, "origin", None)
        if origin is None:
            return None
        with Blamed(self.strategy, f"origin() for trial {self.tally.asked}"):
            return origin(candidate)

    def _plan(self, trial: Trial[C], text: str) -> None:
        with Blamed(self.schedule, f"plan() of trial {trial.number}"):
            row = _Row(trial, text, self.schedule.plan(trial, self.rules.cases))
        self._open[trial.number] = row
        self._advance(row, first=True)

    # -- rows ------------------------------------------------------------------------------------------------------

    def _advance(self, row: _Row[C], first: bool = False) -> None:
        """Let the row's plan take its next step: cells to run, a wait for other rows, or the end."""
        with Blamed(self.schedule, f"plan() of trial {row.trial.number}"):
            self._step(row, first)

    def _step(self, row: _Row[C], first: bool) -> None:
        answer = tuple(row.outcomes[case.id] for case in row.batch)
        try:
            batch = next(row.plan) if first else row.plan.send(answer)
        except StopIteration as end:
            row.dropped = end.value
            if not isinstance(row.dropped, Dropped | None):
                raise TypeError(f"the plan returned {brief(row.dropped)}: return None or Dropped(reason)") from None
            self._parked.pop(row.trial.number, None)
            self._settled[row.trial.number] = row
            return
        row.batch, row.missing = batch, len(batch)
        if not batch:
            self._parked[row.trial.number] = row
            return
        self._parked.pop(row.trial.number, None)
        for case in batch:
            position = self._positions.get(case.id)
            if position is None or case.id in row.outcomes:
                raise ConfigError(
                    f"{type(self.schedule).__name__} planned case {case.id!r} of trial {row.trial.number} "
                    f"{'twice' if position is not None else 'which the study does not have'}"
                )
            previous = row.outcomes.get(self.rules.cases[position - 1].id) if position else None
            self._cells.append(Cell(row.trial, row.text, position, case, previous))

    def _wake(self) -> None:
        """Resume waiting rows until none of them moves."""
        moved = True
        while moved and self._parked:
            moved = False
            for number, row in list(self._parked.items()):
                self._advance(row)
                moved = moved or number not in self._parked

    # -- telling -----------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        while self.stopped is None and (number := self._next()) is not None:
            row = self._settled.pop(number)
            del self._open[number]
            if self._record.script:
                self._record.script.popleft()
            dropped = None if row.dropped is None else row.dropped.reason
            outcomes = self._in_case_order(row)
            result = Result(row.trial, self._score(row, outcomes), outcomes, dropped)
            self._journal.told(self.tally.told, result)
            current = self._current(row, result)
            self.tally.tell(result, row.text, current)
            with Blamed(self.strategy, f"tell() for trial {number}"):
                self.strategy.tell(own_result(result))
            with Blamed(self.schedule, f"tell() for trial {number}"):
                self.schedule.tell(result)
            self._saver.waits = False
            if self._saver.due(self.tally.told):
                self.save()
            progress = self.progress
            if self._watch is not None:
                self._watch(TrialTold(current or result, progress))
            self.check(progress)
            self._fill(progress)

    def _next(self) -> int | None:
        if self._record.script:
            return self._record.script[0] if self._record.script[0] in self._settled else None
        head: Iterable[int] = self._open if self.rules.in_order else self._settled
        number = next(iter(head), None)
        return number if number in self._settled else None

    def _in_case_order(self, row: _Row[C]) -> dict[str, Outcome]:
        if len(row.outcomes) < 2:
            return dict(row.outcomes)
        return {case: row.outcomes[case] for case in sorted(row.outcomes, key=self._positions.__getitem__)}

    def _score(self, row: _Row[C], outcomes: Mapping[str, Outcome]) -> float | None:
        if row.dropped is not None:
            return row.dropped.score
        try:
            return self.rules.score(outcomes.values())
        except Exception as error:
            error.add_note(f"These are the scores of trial {row.trial.number}")
            raise

    def _current(self, row: _Row[C], result: Result[C]) -> Result[C] | None:
        """What a trial came to whose failures were evaluated again after the search had them; None for any other."""
        outcomes = self._journal.current(result.number)
        if not outcomes:
            return None
        row.outcomes.update({self.rules.cases[position].id: outcome for position, outcome in outcomes.items()})
        present = self._in_case_order(row)
        current = replace(result, score=self._score(row, present), outcomes=present)
        self._journal.amended(current)
        return current

    def _take(self) -> list[Cell[C]]:
        cells, self._cells = self._cells, []
        return cells
