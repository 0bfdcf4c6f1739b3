"""Blobs of a ledger that are in a store beside it: written before the row that names them, deleted after."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fanfold import blobs, stores
from fanfold.addresses import trusted
from fanfold.encoding import Stored
from fanfold.errors import ConfigError, FanfoldError, LedgerError, NotInStore, StoreError
from fanfold.stores import OBJECTS, Store
from fanfold.types import Blob

if TYPE_CHECKING:
    from fanfold.ledger.store import Ledger

#: A blob that is to be kept: its digest, and its bytes or where a worker has put them.
Row: TypeAlias = tuple[str, bytes | Stored]

#: A blob that is there stays unchanged; one that was pruned gets its bytes again.
KEEP_BLOB = (
    "INSERT INTO blob (digest, data) VALUES (?, ?) "
    "ON CONFLICT (digest) DO UPDATE SET data = excluded.data WHERE length(blob.data) = 0"
)
#: The same for one in a store, unless the ledger has its bytes.
KEEP_STORED = (
    "INSERT OR IGNORE INTO stored_blob SELECT ?1, ?2, ?3, ?4 "
    "WHERE NOT EXISTS (SELECT 1 FROM blob WHERE digest = ?1 AND length(data) > 0)"
)
_EMPTY = Blob.of(b"").digest
#: Seconds between looks for what a worker has put.
PAUSES = (0.1, 0.5, 2.0, 5.0)
#: How many blobs of a run are known to be in the store without another look.
KNOWN = 50_000


class RunBlobs:
    """The store of a run: takes large blobs, and deletes what the run has pruned.

    It belongs to the thread that commits.  A store that fails loses nothing: blobs then stay in the ledger.
    """

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self.store = store
        self.ticket = blobs.ticket(store, ledger.path)
        #: Whether workers read and write the store by themselves, as far as they have shown; None: not yet.
        self.reached: bool | None = None
        #: What this process has put, or seen put by its workers, and not deleted: the latest of it.
        self._here: dict[str, Stored] = {}
        #: What workers have put although it was there: digest and name.
        self._spare: list[tuple[str, str]] = []
        self._rests = 0.0
        self._news: list[str] = []
        self._said: set[str] = set()

    @classmethod
    def at(cls, address: str | Path, ledger: Ledger) -> RunBlobs:
        """The store at an address, which must be there and take something before a run begins."""
        if ledger.temporary:
            raise ConfigError(f"blobs={str(address)!r} needs a ledger that stays: give a file, as in ledger='runs.db'")
        try:
            return cls(stores.opened(address, create=False), ledger)
        except StoreError:
            place = str(Path(address).expanduser().absolute())
            if list(ledger.read(f"{_STORED} WHERE store = ? LIMIT 1", (place,))):
                raise  # a folder that is not mounted is not made again, empty
            return cls(stores.opened(address), ledger)

    def came(self, away: str, rows: Iterable[Row] = ()) -> None:
        """Take note of what a worker did with its blobs, or why it could not."""
        if away:
            self.reached = False
            self._say(
                f"workers do not reach the store {self.store.address} ({away}): blobs travel through this process"
            )
        elif self.reached is None and any(isinstance(blob, Stored) for _, blob in rows):
            self.reached = True

    def written(self, rows: Sequence[Row]) -> tuple[list[tuple[str, bytes]], list[tuple[str, str, str, int]]]:
        """The rows of blobs that stay in the ledger, and those of blobs that are in the store by now."""
        first = dict(reversed(rows))
        large = {
            digest: blob for digest, blob in first.items() if isinstance(blob, Stored) or len(blob) >= self.ticket.least
        }
        here = blobs.side_by_side(self._put, large.items(), self.store)
        stored = {digest: place for digest, place in zip(large, here) if place is not None}
        kept = [(digest, blob) for digest, blob in first.items() if digest not in stored and isinstance(blob, bytes)]
        self._spare += [
            (digest, blob.name)
            for digest, blob in rows
            if isinstance(blob, Stored) and blob.name != stored[digest].name
        ]
        address = self.store.address
        return kept, [(digest, address, place.name, place.size) for digest, place in stored.items()]

    def _put(self, row: Row) -> Stored | None:
        digest, blob = row
        known = self._here.get(digest)
        if isinstance(blob, Stored):
            known = known or self._here.setdefault(digest, self._seen(digest, blob))
        elif known is None and time.monotonic() >= self._rests:
            try:
                known = self._here[digest] = self.ticket.put(self.store, digest, blob)
            except StoreError as error:
                self._rests = time.monotonic() + blobs.REST
                self._say(f"{error}: blobs stay in the ledger until it answers")
        return known

    def _seen(self, digest: str, blob: Stored) -> Stored:
        """What a worker has put, if it is there; a folder of a network may show it a little later."""
        for pause in (*PAUSES, None):
            try:
                if self.store.size(blob.name) == blob.size:
                    return blob
            except StoreError:
                if pause is None:
                    raise
            if pause is not None:
                time.sleep(pause)
        raise StoreError(
            f"the store {self.store.address} has no blob {digest}, which a worker, or an earlier part of the run, has "
            "put there: give --blobs a place that all of them reach; finished work is kept"
        )

    def settle(self, db: sqlite3.Connection, digests: Iterable[str], pruned: dict[str, str]) -> None:
        """After a commit: delete what it pruned, by name, and what the ledger had already."""
        needless = [name for digest, name in pruned.items() if _place(db, digest) is None]
        spare, self._spare = self._spare, []
        needless += [name for digest, name in spare if (_place(db, digest) or ("", ""))[1] != name]
        for digest in digests:
            own, place = self._here.get(digest), _place(db, digest)
            if own is not None and (place is None or place[1] != own.name):
                needless.append(own.name)
        gone = set(needless)
        for digest in (*digests, *pruned):
            if digest in self._here and self._here[digest].name in gone:
                del self._here[digest]
        while len(self._here) > KNOWN:
            del self._here[next(iter(self._here))]  # put again, it is one too many, and deleted at once
        self._delete(name for name in needless if name.startswith(f"{self.ticket.folder}/"))

    def prunable(self, db: sqlite3.Connection, digests: Iterable[str]) -> dict[str, str]:
        """The names under which the store has some blobs."""
        places = {digest: _place(db, digest) for digest in digests}
        return {digest: place[1] for digest, place in places.items() if place and place[0] == self.store.address}

    def remark(self) -> str | None:
        """What there is to say about the store, each thing once."""
        return self._news.pop(0) if self._news else None

    def close(self) -> None:
        with contextlib.suppress(FanfoldError):
            self.store.delete(self.ticket.proof)

    def _say(self, text: str) -> None:
        if text not in self._said and len(self._said) < 5:
            self._said.add(text)
            self._news.append(text)

    def _delete(self, names: Iterable[str]) -> None:
        """What cannot be deleted now is an orphan, which `fanfold ledger prune` finds."""

        def gone(name: str) -> None:
            with contextlib.suppress(FanfoldError):
                self.store.delete(name)

        blobs.side_by_side(gone, names, self.store)


class BlobReader:
    """Reads blobs of a ledger, from the file or from the store that it names."""

    __slots__ = ("_ledger",)

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, digest: str) -> bytes:
        path = self._ledger.path
        data = next((data for (data,) in self._ledger.read("SELECT data FROM blob WHERE digest = ?", (digest,))), None)
        if isinstance(data, bytes) and (data or digest == _EMPTY):
            return data
        if (place := self._place(digest)) is not None:
            try:
                return blobs.read(self.store(place.address), digest, place.name)
            except NotInStore as error:
                raise LedgerError(f"blob {digest} of {path} is gone: {error}") from error
        if data == b"":
            raise LedgerError(f"blob {digest} of {path} was pruned, because its run no longer needed it")
        if data is not None:
            raise LedgerError(f"blob {digest} of {path} is damaged: a value of the wrong type or size")
        raise LedgerError(f"{path} has no blob {digest}")

    def stored(self, digest: str, run: int) -> Stored | None:
        """Where a blob is that this run holds in its store: nobody else deletes it there."""
        if (place := self.place(digest)) is None or not self.held(digest, run):
            return None
        return Stored(place.name, place.size)

    def held(self, digest: str, run: int) -> bool:
        """Whether this run holds a blob: nobody else prunes it."""
        return bool(list(self._ledger.read("SELECT 1 FROM blob_holder WHERE digest = ? AND run = ?", (digest, run))))

    def size(self, digest: str) -> int | None:
        """The bytes of a blob; None where there is none, or it was pruned."""
        rows = self._ledger.read("SELECT length(data) FROM blob WHERE digest = ?", (digest,))
        inside = next((int(size) for (size,) in rows if size or digest == _EMPTY), None)
        return inside if inside is not None or (place := self._place(digest)) is None else place.size

    def travelling(self, digest: str) -> blobs.Reference | None:
        """What a worker that has reached the store of this run can read the blob by."""
        own = self._ledger.blobs
        return self.place(digest) if own is not None and own.reached else None

    def place(self, digest: str) -> blobs.Reference | None:
        """Where the blob is, if that is the store of this run."""
        own, place = self._ledger.blobs, None if self._ledger.blobs is None else self._place(digest)
        return place if own is not None and place is not None and place.address == own.store.address else None

    def _place(self, digest: str) -> blobs.Reference | None:
        for store, name, size in self._ledger.read(f"{_STORED} WHERE digest = ?", (digest,)):
            if isinstance(store, str) and isinstance(name, str) and isinstance(size, int):
                return blobs.Reference(store, name, size)
        return None

    def store(self, address: str) -> Store:
        """The store that a row names; not every address that only a file names is gone to."""
        own = self._ledger.blobs
        if own is not None and own.store.address == address:
            return own.store
        known = self._ledger.stores.get(address)
        if known is None:
            protocol, separator, rest = address.partition("://")
            if separator and protocol not in OBJECTS and not trusted(address):
                host = rest.partition("/")[0].rpartition("@")[2]
                raise StoreError(
                    f"{self._ledger.path} says that blobs are at {address}, a host that only a file names: if you "
                    f"trust it, set FANFOLD_TRUSTED_HOSTS={host}"
                )
            known = self._ledger.stores[address] = stores.opened(address, create=False)
        return known


_STORED = "SELECT store, name, size FROM stored_blob"


def _place(db: sqlite3.Connection, digest: str) -> tuple[str, str] | None:
    row: tuple[str, str] | None = db.execute(
        "SELECT store, name FROM stored_blob WHERE digest = ?", (digest,)
    ).fetchone()
    return row


def wrote_to(ledger: Ledger, address: str) -> bool:
    """Whether runs of this very file, and not of one that it was copied from, put blobs there."""
    sql, own = f"{_STORED} WHERE store = ? AND name > ? AND name < ? LIMIT 1", blobs.folder_of(ledger.path)
    return bool(list(ledger.read(sql, (address, f"{own}/", f"{own}0"))))


def orphans(ledger: Ledger, store: Store) -> Iterator[str]:
    """What a store holds for a ledger, and no row of it names: left by a kill, or by a store that was away.

    Not while a run of the ledger is under way: what it has put is named a moment later.
    """
    own = blobs.folder_of(ledger.path)
    named = {name for (name,) in ledger.read("SELECT name FROM stored_blob")}
    yield from (name for name in store.names(own) if name not in named)
