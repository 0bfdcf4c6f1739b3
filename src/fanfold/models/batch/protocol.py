"""A provider's batch protocol: how calls are handed over together, found again, watched, and read back."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar
from urllib.parse import urlencode

import msgspec

from fanfold.addresses import same_origin, shown
from fanfold.calls import Call, Reply
from fanfold.errors import CallFailed
from fanfold.models.failures import network_failure, redirected
from fanfold.models.http import HttpError
from fanfold.models.http_bodies import UploadBody
from fanfold.models.http_exchange import Response
from fanfold.models.model import Model
from fanfold.models.providers.reading import decoded, retry_after
from fanfold.models.retry import persist
from fanfold.models.transport import Transport
from fanfold.redaction import redact_body

T = TypeVar("T")

#: The outcome of one line: a reply, a failure that will not pass, or None where the call has to be made again.
LineOutcome: TypeAlias = Reply | CallFailed | None

#: Bytes per second that a line to the provider is expected to carry at least.
SLOWEST = 500_000
#: A batch is looked at again after this share of its age, at least and at most after so many seconds.
LOOKS = (0.05, 1.0, 300.0)
#: How often results that arrive torn are fetched again.
TRIES = 3


@dataclass(frozen=True, slots=True)
class RemoteBatch:
    """A batch as the provider shows it."""

    id: str
    created: float
    status: str
    #: None: an unknown status, treated as running.
    ended: bool | None
    #: How many requests it has; 0 where the provider does not say yet.
    requests: int = 0
    tag: str | None = None
    #: Why the whole batch failed.
    refused: str | None = None
    #: Where its results are: ids of files, or an address.
    results: tuple[str, ...] = ()
    #: Seconds after which to ask again.
    retry_after: float | None = None
    #: The kind of failure that `refused` is, where it is known: `no-batches` where the model takes none.
    refused_kind: str | None = None
    #: The lines that made the whole batch fail, counted from 1, and what is wrong with each.
    bad_lines: Mapping[int, str] = field(default_factory=dict)
    #: How many of its requests are over; None where the provider does not say.
    finished: int | None = None

    @property
    def answered(self) -> int:
        """How many results there must be: a download that brings fewer was cut short, and is made again."""
        return self.finished or (self.requests if self.ending == "done" else 0)

    @property
    def ending(self) -> str:
        """The state that an ended batch is written down with."""
        words = {"expire": "expired", "timeout": "expired", "cancel": "cancelled", "fail": "failed"}
        return next((state for word, state in words.items() if word in self.status.lower()), "done")


@dataclass(slots=True)
class BatchResults:
    """The outcomes of a batch's lines by custom_id; the first line of an id counts."""

    lines: dict[str, LineOutcome] = field(default_factory=dict)
    repeated: int = 0
    torn: int = 0


class _Page(msgspec.Struct, Generic[T]):
    data: list[T]
    has_more: bool = False


