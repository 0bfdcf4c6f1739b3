"""What waits for the disk is bounded: a kill repeats at most twice as many evaluations as there are slots."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, Study, Sweep
from fanfold.ledger import Commits, Ledger
from fanfold.ledger.commits import Insert

SLOTS = 4


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every commit takes a tenth of a second, as on a disk with slow syncs."""
    write = Commits._write

    def slowly(self: Commits, *rows: Any) -> Any:
        time.sleep(0.1)
        return write(self, *rows)

    monkeypatch.setattr(Commits, "_write", slowly)


class Counted:
    """Knows how many evaluations have begun; what has landed it reads from the ledger itself."""

    fingerprint = "counted"
    block_size = 1

    def __init__(self, ledger: Path, seconds: float = 0.005) -> None:
        self.begun = 0
        self.most = 0
        self._ledger, self._seconds = ledger, seconds
        self._lock = threading.Lock()

    async def __call__(self, candidate: Any, case: Case) -> float:
        self.begin(1)
        await asyncio.sleep(self._seconds)
        return float(candidate)

    def begin(self, cells: int) -> None:
        """What a kill at this moment would repeat."""
        with Ledger(self._ledger, readonly=True) as reader:
            landed = reader.one("SELECT count(*) FROM evaluation WHERE reused = 0")[0]
        self.begun += cells
        self.most = max(self.most, self.begun - landed)


class CountedBlocks(Counted):
    block_size = 8

    async def evaluate_block(self, cells: Any) -> list[float]:
        self.begin(len(cells))
        await asyncio.sleep(self._seconds)
        return [float(candidate) for candidate, _ in cells]


@pytest.mark.slow
@pytest.mark.usefixtures("slow_disk")
@pytest.mark.parametrize(("kind", "cells"), [(Counted, 1), (CountedBlocks, 8)])
def test_waiting_for_a_slow_disk_a_run_has_little_to_repeat(kind: type[Counted], cells: int, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    Ledger(ledger).close()
    evaluate = kind(ledger)
    run = Study(Sweep(range(60 * cells)), evaluate, window=200).run(f"async:{SLOTS}", ledger=ledger)
    assert run.progress.evaluations == 60 * cells
    assert cells * SLOTS < evaluate.most <= 2 * SLOTS * cells


@pytest.mark.slow
@pytest.mark.usefixtures("slow_disk")
def test_waiting_for_the_disk_ends_with_a_kill_that_repeats_little(tmp_path: Path) -> None:
    """Cut off without any flush, as by a kill: what is not on disk is evaluated again, and that is not much."""
    ledger, begun = tmp_path / "ledger.db", []

    async def evaluate(candidate: int, case: Case) -> float:
        begun.append(candidate)
        await asyncio.sleep(0.003)
        return float(candidate)

    evaluate.fingerprint = "cut"  # type: ignore[attr-defined]
    work = Study(Sweep(range(100)), evaluate, window=100)

    async def cut() -> int:
        task = asyncio.create_task(work.run_async(f"async:{SLOTS}", ledger=ledger, run="it"))
        while len(begun) < 30:
            await asyncio.sleep(0.001)
        with Ledger(ledger, readonly=True) as reader:
            landed = int(reader.one("SELECT count(*) FROM evaluation")[0])
        lost = len(begun) - landed
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return lost

    assert 0 < asyncio.run(cut()) <= 2 * SLOTS


@pytest.mark.slow
@pytest.mark.usefixtures("slow_disk")
def test_cells_that_are_reused_do_not_take_turns_waiting_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is evaluated for them, so a kill repeats nothing: they need not go eight at a time."""
    ledger, together = tmp_path / "ledger.db", []
    write = Commits._write

    def noting(self: Commits, rows: Any, then: Any) -> Any:
        together.append(len(rows.get(Insert.EVALUATION, ())))
        return write(self, rows, then)

    def evaluate(candidate: int, case: Case) -> float:
        return float(candidate)

    evaluate.fingerprint = "reused"  # type: ignore[attr-defined]
    work = Study(Sweep(range(40)), evaluate, window=40)
    work.run("threads:40", ledger=ledger, run="first").ledger.close()
    monkeypatch.setattr(Commits, "_write", noting)
    again = work.run(f"threads:{SLOTS}", ledger=ledger, run="second", reuse="ledger")
    assert again.progress.reused == sum(together) == 40
    assert max(together) > 2 * SLOTS


@pytest.mark.slow
def test_a_disk_that_keeps_up_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one slot with no work to speak of, far more than two evaluations go out with each commit."""
    commits = 0
    write = Commits._write

    def counting(self: Commits, *rows: Any) -> Any:
        nonlocal commits
        commits += 1
        return write(self, *rows)

    monkeypatch.setattr(Commits, "_write", counting)
    monkeypatch.setattr("fanfold.ledger.commits.SLOW", 5.0)  # however busy this machine is
    work = Study(Sweep(range(3000)), lambda candidate, case: float(candidate))
    work.run("inline", ledger=tmp_path / "ledger.db")
    assert commits < 3000 / 4
