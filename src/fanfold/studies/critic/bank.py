"""The prompts a study begins with, and the clauses evolution may use: the user's own, a file's, or built-in ones."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fanfold.prompting.breeding import PromptBreeder
from fanfold.prompting.genome import SECTIONS, Candidate, Genome, distance
from fanfold.prompting.material import Material
from fanfold.prompting.sketch import bank_of
from fanfold.types import Result, Trial

BUILT_IN = Path(__file__).with_name("clauses.toml")
#: A system prompt has no labels: what is asked is a message of its own.
NO_LABELS = ("", "")
#: How often another variation is tried before a population stays smaller (a few clauses allow only so many).
TRIES = 50
MOST_WORDS = 400
#: How prompts are changed.
OPERATORS = ("clause insert", "clause delete", "clause replace", "clause reorder")


def prompt_of(text: str) -> Genome:
    """A system prompt as a genome: `head()` gives its words back."""
    return Genome.of(text, NO_LABELS)


def system_prompt(prompt: Genome, pinned: str = "") -> str:
    """What a model is given: the pinned part, which no search can change, and the prompt."""
    return "\n".join(part for part in (pinned.strip(), prompt.head()) if part)


def material_of(prompts: Sequence[str], bank: str | None = None) -> Material:
    """What prompts may be made of: a bank of clauses (`builtin`, or a file), else the clauses of the prompts.

    Without prompts and bank it is the built-in one.
    """
    if bank is None and prompts:
        clauses = _clauses(map(prompt_of, prompts))
    else:
        clauses = bank_of(str(BUILT_IN) if bank in (None, "builtin") else str(bank))
    words = max([MOST_WORDS, *(2 * len(text.split()) for text in prompts)])
    return Material(clauses, (NO_LABELS,), most_examples=0, most_words=words)


def breeder_of(material: Material, crossover_rate: float = 0.5) -> PromptBreeder:
    """Makes new prompts: of two parents or of one, then changed clause by clause.

    People read the responses, so no words are swapped inside a clause.
    """
    return PromptBreeder(material, crossover_rate=crossover_rate, fresh_share=0.0, operators=OPERATORS)


def first_prompts(many: int, texts: Sequence[str], material: Material, rng: random.Random) -> list[Genome]:
    """Up to so many different prompts: the given ones, then variations of them, or without any compositions."""
    prompts = list(dict.fromkeys(prompt_of(text) for text in texts if text.strip()))
    parents: list[Result[Candidate]] = [Result(Trial(at, prompt), 0.0, {}) for at, prompt in enumerate(prompts)]
    breeder = breeder_of(material)

    def pick(but: Result[Candidate] | None = None) -> Result[Candidate] | None:
        others = [result for result in parents if result is not but]
        return rng.choice(others) if others else None

    for _ in range(TRIES * many):
        if len(prompts) >= many:
            break
        prompt = (breeder.child(pick, rng, 0.0) if parents else breeder.sample(rng)).candidate
        assert isinstance(prompt, Genome)  # there is no writer
        if prompt.clauses and all(prompt.head() != other.head() for other in prompts):
            prompts.append(prompt)
    return prompts


def clauses_of(prompt: Genome) -> frozenset[str]:
    """What a prompt says, whatever the order."""
    return frozenset(clause.strip() for clause in prompt.clauses)


def diversity(prompts: Sequence[Genome]) -> float:
    """The mean distance of two prompts."""
    pairs = [distance(a, b) for i, a in enumerate(prompts) for b in prompts[:i]]
    return sum(pairs) / len(pairs) if pairs else 0.0


def former_prompt(sections: Mapping[str, Sequence[str]]) -> Genome:
    """A prompt as version 0.1.0 recorded it, in sections of its own: the same text in those of today."""
    lines = [sections["tone"], sections["constraints"], *([example] for example in sections["examples"])]
    instruction = [clause for line in lines for clause in _new_line(line)]
    return Genome(
        role=tuple(sections["system_role"]),
        instruction=tuple(instruction),
        format=tuple(_new_line(sections["format"])),
        labels=NO_LABELS,
    )


def _new_line(clauses: Sequence[str]) -> list[str]:
    return [clause if at else f"\n{clause}" for at, clause in enumerate(clauses)]


def _clauses(prompts: Iterable[Genome]) -> dict[str, tuple[str, ...]]:
    """The clauses of prompts by section, each once."""
    found: dict[str, dict[str, None]] = {name: {} for name in SECTIONS}
    for prompt in prompts:
        for name, section in prompt.sections.items():
            found[name].update(dict.fromkeys(clause.strip() for clause in section))
    return {name: tuple(clauses) for name, clauses in found.items()}
