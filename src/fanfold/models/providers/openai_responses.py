"""OpenAI's Responses protocol: for models that speak nothing else, and for whoever asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fanfold.calls import Reply
from fanfold.models.providers.compatible import Compatible
from fanfold.models.providers.contract import Messages
from fanfold.models.providers.openai import OpenAI, listed_logprobs
from fanfold.models.providers.reading import as_dialogue, estimated, malformed, tokens, tool_call

#: The items of its replies that it wants back.
_ITEMS = {"message", "reasoning", "function_call"}
#: The least limit of the output that the protocol allows.
LEAST_TOKENS = 16
_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "filter"}


class _Responses(OpenAI):
    """Responses instead of chat completions; nothing is stored at the provider."""

    parameters: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "top_p",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning",
        "response_format": "text",
        "service_tier": "service_tier",
        "logprobs": "include",
        **{name: name for name in ("tools", "tool_choice", "top_logprobs", "prompt_cache_key")},
    }
    streams: ClassVar[Mapping[str, Any] | None] = {"stream": True}

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        options = self.translated(parameters)
        if "max_output_tokens" in options:
            options["max_output_tokens"] = max(LEAST_TOKENS, int(options["max_output_tokens"]))
        if "reasoning" in options:
            options["reasoning"] = {"effort": options["reasoning"]}
        if "text" in options:
            format = dict(options["text"])
            options["text"] = {"format": {"type": format.pop("type"), **format.get("json_schema", {})}}
        include = ["message.output_text.logprobs"] if options.pop("include", False) else []
        if "tools" in options:
            options["tools"] = [_flat(tool) for tool in options["tools"]]
            include.append("reasoning.encrypted_content")  # what it thought must come back with the results
        if isinstance(choice := options.get("tool_choice"), dict):
            options["tool_choice"] = _flat(choice)
        items = [item for message in as_dialogue(messages) for item in _items(message)]
        body = {"model": model, "input": items, "store": False, **options}
        body |= {"instructions": parameters["system"]} if parameters.get("system") else {}
        body |= {"include": include} if include else {}
        return "/responses", body

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            output, usage = body["output"], body.get("usage")
            contents = [part for item in output if item["type"] == "message" for part in item["content"]]
            text = "".join([part["text"] for part in contents if part["type"] == "output_text"])
            refusal = next((part["refusal"] for part in contents if part["type"] == "refusal"), None)
            thoughts = [item for item in output if item["type"] == "reasoning"]
            calls = [item for item in output if item["type"] == "function_call"]
            finish = "stop"
            if body.get("status") == "incomplete":
                finish = _INCOMPLETE.get(str((body.get("incomplete_details") or {}).get("reason")), "length")
            read, written = tokens(usage, "input_tokens"), tokens(usage, "output_tokens")
            if not contents and not calls and finish == "stop":
                raise malformed(self.name, "a response without a message")
            return Reply(
                text="" if refusal else text,
                finish="refusal" if refusal else "tool" if calls else finish,
                refusal=refusal,
                input_tokens=read or 0,
                output_tokens=estimated(refusal or text) if written is None else written,
                cached_tokens=min(_detail(usage, "input_tokens_details", "cached_tokens"), read or 0),
                estimated=read is None or written is None,
                reasoning_tokens=_detail(usage, "output_tokens_details", "reasoning_tokens"),
                model=str(body.get("model") or ""),
                reasoning="\n\n".join(part["text"] for item in thoughts for part in item.get("summary") or ()),
                tool_calls=tuple(tool_call(call["call_id"], call["name"], call["arguments"]) for call in calls),
                logprobs=tuple(
                    token for part in contents for token in listed_logprobs({"content": part.get("logprobs")})
                ),
                parts=tuple(output) if thoughts or calls else (),
            )
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

    def delta(self, event: Mapping[str, Any]) -> str:
        return str(event.get("delta") or "") if event.get("type") == "response.output_text.delta" else ""

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        last = events[-1]
        if last.get("type") == "error":
            return last if "error" in last else {"error": last}
        if last.get("type") not in ("response.completed", "response.incomplete", "response.failed"):
            raise malformed(self.name, "the stream has no end")
        response: Mapping[str, Any] = last["response"]
        return response


class OpenAIResponses(_Responses):
    """OpenAI's own."""


class CompatibleResponses(_Responses, Compatible):
    """A server that speaks OpenAI's Responses protocol."""

    parameters: ClassVar[Mapping[str, str]] = _Responses.parameters


def _detail(usage: Any, group: str, name: str) -> int:
    return tokens(usage.get(group), name) or 0 if isinstance(usage, dict) else 0


def _flat(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function, or the choice of one, as Responses writes it: without an object around it."""
    function = tool.get("function")
    return dict(tool) if function is None else {"type": "function", **function}


def _items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message as items of the input."""
    role, parts = message["role"], message.get("parts")
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": message["content"]}]
    if parts and all(part.get("type") in _ITEMS for part in parts):
        return list(parts)
    content = message.get("content")
    if isinstance(content, list):
        kind = "output_text" if role == "assistant" else "input_text"
        content = [_part(part, kind) for part in content]
    items: list[dict[str, Any]] = [{"role": role, "content": content}] if content else []
    calls = message.get("tool_calls") or ()
    return items + [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]


def _part(part: Any, kind: str) -> dict[str, Any]:
    if isinstance(part, str) or part.get("type") == "text":
        return {"type": kind, "text": part if isinstance(part, str) else part["text"]}
    if part.get("type") == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"]}
    return dict(part)
