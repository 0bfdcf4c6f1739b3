"""One connection to a Redis or Valkey server, which many callers use at once and which comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias, cast

from fanfold.errors import ConfigError, FanfoldError, MissingExtra
from fanfold.sharing.address import ShareAddress

#: Seconds to connect, for an answer to a command, and between two tries to connect again.
CONNECT, ANSWER, AGAIN = 5.0, 2.0, 0.5
#: The largest value that is read; a server that sends more is not one of ours.
LARGEST = 64 * 2**20

Word: TypeAlias = "str | bytes | int"


class ShareAway(FanfoldError):
    """The server that holds what is shared does not answer."""


class ShareRefused(FanfoldError):
    """The server answered a command with an error."""


class RedisLink:
    """Sends commands and gives a future for each answer; commands of one turn of the loop leave together.

    A connection that is lost fails the commands under way, calls `on_change(False)`, and is made again every half a
    second; then `on_change(True)` is called.  Messages of the channels in `channels` go to `on_message`.
    """

    def __init__(
        self,
        address: ShareAddress,
        name: str,
        on_message: Callable[[bytes, bytes], None],
        on_change: Callable[[bool], None],
    ) -> None:
        self.address = address
        self.version = ""
        self.up = False
        self.channels: set[str] = set()
        self._name, self._on_message, self._on_change = name, on_message, on_change
        self._hiredis = _hiredis()
        self._wire: _Wire | None = None
        self._scripts: dict[str, tuple[str, str]] = {}
        self._returning: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect for the first time; ConfigError if that is not possible."""
        self._closed = False
        try:
            await self._connect()
        except (OSError, ShareAway, ShareRefused) as error:
            self._wire = None
            raise ConfigError(_remedy(self.address, error)) from None

    def call(self, *words: Word) -> asyncio.Future[Any]:
        """Send a command; its answer, ShareRefused, or ShareAway."""
        wire = self._wire
        if wire is None or not self.up:
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.set_exception(ShareAway(f"{self.address} does not answer"))
            answer.exception()  # callers may not look
            return answer
        return wire.send(words)

    async def script(self, name: str, keys: Sequence[str], *args: Word) -> Any:
        """Run one of the scripts of this package."""
        known = self._scripts.get(name)
        if known is None:
            from importlib.resources import files

            text = (files(__package__) / "scripts" / f"{name}.lua").read_text()
            known = self._scripts[name] = text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self.call("EVALSHA", known[1], len(keys), *keys, *args)
        except ShareRefused as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        return await self.call("EVAL", known[0], len(keys), *keys, *args)

    def subscribe(self, channel: str) -> None:
        self.channels.add(channel)
        if self.up and self._wire is not None:
            self._wire.post(("SUBSCRIBE", channel))

    def unsubscribe(self, channel: str) -> None:
        self.channels.discard(channel)
        if self.up and self._wire is not None:
            self._wire.post(("UNSUBSCRIBE", channel))

    def check(self) -> None:
        """Give a connection up whose oldest command waits for too long."""
        if self._wire is not None and self._wire.oldest < asyncio.get_running_loop().time() - ANSWER:
            self._wire.abort()

    async def close(self) -> None:
        """Wait for answers under way, but not for long; then leave."""
        self._closed = True
        if self._returning is not None:
            self._returning.cancel()
        wire, self._wire = self._wire, None
        if wire is not None and self.up:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wire.idle(), ANSWER)
        self.up = False
        if wire is not None:
            wire.abort()

    async def _connect(self) -> None:
        address, loop = self.address, asyncio.get_running_loop()
        wire = _Wire(self._hiredis, self._on_message, self._lost)
        secure = None
        if address.tls:
            import ssl

            secure = ssl.create_default_context()
        reached = (
            loop.create_unix_connection(lambda: wire, address.path)
            if address.path
            else loop.create_connection(lambda: wire, address.host, address.port, ssl=secure)
        )
        async with asyncio.timeout(CONNECT):
            await reached
            try:
                login = ("AUTH", address.user or "default", address.password) if address.password else ()
                about = await wire.send(("HELLO", "3", *login, "SETNAME", self._name))
                if address.database:
                    await wire.send(("SELECT", address.database))
                if self.channels:
                    wire.post(("SUBSCRIBE", *self.channels))
            except BaseException:
                wire.abort()
                raise
        told = about if isinstance(about, dict) else {}
        if told.get(b"mode") == b"cluster":
            wire.abort()
            raise ShareRefused("it is a cluster, whose keys are apart; use a single server")
        text = told.get(b"version", b"")
        self.version = text.decode(errors="replace") if isinstance(text, bytes) else ""
        self._wire, self.up = wire, True

    def _lost(self, wire: _Wire) -> None:
        if wire is not self._wire or self._closed:
            return
        self._wire, self.up = None, False
        self._returning = asyncio.get_running_loop().create_task(self._return())
        self._on_change(False)

    async def _return(self) -> None:
        while not self.up:
            await asyncio.sleep(AGAIN)
            with contextlib.suppress(OSError, ShareAway, ShareRefused):
                await self._connect()
        self._on_change(True)


