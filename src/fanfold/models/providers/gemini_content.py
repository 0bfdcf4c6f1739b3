"""Dialogues, tools and formats, written as for OpenAI, in Gemini's words; and what its candidates hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.errors import ConfigError
from fanfold.flights import TokenLogprob, ToolCall
from fanfold.models.providers.reading import image_address, image_data, tool_call, tool_calls_in

#: In place of the signature that recent models want back with a call, where the call is not one of theirs.
_UNSIGNED = "skip_thought_signature_validator"
#: Ends the id of a call that Gemini gave none.
_OURS = "#"


def turned(dialogue: list[dict[str, Any]], system: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The parts of the system prompt, and the turns of user and model; results of tools are the user's."""
    heads = _parts(system) if system else []
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in dialogue:
        role = message["role"]
        if role in ("system", "developer"):
            heads += _parts(message["content"])
        elif role == "tool":
            result = {"functionResponse": _result(message, names)}
            if turns and "functionResponse" in turns[-1]["parts"][0]:
                turns[-1]["parts"].append(result)  # all results of one turn belong together
            else:
                turns.append({"role": "user", "parts": [result]})
        elif role == "assistant":
            names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
            turns.append({"role": "model", "parts": _said(message)})
        else:
            turns.append({"role": "user", "parts": _parts(message["content"])})
    return heads, turns


def _said(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the model said: as Gemini sent it, where it did."""
    parts = message.get("parts")
    if parts and not any("type" in part for part in parts):
        return list(parts)
    said = _parts(message["content"]) if message.get("content") else []
    called = [{"name": name, "args": value} for _, name, value in tool_calls_in(message)]
    return [*said, *({"functionCall": call, "thoughtSignature": _UNSIGNED} for call in called)]


def _result(message: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    id = str(message.get("tool_call_id"))
    if id not in names:
        raise ConfigError(f"the result of the tool call {id!r} has no such call before it in the dialogue")
    result: dict[str, Any] = {"name": names[id], "response": {"result": message["content"]}}
    return result if _OURS in id else {"id": id, **result}


def _parts(content: Any) -> list[dict[str, Any]]:
    """The parts of a message's content, which is a text or a list of parts."""
    return [_part(part) for part in content] if isinstance(content, list) else [{"text": str(content)}]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    if part.get("type") == "text":
        return {"text": part["text"]}
    if part.get("type") != "image_url":
        return dict(part)  # one of the provider's own
    url = image_address(part)
    coded = image_data(url)
    return {"fileData": {"fileUri": url}} if coded is None else {"inlineData": {"mimeType": coded[0], "data": coded[1]}}


def tools_of(tools: Sequence[Mapping[str, Any]], choice: Any) -> dict[str, Any]:
    """The fields of a request that offer tools."""
    functions, own = [], []
    for tool in tools:
        if "function" in tool:
            about = dict(tool["function"])
            schema = about.pop("parameters", {"type": "object"})
            about.pop("strict", None)
            functions.append({**about, "parametersJsonSchema": schema})
        else:
            own.append({name: value for name, value in tool.items() if name != "type"})
    fields: dict[str, Any] = {"tools": [*([{"functionDeclarations": functions}] if functions else []), *own]}
    if choice is not None:
        named = choice["function"]["name"] if isinstance(choice, Mapping) else None
        config: dict[str, Any] = {"mode": {"required": "ANY"}.get(str(choice), str(choice).upper())}
        if named is not None:
            config = {"mode": "ANY", "allowedFunctionNames": [named]}
        fields["toolConfig"] = {"functionCallingConfig": config}
    return fields


def format_of(format: Any) -> dict[str, Any]:
    """The settings that a response format stands for."""
    kind = format.get("type") if isinstance(format, Mapping) else None
    if kind == "json_object":
        return {"responseMimeType": "application/json"}
    if kind == "json_schema":
        return {"responseMimeType": "application/json", "responseJsonSchema": format["json_schema"]["schema"]}
    return {}


def text_in(parts: Sequence[Mapping[str, Any]], *, thought: bool = False) -> str:
    """The text of a candidate, or of its thoughts."""
    return "".join(part["text"] for part in parts if "text" in part and bool(part.get("thought")) is thought)


def calls_in(parts: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    called = [part["functionCall"] for part in parts if "functionCall" in part]
    return tuple(
        tool_call(call.get("id") or f"{call['name']}{_OURS}{number}", call["name"], call.get("args") or {})
        for number, call in enumerate(called)
    )


def logprobs_in(candidate: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    result = candidate.get("logprobsResult")
    if not result:
        return ()
    chosen = result.get("chosenCandidates") or []
    top = [place.get("candidates") or () for place in result.get("topCandidates") or [{}] * len(chosen)]
    return tuple(
        TokenLogprob(
            token["token"],
            token["logProbability"],
            {other["token"]: other["logProbability"] for other in others},
        )
        for token, others in zip(chosen, top)
    )
