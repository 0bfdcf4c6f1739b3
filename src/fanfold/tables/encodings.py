"""In which encoding a file of a spreadsheet is, where it does not say so."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from fanfold.errors import ConfigError

#: How files in UTF-16 begin.
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: Encodings that people need, in words.
OTHERS = "cp1250 (Central Europe), cp1251 (Cyrillic), cp1253 (Greek), cp1254 (Turkish), shift_jis, gb18030 or euc_kr"
#: The encoding of old spreadsheets on Windows, in Western Europe and America.
WESTERN = "cp1252"

_LETTERS = re.compile(r"[^\W\d_]+")
#: What stands for letters of Poland inside words.
_INSIDE = re.compile(r"[^\W\d_][¹³¿£¥][^\W\d_]")
#: What stands for letters of Turkey, but in texts of Iceland, which have one of the others as well.
_TURKISH, _ICELANDIC = re.compile("[ýþðÝÞÐ]"), re.compile("[áæÁÆ]")
#: Bytes that are looked at, how often such a sign is no chance, and letters of a word of which most have no accent.
_LOOKED_AT, _SIGNS, _LONG = 1 << 20, 2, 4
#: The share of the letters, and of the longer words with accents, from which on no Western language is like that.
_MOST_LETTERS, _MOST_WORDS = 0.5, 0.2


def mark_of(path: Path) -> bytes:
    """The byte order mark that a file begins with; empty where there is none."""
    with path.open("rb") as file:
        start = file.read(3)
    return next((mark for mark in (codecs.BOM_UTF8, *UTF16) if start.startswith(mark)), b"")


def spreadsheet_encoding(path: Path) -> str | None:
    """The encoding of old spreadsheets on Windows, for a CSV file that is not in UTF-8; None for any other file.

    A file that reads like no Western language is refused: which encoding it has, nobody here can tell.
    """
    if path.suffix.lower() not in (".csv", ".tsv") or not path.is_file() or mark_of(path) or _is_utf8(path):
        return None
    with path.open("rb") as file:
        head = file.read(_LOOKED_AT)
    if not _is_western(head.decode(WESTERN, "replace")):
        raise ConfigError(
            f"{path.name} is not in UTF-8, and not in {WESTERN} (Western Europe) either: name its encoding "
            f"(--encoding), such as {OTHERS}; or save the file as UTF-8 (in Excel as `CSV UTF-8`)"
        )
    return WESTERN


def _is_western(text: str) -> bool:
    """Whether a text reads like a language of Western Europe: few letters with accents, among others without."""
    words = _LETTERS.findall(text)
    accents = [sum(not letter.isascii() for letter in word) for word in words]
    long = [count == len(word) for word, count in zip(words, accents) if count and len(word) >= _LONG]
    few = sum(accents) <= _MOST_LETTERS * sum(map(len, words)) and sum(long) <= _MOST_WORDS * len(long)
    turkish = len(_TURKISH.findall(text)) >= _SIGNS and _ICELANDIC.search(text) is None
    return few and not turkish and len(_INSIDE.findall(text)) < _SIGNS


def _is_utf8(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        try:
            while part := file.read(1 << 20):
                decoder.decode(part)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True
