"""Blobs in a store: who may write there, what was written, and how a worker reads or writes them by itself.

Every write has a name of its own, so no two writers meet and nothing is deleted that another has just written.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from fanfold import stores
from fanfold.encoding import Encoded, Stored
from fanfold.errors import LedgerError, NotInStore, StoreError
from fanfold.stores import Store
from fanfold.types import Blob

T = TypeVar("T")
R = TypeVar("R")

#: Bytes from which a blob goes to the store: smaller ones are quicker in the ledger.
LEAST = 2**16
#: Bytes of blobs that a process remembers, because what was just written is often read next.
REMEMBERED = 2**26
#: Reads or writes of a store at once.
THREADS = 16
#: Seconds before a store that failed is tried again.
REST = 30.0


class Ticket(msgspec.Struct, frozen=True):
    """What a worker needs to write blobs to the store of its run.

    `folder` is the part of the store that belongs to one ledger.  `proof` is the name of something that the run has put
    there: who finds it sees the same store.
    """

    address: str
    folder: str
    proof: str
    least: int = LEAST
    #: The process of the run, which writes its own blobs when it commits.
    origin: tuple[str, int] = ("", 0)

    def put(self, store: Store, digest: str, data: bytes) -> Stored:
        name = f"{self.folder}/{digest[:2]}/{digest}-{secrets.token_hex(4)}"
        store.put(name, data)
        _RECENT.keep(digest, data)
        return Stored(name, len(data))

    def kept(self, items: Sequence[Encoded]) -> list[Encoded]:
        """The data of outcomes with their large blobs in the store; unchanged, with a reason, where that fails."""
        large = {
            digest: blob
            for data in items
            for digest, blob in data.blobs.items()
            if isinstance(blob, bytes) and len(blob) >= self.least
        }
        if not large or self.origin == _process():
            return list(items)
        until, reason = _AWAY.get(self.proof, (0.0, ""))
        there: dict[str, Stored] = {}
        if until <= time.monotonic():
            try:
                store, reason = self._reached(), ""
                places = side_by_side(lambda item: self.put(store, *item), large.items(), store)
                there = dict(zip(large, places))
            except Exception as error:  # also of a package that is missing here
                reason = str(error)
                _AWAY[self.proof] = (time.monotonic() + REST, reason)
        return [
            Encoded(data.text, {digest: there.get(digest, blob) for digest, blob in data.blobs.items()}, reason)
            for data in items
        ]

    def _reached(self) -> Store:
        store = _opened(self.address)
        if self.proof not in _SEEN:
            if not store.has(self.proof):
                raise StoreError(f"{self.address} is another place on {socket.gethostname()} than at the run")
            _SEEN.add(self.proof)
        return store


class Reference(msgspec.Struct, frozen=True):
    """Reads a blob from its store: travels to a worker in place of the bytes."""

    address: str
    name: str
    size: int

    def __call__(self, digest: str) -> bytes:
        try:
            return read(_opened(self.address), digest, self.name)
        except NotInStore as error:  # its run knows that it is there
            raise StoreError(f"{error}, seen from {socket.gethostname()}") from error

    def place(self, digest: str) -> Reference:
        return self

    travelling = place


@contextlib.contextmanager
def fetched(wanted: Iterable[Blob]) -> Iterator[None]:
    """Read blobs that are in a store side by side: one after another, each would take its time.

    They have their bytes inside the context, and forget them after.
    """
    places = [(blob, blob.place()) for blob in wanted]
    far = [(blob, place) for blob, place in places if place is not None]
    before = [(blob, blob._load) for blob, _ in far]
    try:
        if far:
            found = side_by_side(lambda item: item[1](item[0].digest), far, _opened(far[0][1].address))
            for (blob, _), data in zip(far, found):
                blob._load = functools.partial(_same, data)
        yield
    finally:
        for blob, load in reversed(before):
            blob._load = load


def _same(data: bytes, digest: str) -> bytes:
    return data


def side_by_side(call: Callable[[T], R], items: Iterable[T], store: Store) -> list[R]:
    """What a store does for each of the items, many at once if it can."""
    items = list(items)
    if len(items) < 2 or not store.threads:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(THREADS, len(items)), thread_name_prefix="fanfold-store") as pool:
        return list(pool.map(call, items))


def read(store: Store, digest: str, name: str) -> bytes:
    """A blob of a store, which must be what its digest says."""
    if (data := _RECENT.get(digest)) is None:
        data = store.get(name)
        if Blob.of(data).digest != digest:
            raise LedgerError(f"{name} in the store {store.address} is damaged: it is not what was put there")
        _RECENT.keep(digest, data)
    return data


def ticket(store: Store, ledger: os.PathLike[str]) -> Ticket:
    """For the runs of a ledger: proof that this process can write to the store.

    A copy of a ledger elsewhere writes to another folder, and never deletes in the one of its original.
    """
    folder = folder_of(ledger)
    own = Ticket(store.address, folder, f"{folder}/run-{secrets.token_hex(8)}", LEAST, _process())
    store.put(own.proof, b"a run of Fanfold is under way")
    return own


def folder_of(ledger: os.PathLike[str]) -> str:
    """The part of a store that belongs to a ledger."""
    whose = f"{socket.gethostname()}:{os.path.realpath(ledger)}"
    return hashlib.blake2b(whose.encode(), digest_size=8).hexdigest()


def _process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


class _Recent:
    """Blobs that this process wrote or read last, by their digests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def get(self, digest: str) -> bytes | None:
        with self._lock:
            if (data := self._blobs.pop(digest, None)) is not None:
                self._blobs[digest] = data
            return data

    def keep(self, digest: str, data: bytes) -> None:
        with self._lock:
            if digest in self._blobs or len(data) > self._most:
                return
            self._blobs[digest] = data
            self._size += len(data)
            while self._size > self._most:
                self._size -= len(self._blobs.pop(next(iter(self._blobs))))

    def clear(self) -> None:
        with self._lock:
            self._blobs.clear()
            self._size = 0


_RECENT = _Recent(REMEMBERED)
#: What this process has found in a store; and until when, and why, it does not look there.
_SEEN: set[str] = set()
_AWAY: dict[str, tuple[float, str]] = {}


@functools.lru_cache(maxsize=16)
def _opened(address: str) -> Store:
    return stores.opened(address, create=False)
