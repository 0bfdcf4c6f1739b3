"""The simulator without its sockets: a request comes in, a response or a broken answer goes out."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import replace
from email.utils import formatdate
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import urlsplit

import msgspec

from fanfold.errors import ConfigError
from fanfold.simulator.billing import Billing, Charges
from fanfold.simulator.config import SimulatorConfig
from fanfold.simulator.dialect import Dialect, Work
from fanfold.simulator.faults import AFTER, BEFORE, Fault, Faults
from fanfold.simulator.limits import Account, retry_headers
from fanfold.simulator.state import RequestOrigin, SimulatorState, owner_of
from fanfold.simulator.wire import ApiError, BrokenAnswer, Request, SimulatedResponse, read_json, reply, stream

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
_ESSENTIAL = (
    "choices",
    "content",
    "data",
    "processing_status",
    "status",
    "id",
    "input_tokens",
    "candidates",
    "metadata",
)


@functools.cache
def _installed() -> tuple[Any, ...]:
    """The installed providers that can be used."""
    providers = []
    for entry in sorted(entry_points(group="fanfold.providers"), key=lambda entry: entry.name):
        try:
            providers.append(entry.load()())
        except Exception:
            continue  # `fanfold doctor` says why
    return tuple(providers)


@functools.cache
def installed_dialects() -> tuple[type[Dialect], ...]:
    """The dialects of all installed providers; the one that answers what none of them claims is last."""
    dialects = dict.fromkeys(provider.dialect() for provider in _installed())
    return tuple(sorted((kind for kind in dialects if kind is not None), key=lambda kind: kind.fallback))


def addresses(url: str) -> dict[str, str]:
    """The environment variables that send each provider's clients to a simulator at `url`."""
    return {
        provider.url_variable: url + dialect.mounted(urlsplit(provider.default_url).path)
        for provider in _installed()
        if (dialect := provider.dialect()) is not None
    }


