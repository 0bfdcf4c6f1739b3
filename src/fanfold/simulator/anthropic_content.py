"""The checks that Anthropic makes of blocks, tools, their results and schemas, with its own words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.capabilities import capabilities_of
from fanfold.simulator.wire import ApiError, Json

#: The types of blocks, and what each must have.
_BLOCKS = {
    "text": ("text",),
    "image": ("source",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "document": ("source",),
    "search_result": ("source", "title", "content"),
}
_SOURCES = {"base64": ("media_type", "data"), "url": ("url",), "file": ("file_id",)}
_MEDIA = ("image/jpeg", "image/png", "image/gif", "image/webp")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
#: The most places of one request at which the prompt may be cached.
MOST_MARKS = 4


def check_blocks(body: Json, messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse blocks that are not whole, results without calls, and calls without results."""
    open: list[str] = []
    for index, message in enumerate(messages):
        content = message["content"] if isinstance(message["content"], list) else []
        for number, block in enumerate(content):
            _check_block(f"messages.{index}.content.{number}", block, str(body.get("model")))
        results = [str(block["tool_use_id"]) for block in content if block["type"] == "tool_result"]
        if unasked := next((id for id in results if id not in open), None):
            raise ApiError(
                400,
                f"messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {unasked}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
            )
        if missing := [id for id in open if id not in results]:
            raise ApiError(
                400,
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the "
                "next message.",
            )
        open = [str(block["id"]) for block in content if block["type"] == "tool_use"]
    marks = marks_in(body)
    if len(marks) + ("cache_control" in body) > MOST_MARKS:
        text = f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
        raise ApiError(400, text)


def marks_in(body: Json) -> list[Any]:
    """The places at which a request asks for its prompt to be cached."""
    lists = [body.get("system"), body.get("tools"), *(message["content"] for message in body["messages"])]
    blocks = [block for blocks in lists if isinstance(blocks, list) for block in blocks]
    marks = [block["cache_control"] for block in blocks if isinstance(block, dict) and "cache_control" in block]
    if any(not isinstance(mark, dict) or mark.get("type") != "ephemeral" for mark in marks):
        raise ApiError(400, "cache_control.type: Input should be 'ephemeral'")
    return marks


def _check_block(where: str, block: Any, model: str) -> None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise ApiError(400, f"{where}.type: Field required")
    if block["type"] not in _BLOCKS:
        known = ", ".join(f"'{name}'" for name in sorted(_BLOCKS))
        text = f"Input tag '{block['type']}' found using 'type' does not match any of the expected tags: {known}"
        raise ApiError(400, f"{where}: {text}")
    for name in _BLOCKS[block["type"]]:
        if name not in block:
            raise ApiError(400, f"{where}.{block['type']}.{name}: Field required")
    if block["type"] == "text" and not block["text"]:
        raise ApiError(400, "messages: text content blocks must be non-empty")
    if block["type"] == "image":
        _check_source(f"{where}.image.source", block["source"], model)


def _check_source(where: str, source: Any, model: str) -> None:
    if not capabilities_of(model).takes("images"):
        raise ApiError(400, f"{where}: this model does not support image input")
    kind = source.get("type") if isinstance(source, dict) else None
    if kind not in _SOURCES:
        raise ApiError(400, f"{where}: Input tag '{kind}' does not match any of the expected tags: 'base64', 'url'")
    for name in _SOURCES[kind]:
        if not source.get(name):
            raise ApiError(400, f"{where}.{kind}.{name}: Field required")
    if kind == "base64" and source["media_type"] not in _MEDIA:
        known = ", ".join(f"'{name}'" for name in _MEDIA)
        raise ApiError(400, f"{where}.base64.media_type: Input should be {known}")


def check_format(body: Json) -> Mapping[str, Any] | None:
    """The schema that the answer must fit; None: words."""
    config = body.get("output_config") or {}
    if not isinstance(config, dict) or set(config) - {"effort", "format", "task_budget"}:
        raise ApiError(400, "output_config: Extra inputs are not permitted")
    format = config.get("format") or body.get("output_format")
    if format is None:
        return None
    if not isinstance(format, dict) or format.get("type") != "json_schema":
        raise ApiError(400, "output_config.format.type: Input should be 'json_schema'")
    if not capabilities_of(str(body.get("model"))).takes("schema"):
        raise ApiError(400, f"'{body.get('model')}' does not support output format.")
    schema = format.get("schema")
    if not isinstance(schema, dict):
        raise ApiError(400, "output_config.format.schema: Field required")
    _check_closed(schema)
    return schema


def _check_closed(schema: Any) -> None:
    if isinstance(schema, list):
        for part in schema:
            _check_closed(part)
    elif isinstance(schema, dict):
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
            text = "For 'object' type, 'additionalProperties' must be explicitly set to false"
            raise ApiError(400, f"output_config.format.schema: {text}")
        _check_closed([*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()])
        _check_closed([schema.get("items"), *schema.get("anyOf", ())])


def tool_to_call(body: Json, messages: Sequence[Mapping[str, Any]]) -> tuple[str, Any] | None:
    """The tool that the model calls: the one it must, or the first it may, unless a result has just come."""
    tools, choice = body.get("tools") or [], body.get("tool_choice") or {"type": "auto"}
    if not isinstance(tools, list):
        raise ApiError(400, "tools: Input should be a valid list")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("auto", "any", "tool", "none"):
        raise ApiError(
            400, "tool_choice: Input tag does not match any of the expected tags: 'auto', 'any', 'tool', 'none'"
        )
    if not tools:
        if "tool_choice" in body:
            raise ApiError(400, "tool_choice may only be specified while providing tools.")
        return None
    if not capabilities_of(str(body.get("model"))).takes("tools"):
        raise ApiError(400, f"'{body.get('model')}' does not support tools.")
    named = {tool["name"]: tool["input_schema"] for index, tool in enumerate(tools) if _check_tool(index, tool)}
    thinks = (body.get("thinking") or {}).get("type", "disabled") != "disabled"
    if kind in ("any", "tool") and thinks:
        raise ApiError(400, "Thinking may not be enabled when tool_choice forces tool use.")
    if kind == "tool":
        if choice.get("name") not in named:
            raise ApiError(400, f"Tool '{choice.get('name')}' not found in provided tools")
        return choice["name"], named[choice["name"]]
    last = messages[-1]["content"]
    answered = isinstance(last, list) and any(block["type"] == "tool_result" for block in last)
    return None if kind == "none" or not named or (answered and kind == "auto") else next(iter(named.items()))


def _check_tool(index: int, tool: Any) -> bool:
    """Whether a tool is one of the user's."""
    if not isinstance(tool, dict):
        raise ApiError(400, f"tools.{index}: Input should be a valid dictionary")
    if tool.get("type", "custom") != "custom":
        return False
    for name in ("name", "input_schema"):
        if name not in tool:
            raise ApiError(400, f"tools.{index}.custom.{name}: Field required")
    if extra := set(tool) - {"type", "name", "description", "input_schema", "cache_control", "strict"}:
        raise ApiError(400, f"tools.{index}.custom.{min(extra)}: Extra inputs are not permitted")
    if not _NAME.fullmatch(str(tool["name"])):
        text = "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
        raise ApiError(400, f"tools.{index}.custom.name: {text}")
    schema = tool["input_schema"]
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ApiError(400, f"tools.{index}.custom.input_schema.type: Field required")
    return True
