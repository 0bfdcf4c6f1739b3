"""Stores of bytes: a folder, and what fsspec reaches."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanfold import stores
from fanfold.errors import ConfigError, MissingExtra, NotInStore, StoreError
from fanfold.redaction import redact
from fanfold.stores import Store

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(params=["folder", "memory", "renaming"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A folder, an object store, and one where files are renamed into place."""
    if request.param == "folder":
        yield stores.opened(tmp_path / "blobs")
        return
    address = f"memory://blobs-{os.getpid()}/{tmp_path.name}"
    store = stores.opened(address)
    if request.param == "renaming":
        store._renames = True  # type: ignore[attr-defined]
    yield store
    for name in store.names():
        store.delete(name)


def test_bytes_come_back_by_their_name(store: Store) -> None:
    store.put("ab/one", b"1" * 1000)
    store.put("ab/one", b"2")
    store.put("cd/empty", b"")
    assert store.get("ab/one") == b"2" and store.get("cd/empty") == b""
    assert (store.size("ab/one"), store.size("cd/empty"), store.size("ab/no")) == (1, 0, None)
    assert store.has("ab/one") and not store.has("no")
    assert list(store.names()) == ["ab/one", "cd/empty"] and list(store.names("cd")) == ["cd/empty"]
    store.delete("ab/one")
    store.delete("ab/one")
    assert list(store.names()) == ["cd/empty"]
    with pytest.raises(NotInStore, match="has no ab/one"):
        store.get("ab/one")


@pytest.mark.parametrize("name", ["../up", "a/../b", "/root", "", ".hidden", "a//b", "a b"])
def test_a_name_cannot_leave_its_store(store: Store, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name"):
        store.put(name, b"x")


def test_files_are_copied_in_parts_and_progress_is_told(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "CHUNK", 1000)
    ledger, copy, told = tmp_path / "team.db", tmp_path / "copy.db", list[tuple[int, int]]()
    ledger.write_bytes(os.urandom(2500))
    store.upload("team.db", ledger, lambda *step: told.append(step))
    store.download("team.db", copy, lambda *step: told.append(step))
    assert copy.read_bytes() == ledger.read_bytes()
    assert told == 2 * [(1000, 2500), (2000, 2500), (2500, 2500)]
    with pytest.raises(NotInStore):
        store.download("other.db", tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


def test_an_upload_that_breaks_off_leaves_what_was_there(store: Store, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    store.put("team.db", b"old")

    def broken(done: int, size: int) -> None:
        raise OSError("the line is cut")

    with pytest.raises(StoreError, match="the line is cut"):
        store.upload("team.db", tmp_path / "new", broken)
    if getattr(store, "_renames", True):  # an object appears when it is closed, which fsspec does here
        assert store.get("team.db") == b"old"
    assert list(store.names()) == ["team.db"]


def test_a_store_that_is_away_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=re.escape(f"the store {tmp_path}/file/blobs cannot be used")):
        stores.opened(tmp_path / "file" / "blobs")
    with pytest.raises(StoreError, match="no such folder"):
        stores.opened(tmp_path / "unmounted", create=False)
    store = stores.opened(f"file://{tmp_path}/blobs")
    assert store.address == f"{tmp_path}/blobs"
    (tmp_path / "blobs").rmdir()
    with pytest.raises(StoreError):
        store.get("one")  # not NotInStore: the bytes may be there once it is mounted again


def test_what_is_missing_for_an_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no protocol 's33'; did you mean 's3'"):
        stores.opened("s33://bucket/x")
    with pytest.raises(MissingExtra, match=r"pip install 'fanfold\[cloud\]' && pip install ossfs"):
        stores.opened("oss://bucket/x")
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "fsspec":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"the store s3://bucket/x needs .* pip install 'fanfold\[cloud\]'$"):
        stores.opened("s3://bucket/x")


@pytest.mark.parametrize(
    "address", ["sftp://me:p4ssw0rd-x@host/blobs", "s3://bucket/x?secret=p4ssw0rd-x", "ftp://me:p4ssw0rd-x@host:21/"]
)
def test_a_password_in_an_address_is_refused_and_never_shown(address: str) -> None:
    with pytest.raises(ConfigError, match="FSSPEC_") as caught:
        stores.opened(address)
    assert "p4ssw0rd" not in str(caught.value)
    assert "p4ssw0rd" not in redact(f"later somebody says {address}")
