"""The search of a run: a fresh one, or one that takes over from the last checkpoint."""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fanfold.checkpoints import Record, set_counts
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.events import Watcher
from fanfold.ledger import RunJournal
from fanfold.natural import Negated
from fanfold.schedule import Schedule
from fanfold.search_loop import Rules, SearchLoop
from fanfold.snapshots import Checkpoint, Told, Unsaved, saves, take_over, unsaved
from fanfold.stop import MaxTrials, Rule
from fanfold.strategy import Strategy, revived
from fanfold.tally import Tally
from fanfold.types import Outcome, Result, Trial

if TYPE_CHECKING:
    from fanfold.study import Study

T = TypeVar("T")
#: From so many recorded trials on, a resume that replays them says why.
MANY = 20_000


@dataclass(frozen=True, slots=True)
class Resumed:
    """A search ready to start, the trials that its checkpoint left open, and what there is to say about it."""

    search: SearchLoop[Any]
    reopened: list[Trial[Any]] = field(default_factory=list)
    waits: bool = False
    remark: str | None = None


def search_of(
    study: Study[Any],
    rule: Rule,
    journal: RunJournal,
    clock: Callable[[], float],
    watch: Watcher | None,
    replay: bool = False,
) -> Resumed:
    """The search of a study as far as its journal has it; with `replay`, asked and told again from its beginning."""

    def begun() -> tuple[Strategy[Any], Schedule, Rules]:
        return *_begun(study), _rules(study, _copied(rule, "stopping rule"), clock)

    try:
        resumed = None if replay else _taken_over(*begun(), journal, watch)
        if resumed is not None:
            return resumed
        reason = "replay was asked for"
    except Unsaved as error:
        reason = str(error)
    strategy, schedule, rules = begun()
    record = Record(0, deque(journal.script()), journal.asked_after())
    search = SearchLoop(strategy, schedule, rules, journal, record, Tally(reused=journal.reused), watch)
    unused = not replay and (journal.checkpoint is not None or journal.unproven is not None)
    many = journal.recorded_told >= MANY or (unused and journal.recorded_told > 0)
    remark = f"{journal.recorded_told:,} told trials are replayed from the first: {reason}"
    return Resumed(search, remark=remark if many else None)


def candidates_of(study: Study[Any], journal: RunJournal, search: SearchLoop[Any]) -> Callable[[int, Any], Any]:
    """Gives the candidate of a failed trial, by its number and its recorded value, as the strategy asked for it.

    A search that was taken over makes it of the value.  Any other is replayed first: the class of a candidate is
    known to its strategy alone.
    """
    if search.tally.asked:
        return lambda number, value: revived(search.strategy, value)
    asked = functools.cache(lambda: _asked(study, journal, {row[0] for row in journal.failed_rows()}))
    return lambda number, value: asked()[number]


class _ReplayJournal(RunJournal):
    """Checks what a replay asks and is told, and writes nothing."""

    def told(self, order: int, result: Result[Any]) -> None:
        if order < self.recorded_told:
            super().told(order, result)

    def amended(self, result: Result[Any]) -> None:
        """It is written already."""

    def keep(self, checkpoint: Checkpoint, elapsed: float) -> None:
        """The search that follows makes its own."""


def _asked(study: Study[Any], journal: RunJournal, wanted: Collection[int]) -> dict[int, Any]:
    """The candidates of some recorded trials, as the strategy asks for them when it is told what it was told then."""
    journal = _ReplayJournal(journal.ledger, journal.run, journal.commits, journal.basis)
    strategy, schedule = _begun(study)
    record = Record(0, deque(journal.script()), journal.asked_after())
    # No trial beyond the record is asked for.
    search = SearchLoop(strategy, schedule, _rules(study, MaxTrials(journal.recorded), lambda: 0.0), journal, record)
    found, cells = dict[int, Any](), deque(search.start())
    while len(found) < len(wanted) and (cells or (cells := deque(search.idle()))):
        cell = cells.popleft()
        if cell.trial.number in wanted:
            found[cell.trial.number] = cell.trial.candidate
        if (outcome := journal.recall(cell.trial.number).get(cell.position)) is not None:
            cells.extend(search.arrive(cell, outcome))
    return found


