"""What an application showed to people, and what they said: trials that several processes write and read at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fanfold.encoding import encode
from fanfold.ledger.schema import UNREADABLE, explain
from fanfold.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class ShowRow:
    """One show as it was written: candidate and origin are JSON; `score` is None until there is feedback."""

    number: int
    candidate: str
    origin: str
    score: float | None


_SHOW = "SELECT number, candidate, origin, score FROM trial WHERE run = ?"


def find_show(ledger: Ledger, run: int, number: int) -> ShowRow | None:
    """The show of that number."""
    rows = ledger.read(f"{_SHOW} AND number = ? AND origin IS NOT NULL", (run, number))
    return next((ShowRow(*row) for row in rows), None)


def shows_since(ledger: Ledger, run: int, number: int) -> Iterator[ShowRow]:
    """The shows from that number on, in their order."""
    rows = ledger.read(f"{_SHOW} AND number >= ? AND origin IS NOT NULL ORDER BY number", (run, number))
    return (ShowRow(*row) for row in rows)


def judged_since(ledger: Ledger, run: int, mark: int) -> Iterator[tuple[int, int]]:
    """Where feedback came after a mark: the mark of its commit and the number of the show, in the order of commits."""
    rows = ledger.read("SELECT seq, cells FROM change WHERE run = ? AND seq > ? ORDER BY seq", (run, mark))
    for seq, cells in list(rows):
        for number, _ in ledger.value(cells, list[tuple[int, int]], what=f"change {seq} of run {run}"):
            yield seq, number


def last_checkpoint(ledger: Ledger, run: int) -> bytes | None:
    """The last state that a process saved."""
    return next((bytes(state) for (state,) in ledger.read("SELECT state FROM snapshot WHERE run = ?", (run,))), None)


def describe_run(ledger: Ledger, run: int, meta: Mapping[str, Any], reason: str) -> None:
    """Replace what is written about how a run was started; it counts as finished, whoever writes to it."""
    sql = "UPDATE run SET meta = ?, status = 'finished', reason = ?, updated = ? WHERE id = ?"
    try:
        ledger.writer.execute(sql, (encode(meta), reason, time.time(), run))
    except UNREADABLE as error:
        raise explain(error, ledger.path) from error
