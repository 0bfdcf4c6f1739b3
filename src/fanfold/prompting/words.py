"""Prompts as plain lists of words: how they are drawn, crossed and changed, each operator at a rate of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

from fanfold.config import Settings, option
from fanfold.prompting.breeding import genome_of
from fanfold.prompting.genome import SLOT, Genome, Labels
from fanfold.prompting.synonyms import synonyms
from fanfold.prompting.wording import bare, before, in_place_of
from fanfold.strategies.breeding import Bred, Pick
from fanfold.types import Result

#: Words in a prompt, and in one made of random words.
FEWEST, MOST = 3, 50
RANDOM = (5, 20)
#: How far from the place it was drawn for a cut may go to fall on the end of a sentence.
NEAR = 3

Tokens: TypeAlias = tuple[str, ...]
Joining = Literal["single_point", "two_point", "uniform", "semantic_blend"]


@dataclass(frozen=True)
class WordRates(Settings):
    """How lists of words are changed; the share of words that are replaced is the search's mutation rate."""

    crossover: Joining = option("single_point", "how two parents are joined")
    semantic: float = option(0.9, "share of replaced words that become a synonym, not any word", least=0, most=1)
    neighbours: int = option(50, "synonyms of a word that are considered, at most", least=1)
    insertion: float = option(0.05, "probability of each of the insertions", least=0, most=1)
    insertions: int = option(3, "words inserted at once, at most", least=0)
    deletion: float = option(0.05, "probability that a word is deleted", least=0, most=1)
    swap: float = option(0.05, "probability that a word changes places with the next", least=0, most=1)
    duplication: float = option(0.02, "probability that a word is doubled", least=0, most=1)
    random: bool = option(False, "whether the first prompts are random words, not made of seeds")


