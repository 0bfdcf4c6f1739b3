"""Words in other languages: a list that the user gives, and what it says about a secret."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fanfold.errors import ConfigError

_SPLIT = re.compile(r"\s*[:=,;\t]\s*")


class Translations(NamedTuple):
    """What a secret is called elsewhere: as a whole, and (where there is a translation of each) word by word."""

    whole: tuple[str, ...] = ()
    by_word: tuple[tuple[str, ...], ...] = ()


NONE = Translations()


@functools.lru_cache(maxsize=4)
def read_words(path: str) -> Mapping[str, tuple[str, ...]]:
    """A list of translations: lines such as `banana: plátano, Banane`, where `=`, `,`, `;` or a tab will do as well."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise ConfigError(f"leak_words={path!r} cannot be read ({reason}): give a text file") from error
    listed: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        word, *others = (part for part in _SPLIT.split(line.strip()) if part)
        if not others:
            raise ConfigError(f"leak_words={path!r}, line {number}: {line!r}: write a word and what it is elsewhere")
        listed[word.casefold()] = (*listed.get(word.casefold(), ()), *others)
    if not listed:
        raise ConfigError(f"leak_words={path!r} has no words; write lines such as `banana: plátano, Banane`")
    return listed


def translations_of(secret: str, listed: Mapping[str, tuple[str, ...]]) -> Translations:
    """What the list says about a secret and its words."""
    own = secret.casefold()
    words = own.split()
    by_word = tuple(listed.get(word, ()) for word in words) if len(words) > 1 else ()
    return Translations(listed.get(own, ()), by_word if all(by_word) else ())
