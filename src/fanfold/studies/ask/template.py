"""Prompts with the names of columns in braces, filled from rows."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanfold.errors import ConfigError, nearest
from fanfold.tables import columns_in_words, inside
from fanfold.tables.writing import as_json

_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_MISSING = object()
#: What stands for an object that has no words for itself, such as an image.
_OBJECT = re.compile(r'"<.* at 0x[0-9A-Fa-f]+>"')


@dataclass(frozen=True)
class Template:
    """A text whose `{column}` parts are replaced; `{{` and `}}` are braces.

    `{user.name}` and `{tags.0}` reach into nested values, unless a column is called so.  Values that are not texts are
    written as JSON; what is a text there, such as a date, without the quotes.
    """

    text: str
    #: Literal pieces and names in turn, beginning and ending with a literal piece.
    pieces: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, what: str = "prompt") -> Template:
        """A template; `@FILE` is the text of a file."""
        if text.startswith("@"):
            text = _read(text[1:], what)
        pieces, literal, at = [], "", 0
        for match in _PIECES.finditer(text):
            literal += text[at : match.start()]
            at = match.end()
            if match[0] in ("{{", "}}"):
                literal += match[0][0]
            elif match[1] is None:
                raise ConfigError(
                    f"the {what} has a single {match[0]!r} at character {match.start() + 1}: "
                    f"write {match[0] * 2} for a brace, and {{column}} for a column"
                )
            else:
                pieces += [literal, match[1].strip()]
                literal = ""
        return cls(text, (*pieces, literal + text[at:]))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.pieces[1::2]))

    def check(self, columns: Collection[str], what: str = "prompt") -> None:
        """Refuse names that are not among the columns."""
        for name in self.names:
            if name not in columns and name.partition(".")[0] not in columns:
                close = nearest(name, columns)
                close = close if "did you mean" in close else ""  # all of them follow
                raise ConfigError(
                    f"the {what} names a column {name!r:.60} that the rows do not have{close} "
                    f"(columns: {columns_in_words(columns)}; write {{{{ and }}}} for braces that are meant as such)"
                )

    def missing(self, row: Mapping[str, Any]) -> list[str]:
        """The names that a row has no value for: absent, null, NaN, or an empty text."""
        return [name for name in self.names if _text(row, name) == ""]

    def fill(self, row: Mapping[str, Any]) -> str:
        pieces = list(self.pieces)
        pieces[1::2] = [_text(row, name) for name in pieces[1::2]]
        return "".join(pieces)


def _read(name: str, what: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8-sig").strip("\n")
    except FileNotFoundError:
        raise ConfigError(f"the {what} is @{name}, and there is no file {name}: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the {what} @{name} cannot be read: {error}") from error


def _value(row: Mapping[str, Any], name: str) -> Any:
    """A column's value, or one inside it."""
    value = row.get(name, _MISSING)
    if value is not _MISSING:
        return value
    return inside(row, name)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = _value(row, name)
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = as_json(value)
    parts = value.values() if isinstance(value, Mapping) else [value]
    if any(isinstance(part, bytes) for part in parts) or _OBJECT.fullmatch(text):
        raise ConfigError(
            f"the column {name!r} holds {type(value).__name__} and no text ({text:.40}): leave it out of the prompt; "
            "to ask about images, write an evaluator of your own (`image` in docs/models.md)"
        )
    return str(json.loads(text)) if text.startswith('"') else text
