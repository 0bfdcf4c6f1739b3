"""Who may use a local server: requests for its own name, from its own pages, with its token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from fanfold.addresses import is_loopback
from fanfold.errors import ConfigError
from fanfold.web.wire import ApiError, Request, WebResponse, reply

LOOPBACK = ("localhost", "127.0.0.1", "::1")
SHORTEST_TOKEN = 16


class Gate:
    """Refuses requests for another host, from a page of another origin, or without the token.

    A page that someone has open in a browser can therefore not reach the server under a name of its own. The token
    comes as `Authorization: Bearer TOKEN`, or in the cookie that `cookie` gives to the server's own page.
    """

    def __init__(self, token: str, host: str = "127.0.0.1", names: Iterable[str] = ()) -> None:
        if len(token) < SHORTEST_TOKEN:
            raise ConfigError(f"a token of {len(token)} characters can be guessed: use {SHORTEST_TOKEN} or more")
        own = LOOPBACK if is_loopback(host) else (host,)
        self._names = {name.casefold() for name in (*own, *names)}
        self._token = token.encode()
        # Browsers share cookies among all ports of a host: each server gets a name of its own.
        self._cookie = f"fanfold-{hashlib.sha256(self._token).hexdigest()[:12]}"

    def check_source(self, request: Request) -> None:
        """Refuse a request that was made for another host, or by a page of another origin."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if _hostname(host) not in self._names:
            raise ApiError(403, f"this service is not called {host!r:.80}: start it with --allow-host", type="host")
        if origin is not None and origin.casefold() != f"http://{host}".casefold():
            raise ApiError(
                403, f"pages of {origin!r:.80} may not use this service: ask from your server", type="origin"
            )
        if origin is None and request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            destination = request.headers.get("sec-fetch-mode")
            if destination != "navigate":  # a link that someone follows is fine: it carries no cookie of ours
                raise ApiError(403, "pages of other origins may not use this service", type="origin")

    def check_token(self, request: Request) -> None:
        """Refuse a request without the token."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme == "Bearer" and self.opens(bearer):
            return
        cookies = (pair.strip().partition("=") for pair in request.headers.get("cookie", "").split(";"))
        if any(name == self._cookie and self.opens(value) for name, _, value in cookies):
            return
        text = "send the service's token as `Authorization: Bearer TOKEN`"
        raise ApiError(401, text, type="token", headers={"www-authenticate": "Bearer"})

    def opens(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(errors="replace"), self._token)

    def cookie(self) -> str:
        """The value of a `Set-Cookie` header that lets a browser in; scripts cannot read it."""
        return f"{self._cookie}={self._token.decode()}; Path=/; HttpOnly; SameSite=Strict"


def check_json(request: Request) -> None:
    """Refuse a body that a plain HTML form could have sent."""
    if request.headers.get("content-type", "").partition(";")[0].strip().casefold() != "application/json":
        raise ApiError(415, "send JSON, with `Content-Type: application/json`", type="content-type")


def refusal(error: ApiError) -> WebResponse:
    """The error as a response."""
    return reply({"error": {"type": error.type, "message": error.message}}, error.status, error.headers)


def _hostname(host: str) -> str:
    """The name in a `Host` header, without its port."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.casefold()
