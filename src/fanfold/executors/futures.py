"""Any `concurrent.futures.Executor` as a place to run: the standard pools, loky's, MPI's, executorlib's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fanfold.context import here
from fanfold.errors import ConfigError, ExecutorBroken, PlaceLost, WorkerDied
from fanfold.executors.base import Caller, Executor, checked_slots, contained, name_of, no_way_home, set_home
from fanfold.executors.door import Door, FarWork, Way
from fanfold.executors.processes import packed, value_of
from fanfold.executors.worker import answer


class Futures(Executor):
    """Calls in a pool that someone else made and will shut down, or in pools that a function makes.

    `slots` is the pool's size where it tells, else 32.  Cancelling withdraws a call that is still queued in the pool;
    one that runs is abandoned and keeps its place there until it ends.  Model calls reach their run from threads and
    processes of this machine; elsewhere they are refused.

    A pool that breaks takes all its calls with it, whichever of them broke it.  Where a function makes the pool, it is
    asked for a new one: a call that was alone fails with WorkerDied, several have lost their place (PlaceLost).  Else
    the executor is broken.
    """

    def __init__(
        self,
        pool: concurrent.futures.Executor | Callable[[], concurrent.futures.Executor],
        slots: int | None = None,
    ) -> None:
        self._make = None if isinstance(pool, concurrent.futures.Executor) else pool
        self._crew = _Crew(pool if self._make is None else self._make())
        pool = self._crew.pool
        self.slots = checked_slots(getattr(pool, "_max_workers", 32) if slots is None else slots, "slots")
        self.name = f"{type(pool).__name__}:{self.slots}"
        self._door: Door | None = None
        self._known: tuple[Any, bytes] = (None, b"")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._door is not None:
            await self._door.close()
            self._door = None

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        if here().answer is not None and self._door is None:
            self._door = Door(["127.0.0.1"])
        context = contextvars.copy_context()
        home = None if self._door is None else (self._door.way, self._door.questions.enter([context]))
        sender = Sender(os.getpid(), next(_NUMBERS), self.name, home)
        _CALLS[sender.number] = functools.partial(context.run, _made, fn, args)
        try:
            kind, value = await self._submitted(fn, args, sender)
        finally:
            del _CALLS[sender.number]
            if self._door is not None and home is not None:
                self._door.questions.leave(home[1])
        if kind == RAISED:
            raise value
        return value if kind == HERE else value_of(kind, value, fn)

    async def _submitted(self, fn: Callable[..., Any], args: tuple[Any, ...], sender: Sender) -> tuple[bytes, Any]:
        """What `call` gives; whatever is raised here is the pool's doing."""
        crew = self._crew
        crew.calls += 1
        try:
            return await asyncio.wrap_future(crew.submit(call, *self._portable(fn, args), sender))
        except (concurrent.futures.BrokenExecutor, _Refused) as error:
            raise self._broken(error, crew, fn) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._broken("its owner shut it down", crew, fn) from error
        except Exception as error:
            if self._crew is not crew:  # replaced, with what it still had
                raise PlaceLost(f"a pool broke under several calls ({error})") from error
            raise WorkerDied(f"the pool gave no answer to {name_of(fn)} ({type(error).__name__}: {error})") from error
        finally:
            crew.calls -= 1

    def _portable(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bytes, bytes]:
        """A call for other processes: what a script or a notebook defines goes by value."""
        if isinstance(self._crew.pool, concurrent.futures.ThreadPoolExecutor):
            return b"", b""
        if self._known[0] is not fn:
            try:
                self._known = fn, packed(fn)
            except Exception as error:  # of no matter to a pool in this process
                self._known = fn, packed(functools.partial(_unsent, f"{name_of(fn)} cannot be sent ({error})"))
        try:
            return self._known[1], packed(args)
        except Exception as error:
            return packed(functools.partial(_unsent, f"arguments of {name_of(fn)} cannot be sent ({error})")), packed(
                ()
            )

    def _broken(self, reason: object, crew: _Crew, fn: Callable[..., Any]) -> Exception:
        if self._make is None:
            return ExecutorBroken(
                f"the pool {self.name} is unusable from now on ({reason}); finished work is kept. Continue with a new "
                f"pool, or with executor='processes:{self.slots}', which survives the death of a worker"
            )
        if self._crew is crew:  # the first of its calls to notice
            crew.guilty = crew.calls == 1
            try:
                self._crew = _Crew(self._make())
                if self._crew.pool is crew.pool:
                    raise RuntimeError("it is the same one")
                crew.pool.shutdown(wait=False)
            except Exception as error:
                return ExecutorBroken(f"the pool {self.name} broke ({reason}), and there is no new one ({error})")
        if crew.guilty:
            return WorkerDied(f"the pool that ran {name_of(fn)} broke before it answered ({reason})")
        return PlaceLost(f"a pool broke under several calls ({reason})")


class _Refused(Exception):
    """A pool that takes no calls any more."""


class _Crew:
    """A pool, the calls it has now, and whether the only one it had has broken it."""

    def __init__(self, pool: Any) -> None:
        if not isinstance(pool, concurrent.futures.Executor):
            raise ConfigError(f"executor: a function must give a concurrent.futures.Executor, not {pool!r}")
        self.pool = pool
        self.calls = 0
        self.guilty = False

    def submit(self, *work: Any) -> concurrent.futures.Future[Any]:
        try:
            return self.pool.submit(*work)
        except RuntimeError as error:  # broken, or shut down
            raise _Refused(str(error)) from error


@dataclass(frozen=True, slots=True)
class Sender:
    """Where a call in a pool came from: the process, the number of its context there, the pool's name, the way home."""

    process: int
    number: int
    pool: str
    home: tuple[Way, int] | None = None


#: Replies of calls in the process that sent them: a value, an error.
HERE, RAISED = b"h", b"r"

_NUMBERS = itertools.count()
#: Calls that are in pools, in the process that sent them there.
_CALLS: dict[int, Callable[[], tuple[bytes, Any]]] = {}


def call(function: bytes, body: bytes, sender: Sender) -> tuple[bytes, Any]:
    """Make one call inside a pool's worker; at module level so that process pools can find it."""
    if sender.process == os.getpid():
        return _CALLS[sender.number]()
    caller = Caller()
    try:
        if sender.home is None:
            set_home(no_way_home(sender.pool))
            return answer(caller, {0: function}, 0, body)
        with FarWork(*sender.home, sender.pool):
            return answer(caller, {0: function}, 0, body)
    finally:
        caller.close()


def _made(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bytes, Any]:
    caller = Caller()
    try:
        return HERE, caller.call(fn, args)
    except BaseException as error:
        return RAISED, contained(error)
    finally:
        caller.close()


def _unsent(reason: str, *_: Any) -> None:
    raise TypeError(f"{reason}: pass plain values, or use threads")
