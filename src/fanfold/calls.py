"""Where model calls are made: a broker that remembers replies, shares equal calls in flight, and minds the budget."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, ClassVar, Protocol, cast

import msgspec

from fanfold.errors import CallFailed, ConfigError, NoWayHome
from fanfold.executors.base import ANSWER, home
from fanfold.flights import (
    FLIGHT,
    METER,
    Call,
    Flight,
    Meter,
    Reply,
    Send,
    Sent,
    Waiting,
    counted,
    waiting,
)
from fanfold.ledger import Claims, Commits, Insert, Ledger, Metrics, RunView, Spending
from fanfold.money import Budget
from fanfold.sync import run_beside
from fanfold.types import CacheMode

#: How many keys of calls are kept in memory, to spare a look into the ledger for each new call.
KNOWN_KEYS = 50_000
#: Seconds between looks whether another run has done with a call: at first, and at most.
LOOKS = (0.02, 0.5)


class CallBroker:
    """Answers calls from the ledger, from an equal call in flight, or by sending; replies are durable before given.

    A broker belongs to one event loop.  A call once sent is carried through even when the one who asked gives up,
    because it is paid for.  `halt(error)` is called when no further call can succeed (no credit, wrong key, no budget).
    """

    #: Sends a call and tells others about it; None while nobody can listen.
    observe: ClassVar[Callable[[Call, Send], Awaitable[Sent]] | None] = None

    def __init__(
        self,
        ledger: Ledger | None = None,
        commits: Commits | None = None,
        *,
        run: int | None = None,
        cache: CacheMode = "on",
        budget: Budget | None = None,
        halt: Callable[[CallFailed], None] | None = None,
    ) -> None:
        if cache not in ("on", "off", "refresh", "offline"):
            raise ConfigError(f"cache must be 'on', 'off', 'refresh' or 'offline', not {cache!r}")
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.metrics = Metrics()
        self.budget = budget or Budget()
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.ledger, self.commits, self.run = ledger, commits, run
        self._cache = cache
        self.halt = halt
        #: Told, in words, what happens to calls on their way: waves that leave and come back.
        self.notice: Callable[[str], None] = lambda text: None
        self._flights: dict[bytes, Flight] = {}
        #: The calls that may be charged: on their way to a provider, or not yet written down.
        self._paying: set[asyncio.Task[Any] | None] = set()
        #: The keys of all calls in the ledger while they are few and all ours; None: the ledger must be asked.
        self._known: set[bytes] | None = None
        self._claims: Claims | None = None
        self._opened = ledger is None

    def ask(self, model: Asked, call: Call) -> Coroutine[Any, Any, Reply]:
        """Answer a call to a model, by the way that the evaluation's calls take."""
        route = ROUTE.get()
        if route is not None and route.takes(model):
            return route.answer(self, model, call)
        return self.answer(call, model.send)

    def _open(self) -> None:
        """Before the first call: join the runs that make calls on this ledger now."""
        self._opened = True
        assert self.ledger is not None
        if self._cache == "on" and not self.ledger.temporary:
            self._claims = Claims(self.ledger.path)
        # After that, so that nobody's reply can come between the look and the claim.
        if self._alone() and not self.ledger.has_replies():
            self._known = set()

    def _alone(self) -> bool:
        """Whether all replies that are not ours were in the ledger before our first call."""
        assert self.ledger is not None
        return self.ledger.temporary if self._claims is None else self._claims.alone()

    async def answer(self, call: Call, send: Send) -> Reply:
        if not self._opened:
            self._open()
        key = call.key
        flight = self._flights.get(key) if self._cache != "off" else None
        if flight is not None:
            self.metrics.shared += 1
            return msgspec.structs.replace(await flight.join(), cost=0.0, cached=True)
        if self._cache in ("on", "offline") and (held := self._held(key)) is not None:
            self.metrics.cached += 1
            return held
        if self._cache == "offline":
            raise CallFailed(
                "offline", f"the ledger holds no reply of {call.model} to this request, and cache='offline'"
            )
        reply = await self._launch(key, call, send).join()
        meter = METER.get()
        if meter is not None:
            meter.cost += reply.cost or 0.0
        return reply

    def waits(self) -> Waiting | None:
        """What calls wait for at the moment: the oldest wait, where every call in flight waits; else None."""
        waits = [flight.waiting for flight in self._flights.values()]
        if None in waits:
            return None
        return min((wait for wait in waits if wait is not None), key=lambda wait: wait.since, default=None)

    def lost(self, call: Call) -> None:
        """Take note that a try of a call was sent and no reply came: it may have been charged."""
        self.metrics.lost += 1
        self.metrics.at_risk += call.worst or 0.0
        self.budget.lost(call)

    @property
    def paying(self) -> bool:
        """Whether a call is on its way that may be charged: worth a grace period, unlike one that waits for money."""
        return bool(self._paying)

    async def close(self, grace: float = 0.0) -> None:
        """Give calls on their way, which are paid for, `grace` seconds to end; then let go of everything."""
        tasks = [flight.task for flight in self._flights.values()]
        paying = [task for task in tasks if task in self._paying]
        for task in tasks:
            if task not in self._paying:
                task.cancel()
        if paying and grace > 0:
            await asyncio.wait(paying, timeout=grace)
        for task in paying:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for closer in self.closers:
            await closer()
        if self._claims is not None:
            self._claims.close()

    def _launch(self, key: bytes, call: Call, send: Send) -> Flight:
        """Send a call; it is carried through whoever still waits for it."""
        context = contextvars.copy_context()
        flight = Flight(call, asyncio.create_task(self._fetch(key, call, send), context=context))
        context.run(FLIGHT.set, flight)
        self._flights[key] = flight
        flight.task.add_done_callback(lambda done: self._over(key, done))
        return flight

    async def _fetch(self, key: bytes, call: Call, send: Send) -> Reply:
        claims = self._claims
        try:
            if claims is None:
                return await self._paid(key, call, send)
            if not (claims.take(key) and claims.alone()) and (held := await self._claim(claims, key)) is not None:
                self.metrics.cached += 1
                return held
            try:
                return await self._paid(key, call, send)
            finally:
                claims.release(key)
        finally:
            FLIGHT.set(None)  # or task, context and flight would keep each other until the next round of garbage

    async def _claim(self, claims: Claims, key: bytes) -> Reply | None:
        """Wait until no other run is at this call; its reply, if one of them has brought it."""
        pause, longest = LOOKS
        while not claims.take(key):
            with waiting("another run that makes the same call"):
                await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)
            if (held := self._held(key)) is not None:
                return held
            if (flight := FLIGHT.get()) is not None:
                flight.taken_over = True
        if (held := self._held(key)) is not None:
            claims.release(key)
        return held

    async def _paid(self, key: bytes, call: Call, send: Send) -> Reply:
        """Send a call within the budget; its reply, once that is durable."""
        task = asyncio.current_task()
        try:
            reserved = 0.0
            if self.budget.limit < math.inf:
                with waiting("calls in flight, which may leave too little money"):
                    reserved = await self.budget.reserve(call)
            cost: float | None = 0.0
            self._paying.add(task)
            try:
                started = time.time()
                sent = await (send(call) if CallBroker.observe is None else CallBroker.observe(call, send))
                cost = sent.reply.cost
            finally:
                self.budget.settle(reserved, cost)
            await self._keep(key, call, sent, started)
            return sent.reply
        except CallFailed as error:
            self.metrics.failed += 1
            if error.hopeless and self.halt is not None:
                self._paying.discard(task)
                self.halt(error)
                with waiting("the end of the run"):
                    await asyncio.get_running_loop().create_future()  # until the run, which is stopping, cancels us
            raise
        finally:
            self._paying.discard(task)

    async def _keep(self, key: bytes, call: Call, sent: Sent, started: float) -> None:
        """Write a reply and its payment down; return when both are safe."""
        self.metrics.add(sent.tries, sent.reply.cost is not None)
        if sent.reply.cost is None and self.metrics.unpriced == 1:
            self.notice(f"the price of {call.model} is not known: its calls are no part of the cost shown")
        if self.commits is not None:
            if self._known is not None:
                self._known.add(key)
                if len(self._known) > KNOWN_KEYS:
                    self._known = None
            self.commits.put(Insert.PAYMENT, self._payment(key, call, sent, started))  # in one commit with the reply
            await self.commits.safe(Insert.CALL, self._row(key, call, sent, started))

    def _row(self, key: bytes, call: Call, sent: Sent, started: float) -> tuple[Any, ...]:
        reply = sent.reply
        text = msgspec.json.encode(reply).decode()
        usage = (reply.input_tokens, reply.output_tokens, reply.cost)
        return (key, self.run, call.model, call.body, text, *usage, started, reply.seconds, sent.tries, sent.batch)

    def _payment(self, key: bytes, call: Call, sent: Sent, started: float) -> tuple[Any, ...]:
        reply = sent.reply
        usage = (reply.cost, reply.input_tokens, reply.output_tokens, reply.cached_tokens, int(reply.estimated))
        how = (reply.seconds, sent.tries, sent.batch, sent.why_full)
        return (self.run, key, call.model, *usage, started, *how)

    def _held(self, key: bytes) -> Reply | None:
        """The ledger's reply to a call; not asked for where it is known that there is none."""
        if self.ledger is None:
            return None
        if self._known is not None and key not in self._known:
            if self._alone():
                return None
            self._known = None
        if (text := self.ledger.reply(key)) is not None:
            return msgspec.structs.replace(msgspec.json.decode(text, type=Reply), cost=0.0, cached=True)
        return None

    def _over(self, key: bytes, flight: asyncio.Task[Reply]) -> None:
        self._flights.pop(key, None)
        if not flight.cancelled():
            flight.exception()  # seen: whoever asked may have left


