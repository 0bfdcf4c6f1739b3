"""OpenAI's protocol at its edge: what a request must look like, what a reply and an error look like."""

from __future__ import annotations

import base64
import math
import random
import struct
from collections.abc import Mapping
from typing import Any

from fanfold.encoding import derive_seed, encode
from fanfold.simulator.answers import TOKENS_PER_MESSAGE, Prompt, Written, content_tokens, count_tokens
from fanfold.simulator.dialect import Stamp, duration
from fanfold.simulator.limits import Account, Refused
from fanfold.simulator.wire import ApiError, Json, Request, Response, reply

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"

_SAMPLING = "frequency_penalty logit_bias logprobs max_tokens model n presence_penalty seed stop stream stream_options"
_KNOWN = {
    CHAT: frozenset(
        f"{_SAMPLING} temperature top_p user audio function_call functions max_completion_tokens messages metadata "
        "modalities moderation parallel_tool_calls prediction prompt_cache_key prompt_cache_options "
        "prompt_cache_retention reasoning_effort response_format safety_identifier service_tier store tool_choice "
        "tools top_logprobs verbosity web_search_options".split()
    ),
    COMPLETIONS: frozenset(f"{_SAMPLING} temperature top_p user best_of echo prompt suffix".split()),
    EMBEDDINGS: frozenset({"dimensions", "encoding_format", "input", "model", "user"}),
}
_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_FINISH = {"refusal": "stop"}
_EMBEDDING_SIZE = 256
_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class OpenAI:
    """The dialect of OpenAI and of the servers compatible with it."""

    name = "openai"

    def key_of(self, request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(
                401,
                "You didn't provide an API key. You need to provide your API key in an Authorization header using "
                "Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
            )
        return key.strip()

    def failure(self, error: ApiError, serial: str) -> Response:
        body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        return reply({"error": body}, error.status, {"x-request-id": f"req_{serial}", **error.headers})

    def headers(self, serial: str) -> dict[str, str]:
        return {"x-request-id": f"req_{serial}", "openai-version": "2020-10-01", "openai-organization": "simulated"}

    def limit_headers(self, account: Account, wall: float) -> dict[str, str]:
        headers = {}
        for name in ("requests", "tokens"):
            bucket = account.buckets.get(name)
            if bucket is not None:
                headers[f"x-ratelimit-limit-{name}"] = f"{bucket.limit:.0f}"
                headers[f"x-ratelimit-remaining-{name}"] = str(bucket.remaining)
                headers[f"x-ratelimit-reset-{name}"] = duration(bucket.reset)
        return headers

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        bucket = refused.bucket
        kind = "requests" if bucket.name == "requests" else "tokens"
        unit = "RPM" if kind == "requests" else "TPM"
        if math.isinf(refused.wait):
            text = f"Request too large for {model} on {kind} per min ({unit}): Limit {bucket.limit:.0f}, "
            return ApiError(429, f"{text}Requested {refused.amount:.0f}.", type=kind, code="rate_limit_exceeded")
        used = max(0, round(bucket.limit - bucket.level))
        return ApiError(
            429,
            f"Rate limit reached for {model} in organization simulated on {kind} per min ({unit}): Limit "
            f"{bucket.limit:.0f}, Used {used}, Requested {refused.amount:.0f}. Please try again in "
            f"{duration(refused.wait)}.",
            type=kind,
            code="rate_limit_exceeded",
        )

    def no_such_model(self, model: str) -> ApiError:
        text = f"The model `{model}` does not exist or you do not have access to it."
        return ApiError(404, text, code="model_not_found")

    def model_of(self, body: Json) -> str:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise ApiError(400, "you must provide a model parameter")
        return model

    def read(self, endpoint: str, body: Json) -> Prompt:
        for name in body:
            if name not in _KNOWN[endpoint]:
                raise ApiError(400, f"Unrecognized request argument supplied: {name}")
        if body.get("stream"):
            raise _invalid("stream", "this simulator does not stream: leave 'stream' out or set it to false")
        if endpoint == EMBEDDINGS:
            return self._read_embeddings(body)
        _number(body, "temperature", 0, 2)
        _number(body, "top_p", 0, 1)
        _number(body, "frequency_penalty", -2, 2)
        _number(body, "presence_penalty", -2, 2)
        _number(body, "seed", -(2**63), 2**63 - 1, int)
        _number(body, "n", 1, 128, int)
        _number(body, "max_tokens", 1, 2**31, int)
        samples = body.get("n") or 1
        if endpoint == COMPLETIONS:
            return self._read_completion(body, samples)
        _number(body, "max_completion_tokens", 1, 2**31, int)
        check_metadata(body.get("metadata"))
        if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
            raise _invalid("max_tokens", "Setting 'max_tokens' and 'max_completion_tokens' at once is not supported.")
        messages = _required(body, "messages", list)
        if not messages:
            raise ApiError(
                400,
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array "
                "instead.",
                param="messages",
                code="empty_array",
            )
        tokens = TOKENS_PER_MESSAGE
        for index, message in enumerate(messages):
            tokens += TOKENS_PER_MESSAGE + _message_tokens(index, message)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        format = body.get("response_format")
        json = isinstance(format, dict) and format.get("type") == "json_object"
        return Prompt(body["model"], messages, tokens, limit, _stops(body), samples, json)

    def _read_completion(self, body: Json, samples: int) -> Prompt:
        prompts = _inputs(body.get("prompt", "<|endoftext|>"))
        if prompts is None:
            raise _invalid("prompt", "Invalid type for 'prompt': expected a string or an array.", "invalid_type")
        tokens = sum(count_tokens(prompt) if isinstance(prompt, str) else len(prompt) for prompt in prompts)
        messages = [{"role": "user", "content": prompt} for prompt in prompts]
        limit = 16 if body.get("max_tokens") is None else body["max_tokens"]
        return Prompt(body["model"], messages, tokens, limit, _stops(body), samples * len(prompts))

    def _read_embeddings(self, body: Json) -> Prompt:
        _number(body, "dimensions", 1, 4096, int)
        if body.get("encoding_format") not in (None, "float", "base64"):
            raise _invalid("encoding_format", "Invalid value. Supported values are: 'float' and 'base64'.")
        inputs = _inputs(body.get("input"))
        if inputs is None or "" in inputs:
            raise _invalid("input", "'$.input' is invalid: expected a non-empty string or an array of them.")
        tokens = sum(count_tokens(item) if isinstance(item, str) else len(item) for item in inputs)
        return Prompt(body["model"], [{"role": "user", "content": item} for item in inputs], tokens, samples=0)

    def render(self, endpoint: str, body: Json, prompt: Prompt, written: list[Written], stamp: Stamp) -> Json:
        output = sum(answer.tokens for answer in written)
        usage: Json = {"prompt_tokens": prompt.input_tokens, "total_tokens": prompt.input_tokens + output}
        if endpoint == EMBEDDINGS:
            return {"object": "list", "data": _embeddings(body, prompt), "model": prompt.model, "usage": usage}
        usage["completion_tokens"] = output
        usage["prompt_tokens_details"] = {"cached_tokens": stamp.cached, "audio_tokens": 0}
        usage["completion_tokens_details"] = {"reasoning_tokens": 0, "audio_tokens": 0}
        chat = endpoint == CHAT
        choice = _chat_choice if chat else _text_choice
        return {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{stamp.serial}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(stamp.created),
            "model": prompt.model,
            "choices": [choice(index, answer) for index, answer in enumerate(written)],
            **({"usage": usage} if stamp.usage else {}),
            "service_tier": "default",
            "system_fingerprint": "fp_simulated",
        }


def check_metadata(metadata: Any) -> None:
    """Sixteen pairs of short texts at most."""
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise _wrong_type("metadata", "an object", metadata)
    if len(metadata) > 16:
        text = f"Invalid 'metadata': too many properties. Expected at most 16, but got {len(metadata)} instead."
        raise _invalid("metadata", text, "object_above_max_properties")
    for key, value in metadata.items():
        if len(key) > 64:
            text = f"Invalid 'metadata': property name too long. Expected at most 64 characters, but got {len(key)}."
            raise _invalid("metadata", text, "property_name_above_max_length")
        if not isinstance(value, str):
            raise _wrong_type(f"metadata.{key}", "a string", value)
        if len(value) > 512:
            text = f"Invalid 'metadata.{key}': string too long. Expected at most 512 characters, but got {len(value)}."
            raise _invalid(f"metadata.{key}", text, "string_above_max_length")


def _chat_choice(index: int, answer: Written) -> Json:
    refused = answer.finish == "refusal"
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "content": None if refused else answer.text,
            "refusal": answer.text if refused else None,
            "annotations": [],
        },
        "logprobs": None,
        "finish_reason": _FINISH.get(answer.finish, answer.finish),
    }


