"""A named model endpoint: its provider writes requests, its limiter paces them, the broker keeps replies."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import secrets
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from fanfold.calls import Call, Reply, Sent, ask, ask_sync, current_broker, waiting
from fanfold.capabilities import Capabilities
from fanfold.context import here
from fanfold.encoding import encode
from fanfold.errors import CallFailed, ConfigError
from fanfold.events import Notice
from fanfold.limits import Limiter, Limits, Permit
from fanfold.models.failures import Redirected, deserted, network_failure, nowhere, redirected
from fanfold.models.http import Http, HttpError
from fanfold.models.http_exchange import Response
from fanfold.models.line import OUTPUT_GUESS, ModelLine
from fanfold.models.parameters import LIMITS, fitted, most_tokens, passed_on, places
from fanfold.models.pricing import Price
from fanfold.models.providers.contract import Messages, Provider
from fanfold.models.providers.reading import decoded, error_in, error_inside, estimated, malformed, request_id
from fanfold.models.requests import IMAGE_TOKENS, RICH, images_in, in_order, shaping, spell, usable
from fanfold.models.retry import RetryPolicy, Tries
from fanfold.models.streaming import TextStream, interrupted, streamed, to_stream, unasked
from fanfold.models.transport import Transport
from fanfold.redaction import know
from fanfold.sharing import lease_of

#: More tokens than this no reply has: a number that claims it was not counted.
MOST_TOKENS = 2**40


@dataclass(frozen=True)
class Model:
    """A model one can ask.  Make one with `model("PROVIDER/NAME")`; it may be shared by everything in the process."""

    name: str
    provider: Provider
    url: str
    limits: Limits
    price: Price | None
    timeout: float = 120.0
    raw: bool = False
    again: Callable[[Exception, int], float | None] = field(default_factory=RetryPolicy)
    connect: Callable[[], Transport] = Http
    key: str | None = field(default=None, repr=False)
    #: Sent with every request, beside the provider's own.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    #: Parameters of every request that does not set them itself.
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: What it takes, where the user knows better than the provider's tables.
    stated: Capabilities | None = None

    def __post_init__(self) -> None:
        know(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        # Calls made in a worker come home, and find this very model there by its name: its key need not travel.
        name = self.__dict__.get("_name_at_home")
        if name is None:
            name = f"{os.getpid()}-{secrets.token_hex(8)}"
            object.__setattr__(self, "_name_at_home", name)
            _AT_HOME[name] = self
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        if here().leaving:
            limits = replace(self.limits, shared=None)
            return _arrived, (name, {**state, "connect": _elsewhere, "key": None, "headers": {}, "limits": limits})
        try:
            pickle.dumps(self.connect)
        except Exception:
            state["connect"] = _elsewhere
        return _arrived, (name, state)

    @functools.cached_property
    def id(self) -> str:
        return f"{self.provider.name}/{self.name}"

    @property
    def fingerprint(self) -> str:
        """What counts as the same model when a run is resumed."""
        return f"{self.id}@{self.url}{encode(dict(self.defaults)) if self.defaults else ''}"

    async def generate(
        self, messages: Messages, *, system: str | None = None, sample: int = 0, **parameters: Any
    ) -> Reply:
        """Ask the model.

        `messages` is a text or a dialogue, and `system` comes before it; parameters are the provider's (`temperature`,
        `max_tokens`, `stop`, `reasoning_effort`, ...), and an unknown one is an error.  One that this model does not
        take is left out, which the run says once.  The text ends before `stop`, also where the model has no such
        parameter; `max_tokens` is the visible text, without the tokens of reasoning.  Equal requests are asked once and
        answered from the ledger afterwards; ask for another answer to the same request with another `sample`.

        `tools` are functions that the model may call (`reply.tool_calls`), and `tool_choice` says which it must.
        `schema`, a JSON Schema or a type, makes the reply JSON, and `reply.parsed` a value of it.  `n` asks for several
        texts, `logprobs` for log probabilities (a number: of so many likely tokens), `cache` to keep the prompt in the
        provider's cache.  `extra` is put into the body of the request as it is.  `raw` keeps the body of the response.

        Raises CallFailed.
        """
        call = self.call(messages, system=system, sample=sample, **parameters)
        wanted = shaping(parameters, self.defaults)
        del messages, system, parameters  # a reply may take hours, and there may be thousands
        return usable(await ask(self, call), self.id, wanted)

    def generate_sync(self, messages: Messages, **parameters: Any) -> Reply:
        """`generate` for synchronous code, from any thread."""
        reply = ask_sync(self, self.call(messages, **parameters))
        return usable(reply, self.id, shaping(parameters, self.defaults))

    def stream(self, messages: Messages, **parameters: Any) -> TextStream:
        """`generate` for whoever watches: `async for piece in model.stream(...)`; the stream then has the `reply`."""
        return TextStream(self, messages, parameters)

    def takes(self, name: str, value: Any = None) -> bool:
        """Whether the model is known to take a parameter (with this value), or nothing is known of it."""
        own = {"schema": "response_format", "images": "max_tokens"}.get(name, name)
        return own in self.provider.parameters and self.capabilities.takes(name, value)

    @property
    def capabilities(self) -> Capabilities:
        known: Capabilities | None = self.__dict__.get("_capabilities")
        if known is None:
            known = self.stated or self.provider.capabilities(self.name)
            object.__setattr__(self, "_capabilities", known)
        return known

    def call(self, messages: Messages, *, system: str | None = None, sample: int = 0, **parameters: Any) -> Call:
        """The request as it will be sent."""
        parameters = {**self.defaults, **parameters}
        extra, whole = parameters.pop("extra", None), parameters.pop("raw", False)
        rich = not RICH.isdisjoint(parameters) and spell(parameters, self.id, self.takes)
        plain = self.raw and isinstance(messages, str) and system is None
        if self.raw and sample:
            parameters.setdefault("seed", sample)  # a model of our own gives another answer only for another seed
        images, skipped = images_in(messages)
        if images and not self.capabilities.takes("images"):
            raise ConfigError(f"{self.id} takes no images: choose a model that does")
        kept, dropped = fitted(parameters, self.provider.parameters, self.capabilities)
        path, body = self.provider.request(self.name, messages, {"system": system, "raw": plain, **kept})
        if extra:
            body |= passed_on(extra)
        text = in_order(body) if rich else encode(body, "the request")
        most = most_tokens(kept, body)
        tokens = (len(text) - skipped) // 4 + 8 + images * IMAGE_TOKENS
        # A token is at least one byte of text.
        size = (len(text) if text.isascii() else len(text.encode())) - skipped + images * IMAGE_TOKENS
        worst = None if self.price is None else self.price.cost(size, most)
        endpoint = sys.intern(self.url + path)
        guess, aside = min(most, OUTPUT_GUESS), here().calls_aside
        return Call(self.id, endpoint, text, sample, tokens, guess, worst, dropped, whole, aside)

    def sendable(self, call: Call) -> str:
        """The body of a call, without what the server has refused."""
        return self.line().sendable(call)

    def learn(self, body: str, error: CallFailed) -> bool:
        """Whether a request that was refused is worth another try, without a parameter that the server does not take.

        `body` is what was sent.  What the server refused is left out from now on, and written down in the ledger.
        """
        line, sent = self.line(), places(msgspec.json.decode(body))
        name = next((name for name in error.parameters if any(name in place for place in sent)), None)
        if name is None or LIMITS.get(name) in line.refused:
            return False
        if name not in line.refused:
            broker = current_broker()
            line.refused.add(name)
            broker.replies.learn(self.fingerprint, f"refuses {name}", str(error))
            text = f"{self.id} does not take {name}: its requests leave it out ({error})"
            broker.emit(Notice(text, "parameters"))
        return True

    def signed(self, method: str, url: str, body: bytes = b"") -> dict[str, str]:
        """The headers that show who asks, for one request."""
        return {**self.provider.signed(method, url, body, self.key), **self.headers}

    async def send(self, call: Call) -> Sent:
        """Send a call now, as often as it takes and makes sense."""
        line = self.line()
        if line.lease is not None and not line.lease.joined:
            await line.lease.join()
        down = line.breaker.open
        try:
            return Sent(await self._once(call, line))
        except CallFailed as error:
            first = error
        return await self._insist(call, line, first, down)

    async def _insist(self, call: Call, line: ModelLine, first: CallFailed, down: bool) -> Sent:
        """Try a call again after its first failure, which came while the server was known to be `down`, or not."""
        tries = Tries(self.id, self.again)
        failed: CallFailed | None = first
        lost = 0

        async def once() -> Reply:
            nonlocal failed, lost
            error, failed = failed, None
            if error is None:
                if lost:
                    await current_broker().budget.room(call)
                try:
                    return await self._once(call, line)
                except CallFailed as later:
                    error = later
            if error.maybe_paid:
                lost += 1
                current_broker().lost(call)
            raise error

        reply = await tries.make(once, lambda: down if failed is not None else line.breaker.open)
        return Sent(reply, tries.made)

    def line(self) -> ModelLine:
        """This model's line on the running event loop, opened when first needed and closed with the broker.

        Equal models share one: they share the provider's limits, too.
        """
        loop = asyncio.get_running_loop()
        known: ModelLine | None = self.__dict__.get("_line")
        if known is not None and known.loop() is loop:
            return known
        lines = _LINES.setdefault(loop, {})
        place = (self.id, self.url, self.key, self.limits, self.connect)
        line = lines.get(place)
        if line is None:
            stand_in = here().rehearsal
            transport = self.connect() if stand_in is None else stand_in(self)
            broker = current_broker()
            names = broker.replies.learnt(self.fingerprint)
            refused = {name.removeprefix("refuses ") for name in names if name.startswith("refuses ")}
            opened = ModelLine(transport, Limiter(self.limits), weakref.ref(loop), refused=refused)
            if stand_in is None:
                by = broker.sharing if self.provider.remote else None
                opened.lease = lease_of(opened.limiter, (self.id, self.url, self.key or ""), by)
            line = lines[place] = opened

            async def close() -> None:
                lines.pop(place, None)
                if opened.lease is not None:
                    await opened.lease.close()
                opened.loop = _closed
                if (used := opened.limiter.utilisation) is not None:
                    broker.metrics.utilisation[self.id] = round(used, 4)
                await transport.close()

            broker.closers.append(close)
        object.__setattr__(self, "_line", line)  # found at once by the next call
        return line

    async def _once(self, call: Call, line: ModelLine) -> Reply:
        """One try; where a parameter is refused, one more without it."""
        while True:
            body = line.sendable(call)
            try:
                return await (self._reached if line.breaker.open else self._exchange)(call, body, line)
            except CallFailed as error:
                if not error.parameters or not self.learn(body, error):
                    raise interrupted(call, error) from error.__cause__

    async def _reached(self, call: Call, body: str, line: ModelLine) -> Reply:
        """One try, once the server answers again."""
        breaker = line.breaker
        while breaker.open:
            what = f"{self.provider.name} to answer again ({breaker.why})"
            if breaker.news():
                current_broker().emit(Notice(f"calls wait for {what}, and are tried until it does", "outage"))
            with waiting(what, breaker.next_try, since=breaker.since):
                if await breaker.turn():
                    return await self._exchange(call, body, line, probe=True)
        return await self._exchange(call, body, line)

    async def _exchange(self, call: Call, body: str, line: ModelLine, *, probe: bool = False) -> Reply:
        """One request and its reply; the limiter and the breaker hear how it went."""
        clock = asyncio.get_running_loop().time
        limiter, breaker, began = line.limiter, line.breaker, clock()
        try:
            tokens = call.input_tokens, min(call.output_tokens, round(line.output))
            permit = limiter.at_once(*tokens)
            if permit is None:
                with waiting(f"the rate limit of {self.id}", limiter.closed_until):
                    permit = await limiter.acquire(*tokens)
                began = clock()
            with permit:
                reply = await self._request(call, body, line.transport, permit)
        except CallFailed as error:
            if error.kind in ("network", "timeout", "server", "overloaded"):
                answered = error.kind in ("server", "overloaded")
                moved, pending = isinstance(error, Redirected), limiter.in_flight
                breaker.failed(str(error), began, probe=probe, answered=answered, moved=moved, pending=pending)
                if breaker.deserted:
                    raise deserted(error, call.endpoint) from error
            elif error.kind == "unreachable":
                breaker.left(probe=probe)
            else:
                breaker.ok()
            raise
        except BaseException:
            breaker.left(probe=probe)
            raise
        breaker.ok()
        line.output += 0.05 * (reply.output_tokens - line.output)
        return msgspec.structs.replace(reply, seconds=clock() - began)

    async def _request(self, call: Call, body: str, transport: Transport, permit: Permit) -> Reply:
        """Send a request that the limiter permitted, and read what comes back."""
        try:
            data = body.encode() if call.watch is None else to_stream(body, self.provider)
            headers = {"content-type": "application/json", **self.signed("POST", call.endpoint, data)}
            if call.watch is None:
                response = await transport.request("POST", call.endpoint, headers, data, deadline=self.timeout)
            else:
                response = await streamed(transport, self.provider, call, headers, data, self.timeout)
        except HttpError as error:
            permit.done(False, overloaded=error.kind in ("timeout", "connect"))
            raise network_failure(error, self.provider.name, self.timeout, self.provider.start) from error
        quota = self.provider.quota(response.headers)
        try:
            reply = self.read(response, call)
        except CallFailed as error:
            refused = error.kind == "rate-limit"
            overloaded = error.kind == "overloaded"  # not "server": a mishap says nothing about how much is too much
            permit.done(False, refused=refused, overloaded=overloaded, retry_after=error.retry_after, quota=quota)
            current_broker().metrics.refused += refused
            raise nowhere(error, call.endpoint, self.provider.anywhere) from error.__cause__
        permit.done(True, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens, quota=quota)
        return reply

    def read(self, response: Response, call: Call | None = None, *, batch: bool = False) -> Reply:
        """The reply in a response to a call, with its cost; CallFailed if there is none."""
        if 300 <= response.status < 400:
            raise redirected(response, self.provider.name)
        body = decoded(response.body)
        if response.status >= 400:
            raise self.provider.failure(response.status, response.headers, body)
        if isinstance(body, str):
            if (streamed_body := unasked(self.provider, response.body)) is None:
                raise malformed(self.provider.name, f"it is not JSON but {error_in(body)['message']!r:.200}")
            body = streamed_body
        if (inside := error_inside(body)) is not None:
            raise self.provider.failure(inside[0], response.headers, inside[1])
        reply = self.provider.reply(body)
        if call is not None and call.raw:
            reply = msgspec.structs.replace(reply, raw=body)
        if not isinstance(reply.text, str) or not isinstance(reply.refusal, str | None):
            raise malformed(self.provider.name, "its text is not a text")
        if max(reply.input_tokens, reply.output_tokens) > MOST_TOKENS:
            raise malformed(self.provider.name, f"it counts {reply.input_tokens} + {reply.output_tokens} tokens")
        return self.priced(reply, call, batch=batch, request_id=request_id(response.headers))

    def priced(self, reply: Reply, call: Call | None = None, *, batch: bool = False, request_id: str = "") -> Reply:
        """The reply with its cost; what was sent is estimated from the call where the provider did not count it."""
        if not reply.input_tokens and not reply.estimated:  # some servers send zeros, and no request is of no token
            written = reply.output_tokens or estimated(reply.refusal or reply.text)
            reply = msgspec.structs.replace(reply, estimated=True, output_tokens=written)
        read = reply.input_tokens
        if reply.estimated and call is not None:
            read = max(read, estimated(call.body))
        cost = None
        if self.price is not None:
            tokens = (read, reply.output_tokens, reply.cached_tokens)
            cost = self.price.cost(*tokens, written_tokens=reply.written_tokens, batch=batch)
        return msgspec.structs.replace(reply, cost=cost, input_tokens=read, request_id=request_id)


def _closed() -> None:
    """Of a line that is closed: it is on no loop."""


#: The lines that are open, by event loop and by what decides whether two models can share one.
_LINES: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], ModelLine]] = weakref.WeakKeyDictionary()
#: Models that were sent to workers, by the name under which they come back with the calls made there.
_AT_HOME: weakref.WeakValueDictionary[str, Model] = weakref.WeakValueDictionary()


def _arrived(name: str, state: dict[str, Any]) -> Model:
    """A model that came by pickle: the very one that was sent from here, or one like it."""
    known = _AT_HOME.get(name)
    if known is not None:
        return known
    model = Model(**state)
    object.__setattr__(model, "_name_at_home", name)
    return model


def _elsewhere() -> Transport:
    raise ConfigError("this model has a transport that exists only in the process where it was made: use it there")
