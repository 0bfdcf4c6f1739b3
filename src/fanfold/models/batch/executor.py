"""The executor that sends model calls in provider batches: they gather in waves, which leave when they are complete."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from fanfold.attempt import off_the_clock
from fanfold.calls import FLIGHT, ROUTE, Call, CallBroker, Reply, Sent, waiting
from fanfold.errors import ConfigError, nearest
from fanfold.executors import make
from fanfold.executors.base import Executor, is_coroutine_function
from fanfold.executors.local import Async
from fanfold.models.anthropic import Anthropic
from fanfold.models.batch.dialects import batches_of
from fanfold.models.batch.journal import Parked
from fanfold.models.batch.lifecycle import NO_BATCHES, BatchLifecycle
from fanfold.models.batch.recovery import Terms
from fanfold.models.model import Model

PROVIDERS = ("openai", "anthropic", "auto")
#: Plain functions each keep a thread while their calls wait; more of them than this take turns.
THREADS = 1024
#: What a line of a batch holds beside the body of its call.
LINE = 160


class BatchExecutor(Executor):
    """Runs evaluations like `async`, all at once, and sends their model calls in batches at half the price.

    A wave of calls leaves when every evaluation waits for an answer and none has joined for `settle` seconds, when its
    oldest call has waited `max_wait` seconds, or when the provider takes no more in one batch.  Fewer than `smallest`
    calls, those a batch gives no answer to, and those to models without batches go out plainly.  A batch that has not
    ended `deadline` seconds after its creation is cancelled, and what is left of it goes out plainly.  `provider` may
    end in the most calls of a batch, as in `openai:20`, and then in where evaluations run instead, as in
    `openai:20@processes:8`, whose calls come home to join the waves.

    Batches are in the run's ledger before they are created, and a resumed run waits for those still under way.  On
    leaving, they are kept or cancelled as `leave` says; `left` then names them, and `notes` what was out of order.

    `poll` is the time between two looks at a batch (else growing from 1 to 30 seconds, or as the provider asks);
    `looks` are the pauses before each look for a batch whose creation is in doubt, after which it is given up and
    submitted again; `enqueued` is how many input tokens the provider lets wait in batches of one model.
    """

    interruptible = True
    slots = 1_000_000
    bounded = False
    collects = True

    def __init__(
        self,
        provider: str | None = None,
        *,
        max_wait: float = 60.0,
        deadline: float | None = None,
        poll: float | None = None,
        settle: float = 0.2,
        smallest: int = 2,
        looks: Sequence[float] = (0.0, 5.0, 10.0, 30.0, 60.0, 120.0),
        enqueued: int | None = None,
        leave: Literal["keep", "cancel"] = "keep",
    ) -> None:
        self.name = f"batch:{'auto' if provider is None else provider}"
        named, at, place = self.name.removeprefix("batch:").partition("@")
        provider, colon, most = named.partition(":")
        if at and place in ("", "auto", "inline"):
            raise ConfigError(f"executor={self.name!r}: name a place with slots after the '@', such as processes:8")
        if colon and not (most.isascii() and most.isdecimal() and 0 < int(most) < 1_000_000):
            raise ConfigError(f"executor={self.name!r}: {most!r} is not a number of calls; write batch:{provider}:20")
        if provider not in PROVIDERS:
            raise ConfigError(f"executor={self.name!r}: no such provider{nearest(str(provider), PROVIDERS)}")
        if leave not in ("keep", "cancel"):
            raise ConfigError(f"leave must be 'keep' or 'cancel', not {leave!r}")
        for option, value in (("max_wait", max_wait), ("settle", settle), ("deadline", deadline), ("poll", poll)):
            if value is not None and not value >= 0:
                raise ConfigError(f"{option}={value!r} is not a number of seconds: give 0 or more")
        self.left: list[str] = []
        self.notes: list[str] = []
        self._provider = provider
        self._gathering = Gathering(max_wait, settle, smallest, int(most) if colon else None)
        self._terms = Terms(deadline, poll, tuple(looks), enqueued, leave)
        self._inner: Executor = make(place) if at else Async(THREADS)
        if at:
            self.slots, self.bounded = self._inner.slots, True
        self._waves: Waves | None = None

    @staticmethod
    def spellings() -> list[str]:
        """For help and completion."""
        return [f"batch:{provider}" for provider in PROVIDERS]

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        self.left, self.notes = [], []
        self._waves = Waves(self._gathering, self._terms, self.notes.append, self.left.extend)
        self._threads = asyncio.Semaphore(THREADS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waves, self._waves = self._waves, None
        try:
            if waves is not None:
                await waves.close()
        finally:
            await self._inner.__aexit__(kind, error, trace)

    def remarks(self) -> Sequence[str]:
        return [*self.notes, *self.left]

    async def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self.bounded or is_coroutine_function(fn):
            return await self._seated(fn, args)
        with off_the_clock():  # one that waits for a thread is not yet an evaluation others should wait for
            await self._threads.acquire()
        try:
            return await self._seated(fn, args)
        finally:
            self._threads.release()

    async def _seated(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        assert self._waves is not None, "use the executor in an `async with` block"
        seat = Seat(self._waves, self._takes)
        before = ROUTE.set(seat)
        self._waves.enter(seat)
        try:
            return await self._inner.run(fn, *args)
        finally:
            self._waves.exit(seat)
            ROUTE.reset(before)

    def _takes(self, model: Model) -> bool:
        if batches_of(model) is None:
            return False
        if self._provider == "auto":  # a server that merely speaks the protocol has batches only where that is said
            return model.wire.name in PROVIDERS
        return isinstance(model.wire, Anthropic) == (self._provider == "anthropic")


class Seat:
    """One evaluation: which calls it waits for.  It is the route of these calls."""

    def __init__(self, waves: Waves, takes: Callable[[Model], bool]) -> None:
        self.asked: Counter[bytes] = Counter()
        self._waves, self._takes = waves, takes

    def takes(self, model: Model) -> bool:
        return asyncio.get_running_loop() is self._waves.loop and self._takes(model)

    async def answer(self, broker: CallBroker, model: Model, call: Call) -> Reply:
        key = call.key
        self.asked[key] += 1
        self._waves.waits(key)
        try:
            return await broker.answer(call, lambda call: self._waves.send(broker, model, call))
        finally:
            self.asked -= Counter([key])
            self._waves.goes_on(key)


@dataclass(frozen=True, slots=True)
class Gathering:
    """When a wave leaves; see `BatchExecutor`."""

    max_wait: float
    settle: float
    smallest: int
    largest: int | None = None


#: Calls that can share a batch: to one model at one endpoint, with one key.
Group: TypeAlias = tuple[str, str, str | None]


@dataclass(slots=True, eq=False)
class Wave:
    """Calls of one group on their way into one batch."""

    lifecycle: BatchLifecycle
    timer: asyncio.TimerHandle
    parked: list[Parked] = field(default_factory=list)
    bytes: int = 0
    tokens: int = 0


class Waves:
    """Gathers calls, and sees when nothing more can join: every evaluation waits for a call that is not moving.

    A call is moving when its answer is on the way: it goes out plainly, or its reply is being made durable.
    """

    def __init__(
        self,
        gathering: Gathering,
        terms: Terms,
        note: Callable[[str], None],
        leave: Callable[[Sequence[str]], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._gathering, self._terms, self._note, self._leave = gathering, terms, note, leave
        self._seats: set[Seat] = set()
        self._waiters: Counter[bytes] = Counter()
        self._moving: set[bytes] = set()
        self._waves: dict[Group, Wave] = {}
        self._lifecycles: dict[CallBroker, BatchLifecycle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._changed_at = 0.0

    # -- who waits ---------------------------------------------------------------------------------------------------

    def enter(self, seat: Seat) -> None:
        self._seats.add(seat)
        self._changed()

    def exit(self, seat: Seat) -> None:
        self._seats.discard(seat)
        self._changed()

    def waits(self, key: bytes) -> None:
        self._waiters[key] += 1
        self._changed()

    def goes_on(self, key: bytes) -> None:
        self._waiters[key] -= 1
        if not self._waiters[key]:
            del self._waiters[key]
            self._moving.discard(key)
        self._changed()

    # -- calls -------------------------------------------------------------------------------------------------------

    async def send(self, broker: CallBroker, model: Model, call: Call) -> Sent:
        lifecycle = self._carrier(broker)
        if (flight := FLIGHT.get()) is not None and flight.taken_over:
            await lifecycle.look_again()
        parked = Parked(call, model, self.loop.time(), self.loop.create_future())
        if not lifecycle.attach(parked):
            if call.endpoint in lifecycle.without:
                parked.settle(NO_BATCHES)
            else:
                self._join(lifecycle, parked)
        try:
            with waiting(f"a batch of {model.id}"):
                sent = await parked.answer
        finally:
            if call.key in self._waiters:
                self._moving.add(call.key)
            self._changed()
        return replace(await model.send(call), why_full=sent) if isinstance(sent, str) else sent

    async def close(self) -> None:
        """Let go of all that waits."""
        for group in list(self._waves):
            self._waves.pop(group).timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for lifecycle in list(self._lifecycles.values()):
            await self._part(lifecycle)

    def _carrier(self, broker: CallBroker) -> BatchLifecycle:
        lifecycle = self._lifecycles.get(broker)
        if lifecycle is None:
            lifecycle = BatchLifecycle(
                broker, self._terms, lambda parked: self._join(self._lifecycles[broker], parked), self._note
            )
            self._lifecycles[broker] = lifecycle
            # First of all, because to cancel a batch the lines to the provider must still be open.
            broker.closers.insert(0, lambda: self._part(lifecycle))
        return lifecycle

    async def _part(self, lifecycle: BatchLifecycle) -> None:
        if self._lifecycles.pop(lifecycle.broker, None) is lifecycle:
            await lifecycle.leave()
            self._leave(lifecycle.left)

    def _join(self, lifecycle: BatchLifecycle, parked: Parked) -> None:
        call, model = parked.call, parked.model
        protocol = batches_of(model)
        assert protocol is not None
        size, most = len(call.body.encode()) + LINE, 0.95 * protocol.max_bytes
        group = (model.id, call.endpoint, model.key)
        wave = self._waves.get(group)
        if wave is not None and self._too_much(wave.bytes + size, most, wave.tokens + call.input_tokens):
            self._depart(group)
            wave = self._waves.get(group)
        if wave is None:
            timer = self.loop.call_later(self._gathering.max_wait, self._depart, group)
            wave = self._waves[group] = Wave(lifecycle, timer)
        wave.parked.append(parked)
        wave.bytes += size
        wave.tokens += call.input_tokens
        self._changed()
        if len(wave.parked) >= min(protocol.max_requests, self._gathering.largest or protocol.max_requests):
            self._depart(group)

    def _too_much(self, bytes: int, most: float, tokens: int) -> bool:
        return bytes > most or (self._terms.enqueued is not None and tokens > self._terms.enqueued)

    def _depart(self, group: Group) -> None:
        wave = self._waves.pop(group)
        wave.timer.cancel()
        calls = [parked for parked in wave.parked if not parked.answer.done()]
        wanted = [parked for parked in calls if parked.call.key in self._waiters]
        if len(wanted) < len(calls):  # nobody waits for these any more: they stay, in case that somebody will again
            timer = self.loop.call_later(self._gathering.max_wait, self._depart, group)
            stay = [parked for parked in calls if parked.call.key not in self._waiters]
            self._waves[group] = Wave(wave.lifecycle, timer, stay)
        if len(wanted) >= self._gathering.smallest:
            wave.lifecycle.submit(wanted)
        else:
            for parked in wanted:
                parked.settle(f"fewer than {self._gathering.smallest} in a wave")

    # -- quiescence --------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._changed_at = self.loop.time()
        if self._timer is None and self._waves:
            self._timer = self.loop.call_later(self._gathering.settle, self._settled)

    def _settled(self) -> None:
        """After a quiet while, and one more turn of the loop for what was ready to run by then."""
        self._timer = self.loop.call_later(0, self._look, self._changed_at)

    def _look(self, changed_at: float) -> None:
        self._timer = None
        quiet = self._changed_at + self._gathering.settle - self.loop.time()
        if self._changed_at != changed_at or quiet > 1e-6:
            self._timer = self.loop.call_later(max(quiet, 0.0), self._settled)
        elif all(any(key not in self._moving for key in seat.asked) for seat in self._seats):
            for group in list(self._waves):
                self._depart(group)
