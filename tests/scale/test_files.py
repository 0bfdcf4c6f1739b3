"""Ledgers are merged and made smaller, and nothing that counts is lost or counted twice."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from files_world import LINEAGE, changed, content, fanfold, kept, rows
from heirs import SIZE

from fanfold import Blob, Study
from fanfold.errors import LedgerError
from fanfold.ledger import Ledger, RunLock, RunView, add_comment
from fanfold.ledger.holdings import holdings
from fanfold.ledger.merging import SHARED, merge
from fanfold.ledger.pruning import Retention, last_commit, sweep
from fanfold.ledger.schema import tables
from fanfold.space import Float, Space
from fanfold.strategies import Genetic, Sweep

STUDIES = ("critic", "functions", "neuro", "paid", "prompts", "secrets", "workflow")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FANFOLD_LEDGER", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One ledger of all the runs that version 0.1.0 left, each called `kept` where it came from."""
    place = tmp_path_factory.mktemp("everything")
    for study in STUDIES:
        source = kept(study, place / f"{study}.db")
        before = source.read_bytes()
        merge(place / "all.db", source)
        assert source.read_bytes() == before
    return place / "all.db"


def squares(*numbers: int) -> Study[int]:
    return Study(Sweep(list(numbers)), lambda number, case: float(number**2), name="squares")


# -- merging -----------------------------------------------------------------------------------------------------------


def test_every_table_has_a_rule_for_merging(everything: Path) -> None:
    columns = {table: [row[1] for row in rows(everything, f"PRAGMA table_info({table})")] for table in tables()}
    assert [table for table in tables() if table not in SHARED and "run" not in columns[table]] == []


def test_runs_of_one_name_get_numbers_and_what_belongs_to_them_follows(everything: Path) -> None:
    with Ledger(everything, readonly=True) as ledger:
        runs = {run.name: run.meta.get("belongs_to") for run in ledger.runs()}
    assert {name for name, owner in runs.items() if owner is None} == {"kept", *(f"kept-{n}" for n in range(2, 8))}
    assert {name: owner for name, owner in runs.items() if owner} == {
        "kept-3.test-5": "kept-3",
        "kept-4.validation-6": "kept-4",
        "kept-4.held-out-6": "kept-4",
        "kept-5.validation-6": "kept-5",
        "kept-5.held-out-6": "kept-5",
        "kept-7.fresh-2": "kept-7",
    }


def test_merged_runs_show_what_they_showed_before(everything: Path, tmp_path: Path) -> None:
    alone = kept("paid", tmp_path / "paid.db")
    with RunView.open(alone, "kept") as before, RunView.open(everything, "kept-4") as after:
        assert before.costs() == after.costs() and before.costs().calls == 54
        assert [row.candidate for row in before.trials()] == [row.candidate for row in after.trials()]
        assert before.summary() == after.summary()
    fanfold("ledger", "verify", "--ledger", everything)
    fanfold("report", "kept-3", "--ledger", everything, "-o", tmp_path / "neuro.html")
    said = fanfold("ledger", "merge", alone, "--into", kept("prompts", tmp_path / "prompts.db")).output.splitlines()
    assert said[1:] == ["  kept is now kept-2: kept is the name of another run here"]
    assert "kept-4" in fanfold("compare", "kept-4", "kept-5", "--ledger", everything).output


def test_merging_again_changes_nothing(everything: Path, tmp_path: Path) -> None:
    before = content(everything)
    for study in STUDIES:
        merged = merge(everything, kept(study, tmp_path / f"{study}.db"))
        assert not merged.added and not merged.updated and merged.known
    assert content(everything) == before


