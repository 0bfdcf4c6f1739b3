"""Amazon Bedrock: the Converse protocol, with signed requests or a Bedrock API key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from fanfold.calls import Reply
from fanfold.errors import CallFailed
from fanfold.models.providers.contract import Endpoint, Messages, Provider, setting
from fanfold.models.providers.reading import as_dialogue, estimated, malformed, tokens
from fanfold.redaction import know
from fanfold.sigv4 import sign

if TYPE_CHECKING:
    from fanfold.simulator.dialect import Dialect

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool",
    "content_filtered": "filter",
    "guardrail_intervened": "refusal",
}
_KINDS = {
    "AccessDeniedException": "auth",
    "ExpiredTokenException": "auth",
    "InvalidSignatureException": "auth",
    "UnrecognizedClientException": "auth",
    "ResourceNotFoundException": "not-found",
    "ThrottlingException": "rate-limit",
    "ServiceQuotaExceededException": "rate-limit",
    "ModelNotReadyException": "overloaded",
    "ServiceUnavailableException": "overloaded",
    "ModelErrorException": "server",
    "ModelTimeoutException": "server",
}
_STATUSES = {401: "auth", 403: "auth", 404: "not-found", 408: "server", 424: "server", 429: "rate-limit"}
_HOST = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?")
REGION = "us-east-1"


class Bedrock(Provider):
    """Every text model of Bedrock, by its id, the id of an inference profile, or an ARN.

    A key is a Bedrock API key, or ID:SECRET[:SESSION_TOKEN] of an AWS access key, which signs each request.
    """

    name = "bedrock"
    default_url = f"https://bedrock-runtime.{REGION}.amazonaws.com"
    key_variable = "AWS_BEARER_TOKEN_BEDROCK"
    url_variable = "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"
    key_help = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_BEARER_TOKEN_BEDROCK"
    parameters: ClassVar[Mapping[str, str]] = {
        "temperature": "temperature",
        "top_p": "topP",
        "max_tokens": "maxTokens",
        "stop": "stopSequences",
    }
    examples = ("global.anthropic.claude-haiku-5-5", "amazon.nova-micro-v1:0")

    def dialect(self) -> type[Dialect]:
        from fanfold.simulator.bedrock import BedrockDialect

        return BedrockDialect

    def own_key(self) -> str | None:
        pair = [setting(name)[0] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")]
        if token := super().own_key():
            return token
        return ":".join(part for part in pair if part) if pair[0] and pair[1] else None

    def home(self) -> str:
        return self.default_url.replace(REGION, _region())

    def owns(self, url: str) -> bool:
        return bool(_HOST.fullmatch(urlsplit(url).netloc))

    def endpoint(self, model: str, base_url: str | None, key: str | None, options: Mapping[str, Any]) -> Endpoint:
        endpoint = super().endpoint(model, base_url, key, options)
        for part in (endpoint.key or "").split(":"):
            know(part)
        return endpoint

    def request(self, model: str, messages: Messages, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        options = self.translated(parameters)
        if isinstance(options.get("stopSequences"), str):
            options["stopSequences"] = [options["stopSequences"]]
        system = [{"text": str(parameters["system"])}] if parameters.get("system") else []
        turns: list[dict[str, Any]] = []
        for message in as_dialogue(messages):
            content = [{"text": text} for text in _texts(message["content"])]
            if message["role"] in ("system", "developer"):
                system += content
            elif turns and turns[-1]["role"] == message["role"]:
                turns[-1]["content"] += content  # the protocol wants turns to alternate
            else:
                turns.append({"role": message["role"], "content": content})
        body: dict[str, Any] = {"messages": turns}
        body |= {"system": system} if system else {}
        body |= {"inferenceConfig": options} if options else {}
        return f"/model/{quote(model, safe='')}/converse", body

    def headers(self, key: str | None) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key and ":" not in key else {}

    def signed(self, method: str, url: str, body: bytes, key: str | None) -> dict[str, str]:
        if not key or ":" not in key:
            return self.headers(key)
        identity, secret, token = (*key.split(":", 2), "")[:3]
        host = _HOST.fullmatch(urlsplit(url).netloc)
        return sign(method, url, body, (identity, secret, token), (host[1] if host else _region(), "bedrock"))

    def reply(self, body: Mapping[str, Any]) -> Reply:
        try:
            blocks = body["output"]["message"]["content"]
            text = "".join(block["text"] for block in blocks if "text" in block)
            finish = _FINISH.get(body.get("stopReason") or "end_turn", "stop")
            usage = body.get("usage")
            read, written = tokens(usage, "inputTokens"), tokens(usage, "outputTokens")
            cached = tokens(usage, "cacheReadInputTokens") or 0
            stored = tokens(usage, "cacheWriteInputTokens") or 0
            return Reply(
                text="" if finish == "refusal" else text,
                finish=finish,
                refusal=(text or "refused") if finish == "refusal" else None,
                input_tokens=(read or 0) + cached + stored,
                output_tokens=estimated(text) if written is None else written,
                cached_tokens=cached,
                written_tokens=stored,
                estimated=read is None or written is None,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

    def failure(self, status: int, headers: Mapping[str, str], body: Any) -> CallFailed:
        kind = headers.get("x-amzn-errortype", "").partition(":")[0]
        return super().failure(status, headers, {**(body if isinstance(body, Mapping) else {}), "type": kind})

    def error(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = body.get("type") or str(body.get("__type") or "").rpartition("#")[2]
        return {"code": kind, "message": body.get("message") or body.get("Message")}

    def error_kind(self, status: int, error: Mapping[str, Any]) -> str:
        message = str(error.get("message"))
        if "PAYMENT_INSTRUMENT" in message:
            return "billing"
        if "model identifier is invalid" in message:
            return "not-found"
        known = _KINDS.get(str(error.get("code"))) or _STATUSES.get(status)
        return known or ("overloaded" if status == 503 else "server" if status >= 500 else "bad-request")


def _region() -> str:
    return setting("AWS_REGION")[0] or setting("AWS_DEFAULT_REGION")[0] or REGION


def _texts(content: Any) -> list[str]:
    """The texts of a message: one, or the parts of a list."""
    parts = [content] if isinstance(content, str) else content
    return [part if isinstance(part, str) else str(part["text"]) for part in parts]
