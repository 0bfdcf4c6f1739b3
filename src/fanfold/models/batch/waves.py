"""Waves: calls gather until nothing more can join, and then leave together as one batch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from fanfold.calls import Call, CallBroker, Flight, Reply, Sent, current_broker, waiting
from fanfold.context import Meter, here
from fanfold.errors import CallFailed
from fanfold.events import Notice
from fanfold.models.batch.journal import Parked
from fanfold.models.batch.leftovers import NO_BATCHES
from fanfold.models.batch.lifecycle import BatchLifecycle
from fanfold.models.batch.recovery import BatchTerms
from fanfold.models.batch.slices import Slices
from fanfold.models.model import Model

#: What a line of a batch holds beside the body of its call.
LINE = 160


class Seat:
    """One evaluation: which calls it waits for.  It is the route of these calls."""

    __slots__ = ("_calls", "_takes", "_waves", "asked")

    def __init__(self, waves: Waves, takes: Callable[[Model], bool]) -> None:
        self.asked: tuple[bytes, ...] = ()
        self._calls = 0
        self._waves, self._takes = waves, takes

    def takes(self, model: Model) -> bool:
        self._calls += 1  # this is asked about every call, also those that take another way
        if self._takes(model):
            return asyncio.get_running_loop() is self._waves.loop
        self._waves.goes_alone(model)
        return False

    async def answer(self, broker: CallBroker, model: Model, call: Call) -> Reply:
        key, number = call.key, self._calls - 1
        self.asked += (key,)
        self._waves.waits(key)
        try:
            reply = await broker.answered(call, ByWave(self._waves, broker, model, number))
            self._waves.moves(key)
            await self._waves.turn()
            return reply
        finally:
            gone = self.asked.index(key)
            self.asked = self.asked[:gone] + self.asked[gone + 1 :]
            self._waves.continues(key)


class ByWave:
    """Sends a call of an evaluation, its `number`-th, with a wave.  Half as large as a partial function would be."""

    __slots__ = ("_broker", "_model", "_number", "_waves")

    def __init__(self, waves: Waves, broker: CallBroker, model: Model, number: int) -> None:
        self._waves, self._broker, self._model, self._number = waves, broker, model, number

    def __call__(self, call: Call) -> Awaitable[Sent]:
        return self._waves.send(self._broker, self._model, self._number, call)


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
class CallWave:
    """Calls of one group on their way into one batch."""

    lifecycle: BatchLifecycle
    timer: asyncio.TimerHandle
    parked: list[Parked] = field(default_factory=list)
    bytes: int = 0
    tokens: int = 0


class Waves:
    """Gathers calls, and sees when nothing more can join: every evaluation waits for a call that is not moving.

    A call is moving when its answer is on the way: it is sent alone, or its reply is being made durable.
    """

    def __init__(
        self,
        gathering: Gathering,
        terms: BatchTerms,
        notes: list[str],
        leave: Callable[[Sequence[str]], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._gathering, self._terms, self._notes, self._leave = gathering, terms, notes, leave
        self._seats: set[Seat] = set()
        self._waiters: Counter[bytes] = Counter()
        self._moving: set[bytes] = set()
        self._alone: set[str] = set()
        self._waves: dict[Group, CallWave] = {}
        self._lifecycles: dict[CallBroker, BatchLifecycle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._changed_at = 0.0
        self._slices = Slices()

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

    def continues(self, key: bytes) -> None:
        self._waiters[key] -= 1
        if not self._waiters[key]:
            del self._waiters[key]
            self._moving.discard(key)
        self._changed()

    def goes_alone(self, model: Model) -> None:
        """A call to a model without batches: say once what that means."""
        if model.id not in self._alone:
            self._alone.add(model.id)
            if model.provider.remote:
                text = f"{model.id} has no batches here: its calls are sent at once, at full price"
                self._notes.append(text)
                current_broker().emit(Notice(text))

    # -- calls -------------------------------------------------------------------------------------------------------

    async def send(self, broker: CallBroker, model: Model, number: int, call: Call) -> Sent:
        lifecycle = self._lifecycle(broker)
        flight: Flight | None = here().flight
        if flight is not None and flight.taken_over:
            await lifecycle.look_again()
        meter = here().meter or Meter()
        place = (meter.trial, meter.case, number)
        parked = Parked(call, model, self.loop.time(), self.loop.create_future(), place, flight=flight)
        if not lifecycle.attach(parked):
            if call.endpoint in lifecycle.leftovers.without:
                parked.settle(NO_BATCHES)
            else:
                self._join(lifecycle, parked)
        try:
            with waiting(f"a batch of {model.id}"):
                sent = await parked.answer
        finally:
            self.moves(call.key)
        await self.turn()
        return msgspec.structs.replace(await model.send(call), why_full=sent) if isinstance(sent, str) else sent

    async def turn(self) -> None:
        """Wait with what an evaluation does next until its slice has come."""
        await self._slices.turn()

    def moves(self, key: bytes) -> None:
        """The answer to a call is here, or it will not come from a batch."""
        if key in self._waiters:
            self._moving.add(key)
        self._changed()

    async def close(self) -> None:
        """Let go of all that waits."""
        for group in list(self._waves):
            self._waves.pop(group).timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for lifecycle in list(self._lifecycles.values()):
            await self._part(lifecycle)

    def _lifecycle(self, broker: CallBroker) -> BatchLifecycle:
        lifecycle = self._lifecycles.get(broker)
        if lifecycle is None:
            lifecycle = self._lifecycles[broker] = BatchLifecycle(
                broker,
                self._terms,
                lambda parked: self._join(self._lifecycles[broker], parked),
                self._changed,
                self._notes,
            )
            # First of all, because to cancel a batch the lines to the provider must still be open.
            broker.closers.insert(0, lambda: self._part(lifecycle))
        return lifecycle

    async def _part(self, lifecycle: BatchLifecycle) -> None:
        if self._lifecycles.pop(lifecycle.broker, None) is lifecycle:
            await lifecycle.leave()
            self._leave(lifecycle.left)

    def _join(self, lifecycle: BatchLifecycle, parked: Parked) -> None:
        call, model = parked.call, parked.model
        protocol = model.provider.batches
        assert protocol is not None
        size, most = len(call.body.encode()) + LINE, 0.95 * protocol.max_bytes
        group = (model.id, call.endpoint, model.key)
        wave = self._waves.get(group)
        limit = lifecycle.room.limit(call.shown_model)
        full = limit is not None and wave is not None and wave.tokens + call.input_tokens > limit
        if wave is not None and (full or wave.bytes + size > most):
            self._depart(group)
            wave = self._waves.get(group)
        if wave is None:
            timer = self.loop.call_later(self._gathering.max_wait, self._depart, group)
            wave = self._waves[group] = CallWave(lifecycle, timer)
        wave.parked.append(parked)
        wave.bytes += size
        wave.tokens += call.input_tokens
        self._changed()
        if len(wave.parked) >= min(protocol.max_requests, self._gathering.largest or protocol.max_requests):
            self._depart(group)

    def _depart(self, group: Group) -> None:
        wave = self._waves.pop(group)
        wave.timer.cancel()
        calls = [parked for parked in wave.parked if not parked.answer.done()]
        wanted = [parked for parked in calls if parked.call.key in self._waiters]
        if len(wanted) < len(calls):  # nobody waits for these any more: they stay, in case that somebody will again
            timer = self.loop.call_later(self._gathering.max_wait, self._depart, group)
            stay = [parked for parked in calls if parked.call.key not in self._waiters]
            self._waves[group] = CallWave(wave.lifecycle, timer, stay)
        if self._terms.fallback == "realtime" and len(wanted) < self._gathering.smallest:
            for parked in wanted:
                parked.settle(f"fewer than {self._gathering.smallest} in a wave")
        elif wanted:
            wave.lifecycle.submit(wanted)

    # -- quiescence --------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._changed_at = self.loop.time()
        if self._timer is None and (self._waves or self._terms.detach):
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
            if self._terms.detach and all(lifecycle.resting for lifecycle in self._lifecycles.values()):
                for broker in self._lifecycles:
                    if broker.halt is not None:
                        broker.halt(CallFailed("detached", "every open call is in a provider batch"))
