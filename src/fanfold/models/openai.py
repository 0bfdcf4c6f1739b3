"""The OpenAI protocol, which most other servers speak too (vLLM, llama.cpp, Ollama, LM Studio, gateways)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from fanfold.calls import Reply
from fanfold.limits import Quota
from fanfold.models.wire import Messages, Wire, as_dialogue, duration, estimated, malformed, number, tokens

_FINISH = {
    "stop": "stop",
    "length": "length",
    "content_filter": "filter",
    "tool_calls": "tool",
    "function_call": "tool",
}


class OpenAI(Wire):
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
    }

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        options = self.translated({name: value for name, value in parameters.items() if name not in ("raw", "system")})
        if parameters.get("raw"):
            return "/completions", {"model": model, "prompt": messages, **_plain(options)}
        dialogue = as_dialogue(messages)
        if parameters.get("system"):
            dialogue = [{"role": "system", "content": parameters["system"]}, *dialogue]
        return "/chat/completions", {"model": model, "messages": dialogue, **options}

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            choice = body["choices"][0]
            usage = body.get("usage")
            details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
            read, written = tokens(usage, "prompt_tokens"), tokens(usage, "completion_tokens")
            message = choice.get("message") or {}
            refusal = message.get("refusal")
            text = choice["text"] if "message" not in choice else message["content"]
            finish = _FINISH.get(choice.get("finish_reason") or "stop", "stop")
            if text is None and not refusal and finish == "stop":
                raise malformed(self.name, "a message without content")
            return Reply(
                text="" if refusal else text or "",
                finish="refusal" if refusal else finish,
                refusal=refusal,
                input_tokens=read or 0,
                output_tokens=estimated(refusal or text or "") if written is None else written,
                cached_tokens=min(tokens(details, "cached_tokens") or 0, read or 0),
                written_tokens=min(tokens(details, "cache_write_tokens") or 0, read or 0),
                estimated=read is None or written is None,
                model=str(body.get("model") or ""),
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        code = str(error.get("code") or error.get("type") or "")
        if code in ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"):
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


class Compatible(OpenAI):
    """A server that speaks OpenAI's protocol with the older name of the output limit."""

    name = "openai-compatible"
    parameters: ClassVar[Mapping[str, str]] = {
        **OpenAI.parameters,
        "max_tokens": "max_tokens",
        "top_k": "top_k",
        "min_p": "min_p",
    }


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """The completions endpoint kept the older name."""
    if "max_completion_tokens" in options:
        options["max_tokens"] = options.pop("max_completion_tokens")
    return options
