"""Batches in the ledger: what is written down about each, what earlier processes left, and who waits for which line."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fanfold.calls import Call, CallBroker, Flight, Reply, Sent, Waiting
from fanfold.errors import CallFailed
from fanfold.events import BatchChanged
from fanfold.ledger import Insert, all_answered, batch_items, live_batches, remote_batches, replies_kept
from fanfold.models.batch.protocol import LineOutcome
from fanfold.models.model import Model


@dataclass(slots=True, eq=False)
class Parked:
    """A call that waits.  Its answer is a text, which says why, when it has to be sent alone at full price."""

    call: Call
    model: Model
    since: float
    answer: asyncio.Future[Sent | str]
    #: Whose it is: the trial, the case, and which of the evaluation's calls.
    place: tuple[int, str, int] = (0, "", 0)
    #: How many batches came to nothing for it, and how many of its answers were lost on the way.
    tries: int = 0
    lost: int = 0
    flight: Flight | None = None
    #: The request as it was last sent, where that is not the call's own: without a parameter that the model refuses.
    body: str | None = None

    def sendable(self) -> Call:
        """The call as the model takes it."""
        body = self.model.sendable(self.call)
        if body == self.call.body:
            return self.call
        self.body = body
        return msgspec.structs.replace(self.call, body=body)

    def learns(self, error: CallFailed) -> bool:
        """Whether the call is worth another batch, without a parameter that the error names."""
        return bool(error.parameters) and self.model.learn(self.body or self.call.body, error)

    @property
    def worst(self) -> float | None:
        """The most that a batch may charge for it; None: not known."""
        price = self.model.price
        return None if price is None or self.call.worst is None else self.call.worst * price.batch

    def waits_for(self, wait: Waiting) -> None:
        if self.flight is not None and self.flight.waiting is not None:
            self.flight.waiting = wait

    def settle(self, outcome: Sent | Exception | str) -> None:
        if self.answer.done():
            return  # whoever waited has left
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


@dataclass(slots=True, eq=False)
class Batch:
    """One batch: its row in the ledger, who waits for which line, and what came back."""

    tag: str
    run: int | None
    model_id: str
    endpoint: str
    state: str
    remote: str | None
    requests: int
    created: float
    note: str | None = None
    waiting: dict[str, Parked] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    #: Ids of provider batches that turned out not to be this one.
    rejected: set[str] = field(default_factory=set)
    lines: dict[str, LineOutcome] | None = None
    #: The state to write down once its replies are safe.
    ending: str = "done"

    @property
    def in_doubt(self) -> bool:
        """Whether it is not certain which batch at the provider this is, if any."""
        return self.state == "intent"

    def waits_for(self, what: str) -> None:
        """Say what its calls wait for."""
        wait = Waiting(what, asyncio.get_running_loop().time())
        for parked in self.waiting.values():
            parked.waits_for(wait)

    def row(self) -> tuple[Any, ...]:
        where = (self.tag, self.run, self.model_id, self.endpoint, self.state, self.remote)
        return (*where, self.requests, self.created, self.note)


class BatchJournal:
    """The batch rows of one broker's ledger.  Without a ledger it remembers nothing.

    A batch of another run is that run's to write about: here it is only read.
    """

    def __init__(self, broker: CallBroker) -> None:
        self._ledger, self._commits, self._run = broker.replies.ledger, broker.replies.commits, broker.replies.run
        self._emit = broker.emit
        self._epoch = time.time() - asyncio.get_running_loop().time()

    def now(self) -> float:
        """Wall time that cannot jump, and that follows a virtual clock."""
        return self._epoch + asyncio.get_running_loop().time()

    def loop_time(self, wall: float) -> float:
        """A time of `now` as the loop's clock has it."""
        return wall - self._epoch

    def open_places(self) -> dict[bytes, list[tuple[Batch, str]]]:
        """Where the calls of batches under way are: this run's, and those that other runs have submitted."""
        places: dict[bytes, list[tuple[Batch, str]]] = {}
        if self._ledger is None:
            return places
        for row in live_batches(self._ledger, self._run):
            batch = Batch(*row)
            if self._noted_late(batch):
                continue
            for custom_id, key in batch_items(self._ledger, batch.tag):
                batch.ids.add(custom_id)
                places.setdefault(key, []).append((batch, custom_id))
        return places

    def _noted_late(self, batch: Batch) -> bool:
        """Whether all replies of a batch of ours are safe, and only that was not written down."""
        assert self._ledger is not None
        if self._commits is None or batch.run != self._run or not all_answered(self._ledger, batch.tag):
            return False
        batch.state = "done"
        self._commits.put(Insert.BATCH, batch.row())
        return True

    def remotes(self, batch: Batch) -> set[str]:
        """The provider's ids of all other batches in the ledger that are known for certain."""
        return set() if self._ledger is None else remote_batches(self._ledger, batch.tag)

    async def intend(self, batch: Batch) -> None:
        """Write down, durably, what is about to be submitted."""
        if self._commits is not None:
            for custom_id, parked in batch.waiting.items():
                self._commits.put(Insert.BATCH_ITEM, (batch.tag, custom_id, parked.call.key))
                self._commits.put(Insert.OWED, (batch.tag, parked.call.key, parked.worst))
        await self.note(batch, "intent")

    async def note(self, batch: Batch, state: str, remote: str | None = None, why: str | None = None) -> None:
        """Write down, durably, how a batch stands."""
        batch.state = state
        if state in ("intent", "submitted"):
            batch.remote = remote
        batch.note = why or batch.note
        if self._commits is not None and batch.run == self._run:
            await self._commits.safe(Insert.BATCH, batch.row())
        self._emit(BatchChanged(batch.tag, batch.model_id, state, batch.requests))

    async def all_safe(self, batch: Batch) -> bool:
        """Whether the batch is ours, and every reply that it brought is in the ledger by now."""
        if self._commits is None or self._ledger is None:
            return True
        await self._commits.flush()
        brought = sum(isinstance(line, Reply) for line in (batch.lines or {}).values())
        return replies_kept(self._ledger, batch.tag) >= brought and batch.run == self._run
