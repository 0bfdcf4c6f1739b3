"""The official Mistral SDK takes the simulator for Mistral: chat, files, batch jobs, lists, errors."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from fanfold.calls import current_broker
from fanfold.errors import CallFailed
from fanfold.models import model
from fanfold.models.providers.mistral import Mistral, MistralBatches
from fanfold.simulator import AccountLimits, Latency, SimulatorConfig
from fanfold.testing import run_virtual

mistral = pytest.importorskip("mistralai.client")
errors = pytest.importorskip("mistralai.client.errors")
Start = Callable[[SimulatorConfig], Any]

MESSAGES = [{"role": "user", "content": "hello"}]
ASK: dict[str, Any] = {"model": "mistral-small-latest", "messages": MESSAGES}
CHAT = "/v1/chat/completions"


def _client(running: Any, key: str = "key") -> Any:
    return mistral.Mistral(api_key=key, server_url=f"{running.url}/mistral", timeout_ms=20_000)


def _until_ended(client: Any, job: Any) -> Any:
    while job.status in ("QUEUED", "RUNNING", "CANCELLATION_REQUESTED"):
        time.sleep(0.02)
        job = client.batch.jobs.get(job_id=job.id)
    return job


def test_chat_is_answered_counted_and_seeded(start: Start) -> None:
    reply = _client(start(SimulatorConfig())).chat.complete(**ASK, max_tokens=3, random_seed=1)
    assert reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 3


@pytest.mark.slow
def test_a_job_goes_from_upload_to_results(start: Start) -> None:
    running = start(SimulatorConfig(turnaround=Latency(0.1)))
    client = _client(running)
    lines = [{"custom_id": f"id-{number}", "body": {"messages": MESSAGES}} for number in range(3)]
    lines.append({"custom_id": "bad", "body": {"messages": MESSAGES, "seed": 1}})
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.upload(file={"file_name": "lines.jsonl", "content": content}, purpose="batch")
    job = client.batch.jobs.create(
        input_files=[file.id], endpoint=CHAT, model=ASK["model"], metadata={"tag": "wave"}, timeout_hours=24
    )
    job = _until_ended(client, job)
    assert (job.status, job.succeeded_requests, job.failed_requests) == ("SUCCESS", 3, 1)
    results = [json.loads(line) for line in client.files.download(file_id=job.output_file).read().splitlines()]
    assert [result["custom_id"] for result in results] == ["id-0", "id-1", "id-2"]
    assert results[0]["response"]["body"]["choices"][0]["message"]["content"]
    (bad,) = [json.loads(line) for line in client.files.download(file_id=job.error_file).read().splitlines()]
    assert bad["custom_id"] == "bad" and bad["response"]["status_code"] == 422
    assert {charge.price for charge in running.simulator.charges} == {"batch"}


@pytest.mark.slow
def test_jobs_are_found_by_metadata_time_and_page(start: Start) -> None:
    client = _client(start(SimulatorConfig(turnaround=Latency(3600.0))))
    requests = [{"custom_id": "0", "body": {"messages": MESSAGES}}]
    made = [
        client.batch.jobs.create(requests=requests, endpoint=CHAT, model=ASK["model"], metadata={"tag": f"t{number}"})
        for number in range(3)
    ]
    assert [job.id for job in client.batch.jobs.list(metadata={"tag": "t1"}).data] == [made[1].id]
    page = client.batch.jobs.list(page=1, page_size=2)
    assert page.total == 3 and [job.id for job in page.data] == [made[0].id]
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    assert client.batch.jobs.list(created_after=later).total == 0
    assert client.batch.jobs.cancel(job_id=made[0].id).status == "CANCELLATION_REQUESTED"
    assert _until_ended(client, made[0]).status == "CANCELLED"


def test_errors_become_the_exceptions_of_the_sdk(start: Start) -> None:
    running = start(SimulatorConfig(keys=("key",), models=(ASK["model"],), limits=AccountLimits(rpm=2)))
    with pytest.raises(errors.SDKError) as caught:
        _client(running, "wrong").chat.complete(**ASK)
    assert caught.value.status_code == 401
    client = _client(running)
    with pytest.raises(errors.SDKError, match="Invalid model"):
        client.chat.complete(**{**ASK, "model": "none"})
    with pytest.raises(errors.HTTPValidationError, match="temperature"):
        client.chat.complete(**ASK, temperature=1.6)
    client.chat.complete(**ASK)
    with pytest.raises(errors.SDKError) as caught:
        client.chat.complete(**ASK)
    assert caught.value.status_code == 429 and caught.value.headers["x-ratelimit-limit-req-minute"] == "2"


def test_the_simulator_knows_it_by_its_address(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(SimulatorConfig())
    monkeypatch.setenv("MISTRAL_BASE_URL", f"{running.url}/mistral/v1")
    reply = model("mistral/mistral-small-latest", key="key").generate_sync("hello", max_tokens=3, seed=2)
    assert reply.finish == "length" and reply.cost is not None
    assert model("simulated/mistral-large-4").generate_sync("hello", seed=1).text
    assert {charge.provider for charge in running.simulator.charges} == {"mistral"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (
            422,
            {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
            "bad-request",
            "seed: Ex",
        ),
        (422, {"message": {"detail": [{"loc": ["body", "n"], "msg": "no"}]}}, "bad-request", "n: no"),
        (401, {"detail": "Unauthorized"}, "auth", "Unauthorized"),
        (400, {"message": "Invalid model: x", "type": "invalid_model", "code": "1500"}, "not-found", "Invalid model"),
        (429, {"message": "full", "type": "service_tier_capacity_exceeded", "code": "3505"}, "overloaded", "full"),
        (402, {"message": "Payment required"}, "billing", "Payment"),
        (400, {"message": {"detail": 3}}, "bad-request", "status 400"),
        (400, {"detail": [None]}, "bad-request", ""),
    ],
)
def test_every_shape_of_its_errors_is_read(status: int, body: Any, kind: str, text: str) -> None:
    error = Mistral().failure(status, {}, body)
    assert error.kind == kind and text in str(error)


def test_the_model_of_a_job_is_not_in_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def upload(self: Any, tag: str, lines: Callable[[], Iterable[bytes]]) -> str:
        seen.extend(lines())
        return "file-1"

    monkeypatch.setattr(MistralBatches, "upload", upload)
    asked = model("mistral/mistral-small-latest", key="key")

    async def main() -> bytes:
        body = await MistralBatches(asked).prepare("tag", [("tag-0", asked.call("hello"))])
        await current_broker().close()
        return body

    job = json.loads(run_virtual(main()))
    assert job["model"] == "mistral-small-latest" and job["metadata"] == {"tag": "tag"}
    assert json.loads(seen[0]) == {"custom_id": "tag-0", "body": {"messages": [{"role": "user", "content": "hello"}]}}


def test_a_plan_without_the_model_is_not_waited_for() -> None:
    error = Mistral().failure(429, {"x-ratelimit-limit-req-minute": "0"}, {"message": "Rate limit exceeded"})
    assert error.kind == "billing" and "0 requests a minute" in str(error)


def test_a_reply_that_ended_in_an_error_is_asked_for_again() -> None:
    body: dict[str, Any] = {"choices": [{"message": {"content": "x"}, "finish_reason": "error"}]}
    with pytest.raises(CallFailed, match="ended in an error"):
        Mistral().reply(body)
    body["choices"][0]["finish_reason"] = "model_length"
    assert Mistral().reply(body).finish == "length"


def test_parameters_travel_under_its_names() -> None:
    body = Mistral().request("mistral-small-latest", "x", {"seed": 1, "max_tokens": 5})[1]
    assert (body["random_seed"], body["max_tokens"]) == (1, 5) and "seed" not in body
