"""Where model calls are made: a broker that remembers replies, shares equal calls in flight, and minds the budget."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from typing import Any, NoReturn, Protocol, cast

from fanfold.context import enter, here, within
from fanfold.errors import CallFailed, NoWayHome
from fanfold.events import Event, Notice
from fanfold.executors.base import home
from fanfold.flights import Call, Flight, Flights, Reply, Send, Sent, Waiting, waiting
from fanfold.ledger import Commits, Ledger, Metrics, Spending
from fanfold.money import Budget
from fanfold.replies import Replies
from fanfold.sharing import Sharing
from fanfold.sync import run_beside
from fanfold.tracing import observer
from fanfold.types import CacheMode


class CallBroker:
    """Answers calls from the ledger, from an equal call in flight, or by sending; replies are durable before given.

    A broker belongs to one event loop.  A call once sent is carried through even when the one who asked gives up,
    because it is paid for.  `halt(error)` is called when no further call can succeed (no credit, wrong key, no budget).
    """

    def __init__(
        self,
        ledger: Ledger | None = None,
        commits: Commits | None = None,
        *,
        run: int | None = None,
        cache: CacheMode = "on",
        budget: Budget | None = None,
        sharing: Sharing | None = None,
        halt: Callable[[CallFailed], None] | None = None,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.metrics = Metrics()
        self.budget = budget or Budget()
        #: By what limits and replies are shared with others.
        self.sharing = sharing
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.replies = Replies(ledger, commits, run, cache, sharing)
        self.halt = halt
        #: Told what happens to calls on their way.
        self.emit = emit
        self._observe = observer()
        self._flights = Flights()
        self._dropped: set[tuple[str, str]] = set()
        #: Those that may be charged: on their way to a provider, or not yet written down.
        self._paying: set[Flight] = set()

    def ask(self, model: Asked, call: Call) -> Awaitable[Reply]:
        """Answer a call to a model, by the way that the evaluation's calls take."""
        route: Route | None = here().route
        if route is not None and route.takes(model):
            return route.answer(self, model, call)
        return self.answer(call, model.send)

    async def answer(self, call: Call, send: Send) -> Reply:
        return await self.answered(call, send)

    def answered(self, call: Call, send: Send) -> Awaitable[Reply]:
        """`answer` without a coroutine of its own, as thousands of calls may wait at once: to be awaited right away."""
        key, replies = call.key, self.replies
        if replies.cache != "off" and (flight := self._flights.get(key)) is not None:
            self.metrics.shared += 1
            return flight.join(shared=True)
        if replies.answers and (held := replies.find(key)) is not None:
            self.metrics.cached += 1
            if (meter := here().meter) is not None:
                meter.count(key, True)
            found: asyncio.Future[Reply] = self.loop.create_future()
            found.set_result(held)
            return found
        if replies.cache == "offline":
            raise CallFailed(
                "offline", f"the ledger holds no reply of {call.model} to this request, and cache='offline'"
            )
        return self._launch(call, send).join(shared=False)

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
        self.halt = None  # the run ends: a call that fails for good now ends by itself
        tasks = {flight: flight.task for flight in self._flights.values() if flight.task is not None}
        paying = [task for flight, task in tasks.items() if flight in self._paying]
        for flight, task in tasks.items():
            if flight not in self._paying:
                task.cancel()
        if paying and grace > 0:
            await asyncio.wait(paying, timeout=grace)
        for task in paying:
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for closer in self.closers:
            await closer()
        self.replies.close()

    def _launch(self, call: Call, send: Send) -> Flight:
        """Send a call; it is carried through whoever still waits for it."""
        if call.dropped:
            self._say_dropped(call)
        flight = Flight(call, self._flights)
        flight.task = self.loop.create_task(self._fetch(flight, send), name="call")
        flight.task.add_done_callback(flight.land, context=self._flights.context)
        return flight

    async def _fetch(self, flight: Flight, send: Send) -> Reply:
        """Send a call within the budget, unless another run has; its reply, once that is durable."""
        call, replies, budget = flight.call, self.replies, self.budget
        enter(flight=flight)
        if not replies.take(call.key) and (held := await replies.taken(call.key)) is not None:
            self.metrics.cached += 1
            return held
        try:
            if replies.sharing is not None and (held := await replies.fetched(call.key, call)) is not None:
                self.metrics.shared += 1
                return held
            reserved = 0.0
            if budget.limited:
                with waiting("calls in flight, which may leave too little money"):
                    reserved = await budget.reserve(call)
            cost: float | None = 0.0
            self._paying.add(flight)
            try:
                replies.check()
                started = time.time()
                sent = await (send(call) if self._observe is None else self._observe(call, send))
                cost = sent.reply.cost
            finally:
                budget.settle(reserved, cost)
            self.metrics.add(sent.tries, cost is not None)
            if cost is None and self.metrics.unpriced == 1:
                self.emit(Notice(f"the price of {call.shown_model} is not known: the cost shown leaves its calls out"))
            if replies.commits is not None:
                await replies.keep(call, sent, started)
            replies.share(call, sent)
            return sent.reply
        except CallFailed as error:
            self.metrics.failed += error.kind != "budget"  # which was never sent
            if error.hopeless:
                self._paying.discard(flight)
                await self.stop_run(error)
            raise
        finally:
            self._paying.discard(flight)
            replies.release(call.key)

    def _say_dropped(self, call: Call) -> None:
        """Say once for each parameter of a model that its requests leave it out."""
        news = {(call.model, name) for name in call.dropped} - self._dropped
        self._dropped |= news
        for model, name in sorted(news):
            self.emit(Notice(f"{model} does not take {name}: its requests leave it out", "parameters"))

    async def stop_run(self, error: CallFailed) -> None:
        """Stop the run that this broker serves, and wait until it cancels us; without a run, return at once."""
        if self.halt is not None:
            self.halt(error)
            with waiting("the end of the run"):
                await asyncio.get_running_loop().create_future()


