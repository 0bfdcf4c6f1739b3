"""The replies that a ledger keeps: found, shared with other runs on the file, written down with their payment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, get_args

import msgspec

from fanfold.context import here
from fanfold.errors import ConfigError
from fanfold.flights import Call, Flight, Reply, Sent, waiting
from fanfold.ledger import Claims, Commits, Insert, Ledger
from fanfold.sharing import ShareAway, ShareRefused, Sharing
from fanfold.types import CacheMode

#: How many calls are remembered, to spare a look into the ledger for each new one.
KNOWN_CALLS = 500_000
#: Seconds between looks whether another run has done with a call: at first, and at most.
LOOKS = (0.02, 0.5)


class Replies:
    """What a run knows of earlier replies, and which of its calls it alone may send, among all runs on one ledger.

    Without a ledger nothing is known, and every call is the run's own.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        commits: Commits | None,
        run: int | None,
        cache: CacheMode,
        sharing: Sharing | None = None,
    ) -> None:
        if cache not in get_args(CacheMode):
            raise ConfigError(f"cache must be 'on', 'off', 'refresh' or 'offline', not {cache!r}")
        self.ledger, self.commits, self.run = ledger, commits, run
        self.cache = cache
        #: Where replies are shared beyond the ledger.
        self.sharing = sharing if cache == "on" else None
        #: Whether a reply in the ledger answers a call.
        self.answers = ledger is not None and cache in ("on", "offline")
        #: The keys of all calls in the ledger while they are few and all ours; None: the ledger must be asked.
        self._known: KnownCalls | None = None
        self._claims: Claims | None = None
        self._opened = ledger is None

    def check(self) -> None:
        """Raise what keeps replies from being written down: a call that is sent now would be paid for nothing."""
        if self.commits is not None and self.commits.error is not None:
            raise self.commits.error

    def find(self, key: bytes) -> Reply | None:
        """The ledger's reply to a call; not asked for where it is known that there is none."""
        if not self._opened:
            self._open()
        if self.ledger is None:
            return None
        if self._known is not None and key not in self._known:
            if self._alone():
                return None
            self._known = None
        if (text := self.ledger.reply(key)) is not None:
            return msgspec.structs.replace(msgspec.json.decode(text, type=Reply), cost=0.0, cached=True)
        return None

    def take(self, key: bytes) -> bool:
        """Claim a call that was not found; False where another run is at it, or may have brought its reply since."""
        return self._claims is None or (self._claims.take(key) and self._claims.alone())

    async def taken(self, key: bytes) -> Reply | None:
        """Wait until no other run is at this call; its reply if one of them brought it, else the call is claimed."""
        claims, (pause, longest) = self._claims, LOOKS
        assert claims is not None
        while not claims.take(key):
            with waiting("another run that makes the same call"):
                await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)
            if (held := self.find(key)) is not None:
                return held
            flight: Flight | None = here().flight
            if flight is not None:
                flight.taken_over = True
        held = None
        try:
            held = self.find(key)
        except BaseException:
            claims.release(key)
            raise
        if held is not None:
            claims.release(key)
        return held

    async def fetched(self, key: bytes, call: Call) -> Reply | None:
        """A reply that any sharer has paid for, written down here as not paid; None: the call is ours to make."""
        assert self.sharing is not None
        sharing, text = self.sharing, None
        try:
            while not (text := await sharing.take(key)):
                with waiting("another sharer that makes the same call"):
                    await sharing.news_of(key)
                    if not await sharing.returned():
                        return None
        except ShareAway:
            return None
        except ShareRefused as error:
            if "WRONGTYPE" not in str(error):
                sharing.warn("claim", f"{sharing.address} takes no claims on calls, so replies are not shared: {error}")
                return None
            text = b""
        if text is True:
            return None
        try:
            reply = msgspec.json.decode(text, type=Reply)
        except msgspec.MsgspecError:
            sharing.warn("reply", f"{sharing.address} holds foreign values where replies should be: they are ignored")
            return None
        reply = msgspec.structs.replace(reply, cost=0.0, cached=True, parsed=None, raw=None)
        if self.commits is not None:
            self._knows(key)
            await self.commits.safe(Insert.CALL, self._row(key, call, Sent(reply, tries=0), time.time()))
        return reply

    def release(self, key: bytes) -> None:
        if self._claims is not None:
            self._claims.release(key)
        if self.sharing is not None:
            self.sharing.give(key)

    def keep(self, call: Call, sent: Sent, started: float) -> Awaitable[None]:
        """Write a reply and its payment down; await what this gives to know that both are safe."""
        key = call.key
        assert self.commits is not None
        self._knows(key)
        self.commits.put(Insert.PAYMENT, self._payment(key, call, sent, started))  # in one commit with the reply
        return self.commits.safe(Insert.CALL, self._row(key, call, sent, started))

    def share(self, call: Call, sent: Sent) -> None:
        """Give a reply that is safe to all sharers."""
        if self.sharing is not None:
            self.sharing.give(call.key, msgspec.json.encode(_plain(sent.reply)))

    def learnt(self, model: str) -> dict[str, str]:
        """What runs on this ledger have learnt of a model (its fingerprint)."""
        return {} if self.ledger is None else self.ledger.learnt(model)

    def learn(self, model: str, name: str, value: str) -> None:
        """Write down what a model, or the server it is at, has shown of itself."""
        if self.commits is not None:
            self.commits.put(Insert.LEARNT, (model, name, value, time.time()))

    def close(self) -> None:
        """Let go of what is claimed."""
        if self._claims is not None:
            self._claims.close()

    def _open(self) -> None:
        """Before the first call: join the runs that make calls on this ledger now."""
        self._opened = True
        assert self.ledger is not None
        if self.cache == "on" and not self.ledger.temporary:
            self._claims = Claims(self.ledger.path)
        # After that, so that nobody's reply can come between the look and the claim.
        if self._alone() and not self.ledger.has_replies():
            self._known = KnownCalls()

    def _knows(self, key: bytes) -> None:
        if self._known is not None:
            self._known.add(key)
            if len(self._known) > KNOWN_CALLS:
                self._known = None

    def _alone(self) -> bool:
        """Whether all replies that are not ours were in the ledger before our first call."""
        assert self.ledger is not None
        return self.ledger.temporary if self._claims is None else self._claims.alone()

    def _row(self, key: bytes, call: Call, sent: Sent, started: float) -> tuple[Any, ...]:
        reply = _plain(sent.reply)
        text = msgspec.json.encode(reply).decode()
        usage = (reply.input_tokens, reply.output_tokens, reply.cost)
        how = (started, reply.seconds, sent.tries, sent.batch)
        return (key, self.run, call.shown_model, call.body, text, *usage, *how)

    def _payment(self, key: bytes, call: Call, sent: Sent, started: float) -> tuple[Any, ...]:
        reply = sent.reply
        usage = (reply.cost, reply.input_tokens, reply.output_tokens, reply.cached_tokens, int(reply.estimated))
        how = (reply.seconds, sent.tries, sent.batch, sent.why_full)
        return (self.run, key, call.shown_model, *usage, started, *how)


class KnownCalls:
    """The keys of calls that were seen, in a megabyte: what is not `in` it was not, and nearly all that is was.

    A key is a hash already: its first bytes are the place of its bit.
    """

    __slots__ = ("_bits", "_count")

    def __init__(self) -> None:
        self._bits = bytearray(2**20)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: bytes) -> None:
        self._count += 1
        place = int.from_bytes(key[:4], "little")
        self._bits[place >> 3 & 0xFFFFF] |= 1 << (place & 7)

    def __contains__(self, key: bytes) -> bool:
        place = int.from_bytes(key[:4], "little")
        return self._bits[place >> 3 & 0xFFFFF] & 1 << (place & 7) > 0


def _plain(reply: Reply) -> Reply:
    """A reply as it is kept."""
    return reply if reply.raw is None else msgspec.structs.replace(reply, raw=None)
