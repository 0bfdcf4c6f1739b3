"""Anthropic's protocol at its edge: what a request must look like, what a reply and an error look like."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.capabilities import capabilities_of
from fanfold.encoding import encode
from fanfold.simulator.answers import TOKENS_PER_MESSAGE, Completion, ModelRequest, content_tokens, pieces
from fanfold.simulator.anthropic_content import check_blocks, check_format, marks_in, tool_to_call
from fanfold.simulator.anthropic_store import MESSAGES, AnthropicStore, rfc3339
from fanfold.simulator.dialect import Dialect, Stamp, Work
from fanfold.simulator.limits import Account, Refused
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

COUNT = "/v1/messages/count_tokens"

_PARAMETERS = (
    "cache_control container context_management diagnostics inference_geo max_tokens mcp_servers messages metadata "
    "model output_config output_format service_tier speed stop_sequences stream system temperature thinking "
    "tool_choice tools top_k top_p user_profile_id workspace_id"
)
_KNOWN = frozenset(_PARAMETERS.split())
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_FINISH = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal", "tool_calls": "tool_use"}
NO_CREDIT = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase "
    "credits."
)
_VERSION = re.compile(r"20\d\d-\d\d-\d\d")


class AnthropicDialect(Dialect):
    """The dialect of the Messages API."""

    name = "anthropic"
    endpoints = (MESSAGES,)
    counts_stored_prompts = True

    def __init__(self, state: SimulatorState) -> None:
        super().__init__(state)
        self._store = AnthropicStore(state, self)

    def speaks(self, request: Request) -> bool:
        return request.path.startswith(MESSAGES) or "anthropic-version" in request.headers

    def route(self, request: Request) -> tuple[str, Work] | None:
        store = self._store
        match request.method, request.path.strip("/").split("/")[1:]:
            case "POST", ["messages", "count_tokens"]:
                return "other", self._count
            case "GET", ["models"]:
                return "other", lambda request, owner: self._models()
            case "POST", ["messages", "batches"]:
                return "create", store.create
            case "GET", ["messages", "batches"]:
                return "list", store.list_batches
            case "GET", ["messages", "batches", id]:
                return "poll", lambda request, owner: store.get(request, id, owner)
            case "DELETE", ["messages", "batches", id]:
                return "delete", lambda request, owner: store.delete(id, owner)
            case "POST", ["messages", "batches", id, "cancel"]:
                return "cancel", lambda request, owner: store.cancel(request, id, owner)
            case "GET", ["messages", "batches", id, "results"]:
                return "results", lambda request, owner: store.results(id, owner)
        return None

    def _count(self, request: Request, owner: str) -> SimulatedResponse:
        body = read_json(request.body)
        self.state.check_model(self, body)
        return reply({"input_tokens": self.read(COUNT, body).input_tokens})

    def _models(self) -> SimulatedResponse:
        names = self.state.config.models or ("simulated",)
        created = "2026-01-01T00:00:00Z"
        data = [{"type": "model", "id": name, "display_name": name, "created_at": created} for name in names]
        return reply({"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]})

    def key_of(self, request: Request) -> str:
        key = request.headers.get("x-api-key") or request.headers.get("authorization", "").partition(" ")[2]
        if not key.strip():
            raise ApiError(401, "x-api-key header is required")
        version = request.headers.get("anthropic-version")
        if version is None:
            raise ApiError(400, "anthropic-version: header is required")
        if not _VERSION.fullmatch(version):
            raise ApiError(400, f'anthropic-version: "{version}" is not a valid version')
        return key.strip()

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        detail: Json = {"type": _TYPES.get(error.status, "api_error"), "message": error.message}
        if error.code is not None:
            detail["details"] = {"error_code": error.code}
        body = {"type": "error", "error": detail, "request_id": f"req_{serial}"}
        return reply(body, error.status, {**self.headers(serial), **error.headers})

    def headers(self, serial: str) -> dict[str, str]:
        return {"request-id": f"req_{serial}", "anthropic-organization-id": "simulated"}

    def limit_headers(self, account: Account, wall: float) -> dict[str, str]:
        headers = {}
        for name, bucket in account.buckets.items():
            prefix = f"anthropic-ratelimit-{name}"
            headers[f"{prefix}-limit"] = f"{bucket.limit:.0f}"
            headers[f"{prefix}-remaining"] = str(bucket.remaining)
            headers[f"{prefix}-reset"] = rfc3339(wall + bucket.reset, up=True)
        return headers

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        unit = refused.bucket.name.replace("-", " ")
        remedy = "reduce the size of the request" if math.isinf(refused.wait) else "slow down"
        return ApiError(
            429,
            f"This request would exceed your organization's rate limit of {refused.bucket.limit:.0f} {unit} per minute "
            f"(model: {model}). Please {remedy}.",
        )

    def wrong_key(self) -> ApiError:
        return ApiError(401, "invalid x-api-key")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        if batch:
            return ApiError(400, NO_CREDIT)  # as really recorded: no money looks like a bad request
        return ApiError(429, "Your organization's spend limit is reached.", code="enforced_spend_limit_reached")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(404, f"model: {model}")

    def model_of(self, body: Json) -> str:
        model = body.get("model")
        if model is None:
            raise ApiError(400, "model: Field required")
        if not isinstance(model, str):
            raise ApiError(400, "model: Input should be a valid string")
        if not model:
            raise ApiError(400, "model: String should have at least 1 character")
        return model

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        for name in body:
            if name not in _KNOWN:
                raise ApiError(400, f"{name}: Extra inputs are not permitted")
        if endpoint == MESSAGES:
            _number(body, "max_tokens", 1, None, whole=True, required=True)
        _number(body, "temperature", 0, 1)
        _number(body, "top_p", 0, 1)
        _number(body, "top_k", 0, None, whole=True)
        _check_model(body)
        stops = body.get("stop_sequences") or []
        if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
            raise ApiError(400, "stop_sequences: Input should be a valid list of strings")
        if any(not text.strip() for text in stops):
            raise ApiError(400, "stop_sequences: each stop sequence must contain non-whitespace")
        metadata = body.get("metadata")
        if metadata is not None and (not isinstance(metadata, dict) or set(metadata) - {"user_id"}):
            raise ApiError(400, "metadata: Extra inputs are not permitted")
        messages = _messages(body)
        check_blocks(body, messages)
        schema = check_format(body)
        tool = tool_to_call(body, messages)
        reasons = (body.get("thinking") or {}).get("type", "disabled") != "disabled"
        limits = (body.get("max_tokens"), tuple(stops))
        thought = self.state.config.reasoning if reasons else 0
        tokens = _tokens(body, messages)
        return ModelRequest(body["model"], messages, tokens, *limits, reasoning=thought, schema=schema, tool=tool)

    def events(self, endpoint: str, body: Json, value: Json) -> list[Json] | None:
        events: list[Json] = [{"type": "message_start", "message": {**value, "content": [], "stop_reason": None}}]
        for index, block in enumerate(value["content"]):
            name = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
            start = {**block, name: {} if name == "input" else ""}
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            whole = encode(block[name]) if name == "input" else block[name]
            kind, field = ("input_json_delta", "partial_json") if name == "input" else (f"{name}_delta", name)
            for text in pieces(whole):
                delta = {"type": kind, field: text}
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": value["stop_reason"], "stop_sequence": value["stop_sequence"]}
        usage = {"usage": value["usage"]} if "usage" in value else {}
        return [*events, {"type": "message_delta", "delta": delta, **usage}, {"type": "message_stop"}]

    def caches(self, body: Json) -> bool:
        return "cache_control" in body or bool(marks_in(body))

    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        answer = written[0]
        stopped = answer.stop is not None
        content: list[Json] = [{"type": "text", "text": answer.text}] if answer.text else []
        for number, (name, given) in enumerate(answer.calls):
            arguments = read_json(given.encode())
            content.append(
                {"type": "tool_use", "id": f"toolu_{stamp.serial}{number}", "name": name, "input": arguments}
            )
        if answer.reasoning:
            content.insert(0, {"type": "thinking", "thinking": "", "signature": f"simulated-{stamp.serial}"})
        return {
            "id": f"msg_{stamp.serial}",
            "type": "message",
            "role": "assistant",
            "model": prompt.model,
            "content": content,
            "stop_reason": "stop_sequence" if stopped else _FINISH.get(answer.finish, answer.finish),
            "stop_sequence": answer.stop,
            **({"usage": _usage(prompt, answer, stamp)} if stamp.usage else {}),
        }


def _check_model(body: Json) -> None:
    """Refuse what the model does not take."""
    takes = capabilities_of(str(body.get("model")))
    thinking = body.get("thinking") or {}
    if not isinstance(thinking, dict) or thinking.get("type", "disabled") not in ("disabled", "enabled", "adaptive"):
        raise ApiError(400, "thinking.type: Input should be 'adaptive', 'disabled' or 'enabled'")
    kind = thinking.get("type", "disabled")
    if kind == "adaptive" and takes.has is not None and "adaptive" not in takes.has:
        raise ApiError(400, "adaptive thinking is not supported on this model")
    if kind == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < 1024:
            raise ApiError(400, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if budget >= (body.get("max_tokens") or 0):
            raise ApiError(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")
    effort = "none" if kind == "disabled" else "medium"
    for name in ("temperature", "top_p", "top_k"):
        value = body.get(name)
        if value is None or takes.takes(name, value, effort):
            continue
        if name in takes.refuses:
            raise ApiError(400, f"`{name}` is deprecated for this model.")
        raise ApiError(400, f"`{name}` may only be set to 1 when thinking is enabled.")


def _usage(prompt: ModelRequest, answer: Completion, stamp: Stamp) -> Json:
    return {
        "input_tokens": prompt.input_tokens - stamp.cached - stamp.stored,
        "cache_creation_input_tokens": stamp.stored,
        "cache_read_input_tokens": stamp.cached,
        "output_tokens": answer.tokens,
        "output_tokens_details": {"thinking_tokens": answer.reasoning},
        "service_tier": "batch" if stamp.batch else "standard",
    }


def _messages(body: Json) -> list[Mapping[str, Any]]:
    messages = body.get("messages")
    if messages is None:
        raise ApiError(400, "messages: Field required")
    if not isinstance(messages, list):
        raise ApiError(400, "messages: Input should be a valid list")
    if not messages:
        raise ApiError(400, "messages: at least one message is required")
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        if not isinstance(message, dict):
            raise ApiError(400, f"{where}: Input should be a valid dictionary")
        for name in message:
            if name not in ("role", "content"):
                raise ApiError(400, f"{where}.{name}: Extra inputs are not permitted")
        if message.get("role") == "system":
            raise ApiError(
                400,
                'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not '
                '"system" as an input message role.',
            )
        if message.get("role") not in ("user", "assistant"):
            raise ApiError(400, f"{where}.role: Input should be 'user' or 'assistant'")
        _content(where, message, last=index == len(messages) - 1)
    return messages


def _content(where: str, message: Json, *, last: bool) -> None:
    content = message.get("content")
    if content is None:
        raise ApiError(400, f"{where}.content: Field required")
    if not isinstance(content, str | list):
        raise ApiError(400, f"{where}.content: Input should be a valid string or list")
    if not content and not (last and message["role"] == "assistant"):
        text = "all messages must have non-empty content except for the optional final assistant message"
        raise ApiError(400, f"{where}: {text}")
    if isinstance(content, str) and last and message["role"] == "assistant" and content != content.rstrip():
        raise ApiError(400, "messages: final assistant content cannot end with trailing whitespace")


def _tokens(body: Json, messages: list[Mapping[str, Any]]) -> int:
    system = body.get("system")
    if system is not None and not isinstance(system, str | list):
        raise ApiError(400, "system: Input should be a valid string or list")
    total = TOKENS_PER_MESSAGE + content_tokens(system)
    for message in messages:
        total += TOKENS_PER_MESSAGE + content_tokens(message["content"])
    return total


def _number(
    body: Json, name: str, low: float, high: float | None, *, whole: bool = False, required: bool = False
) -> None:
    value = body.get(name)
    if value is None:
        if required:
            raise ApiError(400, f"{name}: Field required")
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ApiError(400, f"{name}: Input should be a valid {'integer' if whole else 'number'}")
    if value < low:
        raise ApiError(400, f"{name}: Input should be greater than or equal to {low}")
    if high is not None and value > high:
        raise ApiError(400, f"{name}: Input should be less than or equal to {high}")
