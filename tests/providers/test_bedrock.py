"""Bedrock: requests signed as AWS defines it, the Converse protocol, and the settings that users of AWS have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fanfold.calls import current_broker
from fanfold.capabilities import UNKNOWN
from fanfold.errors import CallFailed, ConfigError
from fanfold.models import model
from fanfold.models.model import Model
from fanfold.models.providers import Provider
from fanfold.models.providers.bedrock import Bedrock
from fanfold.models.retry import RetryPolicy
from fanfold.models.simulated import SimulatedTransport
from fanfold.redaction import redact
from fanfold.sigv4 import sign
from fanfold.simulator import Simulator, SimulatorConfig, serve
from fanfold.simulator.bedrock import BedrockDialect
from fanfold.testing import ProviderConformance, run_virtual
from fanfold.testing.providers import KEY

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
PAIR = ("AKIDEXAMPLE", SECRET, "")
#: 2015-08-30 12:36:00 UTC, the moment of AWS's examples.
THEN = 1440938160.0
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK")
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-haiku-5-5"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "AWS_REGION", "AWS_DEFAULT_REGION", Bedrock.url_variable):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


class TestSigned(ProviderConformance):
    """The whole suite once more, with an access key that signs instead of a key that travels."""

    def make(self) -> Provider:
        return Bedrock()

    def world(self, *faults: Any, **settings: Any) -> tuple[Model, Simulator]:
        settings.setdefault("keys", (f"ID:{KEY}",))
        asked, simulator = super().world(*faults, **settings)
        return replace(asked, key=f"ID:{KEY}"), simulator


# -- signatures ------------------------------------------------------------------------------------------------------


def test_the_example_that_aws_documents_has_the_signature_that_aws_documents() -> None:
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    url = "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08"
    signed = sign("GET", url, b"", PAIR, ("us-east-1", "iam"), headers, THEN)
    assert signed["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date, "
        "Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    )


@pytest.mark.parametrize(
    ("method", "query", "expected"),
    [
        ("GET", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ("GET", "?Param2=value2&Param1=value1", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
        ("POST", "?Param1=value1", "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"),
    ],
)
def test_the_vectors_of_aws_are_met(method: str, query: str, expected: str) -> None:
    """get-vanilla, post-vanilla, get-vanilla-query-order-key-case and post-vanilla-query of AWS's test suite."""
    url = f"https://example.amazonaws.com/{query}"
    signed = sign(method, url, b"", PAIR, ("us-east-1", "service"), now=THEN)
    assert signed["authorization"].endswith(f"Signature={expected}")


@pytest.mark.parametrize(
    ("name", "token", "expected"),
    [
        (
            "anthropic.claude-3-5-sonnet-20240620-v1:0",
            "",
            "46e4c56eeb7ca985723e47cb285f497f694567805923ac0dc708142ba62f3aab",
        ),
        (PROFILE, "TOKEN/with+odd=chars", "33578650be8523b7fbed80eb19bec4fa354852794368b365b8fe36cda675c0df"),
    ],
)
def test_ids_with_colons_and_slashes_are_signed_as_botocore_signs_them(name: str, token: str, expected: str) -> None:
    path = Bedrock().request(name, "hi", {})[0]
    url = f"https://bedrock-runtime.eu-central-1.amazonaws.com{path}"
    body = b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}'
    signed = sign("POST", url, body, ("AKIDEXAMPLE", SECRET, token), ("eu-central-1", "bedrock"), now=THEN)
    assert signed["authorization"].endswith(f"Signature={expected}")
    assert signed.get("x-amz-security-token", "") == token


def _ask(key: str, keys: tuple[str, ...], spoil: Callable[..., Any] = lambda *request: request, **settings: Any) -> str:
    """The reply to a call signed with `key`, at a simulator that knows `keys`; `spoil` changes requests on the way."""
    simulator = Simulator(SimulatorConfig(keys=keys, answer=lambda *_: "fine", **settings), [BedrockDialect])

    class Spoilt(SimulatedTransport):
        async def request(self, method: str, url: str, headers: Any, body: Any = None, **options: Any) -> Any:
            return await super().request(*spoil(method, url, dict(headers), body), **options)

    plain = model(f"bedrock/{PROFILE}", key=key, base_url="http://bedrock.example", price=(1, 1))
    asked = replace(plain, connect=lambda: Spoilt(simulator), again=RetryPolicy(tries=1))

    async def main() -> str:
        try:
            return (await asked.generate("x", max_tokens=5)).text
        finally:
            await current_broker().close()

    return run_virtual(main())


