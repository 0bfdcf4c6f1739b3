"""OpenAI, and its protocol, which most other servers speak too (vLLM, llama.cpp, Ollama, LM Studio, gateways)."""

from __future__ import annotations

import functools
import itertools
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fanfold.calls import Call, Reply
from fanfold.errors import ConfigError
from fanfold.flights import TokenLogprob, ToolCall
from fanfold.limits import Quota
from fanfold.models.batch.protocol import BatchProtocol, LineOutcome, RemoteBatch
from fanfold.models.http_bodies import UploadBody
from fanfold.models.providers.contract import Endpoint, Messages, Provider
from fanfold.models.providers.openai_stream import assembled
from fanfold.models.providers.reading import (
    as_dialogue,
    duration,
    estimated,
    malformed,
    number,
    text_of,
    tokens,
    tool_call,
)
from fanfold.models.retry import persist

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect

_FINISH = {
    "stop": "stop",
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
    "content_filter": "filter",
    "tool_calls": "tool",
    "function_call": "tool",
}
#: The words for a batch's status, and whether it has ended.
_ENDED = {
    **dict.fromkeys(("validating", "in_progress", "finalizing", "cancelling"), False),
    **dict.fromkeys(("completed", "failed", "expired", "cancelled"), True),
}


class _BatchError(msgspec.Struct):
    code: str | None = None
    message: str | None = None
    line: int | None = None


class _BatchErrors(msgspec.Struct):
    data: list[_BatchError] = []


class _BatchView(msgspec.Struct):
    id: str
    status: str
    created_at: float = 0.0
    metadata: dict[str, str] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _BatchErrors | None = None
    request_counts: dict[str, Any] | None = None


class _UploadedFile(msgspec.Struct):
    id: str


class _LineResponse(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"null")


class _ResultLine(msgspec.Struct):
    custom_id: str
    response: _LineResponse | None = None
    error: dict[str, Any] | None = None


class OpenAIBatches(BatchProtocol):
    """A file of lines is uploaded, and a batch made of it; results are in an output file and an error file."""

    path = "/batches"
    view: ClassVar[type[Any]] = _BatchView
    max_requests = 50_000
    max_bytes = 200_000_000
    tagged = True

    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        path = self.line_path(calls[0][1])

        def lines() -> Iterator[bytes]:
            for id, call in calls:
                yield b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n' % (
                    id.encode(),
                    path.encode(),
                    call.body.encode(),
                )

        return msgspec.json.encode(
            {
                "input_file_id": await self.upload(tag, lines),
                "endpoint": path,
                "completion_window": "24h",
                "metadata": {"tag": tag},
            }
        )

    def line_path(self, call: Call) -> str:
        """The path of a call as lines of a batch name it."""
        return "/v1" + call.endpoint.removeprefix(self.model.url)

    async def upload(self, tag: str, lines: Callable[[], Iterable[bytes]]) -> str:
        """The id of a new file of the lines that the function gives, whenever it is called."""
        boundary = f"fanfold-{secrets.token_hex(16)}"
        form = (
            f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}\r\n'
            f'content-disposition: form-data; name="file"; filename="{tag}.jsonl"\r\n'
            "content-type: application/jsonl\r\n\r\n"
        )

        def file() -> Iterator[bytes]:
            return itertools.chain([form.encode()], lines(), [f"\r\n--{boundary}--\r\n".encode()])

        content = f"multipart/form-data; boundary={boundary}"
        response = await persist(functools.partial(self.ask, "POST", "/files", UploadBody(file), content=content))
        return self.decode(response, _UploadedFile).id

    def result_urls(self, remote: RemoteBatch) -> list[str]:
        return [f"{self.model.url}/files/{file}/content" for file in remote.results]

    def read(self, line: bytes) -> tuple[str, LineOutcome]:
        result = msgspec.json.decode(line, type=_ResultLine)
        if result.error is not None:
            error = self.model.provider.failure(400, {}, {"error": result.error})
            return result.custom_id, error if error.hopeless else None  # expired, cancelled, or a mishap of its own
        if result.response is None or result.response.status_code < 200:
            return result.custom_id, None
        return result.custom_id, self.reply(result.response.status_code, bytes(result.response.body))

    def remote(self, batch: Any, again: float | None) -> RemoteBatch:
        why, counts = None, batch.request_counts or {}
        errors = batch.errors.data if batch.errors and batch.status == "failed" else []
        if batch.status == "failed":
            why = "; ".join(error.message or error.code or "" for error in errors[:3]) or "no reason given"
            if any(error.code == "token_limit_exceeded" for error in errors) and "enqueued" not in why.lower():
                why = f"enqueued token limit: {why}"
        unknown = any(error.code == "model_not_found" for error in errors)
        return RemoteBatch(
            batch.id,
            batch.created_at,
            batch.status,
            _ENDED.get(batch.status),
            int(counts.get("total") or 0),
            (batch.metadata or {}).get("tag"),
            why,
            tuple(file for file in (batch.output_file_id, batch.error_file_id) if file),
            again,
            "no-batches" if unknown else None,
            {error.line: error.message or error.code or "refused" for error in errors if error.line is not None},
            int(counts.get("completed") or 0) + int(counts.get("failed") or 0),
        )


