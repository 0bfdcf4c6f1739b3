"""Large runs: a resume takes over from a checkpoint and continues as the uninterrupted run would have."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanfold.dispatcher
import fanfold.resuming
from fanfold import Case, Float, MaxTrials, Ok, Plateau, Random, Result, Space, Study, Sweep
from fanfold.checkpoints import Saver
from fanfold.encoding import derive_seed, encode
from fanfold.errors import ReplayDivergence
from fanfold.events import Event, Notice, Progress
from fanfold.ledger import Ledger, RunJournal
from fanfold.schedule import Schedule
from fanfold.schedules import Acceptance, AllCases, Halving, PairedDropping, Racing
from fanfold.search_loop import SearchLoop
from fanfold.snapshots import Checkpoint
from fanfold.stop import Rule
from fanfold.strategies import Cmaes, Genetic, GpUcb, Optuna, Reflective
from fanfold.strategies.generations import Convergence, Generations
from fanfold.strategies.reflective import Written
from fanfold.strategy import Strategy
from fanfold.types import Failed

SPACE = Space(x=Float(0, 1), y=Float(0, 1))
ARMS = [{"x": i / 60, "y": 1 - i / 60} for i in range(60)]
TRIALS, CASES = 48, 9


def kernel(scale: float) -> Any:
    x = np.array([arm["x"] for arm in ARMS])
    return np.exp(-scale * np.abs(x[:, None] - x[None, :]))


STRATEGIES: dict[str, Callable[[], Strategy[Any]]] = {
    "random": lambda: Random(SPACE),
    "sweep": lambda: Sweep(ARMS),
    "grid": lambda: Sweep.grid(SPACE, 8),
    "genetic": lambda: Genetic(SPACE, population=8),
    "steady genetic": lambda: Genetic(SPACE, population=8, steady=True, selection="sus"),
    "genetic until": lambda: Genetic(SPACE, population=8, until=Generations(Convergence(generations=9), 2)),
    "gp-ucb": lambda: GpUcb(ARMS, kernel, [1.0, 3.0]),
    "cmaes": lambda: Cmaes(SPACE),
    "optuna": lambda: Optuna(SPACE),
    "reflective": lambda: Reflective([{"a": "x", "b": "y"}], merging=0.4, propose=2),
    "reflective beside": lambda: Reflective([{"x": 0.5, "y": 0.5}], beside=Random(SPACE)),
}
SCHEDULES: dict[str, Callable[[], Schedule]] = {
    "all": AllCases,
    "racing": lambda: Racing(step=2),
    "halving": lambda: Halving(cohort=5),
    "asynchronous": lambda: Halving(asynchronous=True),
    "paired": lambda: PairedDropping(step=2, margin=0.5),
    "acceptance": lambda: Acceptance(Racing(step=2)),
}


def evaluate(candidate: Any, case: Case) -> Ok | Failed:
    text = encode(candidate)
    if derive_seed(1, text, case.id) % 23 == 0:
        return Failed("odd", "as it happens")
    parts = {"a": text[-20:], "b": case.id} if isinstance(candidate, Written) else None
    score = derive_seed(2, text, case.id) / 2**64
    return Ok(score, None if parts is None else {"parts": parts}, cost=0.25)


async def unevenly(candidate: Any, case: Case) -> Ok | Failed:
    for _ in range(derive_seed(3, encode(candidate), case.id) % 5):
        await asyncio.sleep(0)
    return evaluate(candidate, case)


@dataclass(repr=False)
class Until(Rule):
    """Stops after so many tells, whatever is open: as Ctrl-C does."""

    told: int

    def check(self, progress: Progress) -> str | None:
        return "enough" if progress.told >= self.told else None


class Tells:
    """Counts what a run tells, and keeps what it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.numbers: list[int] = []
        self.said: list[str] = []
        told = RunJournal.told

        def counted(journal: RunJournal, order: int, result: Result[Any]) -> None:
            self.numbers.append(result.number)
            told(journal, order, result)

        monkeypatch.setattr(RunJournal, "told", counted)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.said.append(event.message)


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> Tells:
    monkeypatch.setattr(fanfold.dispatcher, "SAVE_EVERY", 1)  # at the end of every part, however short
    return Tells(monkeypatch)


