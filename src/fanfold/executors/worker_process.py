"""The near end of one worker process: calls in line there, and what comes back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fanfold.context import here, within
from fanfold.errors import ConfigError, NoWayHome
from fanfold.executors.base import name_of
from fanfold.executors.far_call import FarCall
from fanfold.executors.pace import LATE, CallPace
from fanfold.executors.parcels import Fetch, value_for
from fanfold.executors.worker import (
    ASK,
    BACK,
    CALL,
    FUNCTION,
    FUNCTIONS_KEPT,
    HEADER,
    PATH,
    READY,
    REPLY,
    dumps,
    loads,
    replied,
)

#: Seconds in which a function may be loaded before that counts as its call's time.
LOADING = 60.0
#: Bytes that are read at once.
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class SentFunction:
    """A function as workers know it."""

    fn: Callable[..., Any]
    number: int
    data: bytes
    pace: CallPace


class WorkerCall(FarCall):
    """A call in the line of a worker process."""

    __slots__ = ("asked", "body", "function", "loads", "worker")

    def __init__(self, function: SentFunction, body: bytes) -> None:
        super().__init__()
        self.function = function
        self.body = body
        self.worker: WorkerProcess | None = None
        #: What it asks of its run.
        self.asked: set[asyncio.Task[None]] = set()
        #: Whether its worker loads the function for it.
        self.loads = False

    def end(self) -> None:
        """Nobody waits for what it asked any more."""
        for task in self.asked:
            task.cancel()


class Owner(Protocol):
    """What a worker process tells its executor."""

    def finished(self, worker: WorkerProcess) -> None:
        """It has answered the first call of its line, or given back the last ones."""

    def requeue(self, calls: Sequence[WorkerCall]) -> None:
        """Calls that have not begun here."""

    def gone(self, worker: WorkerProcess) -> None:
        """It has hung up."""


class Hosted(Protocol):
    """A worker process, wherever it is: the connection to it, and its exit code, or PlaceLost, once it has ended."""

    socket: socket.socket
    exit_code: concurrent.futures.Future[int]

    def kill(self) -> None: ...


class WorkerProcess:
    """A worker process and the calls in its line: the first runs there, the others wait."""

    def __init__(self, process: Hosted, owner: Owner) -> None:
        self.exit_code, self.kill = process.exit_code, process.kill
        self.line: deque[WorkerCall] = deque()
        #: Whether calls were asked back, and it has not said how many it gives.
        self.recalled = False
        self._socket = process.socket
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._began = -math.inf
        self._known: dict[int, None] = {}
        self._in, self._out = bytearray(), bytearray()
        self._send(PATH, 0, dumps(import_path()))
        self._loop.add_reader(self._socket, self._readable)
        self.exit_code.add_done_callback(self._reaped)

    def accepts(self, length: int, now: float) -> bool:
        """Whether one more call may wait behind `length` others: not behind a long one."""
        return len(self.line) <= length and not self.recalled and now - self._began < LATE

    def runs(self, call: WorkerCall) -> bool:
        return bool(self.line) and self.line[0] is call

    def take(self, call: WorkerCall) -> None:
        """Put a call into the line; it leaves with the next `flush`."""
        function = call.function
        if function.number not in self._known:
            self._known[function.number] = None
            self._send(FUNCTION, function.number, function.data)
            call.loads = True
            if call.clock is not None:
                self._loop.call_later(LOADING, call.begin)
            if len(self._known) > FUNCTIONS_KEPT:
                del self._known[next(iter(self._known))]
        self._send(CALL, function.number, call.body)
        call.worker = self
        self.line.append(call)
        if len(self.line) == 1:
            self._begin()

    def recall(self) -> None:
        """Ask back the calls that have not begun."""
        self.recalled = True
        self._send(BACK, 0, b"")
        self.flush()

    def flush(self) -> None:
        """Send as much as the worker takes now, and the rest when it takes more."""
        try:
            while self._out:
                del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._writable)
        except OSError:
            self._out.clear()  # the worker is gone, which is noticed where its replies are read

    def hang_up(self) -> None:
        """Tell the worker to end; what it has sent can still be read."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed or hung up before

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self.hang_up()
            self._socket.close()

    def _begin(self) -> None:
        """The first call of the line begins, once its function is loaded."""
        if self.line and not self.line[0].loads:
            self._began = self._loop.time()
            self.line[0].begin()

    def _send(self, kind: bytes, number: int, body: bytes) -> None:
        self._out += HEADER.pack(kind, number, len(body))
        self._out += body

    def _writable(self) -> None:
        self._loop.remove_writer(self._socket)
        self.flush()

    def _readable(self) -> bool:
        """Take in what has arrived; gives whether there was any."""
        try:
            piece = self._socket.recv(_PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self._owner.gone(self)
            return False
        data, start, size = self._in, 0, HEADER.size
        data += piece
        while len(data) - start >= size:
            kind, number, length = HEADER.unpack_from(data, start)
            end = start + size + length
            if len(data) < end:
                break
            body, start = bytes(memoryview(data)[start + size : end]), end
            self._arrived(kind, number, body)
        del data[:start]
        return True

    def _arrived(self, kind: bytes, number: int, body: bytes) -> None:
        if kind == ASK:
            self._asked(number, body)
            return
        if kind == READY:
            if self.line:
                self.line[0].loads = False
            self._begin()
            return
        if kind == BACK:
            self.recalled = False
            self._owner.requeue([self.line.pop() for _ in range(min(number, len(self.line)))][::-1])
        elif self.line:
            call = self.line.popleft()
            call.end()
            call.reply((kind, body, number), call.function.pace)
            self._begin()
        self._owner.finished(self)

    def _asked(self, number: int, request: bytes) -> None:
        """The call that runs asks something of its run; so it is answered in that call's context."""
        if not self.line:
            self._send(REPLY, number, replied(None, NoWayHome("the evaluation that asks this has ended")))
            self.flush()
            return
        call = self.line[0]
        task = self._loop.create_task(self._reply(number, request), context=call.context.copy())
        call.asked.add(task)
        task.add_done_callback(call.asked.discard)

    async def _reply(self, number: int, request: bytes) -> None:
        self._send(REPLY, number, await answered(request))
        self.flush()

    def _reaped(self, _: concurrent.futures.Future[int]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ended)
        except RuntimeError:
            pass  # the loop was closed in the meantime: nobody waits any more

    def _ended(self) -> None:
        """The process is gone: first what it had sent, then that."""
        while self._readable():
            pass
        self._owner.gone(self)


def import_path() -> list[str]:
    """Where a worker may import from, as this process does."""
    return [entry for entry in sys.path if isinstance(entry, str)]


def packed_function(fn: Callable[..., Any], where: str) -> bytes:
    """A function pickled for a worker; ConfigError where it cannot be sent to `where`."""
    try:
        return packed(fn)
    except Exception as error:
        from fanfold.fingerprints import fingerprint  # here, because few runs need it

        unknown = list(fingerprint(getattr(fn, "evaluate", fn)).unknown.items())[:3]
        held = f"; there is {', '.join(f'{path} ({what})' for path, what in unknown)}" if unknown else ""
        raise ConfigError(
            f"{name_of(fn)} cannot be sent to a {where} ({error}{held}): keep locks, files and connections out of what "
            f"it refers to, or run it on threads"
        ) from error


def packed(value: Any) -> bytes:
    """A function or arguments, pickled for a worker."""
    with within(leaving=True):
        return dumps(value)


async def answered(request: bytes | bytearray) -> bytes:
    """What the run replies to a request of a worker, ready to travel; to be called in the evaluation's context."""
    answer = here().answer
    try:
        asked = loads(request)
        if isinstance(asked, Fetch):
            return replied(packed(value_for(asked)), None)
        if answer is None:
            raise NoWayHome("a model call in a worker process needs a run: make it inside a Study")
        return replied(await answer(asked), None)
    except Exception as error:
        return replied(None, error)
