"""OpenAI's Responses at their edge: what a request must look like, and what a response looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fanfold.capabilities import Capabilities
from fanfold.simulator.answers import TOKENS_PER_MESSAGE, Completion, ModelRequest, content_tokens, logprobs, pieces
from fanfold.simulator.dialect import Stamp
from fanfold.simulator.openai_content import check_parts, check_results, checked_format, checked_function, tool_to_call
from fanfold.simulator.openai_requests import invalid, number, wrong_type
from fanfold.simulator.wire import ApiError, Json

_NAMES = (
    "background conversation include input instructions max_output_tokens max_tool_calls metadata model "
    "parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention reasoning "
    "safety_identifier service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p "
    "truncation user"
)
PARAMETERS = frozenset(_NAMES.split())
_PARTS = {"input_text": "text", "output_text": "text", "input_image": "image_url", "refusal": "refusal"}


def read_response(body: Json, takes: Capabilities, thought: int) -> ModelRequest:
    """Validate a request as OpenAI does."""
    number(body, "max_output_tokens", 16, 2**31, int)
    number(body, "top_logprobs", 0, 20, int)
    reasoning = body.get("reasoning") or {}
    if not isinstance(reasoning, dict):
        raise wrong_type("reasoning", "an object", reasoning)
    items = body.get("input")
    if items is None:
        raise invalid("input", "Missing required parameter: 'input'.", "missing_required_parameter")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list):
        raise wrong_type("input", "a string or an array", items)
    messages = [_message(f"input[{index}]", item) for index, item in enumerate(items)]
    check_parts(messages, takes, "input")
    check_results(_joined(messages), "input")
    tools = [_nested(index, tool) for index, tool in enumerate(body.get("tools") or ())]
    choice = body.get("tool_choice")
    answered = bool(messages) and messages[-1]["role"] == "tool"
    shared = {"model": body["model"], "tools": tools, "tool_choice": choice, "messages": [{"role": "tool"}]}
    tool = tool_to_call(shared if answered else {**shared, "messages": [{}]}, takes)
    text = body.get("text") or {}
    format = text.get("format") or {"type": "text"}
    schema = checked_format("text.format", format, takes) if format.get("type") == "json_schema" else None
    size = TOKENS_PER_MESSAGE + content_tokens(body.get("instructions"))
    size += sum(TOKENS_PER_MESSAGE + content_tokens(message["content"]) for message in messages)
    listed = "message.output_text.logprobs" in (body.get("include") or ())
    return ModelRequest(
        body["model"],
        messages,
        size,
        body.get("max_output_tokens"),
        json=format.get("type") == "json_object",
        reasoning=thought,
        schema=schema,
        tool=tool,
        logprobs=(body.get("top_logprobs") or 0) if listed else None,
    )


def _message(where: str, item: Any) -> Json:
    """An item of the input as a message of a chat."""
    if not isinstance(item, dict):
        raise wrong_type(where, "an object", item)
    match item.get("type", "message"):
        case "message":
            if item.get("role") not in ("user", "assistant", "system", "developer"):
                known = "'assistant', 'system', 'developer', and 'user'"
                text = f"Invalid value: '{item.get('role')}'. Supported values are: {known}."
                raise invalid(f"{where}.role", text, "invalid_value")
            return {"role": item["role"], "content": _content(f"{where}.content", item.get("content"))}
        case "function_call":
            call = {"id": item.get("call_id"), "function": {"name": item.get("name")}}
            return {"role": "assistant", "content": str(item.get("arguments")), "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "content": str(item.get("output")), "tool_call_id": item.get("call_id")}
        case "reasoning":
            if not item.get("encrypted_content"):
                text = (
                    f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false."
                )
                raise ApiError(404, text, param="input")
            return {"role": "assistant", "content": ""}
    raise invalid(f"{where}.type", f"Invalid value: '{item['type']}'.", "invalid_value")


def _content(where: str, content: Any) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(where, "a string or an array", content)
    parts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _PARTS or _PARTS[kind] not in part:
            known = ", ".join(repr(name) for name in _PARTS)
            text = f"Invalid value: '{kind}'. Supported values are: {known}."
            raise invalid(f"{where}[{index}]", text, "invalid_value")
        image = {"type": "image_url", "image_url": {"url": part.get("image_url")}}
        parts.append(image if kind == "input_image" else {"type": "text", "text": part[_PARTS[kind]]})
    return parts


def _joined(messages: Sequence[Json]) -> list[Json]:
    """Calls that follow each other, in one message."""
    joined: list[Json] = []
    for message in messages:
        if joined and "tool_calls" in joined[-1] and "tool_calls" in message:
            joined[-1] = {**joined[-1], "tool_calls": [*joined[-1]["tool_calls"], *message["tool_calls"]]}
        else:
            joined.append(message)
    return joined


def _nested(index: int, tool: Any) -> Any:
    """A tool as a chat has it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    if not tool.get("name"):
        name = f"tools[{index}].name"
        raise invalid(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    checked_function(f"tools[{index}]", tool)
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def render_response(body: Json, prompt: ModelRequest, answer: Completion, stamp: Stamp) -> Json:
    """The body of a good response."""
    output: list[Json] = []
    if answer.reasoning:
        thought = {"id": f"rs_{stamp.serial}", "type": "reasoning", "summary": []}
        wanted = "reasoning.encrypted_content" in (body.get("include") or ())
        output.append(thought | ({"encrypted_content": f"simulated-{stamp.serial}"} if wanted else {}))
    cut = answer.finish in ("length", "content_filter")
    status = "incomplete" if cut else "completed"
    if answer.text or not (answer.calls or cut):
        part: Json = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        if answer.finish == "refusal":
            part = {"type": "refusal", "refusal": answer.text}
        elif prompt.logprobs is not None:
            part["logprobs"] = [
                {"token": token, "logprob": chance, "bytes": [], "top_logprobs": _likely(likely)}
                for token, chance, likely in logprobs(answer.text, prompt.logprobs)
            ]
        about = {"id": f"msg_{stamp.serial}", "type": "message", "status": status, "role": "assistant"}
        output.append({**about, "content": [part]})
    for index, (name, arguments) in enumerate(answer.calls):
        call = {"id": f"fc_{stamp.serial}{index}", "type": "function_call", "call_id": f"call_{stamp.serial}{index}"}
        output.append({**call, "name": name, "arguments": arguments, "status": "completed"})
    reason = "max_output_tokens" if answer.finish == "length" else "content_filter"
    usage = {
        "input_tokens": prompt.input_tokens,
        "input_tokens_details": {"cached_tokens": stamp.cached},
        "output_tokens": answer.tokens,
        "output_tokens_details": {"reasoning_tokens": answer.reasoning},
        "total_tokens": prompt.input_tokens + answer.tokens,
    }
    return {
        "id": f"resp_{stamp.serial}",
        "object": "response",
        "created_at": int(stamp.created),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if cut else None,
        "instructions": body.get("instructions"),
        "model": prompt.model,
        "output": output,
        "parallel_tool_calls": True,
        "store": body.get("store", True),
        "temperature": body.get("temperature", 1.0),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "top_p": body.get("top_p", 1.0),
        **({"usage": usage} if stamp.usage else {}),
    }


def _likely(tokens: Sequence[tuple[str, float]]) -> list[Json]:
    return [{"token": token, "logprob": chance, "bytes": []} for token, chance in tokens]


def response_events(value: Json) -> list[Json]:
    """The events as which a response is streamed."""
    begun = {**value, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(value["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        bare = {**item, "content": []} if "content" in item else {**item}
        bare |= {"arguments": ""} if "arguments" in item else {}
        events.append({"type": "response.output_item.added", "output_index": index, "item": bare})
        for at, part in enumerate(item.get("content") or ()):
            name = "text" if part["type"] == "output_text" else "refusal"
            kind = f"response.{part['type']}"
            inside = {**place, "content_index": at}
            events.append({"type": "response.content_part.added", **inside, "part": {**part, name: ""}})
            listing: Json = {"logprobs": []} if name == "text" else {}
            events += [{"type": f"{kind}.delta", **inside, "delta": text, **listing} for text in pieces(part[name])]
            events.append({"type": f"{kind}.done", **inside, name: part[name], **listing})
            events.append({"type": "response.content_part.done", **inside, "part": part})
        if "arguments" in item:
            kind = "response.function_call_arguments"
            events += [{"type": f"{kind}.delta", **place, "delta": text} for text in pieces(item["arguments"])]
            events.append({"type": f"{kind}.done", **place, "arguments": item["arguments"], "name": item["name"]})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{value['status']}", "response": value})
    return [{**event, "sequence_number": at} for at, event in enumerate(events)]
