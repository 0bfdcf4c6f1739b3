"""The chunks of a streamed chat completion, put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.models.providers.reading import malformed


def assembled(provider: str, events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The body of the response that would have come without streaming."""
    choices: dict[int, dict[str, Any]] = {}
    body: dict[str, Any] = {}
    for event in events:
        if event.get("error") or event.get("object") == "error":
            return event
        body |= {name: value for name, value in event.items() if value is not None}
        for part in event.get("choices") or ():
            choice = choices.setdefault(part.get("index") or 0, {"message": {"role": "assistant", "content": ""}})
            _add(choice, part)
    if not choices or any(not choice.get("finish_reason") for choice in choices.values()):
        raise malformed(provider, "the stream has no end")
    for choice in choices.values():
        if calls := choice["message"].get("tool_calls"):
            choice["message"]["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {**body, "choices": [choices[index] for index in sorted(choices)]}


def _add(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    message, delta = choice["message"], part.get("delta") or {"content": part.get("text")}
    for name in ("content", "refusal", "reasoning_content", "reasoning"):
        if isinstance(text := delta.get(name), str):
            message[name] = (message.get(name) or "") + text
    for piece in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", {})
        call = calls.setdefault(piece.get("index") or 0, {"function": {"name": "", "arguments": ""}})
        call |= {"id": piece["id"]} if piece.get("id") else {}
        function = piece.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""
    if isinstance(listed := part.get("logprobs"), dict):
        for name, values in listed.items():
            if isinstance(values, list):
                choice.setdefault("logprobs", {}).setdefault(name, []).extend(values)
    choice["finish_reason"] = part.get("finish_reason") or choice.get("finish_reason")
