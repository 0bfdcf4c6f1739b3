"""Event files that TensorBoard shows, written with its own package (the extra `tensorboard`)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from fanfold.errors import MissingExtra
from fanfold.events import RunStarted
from fanfold.files import make_folder, private
from fanfold.trackers.figures import FigureTracker

_LARGEST = 3.4028234663852886e38


class Tensorboard(FigureTracker):
    """The address is a folder, `runs` without one; each run has its own folder in it.  A resumed run adds a file."""

    packages = ("tensorboard",)

    def begin(self, run: RunStarted) -> None:
        folder = Path(self.address or "runs") / run.run_id
        make_folder(folder)
        number = sum(1 for _ in folder.glob("events.out.tfevents.*"))
        path = folder / f"events.out.tfevents.{int(time.time())}.fanfold.{number}"
        self._file: BinaryIO = open(path, "xb", opener=private)  # noqa: SIM115 (closed at the end)
        append(self._file, file_version="brain.Event:2")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        append(self._file, step, figures)
        self._file.flush()

    def conclude(self, figures: Mapping[str, float]) -> None:
        append(self._file, 0, figures)

    def end(self, reason: str) -> None:
        self._file.close()


def append(file: BinaryIO, step: int = 0, values: Mapping[str, float] | None = None, **more: str) -> None:
    """Write one record: values of a step, by name.  A name with a slash ("return/mean") is shown in a group."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ModuleNotFoundError as error:
        raise MissingExtra("tensorboard", "tensorboard", "curves for TensorBoard") from error
    listed = [Summary.Value(tag=name, simple_value=_single(value)) for name, value in (values or {}).items()]
    record = Record(wall_time=time.time(), step=step, summary=Summary(value=listed) if listed else None, **more)
    RecordWriter(file).write(record.SerializeToString())


def _single(value: float) -> float:
    """A number that 32 bits hold; beyond them it is infinite."""
    return math.copysign(math.inf, value) if math.isfinite(value) and abs(value) > _LARGEST else value
