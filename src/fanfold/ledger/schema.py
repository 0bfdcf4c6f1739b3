"""The tables of a ledger, the steps that bring an older file up to date, and how a file is opened."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fanfold.errors import LedgerError
from fanfold.ledger.places import check_place, network_note
from fanfold.ledger.verify import STEPS, Patience

#: "fnfd": how `file` and `sqlite3` recognise a ledger.
APPLICATION_ID = 0x666E6664

#: What reading or writing a damaged file may raise; sqlite3 cannot decode some of its own messages about one.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)

#: One script per schema version, each applied in one transaction.  Never edit one: add the next.
_SCRIPTS = Path(__file__).parent.glob("migrations/*.sql")
MIGRATIONS = [path.read_text() for path in sorted(_SCRIPTS, key=lambda path: int(path.stem))]


#: One thread at a time: looking into a file that another thread is just opening would drop that one's locks.
_OPENING = threading.RLock()


def check_exists(path: Path) -> None:
    """Refuse a ledger that is not there, before anything would create it."""
    if not path.exists():
        raise LedgerError(f"there is no ledger at {path}: check the path, or start a run that writes it")


def connect(path: Path, *, readonly: bool = False, durable: bool = True) -> sqlite3.Connection:
    """Open a ledger file, creating or upgrading it.

    Opened for reading only, an older file is upgraded too; where it may not be written, a copy in memory is.
    """
    if readonly:
        check_exists(path)
    with _OPENING:
        if _foreign(path):
            raise LedgerError(f"{path} is not a ledger (not an SQLite file): give another path with --ledger")
        if not readonly and _identity(path) in _INHERITED.values():
            raise LedgerError(
                f"{path} was open when this process forked, and what is written to it here could be lost: open it only "
                "after the fork, or start processes by spawn"
            )
        try:
            if not readonly:
                if durable:
                    check_place(path)
                _make_private(path)
            db = _reader(path) if readonly else _writer(path, durable)
            _OPEN[id(db)] = _identity(path)
            return db
        except UNREADABLE as error:
            raise explain(error, path) from error


def _writer(path: Path, durable: bool) -> sqlite3.Connection:
    """A connection to a file that is up to date."""
    db = _opened(path, "rwc")
    try:
        version = _version(db, path)
        if not version:  # only a file without tables can still be made one that shrinks
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        # A commit is written at its end, up to 64 MiB: page by page meanwhile, it takes twice as long.
        db.execute("PRAGMA cache_spill = -65536")
        if version < len(MIGRATIONS):
            _migrate(db)
        db.set_progress_handler(None, 0)  # what is written is ours
        return db
    except BaseException:
        db.close()
        raise


def _reader(path: Path) -> sqlite3.Connection:
    """A connection for reading: to the file, once it is up to date, or to an up-to-date copy in memory."""
    db = _opened(path, "ro")
    try:
        try:
            version = _version(db, path)
        except sqlite3.OperationalError as error:
            if not _forbidden(error) or not os.access(path, os.R_OK, effective_ids=True):
                raise
            db.close()
            return _elsewhere(path)  # reading takes a file beside it, in a folder that may not be written
        if version == len(MIGRATIONS) or (version and _upgraded(path)):
            return db
        return _in_memory(db, path)
    except BaseException:
        db.close()
        raise


def _upgraded(path: Path) -> bool:
    """Bring a file up to date; False if it may not be written."""
    if network_note(path) is not None:
        return False
    db = _opened(path, "rw")
    try:
        _migrate(db)
        return True
    except sqlite3.OperationalError as error:
        if not _forbidden(error):
            raise
        return False
    finally:
        db.close()


def _elsewhere(path: Path) -> sqlite3.Connection:
    """A copy in memory of a file that cannot be opened where it is."""
    with tempfile.TemporaryDirectory(prefix="fanfold-") as folder:
        for end in ("", "-wal"):
            if (part := path.with_name(path.name + end)).exists():
                shutil.copyfile(part, Path(folder) / f"copy{end}")
        db = _opened(Path(folder) / "copy", "rw")
        try:
            _version(db, path)
            return _in_memory(db, path)
        finally:
            db.close()


#: Pages that a copy takes at a time.
COPY_PAGES = 4096


def copy_ledger(path: Path, to: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Write the present state of a ledger to a new file, also while runs write to it; the ledger is not changed.

    `progress` is called with the bytes that are done, and with those there are.
    """
    if not path.is_file():
        folder = f"{path} is a folder: name the ledger in it, such as {path / 'fanfold.db'}"
        raise LedgerError(folder if path.is_dir() else f"there is no ledger at {path}: check the path")
    with _OPENING:
        if _foreign(path):
            raise LedgerError(f"{path} is not a ledger (not an SQLite file): check the path")
        try:
            _make_private(to)
            with contextlib.closing(_copied(path, to, progress)) as copy:
                _version(copy, path)
        except UNREADABLE as error:
            raise explain(error, path) from error


