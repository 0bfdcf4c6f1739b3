"""Requests that a provider would refuse are refused, in its words and with its codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_talk import Talk as Client

from fanfold.errors import ConfigError
from fanfold.simulator import Answer, Latency, Request, SimulatedResponse, Simulator, SimulatorConfig
from fanfold.simulator.answers import ModelRequest, finish
from fanfold.testing import run_virtual

Talk = Callable[..., Any]


OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]}


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_type"),
        ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"stop": ["a"] * 5}, "stop", "array_above_max_length"),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": OPEN}}},
            "response_format",
            None,
        ),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role", None),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages", None),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0]", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "cat.png"}}]}]},
            "messages[0].content[0]",
            "invalid_value",
        ),
        ({"tempreature": 1}, None, None),
        ({"model": ""}, None, None),
    ],
)
def test_openai_refuses_with_its_codes(talk: Talk, change: Any, param: str | None, code: str | None) -> None:
    async def main() -> None:
        client = talk()
        answer = await client.chat(**change)
        error = answer.json()["error"]
        assert answer.status == 400 and set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
        assert client.simulator.charges == []

    run_virtual(main())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"max_tokens": "9"}, "max_tokens: Input should be a valid integer"),
        ({"temperature": 1.5}, "temperature: Input should be less than or equal to 1"),
        ({"messages": None}, "messages: Field required"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "system", "content": "x"}]}, "top-level `system`"),
        ({"messages": [{"role": "user", "content": ""}]}, "non-empty content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "must be non-empty"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}]},
            "trailing whitespace",
        ),
        ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages.0.name: Extra inputs"),
        ({"metadata": {"tag": "x"}}, "metadata: Extra inputs"),
        ({"stop_sequences": [" "]}, "non-whitespace"),
        ({"system": 3}, "system:"),
        ({"tools": [{"name": "a"}]}, "tools.0.custom.input_schema: Field required"),
        ({"tool_choice": {"type": "any"}}, "tool_choice may only be specified while providing tools"),
        ({"output_config": {"format": {"type": "json_schema", "schema": OPEN}}}, "'additionalProperties' must be"),
        ({"output_config": {"verbosity": 1}}, "output_config: Extra inputs"),
        ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages.0.content.0: Input tag 'smell'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]},
            "unexpected `tool",
        ),
        ({"messages": [TOOL_USE, {"role": "user", "content": "x"}]}, "without `tool_result` blocks immediately after"),
        (
            {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5},
            "maximum of 4 blocks",
        ),
        ({"n": 2}, "n: Extra inputs are not permitted"),
        ({"model": None}, "model: Field required"),
    ],
)
def test_anthropic_refuses_in_its_words(talk: Talk, change: Any, words: str) -> None:
    async def main() -> None:
        client = talk()
        answer = await client.message(**change)
        body = answer.json()
        assert answer.status == 400 and body["type"] == "error" and body["request_id"]
        assert body["error"]["type"] == "invalid_request_error" and words in body["error"]["message"]
        assert client.simulator.charges == []

    run_virtual(main())


def test_who_does_not_say_who_they_are_is_not_let_in() -> None:
    async def main() -> None:
        simulator = Simulator(SimulatorConfig(keys=("good",)))
        for path, headers, status in (
            ("/v1/chat/completions", {}, 401),
            ("/v1/chat/completions", {"authorization": "Basic good"}, 401),
            ("/v1/chat/completions", {"authorization": "Bearer bad"}, 401),
            ("/v1/messages", {"anthropic-version": "2026-10-21"}, 401),
            ("/v1/messages", {"x-api-key": "good"}, 400),
            ("/v1/messages", {"x-api-key": "good", "anthropic-version": "latest"}, 400),
            ("/v1/messages", {"x-api-key": "bad", "anthropic-version": "2026-10-21"}, 401),
            ("/v1/nowhere", {"authorization": "Bearer good"}, 404),
        ):
            answer = await simulator.respond(Request("POST", path, {}, headers, b"{}"))
            assert isinstance(answer, SimulatedResponse) and answer.status == status, path
            assert b"bad" not in answer.body, "a key is not repeated"
        assert "good" not in repr(simulator.config)
        assert not any("good" in str(charge) for charge in simulator.charges)

    run_virtual(main())


def test_bodies_that_are_not_objects_are_refused(talk: Talk) -> None:
    async def main() -> None:
        client = talk()
        for body in (b"", b"{", b"[]", b'{"model": NaN}', b"\xff"):
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/batches", "/v1/messages/batches"):
                assert (await client.ask("POST", path, body)).status == 400

    run_virtual(main())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-3, 3) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = ("messages", "prompt", "input", "stop", "n", "max_tokens", "temperature", "system", "metadata", "dimensions")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"]),
    body=st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=5),
)
def test_no_body_whatever_it_holds_is_answered_with_a_crash(path: str, body: dict[str, Any]) -> None:
    async def main() -> None:
        answer = await Client(Simulator()).ask("POST", path, {"model": "m", **body})
        assert answer.status in (200, 400)

    run_virtual(main())


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    text=st.text(max_size=60),
    limit=st.none() | st.integers(1, 20),
    stop=st.lists(st.text(min_size=1, max_size=2), max_size=3),
)
def test_answers_never_exceed_the_limit_nor_contain_a_stop(text: str, limit: int | None, stop: list[str]) -> None:
    written = finish(Answer(text), ModelRequest("m", [], 1, limit, tuple(stop)))
    assert text.startswith(written.text)
    assert limit is None or written.tokens <= limit
    assert not any(sequence in written.text for sequence in stop)
    assert written.tokens == -(-len(written.text) // 4)


def test_the_same_request_gets_the_same_answer_and_a_sample_another(talk: Talk) -> None:
    async def main() -> None:
        texts = []
        for headers in ({}, {}, {"x-fanfold-sample": "1"}):
            body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
            request = Request("POST", "/v1/chat/completions", {}, {"authorization": "Bearer k", **headers}, body)
            answer = await simulator.respond(request)
            assert isinstance(answer, SimulatedResponse)
            texts.append(answer.json()["choices"][0]["message"]["content"])
        assert texts[0] == texts[1] != texts[2]
        assert list(simulator.billing.duplicates().values()) == [2]

    simulator = Simulator()
    run_virtual(main())


def test_settings_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigError, match="not both"):
        SimulatorConfig(answer=lambda *_: "", upstream=lambda *_: "")
    with pytest.raises(ConfigError, match="median"):
        Latency.parse("fast")
    with pytest.raises(ConfigError):
        Latency.parse("-1")
    assert Latency.parse("0.5,0.4,0.01") == Latency(0.5, 0.4, 0.01)
