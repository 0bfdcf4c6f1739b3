"""Executors inside this process: in the event loop itself, and on daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from fanfold.executors.base import (
    Caller,
    Executor,
    checked_slots,
    contained,
    is_awaitable,
    is_coroutine_function,
    no_worker,
)


class Inline(Executor):
    """Calls in the event loop's own thread, one at a time: the simplest place, and the one to debug in."""

    name = "inline"
    slots = 1

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await _here(fn, args)


class Async(Executor):
    """Awaits coroutine functions in the event loop; a plain function runs on one of up to `slots` threads meanwhile.

    Cancelling stops a coroutine function; a plain function is only abandoned, as with `Threads`.
    """

    bounded = False  # a coroutine that waits takes no place: the slots say how many at most
    interruptible = True

    def __init__(self, slots: int = 64) -> None:
        self.slots = checked_slots(slots, "slots")
        self.name = f"async:{slots}"
        self._threads = Threads(slots)
        self._known: tuple[Any, bool] = (None, False)

    async def __aenter__(self) -> Self:
        await self._threads.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._threads.__aexit__(kind, error, trace)

    def run(self, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
        if fn is not self._known[0]:  # asked once per function, not once per call
            self._known = (fn, is_coroutine_function(fn))
        if self._known[1]:
            return _here(fn, args)
        return self._threads.run(fn, *args)


class Threads(Executor):
    """Calls on up to `slots` daemon threads, started when first needed; a coroutine function runs on its thread's loop.

    A cancelled call is abandoned: its thread finishes in its own time, the result is dropped, the thread ends, and a
    new one takes its place.  Daemon threads, because a call that hangs must not keep the program from ending.
    """

    def __init__(self, slots: int = 8) -> None:
        self.slots = checked_slots(slots, "slots")
        self.name = f"threads:{slots}"
        self._free = asyncio.Semaphore(slots)
        self._threads: set[_Thread] = set()
        self._idle: list[_Thread] = []

    async def __aenter__(self) -> Self:
        self._free = asyncio.Semaphore(self.slots)  # a semaphore belongs to the loop it first waited in
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.end()
        self._threads.clear()
        self._idle.clear()

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        async with self._free:
            thread = self._idle.pop() if self._idle else self._start()
            answer = thread.submit(fn, args)
            try:
                return await answer
            finally:
                if not answer.done() or answer.cancelled():  # still at it, for nobody
                    thread.end()
                    self._threads.discard(thread)
                elif thread in self._threads:
                    self._idle.append(thread)

    def _start(self) -> _Thread:
        thread = _Thread()
        self._threads.add(thread)
        return thread


class _Thread:
    """One daemon thread that takes one call at a time and answers into the event loop that submitted it."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._work, name="fanfold-call", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads for us
            raise no_worker(error, "thread") from error

    def submit(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> asyncio.Future[Any]:
        job = _Job(fn, args)
        self._jobs.put(job)
        return job.answer

    def end(self) -> None:
        """Let the thread end after the call it is in."""
        self._jobs.put(None)

    def _work(self) -> None:
        caller = Caller()
        while (job := self._jobs.get()) is not None:
            job.run(caller)
            del job  # its arguments should not live until the next call
        caller.close()


class _Job:
    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.context = contextvars.copy_context()
        self.fn = fn
        self.args = args

    def run(self, caller: Caller) -> None:
        value: Any = None
        failure: Exception | None = None
        try:
            value = self.context.run(caller.call, self.fn, self.args)
        except BaseException as error:
            failure = contained(error)
        try:
            self.loop.call_soon_threadsafe(self._settle, value, failure)
        except RuntimeError:
            pass  # the loop was closed in the meantime: nobody waits for this answer any more

    def _settle(self, value: Any, failure: Exception | None) -> None:
        if self.answer.done():
            return
        if failure is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(failure)


async def _here(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call in this task, keeping what would end the loop, or pass for a cancellation of this task, to the call."""
    try:
        value = fn(*args)
        return await value if is_awaitable(value) else value
    except (Exception, KeyboardInterrupt, GeneratorExit):  # the last: this task is being closed
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise contained(error) from error
    except BaseException as error:
        raise contained(error) from error
