"""The official Gemini SDK takes the simulator for Gemini: replies, files, batches, lists, errors."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from fanfold.simulator import AccountLimits, Answer, Latency, SimulatorConfig

genai = pytest.importorskip("google.genai")
errors = pytest.importorskip("google.genai.errors")
Start = Callable[[SimulatorConfig], Any]

MODEL = "gemini-3.5-flash-lite"
CONTENTS = [{"role": "user", "parts": [{"text": "hello"}]}]
FAST = Latency(0.1)


def _client(running: Any, key: str = "key") -> Any:
    return genai.Client(api_key=key, http_options={"base_url": running.url, "timeout": 20_000})


def _until_ended(client: Any, job: Any) -> Any:
    while job.state.name in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING"):
        time.sleep(0.02)
        job = client.batches.get(name=job.name)
    return job


def test_content_is_generated_counted_and_stopped(start: Start) -> None:
    client = _client(start(SimulatorConfig()))
    config = {"system_instruction": "be brief", "max_output_tokens": 3, "temperature": 0.5, "seed": 1, "top_k": 5}
    reply = client.models.generate_content(model=MODEL, contents=CONTENTS, config=config)
    assert reply.candidates[0].finish_reason.name == "MAX_TOKENS" and reply.text
    assert reply.usage_metadata.candidates_token_count == 3 and reply.model_version == MODEL
    counted = client.models.count_tokens(model=MODEL, contents=CONTENTS)
    assert 0 < counted.total_tokens < reply.usage_metadata.prompt_token_count
    stopped = client.models.generate_content(model=MODEL, contents=CONTENTS, config={"stop_sequences": ["."]})
    assert stopped.candidates[0].finish_reason.name == "STOP" and "." not in stopped.text


def test_what_is_withheld_says_why(start: Start) -> None:
    blocked = _client(start(SimulatorConfig(answer=lambda *_: Answer("", "refusal"))))
    reply = blocked.models.generate_content(model=MODEL, contents=CONTENTS)
    assert reply.prompt_feedback.block_reason.name == "PROHIBITED_CONTENT" and not reply.candidates
    filtered = _client(start(SimulatorConfig(answer=lambda *_: Answer("", "content_filter"))))
    reply = filtered.models.generate_content(model=MODEL, contents=CONTENTS)
    assert reply.candidates[0].finish_reason.name == "SAFETY" and not reply.text


def test_tools_are_called_and_schemas_filled(start: Start) -> None:
    client = _client(start(SimulatorConfig()))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"function_declarations": [{"name": "weather", "description": "w", "parameters_json_schema": schema}]}
    reply = client.models.generate_content(model=MODEL, contents=CONTENTS, config={"tools": [tool]})
    (call,) = reply.function_calls
    assert call.name == "weather" and set(call.args) == {"city"}
    result = {"role": "user", "parts": [{"function_response": {"name": "weather", "response": {"result": "sun"}}}]}
    turns = [*CONTENTS, reply.candidates[0].content, result]
    assert client.models.generate_content(model=MODEL, contents=turns, config={"tools": [tool]}).text
    config = {"response_mime_type": "application/json", "response_json_schema": schema, "candidate_count": 2}
    shaped = client.models.generate_content(model=MODEL, contents=CONTENTS, config=config)
    assert set(json.loads(shaped.text)) == {"city"} and len(shaped.candidates) == 2


@pytest.mark.slow
def test_a_batch_of_a_file_goes_from_upload_to_results(start: Start) -> None:
    running = start(SimulatorConfig(turnaround=FAST))
    client = _client(running)
    lines = [{"key": f"id-{number}", "request": {"contents": CONTENTS}} for number in range(3)]
    lines.append({"key": "bad", "request": {"contents": []}})
    content = io.BytesIO("\n".join(map(json.dumps, lines)).encode())
    file = client.files.upload(file=content, config={"display_name": "wave", "mime_type": "application/jsonl"})
    assert file.display_name == "wave" and client.files.get(name=file.name).size_bytes == content.tell()
    job = _until_ended(client, client.batches.create(model=MODEL, src=file.name, config={"display_name": "wave"}))
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    results = [json.loads(line) for line in client.files.download(file=job.dest.file_name).splitlines()]
    assert [result["key"] for result in results] == ["id-0", "id-1", "id-2", "bad"]
    assert results[0]["response"]["candidates"][0]["content"]["parts"][0]["text"]
    assert results[3]["error"]["code"] == 3
    assert {charge.price for charge in running.simulator.charges} == {"batch"}


@pytest.mark.slow
def test_a_batch_of_requests_answers_in_their_order(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=FAST)))
    requests = [
        {"contents": [{"role": "user", "parts": [{"text": f"question {number}"}]}], "metadata": {"key": str(number)}}
        for number in range(5)
    ]
    job = _until_ended(client, client.batches.create(model=MODEL, src=requests, config={"display_name": "inline"}))
    assert job.state.name == "JOB_STATE_SUCCEEDED" and job.display_name == "inline"
    assert [response.metadata["key"] for response in job.dest.inlined_responses] == list("01234")
    assert all(response.response.text for response in job.dest.inlined_responses)
    client.batches.delete(name=job.name)
    with pytest.raises(errors.ClientError):
        client.batches.get(name=job.name)


@pytest.mark.slow
def test_batches_are_listed_in_pages_and_cancelled(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=Latency(3600.0))))
    made = [client.batches.create(model=MODEL, src=[{"contents": CONTENTS}]).name for _ in range(5)]
    assert [job.name for job in client.batches.list(config={"page_size": 2})] == made[::-1]
    client.batches.cancel(name=made[0])
    assert _until_ended(client, client.batches.get(name=made[0])).state.name == "JOB_STATE_CANCELLED"


def test_errors_become_the_exceptions_of_the_sdk(start: Start) -> None:
    running = start(SimulatorConfig(keys=("key",), models=(MODEL,), limits=AccountLimits(rpm=2)))
    ask: dict[str, Any] = {"model": MODEL, "contents": CONTENTS}
    wrong = _client(running, "wrong")
    with pytest.raises(errors.ClientError) as caught:
        wrong.models.generate_content(**ask)
    assert caught.value.code == 400 and "API_KEY_INVALID" in str(caught.value)
    client = _client(running)
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(**{**ask, "model": "none"})
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    with pytest.raises(errors.ClientError, match="temperature"):
        client.models.generate_content(**ask, config={"temperature": 3})
    client.models.generate_content(**ask)
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(**ask)
    assert caught.value.status == "RESOURCE_EXHAUSTED" and "RetryInfo" in str(caught.value.details)
    running.fault({"kind": "overloaded", "times": 1}, {"kind": "spend_limit", "times": 1})
    with pytest.raises(errors.ServerError) as unavailable:
        client.models.generate_content(**ask)
    assert unavailable.value.code == 503
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(**ask)
    assert caught.value.code == 402
