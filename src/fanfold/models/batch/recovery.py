"""A batch whose creation was not confirmed: looking for it at the provider, which may or may not have it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from fanfold.errors import CallFailed
from fanfold.models.batch.journal import Batch, BatchJournal
from fanfold.models.batch.protocol import BatchProtocol, RemoteBatch

#: How much older than our note of it a batch in doubt may look: clocks are read with delays, and rounded.
CLOCKS_DIFFER = 600.0
#: How long calls that were another run's gather before the ledger is searched for their batches.
LOOK = 0.1


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """How batches are carried; see `BatchExecutor`."""

    deadline: float | None
    poll: float | None
    looks: Sequence[float]
    enqueued: int | None
    leave: Literal["keep", "cancel"]
    fallback: Literal["batch", "realtime"]
    detach: bool


class EarlierBatches:
    """Batches under way that earlier processes or other runs made: which of them hold a call."""

    def __init__(self, journal: BatchJournal) -> None:
        self._journal = journal
        self._places: dict[bytes, list[tuple[Batch, str]]] = {}
        #: The tags of all batches known, our own among them.
        self._tags: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._look()

    def add_own(self, tag: str) -> None:
        self._tags.add(tag)

    def take(self, key: bytes) -> tuple[Batch, str] | None:
        """A batch that holds the call, and its custom_id there; each is given once."""
        places = [place for place in self._places.pop(key, ()) if place[0].state != "abandoned"]
        if not places:
            return None
        self._places[key] = places
        return places.pop()

    async def look_again(self) -> None:
        """Find batches that another run, which may have died, has made since; one look for many calls."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(asyncio.sleep(LOOK))
            self._looking.add_done_callback(lambda done: None if done.cancelled() else self._look())
        await asyncio.shield(self._looking)

    def _look(self) -> None:
        self._looking = None
        tags = set()
        for key, places in self._journal.open_places().items():
            self._places.setdefault(key, []).extend(place for place in places if place[0].tag not in self._tags)
            tags |= {batch.tag for batch, _ in places}
        self._tags |= tags


class BatchSearch:
    """Finds batches in doubt among those the provider lists.

    One that carries our tag is ours.  Where batches carry none, one that may be ours is taken for it until its results
    tell, and is not cancelled before that.
    """

    def __init__(
        self, journal: BatchJournal, terms: BatchTerms, others: Collection[Batch], note: Callable[[str], None]
    ) -> None:
        self._journal, self._terms, self._open, self._note = journal, terms, others, note

    async def find(self, batch: Batch, api: BatchProtocol) -> bool:
        """Look for a batch in doubt; False if it is nowhere after all looks."""
        looks = 0
        while looks < len(self._terms.looks):
            await asyncio.sleep(self._terms.looks[looks])
            try:
                recent = await self._recent(batch, api)
            except CallFailed as error:
                if not error.passing and error.kind != "malformed":
                    raise
                await asyncio.sleep(30.0 * random.uniform(0.5, 1.0))
                continue  # not a look: nothing was seen
            if api.tagged and await self._adopt_tagged(batch, api, recent):
                return True
            if not api.tagged and await self._adopt_alike(batch, recent, batch.created + api.skew):
                return True
            looks += 1
        return False

    async def _recent(self, batch: Batch, api: BatchProtocol) -> list[RemoteBatch]:
        known = self._journal.remotes(batch)
        recent = []
        async for remote in api.newest():
            if 0 < remote.created < batch.created + api.skew - CLOCKS_DIFFER:
                break
            if remote.id not in known:
                recent.append(remote)
        return recent

    async def _adopt_alike(self, batch: Batch, recent: list[RemoteBatch], created: float) -> bool:
        """Take the batch that may be this one for it, until its results tell."""
        alike = [remote for remote in recent if remote.requests == batch.requests and remote.id not in batch.rejected]
        held = {other.remote: other.in_doubt for other in self._open if other is not batch}
        while alike and all(remote.id in held for remote in alike):
            if not any(held[remote.id] for remote in alike):
                return False
            # What another doubtful batch holds for the time being may turn out to be ours.
            await asyncio.sleep(self._terms.poll or 30.0)
            held = {other.remote: other.in_doubt for other in self._open if other is not batch}
        free = [remote for remote in alike if remote.id not in held]
        if not free:
            return False
        nearest = min(free, key=lambda remote: abs(remote.created - created))
        await self._journal.note(batch, "intent", nearest.id)
        return True

    async def _adopt_tagged(self, batch: Batch, api: BatchProtocol, recent: list[RemoteBatch]) -> bool:
        matches = [remote for remote in recent if remote.tag == batch.tag]
        if not matches:
            return False
        keep, *rest = sorted(matches, key=lambda remote: (remote.refused is not None, remote.created))
        for other in rest:
            self._note(f"batch {batch.tag} exists more than once: {other.id} is cancelled; what it did is charged too")
            await cancel(api, other.id)
        self._note(f"batch {batch.tag} was found again as {keep.id}")
        await self._journal.note(batch, "submitted", keep.id)
        return True


async def cancel(api: BatchProtocol, id: str) -> None:
    """Cancel a batch; one that cannot be cancelled has ended by itself."""
    try:
        await api.cancel(id)
    except CallFailed as error:
        if error.hopeless:
            raise
