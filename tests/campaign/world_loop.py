"""The event loop of the world: virtual time, lives that end at any step, no threads, and a network of bytes.

Everything runs in one thread and is ordered by virtual time, so the same seed gives the same world.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
import secrets
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fanfold.testing.clock import VirtualLoop

#: The life of the driver that this code belongs to; None: the provider's, or the world's own.
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)


class Life:
    """One life of a driver: from its start to its end, or to the step at which it is killed."""

    def __init__(self, number: int, killed_at: int | None = None) -> None:
        self.number = number
        self.killed_at = killed_at
        #: What is called at that step instead of killing it.
        self.stop: Callable[[], Any] | None = None
        self.alive = True
        self.steps = 0
        #: Tasks that were under way when it was killed: kept, so that nothing of them runs before the world ends.
        self.left: list[asyncio.Task[Any]] = []


class WorldTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose hash is its number, so that sets of tasks have the same order each time."""

    def __init__(self, coroutine: Any, *, loop: WorldLoop, **options: Any) -> None:
        self.number = next(loop.numbers)
        context = options.get("context")
        self.life = LIFE.get() if context is None else context.get(LIFE)
        super().__init__(coroutine, loop=loop, **options)
        if self.life is not None and not self.life.alive:
            self.life.left.append(self)

    def __hash__(self) -> int:
        return self.number


