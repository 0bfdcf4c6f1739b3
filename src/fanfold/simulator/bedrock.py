"""Amazon Bedrock at its edge: Converse requests, signatures, and AWS's way to say what went wrong."""

from __future__ import annotations

import calendar
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote, unquote, urlencode

from fanfold.capabilities import capabilities_of
from fanfold.sigv4 import ALGORITHM, signature
from fanfold.simulator.answers import TOKENS_PER_MESSAGE, Completion, ModelRequest, content_tokens
from fanfold.simulator.bedrock_content import caches, schema_of, system_of, tool_to_call, turns_of
from fanfold.simulator.dialect import Dialect, Stamp
from fanfold.simulator.limits import Refused
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, read_json, reply

_PATH = re.compile(r"/model/(.+)/converse")
_AUTHORIZATION = re.compile(
    ALGORITHM + r" Credential=([^/]+)/(\d{8}/([a-z0-9-]+)/bedrock/aws4_request), ?"
    r"SignedHeaders=([a-z0-9;-]+), ?Signature=([0-9a-f]{64})"
)
#: Seconds by which a signature may differ from the clock.
SKEW = 300
_FIELDS = (
    "additionalModelRequestFields additionalModelResponseFieldPaths guardrailConfig inferenceConfig messages model "
    "outputConfig performanceConfig promptVariables requestMetadata serviceTier system toolConfig"
)
_KNOWN = frozenset(_FIELDS.split())
_INFERENCE = ("maxTokens", "temperature", "topP", "stopSequences")
_FINISH = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "content_filtered",
    "refusal": "guardrail_intervened",
    "tool_calls": "tool_use",
}


