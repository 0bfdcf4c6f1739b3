"""A simulated model that solves word problems, the more of them the better the prompt says how.

It stands in for a provider's model where none is to be paid: `model="simulated/..."` in the documented classes.  It
knows the answers of the built-in task `arithmetic`.  Each problem has a difficulty, and each prompt has a quality: what
a prompt gains by each of the hints below, less what it loses by rambling and by stammering.  A problem is solved when
its difficulty is below the quality.  So there is an optimum to be found, no single hint reaches it, and equal requests
get equal answers.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.encoding import derive_seed

#: What a prompt may say, and the share of the problems it then gets right on top of the others.
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


def solve(model: str, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any], rng: random.Random) -> str:
    """An answer function for the simulator."""
    text = "\n".join(str(message.get("content", "")) for message in messages)
    problem, answer = _problem_in(text)
    if problem is None:
        return "I do not know this problem."
    prompt = text[: text.rfind(problem)]
    if difficulty(problem) < quality(prompt):
        return f"The calculation gives {answer}. The answer is {answer}"
    return f"The answer is {_wrong(answer, rng)}"


def quality(prompt: str) -> float:
    """The share of the problems that a prompt gets solved, but for luck."""
    words = prompt.split()
    gained = START + sum(gain for gain, hint in HINTS if hint.search(prompt))
    rambled = RAMBLE_COST * max(0, len(words) - RAMBLING)
    stammered = STAMMER_COST * sum(a.lower() == b.lower() for a, b in itertools.pairwise(words))
    return min(1.0, max(0.0, gained - rambled - stammered))


def difficulty(problem: str) -> float:
    """How hard a problem is, from 0 to 1."""
    return random.Random(derive_seed(0, "difficulty", problem)).random()


def _problem_in(text: str) -> tuple[str | None, str]:
    """The built-in problem that a request ends with (others before it are examples), and its answer."""
    known = _answers()
    for line in reversed(text.splitlines()):
        for said in (line.strip(), line.partition(": ")[2].strip()):
            if said in known:
                return said, known[said]
    return None, ""


@functools.cache
def _answers() -> Mapping[str, str]:
    from fanfold.studies.prompts.tasks import load

    return {problem.input: str(problem.answer) for problem in load("arithmetic").problems}


def _wrong(answer: str, rng: random.Random) -> str:
    try:
        return f"{float(answer) + rng.randint(1, 9):g}"
    except ValueError:
        return "unknown"
