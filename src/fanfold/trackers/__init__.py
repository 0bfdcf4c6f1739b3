"""Watchers by name, such as MLflow or TensorBoard: each on a thread of its own, so that a run never waits for them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Any

from fanfold.errors import ConfigError, FanfoldError, MissingExtra, nearest
from fanfold.events import Event, Watcher, shielded, together
from fanfold.registry import brought, loaded, package_of

GROUP = "fanfold.watchers"
#: Events that may wait for a tracker, and seconds it has at the end for what still waits.
MOST, GRACE = 20_000, 30.0


def known_trackers() -> dict[str, EntryPoint]:
    """Every tracker that is installed, by name; nothing of it is imported yet."""
    return brought(GROUP)


@contextlib.contextmanager
def tracking(track: str | Sequence[str]) -> Iterator[Watcher | None]:
    """A watcher for all the trackers that are named, each as NAME or NAME:ADDRESS; they end with the block.

    An unknown name, or one whose package is missing, is refused at once.
    """
    names = [name.strip() for name in (track.split(",") if isinstance(track, str) else track) if name.strip()]
    trackers = [_tracker(name) for name in names]
    try:
        yield together(*map(shielded, trackers))
    finally:
        for tracker in trackers:
            tracker.close()


def _tracker(spec: str) -> Any:
    """What watches for one name.  Its factory takes the address (or None) and gives a watcher.

    `packages` of the factory are modules that the extra of its name installs.  One that says `in_step = True` is
    called in the run's own thread: it has to be as quick as the run wants to be.
    """
    name, colon, address = spec.partition(":")
    known = known_trackers()
    if name not in known:
        raise ConfigError(f"track={spec!r}: there is no tracker {name!r}{nearest(name, known)}")
    entry = known[name]
    factory = loaded(entry, f"track={spec!r}")
    for module in getattr(factory, "packages", ()):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, name, f"track={spec!r}", package_of(entry))
    make = functools.partial(factory, address if colon else None)
    return InStep(make()) if getattr(factory, "in_step", False) else Aside(name, make)


class TrackerFailed(FanfoldError):
    """A tracker that takes no more events; the run is not concerned."""


class InStep:
    """A tracker in the run's own thread."""

    def __init__(self, watch: Watcher) -> None:
        self._watch = watch

    def __call__(self, event: Event) -> None:
        self._watch(event)

    def __repr__(self) -> str:
        return repr(self._watch)

    def close(self) -> None:
        _closed(self._watch)


class Aside:
    """A tracker on a thread of its own, which also makes it.  What it cannot take in time is left out and counted."""

    def __init__(self, name: str, make: Callable[[], Watcher]) -> None:
        self._name, self._make = name, make
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._told = False
        self._left_out = 0
        self._thread = threading.Thread(target=self._work, name=f"fanfold-{name}", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        if self._error is not None:
            self._told = True
            raise TrackerFailed(str(self._error) or repr(self._error)) from self._error
        if self._events.qsize() < MOST:
            self._events.put(event)
        else:
            self._left_out += 1

    def __repr__(self) -> str:
        return self._name

    def close(self) -> None:
        """Wait for what is still on its way, but not for long."""
        self._events.put(None)
        self._thread.join(GRACE)
        left = f"; {self._left_out:,} events were left out" if self._left_out else ""
        if self._thread.is_alive():
            self._warn(f"did not take everything within {GRACE:g} s, the rest is missing there{left}")
        elif self._error is not None and not self._told:
            self._warn(f"failed: {self._error!r}")
        elif left:
            self._warn(f"was too slow{left}")

    def _warn(self, problem: str) -> None:
        warnings.warn(f"the tracker {self._name!r} {problem}. The run itself is complete in its ledger", stacklevel=2)

    def _work(self) -> None:
        try:
            watch = self._make()
            while (event := self._events.get()) is not None:
                watch(event)
            _closed(watch)
        except Exception as error:
            self._error = error


def _closed(watch: Watcher) -> None:
    if callable(close := getattr(watch, "close", None)):
        close()
