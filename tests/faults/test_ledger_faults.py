"""Whatever is wrong with a ledger file, its disk or its other users, the answer is clear and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_world import Start, finish, lines, look
from searches import Plain, score_of, search

from fanfold import (
    Case,
    FanfoldError,
    Float,
    Genetic,
    Ledger,
    LedgerError,
    Random,
    ReplayDivergence,
    RunLocked,
    Space,
    Study,
)
from fanfold.ledger import RunLock

TRIALS = 30
SEED = int(os.environ.get("FANFOLD_FAULT_SEED", "1"))


def study(trials: int = TRIALS) -> Study[Any]:
    return search("genetic", "all", Plain(None), trials=trials)


@pytest.fixture(scope="module")
def trace() -> str:
    return study().run().trace


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with a finished run, all of it in the main file."""
    path = tmp_path / "ledger.db"
    study().run(ledger=path, run="search").ledger.close()
    assert not path.with_name("ledger.db-wal").exists()
    return path


def edit(path: Path, sql: str, *parameters: Any) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(sql, parameters)


# -- files that are no ledger, or no longer ------------------------------------------------------------------


@pytest.mark.slow
def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(ledger: Path) -> None:
    edit(ledger, "PRAGMA user_version = 99")
    before = ledger.read_bytes()
    for opening in (lambda: Ledger(ledger), lambda: Ledger(ledger, readonly=True), lambda: study().run(ledger=ledger)):
        with pytest.raises(LedgerError, match=r"newer Fanfold.*99"):
            opening()
    assert ledger.read_bytes() == before


def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for content in (b"x", b"not a ledger\n" * 1000, b"SQLite format 3", b"SQLite format 4\0" * 100):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match=r"notes\.txt"):
            study().run(ledger=path)
        assert path.read_bytes() == content


