"""A critic over HTTP: the two verbs `ask` and `tell`, JSON in and out, for whoever has the token."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fanfold.errors import CallFailed, ConfigError, FanfoldError, UnknownShow
from fanfold.redaction import redact
from fanfold.studies.critic.application import ALIASES, Critic, ShownAnswer
from fanfold.studies.critic.feedback import KINDS
from fanfold.web import ApiError, Gate, Request, WebResponse, read_json, reply, serve
from fanfold.web.gate import check_json, refusal

#: Bytes of a request's body.
MAX_BODY = 64 * 2**10
#: Seconds that requests under way have to end when the service stops.
GRACE = 10.0
_VERBS = {"/ask": "POST", "/tell": "POST", "/health": "GET"}


class CriticServer:
    """Answers the requests of a critic's service.

    Every request needs the token, except `/health`.  A request for another host, or from a page of another origin, is
    refused: a page that someone has open in a browser cannot reach the service under a name of its own.
    """

    def __init__(self, critic: Critic, gate: Gate) -> None:
        self._critic, self._gate = critic, gate
        self._busy, self._stopping = 0, False

    async def respond(self, request: Request) -> WebResponse:
        self._busy += 1
        try:
            self._admit(request)
            return await self._answer(request)
        except ApiError as error:
            return refusal(error)
        except FanfoldError as error:
            return _refused(error)
        except Exception as error:
            print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="")
            text = "the service failed at this request, and its log says why: report it"
            return refusal(ApiError(500, text, type="internal"))
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
        self._gate.check_source(request)
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
        self._gate.check_token(request)
        check_json(request)

    async def _answer(self, request: Request) -> WebResponse:
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
    server = CriticServer(critic, Gate(token, host, hosts))
    async with serve(server, host=host, port=port, name="critic", max_body=MAX_BODY) as url:
        try:
            yield url
        finally:
            await server.drain()


def _check_keys(body: Mapping[str, Any], needed: str, others: Collection[str]) -> None:
    if needed not in body:
        raise ApiError(400, f"{needed!r} is missing", type="body")
    for name in body.keys() - {needed, *others}:
        raise ApiError(400, f"unknown key {name!r:.60}: use {', '.join([needed, *others])}", type="body")


def _as_json(shown: ShownAnswer) -> dict[str, Any]:
    both = {"texts": shown.texts, "prompts": shown.prompts} if len(shown.texts) > 1 else {}
    return {"id": shown.id, "text": shown.text, "prompt": shown.prompt, **both}


def _refused(error: FanfoldError) -> WebResponse:
    status = 404 if isinstance(error, UnknownShow) else 400 if isinstance(error, ConfigError) else 500
    headers = {}
    if isinstance(error, CallFailed):
        status = 503 if error.passing else 502
        headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    return refusal(ApiError(status, str(error), type=type(error).__name__, headers=headers))