class _Wire(asyncio.Protocol):
    """The bytes of one connection."""

    def __init__(
        self, hiredis: ModuleType, on_message: Callable[[bytes, bytes], None], on_loss: Callable[[_Wire], None]
    ) -> None:
        self._hiredis, self._on_message, self._on_loss = hiredis, on_message, on_loss
        self._reader = hiredis.Reader(protocolError=ValueError, replyError=_refusal)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._out: list[bytes] = []
        self._unread = 0

    @property
    def oldest(self) -> float:
        return self._waiting[0][1] if self._waiting else self._loop.time()

    def send(self, words: Sequence[Word]) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((answer, self._loop.time()))
        self.post(words)
        return answer

    def post(self, words: Sequence[Word]) -> None:
        """Send a command whose answer, if any, is a message."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(self._hiredis.pack_command(tuple(words)))

    async def idle(self) -> None:
        while self._waiting:
            await asyncio.wait([self._waiting[-1][0]])

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is one, but not by descent

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._unread = 0
                self._take(answer)
            if self._unread > LARGEST:
                raise ValueError("a value without end")
        except (ValueError, RecursionError, IndexError):
            self.abort()  # this does not speak the protocol

    def connection_lost(self, error: Exception | None) -> None:
        waiting, self._waiting = self._waiting, deque()
        for answer, _ in waiting:
            if not answer.done():
                answer.set_exception(ShareAway("the connection was lost"))
                answer.exception()
        self._on_loss(self)

    def _take(self, answer: Any) -> None:
        if isinstance(answer, self._hiredis.PushNotification):
            if len(answer) == 3 and answer[0] == b"message" and isinstance(answer[2], bytes):
                self._on_message(answer[1], answer[2])
            return
        future, _ = self._waiting.popleft()
        if future.done():
            return
        if isinstance(answer, ShareRefused):
            future.set_exception(answer)
            future.exception()
        else:
            future.set_result(answer)


def _refusal(text: Any) -> ShareRefused:
    return ShareRefused(str(text)[:300])


def _hiredis() -> ModuleType:
    try:
        import hiredis
    except ImportError:
        raise MissingExtra("hiredis", "redis", "--share") from None
    return hiredis


def _remedy(address: ShareAddress, error: BaseException) -> str:
    """Why nothing can be shared by an address, and what to do."""
    text = str(error) or type(error).__name__
    if "WRONGPASS" in text or "NOAUTH" in text or "invalid username-password" in text:
        return f"{address} wants another user or password: put it into the address, or into REDISCLI_AUTH"
    if "NOPROTO" in text or "unknown command" in text:
        return f"{address} is too old to share by: use Redis 6 or newer, or Valkey ({text})"
    if isinstance(error, ShareRefused):
        return f"{address} refuses to be shared by: {text}"
    if "CERTIFICATE" in text:
        return f"{address} has a certificate that is not trusted here: name its authority in SSL_CERT_FILE ({text})"
    if isinstance(error, ShareAway):
        return f"{address} hung up at once: is it another kind of server, or one with TLS (rediss://), or without?"
    return (
        f"{address} does not answer ({text}): start the server there (redis-server, valkey-server), correct the "
        "address, or run without it (--share off)"
    )
