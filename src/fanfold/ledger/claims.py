"""Which run sends which model call, among all runs on one ledger, so that equal calls are paid once."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path

from fanfold.errors import LedgerError
from fanfold.ledger.lock import close_private, forget_in_children, open_private

#: Files that share the claims: the system looks through all locks of a file for each new one.
FILES = 16
#: The first byte of the first file is locked, shared, by everybody who works on the ledger.
_COUNT = struct.Struct("<Q")
_FLOCK = struct.Struct("hhqqi4x")
_BUSY = (errno.EAGAIN, errno.EACCES)
#: Locks that belong to the descriptor, where the system has them: two runs in one process exclude each other.
_SET, _SET_WAIT = getattr(fcntl, "F_OFD_SETLK", 0), getattr(fcntl, "F_OFD_SETLKW", 0)


class Claims:
    """Claims of one run on calls, held until released; those of a process that dies end with it.

    A claim is a lock on one byte whose place follows from the call's key, in files of the folder `<ledger>.calls`.  The
    last run to leave removes the folder.
    """

    def __init__(self, ledger: Path) -> None:
        ledger = ledger.resolve()
        self._folder = ledger.with_name(f"{ledger.name}.calls")
        self._files = self._open()
        self._alone = self._lock(self._files[0], fcntl.F_WRLCK, 0)
        # From exclusive to shared, or waiting for one who is just looking whether it is the last.
        self._lock(self._files[0], fcntl.F_RDLCK, 0, wait=True)
        if os.fstat(self._files[0]).st_size < _COUNT.size:
            os.ftruncate(self._files[0], _COUNT.size)
        self._shared = mmap.mmap(self._files[0], _COUNT.size)
        self._arrivals = _COUNT.pack(_COUNT.unpack_from(self._shared)[0] + 1)
        self._shared[:] = self._arrivals

    def alone(self) -> bool:
        """Whether nobody else has worked on the ledger since this run began."""
        if self._alone:
            self._alone = self._shared[:] == self._arrivals
        return self._alone

    def take(self, key: bytes) -> bool:
        """Claim a call; False while another run has it."""
        return self._lock_call(key, fcntl.F_WRLCK)

    def release(self, key: bytes) -> None:
        self._lock_call(key, fcntl.F_UNLCK)

    def close(self) -> None:
        """Let go of all claims."""
        files, self._files = self._files, []
        if files and self._lock(files[0], fcntl.F_WRLCK, 0):
            with contextlib.suppress(OSError):
                for number in range(FILES):
                    (self._folder / f"{number:x}").unlink(missing_ok=True)
                self._folder.rmdir()
        if files:
            self._shared.close()
        for file in files:
            close_private(file)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # half made, or the interpreter is ending
            self.close()

    def _open(self) -> list[int]:
        while True:
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                if self._folder.is_symlink():
                    raise LedgerError(f"{self._folder} is a link: look where it leads, then remove it")
                first = open_private(self._folder / "0")
            except (OSError, LedgerError) as error:
                if not self._folder.exists() and self._folder.parent.is_dir() and not isinstance(error, OSError):
                    continue  # removed between the two by the last who left
                raise LedgerError(
                    f"{self._folder} cannot be used for claims on model calls ({error}): make its folder writable"
                ) from None
            forget_in_children(first)
            self._lock(first, fcntl.F_RDLCK, 0, wait=True)
            with contextlib.suppress(FileNotFoundError):
                if (self._folder / "0").lstat().st_ino == os.fstat(first).st_ino:
                    break
            close_private(first)
        rest = [open_private(self._folder / f"{number:x}") for number in range(1, FILES)]
        for file in rest:
            forget_in_children(file)
        return [first, *rest]

    def _lock_call(self, key: bytes, kind: int) -> bool:
        number = int.from_bytes(key[:8], "little")
        return self._lock(self._files[number % FILES], kind, 1 + (number >> 8))

    def _lock(self, file: int, kind: int, place: int, *, wait: bool = False) -> bool:
        try:
            if _SET:
                request = _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0)
                fcntl.fcntl(file, _SET_WAIT if wait else _SET, request)
            else:
                names = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}
                at_once = 0 if wait or kind == fcntl.F_UNLCK else fcntl.LOCK_NB
                fcntl.lockf(file, names[kind] | at_once, 1, place)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise LedgerError(
                f"{self._folder}: the file system cannot lock ({error.strerror}): keep the ledger on a local disk"
            ) from error
        return True
