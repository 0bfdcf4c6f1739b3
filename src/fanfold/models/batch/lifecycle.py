"""A batch's way: written down, created, found again if in doubt, watched, read back, written off when it is safe."""

from __future__ import annotations

import asyncio
import functools
import random
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from fanfold.attempt import attempt
from fanfold.calls import CallBroker, Reply, Sent
from fanfold.errors import CallFailed
from fanfold.events import WaveAnswered, WaveSent
from fanfold.models.batch.journal import Batch, BatchJournal, Parked
from fanfold.models.batch.protocol import BatchProtocol, LineOutcome, RemoteBatch, refused
from fanfold.models.batch.recovery import BatchSearch, BatchTerms, cancel
from fanfold.models.model import Model
from fanfold.models.retry import if_refused

#: A provider ends every batch within a day; one that has not ended long after that never will.
LONGEST = 25 * 3600.0
#: How long a cancelled batch may take to end (some take up to ten minutes).
CANCELLING = 1800.0
#: How long leaving waits for a creation under way, so that it is not left in doubt.
CREATING = 2.0
#: How long calls that were another run's gather before the ledger is looked through for their batches.
LOOK = 0.1
#: Why calls are paid at full price, as the end of a run says it.
NO_BATCHES = "the endpoint has no batches"


class BatchLifecycle:
    """Carries waves of calls to their provider and the answers back, so that no call is paid for twice.

    The intent is durable before a batch is created; a creation whose outcome is not known is looked for, never repeated
    on suspicion; and a batch counts as done only when its replies are durable.  One lifecycle serves one broker.
    """

    def __init__(
        self, broker: CallBroker, terms: BatchTerms, rejoin: Callable[[Parked], None], note: Callable[[str], None]
    ) -> None:
        self.broker = broker
        self.left: list[str] = []
        #: Endpoints that turned out to have no batches.
        self.without: set[str] = set()
        self._terms, self._rejoin, self._note = terms, rejoin, note
        self._loop = asyncio.get_running_loop()
        # Wall time that cannot jump, and that follows a virtual clock.
        self._epoch = time.time() - self._loop.time()
        self._prefix = secrets.token_hex(4)
        self._waves = 0
        self._open: set[Batch] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._creating: set[Batch] = set()
        self._enqueued: Counter[str] = Counter()
        self._freed = asyncio.Event()
        self._journal = BatchJournal(broker)
        #: Where calls are in batches of earlier processes, and the tags of all batches heard of.
        self._known: dict[bytes, list[tuple[Batch, str]]] = {}
        self._tags: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._look()
        self._search = BatchSearch(self._journal, terms, self._open, note)

    # -- from the waves ----------------------------------------------------------------------------------------------

    def attach(self, parked: Parked) -> bool:
        """Let a call wait for the batch of an earlier process that has it; False if there is none."""
        places = [place for place in self._known.pop(parked.call.key, ()) if place[0].state != "abandoned"]
        if not places:
            return False
        batch, custom_id = places.pop()
        self._known[parked.call.key] = places
        batch.waiting[custom_id] = parked
        if batch.lines is not None:
            self._deliver(batch, batch.lines)
            self._later(self._finish(batch))
        elif batch.task is None:
            self._start(batch, functools.partial(self._bring, batch, protocol_of(parked.model)))
        return True

    async def look_again(self) -> None:
        """Take note of batches that another run, which may have died, has made since; one look for many calls."""
        if self._looking is None:
            self._looking = self._loop.create_task(asyncio.sleep(LOOK))
            self._looking.add_done_callback(lambda done: None if done.cancelled() else self._look())
        await asyncio.shield(self._looking)

    def _look(self) -> None:
        self._looking = None
        tags = set()
        for key, places in self._journal.open_places().items():
            self._known.setdefault(key, []).extend(place for place in places if place[0].tag not in self._tags)
            tags |= {batch.tag for batch, _ in places}
        self._tags |= tags

    def submit(self, wave: Sequence[Parked]) -> None:
        """Take these calls, all for one endpoint, to the provider as one batch."""
        first = wave[0]
        tag = f"{self._prefix}-{secrets.token_hex(4)}"
        batch = Batch(
            tag, self.broker.replies.run, first.model.id, first.call.endpoint, "new", None, len(wave), self._now()
        )
        batch.waiting = {f"{tag}-{number}": parked for number, parked in enumerate(wave)}
        batch.ids = set(batch.waiting)
        self._tags.add(tag)
        self._waves += 1
        batch.wave = self._waves
        self.broker.emit(WaveSent(batch.wave, first.model.id, len(wave), tag, tuple(parked.place for parked in wave)))
        self._start(batch, functools.partial(self._carry, batch, protocol_of(first.model)))

    async def leave(self) -> None:
        """Let go of everything; what still runs at a provider is named in `left`."""
        creating = [batch.task for batch in self._creating if batch.task is not None]
        if creating:
            await asyncio.wait(creating, timeout=CREATING)
        tasks = [batch.task for batch in self._open if batch.task is not None]
        for task in tasks:
            task.cancel()
        ours = [
            batch
            for batch in self._open
            if batch.run == self.broker.replies.run and batch.waiting and batch.state != "new"
        ]
        self.left += await asyncio.gather(*map(self._say_goodbye, sorted(ours, key=lambda batch: batch.created)))
        await asyncio.gather(*tasks, *self._ending, return_exceptions=True)
        self._open.clear()

    async def _say_goodbye(self, batch: Batch) -> str:
        calls = f"{batch.requests} calls to {batch.model_id}"
        if batch.remote is None:
            return f"a batch of {calls} may or may not exist at the provider (tag {batch.tag}): a resumed run finds out"
        if self._terms.leave == "cancel" and not batch.in_doubt:
            try:
                async with asyncio.timeout(CREATING):
                    await protocol_of(next(iter(batch.waiting.values())).model).cancel(batch.remote)
                return f"batch {batch.remote} ({calls}) was cancelled: what it did is charged, a resumed run takes it"
            except (CallFailed, TimeoutError) as error:
                return f"batch {batch.remote} ({calls}) could not be cancelled and still runs: {error}"
        return f"batch {batch.remote} ({calls}) still runs at the provider, and is charged: a resumed run collects it"

    # -- the way -----------------------------------------------------------------------------------------------------

    def _start(self, batch: Batch, way: Callable[[], Awaitable[None]]) -> None:
        self._open.add(batch)
        batch.task = self._loop.create_task(self._guarded(batch, way))

    async def _guarded(self, batch: Batch, way: Callable[[], Awaitable[None]]) -> None:
        """Whatever happens, no call waits forever."""
        try:
            await way()
        except Exception as error:
            self._give_up(batch, error)

    async def _carry(self, batch: Batch, api: BatchProtocol) -> None:
        tokens = sum(parked.call.input_tokens for parked in batch.waiting.values())
        await self._room(batch.model_id, tokens)
        self._enqueued[batch.model_id] += tokens
        try:
            if await self._create(batch, api):
                await self._bring(batch, api)
        finally:
            self._enqueued[batch.model_id] -= tokens
            self._freed.set()

    async def _room(self, model: str, tokens: int) -> None:
        limit = self._terms.enqueued
        while limit is not None and self._enqueued[model] and self._enqueued[model] + tokens > limit:
            self._freed.clear()
            await self._freed.wait()

    async def _create(self, batch: Batch, api: BatchProtocol) -> bool:
        """Create the batch; False if the provider refused it."""
        self._creating.add(batch)
        try:
            calls = [(custom_id, parked.call) for custom_id, parked in batch.waiting.items()]
            try:
                body = await api.prepare(batch.tag, calls)
            except CallFailed as error:
                self._turned_down(batch, error)
                return False
            batch.created = self._now()
            await self._journal.intend(batch)
            try:
                remote = await attempt(lambda: api.create(body), again=if_refused)
            except CallFailed as error:
                if not refused(error):
                    self._note(f"batch {batch.tag}: it is not known whether it was created ({error}); looking for it")
                    return True
                await self._journal.note(batch, "abandoned", why=str(error))
                self._turned_down(batch, error)
                return False
            self._reclaim(remote.id)
            await self._journal.note(batch, "submitted", remote.id)
            return True
        finally:
            self._creating.discard(batch)

    async def _bring(self, batch: Batch, api: BatchProtocol) -> None:
        """Wait for the batch, wherever it is, and hand out what it brings."""
        while True:
            if batch.remote is None and not await self._search.find(batch, api):
                await self._abandon(batch)
                return
            remote = await self._watch(batch, api)
            if remote is None:
                continue
            try:
                lines = await self._collect(batch, api, remote)
            except CallFailed as error:
                if not error.passing:
                    raise
                await asyncio.sleep(self._terms.poll or 30.0)  # the results stay for weeks
                continue
            if lines is not None:
                break
        batch.lines = lines
        if batch.wave:
            took = self._now() - batch.created
            self.broker.emit(WaveAnswered(batch.wave, batch.model_id, batch.requests, batch.tag, took))
        self._deliver(batch, lines)
        self._later(self._finish(batch))

    async def _reject(self, batch: Batch) -> None:
        """It was another batch that was taken for this one."""
        if batch.remote is not None:
            batch.rejected.add(batch.remote)
        await self._journal.note(batch, "intent")

    async def _abandon(self, batch: Batch) -> None:
        self._note(f"batch {batch.tag} is not to be found at the provider: its calls are submitted again")
        await self._journal.note(batch, "abandoned", why="not found at the provider")
        self._open.discard(batch)
        for parked in batch.waiting.values():
            if not parked.answer.done():
                self._rejoin(parked)

    async def _watch(self, batch: Batch, api: BatchProtocol) -> RemoteBatch | None:
        """Poll until the batch has ended; None if it turned out to be somebody else's."""
        pause, strange = 1.0, False
        while batch.remote is not None:
            again: float | None = None
            try:
                remote = await api.get(batch.remote)
            except CallFailed as error:
                if error.kind == "not-found" and batch.in_doubt:
                    await self._reject(batch)
                    return None
                if error.hopeless or error.kind == "not-found":
                    raise
                again = error.retry_after
            else:
                if remote.ended:
                    return remote
                if remote.ended is None and not strange:
                    strange = True
                    self._note(f"batch {remote.id} is {remote.status!r}, a word we do not know: waiting on")
                again = remote.retry_after
            left = await self._hurry(batch, api)
            wait = self._terms.poll
            if wait is None:
                wait = max(again or 0.0, pause * random.uniform(0.8, 1.2))
            await asyncio.sleep(min(wait, left))
            pause = min(30.0, pause * 1.5)
        return None

    async def _hurry(self, batch: Batch, api: BatchProtocol) -> float:
        """Cancel a batch whose time is up; gives the seconds until this may be called for again."""
        due = batch.created + (LONGEST if self._terms.deadline is None else self._terms.deadline)
        now = self._now()
        if now < due or batch.in_doubt:  # what may be somebody else's is not ours to cancel
            return max(due - now, 60.0)
        if batch.cancelled_at is None:
            batch.cancelled_at = now
            self._note(f"batch {batch.remote} is not done by its deadline: {self._rest(batch)}")
            assert batch.remote is not None
            await cancel(api, batch.remote)
        if now - batch.cancelled_at > CANCELLING:
            raise CallFailed("not-found", f"batch {batch.remote} was cancelled and does not end")
        return CANCELLING

    def _rest(self, batch: Batch) -> str:
        calls = [(parked.call, parked.model.price) for parked in batch.waiting.values()]
        costs = [price.cost(call.input_tokens, call.output_tokens) for call, price in calls if price is not None]
        cost = f"for up to about ${sum(costs):.4f}" if len(costs) == len(calls) else "at a price that is not known"
        return f"what is left of its {len(calls)} calls goes out at once, {cost}"

    async def _collect(self, batch: Batch, api: BatchProtocol, remote: RemoteBatch) -> dict[str, LineOutcome] | None:
        """The lines of a batch that has ended; None if it is not the one we took it for."""
        if remote.refused is not None:
            self._note(f"batch {remote.id} failed ({remote.refused}): its calls go out one by one")
            batch.failed = True
            return {}
        results = await api.results(remote)
        ours = {custom_id: line for custom_id, line in results.lines.items() if custom_id in batch.ids}
        if batch.in_doubt and not ours:
            await self._reject(batch)
            return None
        if batch.in_doubt:
            self._note(f"batch {batch.tag} was found again as {remote.id}")
            await self._journal.note(batch, "submitted", remote.id)
        odd = {
            "with an unknown id": len(results.lines) - len(ours),
            "repeated": results.repeated,
            "that cannot be read": results.torn,
            "missing": len(batch.ids) - len(ours),
        }
        said = ", ".join(f"{count} {what}" for what, count in odd.items() if count)
        if said:
            self._note(f"batch {remote.id}, lines of its results: {said}")
        return ours

    # -- handing out -------------------------------------------------------------------------------------------------

    def _deliver(self, batch: Batch, lines: dict[str, LineOutcome]) -> None:
        now = self._loop.time()
        for custom_id, parked in batch.waiting.items():
            line = lines.get(custom_id)
            if isinstance(line, Reply):
                reply = parked.model.priced(line, parked.call, batch=True) if line.estimated else line
                parked.settle(Sent(msgspec.structs.replace(reply, seconds=now - parked.since), batch=batch.tag))
            elif line is None:
                parked.settle(_why_missing(batch))
            else:
                parked.settle(line)
        batch.waiting = {}

    async def _finish(self, batch: Batch) -> None:
        """Write the batch off once every reply it brought is in the ledger."""
        await asyncio.sleep(0)  # those who were answered put their rows now
        if await self._journal.all_safe(batch):
            await self._journal.note(batch, "done")
            self._open.discard(batch)

    def _turned_down(self, batch: Batch, error: CallFailed) -> None:
        """Nothing was created: the calls go out one by one, unless they would fail as well."""
        self._open.discard(batch)
        if error.kind == "not-found":
            self.without.add(batch.endpoint)
        if not error.hopeless:
            calls = f"{batch.requests} calls to {batch.model_id}"
            self._note(f"no batch could be made of {calls} ({error}): they go out one by one")
        why = NO_BATCHES if error.kind == "not-found" else f"the provider took no batch ({error.kind})"
        self._answer_all(batch, error if error.hopeless else why)

    def _give_up(self, batch: Batch, error: Exception) -> None:
        """The way ended in an error: the calls of a batch that is gone are sent again, anything else fails them."""
        if isinstance(error, CallFailed) and error.kind == "not-found" and not batch.in_doubt:
            self._note(f"batch {batch.remote} gives no results ({error}): its calls go out one by one")
            batch.lines = {}
            self._answer_all(batch, _why_missing(batch))
            self._later(self._finish(batch))
        else:
            self._answer_all(batch, error)

    def _answer_all(self, batch: Batch, outcome: Exception | str) -> None:
        for parked in batch.waiting.values():
            parked.settle(outcome)
        batch.waiting = {}

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _reclaim(self, remote: str) -> None:
        """A batch is ours for certain: one in doubt that held it for its own looks on."""
        for other in self._open:
            if other.remote == remote and other.in_doubt:
                other.rejected.add(remote)
                other.remote = None

    def _now(self) -> float:
        return self._epoch + self._loop.time()


def _why_missing(batch: Batch) -> str:
    """Why a call that was in a batch has no answer from it."""
    if batch.cancelled_at is not None:
        return "the batch was not done by its deadline"
    return "the batch failed" if batch.failed else "no answer in the batch"


def protocol_of(model: Model) -> BatchProtocol:
    """The batch protocol of a model's provider, which must have one."""
    protocol = model.provider.batches
    assert protocol is not None, model
    return protocol(model)
