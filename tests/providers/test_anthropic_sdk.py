"""The official Anthropic SDK takes the simulator for Anthropic: messages, batches, lists, deletion, errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fanfold.simulator import AccountLimits, Latency, SimulatorConfig

anthropic = pytest.importorskip("anthropic")
Start = Callable[[SimulatorConfig], Any]

FAST = Latency(0.1)
ASK: dict[str, Any] = {"model": "claude-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}


def _client(running: Any, key: str = "sk-ant") -> Any:
    return anthropic.Anthropic(base_url=running.url, api_key=key, max_retries=0, timeout=20)


def _requests(n: int) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"run-tag-{i}", "params": {**ASK, "messages": [{"role": "user", "content": f"question {i}"}]}}
        for i in range(n)
    ]


def _until_ended(client: Any, id: str) -> Any:
    for _ in range(400):
        batch = client.messages.batches.retrieve(id)
        if batch.processing_status == "ended":
            return batch
        time.sleep(0.02)
    raise AssertionError(f"still {batch.processing_status}")


def test_messages_are_answered_and_counted(start: Start) -> None:
    client = _client(start(SimulatorConfig()))
    said = client.messages.create(**ASK, system="be brief")
    assert said.content[0].text and said.stop_reason in ("end_turn", "max_tokens")
    assert said.usage.service_tier == "standard" and said.usage.output_tokens <= 50
    counted = client.messages.count_tokens(model="claude-x", messages=ASK["messages"], system="be brief")
    assert counted.input_tokens == said.usage.input_tokens
    short = client.messages.create(**{**ASK, "max_tokens": 1})
    assert short.stop_reason == "max_tokens"
    stopped = client.messages.create(**{**ASK, "max_tokens": 1000}, stop_sequences=["."])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ".")
    assert [model.id for model in client.models.list()] == ["simulated"]


def test_a_batch_in_progress_has_no_results_and_cannot_be_deleted(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=Latency(3600.0))))
    batch = client.messages.batches.create(requests=_requests(6))
    assert batch.processing_status == "in_progress" and batch.results_url is None
    with pytest.raises(anthropic.BadRequestError):
        client.messages.batches.delete(batch.id)
    raw = client.messages.batches.with_raw_response.retrieve(batch.id)
    assert raw.headers["retry-after"] == "10"
    counts = raw.parse().request_counts
    assert (counts.processing, counts.succeeded) == (6, 0)


@pytest.mark.slow
def test_a_batch_goes_from_creation_to_results_and_deletion(start: Start) -> None:
    running = start(SimulatorConfig(turnaround=FAST))
    client = _client(running)
    batch = client.messages.batches.create(requests=_requests(6))
    done = _until_ended(client, batch.id)
    assert (done.request_counts.processing, done.request_counts.succeeded) == (0, 6)
    assert done.results_url.startswith(running.url)
    results = list(client.messages.batches.results(batch.id))
    assert {entry.custom_id for entry in results} == {f"run-tag-{i}" for i in range(6)}
    assert results[0].result.message.usage.service_tier == "batch"
    assert running.simulator.billing.report()["batches_per_tag"] == {"run-tag": 1}
    assert client.messages.batches.delete(batch.id).id == batch.id
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


@pytest.mark.slow
def test_lists_are_paged_in_both_directions(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=FAST)))
    made = [client.messages.batches.create(requests=_requests(1)).id for _ in range(7)]
    assert [batch.id for batch in client.messages.batches.list(limit=3)] == made[::-1]
    page = client.messages.batches.list(limit=2, before_id=made[0])
    assert [batch.id for batch in page.data] == [made[2], made[1]]
    assert sorted(batch.id for batch in page) == sorted(made[1:])
    assert list(client.with_options(api_key="another").messages.batches.list()) == []


@pytest.mark.slow
def test_a_cancelled_batch_ends_with_what_it_has(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=Latency(6.0), cancel_seconds=0.05)))
    batch = client.messages.batches.create(requests=_requests(10))
    time.sleep(0.6)
    assert client.messages.batches.cancel(batch.id).processing_status == "canceling"
    done = _until_ended(client, batch.id)
    assert done.cancel_initiated_at is not None
    kinds = [entry.result.type for entry in client.messages.batches.results(batch.id)]
    assert len(kinds) == 10 and kinds.count("canceled") == done.request_counts.canceled > 0


@pytest.mark.slow
def test_errors_become_the_exceptions_of_the_sdk(start: Start) -> None:
    running = start(
        SimulatorConfig(
            models=("claude-x",), keys=("sk-ant",), limits=AccountLimits(rpm=4, input_tpm=10_000), turnaround=FAST
        )
    )
    client = _client(running)
    with pytest.raises(anthropic.AuthenticationError):
        _client(running, "wrong").messages.create(**ASK)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASK, "model": "claude-y"})
    with pytest.raises(anthropic.BadRequestError, match="Input should be 'user' or 'assistant'") as caught:
        client.messages.create(**{**ASK, "messages": [{"role": "robot", "content": "x"}]})
    headers = caught.value.response.headers
    assert headers["anthropic-ratelimit-requests-remaining"] == "3"
    assert headers["anthropic-ratelimit-input-tokens-limit"] == "10000"
    with pytest.raises(anthropic.RateLimitError) as caught:
        for _ in range(4):
            client.messages.create(**ASK)
    assert caught.value.body["error"]["type"] == "rate_limit_error"
    long_id = [{**_requests(1)[0], "custom_id": "x" * 65}]
    with pytest.raises(anthropic.BadRequestError, match="at most 64 characters"):
        client.messages.batches.create(requests=long_id)
    with pytest.raises(anthropic.BadRequestError, match="duplicate"):
        client.messages.batches.create(requests=_requests(1) * 2)
    running.fault({"kind": "overloaded", "times": 1}, {"kind": "spend_limit", "times": 1})
    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(**ASK)
    assert caught.value.status_code == 529
    with pytest.raises(anthropic.RateLimitError) as caught:
        client.messages.create(**ASK)
    assert caught.value.body["error"]["details"]["error_code"] == "enforced_spend_limit_reached"


@pytest.mark.slow
def test_tools_schemas_and_streams_are_what_the_sdk_expects(start: Start) -> None:
    client = _client(start(SimulatorConfig(reasoning=20)))
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    ask = {**ASK, "model": "claude-haiku-5-5", "max_tokens": 500}
    options: dict[str, Any] = {"tools": [{"name": "weather", "input_schema": schema}], "thinking": {"type": "adaptive"}}
    called = client.messages.create(**ask, **options)
    assert called.stop_reason == "tool_use" and [block.type for block in called.content] == ["thinking", "tool_use"]
    use = called.content[-1]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "fine"}
    turns = [*ASK["messages"], {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**ask, "messages": turns}, **options).stop_reason == "end_turn"
    format = {"type": "json_schema", "schema": schema}
    shaped = client.messages.create(**ask, output_config={"format": format})
    assert set(json.loads(shaped.content[0].text)) == {"city"}
    with client.messages.stream(**ask) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1 and "".join(pieces) == final.content[0].text and final.usage.output_tokens
    with client.messages.stream(**ask, **options) as stream:
        assert "city" in stream.get_final_message().content[-1].input
