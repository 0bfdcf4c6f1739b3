"""Gemini's protocol at its edge: what a request must look like, what a reply and an error look like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fanfold.capabilities import capabilities_of
from fanfold.simulator.answers import TOKENS_PER_MESSAGE, Completion, ModelRequest, content_tokens
from fanfold.simulator.dialect import Dialect, Stamp, Work
from fanfold.simulator.gemini_content import camelled, candidate, check_contents, tool_to_call
from fanfold.simulator.gemini_store import GeminiStore
from fanfold.simulator.limits import Refused
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

_GENERATE = re.compile(r"/v1beta/models/([^/:]+):generateContent")
#: The official client asks for this version, others for the one before, and both are the same here.
_STABLE = re.compile(r"^(/upload|/download)?/v1/")
_KNOWN = (
    "cachedContent contents generationConfig labels model safetySettings serviceTier store systemInstruction "
    "toolConfig tools"
)
_CONFIG = (
    "audioTimestamp candidateCount enableEnhancedCivicAnswers frequencyPenalty imageConfig logprobs maxOutputTokens "
    "mediaResolution presencePenalty responseFormat responseJsonSchema responseLogprobs responseMimeType "
    "responseModalities responseSchema seed speechConfig stopSequences temperature thinkingConfig topK topP"
)
_FIELDS = {
    "": frozenset(_KNOWN.split()),
    "generation_config": frozenset(_CONFIG.split()),
    "generation_config.thinking_config": frozenset({"includeThoughts", "thinkingBudget", "thinkingLevel"}),
}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FINISH = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_LEVELS = ("minimal", "low", "medium", "high")


class GeminiDialect(Dialect):
    """generateContent, files and batches of the Gemini API."""

    name = "gemini"

    def __init__(self, state: SimulatorState) -> None:
        super().__init__(state)
        self._store = GeminiStore(state, self)

    def speaks(self, request: Request) -> bool:
        return "x-goog-api-key" in request.headers or "/v1beta/" in request.path

    def plain(self, request: Request) -> Request:
        return replace(request, path=_STABLE.sub(r"\1/v1beta/", request.path))

    def generates(self, request: Request) -> bool:
        return request.method == "POST" and _GENERATE.fullmatch(request.path) is not None

    def route(self, request: Request) -> tuple[str, Work] | None:
        store = self._store
        match request.method, re.split("[/:]", request.path.strip("/")):
            case "GET", ["v1beta", "models"]:
                return "other", lambda request, owner: self._models()
            case "POST", ["v1beta", "models", model, "countTokens"]:
                return "other", lambda request, owner: self._count(request, model)
            case "POST", ["v1beta", "models", model, "batchGenerateContent"]:
                return "create", lambda request, owner: store.create(request, model, owner)
            case "GET", ["v1beta", "batches"]:
                return "list", store.list_batches
            case "GET", ["v1beta", "batches", id]:
                return "poll", lambda request, owner: store.get(id, owner)
            case "POST", ["v1beta", "batches", id, "cancel"]:
                return "cancel", lambda request, owner: store.cancel(id, owner)
            case "DELETE", ["v1beta", "batches", id]:
                return "delete", lambda request, owner: store.delete(id, owner)
            case "POST", ["upload", "v1beta", "files"]:
                return "upload", store.upload
            case "GET", ["v1beta", "files", id]:
                return "other", lambda request, owner: reply(store.file_view(store.file(f"files/{id}", owner)))
            case "GET", ["v1beta", "files", id, "download"] | ["download", "v1beta", "files", id, "download"]:
                return "results", lambda request, owner: store.download(id, owner)
        return None

    def _models(self) -> SimulatedResponse:
        names = self.state.config.models or ("simulated",)
        methods = ["generateContent", "countTokens", "batchGenerateContent"]
        return reply({"models": [{"name": f"models/{name}", "supportedGenerationMethods": methods} for name in names]})

    def _count(self, request: Request, model: str) -> SimulatedResponse:
        body = read_json(request.body)
        body = {"model": f"models/{model}", **body.get("generateContentRequest", body)}
        self.state.check_model(self, body)
        return reply({"totalTokens": self.read(request.path, body).input_tokens})

    # -- requests ----------------------------------------------------------------------------------------------------

    def key_of(self, request: Request) -> str:
        key = request.headers.get("x-goog-api-key") or request.query.get("key") or self._store.uploader(request)
        if not key.strip():
            raise ApiError(
                403,
                "Method doesn't allow unregistered callers (callers without established identity). Please use API Key "
                "or other form of API consumer identity to call this API.",
            )
        return key.strip()

    def body_of(self, request: Request) -> Json:
        path = _GENERATE.fullmatch(request.path)
        assert path is not None
        return {**read_json(request.body), "model": f"models/{path[1]}"}

    def model_of(self, body: Json) -> str:
        return str(body.get("model")).removeprefix("models/")

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        body = camelled(body)
        _check_names(body, "")
        config = body.get("generationConfig") or {}
        if not isinstance(config, dict):
            raise ApiError(400, "Invalid value at 'generation_config' (type.googleapis.com/GenerationConfig)")
        _check_names(config, "generation_config")
        _check_config(config)
        thinks = _check_model(self.model_of(body), config)
        messages = [] if body.get("systemInstruction") is None else [_message("system", body["systemInstruction"])]
        contents = body.get("contents")
        if not isinstance(contents, list) or not contents:
            raise ApiError(400, "* GenerateContentRequest.contents: contents is not specified\n")
        check_contents(self.model_of(body), contents)
        roles = ("assistant" if content.get("role") == "model" else "user" for content in contents)
        messages += map(_message, roles, contents)
        tokens = TOKENS_PER_MESSAGE + sum(TOKENS_PER_MESSAGE + content_tokens(each["content"]) for each in messages)
        return ModelRequest(
            self.model_of(body),
            messages,
            tokens,
            config.get("maxOutputTokens"),
            tuple(config.get("stopSequences") or ()),
            config.get("candidateCount") or 1,
            config.get("responseMimeType") == "application/json",
            self.state.config.reasoning if thinks else 0,
            config.get("responseJsonSchema") or config.get("responseSchema"),
            tool_to_call(self.model_of(body), body),
            (config.get("logprobs") or 0) if config.get("responseLogprobs") else None,
        )

    # -- responses ---------------------------------------------------------------------------------------------------

    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        output = sum(answer.tokens for answer in written)
        usage: Json = {"promptTokenCount": prompt.input_tokens, "totalTokenCount": prompt.input_tokens + output}
        thoughts = sum(answer.reasoning for answer in written)
        counts = {"candidatesTokenCount": output - thoughts, "thoughtsTokenCount": thoughts}
        usage |= {name: count for name, count in counts.items() if count}
        if stamp.cached:
            usage["cachedContentTokenCount"] = stamp.cached
        value: Json = {"modelVersion": prompt.model, "responseId": stamp.serial}
        if written[0].finish == "refusal":
            value["promptFeedback"] = {"blockReason": "PROHIBITED_CONTENT"}
        else:
            value["candidates"] = [
                candidate(index, answer, _FINISH.get(answer.finish, "OTHER"), prompt.logprobs, stamp.serial)
                for index, answer in enumerate(written)
            ]
        return {**value, "usageMetadata": usage} if stamp.usage else value

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        status = _STATUSES.get(error.status, "INTERNAL")
        detail: Json = {"code": error.status, "message": error.message, "status": status}
        details: list[Json] = []
        if error.code is not None:
            details.append(_detail("ErrorInfo", reason=error.code, domain="googleapis.com"))
        if error.param is not None:
            violation = {"field": error.param, "description": error.message}
            details.append(_detail("BadRequest", fieldViolations=[violation]))
        # What others say in a header is in the body here, in seconds.
        waits = {"retry-after-ms": 0.001, "retry-after": 1.0}
        wait = next((name for name in waits if error.headers.get(name, "").isdigit()), None)
        if wait is not None:
            details.append(_detail("RetryInfo", retryDelay=f"{int(error.headers[wait]) * waits[wait]:g}s"))
        if details:
            detail["details"] = details
        return reply({"error": detail}, error.status)

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        metric = "requests" if refused.bucket.name == "requests" else "input_token_count"
        return ApiError(
            429,
            "You exceeded your current quota, please check your plan and billing details.\n"
            f"* Quota exceeded for metric: generativelanguage.googleapis.com/generate_content_{metric}, "
            f"limit: {refused.bucket.limit:.0f}, model: {model}",
        )

    def wrong_key(self) -> ApiError:
        return ApiError(400, "API key not valid. Please pass a valid API key.", code="API_KEY_INVALID")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(
            404,
            f"models/{model} is not found for API version v1beta, or is not supported for generateContent. Call "
            "ListModels to see the list of available models and their supported methods.",
        )

    def no_credit(self, *, batch: bool = False) -> ApiError:
        return ApiError(402, "Your prepayment credits are depleted. Please go to AI Studio to manage your billing.")

    def mishap(self, status: int, text: str) -> ApiError:
        return (
            ApiError(503, "The model is overloaded. Please try again later.")
            if status == 529
            else ApiError(status, text)
        )


def _detail(kind: str, **fields: Any) -> Json:
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **fields}


def _message(role: str, content: Any) -> Mapping[str, Any]:
    parts = content.get("parts") if isinstance(content, dict) else None
    if not isinstance(parts, list):
        raise ApiError(400, "Invalid value at 'system_instruction' (type.googleapis.com/Content)")
    if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
        return {"role": role, "content": "\n".join(part["text"] for part in parts)}
    return {"role": role, "content": parts}


def _check_names(value: Json, where: str) -> None:
    for name in value:
        if name not in _FIELDS[where]:
            at = f" at '{where}'" if where else ""
            text = f'Invalid JSON payload received. Unknown name "{name}"{at}: Cannot find field.'
            raise ApiError(400, text, param=where or name)


def _check_config(config: Json) -> None:
    _number(config, "temperature", 0, 2)
    _number(config, "topP", 0, 1)
    _number(config, "topK", 1, 2**31)
    for name, low, high in (("maxOutputTokens", 1, 2**31), ("candidateCount", 1, 8), ("seed", -(2**31), 2**31)):
        _number(config, name, low, high, whole=True)
    _number(config, "logprobs", 0, 20, whole=True)
    if config.get("logprobs") is not None and not config.get("responseLogprobs"):
        raise _invalid("logprobs", "it needs response_logprobs")
    stops = config.get("stopSequences") or []
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise _invalid("stopSequences", "expected a list of texts that are not empty")
    if len(stops) > 5:
        raise _invalid("stopSequences", "the number of stop sequences must be at most 5")
    mime = config.get("responseMimeType")
    if mime not in (None, "text/plain", "application/json", "text/x.enum"):
        raise _invalid("responseMimeType", "allowed mimetypes are `text/plain`, `application/json`, `text/x.enum`")
    if mime in (None, "text/plain") and (config.get("responseSchema") or config.get("responseJsonSchema")):
        raise _invalid("responseSchema", "only allowed with a response mime type of JSON")
    thinking = config.get("thinkingConfig")
    if isinstance(thinking, dict):
        _check_names(thinking, "generation_config.thinking_config")
        if thinking.get("thinkingBudget") is not None and thinking.get("thinkingLevel") is not None:
            raise ApiError(400, "You can only set only one of thinking budget and thinking level.")
        if str(thinking.get("thinkingLevel", "low")).lower() not in _LEVELS:
            raise _invalid("thinkingConfig.thinkingLevel", f"expected one of {', '.join(_LEVELS)}")


#: Parameters that models differ in, by Fanfold's names.
_BY_MODEL = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "seed": "seed",
    "stopSequences": "stop",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "candidateCount": "n",
    "responseLogprobs": "logprobs",
}


def _check_model(model: str, config: Json) -> bool:
    """Refuse what the model does not take; whether it will think."""
    takes = capabilities_of(model, provider="gemini")
    thinking = config.get("thinkingConfig") or {}
    level = thinking.get("thinkingLevel")
    if level is not None:
        if re.match(r"gemini-[12]\b", model):
            raise ApiError(400, "Thinking level is not supported for this model.")
        if not takes.takes("reasoning_effort", str(level).lower()):
            raise ApiError(400, f"Thinking level {level} is not supported for this model.")
    for name, ours in _BY_MODEL.items():
        value = config.get(name)
        if value is None or takes.takes(ours, value):
            continue
        if name.endswith("Penalty"):
            raise ApiError(400, f"Penalty is not enabled for models/{model}")
        raise ApiError(400, f"{name} is not supported for this model.")
    budget = thinking.get("thinkingBudget")
    return bool(budget) if budget is not None else takes.reasoning(None) is not None or level is not None


def _number(config: Json, name: str, low: float, high: float, *, whole: bool = False) -> None:
    value = config.get(name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise _invalid(name, f"expected {'an integer' if whole else 'a number'}, not {value!r}")
    if not low <= value <= high:
        raise _invalid(name, f"{value} is outside of [{low}, {high}]")


def _invalid(name: str, why: str) -> ApiError:
    return ApiError(400, f"* GenerateContentRequest.generation_config.{name}: {why}\n", param=name)
