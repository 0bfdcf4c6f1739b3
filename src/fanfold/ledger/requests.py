"""What people say to a run from elsewhere: comments, and requests that it obeys while it works."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fanfold.encoding import encode, words
from fanfold.ledger.commits import Insert
from fanfold.ledger.page_records import Comment, RunRequest
from fanfold.ledger.schema import UNREADABLE, explain
from fanfold.ledger.store import Ledger
from fanfold.redaction import redact

T = TypeVar("T")


def add_comment(path: str | Path, run: str, trial: int | None, text: str) -> Comment:
    """Write what a person says about a run, or about one of its trials."""

    def write(ledger: Ledger, id: int) -> Comment:
        row = (id, trial, time.time(), words(redact(text)))
        sql = "INSERT INTO comment (run, trial, at, text) VALUES (?, ?, ?, ?)"
        number = ledger.writer.execute(sql, row).lastrowid
        assert number is not None
        ledger.writer.execute(Insert.CHANGE.value, (id, row[2], "[]", "[]", "[]"))
        return Comment(number, *row[1:])

    return _written(path, run, write)


def add_request(path: str | Path, run: str, what: str, value: Any = None) -> int:
    """Ask something of a run: `stop`, `budget` with higher limits, or an answer to what it asks people.

    A run that works obeys within a second. What nobody has obeyed is looked at when the run is resumed, but for a stop.
    """

    def write(ledger: Ledger, id: int) -> int:
        sql = "INSERT INTO request (run, at, what, value) VALUES (?, ?, ?, ?)"
        number = ledger.writer.execute(sql, (id, time.time(), what, encode(value, f"the {what}"))).lastrowid
        assert number is not None
        return number

    return _written(path, run, write)


def close_requests(path: str | Path, run: str, numbers: list[int]) -> None:
    """Write that requests have been obeyed, or are over."""

    def write(ledger: Ledger, id: int) -> None:
        sql = "UPDATE request SET taken = ? WHERE run = ? AND id = ? AND taken IS NULL"
        ledger.writer.executemany(sql, [(time.time(), id, number) for number in numbers])
        ledger.writer.execute(Insert.CHANGE.value, (id, time.time(), "[]", "[]", "[]"))

    _written(path, run, write)


def requests_of(ledger: Ledger, run: int, after: int = 0) -> list[RunRequest]:
    """The requests to a run, and its questions to people, with a larger id than `after`; in order."""
    sql = "SELECT id, at, what, value, taken FROM request WHERE run = ? AND id > ? ORDER BY id"
    rows = list(ledger.read(sql, (run, after)))
    return [
        RunRequest(id, at, what, ledger.value(value, what=f"request {id}"), taken)
        for id, at, what, value, taken in rows
    ]


def _written(path: str | Path, run: str, write: Callable[[Ledger, int], T]) -> T:
    """The result of a short transaction on a connection of its own."""
    with Ledger(path) as ledger:
        id = ledger.named(run)
        try:
            ledger.writer.execute("BEGIN IMMEDIATE")
            try:
                value = write(ledger, id)
                ledger.writer.execute("COMMIT")
            except BaseException:
                ledger.writer.execute("ROLLBACK")
                raise
        except UNREADABLE as error:
            raise explain(error, ledger.path) from error
    return value


def restart_run(ledger: Ledger, run: int, stop: str) -> None:
    """Write down the stopping rule that a resumed run has now, in place of the one it had."""
    sql = "UPDATE run SET meta = json_set(meta, '$.stop', ?) WHERE id = ? AND json_valid(meta)"
    try:
        ledger.writer.execute(sql, (stop, run))
    except UNREADABLE as error:
        raise explain(error, ledger.path) from error
