"""How a model writes a text that the search asked for: what it is told, and what of its answer is used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fanfold.errors import ConfigError
from fanfold.models import Model, Reply
from fanfold.prompting.genome import SLOT, Candidate, Genome
from fanfold.strategies.reflective import How, ShownCase, Written
from fanfold.summary import Section
from fanfold.types import UNWRITTEN, Result

OPEN, CLOSE = "<prompt>", "</prompt>"
#: The marks around any other text: seldom part of one, as `<text>` is of a drawing.
BEGIN, END = "<rewritten>", "</rewritten>"
TEMPERATURE = 0.7
#: What stands for an empty prompt.
NO_WORDS = "(no words, only the input)"

_ORDERS: dict[How, str] = {
    "paraphrase": "Write a {noun} that asks for the same in other words. Change neither the task nor the form of the "
    "answer.",
    "shorten": "Write a {noun} that asks for the same in at most half as many words. Keep what the answers depend on.",
    "reflect": "Find out what the mistakes have in common and what the {noun} failed to say. Then write a better "
    "{noun} that prevents mistakes of this kind. It will be used on other inputs: do not quote the ones above, nor "
    "their answers.",
    "combine": "Write one {noun} that joins the strengths of both, without saying anything twice.",
    "expand": "Write a {noun} that says more exactly what is to be done and what the answer must look like.",
    "propose": "Find out from the examples what is to be done and what the answers look like. Then write a {noun} for "
    "it. It will be used on other inputs: do not quote the ones above.",
}
#: The same in a few words, for people.
_VERBS: dict[How, str] = {
    "paraphrase": "say the same in other words",
    "shorten": "say the same in fewer words",
    "reflect": "learn from what went wrong and write a better version",
    "combine": "join two parents",
    "expand": "say more exactly what is to be done",
    "propose": "write a version of its own from examples",
}
#: What is asked of texts that are no prompts.
_TEXT_ORDERS: dict[How, str] = {
    **_ORDERS,
    "reflect": "Find out from the results what limits the score. Then write a better version.",
    "combine": "Write one version that joins the strengths of both.",
    "propose": "Write a version that does better in another way than this one.",
}
#: Every proposal gets another piece of advice, so that they differ.
_TIPS = (
    "Be brief: one or two sentences.",
    "Say what distinguishes the possible answers from each other.",
    "Say exactly what the answer must look like.",
    "Say who the model is and what it knows before what it has to do.",
    "Name the mistakes that are easily made.",
)
_SLOT_LIKE = re.compile(r"\{[A-Za-z_ ]{1,40}\}|\[(?:insert|your)\b[^\]]{0,80}\]", re.I)
_FENCE = re.compile(r"```[\w+-]*\n(.*?)\n?```", re.S)


class Unwritten(ValueError):
    """The writer's answer holds nothing that can be used: the candidate fails, and the search continues."""


