"""Google Gemini: generateContent, and batches of it."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

import msgspec

from fanfold.calls import Call, Reply
from fanfold.capabilities import EFFORTS
from fanfold.errors import CallFailed
from fanfold.models.batch.protocol import BatchProtocol, LineOutcome, RemoteBatch
from fanfold.models.providers.contract import Messages, Provider, setting
from fanfold.models.providers.gemini_content import calls_in, format_of, logprobs_in, text_in, tools_of, turned
from fanfold.models.providers.reading import (
    MAX_RETRY_AFTER,
    as_dialogue,
    duration,
    estimated,
    malformed,
    moment,
    number,
    tokens,
)
from fanfold.models.retry import persist

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect

_FINISH = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"), "filter"),
    **dict.fromkeys(("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS"), "tool"),
}
#: The word at the end of a batch's state, such as BATCH_STATE_PENDING, and whether it has ended.
_ENDED = {
    **dict.fromkeys(("PENDING", "RUNNING"), False),
    **dict.fromkeys(("SUCCEEDED", "PARTIALLY_SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"), True),
}


class _Output(msgspec.Struct, rename="camel", frozen=True):
    responses_file: str | None = None


class _Stats(msgspec.Struct, rename="camel", frozen=True):
    request_count: str | int = 0
    successful_request_count: str | int = 0
    failed_request_count: str | int = 0


class _Metadata(msgspec.Struct, rename="camel"):
    state: str = ""
    display_name: str | None = None
    create_time: str = ""
    batch_stats: _Stats = _Stats()
    output: _Output = _Output()


class _Operation(msgspec.Struct):
    name: str
    metadata: _Metadata
    error: dict[str, Any] | None = None


class _Operations(msgspec.Struct, rename="camel"):
    operations: list[_Operation] = []
    next_page_token: str = ""


class _GeminiFile(msgspec.Struct):
    name: str


class _Upload(msgspec.Struct):
    file: _GeminiFile


class _GeminiLine(msgspec.Struct):
    key: str
    response: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


class GeminiBatches(BatchProtocol):
    """A file of lines is uploaded, and a batch made of it; results are in another file, in the same order."""

    path = "/v1beta/batches"
    view = _Operation
    max_requests = 50_000
    max_bytes = 2_000_000_000
    longest = 49 * 3600.0
    tagged = True

    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        bodies = ((id, self.model.sendable(call)) for id, call in calls)
        lines = [b'{"key":"%b","request":%b}\n' % (id.encode(), body.encode()) for id, body in bodies]
        boundary = f"fanfold-{secrets.token_hex(16)}"
        about = msgspec.json.encode({"file": {"displayName": tag, "mimeType": "application/jsonl"}})
        start = b"--%b\r\ncontent-type: %b\r\n\r\n"
        mark = boundary.encode()
        form = [start % (mark, b"application/json"), about, b"\r\n", start % (mark, b"application/jsonl"), *lines]
        file = b"".join([*form, b"\r\n--%b--\r\n" % mark])
        content = f"multipart/related; boundary={boundary}"
        path = "/upload/v1beta/files?uploadType=multipart"
        response = await persist(functools.partial(self.ask, "POST", path, file, content=content))
        source = {"fileName": self.decode(response, _Upload).file.name}
        return msgspec.json.encode({"batch": {"displayName": tag, "inputConfig": source}})

    async def create(self, body: bytes) -> RemoteBatch:
        path = f"/v1beta/models/{self.model.name}:batchGenerateContent"
        return self.remote(self.decode(await self.ask("POST", path, body, replay=False), _Operation), None)

    async def newest(self) -> AsyncIterator[RemoteBatch]:
        query = {"pageSize": "100"}
        while True:
            path = f"{self.path}?{urlencode(query)}"
            page = self.decode(await persist(functools.partial(self.ask, "GET", path)), _Operations)
            for operation in page.operations:
                yield self.remote(operation, None)
            if not page.next_page_token:
                return
            query["pageToken"] = page.next_page_token

    async def cancel(self, id: str) -> None:
        await persist(lambda: self.ask("POST", f"{self.path}/{id}:cancel", b"{}"))

    def result_urls(self, remote: RemoteBatch) -> list[str]:
        return [f"{self.model.url}/v1beta/{file}:download?alt=media" for file in remote.results]

    def read(self, line: bytes) -> tuple[str, LineOutcome]:
        result = msgspec.json.decode(line, type=_GeminiLine)
        if result.error is None:
            return result.key, self.reply(200, bytes(result.response))
        # The code is one of gRPC's here: 3 and 9 are a bad request, 5 is not found, 7 and 16 are about the key.
        code = {3: 400, 9: 400, 5: 404, 7: 403, 16: 401, 8: 429}.get(tokens(result.error, "code") or 0, 500)
        error = self.model.provider.failure(code, {}, {"error": result.error})
        return result.key, None if error.passing else error

    def remote(self, batch: _Operation, again: float | None) -> RemoteBatch:
        about, stats = batch.metadata, batch.metadata.batch_stats
        state = about.state.rpartition("STATE_")[2]
        results = (about.output.responses_file,) if about.output.responses_file else ()
        why = None
        if state == "FAILED" and not results:
            why = str((batch.error or {}).get("message") or "no reason given")
        return RemoteBatch(
            batch.name.removeprefix("batches/"),
            moment(about.create_time) or 0.0,
            state,
            _ENDED.get(state),
            _count(stats.request_count),
            about.display_name,
            why,
            results,
            again,
            finished=_count(stats.successful_request_count) + _count(stats.failed_request_count),
        )


class Gemini(Provider):
    """The Gemini API of Google AI Studio."""

    name = "gemini"
    default_url = "https://generativelanguage.googleapis.com"
    key_variable = "GEMINI_API_KEY"
    key_help = "GEMINI_API_KEY or GOOGLE_API_KEY"
    url_variable = "GOOGLE_GEMINI_BASE_URL"
    parameters: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "topP",
        "top_k": "topK",
        "max_tokens": "maxOutputTokens",
        "stop": "stopSequences",
        "seed": "seed",
        "presence_penalty": "presencePenalty",
        "frequency_penalty": "frequencyPenalty",
        "reasoning_effort": "thinkingLevel",
        "response_format": "responseFormat",
        "tools": "tools",
        "tool_choice": "toolConfig",
        "n": "candidateCount",
        "logprobs": "responseLogprobs",
        "top_logprobs": "logprobs",
    }
    batches: ClassVar[type[BatchProtocol] | None] = GeminiBatches
    family = r"gemini-"
    examples: ClassVar[Sequence[str]] = ("gemini-3.5-flash-lite", "gemini-3.8-flash")

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.gemini import GeminiDialect

        return GeminiDialect

    def own_key(self) -> str | None:
        return super().own_key() or setting("GOOGLE_API_KEY")[0]

    def address(self, url: str) -> str:
        return url.rstrip("/").removesuffix("/v1beta").removesuffix("/v1")

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        config = self.translated(parameters)
        if isinstance(config.get("stopSequences"), str):
            config["stopSequences"] = [config["stopSequences"]]
        if (effort := config.pop("thinkingLevel", None)) is not None:
            config["thinkingConfig"] = _thinking(model, effort)
        config |= format_of(config.pop("responseFormat", None))
        tools, choice = config.pop("tools", None), config.pop("toolConfig", None)
        system, contents = turned(as_dialogue(messages), parameters.get("system"))
        body: dict[str, Any] = {"contents": contents}
        if system:
            body["systemInstruction"] = {"parts": system}
        if tools:
            body |= tools_of(tools, choice)
        if config:
            body["generationConfig"] = config
        return f"/v1beta/models/{model}:generateContent", body

    def headers(self, key: str | None) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            usage = body.get("usageMetadata")
            read, written = tokens(usage, "promptTokenCount"), tokens(usage, "candidatesTokenCount")
            thoughts = tokens(usage, "thoughtsTokenCount") or 0
            blocked = (body.get("promptFeedback") or {}).get("blockReason")
            text, finish, more = "", "refusal", {}
            if not blocked:
                candidate, *others = body["candidates"]
                parts = _said(candidate)
                text, more = text_in(parts), _more(candidate, others)
                reason = candidate.get("finishReason") or "STOP"
                finish = "tool" if more.get("tool_calls") else _FINISH.get(reason, "stop")
                if not parts and reason == "STOP":
                    raise malformed(self.name, "a candidate without content")
            if read is not None and written is None and (thoughts or not text) and not more.get("tool_calls"):
                written = 0  # nothing was written, and then nothing is said about it
            return Reply(
                **more,
                text=text,
                finish=finish,
                refusal=f"the prompt was blocked: {blocked}" if blocked else None,
                input_tokens=(read or 0) + (tokens(usage, "toolUsePromptTokenCount") or 0),
                output_tokens=estimated(text) if written is None else written + thoughts,
                cached_tokens=min(tokens(usage, "cachedContentTokenCount") or 0, read or 0),
                estimated=read is None or written is None,
                reasoning_tokens=thoughts,
                model=str(body.get("modelVersion") or ""),
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        reasons = {str(detail.get("reason")) for detail in _details(error)}
        if status == 402 or "prepayment credits" in str(error.get("message")) or "BILLING_DISABLED" in reasons:
            return "billing"
        if "API_KEY_INVALID" in reasons or status in (401, 403):
            return "auth"
        if status == 404:
            return "not-found"
        if status == 429:
            return "rate-limit"
        if status == 503:
            return "overloaded"
        return "server" if status >= 499 or status in (408, 409) else "bad-request"

    def failure(self, status: int, headers: Mapping[str, str], body: Any) -> CallFailed:
        failure = super().failure(status, headers, body)
        error = self.error(body) if isinstance(body, Mapping) else {}
        delays = [duration(str(detail.get("retryDelay"))) for detail in _details(error)]
        if known := [delay for delay in delays if delay is not None]:
            failure.retry_after = min(max(known), MAX_RETRY_AFTER)
        if failure.kind == "bad-request":
            words = [names for word, names in _IN_WORDS.items() if word in str(error.get("message"))]
            failure.parameters += tuple(name for names in words for name in names)
        return failure


#: Refusals of parameters that name them in words only.
_IN_WORDS = {"Penalty": ("presencePenalty", "frequencyPenalty"), "hinking level": ("thinkingLevel",)}


def _count(text: str | int) -> int:
    """A count, which is written as a text."""
    return int(number(str(text)) or 0)


def _said(candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (candidate.get("content") or {}).get("parts") or []


def _more(candidate: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a candidate holds beside its text."""
    parts = _said(candidate)
    calls = calls_in(parts)
    more = {
        "tool_calls": calls,
        "parts": tuple(parts) if calls else (),  # their signatures are wanted back
        "reasoning": text_in(parts, thought=True),
        "logprobs": logprobs_in(candidate),
        "others": tuple(text_in(_said(other)) for other in others),
    }
    return {name: value for name, value in more.items() if value}


def _thinking(model: str, effort: str) -> dict[str, Any]:
    """How to ask for reasoning: recent models take a level, the others a number of tokens."""
    if re.match(r"gemini-[12]\b", model):
        return {"thinkingBudget": EFFORTS[effort]}
    return {"thinkingLevel": {"none": "minimal", "xhigh": "high", "max": "high"}.get(effort, effort)}


def _details(error: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = error.get("details")
    return [detail for detail in details if isinstance(detail, Mapping)] if isinstance(details, list) else []
