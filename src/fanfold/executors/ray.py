"""Calls on a Ray cluster, or on a Ray of our own: the driver keeps the ledger, and workers only compute."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from fanfold.context import here
from fanfold.errors import ConfigError, ExecutorBroken, MissingExtra, PlaceLost, WorkerDied
from fanfold.executors.base import Caller, Executor, checked_slots, name_of, set_home
from fanfold.executors.pace import LATE
from fanfold.executors.parcels import Fetch
from fanfold.executors.processes import THREAD_SETTINGS, answered, packed, pickled, value_of
from fanfold.executors.trips import Reply, Trip, TripCall, Trips
from fanfold.executors.worker import FUNCTIONS_KEPT, Serving, dumps, load, loads, settle
from fanfold.sync import noticed

if TYPE_CHECKING:
    import concurrent.futures

#: Bytes of shared memory of a Ray of our own: it needs little, since values come back to the driver at once.
STORE = 80 * 2**20
#: Seconds in which cancelled calls may end before the executor is closed all the same.
GRACE = 1.0

#: What Ray raises where a node, or something else that no candidate owns, is gone; not every version has all of them.
_PLACES = (
    *("NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "OutOfDiskError", "RuntimeEnvSetupError"),
    *("TaskUnschedulableError", "ObjectStoreFullError", "RpcError"),
)


class Ray(Executor):
    """Calls as Ray tasks of one CPU each, up to `slots` at once.

    Where Ray was started before (`ray.init`), that is used and left running; else `address` or RAY_ADDRESS says which
    cluster to join ("auto": the one on this machine); else a Ray with as many CPUs as slots is started here and ends
    with the `async with` block.  What workers print goes to Ray's own logs.

    Functions and arguments travel by pickle (what a script or notebook defines, by value), a function once per worker
    and as it was at its first call.  Model calls made there come home to their run, through a mailbox: an actor that
    takes no CPU.  A worker that dies fails its own call with WorkerDied; cancelling a call kills its
    worker.  Ray itself never repeats a call.  Numerical libraries use one thread in each worker.

    Quick calls travel together, as one task of about 50 ms.  Where one of them takes long, the replies so far come home
    through the mailbox, and those that have not begun go elsewhere.
    """

    interruptible = True
    fetches = True

    def __init__(self, slots: int, address: str | None = None) -> None:
        self.slots = checked_slots(slots, "slots")
        self.name = f"ray:{slots}" if address is None else f"ray:{slots}@{address}"
        self._address = address
        self._ray: Any = None
        self._task: Any = None
        self._ours = False
        self._cpus = slots
        self._functions: dict[int, tuple[Callable[..., Any], Any]] = {}
        self._open: dict[Any, asyncio.Future[Any]] = {}
        self._post: _Post | None = None
        self._trips = Trips(self.slots, self._send)

    @property
    def depth(self) -> int:
        return self._trips.depth

    async def __aenter__(self) -> Self:
        # In a thread, because it takes seconds; and because Ray then leaves this process's signals alone.
        await asyncio.to_thread(self._connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting = list(self._open.values())
        await self._trips.close()
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE)
        self._functions.clear()
        if self._post is not None:
            await self._post.close()
            self._post, self._trips.reports = None, False
        if self._ours:
            self._ours = False
            await asyncio.to_thread(self._ray.shutdown)

    def remarks(self) -> tuple[str, ...]:
        if self._cpus >= self.slots:
            return ()
        return (f"the Ray cluster has {self._cpus} CPUs, so at most that many of {self.slots} calls ran at once",)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        self._function(fn)  # what cannot be sent is said at once
        # Outside a run there is no mailbox, so nothing would be heard of calls that wait for a long one.
        kind, reply = await self._trips.run(fn, pickled(args, fn), alone=self._post is None)
        return value_of(kind, reply, fn)

    async def _send(self, trip: Trip) -> Sequence[Reply]:
        """Make the calls of a trip as one task."""
        function, post = self._function(trip.fn), self._post
        number = None if post is None else post.enter(trip)
        call = self._task.remote([function], [call.args for call in trip.calls], number, trip.timed)
        answer = self._open[call] = asyncio.wrap_future(call.future())
        try:
            return cast("Sequence[Reply]", await asyncio.shield(answer))
        except asyncio.CancelledError:
            self._cancel(call)
            answer.add_done_callback(noticed)
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ExecutorBroken(f"{self.name} withdrew a call of {name_of(trip.fn)}; finished work is kept") from None
        except Exception as error:
            raise self._failure(error, trip.fn) from error
        finally:
            self._open.pop(call, None)
            if post is not None and number is not None:
                post.leave(number)

    def _connect(self) -> None:
        try:
            ray = importlib.import_module("ray")
        except ImportError as error:
            raise MissingExtra("ray", "ray", f"executor={self.name!r}") from error
        if not ray.is_initialized():
            address = self._address or os.environ.get("RAY_ADDRESS") or "local"
            ours: dict[str, Any] = {"num_cpus": self.slots, "object_store_memory": STORE, "include_dashboard": False}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone unless the user says so
            try:
                ray.init(address, log_to_driver=False, logging_level="ERROR", **(ours if address == "local" else {}))
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise ConfigError(
                    f"executor={self.name!r}: Ray cannot be reached or started at {address!r} ({error}); start a "
                    f"cluster with 'ray start --head', or leave the address away"
                ) from error
            self._ours = True
        self._ray, self._cpus = ray, int(ray.cluster_resources().get("CPU", 0))
        pins = {"env_vars": dict.fromkeys(THREAD_SETTINGS, "1")}
        # Not retried by Ray: how often a call is made is for `attempt` to say.
        self._task = ray.remote(num_cpus=1, max_retries=0, runtime_env=pins)(_serve)

    def _function(self, fn: Callable[..., Any]) -> Any:
        """Where the cluster keeps the function: put there once, fetched once by every worker."""
        if self._ray is None or not self._ray.is_initialized():  # or Ray would quietly start another one
            raise ExecutorBroken(f"{self.name} is not connected to Ray any more; finished work is kept. Start again")
        if self._post is None and here().answer is not None:
            self._post = _Post(self._ray)
            self._trips.reports = True
            self._functions.clear()  # the mailbox travels with the function
        known = self._functions.get(id(fn))
        if known is not None:
            return known[1]
        try:
            data = packed(fn)
        except Exception as error:
            raise ConfigError(
                f"{name_of(fn)} cannot be sent to a Ray worker ({error}): keep locks, files and connections out of "
                f"what it refers to, or run it on threads"
            ) from error
        mailbox = None if self._post is None else self._post.mailbox
        where = self._ray.put((data, [entry for entry in sys.path if isinstance(entry, str)], mailbox))
        self._functions[id(fn)] = (fn, where)  # holding on to fn keeps its id from being given to another function
        if len(self._functions) > FUNCTIONS_KEPT:
            del self._functions[next(iter(self._functions))]
        return where

    def _cancel(self, call: Any) -> None:
        try:
            self._ray.cancel(call, force=True)
        except Exception:
            pass  # done in the meantime, or Ray is gone; either way nobody works on it any more

    def _failure(self, error: Exception, fn: Callable[..., Any]) -> Exception:
        known = self._ray.exceptions
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, tuple(getattr(known, name) for name in _PLACES if hasattr(known, name))):
            what = reason.partition(". ")[0][:200]
            return PlaceLost(
                f"a Ray worker was lost with its place ({type(error).__name__}: {what}): see `ray list nodes`"
            )
        if isinstance(error, known.RaySystemError):
            return ExecutorBroken(f"{self.name} is unusable from now on ({error}); finished work is kept. Start again")
        if isinstance(error, known.RayTaskError):
            return RuntimeError(f"a Ray worker could not begin with {name_of(fn)}: {error}")
        if isinstance(error, known.OutOfMemoryError):
            return WorkerDied(f"the Ray worker that ran {name_of(fn)} was killed: its machine ran out of memory")
        return WorkerDied(f"the Ray worker that ran {name_of(fn)} ended before it answered ({reason})")


class _Post:
    """The driver's side of the mailbox: takes what workers ask, and sends the replies."""

    def __init__(self, ray: Any) -> None:
        self.mailbox = ray.remote(num_cpus=0, max_concurrency=100_000)(_Mailbox).remote()
        self._ray = ray
        self._count = 0
        self._trips: dict[int, Trip] = {}
        self._calls: dict[int, TripCall] = {}
        self._asked: dict[int, set[asyncio.Task[None]]] = {}
        #: Large data that workers have fetched, by name: put once.
        self._put: dict[str, Any] = {}
        self._collecting = asyncio.create_task(self._collect(), context=contextvars.Context())

    def enter(self, trip: Trip) -> int:
        """The number of the first call of a trip, under which workers ask its run; the others follow."""
        first = self._count
        for call in trip.calls:
            self._calls[self._count] = call
            self._count += 1
        self._trips[first] = trip
        return first

    def leave(self, first: int) -> None:
        """Nobody waits for replies to this trip any more."""
        for number in range(first, first + len(self._trips.pop(first).calls)):
            del self._calls[number]
            for task in self._asked.pop(number, ()):
                task.cancel()

    async def close(self) -> None:
        self._collecting.cancel()
        await asyncio.wait([self._collecting])
        try:
            self._ray.kill(self.mailbox)
        except Exception:
            pass  # Ray is gone, and the mailbox with it

    async def _collect(self) -> None:
        while True:
            try:
                letters = await asyncio.wrap_future(self.mailbox.take.remote().future())
            except self._ray.exceptions.RayError:
                return  # workers that ask are told by Ray that the mailbox is gone
            for letter, number, request in letters:
                if letter is None and number in self._trips:
                    self._trips[number].report(*loads(request))
                elif (call := self._calls.get(number)) is not None and letter is not None:
                    task = asyncio.create_task(self._answer(letter, request), context=call.context.copy())
                    tasks = self._asked.setdefault(number, set())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

    async def _answer(self, letter: int, request: bytes) -> None:
        asked = loads(request)
        if not isinstance(asked, Fetch):
            self.mailbox.reply.remote(letter, await answered(request))
            return
        if asked.name not in self._put:
            self._put[asked.name] = self._ray.put(await answered(request))
        self.mailbox.reply.remote(letter, [self._put[asked.name]])  # in a list it stays a reference