def _copied(path: Path, to: Path, progress: Callable[[int, int], None] | None) -> sqlite3.Connection:
    copy = _opened(to, "rw")
    db = _opened(path, "ro")
    try:
        copy.execute("PRAGMA journal_mode = OFF")  # a copy that is not whole is thrown away
        copy.execute("PRAGMA synchronous = OFF")
        size = db.execute("PRAGMA page_size").fetchone()[0]
        db.execute("BEGIN")  # all steps copy one state
        db.execute("SELECT 1 FROM sqlite_master").fetchone()

        def step(status: int, remaining: int, total: int) -> None:
            if progress is not None:
                progress((total - remaining) * size, total * size)

        db.backup(copy, pages=COPY_PAGES, progress=step, sleep=0.0)
        return copy
    except sqlite3.OperationalError as error:
        copy.close()
        if not _forbidden(error):
            raise
        for end in ("", "-wal"):  # reading takes a file beside it, in a folder that may not be written
            if (part := path.with_name(path.name + end)).exists():
                shutil.copyfile(part, to.with_name(to.name + end))
        return _opened(to, "rw")
    except BaseException:
        copy.close()
        raise
    finally:
        db.close()


def _in_memory(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """An up-to-date copy in memory of a connection's file; the connection is closed."""
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        db.backup(memory)
        _harden(memory)
        memory.set_progress_handler(Patience(path), STEPS)
        _migrate(memory)
        return memory
    except BaseException:
        memory.close()
        raise
    finally:
        db.close()


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    # The connection crosses threads, one at a time: commits wait for the disk off the event loop.
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=60.0)
    db.set_progress_handler(Patience(path), STEPS)
    return db


#: The files of the connections that are open.  Only while one is, its number cannot be another file's.
_OPEN: dict[int, tuple[int, int] | None] = {}
#: In a forked child, those its parent had open: SQLite takes the parent's locks on them for locks of the child.
_INHERITED: dict[int, tuple[int, int]] = {}


def _in_child() -> None:
    global _OPENING
    _OPENING = threading.RLock()  # a thread of the parent may have held it
    _INHERITED.update((db, number) for db, number in _OPEN.items() if number is not None)


os.register_at_fork(after_in_child=_in_child)


def disconnect(db: sqlite3.Connection) -> None:
    """Close what `connect` gave."""
    try:
        db.close()
    finally:
        _OPEN.pop(id(db), None)
        _INHERITED.pop(id(db), None)


def _make_private(path: Path) -> None:
    """Make a new file readable by its owner only; SQLite gives the same mode to the files it puts beside it."""
    with contextlib.suppress(OSError):  # it is there already, or cannot be made: opening it says what is wrong
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _foreign(path: Path) -> bool:
    """Whether the file is something else.

    Looked into only where no connection is open: closing a file drops the locks that all connections of this process
    hold on it, and another process would then take the ledger for unused and clear what is not yet in the main file.
    """
    number = _identity(path)
    if number is None or number in list(_OPEN.values()):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError:
        return False  # absent or unreadable: opening it says what is wrong
    return bool(head) and head != b"SQLite format 3\0"


def _version(db: sqlite3.Connection, path: Path) -> int:
    """The schema version of a file; refuses a file that is not a ledger, is damaged or is newer than this program."""
    _harden(db)
    db.execute("BEGIN")  # another process may be creating or upgrading the file: all of it is seen, or nothing
    tables = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    owner = db.execute("PRAGMA application_id").fetchone()[0]
    db.execute("COMMIT")
    if owner != APPLICATION_ID and (tables or version):
        raise LedgerError(f"{path} is an SQLite file of another program: give another path with --ledger")
    if version > len(MIGRATIONS):
        raise LedgerError(
            f"{path} was written by a newer Fanfold (schema {version}; this one knows up to {len(MIGRATIONS)}): "
            "pip install -U fanfold"
        )
    _compare(tables, version, path)
    return version


