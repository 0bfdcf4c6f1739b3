"""The reflective search over prompts: a model rewrites their words, the guided search chooses labels and examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fanfold.prompting.breeding import candidate_of, genome_of
from fanfold.prompting.genome import Genome
from fanfold.strategies.reflective import Reflective
from fanfold.types import Ok, Result

#: The part of a prompt that a model writes: everything but labels and examples.
WORDS = "prompt"


class ReflectivePrompts(Reflective):
    """`Reflective` whose candidates are prompts: parents may be joined by taking the words of one and the examples of
    the other.
    """

    def own(self, result: Result[Any]) -> Genome | None:
        genome = isinstance(candidate_of(result.candidate), Genome)
        written = any(isinstance(outcome, Ok) for outcome in result.outcomes.values())
        return genome_of(result) if genome or written else None

    def parts(self, candidate: Genome) -> Mapping[str, Any]:
        return {WORDS: candidate.sections, "examples": candidate.examples, "labels": candidate.labels}

    def made(self, parts: Mapping[str, Any]) -> Genome:
        return Genome(**parts[WORDS], examples=parts["examples"], labels=parts["labels"])

    def text(self, candidate: Genome, part: str) -> str:
        return candidate.head()
