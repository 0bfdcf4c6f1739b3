"""A lean HTTP/1.1 client for JSON APIs: pooled connections, one deadline per call, bounded answers."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

from fanfold.addresses import shown
from fanfold.errors import ConfigError, FanfoldError
from fanfold.models.deadline import Deadline
from fanfold.models.http_bodies import Broken, UploadBody
from fanfold.models.http_exchange import Connection, Exchange, Response, Sink
from fanfold.models.http_headers import TOKEN, header_block
from fanfold.models.http_proxy import Origin, Proxies
from fanfold.models.http_route import Dialler, HttpRoute, redirected_to, route
from fanfold.models.transport import Transport

__all__ = ["Http", "HttpError", "Response"]

_WITH_BODY = frozenset({"PATCH", "POST", "PUT"})
_ROUTES_KEPT = 1024
MOST_REDIRECTS = 5


class HttpError(FanfoldError):
    """A call that brought no answer.

    `kind` is dns, connect, tls (no handshake), certificate (one that is not accepted), proxy, timeout, disconnected,
    too-large or protocol.  `sent` says whether the server may have seen the request; when it is False, sending it again
    cannot do anything twice.
    """

    def __init__(self, message: str, kind: str = "protocol", sent: bool = True) -> None:
        super().__init__(message)
        self.kind = kind
        self.sent = sent


class Http(Transport):
    """An HTTP/1.1 client that belongs to the event loop it is first used in.

    At most `connections` are open at once; further calls wait for one in the order they came.  A free connection is
    reused, the most recently used first, and closed after `idle` seconds.  A body beyond `max_bytes`, as sent or
    unpacked, fails the call.  A redirect is followed only to the same server and with the same method and body, as keys
    must not travel; every other status is an answer.

    `verify` replaces the default TLS context; `proxies` replaces the environment, in which HTTPS_PROXY, HTTP_PROXY,
    ALL_PROXY and NO_PROXY are read (an empty mapping means no proxy).
    """

    def __init__(
        self,
        *,
        connections: int = 4096,
        idle: float = 60.0,
        max_bytes: int = 64 << 20,
        verify: ssl.SSLContext | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> None:
        if connections < 1:
            raise ConfigError(f"connections must be at least 1, not {connections}")
        self._max_bytes = max_bytes
        self._proxies = Proxies(os.environ if proxies is None else proxies)
        self._routes: dict[str, HttpRoute] = {}
        self._dialler = Dialler(verify)
        self._pool = _Pool(self._dialler, connections, idle)

    def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        max_bytes: int | None = None,
        replay: bool = True,
    ) -> Coroutine[Any, Any, Response]:
        """Send a request and give the whole answer, or raise HttpError.

        `deadline` is in seconds, for everything from waiting for a connection to the last byte.  A server may close a
        kept connection just when a request goes out on it: that request is sent once more on a new connection, unless
        anything came back or `replay` is False (for what must never happen twice; the error then has `sent` True).
        """
        limit, data, bodiless = self._max_bytes if max_bytes is None else max_bytes, body or b"", method == "HEAD"

        def make(head: bytes) -> Exchange:
            return Exchange(head, data, limit=limit, bodiless=bodiless)

        return self._call(method, url, headers, body, make, deadline, replay)

    async def download(
        self,
        url: str,
        headers: Mapping[str, str],
        sink: Sink,
        *,
        deadline: float | None = None,
        max_bytes: int = 4 << 30,
    ) -> Response:
        """GET a body of up to `max_bytes` into `sink`, piece by piece.

        Only the body of a 200 goes there (the response then has none); that of any other status is in the response, and
        is bounded like that of a request.  When the call fails, `sink` may hold a part.
        """
        make = functools.partial(Exchange, limit=self._max_bytes, sink=sink, sink_limit=max_bytes)
        return await self._call("GET", url, headers, None, make, deadline, True)

    async def upload(
        self, url: str, headers: Mapping[str, str], body: UploadBody, *, deadline: float | None = None
    ) -> Response:
        make = functools.partial(Exchange, data=body, limit=self._max_bytes)
        return await self._call("POST", url, headers, body, make, deadline, True)

    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes, sink: Sink, *, deadline: float | None = None
    ) -> Response:
        limit = self._max_bytes
        make = functools.partial(Exchange, data=body, limit=limit, sink=sink, sink_limit=limit)
        return await self._call("POST", url, headers, body, make, deadline, True)

    async def close(self) -> None:
        """Close all connections; calls that are under way fail as disconnected, and later ones are refused."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _route(self, url: str) -> HttpRoute:
        way = self._routes.get(url)
        if way is None:
            if len(self._routes) >= _ROUTES_KEPT:
                self._routes.clear()
            way = self._routes[url] = route(url, self._proxies)
        return way

    async def _call(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | UploadBody | None,
        make: Callable[[bytes], Exchange],
        deadline: float | None,
        replay: bool,
    ) -> Response:
        sent = False
        try:
            with Deadline(deadline) as scope:
                for _ in range(1 + MOST_REDIRECTS):
                    way = self._route(url)
                    exchange = make(_head(method, way, headers, body))
                    try:
                        await self._pool.carry(way, exchange, replay)
                    finally:
                        sent = exchange.sent
                    response = exchange.response()
                    target = redirected_to(method, url, response)
                    if target is None:
                        break
                    url = target
            return response
        except Broken as why:
            raise HttpError(f"{method} {shown(url)}: {why}", why.kind, sent) from None
        except TimeoutError:
            if not scope.expired:
                raise
            what = "no complete answer" if sent else "no connection"
            raise HttpError(f"{method} {shown(url)}: {what} within {deadline:g} s", "timeout", sent) from None


