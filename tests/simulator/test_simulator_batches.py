"""Batches live as long, end as partially and cost as much as they would at the providers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_talk import Talk as Client
from simulator_talk import lines_of

from fanfold.simulator import (
    AccountLimits,
    Fault,
    Faults,
    Latency,
    SimulatedResponse,
    Simulator,
    SimulatorConfig,
    anthropic_store,
)
from fanfold.testing import run_virtual

Talk = Callable[..., Any]

DAY = 24 * 3600


async def _openai_ended(client: Any, id: str) -> Any:
    while True:
        batch = (await client.ask("GET", f"/v1/batches/{id}")).json()
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            return batch
        await asyncio.sleep(30)


async def _anthropic_ended(client: Any, id: str) -> Any:
    while True:
        answer = await client.ask("GET", f"/v1/messages/batches/{id}")
        if answer.json()["processing_status"] == "ended":
            return answer.json()
        assert answer.headers["retry-after"] == "10"
        await asyncio.sleep(30)


async def _content(client: Any, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    answer = await client.ask("GET", f"/v1/files/{file_id}/content")
    return lines_of(answer)


def _faults(**kinds: Any) -> Faults:
    return Faults(tuple(Fault(kind, value=value) for kind, value in kinds.items()))


def test_progress_passes_through_every_status_in_its_time(talk: Talk) -> None:
    async def main() -> None:
        client = talk(turnaround=Latency(1000))
        id = (await client.create_openai(100)).json()["id"]
        seen = []
        for _ in range(101):
            batch = (await client.ask("GET", f"/v1/batches/{id}")).json()
            seen.append((batch["status"], batch["request_counts"]["total"], batch["request_counts"]["completed"]))
            await asyncio.sleep(10)
        assert [status for status, *_ in dict.fromkeys((s, 0) for s, *_ in seen)] == [
            "validating",
            "in_progress",
            "finalizing",
            "completed",
        ]
        assert all(total == 0 for status, total, _ in seen if status == "validating")
        progress = [completed for *_, completed in seen]
        assert progress == sorted(progress) and len(set(progress)) > 10 and progress[-1] == 100
        assert batch["completed_at"] - batch["created_at"] == 1000

    run_virtual(main())


@pytest.mark.slow
def test_a_batch_slower_than_a_day_expires_with_what_is_done(talk: Talk) -> None:
    async def main() -> None:
        client = talk(turnaround=Latency(2 * DAY))
        batch = await _openai_ended(client, (await client.create_openai(100)).json()["id"])
        assert batch["status"] == "expired" and batch["expired_at"] - batch["created_at"] == DAY
        good, bad = await _content(client, batch["output_file_id"]), await _content(client, batch["error_file_id"])
        assert 30 < len(good) < 60 and len(good) + len(bad) == 100
        assert {line["error"]["code"] for line in bad} == {"batch_expired"}
        assert len(client.simulator.charges) == len(good), "completed work is charged, the rest is not"

        id = (await client.create_anthropic(100)).json()["id"]
        ended = await _anthropic_ended(client, id)
        counts = ended["request_counts"]
        assert counts["succeeded"] + counts["expired"] == 100 and counts["expired"] > 40
        results = lines_of(await client.ask("GET", f"/v1/messages/batches/{id}/results"))
        assert sum(line["result"]["type"] == "expired" for line in results) == counts["expired"]

    run_virtual(main())


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("kind", ["batch_expired", "batch_cancelled", "batch_stuck"])
def test_a_batch_ends_early_with_the_share_it_was_told(talk: Talk, kind: str, share: float) -> None:
    async def main() -> None:
        client = talk(turnaround=Latency(600), faults=_faults(**{kind: share}))
        batch = await _openai_ended(client, (await client.create_openai(100)).json()["id"])
        assert batch["status"] == ("cancelled" if kind == "batch_cancelled" else "expired")
        assert batch["request_counts"]["completed"] == round(100 * share)
        assert len(client.simulator.charges) == round(100 * share)
        length = asyncio.get_running_loop().time()
        assert (length >= DAY) == (kind == "batch_stuck")
        id = (await client.create_anthropic(100)).json()["id"]
        counts = (await _anthropic_ended(client, id))["request_counts"]
        assert counts["succeeded"] == round(100 * share) and sum(counts.values()) == 100

    run_virtual(main())


def test_cancelling_keeps_what_is_done_and_takes_its_time(talk: Talk) -> None:
    async def main() -> None:
        client = talk(turnaround=Latency(1000), cancel_seconds=300)
        id = (await client.create_anthropic(100)).json()["id"]
        await asyncio.sleep(500)
        cancelled = (await client.ask("POST", f"/v1/messages/batches/{id}/cancel")).json()
        assert cancelled["processing_status"] == "canceling"
        ended = await _anthropic_ended(client, id)
        assert 40 <= ended["request_counts"]["succeeded"] <= 60
        assert 800 <= asyncio.get_running_loop().time() <= 831
        early = (await client.create_openai(5)).json()["id"]
        await client.ask("POST", f"/v1/batches/{early}/cancel")
        batch = await _openai_ended(client, early)
        assert batch["status"] == "cancelled" and batch["output_file_id"] is None

    run_virtual(main())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{not json", "invalid_json_line"),
        (b"[1, 2]", "invalid_json_line"),
        (b'{"custom_id":"id-0","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}',
         "duplicate_custom_id"),
        (b'{"custom_id":"z","method":"GET","url":"/v1/chat/completions","body":{"model":"m"}}', "invalid_method"),
        (b'{"custom_id":"z","method":"POST","url":"/v1/embeddings","body":{"model":"m"}}', "invalid_url"),
        (b'{"custom_id":"z","method":"POST","url":"/v1/chat/completions"}', "missing_required_parameter"),
        (b'{"custom_id":"z","method":"POST","url":"/v1/chat/completions","body":{"model":"n"}}', "mismatched_model"),
        (b'{"custom_id":"%s","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}' % (b"x" * 65),
         "invalid_custom_id"),
        (b"", "invalid_json_line"),
    ],
)  # fmt: skip
def test_one_bad_line_fails_the_whole_file_and_is_named(talk: Talk, line: bytes, code: str) -> None:
    async def main() -> None:
        client = talk()
        good = b'{"custom_id":"id-%d","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}'
        content = b"\n".join([good % 0, line, good % 2])
        batch = await _openai_ended(client, (await client.create_openai(content)).json()["id"])
        assert batch["status"] == "failed" and client.simulator.charges == []
        (problem,) = batch["errors"]["data"]
        assert (problem["code"], problem["line"]) == (code, 2)

    run_virtual(main())


def test_too_many_requests_fail_the_batch(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        client = talk()
        batch = await _openai_ended(client, (await client.create_openai(b"{}\n" * 50_001)).json()["id"])
        assert batch["errors"]["data"][0]["code"] == "too_many_tasks"
        monkeypatch.setattr(anthropic_store, "MAX_REQUESTS", 10)
        assert (await client.create_anthropic(10)).status == 200
        assert (await client.create_anthropic(11)).status == 400
        monkeypatch.setattr(anthropic_store, "MAX_BYTES", 100)
        assert (await client.create_anthropic(10)).status == 413

    run_virtual(main())


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"completion_window": "48h"}, "completion_window"),
        ({"endpoint": "/v1/nothing"}, "endpoint"),
        ({"metadata": {f"k{n}": "v" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_a_batch_that_openai_would_not_create_is_not_created(talk: Talk, change: Any, param: str) -> None:
    async def main() -> None:
        client = talk()
        answer = await client.create_openai(1, **change)
        assert answer.status == 400 and answer.json()["error"]["param"] == param
        assert client.simulator.billing.batches == []

    run_virtual(main())


def test_enqueued_tokens_are_limited_and_freed(talk: Talk) -> None:
    async def main() -> None:
        client = talk(limits=AccountLimits(enqueued_tokens=150), turnaround=Latency(100))
        first = (await client.create_openai(10)).json()["id"]
        second = (await client.create_openai(10)).json()["id"]
        assert (await client.create_anthropic(10)).status == 200
        refused = await client.create_anthropic(10)
        assert refused.status == 429 and refused.json()["error"]["type"] == "rate_limit_error"
        batch = await _openai_ended(client, second)
        assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "token_limit_exceeded")
        assert (await _openai_ended(client, first))["status"] == "completed"
        third = (await client.create_openai(10)).json()["id"]
        assert (await _openai_ended(client, third))["status"] == "completed"

    run_virtual(main())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 30),
    seed=st.integers(0, 1000),
    kinds=st.sets(st.sampled_from(["batch_shuffled", "batch_duplicates", "batch_missing", "batch_unknown"])),
    provider=st.sampled_from(["openai", "anthropic"]),
)
def test_results_are_disturbed_only_as_told(n: int, seed: int, kinds: set[str], provider: str) -> None:
    async def main() -> list[str]:
        config = SimulatorConfig(seed=seed, turnaround=Latency(10), faults=Faults(tuple(Fault(k) for k in kinds)))
        client = Client(Simulator(config))
        if provider == "openai":
            created = await client.create_openai(n)
            assert isinstance(created, SimulatedResponse)
            batch = await _openai_ended(client, created.json()["id"])
            return [line["custom_id"] for line in await _content(client, batch["output_file_id"])]
        created = await client.create_anthropic(n, tag="id")
        assert isinstance(created, SimulatedResponse)
        id = (await _anthropic_ended(client, created.json()["id"]))["id"]
        answer = await client.ask("GET", f"/v1/messages/batches/{id}/results")
        return [line["custom_id"] for line in lines_of(answer)]

    ids = run_virtual(main())
    assert ids == run_virtual(main()), "seeded"
    sent = [f"id-{i}" for i in range(n)]
    known = [id for id in ids if id in sent]
    assert (len(set(known)) < n) == ("batch_missing" in kinds and n > 1)
    assert (len(known) < len(ids)) == ("batch_unknown" in kinds and len(known) > 0)
    if "batch_duplicates" not in kinds:
        assert len(known) == len(set(known))
    elif known:
        assert len(known) > len(set(known))
    if not kinds:
        assert ids == sent


def test_want_of_credit_shows_in_every_line(talk: Talk) -> None:
    async def main() -> None:
        client = talk(faults=_faults(batch_billing=None), turnaround=Latency(10))
        id = (await client.create_anthropic(3)).json()["id"]
        assert (await _anthropic_ended(client, id))["request_counts"]["errored"] == 3
        for line in lines_of(await client.ask("GET", f"/v1/messages/batches/{id}/results")):
            error = line["result"]["error"]["error"]
            assert error["type"] == "invalid_request_error" and "credit balance" in error["message"]
        batch = await _openai_ended(client, (await client.create_openai(3)).json()["id"])
        assert batch["output_file_id"] is None and batch["request_counts"]["failed"] == 3
        for line in await _content(client, batch["error_file_id"]):
            assert line["response"]["body"]["error"]["code"] == "insufficient_quota"
        assert client.simulator.charges == []

    run_virtual(main())


def test_other_batch_faults_do_what_they_say(talk: Talk) -> None:
    async def main() -> None:
        client = talk(faults=_faults(batch_errors=0.5, batch_status="napping", results_elsewhere=None))
        id = (await client.create_openai(100)).json()["id"]
        await asyncio.sleep(0.5)
        assert (await client.ask("GET", f"/v1/batches/{id}")).json()["status"] == "napping"
        batch = await _openai_ended(client, id)
        assert batch["status"] == "completed" and 20 < batch["request_counts"]["failed"] < 80
        assert len(await _content(client, batch["error_file_id"])) == batch["request_counts"]["failed"]
        id = (await client.create_anthropic(1)).json()["id"]
        assert (await client.ask("GET", f"/v1/messages/batches/{id}")).json()["processing_status"] == "napping"
        ended = await _anthropic_ended(client, id)
        assert ended["results_url"] == f"http://another.example/v1/messages/batches/{id}/results"
        client.simulator.set_faults(_faults(batch_failed=None))
        failed = await _openai_ended(client, (await client.create_openai(2)).json()["id"])
        assert failed["status"] == "failed" and failed["errors"]["data"]

    run_virtual(main())


def test_the_bill_knows_batches_halves_and_doubles(talk: Talk) -> None:
    async def main() -> None:
        client = talk(turnaround=Latency(10))
        for _ in range(2):
            created = await client.create_openai(5, metadata={"tag": "wave-1"})
            await _openai_ended(client, created.json()["id"])
        await client.chat("question 0")
        report = (await client.ask("GET", "/_simulator/ledger")).json()
        assert report["batches_per_tag"] == {"wave-1": 2}
        assert len({batch["payload"] for batch in report["batches"]}) == 1
        assert report["counts"]["charged"] == len(report["charges"]) == 11
        assert sorted(double["count"] for double in report["duplicates"]) == [2, 2, 2, 2, 3]
        tokens = report["counts"]["input_tokens"] + report["counts"]["output_tokens"]
        full = sum(c["input_tokens"] + c["output_tokens"] for c in report["charges"] if c["price"] == "realtime")
        assert report["counts"]["full_price_tokens"] == pytest.approx(full + (tokens - full) / 2)
        assert "charges" not in (await client.ask("GET", "/_simulator/ledger", query={"summary": "1"})).json()
        await client.ask("POST", "/_simulator/reset")
        assert client.simulator.charges == [] and client.simulator.billing.batches == []
        assert (await client.ask("GET", "/v1/batches")).json()["data"] == []

    run_virtual(main())


def test_sampling_one_request_repeatedly_in_a_batch_is_no_double_charge(talk: Talk) -> None:
    async def main() -> None:
        client = talk(turnaround=Latency(1))
        line = b'{"custom_id":"s-%d","method":"POST","url":"/v1/chat/completions","body":%s}'
        body = b'{"model":"m","messages":[{"role":"user","content":"again"}]}'
        created = await client.create_openai(b"\n".join(line % (n, body) for n in range(3)))
        batch = await _openai_ended(client, created.json()["id"])
        said = [row["response"]["body"]["choices"] for row in await _content(client, batch["output_file_id"])]
        assert len({msgspec.json.encode(choices) for choices in said}) == 3
        assert client.simulator.billing.duplicates() == {}

    run_virtual(main())
