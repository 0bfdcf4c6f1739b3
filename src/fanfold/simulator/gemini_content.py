"""The checks that Gemini makes of parts, tools and their results, with its own words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fanfold.capabilities import capabilities_of
from fanfold.simulator.answers import Completion, logprobs
from fanfold.simulator.wire import ApiError, Json

#: What a part may hold, and the fields that each must have.
_DATA = {
    "text": (),
    "inlineData": ("mimeType", "data"),
    "fileData": ("fileUri",),
    "functionCall": ("name",),
    "functionResponse": ("name", "response"),
}
_BESIDE = {"thought", "thoughtSignature", "mediaResolution", "videoMetadata"}
_FUNCTION = {"name", "description", "behavior", "parameters", "parametersJsonSchema", "response", "responseJsonSchema"}
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")


#: Whose keys are the user's own.
_OPAQUE = frozenset(
    {"args", "labels", "parameters", "parametersJsonSchema", "response", "responseJsonSchema", "responseSchema"}
)


def camelled(value: Any) -> Any:
    """A message with the names of its fields as Gemini writes them: it reads them in snake case as well."""
    if isinstance(value, list):
        return [camelled(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {name: re.sub("_([a-z])", lambda match: match[1].upper(), name) for name in value}
    return {new: value[old] if new in _OPAQUE else camelled(value[old]) for old, new in names.items()}


def check_contents(model: str, contents: Sequence[Any]) -> None:
    """Refuse turns that are not whole, and results that do not fit the calls before them."""
    called = 0
    for index, content in enumerate(contents):
        role = content.get("role", "user") if isinstance(content, dict) else None
        if role not in ("user", "model"):
            raise ApiError(400, "Please use a valid role: user, model.")
        parts = content.get("parts")
        where = f"* GenerateContentRequest.contents[{index}].parts"
        if not isinstance(parts, list) or not parts:
            raise ApiError(400, f"{where}: contents.parts must not be empty.\n")
        for number, part in enumerate(parts):
            _check_part(f"{where}[{number}]", part, model)
        results = sum("functionResponse" in part for part in parts)
        if results != called:
            raise ApiError(
                400,
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn.",
            )
        called = sum("functionCall" in part for part in parts)


def _check_part(where: str, part: Any, model: str) -> None:
    held = set(part) - _BESIDE if isinstance(part, dict) else set()
    if len(held) != 1:
        raise ApiError(400, f"{where}.data: required oneof field 'data' must have one initialized field\n")
    (name,) = held
    if name not in _DATA:
        raise _unknown(name, where)
    value = part[name]
    if name == "text":
        if not isinstance(value, str):
            raise ApiError(400, f"Invalid value at '{where[2:]}.text' (TYPE_STRING)")
        return
    for field in _DATA[name]:
        if not isinstance(value, dict) or not value.get(field):
            raise ApiError(400, f"{where}.{name}.{field}: [REQUIRED_FIELD_MISSING]\n")
    if name in ("inlineData", "fileData") and not capabilities_of(model, provider="gemini").takes("images"):
        raise ApiError(400, "Image input modality is not enabled for this model.")
    if name == "functionCall" and "thoughtSignature" not in part and not re.match(r"gemini-[12]\b", model):
        text = "Function call is missing a thought_signature in functionCall parts. This is required for tools to work"
        raise ApiError(400, f"{text} correctly.")


def _unknown(name: str, where: str) -> ApiError:
    at = where.removeprefix("* GenerateContentRequest.")
    return ApiError(400, f"Invalid JSON payload received. Unknown name \"{name}\" at '{at}': Cannot find field.")


def tool_to_call(model: str, body: Json) -> tuple[str, Any] | None:
    """The tool that the model calls: the one it must, or the first it may, unless a result has just come."""
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise ApiError(400, "Invalid value at 'tools' (TYPE_MESSAGE)")
    declared = [function for tool in tools for function in tool.get("functionDeclarations") or ()]
    config = ((body.get("toolConfig") or {}).get("functionCallingConfig") or {}) if declared else {}
    if declared and not capabilities_of(model, provider="gemini").takes("tools"):
        raise ApiError(400, f"Function calling is not enabled for models/{model}")
    functions: dict[str, Any] = {}
    for index, function in enumerate(declared):
        where = f"* GenerateContentRequest.tools[0].function_declarations[{index}]"
        if extra := set(function) - _FUNCTION:
            raise _unknown(min(extra), where)
        if not _NAME.fullmatch(str(function.get("name"))):
            raise ApiError(400, f"{where}.name: [Invalid function name. Must start with a letter or an underscore.]\n")
        functions[function["name"]] = function.get("parametersJsonSchema") or function.get("parameters") or {}
    mode, allowed = config.get("mode", "AUTO"), config.get("allowedFunctionNames")
    if mode not in ("AUTO", "ANY", "NONE", "VALIDATED"):
        raise ApiError(400, "Invalid value at 'tool_config.function_calling_config.mode'")
    if unknown := [name for name in allowed or () if name not in functions]:
        raise ApiError(400, f"allowed_function_names contains unknown functions: {', '.join(unknown)}")
    answered = any("functionResponse" in part for part in body["contents"][-1]["parts"])
    if not functions or mode == "NONE" or (answered and mode == "AUTO"):
        return None
    name = allowed[0] if allowed else next(iter(functions))
    return name, functions[name]


def candidate(index: int, answer: Completion, finish: str, top: int | None, serial: str) -> Json:
    """A candidate as Gemini writes it."""
    parts: list[Json] = [{"text": answer.text}] if answer.text else []
    for number, (name, given) in enumerate(answer.calls):
        called = {"id": f"{serial[-6:]}{number}", "name": name, "args": msgspec.json.decode(given)}
        parts.append({"functionCall": called, **({} if number else {"thoughtSignature": "c2ltdWxhdGVk"})})
    value: Json = {"index": index, "finishReason": finish}
    if parts:
        value["content"] = {"role": "model", "parts": parts}
    if top is not None:
        listed = logprobs(answer.text, top)
        value["logprobsResult"] = {
            "chosenCandidates": [_token(token, chance) for token, chance, _ in listed],
            "topCandidates": [{"candidates": [_token(*pair) for pair in likely]} for _, _, likely in listed],
        }
    return value


def _token(token: str, chance: float) -> Mapping[str, Any]:
    return {"token": token, "tokenId": len(token), "logProbability": chance}
