"""The transport by httpx: HTTP/2, and the oracle that our own client is compared with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from fanfold import __version__
from fanfold.addresses import shown
from fanfold.errors import ConfigError
from fanfold.models.http import MOST_REDIRECTS, HttpError
from fanfold.models.http_exchange import Response, Sink
from fanfold.models.http_headers import header_lines
from fanfold.models.http_proxy import Proxies
from fanfold.models.http_route import default_tls, redirected_to, route
from fanfold.models.transport import Transport

if TYPE_CHECKING:
    import httpx


class Httpx(Transport):
    """Requests through httpx, which speaks HTTP/2 with servers that do; the same promises as `Http`.

    It costs about a hundred times the CPU of `Http` per call, and is worth that only where HTTP/2 is needed.
    """

    def __init__(self, *, max_bytes: int = 64 << 20, verify: ssl.SSLContext | None = None) -> None:
        self._max_bytes = max_bytes
        self._verify = verify
        #: By the path of the Unix socket; "" is the network.
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        replay: bool = True,
    ) -> Response:
        return await self._call(method, url, headers, body, deadline)

    async def download(
        self, url: str, headers: Mapping[str, str], sink: Sink, *, deadline: float | None = None
    ) -> Response:
        return await self._call("GET", url, headers, None, deadline, sink)

    async def stream(
        self, url: str, headers: Mapping[str, str], body: bytes, sink: Sink, *, deadline: float | None = None
    ) -> Response:
        return await self._call("POST", url, headers, body, deadline, sink)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    async def _call(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        deadline: float | None,
        sink: Sink | None = None,
    ) -> Response:
        header_lines(headers)  # for its checks
        sent: list[bool] = []

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if event.endswith("send_request_headers.started"):
                sent.append(True)

        try:
            async with asyncio.timeout(deadline) as scope:
                for _ in range(1 + MOST_REDIRECTS):
                    sent.clear()
                    async with self._response(method, url, headers, body, trace) as response:
                        answer = await self._read(response, sink)
                    target = redirected_to(method, url, answer)
                    if target is None:
                        break
                    url = target
            return answer
        except TimeoutError:
            if not scope.expired():
                raise
            what = "no complete answer" if sent else "no connection"
            raise HttpError(f"{method} {shown(url)}: {what} within {deadline:g} s", "timeout", bool(sent)) from None
        except HttpError as error:
            raise HttpError(f"{method} {shown(url)}: {error}", error.kind, bool(sent)) from None

    @contextlib.asynccontextmanager
    async def _response(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, trace: Any
    ) -> AsyncIterator[httpx.Response]:
        import httpx

        way = route(url, Proxies({}))  # for its checks, and the path of a Unix socket
        path = way.origin.host if way.origin.scheme == "unix" else ""
        target = f"http://localhost{way.start.split(' ')[1]}" if path else url
        client = self._clients.get(path) or self._clients.setdefault(path, self._client(path))
        try:
            extensions = {"trace": trace}
            async with client.stream(
                method, target, headers=dict(headers), content=body, extensions=extensions
            ) as response:
                yield response
        except (httpx.RequestError, OSError) as error:
            raise HttpError(str(error) or type(error).__name__, _kind(error)) from None

    def _client(self, path: str) -> httpx.AsyncClient:
        import httpx

        transport = httpx.AsyncHTTPTransport(uds=path) if path else None
        return httpx.AsyncClient(
            http2=True,
            timeout=None,
            verify=self._verify or default_tls(os.environ),
            limits=httpx.Limits(max_connections=4096, keepalive_expiry=60.0),
            headers={"user-agent": f"fanfold/{__version__}", "accept-encoding": "gzip"},
            transport=transport,
        )

    async def _read(self, response: httpx.Response, sink: Sink | None) -> Response:
        wanted = sink if response.status_code == 200 else None
        limit = 4 << 30 if wanted else self._max_bytes
        body, size = bytearray(), 0
        if int(response.headers.get("content-length", 0)) > limit and response.request.method != "HEAD":
            raise HttpError(f"the body of the answer exceeds {limit} bytes", "too-large")
        async for piece in response.aiter_bytes():
            size += len(piece)
            if max(size, response.num_bytes_downloaded) > limit:
                raise HttpError(f"the body of the answer exceeds {limit} bytes", "too-large")
            if wanted:
                wanted(piece)
            else:
                body += piece
        return Response(response.status_code, dict(response.headers), bytes(body))


def _kind(error: Exception) -> str:
    """The kind of HttpError that an error of httpx stands for."""
    import httpx

    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    kinds: list[tuple[Any, str]] = [
        (ssl.SSLCertVerificationError, "certificate"),
        (socket.gaierror, "dns"),
        (httpx.ProxyError, "proxy"),
    ]
    for sort, kind in kinds:
        if any(isinstance(cause, sort) for cause in causes):
            return kind
    if isinstance(error, httpx.ConnectError):
        return "tls" if any(isinstance(cause, ssl.SSLError) for cause in causes) else "connect"
    closed = isinstance(error, httpx.NetworkError | OSError) or "disconnected" in str(error) or "closed" in str(error)
    return "disconnected" if closed else "protocol"


def check_httpx() -> None:
    """Refuse early where httpx or its HTTP/2 is not installed."""
    try:
        import h2.connection  # noqa: F401
        import httpx  # noqa: F401
    except ImportError:
        raise ConfigError("transport='httpx' needs another package: pip install 'fanfold[httpx]'") from None
