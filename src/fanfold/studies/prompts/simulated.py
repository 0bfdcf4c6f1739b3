"""A planted world for searches: simulated models whose answers depend on the prompt in a known, hidden way.

`solver` answers the problems of the built-in tasks.  Whether it is right is decided by the prompt's quality (a number
between 0 and 1, made of traits that each task plants by its own name) and by how hard the problem is: a prompt of
quality q solves about a share q of the problems.  `writer` answers requests to improve a prompt, by adding or dropping
one clause of the bank at random: a model that writes plausible prompts without knowing which are better.  `hinted`
answers the same problems by another quality: what a prompt gains by each hint it gives, in whatever words, less what it
loses by rambling and stammering.  No single hint reaches the optimum, and equal requests get equal answers.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.prompting.writing import CLOSE, NO_WORDS
from fanfold.tasks import BUILTIN, Problem, Task, load

#: What a prompt is worth without any trait, what the traits can add, and what each harmful clause costs.
FLOOR, ROOM, HARM = 0.05, 0.85, 0.15
#: The traits: so many clauses of the bank help, so many harm; labels and the first example matter as well.
HELPFUL, HARMFUL = 3, 3
#: How much the answers scatter around what quality and difficulty say.
NOISE = 0.05

#: What a prompt may say in `hinted`, and the share of the problems it then gets right on top of the others.
START = 0.2
HINTS: tuple[tuple[float, re.Pattern[str]], ...] = tuple(
    (gain, re.compile(rf"\b(?:{words})\b", re.I))
    for gain, words in (
        (0.28, r"steps?|stages?"),
        (0.18, r"check|verify|double-check|twice|compare|confirm"),
        (0.12, r"carefully|closely|attentively|note|notice|attention"),
        (0.10, r"equations?|calculate|compute|add|arithmetic"),
        (0.10, r"final|number|numeric|numerical"),
        (0.06, r"plan|list|write"),
    )
)
#: Words after which a prompt rambles, and what each further one, and each stammered word, costs.
RAMBLING, RAMBLE_COST, STAMMER_COST = 40, 0.02, 0.03

_REQUEST = re.compile(r"improve|rewrite|new instruction|better prompt", re.I)


def solver(model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
    """Answers a problem rightly or wrongly; an answer function for the simulator."""
    text = _text(messages)
    found = None if CLOSE in text else _problem(text)  # a writer is shown problems too
    if found is None:
        return writer(model, messages, params, rng) if _REQUEST.search(text) else "I do not know."
    task, problem = found
    before = text[: text.rfind(problem.input)]
    worth = quality(task, before, text[len(before) + len(problem.input) :])
    own = derive_seed(0, "difficulty", task.name, problem.id) / 2**63
    right = own + rng.gauss(0.0, NOISE) < worth
    return problem.shown if right else _wrong(task, problem, rng)


def quality(task: Task, before: str, after: str = "") -> float:
    """How good a prompt is: what stands before the input, and behind it."""
    helpful, harmful = traits(task)
    value = sum(clause in before for clause in helpful) / HELPFUL
    value += float(after.strip().startswith(f"{task.labels[0][1]}:"))
    shown = sum(before.count(f"\n{answer}:") for answer in {labels[1] for labels in task.labels} | {"Output"})
    value += min(shown, 3) / 3
    worth = FLOOR + ROOM * value / 3 - HARM * sum(clause in before for clause in harmful)
    return min(1.0, max(0.0, worth))


def hinted(model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
    """Answers a problem rightly where the hints of the prompt are worth more than the problem is hard."""
    text = _text(messages)
    found = _problem(text)
    if found is None:
        return "I do not know this problem."
    task, problem = found
    hard = random.Random(derive_seed(0, "difficulty", problem.input)).random()
    right = hard < hints(text[: text.rfind(problem.input)])
    return problem.shown if right else _wrong(task, problem, rng)


def hints(prompt: str) -> float:
    """The share of the problems that a prompt gets solved by its hints, but for luck."""
    words = prompt.split()
    gained = START + sum(gain for gain, hint in HINTS if hint.search(prompt))
    rambled = RAMBLE_COST * max(0, len(words) - RAMBLING)
    stammered = STAMMER_COST * sum(a.lower() == b.lower() for a, b in itertools.pairwise(words))
    return min(1.0, max(0.0, gained - rambled - stammered))


@functools.lru_cache
def _loaded(name: str) -> Task:
    return load(name)


@functools.lru_cache
def _traits(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    bank = sorted({clause for clauses in _loaded(name).clauses.values() for clause in clauses})
    drawn = random.Random(derive_seed(0, "traits", name)).sample(bank, HELPFUL + HARMFUL)
    return tuple(drawn[:HELPFUL]), tuple(drawn[HELPFUL:])


def traits(task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The clauses of a task's bank that help, and those that harm."""
    return _traits(task.name)


def writer(model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
    """Changes the prompt it is shown by one clause; the answer is marked as every known optimiser expects it."""
    text = _text(messages)
    quoted = re.findall(r'"""\n(.*?)\n"""|```\w*\n(.*?)```', text, re.S)
    prompt = next((first or second for first, second in quoted if (first or second).strip()), "").strip()
    prompt = prompt.removeprefix(NO_WORDS)
    tasks = [_loaded(name) for name in BUILTIN]
    own = next((task for task in tasks if task.description and task.description in text), None)
    bank = sorted({clause for task in ([own] if own else tasks) for each in task.clauses.values() for clause in each})
    known = [clause for clause in bank if clause in prompt]
    if known and rng.random() < 0.4:
        changed = prompt.replace(rng.choice(known), "").strip()
    else:
        changed = f"{prompt} {rng.choice(bank)}".strip()
    return f"<prompt>\n{changed or rng.choice(bank)}\n</prompt>\n\n```\n{changed or rng.choice(bank)}\n```"


@functools.lru_cache
def _inputs() -> dict[str, tuple[Task, Problem]]:
    return {problem.input: (task, problem) for task in map(_loaded, BUILTIN) for problem in task.problems}


def _problem(text: str) -> tuple[Task, Problem] | None:
    """The problem asked: of those whose input stands in the text, the one that stands last."""
    last, found = -1, None
    for line in reversed(text.splitlines()):
        for start in (0, line.find(": ") + 2):
            if (pair := _inputs().get(line[start:].strip())) is not None:
                return pair
    for input, pair in _inputs().items():  # an input of several lines
        if "\n" in input and (at := text.rfind(input)) > last:
            last, found = at, pair
    return found


def _wrong(task: Task, problem: Problem, rng: random.Random) -> str:
    other = rng.choice(task.problems)
    return "no idea" if other.shown == problem.shown else other.shown


def _text(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(message.get("content", "")) for message in messages)
