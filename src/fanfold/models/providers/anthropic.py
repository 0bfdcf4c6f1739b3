"""Anthropic: the Messages protocol and its message batches."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urljoin

import msgspec

from fanfold.calls import Call, Reply
from fanfold.capabilities import EFFORTS
from fanfold.errors import CallFailed
from fanfold.limits import Quota
from fanfold.models.batch.protocol import BatchProtocol, LineOutcome, RemoteBatch
from fanfold.models.providers.anthropic_content import mark, tool_block, tool_choice_block, turned
from fanfold.models.providers.contract import Messages, Provider
from fanfold.models.providers.reading import (
    as_dialogue,
    block_reply,
    estimated,
    http_date,
    malformed,
    moment,
    number,
    tokens,
    tool_call,
)

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "refusal": "refusal",
    "tool_use": "tool",
    "model_context_window_exceeded": "length",
}
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
#: The provider requires a limit; this one stands where the caller gave none.
DEFAULT_MAX_TOKENS = 1024


class _MessageBatch(msgspec.Struct):
    id: str
    processing_status: str
    created_at: str = ""
    request_counts: dict[str, int] = {}
    results_url: str | None = None


class _MessageResult(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


class _MessageLine(msgspec.Struct):
    custom_id: str
    result: _MessageResult


class AnthropicBatches(BatchProtocol):
    """A batch is made of its requests directly, and carries no mark of ours but the custom_ids of its results."""

    path = "/v1/messages/batches"
    view = _MessageBatch
    after = "after_id"
    max_requests = 100_000
    max_bytes = 256_000_000
    tagged = False

    async def prepare(self, tag: str, calls: Sequence[tuple[str, Call]]) -> bytes:
        items = [
            b'{"custom_id":"%b","params":%b}' % (id.encode(), self.model.sendable(call).encode()) for id, call in calls
        ]
        return b'{"requests":[' + b",".join(items) + b"]}"

    def result_urls(self, remote: RemoteBatch) -> list[str]:
        if not remote.results:
            raise CallFailed("malformed", f"anthropic: batch {remote.id} has ended without a results_url")
        return [urljoin(self.model.url, remote.results[0])]

    def read(self, line: bytes) -> tuple[str, LineOutcome]:
        entry = msgspec.json.decode(line, type=_MessageLine)
        if entry.result.type == "succeeded":
            return entry.custom_id, self.reply(200, bytes(entry.result.message))
        if entry.result.type != "errored":
            return entry.custom_id, None
        inner = (entry.result.error or {}).get("error")
        inner = inner if isinstance(inner, Mapping) else {}
        status = {"api_error": 500, "timeout_error": 504}.get(str(inner.get("type")), 400)
        error = self.model.provider.failure(status, {}, entry.result.error)
        if error.kind == "bad-request" and "credit balance" in str(inner.get("message")).lower():
            # The recorded lines of an empty account have no code, only this sentence.
            error = CallFailed("billing", str(error))
        return entry.custom_id, None if error.passing else error

    def remote(self, batch: _MessageBatch, again: float | None) -> RemoteBatch:
        status, counts = batch.processing_status, batch.request_counts
        left = next((word for word in ("expired", "canceled") if counts.get(word)), status)
        return RemoteBatch(
            batch.id,
            moment(batch.created_at) or 0.0,
            left if status == "ended" else status,
            {"ended": True, "in_progress": False, "canceling": False}.get(status),
            sum(counts.values()),
            results=(batch.results_url,) if batch.results_url else (),
            retry_after=again,
        )


class Anthropic(Provider):
    """Messages, with system prompts apart from the dialogue."""

    name = "anthropic"
    default_url = "https://api.anthropic.com"
    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    parameters: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "max_tokens": "max_tokens",
        "stop": "stop_sequences",
        "service_tier": "service_tier",
        "reasoning_effort": "output_config",
        **{name: name for name in ("tools", "tool_choice", "response_format", "cache")},
    }

    streams: ClassVar[Mapping[str, Any] | None] = {"stream": True}
    batches = AnthropicBatches
    family = r"claude-"
    examples = ("claude-haiku-5-5", "claude-sonnet-5-5")

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.anthropic import AnthropicDialect

        return AnthropicDialect

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        options = self.translated(parameters)
        if isinstance(options.get("stop_sequences"), str):
            options["stop_sequences"] = [options["stop_sequences"]]
        if "stop_sequences" in options:  # the API refuses those of white space alone
            kept = [sequence for sequence in options.pop("stop_sequences") if sequence.strip()]
            options |= {"stop_sequences": kept} if kept else {}
        if (effort := options.pop("output_config", None)) not in (None, "none"):
            options |= self._thinking(model, effort)
        if schema := options.pop("response_format", {}).get("json_schema"):
            format = {"type": "json_schema", "schema": schema["schema"]}
            options["output_config"] = {**options.get("output_config", {}), "format": format}
        if "tools" in options:
            options["tools"] = [tool_block(tool) for tool in options["tools"]]
        if isinstance(choice := options.get("tool_choice"), str | dict):
            options["tool_choice"] = tool_choice_block(choice)
        cached = options.pop("cache", None)
        system, turns = turned(as_dialogue(messages), parameters.get("system"))
        if cached:
            mark(system, turns)
        if "max_tokens" not in options:
            options["max_tokens"] = self.capabilities(model).room(DEFAULT_MAX_TOKENS, effort)
        body = {"model": model, "messages": turns, **options}
        if system:
            plain = all(set(block) == {"type", "text"} for block in system)
            body["system"] = "\n\n".join(block["text"] for block in system) if plain else system
        return "/v1/messages", body

    def _thinking(self, model: str, effort: str) -> dict[str, Any]:
        """How to ask for reasoning: recent models take an effort, the others a number of tokens."""
        has = self.capabilities(model).has
        if has is None or "adaptive" in has:
            return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
        return {"thinking": {"type": "enabled", "budget_tokens": EFFORTS[effort]}}

    def headers(self, key: str | None) -> dict[str, str]:
        return {"x-api-key": key or "", "anthropic-version": "2026-10-21"}

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            blocks = body["content"]
            text = "".join([block["text"] for block in blocks if block.get("type") == "text"])
            finish = _FINISH.get(body.get("stop_reason") or "end_turn", "stop")
            usage = body.get("usage")
            counts = [tokens(usage, name) for name in _COUNTS]
            more = _beyond(blocks, usage, estimated(text)) if len(blocks) > 1 or not text else {}
            return block_reply(text, finish, counts, model=str(body.get("model") or ""), **more)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

    def delta(self, event: Mapping[str, Any]) -> str:
        return str(event["delta"].get("text") or "") if event.get("type") == "content_block_delta" else ""

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        body: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        inputs: dict[int, str] = {}
        for event in events:
            match event.get("type"):
                case "error":
                    return event
                case "message_start":
                    body = dict(event["message"])
                case "content_block_start":
                    blocks[event["index"]] = dict(event["content_block"])
                case "content_block_delta" if "partial_json" in event["delta"]:
                    inputs[event["index"]] = inputs.get(event["index"], "") + event["delta"]["partial_json"]
                case "content_block_delta":
                    block = blocks[event["index"]]
                    pieces = {name: text for name, text in event["delta"].items() if name != "type"}
                    block |= {name: block.get(name, "") + text for name, text in pieces.items() if type(text) is str}
                case "message_delta":
                    body |= {**event["delta"], "usage": {**(body.get("usage") or {}), **(event.get("usage") or {})}}
        if not body.get("stop_reason"):
            raise malformed(self.name, "the stream has no end")
        for index, text in inputs.items():
            blocks[index]["input"] = text
        return {**body, "content": [blocks[index] for index in sorted(blocks)]}

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        details = error.get("details")
        code = str(details.get("error_code") or "") if isinstance(details, Mapping) else ""
        kind = str(error.get("type") or "")
        if code == "enforced_spend_limit_reached" or kind == "billing_error":
            return "billing"
        if kind == "invalid_request_error" and "credit balance" in str(error.get("message")):
            return "billing"  # recorded without any code of its own
        if kind in ("authentication_error", "permission_error") or status in (401, 403):
            return "auth"
        if kind == "not_found_error" or status == 404:
            return "not-found"
        if kind == "overloaded_error" or status == 529:
            return "overloaded"
        if kind == "rate_limit_error" or status == 429:
            return "rate-limit"
        return "server" if status >= 500 or status in (408, 409) else "bad-request"

    def quota(self, headers: Mapping[str, str]) -> Quota | None:
        prefix = "anthropic-ratelimit-"
        if not any(name.startswith(prefix) for name in headers):
            return None
        values: dict[str, float | None] = {}
        for field, name in (("requests", "requests"), ("tokens", "tokens")):
            values |= _dimension(headers, prefix + name, field)
        for field, name in (("input_tokens", "input-tokens"), ("output_tokens", "output-tokens")):
            values |= _dimension(headers, prefix + name, field)
        return Quota(**values)


def _beyond(blocks: Sequence[Mapping[str, Any]], usage: Any, visible: int) -> dict[str, Any]:
    """What a reply of several blocks holds beside its text."""
    kinds = {block.get("type") for block in blocks}
    if kinds <= {"text"}:
        return {}
    calls = [tool_call(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    more: dict[str, Any] = {"tool_calls": tuple(calls), "parts": tuple(blocks)}
    if kinds & {"thinking", "redacted_thinking"}:
        details = usage.get("output_tokens_details") if isinstance(usage, dict) else None
        thought = tokens(details, "thinking_tokens")
        if thought is None:  # it is counted among the output: what is not visible was thought
            visible += sum(estimated(str(call.arguments)) for call in calls)
            thought = max(0, (tokens(usage, "output_tokens") or 0) - visible)
        more["reasoning_tokens"] = thought
        more["reasoning"] = "".join(str(block.get("thinking") or "") for block in blocks)
    return more


def _dimension(headers: Mapping[str, str], name: str, field: str) -> dict[str, float | None]:
    return {
        f"{field}_limit": number(headers.get(f"{name}-limit")),
        f"{field}_remaining": number(headers.get(f"{name}-remaining")),
        f"{field}_reset": _seconds_until(headers.get(f"{name}-reset"), headers.get("date")),
    }


def _seconds_until(text: str | None, date: str | None) -> float | None:
    """Seconds until an RFC 3339 time, by the provider's own clock where it says what that shows."""
    end = moment(text or "")
    now = http_date(date or "")
    return None if end is None else max(0.0, end - (time.time() if now is None else now))
