"""The address of what is shared: `redis://`, `rediss://` or `unix://`, of a Redis or Valkey server."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from fanfold.errors import ConfigError
from fanfold.redaction import know

#: Instead of an address: share nothing, although the run did before.
OFF = "off"
_FORM = "write redis://HOST:PORT/DATABASE, rediss:// with TLS, or unix:///PATH?db=0"
_BUDGET = re.compile(r"[\w.-]{1,80}")


@dataclass(frozen=True, slots=True)
class ShareAddress:
    """Where a server is and how to log in; as a text, without the password."""

    host: str
    port: int
    #: Of a Unix socket.
    path: str
    tls: bool
    database: int
    budget: str
    user: str
    password: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> ShareAddress:
        """Read an address; where it has no password, that of the variable REDISCLI_AUTH is used."""
        try:
            split = urlsplit(url)
            port = split.port or 6379
            password = unquote(split.password or "") or os.environ.get("REDISCLI_AUTH", "")
            query = parse_qs(split.query, strict_parsing=bool(split.query))
        except ValueError:
            raise ConfigError(f"the address of what is shared cannot be read: {_FORM}") from None
        know(password)
        socket = split.scheme == "unix"
        if split.scheme not in ("redis", "rediss", "unix") or not (split.path if socket else split.hostname):
            raise ConfigError(f"the address of what is shared names no Redis or Valkey server: {_FORM}")
        database = query.pop("db", ["0"])[-1] if socket else split.path.strip("/") or "0"
        budget = query.pop("budget", ["default"])[-1]
        if not (database.isascii() and database.isdecimal()) or query or split.fragment:
            wrong = ", ".join(query) or f"database {database!r}"
            raise ConfigError(f"the address of what is shared has an unknown {wrong}: {_FORM}, and ?budget=NAME")
        if _BUDGET.fullmatch(budget) is None:
            raise ConfigError(f"budget={budget!r} is not a name: use up to 80 letters, digits, dots and dashes")
        host, path = ("", split.path) if socket else (split.hostname or "", "")
        user = unquote(split.username or "")
        return cls(host, port, path, split.scheme == "rediss", int(database), budget, user, password)

    def __str__(self) -> str:
        options = [] if self.budget == "default" else [f"budget={self.budget}"]
        if self.path:
            where, options = f"unix://{self.path}", [*([f"db={self.database}"] if self.database else []), *options]
        else:
            host = f"[{self.host}]" if ":" in self.host else self.host
            where = f"redis{'s' * self.tls}://{host}:{self.port}/{self.database}"
        return f"{where}?{'&'.join(options)}" if options else where


def without_password(url: str) -> str:
    """An address as it may be written down."""
    return url if url == OFF else str(ShareAddress.parse(url))
