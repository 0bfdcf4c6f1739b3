"""What a provider's batch protocol is: how calls are handed over together, found again, watched, and read back."""

from __future__ import annotations

import contextlib
import email.utils
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast

import msgspec

from fanfold.attempt import attempt
from fanfold.calls import Call, Reply
from fanfold.errors import CallFailed
from fanfold.models.failures import network_failure, redirected
from fanfold.models.http import HttpError, Response
from fanfold.models.model import Again, Model
from fanfold.redaction import redact_body

T = TypeVar("T")

#: What became of one line: a reply, a failure that will not pass, or None where the call has to be made again.
Line: TypeAlias = Reply | CallFailed | None

#: Bytes per second that a line to the provider is expected to carry at least.
SLOWEST = 500_000
#: How often results that arrive torn are fetched again.
TRIES = 3


class BatchTransport(Protocol):
    """What batches need of a transport beyond single requests."""

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        replay: bool = True,
    ) -> Response: ...

    async def download(
        self, url: str, headers: Mapping[str, str], sink: Callable[[bytes], object], *, deadline: float | None = None
    ) -> Response: ...


@dataclass(frozen=True, slots=True)
class Remote:
    """A batch as the provider shows it."""

    id: str
    created: float
    status: str
    #: None: a word we do not know, so it is waited for like one that runs.
    ended: bool | None
    #: How many requests it has; 0 where the provider does not say yet.
    requests: int = 0
    tag: str | None = None
    #: Why it came to nothing as a whole.
    refused: str | None = None
    #: Where its results are: file ids, or a URL.
    results: tuple[str, ...] = ()
    #: Seconds after which to ask again.
    retry_after: float | None = None


@dataclass(slots=True)
class Results:
    """What the lines of a batch said, by custom_id; the first line of an id counts."""

    lines: dict[str, Line] = field(default_factory=dict)
    repeated: int = 0
    torn: int = 0


class Batches(ABC):
    """A provider's batch protocol, spoken for one model.  Everything that fails raises CallFailed."""

    max_requests: ClassVar[int]
    max_bytes: ClassVar[int]
    #: Whether a batch carries our tag, so that it can be told from all others before it has ended.
    tagged: ClassVar[bool]

    def __init__(self, model: Model) -> None:
        self.model = model
        #: Seconds by which the provider's clock is ahead of ours, as its last response showed.
        self.skew = 0.0

    @abstractmethod
    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        """Everything short of what is paid for; gives the body of `create`."""

    @abstractmethod
    async def create(self, body: bytes) -> Remote:
        """Create the batch, once.  Unless the failure is a refusal (see `refused`), it may exist all the same."""

    @abstractmethod
    async def get(self, id: str) -> Remote:
        """How a batch stands."""

    @abstractmethod
    def newest(self) -> AsyncIterator[Remote]:
        """Every batch of this account, newest first."""

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Ask for an early end; what is done by then is delivered, and charged."""

    @abstractmethod
    def read(self, line: bytes) -> tuple[str, Line]:
        """The custom_id of a line of results, and what it says."""

    @abstractmethod
    def result_urls(self, remote: Remote) -> list[str]:
        """Where the results of an ended batch are."""

    async def results(self, remote: Remote) -> Results:
        """All results of a batch that has ended."""
        urls = self.result_urls(remote)
        for left in reversed(range(TRIES)):
            results = Results()
            for url in urls:
                await persist(functools.partial(self._download, url, results))
            if not results.torn or not left:
                break
        return results

    async def _download(self, url: str, results: Results) -> None:
        lines: dict[str, Line] = {}
        repeated = torn = 0

        def take(line: bytes) -> None:
            nonlocal repeated, torn
            if not line.strip():
                return
            try:
                custom_id, value = self.read(line)
            except msgspec.DecodeError:
                torn += 1
                return
            repeated += custom_id in lines or custom_id in results.lines
            lines.setdefault(custom_id, value)

        rest = b""

        def sink(piece: bytes) -> None:
            nonlocal rest
            *whole, rest = (rest + bytes(piece)).split(b"\n")
            for line in whole:
                take(line)

        response = await self._carry(lambda way, headers: way.download(url, headers, sink), self.model.timeout * 10)
        take(rest)
        if response.status != 200:
            raise CallFailed("malformed", f"{self.model.wire.name}: the results came with status {response.status}")
        results.lines = {**lines, **results.lines}
        results.repeated += repeated
        results.torn += torn

    async def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content: str = "application/json",
        replay: bool = True,
    ) -> Response:
        deadline = self.model.timeout + len(body or b"") / SLOWEST
        url = self.model.url + path
        more = {} if body is None else {"content-type": content}
        return await self._carry(
            lambda way, headers: way.request(method, url, {**headers, **more}, body, deadline=deadline, replay=replay),
            deadline,
        )

    async def _carry(self, send: Callable[[BatchTransport, dict[str, str]], Any], deadline: float) -> Response:
        model = self.model
        transport = cast(BatchTransport, model.line().transport)
        try:
            response: Response = await send(transport, model.wire.headers(model.key))
        except HttpError as error:
            raise network_failure(error, model.wire.name, deadline) from error
        if date := response.headers.get("date"):
            with contextlib.suppress(ValueError):
                self.skew = email.utils.parsedate_to_datetime(date).timestamp() - time.time()
        if response.status < 300:
            return replace(response, body=redact_body(response.body))
        if response.status < 400:
            raise redirected(response, model.wire.name)
        try:
            said = msgspec.json.decode(response.body)
        except msgspec.DecodeError:
            said = None
        raise model.wire.failure(response.status, response.headers, said)

    def _read(self, response: Response, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(response.body, type=shape)
        except msgspec.DecodeError as error:
            raise CallFailed("malformed", f"{self.model.wire.name} sent what cannot be read: {error}") from error

    def _reply(self, status: int, body: bytes) -> Line:
        """What the response inside a line says."""
        try:
            return self.model.read(Response(status, {}, body), batch=True)
        except CallFailed as error:
            return None if error.passing or error.kind == "malformed" else error


def refused(error: CallFailed) -> bool:
    """Whether a failed `create` certainly created nothing."""
    return not error.sent or error.kind in ("bad-request", "auth", "billing", "not-found", "rate-limit")


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Do what can be done again without harm, until it succeeds or will not."""
    return await attempt(call, again=Again())
