"""A run that is killed, at any moment and as often as you like, goes on as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fault_world import Seen, Start, lines, look, many, wait_for
from searches import Plain, search

from fanfold import Ledger

SEED = int(os.environ.get("FANFOLD_KILL_SEED", "20240607"))
KILLS = many(3, 17)
TRIALS = {"all": 60, "racing": 100}

SEARCHES = [
    ("random", "all"),
    ("random", "racing"),
    ("genetic", "all"),
    ("genetic", "racing"),
    ("steady", "all"),
    ("steady", "racing"),
]
EXECUTORS = ["async:8", "threads:4", "processes:2"]
#: The most evaluations that are under way on any of them, with what may wait for the disk.
UNDER_WAY = 16


@dataclass
class Account:
    """What the kills of one test did."""

    kills: int = 0
    runs: int = 0
    in_flight: int = 0
    spread: list[int] = field(default_factory=list)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["in-order", "barrier-free"])
@pytest.mark.parametrize("number", range(len(SEARCHES)), ids=["-".join(pair) for pair in SEARCHES])
def test_a_killed_run_resumes_and_repeats_no_recorded_evaluation(
    number: int, order: str, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy, schedule = SEARCHES[number]
    executor = EXECUTORS[(number + (order == "barrier-free")) % len(EXECUTORS)]
    rng = random.Random(f"{SEED} {number} {order}")
    account = Account()
    while account.kills < KILLS:
        folder = tmp_path / str(account.runs)
        folder.mkdir()
        args = (strategy, schedule, order, executor, folder / "ledger.db", folder / "side.txt", TRIALS[schedule])
        trace = _run_under_fire(start, args, rng, account)
        if order == "in-order":
            assert trace == search(strategy, schedule, Plain(None), trials=TRIALS[schedule]).run().trace
        _replays(folder / "ledger.db", strategy, schedule, order, trace)
        account.runs += 1
    with capsys.disabled():
        print(
            f"\n  {strategy}/{schedule} {order} on {executor}, seed {SEED}: {account.kills} kills in {account.runs} "
            f"run(s) at {account.spread} recorded evaluations; repeated {account.in_flight} that were in flight",
            end="",
        )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:8", "processes:2"])
def test_a_run_killed_in_its_middle_ends_as_if_it_had_not_been(executor: str, start: Start, tmp_path: Path) -> None:
    ledger, side, trials = tmp_path / "ledger.db", tmp_path / "side.txt", 40
    args = ("genetic", "racing", "in-order", executor, ledger, side, trials)
    process = start("killable.py", *args)
    wait_for(process, "ready")
    while len(lines(side)) < 60 and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before, before_lines = look(ledger), len(lines(side))
    output, errors = start("killable.py", *args).communicate()
    after, after_lines = look(ledger), lines(side)
    _check_part(before, after, after_lines[before_lines:])
    assert len(before.evaluations) > 0 and len(after.told) == trials, errors
    assert output.split()[-1] == search("genetic", "racing", Plain(None), trials=trials).run().trace


def _run_under_fire(start: Start, args: tuple[object, ...], rng: random.Random, account: Account) -> str:
    """Kill and resume until the run is done; gives its trace.  Every promise is checked after every part."""
    ledger, side = Path(str(args[4])), Path(str(args[5]))
    before, before_lines, kills = look(ledger), len(lines(side)), 0
    while True:
        process = start("killable.py", *args)
        survived = account.kills >= KILLS or not _kill_somewhere(process, side, rng)
        output, errors = process.communicate()
        assert process.returncode == (0 if survived else -signal.SIGKILL), errors
        after, after_lines = look(ledger), lines(side)
        _check_part(before, after, after_lines[before_lines:])
        before, before_lines = after, len(after_lines)
        if survived:
            assert len(after.told) == args[-1]
            lost = set(after_lines) - after.cells
            assert after.cells <= set(after_lines)
            # Told as they come, other results may be known when the search is asked again what was under way.
            assert len(lost) <= (kills * UNDER_WAY if "barrier-free" in args else 0)
            account.in_flight += len(after_lines) - len(set(after_lines))
            return output.split()[-1]
        kills += 1
        account.kills += 1
        account.spread.append(len(after.evaluations))


def _kill_somewhere(process: subprocess.Popen[str], side: Path, rng: random.Random) -> bool:
    """SIGKILL at a random time, or after a random number of further evaluations; False if it finished before that."""
    wait_for(process, "ready")
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.0, 0.4))
    else:
        enough = len(lines(side)) + rng.randrange(80)
        while len(lines(side)) < enough and process.poll() is None:
            time.sleep(0.001)
    if process.poll() is not None:
        return False
    process.kill()
    return process.wait() != 0


def _check_part(before: Seen, after: Seen, evaluated: list[str]) -> None:
    """Nothing recorded was lost or changed or evaluated again, and telling went on where it had stopped."""
    assert not before.cells & set(evaluated)
    assert {cell: after.evaluations.get(cell) for cell in before.evaluations} == before.evaluations
    assert {trial: after.candidates.get(trial) for trial in before.candidates} == before.candidates
    assert after.told[: len(before.told)] == before.told


def _replays(ledger: Path, strategy: str, schedule: str, order: str, trace: str) -> None:
    """Going through the finished run once more evaluates nothing and tells the same."""
    seen = look(ledger)
    side = ledger.with_name("again.txt")
    again = search(strategy, schedule, Plain(str(side)), in_order=order == "in-order", trials=TRIALS[schedule])
    assert again.run(ledger=ledger, run="search").trace == trace
    assert lines(side) == []
    assert look(ledger) == seen
    with Ledger(ledger, readonly=True) as finished:
        assert finished.run("search").status == "finished"