def _head(method: str, way: HttpRoute, headers: Mapping[str, str], body: bytes | UploadBody | None) -> bytes:
    lines = header_block(tuple(headers.items()))
    if body is not None:
        length = f"content-length: {len(body)}\r\n"
    else:
        length = "content-length: 0\r\n" if method in _WITH_BODY else ""
    return f"{_check_method(method)}{way.start}{lines}{length}\r\n".encode("latin-1")


@functools.lru_cache(64)
def _check_method(method: str) -> str:
    if not TOKEN.fullmatch(method) or method != method.upper() or method == "CONNECT":
        raise ConfigError(f"{method!r} is not a usable HTTP method; expected one like 'GET' or 'POST'")
    return method


class _Pool:
    """Connections: at most `places` of them, each busy, idle in its origin's shelf, or promised to the first waiter.

    Nothing is idle while anyone waits: what becomes free goes to the first waiter, as it is when it leads to the right
    origin, as an empty place otherwise.
    """

    def __init__(self, dialler: Dialler, places: int, idle: float) -> None:
        self._dialler = dialler
        self._places = places
        self._idle_limit = idle
        self._idle: dict[Origin, dict[Connection, None]] = {}  # Oldest first.
        self._origins: dict[Connection, Origin] = {}
        self._waiters: deque[tuple[Origin, asyncio.Future[Connection | None]]] = deque()
        self._sweeping: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def carry(self, way: HttpRoute, exchange: Exchange, replay: bool) -> None:
        """Complete an exchange on a connection that is free, becomes free, or is opened for it."""
        self._check_loop()
        shelf = self._idle.get(way.origin)
        connection, reused = (shelf.popitem()[0], True) if shelf else await self._take(way)
        try:
            try:
                await connection.carry(exchange)
            except Broken as why:
                stale = reused and why.kind == "disconnected" and not exchange.touched
                if not stale or self._closed or (exchange.sent and not replay):
                    raise
                connection.abort()
                exchange.again()
                connection = await self._open(way)
                await connection.carry(exchange)
        except BaseException:
            connection.abort()
            self._vacate()
            raise
        if exchange.keep:
            self._put_back(way.origin, connection)
        else:
            connection.abort()
            self._vacate()

    async def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        while self._waiters:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_exception(Broken("disconnected", "the client was closed"))
        for connection in list(self._origins):
            connection.abort()
        while self._origins:
            await asyncio.sleep(0)

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise ConfigError("this Http belongs to another event loop; make one for each loop")
            self._loop = loop
        if self._closed:
            raise ConfigError("this Http was closed; make a new one")

    async def _take(self, way: HttpRoute) -> tuple[Connection, bool]:
        """A connection where none is idle, and whether it was used before."""
        if not self._places:
            self._evict()
        if self._places:
            self._places -= 1
        else:
            connection = await self._wait(way.origin)
            if connection is not None:
                return connection, True
        try:
            return await self._open(way), False
        except BaseException:
            self._vacate()
            raise

    async def _open(self, way: HttpRoute) -> Connection:
        connection = await self._dialler.dial(way.origin, way.proxy, self._lost)
        if self._closed:
            connection.abort()
        if not connection.closed:
            self._origins[connection] = way.origin
        return connection

    async def _wait(self, origin: Origin) -> Connection | None:
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append((origin, waiter))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                given = waiter.result()
                if given is None:
                    self._vacate()
                else:
                    self._put_back(origin, given)
            raise

    def _next_waiter(self) -> tuple[Origin, asyncio.Future[Connection | None]] | None:
        while self._waiters and self._waiters[0][1].done():
            self._waiters.popleft()
        return self._waiters[0] if self._waiters else None

    def _put_back(self, origin: Origin, connection: Connection) -> None:
        waiter = self._next_waiter()
        if connection.closed or (waiter is not None and waiter[0] != origin):
            connection.abort()
            self._vacate()
        elif waiter is not None:
            self._waiters.popleft()[1].set_result(connection)
        else:
            loop = asyncio.get_running_loop()
            connection.idle_since = loop.time()
            self._idle.setdefault(origin, {})[connection] = None
            if self._sweeping is None:
                self._sweeping = loop.call_later(self._idle_limit, self._sweep)

    def _vacate(self) -> None:
        if self._next_waiter() is None:
            self._places += 1
        else:
            self._waiters.popleft()[1].set_result(None)

    def _evict(self) -> None:
        """Give up an idle connection to some other origin, if there is one."""
        for shelf in self._idle.values():
            if shelf:
                connection = next(iter(shelf))
                del shelf[connection]
                connection.abort()
                self._vacate()
                return

    def _sweep(self) -> None:
        """Close what has been idle for too long, and come back when the next one will have been."""
        now = asyncio.get_running_loop().time()
        oldest = now + self._idle_limit
        for shelf in self._idle.values():
            for connection in list(shelf):
                due = connection.idle_since + self._idle_limit
                if due > now:
                    oldest = min(oldest, due)
                    break
                del shelf[connection]
                connection.abort()
                self._vacate()
        left = any(self._idle.values())
        self._sweeping = asyncio.get_running_loop().call_at(oldest, self._sweep) if left else None

    def _lost(self, connection: Connection) -> None:
        origin = self._origins.pop(connection, None)
        shelf = self._idle.get(origin) if origin is not None else None
        if shelf is not None and connection in shelf:
            del shelf[connection]
            self._vacate()
