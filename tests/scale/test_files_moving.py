"""Ledgers are copied to other places and back, and are not written where locks do not hold."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from files_world import changed, content, fanfold, kept, rows

from fanfold import Study, stores
from fanfold.errors import LedgerError
from fanfold.ledger import Ledger, add_comment, places, schema
from fanfold.ledger.moving import pull, push
from fanfold.strategies import Sweep


def squares(*numbers: int) -> Study[int]:
    return Study(Sweep(list(numbers)), lambda number, case: float(number**2), name="squares")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FANFOLD_LEDGER", raising=False)
    return tmp_path


@pytest.fixture(params=["folder", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a ledger is pushed to."""
    if request.param == "folder":
        yield str(tmp_path / "shared" / "team.db")
        return
    pytest.importorskip("fsspec")
    place = f"memory://{uuid.uuid4().hex}"
    yield f"{place}/team.db"
    store = stores.opened(place)
    for name in list(store.names()):
        store.delete(name)


# -- there and back ----------------------------------------------------------------------------------------------------


def test_a_ledger_goes_there_and_back(tmp_path: Path, address: str) -> None:
    here = kept("paid", tmp_path / "here.db")
    assert "3 runs" in fanfold("ledger", "push", address, "--ledger", here).output
    fanfold("ledger", "pull", address, "--ledger", "there.db")
    fanfold("runs", "--upgrade", "--ledger", here)
    assert content(tmp_path / "there.db") == content(here)
    assert (tmp_path / "there.db").stat().st_mode & 0o077 == 0
    assert "has everything" in fanfold("ledger", "pull", address, "--ledger", "there.db").output
    assert sorted(path.name for path in tmp_path.glob(".fanfold-*")) == []


@pytest.mark.slow
def test_news_come_back_and_what_is_newer_here_is_left_alone(tmp_path: Path, address: str) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    squares(1, 2, 3, 4).run(ledger=one, run="r", max_trials=2).ledger.close()
    push(one, address)
    pull(two, address)
    squares(1, 2, 3, 4).run(ledger=two, run="r", max_trials=3).ledger.close()
    assert pull(two, address).merged is not None and rows(two, "SELECT count(*) FROM trial") == [(3,)]
    push(two, address)
    merged = pull(one, address).merged
    assert merged is not None and merged.updated == {"r": "r"} and content(one) == content(two)
    squares(1, 2, 3, 4).run(ledger=one, run="r").ledger.close()
    squares(5).run(ledger=two, run="s").ledger.close()
    push(two, address)
    # Both have news now: neither overwrites the other unasked.
    with pytest.raises(LedgerError, match=r"has what this ledger lacks \(run 's'\)"):
        push(one, address)
    with pytest.raises(LedgerError, match=r"lacks \(run 'r'\): say --merge"):
        pull(one, address)
    assert pull(one, address, into_ours=True).merged is not None
    push(one, address)
    add_comment(two, "s", None, "look at this")
    pull(two, address, into_ours=True)
    push(two, address)
    with pytest.raises(LedgerError, match=r"lacks \(run 's'\)"):
        push(one, address)
    assert [row[0] for row in rows(one, "SELECT name FROM run ORDER BY name")] == ["r", "s"]


def test_a_copy_made_while_a_run_writes_is_of_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    progress: list[tuple[str, int, int]] = []
    copied = threading.Event()

    def copy() -> None:
        push(path, "copy.db", progress=lambda *step: progress.append(step))
        copied.set()

    def evaluate(number: int, case: Any) -> float:
        if number == 200:
            threading.Thread(target=copy).start()
        return float(number)

    done = Study(Sweep(range(400)), evaluate, name="count").run(ledger=path, run="r", executor="inline")
    done.ledger.close()
    assert copied.wait(30)
    fanfold("ledger", "verify", "--ledger", "copy.db")
    told = rows(tmp_path / "copy.db", "SELECT count(*) FROM trial WHERE told IS NOT NULL")[0][0]
    assert told <= 400 and {what for what, *_ in progress} == {"copying", "sending"}
    assert all(amount <= total for _, amount, total in progress)
    assert "updated" in fanfold("ledger", "merge", path, "--into", "copy.db").output or told == 400


def test_commits_while_a_copy_is_made_neither_join_nor_delay_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps = kept("functions", tmp_path / "f.db"), [0]
    fanfold("runs", "--upgrade", "--ledger", path)
    monkeypatch.setattr(schema, "COPY_PAGES", 1)

    def progress(done: int, total: int) -> None:
        steps[0] += 1
        if steps[0] < 20:
            changed(path, f"INSERT INTO comment VALUES (NULL, 1, NULL, {steps[0]}, 'meanwhile')")

    schema.copy_ledger(path, tmp_path / "copy.db", progress)
    assert rows(tmp_path / "copy.db", "SELECT count(*) FROM comment") == [(0,)]
    assert rows(path, "SELECT count(*) FROM comment") == [(19,)]