class WorldFuture(asyncio.Future):  # type: ignore[type-arg]
    def __init__(self, *, loop: WorldLoop) -> None:
        self.number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class WorldLoop(VirtualLoop):
    """A virtual loop that kills lives, makes calls of threads itself, and has a network of its own.

    `disk` says how long a call takes that would run on a thread, and makes it; `network` is asked what happens to a
    connection and to each request on it.
    """

    def __init__(self, disk: Any, network: Any, killed: Callable[[Life], None]) -> None:
        self.numbers = itertools.count(1)
        self.disk, self.network, self._killed = disk, network, killed
        self.servers: dict[tuple[str, int], _Server] = {}
        self._pipes: set[Pipe] = set()
        self._dialled: dict[int, _Server] = {}
        super().__init__(patience=0.0)
        self.set_task_factory(lambda loop, coroutine, **options: WorldTask(coroutine, loop=loop, **options))
        self.set_exception_handler(lambda loop, context: None)

    # -- lives -------------------------------------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        if self._dead(context):
            return _nothing(self, callback, args, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        if self._dead(context):
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return WorldFuture(loop=self)

    def _dead(self, context: contextvars.Context | None) -> bool:
        """Whether a step is not to be made: its life is over, or ends with this very step."""
        life = LIFE.get() if context is None else context.get(LIFE)
        if life is None:
            return False
        if life.alive:
            life.steps += 1
            if life.steps == life.killed_at:
                self.kill(life) if life.stop is None else super().call_soon(life.stop)
        return not life.alive

    def kill(self, life: Life) -> None:
        """End a life here and now, as SIGKILL does: nothing of it runs any more, its connections break."""
        if not life.alive:
            return
        life.alive = False
        handles: list[Any] = [*self._ready, *self._scheduled]  # type: ignore[attr-defined]
        for handle in handles:
            if handle._context.get(LIFE) is life:
                handle.cancel()
        life.left += [task for task in asyncio.all_tasks(self) if task.life is life]  # type: ignore[attr-defined]
        for pipe in sorted(self._pipes, key=lambda pipe: pipe.number):
            if pipe.life is life:  # what is on its way arrives
                gone = ConnectionResetError("the client is gone")
                self.call_at(pipe.arrives(), pipe.peer.lose, gone, context=pipe.peer.context.copy())
        self._killed(life)

    # -- threads -----------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        if func is time.sleep:
            self.call_later(args[0], _settle, future, None, None)
        else:
            self.call_later(self.disk.before(func), self._call, future, func, args)
        return future

    def _call(self, future: asyncio.Future[Any], func: Any, args: Any) -> None:
        life = LIFE.get()
        value = error = None
        try:
            value = self.disk.call(self, life, func, args)
        except Exception as failure:
            error = failure
        self.call_later(self.disk.after(), _settle, future, value, error)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    # -- network -----------------------------------------------------------------------------------------------------

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        server = self.servers[host, port or 80] = _Server(factory, host, port or 80, contextvars.copy_context())
        return server

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        await asyncio.sleep(self.network.delay())
        if self.network.unresolved():
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        await asyncio.sleep(self.network.delay())
        self.network.connecting(address)
        self._dialled[sock.fileno()] = self.servers[address]

    async def create_connection(self, factory: Any, *, sock: Any = None, **_: Any) -> Any:  # type: ignore[override]
        server = self._dialled.pop(sock.fileno())
        sock.close()
        near = Pipe(self, factory(), contextvars.copy_context())
        far = Pipe(self, server.context.run(server.factory), server.context)
        near.peer, far.peer = far, near
        self._pipes |= {near, far}
        far.context.copy().run(far.protocol.connection_made, far)
        near.protocol.connection_made(near)
        return near, near.protocol

    def forget(self, pipe: Pipe) -> None:
        self._pipes.discard(pipe)


class Pipe(asyncio.Transport):
    """One end of a connection.  What is written arrives at the other end later, in order, in the pieces of the plan."""

    def __init__(self, loop: WorldLoop, protocol: Any, context: contextvars.Context) -> None:
        super().__init__()
        self.number = next(loop.numbers)
        self.protocol, self.context = protocol, context
        self.life = context.get(LIFE)
        self.peer: Pipe
        self._loop = loop
        self._closed = False
        self._arrives = 0.0
        self._under_way: deque[bytes] = deque()
        #: What happens to replies on this connection: set by the request.
        self.plan: Any = None

    def __hash__(self) -> int:
        return self.number

    def write(self, data: Any) -> None:
        if self._closed or (self.life is not None and not self.life.alive):
            return
        if self.life is not None:
            plan = self._loop.network.request(bytes(data))
            self.peer.plan = plan or self.peer.plan
            self._send([(self._loop.network.delay(), bytes(data))] if not self.peer.plan.swallowed else [])
            if plan is not None and plan.broken:
                self._loop.call_later(self._loop.network.delay(), self._break, context=self.peer.context.copy())
        elif self.plan is None:
            self._send([(self._loop.network.delay(), bytes(data))])
        else:
            pieces, broken = self.plan.reply(bytes(data))
            self._send(pieces)
            if broken:
                self._loop.call_at(self._arrives, self._break)

    def arrives(self) -> float:
        """When everything that was written has arrived."""
        return max(self._arrives, self._loop.time())

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def _send(self, pieces: list[tuple[float, bytes]]) -> None:
        for delay, piece in pieces:
            self._arrives = self.arrives() + delay
            self._under_way.append(piece)
            self._loop.call_at(self._arrives, self._deliver, context=self.peer.context.copy())

    def _deliver(self) -> None:
        piece = self._under_way.popleft()
        if not self.peer._closed:
            self.peer.protocol.data_received(piece)

    def _break(self) -> None:
        for end in (self, self.peer):
            end.lose(ConnectionResetError("Connection reset by peer"))

    def lose(self, error: Exception | None) -> None:
        if not self._closed and not self._loop.is_closed():
            self._closed = True
            self._loop.forget(self)
            self._loop.call_soon(self.protocol.connection_lost, error, context=self.context.copy())

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed and not self._loop.is_closed():
            self.lose(None)
            self._loop.call_at(self.arrives(), self.peer.lose, None, context=self.peer.context.copy())

    def is_closing(self) -> bool:
        return self._closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class _Server:
    def __init__(self, factory: Any, host: str, port: int, context: contextvars.Context) -> None:
        self.factory, self.context = factory, context
        self.sockets = [SimpleNamespace(getsockname=lambda: (host, port))]

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


def _nothing(loop: WorldLoop, callback: Any, args: Any, context: Any) -> asyncio.Handle:
    handle = asyncio.Handle(callback, args, loop, context)
    handle.cancel()
    return handle


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if not future.done():
        future.set_result(value) if error is None else future.set_exception(error)


def close_left(life: Life) -> None:
    """Let go of what a killed life left; what it would do in the end goes nowhere."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in life.left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                for _ in range(20):  # what waits for something in its end has to be told again
                    try:
                        task.get_coro().close()  # type: ignore[union-attr]
                        break
                    except BaseException:
                        continue
            life.left = []
    finally:
        sys.unraisablehook = hook


class WorldTime:
    """In this block the clocks of the process are those of the loop, and every random number is the seed's."""

    def __init__(self, loop: WorldLoop, seed: str, epoch: float = 1_800_000_000.0) -> None:
        rng = random.Random(f"{seed} process")
        self._random = random.Random(f"{seed} global").getstate()

        def wall() -> float:
            return epoch + loop.time()

        self._changes = [
            (time, "time", wall),
            (time, "time_ns", lambda: int(wall() * 1e9)),
            (time, "monotonic", loop.time),
            (time, "perf_counter", loop.time),
            (secrets, "token_hex", lambda n=16: rng.randbytes(n).hex()),
        ]

    def __enter__(self) -> None:
        self._before = [getattr(module, name) for module, name, _ in self._changes]
        self._state = random.getstate()
        for module, name, value in self._changes:
            setattr(module, name, value)
        random.setstate(self._random)

    def __exit__(self, *_: object) -> None:
        for (module, name, _), value in zip(self._changes, self._before):
            setattr(module, name, value)
        random.setstate(self._state)
