"""Programs of several prompts: what each was asked and replied, and demonstrations made of that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

#: The name of the part that holds a prompt's demonstrations is the prompt's name and this.
SHOWN = ".demonstrations"
#: The score of a case that came out wholly right.
RIGHT = 1.0
#: How much of a request or a reply is kept with an outcome.
KEPT = 2000
_PLACE = re.compile(r"\{[A-Za-z_]\w*\}")
#: Where requests of all protocols hold what a model reads.
_READ = ("content", "text", "prompt", "input", "system", "instructions")


@dataclass(frozen=True)
class PromptTurn:
    """What one prompt of a program was asked, beside its own words, and what the model replied.

    `shown` is the pair as a demonstration: for a request that begins with the prompt, what followed the prompt and the
    reply; for a prompt with places in it (`{text}`), the prompt with its places filled; else input and output by name.
    """

    prompt: str
    asked: str
    said: str
    shown: str

    def corrected(self, answer: str) -> str:
        """The demonstration with the right answer instead of the reply."""
        before, _, after = self.shown.rpartition(self.said)
        return f"{before}{answer}{after}"


def prompts_of(parts: Mapping[str, str], without: str | None = None) -> dict[str, str]:
    """The prompts as a program gets them, each with its demonstrations, but not the one of the case `without`.

    So no prompt shows the answer to the case that it is scored on.
    """
    prompts = {}
    for name, text in parts.items():
        if not name.endswith(SHOWN):
            shown = [demo for case, demo in demonstrations(parts, name) if case != without]
            prompts[name] = "".join([*shown, text]) if _PLACE.search(text) else "".join([text, *shown])
    return prompts


def demonstrations(parts: Mapping[str, str], name: str) -> list[tuple[str, str]]:
    """The demonstrations of a prompt in their order, each with the case that it comes from."""
    return [(case, shown) for case, shown in json.loads(parts.get(name + SHOWN) or "[]")]


def with_demonstrations(parts: Mapping[str, str], chosen: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, str]:
    """The prompts of these parts with other demonstrations."""
    own = {name: text for name, text in parts.items() if not name.endswith(SHOWN)}
    return own | {name + SHOWN: json.dumps(list(chosen.get(name, ())), ensure_ascii=False) for name in own}


def turns_of(trace: Sequence[tuple[Any, Any]], prompts: Mapping[str, str]) -> list[PromptTurn]:
    """The calls in which a prompt was used; a call that used two is that of the longer."""
    turns = []
    for call, reply in trace:
        texts = list(_texts(msgspec.json.decode(call.body)))
        for name in sorted(prompts, key=lambda name: -len(prompts[name])):
            if (turn := _turn(name, prompts[name], texts, reply.text.strip())) is not None:
                turns.append(turn)
                break
    return turns


def _turn(name: str, prompt: str, texts: Sequence[str], said: str) -> PromptTurn | None:
    if not prompt.strip():
        return None
    pattern = "(.*?)".join(map(re.escape, _PLACE.split(prompt.strip())))
    for at, text in enumerate(texts):
        found = re.search(pattern, text, re.DOTALL)
        if found is None:
            continue
        before, after = text[: found.start()], text[found.end() :]
        if _PLACE.search(prompt):
            shown = f"{_escaped(text[found.start() :].rstrip())} {_escaped(said)}\n\n"
            asked = "\n".join([*found.groups(), after.strip()])
        elif after.strip():
            shown, asked = f"{after.rstrip()} {said}", after
        else:
            asked = "\n".join([before, *texts[:at], *texts[at + 1 :]])
            shown = f"\n\nInput: {asked.strip()}\nOutput: {said}"
        return PromptTurn(name, asked.strip()[-KEPT:], said[-KEPT:], shown)
    return None


def _escaped(text: str) -> str:
    """A text inside a prompt whose places are filled by `str.format`."""
    return text.replace("{", "{{").replace("}", "}}")


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """What a model reads of a request, in its order."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str) and key in _READ:
        yield value