class Asked(Protocol):
    """A model, as far as a broker needs to know it."""

    async def send(self, call: Call) -> Sent:
        """Send a call now, as often as it takes and makes sense."""
        ...


def ask(model: Asked, call: Call) -> Awaitable[Reply]:
    """Ask through the run that this code belongs to, wherever it executes; outside a run, at once."""
    trace = here().trace
    return _sent(model, call) if trace is None else _traced(trace, call, _sent(model, call))


class _Nobody:
    """Takes the place of a broker where no model is to be asked."""

    def __getattr__(self, name: str) -> Any:
        raise NoWayHome("a model was asked where none may be: while it is tried whether code works at all")


@contextlib.contextmanager
def unasked() -> Iterator[None]:
    """A block in which a model call raises `NoWayHome`, so that code can be tried without paying for it."""
    with within(broker=_Nobody()):
        yield


@contextlib.contextmanager
def traced() -> Iterator[list[tuple[Call, Reply]]]:
    """The calls that are made in a block, and in what it starts, with their replies and in the order of these."""
    trace: list[tuple[Call, Reply]] = []
    with within(trace=trace):
        yield trace


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """The time that model calls take in a block does not count for the time limit of its evaluation."""
    with within(calls_aside=True):
        yield


async def _traced(trace: list[Any], call: Call, answered: Awaitable[Reply]) -> Reply:
    reply = await answered
    trace.append((call, reply))
    return reply


def _sent(model: Asked, call: Call) -> Awaitable[Reply]:
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
    reply = _waited(model, call)
    if (trace := here().trace) is not None:
        trace.append((call, reply))
    return reply


def _waited(model: Asked, call: Call) -> Reply:
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


async def stop_run(failure: CallFailed) -> NoReturn:
    """Stop the run of this evaluation, which stays open: its question can be answered when the run continues."""
    if (broker := _of_this_run()) is not None:
        await broker.stop_run(failure)
    raise failure


def _of_this_run() -> CallBroker | None:
    """The broker of this context; in a thread that an evaluator may have started, the broker of the only run."""
    broker: CallBroker | None = here().broker
    if broker is not None or not _AT_WORK or threading.current_thread() is threading.main_thread():
        return broker
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


def in_batches() -> bool:
    """Whether calls of this evaluation may travel in batches, so that none of them should wait for another."""
    return here().route is not None


#: Brokers for calls outside any run, by event loop; and the brokers of the runs under way in this process.
_LOOSE: weakref.WeakKeyDictionary[Any, CallBroker] = weakref.WeakKeyDictionary()
_AT_WORK: set[CallBroker] = set()


@contextlib.contextmanager
def at_work(broker: CallBroker) -> Iterator[None]:
    """Makes a broker the one of the run in this context, and of everything that its evaluations start."""
    _AT_WORK.add(broker)
    try:
        with within(broker=broker, answer=answer):
            yield
    finally:
        _AT_WORK.discard(broker)


__all__ = [
    "Budget",
    "Call",
    "CallBroker",
    "Flight",
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
    "current_broker",
    "in_batches",
    "traced",
    "waiting",
]
