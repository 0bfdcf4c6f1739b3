"""Columns by name: values inside nested ones, and the names in messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def inside(row: Mapping[str, Any], path: str, otherwise: Any = None) -> Any:
    """The value that a path such as `user.name` or `tags.0` leads to in a row."""
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return otherwise
    return value


def columns_in_words(names: Iterable[Any], most: int = 20) -> str:
    """The names of columns in a message: of many the first, and of long ones the beginning."""
    texts = [text if len(text) <= 40 else f"{text[:39]}…" for text in map(str, names)]
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
