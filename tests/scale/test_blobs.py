"""Blobs outside the ledger: in the store when the row that names them is written, and deleted only by their owner."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from heirs import SIZE, heirs, outcomes

from fanfold import blobs, stores
from fanfold.cli.trust import reached
from fanfold.encoding import Stored
from fanfold.errors import ConfigError, LedgerError, StoreError
from fanfold.events import Event, Notice
from fanfold.ledger import Ledger, RunBlobs, orphans
from fanfold.ledger import blobs as in_ledger
from fanfold.running import Run
from fanfold.stores import FolderStore
from fanfold.types import Blob

pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Run[Any]:
    """The same search with its blobs in the ledger."""
    return heirs().run(ledger=tmp_path_factory.mktemp("plain") / "one.db", run="r")


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """What one test has written, the next reads from where it is."""
    blobs._RECENT.clear()
    yield
    blobs._RECENT.clear()


def named(path: Path) -> dict[str, str]:
    """The blobs that a ledger has in a store: digest and name."""
    db = sqlite3.connect(path)
    try:
        return dict(db.execute("SELECT digest, name FROM stored_blob"))
    finally:
        db.close()


def whole(path: Path, plain: Run[Any]) -> None:
    """A ledger is complete: its run is that of `plain`, and every blob that it names is there."""
    blobs._RECENT.clear()
    with Ledger(path, readonly=True) as ledger:
        there = [digest for digest in named(path) if len(ledger.blob(digest)) == ledger.blob_size(digest) == SIZE]
        assert sorted(there) == sorted(named(path))
    again = heirs().run(ledger=path, run="r")
    assert again.trace == plain.trace and outcomes(again) == outcomes(plain) and again.progress.evaluations > 0
    again.ledger.close()


@pytest.mark.parametrize("executor", ["inline", "threads:3", "processes:2"])
@pytest.mark.slow
def test_a_run_with_its_blobs_in_a_store_is_the_same_run(executor: str, plain: Run[Any], tmp_path: Path) -> None:
    path, store = tmp_path / "one.db", stores.opened(tmp_path / "blobs")
    run = heirs().run(executor, ledger=path, run="r", blobs=tmp_path / "blobs")
    assert run.trace == plain.trace and outcomes(run) == outcomes(plain)
    assert sorted(store.names()) == sorted(named(path).values()), "pruned there too, and nothing left behind"
    assert 2 <= len(named(path)) <= 10
    assert path.stat().st_size < plain.ledger.path.stat().st_size - 2 * SIZE
    best = run.best.outcomes["1"].data["weights"]
    run.ledger.close()
    with Ledger(path, readonly=True) as ledger:
        assert best.digest in named(path) and len(Blob(best.digest, ledger.blob).read()) == SIZE
        pruned = next(digest for (digest,) in ledger.read("SELECT digest FROM blob WHERE data = x''"))
        with pytest.raises(LedgerError, match="was pruned"):
            ledger.blob(pruned)


@pytest.mark.slow
def test_workers_write_and_read_blobs_by_themselves(plain: Run[Any], tmp_path: Path, monkeypatch: Any) -> None:
    here: list[str] = []
    real = FolderStore.put
    monkeypatch.setattr(FolderStore, "put", lambda store, name, data: (here.append(name), real(store, name, data))[1])
    pulled: list[str] = []
    monkeypatch.setattr(FolderStore, "get", lambda store, name: pulled.append(name))
    run = heirs().run("processes:1", ledger=tmp_path / "one.db", run="r", blobs=tmp_path / "blobs")
    assert run.trace == plain.trace
    assert [name for name in here if "/run-" not in name] == [] and pulled == [], "no bytes pass through the driver"


@pytest.mark.slow
def test_a_store_that_workers_do_not_reach_is_said_and_used_all_the_same(plain: Run[Any], tmp_path: Path) -> None:
    said: list[str] = []

    def watch(event: Event) -> None:
        if isinstance(event, Notice):
            said.append(event.message)

    address = f"memory://{tmp_path.name}/blobs"  # a place of its own in every process
    run = heirs().run("processes:1", ledger=tmp_path / "one.db", run="r", blobs=address, watch=watch)
    assert run.trace == plain.trace
    assert len([line for line in said if f"workers do not reach the store {address}" in line]) == 1
    assert sorted(stores.opened(address).names()) == sorted(named(tmp_path / "one.db").values())


@pytest.mark.slow
def test_a_worker_that_cannot_read_where_others_can_is_given_the_bytes(
    plain: Run[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    real = RunBlobs.came
    monkeypatch.setattr(RunBlobs, "__init__", _reaching(RunBlobs.__init__))  # as if another worker had shown it
    monkeypatch.setattr(RunBlobs, "came", lambda own, away, rows=(): real(own, away) if not rows else None)
    run = heirs().run("processes:1", ledger=tmp_path / "one.db", run="r", blobs=f"memory://{tmp_path.name}/blobs")
    assert run.trace == plain.trace and run.progress.failures == 0
    assert run.ledger.blobs is not None and run.ledger.blobs.reached is False


def _reaching(real: Any) -> Any:
    def init(own: RunBlobs, *args: Any) -> None:
        real(own, *args)
        own.reached = True

    return init


def test_equal_blobs_of_two_workers_are_kept_once(tmp_path: Path) -> None:
    with Ledger(tmp_path / "one.db") as ledger:
        own = RunBlobs.at(tmp_path / "blobs", ledger)
        data = b"x" * SIZE
        digest = Blob.of(data).digest
        twins = [own.ticket.put(own.store, digest, data) for _ in range(3)]
        for rows in (
            [(digest, twins[0]), (digest, twins[1]), (digest, data)],
            [(digest, twins[2])],
            [(digest, twins[0])],
        ):
            kept, beside = own.written(rows)
            assert kept == [] and beside == [(digest, own.store.address, twins[0].name, SIZE)]
            ledger.writer.executemany(in_ledger.KEEP_STORED, beside)
            own.settle(ledger.writer, [digest], {})
        assert [name for name in own.store.names() if "/run-" not in name] == [twins[0].name]
        assert ledger.blob(digest) == data


def test_a_store_that_fails_on_the_way_loses_nothing(plain: Run[Any], tmp_path: Path, monkeypatch: Any) -> None:
    said, real, count = list[str](), FolderStore.put, 0

    def put(store: FolderStore, name: str, data: bytes) -> None:
        nonlocal count
        count += 1
        if 10 < count < 20:
            raise StoreError(f"the store {store.address} cannot be used (OSError: stale handle)")
        real(store, name, data)

    monkeypatch.setattr(FolderStore, "put", put)
    monkeypatch.setattr(blobs, "REST", 0.0)
    watch = lambda event: said.append(event.message) if isinstance(event, Notice) else None  # noqa: E731
    run = heirs().run(ledger=tmp_path / "one.db", run="r", blobs=tmp_path / "blobs", watch=watch)
    assert run.trace == plain.trace and len(said) == 1 and "stale handle" in said[0] and "stay in the ledger" in said[0]
    run.ledger.close()
    whole(tmp_path / "one.db", plain)


@pytest.mark.slow
def test_a_store_that_is_away_is_an_error_that_names_it_and_a_resume_waits_for_it(
    plain: Run[Any], tmp_path: Path
) -> None:
    path, place = tmp_path / "one.db", tmp_path / "blobs"
    heirs(trials=11).run(ledger=path, run="r", blobs=place).ledger.close()
    place.rename(tmp_path / "unmounted")
    blobs._RECENT.clear()
    with Ledger(path, readonly=True) as ledger, pytest.raises(StoreError, match=f"the store {place} cannot be used"):
        ledger.blob(next(iter(named(path))))
    with pytest.raises(StoreError, match=f"the store {place} cannot be used"):
        heirs().run(ledger=path, run="r", blobs=place)
    assert not place.exists(), "nor is it made again, empty"
    (tmp_path / "unmounted").rename(place)
    heirs().run(ledger=path, run="r", blobs=place).ledger.close()
    whole(path, plain)


@pytest.mark.slow
def test_a_blob_that_cannot_be_read_for_a_moment_is_waited_for(
    plain: Run[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    real, count = FolderStore.get, 0

    def get(store: FolderStore, name: str) -> bytes:
        nonlocal count
        count += 1
        if count in (3, 4):
            raise StoreError(f"the store {store.address} cannot be used (TimeoutError: no answer)")
        return real(store, name)

    monkeypatch.setattr(FolderStore, "get", get)
    monkeypatch.setattr(blobs, "_RECENT", blobs._Recent(0))
    run = heirs().run(ledger=tmp_path / "one.db", run="r", blobs=tmp_path / "blobs")
    assert count > 4 and run.trace == plain.trace and run.progress.failures == 0


_KILLED = """
import os, sys
from pathlib import Path
from fanfold.ledger import blobs as stored
from heirs import heirs

