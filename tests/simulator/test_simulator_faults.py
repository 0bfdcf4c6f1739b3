"""Every fault strikes when it is told to, breaks what it says it breaks, and leaves the bill right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fanfold.errors import ConfigError
from fanfold.simulator import KINDS, BrokenAnswer, Fault, Faults, SimulatedResponse
from fanfold.simulator.faults import BATCH
from fanfold.testing import run_virtual

Talk = Callable[..., Any]


def _only(kind: str, **more: Any) -> Faults:
    return Faults((Fault(kind, **more),))


@pytest.mark.parametrize(
    ("kind", "status", "charged"),
    [
        ("rate_limit", 429, 0),
        ("spend_limit", 429, 0),
        ("internal", 500, 0),
        ("bad_gateway", 502, 0),
        ("unavailable", 503, 0),
        ("overloaded", 529, 0),
        ("lost_502", 502, 1),
        ("truncate", 200, 1),
        ("content_type", 200, 1),
        ("malformed", 200, 1),
        ("extra_fields", 200, 1),
    ],
)
def test_faults_of_the_answer(talk: Talk, kind: str, status: int, charged: int) -> None:
    async def main() -> None:
        client = talk(faults=_only(kind, times=2, on=("generate",)))
        for answer in (await client.chat(), await client.message()):
            assert answer.status == status
            if kind == "truncate":
                with pytest.raises(msgspec.DecodeError):
                    answer.json()
            if kind == "content_type":
                assert answer.headers["content-type"] == "text/html"
            if kind == "malformed":
                assert not {"choices", "content"} & set(answer.json()) and "usage" in answer.json()
            if kind == "extra_fields":
                assert "a_field_from_the_future" in answer.json() and "usage" in answer.json()
        assert len(client.simulator.charges) == 2 * charged
        assert (await client.chat()).json()["choices"], "two times means two times"

    run_virtual(main())


@pytest.mark.parametrize(
    ("kind", "how", "charged"),
    [
        ("hang", "hang", 0),
        ("disconnect", "drop", 0),
        ("lost_drop", "drop", 1),
        ("lost_hang", "hang", 1),
        ("drip", "drip", 1),
        ("cut", "cut", 1),
    ],
)
def test_faults_of_the_connection(talk: Talk, kind: str, how: str, charged: int) -> None:
    async def main() -> None:
        client = talk(faults=_only(kind, on=("generate",)))
        answer = await client.message()
        assert isinstance(answer, BrokenAnswer) and answer.how == how
        assert len(client.simulator.charges) == charged
        assert (await client.ask("GET", "/_simulator/ledger")).json()["counts"]["broken"] == {how: 1}

    run_virtual(main())


@pytest.mark.parametrize("kind", ["lost_drop", "lost_502", "lost_hang"])
def test_a_lost_create_answer_leaves_one_batch_that_can_be_found(talk: Talk, kind: str) -> None:
    async def main() -> None:
        client = talk(faults=_only(kind, times=1))
        answer = await client.create_openai(3, metadata={"tag": "wave"})
        assert isinstance(answer, BrokenAnswer) or answer.status == 502
        (found,) = (await client.ask("GET", "/v1/batches")).json()["data"]
        assert found["metadata"] == {"tag": "wave"}
        client.simulator.set_faults(_only(kind, times=1))
        await client.create_anthropic(3)
        (other,) = (await client.ask("GET", "/v1/messages/batches")).json()["data"]
        await asyncio.sleep(60)
        answer = await client.ask("GET", f"/v1/messages/batches/{other['id']}")
        assert answer.json()["request_counts"]["succeeded"] == 3
        assert client.simulator.billing.report()["counts"]["charged"] == 6

    run_virtual(main())


def test_answers_can_be_refused_filtered_and_cut_short(talk: Talk) -> None:
    async def main() -> None:
        seen = {}
        for kind in ("refusal", "content_filter", "length"):
            client = talk(faults=_only(kind))
            seen[kind] = (await client.chat()).json()["choices"][0], (await client.message()).json()
        refused, message = seen["refusal"]
        assert refused["message"]["content"] is None and refused["message"]["refusal"]
        assert message["stop_reason"] == "refusal"
        filtered, _ = seen["content_filter"]
        assert (filtered["finish_reason"], filtered["message"]["content"]) == ("content_filter", "")
        cut, message = seen["length"]
        assert (cut["finish_reason"], message["stop_reason"]) == ("length", "max_tokens")

    run_virtual(main())


def test_a_storm_lasts_as_long_as_it_is_told(talk: Talk) -> None:
    async def main() -> list[int]:
        client = talk(faults=_only("rate_limit", probability=0.5, start=10, end=310, value=7))
        statuses = []
        for _ in range(400):
            answer = await client.chat()
            statuses.append(answer.status)
            assert answer.status == 200 or answer.headers["retry-after"] == "7"
            await asyncio.sleep(1)
        return statuses

    statuses = run_virtual(main())
    assert 120 < statuses.count(429) < 180
    assert set(statuses[:10]) | set(statuses[311:]) == {200}
    assert run_virtual(main()) == statuses, "seeded"


def test_faults_are_set_over_http_and_typos_are_named(talk: Talk) -> None:
    async def main() -> None:
        client = talk()
        body = {"faults": [{"kind": "internal", "times": 1, "on": ["generate"]}]}
        assert (await client.ask("POST", "/_simulator/faults", body)).status == 200
        assert [(await client.chat()).status for _ in range(2)] == [500, 200]
        for bad, word in (
            ({"faults": [{"kind": "intrenal"}]}, "internal"),
            ({"faults": [{"kind": "hang", "time": 1}]}, "times"),
            ({"faults": [{"kind": "hang", "on": ["generat"]}]}, "generate"),
            ({"faults": [{"kind": "hang", "probability": 2}]}, "between 0 and 1"),
            (b"{", "JSON"),
        ):
            answer = await client.ask("POST", "/_simulator/faults", bad)
            assert answer.status == 400 and word in answer.json()["error"]
        assert (await client.ask("GET", "/_simulator/nothing")).status == 404

    run_virtual(main())


def test_every_kind_of_fault_has_words_and_can_be_made() -> None:
    for kind, text in KINDS.items():
        assert text and Fault(kind).strikes("create") == (kind not in ("refusal", "content_filter", "length"))
    assert all(not Fault(kind).strikes("generate") for kind in BATCH)
    with pytest.raises(ConfigError, match="must be a number above 0"):
        Fault("drip", value="slow")
    with pytest.raises(ConfigError, match="a share between 0 and 1"):
        Fault("batch_expired", value=50)


def test_work_nobody_waits_for_is_charged_all_the_same(talk: Talk) -> None:
    from fanfold.simulator import Latency

    async def main() -> None:
        client = talk(latency=Latency(60))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.chat(), 5)
        assert len(client.simulator.charges) == 1

    run_virtual(main())


def test_a_mistake_in_the_answer_function_is_told(talk: Talk) -> None:
    async def main() -> None:
        def broken(*_: Any) -> str:
            raise KeyError("recipe")

        answer = await talk(answer=broken).chat()
        assert answer.status == 500 and "KeyError" in answer.json()["error"]["message"]
        answer = await talk(answer=lambda *_: 7).message()
        assert answer.status == 500 and "return a text or an Answer" in answer.json()["error"]["message"]

    run_virtual(main())


def test_a_slow_model_behind_it_does_not_block_the_rest(talk: Talk) -> None:
    import threading

    async def main() -> SimulatedResponse:
        gate = threading.Event()

        def upstream(model: str, messages: Any, params: Any, rng: Any) -> str:
            assert gate.wait(10)
            return "from the model"

        client = talk(upstream=upstream)
        waiting = asyncio.create_task(client.chat())
        await asyncio.sleep(0)
        assert (await client.ask("GET", "/v1/models")).status == 200
        gate.set()
        answer = await waiting
        assert isinstance(answer, SimulatedResponse)
        return answer

    assert run_virtual(main()).json()["choices"][0]["message"]["content"] == "from the model"
