"""What a stranger may have put where we write: locks through links, files of others, recorded paths."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pty
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold import Case, Ledger, LedgerError, Ok, RunLocked, Study
from fanfold.cli import cli
from fanfold.events import Notice
from fanfold.files import replacing, write_files
from fanfold.ledger import RunLock, RunView, store
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


def test_a_forked_child_closes_nothing_that_threads_of_its_parent_read_with(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite could wait for ever there, for a lock that such a thread held when the process forked."""
    closed: list[Any] = []
    shared = Ledger(ledger)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(shared.names).result()
        with monkeypatch.context() as patch:
            patch.setattr(store, "disconnect", closed.append)
            child = os.fork()  # its copy of the thread's connection is given up before this returns
            if child == 0:
                os._exit(len(closed))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    shared.close()


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_link_in_the_place_of_a_report_is_replaced_and_not_followed(folder: Path) -> None:
    (folder / "precious").write_text("precious")
    (folder / "search.html").symlink_to(folder / "precious")
    assert CliRunner().invoke(cli, ["report", "search"]).exit_code == 0
    assert (folder / "precious").read_text() == "precious" and not (folder / "search.html").is_symlink()


@pytest.mark.slow
def test_a_device_is_written_to_and_never_replaced(folder: Path) -> None:
    write_report("fanfold.db", "search", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_folders_of_results_are_for_their_owner_only(tmp_path: Path) -> None:
    write_files(tmp_path / "results" / "job", {"a.json": b"{}"})
    assert [mode(tmp_path / name) for name in ("results", "results/job", "results/job/a.json")] == [0o700, 0o700, 0o600]


# -- what a ledger may make us do ------------------------------------------------------------------------------------

STUDY = """
from pathlib import Path
from fanfold import Case, Study
from fanfold.strategies import Sweep
Path("executed").touch()
study = Study(name="mine", strategy=Sweep(range(9)), evaluate=lambda candidate, case: candidate, cases=[Case("a")])
"""


def fanfold(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*arguments], prog_name="fanfold")
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which has nothing to do with the folder `elsewhere` beside it."""
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "project"
    for name in [name for name in sys.modules if name.startswith("hostile_")]:
        del sys.modules[name]


def recorded(ledger: str, **changes: Any) -> None:
    """Change how the run `it` of a ledger says it was started."""
    db = sqlite3.connect(ledger)
    meta = json.loads(db.execute("SELECT meta FROM run WHERE name = 'it'").fetchone()[0])
    for part, values in changes.items():
        meta[part] = {**meta[part], **values} if isinstance(values, dict) else values
    db.execute("UPDATE run SET meta = ? WHERE name = 'it'", (json.dumps(meta),))
    db.commit()
    db.close()


def start(target: str, *options: str) -> None:
    fanfold("run", target, *options, "--run", "it", "--executor", "inline", "--max-trials", "3", "--quiet")
    Path("executed").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_file_of_the_project_is_resumed_without_a_question(project: Path) -> None:
    (project / "hostile_a.py").write_text(STUDY)
    start("hostile_a.py")
    fanfold("resume", "it", "--max-trials", "5", "--quiet")


@pytest.mark.slow
def test_a_file_elsewhere_is_executed_only_with_trust(project: Path) -> None:
    other = project.parent / "elsewhere" / "hostile_b.py"
    other.write_text(STUDY)
    start(str(other))
    said = fanfold("resume", "it", "--max-trials", "5", code=2)
    assert f"execute the Python file {other}" in said and "--trust" in said and not Path("executed").exists()
    other.write_text(STUDY + "# more")
    assert "has changed since" in fanfold("resume", "it", code=2)
    fanfold("resume", "it", "--max-trials", "5", "--trust", "--quiet")
    assert Path("executed").exists()


@pytest.mark.slow
def test_a_link_in_the_project_to_a_file_elsewhere_is_no_file_of_the_project(project: Path) -> None:
    (project / "hostile_c.py").write_text(STUDY)
    start("hostile_c.py")
    other = project.parent / "elsewhere" / "hostile_c.py"
    (project / "hostile_c.py").rename(other)
    (project / "hostile_c.py").symlink_to(other)
    assert "execute the Python file" in fanfold("resume", "it", code=2) and not Path("executed").exists()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can give a file away")
@pytest.mark.parametrize("given_away", ["fanfold.db", "hostile_d.py"])
def test_a_ledger_or_file_of_another_user_is_not_executed(project: Path, given_away: str) -> None:
    (project / "hostile_d.py").write_text(STUDY)
    start("hostile_d.py")
    os.chown(given_away, 12345, 12345)
    assert "execute the Python file" in fanfold("resume", "it", code=2) and not Path("executed").exists()


def test_the_digest_of_the_file_is_recorded(project: Path) -> None:
    (project / "hostile_e.py").write_text(STUDY)
    start("hostile_e.py")
    with Ledger("fanfold.db", readonly=True) as ledger:
        assert ledger.run("it").meta["digest"] == hashlib.sha256(STUDY.encode()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"function": "/etc/passwd"}, "use /etc/passwd (function)"),
        ({"function": "../elsewhere/x"}, "use ../elsewhere/x (function)"),
        ({"function": "~/x"}, "use ~/x (function)"),
        ({"function": "folder:/etc"}, "use /etc (function)"),
        ({"function": "os:system"}, "import and call os:system (function)"),
        ({"function": "antigravity:fly"}, "import and call"),
        ({"function": ["x", "elsewhere.module:call"]}, "import and call"),
        ({"inner": {"unsafe": True}}, "without a guard (inner.unsafe)"),
    ],
)
def test_what_recorded_fields_reach_is_asked_about(project: Path, fields: dict[str, Any], says: str) -> None:
    start("functions")
    recorded("fanfold.db", fields=fields)
    assert says in fanfold("resume", "it", code=2)
    assert "--trust" not in fanfold("resume", "it", "--trust", code=2), "it is then an ordinary mistake in a field"


@pytest.mark.slow
def test_a_recorded_cluster_is_asked_about(project: Path) -> None:
    start("functions")
    recorded("fanfold.db", options={"executor": "ray:2@10.0.0.1:6379"})
    assert "ray:2@10.0.0.1:6379" in fanfold("resume", "it", code=2)


@pytest.mark.slow
def test_a_recorded_report_overwrites_nothing(project: Path) -> None:
    start("functions", "--report", "it.html")
    (project / "precious").write_text("precious")
    recorded("fanfold.db", options={"report": "precious"})
    fanfold("resume", "it", "--max-trials", "5", "--quiet")
    assert (project / "precious").read_text() == "precious"
    fanfold("resume", "it", "--max-trials", "6", "--report", "again.html", "--quiet")
    assert (project / "again.html").exists()


@pytest.mark.slow
def test_results_go_elsewhere_only_with_trust(project: Path) -> None:
    elsewhere = project.parent / "elsewhere"
    play = ("secrets", "--models", "simulated/gpt-6-luna", "--num-interactions", "2", "--messages-per-interaction", "1")
    start(*play, "--results", "results")
    recorded("fanfold.db", fields={"results": str(elsewhere)})
    assert f"use {elsewhere} (results)" in fanfold("resume", "it", code=2) and not list(elsewhere.iterdir())
    fanfold("resume", "it", "--trust", "--quiet")
    assert list(elsewhere.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "executed"), [(b"n\n", False), (b"y\n", True)])
def test_on_a_terminal_the_user_is_asked(project: Path, answer: bytes, executed: bool) -> None:
    other = project.parent / "elsewhere" / "hostile_f.py"
    other.write_text(STUDY)
    start(str(other))
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "fanfold", "resume", "it", "--no-color"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    said = b""
    with contextlib.suppress(OSError):  # the command has ended
        while more := os.read(master, 4096):
            said += more
            if said.endswith(b"[y/N]: "):
                os.write(master, answer)
    os.close(master)
    assert (process.wait(30) == 0) == executed and b"execute the Python file" in said
    assert Path("executed").exists() == executed


# -- readers that pause ----------------------------------------------------------------------------------------------


async def heavy(candidate: int, case: Case) -> Ok:
    await asyncio.sleep(0.005)
    return Ok(1.0, data=str(candidate) * 50_000)


@pytest.mark.slow
@pytest.mark.parametrize("paused", [True, False])
def test_a_reader_that_pauses_is_noticed_before_the_log_fills_the_disk(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    monkeypatch.setattr("fanfold.dispatcher.TICK", 0.01)
    monkeypatch.setattr("fanfold.ledger.store.MOST_LOG", 16 * 2**20)
    with Ledger(ledger):
        reader = sqlite3.connect(ledger)
        if paused:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM run").fetchone()
        notices: list[str] = []
        study = Study(name="heavy", strategy=Sweep(range(1000, 1150)), evaluate=heavy, cases=[Case("a")], window=20)
        run = study.run(
            "async:20",
            ledger=ledger,
            watch=lambda event: notices.append(event.message) if isinstance(event, Notice) else None,
        )
        assert [note.text for note in run.view.notes()] == notices, "what the user is told is kept"
        run.ledger.close()
        reader.close()
    found = [notice for notice in notices if "ledger.db-wal has grown to" in notice]
    assert len(found) == int(paused), notices


@pytest.mark.slow
@pytest.mark.parametrize("rows", [RunView.trials, RunView.evaluations, RunView.results], ids=lambda rows: rows.__name__)
def test_our_own_readers_hold_nothing_open_between_rows(folder: Path, rows: Any) -> None:
    with Ledger("fanfold.db") as writing, Ledger("fanfold.db", readonly=True) as reading:
        paused = rows(RunView(reading, 1))
        next(paused)
        writing.writer.execute("UPDATE run SET reason = 'later'")
        assert writing.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        assert len(list(paused)) == 2
