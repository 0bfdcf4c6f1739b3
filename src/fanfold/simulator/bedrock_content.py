"""The checks that Bedrock makes of turns, blocks, tools and schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fanfold.capabilities import Capabilities
from fanfold.simulator.wire import ApiError, Json

#: The kinds of blocks, and what each must have.
_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "image": ("format", "source"),
    "toolUse": ("toolUseId", "name", "input"),
    "toolResult": ("toolUseId", "content"),
    "cachePoint": ("type",),
    **dict.fromkeys(("audio", "citationsContent", "document", "guardContent", "searchResult", "video"), ()),
    **dict.fromkeys(("text", "reasoningContent"), ()),
}
_FORMATS = ("png", "jpeg", "gif", "webp")


def turns_of(body: Json, takes: Capabilities) -> list[Mapping[str, Any]]:
    """The turns of a dialogue, with plain texts where they are nothing else."""
    turns = body.get("messages")
    if not isinstance(turns, list) or not turns:
        raise ApiError(400, "The value at messages is empty. Add at least one message.")
    open: list[str] = []
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict) or turn.get("role") != ("user", "assistant")[index % 2]:
            raise ApiError(
                400, "A conversation must start with a user message, and the roles of its messages must alternate."
            )
        _check_blocks("messages", turn.get("content"), takes)
        results = [block["toolResult"]["toolUseId"] for block in turn["content"] if "toolResult" in block]
        if sorted(results) != sorted(open):
            raise ApiError(
                400,
                f"Expected toolResult blocks at messages.{index}.content for the following Ids: {', '.join(open)}",
            )
        open = [block["toolUse"]["toolUseId"] for block in turn["content"] if "toolUse" in block]
    if "toolConfig" not in body and any(block.keys() & {"toolUse"} for turn in turns for block in turn["content"]):
        raise ApiError(400, "The toolConfig field must be defined when using toolUse and toolResult content blocks.")
    return [{"role": turn["role"], "content": _plain(turn["content"])} for turn in turns]


def system_of(body: Json, takes: Capabilities) -> Any:
    blocks = body.get("system") or []
    _check_blocks("system", blocks, takes)
    return _plain(blocks)


def _plain(blocks: Sequence[Mapping[str, Any]]) -> str | list[Any]:
    texts = [block["text"] for block in blocks if "text" in block]
    return "\n".join(texts) if len(texts) == len(blocks) else list(blocks)


def _check_blocks(where: str, blocks: Any, takes: Capabilities) -> None:
    if not isinstance(blocks, list) or (not blocks and where == "messages"):
        raise ApiError(400, f"The content field in {where} must be a list of content blocks, and not be empty.")
    for block in blocks:
        if not isinstance(block, dict) or len(block) != 1 or not block.keys() <= _BLOCKS.keys():
            raise ApiError(400, f"Each content block in {where} must set exactly one of the known kinds.")
        ((kind, value),) = block.items()
        if kind == "text" and not (isinstance(value, str) and value.strip()):
            raise ApiError(400, f"The text field in the ContentBlock object in {where} is blank. Add text to it.")
        for name in _BLOCKS[kind]:
            if not isinstance(value, dict) or name not in value:
                raise ApiError(400, f"The {kind} block in {where} lacks its required field {name}.")
        if kind == "image" and not takes.takes("images"):
            raise ApiError(400, "This model doesn't support the image content block that you provided.")
        if kind == "image" and (value["format"] not in _FORMATS or not isinstance(value["source"], dict)):
            raise ApiError(400, f"The format of an image must be one of {', '.join(_FORMATS)}, with bytes as source.")


def caches(body: Json) -> bool:
    """Whether a request asks for the beginning of its prompt to be cached."""
    lists = [body.get("system") or [], *(turn["content"] for turn in body["messages"])]
    return any("cachePoint" in block for blocks in lists for block in blocks)


def schema_of(body: Json, takes: Capabilities) -> Mapping[str, Any] | None:
    """The schema that the answer must fit; None: words."""
    config = body.get("outputConfig") or {}
    effort = config.get("effort")
    if effort is not None and not takes.takes("reasoning_effort", effort):
        raise ApiError(400, "This model doesn't support the effort field. Remove effort and try again.")
    if "textFormat" not in config:
        return None
    if not takes.takes("schema"):
        raise ApiError(400, "This model doesn't support the outputConfig.textFormat field. Remove it and try again.")
    try:
        schema = msgspec.json.decode(config["textFormat"]["structure"]["jsonSchema"]["schema"])
    except (KeyError, TypeError, ValueError):
        raise ApiError(400, "outputConfig.textFormat.structure.jsonSchema.schema must be JSON in a string.") from None
    return schema if isinstance(schema, dict) else {}


def tool_to_call(body: Json, takes: Capabilities) -> tuple[str, Any] | None:
    """The tool that the model calls: the one it must, or the first it may, unless a result has just come."""
    config = body.get("toolConfig")
    if config is None:
        return None
    tools, choice = config.get("tools"), config.get("toolChoice") or {"auto": {}}
    if not isinstance(tools, list) or not tools:
        raise ApiError(400, "The value at toolConfig.tools is empty. Add at least one tool.")
    if not takes.takes("tools"):
        raise ApiError(400, "This model doesn't support tool use.")
    named = {}
    for tool in tools:
        spec = tool.get("toolSpec") if isinstance(tool, dict) else None
        if not isinstance(spec, dict) or "name" not in spec or "json" not in (spec.get("inputSchema") or {}):
            raise ApiError(400, "Each tool in toolConfig.tools needs a toolSpec with name and inputSchema.json.")
        named[spec["name"]] = spec["inputSchema"]["json"]
    if len(choice) != 1 or not choice.keys() <= {"auto", "any", "tool"}:
        raise ApiError(400, "toolConfig.toolChoice must set exactly one of auto, any and tool.")
    if "tool" in choice:
        if choice["tool"].get("name") not in named:
            raise ApiError(400, f"toolConfig.tools has no tool {choice['tool'].get('name')}.")
        return choice["tool"]["name"], named[choice["tool"]["name"]]
    answered = any("toolResult" in block for block in body["messages"][-1]["content"])
    return None if answered and "auto" in choice else next(iter(named.items()))
