"""What a request can say beside text: images, tools and the shape of the reply; and what the reply then holds.

All of it has one form for all providers, that of OpenAI-compatible chats, which the others translate.
"""

from __future__ import annotations

import base64
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from fanfold.encoding import encode
from fanfold.errors import CallFailed, ConfigError
from fanfold.flights import Reply
from fanfold.models.parameters import cut
from fanfold.schemas import check_schema, fault

#: How files of the image formats begin that providers take.
_FORMATS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
#: What an image counts for before anybody has counted it: the most that providers charge for a large one, about.
IMAGE_TOKENS = 5_000
#: Parameters that have one form for all providers.
RICH = frozenset({"tools", "tool_choice", "logprobs", "schema"})
#: Parameters that say what the reply must look like.
SHAPING = ("stop", "schema")
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def image(source: str | Path | bytes) -> dict[str, Any]:
    """An image as a part of a message's content: the address of one (https://...), a file, or the bytes of a file."""
    if isinstance(source, str) and re.match(r"(https?|data|gs|s3):", source):
        return {"type": "image_url", "image_url": {"url": source}}
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    format = next((name for start, name in _FORMATS.items() if data.startswith(start)), None)
    if format is None:
        what = "these bytes are" if isinstance(source, bytes) else f"{source} is"
        raise ConfigError(f"{what} not a PNG, JPEG, GIF or WebP image")
    url = f"data:image/{format};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def images_in(messages: str | Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many images a dialogue shows, and how many characters of the request they take."""
    if isinstance(messages, str):
        return 0, 0
    dialogue: Any = messages  # whatever its type says, it is the user's
    if not isinstance(dialogue, Sequence) or not all(isinstance(message, Mapping) for message in dialogue):
        raise ConfigError(
            "a model is asked with a text, or with a list of messages such as {'role': 'user', 'content': 'Hello'}, "
            f"not with {messages!r:.100} ({type(messages).__name__})"
        )
    count = size = 0
    for message in dialogue:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type") == "image_url":
                shown = part.get("image_url")
                if not isinstance(shown, Mapping) or not isinstance(shown.get("url"), str):
                    raise ConfigError(
                        "an image in a message is {'type': 'image_url', 'image_url': {'url': ...}}, as "
                        f"fanfold.models.image(...) makes it, not {part!r:.100}"
                    )
                count, size = count + 1, size + len(shown["url"])
    return count, size


# -- tools ------------------------------------------------------------------------------------------------------------


