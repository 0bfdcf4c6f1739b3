"""The two providers' batch protocols: how calls are handed over together, found again, watched, and read back."""

from __future__ import annotations

import datetime
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from fanfold.attempt import attempt
from fanfold.calls import Call, Reply
from fanfold.errors import CallFailed
from fanfold.models.anthropic import Anthropic
from fanfold.models.http import HttpError, Response
from fanfold.models.model import Again, Model, _network_failure
from fanfold.models.openai import OpenAI
from fanfold.models.wire import retry_after

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
                await _persist(lambda url=url: self._download(url, results))
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
            lambda way, headers: way.request(
                method, url, {**headers, **more}, body, deadline=deadline, replay=replay
            ),
            deadline,
        )

    async def _carry(self, send: Callable[[BatchTransport, dict[str, str]], Any], deadline: float) -> Response:
        model = self.model
        transport = cast(BatchTransport, model.line().transport)
        try:
            response: Response = await send(transport, model.wire.headers(model.key))
        except HttpError as error:
            raise _network_failure(error, model.wire.name, deadline) from error
        if response.status < 400:
            return response
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
            return None if error.passing else error


def batches_of(model: Model) -> type[Batches] | None:
    """The batch protocol that a model's provider speaks, if any."""
    if isinstance(model.wire, Anthropic):
        return AnthropicBatches
    return OpenAIBatches if isinstance(model.wire, OpenAI) and model.url.startswith("http") else None


def refused(error: CallFailed) -> bool:
    """Whether a failed `create` certainly created nothing."""
    return not error.sent or error.kind in ("bad-request", "auth", "billing", "not-found", "rate-limit")


async def _persist(call: Callable[[], Any]) -> Any:
    return await attempt(call, again=Again())


class _Error(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _Errors(msgspec.Struct):
    data: list[_Error] = []


class _OpenAIBatch(msgspec.Struct):
    id: str
    status: str
    created_at: float = 0.0
    metadata: dict[str, str] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Errors | None = None
    request_counts: dict[str, Any] | None = None


class _OpenAIPage(msgspec.Struct):
    data: list[_OpenAIBatch]
    has_more: bool = False


class _File(msgspec.Struct):
    id: str


class _Inner(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"null")


class _OpenAILine(msgspec.Struct):
    custom_id: str
    response: _Inner | None = None
    error: dict[str, Any] | None = None


class OpenAIBatches(Batches):
    """A file of lines is uploaded, and a batch made of it; results are in an output file and an error file."""

    max_requests = 50_000
    max_bytes = 200_000_000
    tagged = True

    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        path = "/v1" + calls[0][1].endpoint.removeprefix(self.model.url)
        lines = [
            b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n' % (id.encode(), path.encode(), call.body.encode())
            for id, call in calls
        ]
        boundary = f"fanfold-{secrets.token_hex(16)}"
        head = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
            f'content-disposition: form-data; name="file"; filename="{tag}.jsonl"\r\n'
            "content-type: application/jsonl\r\n\r\n"
        )
        form = b"".join([head.encode(), *lines, f"\r\n--{boundary}--\r\n".encode()])
        content = f"multipart/form-data; boundary={boundary}"

        async def upload() -> Response:
            return await self._ask("POST", "/files", form, content=content)

        file = self._read(await _persist(upload), _File)
        return msgspec.json.encode(
            {"input_file_id": file.id, "endpoint": path, "completion_window": "24h", "metadata": {"tag": tag}}
        )

    async def create(self, body: bytes) -> Remote:
        return self._remote(await self._ask("POST", "/batches", body, replay=False))

    async def get(self, id: str) -> Remote:
        return self._remote(await self._ask("GET", f"/batches/{id}"))

    async def newest(self) -> AsyncIterator[Remote]:
        query = {"limit": "100"}
        while True:
            path = f"/batches?{urlencode(query)}"
            page = self._read(await _persist(lambda path=path: self._ask("GET", path)), _OpenAIPage)
            for batch in page.data:
                yield _openai_remote(batch, None)
            if not page.has_more or not page.data:
                return
            query["after"] = page.data[-1].id

    async def cancel(self, id: str) -> None:
        await _persist(lambda: self._ask("POST", f"/batches/{id}/cancel"))

    def result_urls(self, remote: Remote) -> list[str]:
        return [f"{self.model.url}/files/{file}/content" for file in remote.results]

    def read(self, line: bytes) -> tuple[str, Line]:
        said = msgspec.json.decode(line, type=_OpenAILine)
        if said.error is not None:
            error = self.model.wire.failure(400, {}, {"error": said.error})
            return said.custom_id, error if error.hopeless else None  # expired, cancelled, or some mishap of its own
        if said.response is None or said.response.status_code < 200:
            return said.custom_id, None
        return said.custom_id, self._reply(said.response.status_code, bytes(said.response.body))

    def _remote(self, response: Response) -> Remote:
        return _openai_remote(self._read(response, _OpenAIBatch), retry_after(response.headers))


