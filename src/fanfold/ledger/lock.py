"""Locks that the operating system releases when their owner dies: one runner per run, and folders that go away."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from fanfold.errors import LedgerError, RunLocked

#: The descriptors that belong to this process alone.
_OWN: set[int] = set()


def open_private(path: Path) -> int:
    """Open a lock file, and create it if it is missing; only its owner can read it.

    What somebody else put in its place (a link to another file, a device, a pipe) is refused, not opened: a lock is
    written to, and the file behind it would lose its content.
    """
    try:
        # A pipe in the file's place must not hold us up.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        link = error.errno == errno.ELOOP
        problem = "is a link" if link else f"cannot be opened ({os.strerror(error.errno or 0)})"
        advice = "look where it leads, then remove it" if link else "make it and its folder writable for you"
        raise LedgerError(f"the lock file {path} {problem}: {advice}") from None
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(file)
        problem = "is also a file of another name" if stat.S_ISREG(status.st_mode) else "is not a regular file"
        raise LedgerError(f"the lock file {path} {problem}: somebody else put it there; look at it, then remove it")
    return file


def forget_in_children(file: int) -> None:
    """Close a descriptor in forked children, so that a child that lives longer does not hold its lock."""
    _OWN.add(file)


def close_private(file: int) -> bool:
    """Close a descriptor given to `forget_in_children`; False in a forked child, where it is closed already."""
    if file not in _OWN:
        return False
    _OWN.discard(file)
    os.close(file)
    return True


def _forget() -> None:
    for file in _OWN:
        with contextlib.suppress(OSError):
            os.close(file)
    _OWN.clear()


os.register_at_fork(after_in_child=_forget)


class RunLock:
    """Holds `<ledger>.<run>.lock` until released.  A second holder, in this process or another, is refused."""

    def __init__(self, ledger: Path, run: str) -> None:
        ledger = ledger.resolve()  # one file has one lock, however its path is spelled
        self._path = ledger.with_name(f"{ledger.name}.{run}.lock")
        self._file = -1
        self._process = os.getpid()
        while True:
            file = open_private(self._path)
            forget_in_children(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
                close_private(file)
                raise RunLocked(
                    f"run {run!r} of {ledger} is being worked on by process {owner}: wait for it, stop it, "
                    "or give the new run another name"
                ) from None
            # The former owner may have removed the file between our open and our lock.
            with contextlib.suppress(FileNotFoundError):
                if self._path.lstat().st_ino == os.fstat(file).st_ino:
                    break
            close_private(file)
        self._file = file
        with contextlib.suppress(OSError):  # the number is for people; a full disk must not keep a run from resuming
            os.truncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._file >= 0 and self._process == os.getpid():  # a forked child has a copy of this object, not the lock
            self._path.unlink(missing_ok=True)
            close_private(self._file)
        self._file = -1


def _looked_at(path: Path) -> IO[bytes]:
    """A lock file opened without following a link, or waiting at a pipe, that somebody put in its place."""
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK))


def locked(ledger: Path, run: str) -> bool:
    """Whether a process works on a run.  Neither creates nor removes the lock file."""
    path = ledger.with_name(f"{ledger.name}.{run}.lock")
    try:
        with _looked_at(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def under_way(ledger: Path, runs: Iterable[str]) -> list[str]:
    """Those of the runs that a process works on."""
    path = ledger.resolve()
    return [run for run in runs if locked(path, run)]


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder inside another one, for a short time; what killed processes left of theirs is removed first."""
    for place in folder.glob(".fanfold-*"):
        # Its owner has the file locked.  One that is a moment old may be about to.
        with contextlib.suppress(OSError), _looked_at(place / "lock") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file.fileno()).st_mtime > 60:
                shutil.rmtree(place, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".fanfold-", dir=folder) as name:
        own = open_private(Path(name, "lock"))
        forget_in_children(own)
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            close_private(own)
