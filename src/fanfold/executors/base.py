"""What an executor is: the place where a call runs; and how a call is made there."""

from __future__ import annotations

import contextvars
import errno
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from fanfold.errors import ConfigError, ExecutorBroken, NoWayHome, PlaceLost, check_whole

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from types import TracebackType
    from typing import Self


class Executor(ABC):
    """Where a call runs. It never retries, limits or remembers.

    A caller keeps at most `depth` calls in flight. The executor decides whether one more waits or runs. Use it as an
    `async with` block, as often as you like but one at a time. `fanfold.testing.ExecutorConformance` checks all this.
    """

    #: What people are shown, in the form `make` understands where there is one: "threads:8".
    name: str
    #: How many calls may run at once.
    slots: int
    #: Whether `slots` is a number to keep busy, rather than a way to say "as many as there are".
    bounded: bool = True
    #: Whether cancelling `run` really stops the call, rather than only ceasing to wait for it.
    interruptible: bool = False
    #: What each call asks of the place where it runs, by name (see `fanfold.executors.resources`).
    resources: Mapping[str, float] = MappingProxyType({})
    #: Seconds without any worker after which the place is given up.
    patience: float = 60.0
    #: Whether model calls gather here in provider batches instead of going out one by one.
    collects: bool = False
    #: Whether workers fetch large data from home, once each (see `fanfold.executors.parcels`).
    fetches: bool = False

    @property
    def depth(self) -> int:
        """How many calls may be in flight now.

        More than `slots` where calls are quick: the others wait at their workers, which then never wait for the driver.
        """
        return self.slots

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(  # noqa: B027 - nothing to end is common
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything within a second or two, stuck calls included."""

    def remarks(self) -> Sequence[str]:
        """What the user should know after a run: work left behind elsewhere, for example."""
        return ()

    @abstractmethod
    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call `fn(*args)` here, await the result if it is awaitable, and return its value or raise its exception.

        Raises WorkerDied if the worker ended without an answer. Cancelling the awaiting task abandons the call.
        Anything that would end the loop or look like a cancellation (SystemExit, a stray CancelledError) becomes a
        RuntimeError.
        """


def is_coroutine_function(fn: Any) -> bool:
    """Whether calling `fn` gives a coroutine; looks through `functools.partial` and at an object's `__call__`."""
    import inspect

    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004


def is_awaitable(value: Any) -> bool:
    return hasattr(type(value), "__await__")


def name_of(fn: Any) -> str:
    """What to call a function in a message: by the name of what it wraps, where it wraps another."""
    while isinstance(fn, functools.partial) or hasattr(fn, "__wrapped__"):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__wrapped__
    return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)


def contained(error: BaseException) -> Exception:
    """`error`, or a RuntimeError in its place where raising it in an event loop would do more than fail one call."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    from fanfold.encoding import brief  # here, because a worker seldom needs it

    stand_in = RuntimeError(f"the call raised {brief(error)}, which is not an ordinary error")
    stand_in.__cause__ = error
    return stand_in


def checked_slots(slots: int, what: str) -> int:
    check_whole(slots, what)
    return slots


def slots_of(name: str, text: str) -> int:
    """The number of slots in a text: the 8 of `threads:8`."""
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0):
        raise ConfigError(
            f"{text!r} is not a number of slots; give a whole number of 1 or more, up to 999999, as in {name + ':8'!r}"
        )
    return int(text)


#: Sends a request to the run that this process works for; the reply comes in the future.
Home: TypeAlias = "Callable[[Any], concurrent.futures.Future[Any]]"

_home: Home | None = None


def home() -> Home | None:
    """How a worker reaches its run; None in every process that is not a worker.

    It belongs to the whole process, not to a context: threads that an evaluator starts are the run's as well.
    """
    return _home


def set_home(send: Home | None) -> None:
    global _home
    _home = send


def no_way_home(place: str) -> Home:
    """For workers that cannot reach their run: refuses every request before anything is sent."""

    def refuse(request: Any) -> concurrent.futures.Future[Any]:
        raise NoWayHome(
            f"a model call cannot reach its run from a worker of {place}, so it could be neither limited nor kept: use "
            "async:N, threads:N, processes:N or ray:N"
        )

    return refuse


#: What may pass, and what a person can do about it.
_SHORTAGES = {
    errno.EMFILE: "raise the limit of open files (ulimit -n) or use fewer slots",
    errno.ENFILE: "the system has no more open files: raise fs.file-max or use fewer slots",
    errno.ENOMEM: "free memory or use fewer slots",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or the pids limit of the container) or use fewer slots",
}


def no_worker(error: Exception, what: str) -> PlaceLost | ExecutorBroken:
    """Why a worker could not be started: the place has too little of something, or no worker can ever start there."""
    if isinstance(error, OSError):
        shortage = error.errno
    else:  # a RuntimeError is what Python has for a thread that the system refused
        shortage = errno.ENOMEM if isinstance(error, MemoryError) else errno.EAGAIN
    if shortage in _SHORTAGES:
        return PlaceLost(f"a worker {what} could not be started ({error}): {_SHORTAGES[shortage]}")
    return ExecutorBroken(f"no worker {what} can be started here ({error}); finished work is kept")


class Caller:
    """Calls plain and coroutine functions from one thread.

    Coroutines run on one event loop that is made when first needed and kept, so that clients bound to it live on; a
    call that leaves tasks behind takes the loop with it, so that they cannot run on into the next call.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        value = fn(*args)
        return self._finish(value) if is_awaitable(value) else value

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _finish(self, awaitable: Any) -> Any:
        import asyncio  # here, because a worker that only meets plain functions starts much faster without it

        if self._runner is None:
            self._runner = asyncio.Runner()
        runner = self._runner
        try:
            return runner.run(_awaited(awaitable), context=contextvars.copy_context())
        finally:
            if asyncio.all_tasks(runner.get_loop()):
                self.close()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
