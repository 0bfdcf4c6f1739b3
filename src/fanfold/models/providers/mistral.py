"""Mistral: OpenAI's chat protocol with names and errors of its own, and batch jobs."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

import msgspec

from fanfold.calls import Call, Reply
from fanfold.errors import CallFailed
from fanfold.limits import Quota
from fanfold.models.batch.protocol import BatchProtocol, RemoteBatch
from fanfold.models.providers.contract import ERROR_KINDS
from fanfold.models.providers.openai import OpenAI, OpenAIBatches
from fanfold.models.providers.reading import malformed, number
from fanfold.models.retry import persist

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect

_PAGE = 100
_ENDED = {
    **dict.fromkeys(("QUEUED", "RUNNING", "CANCELLATION_REQUESTED"), False),
    **dict.fromkeys(("SUCCESS", "FAILED", "TIMEOUT_EXCEEDED", "CANCELLED"), True),
}


class _MistralJob(msgspec.Struct):
    id: str
    status: str
    created_at: float = 0.0
    total_requests: int = 0
    completed_requests: int = 0
    metadata: dict[str, Any] | None = None
    output_file: str | None = None
    error_file: str | None = None
    errors: list[dict[str, Any]] = []


class _MistralJobs(msgspec.Struct):
    total: int = 0
    data: list[_MistralJob] = []


class MistralBatches(OpenAIBatches):
    """As OpenAI's, but the model belongs to the job, not to its lines."""

    path = "/batch/jobs"
    view = _MistralJob
    max_requests = 100_000
    max_bytes = 512_000_000

    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        lines = []
        for id, call in calls:
            body = msgspec.json.decode(self.model.sendable(call))
            del body["model"]
            lines.append(msgspec.json.encode({"custom_id": id, "body": body}) + b"\n")
        return msgspec.json.encode(
            {
                "input_files": [await self.upload(tag, lambda: lines)],
                "endpoint": "/v1" + calls[0][1].endpoint.removeprefix(self.model.url),
                "model": self.model.name,
                "metadata": {"tag": tag},
                "timeout_hours": 24,
            }
        )

    async def newest(self) -> AsyncIterator[RemoteBatch]:
        page = 0
        while True:
            query = urlencode({"page": page, "page_size": _PAGE, "order_by": "-created"})
            response = await persist(functools.partial(self.ask, "GET", f"{self.path}?{query}"))
            jobs = self.decode(response, _MistralJobs)
            for job in jobs.data:
                yield self.remote(job, None)
            page += 1
            if not jobs.data or page * _PAGE >= jobs.total:
                return

    def remote(self, batch: Any, again: float | None) -> RemoteBatch:
        why = None
        if batch.status == "FAILED":
            why = "; ".join(str(error.get("message")) for error in batch.errors[:3]) or "no reason given"
        return RemoteBatch(
            batch.id,
            batch.created_at,
            batch.status,
            _ENDED.get(batch.status),
            batch.total_requests,
            (batch.metadata or {}).get("tag"),
            why,
            tuple(file for file in (batch.output_file, batch.error_file) if file),
            again,
            finished=batch.completed_requests,
        )


class Mistral(OpenAI):
    """Chat completions, and jobs of them."""

    name = "mistral"
    default_url = "https://api.mistral.ai/v1"
    key_variable = "MISTRAL_API_KEY"
    url_variable = "MISTRAL_BASE_URL"
    parameters: ClassVar[Mapping[str, str]] = {
        **{name: name for name in OpenAI.parameters if name not in ("seed", "max_tokens")},
        "max_tokens": "max_tokens",
        "seed": "random_seed",
        "top_k": "top_k",
        "safe_prompt": "safe_prompt",
        "prompt_mode": "prompt_mode",
    }
    streams: ClassVar[Mapping[str, Any] | None] = {"stream": True}
    batches: ClassVar[type[BatchProtocol] | None] = MistralBatches
    family = r"(open-)?(mistral|ministral|codestral|devstral|magistral|pixtral|voxtral)-"
    examples: ClassVar[Sequence[str]] = ("mistral-small-latest", "mistral-large-4")

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.mistral import MistralDialect

        return MistralDialect

    def reply(self, body: Mapping[str, Any]) -> Reply:
        reply = super().reply(body)
        reason = body["choices"][0].get("finish_reason")
        if reason == "error":
            raise malformed(self.name, "it ended in an error")
        return msgspec.structs.replace(reply, finish="length") if reason == "model_length" else reply

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        if status == 402:
            return "billing"
        if error.get("type") == "invalid_model":
            return "not-found"
        return (
            "overloaded" if error.get("type") == "service_tier_capacity_exceeded" else super().error_kind(status, error)
        )

    def failure(self, status: int, headers: Mapping[str, str], body: Any) -> CallFailed:
        error = super().failure(status, headers, body)
        if error.kind == "rate-limit" and number(headers.get("x-ratelimit-limit-req-minute")) == 0:
            # Waiting does not help: the plan has no requests of this model at all.
            return CallFailed("billing", f"{error}: your plan has 0 requests a minute ({ERROR_KINDS['billing']})")
        return error

    def quota(self, headers: Mapping[str, str]) -> Quota | None:
        if not any(name.startswith("x-ratelimit-limit-") for name in headers):
            return None
        return Quota(
            requests_limit=number(headers.get("x-ratelimit-limit-req-minute")),
            requests_remaining=number(headers.get("x-ratelimit-remaining-req-minute")),
            tokens_limit=number(headers.get("x-ratelimit-limit-tokens-minute")),
            tokens_remaining=number(headers.get("x-ratelimit-remaining-tokens-minute")),
        )
