"""Call a function on many items at once, on threads, with the results in the order of the items.

A function that cannot be called from several threads at once says so by an attribute `thread_safe = False` (its own, or
that of the object it is a method of): its calls then happen one after the other, also those of different batches.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fanfold.errors import check_whole
from fanfold.executors.local import Threads
from fanfold.sync import run_sync

T = TypeVar("T")
R = TypeVar("R")


def map_parallel(fn: Callable[[T], R], items: Sequence[T], max_workers: int | None = None) -> list[R]:
    """`[fn(item) for item in items]`, several at a time.

    `max_workers=None` means `min(len(items), 4)`. If a call raises, no further item starts, and the running ones
    finish. Then the exception of the first failing item is raised, with its index in a note and as `item_index`.
    """
    return _call_all(fn, [(item,) for item in items], max_workers)


def run_parallel(fn: Callable[..., R], items: Sequence[tuple[Any, ...]], max_workers: int | None = None) -> list[R]:
    """`[fn(*item) for item in items]`, several at a time; otherwise as `map_parallel`."""
    return _call_all(fn, items, max_workers)


def score_batch_parallel(
    score_fn: Callable[[str, str, str], float], items: Sequence[tuple[str, str, str]], max_workers: int | None = None
) -> list[float]:
    """Score `(system_prompt, query, response)` triples, several at a time; otherwise as `map_parallel`."""
    return _call_all(score_fn, items, max_workers)


def _call_all(fn: Callable[..., R], items: Sequence[Sequence[Any]], max_workers: int | None) -> list[R]:
    if max_workers is not None:
        check_whole(max_workers, "max_workers")
    if not items:
        return []
    return run_sync(lambda: _gather(serialised(fn), items, max_workers or min(len(items), 4)))


async def _gather(fn: Callable[..., R], items: Sequence[Sequence[Any]], slots: int) -> list[R]:
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}
    waiting = iter(enumerate(items))

    async def work(executor: Threads) -> None:
        for index, item in waiting:
            try:
                results[index] = await executor.run(fn, *item)
            except Exception as error:
                errors[index] = error
            if errors:
                return

    async with Threads(min(slots, len(items))) as executor:
        await asyncio.gather(*(work(executor) for _ in range(executor.slots)))
    if errors:
        index = min(errors)
        errors[index].add_note(f"raised by item {index} of {len(items)}")
        errors[index].item_index = index  # type: ignore[attr-defined]
        raise errors[index]
    return [results[index] for index in range(len(items))]


_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()
#: For owners that no lock can be kept for: they share this one.
_shared_lock = threading.RLock()


def serialised(fn: Callable[..., R]) -> Callable[..., R]:
    """The function itself; or, where it is declared not thread-safe, one whose calls follow each other.

    All calls of one object wait for the same lock, also those of its other methods.
    """
    owner = getattr(fn, "__self__", fn)
    if getattr(fn, "thread_safe", True) and getattr(owner, "thread_safe", True):
        return fn
    with _locks_lock:
        try:
            lock = _locks.setdefault(owner, threading.RLock())
        except TypeError:  # neither hashed nor referred to weakly
            lock = _shared_lock

    def call(*args: Any, **named: Any) -> R:
        with lock:
            return fn(*args, **named)

    return call