def test_bytes_that_have_changed_on_the_way_are_refused(tmp_path: Path) -> None:
    here = kept("functions", tmp_path / "here.db")
    push(here, "shared/team.db")
    data = bytearray(Path("shared/team.db").read_bytes())
    data[-10] ^= 1
    Path("shared/team.db").write_bytes(data)
    assert "checksum" in fanfold("ledger", "pull", "shared/team.db", "--ledger", "new.db", code=3).output
    assert not Path("new.db").exists()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_push_that_is_killed_leaves_something_to_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    here, steps = tmp_path / "here.db", [0]
    squares(1, 2).run(ledger=here, run="r", max_trials=1).ledger.close()
    push(here, "shared/team.db")
    squares(1, 2).run(ledger=here, run="r").ledger.close()

    def stops(name: str) -> Any:
        really = getattr(stores.FolderStore, name)

        def call(*args: Any) -> None:
            steps[0] += 1
            if steps[0] == step:
                raise KeyboardInterrupt
            really(*args)

        return call

    with monkeypatch.context() as patched:
        for name in ("put", "upload"):
            patched.setattr(stores.FolderStore, name, stops(name))
        with pytest.raises(KeyboardInterrupt):
            push(here, "shared/team.db")
    pull(tmp_path / "new.db", "shared/team.db")
    assert rows(tmp_path / "new.db", "SELECT count(*) FROM trial") == [(1 if step < 3 else 2,)]
    with monkeypatch.context() as patched:
        patched.setattr(stores.FolderStore, "upload", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            push(here, "shared/team.db")
    pull(tmp_path / "newer.db", "shared/team.db")
    push(here, "shared/team.db")


def test_what_push_did_not_write_is_not_replaced_and_can_be_pulled(tmp_path: Path) -> None:
    kept("functions", tmp_path / "by-hand.db")
    here = kept("paid", tmp_path / "here.db")
    assert "--force" in fanfold("ledger", "push", "by-hand.db", "--ledger", here, code=3).output
    assert "no checksum" in fanfold("ledger", "pull", "by-hand.db", "--ledger", "new.db").output
    fanfold("ledger", "push", "by-hand.db", "--force", "--ledger", here)
    assert rows(tmp_path / "by-hand.db", "SELECT count(*) FROM run") == [(3,)]
    assert "is the ledger itself" in fanfold("ledger", "push", "here.db", "--force", "--ledger", here, code=3).output


def test_a_copy_that_somebody_writes_to_is_not_replaced(tmp_path: Path) -> None:
    here = kept("functions", tmp_path / "here.db")
    push(here, "copy.db")
    squares(*range(50)).run(ledger="copy.db", run="theirs").ledger.close()
    with pytest.raises(LedgerError, match="was changed since"):
        push(here, "copy.db")
    push(here, "other.db")
    with sqlite3.connect("other.db") as db:
        db.execute("UPDATE run SET updated = updated + 1")
        db.commit()
        with pytest.raises(LedgerError, match="is in use as a ledger"):
            push(here, "other.db")
    db.close()


def test_a_folder_gets_the_file_under_its_own_name(tmp_path: Path) -> None:
    here = kept("functions", tmp_path / "here.db")
    Path("backup").mkdir()
    for place in ("backup", "new/"):
        fanfold("ledger", "push", place, "--ledger", here)
    assert Path("backup/here.db").exists() and Path("new/here.db.json").exists()


def test_a_password_in_an_address_is_never_shown(tmp_path: Path) -> None:
    here = kept("functions", tmp_path / "here.db")
    for words in (("push",), ("pull",), ("push", "--json")):
        said = fanfold("ledger", *words, "s3://user:hunter2secret@bucket/x.db", "--ledger", here, code=2)
        assert "hunter2secret" not in said.output


def test_there_must_be_something_to_copy(tmp_path: Path) -> None:
    assert "no ledger at" in fanfold("ledger", "push", "x.db", code=3).output
    assert fanfold("ledger", "pull", "nowhere/x.db", code=1).exit_code
    Path("there").mkdir()
    assert "has no x.db" in fanfold("ledger", "pull", "there/x.db", code=1).output
    assert not Path("fanfold.db").exists()


# -- network file systems ----------------------------------------------------------------------------------------------


def mounted(monkeypatch: pytest.MonkeyPatch, point: Path, kind: str, source: str = "server:/x") -> None:
    lines = [
        "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
        f"23 22 0:50 / {str(point).replace(' ', chr(92) + '040')} rw shared:1 - {kind} {source} rw",
    ]
    monkeypatch.setattr(places, "_mounts", lambda: [places._linux_mount(line) for line in lines])


BAD = [
    *("nfs", "nfs4", "cifs", "smb3", "afs", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "fuse.s3fs"),
    *("fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.blobfuse2"),
]


@pytest.mark.parametrize("kind", BAD)
def test_a_ledger_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    home = tmp_path / "my home"
    home.mkdir()
    mounted(monkeypatch, home, kind)
    with pytest.raises(LedgerError, match=rf"network file system \({kind} at .*ledger push"):
        Ledger(home / "r.db")
    assert list(home.iterdir()) == []
    Ledger(tmp_path / "my home.db").close()  # beside it, not on it
    monkeypatch.setenv(places.ALLOWED, "allow")
    Ledger(home / "r.db").close()


def test_a_program_that_mounts_under_its_own_name_is_known_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, tmp_path, "fuse", "mountpoint-s3")
    with pytest.raises(LedgerError, match="network file system"):
        Ledger(tmp_path / "r.db")


