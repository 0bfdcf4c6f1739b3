"""OpenAI's protocol at its edge: what a request must look like, what a reply and an error look like."""

from __future__ import annotations

import base64
import functools
import itertools
import math
import random
import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fanfold.capabilities import UNKNOWN, capabilities_of
from fanfold.encoding import derive_seed, encode
from fanfold.simulator.answers import TOKENS_PER_MESSAGE, Completion, ModelRequest, count_tokens, logprobs
from fanfold.simulator.dialect import Dialect, Stamp, Work
from fanfold.simulator.limits import Account, Refused
from fanfold.simulator.openai_content import check_format, check_parts, check_results, tool_to_call
from fanfold.simulator.openai_requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    check_metadata,
    check_model,
    inputs,
    invalid,
    message_tokens,
    number,
    required,
    stops,
)
from fanfold.simulator.openai_responses import (
    PARAMETERS,
    read_response,
    render_response,
    response_events,
)
from fanfold.simulator.openai_store import OpenAIStore
from fanfold.simulator.openai_stream import chunks
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, reply

_SAMPLING = "frequency_penalty logit_bias logprobs max_tokens model n presence_penalty seed stop stream stream_options"
_KNOWN = {
    CHAT: frozenset(
        f"{_SAMPLING} temperature top_p user audio function_call functions max_completion_tokens messages metadata "
        "modalities moderation parallel_tool_calls prediction prompt_cache_key prompt_cache_options "
        "prompt_cache_retention reasoning_effort response_format safety_identifier service_tier store tool_choice "
        "tools top_logprobs verbosity web_search_options".split()
    ),
    COMPLETIONS: frozenset(f"{_SAMPLING} temperature top_p user best_of echo prompt suffix".split()),
    RESPONSES: PARAMETERS,
    EMBEDDINGS: frozenset({"dimensions", "encoding_format", "input", "model", "user"}),
}
_FINISH = {"refusal": "stop"}
_EMBEDDING_SIZE = 256


