"""The way to a server: what a URL says, where it redirects, which address answers, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from fanfold import __version__
from fanfold.addresses import shown
from fanfold.errors import ConfigError
from fanfold.models.http_bodies import Broken
from fanfold.models.http_exchange import Connection, Exchange, Response
from fanfold.models.http_proxy import Origin, Proxy, connect_by_socks, parse

PORTS = {"http": 80, "https": 443}
# How long a name's addresses are remembered, and how long one of several may keep us waiting for a connection.
REMEMBER_NAMES = 60.0
NEXT_ADDRESS_AFTER = 3.0
# How long the last address, and then its TLS handshake, may take: who does not even greet in this time is not there.
CONNECT_WITHIN = 15.0

_VISIBLE = re.compile(r"[!-~]+")
AGENT = f"user-agent: fanfold/{__version__}\r\n"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A URL understood: where to connect, and the part of the request's head that follows its method."""

    origin: Origin
    proxy: Proxy | None
    start: str = field(repr=False)


def route(url: str, proxy_for: Callable[[Origin], Proxy | None]) -> HttpRoute:
    """Understand a URL, or say what is wrong with it."""
    proxy, through = None, ""
    if url.startswith(("unix:", "http+unix:")):
        path, target = _unix(url)
        origin, name = Origin("unix", path, 0), "localhost"
    else:
        parts, host, port = parse(url, PORTS)
        if "@" in parts.netloc:
            raise ConfigError(f"the URL {shown(url)!r} carries a user or password; give credentials as a header")
        origin = Origin(parts.scheme, host, port)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        name = origin.authority.removesuffix(f":{PORTS[origin.scheme]}")
        proxy = proxy_for(origin)
        if proxy is not None and origin.scheme == "http" and not proxy.socks:
            target, through = f"http://{name}{target}", proxy.header
    return HttpRoute(origin, proxy, f" {target} HTTP/1.1\r\nhost: {name}\r\naccept-encoding: gzip\r\n{through}")


def _unix(url: str) -> tuple[str, str]:
    """The path of a Unix socket and the target of the request: unix:///a.sock:/v1 or http+unix://%2Fa.sock/v1."""
    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        path, slash, target = rest.partition(":/")
    else:
        host, slash, target = rest.partition("/")
        path = unquote(host)
    if not (slash and path.startswith("/") and _VISIBLE.fullmatch(path + target)):
        raise ConfigError(f"cannot use the URL {shown(url)!r}: write it like unix:///path/to.sock:/v1")
    return path, "/" + target.partition("#")[0]


def redirected_to(method: str, url: str, response: Response) -> str | None:
    """Where a response sends the request on to, if it may follow."""
    location = response.headers.get("location") if 300 <= response.status < 400 else None
    return redirect_target(method, url, response.status, location) if location else None


def redirect_target(method: str, url: str, status: int, location: str) -> str | None:
    """The URL that a redirect leads to, where it may be followed: to the same server, with the same method and body.

    A key must not travel to another host or port, nor over plain http; http to https on the usual ports is fine.
    """
    if status not in (307, 308) and not (status in (301, 302, 303) and method in ("GET", "HEAD")):
        return None
    target = urljoin(url, location)
    try:
        here, there = (
            Origin(parts.scheme, host, port) for parts, host, port in (parse(u, PORTS) for u in (url, target))
        )
    except ConfigError:
        return None
    safer = here == Origin("http", there.host, 80) and there == Origin("https", here.host, 443)
    return target if location and "@" not in urlsplit(target).netloc and (here == there or safer) else None


@dataclass(slots=True)
class _Known:
    until: float
    addresses: list[tuple[int, Any]]


@contextlib.contextmanager
def _tls_failures(origin: Origin) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as why:
        raise Broken(
            "certificate",
            f"the certificate of {origin.authority} is not accepted: {why.verify_message or why}; check the address, "
            "or name the authority that signed it in SSL_CERT_FILE or REQUESTS_CA_BUNDLE",
        ) from None
    except (OSError, EOFError) as why:
        raise Broken("tls", f"no TLS handshake with {origin.authority}: {why}") from None


def _reason(failure: OSError | None) -> str:
    # The event loop's own words leave out what the number means.
    return os.strerror(failure.errno) if failure and failure.errno else str(failure or "") or "no answer"


def default_tls(environ: Mapping[str, str]) -> ssl.SSLContext:
    """TLS that trusts SSL_CERT_FILE, which OpenSSL reads itself, else REQUESTS_CA_BUNDLE, else the system."""
    bundle = "" if environ.get("SSL_CERT_FILE") else environ.get("REQUESTS_CA_BUNDLE") or ""
    if not bundle:
        return ssl.create_default_context()
    try:
        folder = os.path.isdir(bundle)  # noqa: PTH112 (as OpenSSL takes it)
        return ssl.create_default_context(cafile=None if folder else bundle, capath=bundle if folder else None)
    except OSError as why:
        raise Broken("certificate", f"REQUESTS_CA_BUNDLE={bundle} holds no usable certificates: {why}") from None


