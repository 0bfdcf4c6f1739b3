"""How a run comes into a ledger, and how one that could not begin leaves it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fanfold.encoding import MARK, Stored, blobs_in, encode
from fanfold.errors import ConfigError
from fanfold.ledger.blobs import KEEP_BLOB, KEEP_STORED
from fanfold.ledger.schema import UNREADABLE, explain
from fanfold.ledger.store import Ledger
from fanfold.types import Case


def create_run(
    ledger: Ledger, name: str, identity: Mapping[str, Any], meta: Mapping[str, Any], cases: Sequence[Case]
) -> int:
    """Write a new run and its cases, and return its id."""
    if name == "last":
        raise ConfigError(
            "a new run cannot be called 'last', which names the newest run of a ledger: give it another name, or "
            "continue that one (fanfold resume last)"
        )
    texts = [None if case.data is None else encode(case.data, f"case {case.id!r}") for case in cases]
    blobs: dict[str, bytes | Stored] = {}
    for case, json in zip(cases, texts):
        if json is not None and MARK in json:
            blobs.update(blobs_in(case.data, json, f"case {case.id!r}"))
    inside, beside = list(blobs.items()), list[Any]()
    if ledger.blobs is not None:
        inside, beside = ledger.blobs.written(inside)  # type: ignore[assignment]
    now = time.time()
    head = (name, now, now, encode(identity), encode(meta))
    db = ledger.writer
    try:
        db.execute("BEGIN IMMEDIATE")
        sql = "INSERT INTO run (name, created, updated, status, identity, meta) VALUES (?, ?, ?, 'running', ?, ?)"
        run = db.execute(sql, head).lastrowid
        rows = [(run, position, case.id, case.seed, texts[position]) for position, case in enumerate(cases)]
        db.executemany(KEEP_BLOB, inside)
        db.executemany(KEEP_STORED, beside)
        db.executemany("INSERT INTO run_case (run, position, id, seed, data) VALUES (?, ?, ?, ?, ?)", rows)
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if isinstance(error, UNREADABLE):
            raise explain(error, ledger.path) from error
        raise
    assert run is not None
    return run


_OF_A_RUN = (
    *("trial", "run_case", "snapshot", "run_count", "desk", "summary"),
    *("change", "note", "request", "comment", "blob_holder"),
)


def forget_run(ledger: Ledger, run: int) -> None:
    """Remove a run that could not begin, unless something of it was evaluated or paid for."""
    db = ledger.writer
    try:
        db.execute("BEGIN IMMEDIATE")
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        kept = {"evaluation", "batch", "payment"} & tables
        if not any(db.execute(f"SELECT 1 FROM {table} WHERE run = ? LIMIT 1", (run,)).fetchone() for table in kept):
            for table in _OF_A_RUN:
                db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
            db.execute("DELETE FROM run WHERE id = ?", (run,))
        db.execute("COMMIT")
    except UNREADABLE as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise explain(error, ledger.path) from error
