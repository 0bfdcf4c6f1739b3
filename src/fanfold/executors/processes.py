"""Worker processes of our own: no fork, no re-import of the script, and a worker that dies takes one call with it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fanfold.context import here, within
from fanfold.errors import ConfigError, NoWayHome, WorkerDied
from fanfold.executors.base import Executor, checked_slots, name_of, no_worker
from fanfold.executors.worker import (
    ASK,
    CALL,
    ERROR,
    FUNCTION,
    FUNCTIONS_KEPT,
    HEADER,
    PATH,
    REPLY,
    dumps,
    loads,
    replied,
)

THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
#: Seconds in which a worker may end by itself before it is killed.
GRACE = 0.5
#: The folder that holds the package is named, so that workers find it however the parent did.
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from fanfold.executors.worker import main; main(int(sys.argv.pop()))"
)
_ROOT = str(Path(__file__).parents[2])


class Processes(Executor):
    """Calls in up to `slots` worker processes, started when first needed.

    Workers are fresh interpreters: functions and arguments travel by pickle (what a script or notebook defines, by
    value), a function once per worker and as it was at its first call.  Model calls made there come home to their run,
    which limits, keeps and pays them.  A worker that dies fails its own call with
    WorkerDied and is replaced; cancelling a call kills its worker.  What a worker had started ends with it.  Numerical
    libraries use `threads_per_worker` threads in each, so that workers do not fight over the cores.
    """

    interruptible = True

    def __init__(self, slots: int, threads_per_worker: int = 1) -> None:
        self.slots = checked_slots(slots, "slots")
        self.name = f"processes:{slots}"
        self._pins = dict.fromkeys(THREAD_SETTINGS, str(checked_slots(threads_per_worker, "threads_per_worker")))
        self._free = asyncio.Semaphore(slots)
        self._functions: dict[int, _Function] = {}
        self._count = 0
        self._workers: set[_Worker] = set()
        self._idle: list[_Worker] = []

    async def __aenter__(self) -> Self:
        self._free = asyncio.Semaphore(self.slots)  # a semaphore belongs to the loop it first waited in
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers = list(self._workers)
        self._workers.clear()
        for worker in workers:
            worker.hang_up()
        while self._idle:
            self._idle.pop().close()  # the others are closed by the calls that still wait on them
        self._functions.clear()
        if not workers:
            return
        ended = [asyncio.wrap_future(worker.exit_code) for worker in workers]
        try:
            await asyncio.wait(ended, timeout=GRACE)
        finally:
            for worker in workers:
                worker.kill()
        await asyncio.wait(ended, timeout=GRACE)

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        function = self._function(fn)
        body = pickled(args, fn)
        async with self._free:
            worker = self._take()
            try:
                kind, reply = await worker.call(function, body)
            except BaseException as error:
                self._workers.discard(worker)
                worker.kill()  # of no effect on the exit code of one that is already ending
                worker.close()
                if isinstance(error, OSError):
                    code = await asyncio.wrap_future(worker.exit_code)
                    raise WorkerDied(f"the worker process that ran {name_of(fn)} {_in_words(code)}") from None
                raise
            if worker in self._workers:
                self._idle.append(worker)
            else:
                worker.close()
        return value_of(kind, reply, fn)

    def _function(self, fn: Callable[..., Any]) -> _Function:
        known = self._functions.get(id(fn))
        if known is not None:
            return known
        try:
            data = packed(fn)
        except Exception as error:
            raise ConfigError(
                f"{name_of(fn)} cannot be sent to a worker process ({error}): keep locks, files and connections out of "
                f"what it refers to, or run it on threads"
            ) from error
        self._count += 1
        # Holding on to fn keeps its id from being given to another function.
        function = self._functions[id(fn)] = _Function(fn, self._count, data)
        if len(self._functions) > FUNCTIONS_KEPT:
            del self._functions[next(iter(self._functions))]
        return function

    def _take(self) -> _Worker:
        """The worker that was last at work, whose memory is warmest; or a new one."""
        while self._idle:
            worker = self._idle.pop()
            if not worker.exit_code.done():
                return worker
            self._workers.discard(worker)
            worker.close()
        worker = _Worker({**os.environ, **self._pins})
        self._workers.add(worker)
        return worker


@dataclass(frozen=True, slots=True)
class _Function:
    fn: Callable[..., Any]
    number: int
    data: bytes


class _Worker:
    """The near end of one worker process: takes a call and gives a reply, or an OSError when the process is gone."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        try:
            self._socket, theirs = socket.socketpair()
        except OSError as error:
            raise no_worker(error, "process") from error
        self._socket.setblocking(False)
        try:
            # A session of its own: Ctrl-C stays with the parent, and the worker can be killed with all its offspring.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, _ROOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        except (OSError, MemoryError) as error:
            self._socket.close()
            raise no_worker(error, "process") from error
        finally:
            theirs.close()
        self.exit_code: concurrent.futures.Future[int] = concurrent.futures.Future()
        self.exit_code.set_running_or_notify_cancel()  # so that someone who stops waiting for it cannot cancel it
        self._sending = asyncio.Lock()
        self._rest = b""
        self._known: dict[int, None] = {}
        self._unsent = _frame(PATH, 0, dumps([entry for entry in sys.path if isinstance(entry, str)]))
        try:
            threading.Thread(target=self._reap, name="fanfold-reap", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads for us
            self._process.kill()
            self._process.wait()
            self.close()
            raise no_worker(error, "process") from error

    async def call(self, function: _Function, body: bytes) -> tuple[bytes, bytes | bytearray]:
        if function.number not in self._known:
            self._known[function.number] = None
            self._unsent += _frame(FUNCTION, function.number, function.data)
            if len(self._known) > FUNCTIONS_KEPT:
                del self._known[next(iter(self._known))]
        message, self._unsent = self._unsent + _frame(CALL, function.number, body), b""
        await self._send(message)
        asked: set[asyncio.Task[None]] = set()
        try:
            while True:
                kind, number, reply = await self._receive()
                if kind != ASK:
                    return kind, reply
                task = asyncio.create_task(self._reply(number, reply))
                asked.add(task)
                task.add_done_callback(asked.discard)
        finally:
            for task in asked:
                task.cancel()

    async def _send(self, message: bytes) -> None:
        async with self._sending:
            await asyncio.get_running_loop().sock_sendall(self._socket, message)

    async def _reply(self, number: int, request: bytes | bytearray) -> None:
        body = await answered(request)
        try:
            await asyncio.shield(self._send(_frame(REPLY, number, body)))  # half a frame would garble all later ones
        except OSError:
            pass  # the worker is gone, which whoever waits for its call is told

    def hang_up(self) -> None:
        """Tell the worker to end, and whoever waits for its reply that none will come."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed or hung up before

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.hang_up()
        self._socket.close()

    def _reap(self) -> None:
        """Wait for the end, and end what the worker had started; one of those may even hold the far end open."""
        code = self._process.wait()
        _kill_group(self._process.pid)
        self.exit_code.set_result(code)
        self.hang_up()

    async def _receive(self) -> tuple[bytes, int, bytes | bytearray]:
        kind, number, length = HEADER.unpack(await self._read(HEADER.size))
        return kind, number, await self._read(length)

    async def _read(self, length: int) -> bytes | bytearray:
        loop = asyncio.get_running_loop()
        while len(self._rest) < length <= 1 << 16:
            more = await loop.sock_recv(self._socket, 1 << 16)
            if not more:
                raise ConnectionResetError
            self._rest += more
        data, self._rest = self._rest[:length], self._rest[length:]
        if len(data) == length:
            return data
        body = bytearray(length)
        view = memoryview(body)
        start = len(data)
        view[:start] = data
        while start < length:
            count = await loop.sock_recv_into(self._socket, view[start:])
            if not count:
                raise ConnectionResetError
            start += count
        return body


async def answered(request: bytes | bytearray) -> bytes:
    """What the run replies to a request of a worker, ready to travel; to be called in the evaluation's context."""
    answer = here().answer
    try:
        if answer is None:
            raise NoWayHome("a model call in a worker process needs a run: make it inside a Study")
        return replied(await answer(loads(request)), None)
    except Exception as error:
        return replied(None, error)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody left in it, or (on macOS) nobody but a zombie


def _frame(kind: bytes, number: int, body: bytes) -> bytes:
    return HEADER.pack(kind, number, len(body)) + body


def packed(value: Any) -> bytes:
    """A function or arguments, pickled for a worker."""
    with within(leaving=True):
        return dumps(value)


def pickled(args: tuple[Any, ...], fn: Callable[..., Any]) -> bytes:
    try:
        return packed(args)
    except Exception as error:
        culprit = next((i for i, arg in enumerate(args) if not _can_be_pickled(arg)), 0)
        raise TypeError(
            f"argument {culprit + 1} of {name_of(fn)}, of type {type(args[culprit]).__qualname__!r}, cannot be sent to "
            f"a worker process ({error}): pass plain values, or run it on threads"
        ) from error


def _can_be_pickled(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def value_of(kind: bytes, reply: bytes | bytearray, fn: Callable[..., Any]) -> Any:
    if kind != ERROR:
        try:
            return loads(reply)
        except Exception as error:
            raise TypeError(
                f"the result of {name_of(fn)} came back from its worker process but cannot be loaded here ({error}): "
                f"return values whose classes can be imported"
            ) from error
    itself, text, trace = loads(reply)
    try:
        failure = loads(itself) if itself is not None else RuntimeError(text)
    except Exception:  # many exceptions can be pickled but not unpickled
        failure = RuntimeError(text)
    failure.add_note(f"In the worker process:\n{trace}")
    raise failure


def _in_words(code: int) -> str:
    """How a process ended, for people."""
    if code >= 0:
        return f"exited with code {code} before it answered"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = {"SIGKILL": "; out of memory?", "SIGSEGV": "; a crash in native code"}.get(name, "")
    return f"was killed by {name}{hint}"
