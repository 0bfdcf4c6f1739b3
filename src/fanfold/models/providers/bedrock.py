"""Amazon Bedrock: the Converse protocol, with signed requests or a Bedrock API key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, urlsplit

from fanfold.calls import Reply
from fanfold.errors import CallFailed
from fanfold.models.providers.bedrock_content import mark, output_config, tool_config, turned
from fanfold.models.providers.contract import Endpoint, Messages, Provider, setting
from fanfold.models.providers.reading import as_dialogue, block_reply, estimated, malformed, tokens, tool_call
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
_COUNTS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")


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
        "tools": "toolConfig",
        "tool_choice": "toolChoice",
        "response_format": "textFormat",
        "reasoning_effort": "effort",
        "cache": "cachePoint",
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
        tools, choice = options.pop("toolConfig", None), options.pop("toolChoice", None)
        output = output_config(options.pop("textFormat", None), options.pop("effort", None))
        system, turns = turned(as_dialogue(messages), parameters.get("system"))
        if options.pop("cachePoint", None):
            mark(system, turns)
        body = {
            "messages": turns,
            "system": system,
            "inferenceConfig": options,
            "toolConfig": tool_config(tools, choice) if tools else None,
            "outputConfig": output,
        }
        return f"/model/{quote(model, safe='')}/converse", {name: value for name, value in body.items() if value}

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
            reason = str(body.get("stopReason") or "end_turn")
            if reason.startswith("malformed"):
                raise malformed(self.name, f"the model did not finish: {reason}")
            finish = _FINISH.get(reason, "stop")
            usage = body.get("usage")
            counts = [tokens(usage, name) for name in _COUNTS]
            return block_reply(text, finish, counts, **_beyond(blocks, counts[1] or 0, estimated(text)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise malformed(self.name, f"{type(error).__name__} {error}") from error

    def failure(self, status: int, headers: Mapping[str, str], body: Any) -> CallFailed:
        kind = headers.get("x-amzn-errortype", "").partition(":")[0]
        return super().failure(status, headers, {**(body if isinstance(body, Mapping) else {}), "type": kind})

    def error(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        kind = body.get("type") or str(body.get("__type") or "").rpartition("#")[2]
        message = str(body.get("message") or body.get("Message") or "")
        # Errors of the model itself use the model's own names.
        named = next((own for name, own in self.parameters.items() if f"`{name}`" in message), None)
        return {"code": kind, "message": message, "param": named}

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


def _beyond(blocks: Sequence[Mapping[str, Any]], written: int, visible: int) -> dict[str, Any]:
    """What a reply holds beside its text."""
    if all("text" in block for block in blocks):
        return {}
    calls = [block["toolUse"] for block in blocks if "toolUse" in block]
    more: dict[str, Any] = {"parts": tuple(blocks)}
    more["tool_calls"] = tuple(tool_call(call["toolUseId"], call["name"], call["input"]) for call in calls)
    thoughts = [block["reasoningContent"] for block in blocks if "reasoningContent" in block]
    if thoughts:  # it is counted among the output: what is not visible was thought
        visible += sum(estimated(str(call["input"])) for call in calls)
        more["reasoning"] = "".join(str((thought.get("reasoningText") or {}).get("text") or "") for thought in thoughts)
        more["reasoning_tokens"] = max(0, written - visible)
    return more
