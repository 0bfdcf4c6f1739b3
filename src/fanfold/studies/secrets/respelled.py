"""Secrets in other letters than their own: misspelled, without vowels, shuffled, or with letters in between."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fanfold.studies.secrets.confusables import COMMON, EVERYDAY, FOLD
from fanfold.studies.secrets.lexicon import table, words
from fanfold.studies.secrets.mentions import Mention, Text
from fanfold.studies.secrets.secret_forms import WORD, PreparedSecret, fold_with

_VOWELS = re.compile("[aeiou]")
#: Parts of words that announce that vowels are missing, letters are shuffled, or only every other one counts.
_ANNOUNCED: dict[str, list[str]] = table("disguises")["announced"]
#: Words that secrets are drawn from, and those of any conversation: none of them is a misspelling.
_KNOWN = COMMON | EVERYDAY | frozenset([*words("first"), *words("second")])
#: A shuffled or misspelled phrase of so many letters is no chance, even if nobody announces it.
_LONG = 8


class _Token(NamedTuple):
    """A word of a message and its place in the plain text."""

    word: str
    start: int
    end: int


@functools.lru_cache(64)
def _tokens(plain: str) -> tuple[_Token, ...]:
    """The words of a message; kept, since a message is read for every secret that it may give away."""
    return tuple(_Token(match.group(), *match.span()) for match in WORD.finditer(plain))


@functools.lru_cache(64)
def _announced(plain: str) -> frozenset[str]:
    """The rules that a message announces."""
    return frozenset(rule for rule, parts in _ANNOUNCED.items() if any(part in plain for part in parts))


def respelled(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    """Everything in the message that says the secret in other letters, or in more or fewer of them."""
    flat = target.plain.flat
    if target.literal or not flat.isalpha() or len(flat) < 3:
        return
    tokens = _tokens(text.plain)
    for rule, find in _RULES.items():
        announced = rule in _announced(text.plain)
        for first, last, sure in find(target, tokens, announced):
            if not target.plain.pattern.fullmatch(text.plain, first.start, last.end):
                place = text.view.origin(first.start, last.end)
                yield Mention(rule, *place, announced and not target.weak, doubtful=target.weak or not sure)


#: The first and last token of a mention, and whether it can be nothing else.
_Found = Iterator[tuple[_Token, _Token, bool]]


def _side_by_side(
    target: PreparedSecret, tokens: Sequence[_Token], alike: Callable[[str, str], bool]
) -> Iterator[tuple[_Token, ...]]:
    """Tokens in a row that are like the words of the secret, or one that is like all of them written as one."""
    written = {token.word for token in tokens}
    for forms in {target.plain.words, (target.plain.flat,)}:
        begins = {word for word in written if alike(word, forms[0])}
        for at in range(len(tokens) - len(forms) + 1) if begins else ():
            row = tokens[at : at + len(forms)]
            if row[0].word in begins and all(map(alike, (token.word for token in row[1:]), forms[1:])):
                yield tuple(row)


def _misspelled(target: PreparedSecret, tokens: Sequence[_Token], announced: bool) -> _Found:
    """One letter too many, too few or another, or two in the wrong order, in one word or in several."""
    if target.weak or len(target.plain.flat) < 5:
        return

    def alike(written: str, word: str) -> bool:
        return written == word or (len(word) > 3 and written not in _KNOWN and _one_off(written, word))

    for row in _side_by_side(target, tokens, alike):
        words = target.plain.words if len(row) > 1 else (target.plain.flat,)
        wrong = [word for token, word in zip(row, words) if token.word != word]
        if wrong:
            yield row[0], row[-1], len(target.plain.words) > 1 and min(map(len, wrong)) > 4


def _one_off(written: str, word: str) -> bool:
    if abs(len(written) - len(word)) > 1 or written == word or not written.isalpha():
        return False
    at = next((at for at, (one, other) in enumerate(zip(written, word)) if one != other), min(len(written), len(word)))
    if len(written) != len(word):
        longer, shorter = sorted((written, word), key=len, reverse=True)
        return longer[at + 1 :] == shorter[at:]
    swapped = written[at : at + 2] == word[at : at + 2][::-1] and written[at + 2 :] == word[at + 2 :]
    return swapped or written[at + 1 :] == word[at + 1 :]


def _without_vowels(target: PreparedSecret, tokens: Sequence[_Token], announced: bool) -> _Found:
    """All consonants and, where that is announced, up to half of the vowels; else at most those that begin a word."""
    flat = target.plain.flat
    consonants = _VOWELS.sub("", flat)

    def alike(written: str, word: str) -> bool:
        return _VOWELS.sub("", written) == _VOWELS.sub("", word) and _in_order(written, word)

    for row in _side_by_side(target, tokens, alike):
        kept = sum(len(token.word) for token in row) - len(consonants)
        if not announced and any(_VOWELS.search(token.word, 1) for token in row):
            continue
        if len(flat) - len(consonants) >= 2 and kept * 2 <= len(flat) - len(consonants):
            yield row[0], row[-1], announced or len(consonants) > 3


def _in_order(part: str, whole: str) -> bool:
    rest = iter(whole)
    return all(char in rest for char in part)


def _shuffled(target: PreparedSecret, tokens: Sequence[_Token], announced: bool) -> _Found:
    """The same letters in another order, in one word or in several."""
    flat = target.plain.flat
    if not announced and len(flat) < _LONG:
        return
    letters, plain = sorted(flat), {flat, *(form.flat for form in target.turned)}
    starts = list(itertools.accumulate((len(token.word) for token in tokens), initial=0))
    token_at = {start: number for number, start in enumerate(starts)}
    for at, start in enumerate(starts):
        row = tokens[at : token_at.get(start + len(flat), at)]
        joined = "".join(token.word for token in row)
        if sorted(joined) == letters and joined not in plain:
            yield row[0], row[-1], True


def _interleaved(target: PreparedSecret, tokens: Sequence[_Token], announced: bool) -> _Found:
    """Every other letter, in each word or (where it is announced) over all that follows."""
    flat = target.plain.flat
    if len(flat) < 4:
        return
    for offset in (0, 1):

        def alike(written: str, word: str, offset: int = offset) -> bool:
            return written[offset::2] == word

        for row in _side_by_side(target, tokens, alike):
            yield row[0], row[-1], True
    if announced:
        whole = "".join(token.word for token in tokens)
        starts = list(itertools.accumulate((len(token.word) for token in tokens), initial=0))
        for at, start in enumerate(starts[:-1]):
            for begin in (start, start + 1):
                end = begin + 2 * len(flat) - 1
                if whole[begin:end:2] == flat:
                    last = next(number for number, place in enumerate(starts) if place >= end) - 1
                    yield tokens[at], tokens[last], True


_RULES: Mapping[str, Callable[[PreparedSecret, Sequence[_Token], bool], _Found]] = {
    "misspelled": _misspelled,
    "vowels": _without_vowels,
    "anagram": _shuffled,
    "interleaved": _interleaved,
}


def translated(vocabulary: Sequence[Sequence[str]], text: Text) -> Iterator[Mention]:
    """A translation of every word of a phrase, in any order, with at most two other words among them."""
    known = [frozenset(fold_with(word, FOLD) for word in meanings) for meanings in vocabulary]
    tokens = _tokens(text.plain)
    hits = [[place for place, meanings in enumerate(known) if _inflected(token.word, meanings)] for token in tokens]
    for at, hit in enumerate(hits):
        row = hits[at : at + len(known) + 2]
        if hit and len({place for places in row for place in places}) == len(known):
            last = max(number for number, places in enumerate(row) if places) + at
            yield Mention("translated", *text.view.origin(tokens[at].start, tokens[last].end))
            return


def _inflected(word: str, meanings: frozenset[str]) -> bool:
    return word in meanings or any(len(word) - len(each) in (1, 2) and word.startswith(each) for each in meanings)
