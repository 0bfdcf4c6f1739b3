"""Curves as event files that TensorBoard shows, written by hand: a few bytes of framing need no package."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from fanfold.errors import ConfigError
from fanfold.events import Event, RunStarted, RunStopped, TrialTold, Watcher
from fanfold.files import make_folder, private, write_files

#: TensorBoard looks for files with "tfevents" in their names; the one of a finished run, and that of one under way.
FINISHED, UNDER_WAY = "events.out.tfevents.1.fanfold", "events.out.tfevents.0.fanfold-live"


def write(path: Path, series: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Write curves, each a name and its points (step, value), into an event file in the folder `path`.

    A name with a slash ("return/mean") is shown in a group.  A file of an earlier time is replaced as a whole.
    """
    steps: dict[int, dict[str, float]] = {}
    for name, points in series.items():
        for step, value in points:
            steps.setdefault(step, {})[name] = value
    now = time.time()
    data = b"".join(
        _record(event) for event in (_opening(now), *(_event(now, *each) for each in sorted(steps.items())))
    )
    try:
        write_files(path, {FINISHED: data})
    except OSError as error:
        raise ConfigError(f"the curves cannot be written to {str(path)!r}: {error}") from error


def live(path: Path) -> Watcher:
    """A watcher that writes the mean return of every block learnt from, as it is told: `study.run(watch=live(...))`.

    Steps are numbers of episodes.  A run that is resumed goes on in its file; a new one in the same folder replaces it.
    """
    file: BinaryIO | None = None

    def watch(event: Event) -> None:
        nonlocal file
        if isinstance(event, RunStarted):
            make_folder(path)
            file = open(path / UNDER_WAY, "ab" if event.resumed else "wb", opener=private)  # noqa: SIM115 (closed at the end of the run)
            file.write(_record(_opening(time.time())))
        elif isinstance(event, RunStopped) and file is not None:
            file.close()
            file = None
        elif isinstance(event, TrialTold) and file is not None:
            block: Any = event.result.candidate
            if event.result.score is not None and getattr(block, "learn", False):
                step = block.first_episode + block.episodes
                file.write(_record(_event(time.time(), step, {"blocks/return": event.result.score})))
                file.flush()

    return watch


# ---------------------------------------------------------------- protocol buffers: Event and Summary


def _opening(at: float) -> bytes:
    return _number(1, at) + _bytes(3, b"brain.Event:2")


def _event(at: float, step: int, values: Mapping[str, float]) -> bytes:
    summary = b"".join(_bytes(1, _bytes(1, name.encode()) + _single(2, value)) for name, value in values.items())
    return _number(1, at) + _varint(2 << 3) + _varint(step) + _bytes(5, summary)


def _number(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _single(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond what 32 bits hold
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _varint(field << 3 | 5) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# ---------------------------------------------------------------- records: length, checksum, data, checksum


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _table() -> Iterator[int]:
    """CRC-32C, Castagnoli's polynomial, which the standard library does not have."""
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        yield entry


_TABLE = tuple(_table())


def crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 0xFF]
    return found ^ 0xFFFFFFFF


def _checksum(data: bytes) -> bytes:
    """Masked, because a checksum of data that holds its own checksum would be weak."""
    found = crc32c(data)
    return struct.pack("<I", ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF)
