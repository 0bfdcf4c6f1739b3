"""Gemini's requests, replies, errors and batches, as its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fanfold import Case, Study, Sweep
from fanfold.calls import current_broker
from fanfold.capabilities import Capabilities
from fanfold.errors import CallFailed, ConfigError
from fanfold.models import model
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.naming import may_ask
from fanfold.models.providers.gemini import Gemini, GeminiBatches
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Fault, Faults, Simulator, SimulatorConfig
from fanfold.simulator.gemini import GeminiDialect
from fanfold.testing import run_virtual
from fanfold.types import Ok

NAME = "gemini-3.5-flash-lite"


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


def _body(messages: Any = "x", **parameters: Any) -> dict[str, Any]:
    return Gemini().request(NAME, messages, parameters)[1]


def test_parameters_travel_under_its_names() -> None:
    config = _body(temperature=0, top_p=0.9, top_k=5, max_tokens=7, stop="END", seed=3)["generationConfig"]
    assert config == {
        "temperature": 0,
        "topP": 0.9,
        "topK": 5,
        "maxOutputTokens": 7,
        "stopSequences": ["END"],
        "seed": 3,
    }
    assert _body(reasoning_effort="low")["generationConfig"] == {"thinkingConfig": {"thinkingLevel": "low"}}
    older = Gemini().request("gemini-2.5-flash-lite", "x", {"reasoning_effort": "low"})[1]
    assert older["generationConfig"] == {"thinkingConfig": {"thinkingBudget": 4096}}
    schema = {"type": "object"}
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert _body(response_format=format)["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseJsonSchema": schema,
    }
    assert "generationConfig" not in _body()


def test_a_dialogue_has_its_roles_and_a_place_for_the_system() -> None:
    dialogue = [
        {"role": "system", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three"},
    ]
    body = _body(dialogue, system="zero")
    assert body["systemInstruction"] == {"parts": [{"text": "zero"}, {"text": "one"}]}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "two"}]},
        {"role": "model", "parts": [{"text": "three"}]},
    ]


def _reply(candidate: dict[str, Any], **usage: int) -> Any:
    return Gemini().reply({"candidates": [candidate], "usageMetadata": usage, "modelVersion": NAME})


def test_thoughts_are_paid_and_not_shown() -> None:
    parts = [{"text": "hm", "thought": True}, {"text": "a"}, {"text": "b"}]
    reply = _reply(
        {"content": {"parts": parts}, "finishReason": "STOP"},
        promptTokenCount=10,
        cachedContentTokenCount=4,
        candidatesTokenCount=2,
        thoughtsTokenCount=30,
    )
    assert (reply.text, reply.input_tokens, reply.output_tokens, reply.cached_tokens) == ("ab", 10, 32, 4)
    assert not reply.estimated and reply.model == NAME


def test_a_reply_that_ended_while_thinking_has_no_text_and_its_price() -> None:
    reply = _reply(
        {"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}, promptTokenCount=3, thoughtsTokenCount=9
    )
    assert (reply.text, reply.finish, reply.output_tokens, reply.estimated) == ("", "length", 9, False)


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"])
def test_what_is_withheld_is_filtered(reason: str) -> None:
    assert _reply({"finishReason": reason}).finish == "filter"


def test_an_empty_reply_is_asked_for_again() -> None:
    with pytest.raises(CallFailed, match="without content"):
        _reply({"finishReason": "STOP"})


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"details": [{"@type": "t", "reason": "API_KEY_INVALID"}]}, "auth"),
        (400, {"status": "INVALID_ARGUMENT"}, "bad-request"),
        (402, {"status": "RESOURCE_EXHAUSTED"}, "billing"),
        (429, {"message": "Your prepayment credits are depleted."}, "billing"),
        (403, {"details": [{"reason": "BILLING_DISABLED"}]}, "billing"),
        (429, {"details": "odd"}, "rate-limit"),
        (503, {}, "overloaded"),
        (504, {}, "server"),
        (499, {}, "server"),
    ],
)
def test_errors_have_their_kinds(status: int, error: dict[str, Any], kind: str) -> None:
    assert Gemini().failure(status, {}, {"error": error}).kind == kind


def test_the_body_of_a_refusal_says_when_to_come_back() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}, {"retryDelay": 3}]
    assert Gemini().failure(429, {}, {"error": {"details": details}}).retry_after == 7.5
    assert Gemini().failure(429, {}, {"error": {"details": [{"retryDelay": "90000s"}]}}).retry_after == 300.0
    assert Gemini().failure(429, {"retry-after": "4"}, {}).retry_after == 4.0


@pytest.mark.usefixtures("no_keys")
def test_its_key_has_two_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set GEMINI_API_KEY or GOOGLE_API_KEY"):
        model(f"gemini/{NAME}")
    monkeypatch.setenv("GOOGLE_API_KEY", "google-key-0123")
    assert model(f"gemini/{NAME}").key == "google-key-0123"
    with pytest.raises(ConfigError, match="FANFOLD_TRUSTED_HOSTS"):
        may_ask({"base_url": "https://elsewhere.example/v1"}, "study.toml")
    monkeypatch.setenv("GEMINI_API_KEY", "gemini-key-0123")
    assert model(f"gemini/{NAME}").key == "gemini-key-0123"


def test_an_address_may_have_its_version() -> None:
    for end in ("", "/", "/v1beta", "/v1/"):
        asked = model(f"gemini/{NAME}", base_url=f"http://127.0.0.1:9{end}", key="k")
        assert asked.call("x").endpoint == f"http://127.0.0.1:9/v1beta/models/{NAME}:generateContent"


def _remote(**metadata: Any) -> Any:
    api = GeminiBatches(model(f"gemini/{NAME}", key="k"))
    error = metadata.pop("error", None)
    operation = {"name": "batches/b1", "metadata": metadata, **({"error": error} if error else {})}
    return api.remote(msgspec.convert(operation, GeminiBatches.view), None)


def test_states_of_a_batch_are_known_with_and_without_results() -> None:
    running = _remote(state="BATCH_STATE_RUNNING", createTime="2026-11-16T05:00:00.123456789Z", displayName="tag")
    assert (running.id, running.ended, running.tag, running.results) == ("b1", False, "tag", ())
    assert running.created == pytest.approx(1794805200.123456)
    for state in ("SUCCEEDED", "PARTIALLY_SUCCEEDED", "CANCELLED", "EXPIRED"):
        for word in (f"BATCH_STATE_{state}", f"JOB_STATE_{state}"):
            assert _remote(state=word).ended and _remote(state=word).refused is None
    assert _remote(state="BATCH_STATE_FAILED", error={"code": 3, "message": "bad file"}).refused == "bad file"
    assert _remote(state="BATCH_STATE_FAILED", output={"responsesFile": "files/x"}).refused is None
    assert _remote(state="BATCH_STATE_FOOBAR").ended is None
    assert _remote(batchStats={"requestCount": "12"}).requests == 12


@pytest.mark.parametrize(
    ("name", "wished", "kept"),
    [
        ("gemini-99-new", {"presence_penalty": 1, "frequency_penalty": 1, "seed": 1}, {"seed": 1}),
        ("gemini-99-new", {"temperature": 0.5, "top_k": 3}, {"temperature": 0.5, "topK": 3}),
        ("gemini-2.9-new", {"reasoning_effort": "low", "seed": 1}, {"seed": 1}),
    ],
)
def test_a_parameter_that_it_refuses_is_left_out_next_time(
    name: str, wished: dict[str, Any], kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that no table has, and whose refusal names the parameter in words only."""
    strict = Capabilities(refuses=frozenset({"presence_penalty", "frequency_penalty"}))
    monkeypatch.setattr("fanfold.simulator.gemini.capabilities_of", lambda *_, **__: strict)
    seen: list[Any] = []
    simulator = Simulator(SimulatorConfig(answer=lambda model, messages, body, rng: seen.append(body) or "x"))
    asked = replace(model(f"simulated/{name}"), connect=lambda: SimulatedTransport(simulator))
    monkeypatch.setattr("fanfold.models.providers.gemini._thinking", lambda model, effort: {"thinkingLevel": effort})

    async def main() -> None:
        for number in range(2):
            await asked.generate(f"question {number}", **wished)
        await current_broker().close()

    run_virtual(main())
    assert [body["generationConfig"].get("thinkingConfig") or None for body in seen] == [None, None]
    for body in seen:
        body["generationConfig"].pop("thinkingConfig", None)
    assert [body["generationConfig"] for body in seen] == [kept, kept]
    assert simulator.billing.statuses[400] == len(set(wished) - {"seed", "temperature", "top_k"})