def _migrate(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    version = db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been first
    for step, script in enumerate(MIGRATIONS[version:], start=version + 1):
        for statement in _statements(script):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {step}")
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("COMMIT")


def _harden(db: sqlite3.Connection) -> None:
    """The file may be a stranger's: nothing in its schema is executed, and damage is noticed early."""
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    db.execute("PRAGMA journal_size_limit = 67108864")  # one huge commit does not leave a huge log behind
    if sys.version_info >= (3, 12):
        db.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)


def _compare(objects: list[tuple[Any, ...]], version: int, path: Path) -> None:
    """Whether a file has what its version promises, and nothing that acts or answers in its place.

    Further plain tables and plain indices are another program's, and none of our business.
    """
    promised = _promised(version)
    have = {(kind, name): _spaced(sql) for kind, name, _, sql in objects}
    missing = [name for (kind, name), sql in promised.items() if have.get((kind, name)) != sql]
    if missing:
        raise LedgerError(
            f"{path} lacks what its version promises ({missing[0]} is not as schema {version} has it): another program "
            "changed it, or it is damaged; give another path with --ledger"
        )
    for (kind, name), sql in have.items():
        plain = sql is None or (kind in ("table", "index") and _PLAIN.match(sql) is not None)
        if (kind, name) not in promised and not plain:
            what = f"{'an' if kind == 'index' else 'a'} {str(kind)[:20]} called {str(name)[:80]!r}"
            raise LedgerError(
                f"{path} has {what}, which no ledger has: another program changed it; look at it, drop it, or give "
                "another path with --ledger"
            )


#: A table that is not virtual; an index on columns alone.
_PLAIN = re.compile(r'CREATE (TABLE (?!.*\bAS\b)|INDEX "?\w+"? ON "?\w+"? ?\(["\w, ]+\)$)', re.IGNORECASE)


@functools.cache
def _promised(version: int) -> dict[tuple[str, str], str | None]:
    """Everything that a schema of that version consists of."""
    db = sqlite3.connect(":memory:")
    try:
        for script in MIGRATIONS[: max(0, version)]:
            for statement in _statements(script):
                db.execute(statement)
        rows = db.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        return {(kind, name): _spaced(sql) for kind, name, sql in rows}
    finally:
        db.close()


def tables() -> list[str]:
    """The names of a ledger's tables."""
    return [name for kind, name in _promised(len(MIGRATIONS)) if kind == "table"]


def _spaced(sql: Any) -> str | None:
    return None if sql is None else " ".join(str(sql).split())


def _statements(script: str) -> list[str]:
    """The single statements of a script (`executescript` would commit between them)."""
    lines = [line.split("--")[0] for line in script.splitlines()]
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]


def _forbidden(error: Exception) -> bool:
    """Whether the file, or its folder, may not be written."""
    return "readonly" in str(error) or "unable to open" in str(error)


def explain(error: Exception, path: Path) -> LedgerError:
    """An SQLite error, or content that cannot be read, as an error that tells the user what to do."""
    text = str(error) if isinstance(error, sqlite3.Error) else f"malformed content: {error}"
    if "full" in text:
        return LedgerError(f"the disk under {path} is full: what is finished is kept; free some space, then resume")
    if _forbidden(error):
        return LedgerError(f"{path} cannot be written ({text}): make its folder writable, or give another --ledger")
    if any(word in text for word in ("malformed", "decode", "interrupted", "not a database", "encrypted")):
        return LedgerError(
            f"{path} is damaged ({text}): keep a copy, save what can be read with `sqlite3 {path.name} .recover`, "
            "and start a new ledger with --ledger"
        )
    if "locked" in text or "busy" in text:
        return LedgerError(f"{path} stayed locked by another program for 60 s: close it, then resume")
    if "no such" in text:
        return LedgerError(
            f"{path} lacks what its version promises ({text}): another program changed it, or it is damaged"
        )
    return LedgerError(f"{path}: {text}: what is finished is kept; fix the cause, then resume")
