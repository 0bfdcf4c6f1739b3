"""The way to a server: what a URL says, which proxy lies in between, which address answers, and TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from fanfold.addresses import shown
from fanfold.errors import ConfigError
from fanfold.models.http_exchange import Broken, Connection, Exchange
from fanfold.redaction import know

PORTS = {"http": 80, "https": 443}
# How long a name's addresses are remembered, and how long one of several may keep us waiting for a connection.
REMEMBER_NAMES = 60.0
NEXT_ADDRESS_AFTER = 3.0
# How long the last address, and then its TLS handshake, may take: who does not even greet in this time is not there.
CONNECT_WITHIN = 15.0

_VISIBLE = re.compile(r"[!-~]+")
_HOST_NAME = re.compile(r"[a-z0-9._-]+")


class Origin(NamedTuple):
    """Where a connection ends: scheme, host (lower-case, an IPv6 address without brackets) and port."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port as they are written in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy; `authorization` is a secret."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    @property
    def header(self) -> str:
        return f"proxy-authorization: {self.authorization}\r\n" if self.authorization else ""


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A URL understood: where to connect, and the part of the request's head that follows its method."""

    origin: Origin
    proxy: Proxy | None
    start: str = field(repr=False)


def route(url: str, proxy_for: Callable[[Origin], Proxy | None]) -> HttpRoute:
    """Understand a URL, or say what is wrong with it."""
    parts, host, port = _parse(url, PORTS)
    if "@" in parts.netloc:
        raise ConfigError(f"the URL {shown(url)!r} carries a user or password; give credentials as a header instead")
    origin = Origin(parts.scheme, host, port)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    name = origin.authority.removesuffix(f":{PORTS[origin.scheme]}")
    proxy = proxy_for(origin)
    through = ""
    if proxy is not None and origin.scheme == "http":
        target, through = f"http://{name}{target}", proxy.header
    return HttpRoute(origin, proxy, f" {target} HTTP/1.1\r\nhost: {name}\r\naccept-encoding: gzip\r\n{through}")


def _parse(url: str, ports: Mapping[str, int]) -> tuple[SplitResult, str, int]:
    """Split a URL; its host is a name or an address and nothing else, whatever lenient parsers make of it."""
    if not _VISIBLE.fullmatch(url):
        raise ConfigError(f"the URL {shown(url)!r} holds spaces or characters beyond ASCII; percent-encode them")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if "[" in parts.netloc:
            host = str(ipaddress.IPv6Address(host))
        elif not _HOST_NAME.fullmatch(host):
            raise ValueError("no valid host")
    except ValueError as why:
        raise ConfigError(f"cannot use the URL {shown(url)!r}: {why}; expected https://host[:port]/path") from None
    if parts.scheme not in ports:
        raise ConfigError(f"cannot use the URL {shown(url)!r}: its scheme must be {' or '.join(ports)}")
    return parts, host, ports[parts.scheme] if port is None else port


class Proxies:
    """Which proxy to use for an origin, as HTTPS_PROXY, HTTP_PROXY and NO_PROXY (or lower-case) say.

    NO_PROXY lists hosts (with their subdomains), host:port, addresses, networks (10.0.0.0/8), or `*`.  This machine
    itself (localhost, 127.0.0.1, ::1) is never reached by a proxy.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        def read(name: str) -> str:
            return (environ.get(name.lower()) or environ.get(name) or "").strip()

        self._urls = {"http": read("HTTP_PROXY"), "https": read("HTTPS_PROXY")}
        self._exempt = [item.strip().lower().lstrip(".") for item in read("NO_PROXY").split(",") if item.strip()]

    def __call__(self, origin: Origin) -> Proxy | None:
        url = self._urls[origin.scheme]
        if not url or self._is_exempt(origin):
            return None
        return _proxy(url if "://" in url else f"http://{url}", f"{origin.scheme.upper()}_PROXY")

    def _is_exempt(self, origin: Origin) -> bool:
        address = _address(origin.host)
        if origin.host == "localhost" or (address is not None and address.is_loopback):
            return True
        for item in self._exempt:
            if item in ("*", origin.host, origin.authority) or origin.host.endswith(f".{item}"):
                return True
            if address is not None and "/" in item and address in _network(item):
                return True
        return False


def _proxy(url: str, variable: str) -> Proxy:
    try:
        parts, host, port = _parse(url, {"http": 80})
    except ConfigError as why:
        raise ConfigError(f"{variable} does not name an HTTP proxy: {why}") from None
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not (user or password):
        return Proxy(host, port)
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
    know(password)
    know(credentials)
    return Proxy(host, port, f"Basic {credentials}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


@functools.lru_cache(64)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(f"NO_PROXY holds {text!r}, which is not a network; write it like 10.0.0.0/8") from None


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
            "or name the authority that signed it in SSL_CERT_FILE",
        ) from None
    except (OSError, EOFError) as why:
        raise Broken("tls", f"no TLS handshake with {origin.authority}: {why}") from None


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
        if proxy is None:
            sock = await self._connect(origin.host, origin.port)
        else:
            try:
                sock = await self._connect(proxy.host, proxy.port)
            except Broken as why:
                raise Broken("proxy", f"the proxy cannot be reached: {why}") from None
        connection = Connection(lost)
        direct_tls = origin.scheme == "https" and proxy is None
        with _tls_failures(origin):
            await loop.create_connection(
                lambda: connection,
                sock=sock,
                ssl=self._tls() if direct_tls else None,
                server_hostname=origin.host if direct_tls else None,
                ssl_handshake_timeout=CONNECT_WITHIN if direct_tls else None,
            )
        if origin.scheme == "https" and proxy is not None:
            try:
                await self._tunnel(connection, origin, proxy)
            except BaseException:
                connection.abort()
                raise
        return connection

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
            self._context = ssl.create_default_context()
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
        # The event loop's own words leave out what the number means.
        reason = os.strerror(failure.errno) if failure and failure.errno else str(failure or "") or "no answer"
        raise Broken("connect", f"no connection to {host} port {port}: {reason}")

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