def test_a_link_to_a_network_file_system_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    mounted(monkeypatch, tmp_path / "far", "nfs4")
    with pytest.raises(LedgerError, match="network file system"):
        Ledger(tmp_path / "near" / "r.db")


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs", "virtiofs", "9p", "fuse.fuse-overlayfs", "vboxsf"])
def test_where_locks_work_a_ledger_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    mounted(monkeypatch, tmp_path, kind)
    Ledger(tmp_path / "r.db").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.db"]


@pytest.mark.parametrize("broken", ["flock", "mmap", "wal"])
def test_an_unknown_file_system_is_tried_and_refused_where_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    mounted(monkeypatch, tmp_path, "novelfs")
    if broken == "flock":
        monkeypatch.setattr(places.fcntl, "flock", lambda file, how: None)
    elif broken == "mmap":
        monkeypatch.setattr(places.mmap, "mmap", lambda *args: (_ for _ in ()).throw(OSError(22, "Invalid argument")))
    else:
        monkeypatch.setattr(places, "_write_ahead", lambda path: "SQLite cannot keep a write-ahead log there")
    with pytest.raises(LedgerError, match=r"file system \(novelfs at .*cannot hold a ledger \("):
        Ledger(tmp_path / "r.db")


def test_a_ledger_on_a_network_file_system_can_be_read_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept("functions", tmp_path / "f.db")
    before = path.read_bytes()
    mounted(monkeypatch, tmp_path, "nfs4")
    said = fanfold("runs", "--ledger", path)
    assert "kept" in said.stdout and "note:" in said.stderr and "nfs4" in said.stderr
    assert path.read_bytes() == before and rows(path, "PRAGMA user_version") == [(3,)]  # upgraded in memory alone


def test_on_a_mac_what_is_not_local_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//me@nas/share on /Volumes/My share (smbfs, nodev, nosuid, mounted by me)
macfuse@1 on /Volumes/x (macfuse, synchronous)
/dev/disk4 on /Volumes/stick (exfat, local, nodev)"""
    monkeypatch.setattr(places.sys, "platform", "darwin")
    monkeypatch.setattr(places.subprocess, "run", lambda *args, **kw: subprocess.CompletedProcess(args, 0, said, ""))
    kinds = {mount.point: mount.network for mount in places._mounts()}
    assert kinds == {"/": False, "/Volumes/My share": True, "/Volumes/x": True, "/Volumes/stick": False}


#: Mounts a file system of its own over /dev/fuse, whose only file cannot be found, and opens a ledger in it.
FUSE = """
import ctypes, os, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result:
        print("cannot mount:", os.strerror(ctypes.get_errno()))
        sys.exit(77)
check(libc.unshare(0x20000))
check(libc.mount(b"none", b"/", None, 0x44000, None))
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
check(libc.mount(b"host:", sys.argv[1].encode(), b"fuse.sshfs", 0, options))
def serve():
    while True:
        request = os.read(fuse, 1 << 17)
        length, code, unique, node = struct.unpack_from("<IIQQ", request)
        body = b""
        if code == 26:
            body = struct.pack("<IIIIHHI", 7, 31, 0, 0, 0, 0, 1 << 16) + bytes(40)
        elif code == 3:
            body = struct.pack("<QII", 0, 0, 0) + struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0,
                                                              0o40755, 2, 0, 0, 0, 4096, 0)
        error = 0 if body else -2 if code == 1 else -38
        if code not in (2, 42):
            os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
threading.Thread(target=serve, daemon=True).start()
from fanfold.ledger import Ledger
try:
    Ledger(os.path.join(sys.argv[1], "r.db"))
except Exception as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK) or os.getuid() != 0, reason="mounting takes rights")
def test_a_real_file_system_over_fuse_is_refused(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    done = subprocess.run([sys.executable, "-c", FUSE, tmp_path / "far"], capture_output=True, text=True, timeout=60)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert "network file system (fuse.sshfs at" in done.stdout, done.stderr
