"""Where a ledger can be written: not on a file system whose locks and shared memory fail between machines."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import mmap
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from fanfold.errors import LedgerError

#: Set to `allow`, it lets ledgers be written on a network file system.
ALLOWED = "FANFOLD_NETWORK_LEDGER"

#: File systems that several machines share.  Some pass every test on one machine, so they are known by their names.
NETWORK = re.compile(
    r"nfs4?|cifs|smb[23]?|smbfs|afs|afpfs|lustre|gpfs|mmfs|beegfs|ceph|gfs2|glusterfs|ocfs2|orangefs|pvfs2|panfs|"
    r"wekafs|coda|ncpfs|davfs|webdav|moosefs|"
    r"fuse\.(afp|blobfuse2?|ceph(-fuse)?|curlftpfs|davfs2?|gcsfuse|geesefs|glusterfs|goofys|google-drive.*|hdfs|"
    r"juicefs|mfs|moosefs|mount-s3|mountpoint-s3|rclone|s3fs|s3ql|seaweedfs|smbnetfs|sshfs|weka)"
)
#: Local file systems, on which everything works; any other is tried.
LOCAL = re.compile(
    r"ext[234]|xfs|btrfs|zfs|f2fs|bcachefs|jfs|reiserfs|nilfs2|overlay|aufs|(tmp|ram|root)fs|apfs|hfs|ufs"
)


class Mount(NamedTuple):
    """A file system: its kind, what it was made of, where it is mounted."""

    kind: str
    source: str
    point: str

    @property
    def network(self) -> bool:
        # A program that mounts by itself may say its name only as the source.
        kind = f"fuse.{self.source.partition('#')[0]}" if self.kind == "fuse" else self.kind
        return NETWORK.fullmatch(kind) is not None


def check_place(path: Path) -> None:
    """Refuse to write a ledger where SQLite's locks, or its write-ahead log, do not work."""
    mount = mount_of(path)
    if mount is None or LOCAL.fullmatch(mount.kind) or os.environ.get(ALLOWED) == "allow":
        return
    where = f"{path} is on a {'network ' if mount.network else ''}file system ({mount.kind} at {mount.point})"
    if mount.network:
        raise LedgerError(
            f"{where}, where SQLite's locks and its log do not hold between machines, so the file could be damaged: "
            "give a --ledger on a local disk, and copy it here with `fanfold ledger push`. If no other machine ever "
            f"opens it, set {ALLOWED}=allow"
        )
    if problem := _problem(str(Path(os.path.realpath(path)).parent)):
        raise LedgerError(f"{where} that cannot hold a ledger ({problem}): give a --ledger on another disk")


def network_note(path: Path) -> str | None:
    """What a reader should know about a ledger on a network file system."""
    mount = mount_of(path) if path.exists() else None
    if mount is None or not mount.network:
        return None
    return (
        f"{path} is on a network file system ({mount.kind}): what another machine is just writing may be missing or "
        "look damaged; `fanfold ledger pull` makes a local copy"
    )


def mount_of(path: Path) -> Mount | None:
    """The file system that a file is on, or would be; None where that cannot be found out."""
    place = os.path.realpath(path)
    inside = [mount for mount in _mounts() if os.path.commonpath([mount.point, place]) == mount.point]
    # Of two at one point, the later hides the earlier.
    return max(enumerate(inside), key=lambda pair: (len(pair[1].point), pair[0]))[1] if inside else None


def _mounts() -> list[Mount]:
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            text = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True).stdout
            return [_mac_mount(*match) for match in re.findall(r"^(.*) on (/.*) \((\w+)(.*)\)$", text, re.MULTILINE)]
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        return [_linux_mount(line) for line in text.splitlines()]
    return []


def _linux_mount(line: str) -> Mount:
    head, _, tail = line.partition(" - ")
    kind, source, *_ = tail.split(" ")
    # Spaces and the like are written as octal numbers.
    point, source = (
        re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), text) for text in (head.split()[4], source)
    )
    return Mount(kind, source, point)


def _mac_mount(source: str, point: str, kind: str, flags: str) -> Mount:
    return Mount(kind if "local" in flags or NETWORK.fullmatch(kind) else "nfs", source, point)


@functools.cache
def _problem(folder: str) -> str | None:
    """What does not work in a folder of an unknown file system; None where everything does.

    Locks must exclude each other, memory that is mapped twice must be the same, and SQLite must be able to use both.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".fanfold-", dir=folder) as place:
            return _shared_memory(Path(place, "map")) or _write_ahead(Path(place, "try.db"))
    except PermissionError:
        return None  # opening the ledger says what is wrong
    except (OSError, ValueError, sqlite3.Error) as error:
        return f"{type(error).__name__}: {error}"


def _shared_memory(path: Path) -> str | None:
    with path.open("w+b") as one, path.open("r+b") as other:
        one.truncate(mmap.PAGESIZE)
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "its locks do not exclude each other"
        with mmap.mmap(one.fileno(), mmap.PAGESIZE) as mine, mmap.mmap(other.fileno(), mmap.PAGESIZE) as theirs:
            mine[:4] = b"fnfd"
            return None if theirs[:4] == b"fnfd" else "memory mapped from a file is not shared"


def _write_ahead(path: Path) -> str | None:
    with contextlib.closing(sqlite3.connect(path)) as writer, contextlib.closing(sqlite3.connect(path)) as reader:
        if writer.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
            return "SQLite cannot keep a write-ahead log there"
        writer.execute("CREATE TABLE probe (value)")
        writer.execute("INSERT INTO probe VALUES (1)")
        writer.commit()
        return None if reader.execute("SELECT value FROM probe").fetchone() == (1,) else "SQLite reads what is not so"