class Asked(Protocol):
    """A model, as far as a broker needs to know it."""

    async def send(self, call: Call) -> Sent:
        """Send a call now, as often as it takes and makes sense."""
        ...


def ask(model: Asked, call: Call) -> Awaitable[Reply]:
    """Ask through the run that this code belongs to, wherever it executes; outside a run, at once."""
    if (send := home()) is not None:
        return asyncio.wrap_future(send((model, call)))
    broker = current_broker()
    if broker.loop is asyncio.get_running_loop():
        return broker.ask(model, call)
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_asked(broker, model, call), broker.loop))


async def _asked(broker: CallBroker, model: Asked, call: Call) -> Reply:
    """Asked on the broker's own loop: what its way is, is looked up there."""
    return await broker.ask(model, call)


def ask_sync(model: Asked, call: Call) -> Reply:
    """`ask` for synchronous code, from any thread."""
    if (send := home()) is not None:
        return cast(Reply, send((model, call)).result())
    broker = _of_this_run()
    if broker is None:
        return run_beside(lambda: answer((model, call)))
    if broker.thread == threading.get_ident():
        raise NoWayHome(
            "generate_sync waits for the event loop, which waits for this evaluation: run the study on threads:N or "
            "processes:N, or make the evaluator a coroutine function that awaits generate"
        )
    try:
        return asyncio.run_coroutine_threadsafe(_asked(broker, model, call), broker.loop).result()
    except CancelledError:
        raise CallFailed("cancelled", f"the run ended before {call.model} replied") from None


