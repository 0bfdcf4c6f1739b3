"""Where calls run: the registry of executors, and `make`, which turns a text such as "processes:8" into one."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fanfold.errors import ConfigError, nearest

if TYPE_CHECKING:
    import concurrent.futures
    from importlib.metadata import EntryPoint

    from fanfold.executors.base import Executor, is_coroutine_function
    from fanfold.executors.dask import Dask
    from fanfold.executors.futures import Futures
    from fanfold.executors.local import Async, Inline, Threads
    from fanfold.executors.processes import Processes
    from fanfold.executors.ray import Ray
    from fanfold.executors.resources import Given
    from fanfold.executors.slurm import Slurm

__all__ = [
    "Async",
    "Dask",
    "Executor",
    "Futures",
    "Inline",
    "Processes",
    "Ray",
    "Slurm",
    "Threads",
    "is_coroutine_function",
    "make",
]

GROUP = "fanfold.executors"

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
    "Dask": "dask",
    "Slurm": "slurm",
}
# Our own by name: the class, how it is written, and its default slots; 0: one per usable core, None: takes none.
_OWN: dict[str, tuple[str, str, int | None]] = {
    "inline": ("Inline", "inline", None),
    "async": ("Async", "async:N", 64),
    "threads": ("Threads", "threads:N", 8),
    "processes": ("Processes", "processes:N", 0),
    "ray": ("Ray", "ray:N", 0),
    "dask": ("Dask", "dask:ADDRESS", 0),
    "slurm": ("Slurm", "slurm:N", 1),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


@dataclass(frozen=True, slots=True)
class Registered:
    """An executor that a text can name.

    `load()` gives a callable that takes what follows the colon (a number as int, other text as str, or None) and gives
    an Executor.  If it makes provider batches, it takes the keywords `deadline` (seconds), `fallback` ("batch" or
    "realtime"), `leave` ("keep" or "cancel") and `detach` as well; if its calls can ask for resources, `resources` (see
    `fanfold.executors.resources.parsed`).  Its attribute `spellings`, a list or a function
    that gives one, says how it is written: `["acme:N"]`.
    """

    name: str
    package: str
    load: Callable[[], Callable[..., Any]]
    spelled: Sequence[str] = ()

    def spellings(self) -> list[str]:
        """How it is written, for help and completion; only its name where it cannot be loaded or does not say."""
        try:
            spelled = self.spelled or getattr(self.load(), "spellings", None)
            return list(spelled() if callable(spelled) else spelled or [self.name])
        except Exception:
            return [self.name]


def registered() -> dict[str, Registered]:
    """Every executor by name: our own, then those that installed packages offer in `fanfold.executors`."""
    from fanfold.registry import installed

    known = {
        name: Registered(name, "fanfold", functools.partial(functools.partial, _own, name), [spelled])
        for name, (_, spelled, _) in _OWN.items()
    }
    for entry in installed(GROUP):
        known.setdefault(entry.name, Registered(entry.name, _package(entry), entry.load))
    return known


@functools.cache
def _package(entry: EntryPoint) -> str:
    """The package that brings an executor, and its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def names() -> list[str]:
    """How every executor is written as far as that is known without importing it."""
    return [*(text for entry in registered().values() for text in entry.spelled or [entry.name]), "auto"]


def spellings(start: str = "") -> list[str]:
    """How executors are written whose text begins so; those that may match are imported."""
    maybe = [entry for entry in registered().values() if entry.name.startswith(start.partition(":")[0])]
    return [
        text for text in [*(text for entry in maybe for text in entry.spellings()), "auto"] if text.startswith(start)
    ]