def _text_choice(index: int, answer: Written) -> Json:
    finish = _FINISH.get(answer.finish, answer.finish)
    return {"index": index, "text": answer.text, "logprobs": None, "finish_reason": finish}


def _embeddings(body: Json, prompt: Prompt) -> list[Json]:
    size = body.get("dimensions") or _EMBEDDING_SIZE
    data: list[Json] = []
    for index, message in enumerate(prompt.messages):
        rng = random.Random(derive_seed(0, prompt.model, encode(message["content"])))
        vector = [rng.gauss(0.0, 1.0) for _ in range(size)]
        length = math.sqrt(sum(value * value for value in vector))
        vector = [value / length for value in vector]
        packed = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        coded: Any = packed if body.get("encoding_format") == "base64" else vector
        data.append({"object": "embedding", "index": index, "embedding": coded})
    return data


def _message_tokens(index: int, message: Any) -> int:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise _wrong_type(where, "an object", message)
    role = message.get("role")
    if role is None:
        raise _invalid(f"{where}.role", f"Missing required parameter: '{where}.role'.", "missing_required_parameter")
    if role not in _ROLES:
        known = ", ".join(repr(name) for name in _ROLES[:-1])
        text = f"Invalid value: {role!r}. Supported values are: {known}, and {_ROLES[-1]!r}."
        raise _invalid(f"{where}.role", text, "invalid_value")
    content = message.get("content")
    if content is None and role == "assistant":
        return 0
    if not isinstance(content, str | list):
        text = f"Invalid value for 'content': expected a string, got {_name(content)}."
        raise _invalid(f"{where}.content", text, "invalid_type")
    return content_tokens(content)