class BedrockDialect(Dialect):
    """Converse.  Signatures are checked against the simulator's keys that have a secret: ID:SECRET[:TOKEN]."""

    name = "bedrock"
    counts_stored_prompts = True
    _types: ClassVar[Mapping[int, str]] = {
        400: "ValidationException",
        403: "AccessDeniedException",
        404: "ResourceNotFoundException",
        429: "ThrottlingException",
        503: "ServiceUnavailableException",
    }

    def speaks(self, request: Request) -> bool:
        return _PATH.fullmatch(request.path) is not None

    def generates(self, request: Request) -> bool:
        return request.method == "POST" and self.speaks(request)

    def key_of(self, request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme == "Bearer" and key.strip():
            return key.strip()
        proof = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        if proof is None:
            raise ApiError(403, "Missing Authentication Token", code="MissingAuthenticationTokenException")
        self._check_form(request, proof[2], proof[4].split(";"))
        for known in self.state.config.keys or ():
            identity, secret, token = (*known.split(":", 2), "", "")[:3]
            if identity == proof[1] and secret:
                signed = {name: request.headers[name] for name in proof[4].split(";")}
                path = f"/model/{quote(_model(request), safe='')}/converse"
                query = urlencode(request.query)
                expected = signature(request.method, path, query, signed, request.body, secret, proof[2])
                if token != request.headers.get("x-amz-security-token", ""):
                    raise self.wrong_key()
                if not hmac.compare_digest(expected, proof[5]):
                    raise _unsigned("The request signature we calculated does not match the signature you provided.")
                return known
        return proof[1]

    def _check_form(self, request: Request, place: str, signed: Sequence[str]) -> None:
        stamp = request.headers.get("x-amz-date", "")
        required = {"host", "x-amz-date"} | ({"x-amz-security-token"} & request.headers.keys())
        if list(signed) != sorted(signed) or not required <= set(signed) <= request.headers.keys():
            raise _unsigned("The signed headers are not sorted, incomplete, or not sent.")
        if not re.fullmatch(r"\d{8}T\d{6}Z", stamp) or stamp[:8] != place[:8]:
            raise _unsigned("The date in Credential scope does not match YYYYMMDD of ISO-8601 version of date.")
        if abs(calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")) - self.state.wall()) > SKEW:
            raise _unsigned(f"Signature expired: {stamp} is now too far from the time of this server.")

    def body_of(self, request: Request) -> Json:
        return {**read_json(request.body), "model": _model(request)}

    def read(self, endpoint: str, body: Json) -> ModelRequest:
        for name in body:
            if name not in _KNOWN:
                raise ApiError(400, f"The field {name} is not allowed in this request.")
        options = body.get("inferenceConfig") or {}
        for name in options:
            if name not in _INFERENCE:
                raise ApiError(400, f"The field inferenceConfig.{name} is not allowed in this request.")
        takes = capabilities_of(self.model_of(body), provider=self.name)
        for name, own in (("temperature", "temperature"), ("top_p", "topP")):
            if options.get(own) is not None and not takes.takes(name, options[own]):
                raise ApiError(400, f"The model returned the following errors: `{name}` is deprecated for this model.")
        _number(options, "maxTokens", 1, None)
        _number(options, "temperature", 0, 1)
        _number(options, "topP", 0, 1)
        turns = turns_of(body, takes)
        contents = [system_of(body, takes), *(turn["content"] for turn in turns)]
        tokens = sum(TOKENS_PER_MESSAGE + content_tokens(content) for content in contents)
        limits = (options.get("maxTokens"), tuple(options.get("stopSequences") or ()))
        reasons = takes.reasoning((body.get("outputConfig") or {}).get("effort")) is not None
        return ModelRequest(
            body["model"],
            turns,
            tokens,
            *limits,
            reasoning=self.state.config.reasoning if reasons else 0,
            schema=schema_of(body, takes),
            tool=tool_to_call(body, takes),
        )

    def caches(self, body: Json) -> bool:
        return caches(body)

    def render(
        self, endpoint: str, body: Json, prompt: ModelRequest, written: Sequence[Completion], stamp: Stamp
    ) -> Json:
        answer = written[0]
        finish = "stop_sequence" if answer.stop is not None else _FINISH.get(answer.finish, answer.finish)
        usage = {
            "inputTokens": prompt.input_tokens - stamp.cached - stamp.stored,
            "outputTokens": answer.tokens,
            "totalTokens": prompt.input_tokens + answer.tokens,
            "cacheReadInputTokens": stamp.cached,
            "cacheWriteInputTokens": stamp.stored,
        }
        content: list[Json] = [{"text": answer.text}] if answer.text else []
        for number, (name, arguments) in enumerate(answer.calls):
            call = {
                "toolUseId": f"tooluse_{stamp.serial}{number}",
                "name": name,
                "input": read_json(arguments.encode()),
            }
            content.append({"toolUse": call})
        if answer.reasoning:
            thought = {"text": "Let me think.", "signature": f"simulated-{stamp.serial}"}
            content.insert(0, {"reasoningContent": {"reasoningText": thought}})
        return {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": finish,
            **({"usage": usage} if stamp.usage else {}),
            "metrics": {"latencyMs": 1},
        }

    def headers(self, serial: str) -> dict[str, str]:
        return {"x-amzn-requestid": serial}

    def failure(self, error: ApiError, serial: str) -> SimulatedResponse:
        kind = error.code or self._types.get(error.status, "InternalServerException")
        kind = f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"
        headers = {**self.headers(serial), "x-amzn-errortype": kind, **error.headers}
        return reply({"message": error.message}, error.status, headers)

    def wrong_key(self) -> ApiError:
        text = "The security token included in the request is invalid."
        return ApiError(403, text, code="UnrecognizedClientException")

    def no_such_model(self, model: str) -> ApiError:
        return ApiError(400, "The provided model identifier is invalid.")

    def too_fast(self, model: str, refused: Refused) -> ApiError:
        what = "requests" if refused.bucket.name == "requests" else "tokens"
        return ApiError(429, f"Too many {what}, please wait before trying again.")

    def no_credit(self, *, batch: bool = False) -> ApiError:
        text = "Model access is denied due to INVALID_PAYMENT_INSTRUMENT: A valid payment instrument must be provided."
        return ApiError(403, text)

    def mishap(self, status: int, text: str) -> ApiError:
        return ApiError(503 if status == 529 else status, text)


def _model(request: Request) -> str:
    path = _PATH.fullmatch(request.path)
    assert path is not None, "only requests of this dialect come here"
    return unquote(path[1])


def _unsigned(text: str) -> ApiError:
    return ApiError(403, text, code="InvalidSignatureException")


def _number(options: Json, name: str, low: float, high: float | None) -> None:
    value = options.get(name)
    if value is None:
        return
    whole = high is None
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ApiError(400, f"The value at inferenceConfig.{name} has another type.", code="SerializationException")
    if value < low or (high is not None and value > high):
        raise ApiError(
            400,
            f"1 validation error detected: Value '{value}' at 'inferenceConfig.{name}' failed to satisfy constraint: "
            f"Member must have a value of at least {low}{'' if high is None else f' and at most {high}'}",
        )
