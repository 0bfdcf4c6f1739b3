"""Changes to the words of one clause that leave it a clause: its first capital and its closing mark stay in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from random import Random
from typing import TypeAlias

from fanfold.prompting.synonyms import FILLERS, KEPT, LONGEST, MODIFIERS, ORDERS, article, opens_verb, synonyms

#: A change to the words of a clause; None where there is nothing to change.
Edit: TypeAlias = Callable[[tuple[str, ...], Random], tuple[str, ...] | None]

_MARKS = ".!?:;,…"
#: Finding what two clauses share takes time that grows with the square of their words.
_MOST_BLENDED = 600


@dataclass(frozen=True, slots=True)
class _Parts:
    """A clause taken apart, so that its words can move without taking the capital and the closing mark along."""

    breaks: str
    words: tuple[str, ...]
    close: str
    capital: bool

    @classmethod
    def of(cls, clause: str) -> _Parts:
        body = clause.lstrip("\n")
        core = body.rstrip(_MARKS + " ")
        words = core.split()
        first = words[0] if words else ""
        capital = first[:1].isupper() and first[1:].islower()
        if capital:
            words[0] = first[0].lower() + first[1:]
        return cls(clause[: len(clause) - len(body)], tuple(words), body[len(core) :], capital)

    def clause(self) -> str:
        text = " ".join(self.words) + self.close
        return self.breaks + (text[0].upper() + text[1:] if self.capital else text)


def edited(clause: str, edit: Edit, rng: Random) -> str | None:
    """The clause after one edit, or None where the edit finds nothing to do (or the clause has several lines)."""
    if "\n" in clause.strip("\n"):
        return None
    parts = _Parts.of(clause)
    words = edit(parts.words, rng)
    return replace(parts, words=words).clause() if words and words != parts.words else None


def blend(a: str, b: str, rng: Random) -> str | None:
    """The beginning of one clause and the end of the other, joined at a word they share; None where that is neither."""
    mine, yours = _Parts.of(a), _Parts.of(b)
    if len(mine.words) + len(yours.words) > _MOST_BLENDED:
        return None
    matcher = SequenceMatcher(None, [bare(word) for word in mine.words], [bare(word) for word in yours.words], False)
    joints = [(block.a + at, block.b + at) for block in matcher.get_matching_blocks() for at in range(block.size)]
    blends = {
        replace(mine, words=mine.words[:left] + yours.words[right:], close=yours.close).clause()
        for left, right in joints
    }
    return rng.choice(sorted(blends - {a, b})) if blends - {a, b} else None


def substitute(words: tuple[str, ...], rng: Random) -> tuple[str, ...] | None:
    """A word or phrase by a synonym in the same case; an article before it follows."""
    found = list(_replaceable(words))
    if not found:
        return None
    at, size, others = rng.choice(found)
    old = words[at : at + size]
    new = _in_case_of(rng.choice(others), old[0]).split()
    new[-1] += old[-1][len(old[-1].rstrip(_MARKS)) :]
    head = list(words[:at])
    if head and head[-1].lower() in ("a", "an"):
        head[-1] = _in_case_of(article(new[0]), head[-1])
    return (*head, *new, *words[at + size :])


def insert(words: tuple[str, ...], rng: Random) -> tuple[str, ...] | None:
    """A modifier before a verb that gives an order and has no modifier yet."""
    places = [
        at
        for at, word in enumerate(words)
        if word in ORDERS and opens_verb(before(words, at)) and before(words, at) not in MODIFIERS
    ]
    if not places:
        return None
    at = rng.choice(places)
    return (*words[:at], rng.choice(MODIFIERS), *words[at:])


def delete(words: tuple[str, ...], rng: Random) -> tuple[str, ...] | None:
    """A word the clause can do without, if it has one, else any but those that would turn its meaning around."""
    places = [at for at, word in enumerate(words) if _plain(word) and bare(word) not in KEPT]
    if len(words) < 2 or not places:
        return None
    at = rng.choice([at for at in places if bare(words[at]) in FILLERS] or places)
    return words[:at] + words[at + 1 :]


def swap(words: tuple[str, ...], rng: Random) -> tuple[str, ...] | None:
    """Two neighbouring words change places."""
    places = [at for at in range(len(words) - 1) if _plain(words[at]) and _plain(words[at + 1])]
    if not places:
        return None
    at = rng.choice(places)
    return (*words[:at], words[at + 1], words[at], *words[at + 2 :])


def duplicate(words: tuple[str, ...], rng: Random) -> tuple[str, ...] | None:
    """A word twice in a row, for emphasis; never three times."""
    places = [at for at, word in enumerate(words) if _plain(word) and not _repeated(words, at)]
    if not places:
        return None
    at = rng.choice(places)
    return (*words[: at + 1], *words[at:])


EDITS: Mapping[str, Edit] = {
    "substitute": substitute,
    "insert": insert,
    "delete": delete,
    "swap": swap,
    "duplicate": duplicate,
}


def _replaceable(words: tuple[str, ...]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Where synonyms can stand: position, number of words, synonyms; of overlapping phrases the first and longest."""
    at = 0
    while at < len(words):
        for size in range(min(LONGEST, len(words) - at), 0, -1):
            phrase = words[at : at + size]
            # Only the last word may carry a mark: a phrase ends at a comma.
            if all(_plain(word) for word in phrase[:-1]) and _plain(phrase[-1].rstrip(_MARKS)):
                others = synonyms(tuple(bare(word) for word in phrase), before(words, at))
                if others:
                    yield at, size, others
                    at += size - 1
                    break
        at += 1


def before(words: Sequence[str], at: int) -> str | None:
    """The word before, in lower case; None where something new begins."""
    return None if at == 0 or words[at - 1].endswith(tuple(_MARKS)) else bare(words[at - 1])


def _repeated(words: tuple[str, ...], at: int) -> bool:
    return bare(words[at]) in (bare(word) for word in (*words[max(0, at - 1) : at], *words[at + 1 : at + 2]))


def _plain(word: str) -> bool:
    """Whether a word is only letters: quotes, numbers, slots and markup are not ours to move."""
    return word.replace("-", "").replace("'", "").replace("’", "").isalpha()


def bare(word: str) -> str:
    """A word in lower case, without its closing mark."""
    return word.strip(_MARKS).lower().replace("’", "'")


def in_place_of(new: str, old: str) -> str:
    """A word with the capital and the closing mark of the one it replaces."""
    core = old.rstrip(_MARKS)
    return _in_case_of(new, core) + old[len(core) :]


def _in_case_of(text: str, word: str) -> str:
    if len(word) > 1 and word.isupper():
        return text.upper()
    return text[0].upper() + text[1:] if word[:1].isupper() else text
