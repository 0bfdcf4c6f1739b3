"""Everything a request can say, in the words of Bedrock's Converse."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fanfold.calls import Reply, current_broker
from fanfold.errors import CallFailed, ConfigError
from fanfold.models import Model, image, model
from fanfold.models.providers.bedrock import Bedrock
from fanfold.models.retry import RetryPolicy
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Answer, Simulator, SimulatorConfig
from fanfold.simulator.bedrock import BedrockDialect
from fanfold.testing import run_virtual

NAME = "global.anthropic.claude-haiku-5-5"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass
class City:
    """A place where people live."""

    name: str
    people: int


def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is fine in {city}."


def asked(name: str = NAME, **settings: Any) -> Model:
    simulator = Simulator(SimulatorConfig(**settings), [BedrockDialect])
    made = model(f"bedrock/{name}", key="key-of-somebody", base_url="http://127.0.0.1:9")
    return replace(made, connect=lambda: SimulatedTransport(simulator), again=RetryPolicy(tries=1, unreadable=1))


def ask(messages: Any = "Where?", *, name: str = NAME, config: dict[str, Any] | None = None, **more: Any) -> Reply:
    async def main() -> Reply:
        try:
            return await asked(name, **config or {}).generate(messages, **more)
        finally:
            await current_broker().close()

    return run_virtual(main())


def request(messages: Any, **parameters: Any) -> dict[str, Any]:
    return Bedrock().request(NAME, messages, parameters)[1]


def test_a_tool_is_called_and_its_result_goes_back() -> None:
    question = [{"role": "user", "content": "Weather in Rome?"}]
    first = ask(question, tools=[weather], max_tokens=500)
    (call,) = first.tool_calls
    assert first.finish == "tool" and call.name == "weather" and set(call.arguments) == {"city"}
    dialogue = [*question, first.message, call.result(weather(**call.arguments))]
    second = ask(dialogue, tools=[weather], max_tokens=500)
    assert second.finish == "stop" and second.text and not second.tool_calls
    plain = [{name: value for name, value in message.items() if name != "parts"} for message in dialogue]
    assert request(plain)["messages"] == request(dialogue)["messages"]


def test_results_of_several_tools_are_one_turn() -> None:
    calls = [
        {"id": id, "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}} for id in "ab"
    ]
    dialogue = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "fine"},
        {"role": "tool", "tool_call_id": "b", "content": "bad"},
    ]
    user, assistant, results = request(dialogue)["messages"]
    assert user["content"] == [{"text": "x"}]
    assert [block["toolUse"]["toolUseId"] for block in assistant["content"]] == ["a", "b"]
    assert [block["toolResult"]["toolUseId"] for block in results["content"]] == ["a", "b"]
    assert ask(dialogue, tools=[weather], max_tokens=500).text
    with pytest.raises(CallFailed, match="Expected toolResult blocks"):
        ask(dialogue[:3], tools=[weather], max_tokens=500)


def test_a_reply_fits_the_schema_that_was_asked_for() -> None:
    reply = ask("Name a city.", schema=City, max_tokens=500)
    assert isinstance(reply.parsed, City)


def test_an_image_is_sent_as_data_and_never_by_address() -> None:
    content = [{"type": "text", "text": "What is it?"}, image(PIXEL)]
    block = request([{"role": "user", "content": content}])["messages"][0]["content"][1]["image"]
    assert block["format"] == "png" and base64.b64decode(block["source"]["bytes"]) == PIXEL
    assert ask([{"role": "user", "content": content}], max_tokens=5).output_tokens
    with pytest.raises(ConfigError, match="as data only"):
        request([{"role": "user", "content": [image("https://pictures.example/x.png")]}])


def test_a_prompt_is_cached_where_that_is_asked_for() -> None:
    dialogue = [
        {"role": "user", "content": "word " * 200},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and?"},
    ]
    config = {"prompt_cache": 10, "answer": lambda *_: "fine"}
    assert ask(dialogue, config=config, max_tokens=5).written_tokens == 0
    assert ask(dialogue, config=config, cache=True, system="rule", max_tokens=5).written_tokens > 0


def test_reasoning_is_told_apart_from_the_text() -> None:
    config = {"reasoning": 40, "answer": lambda *_: "Rome."}
    reply = ask(config=config, reasoning_effort="low", max_tokens=50)
    assert (reply.text, reply.reasoning) == ("Rome.", "Let me think.") and reply.reasoning_tokens == 40
    assert request("x", reasoning_effort="low")["outputConfig"] == {"effort": "low"}
    assert "outputConfig" not in request("x", reasoning_effort="none")


def test_output_that_the_model_broke_off_is_malformed() -> None:
    with pytest.raises(CallFailed) as caught:
        ask(config={"answer": lambda *_: Answer("half", "malformed_model_output")})
    assert caught.value.kind == "malformed"


def test_a_choice_that_bedrock_does_not_have_is_refused() -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    choose = {"type": "function", "function": {"name": "weather"}}
    assert request("x", tools=tools, tool_choice="required")["toolConfig"]["toolChoice"] == {"any": {}}
    assert request("x", tools=tools, tool_choice=choose)["toolConfig"]["toolChoice"] == {"tool": {"name": "weather"}}
    with pytest.raises(ConfigError, match="tool_choice 'none'"):
        request("x", tools=tools, tool_choice="none")