async def realise(
    candidate: Candidate, writer: Model | None, description: str, *, most_words: int = 120, rules: str = ""
) -> Genome:
    """The prompt itself, or what the writer makes of one that has yet to be written.

    Examples and labels are those of the first parent.  The model is asked once for each (request, sample): its answer
    is in the ledger from then on.  An answer without a usable prompt in it (none at all, cut off, refused, too long,
    the first parent's words again, a foreign placeholder, the shown inputs quoted) raises `Unwritten`, so that the
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
        request(candidate, description, most_words, rules) + (f"\n\n{OPEN}\n" if writer.raw else ""),
        sample=candidate.sample,
        temperature=TEMPERATURE,
        **options,
    )
    whole = OPEN + reply.text + CLOSE if writer.raw and reply.finish == "stop" else reply.text
    text = _marked(whole, OPEN, CLOSE).strip()
    first = candidate.parents[0]
    if text and SLOT in first.head() and SLOT not in text:
        text += _slot_of(first)
    if wrong := next(_faults(text, reply, candidate, most_words), None):
        raise Unwritten(f"{writer.name} was asked to {candidate.how} a prompt, and {wrong}: {reply.text!r:.120}")
    return replace(Genome.of(text, first.labels), examples=first.examples, worked=first.worked, nearest=first.nearest)


async def rewrite(
    candidate: Written[Mapping[str, str]],
    writer: Model,
    *,
    description: str = "",
    kind: str = "text",
    max_tokens: int = 4096,
) -> str:
    """The new text of the request's part, for texts of any kind: code, a query, one prompt of a program.

    `kind` is what the writer is told it is.  The text is what stands between the marks, or the only block in a fence.
    An answer without one, or with the parent's text again, raises `Unwritten`.
    """
    part = candidate.part or next(iter(candidate.parents[0]))
    options: dict[str, Any] = {"max_tokens": max_tokens, **({"stop": [END]} if writer.raw else {})}
    reply = await writer.generate(
        rewrite_request(candidate, description, kind) + (f"\n\n{BEGIN}\n" if writer.raw else ""),
        sample=candidate.sample,
        temperature=TEMPERATURE,
        **options,
    )
    whole = BEGIN + reply.text + END if writer.raw and reply.finish == "stop" else reply.text
    text = _marked(whole, BEGIN, END)
    if not text and len(fences := _FENCE.findall(whole)) == 1:
        text = _trimmed(fences[0])
    wrong = next(_missing(text, reply, f"{BEGIN} and {END}"), "")
    if not wrong and text.split() in [str(parent.get(str(part), "")).split() for parent in candidate.parents]:
        wrong = "gave the same words back"
    if wrong:
        raise Unwritten(f"{writer.name} was asked to {candidate.how} a {kind}, and {wrong}: {reply.text!r:.120}")
    return text


def request(candidate: Written[Genome], description: str, most_words: int = 120, rules: str = "") -> str:
    """What the writer of a prompt is asked."""
    first = candidate.parents[0]
    blocks = ["You improve prompts for a language model."]
    if description:
        blocks.append(f"The task: {description}")
    blocks += _quoted("prompt", [parent.head() or NO_WORDS for parent in candidate.parents])
    if any(SLOT in clause for clause in first.clauses):
        blocks.append(f"{SLOT} stands for the input. Keep it, once.")
    else:
        label, answer = first.labels
        blocks.append(f"The input follows it after the word {label!r}, and the answer is read after {answer!r}.")
    blocks += _evidence(candidate)
    blocks.append(_ORDERS[candidate.how].format(noun="prompt"))
    if candidate.how == "propose":
        blocks.append(_TIPS[candidate.sample % len(_TIPS)])
    blocks += [rules] if rules else []
    blocks.append(f"Use at most {most_words} words. Put nothing but the new prompt between {OPEN} and {CLOSE}.")
    return "\n\n".join(blocks)


def rewrite_request(candidate: Written[Mapping[str, str]], description: str, kind: str) -> str:
    """What the writer of any text is asked."""
    first = candidate.parents[0]
    part = str(candidate.part or next(iter(first)))
    blocks = [f"You improve {'code' if kind == 'code' else f'a {kind}'}. Its score is measured; higher is better."]
    if description:
        blocks.append(f"What it is for: {description}")
    blocks += [f'{name}, which stays as it is:\n"""\n{text}\n"""' for name, text in first.items() if name != part]
    blocks += _quoted(part if len(first) > 1 else kind, [str(parent.get(part, "")) for parent in candidate.parents])
    blocks += _evidence(candidate, "Mistake" if kind == "prompt" else "Result")
    orders = _ORDERS if kind == "prompt" else _TEXT_ORDERS
    blocks.append(orders[candidate.how].format(noun=kind))
    name = f"the new {part} as a whole" if len(first) > 1 else f"the new {kind} as a whole"
    blocks.append(f"Put nothing but {name} between {BEGIN} and {END}.")
    return "\n\n".join(blocks)


def _quoted(noun: str, texts: Sequence[str]) -> list[str]:
    names = [f"The {noun} now"] if len(texts) == 1 else [f"{noun.capitalize()} {n}" for n in range(1, len(texts) + 1)]
    return [f'{name}:\n"""\n{text}\n"""' for name, text in zip(names, texts)]


def _evidence(candidate: Written[Any], word: str = "Mistake") -> list[str]:
    """The cases as the writer reads them: the mistakes, or the examples of a proposal, and what must stay right."""
    word = "Example" if candidate.how == "propose" else word
    blocks = [_case(f"{word} {number}", case) for number, case in enumerate(candidate.failures, 1)]
    blocks += [_case(f"Right already {number}", case) for number, case in enumerate(candidate.kept or (), 1)]
    tried = [f'Tried before, not better ({case.feedback}):\n"""\n{case.said}\n"""' for case in candidate.tried or ()]
    return blocks + tried


def _case(name: str, case: ShownCase) -> str:
    lines = {
        "Input": case.input,
        "Right answer": case.expected,
        "The model said": case.said,
        "Feedback": case.feedback or "",
    }
    return "\n".join((name, *(f"{label}: {text}" for label, text in lines.items() if text)))


def _marked(text: str, open_: str, close: str) -> str:
    """What stands between the last pair of marks, without fences or quotes around it."""
    before, closed, _ = text.rpartition(close)
    _, opened, marked = before.rpartition(open_)
    if not closed or not opened:
        return ""
    marked = _trimmed(marked)
    if fenced := _FENCE.fullmatch(marked.strip()):
        marked = _trimmed(fenced[1])
    for quote in ('"""', '"'):
        inside = marked.strip().removeprefix(quote).removesuffix(quote)
        if len(inside) == len(marked.strip()) - 2 * len(quote) and quote not in inside:
            marked = _trimmed(inside)
    return marked


