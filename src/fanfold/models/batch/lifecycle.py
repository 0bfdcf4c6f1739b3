"""A batch's way: written down, created, found again if in doubt, watched, read back, written off when it is safe."""

from __future__ import annotations

import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from fanfold.attempt import attempt
from fanfold.calls import CallBroker, Reply, Sent
from fanfold.errors import CallFailed
from fanfold.events import Notice, WaveAnswered, WaveSent
from fanfold.models.batch.journal import Batch, BatchJournal, Parked
from fanfold.models.batch.leftovers import Leftovers
from fanfold.models.batch.protocol import BatchProtocol, LineOutcome, RemoteBatch, next_look, refused, waited_out
from fanfold.models.batch.recovery import BatchSearch, BatchTerms, EarlierBatches, cancel
from fanfold.models.batch.room import QueueRoom, is_full
from fanfold.models.model import Model
from fanfold.models.retry import if_refused

#: How long a cancelled batch may take to end (some take up to ten minutes).
CANCELLING = 1800.0
#: How long leaving waits for a creation under way, so that it is not left in doubt.
CREATING = 2.0
#: What a batch is said to be that ended without all its answers, by the state that is written down.
ENDED = {"done": "gave no answer", "expired": "expired", "cancelled": "was cancelled", "failed": "failed"}


