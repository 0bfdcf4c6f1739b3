"""Everything a request can say reaches Gemini, and comes back in the one form of all providers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from fanfold.calls import Reply, current_broker
from fanfold.errors import CallFailed, ConfigError
from fanfold.models import Model, model
from fanfold.models.requests import image
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Answer, Simulator, SimulatorConfig
from fanfold.simulator.gemini import GeminiDialect
from fanfold.testing import run_virtual

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


def weather(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"sunny in {city} for {days}"


def _asked(name: str = "gemini-3.5-flash-lite", **settings: Any) -> tuple[Model, list[Any]]:
    """A model, and the requests that the simulator accepts from it."""
    bodies: list[Any] = []
    answer = settings.pop("answer", None)

    def write(model: str, messages: Any, body: Any, rng: Any) -> Answer:
        bodies.append(body)
        return answer(body) if answer else Answer("Fine.")

    simulator = Simulator(SimulatorConfig(answer=write, **settings), [GeminiDialect])
    asked = model(f"gemini/{name}", key="k")
    return replace(asked, connect=lambda: SimulatedTransport(simulator)), bodies


def _generate(asked: Model, *requests: tuple[Any, dict[str, Any]]) -> list[Reply]:
    async def main() -> list[Reply]:
        try:
            return [await asked.generate(messages, **parameters) for messages, parameters in requests]
        finally:
            await current_broker().close()

    return run_virtual(main())


def test_a_tool_is_called_and_its_result_answered() -> None:
    def answer(body: Any) -> Answer:
        done = any("functionResponse" in part for part in body["contents"][-1]["parts"])
        return Answer("It is sunny.") if done else Answer("", calls=[("weather", {"city": "Rome", "days": 2})])

    asked, bodies = _asked(answer=answer)
    question = {"role": "user", "content": "How is Rome?"}
    (reply,) = _generate(asked, ([question], {"tools": [weather], "tool_choice": "weather"}))
    (call,) = reply.tool_calls
    assert (reply.finish, call.name, call.arguments) == ("tool", "weather", {"city": "Rome", "days": 2})
    assert reply.output_tokens > 0 and not reply.estimated
    declared = bodies[0]["tools"][0]["functionDeclarations"][0]
    assert declared["name"] == "weather" and declared["parametersJsonSchema"]["required"] == ["city", "days"]
    config = bodies[0]["toolConfig"]["functionCallingConfig"]
    assert config == {"mode": "ANY", "allowedFunctionNames": ["weather"]}
    dialogue = [question, reply.message, call.result(weather(**call.arguments))]
    (final,) = _generate(asked, (dialogue, {"tools": [weather]}))
    assert final.text == "It is sunny." and final.finish == "stop"
    said, result = bodies[1]["contents"][1:]
    assert said["parts"][0]["thoughtSignature"] and said["parts"][0]["functionCall"]["id"] == call.id
    response = {"id": call.id, "name": "weather", "response": {"result": "sunny in Rome for 2"}}
    assert result == {"role": "user", "parts": [{"functionResponse": response}]}


def test_a_dialogue_of_another_provider_is_continued() -> None:
    asked, bodies = _asked()
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    dialogue = [
        {"role": "user", "content": "How is Oslo?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c#1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c#1", "content": "cold"},
    ]
    assert _generate(asked, (dialogue, {}))[0].text == "Fine."
    assert bodies[0]["contents"][1]["parts"][0]["functionCall"] == {"name": "weather", "args": {"city": "Oslo"}}
    with pytest.raises(ConfigError, match="no such call before it"):
        asked.call(dialogue[2:])


def test_images_travel_inside_the_request_or_by_address() -> None:
    asked, bodies = _asked()
    parts = [{"type": "text", "text": "What?"}, image(PNG), image("https://example.org/a.png")]
    _generate(asked, ([{"role": "user", "content": parts}], {}))
    text, inline, remote = bodies[0]["contents"][0]["parts"]
    assert text == {"text": "What?"} and inline["inlineData"]["mimeType"] == "image/png"
    assert remote == {"fileData": {"fileUri": "https://example.org/a.png"}}


@dataclass
class City:
    name: str
    people: int


def test_a_schema_gives_a_value() -> None:
    asked, bodies = _asked(answer=lambda body: Answer('{"name": "Rome", "people": 3}'))
    (reply,) = _generate(asked, ("Which?", {"schema": City}))
    assert reply.parsed == City("Rome", 3)
    assert bodies[0]["generationConfig"]["responseMimeType"] == "application/json"
    assert bodies[0]["generationConfig"]["responseJsonSchema"]["required"] == ["name", "people"]


def test_several_texts_and_log_probabilities_are_read() -> None:
    asked, _ = _asked()
    (reply,) = _generate(asked, ("x", {"n": 3, "logprobs": 2}))
    assert reply.texts == ("Fine.", "Fine.", "Fine.")
    assert "".join(token.token for token in reply.logprobs) == "Fine." and len(reply.logprobs[0].top) == 2


def test_what_the_model_does_not_have_is_refused() -> None:
    bare, _ = _asked("gemini-9-text")
    unsigned = [{"functionCall": {"name": "weather"}}]
    for contents, text in (
        ([{"role": "model", "parts": unsigned}], "thought_signature"),
        ([{"parts": [{"functionResponse": {"name": "x", "response": {"r": 1}}}]}], "number of function response"),
        ([{"parts": [{"videoData": {}}]}], "Unknown name"),
        ([{"parts": [{"inlineData": {"mimeType": "image/png"}}]}], "REQUIRED_FIELD_MISSING"),
    ):
        with pytest.raises(CallFailed, match=text):
            _generate(bare, ("x", {"extra": {"contents": contents}}))