@pytest.fixture
def plain_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_TRUSTED_HOSTS", "http://bedrock.example")


@pytest.mark.usefixtures("plain_http")
def test_a_request_with_any_part_changed_on_the_way_is_refused() -> None:
    key = "AKID:a-secret-of-somebody:a-session-token"
    assert _ask(key, (key,)) == "fine"
    changes: dict[str, Callable[..., Any]] = {
        "the body": lambda method, url, headers, body: (method, url, headers, body.replace(b"5", b"6")),
        "the path": lambda method, url, headers, body: (method, url.replace("haiku", "opus"), headers, body),
        "the query": lambda method, url, headers, body: (method, f"{url}?a=1", headers, body),
        "the host": lambda method, url, headers, body: (method, url.replace("example", "test"), headers, body),
        "the session": lambda method, url, headers, body: (
            method,
            url,
            {**headers, "x-amz-security-token": "another"},
            body,
        ),
        "the date": lambda method, url, headers, body: (
            method,
            url,
            {**headers, "x-amz-date": f"{headers['x-amz-date'][:-2]}{9 - int(headers['x-amz-date'][-2])}Z"},
            body,
        ),
    }
    for part, change in changes.items():
        with pytest.raises(CallFailed) as caught:
            _ask(key, (key,), change)
        assert caught.value.kind == "auth", part
    with pytest.raises(CallFailed, match="does not match"):
        _ask("AKID:another-secret:a-session-token", (key,))


@pytest.mark.usefixtures("plain_http")
def test_an_old_signature_is_refused() -> None:
    key = "AKID:a-secret-of-somebody"
    with pytest.raises(CallFailed, match="Signature expired"):
        _ask(key, (key,), clock_skew=3600.0)


# -- settings --------------------------------------------------------------------------------------------------------


def test_keys_and_region_come_from_the_variables_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_BEARER_TOKEN_BEDROCK"):
        model("bedrock/amazon.nova-micro-v1:0")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    asked = model("bedrock/amazon.nova-micro-v1:0")
    assert asked.key == f"AKIDEXAMPLE:{SECRET}" and asked.url == "https://bedrock-runtime.us-east-1.amazonaws.com"
    assert asked.price is not None and SECRET not in repr(asked)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    asked = model("bedrock/amazon.nova-micro-v1:0")
    headers = asked.signed("POST", f"{asked.url}/model/x/converse", b"{}")
    assert "/eu-west-3/bedrock/aws4_request" in headers["authorization"] and ".eu-west-3." in asked.url
    assert headers["x-amz-security-token"] == "a-session-token" and SECRET not in str(headers)
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "ABSK-a-bedrock-key")
    asked = model("bedrock/amazon.nova-micro-v1:0")
    assert asked.signed("POST", asked.url) == {"authorization": "Bearer ABSK-a-bedrock-key"}


def test_a_key_that_only_signs_forbids_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from fanfold.models.naming import may_ask
    from fanfold.models.providers import providers

    for provider in providers().values():
        monkeypatch.delenv(provider.key_variable or "-", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    may_ask({"base_url": "http://10.0.0.5:8000/v1"}, "search.toml")
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "ABSK-a-bedrock-key")
    with pytest.raises(ConfigError, match="AWS_BEARER_TOKEN_BEDROCK"):
        may_ask({"base_url": "http://10.0.0.5:8000/v1"}, "search.toml")


def test_the_secret_part_of_a_key_is_never_shown() -> None:
    model("bedrock/m", key="AKIDEXAMPLE:another/secret+of-somebody:session-of-somebody")
    assert "another/secret" not in redact("said back: another/secret+of-somebody and session-of-somebody")
    assert "session-of" not in redact("said back: another/secret+of-somebody and session-of-somebody")


