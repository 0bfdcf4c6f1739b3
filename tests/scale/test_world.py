"""Whole studies in worlds of faults: every promise at once, and a seed that fails can be looked at again.

`make campaign` runs 10,000 of these worlds; `python tools/campaign.py --seed N --verbose` shows one.
"""

from __future__ import annotations

import asyncio
import random
import re
import shlex
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

CAMPAIGN = Path(__file__).parents[1] / "campaign"
sys.path[:0] = [str(CAMPAIGN), str(CAMPAIGN.parents[1] / "tools")]

from campaign_world import Plan, World, live  # noqa: E402
from world_parts import tear  # noqa: E402

import campaign  # noqa: E402
from fanfold.calls import CallBroker  # noqa: E402
from fanfold.ledger import Commits  # noqa: E402
from fanfold.models.batch.journal import BatchJournal  # noqa: E402

SEEDS = 120
PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_goes_wrong_nothing_is_lost_nothing_paid_twice_and_the_result_is_the_same(part: int) -> None:
    stories = {seed: live(seed) for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS)}
    assert {seed: (str(story.plan), story.problems) for seed, story in stories.items() if story.problems} == {}
    assert sum(story.kills for story in stories.values()) > 10


@pytest.mark.parametrize("seed", [0, 9, 145])
def test_the_same_seed_gives_the_same_world_byte_for_byte(seed: int) -> None:
    one, other = live(seed), live(seed)
    assert one.log == other.log
    assert one.digest == other.digest
    assert one.kills
    assert live(seed + 1).digest != one.digest


# -- the fault table ---------------------------------------------------------------------------------------------------


def test_every_row_of_the_fault_table_names_tests_that_exist() -> None:
    rows = campaign.table()
    assert len(rows) == 32
    for row in rows:
        for test in row["tests"]:
            file, *words = shlex.split(test)
            names = re.findall(r"def (test_\w+)", (CAMPAIGN.parent / file).read_text())
            wanted = re.split(r" or ", words[1].removeprefix("not ")) if words else ["test_"]
            for word in wanted:
                assert any(word in name for name in names), (row["fault"], word)


def test_the_page_has_every_row_of_the_fault_table() -> None:
    page = (CAMPAIGN.parents[1] / "docs" / "reliability.md").read_text()
    written = " ".join(page.split(campaign.BEGIN)[1].split(campaign.END)[0].split())
    rows = [f"**{row['fault']}**: {row['promise']} ({row['number']})" for row in campaign.table()]
    assert [row for row in rows if row not in written] == []


# -- a world notices ---------------------------------------------------------------------------------------------------


def killed(scene: str, place: str, steps: range, **faults: Any) -> list[str]:
    """The problems of one study that is killed at each of these steps."""
    worlds = [World(Plan(scene, 1, place, 2, (step,), (False,), **faults), f"kill {step}") for step in steps]
    assert any(world.story.kills for world in worlds)
    return [problem for world in worlds for problem in world.story.problems]


def test_a_world_notices_an_answer_that_is_given_before_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, slow = range(60, 160, 20), dict.fromkeys(range(20), "slow_disk")
    assert killed("functions", "async", steps, commits=slow) == []
    real = Commits.put

    def put(self: Commits, statement: Any, row: Any, then: Any = None) -> None:
        if then is not None:
            asyncio.get_running_loop().call_soon(then, None)
        real(self, statement, row)

    monkeypatch.setattr(Commits, "put", put)
    assert any("told" in problem for problem in killed("functions", "async", steps, commits=slow))


def test_a_world_notices_a_batch_that_is_created_before_it_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = range(50, 110, 6)
    assert killed("talks", "batch", steps) == []
    real = BatchJournal.intend

    async def later(self: BatchJournal, *arguments: Any) -> None:
        await asyncio.sleep(0.5)
        await real(self, *arguments)

    async def intend(self: BatchJournal, *arguments: Any) -> None:
        asyncio.get_running_loop().create_task(later(self, *arguments))

    monkeypatch.setattr(BatchJournal, "intend", intend)
    assert any("in batches" in problem for problem in killed("talks", "batch", steps))


def test_a_world_notices_calls_that_are_paid_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.replies.Replies.find", lambda self, key: None)
    assert any("paid again" in problem for problem in killed("talks", "async", range(100, 160, 10)))


def test_a_world_notices_a_run_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: CallBroker, *_: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(CallBroker, "answer", never)
    monkeypatch.setattr("campaign_world.LONGEST", 600.0)
    story = World(Plan("talks", 1, "async", 1), "hang").story
    assert any("hangs" in problem for problem in story.problems)


# -- the loss of power -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_what_was_synced_before_the_power_failed_is_there(seed: int, tmp_path: Path) -> None:
    """Ten cuts in each of ten files: at any byte after the last sync, with sectors missing before it."""
    rng = random.Random(seed)
    db = sqlite3.connect(path := tmp_path / "l.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (n)")
    log = path.with_name("l.db-wal")
    for number in range(10):
        safe, before = log.stat().st_size, path.read_bytes()
        db.execute("BEGIN")
        db.executemany("INSERT INTO t VALUES (?)", [(number,)] * rng.randint(1, 2000))
        db.execute("COMMIT")
        data = bytearray(log.read_bytes())
        tear(data, safe, rng)
        cut = tmp_path / f"{number}.db"
        cut.write_bytes(before)
        cut.with_name(f"{number}.db-wal").write_bytes(data)
        torn = sqlite3.connect(cut)
        assert torn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert {n for (n,) in torn.execute("SELECT n FROM t")} >= set(range(number))
        torn.close()
    db.close()
