"""What provider modules share: dialogues to send; and bodies, errors, headers, times and token counts to read."""

from __future__ import annotations

import datetime
import email.utils
import html
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fanfold.errors import CallFailed, ConfigError
from fanfold.flights import Reply, ToolCall
from fanfold.redaction import redact, redact_body

MAX_RETRY_AFTER = 300.0
#: The longest text of a server's error that is shown.
LONGEST_ERROR = 400
#: Where the many shapes of an error keep their text, the likeliest first.
_WORDS = (
    "message",
    "Message",
    "msg",
    "detail",
    "error",
    "errors",
    "error_description",
    "description",
    "reason",
    "title",
)
#: Parts of an error's type or code, without case and underscores, and the status that they stand for.
_STATUS = {
    "ratelimit": 429,
    "quota": 429,
    "overloaded": 503,
    "unavailable": 503,
    "authentication": 401,
    "apikey": 401,
    "unauthorized": 401,
    "permission": 403,
    "forbidden": 403,
    "billing": 402,
    "notfound": 404,
    "badrequest": 400,
    "invalid": 400,
    "contextlength": 400,
    "validation": 400,
}

_DURATIONS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_REQUEST_IDS = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "mistral-correlation-id")


def as_dialogue(messages: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as a list, checked."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    dialogue = [dict(message) for message in messages]
    if not dialogue:
        raise ConfigError("a model cannot be asked without any message")
    for number, message in enumerate(dialogue):
        known = message.get("role") in ("system", "user", "assistant", "tool", "developer")
        if not known or not ("content" in message or message.get("tool_calls")):
            raise ConfigError(
                f"message {number} needs a role (system, user, assistant or tool) and content: {message!r:.100}"
            )
    return dialogue


def decoded(body: bytes) -> Any:
    """The JSON that a server sent, or its text where it is not JSON; without the keys that Fanfold knows.

    A byte order mark, bytes that are not UTF-8, control characters inside strings, invalid escapes and halves of
    surrogate pairs are forgiven: what has no meaning becomes U+FFFD.
    """
    body = redact_body(body)
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        text = body.decode(json.detect_encoding(body), "replace")
    try:
        valid = re.sub(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?', lambda escape: escape[0] if escape[1] else r"\\", text)
        # Written again without escapes: keys that they hid are found, and lone surrogates can be replaced.
        plain = json.dumps(json.loads(valid, strict=False), ensure_ascii=False)
        return json.loads(redact(plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))
    except (ValueError, RecursionError):
        return text


def text_of(content: Any) -> Any:
    """The text of a message: its content, or the parts of text where it is a list of parts."""
    if not isinstance(content, list):
        return content
    parts = [{"text": part} if isinstance(part, str) else part for part in content]
    texts = [part["text"] for part in parts if part.get("type", "text") in ("text", "output_text")]
    return "".join(texts) if texts else None


def tool_call(id: Any, name: Any, arguments: Any) -> ToolCall:
    """A call of a tool; its arguments are a mapping, or its JSON, which a model may get wrong."""
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (ValueError, RecursionError):
            return ToolCall(str(id or ""), str(name), invalid=arguments)
    if not isinstance(arguments, dict):
        return ToolCall(str(id or ""), str(name), invalid="" if arguments is None else str(arguments))
    return ToolCall(str(id or ""), str(name), arguments)


def tool_calls_in(message: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Id, name and arguments of the calls of tools in an assistant's message, as it was written for OpenAI."""
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        yield call["id"], function["name"], msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments


def image_address(part: Mapping[str, Any]) -> str:
    """The address of a part that is an image."""
    image = part.get("image_url")
    return str(image.get("url") if isinstance(image, Mapping) else image)


def image_data(url: str) -> tuple[str, str] | None:
    """The type and the base64 text of an image that is in its address; None where it is somewhere else."""
    if not url.startswith("data:"):
        return None
    coded = re.fullmatch(r"data:(image/[a-z]+);base64,(.*)", url, re.DOTALL)
    if coded is None:
        raise ConfigError(f"an image's data: address must be of the form data:image/png;base64,...: {url[:40]!r}")
    return coded[1], coded[2]


def error_in(body: Any) -> Mapping[str, Any]:
    """The error that a body describes, its text in `message`.

    It understands the shapes of OpenAI, vLLM (`{"object": "error", "message": ...}`), FastAPI (`{"detail": ...}`),
    Ollama (`{"error": "text"}`), gateways, and pages of text or HTML.
    """
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, str):
        return {"message": _trimmed(_without_tags(body))}
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error")
    error = inner if isinstance(inner, Mapping) else body
    return {**error, "message": _trimmed(_words(error))}


def error_inside(body: Any) -> tuple[int, Mapping[str, Any]] | None:
    """The status and the error of a body that came as a success and holds an error in the place of a reply."""
    if type(body) is not dict:
        return None
    choices = body.get("choices")
    if choices:
        first = choices[0] if type(choices) is list else None
        if type(first) is not dict or not first.get("error"):
            return None
        body = first
    elif not body.get("error") and "error" not in (body.get("object"), body.get("type")):
        return None
    return _status(error_in(body)), body


def _status(error: Mapping[str, Any]) -> int:
    """The status that an error would have had: as it says itself, or by its type; 500 where nothing is known."""
    for name in ("code", "status", "status_code"):
        value = number(str(error.get(name) or ""))
        if value is not None and 400 <= value < 600:
            return int(value)
    kind = f"{error.get('type')} {error.get('code')} {error.get('status')}".lower().replace("_", "")
    return next((status for part, status in _STATUS.items() if part in kind), 500)


def _words(value: Any, depth: int = 0) -> str:
    """The text in an error, wherever it is kept."""
    if isinstance(value, str):
        return value
    if depth > 6 or not isinstance(value, list | Mapping):
        return ""
    if isinstance(value, list):
        return "; ".join(words for item in value[:3] if (words := _words(item, depth + 1)))
    text = next((words for name in _WORDS if (words := _words(value.get(name), depth + 1))), "")
    where = value.get("loc")  # FastAPI's name of the field that is wrong
    return f"{'.'.join(map(str, where))}: {text}" if text and isinstance(where, list) else text


def _without_tags(page: str) -> str:
    """The words of a page of HTML or XML; any other text as it is."""
    if not re.match(r"\s*<[!?a-zA-Z]", page):
        return page
    words = re.sub(r"(?is)<(script|style)\b.*?(</\1>|$)|<!--.*?(-->|$)|<[^>]*(>|$)", " ", page[:100_000])
    return html.unescape(words)


def _trimmed(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_ERROR else f"{text[:LONGEST_ERROR]} ..."


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `retry-after` (seconds, or a date), capped; nonsense is None."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if not text:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            moment = http_date(text)
            if moment is None:
                continue
            # By the clock that the date was read from: ours may be wrong by more than the wait.
            now = http_date(headers.get("date", ""))
            seconds = moment - (time.time() if now is None else now)
        if math.isnan(seconds):
            continue
        return min(max(seconds, 0.0), MAX_RETRY_AFTER)
    return None


def request_id(headers: Mapping[str, str]) -> str:
    """The provider's own name for a request, which its support asks for; "" where it has none."""
    for name in _REQUEST_IDS:
        if name in headers:
            return redact(headers[name])[:200]
    return ""


def http_date(text: str) -> float | None:
    """The moment, in seconds since 1970, that a header such as `Date` names; nonsense is None."""
    try:
        moment = email.utils.parsedate_to_datetime(text)
        # Every HTTP date is in UTC, also one that does not say so.
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def moment(text: str) -> float | None:
    """The moment, in seconds since 1970, of an RFC 3339 time; nonsense is None."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if time.tzinfo is None else time.timestamp()


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str | None) -> float | None:
    """Seconds of a text such as "8.64s", "4ms", "1m30s"."""
    if not text:
        return None
    if text[-1] == "s" and text[:-1].isdecimal():
        return float(text[:-1])
    parts = _DURATIONS.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def number(text: str | None) -> float | None:
    """A finite, non-negative number, or None."""
    try:
        value = float(text) if text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def tokens(usage: Any, name: str) -> int | None:
    """A count of a reply's usage; None where the provider does not say it."""
    value = usage.get(name) if type(usage) is dict else None
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def block_reply(text: str, finish: str, counts: Sequence[int | None], **more: Any) -> Reply:
    """The reply of a provider that counts input read from and written to its cache beside the rest.

    `counts` are the tokens of input, output, and input read and written so; None where the provider does not say.
    """
    read, written, cached, stored = counts
    return Reply(
        text="" if finish == "refusal" else text,
        finish=finish,
        refusal=(text or "refused") if finish == "refusal" else None,
        input_tokens=(read or 0) + (cached or 0) + (stored or 0),
        output_tokens=estimated(text) if written is None else written,
        cached_tokens=cached or 0,
        written_tokens=stored or 0,
        estimated=read is None or written is None,
        **more,
    )


def estimated(text: str) -> int:
    """Tokens of a text, where nobody counted them: one for every four characters begun."""
    return -(-len(text) // 4)


def malformed(provider: str, what: str) -> CallFailed:
    return CallFailed("malformed", f"{provider} sent a reply that cannot be read: {what}")
