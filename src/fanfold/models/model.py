"""A named model endpoint: its wire writes requests, its limiter paces them, attempt retries, the desk keeps replies."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import secrets
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import msgspec

from fanfold.attempt import attempt
from fanfold.calls import REHEARSAL, Call, Reply, Sent, ask, ask_sync, current_desk, waiting
from fanfold.encoding import encode
from fanfold.errors import CallFailed, ConfigError
from fanfold.executors.base import LEAVING
from fanfold.limits import Limiter, Limits
from fanfold.models.breaker import Breaker
from fanfold.models.http import Http, HttpError, Response
from fanfold.models.pricing import Price
from fanfold.models.telemetry import install
from fanfold.models.wire import Messages, Wire, estimated
from fanfold.redaction import know, redact_body

install()

#: Tokens assumed for a reply of unknown length, until the model has shown how long its replies are.
OUTPUT_GUESS = 256
#: How long a call may wait for an outage to end, in seconds.
PATIENCE = 3600.0


class Transport(Protocol):
    """What carries a request to a provider and its response back: a socket, a model in this process, a simulator."""

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
    ) -> Response: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Line:
    """A model's transport and limiter on one event loop."""

    transport: Transport
    limiter: Limiter
    breaker: Breaker = field(default_factory=Breaker)
    #: Running mean of output tokens.
    output: float = OUTPUT_GUESS


@dataclass(frozen=True, slots=True)
class Again:
    """When a failed try is repeated: passing failures, after growing random pauses, for at most `tries` tries.

    A rate limit is the provider's ordinary way to say "later": the limiter paces what follows, so such tries are
    counted apart and generously.
    """

    tries: int = 6
    refusals: int = 40
    cap: float = 60.0

    def __call__(self, error: Exception, n: int) -> float | None:
        if not isinstance(error, CallFailed) or not error.passing:
            return None
        if n >= (self.refusals if error.kind == "rate-limit" else self.tries):
            return None
        if error.retry_after is not None:
            return min(error.retry_after, self.cap) * random.uniform(1.0, 1.1)
        return random.uniform(0.0, min(self.cap, 0.5 * 2.0 ** min(n - 1, 20)))


