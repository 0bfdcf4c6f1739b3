"""Prompts as plain lists of words, as the documents have them: how they are made, crossed and changed."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from fanfold.legacy.seeds import ALL
from fanfold.legacy.settings import EvolutionConfig
from fanfold.strategies.breeding import Bred, Pick
from fanfold.studies.prompts.breeding import genome_of
from fanfold.studies.prompts.genome import Genome
from fanfold.studies.prompts.synonyms import synonyms
from fanfold.types import Result

#: Words in a prompt, and in one made of random words.
FEWEST, MOST = 3, 50
RANDOM = (5, 20)
#: How far from the place it was drawn for a cut may go to fall on the end of a sentence.
NEAR = 3

Tokens: TypeAlias = tuple[str, ...]
Words: TypeAlias = "str | Sequence[str] | PromptGenome"


@dataclass(frozen=True)
class PromptGenome:
    """A prompt of the documented kind: its words, what they are worth, and where they come from."""

    tokens: Tokens
    fitness: float | None = None
    accuracy: float | None = None
    generation: int = 0
    parents: tuple[int, ...] = ()
    mutations: tuple[str, ...] = ()
    number: int | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        return " ".join(self.tokens)

    def __str__(self) -> str:
        return self.text


def tokens_of(words: Words) -> Tokens:
    """The words of a prompt, however it is given."""
    if isinstance(words, PromptGenome):
        return words.tokens
    return tuple(words.split()) if isinstance(words, str) else tuple(words)


def as_candidate(tokens: Tokens, labels: tuple[str, str]) -> Genome:
    """The words as the study has prompts: one clause."""
    return Genome(instruction=(" ".join(tokens),) if tokens else (), labels=labels)


class WordBreeder:
    """Breeds lists of words by the documented operators and rates, for `Genetic(breeder=...)`.

    A sample is a crossover of two seed prompts, or a list of random words where there are no seeds.  A child is a
    parent, or with `crossover_rate` two parents crossed, then mutated: each word is replaced with the mutation rate of
    the search (by a synonym with `semantic_prob`, else by any known word), and words are inserted, deleted, swapped and
    doubled at their own rates.  Every prompt has 3 to 50 words.
    """

    def __init__(self, config: EvolutionConfig, vocabulary: Sequence[str], labels: tuple[str, str]) -> None:
        self._config = config
        self._labels = labels
        self.seeds = tuple(_fitted(tokens_of(text)) for text in _seed_texts(config))
        known = {_bare(word) for text in (*ALL, *vocabulary) for word in text.split()}
        self._vocabulary = sorted(word for word in known if word.isalpha())

    def sample(self, rng: Random) -> Bred[Any]:
        if len(self.seeds) < 2:
            drawn = tuple(rng.choices(self._vocabulary, k=rng.randint(*RANDOM)))
            return self._bred(drawn if not self.seeds else self.seeds[0] + drawn, (), "random words", rng)
        a, b = rng.sample(self.seeds, 2)
        return self._bred(joined(a, b, rng), (), "seed crossover", rng)

    def child(self, pick: Pick[Any], rng: Random, rate: float) -> Bred[Any]:
        mother = pick()
        assert mother is not None
        tokens = _own(mother)
        parents: tuple[Result[Any], ...] = (mother,)
        by: list[str] = []
        father = pick(but=mother) if rng.random() < self._config.crossover_rate else None
        if father is not None:
            tokens = CROSSOVERS[self._config.crossover_method](tokens, _own(father), rng)
            parents, by = (mother, father), [f"{self._config.crossover_method} crossover"]
        changed, names = self._mutated(tokens, rng, rate)
        return self._bred(changed, parents, "+".join([*by, *names]) or "copy", rng)

    def again(self, bred: Bred[Any], rng: Random, rate: float) -> Bred[Any]:
        tokens = tokens_of(bred.candidate.head())
        at = rng.randrange(len(tokens))
        changed = (*tokens[:at], rng.choice(self._vocabulary), *tokens[at + 1 :])
        return self._bred(changed, bred.parents, f"{bred.by}+random", rng)

    def learn(self, result: Result[Any], better: bool | None) -> None:
        """The documented rates are fixed."""

    def _bred(self, tokens: Tokens, parents: tuple[Result[Any], ...], by: str, rng: Random) -> Bred[Any]:
        while len(tokens) < FEWEST:
            tokens = (*tokens, rng.choice(self._vocabulary))
        return Bred(as_candidate(_fitted(tokens), self._labels), parents, by)

    def _mutated(self, tokens: Tokens, rng: Random, rate: float) -> tuple[Tokens, list[str]]:
        """The words after every operator had its chance, and the names of those that did something."""
        config, names = self._config, []
        for name, change in (
            ("replacement", lambda words: self._replaced(words, rng, rate)),
            ("insertion", lambda words: self._inserted(words, rng)),
            ("deletion", lambda words: tuple(word for word in words if rng.random() >= config.deletion_rate)),
            ("swap", lambda words: _swapped(words, rng, config.swap_rate)),
            ("duplication", lambda words: _doubled(words, rng, config.duplication_rate)),
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
            if rng.random() >= self._config.semantic_prob:
                words[at] = _in_place_of(rng.choice(self._vocabulary), word)
            elif others := synonyms((_bare(word),), _before(words, at))[: self._config.n_neighbors]:
                words[at] = _in_place_of(rng.choice(others), word)
        return tuple(" ".join(words).split())  # a synonym may be two words

    def _inserted(self, tokens: Tokens, rng: Random) -> Tokens:
        words = list(tokens)
        for _ in range(self._config.max_insertions):
            if rng.random() < self._config.insertion_rate:
                words.insert(rng.randint(0, len(words)), rng.choice(self._vocabulary))
        return tuple(words)


def _seed_texts(config: EvolutionConfig) -> tuple[str, ...]:
    return ALL if config.seed_prompts is None else config.seed_prompts


def _own(result: Result[Any]) -> Tokens:
    return tokens_of(genome_of(result).head())


# -- crossover ---------------------------------------------------------------------------------------------------------


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
    mine, yours = _bare(a), _bare(b)
    return bool(mine) and (mine == yours or yours in synonyms((mine,), None) or yours in synonyms((mine,), "the"))


# -- words -------------------------------------------------------------------------------------------------------------


def _swapped(tokens: Tokens, rng: Random, rate: float) -> Tokens:
    words = list(tokens)
    for at in range(len(words) - 1):
        if rng.random() < rate:
            words[at], words[at + 1] = words[at + 1], words[at]
    return tuple(words)


def _doubled(tokens: Tokens, rng: Random, rate: float) -> Tokens:
    return tuple(word for token in tokens for word in ((token, token) if rng.random() < rate else (token,)))


def _fitted(tokens: Tokens) -> Tokens:
    """Not longer than a prompt may be; what the study would fill with the problem is only a word here."""
    return tuple(token.replace("{input}", "input") for token in tokens[:MOST])


def _bare(word: str) -> str:
    return word.strip(string.punctuation).lower()


def _before(words: Sequence[str], at: int) -> str | None:
    """The word before, in lower case; None where something new begins."""
    return None if at == 0 or words[at - 1].endswith(tuple(".!?:;,")) else _bare(words[at - 1])


def _in_place_of(new: str, old: str) -> str:
    """With the first capital and the closing mark of the word it replaces."""
    core = old.rstrip(string.punctuation)
    return (new[:1].upper() + new[1:] if core[:1].isupper() else new) + old[len(core) :]
