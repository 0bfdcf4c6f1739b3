"""The rows in one JSON document, as programs write tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fanfold.errors import ConfigError
from fanfold.tables.columns import columns_in_words

#: A table of objects by name that has more columns than this, and twice as many as rows, was written by column.
MOST_WIDE = 12
#: Lists in a row that are no rows: what was said in a conversation.
_TURNS = ("messages", "conversations")


def rows_in(document: Any, name: str) -> Iterable[Any]:
    """The rows of a document: a list, one list in an object (`{"data": [...]}`), or columns as pandas writes them."""
    if not isinstance(document, dict):
        return document if isinstance(document, list) else [document]
    rows = {
        key: value
        for key, value in document.items()
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value) and key not in _TURNS
    }
    if len(rows) == 1:
        return next(iter(rows.values()))
    if rows and len(rows) == len(document):
        raise ConfigError(f"{name} holds several tables ({columns_in_words(rows)}): write the one you want to a file")
    inner = [value for value in document.values() if isinstance(value, dict)]
    if len(document) > 1 and len(inner) == len(document) and not all(key.isdecimal() for row in inner for key in row):
        if len({tuple(row) for row in inner}) > 1:
            return [document]
        if len(inner[0]) <= max(MOST_WIDE, 2 * len(inner)):  # by the name of the row: few tables are wider than long
            return inner
    columns = [value.values() if isinstance(value, dict) else value for value in document.values()]
    sizes = {0 if isinstance(column, str) or not hasattr(column, "__len__") else len(column) for column in columns}
    if len(document) > 1 and len(sizes) == 1 and max(sizes) > 1:
        return [dict(zip(document, values)) for values in zip(*columns)]
    return [document]
