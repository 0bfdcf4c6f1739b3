"""Calls on a Ray cluster, or on a Ray of our own: the driver keeps the ledger, and workers only compute."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import itertools
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from fanfold.context import here
from fanfold.errors import ConfigError, ExecutorBroken, MissingExtra, PlaceLost, WorkerDied
from fanfold.executors.base import Caller, Executor, checked_slots, name_of, set_home
from fanfold.executors.processes import THREAD_SETTINGS, answered, packed, pickled, value_of
from fanfold.executors.worker import FUNCTIONS_KEPT, answer, dumps, settle
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
    """

    interruptible = True

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

    async def __aenter__(self) -> Self:
        # In a thread, because it takes seconds; and because Ray then leaves this process's signals alone.
        await asyncio.to_thread(self._connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting = list(self._open.values())
        for call in list(self._open):
            self._cancel(call)
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE)
        self._functions.clear()
        if self._post is not None:
            await self._post.close()
            self._post = None
        if self._ours:
            self._ours = False
            await asyncio.to_thread(self._ray.shutdown)

    def remarks(self) -> tuple[str, ...]:
        if self._cpus >= self.slots:
            return ()
        return (f"the Ray cluster has {self._cpus} CPUs, so at most that many of {self.slots} calls ran at once",)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self._ray is None or not self._ray.is_initialized():  # or Ray would quietly start another one
            raise ExecutorBroken(f"{self.name} is not connected to Ray any more; finished work is kept. Start again")
        function = self._function(fn)
        if self._post is None and here().answer is not None:
            self._post = _Post(self._ray)
        box = None if self._post is None else self._post.enter()
        call = self._task.remote([function], pickled(args, fn), box)
        answer = self._open[call] = asyncio.wrap_future(call.future())
        try:
            kind, reply = await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._cancel(call)
            answer.add_done_callback(noticed)
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ExecutorBroken(f"{self.name} withdrew a call of {name_of(fn)}; finished work is kept") from None
        except Exception as error:
            raise self._failure(error, fn) from error
        finally:
            self._open.pop(call, None)
            if self._post is not None and box is not None:
                self._post.leave(box[1])
        return value_of(kind, reply, fn)

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
        where = self._ray.put((data, [entry for entry in sys.path if isinstance(entry, str)]))
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
        self._ray = ray
        self._mailbox = ray.remote(num_cpus=0, max_concurrency=100_000)(_Mailbox).remote()
        self._numbers = itertools.count()
        self._contexts: dict[int, contextvars.Context] = {}
        self._asked: dict[int, set[asyncio.Task[None]]] = {}
        self._collecting = asyncio.create_task(self._collect(), context=contextvars.Context())

    def enter(self) -> tuple[Any, int]:
        """What a call needs to ask its run: the mailbox, and a number for the evaluation it belongs to."""
        number = next(self._numbers)
        self._contexts[number] = contextvars.copy_context()
        return self._mailbox, number

    def leave(self, number: int) -> None:
        """Nobody waits for replies to this evaluation any more."""
        self._contexts.pop(number, None)
        for task in self._asked.pop(number, ()):
            task.cancel()

    async def close(self) -> None:
        self._collecting.cancel()
        await asyncio.wait([self._collecting])
        try:
            self._ray.kill(self._mailbox)
        except Exception:
            pass  # Ray is gone, and the mailbox with it

    async def _collect(self) -> None:
        while True:
            try:
                letters = await asyncio.wrap_future(self._mailbox.take.remote().future())
            except self._ray.exceptions.RayError:
                return  # workers that ask are told by Ray that the mailbox is gone
            for letter, number, request in letters:
                context = self._contexts.get(number)
                if context is not None:
                    task = asyncio.create_task(self._answer(letter, request), context=context.copy())
                    tasks = self._asked.setdefault(number, set())
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

    async def _answer(self, letter: int, request: bytes) -> None:
        self._mailbox.reply.remote(letter, await answered(request))


class _Mailbox:
    """Where workers leave what they ask of their run, and wait for the reply.  An actor, so it needs no locks."""

    def __init__(self) -> None:
        self._letters: asyncio.Queue[tuple[int, int, bytes]] = asyncio.Queue()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, evaluation: int, request: bytes) -> bytes:
        letter = next(self._numbers)
        reply = self._waiting[letter] = asyncio.get_running_loop().create_future()
        self._letters.put_nowait((letter, evaluation, request))
        return cast(bytes, await reply)

    async def take(self) -> list[tuple[int, int, bytes]]:
        letters = [await self._letters.get()]
        while not self._letters.empty():
            letters.append(self._letters.get_nowait())
        return letters

    async def reply(self, letter: int, body: bytes) -> None:
        waiting = self._waiting.pop(letter, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(body)


# ---------------------------------------------------------------- in a worker

_FUNCTIONS: dict[int, Any] = {}
_NUMBERS: dict[bytes, int] = {}
_CALLER = Caller()


def _serve(function: list[Any], body: bytes, box: tuple[Any, int] | None) -> tuple[bytes, bytes]:
    """Make one call.  The function comes as a reference in a list, so that it is fetched by its first call only."""
    (where,) = function
    known = where.binary()
    number = _NUMBERS.get(known)
    if number is None:
        import ray

        data, path = ray.get(where)
        sys.path.extend(entry for entry in path if entry not in sys.path)
        number = _NUMBERS[known] = max(_FUNCTIONS, default=0) + 1
        _FUNCTIONS[number] = data
        if len(_FUNCTIONS) > FUNCTIONS_KEPT:
            oldest = next(iter(_NUMBERS))
            del _FUNCTIONS[_NUMBERS.pop(oldest)]
    set_home(None if box is None else functools.partial(_ask, *box))
    return answer(_CALLER, _FUNCTIONS, number, body)


def _ask(mailbox: Any, evaluation: int, request: Any) -> concurrent.futures.Future[Any]:
    """Ask the run through the mailbox; the reply comes in the future."""
    from concurrent.futures import Future

    reply: Future[Any] = Future()

    def arrived(letter: Future[bytes]) -> None:
        if (error := letter.exception()) is not None:
            reply.set_exception(error)
        else:
            settle(reply, letter.result())

    mailbox.ask.remote(evaluation, dumps(request)).future().add_done_callback(arrived)
    return reply