def _begun(study: Study[Any]) -> tuple[Strategy[Any], Schedule]:
    strategy, schedule = _copied(study.strategy, "strategy"), _copied(study.schedule, "schedule")
    if study.goal.minimize:
        schedule = schedule.mirrored()
    strategy.begin(derive_seed(study.seed, "strategy"))
    schedule.begin(derive_seed(study.seed, "schedule"))
    return strategy, schedule


def _copied(part: T, role: str) -> T:
    try:
        return copy.deepcopy(part)
    except Exception as error:
        then = ", make it in begin()" if role != "stopping rule" else ""
        raise ConfigError(
            f"the {role} {type(part).__name__} cannot be copied ({error}), and a run works on a copy: keep locks, "
            f"files and connections out of what it holds{then}, or give it a __deepcopy__"
        ) from error


def _rules(study: Study[Any], rule: Rule, clock: Callable[[], float]) -> Rules:
    goal = study.goal
    aggregate = Negated(study.aggregate) if goal.minimize else study.aggregate
    failed_score = goal.natural(study.failed_score)
    return Rules(study.seeded_cases, study.effective_window, study.in_order, rule, aggregate, failed_score, clock)


def _taken_over(
    strategy: Strategy[Any], schedule: Schedule, rules: Rules, journal: RunJournal, watch: Watcher | None
) -> Resumed | None:
    """The search as its last checkpoint has it; raises Unsaved, with the reason, where that cannot be."""
    if (reason := unsaved(strategy, schedule) or journal.unproven) is not None:
        raise Unsaved(reason)
    if (saved := journal.checkpoint or _saved_alone(journal)) is None:
        raise Unsaved("no checkpoint was made")
    told = _told(strategy, journal, rules)
    if saves(strategy):
        take_over(strategy, saved.strategy, told)
    if saves(schedule):
        take_over(schedule, saved.schedule, told)
    reopened = [
        Trial(number, revived(strategy, journal.ledger.value(text)), origin)
        for number, text, origin in journal.open_rows(saved.told, saved.asked)
    ]
    if saved.tally and saved.amended == len(journal.superseded) and set_counts(rules.stop, saved.rules):
        best = saved.tally["best"]
        tally = Tally.load(saved.tally, journal.reused, None if best is None else _current(told(best), journal, rules))
    else:
        tally = _counted(told, journal, rules, saved.told, saved.asked)
    record = Record(saved.asked, deque(journal.script(saved.told)), journal.asked_after(saved.asked))
    search = SearchLoop(strategy, schedule, rules, journal, record, tally, watch)
    return Resumed(search, reopened, saved.waits)


def _saved_alone(journal: RunJournal) -> Checkpoint | None:
    """A checkpoint of version 0.1.0, which has the strategy's state and nothing else."""
    if (snapshot := journal.saved_alone()) is None:
        return None
    told, asked, state = snapshot
    return Checkpoint(told, asked, 0, state, b"", {}, {}, False)


def _told(strategy: Strategy[Any], journal: RunJournal, rules: Rules) -> Told:
    """Gives the result of a told trial, as the search was told it."""

    def told(number: int) -> Result[Any]:
        text, score, dropped, origin = journal.told_row(number)
        trial = Trial(number, revived(strategy, journal.ledger.value(text)), journal.ledger.origin(origin))
        return Result(trial, score, _by_case(rules, journal.recall(number)), dropped)

    return told


def _current(result: Result[Any], journal: RunJournal, rules: Rules) -> Result[Any]:
    """A result with those of its evaluations that were made again since."""
    if not (outcomes := journal.current(result.number)):
        return result
    score = result.score if result.dropped is not None else rules.score(outcomes.values())
    return replace(result, score=score, outcomes=_by_case(rules, outcomes))


def _counted(told: Told, journal: RunJournal, rules: Rules, tells: int, asks: int) -> Tally:
    """The counts after so many tells, and the stopping rules as they had become, from every told trial."""
    tally = Tally(asked=asks, reused=journal.reused)
    for number in journal.script(0, tells):
        result = told(number)
        for outcome in result.outcomes.values():
            tally.count(outcome)
        current = _current(result, journal, rules)
        if current is not result:
            journal.amended(current)
        tally.tell(result, journal.candidate(number), None if current is result else current)
        rules.stop.reason(tally.progress(len(rules.cases), 0.0))
    return tally


def _by_case(rules: Rules, outcomes: Mapping[int, Outcome]) -> dict[str, Outcome]:
    return {rules.cases[position].id: outcome for position, outcome in outcomes.items()}
