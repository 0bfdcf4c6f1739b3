"""The search of a run: a fresh one, or one that takes over from the last snapshot of its strategy."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fanfold.encoding import derive_seed
from fanfold.events import Watcher
from fanfold.ledger import RunJournal
from fanfold.natural import Negated
from fanfold.search_loop import Rules, SearchLoop, makes_snapshots
from fanfold.stop import Rule
from fanfold.strategy import Strategy, revived
from fanfold.tally import Tally
from fanfold.types import Outcome, Result, Trial

if TYPE_CHECKING:
    from fanfold.study import Study


def search_of(
    study: Study[Any],
    rule: Rule,
    journal: RunJournal,
    clock: Callable[[], float],
    watch: Watcher | None,
) -> tuple[SearchLoop[Any], list[Trial[Any]]]:
    """The search, and the trials that were open when its snapshot was made."""
    strategy, schedule, goal = copy.deepcopy(study.strategy), copy.deepcopy(study.schedule), study.goal
    if goal.minimize:
        schedule = schedule.mirrored()
    strategy.begin(derive_seed(study.seed, "strategy"))
    schedule.begin(derive_seed(study.seed, "schedule"))
    rules = Rules(
        study.seeded_cases,
        study.effective_window,
        study.in_order,
        copy.deepcopy(rule),
        Negated(study.aggregate) if goal.minimize else study.aggregate,
        goal.natural(study.failed_score),
        clock,
    )
    tally, told, reopened = Tally(reused=journal.reused), 0, list[Trial[Any]]()
    snapshot = journal.last_snapshot() if makes_snapshots(strategy, schedule) else None
    if snapshot is not None and strategy.load(snapshot[2]) is not False:  # type: ignore[attr-defined]
        told, asked, _ = snapshot
        reopened = [
            Trial(number, revived(strategy, journal.ledger.value(text)), origin)
            for number, text, origin in journal.open_rows(told, asked)
        ]
        tally = _tally(strategy, journal, rules, told, asked)
    return SearchLoop(
        strategy, schedule, rules, journal, journal.script(told), journal.asked_after(), tally, watch
    ), reopened


def _tally(strategy: Strategy[Any], journal: RunJournal, rules: Rules, told: int, asked: int) -> Tally:
    """The counts as they were after `told` tells, and the stopping rules as they had become."""
    tally = Tally(asked=asked, reused=journal.reused)
    for number, text, score, dropped in journal.told_rows(told):
        trial = Trial(number, revived(strategy, journal.ledger.value(text)))
        result = Result(trial, score, _by_case(rules, journal.recall(number)), dropped)
        for outcome in result.outcomes.values():
            tally.count(outcome)
        current = None
        if now := journal.current(number):
            own = score if dropped is not None else rules.score(now.values())
            current = Result(trial, own, _by_case(rules, now), dropped)
            journal.amended(current)
        tally.tell(result, text, current)
        rules.stop.check(tally.progress(len(rules.cases), 0.0))
    return tally


def _by_case(rules: Rules, outcomes: Mapping[int, Outcome]) -> dict[str, Outcome]:
    return {rules.cases[position].id: outcome for position, outcome in outcomes.items()}
