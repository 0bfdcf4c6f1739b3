"""Model calls as values: the request, the reply, a call on its way and what it waits for, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from fanfold.attempt import Clock, off_the_clock
from fanfold.context import Meter, here
from fanfold.encoding import digest, encode
from fanfold.garbage import rare_collections


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that the model wants called; `invalid` holds arguments that are not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] = {}
    invalid: str = ""

    def result(self, value: Any) -> dict[str, Any]:
        """The message that tells the model what the function returned: a text, or anything JSON can hold."""
        content = value if isinstance(value, str) else encode(value, f"the result of {self.name}")
        return {"role": "tool", "tool_call_id": self.id, "content": content}


class TokenLogprob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token of a reply, its log probability, and those of the likeliest tokens in its place."""

    token: str
    logprob: float
    top: dict[str, float] = {}


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model answered.

    `finish` is `stop`, `length` (truncated by max_tokens), `refusal`, `filter` or `tool`.  A refusal's words are in
    `refusal`, never in `text`, so they cannot slip into a dialogue.  `cost` is None when the price is not known, and 0
    for what was not paid now (`cached`).  `cached_tokens` (read from the provider's prompt cache) and `written_tokens`
    (written to it) are parts of `input_tokens`.  Where the provider sent no usage, the tokens are `estimated` from the
    text.

    `others` are the further texts of a request with `n` above 1.  `parts` is the content as the provider sent it, where
    it is more than text.  `parsed` is the value that was asked for with `schema`, and `raw` the whole body of the
    response, if asked for and sent just now; neither is kept in the ledger.
    """

    text: str
    finish: str = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    estimated: bool = False
    model: str = ""
    refusal: str | None = None
    reasoning_tokens: int = 0
    cost: float | None = None
    seconds: float = 0.0
    cached: bool = False
    request_id: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    others: tuple[str, ...] = ()
    parts: tuple[dict[str, Any], ...] = ()
    parsed: Any = None
    raw: Any = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All `n` texts, `text` first."""
        return (self.text, *self.others)

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message, to continue the dialogue with."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": encode(call.arguments)},
                }
                for call in self.tool_calls
            ]
        return {**message, "parts": list(self.parts)} if self.parts else message


@dataclass(slots=True, eq=False)
class Onlooker:
    """Where the text of a reply goes while it is written; `seen` once there was any."""

    take: Callable[[str], object]
    seen: bool = False

    def __call__(self, piece: str) -> None:
        self.seen = True
        self.take(piece)


#: So many calls in flight are many live objects.
MANY = 64
#: Where simulated models are.
SIMULATED = "http://simulated"


class Call(msgspec.Struct, frozen=True):
    """One request to a model, ready to be sent; equal calls have equal keys."""

    model: str
    endpoint: str
    body: str
    sample: int
    #: Estimates for the limiter, and the most it can cost (None: the price is not known).
    input_tokens: int
    output_tokens: int
    worst: float | None
    #: Parameters that were left out because the model does not take them.
    dropped: tuple[str, ...] = ()
    #: Whether the caller wants the body of the response.
    raw: bool = False
    #: Whether the clock of an evaluation that waits for the reply stands still.
    aside: bool = False
    #: Takes the text of the reply as it is written; None: nobody watches.
    watch: Onlooker | None = None
    #: Follows from the rest.
    key: bytes = b""

    def __post_init__(self) -> None:
        key = digest(self.model, self.endpoint, self.body, str(self.sample))
        msgspec.structs.force_setattr(self, "key", key)

    @property
    def shown_model(self) -> str:
        """The model as people should see it: a simulated one is called so, whichever protocol it speaks."""
        if not self.endpoint.startswith(SIMULATED):
            return self.model
        return f"simulated/{self.model.partition('/')[2]}"


class Sent(msgspec.Struct, frozen=True):
    """A reply and how it was obtained; `why_full` says why it was not part of a batch, if it should have been."""

    reply: Reply
    tries: int = 1
    batch: str | None = None
    why_full: str | None = None


Send: TypeAlias = Callable[[Call], Awaitable[Sent]]


