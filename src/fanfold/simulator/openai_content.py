"""The checks that OpenAI makes of tools, schemas, images and the results of tools, with its own words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.capabilities import Capabilities
from fanfold.simulator.openai_requests import invalid, wrong_type
from fanfold.simulator.wire import ApiError, Json

_PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")


def check_parts(messages: Sequence[Mapping[str, Any]], takes: Capabilities, name: str = "messages") -> None:
    """Refuse parts that are unknown, or images where the model or the role has none."""
    for index, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            where = f"{name}[{index}].content[{number}]"
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in _PARTS:
                known = ", ".join(repr(name) for name in _PARTS)
                raise invalid(where, f"Invalid value: {kind!r}. Supported values are: {known}.", "invalid_value")
            if kind == "text" and not isinstance(part.get("text"), str):
                raise invalid(where, f"Missing required parameter: '{where}.text'.", "missing_required_parameter")
            if kind == "image_url":
                _check_image(where, message, part, takes.takes("images"))


def _check_image(where: str, message: Mapping[str, Any], part: Json, sees: bool) -> None:
    if not sees:
        text = "Invalid content type. image_url is only supported by certain models."
        raise invalid(where, text, "invalid_value")
    if message.get("role") != "user":
        text = "Image URLs are only allowed for messages with role 'user', but this message with role "
        raise invalid(where, f"{text}'{message.get('role')}' contains an image URL.", "invalid_value")
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else None
    if not isinstance(url, str):
        raise invalid(where, f"Missing required parameter: '{where}.image_url.url'.", "missing_required_parameter")
    if not re.match(r"https?://|data:image/(png|jpeg|gif|webp);base64,", url):
        raise invalid(where, f"Invalid image URL: '{url[:40]}'. Expected a valid URL.", "invalid_value")


def check_results(messages: Sequence[Mapping[str, Any]], name: str = "messages") -> None:
    """Every call of a tool must be followed by its result, and every result must follow a call."""
    open: list[str] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            id = message.get("tool_call_id")
            if id is None:
                where = f"{name}[{index}].tool_call_id"
                raise invalid(where, f"Missing required parameter: '{where}'.", "missing_required_parameter")
            if id not in open:
                text = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                raise invalid(f"{name}[{index}].role", f"{text}'tool_calls'.")
            open.remove(id)
            continue
        if open:
            break
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        open = [str(call.get("id")) for call in calls or ()]
    if open:
        text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        raise invalid(
            name,
            f"{text}'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open)}",
        )


def tool_to_call(body: Json, takes: Capabilities) -> tuple[str, Any] | None:
    """The tool that the model calls: the one it must, or the first it may, unless a result has just come."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools:
        if choice not in (None, "none"):
            raise invalid(
                "tool_choice",
                "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
            )
        return None
    if not isinstance(tools, list):
        raise wrong_type("tools", "an array", tools)
    if not takes.takes("tools"):
        raise invalid("tools", "tools is not supported in this model.", "unsupported_parameter")
    functions = [function_of(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    named = {name: schema for function in functions if function for name, schema in [function]}
    if isinstance(choice, dict):
        wanted = (choice.get("function") or choice).get("name")
        if wanted not in named:
            raise invalid("tool_choice", f"Tool choice '{wanted}' not found in 'tools' parameter.")
        return wanted, named[wanted]
    if choice not in (None, "auto", "none", "required"):
        raise invalid(
            "tool_choice", f"Invalid value: '{choice}'. Supported values are: 'none', 'auto', and 'required'."
        )
    answered = body["messages"][-1].get("role") == "tool" if "messages" in body else False
    if choice == "none" or not named or (answered and choice != "required"):
        return None
    return next(iter(named.items()))


def function_of(where: str, tool: Any) -> tuple[str, Any] | None:
    """A tool's name and the schema of its parameters; None for a tool of another type."""
    if not isinstance(tool, dict):
        raise wrong_type(where, "an object", tool)
    if tool.get("type") is None:
        raise invalid(f"{where}.type", f"Missing required parameter: '{where}.type'.", "missing_required_parameter")
    if tool["type"] != "function":
        return None
    function = tool.get("function")
    if not isinstance(function, dict) or not function.get("name"):
        name = f"{where}.function{'.name' if isinstance(function, dict) else ''}"
        raise invalid(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    return checked_function(f"{where}.function", function)


def checked_function(where: str, function: Json) -> tuple[str, Any]:
    name, schema = str(function["name"]), function.get("parameters") or {"type": "object", "properties": {}}
    if not _NAME.fullmatch(name):
        text = f"Invalid '{where}.name': string does not match pattern. Expected a string that matches the pattern "
        raise invalid(f"{where}.name", f"{text}'^[a-zA-Z0-9_-]+$'.", "invalid_value")
    if len(name) > 64:
        text = (
            f"Invalid '{where}.name': string too long. Expected a string with maximum length 64, but got {len(name)}."
        )
        raise invalid(f"{where}.name", text, "string_above_max_length")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        kind = schema.get("type") if isinstance(schema, dict) else None
        text = f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got 'type: "
        raise invalid(f"{where}.parameters", f'{text}"{kind}"\'.', "invalid_function_parameters")
    if function.get("strict"):
        _check_strict(f"function '{name}'", schema, f"{where}.parameters", "invalid_function_parameters")
    return name, schema


def check_format(body: Json, takes: Capabilities) -> Any:
    """The schema that the answer must fit; {}: any JSON; None: words."""
    format = body.get("response_format")
    if format is None:
        return None
    kind = format.get("type") if isinstance(format, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        text = f"Invalid value: '{kind}'. Supported values are: 'json_object', 'json_schema', and 'text'."
        raise invalid("response_format.type", text, "invalid_value")
    if kind != "json_schema":
        return {} if kind == "json_object" else None
    about = format.get("json_schema")
    where = "response_format.json_schema"
    return checked_format(where, {} if about is None else about, takes)


def checked_format(where: str, about: Any, takes: Capabilities) -> Any:
    if not takes.takes("schema"):
        text = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
        raise invalid("response_format", text)
    if not isinstance(about, dict):
        raise wrong_type(where, "an object", about)
    if not about.get("name"):
        raise invalid(f"{where}.name", f"Missing required parameter: '{where}.name'.", "missing_required_parameter")
    if not _NAME.fullmatch(str(about["name"])):
        text = f"Invalid '{where}.name': string does not match pattern. Expected a string that matches the pattern "
        raise invalid(f"{where}.name", f"{text}'^[a-zA-Z0-9_-]+$'.", "invalid_value")
    schema = about.get("schema") or {}
    if schema.get("type") != "object":
        text = (
            f"Invalid schema for response_format '{about['name']}': schema must be a JSON Schema of 'type: \"object\"'"
        )
        raise invalid("response_format", f"{text}, got 'type: \"{schema.get('type')}\"'.")
    if about.get("strict"):
        _check_strict(f"response_format '{about['name']}'", schema, "response_format", None)
    return schema


def _check_strict(what: str, schema: Any, param: str, code: str | None, context: tuple[str, ...] = ()) -> None:
    """Strict schemas have closed objects all the way down."""
    if isinstance(schema, list):
        for part in schema:
            _check_strict(what, part, param, code, context)
        return
    if not isinstance(schema, dict):
        return
    fault = None
    if schema.get("type") == "object":
        fields, needed = schema.get("properties", {}), schema.get("required")
        missing = [name for name in fields if name not in (needed or ())]
        if schema.get("additionalProperties") is not False:
            fault = "'additionalProperties' is required to be supplied and to be false."
        elif missing:
            fault = (
                "'required' is required to be supplied and to be an array including every key in properties. Missing "
                f"'{missing[0]}'."
            )
    elif "default" in schema:
        fault = "'default' is not permitted."
    if fault:
        raise ApiError(400, f"Invalid schema for {what}: In context={context}, {fault}", param=param, code=code)
    for name in ("properties", "$defs"):
        for key, part in schema.get(name, {}).items():
            _check_strict(what, part, param, code, (*context, name, key))
    for name in ("items", "anyOf"):
        _check_strict(what, schema.get(name), param, code, (*context, name))
