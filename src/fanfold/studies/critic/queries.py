"""The queries a study answers: read from a file, or a varied list of our own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fanfold.errors import ConfigError

BUILT_IN = tuple(Path(__file__).with_name("queries.txt").read_text(encoding="utf-8").splitlines())


def load_queries(path: str | None) -> tuple[str, ...]:
    """The queries in a file, one on each line: plain text, or JSON with a `query`; without a file, our own."""
    if path is None:
        return BUILT_IN
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"there is no file of queries {path}: check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the queries in {path} cannot be read: {error}") from error
    found = [
        _query(line.strip(), f"{path}, line {number}", path.endswith(("jsonl", "json")))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not found:
        raise ConfigError(f"{path} holds no query: write one on each line")
    return tuple(found)


def _query(line: str, where: str, is_json: bool) -> str:
    if not is_json:
        return line
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where} is not JSON ({error}): give the file another ending for plain text") from error
    query = value.get("query") if isinstance(value, dict) else value
    if not isinstance(query, str) or not query.strip():
        raise ConfigError(f'{where} has no query: write {{"query": "..."}}')
    return query
