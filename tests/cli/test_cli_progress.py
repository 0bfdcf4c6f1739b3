"""Progress: what is shown, how often, and that it can never disturb a run."""

from __future__ import annotations

import re

import pytest

from fanfold import MaxTime, MaxTrials, Study, Sweep
from fanfold.display import Lines, Live, State, display
from fanfold.events import (
    EvaluationFinished,
    Event,
    Notice,
    PersonAsked,
    Progress,
    RunConcluded,
    RunStarted,
    RunStopped,
    Ticked,
    TrialTold,
)
from fanfold.types import Failed, Ok, Result, Trial


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


STARTED = RunStarted("it", "runs.db", "threads:2", 2, resumed=False)
RESUMED = RunStarted("it", "runs.db", "threads:2", 2, resumed=True)


def ticked(told: int, **more: float) -> Ticked:
    return Ticked(Progress(asked=told + 2, told=told, evaluations=told, **more), running=2, queued=0)  # type: ignore[arg-type]


def test_lines_come_at_the_start_every_ten_seconds_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = Lines(MaxTrials(100), clock)
    lines.see(STARTED)
    for told in range(1, 51):
        clock.now += 0.5
        lines.see(EvaluationFinished(told, "0", Ok(1.0), 0.5))
        lines.see(ticked(told, best=1.5))
    lines.see(RunStopped("100 trials", Progress(asked=100, told=100, evaluations=100, best=2.0)))
    out, err = capsys.readouterr()
    shown = err.splitlines()
    assert out == "" and len(shown) == 4
    assert shown[0] == "running it on threads:2, ledger runs.db"
    assert "20/100 trials" in shown[1] and "2.0/s" in shown[1] and "best 1.5" in shown[1] and "eta 40 s" in shown[1]
    assert "100/100 trials" in shown[3] and "eta" not in shown[3]


