"""Dialogues and tools, written as for OpenAI, in Anthropic's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.models.providers.reading import image_address, image_data, tool_calls_in

_CACHED = {"type": "ephemeral"}
#: The blocks of its replies that Anthropic wants back.
_BLOCKS = {"text", "thinking", "redacted_thinking", "tool_use"}


def turned(dialogue: list[dict[str, Any]], system: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The blocks of the system prompt, and the turns of user and assistant; results of tools are the user's."""
    heads = blocks(system) if system else []
    turns: list[dict[str, Any]] = []
    for message in dialogue:
        role = message["role"]
        if role in ("system", "developer"):
            heads += blocks(message["content"])
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": message["content"]}
            if isinstance(message["content"], list):
                result["content"] = blocks(message["content"])
            if turns and turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                turns[-1]["content"].append(result)  # all results of one turn belong into one message
            else:
                turns.append({"role": "user", "content": [result]})
        elif message.get("tool_calls") or message.get("parts"):
            turns.append({"role": "assistant", "content": _said(message)})
        else:
            content = message["content"]
            turns.append({"role": role, "content": content if isinstance(content, str) else blocks(content)})
    return heads, turns


def _said(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the assistant said: as Anthropic sent it, where it did."""
    parts = message.get("parts")
    if parts and all(part.get("type") in _BLOCKS for part in parts):
        return list(parts)
    said = blocks(message["content"]) if message.get("content") else []
    calls = tool_calls_in(message)
    return [*said, *({"type": "tool_use", "id": id, "name": name, "input": value} for id, name, value in calls)]


def blocks(content: Any) -> list[dict[str, Any]]:
    """The blocks of a message's content, which is a text or a list of parts."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_block({"type": "text", "text": part} if isinstance(part, str) else part) for part in content]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") != "image_url":
        return dict(part)
    url = image_address(part)
    source: dict[str, Any] = {"type": "url", "url": url}
    if (coded := image_data(url)) is not None:
        source = {"type": "base64", "media_type": coded[0], "data": coded[1]}
    kept = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
    return {"type": "image", "source": source, **kept}


def mark(system: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """Ask for the prompt to be cached: the system prompt, and all turns before the last one.

    That is what requests have in common that differ in their last question, and those of a dialogue that grows.
    """
    if system:
        system[-1] = {"cache_control": _CACHED, **system[-1]}
    if len(turns) > 1:
        turn = turns[-2]
        content = blocks(turn["content"])
        turns[-2] = {**turn, "content": [*content[:-1], {"cache_control": _CACHED, **content[-1]}]}


def tool_block(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function" or "function" not in tool:
        return dict(tool)  # one of the provider's own
    function = dict(tool["function"])
    schema = function.pop("parameters", {"type": "object"})
    return {**function, "input_schema": schema}


def tool_choice_block(choice: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"type": {"required": "any"}.get(choice, choice)}
    return {"type": "tool", "name": choice["function"]["name"]} if "function" in choice else dict(choice)
