"""The reflective search over prompts: a model rewrites their words, the guided search chooses labels and examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from msgspec import UNSET

from fanfold.prompting.breeding import candidate_of, genome_of
from fanfold.prompting.genome import Genome
from fanfold.strategies.reflective import Reflective
from fanfold.types import Ok, Result

#: The part of a prompt that a model writes: everything but labels and examples.
WORDS = "prompt"
#: How many of the model's own answers a prompt shows.
MOST_WORKED = 3


class ReflectivePrompts(Reflective):
    """`Reflective` whose candidates are prompts: parents may be joined by taking the words of one and the examples of
    the other.
    """

    def revive(self, value: Any) -> Any:
        return candidate_of(value)

    def own(self, result: Result[Any]) -> Genome | None:
        genome = isinstance(candidate_of(result.candidate), Genome)
        written = any(isinstance(outcome, Ok) for outcome in result.outcomes.values())
        return genome_of(result) if genome or written else None

    def parts(self, candidate: Genome) -> Mapping[str, Any]:
        examples = {"examples": candidate.examples, "nearest": candidate.nearest}
        parts = {WORDS: candidate.sections, "examples": examples, "labels": candidate.labels}
        return {**parts, "worked": candidate.worked} if candidate.worked else parts

    def made(self, parts: Mapping[str, Any]) -> Genome:
        others = {name: value for name, value in parts.items() if name not in (WORDS, "examples")}
        return Genome(**parts[WORDS], **parts["examples"], **others)

    def varied(self, result: Result[Any]) -> Genome | None:
        oks = [outcome for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
        right = [(outcome.data["input"], outcome.data["reply"]) for outcome in oks if outcome.data.get("worked")]
        genome = self.own(result)
        if genome is None or not right:
            return None
        shown = self.rng.sample(right, min(MOST_WORKED, len(right)))
        return replace(genome, examples=(), nearest=UNSET, worked=tuple(shown))

    def text(self, candidate: Genome, part: str) -> str:
        return candidate.head()