def test_lines_become_rarer_as_a_run_grows_older(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = Lines(MaxTrials(1000), clock)
    lines.see(STARTED)
    for second in range(1, 3601):
        clock.now += 1
        lines.see(ticked(second // 10))
    assert 10 <= len(capsys.readouterr().err.splitlines()) <= 25  # not 360 for an hour


def test_a_run_beside_the_first_says_only_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = Lines(MaxTrials(100), clock)
    lines.see(STARTED)
    lines.see(RunStarted("it.held-out-9", "runs.db", "threads:2", 2, resumed=False))
    clock.now += 11
    lines.see(ticked(3))
    lines.see(RunStopped("9 trials", Progress(asked=9, told=9)))
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "running it on threads:2",
        "held-out: 3 trials",
    ]


def test_the_last_thing_shown_is_the_run_itself_and_not_one_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fanfold.display._at_a_terminal", lambda: True)
    with display(MaxTrials(24), colourless=True) as watch:
        assert watch is not None
        watch(STARTED)
        watch(RunStopped("max-trials", Progress(asked=24, told=24, evaluations=24)))
        for number in (1, 2):
            watch(RunStarted(f"it.final-{number}", None, "threads:2", 2, resumed=False))
            watch(RunStopped("exhausted", Progress(asked=1, told=1, evaluations=1)))
        watch(RunConcluded("it", {}))
    assert capsys.readouterr().err.rstrip().endswith("24/24 trials, 24 evaluations")


def test_a_note_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    study = Study(Sweep([1]), lambda candidate, case: 1.0)
    with display(study.stop) as watch:
        assert watch is not None
        for event in (STARTED, Notice("mind the gap"), STARTED, Notice("mind the gap"), Notice("another")):
            watch(event)
    assert capsys.readouterr().err.count("note: ") == 2


def test_what_a_run_waits_for_is_shown_while_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    lines = Lines(MaxTrials(100), clock)
    lines.see(STARTED)
    for wait in ("waiting for an outage of openai since 40 s, next try in 12 s", None):
        clock.now += 11
        lines.see(Ticked(Progress(asked=4, told=2, evaluations=2), running=2, queued=0, waiting=wait))
    shown = capsys.readouterr().err.splitlines()
    assert "waiting for an outage of openai since 40 s, next try in 12 s" in shown[1]
    assert "waiting" not in shown[2]


def test_failures_are_counted_and_the_last_one_is_quoted() -> None:
    state = State(MaxTrials(9), Clock())
    state.take(STARTED)
    state.take(EvaluationFinished(0, "0", Failed("error", "ValueError: no\nreally"), 0.1))
    state.take(ticked(1, failures=1))
    assert state.failures() == "1 failure, last error: ValueError: no really"


def test_a_resumed_run_is_replaying_until_something_new_begins() -> None:
    state = State(MaxTrials(9), Clock())
    state.take(RESUMED)
    state.take(Ticked(Progress(asked=4, told=4, evaluations=4), running=0, queued=0))
    assert state.replaying and state.counts().startswith("replaying") and state.per_second == 0
    state.take(EvaluationFinished(4, "0", Ok(1.0), 0.1))
    assert not state.replaying


def test_the_rule_that_ends_first_decides_how_much_is_left() -> None:
    state = State(MaxTrials(100) | MaxTime(60), Clock())
    state.take(STARTED)
    state.take(ticked(10, elapsed=30.0))
    assert state.share == 0.5 and state.remaining == 30.0


def test_without_a_rule_no_total_is_promised() -> None:
    study = Study(Sweep([1]), lambda candidate, case: 1.0)
    state = State(study.stop, Clock())
    state.take(ticked(3))
    assert state.total is None and state.share is None and "3 trials" in state.counts()


def test_a_display_that_fails_never_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Event] = []

    def fail(self: Lines, event: Event) -> None:
        seen.append(event)
        raise OSError("the terminal is gone")

    monkeypatch.setattr(Lines, "see", fail)
    study = Study(Sweep(range(5)), lambda candidate, case: 1.0)
    with display(study.stop) as watch:
        run = study.run(watch=watch)
    assert run.progress.told == 5 and len(seen) == 1


@pytest.mark.parametrize("text", ["[red]not markup[/nope]", "[/]"])
def test_the_live_block_shows_texts_as_they_are(capsys: pytest.CaptureFixture[str], text: str) -> None:
    live = Live(MaxTrials(10), colourless=True)
    live.see(STARTED)
    live.see(Notice(text))
    live.see(EvaluationFinished(0, "0", Failed("error", text), 0.1))
    live.see(ticked(5, failures=1, cost=2.5))
    live.close()
    assert text in capsys.readouterr().err


def test_the_bar_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    live = Live(MaxTrials(10), colourless=True)
    live.see(STARTED)
    live.see(ticked(5))
    live.close()
    assert re.search(r"^\[#+\.+\] 50%$", capsys.readouterr().err, re.MULTILINE)


def test_the_block_leaves_the_terminal_to_a_person_who_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was redrawn over the question, which nobody could read."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    live = Live(MaxTrials(10), colourless=True)
    live.see(STARTED)
    live.see(ticked(1))
    live.see(PersonAsked(done=False))
    live.see(PersonAsked(done=False))
    live.see(PersonAsked(done=True))
    capsys.readouterr()
    live.see(ticked(2))  # one question is still open
    assert capsys.readouterr().err == ""
    live.see(PersonAsked(done=True))
    live.see(ticked(7))
    drawn = capsys.readouterr().err
    live.close()
    assert "7/10 trials" in drawn
    assert "\x1b[1A" not in drawn  # what was typed stays


def test_what_a_study_says_of_a_finished_trial_is_shown_while_its_own_run_goes_on() -> None:
    state = State(MaxTrials(9), Clock(), lambda result: f"return {result.score}\nand more")
    state.take(TrialTold(Result(Trial(0, 1), 2.5, {}), Progress(told=1)))
    assert state.counts().endswith("last return 2.5 and more")
    state.over = True
    assert "last" not in state.counts()


@pytest.mark.parametrize(
    ("environment", "terminal", "shown"),
    [({}, True, True), ({}, False, False), ({"CI": "true"}, True, False), ({"TERM": "dumb"}, True, False)],
)
def test_python_shows_progress_only_to_a_person_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], terminal: bool, shown: bool
) -> None:
    for name in ("CI", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    seen: list[Event] = []
    monkeypatch.setattr(Live, "see", lambda self, event: seen.append(event))
    study = Study(Sweep(range(5)), lambda candidate, case: 1.0)
    study.run()
    assert bool(seen) == shown
    seen.clear()
    study.run(progress=False)
    assert not seen
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "this one")
    study.run()
    assert not seen


def test_progress_that_is_asked_for_is_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    study = Study(Sweep(range(5)), lambda candidate, case: 1.0)
    study.run(progress=True, run="mine")
    study.run()
    shown = capsys.readouterr().err.splitlines()
    note = "note: run 'mine' is not kept: give run() a ledger='runs.db' to continue it later"
    assert shown == ["running mine on inline, ledger none", note, "5 trials, 5 evaluations, best 1"]
