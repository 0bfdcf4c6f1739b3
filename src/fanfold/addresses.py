"""Which server a key may be sent to: what an address may hold, where it came from, and whom the user trusts."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from fanfold.errors import ConfigError
from fanfold.redaction import dotenv, know

#: Hosts that the user trusts with keys, by name; read from the real environment only, never from a file.
TRUSTED = "FANFOLD_TRUSTED_HOSTS"
_PORTS = {"http": 80, "https": 443}


def shown(url: str) -> str:
    """A URL as it may appear in messages: without user, password and query, any of which may hold a key."""
    scheme, separator, rest = url.partition("://")
    address = re.split(r"[?#]", rest if separator else url, maxsplit=1)[0]
    host, slash, path = address.partition("/")
    return f"{scheme + separator if separator else ''}{host.rpartition('@')[2]}{slash}{path}"


def check_address(url: str) -> None:
    """Refuse an address that carries a secret: it would be written to ledgers, reports and logs."""
    authority = url.partition("://")[2].partition("/")[0]
    user, at, _ = authority.rpartition("@")
    if at:
        password = user.partition(":")[2] or user
        know(password)
        know(unquote(password))
        raise ConfigError(
            f"the address {shown(url)!r} carries a user or password: leave it out, and give the key in its environment "
            "variable or as model(key=...)"
        )
    if re.search(r"[?#]", url):
        for value in re.findall(r"(?i)[?&#;][^=&]*(?:key|token|secret|pass|auth|sig|code)[^=&]*=([^&#;]*)", url):
            know(value)
            know(unquote(value))
        raise ConfigError(
            f"the address {shown(url)!r} carries a query or a fragment, which may hold a secret: leave it out, and "
            "give the key in its environment variable or as model(key=...)"
        )


def check_scheme(url: str) -> None:
    """Refuse an address that does not say how its server is spoken to."""
    if "://" not in url:
        written = f"{'http' if is_loopback(re.split('[:/]', url)[0]) else 'https'}://{shown(url)}"
        raise ConfigError(f"the address {shown(url)!r} has no scheme: write it as {written}")


def check_settings() -> None:
    """Refuse what carries a secret among the addresses that the environment and `.env` say."""
    for name, value in (*os.environ.items(), *dotenv()):
        if name.endswith("_BASE_URL"):
            check_address(value)


def check_recipient(url: str, own: Sequence[str], variable: str, source: str | None) -> None:
    """Refuse to send a key to an address, unless the user means it.

    `own` are the provider's own addresses.  `source` names the file that the address comes from; None: the user gave it
    on the command line, in Python or in the environment, and so trusts its host.
    """
    here = urlsplit(url)
    host = (here.hostname or "").lower()
    if (
        here.scheme in ("unix", "http+unix")
        or is_loopback(host)
        or any(_origin(here) == _origin(urlsplit(address)) for address in own)
    ):
        return
    plainly = f"http://{_authority(here)}"
    if here.scheme != "https" and not _trusts(here, plain=True):
        raise ConfigError(
            f"{shown(url)} is plain http beyond this machine, where everyone on the way can read the key of {variable}"
            f": use https, unset the key if the server needs none, or allow it with {TRUSTED}={plainly}"
        )
    if source is not None and not _trusts(here, plain=False):
        name = _authority(here)
        raise ConfigError(
            f"{source} says that the server is at {shown(url)}, and the key of {variable} is not sent to a host that "
            f"only a file names: if you trust it, set {TRUSTED}={name} (or add --trust-host {name})"
        )


def trusted(url: str) -> bool:
    """Whether the user trusts the host of an address, by FANFOLD_TRUSTED_HOSTS."""
    return _trusts(urlsplit(url), plain=False)


def addresses_in(fields: Mapping[str, Any], under: str = "") -> dict[str, str]:
    """Every address among the fields of a study, by its dotted name: what is called `url`, or ends so."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= addresses_in(value, f"{under}{name}.")
        elif isinstance(value, str) and str(name).lower().endswith("url"):
            found[f"{under}{name}"] = value
    return found


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def same_origin(url: str, other: str) -> bool:
    """Whether two addresses lead to the same server, however its usual port is written."""
    try:
        return _origin(urlsplit(url)) == _origin(urlsplit(other))
    except ValueError:  # a port that is not one, or brackets that do not match
        return False


def _origin(parts: SplitResult) -> tuple[str, str, int | None]:
    return parts.scheme, (parts.hostname or "").lower(), _port(parts)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        raise ConfigError(f"{shown(parts.geturl())!r} has no valid port: write host or host:port") from None


def _authority(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    port = _port(parts)
    return host if port in (None, _PORTS.get(parts.scheme)) else f"{host}:{port}"


def _trusts(here: SplitResult, *, plain: bool) -> bool:
    """Whether the user trusts a host: `host`, `host:port`, or `http://host:port`, which allows plain http too."""
    for item in os.environ.get(TRUSTED, "").split(","):
        entry = item.strip().lower().rstrip("/")
        if not entry:
            continue
        scheme, separator, _ = entry.partition("://")
        there = urlsplit(entry if separator else f"//{entry}")
        if plain and not (separator and scheme == "http"):
            continue
        if separator and scheme != here.scheme:
            continue
        if there.hostname == (here.hostname or "").lower() and _port(there) in (None, _port(here)):
            return True
    return False
