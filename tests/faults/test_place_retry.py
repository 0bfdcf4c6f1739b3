"""What failed because of the world is evaluated again when asked for, and the search that was told stays as it was."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from searches import SPACE, score_of

from fanfold import (
    Case,
    Failed,
    Genetic,
    Halving,
    Ledger,
    MaxEvaluations,
    MaxTrials,
    Ok,
    Racing,
    Random,
    Strategy,
    Study,
    Sweep,
)
from fanfold.errors import CallFailed, ConfigError, OnlyFailures
from fanfold.events import Event, Notice
from fanfold.running import Run
from fanfold.schedules import AllCases
from fanfold.summary import Summary
from fanfold.testing import run_virtual
from fanfold.types import Result


@dataclass(frozen=True)
class Weather:
    """Scores, but while the weather is bad one evaluation in three fails, each for one of two reasons."""

    bad: bool = False
    calls: Counter[str] = field(default_factory=Counter)
    fingerprint: str = "weather"

    def __call__(self, candidate: Any, case: Case) -> Ok | Failed:
        cell = f"{candidate} {case.id}"
        self.calls[cell] += 1
        number = sum(cell.encode())
        if self.bad and number % 3 == 0:
            return Failed("network" if number % 2 else "timeout", "the line is down", cost=0.25)
        return score_of(candidate, case)


class Saving(Random):
    """A strategy that a resume takes over from its last save."""

    def save(self) -> bytes:
        return json.dumps(self.rng.getstate()).encode()

    def load(self, state: bytes) -> None:
        version, words, gauss = json.loads(state)
        self.rng.setstate((version, tuple(words), gauss))


SEARCHES: dict[str, Callable[[], dict[str, Any]]] = {
    "genetic": lambda: {"strategy": Genetic(SPACE, population=8)},
    "as they come": lambda: {"strategy": Genetic(SPACE, population=8), "in_order": False},
    "racing": lambda: {"strategy": Random(SPACE), "schedule": Racing(bounds=(0.0, 1.0), step=2), "window": 8},
    "saving": lambda: {"strategy": Saving(SPACE), "schedule": AllCases()},
}


def study(which: str, evaluate: Any, trials: int, **options: Any) -> Study[Any]:
    return Study(evaluate=evaluate, cases=range(3), stop=MaxTrials(trials), **SEARCHES[which](), **options)


def run(which: str, evaluate: Any, trials: int, ledger: Path, **options: Any) -> Run[Any]:
    return study(which, evaluate, trials).run("inline", ledger=ledger, run="it", max_failures=None, **options)


def failed(results: Sequence[Result[Any]]) -> int:
    return sum(len(result.failures) for result in results if result.dropped is None)


@pytest.mark.slow
@pytest.mark.parametrize("which", SEARCHES)
def test_in_place_of_failures_come_results_and_the_search_stays_as_it_was(which: str, tmp_path: Path) -> None:
    first, untouched = tmp_path / "first.db", tmp_path / "untouched.db"
    before = run(which, Weather(bad=True), 70, first)
    results = list(before.results())
    assert failed(results) > 10 or which == "racing"
    before.ledger.close()
    shutil.copy(first, untouched)
    plain = run(which, Weather(), 100, untouched)

    again = Weather()
    retried = run(which, again, 100, first, retry_failed=True)
    assert retried.trace == plain.trace
    assert all(count == 1 for count in again.calls.values())
    results = list(retried.results())
    assert failed(results) == 0 and len(results) == 100
    complete = [result for result in results if result.dropped is None]
    assert all(result.score is not None for result in complete)
    assert retried.best is not None and retried.best.score == max(result.score or 0.0 for result in complete)
    info = retried.ledger.run("it")
    assert info.best == retried.best.score
    assert (info.failures, info.evaluations) == (retried.progress.failures, retried.progress.evaluations)
    assert info.cost == pytest.approx(retried.progress.cost)
    retried.ledger.close()

    third = Weather()
    replayed = run(which, third, 100, first)
    assert not third.calls
    assert (replayed.trace, replayed.best) == (retried.trace, retried.best)
    assert replayed.progress.failures == retried.progress.failures
    assert replayed.progress.cost == pytest.approx(retried.progress.cost)


@dataclass(frozen=True)
class Point:
    x: float
    near: Path


class Points(Strategy[Point]):
    """Proposes objects, whose class no ledger knows; some trials are open when a run ends."""

    window = 5

    def ask(self, n: int) -> list[Point]:
        return [Point(self.rng.random(), Path("here")) for _ in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"in_order": False}, {"schedule": Halving(eta=2, cohort=5)}, {"schedule": Racing(bounds=(0, 1))}]
)
def test_a_failed_candidate_that_is_an_object_is_evaluated_again_as_one(
    options: dict[str, Any], tmp_path: Path
) -> None:
    down = True

    def evaluate(candidate: Point, case: Case) -> float:
        if down and candidate.x > 0.3 and case.data == 2:
            raise OSError("the line is down")
        return candidate.x * len(candidate.near.parts) - case.data / 100

    def run(name: str, **more: Any) -> Run[Any]:
        study = Study(Points(), evaluate, cases=range(3), stop=MaxEvaluations(41), **options)
        evaluate.fingerprint = "the same"  # type: ignore[attr-defined]
        return study.run("inline", ledger=tmp_path / "ledger.db", run=name, max_failures=None, **more)

    before = run("it")
    assert before.progress.failures > 1
    first = [result.score for result in before.results()]
    down = False
    after = run("it", retry_failed=True)
    assert failed(list(after.results())) == 0 and isinstance(after.best.candidate, Point)
    if "schedule" not in options:
        assert [result.score for result in after.results()] == [result.score for result in run("whole").results()]
    assert None in first and run("it").trace == after.trace


@pytest.mark.slow
def test_what_failures_have_cost_is_not_forgotten(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    before = run("genetic", Weather(bad=True), 20, ledger)
    spent, failures = before.progress.cost, before.progress.failures
    before.ledger.close()
    after = run("genetic", Weather(), 20, ledger, retry_failed=True)
    assert failures > 3
    assert after.progress.cost == pytest.approx(spent + failures * 0.001)


@pytest.mark.slow
def test_only_the_kinds_that_are_named_are_evaluated_again(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    run("genetic", Weather(bad=True), 40, ledger).ledger.close()
    after = run("genetic", Weather(), 40, ledger, retry_failed=["timeout"])
    kinds = {failure.kind for result in after.results() for failure in result.failures.values()}
    assert kinds == {"network"}
    after.ledger.close()
    with pytest.raises(ConfigError, match="no evaluation of this run failed with timeot; known: network"):
        run("genetic", Weather(), 40, ledger, retry_failed=["timeot"])
    with pytest.raises(ConfigError, match="retry_failed must be"):
        run("genetic", Weather(), 40, ledger, retry_failed="timeout")
    assert failed(list(run("genetic", Weather(), 40, ledger, retry_failed=True).results())) == 0


@pytest.mark.slow
def test_what_fails_again_stays_failed_and_can_be_tried_once_more(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    first = run("genetic", Weather(bad=True), 40, ledger)
    traces, failures = {first.trace}, first.progress.failures
    first.ledger.close()
    second = run("genetic", Weather(bad=True), 40, ledger, retry_failed=True)
    assert second.progress.failures == failures
    second.ledger.close()
    third = run("genetic", Weather(), 40, ledger, retry_failed=True)
    assert third.progress.failures == 0
    assert traces == {second.trace} == {third.trace}


@pytest.mark.slow
@pytest.mark.parametrize("which", SEARCHES)
def test_a_retry_that_is_interrupted_is_continued(which: str, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    before = run(which, Weather(bad=True), 70, ledger)
    trace, failures = before.trace, failed(list(before.results()))
    before.ledger.close()

    class Enough(Exception):
        pass

    calls = 0

    async def slow(candidate: Any, case: Case) -> Ok:
        nonlocal calls
        calls += 1
        if calls > failures // 2:
            await asyncio.sleep(10_000)
        return score_of(candidate, case)

    slow.fingerprint = "weather"  # type: ignore[attr-defined]

    async def cut() -> None:
        work = study(which, slow, 70).run_async("async:1", ledger=ledger, run="it", retry_failed=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, 1000)

    if failures > 1:
        run_virtual(cut())
        halfway = run(which, Weather(), 70, ledger)
        assert halfway.trace == trace
        assert 0 < failed(list(halfway.results())) < failures
        halfway.ledger.close()
    after = run(which, Weather(), 70, ledger, retry_failed=True)
    assert after.trace == trace and failed(list(after.results())) == 0


class Listening(Sweep[int]):
    """Notes what it is told."""

    heard: list[tuple[int, float | None]] = []  # noqa: RUF012 - shared by the copies on purpose

    def tell(self, result: Result[int]) -> None:
        self.heard.append((result.number, result.score))


@pytest.mark.slow
def test_what_the_search_was_not_yet_told_it_is_told_as_it_came_out_the_second_time(tmp_path: Path) -> None:
    """Trial 0 hangs, so that none of the others could be told when the run was cut off."""
    ledger = tmp_path / "ledger.db"
    Listening.heard.clear()

    async def evaluate(candidate: int, case: Case) -> float:
        if candidate == 0 and bad:
            await asyncio.sleep(10_000)
        if candidate % 2 and bad:
            raise ConnectionError("the line is down")
        return float(candidate)

    evaluate.fingerprint = "listened"  # type: ignore[attr-defined]
    work = Study(Listening(range(8)), evaluate, window=8)

    async def cut() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work.run_async("async:8", ledger=ledger, run="it"), 100)

    bad = True
    run_virtual(cut())
    bad = False
    run_virtual(work.run_async("async:8", ledger=ledger, run="it", retry_failed=True)).ledger.close()
    assert Listening.heard == [(number, float(number)) for number in range(8)]
    with Ledger(ledger, readonly=True) as left:
        assert list(left.read("SELECT * FROM superseded")) == []


@pytest.mark.slow
def test_rows_that_were_compared_before_they_were_told_keep_their_place(tmp_path: Path) -> None:
    """Racing compares rows: an open one that failed has had its effect, so the search is told that it failed."""
    ledger, copy = tmp_path / "ledger.db", tmp_path / "copy.db"
    bad = True

    async def evaluate(candidate: Any, case: Case) -> Ok:
        if bad and case.id == "1" and candidate["n"] > 0:
            raise ConnectionError("the line is down")
        if bad and case.id == "0" and candidate["n"] > 1:
            await asyncio.sleep(10_000)  # its row stays open, with a failed cell in it
        return score_of(candidate, case)

    evaluate.fingerprint = "raced"  # type: ignore[attr-defined]
    work = study("racing", evaluate, 30)

    async def cut() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work.run_async("async:16", ledger=ledger, run="it", max_failures=None), 100)

    run_virtual(cut())
    bad = False
    shutil.copy(ledger, copy)
    plain = work.run("async:16", ledger=copy, run="it")
    retried = work.run("async:16", ledger=ledger, run="it", retry_failed=True)
    kept = list(retried.ledger.read("SELECT trial, failure FROM superseded"))
    assert kept and {failure for _, failure in kept} == {"error"}
    assert retried.trace == plain.trace
    retried.ledger.close()
    assert work.run("async:16", ledger=ledger, run="it").trace == plain.trace


# ---------------------------------------------------------------- a run that only fails


def broken(candidate: int, case: Case) -> float:
    raise KeyError(f"no column {candidate}")


@pytest.mark.slow
def test_a_run_that_only_fails_stops_with_the_first_traceback(tmp_path: Path) -> None:
    calls = 0

    def evaluate(candidate: int, case: Case) -> float:
        nonlocal calls
        calls += 1
        return broken(candidate, case)

    with pytest.raises(OnlyFailures) as caught:
        Study(Sweep(range(1000)), evaluate).run(ledger=tmp_path / "ledger.db", run="it")
    said = str(caught.value)
    assert said.count("Traceback") == 1 and "no column 0" in said and "retry_failed=True" in said
    assert calls < 40
    with Ledger(tmp_path / "ledger.db", readonly=True) as left:
        info = left.run("it")
        assert info.status == "failed" and "failed in the same way" in (info.reason or "")
        assert "Traceback" not in (info.reason or "")
        assert info.evaluations == calls


def test_calls_that_all_fail_say_why_without_a_traceback() -> None:
    async def evaluate(candidate: int, case: Case) -> float:
        raise CallFailed("not-found", "there is no such model (check the model's name)")

    with pytest.raises(OnlyFailures, match="check the model's name") as caught:
        Study(Sweep(range(1000)), evaluate).run("async:8")
    assert "Traceback" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "limit", "stops"),
    [
        (lambda n: n >= 30, 50, True),  # good at first, then only failures
        (lambda n: n >= 30, None, False),
        (lambda n: n % 40 != 0, 50, False),  # now and then one succeeds
        (lambda n: n < 24, 50, False),
        (lambda n: n < 25, 50, True),
        (lambda n: n < 6, 5, True),
    ],
)
def test_only_failures_in_the_same_way_without_any_success_stop_a_run(
    fails: Callable[[int], bool], limit: int | None, stops: bool
) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        return broken(candidate, case) if fails(candidate) else 1.0

    work = Study(Sweep(range(120)), evaluate)
    if stops:
        with pytest.raises(OnlyFailures):
            work.run(max_failures=limit)
    else:
        assert work.run(max_failures=limit).progress.evaluations == 120


@pytest.mark.parametrize("kind", ["malformed", "schema"])
def test_replies_that_cannot_be_used_stop_a_run_whatever_they_say(kind: str) -> None:
    async def evaluate(candidate: int, case: Case) -> float:
        raise CallFailed(kind, f"the judge's last line is not a verdict but {'no ' * candidate!r}")

    with pytest.raises(OnlyFailures, match="the first 25 evaluations failed in the same way"):
        Study(Sweep(range(120)), evaluate).run("async:1")


def test_failures_of_different_kinds_do_not_stop_a_run() -> None:
    def evaluate(candidate: int, case: Case) -> float:
        raise (KeyError if candidate % 2 else ValueError)("no")

    assert Study(Sweep(range(120)), evaluate).run().progress.failures == 120


@pytest.mark.slow
def test_a_run_that_only_failed_can_be_continued_when_the_cause_is_mended(tmp_path: Path) -> None:
    evaluate = Weather(bad=True)

    def down(candidate: Any, case: Case) -> Any:
        return Failed("network", f"the line is down since {case.id} s") if evaluate.bad else score_of(candidate, case)

    down.fingerprint = "down"  # type: ignore[attr-defined]
    ledger = tmp_path / "ledger.db"
    work = Study(Genetic(SPACE, population=8), down, cases=range(2), stop=MaxTrials(40))
    with pytest.raises(OnlyFailures):
        work.run(ledger=ledger, run="it")
    object.__setattr__(evaluate, "bad", False)
    done = work.run(ledger=ledger, run="it", retry_failed=True)
    assert (done.progress.told, done.progress.failures) == (40, 0)
    assert done.best is not None


@pytest.mark.slow
def test_a_retry_that_only_fails_stops_too(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    work = Study(Sweep(range(60)), broken)
    work.run(ledger=ledger, run="it", max_failures=None).ledger.close()
    with pytest.raises(OnlyFailures):
        work.run(ledger=ledger, run="it", retry_failed=True)


@pytest.mark.slow
def test_a_retry_says_how_much_it_does(tmp_path: Path) -> None:
    events: list[Event] = []
    run("genetic", Weather(bad=True), 20, tmp_path / "ledger.db").ledger.close()
    run("genetic", Weather(), 20, tmp_path / "ledger.db", retry_failed=True, watch=events.append)
    said = [event.message for event in events if isinstance(event, Notice)]
    assert any("failed evaluation(s) are made again" in message for message in said)


@pytest.mark.parametrize("retry_failed", [True, ["network"]])
def test_what_failed_in_a_run_that_belongs_to_another_is_evaluated_again_with_it(
    retry_failed: Any, tmp_path: Path
) -> None:
    weather = Weather(bad=True)

    async def conclude(run: Run[Any], go: Any) -> Summary:
        held_out = await go("held-out", Study(Sweep(points[:2]), weather, cases=range(12)))
        return Summary({"failed": [outcome.kind for each in held_out.results() for outcome in each.failures.values()]})

    points = [{"x": 0.1 * n, "y": 0.5, "n": n} for n in range(3)]
    work = Study(Sweep(points[2:]), Weather(), cases=range(2), conclude=conclude)
    first = work.run("async:1", ledger=tmp_path / "ledger.db", run="it")
    failed = first.summary.figures["failed"]  # type: ignore[union-attr]
    assert {"network", "timeout"} == set(failed)
    object.__setattr__(weather, "bad", False)
    done = work.run("async:1", ledger=tmp_path / "ledger.db", run="it", retry_failed=retry_failed)
    left = [] if retry_failed is True else [kind for kind in failed if kind != "network"]
    assert done.summary is not None and done.summary.figures["failed"] == left


# ---------------------------------------------------------------- in the shell

STUDY = """
from pathlib import Path
from fanfold import Study, Sweep

def evaluate(candidate, case):
    if not Path("mended").exists():
        raise ConnectionError(f"port {candidate} is closed")
    return float(candidate)

evaluate.fingerprint = "fixed"
study = Study(Sweep(range(60)), evaluate)
"""


def fanfold(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fanfold", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flag", [["last", "--retry-failed"], ["--retry-failed=error", "last"], ["--retry-failed", "last"]]
)
def test_in_the_shell_the_printed_command_fills_the_place_of_what_failed(flag: list[str], tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(STUDY)
    stopped = fanfold(tmp_path, "run", "study.py", "--run", "it", "--executor", "inline")
    assert stopped.returncode == 1, stopped.stderr
    assert stopped.stderr.count("Traceback") == 1 and "port 0 is closed" in stopped.stderr
    assert "fanfold resume it --retry-failed --ledger fanfold.db" in stopped.stderr
    (tmp_path / "mended").touch()
    done = fanfold(tmp_path, "resume", *flag, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["trials"], result["failures"]) == (60, 0)
