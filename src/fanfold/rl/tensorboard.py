"""Curves as event files that TensorBoard shows, written with its own package (the extra `tensorboard`)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from fanfold.errors import ConfigError, MissingExtra
from fanfold.events import Event, RunStarted, RunStopped, TrialTold, Watcher
from fanfold.files import make_folder, private, write_files
from fanfold.trackers.tensorboard import append

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
    file = io.BytesIO()
    append(file, file_version="brain.Event:2")
    for step, values in sorted(steps.items()):
        append(file, step, values)
    try:
        write_files(path, {FINISHED: file.getvalue()})
    except OSError as error:
        raise ConfigError(f"the curves cannot be written to {str(path)!r}: {error}") from error


def noted(path: Path, series: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Write curves where that can be done, and say which files they are."""
    try:
        write(path, series)
    except MissingExtra:
        return "no curves for TensorBoard (pip install 'fanfold[tensorboard]')"
    return "curves for TensorBoard"


def live(path: Path) -> Watcher:
    """A watcher that writes the mean return of every block learnt from, as it is told: `study.run(watch=live(...))`.

    Steps are numbers of episodes.  A resumed run continues its file; a new one in the same folder replaces it.
    """
    file: BinaryIO | None = None

    def watch(event: Event) -> None:
        nonlocal file
        if isinstance(event, RunStarted):
            make_folder(path)
            file = open(path / UNDER_WAY, "ab" if event.resumed else "wb", opener=private)  # noqa: SIM115 (closed at the end of the run)
            append(file, file_version="brain.Event:2")
        elif isinstance(event, RunStopped) and file is not None:
            file.close()
            file = None
        elif isinstance(event, TrialTold) and file is not None:
            block: Any = event.result.candidate
            if event.result.score is not None and getattr(block, "learn", False):
                append(file, block.first_episode + block.episodes, {"blocks/return": event.result.score})
                file.flush()

    return watch
