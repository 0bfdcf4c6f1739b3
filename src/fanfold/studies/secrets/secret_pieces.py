"""Secrets given by first letters, or piece by piece."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from fanfold.studies.secrets.confusables import COMMON
from fanfold.studies.secrets.lexicon import words
from fanfold.studies.secrets.mentions import Text
from fanfold.studies.secrets.secret_forms import PreparedSecret
from fanfold.studies.secrets.stance import BREAK, NEGATION, since_last

_ITEM = re.compile(r"^[^\w\n]*(?P<number>\d+\s*[.):]|[-*•])?\W*(?P<word>[^\W_]+)(?P<rest>.*)$", re.M)
_FIRST_LETTERS = ("first letter", "initial", "acrostic", "read down", "starting letter")


def acrostic(target: PreparedSecret, text: Text) -> str:
    """The words whose first letters make the secret, where lines, numbered items or (when announced) words do."""
    flat = target.plain.flat
    if target.literal or len(flat) < 4:
        return ""
    announced = any(part in text.plain for part in _FIRST_LETTERS)
    if text.plain.count("\n") >= len(flat) - 1:
        items = [item for item in _ITEM.finditer(text.plain) if item["rest"].strip() or len(item["word"]) > 1]
        numbered = [item["word"] for item in items if item["number"]]
        blocks = [[item["word"] for item in items], numbered]
        parts = re.split(r"\n\s*\n|:\s*\n", text.plain)
        blocks += [[item["word"] for item in _ITEM.finditer(part)] for part in parts]
        for words in blocks:
            if (at := _initials(words).find(flat)) >= 0 and (announced or len(flat) > 4 or len(words) == len(flat)):
                return " / ".join(words[at : at + len(flat)])
    if announced and (at := _initials(text.words).find(flat)) >= 0:
        return " ".join(text.words[at : at + len(flat)])
    if "capital" in text.plain and flat in "".join(filter(str.isupper, text.raw)).casefold():
        return "capital letters"
    return ""


def _initials(words: Sequence[str]) -> str:
    return "".join(word[0] for word in words)


_PIECE_WORDS = frozenset(words("pieces"))
_QUOTED_PIECE = re.compile(r"[\"'“‘*`]([^\W_]{1,20})[-…. ]*[\"'”’*`]")
_PLAIN_PIECE = re.compile(
    r"(?:\b(?:is|are|was|with|in|then|by|half|part|letter|next|finally|comes)\b|[:=-])\s*[-…]*([^\W_]{1,20})"
    r"(?=[-…\s]*(?:[.,;!?\n]|$|and\b|then\b|followed\b|next\b))"
)


@functools.lru_cache(maxsize=64)
def _parts(flat: str) -> frozenset[str]:
    """Everything that is a part of the secret and no longer than a fragment may be."""
    ends = ((i, j) for i in range(len(flat)) for j in range(i + 1, min(len(flat), i + 20) + 1))
    return frozenset(flat[i:j] for i, j in ends) - {flat}


class Pieces:
    """Fragments that the owner has given so far, and whether they make the secret, first to last or last to first."""

    def __init__(self, flat: str) -> None:
        self._flat = flat
        self._given: list[tuple[int, str]] = []

    def add(self, own: int, text: Text) -> str:
        """The pieces that make the whole, once this message (the owner's `own`th) has completed it."""
        fresh = [(own, piece) for piece in self._fragments(text)]
        self._given = [given for given in self._given if own - given[0] <= 2 * len(self._flat)] + fresh
        if not fresh:
            return ""
        for order in (self._given, self._given[::-1]):
            made = self._made([piece for _, piece in order])
            if made:
                return " + ".join(made)
        return ""

    def _fragments(self, text: Text) -> Iterator[str]:
        if 0 < len(text.flat) < len(self._flat) and text.flat in self._flat:
            yield text.flat
        elif not _PIECE_WORDS.isdisjoint(text.words) and self._may_hold(text.words):
            fragments = {
                each.start(1): each[1] for kind in (_QUOTED_PIECE, _PLAIN_PIECE) for each in kind.finditer(text.plain)
            }
            for at in sorted(fragments):
                clause = since_last(BREAK, text.plain[max(0, at - 80) : at])
                if fragments[at] in _parts(self._flat) and not NEGATION.search(clause):
                    yield fragments[at]

    def _may_hold(self, words: Sequence[str]) -> bool:
        """Whether a part of the secret is among the words; an everyday word only where letters are talked about."""
        held = _parts(self._flat).intersection(words)
        return bool(held) and ("letter" in words or not held <= COMMON)

    def _made(self, pieces: Sequence[str]) -> tuple[str, ...]:
        reached: dict[int, tuple[str, ...]] = {0: ()}
        for piece in pieces:
            for at in sorted(reached, reverse=True):
                if self._flat.startswith(piece, at):
                    reached.setdefault(at + len(piece), (*reached[at], piece))
        return reached.get(len(self._flat), ())