def _trimmed(text: str) -> str:
    """Without blank lines around it; the first line of a piece of code keeps its indentation."""
    return re.sub(r"\A(?:[ \t]*\n)+", "", text).rstrip()


def _slot_of(genome: Genome) -> str:
    """The clause that takes the input up, for a writer that left it out."""
    return "\n" + next(clause for clause in genome.clauses if SLOT in clause).strip("\n")


def _missing(text: str, reply: Reply, marks: str) -> Iterator[str]:
    if reply.finish not in ("stop", "length"):
        yield f"gave none ({reply.finish})"
    if not any(letter.isalnum() for letter in text):
        yield f"gave none between {marks}" + (" (cut off)" if reply.finish == "length" else "")


def _faults(text: str, reply: Reply, candidate: Written[Genome], most_words: int) -> Iterator[str]:
    """Why the writer's prompt cannot be used, the first reason first."""
    yield from _missing(text, reply, f"{OPEN} and {CLOSE}")
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
    shown = (*candidate.failures, *(candidate.kept or ()))
    if any(len(case.input) >= 20 and case.input in text for case in shown):
        yield "quoted one of the inputs it was shown"


def record_of(writer: str | None, results: Sequence[Result[Any]]) -> list[Section]:
    """The record of a writer: how many answers were useless, and how many texts better than their parents."""
    written = [result for result in results if isinstance(result.candidate, Mapping) and "how" in result.candidate]
    if writer is None or not written:
        return []
    unusable = [
        failure.message
        for result in written
        for failure in [*result.failures.values()][:1]
        if failure.kind == UNWRITTEN
    ]
    scores = {result.number: result.score or 0.0 for result in results if result.complete}
    better = 0
    for result in written:
        parents = [scores[number] for number in result.trial.origin["parents"] if number in scores]
        better += result.number in scores and all(scores[result.number] > score for score in parents)
    text = f"{writer} was asked {len(written)} times: {better} texts were better than their parents"
    if unusable:
        text += f", {len(unusable)} answers could not be used, such as: {unusable[0]}"
    if not better:
        text += ". It never wrote a better one: try a larger model, or do without (no --writer)"
    return [Section("The writer", text)]


def request_section(asked: Written[Any]) -> Section:
    """What a writer was asked for, and what it was shown."""
    was = "example" if asked.how == "propose" else "wrong"
    cases = [*((was, case) for case in asked.failures), *(("right", case) for case in asked.kept or ())]
    rows = tuple((was, case.input, case.expected, case.said, case.feedback or "") for was, case in cases)
    columns = ("", "input", "expected", "answered", "feedback")
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    told = f"A model was asked to {_VERBS[asked.how]}{', shown these cases' if rows else ''}."
    return Section(
        "How it was written",
        told,
        tuple(columns[at] for at in used),
        tuple(tuple(row[at] for at in used) for row in rows),
    )
