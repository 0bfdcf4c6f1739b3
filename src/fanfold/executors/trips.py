"""Calls that travel together to far workers: gathered into trips, sent, and answered one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fanfold.errors import ExecutorBroken, WorkerDied
from fanfold.executors.base import name_of
from fanfold.executors.far_call import FarCall
from fanfold.executors.far_call import Reply as Reply
from fanfold.executors.pace import CallPace

#: Seconds after which calls with time limits that travelled together, and of which nothing is known, go one by one.
SPLIT = 5.0
#: Functions whose pace is remembered.
PACES_KEPT = 64


class TripCall(FarCall):
    """A call of a function with pickled arguments; `alone`: it travels without others; `suspect`: its worker died."""

    __slots__ = ("alone", "args", "fn", "suspect", "trip")

    def __init__(self, fn: Callable[..., Any], args: bytes, alone: bool) -> None:
        super().__init__()
        self.fn = fn
        self.args = args
        self.alone = alone
        self.suspect = False
        self.trip: Trip | None = None


class Trip:
    """Calls of one function, made one after another by one worker."""

    def __init__(
        self, calls: Sequence[TripCall], requeue: Callable[[Sequence[TripCall]], None], pace: CallPace
    ) -> None:
        self.calls = calls
        self.fn = calls[0].fn
        #: Whether a time limit counts from when the worker says that it begins.
        self.timed = any(call.clock is not None for call in calls)
        self.task: asyncio.Task[None] | None = None
        self.given_up = False
        self._requeue = requeue
        self._pace = pace

    @property
    def open(self) -> list[TripCall]:
        """The calls that somebody still waits for here."""
        return [call for call in self.calls if call.trip is self and not call.answer.done()]

    def report(self, replies: Sequence[Reply], begun: int) -> None:
        """What a worker says: the replies to the first calls, and how many may have begun; the others go elsewhere."""
        for call, reply in zip(self.calls, replies, strict=False):
            if call.trip is self:
                call.reply(reply, self._pace)
        self._requeue([call for call in self.calls[begun:] if call.trip is self and not call.answer.done()])
        if len(running := self.open) == 1:
            running[0].begin()
        elif self.timed and running:
            asyncio.get_running_loop().call_later(SPLIT, self._split)

    def _split(self) -> None:
        """The worker has fallen silent with several calls that have time limits: they go one by one."""
        if len(self.open) > 1 and self.task is not None:
            self.given_up = True
            self.task.cancel()


class Trips:
    """Gathers the calls of an executor into trips of about 50 ms of work, two for each of its slots.

    `send(trip)` makes a trip: it gives the replies to its first calls, all of those that have begun, or raises.  Where
    workers report, it also tells `trip.report` when they begin and when they are late; where they do not, calls with
    time limits travel alone.  A worker that dies with several calls is nobody's fault yet: they are made one by one.
    With `lines`, a worker may have several trips in line and takes all of them with it: each call whose worker died is
    a suspect, and made again while no other suspect is under way.  Cancelling the last call that somebody waits for
    cancels the trip.
    """

    def __init__(self, slots: int, send: Callable[[Trip], Awaitable[Sequence[Reply]]], lines: bool = False) -> None:
        self.slots = slots
        self.reports = False
        self._send = send
        self._lines = lines
        self._queue: deque[TripCall] = deque()
        self._suspects: deque[TripCall] = deque()
        self._under_way: set[Trip] = set()
        #: By the function's id; the function is kept, so that no other is given its id.
        self._paces: dict[int, tuple[Any, CallPace]] = {}
        self._pace = CallPace()
        self._soon = False

    @property
    def depth(self) -> int:
        return self.slots if self._pace.line == 1 else 2 * self.slots * self._pace.together

    async def run(self, fn: Callable[..., Any], args: bytes, *, alone: bool = False) -> tuple[bytes, bytes]:
        """The reply to a call of `fn` with pickled arguments; `alone`: it travels without others."""
        self._pace = self._pace_of(fn)
        call = TripCall(fn, args, alone)
        self._queue.append(call)
        self._hand_out_soon()
        try:
            return await call.answer
        except asyncio.CancelledError:
            if call.trip is not None and not call.trip.open and call.trip.task is not None:
                call.trip.task.cancel()
            raise

    async def close(self) -> None:
        """End what is under way; what nobody has answered fails."""
        calls, self._soon = [*self._suspects, *self._queue], False
        self._suspects.clear()
        self._queue.clear()
        for call in calls:
            call.fail(WorkerDied(f"the executor was closed before {name_of(call.fn)} began"))
        tasks = [trip.task for trip in self._under_way if trip.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _pace_of(self, fn: Callable[..., Any]) -> CallPace:
        known = self._paces.get(id(fn))
        if known is None:
            known = self._paces[id(fn)] = (fn, CallPace())
            if len(self._paces) > PACES_KEPT:
                del self._paces[next(iter(self._paces))]
        return known[1]

    def _hand_out_soon(self) -> None:
        """Hand out in a moment: what is called until then travels together."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._soon = False
        while calls := self._next():
            trip = Trip(calls, self._requeue, self._pace_of(calls[0].fn))
            for call in calls:
                call.trip = trip
            if not self.reports:
                calls[0].begin()
            self._under_way.add(trip)
            trip.task = asyncio.create_task(self._travel(trip), context=calls[0].context.copy())

    def _next(self) -> list[TripCall]:
        """The calls of the next trip: a fair share of the queue, of one function."""
        calls = list[TripCall]()
        for queue in (self._suspects, self._queue):
            while queue and queue[0].answer.done():
                queue.popleft()
        queue = self._queue
        if self._suspects and not any(trip.calls[0].suspect for trip in self._under_way):
            queue = self._suspects
        if not queue:
            return calls
        first, pace = queue[0], self._pace_of(queue[0].fn)
        unknown = first.clock is not None and not self.reports
        if (free := self.slots * (1 if unknown else min(2, pace.line)) - len(self._under_way)) < 1:
            return calls
        most = 1 if unknown or first.alone else min(pace.together, -(-len(queue) // free))
        while queue and len(calls) < most and queue[0].fn is first.fn and queue[0].alone == first.alone:
            call = queue.popleft()
            if not call.answer.done():
                calls.append(call)
        return calls

    async def _travel(self, trip: Trip) -> None:
        try:
            replies = await self._send(trip)
            trip.report(replies, len(replies))
        except asyncio.CancelledError:
            if trip.given_up:
                self._one_by_one(trip)
            for call in trip.open:
                call.fail(WorkerDied(f"the executor was closed before {name_of(call.fn)} answered"))
        except ExecutorBroken as error:
            for call in trip.open:
                call.fail(error)
        except Exception as error:
            if self._lines and isinstance(error, WorkerDied) and not trip.calls[0].suspect:
                self._suspect(trip)
            elif len(calls := trip.open) == 1:
                calls[0].fail(error)
            self._one_by_one(trip)
        finally:
            self._under_way.discard(trip)
            if self._queue or self._suspects:
                self._hand_out_soon()

    def _suspect(self, trip: Trip) -> None:
        for call in trip.open:
            call.trip, call.alone, call.suspect = None, True, True
            call.wait()
            self._suspects.append(call)

    def _one_by_one(self, trip: Trip) -> None:
        calls = trip.open
        for call in calls:
            call.alone = True
        self._requeue(calls)

    def _requeue(self, calls: Sequence[TripCall]) -> None:
        for call in reversed(calls):
            call.trip = None
            self._queue.appendleft(call)
        if calls:
            self._hand_out_soon()
