"""What the providers' protocols say, read from replies, errors and headers of the shapes they really have."""

from __future__ import annotations

import email.utils
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import CallFailed, ConfigError
from fanfold.models import model
from fanfold.models.pricing import TABLE, Price, price_of
from fanfold.models.providers.anthropic import Anthropic
from fanfold.models.providers.compatible import Compatible
from fanfold.models.providers.openai import OpenAI
from fanfold.models.providers.reading import duration, retry_after

OPENAI_REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "model": "gpt-6-luna-2026-09-01",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": None}, "finish_reason": "stop"}
    ],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
        "new_field": 1,
    },
}
ANTHROPIC_REPLY = {
    "id": "msg_1",
    "type": "message",
    "model": "claude-haiku-5-5",
    "content": [{"type": "thinking", "thinking": "..."}, {"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1},
}


def test_ordinary_replies_are_read() -> None:
    reply = OpenAI().reply(OPENAI_REPLY)
    assert (reply.text, reply.finish, reply.input_tokens, reply.output_tokens, reply.cached_tokens) == (
        "Hi",
        "stop",
        9,
        2,
        4,
    )
    reply = Anthropic().reply(ANTHROPIC_REPLY)
    assert (reply.text, reply.finish, reply.input_tokens, reply.output_tokens, reply.cached_tokens) == (
        "Hi!",
        "stop",
        15,
        3,
        5,
    )


def test_plain_completions_are_read() -> None:
    assert OpenAI().reply({"choices": [{"text": " Oslo", "finish_reason": "length"}]}).text == " Oslo"


@pytest.mark.parametrize(
    ("reason", "finish"), [("stop", "stop"), ("length", "length"), ("content_filter", "filter"), ("brand-new", "stop")]
)
def test_how_a_reply_ended_is_typed(reason: str, finish: str) -> None:
    body = {"choices": [{"message": {"content": "x"}, "finish_reason": reason}]}
    assert OpenAI().reply(body).finish == finish


def test_a_refusal_never_enters_the_text() -> None:
    body = {"choices": [{"message": {"content": None, "refusal": "I cannot do that"}, "finish_reason": "stop"}]}
    reply = OpenAI().reply(body)
    assert (reply.text, reply.finish, reply.refusal) == ("", "refusal", "I cannot do that")
    reply = Anthropic().reply({**ANTHROPIC_REPLY, "stop_reason": "refusal"})
    assert (reply.text, reply.finish) == ("", "refusal") and reply.refusal == "Hi!"


MALFORMED: list[Any] = [
    {}, {"choices": []}, {"choices": None}, {"choices": [{}]}, {"choices": [{"message": {}}]}, {"choices": [None]},
    {"content": "text"}, {"content": [{"type": "text"}]}, {"choices": [{"message": {"content": None}}]}, {"error": "x"},
]  # fmt: skip


@pytest.mark.parametrize("body", MALFORMED, ids=repr)
@pytest.mark.parametrize("wire", [OpenAI(), Anthropic()], ids=lambda wire: wire.name)
def test_a_malformed_reply_is_a_typed_failure(wire: Any, body: Any) -> None:
    with pytest.raises(CallFailed) as caught:
        wire.reply(body)
    assert caught.value.kind == "malformed" and not caught.value.passing


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, {"code": "invalid_api_key"}, "auth"),
        (403, {}, "auth"),
        (404, {"code": "model_not_found"}, "not-found"),
        (400, {"type": "invalid_request_error"}, "bad-request"),
        (429, {"code": "rate_limit_exceeded"}, "rate-limit"),
        (429, {"code": "insufficient_quota", "type": "insufficient_quota"}, "billing"),
        (500, {}, "server"),
        (502, {}, "server"),
        (503, {}, "overloaded"),
    ],
)
def test_openai_errors_have_kinds(status: int, error: dict[str, Any], kind: str) -> None:
    assert OpenAI().failure(status, {}, {"error": error}).kind == kind


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, {"type": "authentication_error"}, "auth"),
        (403, {"type": "permission_error"}, "auth"),
        (402, {"type": "billing_error"}, "billing"),
        (404, {"type": "not_found_error"}, "not-found"),
        (429, {"type": "rate_limit_error"}, "rate-limit"),
        (429, {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}, "billing"),
        (529, {"type": "overloaded_error"}, "overloaded"),
        (500, {"type": "api_error"}, "server"),
        (400, {"type": "invalid_request_error"}, "bad-request"),
    ],
)
def test_anthropic_errors_have_kinds(status: int, error: dict[str, Any], kind: str) -> None:
    assert Anthropic().failure(status, {}, {"type": "error", "error": error}).kind == kind


@pytest.mark.parametrize("body", [None, "oops", [], {"error": "text"}, {"error": None}])
def test_an_error_without_proper_body_still_has_a_kind(body: Any) -> None:
    assert OpenAI().failure(503, {}, body).passing
    assert Anthropic().failure(529, {}, body).kind == "overloaded"


@pytest.mark.slow
@given(st.one_of(st.text(max_size=30), st.floats().map(str), st.integers(-(10**12), 10**12).map(str)))
def test_retry_after_is_bounded_whatever_it_says(text: str) -> None:
    for name in ("retry-after", "retry-after-ms"):
        seconds = retry_after({name: text})
        assert seconds is None or 0 <= seconds <= 300