@dataclass(frozen=True)
class Model:
    """A model one can ask.  Make one with `model("openai/...")`; it may be shared by everything in the process."""

    name: str
    wire: Wire
    url: str
    limits: Limits
    price: Price | None
    timeout: float = 120.0
    raw: bool = False
    again: Callable[[Exception, int], float | None] = field(default_factory=Again)
    connect: Callable[[], Transport] = Http
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        know(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        # Calls made in a worker come home, and find this very model there by its name: its key need not travel.
        name = self.__dict__.get("_name_at_home")
        if name is None:
            name = f"{os.getpid()}-{secrets.token_hex(8)}"
            object.__setattr__(self, "_name_at_home", name)
            _AT_HOME[name] = self
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        if LEAVING.get():
            return _arrived, (name, {**state, "connect": _elsewhere, "key": None})
        try:
            pickle.dumps(self.connect)
        except Exception:
            state["connect"] = _elsewhere
        return _arrived, (name, state)

    @property
    def id(self) -> str:
        return f"{self.wire.name}/{self.name}"

    @property
    def fingerprint(self) -> str:
        """What counts as the same model when a run is resumed."""
        return f"{self.id}@{self.url}"

    async def generate(
        self, messages: Messages, *, system: str | None = None, sample: int = 0, **parameters: Any
    ) -> Reply:
        """Ask the model.

        `messages` is a text or a dialogue; parameters are the provider's (`temperature`, `max_tokens`, `stop`, ...),
        and an unknown one is an error.  Equal requests are asked once and answered from the ledger afterwards; ask for
        another answer to the same request with another `sample`.  Raises CallFailed.
        """
        call = self.call(messages, system=system, sample=sample, **parameters)
        return await ask(self, call)

    def generate_sync(self, messages: Messages, **parameters: Any) -> Reply:
        """`generate` for synchronous code, from any thread."""
        return ask_sync(self, self.call(messages, **parameters))

    def call(self, messages: Messages, *, system: str | None = None, sample: int = 0, **parameters: Any) -> Call:
        """The request as it will be sent."""
        raw = self.raw and isinstance(messages, str) and system is None
        if self.raw and sample:
            parameters.setdefault("seed", sample)  # a model of our own gives another answer only for another seed
        path, body = self.wire.request(self.name, messages, {"system": system, "raw": raw, **parameters})
        text = encode(body, "the request")
        limit = parameters.get("max_tokens")
        tokens = len(text) // 4 + 8
        most = int(limit) if limit is not None else 4096
        # A token is at least one byte of text.
        size = len(text) if text.isascii() else len(text.encode())
        worst = None if self.price is None else self.price.cost(size, most)
        return Call(self.id, self.url + path, text, sample, tokens, min(most, OUTPUT_GUESS), worst)

    async def send(self, call: Call) -> Sent:
        """Send a call now, as often as it takes and makes sense."""
        line = self.line()
        tries = counted = lost = 0
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def once() -> Reply:
            nonlocal tries, counted, lost
            tries += 1
            if lost:
                await current_desk().budget.room(call)
            counted += not line.breaker.open  # an outage is waited out: it uses up no tries
            try:
                return await self._once(call, line)
            except CallFailed as error:
                if error.maybe_paid:
                    lost += 1
                    current_desk().lost(call)
                raise

        def again(error: Exception, n: int) -> float | None:
            patient = loop.time() - begun < PATIENCE
            return self.again(error, max(1, counted)) if patient else None

        return Sent(await attempt(once, again=again), tries)

    def line(self) -> Line:
        """This model's line on the running event loop, opened when first needed and closed with the desk.

        Equal models share one: they share the provider's limits, too.
        """
        lines = _LINES.setdefault(asyncio.get_running_loop(), {})
        place = (self.id, self.url, self.key, self.limits, self.connect)
        line = lines.get(place)
        if line is None:
            stand_in = REHEARSAL.get()
            transport = self.connect() if stand_in is None else stand_in(self)
            opened = line = lines[place] = Line(transport, Limiter(self.limits))
            here = current_desk()

            async def close() -> None:
                lines.pop(place, None)
                if (used := opened.limiter.utilisation) is not None:
                    here.metrics.utilisation[self.id] = round(used, 4)
                await transport.close()

            here.closers.append(close)
        return line

    async def _once(self, call: Call, line: Line) -> Reply:
        clock = asyncio.get_running_loop().time
        with waiting(f"an outage of {self.wire.name}"):
            await line.breaker.enter()
        with waiting(f"the rate limit of {self.id}"):
            permit = await line.limiter.acquire(call.input_tokens, min(call.output_tokens, round(line.output)))
        started = clock()
        try:
            headers = {"content-type": "application/json", **self.wire.headers(self.key)}
            response = await line.transport.request(
                "POST", call.endpoint, headers, call.body.encode(), deadline=self.timeout
            )
        except HttpError as error:
            permit.done(False, overloaded=error.kind in ("timeout", "disconnected", "connect"))
            line.breaker.failed()
            raise _network_failure(error, self.wire.name, self.timeout) from error
        except BaseException:
            permit.done(False)
            line.breaker.left()
            raise
        quota = self.wire.quota(response.headers)
        try:
            reply = self.read(response, call)
        except CallFailed as error:
            refused = error.kind == "rate-limit"
            overloaded = error.kind in ("overloaded", "server")
            permit.done(False, refused=refused, overloaded=overloaded, retry_after=error.retry_after, quota=quota)
            line.breaker.failed() if overloaded else line.breaker.ok()
            current_desk().metrics.refused += refused
            raise
        line.breaker.ok()
        permit.done(True, input_tokens=reply.input_tokens, output_tokens=reply.output_tokens, quota=quota)
        line.output += 0.05 * (reply.output_tokens - line.output)
        return msgspec.structs.replace(reply, seconds=clock() - started)

    def read(self, response: Response, call: Call | None = None, *, batch: bool = False) -> Reply:
        """The reply in a response to a call, with its cost; CallFailed if there is none."""
        try:
            body = msgspec.json.decode(redact_body(response.body))
        except msgspec.DecodeError as error:
            if response.status >= 400:
                raise self.wire.failure(response.status, response.headers, None) from error
            raise CallFailed("malformed", f"{self.wire.name} sent a reply that is not JSON: {error}") from error
        if response.status >= 400:
            raise self.wire.failure(response.status, response.headers, body)
        return self.priced(self.wire.reply(body), call, batch=batch)

    def priced(self, reply: Reply, call: Call | None = None, *, batch: bool = False) -> Reply:
        """The reply with its cost; what was sent is estimated from the call where the provider did not count it."""
        read = reply.input_tokens
        if reply.estimated and call is not None:
            read = max(read, estimated(call.body))
        cost = None
        if self.price is not None:
            tokens = (read, reply.output_tokens, reply.cached_tokens)
            cost = self.price.cost(*tokens, written_tokens=reply.written_tokens, batch=batch)
        return msgspec.structs.replace(reply, cost=cost, input_tokens=read)


def _network_failure(error: HttpError, provider: str, timeout: float) -> CallFailed:
    if error.kind == "timeout":
        return CallFailed("timeout", f"{provider} gave no full answer within {timeout:g} s")
    if error.kind == "too-large":
        return CallFailed("too-large", f"{provider}: {error}")
    kind = "auth" if error.kind == "tls" else "network"
    return CallFailed(kind, f"{provider} cannot be reached: {error}", sent=error.sent)


#: The lines that are open, by event loop and by what decides whether two models can share one.
_LINES: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], Line]] = weakref.WeakKeyDictionary()
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


@dataclass(frozen=True)
class Connection:
    """Makes a transport by name and options; equal ones make the same."""

    make: Callable[..., Transport]
    name: str
    settings: str
    options: Mapping[str, Any] = field(compare=False)

    @classmethod
    def of(cls, make: Callable[..., Transport], name: str, options: Mapping[str, Any]) -> Connection:
        return cls(make, name, encode(options, f"the options of {name}"), options)

    def __call__(self) -> Transport:
        return self.make(self.name, **self.options)


def _elsewhere() -> Transport:
    raise ConfigError("this model has a transport that exists only in the process where it was made: use it there")
