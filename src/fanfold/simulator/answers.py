"""What the simulated models say: seeded words by default, cut and counted as a provider would."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from fanfold.encoding import derive_seed, encode
from fanfold.files import imported
from fanfold.simulator.config import Answer, AnswerFunction, SimulatorConfig
from fanfold.simulator.invented import invent

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 3
#: An image, a file or a sound counts as this much.
TOKENS_PER_ATTACHMENT = 85

_VOCABULARY = (
    "the a one this that each every some most first second next last good better best clear short long small large "
    "answer question reason result value number step case rule plan test sample model measure change effect cause "
    "is was gives takes makes shows needs finds keeps follows depends leads remains becomes holds means "
    "and but because so then while when if unless therefore however also only often rarely always never about above "
    "below between within after before with without into from over under"
)
_WORDS = _VOCABULARY.split()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request as every dialect has it."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    input_tokens: int
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    samples: int = 1
    json: bool = False
    reasoning: int = 0
    #: The JSON Schema that the answer must fit; a tool that it calls, by name and schema; likely tokens to list.
    schema: Mapping[str, Any] | None = None
    tool: tuple[str, Any] | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer as it leaves the model: cut at a stop sequence (`stop`) or at the token limit, and counted.

    The tokens of `reasoning` are among the `tokens`.  `calls` are tools by name, with arguments in JSON.
    """

    text: str
    finish: str
    tokens: int
    stop: str | None = None
    reasoning: int = 0
    calls: tuple[tuple[str, str], ...] = ()


def count_tokens(text: str) -> int:
    """One token for every four characters begun, the simulator's only rule for text."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def pieces(text: str) -> list[str]:
    """A text as it is streamed, some tokens at a time."""
    size = 3 * CHARACTERS_PER_TOKEN
    return [text[at : at + size] for at in range(0, len(text), size)]


def content_tokens(content: Any) -> int:
    """Tokens in a message's content: a text, or a list of parts."""
    if isinstance(content, str):
        return count_tokens(content)
    total = 0
    for part in content or ():
        if isinstance(part, str):
            total += count_tokens(part)
        elif isinstance(part, Mapping):
            text = part.get("text", part.get("content"))
            total += content_tokens(text) if isinstance(text, str | list) else TOKENS_PER_ATTACHMENT
    return total


class Author:
    """Writes the answers of one simulator: the same request and sample always get the same answer."""

    def __init__(self, config: SimulatorConfig) -> None:
        self._seed = config.seed
        self._answer = named(config.answer) if isinstance(config.answer, str) else config.answer
        self._upstream = config.upstream

    async def write(self, prompt: ModelRequest, body: Mapping[str, Any], key: str, sample: str) -> list[Completion]:
        """All the samples a request asks for; `key` and `sample` seed them."""
        written: list[Completion] = []
        for index in range(prompt.samples):
            rng = random.Random(derive_seed(self._seed, key, sample, index))
            if self._answer is None and self._upstream is None:
                answer = _own(prompt, rng)
            else:
                answer = await self._ask(prompt, body, rng)
            written.append(finish(answer, prompt))
        return written

    async def _ask(self, prompt: ModelRequest, body: Mapping[str, Any], rng: random.Random) -> Answer:
        function: AnswerFunction | None = self._answer or self._upstream
        assert function is not None
        answer: Any
        if self._upstream is not None and not inspect.iscoroutinefunction(function):
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(None, function, prompt.model, prompt.messages, body, rng)
        else:
            answer = function(prompt.model, prompt.messages, body, rng)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            return _own(prompt, rng)
        if isinstance(answer, str):
            return Answer(answer)
        if not isinstance(answer, Answer):
            raise TypeError(f"the answer function gave {type(answer).__name__}: return a text or an Answer")
        return answer


def named(name: str) -> AnswerFunction:
    """The answer function that a text `module:function` means."""
    return cast(AnswerFunction, imported(name, "take (model, messages, params, rng) and give a text or an Answer"))


def finish(answer: Answer, prompt: ModelRequest) -> Completion:
    """Cut an answer where the request says it ends."""
    text, reason, stop = answer.text, answer.finish, None
    for sequence in prompt.stop:
        at = text.find(sequence)
        if at >= 0:
            text, reason, stop = text[:at], "stop", sequence
    calls = tuple((name, given if isinstance(given, str) else encode(given)) for name, given in answer.calls)
    tokens = count_tokens(text) if answer.output_tokens is None or stop else answer.output_tokens
    tokens += sum(count_tokens(name + given) for name, given in calls)
    thought = prompt.reasoning if prompt.max_tokens is None else min(prompt.reasoning, prompt.max_tokens)
    if prompt.max_tokens is not None and tokens > prompt.max_tokens - thought:
        tokens = prompt.max_tokens - thought
        text, reason, stop, calls = text[: tokens * CHARACTERS_PER_TOKEN], "length", None, ()
    return Completion(text, "tool_calls" if calls else reason, tokens + thought, stop, thought, calls)


def _own(prompt: ModelRequest, rng: random.Random) -> Answer:
    """What a model says of itself: a call of the tool, a value of the schema, or words."""
    if prompt.tool is not None:
        name, schema = prompt.tool
        return Answer("", calls=[(name, invent(schema, rng, _WORDS))])
    if prompt.schema is not None:
        return Answer(msgspec.json.encode(invent(prompt.schema, rng, _WORDS)).decode())
    text = " ".join(rng.choices(_WORDS, k=rng.randint(5, 60))).capitalize() + "."
    return Answer(f'{{"answer": "{text}"}}' if prompt.json else text)


def logprobs(text: str, top: int) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """The tokens of a text with their log probabilities, and `top` likely ones in the place of each."""
    rng = random.Random(text)
    listed = []
    for at in range(0, len(text), CHARACTERS_PER_TOKEN):
        token, chance = text[at : at + CHARACTERS_PER_TOKEN], -rng.random()
        likely = [(token, chance), *((word, chance - 1 - rng.random()) for word in rng.sample(_WORDS, max(0, top - 1)))]
        listed.append((token, chance, sorted(likely, key=lambda pair: -pair[1])[:top]))
    return listed


def spoil(written: Completion, kind: str) -> Completion:
    """An answer struck by one of the answer faults."""
    if kind == "refusal":
        return Completion("I can't help with that.", "refusal", 6)
    if kind == "content_filter":
        return Completion("", "content_filter", 0)
    text = written.text[: max(1, len(written.text) // 2)]
    return Completion(text, "length", max(1, count_tokens(text)))