def test_turns_alternate_and_system_prompts_stand_apart() -> None:
    dialogue = [
        {"role": "system", "content": "rule"},
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three"},
    ]
    path, body = Bedrock().request("m:0", dialogue, {"system": "first", "stop": "\n", "max_tokens": 7})
    assert path == "/model/m%3A0/converse"
    assert body == {
        "system": [{"text": "first"}, {"text": "rule"}],
        "messages": [
            {"role": "user", "content": [{"text": "one"}, {"text": "two"}]},
            {"role": "assistant", "content": [{"text": "three"}]},
        ],
        "inferenceConfig": {"stopSequences": ["\n"], "maxTokens": 7},
    }


BOTO3 = """
import json, sys, boto3
from botocore.config import Config
url = json.load(sys.stdin)
client = boto3.client("bedrock-runtime", region_name="us-west-2", endpoint_url=url, aws_access_key_id="AKID",
    aws_secret_access_key="a-secret-of-somebody", config=Config(retries={"max_attempts": 1}))
said = [{"role": "user", "content": [{"text": "x"}]}]
ask = lambda name, **more: client.converse(modelId=name, messages=said, **more)
good = ask("m:0", system=[{"text": "rule"}], inferenceConfig={"maxTokens": 5})
try:
    ask("gone")
except client.exceptions.ValidationException as error:
    wrong = error.response["Error"]
print(json.dumps([good["output"]["message"]["content"][0]["text"], good["stopReason"], good["usage"], wrong]))
"""


@pytest.mark.slow
def test_boto3_speaks_with_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "models"))
    from peer_environments import run_in

    config = SimulatorConfig(keys=("AKID:a-secret-of-somebody",), models=("m:0",), answer=lambda *_: "good")

    async def main() -> Any:
        async with serve(Simulator(config)) as url:
            return await asyncio.to_thread(run_in, "litellm", BOTO3, url)

    text, stop, usage, wrong = asyncio.run(main())
    assert (text, stop, usage["outputTokens"]) == ("good", "end_turn", 1)
    assert wrong["Code"] == "ValidationException" and "identifier is invalid" in wrong["Message"]


def test_an_estimate_knows_the_most_that_a_reply_may_have() -> None:
    from fanfold import Case, MaxTrials, Study, Sweep
    from fanfold.rehearsal import estimate, rehearsing

    with rehearsing():
        asked = model("bedrock/amazon.nova-micro-v1:0")

    async def evaluate(word: str, case: Case) -> float:
        return float(len((await asked.generate(word, max_tokens=50)).text))

    forecast = estimate(Study(Sweep(["one", "two"]), evaluate, stop=MaxTrials(2)), sample=2)
    assert 2 * 50 <= forecast.high.output_tokens <= 2 * 55 and forecast.high.cost is not None


@pytest.mark.usefixtures("plain_http")
def test_a_parameter_that_a_model_refuses_is_left_out_and_remembered() -> None:
    """Bedrock names it in prose, and it stands in a group of options."""
    sent: list[bytes] = []

    def note(method: str, url: str, headers: Any, body: bytes) -> tuple[Any, ...]:
        sent.append(body)
        return method, url, headers, body

    simulator = Simulator(SimulatorConfig(answer=lambda *_: "fine"), [BedrockDialect])

    class Noting(SimulatedTransport):
        async def request(self, method: str, url: str, headers: Any, body: Any = None, **options: Any) -> Any:
            return await super().request(*note(method, url, headers, body), **options)

    name = "global.anthropic.claude-haiku-5-5"
    plain = model(f"bedrock/{name}", key="k", base_url="http://bedrock.example")
    ignorant = replace(plain, connect=lambda: Noting(simulator), stated=UNKNOWN)

    async def main() -> list[str]:
        try:
            return [(await ignorant.generate(text, temperature=0.5, max_tokens=5)).text for text in ("one", "two")]
        finally:
            await current_broker().close()

    assert run_virtual(main()) == ["fine", "fine"]
    assert [b"temperature" in body for body in sent] == [True, False, False]
    assert b"temperature" not in plain.call("x", temperature=0.5).body.encode()  # known from the table