_OPENAI_RUNNING = ("validating", "in_progress", "finalizing", "cancelling")
_OPENAI_ENDED = ("completed", "failed", "expired", "cancelled")


def _openai_remote(batch: _OpenAIBatch, again: float | None) -> Remote:
    ended = True if batch.status in _OPENAI_ENDED else False if batch.status in _OPENAI_RUNNING else None
    why = None
    if batch.status == "failed":
        why = "; ".join(error.message or error.code or "" for error in batch.errors.data[:3]) if batch.errors else ""
        why = why or "no reason given"
    return Remote(
        batch.id,
        batch.created_at,
        batch.status,
        ended,
        int((batch.request_counts or {}).get("total") or 0),
        (batch.metadata or {}).get("tag"),
        why,
        tuple(file for file in (batch.output_file_id, batch.error_file_id) if file),
        again,
    )


class _AnthropicBatch(msgspec.Struct):
    id: str
    processing_status: str
    created_at: str = ""
    request_counts: dict[str, int] = {}
    results_url: str | None = None


class _AnthropicPage(msgspec.Struct):
    data: list[_AnthropicBatch]
    has_more: bool = False


class _AnthropicResult(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


class _AnthropicLine(msgspec.Struct):
    custom_id: str
    result: _AnthropicResult


class AnthropicBatches(Batches):
    """A batch is made of its requests directly, and carries no mark of ours but the custom_ids of its results."""

    max_requests = 100_000
    max_bytes = 256_000_000
    tagged = False

    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        items = [b'{"custom_id":"%b","params":%b}' % (id.encode(), call.body.encode()) for id, call in calls]
        return b'{"requests":[' + b",".join(items) + b"]}"

    async def create(self, body: bytes) -> Remote:
        return self._remote(await self._ask("POST", "/messages/batches", body, replay=False))

    async def get(self, id: str) -> Remote:
        return self._remote(await self._ask("GET", f"/messages/batches/{id}"))

    async def newest(self) -> AsyncIterator[Remote]:
        query = {"limit": "100"}
        while True:
            path = f"/messages/batches?{urlencode(query)}"
            page = self._read(await _persist(lambda path=path: self._ask("GET", path)), _AnthropicPage)
            for batch in page.data:
                yield _anthropic_remote(batch, None)
            if not page.has_more or not page.data:
                return
            query["after_id"] = page.data[-1].id

    async def cancel(self, id: str) -> None:
        await _persist(lambda: self._ask("POST", f"/messages/batches/{id}/cancel"))

    def result_urls(self, remote: Remote) -> list[str]:
        if not remote.results:
            raise CallFailed("malformed", f"anthropic: batch {remote.id} has ended without a results_url")
        home, url = urlsplit(self.model.url), urljoin(self.model.url, remote.results[0])
        there = urlsplit(url)
        if (there.scheme, there.netloc) != (home.scheme, home.netloc):
            raise CallFailed(
                "malformed",
                f"anthropic: the results of batch {remote.id} are said to be at {there.hostname}, not at "
                f"{home.hostname}; the key is not sent there: check the base URL",
            )
        return [url]

    def read(self, line: bytes) -> tuple[str, Line]:
        said = msgspec.json.decode(line, type=_AnthropicLine)
        if said.result.type == "succeeded":
            return said.custom_id, self._reply(200, bytes(said.result.message))
        if said.result.type != "errored":
            return said.custom_id, None
        inner = (said.result.error or {}).get("error")
        inner = inner if isinstance(inner, Mapping) else {}
        status = {"api_error": 500, "timeout_error": 504}.get(str(inner.get("type")), 400)
        error = self.model.wire.failure(status, {}, said.result.error)
        if error.kind == "bad-request" and "credit balance" in str(inner.get("message")).lower():
            # The recorded lines of an empty account have no code, only this sentence.
            error = CallFailed("billing", str(error))
        return said.custom_id, None if error.passing else error

    def _remote(self, response: Response) -> Remote:
        return _anthropic_remote(self._read(response, _AnthropicBatch), retry_after(response.headers))


def _anthropic_remote(batch: _AnthropicBatch, again: float | None) -> Remote:
    known = {"ended": True, "in_progress": False, "canceling": False}
    try:
        created = datetime.datetime.fromisoformat(batch.created_at.replace("Z", "+00:00")).timestamp()
    except ValueError:
        created = 0.0
    return Remote(
        batch.id,
        created,
        batch.processing_status,
        known.get(batch.processing_status),
        sum(batch.request_counts.values()),
        None,
        None,
        (batch.results_url,) if batch.results_url else (),
        again,
    )
