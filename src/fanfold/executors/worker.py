"""The far end of `Processes`: a process that makes one call after another for its parent, and ends when that does.

Frames in both directions are a header (kind, number, length) and a body.  The number is that of the function or the
request; of a result, the microseconds that its call took.  Imports are kept few because every worker pays for them
before its first call.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, BinaryIO

from fanfold.executors.base import Caller, contained, name_of, set_home
from fanfold.executors.pace import LATE
from fanfold.redaction import redact

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable

HEADER = struct.Struct("<cIQ")
PATH, FUNCTION, CALL, VALUE, ERROR = b"p", b"f", b"c", b"v", b"e"
#: What a call asks of its run while it lasts, and the reply to that.
ASK, REPLY = b"a", b"r"
#: Asks for the calls that have not begun; back comes how many they are, always the last ones.
BACK = b"b"
#: Says that a function is loaded, and its first call begins.
READY = b"y"
#: How many functions a worker keeps, oldest dropped first; the parent counts along, so both always agree which.
FUNCTIONS_KEPT = 64


def dumps(value: Any) -> bytes:
    """Pickle; by value what a script or a notebook defines, which nobody could find by name elsewhere."""
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if b"_main__" not in data:  # nor __mp_main__, as a spawned process calls the script
            return data
    except Exception:
        pass  # by value more is possible, and its error is the better one
    from fanfold.executors import by_value  # here, because most workers send plain values and start faster without it

    return by_value.dumps(value)


def loads(data: bytes | bytearray) -> Any:
    return pickle.loads(data)  # noqa: S301 - frames come over a private socket pair from our own process tree


def main(fd: int) -> None:
    """Serve the parent at the other end of `fd`, forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends its workers
    # The same for a scheduler's SIGTERM to every process; not ignored, which what an evaluator starts would inherit.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    os.set_inheritable(fd, False)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # a worker that is killed should not take its last prints along
    calls, functions = Calls(), dict[int, Any]()
    with open(fd, "wb", closefd=False) as replies:
        parent = Parent(replies)
        set_home(parent.ask)
        threading.Thread(target=_receive, args=(fd, calls, functions, parent), daemon=True).start()
        _serve(calls, functions, parent)


class Calls:
    """Calls that wait for their turn: the number of the function, and the pickled arguments."""

    def __init__(self) -> None:
        self._calls: deque[tuple[int, bytes]] = deque()
        self._changed = threading.Condition()

    def put(self, number: int, body: bytes) -> None:
        with self._changed:
            self._calls.append((number, body))
            self._changed.notify()

    def take(self) -> tuple[int, bytes]:
        with self._changed:
            while not self._calls:
                self._changed.wait()
            return self._calls.popleft()

    def clear(self) -> int:
        """Forget all that wait; gives how many those were."""
        with self._changed:
            count = len(self._calls)
            self._calls.clear()
            return count


