"""The provider batches of a ledger: their rows, and which of their calls have been answered."""

from __future__ import annotations

from typing import Any

from fanfold.ledger.records import BatchRow
from fanfold.ledger.store import Ledger

_ROWS = """
    SELECT b.tag, r.name, b.model, b.endpoint, b.state, b.remote, b.requests, b.created, b.note
    FROM batch b LEFT JOIN run r ON r.id = b.run
"""
_OWED = """
    SELECT i.key, o.worst FROM batch b JOIN batch_item i ON i.tag = b.tag
    LEFT JOIN owed o ON o.tag = i.tag AND o.key = i.key
    WHERE b.run = ? AND b.state IN ('intent', 'submitted')
        AND NOT EXISTS (SELECT 1 FROM call c WHERE c.key = i.key AND c.batch = i.tag)
"""


def batches(ledger: Ledger, run: int | None = None, *, open: bool = False) -> list[BatchRow]:
    """The batches of a run in the order in which they were made, or of all runs, newest first."""
    clauses, parameters = (["b.run = ?"], (run,)) if run is not None else ([], ())
    if open:
        clauses.append("b.state IN ('intent', 'submitted')")
    where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
    order = "b.created, b.tag" if run is not None else "b.created DESC, b.tag"
    return [BatchRow(*row) for row in ledger.read(f"{_ROWS} {where} ORDER BY {order}", parameters)]


def live_batches(ledger: Ledger, run: int | None) -> list[tuple[Any, ...]]:
    """The rows, as they were inserted, of batches that may still answer: a run's own, and those others submitted."""
    sql = "SELECT * FROM batch WHERE state = 'submitted' OR (state = 'intent' AND run IS ?)"
    return list(ledger.read(sql, (run,)))


def batch_items(ledger: Ledger, tag: str) -> list[tuple[str, bytes]]:
    """The id and the key of every call in a batch."""
    return list(ledger.read("SELECT custom_id, key FROM batch_item WHERE tag = ?", (tag,)))


def all_answered(ledger: Ledger, tag: str) -> bool:
    """Whether the ledger has a reply to every call of a batch, wherever it came from."""
    sql = "SELECT 1 FROM batch_item i WHERE tag = ? AND NOT EXISTS (SELECT 1 FROM call WHERE key = i.key) LIMIT 1"
    return not list(ledger.read(sql, (tag,)))


def replies_kept(ledger: Ledger, tag: str) -> int:
    """How many replies that a batch brought are in the ledger."""
    sql = "SELECT count(*) FROM batch_item i JOIN call c ON c.key = i.key WHERE i.tag = ? AND c.batch = i.tag"
    return int(ledger.one(sql, (tag,))[0])


def remote_batches(ledger: Ledger, but: str) -> set[str]:
    """The provider's ids of all batches known for certain, except the one with this tag."""
    sql = "SELECT remote FROM batch WHERE remote IS NOT NULL AND tag <> ? AND state <> 'intent'"
    return {remote for (remote,) in ledger.read(sql, (but,))}


def owed(ledger: Ledger, run: int) -> dict[bytes, float | None]:
    """What each call in an open batch of the run may cost at most (None: not known)."""
    return dict(ledger.read(_OWED, (run,)))