def test_what_was_continued_elsewhere_is_brought_up_to_date(tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    squares(1, 2, 3).run(ledger=here, run="r", max_trials=2).ledger.close()
    shutil.copy(here, there)
    squares(1, 2, 3).run(ledger=there, run="r", max_trials=3).ledger.close()
    assert merge(there, here).known == {"r": "r"}  # what is behind changes nothing
    assert merge(here, there).updated == {"r": "r"}
    assert content(here) == content(there)
    done = squares(1, 2, 3).run(ledger=here, run="r")
    assert done.progress.told == 3
    done.ledger.close()


def test_a_merged_run_continues_as_it_would_have_where_it_came_from(tmp_path: Path) -> None:
    def search(path: Path, trials: int) -> str:
        space = Space(x=Float(-5, 5), y=Float(-5, 5))
        study = Study(Genetic(space, population=6), lambda point, case: -(point["x"] ** 2) - point["y"] ** 2, name="s")
        done = study.run(ledger=path, run="r", max_trials=trials, executor="inline")
        done.ledger.close()
        return done.trace

    there, here = tmp_path / "there.db", kept("functions", tmp_path / "here.db")
    search(there, 30)
    merge(here, there)
    assert rows(here, "SELECT count(*) FROM snapshot") == rows(there, "SELECT count(*) FROM snapshot")
    assert search(here, 45) == search(there, 45)


def test_comments_in_two_places_are_all_kept_and_make_no_second_run(tmp_path: Path) -> None:
    here, there = tmp_path / "here.db", tmp_path / "there.db"
    squares(1, 2).run(ledger=here, run="r", max_trials=1).ledger.close()
    shutil.copy(here, there)
    add_comment(here, "r", None, "from here")
    add_comment(there, "r", None, "from there")
    assert merge(here, there).known == {"r": "r"}
    squares(1, 2).run(ledger=there, run="r").ledger.close()
    assert merge(here, there).updated == {"r": "r"} and not merge(here, there).added
    assert [text for (text,) in rows(here, "SELECT text FROM comment ORDER BY at")] == ["from here", "from there"]


def test_two_continuations_of_one_run_are_both_kept_and_each_payment_counts_once(tmp_path: Path) -> None:
    here, there = kept("paid", tmp_path / "here.db"), tmp_path / "there.db"
    fanfold("runs", "--upgrade", "--ledger", here)
    shutil.copy(here, there)
    paid = (
        "INSERT INTO payment SELECT NULL, run, {}, model, 1.0, 1, 1, 0, 0, {}, 1.0, 1, NULL, NULL FROM payment LIMIT 1"
    )
    log = "INSERT INTO change SELECT id, 1, {}, '[1]', '[]', '[]' FROM run WHERE name = 'kept'"
    changed(here, paid.format("x'01'", 5.0), log.format(5.0))
    changed(there, paid.format("x'02'", 6.0), log.format(6.0))
    merged = merge(here, there)
    assert merged.diverged == ["kept"] and merged.added == {"kept": "kept-2"} and merged.payments == 1
    assert len(rows(here, "SELECT DISTINCT key, at FROM payment")) == 56 == len(rows(here, "SELECT 1 FROM payment"))
    assert not merge(here, there).added


@pytest.mark.slow
def test_of_batches_and_of_what_was_learnt_the_latest_state_counts(tmp_path: Path) -> None:
    states = {"here": ("submitted", "done", 1.0), "there": ("done", "intent", 2.0)}
    for name, (one, two, at) in states.items():
        squares(1).run(ledger=tmp_path / f"{name}.db", run=name).ledger.close()
        changed(
            tmp_path / f"{name}.db",
            *(
                f"INSERT INTO batch VALUES ('{tag}', 1, 'm', 'e', '{state}', '{name}', 1, 0.0, NULL)"
                for tag, state in (("one", one), ("two", two), (name, one))
            ),
            "INSERT INTO batch_item VALUES ('one', 'id', x'01')",
            "INSERT INTO owed VALUES ('one', x'01', 1.0)",
            f"INSERT INTO learnt VALUES ('m', 'rate', '{name}', {at})",
            f"INSERT INTO request VALUES (NULL, 1, {at}, 'stop', 'null', {at})",
        )
    for _ in range(2):
        merge(tmp_path / "here.db", tmp_path / "there.db")
    assert rows(tmp_path / "here.db", "SELECT tag, run, state, remote FROM batch ORDER BY tag") == [
        ("here", 1, "submitted", "here"),
        ("one", 1, "done", "there"),
        ("there", 2, "done", "there"),
        ("two", 1, "done", "here"),
    ]
    counts = "SELECT (SELECT count(*) FROM batch_item), (SELECT count(*) FROM owed), (SELECT count(*) FROM request)"
    assert rows(tmp_path / "here.db", counts) == [(1, 1, 2)]
    assert rows(tmp_path / "here.db", "SELECT value FROM learnt") == [("there",)]


@pytest.mark.slow
def test_a_blob_that_one_file_keeps_for_good_is_kept_for_good(tmp_path: Path) -> None:
    blob = Blob.of(b"\x01").digest
    for name, held in (("here", True), ("there", False)):
        squares(1).run(ledger=tmp_path / f"{name}.db", run=name).ledger.close()
        changed(
            tmp_path / f"{name}.db",
            f"INSERT INTO blob VALUES ('{blob}', x'01')",
            f'UPDATE evaluation SET data = \'{{"w":{{"$blob":"{blob}"}}}}\'',
            f"INSERT INTO blob_holder SELECT '{blob}', id FROM run WHERE {held:d}",
        )
    merge(tmp_path / "here.db", tmp_path / "there.db")
    assert rows(tmp_path / "here.db", "SELECT * FROM blob_holder") == []
    assert rows(tmp_path / "here.db", "SELECT * FROM blob") == [(blob, b"\x01")]


def test_a_live_run_in_either_file_is_refused(tmp_path: Path) -> None:
    here, there = kept("functions", tmp_path / "here.db"), kept("paid", tmp_path / "there.db")
    for file in (here, there):
        lock = RunLock(file, "kept")
        with pytest.raises(LedgerError, match=f"'kept' of {file} is under way"):
            merge(here, there)
        lock.release()
    assert len(merge(here, there).added) == 3


@pytest.mark.parametrize("other", ["missing.db", "text.db", ".", "itself"])
def test_what_is_not_another_ledger_is_refused_before_anything_is_made(tmp_path: Path, other: str) -> None:
    Path("text.db").write_text("no ledger at all")
    if other == "itself":
        other = str(kept("functions", tmp_path / "all.db"))
    problem = fanfold("ledger", "merge", other, "--into", "all.db", code=3).output
    assert other in problem and (Path("all.db").exists() == ("all.db" in other))


def test_a_wrong_path_is_refused_beside_a_ledger_that_is_there(tmp_path: Path) -> None:
    kept("functions", tmp_path / "all.db")
    problem = fanfold("ledger", "merge", "missing.db", "--into", tmp_path / "all.db", code=3).output
    assert "there is no ledger at missing.db" in problem
    assert ". is a folder" in fanfold("ledger", "--ledger", ".", code=3).output


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_nothing_half_merged(tmp_path: Path) -> None:
    here, there = kept("functions", tmp_path / "here.db"), kept("neuro", tmp_path / "there.db")
    fanfold("runs", "--upgrade", "--ledger", here)
    before = content(here)
    program = (
        "import os; from pathlib import Path; from fanfold.ledger import merging\n"
        "merging._Merge._blobs = lambda self: os._exit(9)\n"
        "merging.merge(Path('here.db'), Path('there.db'))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path).returncode == 9
    assert content(here) == before
    assert len(merge(here, there).added) == 2 and rows(here, "SELECT count(*) FROM blob") == [(16,)]


def test_what_a_killed_merge_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    here, there = kept("functions", tmp_path / "here.db"), kept("neuro", tmp_path / "there.db")
    for name, age in (("dead", 100), ("young", 0), ("alive", 100)):
        (tmp_path / f".fanfold-{name}").mkdir()
        (tmp_path / f".fanfold-{name}" / "lock").touch()
        os.utime(tmp_path / f".fanfold-{name}" / "lock", (0, time.time() - age))
    with (tmp_path / ".fanfold-alive" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        merge(here, there)
    assert sorted(path.name for path in tmp_path.glob(".fanfold-*")) == [".fanfold-alive", ".fanfold-young"]


# -- pruning -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with every weight of a search of 40 trials, as a version without pruning left it, and its study."""
    place = tmp_path_factory.mktemp("grown")
    (place / "lineage.py").write_text(LINEAGE)
    command = ["-m", "fanfold", "run", "lineage.py", "--max-trials", "40", "--run", "r", "--ledger", "r.db", "--quiet"]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, *command], cwd=place, check=True, env={**os.environ, "PYTHONPATH": path})
    changed(place / "r.db", "DELETE FROM blob_holder")
    return place


@pytest.fixture
def heirs(grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(grown, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "r.db"
    meta = json.loads(rows(path, "SELECT meta FROM run")[0][0])
    meta["target"] = f"{tmp_path / 'lineage.py'}:study"
    with sqlite3.connect(path) as db:
        db.execute("UPDATE run SET meta = ?", (json.dumps(meta),))
    db.close()
    monkeypatch.setenv("KEEP", "2")
    return path


def weights(path: Path) -> int:
    return int(rows(path, "SELECT count(*) FROM blob WHERE length(data) > 0")[0][0])


def trace(path: Path) -> Any:
    """The search continued: what it found."""
    done = json.loads(fanfold("resume", "r", "--max-trials", "60", "--ledger", path, "--json").stdout)
    return done["trace"], done["best"]["score"]


@pytest.mark.slow
def test_a_pruned_run_is_small_and_resumes_as_if_it_were_whole(heirs: Path, tmp_path: Path) -> None:
    whole = shutil.copy(heirs, tmp_path / "whole.db")
    dry = fanfold("ledger", "prune", "--ledger", heirs, "--dry-run").output
    assert "would remove" in dry and content(heirs) == content(Path(whole))
    said = fanfold("ledger", "prune", "--ledger", heirs).output
    assert "before" in said and "now" in said
    # The population and the best two, of some 110 blobs.
    assert weights(heirs) <= 6 + 2 < weights(Path(whole)) / 6
    assert heirs.stat().st_size < Path(whole).stat().st_size / 4
    fanfold("report", "r", "--ledger", heirs, "-o", "r.html")
    fanfold("show", "r", "--ledger", heirs)
    assert fanfold("ledger", "prune", "--ledger", heirs).output.endswith("nothing to remove\n")
    assert trace(heirs) == trace(Path(whole))


@pytest.mark.slow
def test_final_leaves_the_best_alone(heirs: Path) -> None:
    fanfold("ledger", "prune", "r", "--keep", "1", "--final", "--ledger", heirs)
    assert weights(heirs) == 1
    fanfold("report", "r", "--ledger", heirs, "-o", "r.html")


def test_what_failed_and_what_a_saved_state_names_stay_for_a_resume(heirs: Path) -> None:
    (digest,) = rows(heirs, "SELECT max(digest) FROM blob")[0]
    changed(
        heirs,
        "UPDATE evaluation SET failure = 'x' WHERE trial = 0 AND position = 0",
        f"INSERT OR REPLACE INTO snapshot SELECT id, 0, 0, '{digest}' FROM run",
    )
    with Ledger(heirs, readonly=True) as ledger:
        stays = Retention(0).digests(ledger.read, 1)
        assert digest in stays and len(stays) >= 1 + 2
        assert Retention(0, final=True).digests(ledger.read, 1) == set()


def test_a_run_that_continued_meanwhile_is_left_alone(heirs: Path) -> None:
    before = weights(heirs)
    with Ledger(heirs) as ledger:
        assert sweep(ledger, {1: Retention(0, final=True, commit=0)}).blobs == 0 and weights(heirs) == before
        assert sweep(ledger, {1: Retention(0, final=True, commit=last_commit(ledger.read, 1))}).blobs == before


@pytest.mark.slow
def test_a_study_that_keeps_everything_or_cannot_be_loaded_loses_nothing(
    heirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(heirs)
    monkeypatch.setenv("KEEP", "0")
    assert "nothing to remove" in fanfold("ledger", "prune", "--ledger", heirs).output
    (heirs.parent / "lineage.py").unlink()
    assert "its study cannot be loaded" in fanfold("ledger", "prune", "--ledger", heirs).output
    lock = RunLock(heirs, "r")
    assert "is under way" in fanfold("ledger", "prune", "r", "--ledger", heirs).output
    lock.release()
    assert content(heirs) == before
    fanfold("ledger", "prune", "--ledger", heirs, "--final", "--keep", "1")
    assert weights(heirs) <= 4


def test_what_another_run_names_stays_and_what_nothing_names_goes(heirs: Path) -> None:
    digests = [digest for (digest,) in rows(heirs, "SELECT digest FROM blob ORDER BY digest")]
    squares(7).run(ledger=heirs, run="other").ledger.close()
    names = json.dumps([{"$blob": digests[0]}, "0" * 40]).replace(" ", "")
    changed(
        heirs,
        f"UPDATE evaluation SET data = '{names}' WHERE run = (SELECT id FROM run WHERE name = 'other')",
        f"INSERT INTO blob VALUES ('{'0' * 40}', x'01')",
        f"INSERT INTO summary SELECT id, '[\"{digests[1]}\"]' FROM run WHERE name = 'r'",
    )
    swept = json.loads(fanfold("ledger", "prune", "r", "--final", "--keep", "0", "--ledger", heirs, "--json").stdout)
    assert swept["orphans"] == 1  # a digest in plain words is only looked for in conclusions
    with Ledger(heirs, readonly=True) as ledger:
        assert len(ledger.blob(digests[0])) == len(ledger.blob(digests[1])) == SIZE
        with pytest.raises(LedgerError, match="was pruned"):
            ledger.blob(digests[2])


def test_replies_go_only_if_asked_for_and_the_bill_stays(tmp_path: Path) -> None:
    path = kept("paid", tmp_path / "paid.db")
    fanfold("ledger", "prune", "--ledger", path)
    assert rows(path, "SELECT count(*) FROM call") == [(54,)]
    keys = rows(path, "SELECT key FROM call ORDER BY rowid LIMIT 3")
    cells = rows(path, "SELECT run, trial, position FROM evaluation ORDER BY run, trial, position LIMIT 3")
    called = [keys[0][0] + keys[1][0], keys[1][0], keys[2][0]]
    with sqlite3.connect(path) as db:
        for cell, own in zip(cells, called):
            db.execute("INSERT INTO cell_call VALUES (?, ?, ?, ?, ?)", (*cell, own, bytes(len(own) // 16)))
        db.execute("UPDATE evaluation SET failure = 'x' WHERE (run, trial, position) = (?, ?, ?)", cells[0])
    db.close()
    bill = fanfold("show", "kept", "--ledger", path).output
    fanfold("ledger", "prune", "--ledger", path, "--calls", "--keep", "0")
    assert rows(path, "SELECT count(*) FROM call") == [(53,)]  # those of the failure stay, for a retry
    fanfold("ledger", "prune", "--ledger", path, "--calls", "--keep", "0", "--final")
    assert rows(path, "SELECT count(*) FROM call") == [(0,)]
    assert "$" in bill and len(rows(path, "SELECT 1 FROM payment")) == 54


@pytest.mark.slow
def test_blobs_in_a_store_are_pruned_there_and_found_from_a_merged_ledger(heirs: Path, tmp_path: Path) -> None:
    store, path = tmp_path / "store", tmp_path / "s.db"
    fanfold("run", "lineage.py", "--max-trials", "12", "--run", "s", "--blobs", store, "--ledger", path, "--quiet")
    stored = rows(path, "SELECT digest, name FROM stored_blob")
    assert "in " + str(store) in fanfold("ledger", path).output
    merge(heirs, path)
    with Ledger(heirs, readonly=True) as ledger:
        assert all(len(ledger.blob(digest)) == SIZE for digest, _ in stored)
    fanfold("ledger", "verify", "--ledger", heirs)
    # What another ledger has put is not deleted from here; what nobody names is.
    (store / stored[0][1]).with_name("orphan").write_bytes(b"left by a kill")
    fanfold("ledger", "prune", "s", "--keep", "0", "--final", "--ledger", heirs)
    assert all((store / name).exists() for _, name in stored)
    assert "in stores" in fanfold("ledger", "prune", "s", "--keep", "1", "--final", "--ledger", path).output
    left = rows(path, "SELECT name FROM stored_blob")
    assert len(left) == 1 and [file.is_file() for file in store.rglob("*-*") if file.is_file()] == [True]
    said = fanfold("ledger", "push", "copy.db", "--ledger", path)
    assert f"stay in {store}" in said.stderr
    (store / left[0][0]).unlink()
    assert merge(tmp_path / "new.db", path).added, "a store that is away holds up no merge"
    assert "is gone" in fanfold("ledger", "verify", "--ledger", path, code=3).output


# -- the file ----------------------------------------------------------------------------------------------------------


def test_what_a_file_holds_is_said(tmp_path: Path) -> None:
    path = kept("neuro", tmp_path / "neuro.db")
    said = fanfold("ledger", path).output
    assert "schema 3" in said and "2 runs (2 finished)" in said and "blobs        96.1 kB" in said
    held = json.loads(fanfold("ledger", "--ledger", path, "--json").stdout)
    assert held["schema"] == len(rows(path, "PRAGMA user_version")) * held["schema"] and held["runs"] == {"finished": 2}
    lock = RunLock(path, "kept")
    reader = subprocess.Popen(["sleep", "60"], stdin=path.open("rb"))
    try:
        assert holdings(path).live == ["kept"]
        if sys.platform == "linux":
            assert holdings(path).open_by == {reader.pid: "sleep 60"}
    finally:
        reader.kill()
        reader.wait()
        lock.release()
    assert sum(held["bytes"].values()) >= held["size"]


def test_commands_about_runs_are_found_under_ledger_too(tmp_path: Path) -> None:
    path = kept("functions", tmp_path / "f.db")
    for words in (["runs"], ["batches"], ["export", "kept"]):
        assert fanfold("ledger", "--ledger", path, *words).output == fanfold(*words, "--ledger", path).output
    assert "there is no ledger at fanfold.db" in fanfold("ledger", code=3).output


def test_a_vacuum_gives_space_back_and_leaves_a_damaged_file_alone(tmp_path: Path) -> None:
    path = kept("workflow", tmp_path / "w.db")
    fanfold("runs", "--upgrade", "--ledger", path)
    before = content(path)
    lock = RunLock(path, "kept")
    assert "under way" in fanfold("ledger", "vacuum", "--ledger", path, code=3).output
    lock.release()
    changed(path, "CREATE TABLE ballast AS SELECT zeroblob(1000000)", "DROP TABLE ballast")
    assert path.stat().st_size > 1e6
    fanfold("ledger", "vacuum", "--ledger", path)
    assert path.stat().st_size < 5e5 and content(path) == before
    data = bytearray(path.read_bytes())
    data[-8192:-4096] = os.urandom(4096)
    path.write_bytes(data)
    assert "damaged" in fanfold("ledger", "vacuum", "--ledger", path, code=3).output
    assert path.read_bytes() == data


@pytest.mark.slow
def test_a_vacuum_that_is_killed_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = kept("workflow", tmp_path / "w.db")
    fanfold("runs", "--upgrade", "--ledger", path)
    before = content(path)
    program = (
        "import os; from pathlib import Path; from fanfold.ledger import holdings\n"
        "steps = iter(range(100))\n"
        "step = lambda: 0 if next(steps, None) is not None else os._exit(9)\n"
        "holdings.check_file = lambda ledger: ledger.writer.set_progress_handler(step, 20)\n"
        "holdings.vacuum(Path('w.db'))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=tmp_path).returncode == 9
    assert content(path) == before
    fanfold("ledger", "verify", "--ledger", path)


def test_a_blob_whose_bytes_have_changed_is_noticed(tmp_path: Path) -> None:
    path = kept("secrets", tmp_path / "s.db")
    assert "1 run, 1 blob" in fanfold("ledger", "verify", "--ledger", path).output
    changed(path, "UPDATE blob SET data = x'00'")
    assert "its bytes are others" in fanfold("ledger", "verify", "--ledger", path, code=3).output