@cache
def first_words() -> tuple[str, ...]:
    """Fifty prompts to begin with, five of each of ten kinds."""
    lines = Path(__file__).with_name("seeds.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


class WordBreeder:
    """Breeds lists of 3 to 50 words for `Genetic(breeder=...)`.

    A sample is a crossover of two seeds, or a list of random words where there are no seeds.  A child is a parent, or
    with `crossover_rate` two parents crossed, then mutated: each word is replaced with the mutation rate of the search
    (by a synonym, or by any known word), and words are inserted, deleted, swapped and doubled at their own rates.
    """

    def __init__(
        self,
        rates: WordRates,
        seeds: Iterable[str],
        vocabulary: Iterable[str],
        labels: Labels,
        crossover_rate: float = 0.8,
    ) -> None:
        self._rates, self._labels, self._crossover_rate = rates, labels, crossover_rate
        self._seeds = tuple(_fitted(tuple(text.split())) for text in seeds)
        known = {bare(word) for text in vocabulary for word in text.split()}
        self._vocabulary = sorted(word for word in known if word.isalpha())

    @property
    def seeds(self) -> list[Genome]:
        return [as_genome(tokens, self._labels) for tokens in self._seeds]

    def sample(self, rng: Random) -> Bred[Any]:
        if len(self._seeds) < 2:
            drawn = tuple(rng.choices(self._vocabulary, k=rng.randint(*RANDOM)))
            return self._bred(drawn if not self._seeds else self._seeds[0] + drawn, (), "random words", rng)
        a, b = rng.sample(self._seeds, 2)
        return self._bred(joined(a, b, rng), (), "seed crossover", rng)

    def child(self, pick: Pick[Any], rng: Random, rate: float) -> Bred[Any]:
        mother = pick()
        assert mother is not None
        tokens = _own(mother)
        parents: tuple[Result[Any], ...] = (mother,)
        by: list[str] = []
        father = pick(but=mother) if rng.random() < self._crossover_rate else None
        if father is not None:
            tokens = CROSSOVERS[self._rates.crossover](tokens, _own(father), rng)
            parents, by = (mother, father), [f"{self._rates.crossover} crossover"]
        tokens, names = self._mutated(tokens, rng, rate)
        return self._bred(tokens, parents, "+".join([*by, *names]) or "copy", rng)

    def again(self, bred: Bred[Any], rng: Random, rate: float) -> Bred[Any]:
        tokens = bred.candidate.head().split()
        tokens[rng.randrange(len(tokens))] = rng.choice(self._vocabulary)
        return self._bred(tuple(tokens), bred.parents, f"{bred.by}+random", rng)

    def learn(self, result: Result[Any], better: bool | None) -> None:
        """The rates are fixed."""

    def _bred(self, tokens: Tokens, parents: tuple[Result[Any], ...], by: str, rng: Random) -> Bred[Any]:
        while len(tokens) < FEWEST:
            tokens = (*tokens, rng.choice(self._vocabulary))
        return Bred(as_genome(_fitted(tokens), self._labels), parents, by)

    def _mutated(self, tokens: Tokens, rng: Random, rate: float) -> tuple[Tokens, list[str]]:
        """The words after every operator had its chance, and the names of those that did something."""
        rates, names = self._rates, []
        for name, change in (
            ("replacement", lambda words: self._replaced(words, rng, rate)),
            ("insertion", lambda words: self._inserted(words, rng)),
            ("deletion", lambda words: tuple(word for word in words if rng.random() >= rates.deletion)),
            ("swap", lambda words: _swapped(words, rng, rates.swap)),
            ("duplication", lambda words: _doubled(words, rng, rates.duplication)),
        ):
            changed = change(tokens)
            if changed != tokens:
                tokens = changed
                names.append(name)
        return tokens, names

    def _replaced(self, tokens: Tokens, rng: Random, rate: float) -> Tokens:
        words = list(tokens)
        for at, word in enumerate(tokens):
            if rng.random() >= rate:
                continue
            if rng.random() >= self._rates.semantic:
                words[at] = in_place_of(rng.choice(self._vocabulary), word)
            elif others := synonyms((bare(word),), before(words, at))[: self._rates.neighbours]:
                words[at] = in_place_of(rng.choice(others), word)
        return tuple(" ".join(words).split())  # a synonym may be two words

    def _inserted(self, tokens: Tokens, rng: Random) -> Tokens:
        words = list(tokens)
        for _ in range(self._rates.insertions):
            if rng.random() < self._rates.insertion:
                words.insert(rng.randint(0, len(words)), rng.choice(self._vocabulary))
        return tuple(words)


def as_genome(tokens: Tokens, labels: Labels) -> Genome:
    """The words as a prompt of one clause."""
    return Genome(instruction=(" ".join(tokens),) if tokens else (), labels=labels)


def _own(result: Result[Any]) -> Tokens:
    return tuple(genome_of(result).head().split())


def joined(a: Tokens, b: Tokens, rng: Random) -> Tokens:
    """The whole of one prompt and then the other where both fit, else a crossover at one point."""
    return (*a, *b) if len(a) + len(b) <= MOST and rng.random() < 0.5 else single_point(a, b, rng)


def single_point(a: Tokens, b: Tokens, rng: Random) -> Tokens:
    """The beginning of one and the end of the other, cut where sentences end if such a place is near."""
    return a[: _cut(a, rng)] + b[_cut(b, rng) :]


def two_point(a: Tokens, b: Tokens, rng: Random) -> Tokens:
    """A part of the second in the place of a part of the first."""
    first, last = sorted((_cut(a, rng), _cut(a, rng)))
    begin, end = sorted((_cut(b, rng), _cut(b, rng)))
    return a[:first] + b[begin:end] + a[last:]


def uniform(a: Tokens, b: Tokens, rng: Random) -> Tokens:
    """Each word from one of the two; where one is shorter, the rest of the other in half of the cases."""
    both = tuple(rng.choice(pair) for pair in zip(a, b))
    rest = a[len(b) :] or b[len(a) :]
    return both + (rest if rng.random() < 0.5 else ())


def semantic_blend(a: Tokens, b: Tokens, rng: Random) -> Tokens:
    """From one to the other at a word they share, or one that means the same; at one point where there is none."""
    joints = [(i, j) for i, left in enumerate(a) for j, right in enumerate(b) if _alike(left, right)]
    if not joints:
        return single_point(a, b, rng)
    i, j = rng.choice(joints)
    return a[:i] + b[j:]


CROSSOVERS: Mapping[str, Callable[[Tokens, Tokens, Random], Tokens]] = {
    "single_point": single_point,
    "two_point": two_point,
    "uniform": uniform,
    "semantic_blend": semantic_blend,
}


def _cut(tokens: Tokens, rng: Random) -> int:
    """A place between two words, moved to the nearest end of a sentence if that is close."""
    drawn = rng.randint(0, len(tokens))
    ends = [at + 1 for at, word in enumerate(tokens) if word.endswith((".", "!", "?", ":"))]
    near = [at for at in ends if abs(at - drawn) <= NEAR]
    return min(near, key=lambda at: abs(at - drawn)) if near else drawn


def _alike(a: str, b: str) -> bool:
    mine, yours = bare(a), bare(b)
    return bool(mine) and (mine == yours or yours in synonyms((mine,), None) or yours in synonyms((mine,), "the"))


def _swapped(tokens: Tokens, rng: Random, rate: float) -> Tokens:
    words = list(tokens)
    for at in range(len(words) - 1):
        if rng.random() < rate:
            words[at], words[at + 1] = words[at + 1], words[at]
    return tuple(words)


def _doubled(tokens: Sequence[str], rng: Random, rate: float) -> Tokens:
    return tuple(word for token in tokens for word in ((token, token) if rng.random() < rate else (token,)))


def _fitted(tokens: Tokens) -> Tokens:
    """Not longer than a prompt may be; the slot for the problem is only a word here."""
    return tuple(token.replace(SLOT, "input") for token in tokens[:MOST])