class BatchLifecycle:
    """Carries waves of calls to their provider and the answers back, so that no call is paid for twice.

    The intent is durable before a batch is created; a creation whose outcome is not known is looked for, never repeated
    on suspicion; and a batch counts as done only when its replies are durable.  One lifecycle serves one broker.
    """

    def __init__(
        self,
        broker: CallBroker,
        terms: BatchTerms,
        rejoin: Callable[[Parked], None],
        changed: Callable[[], None],
        notes: list[str],
    ) -> None:
        self.broker = broker
        self.left: list[str] = []
        self.room = QueueRoom(terms.enqueued)
        self.leftovers = Leftovers(broker, terms, self.room, rejoin, self.submit, self._note)
        self._terms, self._changed, self._notes = terms, changed, notes
        #: The numbers of the waves of this process, by the tags of their batches.
        self._waves: dict[str, int] = {}
        self._open: dict[Batch, asyncio.Task[None]] = {}
        self._creating: set[Batch] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._journal = BatchJournal(broker)
        self._earlier = EarlierBatches(self._journal)
        self._search = BatchSearch(self._journal, terms, self._open.keys(), self._note)

    # -- from the waves ----------------------------------------------------------------------------------------------

    def attach(self, parked: Parked) -> bool:
        """Let a call wait for the batch of an earlier process that has it; False if there is none."""
        place = self._earlier.take(parked.call.key)
        if place is None:
            return False
        batch, custom_id = place
        parked.since = min(parked.since, self._journal.loop_time(batch.created))
        batch.waiting[custom_id] = parked
        if batch.lines is not None:
            self._deliver(batch, batch.lines)
            self._later(self._finish(batch))
        elif batch not in self._open:
            self._start(batch, functools.partial(self._bring, batch, protocol_of(parked.model)))
        return True

    async def look_again(self) -> None:
        """Find batches that another run has made since."""
        await self._earlier.look_again()

    def submit(self, wave: Sequence[Parked]) -> None:
        """Take these calls, all for one endpoint, to the provider as one batch."""
        first = wave[0]
        tag = f"{secrets.token_hex(4)}-{secrets.token_hex(4)}"
        place = (self.broker.replies.run, first.call.shown_model, first.call.endpoint)
        batch = Batch(tag, *place, "new", None, len(wave), self._journal.now())
        batch.waiting = {f"{tag}-{number}": parked for number, parked in enumerate(wave)}
        batch.ids = set(batch.waiting)
        self._earlier.add_own(tag)
        self._start(batch, functools.partial(self._carry, batch, protocol_of(first.model)))

    @property
    def resting(self) -> bool:
        """Whether every call that waits is in a batch that the provider has and works on, or waits for room there."""
        waiting = [batch for batch in self._open if batch.waiting]
        return bool(waiting) and all(batch.tag in self.room.resting for batch in waiting)

    async def leave(self) -> None:
        """Let go of everything; what still runs at a provider is named in `left`."""
        creating = [self._open[batch] for batch in self._creating if batch in self._open]
        if creating:
            await asyncio.wait(creating, timeout=CREATING)
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        ours = [
            batch
            for batch in self._open
            if batch.run == self.broker.replies.run and batch.waiting and batch.state != "new"
        ]
        waiting = sum(
            len(batch.waiting) for batch in self._open if batch.state == "new" and batch.tag in self.room.resting
        )
        if waiting:
            self.left.append(f"{waiting} calls wait for room in the provider's queue: a resumed run submits them")
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
        self._open[batch] = asyncio.get_running_loop().create_task(self._guarded(batch, way))

    async def _guarded(self, batch: Batch, way: Callable[[], Awaitable[None]]) -> None:
        """Whatever happens, no call waits forever."""
        try:
            await way()
        except Exception as error:
            self._give_up(batch, error)

    async def _carry(self, batch: Batch, api: BatchProtocol) -> None:
        model, calls = batch.model_id, batch.waiting.values()
        tokens = sum(parked.call.input_tokens for parked in calls)
        if self.room.closed(model, tokens):
            limit = self.room.limit(model)
            batch.waits_for(f"room in the batch queue of {model}" + (f" ({limit:,} tokens)" if limit else ""))
            self._rests(batch)
        if not await self.room.take(model, tokens, self.leftovers.due(calls)):
            self._open.pop(batch, None)
            self.leftovers.again(calls, "")
            return
        try:
            self.room.resting.discard(batch.tag)
            batch.waits_for(f"a batch of {model}")
            number = self._waves[batch.tag] = len(self._waves) + 1
            places = tuple(parked.place for parked in calls)
            self.broker.emit(WaveSent(number, model, len(calls), batch.tag, places))
            if await self._create(batch, api):
                await self._bring(batch, api)
        finally:
            self.room.free(model, tokens)

    async def _create(self, batch: Batch, api: BatchProtocol) -> bool:
        """Create the batch; False if the provider refused it."""
        self._creating.add(batch)
        try:
            calls = [(custom_id, parked.sendable()) for custom_id, parked in batch.waiting.items()]
            try:
                body = await api.prepare(batch.tag, calls)
            except CallFailed as error:
                self._refused(batch, error)
                return False
            batch.created = self._journal.now()
            await self._journal.intend(batch)
            try:
                remote = await attempt(lambda: api.create(body), again=_unless_full)
            except CallFailed as error:
                if not refused(error):
                    self._note(f"batch {batch.tag}: it is not known whether it was created ({error}); looking for it")
                    return True
                await self._journal.note(batch, "failed", why=str(error))
                self._refused(batch, error)
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
            if remote.refused is not None:
                await self._journal.note(batch, "failed", why=remote.refused)
                kind = remote.refused_kind or "bad-request"
                self._refused(batch, CallFailed(kind, f"batch {remote.id} failed: {remote.refused}"), remote)
                return
            try:
                lines = await self._collect(batch, api, remote)
            except CallFailed as error:
                if not waited_out(error):
                    raise
                await asyncio.sleep(self._terms.poll or 30.0)  # the results stay for weeks
                continue
            if lines is not None:
                break
        batch.lines = lines
        self.room.accepted(batch.model_id)
        if wave := self._waves.get(batch.tag):
            took = self._journal.now() - batch.created
            self.broker.emit(WaveAnswered(wave, batch.model_id, batch.requests, batch.tag, took))
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
        self._open.pop(batch, None)
        self.leftovers.again(batch.waiting.values(), "the batch was not found at the provider", tried=True)

    async def _watch(self, batch: Batch, api: BatchProtocol) -> RemoteBatch | None:
        """Poll until the batch has ended; None if it turned out to be somebody else's."""
        strange = unseen = False
        cancelled_at: float | None = None
        while batch.remote is not None:
            again: float | None = None
            try:
                remote = await api.get(batch.remote)
            except CallFailed as error:
                if error.kind == "not-found" and batch.in_doubt:
                    await self._reject(batch)
                    return None
                if not waited_out(error) and error.kind != "malformed":
                    raise
                if not unseen and error.kind == "unreachable":
                    self._note(f"batch {batch.remote} cannot be looked at ({error}): trying again")
                    unseen = True
                again = error.retry_after
            else:
                if remote.ended:
                    return remote
                if remote.ended is None and not strange:
                    strange = True
                    self._note(f"batch {remote.id} is {remote.status!r}, a word we do not know: waiting on")
                again = remote.retry_after
                self._rests(batch)
            left, cancelled_at = await self._hurry(batch, api, cancelled_at)
            pause = self._terms.poll
            if pause is None:
                pause = next_look(self._journal.now() - batch.created, again)
            await asyncio.sleep(min(pause, left))
        return None

    async def _hurry(self, batch: Batch, api: BatchProtocol, cancelled_at: float | None) -> tuple[float, float | None]:
        """Cancel a batch whose time is up; gives the seconds until the next look at it, and when it was cancelled."""
        deadline = self.leftovers.due(batch.waiting.values())
        due = min(deadline, self._journal.loop_time(batch.created) + api.longest)
        now = asyncio.get_running_loop().time()
        if now < due or batch.in_doubt:  # what may be somebody else's is not ours to cancel
            return max(due - now, 60.0), None
        if cancelled_at is None:
            cancelled_at = now
            assert batch.remote is not None
            if deadline <= now:
                why, rest = "is not done by its deadline", self.leftovers.full_price(batch.waiting.values())
            else:
                why = f"has not ended after {api.longest / 3600:.0f} hours"
                rest = f"what is left of it goes {self.leftovers.way}"
            self._note(f"batch {batch.remote} {why}: {rest}")
            await cancel(api, batch.remote)
        if now - cancelled_at > CANCELLING:
            raise CallFailed("not-found", f"batch {batch.remote} was cancelled and does not end")
        return CANCELLING, cancelled_at

    def _rests(self, batch: Batch) -> None:
        if batch.tag not in self.room.resting:
            self.room.resting.add(batch.tag)
            self._changed()

    async def _collect(self, batch: Batch, api: BatchProtocol, remote: RemoteBatch) -> dict[str, LineOutcome] | None:
        """The lines of a batch that has ended; None if it is not the one we took it for."""
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
        oddities = ", ".join(f"{count} {what}" for what, count in odd.items() if count)
        batch.ending = remote.ending
        if oddities:
            self._note(f"batch {remote.id}, lines of its results: {oddities}")
        return ours

    # -- handing out -------------------------------------------------------------------------------------------------

    def _deliver(self, batch: Batch, lines: dict[str, LineOutcome]) -> None:
        now, waiting = asyncio.get_running_loop().time(), batch.waiting
        again: list[Parked] = []
        missing: list[Parked] = []
        batch.waiting = {}
        for custom_id, parked in waiting.items():
            line = lines.get(custom_id)
            if isinstance(line, Reply):
                reply = parked.model.priced(line, parked.call, batch=True) if line.estimated else line
                parked.settle(Sent(msgspec.structs.replace(reply, seconds=now - parked.since), batch=batch.tag))
            elif isinstance(line, CallFailed):
                if parked.learns(line):
                    self.leftovers.again([parked], "a parameter was refused")
                else:
                    parked.settle(line)
            else:
                (again if custom_id in lines else missing).append(parked)
        if not (again or missing):
            return
        left, ended = len(again) + len(missing), ENDED[batch.ending]
        self._note(f"batch {batch.remote} {ended}: {left} of its {len(waiting)} calls go {self.leftovers.way}")
        nothing = not any(isinstance(line, Reply) for line in lines.values())
        why = "no answer in the batch" if batch.ending == "done" else f"the batch {ended}"
        self.leftovers.again(again, why, tried=nothing or batch.ending == "done")
        self.leftovers.again(missing, why, tried=nothing, lost=batch.ending == "done")
        if nothing:
            self.leftovers.pause([*again, *missing], batch.model_id)

    async def _finish(self, batch: Batch) -> None:
        """Write the batch off once every reply it brought is in the ledger."""
        await asyncio.sleep(0)  # those who were answered put their rows now
        if await self._journal.all_safe(batch):
            await self._journal.note(batch, batch.ending)
            self._open.pop(batch, None)

    def _refused(self, batch: Batch, error: CallFailed, remote: RemoteBatch | None = None) -> None:
        """Nothing of the batch was done."""
        self._open.pop(batch, None)
        self.leftovers.refused(batch, error, None if remote is None else remote.bad_lines)

    def _give_up(self, batch: Batch, error: Exception) -> None:
        """The way ended in an error: the calls of a batch that is gone are sent again, anything else fails them."""
        if isinstance(error, CallFailed) and error.kind == "not-found" and not batch.in_doubt:
            self._note(f"batch {batch.remote} gives no results ({error}): its calls go {self.leftovers.way}")
            calls, batch.waiting, batch.lines, batch.ending = batch.waiting, {}, {}, "failed"
            self.leftovers.again(calls.values(), "the batch is gone", lost=True)
            self._later(self._finish(batch))
            return
        for parked in batch.waiting.values():
            parked.settle(error)
        batch.waiting = {}

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self.broker.emit(Notice(text))

    def _reclaim(self, remote: str) -> None:
        """A batch is certainly ours: one in doubt that was taken for it continues its search."""
        for other in self._open:
            if other.remote == remote and other.in_doubt:
                other.rejected.add(remote)
                other.remote = None


def _unless_full(error: Exception, n: int) -> float | None:
    """Try a creation again where it was refused for its rate, but not where the queue has no room."""
    return None if is_full(str(error)) else if_refused(error, n)


def protocol_of(model: Model) -> BatchProtocol:
    """The batch protocol of a model's provider, which must have one."""
    protocol = model.provider.batches
    assert protocol is not None, model
    return protocol(model)
