"""What people ask of a running run from elsewhere: it is obeyed, and a resume is exact."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fanfold import (
    Case,
    ConfigError,
    Float,
    Genetic,
    Interrupted,
    MaxCost,
    MaxTrials,
    Ok,
    Run,
    RunView,
    Space,
    Study,
    Sweep,
)
from fanfold.events import EvaluationFinished, Event, Notice, Ticked
from fanfold.ledger import add_comment, add_request, requests_of
from fanfold.money import Budget
from fanfold.remote import ask_person
from fanfold.stop import MaxEvaluations, MaxTime, Plateau, raised


class Held:
    """Asks for a higher limit once so many evaluations have begun, and lets no further one end before it is obeyed."""

    def __init__(self, path: Path, at: int, limits: dict[str, Any]) -> None:
        self.path, self.at, self.limits = path, at, limits
        self.begun = 0
        self.obeyed = False

    async def __call__(self) -> None:
        self.begun += 1
        if self.begun == self.at:
            add_request(self.path, "it", "budget", self.limits)
        while self.begun >= self.at and not self.obeyed:
            await asyncio.sleep(0.01)

    def watch(self, event: Event) -> None:
        self.obeyed = self.obeyed or (isinstance(event, Notice) and "limits raised" in event.message)


def search(trials: int = 12, pause: float = 0.0, held: Held | None = None) -> Study[Any]:
    async def evaluate(candidate: dict[str, float], case: Case) -> float:
        if held is not None:
            await held()
        await asyncio.sleep(pause)
        return candidate["x"]

    evaluate.fingerprint = "the same"  # type: ignore[attr-defined]
    return Study(
        Genetic(Space(x=Float(0, 1)), population=4, steady=True), evaluate, stop=MaxTrials(trials), window=4, seed=1
    )


def when(finished: int, act: Callable[[], object]) -> Callable[[Event], None]:
    """A watcher that does something once so many evaluations have finished."""
    count = [0]

    def watch(event: Event) -> None:
        count[0] += isinstance(event, EvaluationFinished)
        if isinstance(event, EvaluationFinished) and count[0] == finished:
            act()

    return watch


def candidates(run: Run[Any]) -> list[Any]:
    with run.ledger:
        return [row.candidate for row in run.view.trials()]


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_ends_as_on_ctrl_c_and_resumes_to_the_same_end(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with pytest.raises(Interrupted) as stopped:
        search(60, 0.05).run("async:2", ledger=path, run="it", watch=when(3, lambda: add_request(path, "it", "stop")))
    assert stopped.value.run_id == "it" and stopped.value.code == 128 + signal.SIGINT
    with RunView.open(path, "it") as view:
        assert view.status == "stopped" and view.info.reason == "interrupted" and 0 < view.info.trials < 60
        (request,) = requests_of(view.ledger, view.id)
        assert request.what == "stop" and request.taken is not None
    resumed = search(60).run(ledger=path, run="it")
    straight = search(60).run(ledger=tmp_path / "other.db")
    assert resumed.trace == straight.trace
    assert candidates(resumed) == candidates(straight)


@pytest.mark.slow
def test_a_stop_that_came_too_late_does_not_end_the_run_when_it_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    search(4).run(ledger=path, run="it").ledger.close()
    add_request(path, "it", "stop")
    run = search(8, 0.2).run("async:1", ledger=path, run="it")
    with run.ledger:
        assert run.progress.told == 8
        assert [request.taken is not None for request in requests_of(run.ledger, run.view.id)] == [True]


SCRIPT = """
import asyncio
from fanfold import Case, Study, Sweep

async def evaluate(candidate, case):
    await asyncio.sleep(0.05)
    return float(candidate)

