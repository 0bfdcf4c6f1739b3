"""Letters in disguise: which characters, words and codes can stand for letters, and how such a text is read back."""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from fanfold.studies.secrets.lexicon import table, words

_DISGUISES = table("disguises")
_ALPHABETS = _DISGUISES["alphabets"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

#: Letters turned upside down; the text is then read from its end.
FLIPPED = str.maketrans(*_ALPHABETS["flipped"])
FLIPPED_ONLY = frozenset(_ALPHABETS["flipped_only"])

#: Digits and signs that stand for a letter.
LEET: dict[str, str] = _DISGUISES["leet"]
#: Leet and plain text brought to one form without signs, to see cheaply whether the exact pattern is worth trying.
CANON = str.maketrans(
    {
        **dict.fromkeys(chr(code) for code in range(128) if not chr(code).isalnum()),
        **{sign: letter for letter, signs in LEET.items() for sign in signs},
        **dict.fromkeys("1!|l", "i"),
    }
)

MORSE = {entry[1:]: entry[0] for entry in _DISGUISES["codes"]["morse"].split()}
NATO = {word: word[0] for word in _DISGUISES["codes"]["nato"].split()}
DIGITS = {word: str(number) for number, word in enumerate(_DISGUISES["codes"]["digits"].split())}
#: The words that stand for a letter or a digit.
SPOKEN = {
    char: [word for word, stands in (NATO | DIGITS).items() if stands == char] for char in (NATO | DIGITS).values()
}

#: What proves nothing: words of any conversation about secrets, those that "my secret is ..." precedes in innocence,
#: things that everybody mentions, and words that are other words backwards.
COMMON = frozenset([*words("common"), *table("words")["gestures"]])
PREDICATES, EVERYDAY, ANADROMES = (frozenset(words(name)) for name in ("predicates", "everyday", "anadromes"))

_MARKS = ((0x300, 0x36F), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE00, 0xFE0F), (0xFE20, 0xFE2F))
_QUOTES = dict(zip("’‘ʼ´“”«»„‐‑", '\'\'\'\'"""""--'))
_FILLERS = "\u034f\u115f\u1160\u3164\uffa0"
_MOST_KEPT = 20_000


class Folding(dict[int, str]):
    """A table for `str.translate`: every character to its plain form (compatible, caseless, without accents).

    What cannot be seen becomes nothing. One character is folded without regard to its neighbours, so that a place in
    the folded text leads back to a place in the original.
    """

    def __init__(self, lookalikes: Mapping[str, str]) -> None:
        super().__init__({ord(char): plain for char, plain in {**_QUOTES, **lookalikes}.items()})

    def __missing__(self, code: int) -> str:
        plain = _plain(chr(code))
        if len(self) < _MOST_KEPT:
            self[code] = plain
        return plain


def _plain(char: str) -> str:
    if unicodedata.category(char) == "Cf" or char in _FILLERS or _is_mark(char):
        return ""
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", char).casefold())
    return unicodedata.normalize("NFC", "".join(part for part in parts if not _is_mark(part))).casefold()


def _is_mark(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _MARKS) or 0xE0100 <= ord(char) <= 0xE01EF


def _lookalikes() -> dict[str, str]:
    table = {char: letter for letter, chars in _DISGUISES["lookalikes"].items() for char in chars}
    table.update(zip(_ALPHABETS["braille"], LETTERS))
    for first in _ALPHABETS["first"]:
        table.update({chr(first + i): letter for i, letter in enumerate(LETTERS)})
    return table


FOLD = Folding({})
SKELETON = Folding(_lookalikes())
#: The characters that only look like a Latin letter.
ALIKE = frozenset(_lookalikes())


class Decoded(NamedTuple):
    """A piece of a text, from `start` to `end`, that says `text` to whoever decodes it by `rule`."""

    rule: str
    start: int
    end: int
    text: str


# Tokens start only at an edge and every repetition is of disjoint characters: linear on any input. The look back
# stands behind the first character, so that the search jumps from one possible first character to the next.
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])(?=[A-Za-z]?[a-z]*[A-Z0-9+/])[A-Za-z0-9+/_-]{4,}={0,6}")
_HEX = re.compile(
    r"[0-9c-fC-F\\%#=uU](?<![0-9A-Za-z].)(?:(?<=0)x|(?<=\\)x|(?<=[uU])\+)?(?:(?<=[0-9c-fC-F])|[0-9a-fA-F])[0-9a-fA-F]"
    r"(?:[\s:,;_-]{0,2}(?:0x|\\x|%|#|=|[uU]\+)?[0-9a-fA-F]{2})+(?![0-9A-Za-z])"
)
_BINARY = re.compile(r"[01](?<![0-9A-Za-z].)[01]{6,}(?:[\s,_-]{1,2}[01]{7,8})*(?![0-9A-Za-z])")
_NUMBERS = re.compile(r"[0-9](?<![0-9].)[0-9]{0,2}(?:[\s,.;:/|+-]{1,3}[0-9]{1,3}){2,}(?![0-9])")
_ODD = re.compile(r"[0-9%&\\]")
_DIGIT = re.compile("[0-9]")
_DOTS = re.compile(r"[.·•∙_−–—-]{1,6}(?:[ \t\n/|,]{1,4}[.·•∙_−–—-]{1,6})+")
_RARE_DASH = re.compile("[−–—_]")
_DASHES = str.maketrans("·•∙_−–—", "...----")
_BACKSLASH = re.compile(r"\\(?:u\{?([0-9a-fA-F]{4})\}?|x([0-9a-fA-F]{2})|([0-7]{3}))")


