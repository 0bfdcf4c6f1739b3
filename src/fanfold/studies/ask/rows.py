"""The rows that are asked about, and the prompts made of them: read one after the other, as often as needed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fanfold.errors import ConfigError
from fanfold.studies.ask.config import AskConfig
from fanfold.studies.ask.template import Template
from fanfold.tables import TEXT, Table, open_table, plain_rows

#: What is asked: the prompt, or a prompt with a system prompt of its own, or the columns that have no value.
Question: TypeAlias = "str | dict[str, Any]"


@dataclass(frozen=True)
class Rows:
    """The chosen rows of a table, and what each is asked."""

    table: Iterable[tuple[Mapping[str, Any], str]]
    prompt: Template
    system: Template | None = None
    limit: int | None = None
    #: The places of the chosen rows; None: all.
    chosen: Collection[int] | None = None
    allow_missing: bool = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for place, (row, _) in enumerate(self.table):
            if self.limit is not None and place >= self.limit:
                return
            if self.chosen is None or place in self.chosen:
                yield row

    def questions(self) -> Iterator[Question]:
        return map(self.question, self)

    def question(self, row: Mapping[str, Any]) -> Question:
        templates = [self.prompt] if self.system is None else [self.prompt, self.system]
        if not self.allow_missing and (missing := [name for part in templates for name in part.missing(row)]):
            return {"missing": missing}
        prompt = self.prompt.fill(row)
        return prompt if self.system is None else {"prompt": prompt, "system": self.system.fill(row)}


@dataclass(frozen=True)
class Survey:
    """What a first reading of all rows shows."""

    count: int
    columns: tuple[str, ...]
    #: Rows without a value for a column that the prompt names, and these columns.
    missing: int
    lacking: tuple[str, ...]
    #: A hash of all questions in their order.
    digest: str
    #: How many different questions there are to ask; 0 where nobody counted.
    different: int = 0


def rows_of(config: AskConfig, table: Iterable[tuple[Mapping[str, Any], str]] | None = None) -> Rows:
    """The rows that a config names, or those of `table`; nothing is read yet but the number of rows for a sample."""
    if not config.prompt.strip():
        raise ConfigError("prompt is missing: say what to ask about each row, as in --prompt 'Translate: {text}'")
    prompt = Template.parse(config.prompt)
    if not prompt.names:
        raise ConfigError("the prompt names no column, so every row would be asked the same: write {column} into it")
    system = None if config.system is None else Template.parse(config.system, "system prompt")
    table = opened(config) if table is None else table
    chosen = None
    if config.sample is not None:
        count = sum(1 for _ in table)
        chosen = frozenset(random.Random(config.seed).sample(range(count), min(config.sample, count)))
    own = system is not None and bool(system.names)
    return Rows(table, prompt, system if own else None, config.limit, chosen, config.allow_missing)


def opened(config: AskConfig) -> Table:
    """The table of a config."""
    if config.source == "-":
        raise ConfigError("the rows came from standard input: pipe them into the same `fanfold ask` command again")
    if not config.source:
        raise ConfigError("source is missing: name a file, such as data.jsonl, or - for standard input")
    return open_table(config.source, format=config.format, encoding=config.encoding, delimiter=config.delimiter)


def listed(rows: Iterable[Any]) -> list[tuple[Mapping[str, Any], str]]:
    """Rows given in Python, as a table: dicts, texts, a table of pandas, polars or Arrow, a dataset."""
    table: list[tuple[Mapping[str, Any], str]] = []
    for number, row in enumerate(plain_rows(rows)):
        if isinstance(row, str):
            row = {TEXT: row}
        if not isinstance(row, Mapping):
            raise ConfigError(f"row {number} is not a dict or a text but {row!r:.60}")
        table.append((row, f"row {number}"))
    return table


def survey(rows: Rows, *, count_different: bool = False) -> Survey:
    """Read all rows once: what cannot be read, and a column that is not there, is refused before the first call."""
    columns: dict[str, None] = {}
    lacking: dict[str, None] = {}
    digest, count, missing = hashlib.blake2b(digest_size=16), 0, 0
    different: set[int] = set()
    for row in rows:
        count += 1
        if row.keys() - columns.keys():
            columns.update(dict.fromkeys(map(str, row)))
        question = rows.question(row)
        text = question if isinstance(question, str) else repr(question)
        digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
        if not isinstance(question, str) and "missing" in question:
            missing += 1
            lacking.update(dict.fromkeys(question["missing"]))
        elif count_different:
            different.add(hash(text))
    if not count:
        where = f" in {rows.table.name}" if isinstance(rows.table, Table) else ""
        raise ConfigError(f"there are no rows{where}: the table is empty")
    rows.prompt.check(columns)
    if rows.system is not None:
        rows.system.check(columns, "system prompt")
    return Survey(count, tuple(columns), missing, tuple(lacking), digest.hexdigest(), len(different))