def test_a_file_in_the_place_of_a_closed_ledger_is_looked_into_anew(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    study().run(ledger=path).ledger.close()
    for companion in tmp_path.iterdir():
        if companion != path:
            companion.unlink()
    path.write_bytes(b"x")  # the same number on the disk, and another file
    with pytest.raises(LedgerError, match=r"notes\.txt"):
        study().run(ledger=path)
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("foreign", ["score = 'words'", "dropped = x'00'"])
def test_what_another_program_wrote_in_the_place_of_a_score_is_written_again(
    tmp_path: Path, trace: str, foreign: str
) -> None:
    path = tmp_path / "ledger.db"
    study().run(ledger=path, run="it").ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        before = db.execute("SELECT number, score, dropped FROM trial").fetchall()
    edit(path, f"UPDATE trial SET {foreign} WHERE number = 2")
    again = study().run(ledger=path, run="it")
    with again.ledger as ledger:
        assert list(ledger.read("SELECT number, score, dropped FROM trial")) == before
    assert again.trace == trace


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    edit(path, "CREATE TABLE run (id INTEGER)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="another program"):
        study().run(ledger=path)
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_ledger(tmp_path: Path, trace: str) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    assert study().run(ledger=path).trace == trace


def test_a_folder_a_missing_folder_and_a_file_as_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="is a folder"):
        study().run(ledger=tmp_path)
    with pytest.raises(LedgerError, match="does not exist"):
        study().run(ledger=tmp_path / "missing" / "ledger.db")
    with pytest.raises(LedgerError):
        study().run(ledger=tmp_path / "file" / "ledger.db")
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger(tmp_path / "missing.db", readonly=True)


def test_tables_that_were_dropped_are_an_error_that_says_so(ledger: Path) -> None:
    edit(ledger, "DROP TABLE evaluation")
    with pytest.raises(LedgerError, match="lacks what its version promises"):
        study().run(ledger=ledger, run="search")


def read_and_resume(path: Path) -> str | None:
    """Do everything that can be done with a ledger; None where it was refused with an error of ours."""
    try:
        with Ledger(path, readonly=True) as found:
            for run in found.runs():
                list(found.results(run.id))
        return study().run(ledger=path, run="search").trace
    except (LedgerError, ReplayDivergence):
        return None


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 17))
def test_a_truncated_ledger_is_consistent_or_refused(part: int, ledger: Path, trace: str) -> None:
    os.truncate(ledger, ledger.stat().st_size * part // 16)
    assert read_and_resume(ledger) in ((trace,) if part == 16 else (trace, None))


@pytest.mark.parametrize("cut", [1, 15, 16, 99, 100, 1023, 4095])
def test_a_ledger_cut_within_its_first_page_is_refused(cut: int, ledger: Path) -> None:
    os.truncate(ledger, cut)
    assert read_and_resume(ledger) is None


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_random_bytes_in_a_ledger_never_crash_its_readers(number: int, ledger: Path) -> None:
    rng = random.Random(f"{SEED} {number}")
    data = bytearray(ledger.read_bytes())
    for _ in range(rng.choice([1, 4, 16, 64])):
        at, length = rng.randrange(100, len(data) - 64), rng.choice([1, 2, 16, 64])
        data[at : at + length] = rng.randbytes(length)
    ledger.write_bytes(data)
    read_and_resume(ledger)
    with contextlib.suppress(LedgerError, ReplayDivergence):  # also where reading has refused it before
        study().run(ledger=ledger, run="search").ledger.close()


@pytest.mark.parametrize("number", [0, 3])
def test_a_missing_row_is_noticed(number: int, ledger: Path) -> None:
    edit(ledger, "DELETE FROM trial WHERE number = ?", number)
    with pytest.raises((LedgerError, ReplayDivergence)):
        study().run(ledger=ledger, run="search")


def test_text_that_is_no_json_is_a_ledger_error(ledger: Path) -> None:
    edit(ledger, "UPDATE trial SET candidate = '{oops' WHERE number = 3")
    with Ledger(ledger, readonly=True) as found, pytest.raises(LedgerError):
        list(found.results(found.run("search").id))
    with pytest.raises((LedgerError, ReplayDivergence)):
        study().run(ledger=ledger, run="search")


class Planted:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("column", ["data", "message", "detail"])
@pytest.mark.parametrize("as_text", [True, False], ids=["text", "bytes"])
def test_a_planted_pickle_is_never_executed(column: str, as_text: bool, ledger: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    planted: Any = pickle.dumps(Planted(mark), 0)
    edit(ledger, f"UPDATE evaluation SET {column} = ?", planted.decode() if as_text else planted)
    edit(ledger, "UPDATE trial SET candidate = ? WHERE number = 1", planted.decode() if as_text else planted)
    edit(ledger, "INSERT OR REPLACE INTO snapshot SELECT id, 1, 2, ? FROM run", planted)
    with contextlib.suppress(Exception):  # what it is refused with is another test's question
        read_and_resume(ledger)
    with contextlib.suppress(Exception):
        study().run(ledger=ledger, run="search")
    assert not mark.exists()
    pickle.loads(planted)  # noqa: S301 - the trap itself works
    assert mark.exists()


# -- places that cannot be written ---------------------------------------------------------------------------


@pytest.mark.slow
def test_a_read_only_folder_is_an_error_that_names_the_ledger(start: Start) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become a user to whom the folder is read-only")
    with tempfile.TemporaryDirectory() as name:  # not pytest's own, which no other user may enter
        folder = Path(name)
        study().run(ledger=folder / "old.db", run="search").ledger.close()
        folder.chmod(0o555)
        for ledger in ("new.db", "old.db"):
            said = finish(start("contender.py", "search", folder / ledger, folder / "side.txt", "user=65534"))
            assert said.startswith("LedgerError: ") and ledger in said, said
        assert study().run(ledger=folder / "old.db", run="search").progress.told == TRIALS


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=384k", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_trace() -> str:
    return study(60).run().trace


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_what_was_finished_is_there_when_there_is_space(
    small_disk: Path, start: Start, tmp_path: Path
) -> None:
    ledger, side = small_disk / "ledger.db", tmp_path / "side.txt"
    filler = small_disk / "filler"
    filler.write_bytes(bytes(128 << 10))
    said = finish(start("contender.py", "search", ledger, side))
    assert said.startswith("LedgerError: ") and "full" in said, said
    kept = look(ledger)
    assert 0 < len(kept.evaluations) < 240
    again = finish(start("contender.py", "search", ledger, side))  # still full: the same clear answer
    assert again.startswith("LedgerError: ") and "full" in again, again

    bigger = tmp_path / "bigger.db"
    for suffix in ("", "-wal"):
        if (source := Path(f"{ledger}{suffix}")).exists():
            shutil.copy(source, f"{bigger}{suffix}")
    before = look(bigger)
    noted = len(lines(side))
    assert finish(start("contender.py", "search", bigger, side)) == full_trace()
    assert not before.cells & set(lines(side)[noted:])
    assert {cell: look(bigger).evaluations[cell] for cell in kept.evaluations} == kept.evaluations


@pytest.mark.slow
@pytest.mark.parametrize("limit", [60, 100, 160])
def test_a_file_that_may_not_grow_ends_the_run_and_loses_nothing(limit: int, start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    said = finish(start("contender.py", "search", ledger, side, f"limit={limit << 10}"))
    assert said.startswith("LedgerError: ") and "ledger.db" in said, said
    kept, noted = look(ledger), len(lines(side))
    assert finish(start("contender.py", "search", ledger, side)) == full_trace()
    assert not kept.cells & set(lines(side)[noted:])
    assert {cell: look(ledger).evaluations[cell] for cell in kept.evaluations} == kept.evaluations


# -- several users of one file -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_second_runner_of_the_same_run_is_refused_and_told_by_whom(start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    first = start("contender.py", "search", ledger, side)
    while not lines(side):
        time.sleep(0.002)
    with pytest.raises(RunLocked, match=rf"'search'.*process {first.pid}\b"):
        search("genetic", "all", Plain(None)).run(ledger=ledger, run="search")
    assert finish(first) == full_trace()


@pytest.mark.slow
def test_the_same_run_by_another_path_is_refused_too(tmp_path: Path, ledger: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(ledger)
    lock = RunLock(ledger, "search")
    try:
        with pytest.raises(RunLocked):
            study().run(ledger=link, run="search")
    finally:
        lock.release()


@pytest.mark.slow
def test_two_processes_fill_one_new_file_with_two_runs(start: Start, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    both = [start("contender.py", run, ledger, tmp_path / f"{run}.txt") for run in ("one", "two", "three")]
    assert [finish(process) for process in both] == [full_trace()] * 3
    with Ledger(ledger, readonly=True) as found:
        assert {run.name: (run.status, run.trials) for run in found.runs()} == {
            "one": ("finished", 60),
            "two": ("finished", 60),
            "three": ("finished", 60),
        }


@pytest.mark.parametrize("moment", range(1, 8))
def test_a_ledger_that_another_process_creates_meanwhile_is_recognised(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    asked: list[str] = []

    class Slow(sqlite3.Connection):
        """Is overtaken, between two of its questions, by a process that makes the same ledger."""

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            asked.append(sql)
            if len(asked) == moment and not self.in_transaction:
                monkeypatch.undo()
                Ledger(path).close()
            return super().execute(sql, *parameters)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, factory=Slow, **more))
    Ledger(path).close()
    assert len(asked) >= moment


@pytest.mark.slow
def test_a_reader_sees_a_growing_and_always_consistent_run(start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    writer = start("contender.py", "search", ledger, side)
    while not lines(side):
        time.sleep(0.002)
    seen: list[int] = []
    with Ledger(ledger, readonly=True) as reader:
        while writer.poll() is None:
            run = reader.run("search")
            results = list(reader.results(run.id))
            assert len(results) >= run.trials
            assert all(result.complete and len(result.outcomes) == 4 for result in results)
            seen.append(len(results))
    assert finish(writer) == full_trace()
    assert seen == sorted(seen) and len(set(seen)) > 3


@pytest.mark.slow
def test_the_lock_of_a_killed_runner_does_not_block(start: Start, tmp_path: Path) -> None:
    ledger, side = tmp_path / "ledger.db", tmp_path / "side.txt"
    process = start("contender.py", "search", ledger, side)
    while len(lines(side)) < 20:
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert list(tmp_path.glob("*.lock"))
    assert finish(start("contender.py", "search", ledger, side)) == full_trace()
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.slow
def test_a_lock_file_left_by_the_dead_does_not_block(ledger: Path, trace: str) -> None:
    ledger.with_name("ledger.db.search.lock").write_text("999999999")
    assert study().run(ledger=ledger, run="search").trace == trace


@pytest.mark.slow
def test_a_locked_run_does_not_block_the_others(ledger: Path, trace: str) -> None:
    lock = RunLock(ledger, "search")
    try:
        assert study().run(ledger=ledger, run="search-2").trace == trace
    finally:
        lock.release()


# -- a study that is no longer the one that was recorded -----------------------------------------------------


def other_evaluator(candidate: Any, case: Case) -> float:
    return score_of(candidate, case).score / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("evaluate", lambda old: replace(old, evaluate=other_evaluator)),
        ("cases", lambda old: replace(old, cases=[0, 1, 2, 4])),
        ("seed", lambda old: replace(old, seed=8)),
        ("window", lambda old: replace(old, window=3)),
        ("in_order", lambda old: replace(old, in_order=False)),
        ("aggregate", lambda old: replace(old, aggregate=min)),
        ("strategy", lambda old: replace(old, strategy=Random(Space(x=Float(0, 1))))),
    ],
)
def test_a_changed_study_is_refused_and_the_change_is_named(
    what: str, change: Callable[[Study[Any]], Study[Any]], ledger: Path, trace: str
) -> None:
    before = look(ledger)
    with pytest.raises(ReplayDivergence, match=rf"\b{what} (was|are others)"):
        change(study()).run(ledger=ledger, run="search")
    assert look(ledger) == before
    assert study().run(ledger=ledger, run="search").trace == trace


@pytest.mark.slow
def test_a_strategy_that_asks_something_else_is_found_out(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, ask = look(ledger), Genetic.ask
    # The settings are the same, so that only the replay can tell.
    monkeypatch.setattr(Genetic, "ask", lambda self, n: ask(self, n) if self._generation == 0 else [{"x": 0.5}])
    with pytest.raises(ReplayDivergence, match=r"trial 12 .* but the strategy now asks"):
        study().run(ledger=ledger, run="search")
    assert look(ledger) == before


@pytest.mark.slow
def test_only_a_changed_evaluator_can_be_accepted(ledger: Path, trace: str) -> None:
    changed = replace(study(), evaluate=other_evaluator)
    assert changed.run(ledger=ledger, run="search", accept_changes=True).trace == trace
    for both in (replace(changed, seed=8), replace(study(), seed=8), replace(changed, aggregate=min)):
        with pytest.raises(ReplayDivergence):
            both.run(ledger=ledger, run="search", accept_changes=True)


@pytest.mark.slow
def test_an_accepted_evaluator_serves_the_rest_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    study(10).run(ledger=path, run="search").ledger.close()
    old = look(path)
    done = replace(study(20), evaluate=other_evaluator).run(ledger=path, run="search", accept_changes=True)
    assert done.progress.told == 20
    new = look(path)
    assert {cell: new.evaluations[cell] for cell in old.evaluations} == old.evaluations
    assert len(new.evaluations) == 80


def test_every_refusal_is_an_error_of_ours(tmp_path: Path) -> None:
    assert issubclass(RunLocked, LedgerError) and issubclass(LedgerError, FanfoldError)
    assert issubclass(ReplayDivergence, FanfoldError) and not issubclass(ReplayDivergence, LedgerError)
    with pytest.raises(FanfoldError):
        study().run(ledger=tmp_path)
