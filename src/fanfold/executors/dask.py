"""Calls on a Dask cluster, or on one of our own: the driver keeps the ledger, and workers only compute."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

from fanfold.errors import ConfigError, ExecutorBroken, MissingExtra, PlaceLost, WorkerDied
from fanfold.executors.base import Caller, Executor, name_of, no_way_home, set_home
from fanfold.executors.door import Door, FarWork, Way, connected, hosts_of_driver
from fanfold.executors.far_call import Reply
from fanfold.executors.processes import pickled, value_of
from fanfold.executors.resources import Given, check, fits, parsed
from fanfold.executors.trips import Trip, Trips
from fanfold.executors.worker import FUNCTIONS_KEPT, serve_trip
from fanfold.executors.worker_process import import_path, packed_function
from fanfold.sync import noticed

#: Seconds between two looks at how large the cluster is.
LOOK = 2.0
#: Seconds in which a cluster must answer.
PATIENCE = 20.0


class Dask(Executor):
    """Calls as Dask tasks, as many at once as the cluster has threads now; `slots` follows the cluster.

    `address` is that of a scheduler (tcp://host:8786), the file that it wrote (scheduler.json), or a number: so many
    worker processes of one thread, started here and ended with the `async with` block.

    Functions travel by pickle, once to each worker, also to those that join later; quick calls travel together.  Model
    calls made in a worker come home to their run, over a socket of the driver; where workers cannot reach that, they
    are refused.  A worker that dies is Dask's to replace: it repeats the call elsewhere, and what kills worker after
    worker fails with WorkerDied.  Cancelling withdraws a call that waits, and restarts the worker of one that runs if
    nothing else runs there.
    """

    patience = 3600.0

    def __init__(self, address: str | int, resources: Given = None, security: Any = None) -> None:
        self.name = f"dask:{address}"
        self.resources = parsed(resources)
        self.slots = address if isinstance(address, int) else 1
        self._address, self._security = address, security
        self._client: Any = None
        self._cluster: Any = None
        self._door: Door | None = None
        self._functions: dict[int, tuple[Callable[..., Any], asyncio.Task[str]]] = {}
        self._open: set[Any] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._trips = Trips(self.slots, self._send, lines=True)

    @classmethod
    def named(cls, argument: int | str | None, slots: int, resources: Given = None) -> Self:
        """`dask:tcp://host:8786`, `dask:scheduler.json`, `dask:8`."""
        if argument in ("", 0):
            raise ConfigError("give the address of a scheduler, its file, or a number of workers to start: 'dask:8'")
        return cls(slots if argument is None else argument, resources)

    async def __aenter__(self) -> Self:
        try:
            distributed = importlib.import_module("distributed")
        except ImportError as error:
            raise MissingExtra("distributed", "dask", f"executor={self.name!r}") from error
        try:
            await self._connect(distributed)
            await self._check()
        except BaseException:
            await self._leave()
            raise
        self._background(self._look())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._withdraw(list(self._open))
        await self._trips.close()
        if self._cluster is None and self._client is not None:  # nothing of ours stays with a cluster of others
            forgotten = [asyncio.create_task(self._forget(*known)) for known in self._functions.values()]
            if forgotten:
                await asyncio.wait(forgotten, timeout=2.0)
        for task in self._tasks:
            task.cancel()
        await self._leave()

    @property
    def depth(self) -> int:
        return self._trips.depth

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self._client is None or self._client.status != "running":
            raise ExecutorBroken(f"{self.name} is not connected to its scheduler; finished work is kept. Start again")
        body = pickled(args, fn)
        await self._function(fn)  # what cannot be sent is said at once
        # Where workers have no way home, nothing would be heard of calls that wait for a long one.
        kind, reply = await self._trips.run(fn, body, alone=not self._trips.reports)
        return value_of(kind, reply, fn)

    async def _send(self, trip: Trip) -> Sequence[Reply]:
        """Make the calls of a trip as one task."""
        function, door, home = await self._function(trip.fn), self._door, None
        if self._trips.reports and door is not None:
            home = door.way, door.questions.enter([call.context for call in trip.calls], trip.report)
        future = self._client.submit(
            *(_serve, function, [call.args for call in trip.calls], home, self.name, trip.timed),
            key=f"{name_of(trip.fn)}-{uuid.uuid4().hex}",
            pure=False,
            resources={_NAMES.get(name, name): amount for name, amount in self.resources.items()} or None,
        )
        self._open.add(future)
        try:
            return cast("Sequence[Reply]", await future)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._background(self._withdraw([future]))
                raise
            raise ExecutorBroken(f"{self.name} gave up a call ({error}); finished work is kept. Start again") from None
        except Exception as error:
            raise self._failure(error, trip.fn) from error
        finally:
            self._open.discard(future)
            if door is not None and home is not None:
                door.questions.leave(home[1])

    # -- the cluster -------------------------------------------------------------------------------------------------

    async def _connect(self, distributed: Any) -> None:
        address: Any = self._address
        options: dict[str, Any] = {"asynchronous": True, "set_as_default": False, "timeout": PATIENCE}
        if self._security is not None:
            options["security"] = self._security
        try:
            if isinstance(address, int):
                address = self._cluster = await _started(address)
            elif address.endswith(".json"):
                address, options["scheduler_file"] = None, address
            with warnings.catch_warnings():  # other versions are judged in `_check`
                warnings.simplefilter("ignore")
                async with asyncio.timeout(2 * PATIENCE):  # it would wait forever for a file
                    self._client = distributed.Client(address, **options)
                    await self._client
        except (OSError, TimeoutError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"executor={self.name!r}: no Dask scheduler answers there ({error}); start one with 'dask scheduler' "
                "and workers with 'dask worker ADDRESS', or write 'dask:8' to have them started here"
            ) from error

    async def _check(self) -> None:
        """Refuse a cluster whose workers could not load what is sent to them, or have not what is asked."""
        try:
            answers = await self._client.run(_versions, on_error="return")
        except Exception as error:
            answers = {"there": error}
        ours = _versions()
        for worker, theirs in answers.items():
            if isinstance(theirs, Exception):
                raise ConfigError(
                    f"executor={self.name!r}: the worker {worker} cannot be used ({type(theirs).__name__}: {theirs}); "
                    "install fanfold there, in the version of the driver"
                )
            if different := [name for name in ours if ours[name] != theirs.get(name)]:
                pairs = ", ".join(f"{name} {theirs.get(name)} there and {ours[name]} here" for name in different)
                raise ConfigError(f"executor={self.name!r}: the worker {worker} has other versions: {pairs}")
        self._door = Door(hosts_of_driver(urlsplit(self._client.scheduler.address).hostname))
        reached = await self._client.run(_reaches, self._door.way)
        self.fetches = self._trips.reports = all(reached.values())
        await self._measure()
        if self.resources:
            check(self.resources, [_offered(worker) for worker in await self._workers()], "worker of the Dask cluster")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._measure()
            except Exception:
                pass  # the connection is down for now: calls say so

    async def _measure(self) -> None:
        if self.resources:
            workers = await self._workers()
            room = sum(min(worker["nthreads"], fits(self.resources, _offered(worker))) for worker in workers)
        else:
            room = sum((await self._client.nthreads()).values())
        self.slots = self._trips.slots = max(1, room)

    async def _workers(self) -> Sequence[Mapping[str, Any]]:
        """What the scheduler knows of its workers."""
        return list((await self._client.scheduler.identity(n_workers=-1))["workers"].values())

    async def _leave(self) -> None:
        client, cluster, door = self._client, self._cluster, self._door
        self._client = self._cluster = self._door = None
        self._functions.clear()
        if door is not None:
            await door.close()
        for part in (client, cluster):
            if part is not None:
                try:
                    async with asyncio.timeout(5.0):
                        await part.close()
                except Exception:
                    pass  # gone already

    # -- calls -------------------------------------------------------------------------------------------------------

    async def _function(self, fn: Callable[..., Any]) -> str:
        """The name of a function on every worker, those that join later included."""
        known = self._functions.get(id(fn))
        if known is None:
            data = packed_function(fn, "Dask worker")
            known = self._functions[id(fn)] = fn, asyncio.create_task(self._install(data))
            if len(self._functions) > FUNCTIONS_KEPT:
                self._background(self._forget(*self._functions.pop(next(iter(self._functions)))))
        return await asyncio.shield(known[1])

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(noticed)

    async def _install(self, data: bytes) -> str:
        name = f"fanfold-{uuid.uuid4().hex}"
        await self._client.register_plugin(_plugin(name, data, import_path()))
        return name

    async def _forget(self, fn: Callable[..., Any], name: asyncio.Task[str]) -> None:
        try:
            await self._client.unregister_worker_plugin(await name)
        except Exception:
            pass  # the cluster is gone, or never had it

    async def _withdraw(self, futures: list[Any]) -> None:
        """Cancel calls; workers that run nothing but one of them are restarted."""
        client = self._client
        if not futures or client is None:
            return
        try:
            async with asyncio.timeout(4.0):
                keys = {future.key for future in futures}
                stuck = {worker for worker, busy in (await client.processing()).items() if keys & set(busy)}
                threads = await client.nthreads()
                await client.cancel(futures, force=True)
                # It comes later than what is asked directly: a worker restarted before would pass its call to another.
                while any(keys & set(busy) for busy in (await client.processing()).values()):
                    await asyncio.sleep(0.01)
                held = await client.has_what()  # results of others stay where they are
                alone = [worker for worker in stuck if threads.get(worker) == 1 and not held.get(worker)]
                if alone:
                    await client.restart_workers(alone, raise_for_error=False, timeout=1.5)
        except Exception:
            pass  # without a nanny nobody can stop it: it runs to its end for nobody

    def _failure(self, error: Exception, fn: Callable[..., Any]) -> Exception:
        kind = type(error).__name__
        if kind == "KilledWorker":
            return WorkerDied(f"the Dask workers that ran {name_of(fn)} ended before they answered ({error})")
        if kind == "NoValidWorkerError" or isinstance(error, OSError):
            return PlaceLost(f"a Dask worker was lost with its place ({kind}: {str(error)[:200]})")
        return RuntimeError(f"a Dask worker could not begin with {name_of(fn)} ({kind}: {error})")


#: What Dask's documentation calls what workers usually have.
_NAMES = {"gpu": "GPU", "cpu": "CPU", "memory": "MEMORY"}


def _offered(worker: Mapping[str, Any]) -> dict[str, float]:
    ours = {theirs: name for name, theirs in _NAMES.items()}
    return {ours.get(name, name): amount for name, amount in worker["resources"].items()}


async def _started(workers: int) -> Any:
    """A cluster of our own, in processes that do not import the user's script again."""
    from distributed.deploy.subprocess import SubprocessCluster

    return await SubprocessCluster(
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=":0",
        scheduler_kwargs={"allowed_failures": 0, "dashboard": False},
        worker_kwargs={"memory_limit": 0},
        asynchronous=True,
    )


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": "{}.{}".format(*sys.version_info), "fanfold": version("fanfold")}


# ---------------------------------------------------------------- in a worker

_FUNCTIONS: dict[str, Any] = {}
_LOCAL = threading.local()


def _plugin(name: str, data: bytes, path: list[str]) -> Any:
    from distributed import WorkerPlugin

    class Function(WorkerPlugin):
        """A function that every worker of a cluster keeps.  It travels whole, class and all."""

        def __init__(self, name: str, data: bytes, path: list[str]) -> None:
            self.name, self.data, self.path = name, data, path

        def setup(self, worker: Any) -> None:
            from fanfold.executors.dask import keep

            keep(self.name, self.data, self.path)

        def teardown(self, worker: Any) -> None:
            from fanfold.executors.dask import keep

            keep(self.name, None)

    return Function(name, data, path)


def keep(name: str, data: bytes | None, path: Sequence[str] = ()) -> None:
    """Keep a function in this worker, which may import from `path`; without data: drop it."""
    sys.path.extend(entry for entry in path if entry not in sys.path)
    if data is None:
        _FUNCTIONS.pop(name, None)
    else:
        _FUNCTIONS[name] = data


def _serve(function: str, bodies: list[bytes], home: tuple[Way, int] | None, place: str, timed: bool) -> list[Reply]:
    """Make the calls of a trip; workers may have several threads."""
    caller = getattr(_LOCAL, "caller", None)
    if caller is None:
        caller = _LOCAL.caller = Caller()
    if home is None:
        return serve_trip(caller, _FUNCTIONS, function, bodies, lambda _: set_home(no_way_home(place)), None, timed)
    with FarWork(*home, place) as work:
        return serve_trip(caller, _FUNCTIONS, function, bodies, work.begin, work.tell, timed)


def _reaches(way: Way) -> bool:
    """Whether this worker finds the driver."""
    try:
        connected(way, b"?").close()
    except OSError:
        return False
    return True
