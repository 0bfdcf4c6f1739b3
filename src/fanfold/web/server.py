"""A lean HTTP/1.1 server on real sockets, for the web app, services and the simulator; it can misbehave as told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import parse_qsl, unquote

from fanfold.errors import ConfigError
from fanfold.web.wire import BrokenAnswer, Request, WebResponse, reply

if TYPE_CHECKING:
    import httptools

#: Bytes of a request's body, and of its address and headers.
MAX_BODY, MAX_HEAD = 600 * 2**20, 64 * 2**10
#: Requests waiting on one connection before it is not read any further.
MAX_WAITING = 16

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}


class Site(Protocol):
    """What is served."""

    async def respond(self, request: Request) -> WebResponse | BrokenAnswer:
        """Answer one request."""

    def wall(self) -> float:
        """The time of day."""

    async def close(self) -> None:
        """End what is still under way."""


@asynccontextmanager
async def serve(
    site: Site, *, host: str = "127.0.0.1", port: int = 0, name: str = "simulator", max_body: int = MAX_BODY
) -> AsyncIterator[str]:
    """Answer on a port (0: any free one) as long as the context lasts; gives the URL.

    Leaving the context closes every connection and the site.
    """
    floor = _Floor(site, name, max_body)
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(lambda: _Connection(floor), host, port, backlog=4096)
    except OSError as error:
        text = f"the {name} cannot listen on {host}:{port}: {error.strerror}; choose another --port, or 0 for any"
        raise ConfigError(text) from error
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await floor.close()
        await server.wait_closed()


class _Floor:
    """What all connections share: the site, each other, the work under way, and the date of the second."""

    def __init__(self, site: Site, name: str, max_body: int) -> None:
        self.site, self.name, self.max_body = site, name, max_body
        self.connections: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._second = -1
        self._date = ""

    def date(self) -> str:
        now = self.site.wall()
        if int(now) != self._second:
            self._second = int(now)
            self._date = f"date: {formatdate(now, usegmt=True)}\r\nserver: {self.name}\r\n"
        return self._date

    async def close(self) -> None:
        for connection in list(self.connections):
            connection.abort()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.site.close()


class _Connection(asyncio.Protocol):
    """One client: reads requests, answers them one after the other.

    Work continues when the client leaves, as it does at a provider; only a live body ends with its client.
    """

    _transport: asyncio.Transport

    def __init__(self, floor: _Floor) -> None:
        import httptools

        self._floor = floor
        self._parser: httptools.HttpRequestParser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._busy = False
        self._paused = False
        self._gone = False
        self._room = asyncio.Event()
        self._room.set()
        self._live: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._size = self._head_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self._floor.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._floor.connections.discard(self)
        if self._live is not None:
            self._live.cancel()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        import httptools

        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # Also what a too large body ends in: nothing further can be read from this client.
            if not self._gone and self._head_size > MAX_HEAD:
                self._write(reply({"error": {"message": f"the headers are above {MAX_HEAD} bytes"}}, 431), keep=False)
            elif not self._gone:
                self._write(reply({"error": {"message": f"this is not HTTP/1.1: {error}"}}, 400), keep=False)

    def on_message_begin(self) -> None:
        self._begin()

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._grow(len(name) + len(value))
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def _grow(self, by: int) -> None:
        self._head_size += by
        if self._head_size > MAX_HEAD:
            raise ValueError  # the parser stops, and `data_received` answers

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self._floor.max_body:
            self._chunks.clear()
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        keep = self._parser.should_keep_alive()
        if self._size > self._floor.max_body:
            self._write(
                reply({"error": {"message": f"the body is above {self._floor.max_body} bytes"}}, 413), keep=False
            )
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            self._parser.get_method().decode(),
            unquote(path) if "%" in path else path,
            dict(parse_qsl(query)) if query else {},
            self._headers,
            self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks),
            query,
        )
        self._waiting.append((request, keep))
        if not self._busy:
            self._busy = True
            task = asyncio.get_running_loop().create_task(self._answer())
            self._floor.tasks.add(task)
            task.add_done_callback(self._floor.tasks.discard)
        elif len(self._waiting) >= MAX_WAITING:
            self._paused = True
            self._transport.pause_reading()

    async def _answer(self) -> None:
        while self._waiting and not self._gone:
            request, keep = self._waiting.popleft()
            try:
                answer = await self._floor.site.respond(request)
            except Exception as error:
                # A mistake of the site itself: the client should not wait forever, and the log should say why.
                self._write(reply({"error": {"message": f"the {self._floor.name} failed: {error!r}"}}, 500), keep=False)
                raise
            if self._gone:
                break
            if isinstance(answer, BrokenAnswer):
                # Still busy afterwards: nothing more is answered on this connection.
                await self._break(answer)
                return
            if answer.live is not None:
                await self._follow(answer)
            elif answer.pieces:
                await self._stream(answer, keep)
            else:
                self._write(answer, keep)
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
        self._busy = False

    async def _break(self, broken: BrokenAnswer) -> None:
        """Misbehave as told."""
        if broken.how == "hang":
            return
        if broken.how == "drop" or broken.response is None:
            self.abort()
            return
        response = replace(broken.response, pieces=())
        head, body = self._head(response, False), response.body
        self._transport.write(head)
        if broken.how == "cut":
            self._transport.write(body[: len(body) // 2])
        else:
            for at in range(len(body)):
                if self._gone:
                    return
                self._transport.write(body[at : at + 1])
                await asyncio.sleep(1.0 / broken.bytes_per_second)
        self._transport.close()

    async def _stream(self, response: WebResponse, keep: bool) -> None:
        """Write a body piece by piece."""
        self._transport.write(self._head(response, keep))
        for piece in response.pieces:
            if self._gone:
                return
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(response.pause)
        self._transport.write(b"0\r\n\r\n")
        if not keep:
            self._transport.close()

    async def _follow(self, response: WebResponse) -> None:
        """Write a live body until it ends or the client leaves, no faster than the client reads."""

        async def write() -> None:
            assert response.live is not None
            async for piece in response.live:
                self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await self._room.wait()

        self._transport.write(self._head(response, keep=False))
        self._live = asyncio.get_running_loop().create_task(write())
        try:
            await asyncio.wait([self._live])
            if not self._gone and not self._live.cancelled():
                self._live.result()
                self._transport.write(b"0\r\n\r\n")
        finally:
            self._live.cancel()
            self._transport.close()

    def _write(self, response: WebResponse, keep: bool) -> None:
        if len(response.body) < 65536:
            self._transport.write(self._head(response, keep) + response.body)
        else:
            self._transport.writelines((self._head(response, keep), response.body))
        if not keep:
            self._transport.close()

    def _head(self, response: WebResponse, keep: bool) -> bytes:
        lines = [_LINES.get(response.status) or f"HTTP/1.1 {response.status} Error\r\n", self._floor.date()]
        lines += [f"{name}: {value}\r\n" for name, value in response.headers.items()]
        length = (
            "transfer-encoding: chunked"
            if response.pieces or response.live
            else f"content-length: {len(response.body)}"
        )
        lines.append(f"{length}\r\nconnection: {'keep-alive' if keep else 'close'}\r\n\r\n")
        return "".join(lines).encode("latin-1")

    def abort(self) -> None:
        self._transport.abort()