study = Study(Sweep(range(2000)), evaluate, window=4)
"""


@pytest.mark.slow
def test_another_process_stops_a_run_of_the_shell(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "fanfold", "run", "mine.py:study", "--run", "it", "--ledger", "runs.db"]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        path = tmp_path / "runs.db"
        while process.poll() is None and not _evaluated(path):
            time.sleep(0.1)
        assert process.poll() is None, process.stderr and process.stderr.read()
        add_request(path, "it", "stop")
        _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT and "interrupted" in error and "it" in error
    with RunView.open(path, "it") as view:
        assert view.status == "stopped"


def _evaluated(path: Path) -> int:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            return int(db.execute("SELECT count(*) FROM evaluation").fetchone()[0])
    except sqlite3.Error:
        return 0


# -- going further -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 9, 11, 12])
@pytest.mark.slow
def test_a_limit_that_is_raised_while_the_run_works_holds_and_a_resume_is_exact(at: int, tmp_path: Path) -> None:
    """Trials asked near the old limit were asked late: a resume that asked them early would breed other candidates."""
    path = tmp_path / "runs.db"
    held = Held(path, at, {"max_trials": 40})
    first = search(12, held=held).run("async:4", ledger=path, run="it", watch=held.watch)
    assert first.progress.told == 40, "the higher limit is obeyed"
    seen = candidates(first)
    again = search(12).run(ledger=path, run="it")
    assert (again.progress.told, again.trace) == (40, first.trace) and candidates(again) == seen
    further = search(50).run(ledger=path, run="it")
    assert further.progress.told == 50 and candidates(further)[:40] == seen


@pytest.mark.slow
def test_a_raised_run_that_is_stopped_continues_to_the_raised_limit(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    held = Held(path, 2, {"max_trials": 400})
    stop = when(14, lambda: add_request(path, "it", "stop"))
    with pytest.raises(Interrupted):
        search(12, 0.05, held).run(
            "async:4", ledger=path, run="it", watch=lambda event: (held.watch(event), stop(event))
        )
    with RunView.open(path, "it") as view:
        assert 12 < view.info.trials < 400
    run = search(12).run(ledger=path, run="it")
    with run.ledger:
        assert run.progress.told == 400


def test_a_limit_asked_for_before_a_resume_counts_then(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    search(6).run(ledger=path, run="it").ledger.close()
    add_request(path, "it", "budget", {"max_trials": 9})
    run = search(6).run(ledger=path, run="it")
    with run.ledger:
        assert run.progress.told == 9


ODD = [{"max_cost": 3.0}, {"max_trials": 2}, {"max_trials": "many"}, {"colour": 3}, [1], None]


@pytest.mark.slow
@pytest.mark.parametrize("limits", ODD)
def test_what_cannot_be_raised_is_said_and_changes_nothing(limits: Any, tmp_path: Path) -> None:
    path, notices = tmp_path / "runs.db", []
    ask = when(1, lambda: add_request(path, "it", "budget", limits))

    def watch(event: Event) -> None:
        ask(event)
        if isinstance(event, Notice):
            notices.append(event.message)

    run = search(12, 0.15).run("async:2", ledger=path, run="it", watch=watch)
    with run.ledger:
        assert run.progress.told == 12
    assert any("limit" in notice and "asked for" in notice for notice in notices)


def test_only_alternatives_are_raised_and_what_rules_have_counted_stays() -> None:
    plateau = Plateau(3)
    rule = raised(MaxTrials(5) | plateau | MaxTime("1m"), {"max_trials": 9, "max_time": "2h", "max_cost": 1.0})
    assert repr(rule) == "Plateau(3) | MaxTrials(9) | MaxTime('2h')"
    assert rule.rules[0] is plateau  # type: ignore[attr-defined]
    assert raised(rule, {"max_trials": 4}) is rule
    both = MaxTrials(5) & MaxEvaluations(7)
    assert raised(both, {"max_trials": 9}) is both, "inside & it is a minimum"


@pytest.mark.slow
def test_a_budget_is_raised_while_the_run_works(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    held = Held(path, 3, {"max_cost": 20.0})

    async def evaluate(candidate: int, case: Case) -> Ok:
        await held()
        return Ok(1.0, cost=1.0)

    study = Study(Sweep(range(50)), evaluate, stop=MaxCost(4.0), window=1)
    run = study.run("async:1", ledger=path, run="it", watch=held.watch)
    with run.ledger:
        assert run.progress.cost == 20.0 and run.reason == "cost limit of 20"


def test_a_higher_budget_wakes_those_who_wait_for_money() -> None:
    class Priced:
        worst, model, key = 1.0, "m", b"k"

    async def main() -> None:
        budget = Budget(1.5)
        call: Any = Priced()
        await budget.reserve(call)
        waiting = asyncio.create_task(budget.reserve(call))
        await asyncio.sleep(0)
        assert not waiting.done()
        budget.extend(0.5)
        await asyncio.sleep(0)
        assert budget.limit == 1.5 and not waiting.done()
        budget.extend(2.0)
        assert await asyncio.wait_for(waiting, 5) == 1.0

    asyncio.run(main())


# -- answers -----------------------------------------------------------------------------------------------------------


async def judged(candidate: int, case: Case) -> float:
    return float(await ask_person({"query": f"how good is {candidate}?", "ask": "rating"}))


@pytest.mark.slow
def test_an_evaluation_asks_people_and_continues_with_their_answer(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    asked: list[dict[str, Any]] = []

    def watch(event: Event) -> None:
        if not isinstance(event, Ticked):
            return
        with RunView.open(path, "it") as view:
            for question in view.questions():
                if question.value not in asked:
                    asked.append(question.value)
                    place = {"trial": question.value["trial"], "position": question.value["position"]}
                    add_request(path, "it", "feedback", {**place, "value": 1 + question.value["trial"]})

    run = Study(Sweep([1, 2]), judged, cases=[5, 6]).run("async:4", ledger=path, run="it", watch=watch)
    with run.ledger:
        assert run.best.score == 2.0 and len(asked) == 4
        assert asked[0]["query"].startswith("how good is") and asked[0]["ask"] == "rating"
        assert run.view.questions() == []
        assert all(request.taken is not None for request in requests_of(run.ledger, run.view.id))


@pytest.mark.slow
def test_a_question_of_a_run_that_stopped_is_asked_again_and_an_answer_is_not(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    study = Study(Sweep([1]), judged)

    def stop(event: Event) -> None:
        if isinstance(event, Ticked):
            with RunView.open(path, "it") as view:
                if view.questions():
                    add_request(path, "it", "stop")

    with pytest.raises(Interrupted):
        study.run("async:1", ledger=path, run="it", grace=0.1, watch=stop)
    with RunView.open(path, "it") as view:
        assert len(view.questions()) == 1, "it is still open"
    add_request(path, "it", "feedback", {"trial": 0, "position": 0, "value": 4})
    run = study.run("async:1", ledger=path, run="it")
    with run.ledger:
        assert run.best.score == 4.0 and run.view.questions() == []


def test_a_run_without_a_ledger_has_nobody_to_ask() -> None:
    run = Study(Sweep([1]), judged).run("async:1")
    with run.ledger:
        (kind,) = run.view.failures()
        assert "give the run a ledger" in kind.message


# -- comments ----------------------------------------------------------------------------------------------------------


def test_comments_are_kept_with_the_run_and_followed_like_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    search(4).run(ledger=path, run="it").ledger.close()
    with RunView.open(path, "it") as view:
        mark = view.mark
        first, second = add_comment(path, "it", None, "looks good"), add_comment(path, "it", 3, "why?\n<b>")
        assert view.comments() == [first, second] and view.comments(3) == [second] and view.comments(1) == []
        assert second.text == "why?\n<b>" and view.mark > mark
    search(6).run(ledger=path, run="it").ledger.close()


@pytest.mark.slow
def test_a_comment_is_written_while_the_run_writes(tmp_path: Path) -> None:
    path, written = tmp_path / "runs.db", []

    def write() -> None:
        written.extend(add_comment(path, "it", number % 3, f"comment {number}") for number in range(20))

    thread = threading.Thread(target=write)
    run = search(200, 0.002).run("async:4", ledger=path, run="it", watch=when(3, thread.start))
    thread.join()
    with run.ledger:
        assert [comment.text for comment in run.view.comments()] == [f"comment {number}" for number in range(20)]
        assert run.progress.told == 200


def test_what_is_asked_of_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    search(4).run(ledger=path, run="it").ledger.close()
    with pytest.raises(Exception, match="is not in"):
        add_request(path, "other", "stop")
    with pytest.raises(ConfigError):
        add_request(path, "it", "feedback", object())