def make(
    spec: str | Executor | concurrent.futures.Executor | Callable[[], concurrent.futures.Executor] = "auto",
    fn: Callable[..., Any] | None = None,
    *,
    resources: Given = None,
    **settings: Any,
) -> Executor:
    """The executor that `spec` names.

    - `inline`: in the event loop's thread, one call at a time;
    - `async:64`: coroutine functions in the event loop (plain functions on threads), so many at once; default 64;
    - `threads:8`: on threads, for plain functions that mostly wait; default 8;
    - `processes:8`: in worker processes, for functions that compute; default one per usable core;
    - `ray:100`: as tasks of a Ray cluster, or of a Ray started here where there is none; `ray:100@ADDRESS` says which
      cluster; default one per usable core;
    - `dask:tcp://host:8786` or `dask:scheduler.json`: as tasks of a Dask cluster, as many at once as it has threads;
      `dask:8` starts one here;
    - `slurm:64`: in so many Slurm jobs, each of which serves one call after another; `slurm:64?partition=gpu&time=2h`
      says what sbatch is told;
    - `auto`: `async:64` if `fn` is a coroutine function; anything else is taken to compute, and gets `processes` with
      one worker per usable core, or `inline` where there is only one core;
    - any other name in the entry point group `fanfold.executors` (`batch:auto` is one; see `Registered`);
    - an Executor, used unchanged, or any `concurrent.futures.Executor`, whose owner shuts it down; or a function that
      gives such a pool, and a new one where the last is broken.

    `resources` ("gpu=1,memory=8G", or a mapping) is what each call needs where it runs; refused by those that cannot
    give any.  `settings` are passed on to executors that take them, and refused by the others.
    """
    from concurrent.futures import Executor as Pool

    from fanfold.executors.base import Executor, is_coroutine_function
    from fanfold.executors.futures import Futures

    if isinstance(spec, str) and spec != "auto":
        return _named(spec, settings | ({"resources": resources} if resources else {}))
    if settings:
        raise _settings_refused(spec)
    if resources:
        raise ConfigError(f"executor={spec!r}: {_NO_RESOURCES}")
    if isinstance(spec, Executor):
        return spec
    if type(spec).__module__ == "distributed.cfexecutor":  # `client.get_executor()`: a cluster rather than a pool
        client = cast("Any", spec)._client
        return cast("Executor", __getattr__("Dask")(client.scheduler.address, security=client.security))
    if isinstance(spec, Pool) or (callable(spec) and not isinstance(spec, type)):
        return Futures(spec)
    if spec != "auto":
        raise ConfigError(
            f"executor={spec!r} cannot be used: give a text such as 'processes:8', an Executor, "
            f"or a concurrent.futures.Executor"
        )
    if fn is not None and is_coroutine_function(fn):
        return make("async")
    return make("processes" if usable_cores() > 1 else "inline")


def usable_cores() -> int:
    """How many cores this process may use, which inside containers and under schedulers can be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _named(spec: str, settings: dict[str, Any]) -> Executor:
    import inspect

    from fanfold.executors.base import Executor

    name, colon, rest = spec.partition(":")
    known = registered()
    if name not in known:
        if name == "auto":
            raise ConfigError(f"executor={spec!r}: 'auto' takes no number; write 'auto', or 'threads:{rest}'")
        raise ConfigError(f"executor={spec!r}: there is no executor {name!r}{nearest(name, [*known, 'auto'])}")
    entry = known[name]
    try:
        factory = entry.load()
    except Exception as error:
        raise ConfigError(
            f"executor={spec!r} of the package {entry.package!r} cannot be imported ({type(error).__name__}: {error}): "
            f"install what it needs, or upgrade it"
        ) from error
    takes = inspect.signature(factory).parameters.keys()
    if settings.keys() - {"resources"} - takes:
        raise _settings_refused(spec)
    if "resources" in settings and "resources" not in takes:
        raise ConfigError(f"executor={spec!r}: {_NO_RESOURCES}")
    number = rest.isascii() and rest.isdecimal() and len(rest) < 7
    argument = int(rest) if number else rest if colon else None
    try:
        made = factory(argument, **settings)
    except ConfigError as error:
        problem = str(error).removeprefix(f"executor={spec!r}: ")
        raise ConfigError(f"executor={spec!r}: {problem}") from error
    if not isinstance(made, Executor):
        raise ConfigError(
            f"executor={spec!r}: {name!r} of the package {entry.package!r} gave {made!r}, which is not a fanfold "
            f"Executor; report it to its author"
        )
    return made


def _own(name: str, argument: int | str | None, resources: Given = None) -> Executor:
    import inspect

    from fanfold.executors.base import slots_of

    home, _, slots = _OWN[name]
    kind = __getattr__(home)
    given: dict[str, Any] = {} if resources is None else {"resources": resources}
    if given and "resources" not in inspect.signature(kind).parameters:
        raise ConfigError(_NO_RESOURCES)
    if slots is None:
        if argument is not None:
            raise ConfigError(f"{name!r} takes no number; write {name!r}, or 'threads:{argument}'")
        return cast("Executor", kind())
    slots = slots or usable_cores()
    if hasattr(kind, "named"):
        return cast("Executor", kind.named(argument, slots, **given))
    return cast("Executor", kind(slots if argument is None else slots_of(name, str(argument)), **given))


def _settings_refused(spec: object) -> ConfigError:
    return ConfigError(
        f"executor={spec!r} makes no provider batches: batch_deadline, batch_fallback, cancel_batches and detach "
        "(--batch-deadline, --detach, ...) are for executors that do, such as --executor batch:auto"
    )


_NO_RESOURCES = (
    "it has no resources to give: resources (--resources gpu=1) are for ray:N, dask:ADDRESS, slurm:N and processes:N"
)
