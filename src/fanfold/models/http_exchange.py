"""One HTTP/1.1 exchange and the connection that carries it: what arrives is parsed, unpacked and kept within bounds."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVarTuple, Unpack, cast

import httptools

from fanfold.models.http_bodies import JOIN_BELOW, Broken, Unpacking, UploadBody

#: Takes the pieces of a body as they arrive.
Sink = Callable[[bytes], object]
Args = TypeVarTuple("Args")

# Bytes a server may send without a byte of body among them: headers, interim answers, chunk extensions, trailers.
QUIET_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer; header names are lower-case, and headers of one name are joined by a comma."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@functools.lru_cache(256)
def _name(name: bytes) -> str:
    """The name of a header; servers use few."""
    return name.decode("latin-1").lower()


def _callback(called: Callable[[Exchange, Unpack[Args]], None]) -> Callable[[Exchange, Unpack[Args]], None]:
    """A method that the parser calls, whose failure the exchange remembers.

    The parser wraps what is raised in an error of its own and names the cause as its context, in which Python then puts
    whatever is being handled further up, under the event loop.
    """

    def remembered(exchange: Exchange, /, *args: *Args) -> None:
        try:
            called(exchange, *args)
        except BaseException as why:
            exchange.failure = why
            raise

    return remembered


class Exchange:
    """One request and its answer as it arrives, without any I/O: `feed` the bytes that come, `end` when no more can.

    `done` says that the answer is complete; `keep` that the connection is clean and may carry another exchange; `sent`
    that the server may have seen the request; `touched` that anything came back.  A body goes to `sink` when there is
    one and the status is 200.  `bodiless` is for HEAD and CONNECT, whose answers end with their headers.
    """

    __slots__ = (
        "_body",
        "_into",
        "_parser",
        "_quiet",
        "bodiless",
        "data",
        "done",
        "failure",
        "head",
        "headers",
        "keep",
        "sent",
        "status",
        "touched",
    )

    def __init__(
        self,
        head: bytes,
        data: bytes | UploadBody = b"",
        *,
        limit: int,
        sink: Sink | None = None,
        sink_limit: int = 0,
        bodiless: bool = False,
    ) -> None:
        self.head = head
        self.data = data
        self.bodiless = bodiless
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = self.keep = self.sent = self.touched = False
        self.failure: BaseException | None = None
        self._into = limit, sink, sink_limit
        self._body: _Body | None = None
        self._quiet = 0
        self._parser: httptools.HttpResponseParser | None
        self.again()

    def response(self) -> Response:
        return Response(self.status, self.headers, self._body.whole() if self._body else b"")

    def feed(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            raise Broken("protocol", "the server continued after the end of its answer")
        self.touched = True
        self._quiet += len(data)
        try:
            parser.feed_data(data)
        except httptools.HttpParserCallbackError as wrapped:
            why, self.failure = self.failure, None  # held by both, it and all it refers to would outlive the call
            if not self.done:
                raise (why or wrapped) from None
            self.keep = False
        except httptools.HttpParserUpgrade:
            raise Broken("protocol", "the server switched to another protocol") from None
        except httptools.HttpParserError as why:
            if not self.done:
                raise Broken("protocol", f"the answer is not valid HTTP/1.1 ({why})") from None
            self.keep = False
        if self.done:
            # The parser refers back to this object: without the cut, every exchange would wait for the cycle collector.
            self._parser = None
        elif self._quiet > QUIET_LIMIT:
            raise Broken("too-large", f"the headers of the answer exceed {QUIET_LIMIT} bytes")

    def end(self) -> None:
        """The connection is over: some answers end that way, for others it is the failure raised here."""
        self._parser = None
        if self._body is None:
            raise Broken("disconnected", "the server closed the connection before it answered")
        if "content-length" in self.headers or "transfer-encoding" in self.headers:
            raise Broken("disconnected", "the server closed the connection in the middle of its answer")
        self._body.end()
        self.done = True

    def again(self) -> None:
        """Get ready to be carried by another connection; only for an exchange that nothing came back for."""
        self._parser = httptools.HttpResponseParser(self)
        # Hand-written servers end lines with a bare line feed, and old ones pad the sizes of chunks.
        self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True)

    # Called by the parser.

    @_callback
    def on_message_begin(self) -> None:
        if self.done:
            raise Broken("protocol", "the server answered twice")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._body is not None:  # A trailer.
            return
        key, text, headers = _name(name), value.decode("latin-1").strip(" \t"), self.headers
        headers[key] = f"{headers[key]}, {text}" if key in headers else text

    @_callback
    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self.status = self._parser.get_status_code()
        if status < 200:
            return
        limit, wanted, sink_limit = self._into
        headers, sink = self.headers, None
        if wanted is not None and status == 200:
            limit, sink = sink_limit, wanted
        if self.bodiless:
            self._body = _Body(limit, None, "")
            self.done = True
            return
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise Broken("protocol", f"the transfer encoding {headers['transfer-encoding']!r} is not supported")
        self._body = _Body(limit, sink, headers.get("content-encoding", ""))
        if int(headers.get("content-length", 0)) > limit and status not in (204, 304):
            raise self._body.too_large()

    @_callback
    def on_body(self, data: bytes) -> None:
        if self.done:
            raise Broken("protocol", "the server sent a body where there is none")
        assert self._body is not None
        self._quiet = 0
        self._body.write(data)

    @_callback
    def on_message_complete(self) -> None:
        if self.status < 200:
            self.headers = {}
            return
        if self.done:
            return
        assert self._parser is not None and self._body is not None
        self._body.end()
        self.keep = self._parser.should_keep_alive()
        self.done = True


class _Body:
    """Takes a body as it comes off the wire, unpacks it, and holds it or passes it on, `limit` bytes at most."""

    __slots__ = ("_buffer", "_limit", "_sink", "_size", "_unpack", "_wire")

    def __init__(self, limit: int, sink: Sink | None, encoding: str) -> None:
        self._limit = limit
        self._sink = sink
        self._unpack = Unpacking(encoding) if encoding else None
        # One growing buffer, because a list of millions of tiny chunks would outweigh the body it holds.
        self._buffer: bytes | bytearray = b""
        self._size = self._wire = 0

    def too_large(self) -> Broken:
        return Broken("too-large", f"the body of the answer exceeds {self._limit} bytes")

    def write(self, data: bytes) -> None:
        self._wire += len(data)
        if self._wire > self._limit:
            raise self.too_large()
        if self._unpack is None:
            self._take(data)
        else:
            for piece in self._unpack.pieces(data):
                self._take(piece)

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise self.too_large()
        if self._sink is not None:
            self._sink(data)
        elif not self._buffer:
            self._buffer = data
        elif isinstance(self._buffer, bytes):
            self._buffer = bytearray(self._buffer)
            self._buffer += data
        else:
            self._buffer += data

    def end(self) -> None:
        if self._unpack is not None and self._wire and not self._unpack.finished:
            raise Broken("protocol", "the compressed body of the answer ends too early")

    def whole(self) -> bytes:
        return bytes(self._buffer)


class Connection(asyncio.Protocol):
    """A connection that carries one exchange at a time; `lost` is called once, when it is over."""

    __slots__ = ("_exchange", "_full", "_waiter", "closed", "idle_since", "lost", "transport")

    transport: asyncio.Transport

    def __init__(self, lost: Callable[[Connection], object]) -> None:
        self.lost = lost
        self.closed = False
        self.idle_since = 0.0
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[None] | None = None
        #: Over when more can be written; None: now.
        self._full: asyncio.Future[None] | None = None

    async def carry(self, exchange: Exchange) -> None:
        """Send a request and wait until its answer is complete; whoever is cancelled meanwhile must `abort`."""
        transport = self.transport
        if self.closed or transport.is_closing():
            raise Broken("disconnected", "the server closed the connection before the request was sent")
        self._exchange = exchange
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        exchange.sent = True
        data = exchange.data
        if isinstance(data, UploadBody):
            await self._write(exchange.head, data, waiter)
        elif len(data) < JOIN_BELOW:
            transport.write(exchange.head + data)
        else:
            transport.write(exchange.head)
            transport.write(data)
        await waiter
        if exchange.keep and (self.closed or transport.get_write_buffer_size()):
            exchange.keep = False  # Answered before the request was all sent: the rest would spoil the next one.

    async def _write(self, head: bytes, pieces: UploadBody, over: asyncio.Future[None]) -> None:
        """Write a body as fast as the server takes it, unless it has answered already."""
        self.transport.write(head)
        for piece in pieces:
            if self._full is not None:
                await asyncio.wait((self._full, over), return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                self.abort()  # it expects the rest, and must not take the next request for that
                return
            self.transport.write(piece)

    def abort(self) -> None:
        """End the connection now, without a word to the server."""
        self.closed = True
        self.transport.abort()

    def _settle(self, failure: BaseException | None) -> None:
        waiter, self._exchange, self._waiter = self._waiter, None, None
        if waiter is None or waiter.done():
            return
        if failure is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(failure)

    # Called by the event loop.

    def pause_writing(self) -> None:
        self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        full, self._full = self._full, None
        if full is not None and not full.done():
            full.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()  # Nobody asked: whatever it is, the next request must not take it for its answer.
            return
        try:
            exchange.feed(data)
        except BaseException as why:
            self._settle(why)
            self.abort()
        else:
            if exchange.done:
                self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        exchange = self._exchange
        if exchange is not None:
            try:
                exchange.end()
                if exc is not None:
                    raise Broken("disconnected", f"the connection broke in the middle of the answer ({exc})")
            except BaseException as why:
                self._settle(why)
            else:
                self._settle(None)
        self.lost(self)
