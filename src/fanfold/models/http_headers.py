"""The headers of a request, as they are sent."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from fanfold.errors import ConfigError
from fanfold.models.http_route import AGENT

#: The name of a method or a header.
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "te", "transfer-encoding", "upgrade"}
)


def header_lines(headers: Mapping[str, str]) -> str:
    """The headers as they are sent, ours among them; refuses whatever could end a header early and begin another."""
    agent = AGENT
    for name in headers:
        if _check_name(name):
            agent = ""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    count = len(headers)
    if lines.count("\n") != count or lines.count("\r") != count or "\0" in lines or not lines.isascii():
        _blame(headers)
    return agent + lines


@functools.lru_cache(64)
def header_block(headers: tuple[tuple[str, str], ...]) -> str:
    """`header_lines`, which are the same for most calls to a model."""
    return header_lines(dict(headers))


@functools.lru_cache(256)
def _check_name(name: str) -> bool:
    """Refuse the name of a header that cannot be sent; whether it replaces our user agent."""
    if not TOKEN.fullmatch(name):
        raise ConfigError(f"{name!r} is not a valid header name")
    if name.lower() in _OURS:
        raise ConfigError(f"the header {name!r} is set by the client itself; leave it out")
    return name.lower() == "user-agent"


def _blame(headers: Mapping[str, str]) -> None:
    """Name the header whose value cannot be sent, and never the value, which may be a key."""
    for name, value in headers.items():
        if re.search(r"[\r\n\0]", str(value)):
            raise ConfigError(f"the value of header {name!r} holds a line break; strip it (a key read from a file?)")
        try:
            str(value).encode("latin-1")
        except UnicodeEncodeError:
            raise ConfigError(f"the value of header {name!r} holds characters that HTTP cannot carry") from None