def study(strategy: str, schedule: str = "all", in_order: bool = True, **fields: Any) -> Study[Any]:
    parts: dict[str, Any] = {
        "stop": MaxTrials(TRIALS),
        "window": 10,
        "failed_score": 0.1 if schedule == "all" else None,
    }
    return Study(
        STRATEGIES[strategy](), evaluate, cases=range(CASES), schedule=SCHEDULES[schedule](), in_order=in_order,
        **(parts | fields),
    )  # fmt: skip


PAIRS = [(strategy, "all") for strategy in STRATEGIES] + [
    (strategy, schedule)
    for strategy in ("random", "genetic", "reflective")
    for schedule in SCHEDULES
    if schedule != "all"
]


@pytest.mark.parametrize(("strategy", "schedule"), PAIRS)
@pytest.mark.slow
def test_a_resume_from_checkpoints_is_the_uninterrupted_run(
    strategy: str, schedule: str, tmp_path: Path, tells: Tells
) -> None:
    whole = study(strategy, schedule).run()
    parted = replace(study(strategy, schedule), evaluate=unevenly)
    path = tmp_path / "ledger.db"
    for told in (7, 18, 19, 33):
        tells.numbers.clear()
        replace(parted, stop=Until(told)).run("async:20", ledger=path, run="it", watch=tells).ledger.close()
    assert len(tells.numbers) == 33 - 19, tells.said  # nothing was told again
    resumed = parted.run("async:20", ledger=path, run="it", watch=tells)
    assert (resumed.trace, resumed.best) == (whole.trace, whole.best)
    assert replace(resumed.progress, elapsed=0.0) == replace(whole.progress, elapsed=0.0)
    assert [result.trial for result in resumed.results()] == [result.trial for result in whole.results()]
    replayed = parted.run("async:20", ledger=path, run="it", replay=True)
    assert (replayed.trace, replayed.best) == (whole.trace, whole.best)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_run_is_saved_while_it_works(in_order: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between a checkpoint and its end, it continues from the checkpoint."""
    path = tmp_path / "ledger.db"
    whole = study("steady genetic", in_order=in_order).run()
    tells = Tells(monkeypatch)
    monkeypatch.setattr(Saver, "due", lambda saver, told: told % 10 == 0)
    with pytest.raises(Killed):
        replace(study("steady genetic", in_order=in_order), stop=Kill(34)).run(ledger=path, run="it")
    tells.numbers.clear()
    resumed = study("steady genetic", in_order=in_order).run(ledger=path, run="it", watch=tells)
    assert len(tells.numbers) == TRIALS - 30
    assert (resumed.trace, resumed.best) == (whole.trace, whole.best)


class Killed(Exception):
    pass


class Kill(Until):
    def check(self, progress: Progress) -> str | None:
        if progress.told >= self.told:
            raise Killed
        return None


@pytest.fixture
def stopped(tmp_path: Path, tells: Tells) -> Path:
    """The ledger of a run of 33 trials with its checkpoint."""
    path = tmp_path / "ledger.db"
    replace(study("genetic"), stop=Until(33)).run(ledger=path, run="it").ledger.close()
    tells.numbers.clear()
    return path


def edit(path: Path, sql: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        assert db.execute(sql, values).rowcount > 0


def state_of(path: Path) -> bytes:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return bytes(db.execute("SELECT state FROM snapshot").fetchone()[0])


def forged(path: Path, **changes: Any) -> None:
    """Change what a checkpoint says, as somebody would who knows the format but not the proof."""
    checkpoint = Checkpoint.opened(state_of(path))
    assert checkpoint is not None
    for name, value in changes.items():
        setattr(checkpoint, name, value)
    edit(
        path,
        "UPDATE snapshot SET told = ?, asked = ?, state = ?",
        checkpoint.told,
        checkpoint.asked,
        checkpoint.sealed(),
    )


def damage(path: Path) -> None:
    state = bytearray(state_of(path))
    state[-200] ^= 1
    edit(path, "UPDATE snapshot SET state = ?", bytes(state))


SPOILED: dict[str, Callable[[Path], None]] = {
    "damaged": damage,
    "of fewer tells than it says": lambda path: forged(path, told=20),
    "of another state": lambda path: forged(path, strategy=b"\x80"),
    "of another strategy": lambda path: forged(path, basis="0" * 32),
    "of another record: a case": lambda path: edit(
        path, "UPDATE evaluation SET cost = 2 WHERE trial = 4 AND position = 3"
    ),
    "of no record": lambda path: forged(path, record=bytes(16)),
}


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.slow
def test_a_checkpoint_that_does_not_belong_to_the_record_is_noticed(how: str, stopped: Path, tells: Tells) -> None:
    SPOILED[how](stopped)
    resumed = study("genetic").run(ledger=stopped, run="it", watch=tells)
    assert resumed.trace == study("genetic").run().trace
    assert len(tells.numbers) >= TRIALS  # all of it was replayed ...
    assert any("replayed from the first" in line for line in tells.said)  # ... and that was said


def test_a_changed_record_is_a_divergence_as_without_a_checkpoint(stopped: Path) -> None:
    edit(stopped, "UPDATE trial SET candidate = ? WHERE number = 5", '{"x":0.25,"y":0.5}')
    with pytest.raises(ReplayDivergence, match="trial 5 of this run was"):
        study("genetic").run(ledger=stopped, run="it")


def test_a_changed_list_of_candidates_is_noticed_and_a_longer_one_continues(tmp_path: Path, tells: Tells) -> None:
    path = tmp_path / "ledger.db"
    Study(Sweep(ARMS[:40]), evaluate).run(ledger=path, run="it").ledger.close()
    tells.numbers.clear()
    longer = Study(Sweep(ARMS), evaluate).run(ledger=path, run="it")
    assert len(tells.numbers) == 20 and longer.trace == Study(Sweep(ARMS), evaluate).run().trace
    with pytest.raises(ReplayDivergence, match="trial 1 of this run was"):
        Study(Sweep([ARMS[0], ARMS[2], *ARMS[2:]]), evaluate).run(ledger=path, run="it")


def peaked(candidate: int, case: Case) -> float:
    return -abs(candidate - 9.0)


def test_more_trials_continue_from_the_checkpoint_of_a_finished_run(tmp_path: Path, tells: Tells) -> None:
    """Also the stopping rules: the tenth trial is the best, so thirty more bring no improvement."""
    path, sweep = tmp_path / "ledger.db", Study(Sweep(range(200)), peaked, window=3)
    sweep.run(ledger=path, run="it", max_trials=20).ledger.close()
    tells.numbers.clear()
    more = replace(sweep, stop=MaxTrials(100) | Plateau(30))  # a rule that the run did not have: it sees every trial
    replace(more, stop=more.stop | Until(25)).run(ledger=path, run="it").ledger.close()
    for _ in range(2):  # a run that is over stays over
        run = more.run(ledger=path, run="it")
        assert (run.progress.told, run.reason) == (40, "no improvement in 30 trials")
    assert tells.numbers == list(range(20, 40))


def test_a_checkpoint_of_the_moment_of_improvement_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Saver, "due", lambda saver, told: told == 10)
    path, sweep = tmp_path / "ledger.db", Study(Sweep(range(200)), peaked, window=3, stop=Plateau(30))
    with pytest.raises(Killed):
        replace(sweep, stop=sweep.stop | Kill(14)).run(ledger=path, run="it")
    assert sweep.run(ledger=path, run="it").progress.told == 40


def test_a_run_whose_cohort_was_closed_by_its_limit_has_no_checkpoint_of_that(tmp_path: Path, tells: Tells) -> None:
    path = tmp_path / "ledger.db"
    study("random", "halving", stop=MaxTrials(12)).run(ledger=path, run="it").ledger.close()
    with pytest.raises(ReplayDivergence):
        study("random", "halving").run(ledger=path, run="it")


class Waiting(Strategy[Any]):
    """Asks in fours, and counts how often it is asked in vain."""

    asked = told = vain = 0

    def ask(self, n: int) -> list[Any]:
        n = min(n, 4) if self.told == self.asked else 0
        self.vain += not n
        self.asked += n
        return [{"n": self.asked - n + i, "vain": self.vain} for i in range(n)]

    def tell(self, result: Result[Any]) -> None:
        self.told += 1

    def save(self) -> bytes:
        return f"{self.asked} {self.told} {self.vain}".encode()

    def load(self, state: bytes) -> None:
        self.asked, self.told, self.vain = map(int, state.split())


@pytest.mark.slow
def test_a_strategy_that_waits_is_not_asked_again_by_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, waiting = tmp_path / "ledger.db", Study(Waiting(), evaluate, window=10, stop=MaxTrials(40))
    whole, arrive = waiting.run(), SearchLoop.arrive

    def saved(search: SearchLoop[Any], *arrival: Any) -> Any:
        cells = arrive(search, *arrival)
        search.save()
        return cells

    monkeypatch.setattr(SearchLoop, "arrive", saved)
    for told in (6, 11, 22):
        with pytest.raises(Killed):
            replace(waiting, stop=waiting.stop | Kill(told)).run(ledger=path, run="it")
    assert waiting.run(ledger=path, run="it").trace == whole.trace


class Counting(Random):
    """A stranger's subclass with state of its own, which nobody saves."""

    count = 0

    def ask(self, n: int) -> list[Any]:
        self.count += n
        return [{**candidate, "n": self.count} for candidate in super().ask(n)]


def drifting() -> Callable[[Any], Any]:
    drawn: list[float] = []

    def sample(rng: Any) -> Any:
        drawn.append(rng.random())
        return {"x": drawn[-1], "n": len(drawn)}

    return sample


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (lambda: Counting(SPACE), "Counting has no save"),
        (lambda: Random(drifting()), None),
        (lambda: Sweep([(i, i) for i in range(60)]), None),
    ],
    ids=["a subclass with state", "a function with state", "tuples"],
)
@pytest.mark.slow
def test_what_cannot_be_saved_is_replayed(
    strategy: Callable[[], Strategy[Any]], reason: str | None, tmp_path: Path, tells: Tells, monkeypatch: Any
) -> None:
    monkeypatch.setattr(fanfold.resuming, "MANY", 10)
    plain = Study(strategy(), evaluate, stop=MaxTrials(40), window=4)
    whole = plain.run()
    replace(plain, strategy=strategy(), stop=Until(20)).run(ledger=tmp_path / "ledger.db", run="it").ledger.close()
    tells.numbers.clear()
    resumed = replace(plain, strategy=strategy()).run(ledger=tmp_path / "ledger.db", run="it", watch=tells)
    assert resumed.trace == whole.trace and len(tells.numbers) == 40
    assert any("20 told trials are replayed from the first" in line and (reason or "") in line for line in tells.said)


