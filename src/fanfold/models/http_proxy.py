"""Which proxy lies between us and a server, as the usual variables say, and how a SOCKS proxy is asked to connect."""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from fanfold.addresses import shown
from fanfold.errors import ConfigError
from fanfold.models.http_bodies import Broken
from fanfold.redaction import know

_VISIBLE = re.compile(r"[!-~]+")
_HOST_NAME = re.compile(r"[a-z0-9._-]+")
_PROXY_PORTS = {"http": 80, "socks5": 1080, "socks5h": 1080}
#: What a SOCKS proxy answers instead of a connection.
_SOCKS_REFUSALS = {
    2: "its rules forbid it",
    3: "the network is unreachable",
    4: "the host is unreachable",
    5: "the connection was refused",
    6: "it took too long",
}


class Origin(NamedTuple):
    """Where a connection ends: scheme, host (lower-case, an IPv6 address without brackets) and port.

    Of a Unix socket: the scheme `unix`, its path, and 0.
    """

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port as they are written in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP or SOCKS5 proxy and its credentials, which are secrets."""

    host: str
    port: int
    socks: bool = False
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def header(self) -> str:
        return f"proxy-authorization: Basic {_basic(self)}\r\n" if self.user or self.password else ""


def _basic(proxy: Proxy) -> str:
    return base64.b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()


def parse(url: str, ports: Mapping[str, int]) -> tuple[SplitResult, str, int]:
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
    """Which proxy to use for an origin: HTTPS_PROXY or HTTP_PROXY, else ALL_PROXY, unless NO_PROXY exempts it.

    The variables may be lower-case.  NO_PROXY lists hosts (with their subdomains), host:port, addresses, networks
    (10.0.0.0/8), or `*`.  This machine itself (localhost, 127.0.0.1, ::1) is never reached by a proxy.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        def read(name: str) -> str:
            return (environ.get(name.lower()) or environ.get(name) or "").strip()

        self._variables = {
            scheme: next(
                ((name, url) for name in (f"{scheme.upper()}_PROXY", "ALL_PROXY") if (url := read(name))), None
            )
            for scheme in ("http", "https")
        }
        self._exempt = [item.strip().lower().lstrip(".") for item in read("NO_PROXY").split(",") if item.strip()]

    def __call__(self, origin: Origin) -> Proxy | None:
        variable = self._variables.get(origin.scheme)
        return None if variable is None or self._is_exempt(origin) else _proxy(*variable)

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


def _proxy(variable: str, url: str) -> Proxy:
    try:
        parts, host, port = parse(url if "://" in url else f"http://{url}", _PROXY_PORTS)
    except ConfigError as why:
        raise ConfigError(f"{variable} does not name a usable proxy: {why}") from None
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    proxy = Proxy(host, port, parts.scheme != "http", user, password)
    if proxy.header:
        know(password)
        know(_basic(proxy))
    return proxy


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


async def connect_by_socks(sock: socket.socket, proxy: Proxy, origin: Origin) -> None:
    """Ask a SOCKS5 proxy for a connection to an origin, whose name the proxy resolves (RFC 1928 and 1929)."""
    loop = asyncio.get_running_loop()
    name = f"the proxy {proxy.host}:{proxy.port}"

    async def receive(size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await loop.sock_recv(sock, size - len(data))
            if not piece:
                raise Broken("proxy", f"{name} closed the connection: is it a SOCKS5 proxy?")
            data += piece
        return data

    def counted(data: bytes) -> bytes:
        return bytes([min(len(data), 255)]) + data[:255]

    user, password = proxy.user.encode(), proxy.password.encode()
    await loop.sock_sendall(sock, b"\x05\x02\x00\x02" if user else b"\x05\x01\x00")
    version, method = await receive(2)
    if version != 5:
        raise Broken("proxy", f"{name} does not speak SOCKS5")
    if method == 2 and user:
        await loop.sock_sendall(sock, b"\x01" + counted(user) + counted(password))
        accepted = (await receive(2))[1] == 0
    else:
        accepted = method == 0
    if not accepted:
        hint = "does not accept its user and password" if user else "needs a user and password in its URL"
        raise Broken("proxy", f"{name} {hint}")

    address = _address(origin.host)
    if address is None:
        where = b"\x03" + counted(origin.host.encode())
    else:
        where = (b"\x01" if address.version == 4 else b"\x04") + address.packed
    await loop.sock_sendall(sock, b"\x05\x01\x00" + where + origin.port.to_bytes(2, "big"))
    _, refusal, _, kind = await receive(4)
    if refusal:
        why = _SOCKS_REFUSALS.get(refusal, f"SOCKS error {refusal}")
        raise Broken("proxy", f"{name} did not connect to {origin.authority}: {why}")
    # The address that the proxy connects from, which nobody needs, has to be read all the same.
    await receive({1: 4, 4: 16}.get(kind) or (await receive(1))[0])
    await receive(2)
