"""The Anthropic Messages protocol."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from fanfold.calls import Reply
from fanfold.limits import Quota
from fanfold.models.wire import Messages, Wire, as_dialogue, estimated, http_date, malformed, number, tokens

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "refusal": "refusal",
    "tool_use": "tool",
    "model_context_window_exceeded": "length",
}
#: The provider requires a limit; this one stands where the caller gave none.
DEFAULT_MAX_TOKENS = 1024


class Anthropic(Wire):
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
    }

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        options = self.translated({name: value for name, value in parameters.items() if name not in ("raw", "system")})
        if isinstance(options.get("stop_sequences"), str):
            options["stop_sequences"] = [options["stop_sequences"]]
        if "stop_sequences" in options:  # the API refuses those of white space alone
            kept = [sequence for sequence in options.pop("stop_sequences") if sequence.strip()]
            options |= {"stop_sequences": kept} if kept else {}
        dialogue = as_dialogue(messages)
        system = [str(message["content"]) for message in dialogue if message["role"] == "system"]
        if parameters.get("system"):
            system.insert(0, str(parameters["system"]))
        body = {
            "model": model,
            "messages": [message for message in dialogue if message["role"] != "system"],
            "max_tokens": DEFAULT_MAX_TOKENS,
            **options,
        }
        if system:
            body["system"] = "\n\n".join(system)
        return "/v1/messages", body

    def headers(self, key: str | None) -> dict[str, str]:
        return {"x-api-key": key or "", "anthropic-version": "2026-10-21"}

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            text = "".join(block["text"] for block in body["content"] if block.get("type") == "text")
            finish = _FINISH.get(body.get("stop_reason") or "end_turn", "stop")
            usage = body.get("usage")
            read, written = tokens(usage, "input_tokens"), tokens(usage, "output_tokens")
            # Unlike OpenAI's, they come beside the input tokens.
            cached = tokens(usage, "cache_read_input_tokens") or 0
            stored = tokens(usage, "cache_creation_input_tokens") or 0
            return Reply(
                text="" if finish == "refusal" else text,
                finish=finish,
                refusal=(text or "refused") if finish == "refusal" else None,
                input_tokens=(read or 0) + cached + stored,
                output_tokens=estimated(text) if written is None else written,
                cached_tokens=cached,
                written_tokens=stored,
                estimated=read is None or written is None,
                model=str(body.get("model") or ""),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

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


def _dimension(headers: Mapping[str, str], name: str, field: str) -> dict[str, float | None]:
    return {
        f"{field}_limit": number(headers.get(f"{name}-limit")),
        f"{field}_remaining": number(headers.get(f"{name}-remaining")),
        f"{field}_reset": _seconds_until(headers.get(f"{name}-reset"), headers.get("date")),
    }


def _seconds_until(text: str | None, date: str | None) -> float | None:
    """Seconds until an RFC 3339 time, by the provider's own clock where it says what that shows."""
    if not text:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    now = http_date(date or "")
    return max(0.0, moment.timestamp() - (time.time() if now is None else now))
