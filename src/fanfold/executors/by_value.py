"""Pickles what a script or a notebook defines, which nobody could find by name elsewhere."""

from __future__ import annotations

import functools
import io
import operator
import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

_Cached = type(functools.lru_cache(len))
#: What a script is called, and what in a process that multiprocessing has spawned.
_SCRIPTS = ("__main__", "__mp_main__")


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with caches of functions and properties that begin empty where they arrive."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is _Cached and not _importable(value):
            return _cached, (value.__wrapped__, *value.cache_parameters().values())
        if type(value) is functools.cached_property:  # up to Python 3.11 it holds a lock
            return functools.cached_property, (value.func,), {k: v for k, v in vars(value).items() if k != "lock"}
        return super().reducer_override(value)


def dumps(value: Any) -> bytes:
    if (script := sys.modules.get(_SCRIPTS[1])) is not None:
        cloudpickle.register_pickle_by_value(script)
    file = io.BytesIO()
    Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _cached(fn: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(fn)


def _importable(value: Any) -> bool:
    """Whether another process finds this very object by its name."""
    try:
        known = operator.attrgetter(value.__qualname__)(sys.modules[value.__module__])
    except (AttributeError, KeyError):
        return False
    return value.__module__ not in _SCRIPTS and known is value
