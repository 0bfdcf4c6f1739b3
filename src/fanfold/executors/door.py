"""A way home for workers elsewhere: a socket of the driver, behind a key that both ends prove to know.

Nothing is read from a connection before its other end has proved that, and nothing is asked of a driver that has not.
What travels afterwards is not encrypted: the network between driver and workers is trusted, as Ray and Dask do.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fanfold.errors import NoWayHome
from fanfold.executors.base import no_way_home, set_home
from fanfold.executors.questions import Questions
from fanfold.executors.worker import HEADER, REPLY, Parent
from fanfold.executors.worker_process import answered
from fanfold.sync import noticed

if TYPE_CHECKING:
    import concurrent.futures

#: Seconds in which the other end must prove itself.
PATIENCE = 10.0
NONCE = 32
#: What a connection is for: questions of evaluations.
QUESTIONS = b"q"
#: The kind of a frame that needs no reply: how far a worker is.
TELL = b"t"
_CALL = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Way:
    """How a worker finds the driver: its addresses, the likeliest first, and the key."""

    hosts: tuple[str, ...]
    port: int
    key: bytes = field(repr=False)


class Door:
    """The driver's end: lets in who knows the key, and hands each connection to whoever it is for."""

    def __init__(self, hosts: Sequence[str], **rooms: Callable[[socket.socket], Awaitable[None]]) -> None:
        """`rooms` says, by the letter of what a connection is for, who takes it; `hosts` is where workers find it."""
        self.questions = Questions()
        self._rooms: dict[bytes, Callable[[socket.socket], Awaitable[None]]] = {
            QUESTIONS: functools.partial(_converse, self.questions),
            **{name.encode(): room for name, room in rooms.items()},
        }
        near = all(host.startswith("127.") for host in hosts)
        self._listener = socket.create_server((hosts[0] if near else "", 0), backlog=1024)
        self._listener.setblocking(False)
        self.way = Way(tuple(hosts), self._listener.getsockname()[1], secrets.token_bytes(NONCE))
        self._guests: set[asyncio.Task[None]] = set()
        self.start(self._listen())

    async def close(self) -> None:
        self._listener.close()
        for guest in self._guests:
            guest.cancel()
        if self._guests:
            await asyncio.wait(self._guests, timeout=1.0)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that ends with the door."""
        guest = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._guests.add(guest)
        guest.add_done_callback(self._guests.discard)
        guest.add_done_callback(noticed)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._listener)
            self.start(self._welcome(connection))

    async def _welcome(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        _steady(connection)
        try:
            async with asyncio.timeout(PATIENCE):
                ours = secrets.token_bytes(NONCE)
                await loop.sock_sendall(connection, ours)
                theirs = await _exactly(connection, 2 * NONCE + 1)
                nonce, proof, purpose = theirs[:NONCE], theirs[NONCE:-1], theirs[-1:]
                if not hmac.compare_digest(proof, _proof(self.way.key, b"worker" + purpose, ours, nonce)):
                    return
                await loop.sock_sendall(connection, _proof(self.way.key, b"driver", nonce, ours))
            if (room := self._rooms.get(purpose)) is not None:
                await room(connection)
        except (OSError, TimeoutError):
            pass  # nobody we know, or gone
        finally:
            connection.close()


def _steady(connection: socket.socket) -> None:
    """Small frames leave at once, and an end that is gone without a word is noticed within a minute."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = await asyncio.get_running_loop().sock_recv(connection, length - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _proof(key: bytes, who: bytes, first: bytes, second: bytes) -> bytes:
    return hmac.digest(key, who + first + second, "sha256")


async def _converse(questions: Questions, connection: socket.socket) -> None:
    """Answer what comes over one worker's connection."""
    reader, writer = await asyncio.open_connection(sock=connection.dup())
    try:
        while True:
            kind, letter, length = HEADER.unpack(await reader.readexactly(HEADER.size))
            body = await reader.readexactly(length)
            (number,) = _CALL.unpack_from(body)
            rest = body[_CALL.size :]
            if kind == TELL:
                questions.tell(number, rest)
            else:
                questions.ask(number, functools.partial(_reply, writer, letter, rest))
    except (asyncio.IncompleteReadError, OSError):
        pass  # the worker is gone
    finally:
        writer.close()


async def _reply(writer: asyncio.StreamWriter, letter: int, request: bytes) -> None:
    body = await answered(request)
    if not writer.is_closing():
        writer.write(HEADER.pack(REPLY, letter, len(body)) + body)
        await writer.drain()


