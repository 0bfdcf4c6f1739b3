"""The queries a study answers: read from a file, or a varied list of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fanfold.errors import ConfigError
from fanfold.tables import ENDINGS, columns_in_words, open_table, spreadsheet_encoding
from fanfold.tasks.columns import USUAL

BUILT_IN = tuple(Path(__file__).with_name("queries.txt").read_text(encoding="utf-8").splitlines())


def load_queries(path: str | None) -> tuple[str, ...]:
    """The queries in a file: its lines, or the column `query` of a table; without a file, our own."""
    if path is None:
        return BUILT_IN
    if ENDINGS.get(Path(path).suffix.lower(), "txt") != "txt":
        queries = list(_column(path))
    else:
        try:
            lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
        except FileNotFoundError:
            raise ConfigError(f"there is no file of queries {path}: check the path") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"the queries in {path} are not in UTF-8 ({error.reason}): save the file so") from error
        except OSError as error:
            raise ConfigError(f"the queries in {path} cannot be read: {error.strerror}") from error
        queries = [line.strip() for line in lines if line.strip()]
    if not queries:
        raise ConfigError(f"{path} holds no query: write one on each line")
    return tuple(queries)


def _column(path: str) -> Iterator[str]:
    """The queries of a table: its column `query`, else its only one, else one of a usual name."""
    for row, where in open_table(path, encoding=spreadsheet_encoding(Path(path))):
        names = ("query", *(row if len(row) == 1 else ()), *USUAL["input"])
        if (usual := next((name for name in names if name in row), None)) is None:
            raise ConfigError(f"{where} has no query: name its column `query` (columns: {columns_in_words(row)})")
        if not isinstance(query := row[usual], str) or not query.strip():
            raise ConfigError(
                f"{where}: {usual!r} must be a text that asks something, not {query!r:.60}: correct the file"
            )
        yield query