class Simulator:
    """A strict fake of the providers at the edge of their APIs, in the dialects given, else in all that are installed.

    `respond` takes the time an answer takes on the running loop, so it works on the virtual clock too; with `serve` it
    answers real sockets.  Everything charged is in `charges` and `billing`, whatever happened to the answer or the
    client.  Work that a client stops waiting for is charged all the same.
    """

    def __init__(self, config: SimulatorConfig | None = None, dialects: Sequence[type[Dialect]] | None = None) -> None:
        self.config = config or SimulatorConfig()
        self._kinds = installed_dialects() if dialects is None else dialects
        self._state = SimulatorState(self.config)
        self._keys = None if self.config.keys is None else {owner_of(key) for key in self.config.keys}
        self._dialects = [kind(self._state) for kind in self._kinds]

    @property
    def billing(self) -> Billing:
        return self._state.billing

    @property
    def charges(self) -> Charges:
        return self._state.billing.charges

    def set_faults(self, faults: Faults) -> None:
        """Replace what is to go wrong; call it on the loop that answers."""
        self._state.set_faults(faults)

    def reset(self) -> None:
        """Start again: no charges, batches, files or used limits, and the faults of the settings."""
        self._state.reset()
        self._dialects = [kind(self._state) for kind in self._kinds]

    async def close(self) -> None:
        """End the batches still running."""
        await self._state.close()

    def wall(self) -> float:
        """The provider's time of day."""
        return self._state.wall()

    async def respond(self, request: Request) -> SimulatedResponse | BrokenAnswer:
        """Answer one request."""
        if request.path.startswith("/_simulator/"):
            return self._administer(request)
        for dialect in self._dialects:
            if dialect.mount and request.path.startswith(f"{dialect.mount}/"):
                request = replace(request, path=request.path.removeprefix(dialect.mount))
                break
        else:
            dialect = next((dialect for dialect in self._dialects if dialect.speaks(request)), self._dialects[-1])
        request = dialect.plain(request)
        operation, work = self._route(request, dialect)
        faulty = bool(self._state.plan.faults.faults)
        answer: SimulatedResponse | BrokenAnswer | None = None
        if faulty:
            fault = self._state.plan.draw(BEFORE, operation, self._state.now())
            answer = None if fault is None else self._instead(fault, dialect)
        if answer is None:
            answer = await self._work(request, dialect, work)
            if faulty and answer.status < 400:
                fault = self._state.plan.draw(AFTER, operation, self._state.now())
                answer = answer if fault is None else _spoil(fault, answer)
        if isinstance(answer, BrokenAnswer):
            self.billing.broken[answer.how] += 1
        else:
            self.billing.statuses[answer.status] += 1
        return answer

    async def _work(self, request: Request, dialect: Dialect, work: Work) -> SimulatedResponse:
        try:
            owner = owner_of(dialect.key_of(request))
            if self._keys is not None and owner not in self._keys:
                raise dialect.wrong_key()
            response = work(request, owner)
            return response if isinstance(response, SimulatedResponse) else await response
        except ApiError as error:
            return dialect.failure(error, self._state.serial())

    def _route(self, request: Request, dialect: Dialect) -> tuple[str, Work]:
        """What a request is for, and what answers it."""
        if dialect.generates(request):
            return "generate", functools.partial(self._generate, dialect)
        return dialect.route(request) or ("other", _unknown)

    async def _generate(self, dialect: Dialect, request: Request, owner: str) -> SimulatedResponse:
        state = self._state
        started = state.now()
        body = dialect.body_of(request)
        model = state.check_model(dialect, body)
        account = state.account(owner, model)
        invalid: ApiError | None = None
        try:
            prompt = dialect.read(request.path, body)
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
        origin = RequestOrigin(owner, request.headers.get("x-fanfold-sample", "0"))
        value, output = await state.generate(dialect, request.path, body, prompt, origin)
        account.spend_output(output)
        headers = dialect.headers(state.serial()) | self._limit_headers(dialect, account)
        wait = state.draw_time(self.config.latency, output) - (state.now() - started)
        if body.get("stream") and (events := dialect.events(request.path, body, value)) is not None:
            return stream(events, headers, max(0.0, wait))
        if wait > 0:
            await asyncio.sleep(wait)
        return reply(value, headers=headers)

    def _limit_headers(self, dialect: Dialect, account: Account) -> dict[str, str]:
        if not account.buckets or not account.limits.headers:
            return {}
        return dialect.limit_headers(account, self._state.wall())

    def _retry_headers(self, how: str, wait: float) -> dict[str, str]:
        date = formatdate(self._state.wall() + wait + 1, usegmt=True) if how == "date" else ""
        return retry_headers(how, wait, date)

    def _instead(self, fault: Fault, dialect: Dialect) -> SimulatedResponse | BrokenAnswer:
        """What is answered in place of doing the work."""
        if fault.kind == "hang":
            return BrokenAnswer("hang")
        if fault.kind == "disconnect":
            return BrokenAnswer("drop")
        if fault.kind == "bad_gateway":
            return SimulatedResponse(502, {"content-type": "text/html"}, _GATEWAY)
        if fault.kind == "spend_limit":
            error = dialect.no_credit()
        else:
            status = _STATUSES[fault.kind]
            error = dialect.mishap(status, _TEXTS[fault.kind])
            if status == 429 and fault.value is not None:
                error.headers |= self._retry_headers(self.config.limits.retry_after, fault.number(1.0))
        return dialect.failure(error, self._state.serial())

    def _administer(self, request: Request) -> SimulatedResponse:
        """The simulator's own pages: what was charged, which faults to play, and a fresh start."""
        match request.method, request.path:
            case "GET", "/_simulator/ledger":
                return reply(self.billing.report(details="summary" not in request.query))
            case "POST", "/_simulator/faults":
                try:
                    self.set_faults(Faults.of(read_json(request.body)))
                except (ApiError, ConfigError) as error:
                    return reply({"error": str(error)}, 400)
                return reply({"faults": len(self._state.plan.faults.faults)})
            case "POST", "/_simulator/reset":
                self.reset()
                return reply({"reset": True})
            case "GET", "/_simulator/health":
                return reply({"ready": True})
        return reply({"error": f"no such page: {request.method} {request.path}"}, 404)


def _unknown(request: Request, owner: str) -> SimulatedResponse:
    raise ApiError(404, f"Invalid URL ({request.method} {request.path})")


def _spoil(fault: Fault, response: SimulatedResponse) -> SimulatedResponse | BrokenAnswer:
    """What faults do to a good response on its way out."""
    match fault.kind:
        case "lost_drop":
            return BrokenAnswer("drop")
        case "lost_502":
            return SimulatedResponse(502, {"content-type": "text/html"}, _GATEWAY)
        case "lost_hang":
            return BrokenAnswer("hang")
        case "drip":
            return BrokenAnswer("drip", response, fault.number(1.0) or 1.0)
        case "cut":
            return BrokenAnswer("cut", response)
        case "truncate":
            return SimulatedResponse(200, response.headers, response.body[: len(response.body) // 2])
        case "content_type":
            return SimulatedResponse(200, {"content-type": "text/html"}, b"<html><body>Please log in.</body></html>")
    try:
        value = msgspec.json.decode(response.body)
    except msgspec.DecodeError:
        return response  # JSON Lines: nothing to take away or to add
    if fault.kind == "malformed":
        value.pop(next((name for name in _ESSENTIAL if name in value), ""), None)
    else:
        value["a_field_from_the_future"] = {"kind": "unknown", "items": [1, 2.5, None]}
    return SimulatedResponse(200, response.headers, msgspec.json.encode(value))
