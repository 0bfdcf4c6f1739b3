"""The simulator without its sockets: a request comes in, a response or a broken answer goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from email.utils import formatdate

import msgspec

from fanfold.errors import ConfigError
from fanfold.simulator.anthropic import COUNT, MESSAGES, Anthropic
from fanfold.simulator.anthropic_store import AnthropicStore
from fanfold.simulator.books import Books, Charges
from fanfold.simulator.config import SimulatorConfig
from fanfold.simulator.dialect import Dialect
from fanfold.simulator.engine import Engine, Origin, owner_of
from fanfold.simulator.faults import AFTER, BEFORE, Fault, Faults
from fanfold.simulator.jobs import QUOTA
from fanfold.simulator.limits import Account, retry_headers
from fanfold.simulator.openai import CHAT, COMPLETIONS, EMBEDDINGS, OpenAI
from fanfold.simulator.openai_store import OpenAIStore
from fanfold.simulator.wire import ApiError, Broken, Json, Request, Response, read_json, reply

_Work = Callable[[Request, str], Response | Awaitable[Response]]

_GATEWAY = (
    b"<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>"
)
_STATUSES = {"rate_limit": 429, "spend_limit": 429, "internal": 500, "unavailable": 503, "overloaded": 529}
_TEXTS = {
    "rate_limit": "Rate limit reached. Please slow down.",
    "internal": "The server had an error while processing your request. Sorry about that!",
    "unavailable": "The server is currently unavailable. Please try again later.",
    "overloaded": "Overloaded",
}
#: The first of these that a reply has is what `malformed` takes away.
_ESSENTIAL = ("choices", "content", "data", "processing_status", "status", "id", "input_tokens")


class Simulator:
    """A strict fake of OpenAI and Anthropic at the edge of their APIs.

    `respond` takes the time an answer takes on the running loop, so it works on the virtual clock too; with `serve` it
    answers real sockets.  Everything charged is in `charges` and `books`, whatever became of the answer or the client.
    Work that a client stops waiting for is charged all the same.
    """

    def __init__(self, config: SimulatorConfig | None = None) -> None:
        self.config = config or SimulatorConfig()
        self._openai, self._anthropic = OpenAI(), Anthropic()
        self._engine = Engine(self.config)
        self._keys = None if self.config.keys is None else {owner_of(key) for key in self.config.keys}
        self._new_stores()

    @property
    def books(self) -> Books:
        return self._engine.books

    @property
    def charges(self) -> Charges:
        return self._engine.books.charges

    def set_faults(self, faults: Faults) -> None:
        """Replace what is to go wrong; call it on the loop that answers."""
        self._engine.set_faults(faults)

    def reset(self) -> None:
        """Begin anew: no charges, batches, files or used limits, and the faults of the settings."""
        self._engine.reset()
        self._new_stores()

    async def close(self) -> None:
        """End the batches still running."""
        await self._engine.close()

    def wall(self) -> float:
        """The provider's time of day."""
        return self._engine.wall()

    async def respond(self, request: Request) -> Response | Broken:
        """Answer one request."""
        if request.path.startswith("/_simulator/"):
            return self._administer(request)
        operation, dialect, work = self._route(request)
        faulty = bool(self._engine.plan.faults.faults)
        answer: Response | Broken | None = None
        if faulty:
            fault = self._engine.plan.draw(BEFORE, operation, self._engine.now())
            answer = None if fault is None else self._instead(fault, dialect)
        if answer is None:
            answer = await self._work(request, dialect, work)
            if faulty and answer.status < 400:
                fault = self._engine.plan.draw(AFTER, operation, self._engine.now())
                answer = answer if fault is None else _spoil(fault, answer)
        if isinstance(answer, Broken):
            self.books.broken[answer.how] += 1
        else:
            self.books.statuses[answer.status] += 1
        return answer

    async def _work(self, request: Request, dialect: Dialect, work: _Work) -> Response:
        try:
            owner = owner_of(dialect.key_of(request))
            if self._keys is not None and owner not in self._keys:
                text = "invalid x-api-key" if dialect is self._anthropic else "Incorrect API key provided."
                raise ApiError(401, text, code=None if dialect is self._anthropic else "invalid_api_key")
            response = work(request, owner)
            return response if isinstance(response, Response) else await response
        except ApiError as error:
            return dialect.failure(error, self._engine.serial())

    def _route(self, request: Request) -> tuple[str, Dialect, _Work]:
        """What a request is for, whose protocol it speaks, and what answers it."""
        path, method = request.path, request.method
        if method == "POST":
            if path in (CHAT, COMPLETIONS, EMBEDDINGS):
                return "generate", self._openai, lambda r, owner: self._generate(self._openai, path, r, owner)
            if path == MESSAGES:
                return "generate", self._anthropic, lambda r, owner: self._generate(self._anthropic, path, r, owner)
            if path == COUNT:
                return "other", self._anthropic, self._count
        parts = path.strip("/").split("/")
        dialect: Dialect
        if parts[:2] == ["v1", "messages"]:
            dialect = self._anthropic
            found = self._route_messages(method, parts[2:])
        else:
            dialect = self._anthropic if "anthropic-version" in request.headers else self._openai
            found = self._route_rest(method, parts[1:] if parts[0] == "v1" else [], dialect)
        operation, work = found or ("other", _unknown)
        return operation, dialect, work

    def _route_messages(self, method: str, parts: list[str]) -> tuple[str, _Work] | None:
        store = self._batches
        match method, parts:
            case "POST", ["batches"]:
                return "create", store.create
            case "GET", ["batches"]:
                return "list", store.list_batches
            case "GET", ["batches", id]:
                return "poll", lambda request, owner: store.get(request, id, owner)
            case "DELETE", ["batches", id]:
                return "delete", lambda request, owner: store.delete(id, owner)
            case "POST", ["batches", id, "cancel"]:
                return "cancel", lambda request, owner: store.cancel(request, id, owner)
            case "GET", ["batches", id, "results"]:
                return "results", lambda request, owner: store.results(id, owner)
        return None

    def _route_rest(self, method: str, parts: list[str], dialect: Dialect) -> tuple[str, _Work] | None:
        store = self._files
        match method, parts:
            case "GET", ["models"]:
                return "other", lambda request, owner: self._models(dialect)
            case "POST", ["files"]:
                return "upload", store.upload
            case "GET", ["files"]:
                return "list", lambda request, owner: store.list_files(request.query, owner)
            case "GET", ["files", id]:
                return "other", lambda request, owner: store.get_file(id, owner)
            case "DELETE", ["files", id]:
                return "delete", lambda request, owner: store.delete_file(id, owner)
            case "GET", ["files", id, "content"]:
                return "results", lambda request, owner: store.content(id, owner)
            case "POST", ["batches"]:
                return "create", store.create
            case "GET", ["batches"]:
                return "list", lambda request, owner: store.list_batches(request.query, owner)
            case "GET", ["batches", id]:
                return "poll", lambda request, owner: store.get(id, owner)
            case "POST", ["batches", id, "cancel"]:
                return "cancel", lambda request, owner: store.cancel(id, owner)
        return None

    async def _generate(self, dialect: Dialect, endpoint: str, request: Request, owner: str) -> Response:
        engine = self._engine
        started = engine.now()
        body = read_json(request.body)
        model = engine.check_model(dialect, body)
        account = engine.account(owner, model)
        invalid: ApiError | None = None
        try:
            prompt = dialect.read(endpoint, body)
        except ApiError as error:
            invalid = error
        # A bad request counts as a request, and its answer carries the state of the limits.
        tokens, most = (0, None) if invalid else (prompt.input_tokens, prompt.max_tokens)
        refused = account.admit(tokens, most, started)
        if refused is not None:
            late = dialect.too_fast(model, refused)
            late.headers |= self._retry_headers(account.limits.retry_after, refused.wait)
            late.headers |= self._limit_headers(dialect, account)
            raise late
        if invalid is not None:
            invalid.headers |= self._limit_headers(dialect, account)
            raise invalid
        origin = Origin(owner, request.headers.get("x-fanfold-sample", "0"))
        value, output = await engine.generate(dialect, endpoint, body, prompt, origin)
        account.spend_output(output)
        headers = dialect.headers(engine.serial()) | self._limit_headers(dialect, account)
        wait = engine.draw_time(self.config.latency, output) - (engine.now() - started)
        if wait > 0:
            await asyncio.sleep(wait)
        return reply(value, headers=headers)

    def _count(self, request: Request, owner: str) -> Response:
        body = read_json(request.body)
        self._engine.check_model(self._anthropic, body)
        return reply({"input_tokens": self._anthropic.read(COUNT, body).input_tokens})

    def _models(self, dialect: Dialect) -> Response:
        created = int(self._engine.wall())
        names = self.config.models or ("simulated",)
        if dialect is self._anthropic:
            data: list[Json] = [
                {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
                for name in names
            ]
            return reply({"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]})
        data = [{"id": name, "object": "model", "created": created, "owned_by": "simulator"} for name in names]
        return reply({"object": "list", "data": data})

    def _limit_headers(self, dialect: Dialect, account: Account) -> dict[str, str]:
        if not account.buckets or not account.limits.headers:
            return {}
        return dialect.limit_headers(account, self._engine.wall())

    def _retry_headers(self, how: str, wait: float) -> dict[str, str]:
        date = formatdate(self._engine.wall() + wait + 1, usegmt=True) if how == "date" else ""
        return retry_headers(how, wait, date)

    def _instead(self, fault: Fault, dialect: Dialect) -> Response | Broken:
        """What is answered in place of doing the work."""
        if fault.kind == "hang":
            return Broken("hang")
        if fault.kind == "disconnect":
            return Broken("drop")
        if fault.kind == "bad_gateway":
            return Response(502, {"content-type": "text/html"}, _GATEWAY)
        if fault.kind == "spend_limit":
            if dialect is self._anthropic:
                error = ApiError(
                    429, "Your organization's spend limit is reached.", code="enforced_spend_limit_reached"
                )
            else:
                error = ApiError(429, QUOTA, type="insufficient_quota", code="insufficient_quota")
        else:
            status = _STATUSES[fault.kind]
            kind, code = ("requests", "rate_limit_exceeded") if status == 429 else ("server_error", None)
            code = None if dialect is self._anthropic else code
            error = ApiError(status, _TEXTS[fault.kind], type=kind, code=code)
            if status == 429 and fault.value is not None:
                error.headers |= self._retry_headers(self.config.limits.retry_after, fault.number(1.0))
        return dialect.failure(error, self._engine.serial())

    def _administer(self, request: Request) -> Response:
        """The simulator's own pages: what was charged, which faults to play, and a fresh start."""
        match request.method, request.path:
            case "GET", "/_simulator/ledger":
                return reply(self.books.report(details="summary" not in request.query))
            case "POST", "/_simulator/faults":
                try:
                    self.set_faults(Faults.of(read_json(request.body)))
                except (ApiError, ConfigError) as error:
                    return reply({"error": str(error)}, 400)
                return reply({"faults": len(self._engine.plan.faults.faults)})
            case "POST", "/_simulator/reset":
                self.reset()
                return reply({"reset": True})
            case "GET", "/_simulator/health":
                return reply({"ready": True})
        return reply({"error": f"no such page: {request.method} {request.path}"}, 404)

    def _new_stores(self) -> None:
        self._files = OpenAIStore(self._engine, self._openai)
        self._batches = AnthropicStore(self._engine, self._anthropic)


def _unknown(request: Request, owner: str) -> Response:
    raise ApiError(404, f"Invalid URL ({request.method} {request.path})")


def _spoil(fault: Fault, response: Response) -> Response | Broken:
    """What becomes of a good response on its way out."""
    match fault.kind:
        case "lost_drop":
            return Broken("drop")
        case "lost_502":
            return Response(502, {"content-type": "text/html"}, _GATEWAY)
        case "lost_hang":
            return Broken("hang")
        case "drip":
            return Broken("drip", response, fault.number(1.0) or 1.0)
        case "cut":
            return Broken("cut", response)
        case "truncate":
            return Response(200, response.headers, response.body[: len(response.body) // 2])
        case "content_type":
            return Response(200, {"content-type": "text/html"}, b"<html><body>Please log in.</body></html>")
    try:
        value = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        return response  # JSON Lines: nothing to take away or to add
    if fault.kind == "malformed":
        value.pop(next((name for name in _ESSENTIAL if name in value), ""), None)
    else:
        value["a_field_from_the_future"] = {"kind": "unknown", "items": [1, 2.5, None]}
    return Response(200, response.headers, msgspec.json.encode(value))
