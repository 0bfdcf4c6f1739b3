"""The only place where time limits, retries and backoff live."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from fanfold.context import copied, here
from fanfold.sync import noticed

T = TypeVar("T")

#: After try number `n` (from 1) ended in `error`: seconds to wait before the next try, or None to give up.
Again: TypeAlias = Callable[[Exception, int], "float | None"]

#: Seconds in which a call that was told to end may do so before it is abandoned: after its time limit, and at the end.
GRACE = 5.0
MOMENT = 0.5
#: Seconds without any worker after which a place is given up.
PATIENCE = 60.0
#: Less than a timer can measure.
TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter: before try n + 1, wait a random time up to `base * 2 ** (n - 1)`."""

    tries: int = 1
    base: float = 0.5
    cap: float = 60.0

    def __call__(self, error: Exception, n: int) -> float | None:
        if n >= self.tries:
            return None
        return random.uniform(0.0, min(self.cap, self.base * 2.0 ** min(n - 1, 60)))


class PunctualTime:
    """The time of the event loop without what it was late: a neighbour that blocks it takes time from nobody else.

    A timer fires every `every` seconds; what it is late was taken by someone.  Close it, or it fires forever.
    """

    def __init__(self, every: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._every = every
        self._late = 0.0
        self._set()

    def __call__(self) -> float:
        now = self._loop.time()
        return now - self._late - max(0.0, now - self._due)

    def close(self) -> None:
        self._timer.cancel()

    def _set(self) -> None:
        self._due = self._loop.time() + self._every
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._late += max(0.0, self._loop.time() - self._due)
        self._set()


class Clock:
    """One try's own time, up to `limit`: it stands still while its model calls wait for a limit, an outage or a batch.

    `pause` and `resume` come in pairs, and count: several calls of one evaluation may wait at once.  `expire` is called
    once, when the time is over.
    """

    def __init__(self, limit: float, time: Callable[[], float], expire: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._time, self._expire = time, expire
        self._paused = 0
        self._left = limit
        self._since = time()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(limit, self._look)

    def pause(self) -> None:
        if not self._paused:
            self._left -= self._time() - self._since
        self._paused += 1

    def resume(self) -> None:
        self._paused -= 1
        if not self._paused:
            self._since = self._time()
            if self._timer is None:
                self._timer = self._loop.call_later(max(0.0, self._left), self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._left = math.inf

    def _look(self) -> None:
        """The timer fired: the time is over, or some of it was not the evaluation's own."""
        self._timer = None
        if self._paused or self._left == math.inf:
            return
        left = self._left - (self._time() - self._since)
        if left > TINY:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._expire()


@contextlib.contextmanager
def off_the_clock() -> Iterator[None]:
    """Marks that the evaluation this code belongs to waits for its turn."""
    clock = here().clock
    if clock is None:
        yield
        return
    clock.pause()
    try:
        yield
    finally:
        clock.resume()


class Abandoned(TimeoutError):
    """A call that ran out of time, swallowed its cancellation, and was left behind."""


async def attempt(
    call: Callable[[], Awaitable[T]],
    *,
    again: Again | None = None,
    timeout: float | None = None,
    time: Callable[[], float] | None = None,
    grace: float = GRACE,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """Await `call()`, each try for at most `timeout` seconds of its own, as often as `again` says, or raise its error.

    A try that runs out of time is cancelled and ends in TimeoutError, which `again` judges like any other error.  One
    that has not ended `grace` seconds later is abandoned, which is an `Abandoned`.  `time` is what its clock goes by,
    else the loop's time.  Cancelling the attempt itself is never retried.  `sleep` waits between two tries.
    """
    tries = 0
    while True:
        tries += 1
        try:
            if timeout is None:
                return await call()
            return await _limited(call, timeout, time or asyncio.get_running_loop().time, grace)
        except Exception as error:
            wait = again(error, tries) if again is not None else None
            if wait is None:
                raise
        if wait > 0:
            await sleep(wait)


async def _limited(call: Callable[[], Awaitable[T]], timeout: float, time: Callable[[], float], grace: float) -> T:
    """One try with a clock of its own, in a task of its own: one that cannot be cancelled can still be left behind."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    expired = False

    def end(_: object = None) -> None:
        if not ended.done():
            ended.set_result(None)

    def expire() -> None:
        nonlocal expired
        expired = task.cancel()
        loop.call_later(grace, end)

    clock = Clock(timeout, time, expire)
    task = loop.create_task(_awaited(call), context=copied(clock=clock))
    task.add_done_callback(end)
    try:
        await ended
    except asyncio.CancelledError:
        task.cancel()
        await let_go([task])
        raise
    finally:
        clock.stop()
    if not task.done():
        abandon(task)
        raise Abandoned
    if expired:
        noticed(task)
        raise TimeoutError
    return task.result()


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


async def let_go(tasks: Collection[asyncio.Task[Any]]) -> int:
    """Wait a moment for cancelled tasks to end, and abandon those that do not; gives how many those were."""
    if not tasks:
        return 0
    _, deaf = await asyncio.wait(tasks, timeout=MOMENT)
    for task in deaf:
        abandon(task)
    return len(deaf)


def abandon(task: asyncio.Task[Any]) -> None:
    """Leave a task behind that swallows its cancellation: its coroutine is closed or, where it resists, ignored."""
    task.add_done_callback(noticed)
    coroutine = task.get_coro()
    try:
        if coroutine is not None:
            coroutine.close()
    except Exception:
        pass  # it ignores even this
    task.cancel()


class Losses:
    """How often the place of each evaluation was lost; it is made again elsewhere, up to MOST times or for an hour."""

    MOST = 10
    LONGEST = 3600.0
    #: Losses within so many seconds are one: a cluster needs a while to see that a node is gone, and offers it again.
    LULL = 5.0

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[float, float, int]] = {}

    def again(self, key: bytes, now: float) -> bool:
        """The place of this evaluation was lost: whether to make it again."""
        first, last, count = self._known.get(key, (now, -math.inf, 0))
        if now - last >= self.LULL:
            last, count = now, count + 1
        self._known[key] = first, last, count
        return count < self.MOST and now - first < self.LONGEST

    def repeated(self, key: bytes) -> bool:
        """Whether it was lost more than once, so that it had better be alone: it may be what takes places down."""
        return bool(self._known) and self._known.get(key, (0, 0, 0))[2] > 1


class Room:
    """How many calls a place takes now: `slots`, until workers are lost; then those that are left, and more with time.

    A lost worker is the place's fault and never a candidate's.  `lost` says whether it is worth waiting any longer:
    it is for `patience` seconds without any worker.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.losses = Losses()
        self._patience = patience
        self.limit = math.inf
        #: When more may be tried again.
        self.until = 0.0
        self._wait = 0.5
        self._grown = True
        self._none_since: float | None = None

    def slots(self, slots: int, now: float) -> int:
        if self.limit == math.inf:
            return slots
        if now >= self.until:
            self.limit = max(1.0, 2 * self.limit)
            self.until, self._grown = now + self._wait, True
            if self.limit >= slots:
                self.limit = math.inf
        return int(min(slots, self.limit))

    def lost(self, running: int, now: float) -> bool:
        """A worker was lost while `running` others work; False when there has been none for too long."""
        self._none_since = None if running else now if self._none_since is None else self._none_since
        self.limit = running
        if self._grown:  # many that are lost at once are one loss
            self._wait = 1.0 if now > self.until + PATIENCE else min(30.0, 2 * self._wait)
            self.until, self._grown = now + self._wait, False
        return self._none_since is None or now - self._none_since < self._patience

    def lives(self) -> None:
        """A call has ended as calls do."""
        self._none_since = None
