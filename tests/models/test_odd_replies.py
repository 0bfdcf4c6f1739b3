"""Replies and errors as servers really send them reach the caller as what they mean."""

from __future__ import annotations

import asyncio
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_servers import Request, serving
from hypothesis import given
from hypothesis import strategies as st

from fanfold.calls import Reply
from fanfold.errors import CallFailed
from fanfold.models import model
from fanfold.models.batch.protocol import BatchResults, RemoteBatch
from fanfold.models.http_exchange import Response
from fanfold.models.providers.openai import OpenAIBatches
from fanfold.models.providers.reading import LONGEST_ERROR, decoded, error_in, error_inside, request_id
from fanfold.models.retry import RetryPolicy
from fanfold.models.transport import Transport
from fanfold.redaction import know

TABLE = Path(__file__).parents[1] / "data" / "odd_replies.toml"
REPLIES: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["reply"]
GREETING = b'{"choices": [{"message": {"content": "Hi"}}]}'


def asked(status: int, body: bytes, times: int = 1000) -> tuple[Reply | CallFailed, int]:
    """The outcome of a call to a server that answers so, and then properly; and how often it was asked."""

    async def answer(request: Request) -> None:
        if request.number < times:
            await request.reply(body, f"{status} Whatever")
        else:
            await request.reply(GREETING)

    async def main() -> tuple[Reply | CallFailed, int]:
        async with serving(answer) as server:
            tries = 5 if times < 1000 else 1
            policy = RetryPolicy(tries, refusals=tries, unreadable=tries, first=0.0)
            try:
                return await replace(model("m", base_url=f"{server.url}/v1"), again=policy).generate("Hello"), len(
                    server.requests
                )
            except CallFailed as error:
                return error, len(server.requests)

    return asyncio.run(main())


@pytest.mark.parametrize("case", REPLIES, ids=[case["from"] for case in REPLIES])
def test_a_reply_is_read_as_what_it_means(case: dict[str, Any]) -> None:
    body = bytes.fromhex(case["hex"]) if "hex" in case else case["body"].encode()
    outcome, _ = asked(case.get("status", 200), body)
    if "text" in case:
        assert isinstance(outcome, Reply), outcome
        assert outcome.text == case["text"] and outcome.finish == "stop"
        assert outcome.estimated is not case.get("counted", False)
        assert outcome.input_tokens > 0 and (outcome.output_tokens > 0 or not outcome.text)
    else:
        assert isinstance(outcome, CallFailed), outcome
        assert outcome.kind == case["kind"] and case["says"] in str(outcome)


def test_an_error_inside_a_success_is_tried_again() -> None:
    outcome, requests = asked(200, b'{"error": {"message": "upstream timed out", "code": 504}}', times=2)
    assert isinstance(outcome, Reply) and (outcome.text, requests) == ("Hi", 3)


def test_an_error_inside_a_success_that_will_not_pass_is_not_tried_again() -> None:
    outcome, requests = asked(200, b'{"error": {"message": "no", "type": "invalid_request_error"}}', times=2)
    assert isinstance(outcome, CallFailed) and (outcome.kind, requests) == ("bad-request", 1)


def test_a_long_error_is_trimmed_to_one_line() -> None:
    message = str(error_in("wrong\n\n" + "x" * 10_000)["message"])
    assert message.startswith("wrong x") and message.endswith(" ...") and len(message) == LONGEST_ERROR + 4
    assert "\n" not in message


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["error", "message", "detail", "choices", "code", "type", "object", "loc", "msg"]),
                inner,
            )
        ),
    )
)
@pytest.mark.slow
def test_no_body_does_more_than_describe_an_error(body: Any) -> None:
    assert isinstance(error_in(body).get("message", ""), str)
    inside = error_inside(body)
    assert inside is None or 400 <= inside[0] < 600


@given(st.binary())
def test_no_bytes_do_more_than_be_text(body: bytes) -> None:
    value = decoded(b'{"a": "' + body + b'"}')
    assert isinstance(value, str | dict)
    decoded(body)


def test_nesting_without_end_is_text() -> None:
    assert isinstance(decoded(b"[" * 200_000), str)
    assert error_in({"error": [[[[[[[["deep"]]]]]]]]})["message"] == ""


def test_a_key_that_lenient_reading_would_uncover_stays_hidden() -> None:
    know("sk-very-secret-42")
    hidden = b"\\u0073\\u006b-very-secret-42"
    for body in (
        b'{"a": "\n' + hidden + b'"}',
        b'\xef\xbb\xbf{"a": "' + hidden + b'"}',
        b'{"a": "\\x ' + hidden + b'"}',
    ):
        assert decoded(body)["a"].endswith("***")


def test_a_batch_result_is_read_as_leniently() -> None:
    lines = b'\xef\xbb\xbf{"custom_id": "a", "response": {"status_code": 200, "body": %s}}\n' % GREETING
    lines += b'{"custom_id": "b", "response": {"status_code": 200, "body": %s}}\n' % GREETING.replace(
        b"Hi", b"H\\ud800"
    )
    lines += b'{"custom_id": "c", "resp'

    class File(Transport):
        async def request(self, *args: Any, **options: Any) -> Response:
            return Response(200, {}, lines)

    async def main() -> BatchResults:
        protocol = OpenAIBatches(replace(model("m", base_url="http://127.0.0.1:1/v1"), connect=File))
        return await protocol.results(RemoteBatch("batch-1", 0.0, "completed", True, 2, results=("file-1",)))

    results = asyncio.run(main())
    replies = {id: outcome.text for id, outcome in results.lines.items() if isinstance(outcome, Reply)}
    assert replies == {"a": "Hi", "b": "H\ufffd"} and results.torn == 1


def test_a_request_id_never_shows_a_key_and_is_short() -> None:
    know("sk-very-secret-42")
    assert request_id({"x-request-id": "req sk-very-secret-42"}) == "req ***"
    assert len(request_id({"request-id": "x" * 10_000})) == 200


@pytest.mark.parametrize("path", ["", "/v1"])
def test_what_is_not_there_is_named_with_the_address_that_was_asked(path: str) -> None:
    async def answer(request: Request) -> None:
        await request.reply(b'{"detail": "Not Found"}', "404 Not Found")

    async def main() -> str:
        async with serving(answer) as server:
            with pytest.raises(CallFailed) as caught:
                await model("m", base_url=server.url + path).generate("Hello")
            assert caught.value.kind == "not-found" and f"{server.url}{path}/chat/completions" in str(caught.value)
            return str(caught.value)

    assert ("ends in /v1" in asyncio.run(main())) == (path == "")


def test_a_success_that_is_no_reply_says_what_it_is() -> None:
    outcome, _ = asked(200, b'{"status": "queued", "id": 7}')
    assert str(outcome).endswith("it has no choices, only 'status', 'id'")
