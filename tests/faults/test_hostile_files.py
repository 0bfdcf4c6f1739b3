"""What a stranger may have put where we write: locks through links, files of others, recorded paths."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fanfold import LedgerError, RunLocked
from fanfold.ledger import RunLock


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_a_lock_is_not_followed_through_a_link(ledger: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    ledger.with_name("ledger.db.search.lock").symlink_to(precious)
    with pytest.raises(LedgerError, match=r"ledger\.db\.search\.lock is a link: .*remove it"):
        RunLock(ledger, "search")
    assert precious.read_text() == "precious"


def test_a_lock_does_not_make_the_file_that_a_link_leads_to(ledger: Path, tmp_path: Path) -> None:
    ledger.with_name("ledger.db.search.lock").symlink_to(tmp_path / "absent")
    with pytest.raises(LedgerError, match="is a link"):
        RunLock(ledger, "search")
    assert not (tmp_path / "absent").exists()


def test_a_lock_does_not_overwrite_a_hard_link(ledger: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    os.link(precious, ledger.with_name("ledger.db.search.lock"))
    with pytest.raises(LedgerError, match="also a file of another name"):
        RunLock(ledger, "search")
    assert precious.read_text() == "precious"


def test_a_pipe_or_folder_in_the_place_of_a_lock_is_refused_at_once(ledger: Path) -> None:
    os.mkfifo(ledger.with_name("ledger.db.search.lock"))
    with pytest.raises(LedgerError, match="is not a regular file"):
        RunLock(ledger, "search")
    ledger.with_name("ledger.db.other.lock").mkdir()
    with pytest.raises(LedgerError, match="cannot be opened"):
        RunLock(ledger, "other")


def test_a_forked_child_that_lives_longer_than_a_killed_run_does_not_hold_its_lock(ledger: Path) -> None:
    reads, writes = os.pipe()
    run = os.fork()
    if run == 0:
        RunLock(ledger, "search")
        child = os.fork()
        if child == 0:
            os.write(writes, str(os.getpid()).encode())
            time.sleep(60)
        os._exit(0)  # as a kill: nothing is released
    os.waitpid(run, 0)
    child = int(os.read(reads, 32))
    try:
        assert ledger.with_name("ledger.db.search.lock").exists()
        RunLock(ledger, "search").release()
    finally:
        os.kill(child, 9)
        os.close(reads)
        os.close(writes)


def test_a_forked_child_does_not_give_up_the_lock_of_its_parent(ledger: Path) -> None:
    lock = RunLock(ledger, "search")
    child = os.fork()
    if child == 0:
        lock.release()  # a copy of the object, as an exit handler in the child has it
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(RunLocked):
        RunLock(ledger, "search")
    lock.release()


def test_a_lock_is_readable_by_its_owner_only(ledger: Path) -> None:
    lock = RunLock(ledger, "search")
    assert ledger.with_name("ledger.db.search.lock").stat().st_mode & 0o777 == 0o600
    lock.release()
