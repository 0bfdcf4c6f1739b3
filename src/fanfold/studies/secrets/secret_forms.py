"""The secret, made ready to be looked for: its plain form, and those it may be disguised in."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fanfold.errors import ConfigError
from fanfold.studies.secrets import confusables
from fanfold.studies.secrets.confusables import COMMON, FOLD, SKELETON, Folding

WORD = re.compile(r"[^\W_]+")
ABOVE_ASCII = re.compile(r"[^\x00-\x7f]+")
_SIGNS = dict.fromkeys(code for code in range(128) if not chr(code).isalnum())
ARTICLE = re.compile(r"^\W*(?:a|an|the|my)\s+(?=\w)")
_GAP = r"[\W_]{0,6}"
_EVERYDAY_SIGNS = re.compile(r"[\w\s'\",.!?:;()/-]+")
MASK = "*_?#•░█▢□"
#: Longer secrets are sentences; of these the telling words are looked for, too.
_SENTENCE = 4


@dataclass(frozen=True)
class Form:
    """One way of writing the secret: its letters without anything between them, and its words.

    Patterns are compiled when they are first needed, because most messages are settled by a look at their letters.
    """

    rule: str
    flat: str
    words: tuple[str, ...]
    inflected: bool = True
    #: The text whose signs belong to it, where letters say too little.
    literal: str = ""

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        if self.literal:
            return re.compile(re.sub(r"(?:\\\s)+", r"[\\s_-]*", re.escape(self.literal)))
        return pattern_of(self.flat, self.inflected)


@dataclass(frozen=True)
class PreparedSecret:
    """A secret and the forms in which it can appear.

    `literal`: signs belong to it, so that letters say too little.  `playful`: letters in disguise are looked for.
    """

    secret: str
    plain: Form
    skeleton: Form
    turned: tuple[Form, ...]
    telling: tuple[str, ...]
    common: bool
    weak: bool
    literal: bool
    playful: bool

    @functools.cached_property
    def leet(self) -> re.Pattern[str]:
        return _spread(self.plain.flat, confusables.LEET, r"[\s._-]{0,2}")

    @functools.cached_property
    def masked(self) -> re.Pattern[str]:
        return _spread(self.plain.flat, dict.fromkeys(self.plain.flat, MASK), "[ -]?", MASK)


@functools.lru_cache(maxsize=64)
def made_ready(secret: str) -> PreparedSecret:
    secret = unicodedata.normalize("NFC", secret)
    folded = fold_with(secret, FOLD).strip()
    words = _words(folded)
    flat = "".join(words)
    if not folded:
        raise ConfigError(f"the secret {secret!r} has no visible character: give a word or a phrase")
    signs = _EVERYDAY_SIGNS.sub("", folded)
    literal = not flat or any(unicodedata.category(char)[0] == "M" for char in folded) or bool(len(flat) < 4 and signs)
    common = all(word in COMMON for word in words) if words else folded in COMMON
    letters = sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in flat)
    plain = Form("", flat, words, literal=folded if literal else "")
    playful = not literal and flat.isalnum()
    sentence = len(words) >= _SENTENCE
    return PreparedSecret(
        secret=secret,
        plain=plain,
        skeleton=Form("homoglyph", "".join(_words(fold_with(secret, SKELETON))), words) if playful else plain,
        turned=tuple(_turned(flat, words)) if playful else (),
        telling=tuple(word for word in words if word not in COMMON and len(word) > 2) if sentence else (),
        common=common,
        weak=common or flat in confusables.EVERYDAY or (not literal and letters < 4),
        literal=literal,
        playful=playful,
    )


def fold_with(text: str, table: Folding) -> str:
    # Most text is ASCII, and translating that by a table is slow.
    return text.lower() if text.isascii() else ABOVE_ASCII.sub(lambda run: run[0].translate(table), text).lower()


def squeeze(folded: str) -> str:
    """Only the letters and digits."""
    if not folded.isascii():
        folded = ABOVE_ASCII.sub(lambda run: "".join(filter(str.isalnum, run[0])), folded)
    return folded.translate(_SIGNS)


def _words(folded: str) -> tuple[str, ...]:
    return tuple(WORD.findall(ARTICLE.sub("", folded)))


def _turned(flat: str, words: tuple[str, ...]) -> Iterator[Form]:
    backwards = tuple(word[::-1] for word in words)
    for rule, parts in (
        ("reversed", backwards[::-1]),
        ("reversed", backwards),
        ("rot13", tuple(confusables.shifted(word, 13) for word in words)),
    ):
        form = "".join(parts)
        if form != flat:
            yield Form(rule, form, parts, inflected=False)


def pattern_of(flat: str, inflected: bool = True) -> re.Pattern[str]:
    """The letters in this order with anything but letters and digits between them, from edge to edge of words."""
    letters = [re.escape(char) for char in flat]
    if inflected and flat[-1:] in confusables.LETTERS and len(flat) > 2:
        letters[-1] = _ending(flat)
    return re.compile(_edge(flat[:1], "<") + _GAP.join(letters) + _edge(flat[-1:], ""))


def _ending(flat: str) -> str:
    """The last letter with simple inflections: plural, possessive, and for longer words the verb's."""
    last, verb = flat[-1], "|ed|ing" if len(flat) > 3 else ""
    if last == "s" and len(flat) > 4 and flat[-2] != "s" and flat[:-1] not in COMMON:
        return "(?:s'?)?"
    if last == "y" and flat[-2] not in "aeiou":
        return f"(?:y(?:'?s{verb})?|ies|ied)"
    if last == "e":
        return "(?:e(?:'?s|d)?|ing)" if verb else "e(?:'?s)?"
    return f"{last}(?:'?s|es{verb})?"


def _edge(char: str, side: str) -> str:
    """Where a word ends: scripts without spaces have no edge, Katakana ends with itself, Korean has only a left one."""
    if "\u30a1" <= char <= "\u30fc":
        return f"(?{side}![\u30a1-\u30fc])"
    if "\uac00" <= char <= "\ud7a3" and side:
        return "(?<![\uac00-\ud7a3])"
    if not char.isalnum() or unicodedata.east_asian_width(char) in "WF" or "\u0e00" <= char <= "\u109f":
        return ""
    return f"(?{side}![^\\W_])"


def _spread(flat: str, stand_in: Mapping[str, str], gap: str, not_beside: str = "") -> re.Pattern[str]:
    """The letters in this order, each of them or what stands in for it, alone or with `gap` between them."""
    edge = f"[^\\W_]|[{re.escape(not_beside)}]" if not_beside else "[^\\W_]"
    letters = gap.join(f"[{re.escape(char + stand_in.get(char, ''))}]" for char in flat)
    return re.compile(f"(?<!{edge}){letters}(?!{edge})")
