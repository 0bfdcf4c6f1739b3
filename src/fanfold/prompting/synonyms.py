"""Words of prompts and instructions that can stand for each other, by the place where they stand (synonyms.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fanfold.config import load_toml

_DATA = load_toml(Path(__file__).with_name("synonyms.toml"))
VERBS, NOUNS, ADJECTIVES, OTHERS = (_DATA[kind] for kind in ("verbs", "nouns", "adjectives", "others"))
MODIFIERS = tuple(_DATA["modifiers"].split())
FILLERS, KEPT, _BEFORE_VERBS, _DOUBTFUL = (
    frozenset(_DATA[kind].split()) for kind in ("fillers", "kept", "before_verbs", "doubtful")
)
#: What takes "a" although it begins with a vowel, and "an" although it does not, by their first letters.
_A = ("one", "uni", "use", "usu", "eu")
_AN = ("hour", "honest", "honour", "heir")


def _table(*kinds: str) -> Mapping[tuple[str, ...], tuple[str, ...]]:
    """Every entry, as its words, with the others of its group."""
    table: dict[tuple[str, ...], tuple[str, ...]] = {}
    for line in "\n".join(kinds).split("\n"):
        group = [entry.strip() for entry in line.split("/") if entry.strip()]
        for entry in group:
            key = tuple(entry.split())
            if key in table:
                raise ValueError(f"{entry!r} is in two groups of synonyms: {line!r}")
            table[key] = tuple(other for other in group if other != entry)
    return table


_VERBS = _table(VERBS)
_NAMES = _table(NOUNS, ADJECTIVES)
_OTHERS = _table(OTHERS)
#: The longest entry in words.
LONGEST = max(len(key) for table in (_VERBS, _NAMES, _OTHERS) for key in table)
#: The words with which an order can open.
ORDERS = frozenset(key[0] for key in _VERBS)


def synonyms(words: tuple[str, ...], before: str | None) -> tuple[str, ...]:
    """What can stand for these words (in lower case) after the word `before`, None at the start of a clause.

    The same word can be a verb and a noun ("answer with", "the answer"), and only its place tells which; where the
    place does not tell, nothing can stand for it.
    """
    if words in _OTHERS:
        return _OTHERS[words]
    if opens_verb(before):
        return _VERBS.get(words, ())
    return () if before in _DOUBTFUL else _NAMES.get(words, ())


def opens_verb(before: str | None) -> bool:
    """Whether a verb is due after this word (in lower case), None at the start of a clause."""
    return before is None or before in _BEFORE_VERBS


def article(word: str) -> str:
    """`a` or `an`, whichever goes before the word."""
    word = word.lower()
    if word.startswith(_AN):
        return "an"
    return "an" if word.startswith(tuple("aeiou")) and not word.startswith(_A) else "a"
