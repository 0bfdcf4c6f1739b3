"""Ctrl-C ends a run in good order: soon, with everything finished kept, and so that it can go on later."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_world import Start, lines, look, many, wait_for
from interruptible import AWAKE, SleepyCoroutine
from searches import Coroutine, Plain, search

from fanfold import Ledger, Study, Sweep

#: How late a loaded machine may be, besides the grace period and the two seconds that are promised.
SLACK = 15.0


def press(process: subprocess.Popen[str]) -> None:
    """Ctrl-C as a terminal gives it: to the whole process group."""
    os.killpg(process.pid, signal.SIGINT)


def ended(process: subprocess.Popen[str], within: float) -> str:
    """The last word of a program that must end in time."""
    try:
        output, errors = process.communicate(timeout=within + SLACK)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the program was still running {within + SLACK:g} s later")
    assert "Traceback" not in errors, errors
    return (output.split() or [""])[-1]


def wait_until(true: Callable[[], object], within: float = 20.0) -> None:
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def stopping(process: subprocess.Popen[str]) -> None:
    """Wait until the program says that it has heard the first Ctrl-C."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("stopping"):
            return
    pytest.fail("it ended without a word about stopping")


def only_sleepers_left(side: Path) -> bool:
    """Whether all that can end has ended."""
    return bool(asleep(side)) and len(lines(side)) >= AWAKE + len(asleep(side))


def asleep(side: Path) -> set[int]:
    """The processes in which evaluations went to sleep."""
    return {int(pid) for pid in re.findall(r"asleep in (\d+)", "\n".join(lines(side)))}


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "async:8", "threads:4", "processes:2"])
@pytest.mark.parametrize("when", [-1, 0, 1, 100, *range(10, 100, 10)][: many(4, 13)])
def test_an_interrupted_run_keeps_what_is_finished_and_goes_on_to_the_same_end(
    executor: str, when: int, start: Start, tmp_path: Path
) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    args = ("interruptible.py", "genetic", "outside", executor, ledger, side, 2)
    process = start(*args)
    wait_for(process, "ready")
    wait_until(lambda: len(lines(side)) >= when if when else ledger.exists())
    press(process)
    # Before the run has begun, Ctrl-C is the program's own affair.
    assert ended(process, within=2 + 2) in (("Interrupted", "KeyboardInterrupt") if when < 0 else ("Interrupted",))
    assert process.returncode == 130
    kept, finished = look(ledger), lines(side)
    assert kept.cells == set(finished)
    assert ended(start(*args), within=30) == search("genetic", "all", Plain(None)).run().trace
    assert len(lines(side)) == len(set(lines(side)))
    assert look(ledger).told[: len(kept.told)] == kept.told


@pytest.mark.slow
def test_an_interrupted_run_is_shown_as_stopped_and_unlocked(start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    process = start("interruptible.py", "genetic", "outside", "threads:4", ledger, side, 2)
    wait_until(lambda: len(lines(side)) >= 20)
    press(process)
    assert ended(process, within=2 + 2) == "Interrupted"
    with Ledger(ledger, readonly=True) as left:
        assert (left.run("search").status, left.run("search").reason) == ("stopped", "interrupted")
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:4", "threads:4", "processes:2"])
def test_evaluations_that_outlast_the_grace_period_are_given_up(executor: str, start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    process = start("interruptible.py", "sleepy", "outside", executor, ledger, side, 0.5)
    wait_until(lambda: only_sleepers_left(side))
    press(process)
    assert ended(process, within=0.5 + 2) == "Interrupted"
    assert len(look(ledger).evaluations) == AWAKE


@pytest.mark.slow
def test_an_evaluation_that_blocks_the_loop_itself_is_given_up_too(start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    process = start("interruptible.py", "sleepy", "outside", "inline", ledger, side, 1)
    wait_until(lambda: only_sleepers_left(side))
    press(process)
    assert ended(process, within=1 + 2) == "Interrupted"
    assert len(look(ledger).evaluations) == AWAKE


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "async:4", "threads:4", "processes:2"])
def test_a_second_ctrl_c_stops_at_once(executor: str, start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    process = start("interruptible.py", "sleepy", "outside", executor, ledger, side, 30)
    wait_until(lambda: only_sleepers_left(side))
    press(process)
    stopping(process)
    time.sleep(0.3)  # a hand is not quicker
    assert process.poll() is None
    press(process)
    assert ended(process, within=2) in ("Interrupted", "KeyboardInterrupt")
    assert len(look(ledger).evaluations) == AWAKE


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_no_worker_process_outlives_an_interrupted_run(presses: int, start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    process = start("interruptible.py", "sleepy", "outside", "processes:2", ledger, side, 0.5 if presses == 1 else 30)
    wait_until(lambda: len(asleep(side)) == 2)
    workers = asleep(side)
    assert process.pid not in workers
    press(process)
    stopping(process)
    if presses == 2:
        time.sleep(0.3)
        press(process)
    ended(process, within=0.5 + 2)
    wait_until(lambda: not any(alive(worker) for worker in workers))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:4", "threads:4"])
def test_ctrl_c_works_inside_a_running_event_loop(executor: str, start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    process = start("interruptible.py", "sleepy", "inside", executor, ledger, side, 0.5)
    wait_until(lambda: only_sleepers_left(side))
    press(process)
    assert ended(process, within=0.5 + 2) in ("Interrupted", "KeyboardInterrupt")
    assert len(look(ledger).evaluations) == AWAKE


@pytest.mark.slow
def test_cancelling_an_asynchronous_run_keeps_what_is_finished(tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"

    async def cancel_midway() -> None:
        study = search("genetic", "all", Coroutine(str(side)))
        task = asyncio.create_task(study.run_async("async:8", ledger=ledger, run="search"))
        while len(lines(side)) < 50:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_midway())
    assert look(ledger).cells == set(lines(side))
    with Ledger(ledger, readonly=True) as left:
        assert left.run("search").status == "stopped"
    again = search("genetic", "all", Coroutine(str(side))).run("async:8", ledger=ledger, run="search")
    assert again.trace == search("genetic", "all", Plain(None)).run().trace
    assert len(lines(side)) == len(set(lines(side)))


@pytest.mark.slow
def test_cancelling_does_not_wait_for_the_grace_period(tmp_path: Path) -> None:
    side = tmp_path / "side.txt"

    async def cancel_the_sleepers() -> None:
        study = Study(Sweep(range(16)), SleepyCoroutine(str(side)))
        task = asyncio.create_task(study.run_async("async:4", ledger=tmp_path / "ledger.db", run="search", grace=60))
        while not asleep(side):
            await asyncio.sleep(0.001)
        task.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancel_the_sleepers())
    assert len(look(tmp_path / "ledger.db").evaluations) == AWAKE