def test_errors_of_lines_have_grpc_codes() -> None:
    api = GeminiBatches(model(f"gemini/{NAME}", key="k"))
    outcomes = {code: api.read(b'{"key":"k","error":{"code":%d,"message":"m"}}' % code)[1] for code in (3, 8, 13, 16)}
    kinds = {code: outcome.kind if isinstance(outcome, CallFailed) else outcome for code, outcome in outcomes.items()}
    assert kinds == {3: "bad-request", 8: None, 13: None, 16: "auth"}


@pytest.mark.slow
def test_a_batch_is_waited_for_until_it_expires_after_two_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanfold.dispatcher.TICK", 60.0)  # two days have few enough minutes, but very many seconds
    config = SimulatorConfig(expires_after=48 * 3600.0, faults=Faults((Fault("batch_stuck", times=1, value=0.0),)))
    simulator = Simulator(config, [GeminiDialect])
    asked = replace(model(f"gemini/{NAME}", key="k"), connect=lambda: SimulatedTransport(simulator))
    executor = BatchExecutor("gemini")

    async def evaluate(candidate: int, case: Case) -> Ok:
        await asked.generate(f"question {candidate}")
        return Ok(1.0)

    async def main() -> float:
        await Study(Sweep([0, 1]), evaluate).run_async(executor)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) > 48 * 3600.0
    assert not any("has not ended" in note for note in executor.notes), executor.notes
    assert [charge.price for charge in simulator.charges] == ["batch", "batch"]


def test_an_expired_batch_leaves_nothing_behind() -> None:
    simulator = Simulator(SimulatorConfig(faults=Faults((Fault("batch_expired"),))), [GeminiDialect])
    asked = replace(model(f"gemini/{NAME}", key="k"), connect=lambda: SimulatedTransport(simulator))

    async def main() -> Any:
        api = GeminiBatches(asked)
        made = await api.create(await api.prepare("tag", [(f"tag-{n}", asked.call(f"{n}")) for n in range(4)]))
        await asyncio.sleep(60)
        ended = await api.get(made.id)
        await current_broker().close()
        return ended

    ended = run_virtual(main())
    assert (ended.status, ended.ending, ended.results) == ("EXPIRED", "expired", ())
