"""Everything a request can say: images, tools, schemas, samples, probabilities, caching; and what the reply holds."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

import msgspec
import pytest

from fanfold import Case, Study, Sweep
from fanfold.calls import Reply
from fanfold.capabilities import Capabilities
from fanfold.errors import CallFailed, ConfigError, FanfoldError
from fanfold.flights import ToolCall
from fanfold.models import Model, image, model
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.http import Http, Response
from fanfold.models.providers.openai import OpenAI
from fanfold.models.simulated import SimulatedTransport
from fanfold.models.transport import Transport
from fanfold.simulator import Answer, Fault, Faults, Latency, Simulator, SimulatorConfig, serve
from fanfold.testing import run_virtual

MODELS = ("gpt-4o-mini", "claude-haiku-4-5")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass
class City:
    """A place where people live."""

    name: str
    people: Annotated[int, msgspec.Meta(ge=0, le=40_000_000)]
    near: list[str]


class CityDict(TypedDict):
    name: str
    people: int


class CityStruct(msgspec.Struct):
    name: str
    people: int | None = None


SCHEMA = {
    "type": "object",
    "properties": {"why": {"type": "string"}, "answer": {"enum": ["yes", "no"]}},
    "required": ["why", "answer"],
    "additionalProperties": False,
}


def weather(city: str, celsius: bool = True) -> str:
    """The weather in a city."""
    return f"It is fine in {city}."


def simulated(name: str, **options: Any) -> tuple[Model, Simulator]:
    simulator = Simulator(SimulatorConfig(**options))
    transport = SimulatedTransport(simulator)
    return replace(model(f"simulated/{name}"), connect=lambda: transport), simulator


def ask(name: str, messages: Any = "Where?", *, config: dict[str, Any] | None = None, **parameters: Any) -> Reply:
    return run_virtual(simulated(name, **config or {})[0].generate(messages, **parameters))


def sent(name: str, messages: Any = "Where?", **parameters: Any) -> Any:
    return json.loads(model(f"simulated/{name}").call(messages, **parameters).body)


def answering(answer: Answer | str) -> dict[str, Callable[..., Answer | str]]:
    return {"answer": lambda model, messages, params, rng: answer}


class Fixed(Transport):
    """Answers everything with one response, and keeps what was sent."""

    def __init__(self, body: Any, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.response = Response(status, headers or {}, json.dumps(body).encode())
        self.bodies: list[Any] = []

    async def request(self, method: str, url: str, headers: Any, body: bytes | None = None, **options: Any) -> Response:
        self.bodies.append(json.loads(body or b"null"))
        return self.response


def fixed(transport: Transport, name: str = "gpt-4o-mini") -> Model:
    return replace(model(f"simulated/{name}"), connect=lambda: transport)


class Blind(OpenAI):
    """A provider of models that know text only, or tools but no schemas."""

    models: ClassVar[Mapping[str, Capabilities]] = {
        "text": Capabilities(has=frozenset()),
        "tools": Capabilities(has=frozenset({"tools"})),
    }


def blind(name: str, transport: Transport | None = None) -> Model:
    plain = model("simulated/gpt-4o-mini")
    return replace(
        plain, name=name, provider=Blind(), connect=plain.connect if transport is None else lambda: transport
    )


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_an_image_is_sent_in_the_providers_own_words_and_taken(name: str, tmp_path: Path) -> None:
    (tmp_path / "pixel.png").write_bytes(PIXEL)
    sources = [tmp_path / "pixel.png", str(tmp_path / "pixel.png"), PIXEL, "https://example.org/cat.png"]
    for source in sources:
        question = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image(source)]}
        assert ask(name, [question]).text
        part = sent(name, [question])["messages"][0]["content"][1]
        if name.startswith("claude"):
            coded = base64.b64encode(PIXEL).decode()
            data = {"type": "base64", "media_type": "image/png", "data": coded}
            url = {"type": "url", "url": "https://example.org/cat.png"}
            assert part == {"type": "image", "source": url if source is sources[-1] else data}
        else:
            assert part["type"] == "image_url"


def test_what_is_not_an_image_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"notes.txt is not a PNG, JPEG, GIF or WebP image"):
        image(tmp_path / "notes.txt")


@pytest.mark.parametrize("messages", [None, 5, b"hi", ["hi"], ("user", "hi"), {"role": "user", "content": "hi"}])
def test_what_is_no_text_and_no_dialogue_is_refused_with_an_example(messages: Any) -> None:
    with pytest.raises(ConfigError, match=r"list of messages such as \{'role': 'user'"):
        model("simulated/gpt-6-luna").call(messages)


@pytest.mark.parametrize("part", [{}, {"image_url": "https://example.com/cat.png"}, {"image_url": {"link": "cat.png"}}])
def test_an_image_of_another_form_is_refused_with_the_form_it_has(part: Any) -> None:
    with pytest.raises(ConfigError, match=r"an image in a message is \{'type': 'image_url'.*fanfold.models.image"):
        model("simulated/gpt-6-luna").call([{"role": "user", "content": [{"type": "image_url", **part}]}])


@pytest.mark.parametrize("limit", [None, -1, 0])
def test_a_request_without_a_limit_reserves_what_one_without_a_limit_may_cost(limit: int | None) -> None:
    asked = model("m", base_url="http://127.0.0.1:9/v1", price=(0.0, 1.0))
    assert asked.call("hi", max_tokens=limit).worst == pytest.approx(4096e-6)
    assert asked.call("hi", max_tokens=10, n=2).worst == pytest.approx(20e-6)
    with pytest.raises(ConfigError, match="max_tokens must be a whole number, not 'many'"):
        asked.call("hi", max_tokens="many")


def test_a_model_known_to_see_nothing_is_sent_no_image() -> None:
    question = {"role": "user", "content": [image(PIXEL)]}
    with pytest.raises(ConfigError, match="takes no images"):
        blind("text").call([question])
    assert not blind("text").takes("images") and model("simulated/gpt-4o-mini").takes("images")


def test_a_large_image_does_not_count_as_text() -> None:
    """A megabyte of Base64 is no quarter of a million tokens: the budget and the limiter would stop the run."""
    question = {"role": "user", "content": [image(PIXEL + bytes(1_000_000))]}
    call = model("simulated/gpt-4o-mini").call([question], max_tokens=10)
    assert call.input_tokens < 10_000 and call.worst is not None and call.worst < 0.01


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MODELS, "claude-haiku-5-5", "gpt-6-luna"])
def test_a_tool_is_called_and_its_result_answered(name: str) -> None:
    asked, simulator = simulated(name, reasoning=50)

    async def talk() -> tuple[Reply, Reply]:
        dialogue: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
        options: dict[str, Any] = {"tools": [weather], "reasoning_effort": "low"}
        first = await asked.generate(dialogue, **options)
        dialogue += [first.message, *(call.result(weather(**call.arguments)) for call in first.tool_calls)]
        return first, await asked.generate(dialogue, **options)

    first, second = run_virtual(talk())
    assert first.finish == "tool" and [call.name for call in first.tool_calls] == ["weather"]
    assert set(first.tool_calls[0].arguments) == {"city", "celsius"} and first.tool_calls[0].id
    assert second.finish == "stop" and second.text and not second.tool_calls
    assert simulator.billing.statuses == {200: 2}


def test_a_tool_is_described_by_its_function() -> None:
    expected = {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "celsius": {"type": "boolean"}},
            "required": ["city", "celsius"],
            "additionalProperties": False,
        },
    }
    assert sent("gpt-4o-mini", tools=[weather])["tools"] == [{"type": "function", "function": expected}]
    assert sent("gpt-4o-mini", tools=[expected])["tools"] == [{"type": "function", "function": expected}]
    claude = {**expected, "input_schema": expected["parameters"]}
    del claude["parameters"]
    assert sent("claude-haiku-4-5", tools=[weather])["tools"] == [claude]
    own = {"type": "web_search_20260209", "name": "web_search"}
    assert sent("claude-haiku-4-5", tools=[own])["tools"] == [own]


def test_tool_choice_is_a_word_or_the_name_of_a_tool() -> None:
    def choice(name: str, choice: str) -> Any:
        return sent(name, tools=[weather], tool_choice=choice)["tool_choice"]

    assert choice("gpt-4o-mini", "required") == "required"
    assert choice("gpt-4o-mini", "weather") == {"type": "function", "function": {"name": "weather"}}
    assert choice("claude-haiku-4-5", "required") == {"type": "any"}
    assert choice("claude-haiku-4-5", "weather") == {"type": "tool", "name": "weather"}
    assert ask("claude-haiku-4-5", tools=[weather], tool_choice="none").finish == "stop"


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        (lambda city: city, "must have letters"),
        ({"name": "no spaces"}, "a tool is a function"),
        ("weather", "a tool is a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(tool: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        model("simulated/gpt-4o-mini").call("x", tools=[tool])


def test_a_function_without_types_cannot_be_a_tool() -> None:
    def vague(city, *rest: int) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigError, match="'vague' needs a type for its parameter 'city'"):
        model("simulated/gpt-4o-mini").call("x", tools=[vague])


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]", '"Rome"'])
def test_arguments_that_are_not_json_fail_the_call_and_stay_paid(arguments: str, tmp_path: Path) -> None:
    asked, simulator = simulated("gpt-4o-mini", **answering(Answer("", calls=[("weather", arguments)])))

    async def evaluate(candidate: int, case: Case) -> float:
        await asked.generate("x", tools=[weather])
        return 0.0

    study = Study(Sweep(range(1)), evaluate)
    run = run_virtual(study.run_async("async:1", ledger=tmp_path / "run.db", max_failures=None))
    assert run.money.calls == len(simulator.charges) == 1
    with sqlite3.connect(tmp_path / "run.db") as db:
        assert db.execute("SELECT count(*) FROM call").fetchone() == (1,)
        [(kind, message)] = db.execute("SELECT failure, message FROM evaluation").fetchall()
    assert "schema" in f"{kind} {message}" and "not a JSON object" in message


def test_a_model_known_to_have_no_tools_is_refused_before_sending() -> None:
    with pytest.raises(ConfigError, match="this model does not take tools"):
        blind("text").call("x", tools=[weather])


# -- the shape of the reply -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [City, CityStruct])
def test_a_reply_becomes_an_instance_of_the_type(name: str, kind: type[Any]) -> None:
    reply = ask(name, schema=kind)
    assert isinstance(reply.parsed, kind) and reply.finish == "stop"
    assert reply.parsed == msgspec.json.decode(reply.text, type=kind)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("schema", [CityDict, SCHEMA])
def test_a_reply_becomes_a_dict_of_the_schema(name: str, schema: Any) -> None:
    assert set(ask(name, schema=schema).parsed) == ({"name", "people"} if schema is CityDict else {"why", "answer"})


def test_a_pydantic_model_describes_a_reply() -> None:
    pydantic = pytest.importorskip("pydantic")
    kind = pydantic.create_model("Place", name=(str, ...), people=(int | None, None))
    assert isinstance(ask("gpt-4o-mini", schema=kind).parsed, kind)


def test_fields_keep_their_order_in_which_models_think() -> None:
    """A field for the reasons, put first, is only of use if it stays first."""
    for name in MODELS:
        text = model(f"simulated/{name}").call("x", schema=SCHEMA).body
        assert text.index('"why":') < text.index('"answer":')


def test_schemas_are_strict_where_they_can_be() -> None:
    def strict(schema: Any) -> Any:
        return sent("gpt-4o-mini", schema=schema)["response_format"]["json_schema"]["strict"]

    assert strict(City) and strict(SCHEMA) and strict(CityStruct)
    assert not strict({"type": "object", "properties": {"a": {"type": "string"}}})


def test_a_model_without_schemas_is_made_to_call_a_tool() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "CityDict", "arguments": '{"name":"Rome","people":3}'}}
    choice = {"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}
    transport = Fixed({"choices": [choice]})
    reply = run_virtual(blind("tools", transport).generate("x", schema=CityDict))
    assert reply.parsed == {"name": "Rome", "people": 3} and reply.finish == "stop" and not reply.tool_calls
    assert transport.bodies[0]["tool_choice"]["function"]["name"] == "CityDict"
    with pytest.raises(ConfigError, match="no structured output"):
        blind("text").call("x", schema=CityDict)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer('{"name": 3, "people": 5}'), "schema", "does not fit the schema"),
        (Answer("Rome, of course."), "schema", "does not fit the schema"),
        (Answer("I can't help with that.", finish="refusal"), "refusal", "refused to answer: I can't help"),
        (Answer('{"name": "Ro', finish="length"), "length", "raise max_tokens"),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_a_reply_that_does_not_fit_says_why_and_is_paid(name: str, answer: Answer, kind: str, words: str) -> None:
    asked, simulator = simulated(name, **answering(answer))
    with pytest.raises(CallFailed, match=words) as failure:
        run_virtual(asked.generate("x", schema=CityDict))
    assert failure.value.kind == kind and len(simulator.charges) == 1


def test_json_in_a_fence_is_read() -> None:
    fenced = '```json\n{"name": "Rome", "people": 3}\n```'
    assert ask("gpt-4o-mini", config=answering(fenced), schema=CityDict).parsed["people"] == 3


@pytest.mark.parametrize("schema", [int, list[str], {"type": "array", "items": {}}, {"type": "object", "propertys": 1}])
def test_a_schema_that_providers_would_refuse_is_refused_here(schema: Any) -> None:
    with pytest.raises(ConfigError, match="schema"):
        model("simulated/gpt-4o-mini").call("x", schema=schema)


# -- several texts, probabilities, seeds, caching, extra --------------------------------------------------------------


def test_n_texts_come_with_one_request() -> None:
    asked, simulator = simulated("gpt-4o-mini")
    reply = run_virtual(asked.generate("Name a city.", n=3, max_tokens=30))
    assert len(reply.texts) == len(set(reply.texts)) == 3 and reply.texts[0] == reply.text
    assert len(simulator.charges) == 1
    one, three = (asked.call("x", n=n, max_tokens=1000).worst or 0 for n in (1, 3))
    assert three > 2.5 * one


def test_a_stop_sequence_ends_every_text() -> None:
    reply = ask("gpt-6-luna", n=2, stop=["e"])
    assert all("e" not in text for text in reply.texts)


def test_logprobs_are_listed_with_likely_tokens() -> None:
    reply = ask("gpt-4o-mini", logprobs=3)
    assert "".join(token.token for token in reply.logprobs) == reply.text
    assert all(token.logprob <= 0 and len(token.top) == 3 for token in reply.logprobs)
    assert ask("gpt-4o-mini").logprobs == ()


def test_models_that_continue_texts_list_logprobs_too_streamed_or_not() -> None:
    asked = replace(simulated("gpt-4o-mini")[0], raw=True)
    assert json.loads(asked.call("Where?", logprobs=3).body)["logprobs"] == 3
    assert json.loads(asked.call("Where?", logprobs=True).body)["logprobs"] == 1
    assert "logprobs" not in json.loads(asked.call("Where?", logprobs=False).body)
    reply = run_virtual(asked.generate("Where?", logprobs=3))
    _, streamed = run_virtual(watched(asked, logprobs=3))
    for each in (reply, streamed):
        assert each.logprobs and "".join(token.token for token in each.logprobs) == each.text
        assert all(token.logprob <= 0 and len(token.top) == 3 for token in each.logprobs)


def test_what_a_reply_would_be_useless_without_is_never_left_out() -> None:
    with pytest.raises(ConfigError, match="does not take logprobs while it reasons: add reasoning_effort='none'"):
        model("simulated/gpt-6-luna").call("x", logprobs=True)
    with pytest.raises(ConfigError, match="does not take n"):
        model("simulated/claude-haiku-4-5").call("x", n=2)
    assert ask("gpt-6-luna", logprobs=True, reasoning_effort="none").logprobs


def test_prompts_are_cached_on_demand_where_it_must_be_asked_for() -> None:
    dialogue = [
        {"role": "user", "content": "A long beginning."},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": "What about it?"},
    ]
    body = sent("claude-haiku-4-5", dialogue, system="Be brief.", cache=True)
    mark = {"type": "ephemeral"}
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    assert body["messages"][1]["content"] == [{"type": "text", "text": "Well.", "cache_control": mark}]
    assert body["messages"][2]["content"] == "What about it?"
    assert "cache" not in sent("gpt-4o-mini", dialogue, cache=True)
    assert sent("gpt-4o-mini", prompt_cache_key="mine")["prompt_cache_key"] == "mine"


def test_a_part_may_ask_for_the_cache_itself() -> None:
    part = {"type": "text", "text": "A long beginning.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    assert sent("claude-haiku-4-5", [{"role": "user", "content": [part]}])["messages"][0]["content"] == [part]
    asked, _ = simulated("claude-haiku-4-5", prompt_cache=2)

    async def twice(**options: Any) -> list[int]:
        talk = [{"role": "user", "content": "long " * 50}, {"role": "assistant", "content": "Well."}]
        replies = [await asked.generate([*talk, {"role": "user", "content": text}], **options) for text in "ab"]
        return [reply.cached_tokens for reply in replies]

    assert run_virtual(twice()) == [0, 0]
    assert run_virtual(twice(cache=True))[1] > 0


def test_extra_goes_into_the_body_as_it_is_and_into_the_key() -> None:
    asked = model("simulated/gpt-4o-mini")
    extra = {"logit_bias": {"50256": -100}, "store": False}
    call = asked.call("x", extra=extra)
    assert json.loads(call.body) == {**json.loads(asked.call("x").body), **extra}
    assert call.key != asked.call("x").key
    with pytest.raises(ConfigError, match=r"model.stream"):
        asked.call("x", extra={"stream": True})


def test_extra_is_never_dropped_when_the_server_refuses_it() -> None:
    with pytest.raises(CallFailed, match="Unrecognized request argument supplied: nonsense") as failure:
        ask("gpt-4o-mini", extra={"nonsense": 1})
    assert failure.value.kind == "bad-request"


# -- replies ----------------------------------------------------------------------------------------------------------


def test_request_ids_are_in_replies_and_in_errors() -> None:
    assert ask("gpt-4o-mini").request_id.startswith("req_")
    assert ask("claude-haiku-4-5").request_id.startswith("req_")
    transport = Fixed({"error": {"message": "no"}}, {"x-request-id": "req_17"}, 400)
    with pytest.raises(CallFailed, match=r"no \[request id req_17\]"):
        run_virtual(fixed(transport).generate("x"))


def test_the_raw_body_is_for_the_caller_and_not_for_the_ledger(tmp_path: Path) -> None:
    asked, _ = simulated("gpt-4o-mini")
    bodies = []

    async def evaluate(candidate: int, case: Case) -> float:
        bodies.append((await asked.generate("x", raw=True)).raw)
        return 0.0

    for name in "ab":  # the second run is answered from the ledger
        study = Study(Sweep(range(1)), evaluate)
        run_virtual(study.run_async("async:1", ledger=tmp_path / "run.db", run=name, reuse="never"))
    assert bodies[0]["system_fingerprint"] == "fp_simulated" and bodies[1:] == [None]
    with sqlite3.connect(tmp_path / "run.db") as db:
        assert "fp_simulated" not in db.execute("SELECT reply FROM call").fetchone()[0]


def test_reasoning_is_read_where_the_server_shows_it() -> None:
    message = {"content": "4", "reasoning_content": "2 and 2 make 4."}
    reply = run_virtual(fixed(Fixed({"choices": [{"message": message}]})).generate("x"))
    assert (reply.text, reply.reasoning) == ("4", "2 and 2 make 4.")
    cut = {"message": {"content": None, "reasoning_content": "2 and 2"}, "finish_reason": "length"}
    with pytest.raises(CallFailed, match=r"used all of its .* tokens to reason, and said nothing: raise"):
        run_virtual(fixed(Fixed({"choices": [cut]})).generate("x"))  # also where nobody counted them
    blocks = [
        {"type": "thinking", "thinking": "2 and 2 make 4.", "signature": "s"},
        {"type": "text", "text": "4"},
    ]
    usage = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 8}}
    body = {"content": blocks, "stop_reason": "end_turn", "usage": usage}
    reply = run_virtual(fixed(Fixed(body), "claude-haiku-4-5").generate("x"))
    assert (reply.text, reply.reasoning, reply.reasoning_tokens) == ("4", "2 and 2 make 4.", 8)
    assert list(reply.parts) == blocks
    # Anthropic wants the thoughts back as they were.
    dialogue = [{"role": "user", "content": "x"}, reply.message, {"role": "user", "content": "y"}]
    assert sent("claude-haiku-4-5", dialogue)["messages"][1] == {"role": "assistant", "content": blocks}
    assert "parts" not in sent("gpt-4o-mini", dialogue)["messages"][1]


def test_replies_of_older_ledgers_are_read_and_new_ones_stay_small() -> None:
    old = '{"text":"hi","finish":"stop","input_tokens":3,"output_tokens":1,"model":"m","cost":0.1,"cached":false}'
    assert msgspec.json.decode(old, type=Reply) == Reply(
        text="hi", input_tokens=3, output_tokens=1, model="m", cost=0.1
    )
    assert msgspec.json.encode(Reply(text="hi")) == b'{"text":"hi"}'
    full = Reply(text="", tool_calls=(ToolCall("1", "weather", {"city": "Rome"}),), others=("a",))
    assert msgspec.json.decode(msgspec.json.encode(full), type=Reply) == full


@pytest.mark.parametrize("route", ["gpt-4o-mini to claude-haiku-4-5", "claude-haiku-4-5 to gpt-4o-mini"])
def test_a_dialogue_with_tools_moves_from_one_provider_to_another(route: str) -> None:
    one, other = route.split(" to ")
    first = ask(one, tools=[weather])
    dialogue = [{"role": "user", "content": "Where?"}, first.message, *(c.result("fine") for c in first.tool_calls)]
    assert ask(other, dialogue, tools=[weather]).text


# -- streams ----------------------------------------------------------------------------------------------------------


async def watched(asked: Model, messages: Any = "Tell me.", **parameters: Any) -> tuple[list[str], Reply]:
    stream = asked.stream(messages, **parameters)
    pieces = [piece async for piece in stream]
    return pieces, stream.reply


@pytest.mark.parametrize("name", MODELS)
def test_a_stream_gives_the_text_in_pieces_and_then_the_same_reply(name: str) -> None:
    asked, simulator = simulated(name)
    pieces, reply = run_virtual(watched(asked, max_tokens=200))
    assert len(pieces) > 1 and "".join(pieces) == reply.text
    plain = run_virtual(simulated(name)[0].generate("Tell me.", max_tokens=200))
    assert (reply.finish, reply.input_tokens) == ("stop", plain.input_tokens)
    [charge] = simulator.charges
    assert asked.price is not None and reply.output_tokens == charge.output_tokens
    assert reply.cost == asked.price.cost(charge.input_tokens, charge.output_tokens)


@pytest.mark.parametrize("name", MODELS)
def test_pieces_come_while_the_reply_is_written(name: str) -> None:
    asked, _ = simulated(name, latency=Latency(60.0))

    async def times() -> list[float]:
        return [asyncio.get_running_loop().time() async for _ in asked.stream("Tell me.")]

    moments = run_virtual(times())
    assert moments[-1] - moments[0] > 30


@pytest.mark.parametrize("name", MODELS)
def test_pieces_come_over_real_sockets(name: str) -> None:
    async def main() -> tuple[list[str], Reply]:
        async with serve(Simulator(SimulatorConfig())) as url:
            address = f"{url}/v1" if name.startswith("gpt") else url
            return await watched(replace(model(f"simulated/{name}"), url=address, connect=Http))

    pieces, reply = asyncio.run(main())
    assert len(pieces) > 1 and "".join(pieces) == reply.text


def test_a_streamed_reply_is_kept_and_comes_from_the_ledger_as_one_piece(tmp_path: Path) -> None:
    asked, simulator = simulated("gpt-4o-mini")
    seen = []

    async def evaluate(candidate: int, case: Case) -> float:
        pieces, reply = await watched(asked)
        seen.append((len(pieces) > 1, reply.text, reply.cached))
        assert (await asked.generate("Tell me.")).text == reply.text
        return 0.0

    for name in "ab":
        study = Study(Sweep(range(1)), evaluate)
        run = run_virtual(study.run_async("async:1", ledger=tmp_path / "run.db", run=name, reuse="never"))
        assert run.best is not None
    assert [several for several, _, _ in seen] == [True, False] and seen[0][1] == seen[1][1]
    assert len(simulator.charges) == 1


def test_a_stream_that_breaks_off_is_not_begun_again() -> None:
    """Whoever has read the first words would read others."""
    faults = Faults((Fault("cut", times=1),))
    asked, simulator = simulated("gpt-4o-mini", faults=faults)
    with pytest.raises(CallFailed, match="broke off after its first words") as failure:
        run_virtual(watched(asked))
    assert failure.value.kind == "interrupted" and failure.value.maybe_paid and len(simulator.charges) == 1


def test_a_stream_that_fails_before_its_first_word_is_tried_again() -> None:
    asked, _ = simulated("gpt-4o-mini", faults=Faults((Fault("internal", times=2),)))
    assert run_virtual(watched(asked))[1].text


def test_a_stream_ends_at_a_stop_sequence_also_without_the_models_help() -> None:
    answer = answering("One two th STOP four five six.")  # it comes in two pieces
    for name in ("gpt-6-luna", "gpt-4o-mini"):
        pieces, reply = run_virtual(watched(simulated(name, **answer)[0], stop=["STOP"]))
        assert "".join(pieces) == reply.text == "One two th "


def test_whoever_stops_watching_has_paid_all_the_same() -> None:
    asked, simulator = simulated("gpt-4o-mini", latency=Latency(10.0))

    async def leave() -> None:
        async for _ in asked.stream("Tell me."):
            break

    run_virtual(leave())
    assert len(simulator.charges) == 1


def test_a_schema_and_tools_work_with_a_stream_too() -> None:
    pieces, reply = run_virtual(watched(simulated("gpt-4o-mini")[0], schema=CityDict))
    assert json.loads("".join(pieces)) == reply.parsed
    for name in MODELS:
        assert run_virtual(watched(simulated(name)[0], tools=[weather]))[1].tool_calls[0].name == "weather"


def test_a_server_that_does_not_stream_answers_in_one_piece() -> None:
    asked = fixed(Fixed({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}))
    assert run_virtual(watched(asked))[0] == ["Hi"]


async def far_away(candidate: int, case: Case) -> float:
    pieces, reply = await watched(model("simulated/gpt-4o-mini"))
    assert pieces == [reply.text]
    return 1.0


def test_a_stream_in_a_worker_process_comes_home_in_one_piece() -> None:
    """Nobody watches there; the run pays and keeps the reply as always."""
    run = Study(Sweep(range(1)), far_away).run("processes:1")
    assert run.best is not None and run.best.score == 1.0 and run.money.calls == 1


def test_an_unfinished_stream_has_no_reply() -> None:
    with pytest.raises(FanfoldError, match="to its end first"):
        print(model("simulated/gpt-4o-mini").stream("x").reply)


# -- Responses --------------------------------------------------------------------------------------------------------


def responses(name: str = "gpt-4o-mini", **options: Any) -> tuple[Model, Simulator]:
    asked, simulator = simulated(name, **options)
    return replace(asked, provider=model(f"simulated/{name}", protocol="responses").provider), simulator


def test_the_protocol_is_chosen_by_an_option_or_by_the_model() -> None:
    def path(name: str, **options: Any) -> str:
        return model(name, key="sk-12345678", **options).call("x").endpoint.rpartition("/v1")[2]

    assert path("openai/gpt-6-luna") == "/chat/completions"
    assert path("openai/gpt-6-luna", protocol="responses") == "/responses"
    assert path("openai/gpt-5-pro") == path("simulated/gpt-5.3-codex") == "/responses"
    assert path("simulated/gpt-6-luna", protocol="responses") == "/responses"
    assert path("openai-compatible/x", base_url="http://127.0.0.1:1/v1", protocol="responses") == "/responses"
    assert model("openai/gpt-5-pro", key="sk-12345678").id == "openai/gpt-5-pro"
    for name in ("openai/gpt-6-luna", "mistral/mistral-small-latest"):
        with pytest.raises(ConfigError, match="does not speak the protocol"):
            model(name, key="sk-12345678", protocol="telepathy" if "gpt" in name else "responses")


def test_models_toml_chooses_the_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.toml").write_text('[mine]\nmodel = "simulated/gpt-6-luna"\noptions = { protocol = "responses" }\n')
    assert model("mine").call("x").endpoint.endswith("/responses")


def test_a_model_that_has_only_responses_is_refused_in_a_chat() -> None:
    asked, _ = simulated("gpt-5-pro")
    chat = replace(asked, provider=OpenAI())
    with pytest.raises(CallFailed, match="only supported in v1/responses"):
        run_virtual(chat.generate("x"))


def test_responses_say_everything_that_a_chat_says() -> None:
    asked, simulator = responses(reasoning=30)
    question = {"role": "user", "content": [{"type": "text", "text": "What is it?"}, image(PIXEL)]}
    options = {"system": "Be brief.", "temperature": 0.5, "max_tokens": 50, "logprobs": 2}
    reply = run_virtual(asked.generate([question], **options))
    assert reply.text and len(reply.logprobs[0].top) == 2 and reply.request_id
    body = json.loads(asked.call([question], **options).body)
    assert (body["instructions"], body["max_output_tokens"], body["store"]) == ("Be brief.", 50, False)
    assert isinstance(run_virtual(asked.generate("x", schema=City)).parsed, City)
    pieces, streamed = run_virtual(watched(asked))
    assert len(pieces) > 1 and "".join(pieces) == streamed.text and streamed.output_tokens
    assert run_virtual(asked.generate("x", max_tokens=1)).finish == "length"  # the protocol's least limit is 16
    assert sum(charge.output_tokens for charge in simulator.charges) > 0


def test_tools_and_thoughts_go_back_and_forth_in_responses() -> None:
    asked, simulator = responses("gpt-6-luna", reasoning=30)

    async def talk() -> tuple[Reply, Reply]:
        dialogue: list[Any] = [{"role": "user", "content": "How is it in Rome?"}]
        first = await asked.generate(dialogue, tools=[weather], tool_choice="weather")
        dialogue += [first.message, *(call.result("fine") for call in first.tool_calls)]
        return first, await asked.generate(dialogue, tools=[weather])

    first, second = run_virtual(talk())
    assert first.finish == "tool" and first.reasoning_tokens == 30 and second.text
    assert [part["type"] for part in first.parts] == ["reasoning", "function_call"]
    assert simulator.billing.statuses == {200: 2}


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        (Answer("No.", finish="refusal"), "refusal"),
        (Answer("Half", finish="length"), "length"),
        (Answer("", finish="content_filter"), "filter"),
    ],
)
def test_responses_end_as_chats_end(answer: Answer, finish: str) -> None:
    reply = run_virtual(responses(**answering(answer))[0].generate("x"))
    assert reply.finish == finish and (reply.refusal == "No.") == (finish == "refusal")


def test_responses_travel_in_batches() -> None:
    asked, simulator = responses("gpt-5-pro", turnaround=Latency(60.0))

    async def evaluate(candidate: int, case: Case) -> float:
        return float(len((await asked.generate(f"x{candidate}", max_tokens=50)).text))

    run = run_virtual(Study(Sweep(range(3)), evaluate).run_async(BatchExecutor("auto")))
    assert [charge.price for charge in simulator.charges] == ["batch"] * 3 and run.best is not None
