"""What a stranger may have put where we write: locks through links, files of others, recorded paths."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from fanfold import Case, Ledger, LedgerError, RunLocked, Study
from fanfold.cli import cli
from fanfold.files import replacing, write_files
from fanfold.ledger import RunLock
from fanfold.report import write_report
from fanfold.strategies import Sweep


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


# -- files: whole or not at all, and for their owner only ------------------------------------------------------------


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a ledger that holds the run `search`."""
    monkeypatch.chdir(tmp_path)
    study = Study(
        name="search", strategy=Sweep([{"x": n} for n in range(3)]), evaluate=lambda c, case: c["x"], cases=[Case("a")]
    )
    study.run("inline", ledger="fanfold.db", run="search").ledger.close()
    return tmp_path


def test_new_ledgers_and_the_files_beside_them_are_readable_by_their_owner_only(ledger: Path) -> None:
    before = os.umask(0o022)
    try:
        with Ledger(ledger) as opened:
            opened.writer.execute("CREATE TABLE notes (text)")
            assert {path.name: oct(mode(path)) for path in ledger.parent.iterdir()} == dict.fromkeys(
                ("ledger.db", "ledger.db-wal", "ledger.db-shm"), "0o600"
            )
    finally:
        os.umask(before)


def test_an_existing_ledger_keeps_its_mode(ledger: Path) -> None:
    Ledger(ledger).close()
    ledger.chmod(0o664)
    Ledger(ledger).close()
    assert mode(ledger) == 0o664


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "search", "-o", "out.csv"),
        ("export", "search", "-o", "out.parquet"),
        ("report", "search", "-o", "out.html"),
    ],
    ids=lambda a: a[-1],
)
def test_reports_and_exports_are_for_their_owner_unless_somebody_said_otherwise(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    out = folder / arguments[-1]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert mode(out) == 0o600
    out.chmod(0o640)
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert mode(out) == 0o640


def test_a_report_is_written_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report("fanfold.db", "search", "out.html")
    whole = Path("out.html").read_bytes()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    result = CliRunner().invoke(cli, ["report", "search", "-o", "out.html"])
    assert result.exit_code == 2 and "No space left" in result.stderr
    assert Path("out.html").read_bytes() == whole
    assert not [path for path in folder.iterdir() if not path.name.startswith(("fanfold.db", "out.html"))]


def test_a_file_under_way_is_never_seen_under_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replacing(tmp_path / "out") as file:
        file.write(b"half")
        file.flush()
        assert not (tmp_path / "out").exists()
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_link_in_the_place_of_a_report_is_replaced_and_not_followed(folder: Path) -> None:
    (folder / "precious").write_text("precious")
    (folder / "search.html").symlink_to(folder / "precious")
    assert CliRunner().invoke(cli, ["report", "search"]).exit_code == 0
    assert (folder / "precious").read_text() == "precious" and not (folder / "search.html").is_symlink()


def test_a_device_is_written_to_and_never_replaced(folder: Path) -> None:
    write_report("fanfold.db", "search", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_folders_of_results_are_for_their_owner_only(tmp_path: Path) -> None:
    write_files(tmp_path / "results" / "job", {"a.json": b"{}"})
    assert [mode(tmp_path / name) for name in ("results", "results/job", "results/job/a.json")] == [0o700, 0o700, 0o600]
