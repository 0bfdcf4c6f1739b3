"""Calls on a Ray cluster, or on a Ray of our own: the driver keeps the ledger, and workers only compute."""

from __future__ import annotations

import asyncio
import functools
import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

from fanfold.context import here
from fanfold.errors import ConfigError, ExecutorBroken, MissingExtra, PlaceLost, WorkerDied
from fanfold.executors.base import Caller, Executor, checked_slots, name_of, set_home, slots_of
from fanfold.executors.processes import THREAD_SETTINGS, pickled, value_of
from fanfold.executors.ray_post import RayPost, ask_mailbox
from fanfold.executors.resources import Given, Resources, check, fits, parsed, shown
from fanfold.executors.trips import Reply, Trip, Trips
from fanfold.executors.worker import FUNCTIONS_KEPT, serve_trip
from fanfold.executors.worker_process import import_path, packed_function
from fanfold.sync import noticed

#: Bytes of shared memory of a Ray of our own: it needs little, since values come back to the driver at once.
STORE = 80 * 2**20
#: Seconds in which cancelled calls may end before the executor is closed all the same.
GRACE = 1.0

#: Seconds after which a node whose worker has died must still answer, or the worker was lost with it.
MOMENT = 0.5

#: What Ray raises where a node, or something else that no candidate owns, is gone; not every version has all of them.
_PLACES = (
    *("NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "OutOfDiskError", "RuntimeEnvSetupError"),
    *("TaskUnschedulableError", "ObjectStoreFullError", "RpcError"),
)


class Ray(Executor):
    """Calls as Ray tasks, up to `slots` at once; each takes one CPU, and the `resources` it is given.

    Where Ray was started before (`ray.init`), that is used and left running; else `address` or RAY_ADDRESS says which
    cluster to join ("auto": the one on this machine); else a Ray with as many CPUs as slots is started here and ends
    with the `async with` block.  What workers print goes to Ray's own logs.

    Functions and arguments travel by pickle (what a script or notebook defines, by value), a function once per worker
    and as it was at its first call.  Model calls made there come home to their run, through a mailbox: an actor that
    takes no CPU.  A worker that dies fails its own call with WorkerDied; one that was lost with its
    node raises PlaceLost.  Cancelling a call kills its worker.  Ray itself never repeats a call.  Numerical libraries
    use one thread in each worker.

    Quick calls travel together, as one task of about 50 ms.  Where one of them takes long, the replies so far come home
    through the mailbox, and those that have not begun go elsewhere.
    """

    interruptible = True
    fetches = True
    patience = 3600.0

    def __init__(self, slots: int, address: str | None = None, resources: Given = None) -> None:
        self.slots = checked_slots(slots, "slots")
        self.name = f"ray:{slots}" if address is None else f"ray:{slots}@{address}"
        self.resources = {"cpu": 1.0, **parsed(resources)}
        self._address = address
        self._ray: Any = None
        self._task: Any = None
        self._ours = False
        self._places = slots
        self._functions: dict[int, tuple[Callable[..., Any], Any]] = {}
        self._open: dict[Any, asyncio.Future[Any]] = {}
        #: Nodes that are gone, and when that was seen.
        self._gone: dict[str, float] = {}
        self._post: RayPost | None = None
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
        await asyncio.to_thread(self._leave)

    def remarks(self) -> tuple[str, ...]:
        if self._places >= self.slots:
            return ()
        needs = shown(self.resources)
        return (f"the Ray cluster has room for {self._places} calls with {needs}: {self.slots} could not run at once",)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        self._function(fn)  # what cannot be sent is said at once
        # Outside a run there is no mailbox, so nothing would be heard of calls that wait for a long one.
        kind, reply = await self._trips.run(fn, pickled(args, fn), alone=self._post is None)
        return value_of(kind, reply, fn)

    async def _send(self, trip: Trip) -> Sequence[Reply]:
        """Make the calls of a trip as one task."""
        function, post, sent = self._function(trip.fn), self._post, asyncio.get_running_loop().time()
        number = None if post is None else post.questions.enter([call.context for call in trip.calls], trip.report)
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
            failure = self._failure(error, trip.fn)
            if isinstance(failure, WorkerDied) and (node := await self._lost_node(sent)) is not None:
                failure = _lost(f"the node at {node} does not answer any more")
            raise failure from error
        finally:
            self._open.pop(call, None)
            if post is not None and number is not None:
                post.questions.leave(number)

    @classmethod
    def named(cls, argument: int | str | None, slots: int, resources: Given = None) -> Self:
        """`ray:100`, or with an address `ray:100@auto`."""
        number, at, address = str(argument).partition("@")
        if at and not address:
            raise ConfigError(f"no address after the '@'; write 'ray:{number}', or 'ray:8@auto'")
        return cls(slots if argument is None else slots_of("ray", number), address or None, resources)

    def _connect(self) -> None:
        try:
            ray = importlib.import_module("ray")
        except ImportError as error:
            raise MissingExtra("ray", "ray", f"executor={self.name!r}") from error
        if not ray.is_initialized():
            address = self._address or os.environ.get("RAY_ADDRESS") or "local"
            if address.startswith("ray://"):
                raise ConfigError(
                    f"executor={self.name!r}: Ray Client ({address}) loses every call when its connection breaks; run "
                    "on the cluster instead, with 'ray job submit -- fanfold run ... --executor ray:8@auto'"
                )
            cpus = math.ceil(self.slots * self.resources["cpu"])
            ours: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False}
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anyone unless the user says so
            try:
                ray.init(address, log_to_driver=False, logging_level="ERROR", **(ours if address == "local" else {}))
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise ConfigError(
                    f"executor={self.name!r}: Ray cannot be reached or started at {address!r} ({error}); start a "
                    f"cluster with 'ray start --head', or leave the address away"
                ) from error
            self._ours = True
        self._ray = ray
        known = ray.nodes()
        self._gone = {node["NodeID"]: 0.0 for node in known if not node["Alive"]}
        nodes = [_offered(node) for node in known if node["Alive"]]
        try:
            check(self.resources, nodes, "node of the Ray cluster")
        except ConfigError:
            self._leave()
            raise
        self._places = sum(fits(self.resources, node) for node in nodes)
        # Not retried by Ray: how often a call is made is for `attempt` to say.
        asked: dict[str, Any] = {_OPTIONS[name]: n for name, n in self.resources.items() if name in _OPTIONS}
        asked["resources"] = {name: amount for name, amount in self.resources.items() if name not in _OPTIONS}
        pins = {"env_vars": dict.fromkeys(THREAD_SETTINGS, "1")}
        self._task = ray.remote(max_retries=0, runtime_env=pins, **asked)(_serve)

    def _leave(self) -> None:
        if self._ours:
            self._ours = False
            self._ray.shutdown()

    def _function(self, fn: Callable[..., Any]) -> Any:
        """Where the cluster keeps the function: put there once, fetched once by every worker."""
        if self._ray is None or not self._ray.is_initialized():  # or Ray would quietly start another one
            raise ExecutorBroken(f"{self.name} is not connected to Ray any more; finished work is kept. Start again")
        if self._post is None and here().answer is not None:
            self._post = RayPost(self._ray)
            self._trips.reports = True
            self._functions.clear()  # the mailbox travels with the function
        known = self._functions.get(id(fn))
        if known is not None:
            return known[1]
        data = packed_function(fn, "Ray worker")
        mailbox = None if self._post is None else self._post.mailbox
        where = self._ray.put((data, import_path(), mailbox))
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
            return _lost(f"{type(error).__name__}: {what}")
        if isinstance(error, known.RaySystemError):
            return ExecutorBroken(f"{self.name} is unusable from now on ({error}); finished work is kept. Start again")
        if isinstance(error, known.RayTaskError):
            return RuntimeError(f"a Ray worker could not begin with {name_of(fn)}: {error}")
        if isinstance(error, known.OutOfMemoryError):
            return WorkerDied(f"the Ray worker that ran {name_of(fn)} was killed: its machine ran out of memory")
        return WorkerDied(f"the Ray worker that ran {name_of(fn)} ended before it answered ({reason})")

    async def _lost_node(self, since: float) -> str | None:
        """The address of a node that may be gone with the worker of a call that was sent at `since`.

        Workers may die a moment before their node does.  Ray may need 15 s to see that it is gone, or see it at once.
        """
        await asyncio.sleep(MOMENT)
        nodes = await asyncio.to_thread(self._ray.nodes)
        alive = [node for node in nodes if node["Alive"]]
        answers = await asyncio.gather(*(_answers(node) for node in alive))
        lost = [node for node, answers in zip(alive, answers) if not answers]
        now = asyncio.get_running_loop().time()
        lost += [node for node in nodes if not node["Alive"] and self._gone.setdefault(node["NodeID"], now) >= since]
        return str(lost[0]["NodeManagerAddress"]) if lost else None


#: What Ray calls what a task takes.
_OPTIONS = {"cpu": "num_cpus", "gpu": "num_gpus", "memory": "memory"}


def _offered(node: Mapping[str, Any]) -> Resources:
    """What a node has, in our words."""
    names = {"CPU": "cpu", "GPU": "gpu"}
    return {names.get(name, name): amount for name, amount in node["Resources"].items()}


async def _answers(node: Mapping[str, Any]) -> bool:
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(node["NodeManagerAddress"], node["NodeManagerPort"])
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _lost(reason: str) -> PlaceLost:
    return PlaceLost(f"a Ray worker was lost with its place ({reason}): see `ray list nodes`")


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

    def begin(index: int) -> None:
        set_home(None if trip is None else functools.partial(ask_mailbox, mailbox, trip + index))

    tell = None if trip is None else functools.partial(mailbox.tell.remote, trip)
    return serve_trip(_CALLER, _FUNCTIONS, number, bodies, begin, tell, timed)