def hosts_of_driver(facing: str | None = None) -> tuple[str, ...]:
    """Where workers on other machines may find this process: the address that faces `facing`, then the others."""
    if facing is not None and (facing == "localhost" or facing.startswith("127.")):
        return ("127.0.0.1",)
    hosts: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((facing or "192.0.2.1", 9))  # sends nothing: only asks the system which way it would go
            hosts.append(probe.getsockname()[0])
        except OSError:
            pass
    try:
        hosts += [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]  # type: ignore[misc]
    except OSError:
        pass
    return tuple(dict.fromkeys([*hosts, "127.0.0.1"]))


# ---------------------------------------------------------------- in a worker


def connected(way: Way, purpose: bytes) -> socket.socket:
    """A connection to the driver, proved from both ends; OSError where there is none."""
    problem: OSError = ConnectionError("no address")
    for host in way.hosts:
        try:
            connection = socket.create_connection((host, way.port), PATIENCE)
        except OSError as error:
            problem = error
            continue
        try:
            with connection.makefile("rb", buffering=0) as stream:
                theirs, ours = _read(stream, NONCE), os.urandom(NONCE)
                connection.sendall(ours + _proof(way.key, b"worker" + purpose, theirs, ours) + purpose)
                if hmac.compare_digest(_read(stream, NONCE), _proof(way.key, b"driver", ours, theirs)):
                    connection.settimeout(None)
                    _steady(connection)
                    return connection
            problem = ConnectionRefusedError("somebody else answers there")
        except OSError as error:
            problem = error
        connection.close()
    raise problem


def _read(stream: Any, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = stream.read(length - len(data))
        if not more:
            raise ConnectionResetError("the other end hung up")
        data += more
    return data


#: The call that this code belongs to; threads that an evaluator starts do not know.
_CALLED: contextvars.ContextVar[FarWork | None] = contextvars.ContextVar("fanfold_called", default=None)
#: All that are under way in this process.
_ACTIVE: list[FarWork] = []
_LINES: dict[Way, _Line] = {}
_LOCK = threading.Lock()


class FarWork:
    """A call, or several one after another, in this worker: the line home, and the number of the current one there."""

    def __init__(self, way: Way, first: int, place: str) -> None:
        with _LOCK:
            self.line = _LINES.setdefault(way, _Line(way))
        self.first = self.number = first
        self.place = place

    def __enter__(self) -> FarWork:
        with _LOCK:
            _ACTIVE.append(self)
        set_home(_ask)
        self._token = _CALLED.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CALLED.reset(self._token)
        with _LOCK:
            _ACTIVE.remove(self)

    def begin(self, index: int) -> None:
        """From now on questions are of this one of the calls that travelled together."""
        self.number = self.first + index

    def tell(self, report: bytes) -> None:
        try:
            self.line.parent().send(TELL, 0, _CALL.pack(self.first) + report)
        except OSError:
            pass  # the driver hears it when all is done


def _ask(request: Any) -> concurrent.futures.Future[Any]:
    work = _CALLED.get()
    if work is None:
        if len(_ACTIVE) != 1:
            raise NoWayHome(
                "a thread that an evaluator started made a model call in a worker that runs several evaluations at "
                "once: whose call it is cannot be told; use workers with one thread each"
            )
        (work,) = _ACTIVE
    try:
        parent = work.line.parent()
    except OSError:
        return no_way_home(work.place)(request)
    return parent.ask(request, _CALL.pack(work.number))


class _Line:
    """This process's connection to one driver: made when something is first said, and shared by all calls."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._lock = threading.Lock()
        self._parent: Parent | None = None

    def parent(self) -> Parent:
        with self._lock:
            if self._parent is None:
                connection = connected(self._way, QUESTIONS)
                parent = self._parent = Parent(connection.makefile("wb"))
                listening = threading.Thread(target=self._listen, args=(connection, parent), daemon=True)
                listening.start()
            return self._parent

    def _listen(self, connection: socket.socket, parent: Parent) -> None:
        try:
            with connection, connection.makefile("rb") as stream:
                while len(header := stream.read(HEADER.size)) == HEADER.size:
                    _, letter, length = HEADER.unpack(header)
                    parent.replied(letter, stream.read(length))
        except OSError:
            pass  # the driver is gone, which `gone` says to those who wait
        with self._lock:
            self._parent = None
        parent.gone()
