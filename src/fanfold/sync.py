"""Call asynchronous code from synchronous code, also where an event loop is already running (a notebook)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `main()`, run on an event loop of its own: in this thread, or beside the loop that runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(asyncio.run(main()))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=work, name="fanfold", daemon=True).start()
    return outcome.result()