class OpenAI(Provider):
    """Chat completions, and plain completions for a raw text."""

    name = "openai"
    default_url = "https://api.openai.com/v1"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    parameters: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "max_tokens": "max_completion_tokens",
        "stop": "stop",
        "seed": "seed",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "response_format": "response_format",
        "reasoning_effort": "reasoning_effort",
        "service_tier": "service_tier",
        **{name: name for name in ("tools", "tool_choice", "n", "logprobs", "top_logprobs", "prompt_cache_key")},
    }

    streams: ClassVar[Mapping[str, Any] | None] = {"stream": True, "stream_options": {"include_usage": True}}
    batches: ClassVar[type[BatchProtocol] | None] = OpenAIBatches
    family = r"gpt-|o\d"
    examples: ClassVar[Sequence[str]] = ("gpt-6-luna", "gpt-4o-mini")
    options: ClassVar[Collection[str]] = ("protocol",)

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.openai import OpenAIDialect

        return OpenAIDialect

    def at(self, base_url: str) -> Provider:
        from fanfold.models.providers.compatible import Compatible

        return Compatible() if type(self) is OpenAI else self

    def endpoint(self, model: str, base_url: str | None, key: str | None, options: Mapping[str, Any]) -> Endpoint:
        endpoint = super().endpoint(model, base_url, key, options)
        speaker = endpoint.provider
        if isinstance(speaker, OpenAI):
            endpoint = replace(endpoint, provider=speaker.speaking(model, options.get("protocol")))
        return endpoint

    def speaking(self, model: str, protocol: str | None = None) -> OpenAI:
        """The provider that speaks a protocol: `chat`, `responses`; None: the one that the model knows."""
        from fanfold.models.providers.compatible import Compatible
        from fanfold.models.providers.openai_responses import CompatibleResponses, OpenAIResponses

        kinds: dict[type[OpenAI], type[OpenAI]] = {OpenAI: OpenAIResponses, Compatible: CompatibleResponses}
        other = kinds.get(type(self))
        if protocol is None:
            protocol = "responses" if other and "responses" in (self.capabilities(model).has or ()) else "chat"
        if protocol == "chat":
            return self
        if protocol != "responses" or other is None:
            known = "chat, responses" if other else "chat"
            raise ConfigError(f"{self.name} does not speak the protocol {protocol!r}; known: {known}")
        return other()

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        options = self.translated(parameters)
        if parameters.get("raw"):
            return "/completions", {"model": model, "prompt": messages, **_plain(options)}
        dialogue = as_dialogue(messages)
        for message in dialogue:
            message.pop("parts", None)
        if parameters.get("system"):
            dialogue = [{"role": "system", "content": parameters["system"]}, *dialogue]
        return "/chat/completions", {"model": model, "messages": dialogue, **options}

    def address(self, url: str) -> str:
        return re.sub(r"/(chat/completions|completions|responses)$", "", url.rstrip("/"))  # as curl is shown with it

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            if not body.get("choices"):
                others = ", ".join(f"{key!r:.30}" for key in list(body)[:5] if key != "choices")
                raise malformed(self.name, "it has no choices" + (f", only {others}" if others else ""))
            choice, *others = body["choices"]
            usage = body.get("usage")
            details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
            thought = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
            read, written = tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")
            message = choice.get("message") or {}
            refusal = message.get("refusal")
            calls = message.get("tool_calls")
            text = _text(choice, calls)
            finish = "tool" if calls else _FINISH.get(choice.get("finish_reason") or "stop", "stop")
            if text is None and not refusal and finish == "stop":
                raise malformed(self.name, "a message without content")
            return Reply(
                tool_calls=tuple(map(_tool_call, calls)) if calls else (),
                reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
                logprobs=listed_logprobs(choice["logprobs"]) if choice.get("logprobs") else (),
                others=tuple([_text(other, True) or "" for other in others]) if others else (),
                text="" if refusal else text or "",
                finish="refusal" if refusal else finish,
                refusal=refusal,
                input_tokens=read or 0,
                output_tokens=estimated(refusal or text or "") if written is None else written,
                cached_tokens=min(tokens(details, "cached_tokens") or 0, read or 0),
                written_tokens=min(tokens(details, "cache_write_tokens") or 0, read or 0),
                estimated=read is None or written is None,
                reasoning_tokens=tokens(thought, "reasoning_tokens") or 0,
                model=str(body.get("model") or ""),
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

    def delta(self, event: Mapping[str, Any]) -> str:
        choices: Sequence[Mapping[str, Any]] = event.get("choices") or ()
        first = next((choice for choice in choices if not choice.get("index")), {})
        content = (first.get("delta") or {}).get("content") or first.get("text")
        return content if isinstance(content, str) else ""

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        return assembled(self.name, events)

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        code = str(error.get("code") or error.get("type") or "")
        if code in ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active") or status == 402:
            return "billing"
        if status in (401, 403):
            return "auth"
        if status == 404:
            return "not-found"
        if status == 429:
            return "rate-limit"
        if status in (408, 409):
            return "server"
        if status == 503:
            return "overloaded"
        return "server" if status >= 500 else "bad-request"

    def quota(self, headers: Mapping[str, str]) -> Quota | None:
        if "x-ratelimit-limit-requests" not in headers and "x-ratelimit-limit-tokens" not in headers:
            return None
        return Quota(
            requests_limit=number(headers.get("x-ratelimit-limit-requests")),
            requests_remaining=number(headers.get("x-ratelimit-remaining-requests")),
            requests_reset=duration(headers.get("x-ratelimit-reset-requests")),
            tokens_limit=number(headers.get("x-ratelimit-limit-tokens")),
            tokens_remaining=number(headers.get("x-ratelimit-remaining-tokens")),
            tokens_reset=duration(headers.get("x-ratelimit-reset-tokens")),
        )


def _text(choice: Mapping[str, Any], calls: Any) -> Any:
    """The text of a choice; where the model calls tools it may have none."""
    if "message" not in choice:
        return choice["text"]
    message = choice["message"]
    return text_of(message.get("content") if calls else message["content"])


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call["function"]
    return tool_call(call.get("id"), function["name"], function.get("arguments"))


def listed_logprobs(logprobs: Any) -> tuple[TokenLogprob, ...]:
    """The log probabilities of a reply's tokens, as chats list them or as completions do."""
    if not isinstance(logprobs, dict):
        return ()
    if logprobs.get("tokens"):
        rows = zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs.get("top_logprobs") or itertools.repeat(None)
        )
        # Of a prompt's first token, servers that echo the prompt know none.
        return tuple(TokenLogprob(token, value, likely or {}) for token, value, likely in rows if value is not None)
    return tuple(
        TokenLogprob(
            token["token"],
            token["logprob"],
            {other["token"]: other["logprob"] for other in token.get("top_logprobs") or ()},
        )
        for token in logprobs.get("content") or ()
    )


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The completions endpoint kept the older names: `logprobs` is how many likely tokens are listed."""
    if "max_completion_tokens" in options:
        options["max_tokens"] = options.pop("max_completion_tokens")
    likely = options.pop("top_logprobs", 1)
    return {**options, "logprobs": likely} if options.pop("logprobs", False) else options
