"""What calls elsewhere ask of their run, and what their workers report, as the driver sees it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fanfold.executors.worker import loads


class Questions:
    """The calls that are in far workers, by number; each question is answered in the context of its call."""

    def __init__(self) -> None:
        self._count = 0
        self._contexts: dict[int, contextvars.Context] = {}
        self._asked: dict[int, set[asyncio.Task[None]]] = {}
        self._reports: dict[int, tuple[int, Callable[..., None] | None]] = {}

    def enter(self, contexts: Sequence[contextvars.Context], report: Callable[..., None] | None = None) -> int:
        """The number of the first of some calls that travel together; the others follow.  `report` hears of them."""
        first, self._count = self._count, self._count + len(contexts)
        self._contexts.update(zip(range(first, self._count), contexts, strict=True))
        self._reports[first] = len(contexts), report
        return first

    def leave(self, first: int) -> None:
        """Nobody waits for these calls any more."""
        count, _ = self._reports.pop(first)
        for number in range(first, first + count):
            del self._contexts[number]
            for task in self._asked.pop(number, ()):
                task.cancel()

    def ask(self, number: int, answer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A call asks something: `answer` in its context, unless nobody waits for it any more."""
        context = self._contexts.get(number)
        if context is not None:
            task = asyncio.create_task(answer(), context=context.copy())
            tasks = self._asked.setdefault(number, set())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def tell(self, first: int, report: bytes) -> None:
        """A worker says how far it is with calls that travelled together."""
        _, heard = self._reports.get(first, (0, None))
        if heard is not None:
            heard(*loads(report))
