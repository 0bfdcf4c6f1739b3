"""Call asynchronous code from synchronous code, also where an event loop is already running (a notebook)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds in which tasks that are left at the end, the interrupted run among them, may save and end.
PATIENCE = 5.0


def run_sync(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `main()`, run on an event loop of its own: in this thread, or beside the loop that runs here."""
    if not loop_runs_here():
        return _run(main)
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(_run(main))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="fanfold", daemon=True)
    thread.start()
    try:
        return outcome.result()
    except KeyboardInterrupt:
        thread.join(5.0)  # it is being stopped too: let it save what it has
        raise


def loop_runs_here() -> bool:
    """Whether an event loop is running in this thread."""
    # What runs while an error is handled gets that error as the context of its own: so answer, and run outside.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        try:
            return runner.run(main())
        finally:
            _end_tasks(runner.get_loop())


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """End what is left on a loop, but wait for nobody who refuses: the runner, which comes next, would wait forever."""
    tasks = asyncio.all_tasks(loop)
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    _, deaf = loop.run_until_complete(asyncio.wait(tasks, timeout=PATIENCE))
    for task in deaf:
        asyncio._unregister_task(task)


def _new_loop() -> asyncio.AbstractEventLoop:
    """The faster event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _Beside:
    """One daemon thread with an event loop that lives as long as the process."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        threading.Thread(target=self.loop.run_forever, name="fanfold-beside", daemon=True).start()


_lock = threading.Lock()
_beside: _Beside | None = None


def run_beside(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `main()` on one shared background loop, where connections and limits live on between calls."""
    return start_beside(main).result()


def start_beside(main: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    """Start `main()` on the shared background loop."""
    global _beside
    with _lock:
        if _beside is None:
            _beside = _Beside()
    return asyncio.run_coroutine_threadsafe(main(), _beside.loop)


def _in_child() -> None:
    """A forked child has a copy of the loop but not its thread: it starts one of its own."""
    global _lock, _beside
    _lock, _beside = threading.Lock(), None


os.register_at_fork(after_in_child=_in_child)


def noticed(ended: asyncio.Future[Any]) -> None:
    """Look at how a task ended, so that nobody is warned of an exception never retrieved."""
    if not ended.cancelled():
        ended.exception()
