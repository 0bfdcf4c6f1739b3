"""The checks that OpenAI makes of a request, with its own words for what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.capabilities import capabilities_of
from fanfold.simulator.answers import content_tokens
from fanfold.simulator.wire import ApiError, Json

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"

_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def check_metadata(metadata: Any) -> None:
    """Sixteen pairs of short texts at most."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise wrong_type("metadata", "an object", metadata)
    if len(metadata) > 16:
        text = f"Invalid 'metadata': too many properties. Expected at most 16, but got {len(metadata)} instead."
        raise invalid("metadata", text, "object_above_max_properties")
    for key, value in metadata.items():
        if len(key) > 64:
            text = f"Invalid 'metadata': property name too long. Expected at most 64 characters, but got {len(key)}."
            raise invalid("metadata", text, "property_name_above_max_length")
        if not isinstance(value, str):
            raise wrong_type(f"metadata.{key}", "a string", value)
        if len(value) > 512:
            text = f"Invalid 'metadata.{key}': string too long. Expected at most 512 characters, but got {len(value)}."
            raise invalid(f"metadata.{key}", text, "string_above_max_length")


#: Parameters that models differ in.
_BY_MODEL = ("temperature", "top_p", "stop", "seed", "frequency_penalty", "presence_penalty", "logprobs", "n")


def check_model(body: Json, provider: str = "openai") -> None:
    """Refuse a parameter, or a value, that the model does not take."""
    takes, effort = capabilities_of(str(body.get("model")), provider=provider), body.get("reasoning_effort")
    if effort is not None and not takes.takes("reasoning_effort", effort):
        if not takes.efforts:
            raise _unsupported("reasoning_effort")
        known = ", ".join(repr(name) for name in takes.efforts)
        text = f"Unsupported value: 'reasoning_effort' does not support {effort!r} with this model. Supported values"
        raise invalid("reasoning_effort", f"{text} are: {known}.", "unsupported_value")
    for name in _BY_MODEL:
        value = body.get(name)
        if value is None or takes.takes(name, value, effort):
            continue
        if name in ("temperature", "top_p"):
            text = f"Unsupported value: '{name}' does not support {value} with this model. Only the default (1) value"
            raise invalid(name, f"{text} is supported.", "unsupported_value")
        raise _unsupported(name)
    if takes.efforts and body.get("max_tokens") is not None and provider in ("openai", "azure"):
        text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'"
        raise invalid("max_tokens", f"{text} instead.", "unsupported_parameter")


def _unsupported(name: str) -> ApiError:
    text = f"Unsupported parameter: '{name}' is not supported with this model."
    return invalid(name, text, "unsupported_parameter")


def message_tokens(index: int, message: Any) -> int:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise wrong_type(where, "an object", message)
    role = message.get("role")
    if role is None:
        raise invalid(f"{where}.role", f"Missing required parameter: '{where}.role'.", "missing_required_parameter")
    if role not in _ROLES:
        known = ", ".join(repr(name) for name in _ROLES[:-1])
        text = f"Invalid value: {role!r}. Supported values are: {known}, and {_ROLES[-1]!r}."
        raise invalid(f"{where}.role", text, "invalid_value")
    content = message.get("content")
    if content is None and role == "assistant":
        return 0
    if not isinstance(content, str | list):
        text = f"Invalid value for 'content': expected a string, got {_type_name(content)}."
        raise invalid(f"{where}.content", text, "invalid_type")
    return content_tokens(content)


def inputs(value: Any) -> list[str | list[int]] | None:
    """A text, texts, a list of tokens or lists of tokens, as a list; None for anything else or nothing."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]
    usable = isinstance(value, list) and value and all(isinstance(item, str | list) for item in value)
    return value if usable else None


def stops(body: Json) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise invalid("stop", "Invalid type for 'stop': expected a string or an array of strings.", "invalid_type")
    if len(stops) > 4:
        text = f"Invalid 'stop': array too long. Expected an array with maximum length 4, but got {len(stops)} instead."
        raise invalid("stop", text, "array_above_max_length")
    return tuple(stops)


def required(body: Json, name: str, kind: type) -> Any:
    if body.get(name) is None:
        raise invalid(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    if not isinstance(body[name], kind):
        raise wrong_type(name, _NAMES[kind], body[name])
    return body[name]


def number(body: Json, name: str, low: float, high: float, kind: type = float) -> None:
    value = body.get(name)
    if value is None:
        return
    wanted = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise wrong_type(name, _NAMES[kind], value)
    word = "integer" if kind is int else "decimal"
    if value < low:
        text = f"Invalid '{name}': {word} below minimum value. Expected a value >= {low}, but got {value} instead."
        raise invalid(name, text, f"{word}_below_min_value")
    if value > high:
        text = f"Invalid '{name}': {word} above maximum value. Expected a value <= {high}, but got {value} instead."
        raise invalid(name, text, f"{word}_above_max_value")


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def wrong_type(param: str, wanted: str, value: Any) -> ApiError:
    text = f"Invalid type for '{param}': expected {wanted}, but got {_type_name(value)} instead."
    return invalid(param, text, "invalid_type")


def _type_name(value: Any) -> str:
    return "null" if value is None else _NAMES.get(type(value), type(value).__name__)
