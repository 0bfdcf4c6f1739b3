"""What a ledger's file holds: its runs, its bytes by kind, who has it open; and whether it is sound."""

from __future__ import annotations

import contextlib
import os
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fanfold.errors import LedgerError
from fanfold.ledger.lock import under_way
from fanfold.ledger.schema import MIGRATIONS, UNREADABLE, explain
from fanfold.ledger.store import Ledger
from fanfold.ledger.verify import odd, verify_all
from fanfold.types import Blob

#: What the rows of a kind take, without what SQLite adds.
_SIZES = {
    "blobs": "SELECT total(length(data)) FROM blob",
    "replies of models": "SELECT total(length(request) + length(reply)) FROM call",
    "evaluations": "SELECT total(length(data)) + total(length(message)) + total(length(detail)) + 60 * count(*) "
    "FROM evaluation",
    "candidates": "SELECT total(length(candidate)) + total(length(origin)) + 30 * count(*) FROM trial",
}


@dataclass(frozen=True)
class Holdings:
    """What a file holds.  `schema` is that of the file before it was opened; bytes of the rest are indices and small
    tables, those that are free are used again or given back by a vacuum.
    """

    path: Path
    size: int
    log: int
    schema: int
    runs: dict[str, int]
    live: list[str]
    sizes: dict[str, int]
    #: Blobs in stores beside the file, and their bytes, by the address of the store.
    stores: dict[str, tuple[int, int]]
    written: float
    open_by: dict[int, str]

    @property
    def newest_schema(self) -> int:
        return len(MIGRATIONS)


def holdings(path: Path) -> Holdings:
    """Look into a ledger, which is not changed but for an upgrade."""
    schema = _schema(path)
    files = [file.stat() for file in (path, Path(f"{path}-wal")) if file.exists()]
    with Ledger(path, readonly=True) as ledger:
        heads = ledger.run_heads()
        live = under_way(path, (head.name for head in heads))
        sizes = {kind: int(ledger.one(sql)[0]) for kind, sql in _SIZES.items()}
        page, free = (int(ledger.one(f"PRAGMA {name}")[0]) for name in ("page_size", "freelist_count"))
        beside = ledger.read("SELECT store, count(*), sum(size) FROM stored_blob GROUP BY store")
        stores = {address: (number, size) for address, number, size in beside}
        sizes["free"] = page * free
        sizes["rest"] = max(0, file_bytes(ledger) - sum(sizes.values()))
    runs = Counter("under way" if head.name in live else head.status for head in heads)
    written = max(file.st_mtime for file in files)
    size, log = files[0].st_size, sum(file.st_size for file in files[1:])
    return Holdings(path, size, log, schema, dict(runs), live, sizes, stores, written, open_by(path))


def _schema(path: Path) -> int:
    """The version in the file's head; read before any connection is open, which would lose its locks."""
    try:
        with path.open("rb") as file:
            return int(struct.unpack(">I", file.read(64)[60:])[0])
    except (OSError, struct.error):
        return 0  # opening it says what is wrong


def open_by(path: Path) -> dict[int, str]:
    """The other processes that have a file open, as far as the system tells, and the programs they are."""
    file, processes = os.path.realpath(path), dict[int, str]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if int(process.name) != os.getpid() and any(
                str(fd.readlink()) == file for fd in (process / "fd").iterdir()
            ):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                processes[int(process.name)] = " ".join(filter(None, words))
    return processes


def check_file(ledger: Ledger) -> None:
    """Raise a `LedgerError` if SQLite finds the file damaged."""
    for (finding,) in ledger.read("PRAGMA integrity_check(1)"):
        if finding != "ok":
            raise odd(ledger.path, "SQLite's check", str(finding))


def check_rows(ledger: Ledger) -> tuple[int, int]:
    """Check every run, and every blob in the file against its digest; how many of both there are."""
    runs = ledger.runs()
    verify_all(ledger)
    blobs = 0
    for (digest,) in list(ledger.read("SELECT digest FROM blob WHERE length(data) > 0")):
        blobs += 1
        if Blob.of(ledger.blob(digest)).digest != digest:
            raise odd(ledger.path, f"blob {digest}", "its bytes are others than those that were kept")
    return len(runs), blobs


def check_stores(ledger: Ledger) -> int:
    """Check that stores have the blobs that the ledger has there; how many that are."""
    rows = list(ledger.read("SELECT digest, store, name, size FROM stored_blob"))
    for digest, address, name, size in rows:
        if ledger.blob.store(address).size(name) != size:
            raise LedgerError(f"blob {digest} of {ledger.path} is gone: {address} has no {name} of {size} bytes")
    return len(rows)


def file_bytes(ledger: Ledger) -> int:
    """The bytes of the file, with what is still in its log."""
    return int(ledger.one("PRAGMA page_count")[0]) * int(ledger.one("PRAGMA page_size")[0])


def shrinks(ledger: Ledger) -> bool:
    """Whether the file can give pages back one by one; one of an older version must be written again for that."""
    return bool(ledger.one("PRAGMA auto_vacuum")[0] == 2)


def vacuum(path: Path) -> tuple[int, int]:
    """Write a file again without its free pages; its bytes before and after.  A kill leaves it as it was."""
    with Ledger(path) as ledger:
        if live := under_way(path, (head.name for head in ledger.run_heads())):
            raise LedgerError(f"run {live[0]!r} of {path} is under way, and could not write meanwhile: wait for it")
        check_file(ledger)
        before = path.stat().st_size
        try:
            ledger.writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
            ledger.writer.execute("VACUUM")
            ledger.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except UNREADABLE as error:
            raise explain(error, path) from error
    return before, path.stat().st_size
