"""Where calls run: `make` turns a short text such as "processes:8" into an executor."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fanfold.errors import ConfigError, nearest

if TYPE_CHECKING:
    import concurrent.futures

    from fanfold.executors.base import Executor, is_coroutine_function
    from fanfold.executors.futures import Futures
    from fanfold.executors.local import Async, Inline, Threads
    from fanfold.executors.processes import Processes
    from fanfold.executors.ray import Ray

__all__ = ["Async", "Executor", "Futures", "Inline", "Processes", "Ray", "Threads", "is_coroutine_function", "make"]

# Loaded when asked for: a worker process imports this package too, and must start fast.
_HOMES = {
    "Executor": "base",
    "is_coroutine_function": "base",
    "Inline": "local",
    "Async": "local",
    "Threads": "local",
    "Processes": "processes",
    "Futures": "futures",
    "Ray": "ray",
}
_NAMES = ("inline", "async", "threads", "processes", "ray", "auto")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def make(spec: str | Executor | concurrent.futures.Executor = "auto", fn: Callable[..., Any] | None = None) -> Executor:
    """The executor that `spec` names.

    - `inline`: in the event loop's thread, one call at a time;
    - `async:64`: coroutine functions in the event loop (plain functions on threads), so many at once; 64 unless said;
    - `threads:8`: on threads, for plain functions that mostly wait; 8 unless said;
    - `processes:8`: in worker processes, for functions that compute; one per usable core unless said;
    - `ray:100`: as tasks of a Ray cluster, or of a Ray started here where there is none; `ray:100@ADDRESS` says which
      cluster; one per usable core unless said;
    - `auto`: `async:64` if `fn` is a coroutine function; anything else is taken to compute, and gets `processes` with
      one worker per usable core, or `inline` where there is only one core;
    - any other name that is offered in the entry point group `fanfold.executors` (`batch:openai` is one), as a
      callable that takes what follows the colon (a number as int, other text as str, or None) and gives an Executor;
    - an Executor, taken as it is, or any `concurrent.futures.Executor`, whose owner shuts it down.
    """
    from concurrent.futures import Executor as Pool

    from fanfold.executors.base import Executor, is_coroutine_function
    from fanfold.executors.futures import Futures

    if isinstance(spec, Executor):
        return spec
    if isinstance(spec, Pool):
        return Futures(spec)
    if not isinstance(spec, str):
        raise ConfigError(
            f"executor={spec!r} cannot be used: give a text such as 'processes:8', an Executor, "
            f"or a concurrent.futures.Executor"
        )
    if spec == "auto":
        if fn is not None and is_coroutine_function(fn):
            return make("async")
        return make("processes" if usable_cores() > 1 else "inline")
    name, colon, rest = spec.partition(":")
    if name in _NAMES:
        count, at, address = rest.partition("@") if name == "ray" else (rest, "", "")
        if at and not address:
            raise ConfigError(f"executor={spec!r}: no address after the '@'; write {spec[:-1]!r}, or 'ray:8@auto'")
        return _named(name, _slots(spec, count) if colon else None, spec, address or None)
    number = rest.isascii() and rest.isdecimal() and len(rest) < 7
    return _plugged_in(name, int(rest) if number else rest if colon else None, spec)


def usable_cores() -> int:
    """How many cores this process may use, which inside containers and under schedulers can be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _slots(spec: str, number: str) -> int:
    if not (number.isascii() and number.isdecimal() and len(number) < 7 and int(number) > 0):
        raise ConfigError(
            f"executor={spec!r}: {number!r} is not a number of slots; give a whole number of 1 or more, as in "
            f"{spec.partition(':')[0] + ':8'!r}"
        )
    return int(number)


def _named(name: str, slots: int | None, spec: str, address: str | None) -> Executor:
    from fanfold.executors.local import Async, Inline, Threads
    from fanfold.executors.processes import Processes

    if name in ("inline", "auto"):
        if slots is not None:
            raise ConfigError(f"executor={spec!r}: {name!r} takes no number; write {name!r}, or 'threads:{slots}'")
        return Inline()
    if name == "async":
        return Async(slots or 64)
    if name == "threads":
        return Threads(slots or 8)
    if name == "ray":
        from fanfold.executors.ray import Ray

        return Ray(slots or usable_cores(), address)
    return Processes(slots or usable_cores())


def _plugged_in(name: str, option: int | str | None, spec: str) -> Executor:
    from importlib.metadata import entry_points

    from fanfold.executors.base import Executor

    offered = {entry.name: entry for entry in entry_points(group="fanfold.executors")}
    if name not in offered:
        known = [*_NAMES, *offered]
        raise ConfigError(f"executor={spec!r}: there is no executor {name!r}{nearest(name, known)}")
    made = offered[name].load()(option)
    if not isinstance(made, Executor):
        raise ConfigError(
            f"executor={spec!r}: the plugin {offered[name].value!r} gave {made!r}, which is no fanfold Executor; "
            f"report it to its author"
        )
    return made
