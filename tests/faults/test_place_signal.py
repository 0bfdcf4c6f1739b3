"""SIGTERM is the first Ctrl-C: what docker stop, a scheduler or a spot instance takes away can be continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_world import look

from fanfold import Case, Ledger, Study, Sweep


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """SIGTERM as a fresh program has it, whatever earlier tests made of it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


STUDY = """
import time
from pathlib import Path
from fanfold import Study, Sweep

def evaluate(candidate, case):
    time.sleep(0.01 if candidate < 20 else 60 if Path("slow").exists() else 0.0)
    return float(candidate)

evaluate.fingerprint = "fixed"
study = Study(Sweep(range(30)), evaluate, window=4)
"""


def started(folder: Path, executor: str) -> subprocess.Popen[str]:
    (folder / "study.py").write_text(STUDY)
    (folder / "slow").touch()
    command = [sys.executable, "-m", "fanfold", "run", "study.py", "--run", "it", "--executor", executor]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while len(look(folder / "fanfold.db").evaluations) < 20:
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.02)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads:2", "processes:2"])
def test_a_place_that_is_taken_away_keeps_what_is_finished(executor: str, tmp_path: Path) -> None:
    process = started(tmp_path, executor)
    if executor == "processes:2":  # some schedulers tell every process of a job
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for worker in workers:
            os.kill(int(worker), signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert any("stopping" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)  # once more, so that the test need not wait for the grace period
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143, err
    assert "Traceback" not in err and "fanfold resume it --ledger fanfold.db" in err
    kept = look(tmp_path / "fanfold.db")
    assert len(kept.evaluations) == 20 and all(row[1] is None for row in kept.evaluations.values())
    with Ledger(tmp_path / "fanfold.db", readonly=True) as left:
        assert (left.run("it").status, left.run("it").reason) == ("stopped", "interrupted")
    (tmp_path / "slow").unlink()
    again = subprocess.run(
        [sys.executable, "-m", "fanfold", "resume", "it"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 0, again.stderr
    assert len(look(tmp_path / "fanfold.db").evaluations) == 30


def told_to_end(candidate: int, case: Case) -> float:
    os.kill(os.getpid(), signal.SIGTERM)
    child = subprocess.run(
        [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"], check=False
    )
    return float(child.returncode)


@pytest.mark.slow
def test_a_worker_leaves_sigterm_to_its_parent_and_what_it_starts_does_not() -> None:
    """A scheduler that tells every process of a job must not make failures of what its workers are doing."""
    run = Study(Sweep([1]), told_to_end).run("processes:1")
    assert [result.score for result in run.results()] == [-signal.SIGTERM]


@pytest.mark.slow
def test_the_first_sigterm_gives_what_runs_its_grace_period() -> None:
    ended: list[int] = []

    def evaluate(candidate: int, case: Case) -> float:
        if candidate == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
        ended.append(candidate)
        return 1.0

    with pytest.raises(KeyboardInterrupt) as caught:
        Study(Sweep(range(100)), evaluate).run("threads:1")
    assert ended == [0, 1]
    assert caught.value.code == 143  # type: ignore[attr-defined]


@pytest.mark.parametrize("mine", [signal.SIG_IGN, lambda number, frame: None])
def test_a_program_that_takes_sigterm_itself_keeps_it(mine: object) -> None:
    before = signal.signal(signal.SIGTERM, mine)  # type: ignore[arg-type]
    try:
        seen = []
        Study(Sweep([1]), lambda candidate, case: seen.append(signal.getsignal(signal.SIGTERM)) or 1.0).run()  # type: ignore[func-returns-value]
        assert seen == [mine]
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    Study(Sweep([1]), lambda candidate, case: 1.0).run()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
