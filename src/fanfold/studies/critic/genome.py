"""Prompts in sections: how they read, a bank of clauses to build them from, and how they are varied."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fanfold.config import load_toml

SECTIONS = ("system_role", "tone", "constraints", "examples", "format")
#: More clauses than this in one section contradict each other more often than they help.
MOST_CLAUSES = 3
#: How often a new composition is drawn before a duplicate is accepted (a tiny bank may hold no other).
TRIES = 50


@dataclass(frozen=True)
class Prompt:
    """A system prompt as a genome: five sections, each a tuple of clauses; `text` is what a model is given."""

    system_role: tuple[str, ...] = ()
    tone: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    format: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Prompt:
        """A plain prompt as a genome: its sentences and lines are clauses of the first section."""
        clauses = [part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", text)]
        return cls(system_role=tuple(clause for clause in clauses if clause))

    @property
    def text(self) -> str:
        """The sections that have something to say, one on each line, every example on a line of its own."""
        lines = [" ".join(self.system_role), " ".join(self.tone), " ".join(self.constraints)]
        return "\n".join(line for line in [*lines, *self.examples, " ".join(self.format)] if line)

    @property
    def clauses(self) -> frozenset[str]:
        return frozenset(clause for section in SECTIONS for clause in getattr(self, section))


Bank = Mapping[str, tuple[str, ...]]

BANK: Bank = {name: tuple(bank) for name, bank in load_toml(Path(__file__).with_name("clauses.toml")).items()}


def compose(bank: Bank, rng: random.Random) -> Prompt:
    """A random prompt from the bank: most sections say one thing, some nothing, a few two."""
    parts: dict[str, tuple[str, ...]] = {}
    for section in SECTIONS:
        many = min(len(bank[section]), rng.choices((0, 1, 2), (0.35, 0.5, 0.15))[0])
        parts[section] = tuple(rng.sample(bank[section], many))
    prompt = Prompt(**parts)
    return prompt if prompt.text else mutate(prompt, bank, rng, 0.0)


def mutate(prompt: Prompt, bank: Bank, rng: random.Random, rate: float) -> Prompt:
    """Change each section with probability `rate`, and at least one; a prompt never becomes empty."""
    chosen = [section for section in SECTIONS if rng.random() < rate] or [rng.choice(SECTIONS)]
    changed = prompt
    for section in chosen:
        changed = replace(changed, **{section: _varied(getattr(prompt, section), bank[section], rng)})
    if changed.text:
        return changed
    # A section that lost its last clause gets one back, so that no other section changes.
    emptied = next((section for section in chosen if getattr(prompt, section)), "system_role")
    return replace(changed, **{emptied: (rng.choice(bank[emptied] or getattr(prompt, emptied)),)})


def _varied(clauses: tuple[str, ...], bank: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """One section after a small change: a clause added, dropped, exchanged, or moved."""
    new = [clause for clause in bank if clause not in clauses]
    changes = []
    if new and len(clauses) < MOST_CLAUSES:
        changes.append("add")
    if clauses:
        changes += ["drop", "exchange"] if new else ["drop"]
    if len(clauses) > 1:
        changes.append("move")
    if not changes:
        return clauses
    change, kept = rng.choice(changes), list(clauses)
    if change == "add":
        kept.insert(rng.randint(0, len(kept)), rng.choice(new))
    elif change == "drop":
        kept.pop(rng.randrange(len(kept)))
    elif change == "exchange":
        kept[rng.randrange(len(kept))] = rng.choice(new)
    else:
        moved = kept.pop(rng.randrange(len(kept)))
        kept.insert(rng.randint(0, len(kept)), moved)
    return tuple(kept)


def crossover(a: Prompt, b: Prompt, rng: random.Random) -> Prompt:
    """Each section from one of the two."""
    child = Prompt(**{section: getattr(rng.choice((a, b)), section) for section in SECTIONS})
    return child if child.text else a


def first_prompts(many: int, seeds: Sequence[str], bank: Bank, rng: random.Random) -> list[Prompt]:
    """So many prompts to begin with: the given ones first, then compositions of the bank, no two alike if possible."""
    prompts = list(dict.fromkeys(Prompt.of(text) for text in seeds if text.strip()))[:many]
    while len(prompts) < many:
        for _ in range(TRIES):
            prompt = compose(bank, rng)
            if all(prompt.text != other.text for other in prompts):
                break
        prompts.append(prompt)
    return prompts


def distance(a: Prompt, b: Prompt) -> float:
    """0 for prompts with the same clauses, 1 for prompts that share none."""
    both = a.clauses | b.clauses
    return 1.0 - len(a.clauses & b.clauses) / len(both) if both else 0.0


def diversity(prompts: Sequence[Prompt]) -> float:
    """The mean distance of two prompts."""
    pairs = [distance(a, b) for i, a in enumerate(prompts) for b in prompts[:i]]
    return sum(pairs) / len(pairs) if pairs else 0.0