def decoded(text: str) -> Iterator[Decoded]:
    """Everything in `text` that may be a code, decoded once; each piece is no longer than what it was made of."""
    yield from _tokens(text)
    if "-" in text or _RARE_DASH.search(text):
        yield from _morse(text)
    if len(_DIGIT.findall(text)) > 2:
        yield from _numeric(text)


def _numeric(text: str) -> Iterator[Decoded]:
    for code in _HEX.finditer(text):
        digits = re.sub(r"0x|u\+|[^0-9a-f]", "", code.group().lower())
        yield Decoded("hex", *code.span(), _utf8(bytes.fromhex(digits[: len(digits) // 2 * 2])))
    for code in _BINARY.finditer(text):
        for width in ("8", "7", "7,8"):
            bits = re.findall(rf"[01]{{{width}}}", code.group())
            yield Decoded("codes", *code.span(), "".join(chr(int(bit, 2)) for bit in bits))
    for code in _NUMBERS.finditer(text):
        numbers = [int(number) for number in re.findall(r"\d+", code.group())]
        yield Decoded("codes", *code.span(), "".join(chr(n) if n > 31 else " " for n in numbers))
        yield Decoded("codes", *code.span(), "".join(LETTERS[n - 1] if 1 <= n <= 26 else " " for n in numbers))


def _morse(text: str) -> Iterator[Decoded]:
    for code in _DOTS.finditer(text):
        signs = re.split(r"([/|\n]|[ \t]{3,})|[ \t,]+", code.group().translate(_DASHES))
        yield Decoded("morse", *code.span(), "".join(" " if "/" in s else MORSE.get(s, " ") for s in signs if s))


def _tokens(text: str) -> Iterator[Decoded]:
    """Base64 and escapes. Wrapped base64 is also read as one."""
    pieces: list[Decoded] = []
    at = 0
    words = [word for word in text.split() if len(word) > 3 and not (word.islower() and word.isalpha())]
    for token in filter(_is_odd, words):
        at = text.index(token, at)
        codes = [(each, _debase(each.group().rstrip("="))) for each in _BASE64.finditer(token)]
        pieces += [Decoded("base64", at + each.start(), at + each.end(), plain) for each, plain in codes if plain]
        if "%" in token or "&" in token or "\\" in token:
            yield from _escaped(token, at)
        at += len(token)
    yield from pieces
    if len(pieces) > 1:
        yield Decoded("base64", pieces[0].start, pieces[-1].end, "".join(piece.text for piece in pieces))


def _is_odd(token: str) -> bool:
    tail = token[1:]
    return not tail.islower() or (not tail.isalpha() and _ODD.search(token) is not None)


def _debase(token: str) -> str:
    try:
        if token.isupper() and not re.search("[0189+/_-]", token):
            plain = _utf8(base64.b32decode(token + "=" * (-len(token) % 8)))
            if plain:
                return plain
        return _utf8(base64.urlsafe_b64decode(token.replace("+", "-").replace("/", "_") + "=" * (-len(token) % 4)))
    except binascii.Error:
        return ""


def _escaped(token: str, at: int) -> Iterator[Decoded]:
    plain = _BACKSLASH.sub(lambda code: chr(int(code[1] or code[2] or code[3], 8 if code[3] else 16)), token)
    plain = unquote(html.unescape(plain))
    if plain != token:
        yield Decoded("escaped", at, at + len(token), plain)


def _utf8(data: bytes) -> str:
    try:
        return data.decode().replace("\0", "")
    except UnicodeDecodeError:
        return ""


def shifted(text: str, by: int) -> str:
    """`text` with each Latin letter moved `by` places along the alphabet."""
    return text.translate(str.maketrans(LETTERS, LETTERS[by % 26 :] + LETTERS[: by % 26]))


def mirrored(text: str) -> str:
    """`text` with a for z, b for y and so on."""
    return text.translate(str.maketrans(LETTERS, LETTERS[::-1]))
