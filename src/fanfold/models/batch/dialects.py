"""The batch protocols of OpenAI and Anthropic."""

from __future__ import annotations

import datetime
import functools
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from fanfold.calls import Call
from fanfold.errors import CallFailed
from fanfold.models.anthropic import Anthropic
from fanfold.models.batch.protocol import Batches, Line, Remote, persist
from fanfold.models.http import Response
from fanfold.models.model import Model
from fanfold.models.openai import OpenAI
from fanfold.models.wire import retry_after


def batches_of(model: Model) -> type[Batches] | None:
    """The batch protocol that a model's provider speaks, if any."""
    if isinstance(model.wire, Anthropic):
        return AnthropicBatches
    return OpenAIBatches if isinstance(model.wire, OpenAI) and model.url.startswith("http") else None


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
            b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n'
            % (id.encode(), path.encode(), call.body.encode())
            for id, call in calls
        ]
        boundary = f"fanfold-{secrets.token_hex(16)}"
        form = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
            f'content-disposition: form-data; name="file"; filename="{tag}.jsonl"\r\n'
            "content-type: application/jsonl\r\n\r\n"
        )
        file = b"".join([form.encode(), *lines, f"\r\n--{boundary}--\r\n".encode()])
        content = f"multipart/form-data; boundary={boundary}"

        response = await persist(functools.partial(self._ask, "POST", "/files", file, content=content))
        return msgspec.json.encode(
            {
                "input_file_id": self._read(response, _File).id,
                "endpoint": path,
                "completion_window": "24h",
                "metadata": {"tag": tag},
            }
        )

    async def create(self, body: bytes) -> Remote:
        return self._remote(await self._ask("POST", "/batches", body, replay=False))

    async def get(self, id: str) -> Remote:
        return self._remote(await self._ask("GET", f"/batches/{id}"))

    async def newest(self) -> AsyncIterator[Remote]:
        query = {"limit": "100"}
        while True:
            path = f"/batches?{urlencode(query)}"
            page = self._read(await persist(functools.partial(self._ask, "GET", path)), _OpenAIPage)
            for batch in page.data:
                yield _openai_remote(batch, None)
            if not page.has_more or not page.data:
                return
            query["after"] = page.data[-1].id

    async def cancel(self, id: str) -> None:
        await persist(lambda: self._ask("POST", f"/batches/{id}/cancel"))

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
        return self._remote(await self._ask("POST", "/v1/messages/batches", body, replay=False))

    async def get(self, id: str) -> Remote:
        return self._remote(await self._ask("GET", f"/v1/messages/batches/{id}"))

    async def newest(self) -> AsyncIterator[Remote]:
        query = {"limit": "100"}
        while True:
            path = f"/v1/messages/batches?{urlencode(query)}"
            page = self._read(await persist(functools.partial(self._ask, "GET", path)), _AnthropicPage)
            for batch in page.data:
                yield _anthropic_remote(batch, None)
            if not page.has_more or not page.data:
                return
            query["after_id"] = page.data[-1].id

    async def cancel(self, id: str) -> None:
        await persist(lambda: self._ask("POST", f"/v1/messages/batches/{id}/cancel"))

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
