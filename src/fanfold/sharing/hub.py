"""What a process shares with others by one address: its connection, its claims, its leases, and that it lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fanfold.context import here
from fanfold.errors import ConfigError
from fanfold.sharing.address import OFF, ShareAddress
from fanfold.sharing.link import ANSWER, RedisLink, ShareAway, ShareRefused, Word

if TYPE_CHECKING:
    from fanfold.sharing.budget import SharedBudget
    from fanfold.sharing.lease import Lease

#: Before every key: whose it is, and the version of what is kept there.
PREFIX = "fanfold:1:"
#: Seconds after its last sign of life that a sharer's claims are kept, and between two signs.
ALIVE, BEAT = 10.0, 1.0
#: Seconds that each keeps to its part after the server is back: by then all have come back.
SETTLE = 1.0
#: Seconds that a claim and a reply are kept.
CLAIM_KEPT, REPLY_KEPT = 86_400, 86_400
#: The largest reply that is shared; how many wait for the server's return, and the largest of these.
LARGEST_REPLY, LATE, LARGEST_LATE = 4 * 2**20, 1_000, 2**16
#: Seconds between looks at a call that another sharer makes; news of it come at once.
LOOK = 2.0
#: Seconds that a call which another sharer makes waits for the server's return, before it is made here.
PATIENCE = 3.0


class Sharing:
    """One sharer: a process, on one event loop, at one address.

    It says every second that it lives.  Who does not for `ALIVE` seconds loses its claims, its reservations and its
    part of the limits.  `warn` is told once for each time the server is away, and once for each kind of foreign value.
    """

    def __init__(self, address: ShareAddress) -> None:
        self.id = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.link = RedisLink(address, "fanfold", self._heard, self._changed)
        self.leases: set[Lease] = set()
        self.budgets: set[SharedBudget] = set()
        #: How many sharers the address had when last heard.
        self.sharers = 1
        self.warnings: list[Callable[[str], None]] = []
        self._claims: set[bytes] = set()
        self._waiters: dict[bytes, list[asyncio.Future[None]]] = {}
        self._late: deque[tuple[bytes, bytes]] = deque(maxlen=LATE)
        self._warned: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._opened: asyncio.Task[None] | None = None
        self._living: asyncio.Task[None] | None = None
        self._users = 0

    @classmethod
    def at(cls, url: str) -> Sharing:
        """The sharer of the running event loop at an address; `join` it before use."""
        address = ShareAddress.parse(url)
        sharers = _SHARERS.setdefault(asyncio.get_running_loop(), {})
        if address not in sharers:
            sharers[address] = cls(address)
        return sharers[address]

    async def join(self) -> None:
        """Connect, unless that was done; ConfigError where nobody answers.  Each `join` wants one `leave`."""
        self._users += 1
        try:
            if self._opened is None or (self._opened.done() and not self.met):
                self._opened = asyncio.get_running_loop().create_task(self._open())
            await asyncio.shield(self._opened)
        except BaseException:
            await self.leave()
            raise

    @property
    def address(self) -> ShareAddress:
        return self.link.address

    @property
    def met(self) -> bool:
        return self._living is not None

    async def leave(self) -> None:
        self._users -= 1
        if self._users:
            return
        _SHARERS.get(asyncio.get_running_loop(), {}).pop(self.address, None)
        if self._living is not None:
            self._living.cancel()
        if self._tasks and self.link.up:
            await asyncio.wait(self._tasks, timeout=ANSWER)
        for task in self._tasks:
            task.cancel()
        if self.link.up:
            with contextlib.suppress(ShareAway, ShareRefused, TimeoutError):
                await asyncio.wait_for(self._beat(0), ANSWER)
        await self.link.close()

    async def _open(self) -> None:
        self.link.channels.add(f"{PREFIX}to:{self.id}")
        await self.link.open()
        try:
            await self._beat()
        except (ShareAway, ShareRefused) as error:
            raise ConfigError(f"{self.address} cannot be shared by: {error}") from None
        self._living = asyncio.get_running_loop().create_task(self._live())

    def warn(self, kind: str, text: str) -> None:
        """Say something once."""
        if kind not in self._warned:
            self._warned.add(kind)
            for warning in self.warnings:
                warning(text)

    def spawn(self, coroutine: Any) -> None:
        """Do something in the background, and ignore that the server is away or refuses it."""

        async def quietly() -> None:
            with contextlib.suppress(ShareAway, ShareRefused):
                await coroutine

        task = asyncio.get_running_loop().create_task(quietly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def take(self, key: bytes) -> bytes | bool:
        """The reply to a call if a sharer has it; True if the call is claimed here; False if another one makes it.

        Raises ShareAway, and ShareRefused where something foreign is in the way.
        """
        if key in self._claims:  # by another run of this process
            return False
        self._claims.add(key)  # whatever happens on the way: a claim that is not released would hold up everybody
        answer = await self.link.script("take", _keys(key), self.id, CLAIM_KEPT)
        if answer != 1:
            self._claims.discard(key)
            self._wake(key)
        return answer if isinstance(answer, bytes) else answer == 1

    async def news_of(self, key: bytes) -> None:
        """Wait until there is news of a call that another sharer makes, or it is time to look."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(key, [])
        waiters.append(news)
        try:
            await asyncio.wait([news], timeout=LOOK)
        finally:
            waiters.remove(news)
            if not waiters:
                self._waiters.pop(key, None)

    async def returned(self) -> bool:
        """Whether the server answers, if need be after a short while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while not self.link.up and loop.time() < end:
            await asyncio.sleep(0.1)
        return self.link.up

    def give(self, key: bytes, reply: bytes = b"") -> None:
        """End a claim, with a reply or without."""
        if key not in self._claims and not reply:
            return
        self._claims.discard(key)
        self._wake(key)
        self.spawn(self._given(key, reply if len(reply) <= LARGEST_REPLY else b""))

    async def _given(self, key: bytes, reply: bytes) -> None:
        try:
            await self.link.script("give", _keys(key), self.id, reply, REPLY_KEPT, f"{PREFIX}to:", key)
        except ShareAway:
            if len(reply) <= LARGEST_LATE:
                self._late.append((key, reply))

    def _wake(self, key: bytes) -> None:
        for news in self._waiters.get(key, ()):
            if not news.done():
                news.set_result(None)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def _beat(self, alive: Word = int(ALIVE)) -> None:
        leases = list(self.leases)
        keys = [f"{PREFIX}alive", *(lease.keys[1] for lease in leases)]
        counts = await self.link.script("beat", keys, alive, self.id, *(lease.id for lease in leases))
        self.sharers = max(1, int(counts[0]))
        for lease, count in zip(leases, counts[1:], strict=True):
            lease.sharers = max(1, int(count))

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            self.link.check()
            self.spawn(self._beat())
            for budget in self.budgets:
                budget.write()

    def _changed(self, up: bool) -> None:
        if up:
            self.spawn(self._welcome())
        else:
            self.warn(
                "away",
                f"{self.address} does not answer: each sharer keeps to its part of the limits, and shares no replies, "
                "until it is back",
            )
        for lease in list(self.leases):
            lease.changed(up)
        for budget in self.budgets:
            budget.changed(up)

    async def _welcome(self) -> None:
        """The server is back and may have forgotten everything."""
        await self._beat()
        for key in self._claims:
            self.spawn(self.link.script("take", _keys(key), self.id, CLAIM_KEPT))
        while self._late:
            key, reply = self._late.popleft()
            self.spawn(self._given(key, reply))
        self._warned.discard("away")
        for warning in self.warnings:
            warning(f"{self.address} answers again")

    def _heard(self, channel: bytes, message: bytes) -> None:
        if channel == f"{PREFIX}to:{self.id}".encode():
            self._wake(message)
            return
        for lease in list(self.leases):
            if lease.channel.encode() == channel:
                lease.heard(message)


def _keys(key: bytes) -> list[str]:
    name = key.hex()
    return [f"{PREFIX}call:{name}", f"{PREFIX}wait:{name}", f"{PREFIX}alive"]


@contextlib.asynccontextmanager
async def shared_by(url: str | None, warn: Callable[[str], None]) -> AsyncIterator[Sharing | None]:
    """Joins those who share by an address for as long as a run takes; a rehearsal shares nothing."""
    if url in (None, OFF) or here().rehearsal is not None:
        yield None
        return
    sharing = Sharing.at(url)
    await sharing.join()
    sharing.warnings.append(warn)
    try:
        yield sharing
    finally:
        sharing.warnings.remove(warn)
        await sharing.leave()


_SHARERS: weakref.WeakKeyDictionary[Any, dict[ShareAddress, Sharing]] = weakref.WeakKeyDictionary()