async def _reach(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


class Dialler:
    """Opens connections.

    A name is looked up once for all who ask at the same time, and the address that answered last is tried first.
    """

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._known: dict[tuple[str, int], _Known] = {}
        self._lookups: dict[tuple[str, int], asyncio.Task[list[tuple[int, Any]]]] = {}

    async def dial(self, origin: Origin, proxy: Proxy | None, lost: Callable[[Connection], object]) -> Connection:
        """Connect all the way: name, address, proxy, TLS; raises Broken."""
        loop = asyncio.get_running_loop()
        tunnel = proxy is not None and not proxy.socks
        direct_tls = origin.scheme == "https" and not tunnel
        context = self._tls() if direct_tls else None
        sock = await self._socket(origin, proxy)
        connection = Connection(lost)
        with _tls_failures(origin):
            await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=context,
                server_hostname=origin.host if direct_tls else None,
                ssl_handshake_timeout=CONNECT_WITHIN if direct_tls else None,
            )
        if proxy is not None and tunnel and origin.scheme == "https":
            try:
                await self._tunnel(connection, origin, proxy)
            except BaseException:
                connection.abort()
                raise
        return connection

    async def _socket(self, origin: Origin, proxy: Proxy | None) -> socket.socket:
        """A socket that leads to an origin, or to an HTTP proxy in between."""
        if origin.scheme == "unix":
            try:
                return await _reach(socket.AF_UNIX, origin.host)
            except OSError as why:
                raise Broken("connect", f"no connection to {origin.host}: {_reason(why)}") from None
        if proxy is None:
            return await self._connect(origin.host, origin.port)
        try:
            sock = await self._connect(proxy.host, proxy.port)
        except Broken as why:
            raise Broken("proxy", f"the proxy cannot be reached: {why}") from None
        if proxy.socks:
            try:
                async with asyncio.timeout(CONNECT_WITHIN):
                    await connect_by_socks(sock, proxy, origin)
            except OSError as why:
                sock.close()
                raise Broken(
                    "proxy", f"the proxy {proxy.host}:{proxy.port} opened no connection: {_reason(why)}"
                ) from None
            except BaseException:
                sock.close()
                raise
        return sock

    async def _tunnel(self, connection: Connection, origin: Origin, proxy: Proxy) -> None:
        name = origin.authority
        head = f"CONNECT {name} HTTP/1.1\r\nhost: {name}\r\n{proxy.header}\r\n".encode("latin-1")
        exchange = Exchange(head, limit=0, bodiless=True)
        try:
            await connection.carry(exchange)
        except Broken as why:
            raise Broken("proxy", f"the proxy {proxy.host}:{proxy.port} opened no tunnel: {why}") from None
        if not 200 <= exchange.status < 300:
            hint = "; its URL needs a user and password" if exchange.status == 407 else ""
            raise Broken("proxy", f"the proxy {proxy.host}:{proxy.port} refused a tunnel ({exchange.status}){hint}")
        loop = asyncio.get_running_loop()
        with _tls_failures(origin):
            transport = await loop.start_tls(
                connection.transport,
                connection,
                self._tls(),
                server_hostname=origin.host,
                ssl_handshake_timeout=CONNECT_WITHIN,
            )
            if transport is None:
                raise EOFError("the connection was closed")
        connection.transport = transport

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = default_tls(os.environ)
        return self._context

    async def _connect(self, host: str, port: int) -> socket.socket:
        """A connected socket to the first address that answers."""
        addresses = await self._addresses(host, port)
        failure: OSError | None = None
        left = list(addresses)
        while left:
            entry = left.pop(0)
            try:
                async with asyncio.timeout(NEXT_ADDRESS_AFTER if left else CONNECT_WITHIN):
                    sock = await _reach(*entry)
            except OSError as why:
                failure = why
            else:
                addresses.sort(key=entry.__ne__)
                return sock
        self._known.pop((host, port), None)
        raise Broken("connect", f"no connection to {host} port {port}: {_reason(failure)}")

    async def _addresses(self, host: str, port: int) -> list[tuple[int, Any]]:
        loop, key = asyncio.get_running_loop(), (host, port)
        known = self._known.get(key)
        if known is not None and known.until > loop.time():
            return known.addresses
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = loop.create_task(self._look_up(host, port))
            lookup.add_done_callback(functools.partial(self._looked_up, key))
        # One caller's cancellation must not take the answer from the others.
        return await asyncio.shield(lookup)

    def _looked_up(self, key: tuple[str, int], lookup: asyncio.Task[list[tuple[int, Any]]]) -> None:
        del self._lookups[key]
        if not lookup.cancelled():
            lookup.exception()  # Everyone who asked may be gone, which is no reason for a warning.

    async def _look_up(self, host: str, port: int) -> list[tuple[int, Any]]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as why:
            raise Broken("dns", f"the host name {host!r} cannot be resolved: {why}; check its spelling") from None
        addresses: list[tuple[int, Any]] = list(dict.fromkeys((entry[0], entry[4]) for entry in found))
        self._known[host, port] = _Known(loop.time() + REMEMBER_NAMES, addresses)
        return addresses