kind, name, count = {"put": (Path, "replace", 12), "named": (stored.RunBlobs, "written", 3),
                     "pruned": (stored.RunBlobs, "settle", 1)}[sys.argv[1]]
real, calls = getattr(kind, name), [0]

def until(*args):
    calls[0] += bool(args[-1])  # only those that have something to write, or to prune
    if calls[0] < count:
        return real(*args)
    if name == "written":
        real(*args)
    os.kill(os.getpid(), 9)

setattr(kind, name, until)
heirs().run(ledger=sys.argv[2], run="r", blobs=sys.argv[3])
"""


@pytest.mark.parametrize("point", ["put", "named", "pruned"])
@pytest.mark.slow
def test_a_kill_at_any_write_leaves_at_worst_an_orphan(point: str, plain: Run[Any], tmp_path: Path) -> None:
    path, place = tmp_path / "one.db", tmp_path / "blobs"
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, point, str(path), str(place)], cwd=Path(__file__).parent, capture_output=True
    )
    assert killed.returncode == -9, killed.stderr.decode()
    store = stores.opened(place)
    assert set(named(path).values()) <= set(store.names()), "what a row names is there"
    heirs().run(ledger=path, run="r", blobs=place).ledger.close()
    whole(path, plain)
    with Ledger(path) as ledger:
        left = list(orphans(ledger, store))
        assert 1 <= len(left) <= 60
        for name in left:
            store.delete(name)
        assert list(orphans(ledger, store)) == [] and sorted(store.names()) == sorted(named(path).values())


@pytest.mark.slow
def test_ledgers_that_share_a_store_never_delete_for_each_other(plain: Run[Any], tmp_path: Path) -> None:
    place = tmp_path / "blobs"
    paths = [tmp_path / "one.db", tmp_path / "two.db", tmp_path / "copy.db"]
    heirs(keep=None).run(ledger=paths[0], run="r", blobs=place).ledger.close()
    before = named(paths[0])
    heirs().run(ledger=paths[1], run="r", blobs=place).ledger.close()  # the same blobs, most of them pruned again
    shutil.copy(paths[0], paths[2])
    heirs(trials=25).run(ledger=paths[2], run="r", blobs=place).ledger.close()  # it prunes what it does not own
    assert len(named(paths[2])) < len(before) == len(named(paths[0]))
    blobs._RECENT.clear()
    with Ledger(paths[0], readonly=True) as ledger:
        assert all(len(ledger.blob(digest)) == SIZE for digest in before)
    for path in paths[1:]:
        with Ledger(path, readonly=True) as ledger:
            assert all(len(ledger.blob(digest)) == SIZE for digest in named(path))


@pytest.mark.slow
def test_runs_of_one_ledger_share_blobs_and_the_last_one_deletes(tmp_path: Path) -> None:
    path, place = tmp_path / "one.db", tmp_path / "blobs"
    heirs(keep=None).run(ledger=path, run="all", blobs=place).ledger.close()
    before = set(named(path).values())
    again = heirs().run(ledger=path, run="few", blobs=place, reuse="ledger")
    assert again.progress.reused > 0
    again.ledger.close()
    assert set(named(path).values()) == before == set(stores.opened(place).names())


def test_what_a_worker_claims_is_verified(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(in_ledger, "PAUSES", (0.0,))
    with Ledger(tmp_path / "one.db") as ledger:
        own = RunBlobs.at(tmp_path / "blobs", ledger)
        with pytest.raises(StoreError, match="give --blobs a place that all of them reach"):
            own.written([("ab" * 20, Stored(f"{own.ticket.folder}/ab/x", 5))])


def test_a_blob_that_was_changed_in_the_store_is_not_believed(tmp_path: Path) -> None:
    path, place = tmp_path / "one.db", tmp_path / "blobs"
    heirs(trials=6).run(ledger=path, run="r", blobs=place).ledger.close()
    digest, name = next(iter(named(path).items()))
    (place / name).write_bytes(b"x" * SIZE)
    blobs._RECENT.clear()
    with Ledger(path, readonly=True) as ledger, pytest.raises(LedgerError, match="is damaged"):
        ledger.blob(digest)


@pytest.mark.parametrize(
    ("store", "name", "problem"),
    [("sftp://evil.example/x", "ab/c", "FANFOLD_TRUSTED_HOSTS=evil.example"), ("/dev", "zero", "is gone")],
)
def test_the_ledger_of_a_stranger_reaches_nothing(store: str, name: str, problem: str, tmp_path: Path) -> None:
    with Ledger(tmp_path / "one.db") as ledger:
        ledger.writer.execute("INSERT INTO stored_blob VALUES ('abc', ?, ?, 5)", (store, name))
        with pytest.raises((StoreError, LedgerError), match=problem):
            ledger.blob("abc")


def test_what_cannot_work_is_refused_before_the_first_evaluation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a ledger that stays"):
        heirs().run(blobs=tmp_path / "blobs")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used"):
        heirs().run(ledger=tmp_path / "one.db", blobs=tmp_path / "file" / "blobs")
    with Ledger(tmp_path / "one.db", readonly=True) as ledger:
        assert ledger.runs() == []


def test_blobs_of_a_store_are_read_together_and_forgotten_after(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    heirs(trials=6).run(ledger=path, run="r", blobs=tmp_path / "blobs").ledger.close()
    with Ledger(path) as ledger:
        ledger.blobs = RunBlobs.at(tmp_path / "blobs", ledger)
        found = [Blob(digest, ledger.blob) for digest in named(path)]
        with blobs.fetched([*found, *found, Blob.of(b"here")]):
            shutil.rmtree(tmp_path / "blobs")
            blobs._RECENT.clear()
            assert [len(blob.read()) for blob in found] == [SIZE] * len(found)
        with pytest.raises(StoreError):
            found[0].read()


def test_a_resume_asks_before_it_writes_to_a_store_of_somebody_else(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    path, place = Path("one.db"), tmp_path / "blobs"
    heirs(trials=6).run(ledger=path, run="r", blobs=place).ledger.close()
    shutil.copy(path, "stranger.db")
    meta = {"target": "heirs", "options": {"blobs": str(place)}}
    assert list(reached(path, meta)) == [], "this file's own runs wrote there"
    assert list(reached(Path("stranger.db"), meta)) == [f"write weights and other large parts to {place}"]
    assert list(reached(path, {**meta, "options": {"blobs": "s3://elsewhere/x"}})) != []
    assert list(reached(Path("stranger.db"), {**meta, "options": {"blobs": "blobs"}})) == []
