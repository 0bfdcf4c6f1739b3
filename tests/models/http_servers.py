"""Small HTTP servers that answer as a test likes, and the client under test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fanfold.models.http import Http, HttpError

# A small server: every request is given to `answer`, which writes what it likes; returning False ends the connection.


class Server:
    def __init__(self, answer: Callable[[Request], Awaitable[object]]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections = self.open = self.most_open = self.gone = 0
        self.port = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        number = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.split("\r\n")[:-2]
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                method, target, _ = lines[0].split(" ")
                request = Request(method, target, headers, body, number, len(self.requests), reader, writer)
                self.requests.append(request)
                if await self.answer(request) is False:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone += 1
        finally:
            self.open -= 1


class Request:
    def __init__(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        connection: int,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.method, self.target, self.headers, self.body = method, target, headers, body
        self.connection, self.number, self.reader, self.writer = connection, number, reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, body: bytes = b"ok", status: str = "200 OK", headers: str = "") -> None:
        await self.send(reply(body, status, headers))

    async def hang(self) -> None:
        await self.reader.read()
        raise ConnectionError


def reply(body: bytes = b"ok", status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(
    serve: Serve, tls: ssl.SSLContext | None = None, listeners: list[asyncio.Server] | None = None
) -> AsyncIterator[int]:
    """Serve on a free port, and leave nothing behind: neither tasks nor sockets."""
    tasks: set[asyncio.Task[Any] | None] = set()
    writers: list[asyncio.StreamWriter] = []

    async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        writers.append(writer)
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(tracked, "127.0.0.1", 0, ssl=tls, backlog=512)
    if listeners is not None:
        listeners.append(server)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.01)
        for task in tasks:
            assert task is not None
            task.cancel()
        await asyncio.gather(*[task for task in tasks if task is not None], return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def serving(
    answer: Callable[[Request], Awaitable[object]] = Request.reply,
    tls: ssl.SSLContext | None = None,
    listeners: list[asyncio.Server] | None = None,
) -> AsyncIterator[Server]:
    server = Server(answer)
    async with listening(server.serve, tls, listeners) as port:
        server.port = port
        server.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
        yield server


def client(**options: Any) -> Http:
    return Http(**{"proxies": {}, **options})


def sends(*pieces: bytes, close: bool = True) -> Callable[[Request], Awaitable[object]]:
    async def answer(request: Request) -> object:
        for piece in pieces:
            await request.send(piece)
        return not close

    return answer


async def failing(call: Awaitable[object]) -> HttpError:
    with pytest.raises(HttpError) as caught:
        await call
    return caught.value
