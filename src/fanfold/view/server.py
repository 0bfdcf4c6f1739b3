"""The server of `fanfold view`: pages of ledgers as JSON, live changes, and the few things a page can do."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fanfold.errors import FanfoldError, LedgerError
from fanfold.redaction import redact, redact_body
from fanfold.report.assets import FILES
from fanfold.sync import noticed
from fanfold.view.actions import Actions
from fanfold.view.live import follow_run, follow_runs
from fanfold.view.metrics import scrape
from fanfold.view.pages import answer, tile
from fanfold.view.shelf import Shelf
from fanfold.web import ApiError, Gate, Request, WebResponse, read_json, reply, serve
from fanfold.web.gate import check_json, refusal

#: Bytes of a request's body.
MAX_BODY = 64 * 2**10
#: What a page of this server may load and do: its own files, and nothing of anybody else.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_KINDS |= {"css": "text/css; charset=utf-8"}


class ViewServer:
    """Answers the requests of the web app.

    Everything but the page itself needs the token. Reading changes nothing in a ledger; what a page can do is in
    `Actions`.
    """

    def __init__(self, shelf: Shelf, gate: Gate) -> None:
        self._shelf, self._gate = shelf, gate
        self._actions = Actions(shelf)

    async def respond(self, request: Request) -> WebResponse:
        try:
            self._gate.check_source(request)
            response = await self._answer(request)
        except ApiError as error:
            response = refusal(error)
        except (FanfoldError, ValueError) as error:
            status = 404 if isinstance(error, LedgerError) else 400
            response = refusal(ApiError(status, redact(str(error)), type=type(error).__name__))
        except Exception as error:
            print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="")
            text = "this cannot be shown, and the server's log says why: the row may be damaged"
            response = refusal(ApiError(500, text, type="internal"))
        response.headers.update({name: value for name, value in HEADERS.items() if name not in response.headers})
        return response

    def wall(self) -> float:
        return time.time()

    async def close(self) -> None:
        await self._actions.close()
        self._shelf.close()

    async def _answer(self, request: Request) -> WebResponse:
        path, method = request.path, request.method
        if method not in ("GET", "POST"):
            raise ApiError(405, f"{method} is not used here", type="method", headers={"allow": "GET, POST"})
        if method == "POST":
            return await self._post(request)
        if (file := FILES.get("index.html" if path == "/" else path.removeprefix("/"))) is not None:
            return WebResponse(200, {"content-type": _KINDS[file.suffix[1:]]}, file.read_bytes())
        self._gate.check_token(request)
        if path == "/api/events":
            return await self._events(request)
        if path == "/metrics":
            text = await self._shelf.read(lambda: scrape(self._shelf.ledgers()))
            return WebResponse(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, text.encode())
        match path.split("/"):
            case ["", "api", "run", ledger, name, "file", digest]:
                return await self._file(int(ledger), name, digest)
            case ["", "api", "run", ledger, name, "tile"]:
                return await self._tile(request, int(ledger), name)
        body = await self._shelf.read(lambda: redact_body(answer(self._shelf, request)))
        return WebResponse(200, {"content-type": "application/json"}, body)

    async def _post(self, request: Request) -> WebResponse:
        if request.headers.get("origin") is None and "sec-fetch-site" in request.headers:
            raise ApiError(403, "send the Origin of this page", type="origin")
        check_json(request)
        body = read_json(request.body)
        if request.path == "/api/enter":
            if not self._gate.opens(str(body.get("token", ""))):
                raise ApiError(401, "this is not the token of this server: open the address it printed", type="token")
            return reply({"ok": True}, headers={"set-cookie": self._gate.cookie()})
        self._gate.check_token(request)
        match request.path.split("/"):
            case ["", "api", "run", ledger, name, what]:
                return reply({"ok": True, "said": await self._actions.do(int(ledger), name, what, body)})
        raise ApiError(404, "there is nothing here", type="path")

    async def _tile(self, request: Request, ledger: int, name: str) -> WebResponse:
        data = await self._shelf.read(lambda: tile(self._shelf, ledger, name, request.query))
        tag = f'"{zlib.crc32(data):08x}-{len(data)}"'
        headers = {"content-type": "application/octet-stream", "etag": tag, "cache-control": "no-cache"}
        same = request.headers.get("if-none-match") == tag
        return WebResponse(304 if same else 200, headers, b"" if same else data)

    async def _file(self, ledger: int, name: str, digest: str) -> WebResponse:
        data = await self._shelf.read(lambda: self._shelf.shown(ledger, name).view.ledger.blob(digest))
        headers = {"content-type": "application/octet-stream"}
        headers["content-disposition"] = f'attachment; filename="{digest[:40] if digest.isalnum() else "file"}.bin"'
        return WebResponse(200, headers, data)

    async def _events(self, request: Request) -> WebResponse:
        mark = request.headers.get("last-event-id") or request.query.get("mark")
        if "run" in request.query:
            text, _, name = request.query["run"].partition("/")
            number, since = int(text), None if mark is None else int(mark)
            await self._shelf.read(lambda: self._shelf.view(number, name))  # what is not there is refused now
            live = follow_run(self._shelf, number, name, since)
        else:
            live = follow_runs(self._shelf)
        return WebResponse(200, {"content-type": "text/event-stream"}, b"", live=live)


@asynccontextmanager
async def viewing(
    paths: Sequence[Path], token: str, *, host: str = "127.0.0.1", port: int = 0, names: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Serve ledgers as long as the context lasts; gives the URL without the token."""
    shelf = Shelf(paths)
    server = ViewServer(shelf, Gate(token, host, names))
    async with serve(server, host=host, port=port, name="fanfold", max_body=MAX_BODY) as url:
        # The studies of all runs are imported while the browser starts.
        first = asyncio.create_task(shelf.read(lambda: answer(shelf, Request("GET", "/api/runs"))))
        first.add_done_callback(noticed)
        yield url
