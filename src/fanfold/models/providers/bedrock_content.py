"""Dialogues, tools and images, written as for OpenAI, in the words of Bedrock's Converse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from fanfold.errors import ConfigError
from fanfold.models.providers.reading import image_address, tool_calls_in

_CACHED = {"cachePoint": {"type": "default"}}
#: The blocks of its replies that Bedrock wants back.
_BLOCKS = {"text", "toolUse", "reasoningContent"}


def turned(dialogue: list[dict[str, Any]], system: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The blocks of the system prompt, and turns that alternate; results of tools are the user's."""
    heads = blocks(system) if system else []
    turns: list[dict[str, Any]] = []
    for message in dialogue:
        role = message["role"]
        if role in ("system", "developer"):
            heads += blocks(message["content"])
            continue
        if role == "tool":
            result = {"toolUseId": message.get("tool_call_id"), "content": blocks(message["content"])}
            role, said = "user", [{"toolResult": result}]
        else:
            said = _said(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += said
        else:
            turns.append({"role": role, "content": said})
    return heads, turns


def _said(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a message says: as Bedrock sent it, where it did."""
    parts = message.get("parts")
    if parts and all(part.keys() <= _BLOCKS for part in parts):
        return list(parts)
    said = blocks(message["content"]) if message.get("content") else []
    calls = tool_calls_in(message)
    return [*said, *({"toolUse": {"toolUseId": id, "name": name, "input": value}} for id, name, value in calls)]


def blocks(content: Any) -> list[dict[str, Any]]:
    """The blocks of a message's content, which is a text or a list of parts."""
    parts = [content] if isinstance(content, str) else content
    return [{"text": part} if isinstance(part, str) else _block(part) for part in parts]


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"text": part["text"]}
    if part.get("type") != "image_url":
        return dict(part)  # one of the provider's own
    url = image_address(part)
    coded = re.fullmatch(r"data:image/([a-z]+);base64,(.*)", url, re.DOTALL)
    if coded is None:
        raise ConfigError(f"bedrock takes images as data only, not by address: {url[:40]!r}; give the file itself")
    return {"image": {"format": {"jpg": "jpeg"}.get(coded[1], coded[1]), "source": {"bytes": coded[2]}}}


def mark(system: list[dict[str, Any]], turns: list[dict[str, Any]]) -> None:
    """Ask for the prompt to be cached: the system prompt, and all turns before the last one."""
    if system:
        system.append(_CACHED)
    if len(turns) > 1:
        turns[-2] = {**turns[-2], "content": [*turns[-2]["content"], _CACHED]}


def tool_config(tools: Any, choice: Any) -> dict[str, Any]:
    """The tools of a request, and which of them the model must call."""
    config: dict[str, Any] = {"tools": [_tool(tool) for tool in tools]}
    if isinstance(choice, Mapping):
        config["toolChoice"] = {"tool": {"name": choice["function"]["name"]}} if "function" in choice else dict(choice)
    elif choice == "none":
        raise ConfigError("bedrock has no tool_choice 'none': leave the tools out")
    elif choice is not None:
        config["toolChoice"] = {{"required": "any"}.get(choice, choice): {}}
    return config


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if "function" not in tool:
        return dict(tool)  # one of the provider's own
    function = dict(tool["function"])
    schema = function.pop("parameters", {"type": "object"})
    return {"toolSpec": {**function, "inputSchema": {"json": schema}}}


def output_config(format: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """How the reply is to look, and how much the model may reason for it."""
    config: dict[str, Any] = {} if effort in (None, "none") else {"effort": effort}
    if stated := (format or {}).get("json_schema"):
        schema = {"name": stated.get("name", "reply"), "schema": msgspec.json.encode(stated["schema"]).decode()}
        config["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    return config
