"""Where a message says a secret, openly or in disguise."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fanfold.studies.secrets import confusables
from fanfold.studies.secrets.confusables import COMMON, FOLD, SKELETON, Folding
from fanfold.studies.secrets.secret_forms import (
    ABOVE_ASCII,
    ARTICLE,
    MASK,
    WORD,
    Form,
    PreparedSecret,
    fold_with,
    squeeze,
)

#: Codes within codes are opened this often.
_DEPTH = 3
#: Digits that are no coincidence, also with spaces between them.
_LONG_NUMBER = 6


@dataclass(frozen=True)
class _View:
    """A text and its folded form, whose places lead back to the original."""

    raw: str
    table: Folding
    text: str

    @functools.cached_property
    def _places(self) -> list[int]:
        return [place for place, char in enumerate(self.raw) for _ in self.table[ord(char)]]

    def origin(self, start: int, end: int) -> tuple[int, int]:
        if self.raw.isascii():
            return start, end
        return self._places[start], self._places[end - 1] + 1


@dataclass(frozen=True)
class Text:
    """A message as written (composed, without name tags) and folded: as it is, squeezed, and its words."""

    raw: str
    view: _View
    plain: str
    flat: str

    @functools.cached_property
    def words(self) -> list[str]:
        return WORD.findall(self.plain)


@dataclass(frozen=True)
class Mention:
    """A piece of a message that says the secret.

    `meant`: nobody writes this by chance, however weak the secret. `inside`: where the decoded text says it.
    `doubtful`: it may be another word, so that it counts only where it is presented as the secret.
    """

    rule: str
    start: int
    end: int
    meant: bool = False
    inside: tuple[Text, Mention] | None = None
    doubtful: bool = False


def _view(raw: str, table: Folding) -> _View:
    return _View(raw, table, fold_with(raw, table))


def read_text(raw: str) -> Text:
    raw = raw if raw.isascii() else unicodedata.normalize("NFC", raw)
    view = _view(raw, FOLD)
    return Text(raw, view, view.text, squeeze(view.text))


#: Parts of words that announce a disguise.
_BACKWARDS = ("backward", "revers", "mirror", "flip", "right to left", "from the end", "last letter first")
_CIPHER = ("rot1", "rot-", "caesar", "cipher", "shift", "encod", "encrypt", "decod", "decrypt", "rotat", "atbash")
#: Words by chance: read the other way round, they prove nothing.
_BY_CHANCE = COMMON | confusables.ANADROMES
_MASKED_BY_QUESTION = re.compile(r"\?[^\W_]")
_CAPITAL_I = re.compile("(?<=[a-z])I(?=[a-z])")


def mentions_of(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    """Everything in the message that says the secret, in whatever disguise; not yet whether it gives it away."""
    yield from plain_mentions(target, text)
    yield from _lookalikes(target, text)
    yield from _turned_over(target, text)
    masks = any(sign in text.plain for sign in MASK if sign != "?") or _MASKED_BY_QUESTION.search(text.plain)
    if target.playful and masks and len(target.plain.flat) > 3:
        for match in target.masked.finditer(text.plain):
            letters = sum(char.isalnum() for char in match.group())
            if letters < len(target.plain.flat) and letters >= max(3, 0.6 * len(target.plain.flat)):
                yield Mention("masked", *text.view.origin(*match.span()), doubtful=letters < 4)
    if not target.literal and len(target.plain.flat) > 2:
        yield from _spelled(target, text)
    if target.telling:
        yield from _telling(target, text)
    yield from _coded(target, text.raw, _DEPTH)


def plain_mentions(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    form = target.plain
    # An inflection may change the last two letters ("berries"), so they are left to the pattern.
    if (form.flat[:-2] or form.flat) not in text.flat and not target.literal:
        return
    for match in form.pattern.finditer(text.plain):
        start, end = text.view.origin(*match.span())
        written = text.raw[start:end]
        rule = _shape(form, match.group(), written, target.secret)
        if rule:
            yield Mention(rule, start, end, rule == "homoglyph" or (rule == "spelled" and len(form.flat) > 2))


def _shape(form: Form, match: str, written: str, secret: str) -> str | None:
    """Which rule a match is for; none where its parts are words of their own ("to get her")."""
    if written.casefold() in (secret.casefold(), ARTICLE.sub("", secret.casefold())):
        return "verbatim"
    if any(_is_dressed_up(char) for char in written):
        return "homoglyph"
    parts = WORD.findall(match)
    if len(parts) > 1 and all(len(part) == 1 for part in parts) and len(parts) != len(form.words):
        return "spelled"
    if _places(parts) <= _places(form.words) or not re.search(r"\s", match):
        return "normalised"
    numbers = form.flat.isdigit() and len(form.flat) < _LONG_NUMBER  # short ones may stand side by side by chance
    apart = re.search(r"[.!?,;:\n]", match) or numbers or all(part in COMMON for part in parts)
    return None if apart else "normalised"


def _is_dressed_up(char: str) -> bool:
    plain = unicodedata.normalize("NFKC", char)
    return char != plain and plain.isalnum()


def _places(parts: Sequence[str]) -> set[int]:
    return set(itertools.accumulate(map(len, parts[:-1])))


def _lookalikes(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    form, raw, view = target.skeleton, text.raw, text.view
    if not target.playful:
        return
    strange = "".join(ABOVE_ASCII.findall(raw))
    if not confusables.ALIKE.isdisjoint(strange):
        view = _view(raw, SKELETON)
        if form.flat in squeeze(view.text):
            yield from _homoglyphs(target, view)
    if not confusables.FLIPPED_ONLY.isdisjoint(strange):
        turned = raw.lower().translate(confusables.FLIPPED)
        for match in re.finditer(re.escape(form.flat[::-1]), turned):
            yield Mention("homoglyph", *match.span(), True)
    if _canonical(target.plain.flat) in _canonical(view.text):
        yield from _leet(target, text)


def _homoglyphs(target: PreparedSecret, view: _View) -> Iterator[Mention]:
    form = target.skeleton
    for match in form.pattern.finditer(view.text):
        start, end = view.origin(*match.span())
        written = view.raw[start:end]
        alone = fold_with(written, FOLD)
        openly = alone == match.group() or target.plain.pattern.fullmatch(alone)
        if not openly and _shape(form, match.group(), "", target.secret):
            mixed = bool(re.search("[A-Za-z]", written)) or not written.isalpha()
            yield Mention("homoglyph", start, end, mixed)


def _leet(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    """Digits and signs for letters, and a capital I for a small l; one letter of three at least is itself."""
    view = _view(_CAPITAL_I.sub("l", text.raw), SKELETON)
    for match in target.leet.finditer(view.text):
        letters = re.sub(r"[\s._-]", "", match.group())
        start, end = view.origin(*match.span())
        disguised = letters != target.plain.flat or view.raw[start:end] != text.raw[start:end]
        kept = sum(char.isalpha() for char in letters)
        if disguised and kept > max(1, len(letters) // 3) and not letters.endswith("!"):
            yield Mention("homoglyph", start, end)


def _canonical(text: str) -> str:
    return ABOVE_ASCII.sub("", text).translate(confusables.CANON)


def _turned_over(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    forms = target.turned
    cipher = any(part in text.plain for part in _CIPHER)
    if cipher and not target.literal:
        forms = (*forms, *_ciphers(target.plain, text.flat))
    for form in forms:
        if form.flat not in text.flat:
            continue
        announced = any(part in text.plain for part in _BACKWARDS) if form.rule == "reversed" else cipher
        if (target.weak or form.flat in _BY_CHANCE or form.flat.isdigit()) and not announced:
            continue
        for match in form.pattern.finditer(text.plain):
            if _shape(form, match.group(), "", target.secret):
                yield Mention(form.rule, *text.view.origin(*match.span()), True)


def _ciphers(plain: Form, flat: str) -> Iterator[Form]:
    makers: list[Callable[[str], str]] = [confusables.mirrored]
    makers += [functools.partial(confusables.shifted, by=by) for by in range(1, 26) if by != 13]
    for make in makers:
        letters = make(plain.flat)
        if letters != plain.flat and letters in flat:
            yield Form("caesar", letters, tuple(map(make, plain.words)), inflected=False)


_AS_IN = r"(?P<x>[^\W\d_])[\"']?,?\s+(?:(?:is|stands)\s+)?(?:as in|for|like)\s+[\"']?(?P=x)[^\W_]+"
_ALONE = r"(?<![^\W_])(?<![^\W_]')(?:{as_in}|(?P<word>{words})|(?P<letter>{letter}))(?![^\W_])(?!'[^\W_])"
_LETTERS = re.compile(_ALONE.format(as_in=_AS_IN, words="|".join(confusables.NATO), letter=r"[^\W\d_]"))
_CHARACTERS = re.compile(
    _ALONE.format(as_in=_AS_IN, words="|".join([*confusables.NATO, *confusables.DIGITS]), letter=r"[^\W_]")
)
#: An article or a pronoun, unless another single letter stands before it.
_PROSE = re.compile(r"(?<!\b\w[\s,.-])[ai](?=\s+[^\W_]{2})")
#: Characters allowed between two letters of a word that is spelled out in a sentence.
_STRIDE = 60


def _letters(text: Text, digits: bool) -> list[tuple[str, int, int]]:
    """The letters that stand alone, or are said as words (delta, d as in dog), with their places in the plain text."""
    letters = []
    for each in (_CHARACTERS if digits else _LETTERS).finditer(text.plain):
        word = each["word"]
        letter = each["x"] or each["letter"] or confusables.NATO.get(word) or confusables.DIGITS[word]
        if not each["letter"] or not _PROSE.match(text.plain, each.start()):
            letters.append((letter, *each.span()))
    return letters


def _spelled(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    flat = target.plain.flat
    words = frozenset(text.words)
    if any(char not in words and words.isdisjoint(confusables.SPOKEN.get(char, ())) for char in flat):
        return
    letters = _letters(text, any(char.isdigit() for char in flat))
    capitals = [each for each in letters if text.raw[each[1] : each[1] + 1].isupper()]
    for line in (letters, capitals if len(text.raw) == len(text.plain) else []):
        spelling = "".join(letter for letter, _, _ in line)
        at = spelling.find(flat)
        while at >= 0:
            run = line[at : at + len(flat)]
            if all(after[1] - before[2] <= _STRIDE for before, after in itertools.pairwise(run)):
                yield Mention("spelled", *text.view.origin(run[0][1], run[-1][2]), True)
                return
            at = spelling.find(flat, at + 1)


def _telling(target: PreparedSecret, text: Text) -> Iterator[Mention]:
    """All words of a long phrase that are not everyday ones, within a sentence, in any order and simple inflection."""
    stems = [_stem(word) for word in target.telling]
    if len(stems) < 2 or not all(stem in text.plain for stem in stems):
        return
    for sentence in re.finditer(r"[^.!?\n]+", text.plain):
        stemmed = [(_stem(word.group()), word) for word in WORD.finditer(text.plain, *sentence.span())]
        told = [word for stem, word in stemmed if stem in stems]
        if len({stem for stem, _ in stemmed}.intersection(stems)) == len(set(stems)):
            yield Mention("paraphrase", *text.view.origin(told[0].start(), told[-1].end()))


def _stem(word: str) -> str:
    return re.sub(r"(?:ies|ied|y|ing|ed|es|s|e)$", "", word) if len(word) > 4 else word


def _coded(target: PreparedSecret, raw: str, depth: int) -> Iterator[Mention]:
    for code in confusables.decoded(raw):
        text = read_text(code.text)
        inner = _coded(target, code.text, depth - 1) if depth > 1 else ()
        for mention in itertools.chain(plain_mentions(target, text), _turned_over(target, text), inner):
            yield Mention(code.rule, code.start, code.end, True, (text, mention))
