"""How OpenAI streams: a completion as chunks."""

from __future__ import annotations

from fanfold.simulator.answers import pieces
from fanfold.simulator.wire import Json


def chunks(body: Json, value: Json) -> list[Json]:
    """The chunks of a completion; its usage comes last, if asked for."""
    chat = value["object"] == "chat.completion"
    shared = {name: value[name] for name in value if name not in ("choices", "usage", "object")}
    shared["object"] = "chat.completion.chunk" if chat else value["object"]
    wanted = bool((body.get("stream_options") or {}).get("include_usage")) and "usage" in value
    shared |= {"usage": None} if wanted else {}
    listed: list[Json] = []
    for choice in value["choices"]:
        parts = [*_deltas(choice["message"])] if chat else [{"text": text} for text in pieces(choice["text"])]
        ends = [None] * len(parts) + [choice["finish_reason"]]
        logprobs = [choice.get("logprobs"), *[None] * len(parts)]
        for part, end, listing in zip([*parts, {} if chat else {"text": ""}], ends, logprobs, strict=True):
            about = {"delta": part} if chat else part
            one = {"index": choice["index"], **about, "logprobs": listing, "finish_reason": end}
            listed.append({**shared, "choices": [one]})
    return [*listed, {**shared, "choices": [], "usage": value["usage"]}] if wanted else listed


def _deltas(message: Json) -> list[Json]:
    deltas: list[Json] = [{"role": "assistant", "content": "", "refusal": None}]
    deltas += [{"content": text} for text in pieces(message["content"] or "")]
    deltas += [{"refusal": text} for text in pieces(message.get("refusal") or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        start = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
        deltas.append({"tool_calls": [start]})
        for text in pieces(function["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    return deltas
