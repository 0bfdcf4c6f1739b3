"""A ledger copied to another place and back: a folder, or a bucket, with a checksum and a list of runs beside it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fanfold import stores
from fanfold.encoding import digest
from fanfold.errors import LedgerError, NotInStore
from fanfold.ledger.holdings import check_file
from fanfold.ledger.lock import scratch
from fanfold.ledger.merging import Merged, copy_of, has_work, last_work, merge, relation, runs_by_origin
from fanfold.ledger.places import check_place
from fanfold.ledger.schema import MIGRATIONS
from fanfold.ledger.store import Ledger

#: Is told what is done, the bytes of it that are done, and how many there are.
Progress = Callable[[str, int, int], None]


class RunMark(msgspec.Struct):
    """How far a run has come: what it is, and the times of its last commit and of the last comment on it."""

    name: str
    created: float
    identity: str
    updated: float
    work: float | None = None
    comment: float | None = None


class Listing(msgspec.Struct):
    """What lies beside a pushed ledger.  While it is being replaced, all checksums that it may have are listed."""

    #: The size of the file, by its checksum; the newest first.
    sha256: dict[str, int]
    schema: int
    pushed: float
    runs: list[RunMark]


@dataclass(frozen=True)
class Pushed:
    """A copy elsewhere, and the stores beside it, which stay where they are."""

    address: str
    size: int
    runs: int
    stores: list[str]


@dataclass(frozen=True)
class Pulled:
    """What a pull brought: a whole new file, or (`merged`) what was missing; None: nothing was."""

    size: int
    merged: Merged | None = None
    checked: bool = True


def push(path: Path, address: str, *, force: bool = False, progress: Progress | None = None) -> Pushed:
    """Copy a ledger to an address, also while a run writes it.

    What is there must be an earlier state of this ledger; with `force` it is replaced whatever it is.
    """
    store, name = _place(address, path)
    if isinstance(store, stores.FolderStore) and path.resolve() == Path(store.address, name).resolve():
        raise LedgerError(f"{path} is the ledger itself: give another address")
    with copy_of(path, path.absolute().parent, check=False, progress=_part(progress, "copying")) as copy:
        before = _listing(store, name)
        if not force and (problem := _kept_from(copy, store, name, before)):
            raise LedgerError(f"{_shown(store, name)} {problem}, or say --force to replace it")
        marks = list(_marks(copy).values())
        size, checksum = copy.path.stat().st_size, _sha256(copy.path)
        listing = Listing({checksum: size}, len(MIGRATIONS), time.time(), marks)
        # A kill between these steps leaves the checksum of whatever is there.
        either = {checksum: size, **({} if before is None else before.sha256)}
        store.put(f"{name}.json", msgspec.json.encode(msgspec.structs.replace(listing, sha256=either)))
        store.upload(name, copy.path, _part(progress, "sending"))
        store.put(f"{name}.json", msgspec.json.encode(listing))
        beside = [address for (address,) in copy.read("SELECT DISTINCT store FROM stored_blob ORDER BY store")]
    return Pushed(_shown(store, name), size, len(marks), beside)


def _kept_from(copy: Ledger, store: stores.Store, name: str, before: Listing | None) -> str | None:
    """Why what is there must not be replaced."""
    size = store.size(name)
    if store.size(f"{name}-wal"):
        return f"is in use as a ledger, or was ({name}-wal is beside it): bring it here with `fanfold ledger merge`"
    if before is None:
        return None if size is None else "was not written by `fanfold ledger push`: give another name"
    # In a folder, somebody may have taken it for a ledger and written to it.
    folder = isinstance(store, stores.FolderStore) and size is not None
    if size not in (None, *before.sha256.values()) or (
        folder and _sha256(Path(store.address, name)) not in before.sha256
    ):
        return "was changed since it was pushed: bring it here with `fanfold ledger merge`"
    if lacking := _lacking(copy, before):
        return f"has what this ledger lacks (run {lacking[0]!r}): first `fanfold ledger pull --merge`"
    return None


def pull(path: Path, address: str, *, into_ours: bool = False, progress: Progress | None = None) -> Pulled:
    """Bring a ledger from an address: as a new file, or what it has more into the one that is here.

    One that is here and has what the other lacks is left alone, unless `into_ours` says to merge them.
    """
    check_place(path)
    if not path.absolute().parent.is_dir():
        raise LedgerError(f"the folder of {path} does not exist: create it, or give another --ledger")
    store, name = _place(address, path, create=False)
    listing = _listing(store, name)
    if listing is not None and path.exists():
        with Ledger(path, readonly=True) as ours:
            if not _lacking(ours, listing):
                return Pulled(next(iter(listing.sha256.values()), 0), Merged())
    with scratch(path.absolute().parent) as folder:
        draft = folder / "download"
        store.download(name, draft, _part(progress, "fetching"))
        _check_sum(draft, listing, _listing(store, name), _shown(store, name))
        with copy_of(draft, folder) as copy:
            check_file(copy)
            size = draft.stat().st_size
            if path.exists():
                more = _more(path, copy)
                if more and not into_ours:
                    raise LedgerError(
                        f"{path} has what {_shown(store, name)} lacks (run {more[0]!r}): say --merge to have both, or "
                        "give another --ledger"
                    )
                return Pulled(size, merge(path, draft), listing is not None)
        for end in ("-wal", "-shm"):  # of a file that is no more
            path.with_name(path.name + end).unlink(missing_ok=True)
        draft.replace(path)
    return Pulled(size, None, listing is not None)


def _place(address: str, path: Path, *, create: bool = True) -> tuple[stores.Store, str]:
    """The store that an address is in, and the name there: that of the file itself where the address is a folder."""
    _, separator, rest = address.partition("://")
    folder = not separator and Path(address).expanduser().is_dir()
    if folder or address.endswith("/") or (separator and "/" not in rest):
        return stores.opened(address, create=create), path.name
    parent, slash, name = address.rpartition("/")
    return stores.opened(parent + (slash if not parent else "") or ".", create=create), name


def _shown(store: stores.Store, name: str) -> str:
    return f"{store.address.rstrip('/')}/{name}"


def _listing(store: stores.Store, name: str) -> Listing | None:
    try:
        return msgspec.json.decode(store.get(f"{name}.json"), type=Listing)
    except NotInStore:
        return None
    except msgspec.DecodeError as error:
        raise LedgerError(f"{_shown(store, name)}.json was not written by `fanfold ledger push` ({error})") from None


def _marks(ledger: Ledger) -> dict[int, RunMark]:
    """The state of every run, by its id."""
    sql = (
        "SELECT id, name, created, identity, updated, (SELECT max(at) FROM comment WHERE run = run.id) FROM run "
        "ORDER BY id"
    )
    return {
        id: RunMark(name, created, digest(identity).hex(), updated, last_work(ledger, id), comment)
        for id, name, created, identity, updated, comment in list(ledger.read(sql))
    }


def _lacking(ledger: Ledger, listing: Listing) -> list[str]:
    """The runs of a listing that a ledger does not have, or not as far."""
    twins: dict[tuple[float, str], list[tuple[int, RunMark]]] = {}
    for id, mark in _marks(ledger).items():
        twins.setdefault((mark.created, mark.identity), []).append((id, mark))

    def has(id: int, ours: RunMark, theirs: RunMark) -> bool:
        if theirs.comment is not None and not list(
            ledger.read("SELECT 1 FROM comment WHERE run = ? AND at = ?", (id, theirs.comment))
        ):
            return False
        if theirs.work == ours.work or theirs.work is None:
            return ours.updated >= theirs.updated
        return has_work(ledger, id, theirs.work)

    return [
        mark.name
        for mark in listing.runs
        if not any(has(id, ours, mark) for id, ours in twins.get((mark.created, mark.identity), ()))
    ]


def _more(path: Path, copy: Ledger) -> list[str]:
    """The runs of a ledger that its copy from elsewhere lacks, or has not as far."""
    there = runs_by_origin(copy)
    with Ledger(path, readonly=True) as ours:
        return [
            name
            for origin, runs in runs_by_origin(ours).items()
            for id, name in runs
            if not any(relation(ours, id, copy, other) in ("same", "ahead") for other, _ in there.get(origin, ()))
        ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sum(path: Path, before: Listing | None, after: Listing | None, shown: str) -> None:
    """Refuse bytes that are not those that were pushed; somebody may push while we fetch."""
    sums = [sum for listing in (before, after) if listing is not None for sum in listing.sha256]
    if sums and _sha256(path) not in sums:
        raise LedgerError(f"{shown} is not what was pushed there (its checksum is another): push it again")


def _part(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(what, done, total)
