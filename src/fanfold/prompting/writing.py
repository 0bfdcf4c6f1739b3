"""How a model writes a prompt that the search asked for: what it is told, and what of its answer is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fanfold.errors import ConfigError
from fanfold.models import Model, Reply
from fanfold.prompting.genome import SLOT, Candidate, Genome, How, Written

OPEN, CLOSE = "<prompt>", "</prompt>"
TEMPERATURE = 0.7

_ORDERS: dict[How, str] = {
    "paraphrase": "Write a prompt that asks for the same in other words. Change neither the task nor the form of the "
    "answer.",
    "shorten": "Write a prompt that asks for the same in at most half as many words. Keep what the answers depend on.",
    "reflect": "Find out what the mistakes have in common and what the prompt failed to say. Then write a better "
    "prompt that prevents mistakes of this kind. It will be used on other inputs: do not quote the ones above, nor "
    "their answers.",
    "combine": "Write one prompt that joins the strengths of both, without saying anything twice.",
    "expand": "Write a prompt that says more exactly what is to be done and what the answer must look like.",
}
_SLOT_LIKE = re.compile(r"\{[A-Za-z_ ]{1,40}\}|\[(?:insert|your)\b[^\]]{0,80}\]", re.I)
_FENCE = re.compile(r"```\w*\n(.*?)\n?```", re.S)


async def realise(candidate: Candidate, writer: Model | None, description: str, *, most_words: int = 120) -> Genome:
    """The prompt itself, or what the writer makes of one that has yet to be written.

    Examples and labels are those of the first parent.  The model is asked once for each (request, sample): its answer
    is in the ledger from then on.  An answer without a usable prompt in it (none at all, cut off, refused, too long,
    the first parent's words again, a foreign placeholder, the shown inputs quoted) raises ValueError, so that the
    candidate fails: handing back its parent under another name would pay for evaluating that parent again and give
    credit to a rewriting that never was.
    """
    if isinstance(candidate, Genome):
        return candidate
    if writer is None:
        raise ConfigError(f"there is no model to {candidate.how} a prompt with: name one as the writer")
    # A model that continues a text is led into the answer; one that talks is asked for the marks, and may think first.
    options: dict[str, Any] = {"max_tokens": max(256, 6 * most_words)}
    if writer.raw:
        options = {"max_tokens": 2 * most_words + 32, "stop": [CLOSE]}
    reply = await writer.generate(
        request(candidate, description, most_words) + (f"\n\n{OPEN}\n" if writer.raw else ""),
        sample=candidate.sample,
        temperature=TEMPERATURE,
        **options,
    )
    text = _prompt_in(OPEN + reply.text + CLOSE if writer.raw and reply.finish == "stop" else reply.text)
    if wrong := next(_faults(text, reply, candidate, most_words), None):
        raise ValueError(f"{writer.name} was asked to {candidate.how} a prompt, and {wrong}: {reply.text!r:.120}")
    first = candidate.parents[0]
    return replace(Genome.of(text, first.labels), examples=first.examples)


def request(candidate: Written, description: str, most_words: int = 120) -> str:
    """What the writer is asked."""
    first = candidate.parents[0]
    many = len(candidate.parents) > 1
    parts = ["You improve prompts for a language model."]
    if description:
        parts.append(f"The task: {description}")
    for number, parent in enumerate(candidate.parents, 1):
        name = f"Prompt {number}" if many else "The prompt now"
        parts.append(f'{name}:\n"""\n{parent.head() or "(no words, only the input)"}\n"""')
    if any(SLOT in clause for clause in first.clauses):
        parts.append(f"{SLOT} stands for the input. Keep it, once.")
    else:
        label, answer = first.labels
        parts.append(f"The input follows it after the word {label!r}, and the answer is read after {answer!r}.")
    for number, failure in enumerate(candidate.failures, 1):
        shown = (f"Input: {failure.input}", f"Right answer: {failure.expected}", f"The model said: {failure.said}")
        parts.append("\n".join((f"Mistake {number}", *shown)))
    parts.append(_ORDERS[candidate.how])
    parts.append(f"Use at most {most_words} words. Put nothing but the new prompt between {OPEN} and {CLOSE}.")
    return "\n\n".join(parts)


def _prompt_in(text: str) -> str:
    """What stands between the last pair of marks, without fences or quotes around it."""
    before, close, _ = text.rpartition(CLOSE)
    _, open_, prompt = before.rpartition(OPEN)
    if not close or not open_:
        return ""
    prompt = prompt.strip()
    if fenced := _FENCE.fullmatch(prompt):
        prompt = fenced[1].strip()
    for quote in ('"""', '"'):
        inside = prompt.removeprefix(quote).removesuffix(quote)
        if len(inside) == len(prompt) - 2 * len(quote) and quote not in inside:
            prompt = inside.strip()
    return prompt


def _faults(text: str, reply: Reply, candidate: Written, most_words: int) -> Iterator[str]:
    """Why the writer's prompt cannot be used, the first reason first."""
    if reply.finish not in ("stop", "length"):
        yield f"gave none ({reply.finish})"
    if not any(letter.isalnum() for letter in text):
        yield f"gave none between {OPEN} and {CLOSE}" + (" (cut off)" if reply.finish == "length" else "")
    if (words := len(text.split())) > most_words:
        yield f"wrote {words} words where {most_words} are allowed"
    heads = [parent.head() for parent in candidate.parents]
    if text.split() in [head.split() for head in heads]:
        yield "gave the same words back"
    known = {SLOT, *(mark for head in heads for mark in _SLOT_LIKE.findall(head))}
    if foreign := [mark for mark in _SLOT_LIKE.findall(text) if mark not in known]:
        yield f"left a gap that nobody fills ({foreign[0]})"
    if text.count(SLOT) > max(1, *(head.count(SLOT) for head in heads)):
        yield f"wrote {SLOT} more than once"
    if any(len(failure.input) >= 20 and failure.input in text for failure in candidate.failures):
        yield "quoted one of the inputs it was shown"