def tools_of(tools: Sequence[Callable[..., Any] | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as OpenAI-compatible servers take them.

    Each is a typed function, a mapping with `name`, `description` and `parameters` (a JSON Schema), or a tool as the
    provider itself writes it, with its `type`, which is passed on.
    """
    written = []
    for tool in tools:
        if callable(tool):
            written.append({"type": "function", "function": dict(_described(tool))})
        elif isinstance(tool, Mapping) and "type" in tool:
            written.append(dict(tool))
        elif isinstance(tool, Mapping) and _NAME.fullmatch(str(tool.get("name"))):
            written.append({"type": "function", "function": {"parameters": _NOTHING, **tool}})
        else:
            raise ConfigError(f"a tool is a function, or a mapping with name, description and parameters: {tool!r:.80}")
    return written


_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@functools.lru_cache(256)
def _described(function: Callable[..., Any]) -> Mapping[str, Any]:
    """A function as a tool: what it does by its docstring, its parameters by their annotations."""
    name = getattr(function, "__name__", type(function).__name__)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the function {name!r} cannot be a tool: its name must have letters, digits, _ and - only")
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"the tool {name!r} needs a type for its parameter {parameter.name!r}")
        optional = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *optional))
    schema = _of_type(msgspec.defstruct(name, fields, kw_only=True))
    return {"name": name, "description": inspect.getdoc(function) or "", "parameters": schema}


def tool_choice(choice: Any) -> Any:
    """Which tools may be called: `auto`, `none`, `required`, or the name of the one that must be."""
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        return {"type": "function", "function": {"name": choice}}
    return choice


# -- the shape of the reply -------------------------------------------------------------------------------------------


class ReplyShape(NamedTuple):
    """What a reply must look like: a JSON Schema, and what makes a value of the JSON (ValueError: it does not fit)."""

    name: str
    schema: Mapping[str, Any]
    convert: Callable[[Any], Any]

    @property
    def format(self) -> dict[str, Any]:
        about = {"name": self.name, "schema": self.schema, "strict": _strict(self.schema)}
        return {"type": "json_schema", "json_schema": about}

    @property
    def tool(self) -> dict[str, Any]:
        """For a model that knows tools and no schemas: it must call this one."""
        about = {"name": self.name, "description": "Give the answer.", "parameters": self.schema}
        return {"type": "function", "function": about}


def shape_of(schema: Any) -> ReplyShape:
    """The shape that a JSON Schema, a dataclass, a TypedDict, a msgspec.Struct or a Pydantic model describes."""
    return _shape_of_text(in_order(schema)) if isinstance(schema, Mapping) else _shape_of_type(schema)


def in_order(value: Any) -> str:
    """JSON in the order of the fields, in which models fill them in."""
    encode(value, "the request")  # refuses what JSON cannot hold
    return msgspec.json.encode(value, enc_hook=lambda array: array.tolist()).decode()


@functools.lru_cache(256)
def _shape_of_text(text: str) -> ReplyShape:
    schema = msgspec.json.decode(text)
    check_schema(schema)
    _check_object(schema)

    def convert(value: Any) -> Any:
        if wrong := fault(value, schema):
            raise ValueError(wrong)
        return value

    return ReplyShape(_name(str(schema.get("title") or "answer")), schema, convert)


@functools.lru_cache(256)
def _shape_of_type(kind: Any) -> ReplyShape:
    name = _name(getattr(kind, "__name__", "answer"))
    if hasattr(kind, "model_json_schema"):  # Pydantic, without importing it
        return ReplyShape(name, _closed(kind.model_json_schema()), kind.model_validate)
    schema = _of_type(kind)
    _check_object(schema)
    return ReplyShape(name, schema, functools.partial(msgspec.convert, type=kind))


def _name(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", text)[:64]


def _check_object(schema: Mapping[str, Any]) -> None:
    if schema.get("type") != "object":
        raise ConfigError('schema: providers take only objects at the top: {"type": "object", "properties": ...}')


def _of_type(kind: Any) -> dict[str, Any]:
    try:
        schema = msgspec.json.schema(kind)
    except TypeError as error:
        raise ConfigError(f"there is no JSON Schema for {kind!r}: {error}") from None
    if "$ref" in schema:  # the top must be the object itself
        definitions = schema["$defs"]
        schema = {**definitions[schema["$ref"].rpartition("/")[2]], "$defs": definitions}
        if "$ref" not in encode(definitions) and len(definitions) == 1:
            del schema["$defs"]
    return typing.cast("dict[str, Any]", _closed(schema))


def _closed(schema: Any) -> Any:
    """A schema as providers enforce it: objects have all of their fields, and no others."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {name: _closed(part) for name, part in schema.items() if name not in ("default", "title")}
    for name in ("properties", "$defs"):
        if name in schema:
            closed[name] = {key: _closed(part) for key, part in schema[name].items()}
    if "properties" in closed:
        closed |= {"required": list(closed["properties"]), "additionalProperties": False}
    return closed


def _strict(schema: Any) -> bool:
    """Whether every object in a schema is closed, so that it can be enforced strictly."""
    if isinstance(schema, list):
        return all(map(_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    open = schema.get("type") == "object" and (
        schema.get("additionalProperties") is not False
        or set(schema.get("required", ())) != set(schema.get("properties", ()))
    )
    parts = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    others = [part for name, part in schema.items() if name not in ("properties", "$defs", "enum", "const", "default")]
    return not open and _strict(parts) and _strict(others)


def spell(parameters: dict[str, Any], model: str, takes: Callable[[str], bool]) -> bool:
    """Write what goes beyond text as providers expect it; whether the order of fields matters in it."""
    if tools := parameters.get("tools"):
        parameters["tools"] = tools_of(tools)
    if parameters.get("tool_choice") is not None:
        parameters["tool_choice"] = tool_choice(parameters["tool_choice"])
    if type(likely := parameters.get("logprobs")) is int:
        parameters |= {"logprobs": True, "top_logprobs": likely} if likely else {"logprobs": True}
    schema = parameters.pop("schema", None)
    if schema is not None:
        shape = shape_of(schema)
        if takes("schema"):
            parameters["response_format"] = shape.format
        elif takes("tools") and not tools:
            parameters |= {"tools": [shape.tool], "tool_choice": tool_choice(shape.name)}
        else:
            raise ConfigError(f"{model} has no structured output: leave schema out, or choose a model that has it")
    return bool(tools) or schema is not None


# -- the reply --------------------------------------------------------------------------------------------------------


def shaping(parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a request's parameters that `usable` looks at."""
    for name in SHAPING:
        if name in parameters or name in defaults:
            together = {**defaults, **parameters}
            return {name: together.get(name) for name in SHAPING}
    return _NOTHING


def usable(reply: Reply, model: str, parameters: Mapping[str, Any]) -> Reply:
    """The reply to a request with these parameters, cut where it should have ended, with the value asked for.

    CallFailed where it is not what was asked for; it is paid, and stays in the ledger.
    """
    if not reply.text and reply.finish == "length" and (reply.reasoning_tokens or reply.reasoning):
        raise CallFailed(
            "reasoning",
            f"{model} used all of its {reply.output_tokens} tokens to reason, and said nothing: raise max_tokens, or "
            "ask for less with reasoning_effort",
        )
    if reply.tool_calls and (wrong := next((call for call in reply.tool_calls if call.invalid), None)):
        text = f"{model} called {wrong.name} with arguments that are not a JSON object: {wrong.invalid!r:.200}"
        raise CallFailed("schema", text)
    if stop := parameters.get("stop"):
        texts = [cut(text, stop) for text in reply.texts]
        if any(text is not None for text in texts):
            first, *others = [old if new is None else new for old, new in zip(reply.texts, texts)]
            finish = reply.finish if texts[0] is None else "stop"
            reply = msgspec.structs.replace(reply, text=first, others=tuple(others), finish=finish)
    schema = parameters.get("schema")
    return reply if schema is None else _parsed(reply, model, shape_of(schema))


def _parsed(reply: Reply, model: str, shape: ReplyShape) -> Reply:
    if reply.finish in ("refusal", "filter"):
        raise CallFailed("refusal", f"{model} refused to answer: {reply.refusal or 'its provider filtered the answer'}")
    forced = next((call for call in reply.tool_calls if call.name == shape.name), None)
    if reply.tool_calls and forced is None:
        return reply  # it wants a tool first
    if reply.finish == "length":
        text = f"{model} was cut off after {reply.output_tokens} tokens, inside its JSON: raise max_tokens"
        raise CallFailed("length", text)
    try:
        value = msgspec.json.decode(_unfenced(reply.text)) if forced is None else forced.arguments
        parsed = shape.convert(value)
    except (ValueError, RecursionError) as error:
        text = reply.text if forced is None else encode(forced.arguments)
        raise CallFailed(
            "schema", f"{model} gave a reply that does not fit the schema: {error} ({text!r:.200})"
        ) from None
    if forced is None:
        return msgspec.structs.replace(reply, parsed=parsed)
    return msgspec.structs.replace(reply, parsed=parsed, text=encode(value), tool_calls=(), finish="stop")


def _unfenced(text: str) -> str:
    """JSON without the fence of Markdown that servers without structured output leave around it."""
    fenced = re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", text, re.DOTALL)
    return fenced[1] if fenced else text