class _Mailbox:
    """Where workers leave what they ask of their run, and wait for the reply.  An actor, so it needs no locks."""

    def __init__(self) -> None:
        self._letters: asyncio.Queue[tuple[int | None, int, bytes]] = asyncio.Queue()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, call: int, request: bytes) -> Any:
        letter = next(self._numbers)
        reply = self._waiting[letter] = asyncio.get_running_loop().create_future()
        self._letters.put_nowait((letter, call, request))
        return await reply

    async def tell(self, trip: int, report: bytes) -> None:
        self._letters.put_nowait((None, trip, report))

    async def take(self) -> list[tuple[int | None, int, bytes]]:
        letters = [await self._letters.get()]
        while not self._letters.empty():
            letters.append(self._letters.get_nowait())
        return letters

    async def reply(self, letter: int, body: Any) -> None:
        waiting = self._waiting.pop(letter, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(body)


# ---------------------------------------------------------------- in a worker

_FUNCTIONS: dict[int, Any] = {}
_KNOWN: dict[bytes, tuple[int, Any]] = {}
_CALLER = Caller()


def _serve(function: list[Any], bodies: list[bytes], trip: int | None, timed: bool) -> list[Reply]:
    """Make the calls of a trip.  The function comes as a reference in a list, so that its first call fetches it."""
    (where,) = function
    known = _KNOWN.get(where.binary())
    if known is None:
        import ray

        data, path, mailbox = ray.get(where)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        known = _KNOWN[where.binary()] = max(_FUNCTIONS, default=0) + 1, mailbox
        _FUNCTIONS[known[0]] = data
        if len(_FUNCTIONS) > FUNCTIONS_KEPT:
            oldest = next(iter(_KNOWN))
            del _FUNCTIONS[_KNOWN.pop(oldest)[0]]
    number, mailbox = known
    serving = Serving(bodies)

    def begin(index: int) -> None:
        set_home(None if trip is None else functools.partial(_ask, mailbox, trip + index))

    def late() -> None:
        report = serving.give_back()
        if trip is not None:
            mailbox.tell.remote(trip, dumps(report))

    begin(0)
    load(_FUNCTIONS, number)
    if timed and trip is not None:
        mailbox.tell.remote(trip, dumps(([], len(bodies))))
    timer = threading.Timer(LATE, late) if len(bodies) > 1 else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        return serving.run(_CALLER, _FUNCTIONS, number, begin)
    finally:
        if timer is not None:
            timer.cancel()


def _ask(mailbox: Any, call: int, request: Any) -> concurrent.futures.Future[Any]:
    """Ask the run through the mailbox; the reply comes in the future."""
    from concurrent.futures import Future

    reply: Future[Any] = Future()

    def arrived(letter: Future[Any]) -> None:
        if (error := letter.exception()) is not None:
            reply.set_exception(error)
            return
        body = letter.result()
        if isinstance(body, list):  # where large data is
            import ray

            body = ray.get(body[0])
        settle(reply, body)

    mailbox.ask.remote(call, dumps(request)).future().add_done_callback(arrived)
    return reply
