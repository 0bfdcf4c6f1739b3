"""What trackers have in common: the figures of a run, step by step, and those of its end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fanfold.events import Event, RunConcluded, RunStarted, RunStopped, TrialTold
from fanfold.redaction import redact


class FigureTracker:
    """Turns the events of a run into figures: `begin`, `log` for every told trial, `end`.

    Steps are numbers of told trials.  Those that an earlier part of a resumed run has logged are not logged again, and
    runs beside the run, such as its held-out scores, are left to its conclusion.
    """

    def __init__(self, address: str | None) -> None:
        self.address = address
        self._run: RunStarted | None = None
        self._stopped: RunStopped | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted) and self._run is None:
            self._run = event
            self.begin(event)
        elif isinstance(event, RunConcluded) and self._stopped is not None:
            self.conclude(dict(_numbers(dict(_flat("summary/", event.figures)))))
        elif self._run is None or self._stopped is not None:
            return
        elif isinstance(event, TrialTold) and event.progress.told > self._run.told:
            self.log(event.progress.told, dict(_figures(event)))
        elif isinstance(event, RunStopped):
            self._stopped = event

    def close(self) -> None:
        """Called once, also for a run that was interrupted or failed."""
        if self._run is not None:
            self.end("failed" if self._stopped is None else redact(self._stopped.reason))

    def begin(self, run: RunStarted) -> None:
        """The run starts, or is resumed."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """A trial was told."""

    def conclude(self, figures: Mapping[str, float]) -> None:
        """What the study made of the run."""

    def end(self, reason: str) -> None:
        """Nothing more comes."""


def settings_of(run: RunStarted, longest: int = 250) -> dict[str, str]:
    """The settings of a run as texts, nested ones with dotted names; unset ones are left out."""
    return {name: redact(str(value))[:longest] for name, value in _flat("", {"study": run.study, **run.settings})}


def _flat(under: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{under}{name}.", value)
        elif value not in (None, "", (), []):
            yield f"{under}{name}", value


def _figures(event: TrialTold) -> Iterator[tuple[str, float]]:
    progress = event.progress
    values = {"score": event.result.score, "best": progress.best, "cost": progress.cost, "seconds": progress.elapsed}
    yield from _numbers({**values, "evaluations": progress.evaluations, "failures": progress.failures})
    yield from _numbers({f"scores/{name}": value for name, value in event.result.scores.items()})


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)