class Parent:
    """The way to the parent, for results and for what a call asks of its run; any thread may use it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, concurrent.futures.Future[Any]] = {}

    def send(self, kind: bytes, number: int, body: bytes) -> None:
        with self._lock:
            self._stream.write(HEADER.pack(kind, number, len(body)))
            self._stream.write(body)
            self._stream.flush()

    def ask(self, request: Any, before: bytes = b"") -> concurrent.futures.Future[Any]:
        """Ask the run; `before` goes ahead of the request, for those who must say whose it is."""
        from concurrent.futures import Future  # here, because most workers ask for nothing and start faster without it

        number, reply = next(self._numbers), Future[Any]()
        self._open[number] = reply
        self.send(ASK, number, before + dumps(request))
        return reply

    def gone(self) -> None:
        """Nobody will reply any more."""
        for reply in list(self._open.values()):
            if reply.set_running_or_notify_cancel():
                reply.set_exception(ConnectionResetError("the run of this model call does not answer any more"))

    def replied(self, number: int, body: bytes) -> None:
        settle(self._open.pop(number), body)


def settle(reply: concurrent.futures.Future[Any], body: bytes) -> None:
    """Pass on what the run replied: a value, or an error to raise."""
    if reply.set_running_or_notify_cancel():
        try:
            value, error = loads(body)
        except Exception as broken:
            value, error = None, broken
        reply.set_result(value) if error is None else reply.set_exception(error)


def replied(value: Any, error: BaseException | None) -> bytes:
    """A reply as it travels to a worker."""
    try:
        return dumps((value, error))
    except Exception:
        return dumps((None, RuntimeError(f"{type(error).__name__}: {error}" if error else f"{value!r:.200}")))


def _serve(calls: Calls, functions: dict[int, Any], parent: Parent) -> None:
    caller = Caller()
    while True:
        number, body = calls.take()
        try:
            if first := load(functions, number):
                parent.send(READY, 0, b"")
            began = time.perf_counter()
            kind, body = answer(caller, functions, number, body)
            parent.send(kind, 0 if first else microseconds(began), body)
        except OSError:
            # Nobody can be answered: the parent is gone, and the other thread ends us with all we started; or the
            # evaluator has closed our end, and that is that.
            time.sleep(0.5)
            os._exit(0)


def _receive(fd: int, calls: Calls, functions: dict[int, Any], parent: Parent) -> None:
    """Take in what arrives.  In a thread of its own, so that even a busy worker sees its parent go, and goes too."""
    try:
        with open(fd, "rb", closefd=False) as stream:
            while len(header := stream.read(HEADER.size)) == HEADER.size:
                kind, number, length = HEADER.unpack(header)
                body = stream.read(length)
                if kind == CALL:
                    calls.put(number, body)
                elif kind == REPLY:
                    parent.replied(number, body)
                elif kind == FUNCTION:
                    functions[number] = body  # loaded by its first call, which then can say what went wrong
                    if len(functions) > FUNCTIONS_KEPT:
                        del functions[next(iter(functions))]
                elif kind == BACK:
                    parent.send(BACK, calls.clear(), b"")
                else:
                    sys.path[:] = loads(body)
    finally:
        if os.getpgrp() == os.getpid():  # the group is ours: whatever was started in it goes with us
            os.killpg(0, signal.SIGKILL)
        os._exit(0)


def answer(caller: Caller, functions: dict[Any, Any], number: int | str, body: bytes) -> tuple[bytes, bytes]:
    try:
        fn, args = _load(functions, number, body)
        value = caller.call(fn, args)
        try:
            return VALUE, dumps(value)
        except Exception as error:
            raise TypeError(
                f"the result of {name_of(fn)}, of type {type(value).__qualname__!r}, cannot be sent back from a worker "
                f"process ({error}): return plain values, or run it on threads"
            ) from error
    except BaseException as error:
        return ERROR, _failure(error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                pass  # whoever was reading our output is gone, or the evaluator closed it


class Serving:
    """Calls of one function that travelled together, made one after another.  Those not begun can be given back."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.replies: list[tuple[bytes, bytes, int]] = []
        self._bodies = bodies
        self._begun = 0
        self._lock = threading.Lock()

    def run(
        self, caller: Caller, functions: dict[Any, Any], number: int | str, begin: Callable[[int], None]
    ) -> list[tuple[bytes, bytes, int]]:
        """The replies to all calls that were begun: kind, body, and the microseconds it took; 0 where not measured."""
        while True:
            with self._lock:
                if (index := self._begun) == len(self._bodies):
                    return self.replies
                self._begun += 1
            begin(index)
            began = time.perf_counter()
            kind, body = answer(caller, functions, number, self._bodies[index])
            self.replies.append((kind, body, microseconds(began)))

    def give_back(self) -> tuple[list[tuple[bytes, bytes, int]], int]:
        """Begin no further call; gives the replies so far, and how many calls have begun."""
        with self._lock:
            del self._bodies[self._begun :]
            return list(self.replies), self._begun


def serve_trip(
    caller: Caller,
    functions: dict[Any, Any],
    number: int | str,
    bodies: list[bytes],
    begin: Callable[[int], None],
    tell: Callable[[bytes], object] | None,
    timed: bool,
) -> list[tuple[bytes, bytes, int]]:
    """Make calls that travelled together.  `begin` hears which, and `tell` reports: if `timed`, that they begin; and
    when they are late, what is done so far."""
    serving = Serving(bodies)

    def late() -> None:
        report = serving.give_back()
        if tell is not None:
            tell(dumps(report))

    begin(0)
    load(functions, number)
    if timed and tell is not None:
        tell(dumps(([], len(bodies))))
    timer = threading.Timer(LATE, late) if len(bodies) > 1 else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        return serving.run(caller, functions, number, begin)
    finally:
        if timer is not None:
            timer.cancel()


def microseconds(began: float) -> int:
    """Since then, as a header holds it."""
    return min(max(1, int((time.perf_counter() - began) * 1e6)), 2**32 - 1)


def load(functions: dict[Any, Any], number: int | str) -> bool:
    """Load a function before its first call; gives whether this is the first.  What goes wrong, `answer` says."""
    data = functions.get(number)
    if not isinstance(data, bytes):
        return False
    try:
        functions[number] = loads(data)
    except BaseException:
        pass
    return True


def _load(functions: dict[Any, Any], number: int | str, body: bytes) -> tuple[Any, tuple[Any, ...]]:
    try:
        if isinstance(functions[number], bytes):
            functions[number] = loads(functions[number])
        return functions[number], loads(body)
    except Exception as error:
        raise RuntimeError(
            f"a worker process could not load the function or its arguments ({type(error).__name__}: {error}): "
            f"what they are made of must be importable there"
        ) from error


def _failure(error: BaseException) -> bytes:
    """The error itself if it can be pickled, and always its text and its traceback."""
    import traceback

    text = redact("".join(traceback.format_exception_only(error)).strip())
    trace = redact("".join(traceback.format_exception(error)))
    try:
        itself = dumps(contained(error))
    except Exception:
        itself = None
    return pickle.dumps((itself, text, trace))
