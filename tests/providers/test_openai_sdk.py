"""The official OpenAI SDK takes the simulator for OpenAI: realtime, files, batches, lists, errors."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fanfold.simulator import AccountLimits, Answer, Latency, SimulatorConfig

openai = pytest.importorskip("openai")
Start = Callable[[SimulatorConfig], Any]

FAST = Latency(0.1)
CHAT = "/v1/chat/completions"


def _client(running: Any, key: str = "sk-secret") -> Any:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0, timeout=20)


def _file(n: int, model: str = "gpt-x") -> io.BytesIO:
    rows = [
        {
            "custom_id": f"id-{i}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": model, "messages": [{"role": "user", "content": f"question {i}"}]},
        }
        for i in range(n)
    ]
    file = io.BytesIO("\n".join(json.dumps(row) for row in rows).encode())
    file.name = "requests.jsonl"
    return file


def _until(client: Any, id: str, *statuses: str) -> Any:
    for _ in range(400):
        batch = client.batches.retrieve(id)
        if batch.status in statuses:
            return batch
        time.sleep(0.02)
    raise AssertionError(f"still {batch.status}")


@pytest.mark.slow
def test_realtime_calls_are_answered_counted_and_repeatable(start: Start) -> None:
    client = _client(start(SimulatorConfig()))
    ask = {"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}
    first, second = (client.chat.completions.create(**ask, n=2) for _ in range(2))
    assert [choice.message.content for choice in first.choices] == [c.message.content for c in second.choices]
    assert first.choices[0].message.content != first.choices[1].message.content
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert first.choices[0].finish_reason == "stop"
    short = client.chat.completions.create(**ask, max_completion_tokens=2)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 2
    text = client.completions.create(model="gpt-x", prompt=["one", "two"], max_tokens=5)
    assert len(text.choices) == 2
    vectors = client.embeddings.create(model="e", input=["one", "two"])
    assert len(vectors.data) == 2 and sum(x * x for x in vectors.data[0].embedding) == pytest.approx(1, abs=1e-4)
    assert [model.id for model in client.models.list()] == ["simulated"]


@pytest.mark.slow
def test_a_batch_goes_from_upload_to_results(start: Start) -> None:
    running = start(SimulatorConfig(turnaround=FAST))
    client = _client(running)
    file = client.files.create(file=_file(7), purpose="batch")
    assert file.expires_at is None and client.files.retrieve(file.id).expires_at == file.created_at + 2_592_000
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"tag": "wave-1"}
    )
    assert batch.status == "validating" and batch.request_counts.total == 0
    done = _until(client, batch.id, "completed")
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (7, 7, 0)
    assert done.error_file_id is None and done.metadata == {"tag": "wave-1"}
    rows = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
    assert {row["custom_id"] for row in rows} == {f"id-{i}" for i in range(7)}
    assert all(row["error"] is None and row["response"]["status_code"] == 200 for row in rows)
    assert rows[0]["response"]["body"]["choices"][0]["message"]["content"]
    assert {charge.price for charge in running.simulator.charges} == {"batch"}
    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_lists_are_paged_newest_first(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=FAST)))
    file = client.files.create(file=_file(1), purpose="batch")
    made = [client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id for _ in range(7)]
    page = client.batches.list(limit=3)
    assert [batch.id for batch in page.data] == made[:-4:-1] and page.has_next_page()
    assert [batch.id for batch in client.batches.list(limit=3)] == made[::-1]
    assert [listed.id for listed in client.files.list(purpose="batch")] == [file.id]
    stranger = client.with_options(api_key="another key")
    assert list(stranger.batches.list()) == [] and list(stranger.files.list()) == []


@pytest.mark.slow
def test_a_cancelled_batch_gives_what_it_has(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=Latency(5.0), cancel_seconds=0.1)))
    file = client.files.create(file=_file(40), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    while client.batches.retrieve(batch.id).request_counts.completed == 0:
        time.sleep(0.01)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = _until(client, batch.id, "cancelled")
    good = client.files.content(done.output_file_id).text.splitlines()
    bad = [json.loads(line) for line in client.files.content(done.error_file_id).text.splitlines()]
    assert len(good) == done.request_counts.completed < 40 and len(good) + len(bad) == 40
    assert bad[0]["response"] is None and bad[0]["error"]["code"] == "batch_cancelled"
    with pytest.raises(openai.ConflictError):
        client.batches.cancel(batch.id)


@pytest.mark.slow
def test_a_rejected_line_is_in_the_error_file_with_a_response(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=FAST)))
    row = {"custom_id": "bad", "method": "POST", "url": CHAT, "body": {"model": "gpt-x", "messages": []}}
    file = client.files.create(file=("f.jsonl", json.dumps(row).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    done = _until(client, batch.id, "completed")
    assert done.output_file_id is None and done.request_counts.failed == 1
    (line,) = map(json.loads, client.files.content(done.error_file_id).text.splitlines())
    assert line["error"] is None and line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"]["code"] == "empty_array"


@pytest.mark.slow
def test_errors_become_the_exceptions_of_the_sdk(start: Start) -> None:
    running = start(
        SimulatorConfig(
            models=("gpt-x",), keys=("sk-secret",), model_limits={"gpt-x": AccountLimits(rpm=5)}, turnaround=FAST
        )
    )
    client = _client(running)
    ask = {"model": "gpt-x", "messages": [{"role": "user", "content": "hello"}]}
    with pytest.raises(openai.AuthenticationError) as caught:
        _client(running, "sk-wrong").chat.completions.create(**ask)
    assert caught.value.code == "invalid_api_key" and "sk-wrong" not in str(caught.value)
    assert "x-ratelimit-limit-requests" not in caught.value.response.headers
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**{**ask, "model": "gpt-y"})
    assert caught.value.code == "model_not_found"
    assert "x-ratelimit-limit-requests" not in caught.value.response.headers
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask, temperature=3)
    assert (caught.value.param, caught.value.code) == ("temperature", "decimal_above_max_value")
    assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "4"
    with pytest.raises(openai.BadRequestError, match="only allowed when 'stream' is enabled"):
        client.chat.completions.create(**ask, stream_options={"include_usage": True})
    with pytest.raises(openai.RateLimitError) as caught:
        for _ in range(5):
            client.chat.completions.create(**ask)
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 12
    with pytest.raises(openai.BadRequestError):
        client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
    running.fault({"kind": "internal", "times": 1}, {"kind": "disconnect", "times": 1})
    with pytest.raises(openai.InternalServerError):
        client.models.list()
    with pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_the_handler_decides_what_is_said(start: Start) -> None:
    async def answer(model: str, messages: Any, params: Any, rng: Any) -> Answer:
        return Answer(f"{model} heard {messages[-1]['content']}", output_tokens=9)

    client = _client(start(SimulatorConfig(answer=answer)))
    said = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "tea"}])
    assert said.choices[0].message.content == "m heard tea" and said.usage.completion_tokens == 9


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.slow
def test_tools_schemas_and_streams_are_what_the_sdk_expects(start: Start) -> None:
    pydantic = pytest.importorskip("pydantic")
    client = _client(start(SimulatorConfig()))
    ask: dict[str, Any] = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "How is it in Rome?"}]}
    called = client.chat.completions.create(**ask, tools=[TOOL]).choices[0]
    assert called.finish_reason == "tool_calls" and "city" in json.loads(
        called.message.tool_calls[0].function.arguments
    )
    result = {"role": "tool", "tool_call_id": called.message.tool_calls[0].id, "content": "fine"}
    talk = {**ask, "messages": [*ask["messages"], called.message, result]}
    assert client.chat.completions.create(**talk, tools=[TOOL]).choices[0].message.content
    city = pydantic.create_model("City", name=(str, ...), people=(int, ...))
    parsed = client.chat.completions.parse(**ask, response_format=city).choices[0].message.parsed
    assert isinstance(parsed, city)
    whole = client.chat.completions.create(**ask).choices[0].message.content
    with client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert len(pieces) > 1 and final.choices[0].message.content and final.usage.completion_tokens
    assert "".join(pieces) == final.choices[0].message.content
    assert whole
    with client.chat.completions.stream(**ask, tools=[TOOL]) as stream:
        final = stream.get_final_completion()
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments)["city"]
    listed = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(listed[0].top_logprobs) == 2


@pytest.mark.slow
def test_responses_are_what_the_sdk_expects(start: Start) -> None:
    pydantic = pytest.importorskip("pydantic")
    client = _client(start(SimulatorConfig(reasoning=20)))
    ask: dict[str, Any] = {"model": "gpt-5-pro", "input": "How is it in Rome?"}
    assert client.responses.create(**ask, instructions="Be brief.").output_text
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    called = client.responses.create(**ask, tools=[tool], store=False, include=["reasoning.encrypted_content"])
    assert [item.type for item in called.output] == ["reasoning", "function_call"]
    result = {"type": "function_call_output", "call_id": called.output[1].call_id, "output": "fine"}
    turns = [{"role": "user", "content": ask["input"]}, *called.output, result]
    assert client.responses.create(**{**ask, "input": turns}, tools=[tool]).output_text
    city = pydantic.create_model("City", name=(str, ...), people=(int, ...))
    assert isinstance(client.responses.parse(**ask, text_format=city).output_parsed, city)
    with client.responses.stream(**ask) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(pieces) == stream.get_final_response().output_text and len(pieces) > 1
    with pytest.raises(openai.NotFoundError, match="only supported in v1/responses"):
        client.chat.completions.create(model="gpt-5-pro", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**ask, temperature=0.5)