class OpenAIDialect(Dialect):
    """Chat completions, completions, embeddings, files and batches."""

    name = "openai"
    endpoints: ClassVar[Collection[str]] = (CHAT, RESPONSES, COMPLETIONS, EMBEDDINGS)
    fallback = True
    #: What its paths really begin with.
    root: ClassVar[str] = "/v1"
    #: Parameters that are accepted beside those of the API.
    extra_parameters: ClassVar[frozenset[str]] = frozenset()
    store: ClassVar[type[OpenAIStore]] = OpenAIStore
    #: Whether each model takes only the parameters that it takes at the provider.
    per_model: ClassVar[bool] = True

    def __init__(self, state: SimulatorState) -> None:
        super().__init__(state)
        self._store = self.store(state, self)

    def plain(self, request: Request) -> Request:
        if self.root == "/v1" or not request.path.startswith(f"{self.root}/"):
            return request
        return replace(request, path="/v1" + request.path.removeprefix(self.root))

    def route(self, request: Request) -> tuple[str, Work] | None:
        store = self._store
        version, *parts = request.path.strip("/").split("/")
        match request.method, parts if version == "v1" else []:
            case "GET", ["models"]:
                return "other", lambda request, owner: self._models()
            case "POST", ["files"]:
                return "upload", store.files.upload
            case "GET", ["files"]:
                return "list", lambda request, owner: store.files.list_files(request.query, owner)
            case "GET", ["files", id]:
                return "other", lambda request, owner: store.files.get(id, owner)
            case "DELETE", ["files", id]:
                return "delete", lambda request, owner: store.files.delete(id, owner)
            case "GET", ["files", id, "content"]:
                return "results", lambda request, owner: store.files.content(id, owner)
            case "POST", ["batches"]:
                return "create", store.create
            case "GET", ["batches"]:
                return "list", lambda request, owner: store.list_batches(request.query, owner)
            case "GET", ["batches", id]:
                return "poll", lambda request, owner: store.get(id, owner)
            case "POST", ["batches", id, "cancel"]:
                return "cancel", lambda request, owner: store.cancel(id, owner)
        return None

    def _models(self) -> SimulatedResponse:
        created = int(self.state.wall())
        names = self.state.config.models or ("simulated",)
        data = [{"id": name, "object": "model", "created": created, "owned_by": "simulator"} for name in names]
        return reply({"object": "list", "data": data})

    def key_of(self, request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ApiError(
                401,
                "You didn't provide an API key. You need to provide your API key in an Authorization header using "
                "Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
            )
        return key.strip()

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
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

    def wrong_key(self) -> ApiError:
        return ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        text = "You exceeded your current quota, please check your plan and billing details."
        return ApiError(429, text, type="insufficient_quota", code="insufficient_quota")

    def mishap(self, status: int, text: str) -> ApiError:
        kind, code = ("requests", "rate_limit_exceeded") if status == 429 else ("server_error", None)
        return ApiError(status, text, type=kind, code=code)

    def no_such_model(self, model: str) -> ApiError:
        text = f"The model `{model}` does not exist or you do not have access to it."
        return ApiError(404, text, code="model_not_found")

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        for name in body:
            if name not in _KNOWN[endpoint] and name not in self.extra_parameters:
                raise ApiError(400, f"Unrecognized request argument supplied: {name}")
        if not body.get("stream") and body.get("stream_options") is not None:
            text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise invalid("stream_options", text)
        if endpoint == EMBEDDINGS:
            return self._read_embeddings(body)
        number(body, "temperature", 0, 2)
        number(body, "top_p", 0, 1)
        if endpoint == RESPONSES:
            return self._read_response(body)
        number(body, "frequency_penalty", -2, 2)
        number(body, "presence_penalty", -2, 2)
        number(body, "seed", -(2**63), 2**63 - 1, int)
        number(body, "n", 1, 128, int)
        number(body, "max_tokens", 1, 2**31, int)
        samples = body.get("n") or 1
        if endpoint == COMPLETIONS:
            return self._read_completion(body, samples)
        return self._read_chat(body, samples)

    def _read_chat(self, body: Json, samples: int) -> ModelRequest:
        number(body, "max_completion_tokens", 1, 2**31, int)
        number(body, "top_logprobs", 0, 20, int)
        if self.per_model:
            check_model(body, self.name)
            if "responses" in (capabilities_of(body["model"], provider=self.name).has or ()):
                text = "This model is only supported in v1/responses and not in v1/chat/completions."
                raise ApiError(404, text, param="model")
        check_metadata(body.get("metadata"))
        if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
            raise invalid("max_tokens", "Setting 'max_tokens' and 'max_completion_tokens' at once is not supported.")
        messages = required(body, "messages", list)
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
            tokens += TOKENS_PER_MESSAGE + message_tokens(index, message)
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        known = capabilities_of(body["model"], provider=self.name)
        takes = known if self.per_model else UNKNOWN
        schema = check_format(body, takes)
        check_parts(messages, takes)
        check_results(messages)
        thought = self.state.config.reasoning if known.reasoning(body.get("reasoning_effort")) is not None else 0
        return ModelRequest(
            body["model"],
            messages,
            tokens,
            limit,
            stops(body),
            samples,
            schema == {},
            thought,
            schema or None,
            tool_to_call(body, takes),
            (body.get("top_logprobs") or 0) if body.get("logprobs") else None,
        )

    def _read_completion(self, body: Json, samples: int) -> ModelRequest:
        prompts = inputs(body.get("prompt", "<|endoftext|>"))
        if prompts is None:
            raise invalid("prompt", "Invalid type for 'prompt': expected a string or an array.", "invalid_type")
        tokens = sum(count_tokens(prompt) if isinstance(prompt, str) else len(prompt) for prompt in prompts)
        number(body, "logprobs", 0, 5 if self.per_model else 20, int)
        messages = [{"role": "user", "content": prompt} for prompt in prompts]
        limit = 16 if body.get("max_tokens") is None else body["max_tokens"]
        count, listed = samples * len(prompts), body.get("logprobs")
        return ModelRequest(body["model"], messages, tokens, limit, stops(body), count, logprobs=listed)

    def _read_embeddings(self, body: Json) -> ModelRequest:
        number(body, "dimensions", 1, 4096, int)
        if body.get("encoding_format") not in (None, "float", "base64"):
            raise invalid("encoding_format", "Invalid value. Supported values are: 'float' and 'base64'.")
        items = inputs(body.get("input"))
        if items is None or "" in items:
            raise invalid("input", "'$.input' is invalid: expected a non-empty string or an array of them.")
        tokens = sum(count_tokens(item) if isinstance(item, str) else len(item) for item in items)
        return ModelRequest(body["model"], [{"role": "user", "content": item} for item in items], tokens, samples=0)

    def _read_response(self, body: Json) -> ModelRequest:
        reasoning = body.get("reasoning")
        effort = reasoning.get("effort") if isinstance(reasoning, dict) else None
        if self.per_model:
            check_model({**body, "reasoning_effort": effort}, self.name)
        known = capabilities_of(body["model"], provider=self.name)
        thought = self.state.config.reasoning if known.reasoning(effort) is not None else 0
        return read_response(body, known if self.per_model else UNKNOWN, thought)

    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        if endpoint == RESPONSES:
            return render_response(body, prompt, written[0], stamp)
        output = sum(answer.tokens for answer in written)
        usage: Json = {"prompt_tokens": prompt.input_tokens, "total_tokens": prompt.input_tokens + output}
        if endpoint == EMBEDDINGS:
            return {"object": "list", "data": _embeddings(body, prompt), "model": prompt.model, "usage": usage}
        usage["completion_tokens"] = output
        usage["prompt_tokens_details"] = {"cached_tokens": stamp.cached, "audio_tokens": 0}
        thought = sum(answer.reasoning for answer in written)
        usage["completion_tokens_details"] = {"reasoning_tokens": thought, "audio_tokens": 0}
        chat = endpoint == CHAT
        choice = functools.partial(_chat_choice if chat else _text_choice, prompt=prompt, stamp=stamp)
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

    def events(self, endpoint: str, body: Json, value: Json) -> list[Json] | None:
        return response_events(value) if endpoint == RESPONSES else chunks(body, value)


class CompatibleDialect(OpenAIDialect):
    """A server that speaks OpenAI's protocol and knows more of sampling; no request shows that it is one."""

    fallback = False
    extra_parameters = frozenset({"top_k", "min_p"})
    per_model = False

    def speaks(self, request: Request) -> bool:
        return False


def _chat_choice(index: int, answer: Completion, prompt: ModelRequest, stamp: Stamp) -> Json:
    refused = answer.finish == "refusal"
    message: Json = {
        "role": "assistant",
        "content": None if refused or (answer.calls and not answer.text) else answer.text,
        "refusal": answer.text if refused else None,
        "annotations": [],
    }
    if answer.calls:
        message["tool_calls"] = [
            {"id": f"call_{stamp.serial}{number}", "type": "function", "function": {"name": name, "arguments": given}}
            for number, (name, given) in enumerate(answer.calls)
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": None if prompt.logprobs is None else {"content": _listed(answer.text, prompt.logprobs)},
        "finish_reason": _FINISH.get(answer.finish, answer.finish),
    }


def _listed(text: str, top: int) -> list[Json]:
    return [
        {
            "token": token,
            "logprob": chance,
            "bytes": list(token.encode()),
            "top_logprobs": [
                {"token": other, "logprob": value, "bytes": list(other.encode())} for other, value in likely
            ],
        }
        for token, chance, likely in logprobs(text, top)
    ]


def _text_choice(index: int, answer: Completion, prompt: ModelRequest, stamp: Stamp) -> Json:
    finish = _FINISH.get(answer.finish, answer.finish)
    listed = None if prompt.logprobs is None else _columns(answer.text, prompt.logprobs)
    return {"index": index, "text": answer.text, "logprobs": listed, "finish_reason": finish}


def _columns(text: str, top: int) -> Json:
    rows = logprobs(text, top)
    return {
        "tokens": [token for token, _, _ in rows],
        "token_logprobs": [chance for _, chance, _ in rows],
        "top_logprobs": [dict(likely) for _, _, likely in rows] if top else None,
        "text_offset": list(itertools.accumulate((len(token) for token, _, _ in rows[:-1]), initial=0)),
    }


def _embeddings(body: Json, prompt: ModelRequest) -> list[Json]:
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


def duration(seconds: float) -> str:
    """A span as OpenAI writes it: 4ms, 8.64s, 6m0s, 1h0m30s."""
    if seconds < 1:
        return f"{max(0, math.ceil(seconds * 1000 - 1e-6))}ms"
    minutes, rest = divmod(math.ceil(seconds * 1000 - 1e-6) / 1000, 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{round(rest, 3):g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
