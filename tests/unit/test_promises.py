"""What the engine promises about a search, seen from outside: through `Study.run`, its results, its ledger and events.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fanfold import (
    Case,
    Failed,
    MaxEvaluations,
    MaxTime,
    MaxTrials,
    Ok,
    Result,
    Strategy,
    Study,
    Sweep,
    Target,
)
from fanfold.errors import ConfigError, ReplayDivergence
from fanfold.events import Event, TrialTold
from fanfold.schedule import Plan, Schedule
from fanfold.schedules import PairedDropping, last_rung
from fanfold.stop import Plateau
from fanfold.testing import run_virtual
from fanfold.types import Dropped, Trial


def plain(candidate: float, case: Case) -> float:
    return float(candidate)


def of(run: Any) -> list[Result[Any]]:
    return list(run.results())


# -- telling, stopping, resuming ---------------------------------------------------------------------------------------


class Noting(Strategy[int]):
    """Asks 0, 1, 2, ... and keeps a common note of what it was asked for and told."""

    window = 4

    def __init__(self, asks: list[int], tells: list[int]) -> None:
        self.asks, self.tells = asks, tells
        self.next = 0

    def __deepcopy__(self, memo: Any) -> Noting:
        return Noting(self.asks, self.tells)

    def ask(self, n: int) -> list[int]:
        first, self.next = self.next, self.next + n
        self.asks.extend(range(first, self.next))
        return list(range(first, self.next))

    def tell(self, result: Result[int]) -> None:
        self.tells.append(result.number)


def test_a_stopped_run_tells_nothing_more_and_asks_nothing_more() -> None:
    asks: list[int] = []
    tells: list[int] = []
    events: list[Event] = []

    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(1.0)
        return float(candidate)

    study = Study(Noting(asks, tells), evaluate, stop=Target(5.0))
    run = run_virtual(study.run_async("async:4", watch=events.append))
    assert tells == [0, 1, 2, 3, 4, 5]
    assert run.progress.told == len([event for event in events if isinstance(event, TrialTold)]) == 6
    assert asks == list(range(6 + 3)), "a window of 4: three more were open when the sixth was told"
    assert len(of(run)) == 6


def test_what_runs_when_a_run_stops_is_kept_and_not_evaluated_again(tmp_path: Path) -> None:
    """It may end within the grace period, and is in the ledger then, for whoever goes on."""
    begun: list[int] = []

    async def evaluate(candidate: int, case: Case) -> float:
        begun.append(candidate)
        await asyncio.sleep(1.0 + candidate)
        return float(candidate)

    def study(stop: Any) -> Study[int]:
        return Study(Sweep(range(4)), evaluate, stop=stop, window=4)

    path = tmp_path / "ledger.db"
    first = run_virtual(study(MaxTime(1.4)).run_async("async:4", ledger=path, run="run", grace=2.0))
    assert first.progress.told == 1
    assert sorted(begun) == [0, 1, 2, 3]
    rows = [trial for (trial,) in first.ledger.read("SELECT trial FROM evaluation ORDER BY trial")]
    assert rows == [0, 1, 2], "the second and the third ended within the grace period"
    begun.clear()
    run_virtual(study(MaxTrials(4)).run_async("async:4", ledger=path, run="run"))
    assert begun == [3]


def test_a_finished_run_that_is_run_again_asks_nothing_new_and_evaluates_nothing(tmp_path: Path) -> None:
    asks: list[int] = []
    tells: list[int] = []
    begun: list[int] = []

    def evaluate(candidate: int, case: Case) -> float:
        begun.append(candidate)
        return float(-candidate)

    study = Study(Noting(asks, tells), evaluate, stop=MaxTrials(20))
    path = tmp_path / "ledger.db"
    done = study.run(ledger=path, run="run")
    first_asks, first_tells = list(asks), list(tells)
    for note in (asks, tells, begun):
        note.clear()
    again = study.run(ledger=path, run="run")
    assert (asks, tells, begun) == (first_asks, first_tells, [])
    assert (again.trace, again.best) == (done.trace, done.best)


def test_a_resumed_run_that_asks_something_else_says_which_trial_was_what(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Study(Sweep([1, 2, 3]), plain).run(ledger=path, run="run")
    with pytest.raises(ReplayDivergence, match=r"trial 1 of this run was 2, but the strategy now asks 5"):
        Study(Sweep([1, 5, 3]), plain).run(ledger=path, run="run")


def test_a_long_candidate_is_shortened_where_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    def length(candidate: str, case: Case) -> float:
        return float(len(candidate))

    Study(Sweep(["a" * 118, "b" * 119]), length).run(ledger=path, run="run")
    with pytest.raises(ReplayDivergence, match=r'was "a{118}", but the strategy now asks "c{116}\.\.\.: '):
        Study(Sweep(["c" * 500, "b" * 119]), length).run(ledger=path, run="run")


def test_a_resumed_run_that_would_score_otherwise_is_found_out(tmp_path: Path) -> None:
    class Judge(Schedule):
        """Runs both cases and gives its own score to every trial."""

        fingerprint = "judge"  # its settings are said to be the same, so that only the replay can tell

        def __init__(self, score: float, reason: str = "by the judge") -> None:
            self.score, self.reason = score, reason

        def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
            yield cases
            return Dropped(self.reason, self.score)

    path = tmp_path / "ledger.db"

    def run(*judge: Any) -> Any:
        return Study(Sweep([1, 2]), plain, cases=[0, 1], schedule=Judge(*judge)).run(ledger=path, run="run")

    assert [result.score for result in of(run(0.25))] == [0.25, 0.25]
    run(0.25)
    with pytest.raises(ReplayDivergence, match=r"trial 0 of this run scored 0.25 .*, but now 0.5"):
        run(0.5)
    with pytest.raises(ReplayDivergence, match=r"trial 0 of this run scored 0.25 \(by the judge\).*another reason"):
        run(0.25, "another reason")


def test_a_replay_that_cannot_reach_what_was_told_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study = Study(Sweep(range(6)), plain, in_order=False, window=2)
    study.run(ledger=path, run="run")
    with pytest.raises(ReplayDivergence, match="trial 3 was told next"):
        Study(Sweep(range(3)), plain, in_order=False, window=2).run(ledger=path, run="run")


def test_a_resumed_run_is_told_in_the_recorded_order_though_the_timing_is_another(tmp_path: Path) -> None:
    """Results that are told as they come: a run that goes on repeats the order of its first part."""
    slow = {0: 9.0, 1: 1.0, 2: 5.0, 3: 2.0}
    path = tmp_path / "ledger.db"

    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(slow.get(candidate, 1.0))
        return float(candidate)

    evaluate.fingerprint = "the timing does not count"  # type: ignore[attr-defined]

    def go(trials: int) -> list[int]:
        tells: list[int] = []
        study = Study(Noting([], tells), evaluate, in_order=False, stop=MaxTrials(trials))
        run_virtual(study.run_async("async:4", ledger=path, run="run"))
        return tells

    first = go(6)
    assert first[0] == 1 and first != sorted(first)
    slow.clear()
    assert go(10)[:6] == first


# -- counts and scores -------------------------------------------------------------------------------------------------


def test_the_counts_of_a_run_are_what_happened() -> None:
    def evaluate(candidate: int, case: Case) -> Any:
        return Failed("odd", "no") if candidate % 2 else Ok(float(candidate), cost=0.25)

    run = Study(Sweep([0, 1, 2, 2, 3, 1]), evaluate, cases=[0, 1]).run()
    progress = run.progress
    assert (progress.asked, progress.told, progress.cases) == (6, 6, 2)
    assert (progress.evaluations, progress.told_evaluations) == (12, 12)
    assert progress.failures == 6
    assert progress.reused == 4, "the second 2 and the second 1, on two cases each"
    assert progress.cost == pytest.approx(4 * 0.25), "what is reused costs nothing"
    assert (progress.best, progress.since_best) == (2.0, 3)


def test_of_equal_scores_the_first_stays_the_best_and_counts_as_no_progress() -> None:
    run = Study(Sweep(["a", "b", "c", "d"]), lambda candidate, case: -1.0).run()
    assert run.best is not None and run.best.candidate == "a"
    assert run.progress.since_best == 3


def test_a_best_score_of_zero_or_below_is_kept_and_beaten_like_any_other() -> None:
    for scores, best in (([-3.0, -1.0, -2.0], -1.0), ([0.0, -1.0], 0.0), ([-1.0, 0.0], 0.0)):
        run = Study(Sweep(scores), plain).run()
        assert run.best is not None and run.best.score == best


def test_a_failed_or_dropped_trial_is_never_the_best() -> None:
    class DropHigh(Schedule):
        def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
            yield cases
            return Dropped("too high", 99.0) if trial.candidate > 2 else None

    run = Study(Sweep([1, 3, 2, 4]), plain, schedule=DropHigh(), stop=Plateau(50)).run()
    assert run.best is not None and run.best.candidate == 2
    assert [result.score for result in of(run)] == [1.0, 99.0, 2.0, 99.0]


def test_a_fold_that_gives_no_finite_number_gives_no_score() -> None:
    for fold in (lambda scores: math.nan, lambda scores: math.inf):
        run = Study(Sweep([1, 2]), plain, aggregate=fold).run()
        assert [result.score for result in of(run)] == [None, None]
        assert run.best_or_none is None


def test_scores_are_folded_in_the_order_of_the_cases_whoever_ended_first() -> None:
    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(10.0 - case.data)
        return float(case.data)

    study = Study(Sweep([0]), evaluate, cases=[1, 2, 3], aggregate=last_rung)
    run = run_virtual(study.run_async("async:3"))
    assert run.best is not None and run.best.score == 3.0
    assert list(run.best.outcomes) == ["0", "1", "2"]


# -- words about what cannot be ----------------------------------------------------------------------------------------


class Planning(Schedule):
    """Plans whatever it is told to."""

    def __init__(self, *plans: Sequence[Case]) -> None:
        self.plans = plans

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        for chunk in self.plans:
            _ = yield chunk
        return None


class Waiting(Schedule):
    """Waits for others who never come."""

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        while True:
            yield ()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Planning([Case("0")], [Case("0")]), "planned case '0' of trial 0 twice"),
        (Planning([Case("other")]), "planned case 'other' of trial 0 which the study does not have"),
        (Waiting(), r"Waiting keeps trials \[0, 1\] waiting although nothing else runs"),
    ],
)
def test_a_schedule_that_plans_what_cannot_be_is_named(schedule: Schedule, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Study(Sweep([1, 2]), plain, schedule=schedule).run()


class Silent(Strategy[int]):
    """Has nothing to propose."""

    def ask(self, n: int) -> list[int]:
        return []

    def tell(self, result: Result[int]) -> None:
        raise AssertionError("nothing was asked")


def test_a_strategy_that_gives_too_many_or_none_is_named() -> None:
    class TooMany(Sweep[int]):
        def ask(self, n: int) -> list[int]:
            return list(range(n + 1))

    with pytest.raises(ConfigError, match=r"TooMany.ask\(4\) gave 5 candidates"):
        Study(TooMany([1]), plain, window=4).run()
    with pytest.raises(ConfigError, match="gave no candidate at all"):
        Study(Silent(), plain).run()


class Answering(Strategy[Any]):
    """Answers an ask with anything."""

    window = 2

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def ask(self, n: int) -> Any:
        return self.answer

    def tell(self, result: Result[Any]) -> None: ...


@pytest.mark.parametrize("answer", [None, 3, "ab", b"ab", {1, 2}, {"a": 1}], ids=repr)
def test_an_answer_that_is_no_list_of_candidates_is_refused_by_name(answer: Any) -> None:
    with pytest.raises(ConfigError, match=r"Answering\.ask\(2\) gave .* it must give a list of candidates"):
        Study(Answering(answer), plain, window=2, stop=MaxTrials(4)).run()


@pytest.mark.parametrize("answer", [(1, 2), range(1, 3)], ids=repr)
def test_any_other_sequence_of_candidates_is_as_good_as_a_list(answer: Any) -> None:
    run = Study(Answering(answer), plain, window=2, stop=MaxTrials(2)).run()
    assert [result.candidate for result in of(run)] == [1, 2]


@pytest.mark.parametrize(("column", "value"), [("score", "'high'"), ("dropped", "x'07'")])
def test_a_told_row_that_another_program_spoilt_is_written_again(column: str, value: str, tmp_path: Path) -> None:
    study, ledger = Study(Sweep([1, 2, 3]), plain), tmp_path / "a.db"
    study.run(ledger=ledger, run="a")
    with contextlib.closing(sqlite3.connect(ledger)) as db, db:
        before = db.execute("SELECT number, score, dropped FROM trial ORDER BY number").fetchall()
        db.execute(f"UPDATE trial SET {column} = {value} WHERE number = 1")
    study.run(ledger=ledger, run="a")
    with contextlib.closing(sqlite3.connect(ledger)) as db, db:
        assert db.execute("SELECT number, score, dropped FROM trial ORDER BY number").fetchall() == before


def test_an_error_in_tell_ends_the_run_and_says_whose_it_is() -> None:
    class Deaf(Sweep):
        def tell(self, result: Result[Any]) -> None:
            raise ValueError("not listening")

    with pytest.raises(ValueError, match="not listening") as caught:
        Study(Deaf([1, 2]), plain).run()
    assert any("Deaf.tell() for trial 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_finished_run_evaluates_nothing_again_whatever_its_window(window: int, tmp_path: Path) -> None:
    evaluated: list[int] = []

    def evaluate(candidate: int, case: Case) -> float:
        evaluated.append(candidate)
        return float(candidate)

    for _ in range(2):
        Study(Sweep([1, 2, 3]), evaluate, window=window).run(ledger=tmp_path / "a.db", run="a", reuse="never")
    assert evaluated == [1, 2, 3]


class Knowing(Strategy[int]):
    """Proposes how many results it knows by then, which is what a strategy that learns depends on."""

    def __init__(self) -> None:
        self.told = 0

    def ask(self, n: int) -> list[int]:
        return [self.told] * n

    def tell(self, result: Result[int]) -> None:
        self.told += 1


def test_a_limit_that_delayed_an_ask_delays_it_again_on_resume(tmp_path: Path) -> None:
    """Rows that are dropped early leave room under a limit of evaluations, so that late asks wait for results."""
    study = Study(
        Knowing(),
        lambda candidate, case: float((int(case.id) + 3 * candidate) % 5 != 0),
        [Case(str(n)) for n in range(8)],
    )
    study = replace(study, schedule=PairedDropping(1, margin=1.0), window=4, seed=3)
    limits = [MaxEvaluations(60), MaxTrials(9), MaxTrials(13), MaxTrials(17) | MaxEvaluations(110)]
    for number, stop in enumerate(limits):
        ledger, name = tmp_path / "l.db", f"r{number}" if number == 0 else "longer"
        first = replace(study, stop=stop).run(ledger=ledger, run=name)
        again = replace(study, stop=stop).run(ledger=ledger, run=name)
        assert again.trace == first.trace and again.progress.told == first.progress.told


def test_a_strategy_may_follow_what_an_earlier_version_recorded(tmp_path: Path) -> None:
    class Following(Sweep):
        fingerprint = "follows"

        def follow(self, asked: int, recorded: int) -> int | None:
            return recorded if recorded < 10 else None

    def go(*candidates: int) -> list[int]:
        run = run_virtual(Study(Following(candidates), plain).run_async(ledger=tmp_path / "ledger.db", run="it"))
        return [result.candidate for result in of(run)]

    assert go(1, 2, 30) == [1, 2, 30]
    assert go(1, 5, 30) == [1, 2, 30]
    with pytest.raises(ReplayDivergence, match="trial 2 of this run was 30, but the strategy now asks 40"):
        go(1, 2, 40)


def test_when_a_run_is_over_none_of_its_evaluations_still_works() -> None:
    ended: list[int] = []

    async def stuck(candidate: int, case: Case) -> float:
        try:
            await asyncio.sleep(candidate * 3600.0)
        finally:
            ended.append(candidate)
        return 1.0

    async def main() -> list[int]:
        await Study(Sweep(range(3)), stuck, window=3, stop=Target(1.0)).run_async("async:3", grace=1.0)
        return sorted(ended)

    assert run_virtual(main()) == [0, 1, 2]


def test_a_run_that_cannot_continue_says_how_its_evaluations_are_kept(tmp_path: Path) -> None:
    def study(aggregate: Any = max, seed: int = 0) -> Study[Any]:
        return Study(Sweep([1, 2]), lambda candidate, case: candidate, aggregate=aggregate, seed=seed)

    study().run(ledger=tmp_path / "runs.db", run="a")
    with pytest.raises(ReplayDivergence, match=r"aggregate .* new run name, with reuse='ledger'"):
        study(min).run(ledger=tmp_path / "runs.db", run="a")
    assert study(min).run(ledger=tmp_path / "runs.db", run="b", reuse="ledger").progress.reused == 2
    more = replace(study(), cases=[None, "another"])
    with pytest.raises(ReplayDivergence, match=r"its cases are others.* reuse='ledger'"):
        more.run(ledger=tmp_path / "runs.db", run="a")
    assert more.run(ledger=tmp_path / "runs.db", run="c", reuse="ledger").progress.reused == 2
    with pytest.raises(ReplayDivergence, match=r"new run name$"):
        study(min, seed=1).run(ledger=tmp_path / "runs.db", run="a")
