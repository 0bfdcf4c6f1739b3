"""A critic over HTTP: the two verbs `ask` and `tell`, JSON in and out, for whoever has the token."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import sys
import time
import traceback
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fanfold.errors import CallFailed, ConfigError, FanfoldError, UnknownShow
from fanfold.redaction import redact
from fanfold.simulator.server import serve
from fanfold.simulator.wire import ApiError, Request, SimulatedResponse, read_json, reply
from fanfold.studies.critic.application import ALIASES, Critic, ShownAnswer
from fanfold.studies.critic.feedback import KINDS

#: Bytes of a request's body.
MAX_BODY = 64 * 2**10
#: Seconds that requests under way have to end when the service stops.
GRACE = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_VERBS = {"/ask": "POST", "/tell": "POST", "/health": "GET"}


class CriticServer:
    """Answers the requests of a critic's service.

    Every request needs the token, except `/health`.  A request for another host, or from a page of another origin, is
    refused: a page that someone has open in a browser cannot reach the service under a name of its own.
    """

    def __init__(self, critic: Critic, token: str, hosts: tuple[str, ...] = LOOPBACK) -> None:
        if len(token) < 16:
            raise ConfigError(f"a token of {len(token)} characters can be guessed: use 16 or more")
        self._critic, self._hosts = critic, {host.casefold() for host in hosts}
        self._authorization = f"Bearer {token}".encode()
        self._busy, self._stopping = 0, False

    async def respond(self, request: Request) -> SimulatedResponse:
        self._busy += 1
        try:
            self._admit(request)
            return await self._answer(request)
        except ApiError as error:
            return _refusal(error.status, error.type, error.message, error.headers)
        except FanfoldError as error:
            return _refused(error)
        except Exception as error:
            print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="")
            return _refusal(500, "internal", "the service failed at this request, and its log says why: report it")
        finally:
            self._busy -= 1

    def wall(self) -> float:
        return time.time()

    async def close(self) -> None:
        """Nothing is left to end: see `drain`."""

    async def drain(self) -> None:
        """Refuse further requests, and wait for those under way."""
        self._stopping = True
        until = time.monotonic() + GRACE
        while self._busy and time.monotonic() < until:
            await asyncio.sleep(0.02)

    def _admit(self, request: Request) -> None:
        """Refuse whoever may not ask, and what cannot be asked."""
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        if _hostname(host) not in self._hosts:
            raise ApiError(403, f"this service is not called {host!r:.80}: start it with --allow-host", type="host")
        if origin is not None and origin.casefold() != f"http://{host}".casefold():
            raise ApiError(
                403, f"pages of {origin!r:.80} may not use this service: ask from your server", type="origin"
            )
        method = _VERBS.get(request.path)
        if method is None:
            raise ApiError(404, f"there is nothing here: use {', '.join(_VERBS)}", type="path")
        if request.method != method:
            text = f"{request.path} takes {method}, not {request.method}"
            raise ApiError(405, text, type="method", headers={"allow": method})
        if self._stopping:
            raise ApiError(503, "the service is stopping: try again when it is back", type="stopping")
        if request.path == "/health":
            return
        if not hmac.compare_digest(headers.get("authorization", "").encode(), self._authorization):
            text = "send the service's token as `Authorization: Bearer TOKEN`"
            raise ApiError(401, text, type="token", headers={"www-authenticate": "Bearer"})
        if headers.get("content-type", "").partition(";")[0].strip().casefold() != "application/json":
            raise ApiError(415, "send JSON, with `Content-Type: application/json`", type="content-type")

    async def _answer(self, request: Request) -> SimulatedResponse:
        if request.path == "/health":
            return reply({"status": "ok"})
        body = read_json(request.body)
        if request.path == "/ask":
            _check_keys(body, "query", ["show"])
            return reply(_as_json(await self._critic.ask(body["query"], show=body.get("show", 1))))
        _check_keys(body, "id", [*ALIASES, *KINDS])
        id = body.pop("id")
        await self._critic.tell(id, **body)
        return reply({"told": id})


@asynccontextmanager
async def serving(
    critic: Critic, token: str, *, host: str = "127.0.0.1", port: int = 0, hosts: tuple[str, ...] = ()
) -> AsyncIterator[str]:
    """Serve a critic as long as the context lasts; gives the URL.  At the end, requests under way are finished."""
    own = LOOPBACK if is_loopback(host) else (host,)
    server = CriticServer(critic, token, (*own, *hosts))
    async with serve(server, host=host, port=port, name="critic", max_body=MAX_BODY) as url:
        try:
            yield url
        finally:
            await server.drain()


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _hostname(host: str) -> str:
    """The name in a `Host` header, without its port."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.casefold()


def _check_keys(body: Mapping[str, Any], needed: str, others: Collection[str]) -> None:
    if needed not in body:
        raise ApiError(400, f"{needed!r} is missing", type="body")
    for name in body.keys() - {needed, *others}:
        raise ApiError(400, f"unknown key {name!r:.60}: use {', '.join([needed, *others])}", type="body")


def _as_json(shown: ShownAnswer) -> dict[str, Any]:
    both = {"texts": shown.texts, "prompts": shown.prompts} if len(shown.texts) > 1 else {}
    return {"id": shown.id, "text": shown.text, "prompt": shown.prompt, **both}


def _refused(error: FanfoldError) -> SimulatedResponse:
    status = 404 if isinstance(error, UnknownShow) else 400 if isinstance(error, ConfigError) else 500
    headers = {}
    if isinstance(error, CallFailed):
        status = 503 if error.passing else 502
        headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    return _refusal(status, type(error).__name__, str(error), headers)


def _refusal(status: int, type: str, message: str, headers: Mapping[str, str] | None = None) -> SimulatedResponse:
    return reply({"error": {"type": type, "message": message}}, status, headers)