def test_retry_after_is_read() -> None:
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after({"retry-after": "1000000000"}) == 300
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert retry_after({"retry-after": "soon"}) is None


@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0000"])
@pytest.mark.parametrize("year", [1999, 2026, 2090])
def test_retry_after_as_a_date_is_read_against_the_date_of_the_response(year: int, zone: str) -> None:
    date = f"Sun, 01 Nov {year} 10:00:00 {zone}"
    assert retry_after({"retry-after": f"Sun, 01 Nov {year} 10:00:42 {zone}", "date": date}) == 42
    assert retry_after({"retry-after": f"Sun, 01 Nov {year} 11:00:00 {zone}", "date": date}) == 300
    assert retry_after({"retry-after": f"Sun, 01 Nov {year} 09:00:00 {zone}", "date": date}) == 0
    assert retry_after({"retry-after": "Sun, 99 Nov", "date": date}) is None


def test_a_date_that_cannot_be_read_leaves_our_own_clock() -> None:
    soon = email.utils.formatdate(time.time() + 60, usegmt=True)
    for date in ("", "yesterday", "Sun, 99 Nov 2026 10:00:00 GMT", "Sun, 01 Nov 99999 10:00:00 GMT"):
        found = retry_after({"retry-after": soon, "date": date})
        assert found is not None and 50 < found <= 60


def test_durations_are_read() -> None:
    assert [duration(text) for text in ("8.64s", "4ms", "1m30s", "2h", "", None, "soon", "5")] == [
        8.64, 0.004, 90, 7200, None, None, None, None,
    ]  # fmt: skip


def test_limits_are_learnt_from_headers() -> None:
    quota = OpenAI().quota(
        {
            "x-ratelimit-limit-requests": "5000",
            "x-ratelimit-remaining-requests": "4999",
            "x-ratelimit-reset-requests": "12ms",
            "x-ratelimit-limit-tokens": "160000",
            "x-ratelimit-remaining-tokens": "-1",
            "x-ratelimit-reset-tokens": "8.64s",
        }
    )
    assert quota is not None
    assert (quota.requests_limit, quota.requests_reset, quota.tokens_remaining) == (5000, 0.012, None)
    quota = Anthropic().quota(
        {
            "date": "Sun, 01 Nov 2026 10:00:00 GMT",
            "anthropic-ratelimit-requests-limit": "50",
            "anthropic-ratelimit-requests-remaining": "49",
            "anthropic-ratelimit-requests-reset": "2026-11-01T10:00:30Z",
            "anthropic-ratelimit-output-tokens-limit": "8000",
        }
    )
    assert quota is not None
    assert (quota.requests_limit, quota.requests_reset, quota.output_tokens_limit) == (50, 30, 8000)
    assert OpenAI().quota({}) is None and Anthropic().quota({"date": "x"}) is None


def test_requests_carry_what_the_provider_calls_it() -> None:
    path, body = OpenAI().request("gpt", "Hello", {"system": "Be brief", "max_tokens": 5, "raw": False})
    assert path == "/chat/completions" and body["max_completion_tokens"] == 5
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    path, body = Anthropic().request(
        "claude", [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], {}
    )
    assert path == "/v1/messages" and body["system"] == "S" and body["max_tokens"] == 1024
    assert [message["role"] for message in body["messages"]] == ["user"]
    path, body = Compatible().request("m", "raw text", {"raw": True, "max_tokens": 3})
    assert path == "/completions" and body == {"model": "m", "prompt": "raw text", "max_tokens": 3}


def test_an_unknown_parameter_or_message_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"no parameter 'temprature'; did you mean 'temperature'"):
        OpenAI().request("gpt", "x", {"temprature": 1})
    with pytest.raises(ConfigError, match=r"anthropic has no parameter 'thinking'; .* goes into extra=\{'thinking'"):
        Anthropic().request("claude", "x", {"thinking": {"type": "adaptive"}})
    with pytest.raises(ConfigError, match=r"no parameter 'stream': use model.stream\("):
        OpenAI().request("gpt", "x", {"stream": True})
    with pytest.raises(ConfigError, match="no option 'api_key'; did you mean 'key'"):
        model("openai/gpt", api_key="x")
    with pytest.raises(ConfigError, match="message 0 needs a role"):
        OpenAI().request("gpt", [{"content": "x"}], {})
    with pytest.raises(ConfigError, match="without any message"):
        OpenAI().request("gpt", [], {})


def test_a_model_may_cost_something_else_at_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "acme/gpt-4o-mini", Price(9.0, 9.0))
    assert price_of("gpt-4o-mini", None, "acme") == Price(9.0, 9.0) == price_of("gpt-4o-mini-latest", None, "acme")
    assert price_of("gpt-4o-mini", provider="openai") == TABLE["gpt-4o-mini"]


def test_unknown_prices_are_unknown_and_batches_cost_half() -> None:
    assert price_of("gpt-99-imaginary") is None
    assert price_of("gpt-4o-mini-2024-07-18") == TABLE["gpt-4o-mini"]
    price = Price(2.0, 10.0, cached=0.5)
    assert math.isclose(price.cost(1_000_000, 100_000), 3.0)
    assert math.isclose(price.cost(1_000_000, 100_000, batch=True), 1.5)
    assert math.isclose(price.cost(1_000_000, 0, cached_tokens=1_000_000), 0.5)
