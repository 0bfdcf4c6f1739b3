"""Calls that a batch gives no answer to: they go into the next one, and cost more only where that is wanted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from fanfold.calls import CallBroker
from fanfold.errors import CallFailed
from fanfold.models.batch.journal import Batch, Parked
from fanfold.models.batch.recovery import BatchTerms
from fanfold.models.batch.room import QueueRoom, is_full
from fanfold.models.failures import Redirected
from fanfold.models.retry import RetryPolicy

#: Why calls are paid at full price, as the end of a run says it.
NO_BATCHES, DEADLINE, FULL = "the endpoint has no batches", "deadline", "the provider's queue was full"
#: How many batches may give a call no answer: at all, and although it may have been charged.
TRIES, LOST = RetryPolicy().tries, RetryPolicy().unreadable
#: The longest pause in seconds after batches that brought nothing.
REST = 600.0


class Leftovers:
    """Decides where calls without an answer go.

    They join the next batch (`rejoin`, or `submit` for those that must not travel with others).  They are sent at full
    price once their deadline has passed, or where the terms say so.  A call that batch after batch does not answer
    fails, alone.
    """

    def __init__(
        self,
        broker: CallBroker,
        terms: BatchTerms,
        room: QueueRoom,
        rejoin: Callable[[Parked], None],
        submit: Callable[[Sequence[Parked]], None],
        note: Callable[[str], None],
    ) -> None:
        #: Endpoints that turned out to have no batches.
        self.without: set[str] = set()
        self._broker, self._terms, self._room = broker, terms, room
        self._rejoin, self._submit, self._note = rejoin, submit, note

    @property
    def way(self) -> str:
        """Where they go, for sentences."""
        return "into the next batch" if self._terms.fallback == "batch" else "out one by one, at full price"

    def due(self, calls: Collection[Parked]) -> float:
        """When the first of these calls stops waiting for a batch, by the loop's time."""
        if self._terms.deadline is None:
            return math.inf
        return min((parked.since for parked in calls), default=math.inf) + self._terms.deadline

    def again(self, calls: Collection[Parked], why: str, *, tried: bool = False, lost: bool = False) -> None:
        """Send calls on.  `tried`: a batch came to nothing; `lost`: it may have charged for an answer all the same."""
        now = asyncio.get_running_loop().time()
        for parked in calls:
            if parked.answer.done():
                continue
            parked.tries, parked.lost = parked.tries + tried, parked.lost + lost
            if lost:
                self._broker.lost(parked.call)
            if now >= self.due([parked]):
                parked.settle(DEADLINE)
            elif self._terms.fallback == "realtime":
                parked.settle(why)
            elif parked.tries >= TRIES or parked.lost >= LOST:
                kind, count = ("malformed", parked.lost) if parked.lost >= LOST else ("server", parked.tries)
                parked.settle(CallFailed(kind, f"{parked.model.id}: no answer in {count} batches ({why})"))
            else:
                self._rejoin(parked)

    def full_price(self, calls: Collection[Parked]) -> str:
        """What it may cost to send these calls now, for a sentence."""
        priced = [(parked.call, parked.model.price) for parked in calls]
        costs = [price.cost(call.input_tokens, call.output_tokens) for call, price in priced if price is not None]
        cost = f"for up to about ${sum(costs):.4f}" if len(costs) == len(calls) else "at a price that is not known"
        return f"what is left of its {len(calls)} calls goes out at once, {cost}"

    def pause(self, calls: Collection[Parked], model: str) -> None:
        """Nothing came of a whole batch: wait longer each time before the next."""
        self._room.rest(model, min(REST, 5.0 * 2.0 ** max((parked.tries for parked in calls), default=0)))

    def refused(self, batch: Batch, error: CallFailed, bad_lines: Mapping[int, str] | None = None) -> None:
        """The provider took nothing of a batch; `bad_lines` says which of its lines, counted from 1, are why."""
        calls, batch.waiting = list(batch.waiting.values()), {}
        many = f"{len(calls)} call{'s' * (len(calls) != 1)} to {batch.model_id}"
        if isinstance(error, Redirected):  # it leads elsewhere, however often it is asked
            error = CallFailed("unreachable", str(error))
        if error.kind == "not-found":
            error = CallFailed("no-batches", f"{batch.model_id} takes no batches here: {error}")
        if error.kind == "no-batches" and self._terms.fallback == "realtime":
            self.without.add(batch.endpoint)
            self._note(f"no batch could be made of {many} ({error}): they go {self.way}")
            self.again(calls, NO_BATCHES)
        elif error.hopeless:
            if error.kind == "no-batches":
                remedy = "use another executor, or allow the full price (batch_fallback='realtime')"
                error = CallFailed(error.kind, f"{error}; {remedy}")
            for parked in calls:
                parked.settle(error)
        elif is_full(str(error)):
            limit = self._room.limit(batch.model_id)
            tokens = sum(parked.call.input_tokens for parked in calls)
            self._room.refused(batch.model_id, tokens, len(calls), str(error))
            if self._room.limit(batch.model_id) != limit or self._terms.fallback == "realtime":
                self._note(f"{many} do not fit into the provider's queue ({error}): they go {self.way}, as many as fit")
            self.again(calls, FULL)
        elif bad_lines and any(1 <= line <= len(calls) for line in bad_lines):
            self._note(f"a batch of {many} failed because of {len(bad_lines)} of them: the others go {self.way}")
            for line, text in bad_lines.items():
                if 1 <= line <= len(calls):
                    calls[line - 1].settle(CallFailed("bad-request", f"{batch.model_id}: {text}"))
            self.again(calls, "the batch failed")
        elif error.kind == "bad-request" and self._terms.fallback == "batch":
            self._halve(calls, error)
        else:
            self._note(f"no batch could be made of {many} ({error}): they go {self.way}")
            self.again(calls, "the batch failed", tried=True)
            self.pause(calls, batch.model_id)

    def _halve(self, calls: list[Parked], error: CallFailed) -> None:
        """One call may be what spoils the batch: what is left of it travels in two halves, until the call is alone."""
        for parked in calls:
            parked.tries += 1
        if len(calls) == 1 or calls[0].tries >= TRIES:
            for parked in calls:
                parked.settle(error)
            return
        self._note(f"a batch of {len(calls)} calls was refused ({error}): trying it in two halves")
        self.pause(calls, calls[0].call.shown_model)
        half = len(calls) // 2
        self._submit(calls[:half])
        self._submit(calls[half:])