def _inputs(value: Any) -> list[str | list[int]] | None:
    """A text, texts, a list of tokens or lists of tokens, as a list; None for anything else or nothing."""
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]
    usable = isinstance(value, list) and value and all(isinstance(item, str | list) for item in value)
    return value if usable else None


def _stops(body: Json) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise _invalid("stop", "Invalid type for 'stop': expected a string or an array of strings.", "invalid_type")
    if len(stops) > 4:
        text = f"Invalid 'stop': array too long. Expected an array with maximum length 4, but got {len(stops)} instead."
        raise _invalid("stop", text, "array_above_max_length")
    return tuple(stops)


def _required(body: Json, name: str, kind: type) -> Any:
    if body.get(name) is None:
        raise _invalid(name, f"Missing required parameter: '{name}'.", "missing_required_parameter")
    if not isinstance(body[name], kind):
        raise _wrong_type(name, _NAMES[kind], body[name])
    return body[name]


def _number(body: Json, name: str, low: float, high: float, kind: type = float) -> None:
    value = body.get(name)
    if value is None:
        return
    wanted = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise _wrong_type(name, _NAMES[kind], value)
    word = "integer" if kind is int else "decimal"
    if value < low:
        text = f"Invalid '{name}': {word} below minimum value. Expected a value >= {low}, but got {value} instead."
        raise _invalid(name, text, f"{word}_below_min_value")
    if value > high:
        text = f"Invalid '{name}': {word} above maximum value. Expected a value <= {high}, but got {value} instead."
        raise _invalid(name, text, f"{word}_above_max_value")


def _invalid(param: str, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def _wrong_type(param: str, wanted: str, value: Any) -> ApiError:
    text = f"Invalid type for '{param}': expected {wanted}, but got {_name(value)} instead."
    return _invalid(param, text, "invalid_type")


def _name(value: Any) -> str:
    return "null" if value is None else _NAMES.get(type(value), type(value).__name__)
