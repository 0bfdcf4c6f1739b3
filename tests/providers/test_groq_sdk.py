"""The official Groq SDK takes the simulator for Groq: chat, files, batches, errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fanfold.models import model
from fanfold.models.providers.groq import Groq
from fanfold.simulator import AccountLimits, Latency, SimulatorConfig

groq = pytest.importorskip("groq")
Start = Callable[[SimulatorConfig], Any]

ASK: dict[str, Any] = {"model": "openai/gpt-oss-20b", "messages": [{"role": "user", "content": "hello"}]}


def _client(running: Any, key: str = "gsk") -> Any:
    return groq.Groq(base_url=running.url, api_key=key, max_retries=0, timeout=20)


def test_chat_is_answered_and_counted(start: Start) -> None:
    reply = _client(start(SimulatorConfig())).chat.completions.create(**ASK, max_completion_tokens=3)
    assert reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 3


@pytest.mark.slow
def test_a_batch_goes_from_upload_to_results(start: Start) -> None:
    running = start(SimulatorConfig(turnaround=Latency(0.1)))
    client = _client(running)
    lines = [
        {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions", "body": ASK}
        for number in range(3)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"tag": "wave"}
    )
    while batch.status not in ("completed", "failed"):
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    results = [json.loads(line) for line in client.files.content(batch.output_file_id).text().splitlines()]
    assert [result["custom_id"] for result in results] == ["id-0", "id-1", "id-2"]
    assert results[0]["response"]["body"]["choices"]
    assert [other.id for other in client.batches.list().data] == [batch.id]
    assert {charge.price for charge in running.simulator.charges} == {"batch"}


def test_errors_become_the_exceptions_of_the_sdk(start: Start) -> None:
    running = start(SimulatorConfig(keys=("gsk",), models=(ASK["model"],), limits=AccountLimits(rpm=2)))
    with pytest.raises(groq.AuthenticationError):
        _client(running, "wrong").chat.completions.create(**ASK)
    client = _client(running)
    with pytest.raises(groq.NotFoundError):
        client.chat.completions.create(**{**ASK, "model": "none"})
    with pytest.raises(groq.BadRequestError, match="must be 1"):
        client.chat.completions.create(**ASK, n=2)
    raw = client.chat.completions.with_raw_response.create(**ASK)
    assert raw.headers["x-ratelimit-limit-requests"] == "2880"  # a day's
    with pytest.raises(groq.RateLimitError) as caught:
        client.chat.completions.create(**ASK)
    assert int(caught.value.response.headers["retry-after"]) > 0


def test_the_address_that_the_sdk_takes_is_ours_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(SimulatorConfig())
    for address in (running.url, f"{running.url}/openai/v1"):
        monkeypatch.setenv("GROQ_BASE_URL", address)
        reply = model("groq/openai/gpt-oss-20b", key="gsk").generate_sync("hello", max_tokens=3)
        assert reply.text and reply.cost is not None
    assert {charge.provider for charge in running.simulator.charges} == {"groq"}


def test_a_full_flex_tier_is_an_overload() -> None:
    assert Groq().failure(498, {}, {"error": {"message": "Flex tier capacity exceeded"}}).kind == "overloaded"
