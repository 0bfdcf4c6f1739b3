"""Any `concurrent.futures.Executor` as a place to run: the standard pools, dask's, joblib's, a cluster's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fanfold.errors import ExecutorBroken
from fanfold.executors.base import Caller, Executor, checked_slots, contained, no_way_home, set_home


class Futures(Executor):
    """Calls in a pool that someone else made and will shut down.

    `slots` is the pool's size where it tells, else 32.  Cancelling withdraws a call that is still queued in the pool;
    one that runs is abandoned and keeps its place there until it ends.  Model calls reach their run from a pool of
    threads; in other processes, to which we have no way, they are refused.
    """

    def __init__(self, pool: concurrent.futures.Executor, slots: int | None = None) -> None:
        self.slots = checked_slots(getattr(pool, "_max_workers", 32) if slots is None else slots, "slots")
        self.name = f"{type(pool).__name__}:{self.slots}"
        self._pool = pool

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        sender = Sender(os.getpid(), next(_NUMBERS), self.name)
        _CONTEXTS[sender.number] = contextvars.copy_context()
        try:
            return await self._submitted(fn, args, sender)
        finally:
            _CONTEXTS.pop(sender.number, None)

    async def _submitted(self, fn: Callable[..., Any], args: tuple[Any, ...], sender: Sender) -> Any:
        try:
            future = self._pool.submit(call, fn, args, sender)
        except RuntimeError as error:  # broken, or shut down
            raise self._broken(error) from error
        try:
            return await asyncio.wrap_future(future)
        except concurrent.futures.BrokenExecutor as error:
            raise self._broken(error) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._broken("its owner shut it down") from error

    def _broken(self, reason: object) -> ExecutorBroken:
        return ExecutorBroken(
            f"the pool {self.name} is unusable from now on ({reason}); finished work is kept. Continue with a new "
            f"pool, or with executor='processes:{self.slots}', which survives the death of a worker"
        )


@dataclass(frozen=True, slots=True)
class Sender:
    """Where a call in a pool came from: the process, the number of its context there, and the pool's name."""

    process: int
    number: int
    pool: str


_NUMBERS = itertools.count()
#: The contexts of calls that are in pools, in the process that sent them there.
_CONTEXTS: dict[int, contextvars.Context] = {}


def call(fn: Callable[..., Any], args: tuple[Any, ...], sender: Sender) -> Any:
    """Make one call inside a pool's worker; at module level so that process pools can find it."""
    caller = Caller()
    context = _CONTEXTS.get(sender.number) if sender.process == os.getpid() else None
    if sender.process != os.getpid():
        set_home(no_way_home(sender.pool))
    try:
        return caller.call(fn, args) if context is None else context.run(caller.call, fn, args)
    except BaseException as error:
        failure = contained(error)
        if failure is error:
            raise
        raise failure from error
    finally:
        caller.close()
