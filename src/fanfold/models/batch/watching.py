"""Looking at open batches from outside their run: what changed, said once, and no more requests than that takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from fanfold.errors import CallFailed
from fanfold.models.batch.protocol import BatchProtocol, RemoteBatch, next_look, waited_out


@dataclass(frozen=True, slots=True)
class BatchSeen:
    """How a batch was found at its provider; `error` says why it could not be looked at."""

    tag: str
    status: str
    ended: bool = False
    finished: int | None = None
    requests: int = 0
    error: str | None = None


async def watch(open: Mapping[str, tuple[BatchProtocol, str, float]]) -> AsyncIterator[BatchSeen]:
    """Every change of these batches, until all have ended; by tag their protocol, the provider's id, and their age."""
    begun = {tag: asyncio.get_running_loop().time() - age for tag, (_, _, age) in open.items()}
    due = dict.fromkeys(open, 0.0)
    before: dict[str, BatchSeen] = {}
    while due:
        tag = min(due, key=lambda tag: due[tag])
        await asyncio.sleep(due[tag] - asyncio.get_running_loop().time())
        api, id, _ = open[tag]
        again: float | None = None
        try:
            remote = await api.get(id)
        except CallFailed as error:
            gone = not waited_out(error) and error.kind != "malformed"
            seen = BatchSeen(tag, "not to be seen", gone, error=str(error))
            again = error.retry_after
        else:
            seen, again = _seen(tag, remote), remote.retry_after
        if seen != before.get(tag):
            before[tag] = seen
            yield seen
        if seen.ended:
            del due[tag]
        else:
            now = asyncio.get_running_loop().time()
            due[tag] = now + next_look(now - begun[tag], again)


def _seen(tag: str, remote: RemoteBatch) -> BatchSeen:
    return BatchSeen(tag, remote.status, bool(remote.ended), remote.finished, remote.requests)
