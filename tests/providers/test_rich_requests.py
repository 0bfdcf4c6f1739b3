"""Every provider carries tools, schemas, images and streams, in its own words, to a simulator that checks them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any, TypedDict
from urllib.parse import urlsplit

import pytest

from fanfold.errors import ConfigError
from fanfold.models import Model, image, model
from fanfold.models.providers import find_provider, provider_names
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Simulator, SimulatorConfig
from fanfold.testing import run_virtual

PIXEL = base64.b64decode("R0lGODlhAQABAAAAACwAAAAAAQABAAA=")
NAMES = [name for name in provider_names() if name not in ("local", "simulated") and find_provider(name).dialect()]


class City(TypedDict):
    name: str
    people: int


def weather(city: str) -> str:
    """The weather in a city."""
    return f"fine in {city}"


def world(name: str) -> Model:
    provider = find_provider(name)
    dialect = provider.dialect()
    assert dialect is not None
    transport = SimulatedTransport(Simulator(SimulatorConfig(), [dialect]))
    example = next(iter(provider.examples), "some-model")
    address = "http://simulated" + urlsplit(provider.default_url).path
    plain = model("simulated/gpt-4o-mini")
    return replace(plain, name=example, provider=provider, url=address, connect=lambda: transport, key="key-id:secret")


@pytest.mark.parametrize("name", NAMES)
def test_a_tool_is_called_and_its_result_answered(name: str) -> None:
    asked = world(name)

    async def talk() -> str:
        dialogue: list[Any] = [{"role": "user", "content": "How is it in Rome?"}]
        reply = await asked.generate(dialogue, tools=[weather])
        assert [call.name for call in reply.tool_calls] == ["weather"] and reply.finish == "tool"
        dialogue += [reply.message, *(call.result(weather(**call.arguments)) for call in reply.tool_calls)]
        return (await asked.generate(dialogue, tools=[weather])).text

    assert run_virtual(talk())


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_gives_a_value(name: str) -> None:
    assert set(run_virtual(world(name).generate("Name a city.", schema=City)).parsed) == {"name", "people"}


@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_sent_or_refused_before_sending(name: str) -> None:
    asked = world(name)
    question = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image(PIXEL)]}
    if asked.takes("images"):
        assert run_virtual(asked.generate([question])).text
    else:
        with pytest.raises(ConfigError, match="takes no images"):
            asked.call([question])


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_the_whole_reply(name: str) -> None:
    asked = world(name)

    async def watch() -> None:
        stream = asked.stream("Tell me.")
        pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.reply.text and stream.reply.output_tokens > 0
        assert len(pieces) > 1 or asked.provider.streams is None

    run_virtual(watch())
