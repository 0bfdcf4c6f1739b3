"""One runner per run: a lock that the operating system releases when its owner dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from fanfold.errors import RunLocked


class RunLock:
    """Holds `<ledger>.<run>.lock` until released.  A second holder, in this process or another, is refused."""

    def __init__(self, ledger: Path, run: str) -> None:
        ledger = ledger.resolve()  # one file, one lock, by whatever way it was reached
        self._path = ledger.with_name(f"{ledger.name}.{run}.lock")
        self._file = -1
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(self._file, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                raise RunLocked(
                    f"run {run!r} of {ledger} is being worked on by process {owner}: wait for it, stop it, "
                    "or give the new run another name"
                ) from None
            # The former owner may have removed the file between our open and our lock.
            if self._path.exists() and self._path.stat().st_ino == os.fstat(self._file).st_ino:
                break
            os.close(self._file)
        with contextlib.suppress(OSError):  # the number is for people; a full disk must not keep a run from resuming
            os.truncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1