class BatchProtocol(ABC):
    """A provider's batch protocol, spoken for one model.  Everything that fails raises CallFailed.

    A POST to `path` creates a batch and a GET lists them, newest first; `path/ID` shows one, `path/ID/cancel` ends it.
    """

    #: Below the model's address.
    path: ClassVar[str]
    #: The shape of a batch in responses, a msgspec.Struct with an `id`.
    view: ClassVar[type[Any]]
    #: The query parameter that asks for what comes after a batch in the list.
    after: ClassVar[str] = "after"
    max_requests: ClassVar[int]
    #: Seconds after which a batch that has not ended never will.
    longest: ClassVar[float] = 25 * 3600.0
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
    def remote(self, batch: Any, again: float | None) -> RemoteBatch:
        """A batch from its `view`; `again` is when the provider wants to be asked next, in seconds."""

    @abstractmethod
    def result_urls(self, remote: RemoteBatch) -> list[str]:
        """The addresses of the results of an ended batch."""

    @abstractmethod
    def read(self, line: bytes) -> tuple[str, LineOutcome]:
        """The custom_id of a line of results, and its outcome."""

    async def create(self, body: bytes) -> RemoteBatch:
        """Create the batch, once.  Unless the failure is a refusal (see `refused`), it may exist all the same."""
        return self._shown(await self.ask("POST", self.path, body, replay=False))

    async def get(self, id: str) -> RemoteBatch:
        """The current state of a batch."""
        return self._shown(await self.ask("GET", f"{self.path}/{id}"))

    async def newest(self) -> AsyncIterator[RemoteBatch]:
        """Every batch of this account, newest first."""
        query = {"limit": "100"}
        while True:
            path = f"{self.path}?{urlencode(query)}"
            page = self.decode(await persist(functools.partial(self.ask, "GET", path)), _Page[self.view])  # type: ignore[name-defined]
            for batch in page.data:
                yield self.remote(batch, None)
            if not page.has_more or not page.data:
                return
            query[self.after] = page.data[-1].id

    async def cancel(self, id: str) -> None:
        """Ask for an early end; what is done by then is delivered, and charged."""
        await persist(lambda: self.ask("POST", f"{self.path}/{id}/cancel"))

    def _shown(self, response: Response) -> RemoteBatch:
        return self.remote(self.decode(response, self.view), retry_after(response.headers))

    async def results(self, remote: RemoteBatch) -> BatchResults:
        """All results of a batch that has ended."""
        urls = self.result_urls(remote)
        for url in urls:
            if not same_origin(url, self.model.url):
                raise CallFailed(
                    "malformed",
                    f"{self.model.provider.name}: the results of batch {remote.id} are said to be at {shown(url)}, not "
                    f"at {shown(self.model.url)}; the key is not sent there: check the base URL",
                )
        for left in reversed(range(TRIES)):
            results = BatchResults()
            for url in urls:
                await persist(functools.partial(self._download, url, results))
            if not left or (not results.torn and len(results.lines) >= remote.answered):
                break
        return results

    async def _download(self, url: str, results: BatchResults) -> None:
        lines: dict[str, LineOutcome] = {}
        repeated = torn = 0

        def take(line: bytes) -> None:
            nonlocal repeated, torn
            if not line.strip():
                return
            try:
                try:
                    custom_id, value = self.read(line)
                except ValueError:
                    custom_id, value = self.read(msgspec.json.encode(decoded(line)))
            except ValueError:
                torn += 1
                return
            repeated += custom_id in lines or custom_id in results.lines
            lines.setdefault(custom_id, value)

        rest, patience = b"", self.model.timeout

        def sink(piece: bytes) -> None:
            nonlocal rest
            silence.reschedule(asyncio.get_running_loop().time() + patience)
            *whole, rest = (rest + bytes(piece)).split(b"\n")
            for line in whole:
                take(line)

        headers = self.model.signed("GET", url)
        try:
            async with asyncio.timeout(patience) as silence:  # not for the whole: large results may take hours
                response = await self._carry(lambda way: way.download(url, headers, sink), patience)
        except TimeoutError:
            text = f"{self.model.provider.name}: nothing came of the results for {patience:g} s"
            raise CallFailed("timeout", text) from None
        take(rest)
        if response.status != 200:
            raise CallFailed("malformed", f"{self.model.provider.name}: the results came with status {response.status}")
        results.lines = {**lines, **results.lines}
        results.repeated += repeated
        results.torn += torn

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | UploadBody | None = None,
        *,
        content: str = "application/json",
        replay: bool = True,
    ) -> Response:
        """Send a request below the model's address; a failed one raises CallFailed.

        A body in pieces is always a POST, and cannot be signed.
        """
        deadline = self.model.timeout + len(body or b"") / SLOWEST
        url = self.model.url + path
        headers = self.model.signed(method, url, body if isinstance(body, bytes) else b"")
        headers |= {} if body is None else {"content-type": content}
        if isinstance(body, UploadBody):
            return await self._carry(lambda way: way.upload(url, headers, body, deadline=deadline), deadline)
        return await self._carry(
            lambda way: way.request(method, url, headers, body, deadline=deadline, replay=replay), deadline
        )

    async def _carry(self, send: Callable[[Transport], Any], deadline: float) -> Response:
        model = self.model
        transport = model.line().transport
        try:
            response: Response = await send(transport)
        except HttpError as error:
            raise network_failure(error, model.provider.name, deadline) from error
        if date := response.headers.get("date"):
            with contextlib.suppress(ValueError):
                self.skew = email.utils.parsedate_to_datetime(date).timestamp() - time.time()
        if response.status < 300:
            return replace(response, body=redact_body(response.body))
        if response.status < 400:
            raise redirected(response, model.provider.name)
        raise model.provider.failure(response.status, response.headers, decoded(response.body))

    def decode(self, response: Response, shape: type[T]) -> T:
        """A response's body as a value of that shape."""
        try:
            return msgspec.json.decode(response.body, type=shape)
        except msgspec.DecodeError as error:
            raise CallFailed("malformed", f"{self.model.provider.name} sent what cannot be read: {error}") from error

    def reply(self, status: int, body: bytes) -> LineOutcome:
        """The outcome of a line that holds a response."""
        try:
            return self.model.read(Response(status, {}, body), batch=True)
        except CallFailed as error:
            return None if error.passing or error.kind == "malformed" else error


def next_look(age: float, again: float | None) -> float:
    """Seconds until a batch of that age is looked at again: seldom if it takes long, and when the provider asks."""
    share, least, most = LOOKS
    return max(again or 0.0, min(most, max(least, share * age)) * random.uniform(0.8, 1.2))


def waited_out(error: CallFailed) -> bool:
    """Whether a batch that exists can be waited for in spite of an error: also where a network is not itself yet."""
    return error.passing or error.kind == "unreachable"


def refused(error: CallFailed) -> bool:
    """Whether a failed `create` certainly created nothing."""
    return not error.sent or error.kind in ("bad-request", "auth", "billing", "not-found", "rate-limit")