async def answer(request: tuple[Asked, Call]) -> Reply:
    """What the run replies to a call that a worker of its makes: called in the context of the evaluation."""
    model, call = request
    return await current_broker().ask(model, call)


def current_broker() -> CallBroker:
    """The broker of the run this code belongs to; outside a run, one per event loop that remembers nothing."""
    broker = _of_this_run()
    if broker is not None:
        return broker
    loop = asyncio.get_running_loop()
    if loop not in _LOOSE:
        _LOOSE[loop] = CallBroker(cache="off")
    return _LOOSE[loop]


def _of_this_run() -> CallBroker | None:
    """The broker of this context; in a thread that an evaluator may have started, the broker of the only run."""
    here = BROKER.get()
    if here is not None or not _AT_WORK or threading.current_thread() is threading.main_thread():
        return here
    if len(_AT_WORK) > 1:
        raise NoWayHome(
            "a model call was made in a thread that belongs to none of the runs under way: start what the thread does "
            "with contextvars.copy_context().run(...), or use asyncio.to_thread, which does so"
        )
    return next(iter(_AT_WORK))


class Route(Protocol):
    """Another way for an evaluation's calls than sending each at once."""

    def takes(self, model: Any) -> bool:
        """Whether calls to this model go this way."""
        ...

    def answer(self, broker: CallBroker, model: Any, call: Call) -> Coroutine[Any, Any, Reply]:
        """What the broker answers to the call, sent this way where it has to be sent."""
        ...


#: Desks for calls outside any run, by event loop; and the brokers of the runs under way in this process.
_LOOSE: weakref.WeakKeyDictionary[Any, CallBroker] = weakref.WeakKeyDictionary()
_AT_WORK: set[CallBroker] = set()


@contextlib.contextmanager
def at_work(broker: CallBroker) -> Iterator[None]:
    """Makes a broker the one of the run in this context, and of everything that its evaluations start."""
    before, answering = BROKER.set(broker), ANSWER.set(answer)
    _AT_WORK.add(broker)
    try:
        yield
    finally:
        _AT_WORK.discard(broker)
        ANSWER.reset(answering)
        BROKER.reset(before)


#: The broker of the run this code belongs to, the way its calls go, and in a rehearsal what gives a model its transport
#: instead of the model itself.
BROKER: contextvars.ContextVar[CallBroker | None] = contextvars.ContextVar("fanfold_desk", default=None)
ROUTE: contextvars.ContextVar[Route | None] = contextvars.ContextVar("fanfold_route", default=None)
REHEARSAL: contextvars.ContextVar[Callable[[Any], Any] | None] = contextvars.ContextVar(
    "fanfold_rehearsal", default=None
)


def open_requests(ledger: Ledger, run: int) -> tuple[int, int]:
    """How many provider batches of a run are not done, and how many requests they hold."""
    batches = RunView(ledger, run).batches(open=True)
    return len(batches), sum(batch.requests for batch in batches)


__all__ = [
    "BROKER",
    "FLIGHT",
    "METER",
    "REHEARSAL",
    "ROUTE",
    "Budget",
    "Call",
    "CallBroker",
    "Flight",
    "Meter",
    "Metrics",
    "Reply",
    "Route",
    "Send",
    "Sent",
    "Spending",
    "Waiting",
    "ask",
    "ask_sync",
    "at_work",
    "counted",
    "current_broker",
    "open_requests",
    "waiting",
]