def test_the_best_of_a_resumed_run_is_what_the_strategy_asked(tmp_path: Path, tells: Tells) -> None:
    for trials in (20, 40):
        plain = Study(Sweep([(i, i) for i in range(60)]), lambda pair, case: -pair[0], stop=MaxTrials(trials))
        assert plain.run(ledger=tmp_path / "ledger.db", run="it", watch=tells).best.candidate == (0, 0)


def test_failures_that_are_made_again_leave_the_checkpoint_usable(stopped: Path, tells: Tells) -> None:
    again = replace(study("genetic"), evaluate=Mended()).run(
        ledger=stopped, run="it", retry_failed=True, accept_changes=True, watch=tells
    )
    assert len(tells.numbers) == TRIALS - 33, tells.said
    whole = replace(study("genetic"), evaluate=Mended()).run(ledger=stopped, run="it", accept_changes=True, replay=True)
    assert (again.trace, again.best, again.progress.failures) == (whole.trace, whole.best, whole.progress.failures)


class Mended:
    """Scores what failed before."""

    def __call__(self, candidate: Any, case: Case) -> Ok:
        outcome = evaluate(candidate, case)
        return outcome if isinstance(outcome, Ok) else Ok(0.5, cost=0.25)


PROGRAM = """
import sys, time
import fanfold.dispatcher
from test_large import slow_study
fanfold.dispatcher.TICK, fanfold.dispatcher.CHECKPOINT = 0.02, 0.1
slow_study().run("threads:2", ledger=sys.argv[1], run="it")
"""


def slowly(candidate: Any, case: Case) -> Ok | Failed:
    time.sleep(0.002)
    return evaluate(candidate, case)


def slow_study() -> Study[Any]:
    return replace(study("genetic", "racing", stop=MaxTrials(200)), evaluate=slowly)


@pytest.mark.slow
def test_a_run_that_is_killed_continues_from_its_last_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "ledger.db"
    child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], cwd=Path(__file__).parent)
    saved = 0
    while saved < 20 and child.poll() is None:
        time.sleep(0.02)
        with contextlib.suppress(Exception), Ledger(path, readonly=True) as ledger:
            saved = next((told for (told,) in ledger.read("SELECT told FROM snapshot")), 0)
    child.kill()
    child.wait()
    assert 20 <= saved < 200
    tells = Tells(monkeypatch)
    resumed = slow_study().run("threads:2", ledger=path, run="it", watch=tells)
    assert len(tells.numbers) <= 200 - saved, tells.said
    assert resumed.trace == replace(slow_study(), evaluate=evaluate).run().trace