class Waiting(msgspec.Struct, frozen=True):
    """What a call waits for (`rate limit`, `outage of ...`, `batch`), since when, and when it is tried again.

    Both times are of the event loop; `until` is None where nobody knows.
    """

    what: str
    since: float
    until: float | None = None


class Flight:
    """A call on its way: the task that carries it, who waits for it, whose own time it takes, what it waits for.

    It is one of `flights` until it lands.
    """

    __slots__ = ("_flights", "_gates", "call", "clocks", "taken_over", "task", "waiting")

    def __init__(self, call: Call, flights: Flights) -> None:
        self.call = call
        #: Gone once it has landed: a task keeps its context, which has the flight.
        self.task: asyncio.Task[Reply] | None = None
        self.clocks: tuple[Clock, ...] = ()
        self.waiting: Waiting | None = None
        #: Whether another run was at the same call, and gave it up.
        self.taken_over = False
        self._gates: tuple[tuple[asyncio.Future[Reply], Meter | None, bool], ...] = ()
        self._flights = flights
        flights.begin(self)

    def join(self, shared: bool) -> Awaitable[Reply]:
        """The reply; the call continues if whoever waits for it is cancelled.

        It is counted for the evaluation that joined, and `shared` if that does not pay for it.  While the call waits,
        or all the time if it is `aside`, the clock of the evaluation stands still.
        """
        gate, mine = asyncio.get_running_loop().create_future(), here()
        self._gates += ((gate, mine.meter, shared),)
        return gate if mine.clock is None else self._timed(gate, mine.clock)

    def land(self, task: asyncio.Task[Reply]) -> None:
        """Give what its task ended in to all who wait."""
        self._flights.end(self)
        self.task, gates, self._gates = None, self._gates, ()
        error = None if task.cancelled() else task.exception()
        for gate, meter, shared in gates:
            waits = not gate.done()
            if task.cancelled():
                gate.cancel()
            elif error is not None:
                if waits:
                    gate.set_exception(error)
            else:
                reply = task.result()
                if shared:
                    reply = msgspec.structs.replace(reply, cost=0.0, cached=True)
                if meter is not None:  # paid also for one who has left
                    meter.cost += reply.cost or 0.0
                    meter.count(self.call.key, reply.cached)
                if waits:
                    gate.set_result(reply)

    async def _timed(self, gate: asyncio.Future[Reply], clock: Clock) -> Reply:
        self.clocks = (*self.clocks, clock)
        if self.waiting is not None:
            clock.pause()
        try:
            with off_the_clock() if self.call.aside else contextlib.nullcontext():
                return await gate
        finally:
            gone = self.clocks.index(clock)
            self.clocks = self.clocks[:gone] + self.clocks[gone + 1 :]
            if self.waiting is not None:
                clock.resume()


class Flights(dict[bytes, Flight]):
    """Calls in flight, by their keys.  While they are many, garbage is collected rarely."""

    def __init__(self) -> None:
        super().__init__()
        #: In which they land: one for all, as each would have its own.
        self.context = contextvars.copy_context()
        self._rarely: contextlib.ExitStack | None = None

    def begin(self, flight: Flight) -> None:
        self[flight.call.key] = flight
        if self._rarely is None and len(self) >= MANY:
            self._rarely = contextlib.ExitStack()
            self._rarely.enter_context(rare_collections())

    def end(self, flight: Flight) -> None:
        self.pop(flight.call.key, None)
        if self._rarely is not None and not self:
            self._rarely.close()
            self._rarely = None


class waiting:
    """Marks that the call this code carries waits for something that is not the evaluator's doing.

    `since` is for what began before the call had to wait for it.
    """

    __slots__ = ("_flight",)

    def __init__(self, what: str, until: float | None = None, *, since: float | None = None) -> None:
        flight: Flight | None = here().flight
        self._flight = None if flight is None or flight.waiting is not None else flight
        if self._flight is not None:
            now = asyncio.get_running_loop().time() if since is None else since
            self._flight.waiting = Waiting(what, now, until)

    def __enter__(self) -> None:
        for clock in self._flight.clocks if self._flight is not None else ():
            clock.pause()

    def __exit__(self, *raised: object) -> None:
        if self._flight is not None:
            self._flight.waiting = None
            for clock in self._flight.clocks:
                clock.resume()
