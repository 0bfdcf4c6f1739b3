"""Grouped durable writes: rows put during one commit are written together in the next."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeAlias

from fanfold.encoding import encode, words
from fanfold.errors import RowRefused
from fanfold.ledger import queries
from fanfold.ledger.blobs import KEEP_BLOB, KEEP_STORED
from fanfold.ledger.schema import UNREADABLE, explain
from fanfold.ledger.store import Ledger

#: Called on the event loop's thread once a row is safe (None), or with the error that kept it from being written.
Then: TypeAlias = Callable[[BaseException | None], None]


class Insert(Enum):
    """Every statement a run writes, in the order in which those of one commit are executed."""

    #: A blob that only this run holds is left empty.  First, because what is put again after that is to stay.
    PRUNED = (
        "INSERT INTO blob SELECT ?1, x'' WHERE (SELECT min(run) = ?2 AND max(run) = ?2 FROM blob_holder "
        "WHERE digest = ?1) ON CONFLICT (digest) DO UPDATE SET data = x''"
    )
    UNSTORED = (
        "DELETE FROM stored_blob WHERE digest = ?1 "
        "AND (SELECT min(run) = ?2 AND max(run) = ?2 FROM blob_holder WHERE digest = ?1)"
    )
    LET_GO = "DELETE FROM blob_holder WHERE digest = ? AND run = ?"
    #: A blob that nobody holds, and that is there, is an older one: it stays so.
    HELD = (
        "INSERT OR IGNORE INTO blob_holder SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM blob_holder WHERE digest = ?1) "
        "OR NOT EXISTS (SELECT 1 FROM blob WHERE digest = ?1 AND length(data) > 0) "
        "AND NOT EXISTS (SELECT 1 FROM stored_blob WHERE digest = ?1)"
    )
    BLOB = KEEP_BLOB
    #: Written by `Commits` itself, of those among the blobs that are in the store of the run.
    STORED = KEEP_STORED
    ASKED = "INSERT INTO trial (run, number, candidate, asked_after, origin) VALUES (?, ?, ?, ?, ?)"
    #: A show of an application: several processes write shows, so the file gives the number.
    SHOWN = (
        "INSERT INTO trial (run, number, candidate, asked_after, origin) "
        "SELECT ?1, 1 + coalesce(max(number), -1), ?2, 0, ?3 FROM trial WHERE run = ?1"
    )
    BATCH = "INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    BATCH_ITEM = "INSERT OR REPLACE INTO batch_item VALUES (?, ?, ?)"
    OWED = "INSERT OR REPLACE INTO owed VALUES (?, ?, ?)"
    PAYMENT = "INSERT INTO payment VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    LEARNT = "INSERT OR REPLACE INTO learnt VALUES (?, ?, ?, ?)"
    CALL = "INSERT OR REPLACE INTO call VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    SUPERSEDED = """
        INSERT OR IGNORE INTO superseded
        SELECT e.run, e.trial, e.position, e.failure, e.message, e.detail, e.cost, CASE
            WHEN EXISTS (SELECT 1 FROM superseded s WHERE s.run = e.run AND s.trial = e.trial)
            THEN (SELECT s.told_score FROM superseded s WHERE s.run = e.run AND s.trial = e.trial LIMIT 1)
            ELSE t.score END
        FROM evaluation e JOIN trial t ON t.run = e.run AND t.number = e.trial
        WHERE e.run = ? AND e.trial = ? AND e.position = ? AND e.failure IS NOT NULL
    """
    EVALUATION = "INSERT OR REPLACE INTO evaluation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    CALLED = "INSERT OR REPLACE INTO cell_call VALUES (?, ?, ?, ?, ?)"
    TOLD = "UPDATE trial SET told = ?, score = ?, dropped = ?, evaluations = ?, cost = ? WHERE run = ? AND number = ?"
    #: Feedback on a show; given again, it replaces the score and keeps its place.
    FEEDBACK = """
        UPDATE trial SET score = ?3, evaluations = 1, cost = 0.0, told = coalesce(told,
            (SELECT 1 + coalesce(max(told), -1) FROM trial WHERE run = ?1 AND told IS NOT NULL))
        WHERE run = ?1 AND number = ?2
    """
    TOLD_SCORE = "UPDATE superseded SET told_score = ? WHERE run = ? AND trial = ?"
    AMENDED = "UPDATE trial SET score = ?, cost = ? WHERE run = ? AND number = ?"
    SNAPSHOT = "INSERT OR REPLACE INTO snapshot (run, told, asked, state) VALUES (?, ?, ?, ?)"
    COUNTS = "INSERT OR REPLACE INTO desk VALUES (?, ?)"
    SUMMARY = "INSERT OR REPLACE INTO summary VALUES (?, ?)"
    COUNTED = f"INSERT OR REPLACE INTO run_count SELECT ?1, * FROM ({queries.COUNTS})"
    RUN = "UPDATE run SET updated = ?, elapsed = ?, status = ?, reason = ? WHERE id = ?"
    NOTE = "INSERT INTO note SELECT ?1, 1 + coalesce(max(seq), 0), ?2, ?3 FROM change WHERE run = ?1"
    #: Written by `Commits` itself, last: what else the commit holds.
    CHANGE = "INSERT INTO change SELECT ?1, 1 + coalesce(max(seq), 0), ?2, ?3, ?4, ?5 FROM change WHERE run = ?1"

    __hash__ = object.__hash__  # each is one object; an Enum's own is slow, and looked up for every row


#: Looked through for every commit, which an Enum is slow at.
_ORDER = tuple(Insert)

#: What refuses the content of a row, rather than the disk or the file any row: one row that has such an error fails
#: alone.  A value that SQLite cannot hold is one of several exceptions, by its type and by the version of Python.
CONTENT = (
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
    *(OverflowError, TypeError, UnicodeEncodeError),
)

#: Statements whose rows nothing else in the file refers to.
ALONE = (Insert.EVALUATION, Insert.CALL)

#: Seconds between two commits in which rows gather: a commit costs as much CPU as writing dozens of rows.
GATHER = 0.002
#: A commit that takes longer (in seconds) is slow, and evaluations wait for it.
SLOW = 0.05


class Commits:
    """Writes rows in groups, so that each commit is as large as the disk is slow.

    One thread commits; everything else belongs to the event loop that puts.  The first commit that fails is the last:
    its rows and all later ones fail with its error, which stays in `error`, so that the file never has a gap.

    A commit that is refused for the content of a row is made again row by row.  An evaluation or a call that cannot be
    written is left out, and its `then` is given RowRefused; any other would leave a gap, and the commit has failed.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.error: BaseException | None = None
        self._rows: _Rows = {}
        self._then: list[_Waiting] = []
        self._commit: asyncio.Future[Any] | None = None
        self._scheduled = False
        #: When the last commit began, and whether it is known to have been quick.
        self._began = 0.0
        self._quick = self._writing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fanfold-ledger")

    def put(self, statement: Insert, row: tuple[Any, ...], then: Then | None = None) -> None:
        """Write a row with the next commit; `then` is called when that is over."""
        if self.error is not None:
            if then is not None:
                asyncio.get_running_loop().call_soon(then, self.error)
            return
        rows = self._rows.setdefault(statement, [])
        rows.append(row)
        if then is not None:
            self._then.append((statement, len(rows) - 1, then))
        if self._commit is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def safe(self, statement: Insert, row: tuple[Any, ...]) -> asyncio.Future[None]:
        """Write a row; await what this gives to know that it is on disk."""
        landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def then(error: BaseException | None) -> None:
            if not landed.done():
                landed.set_result(None) if error is None else landed.set_exception(error)

        self.put(statement, row, then)
        return landed

    @property
    def behind(self) -> bool:
        """Whether the disk falls behind: the last commit was slow, this one already is, or there was none yet."""
        return not self._quick or (self._writing and time.monotonic() - self._began > SLOW)

    async def flush(self) -> None:
        """Return when everything put so far is on disk, or has failed."""
        while self._scheduled or self._commit is not None:
            await (asyncio.wait([self._commit]) if self._commit is not None else asyncio.sleep(0))

    async def begun(self) -> None:
        """Return when everything put so far is being written, unless an earlier commit still is.

        For callers that are about to block the event loop, which would leave the disk idle.
        """
        while self._rows and not self._writing and self.error is None:
            await (asyncio.wait([self._commit]) if self._commit is not None else asyncio.sleep(0))

    def close(self) -> None:
        self._thread.shutdown()

    def _start(self) -> None:
        self._scheduled = False
        rows, then, self._then, self._rows = self._rows, self._then, [], {}
        self._began, self._writing = time.monotonic(), True
        self._commit = asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows, then)
        self._commit.add_done_callback(lambda commit: self._committed(commit, then))

    def _committed(self, commit: asyncio.Future[_Refused], then: list[_Waiting]) -> None:
        self._commit = None
        self._writing, self._quick = False, time.monotonic() - self._began <= SLOW
        self.error = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        if self.error is not None:
            then, self._then, self._rows = then + self._then, [], {}
        else:
            # In the thread, not by a timer of the loop: whose clock may be a virtual one.
            self._commit = asyncio.get_running_loop().run_in_executor(self._thread, time.sleep, GATHER)
            self._commit.add_done_callback(self._gathered)
        refused = commit.result() if self.error is None else {}
        for statement, place, callback in then:
            callback(refused.get((statement, place)) if refused else self.error)

    def _gathered(self, pause: asyncio.Future[None]) -> None:
        self._commit = None
        if self._rows and not pause.cancelled():
            self._start()

    def _write(self, rows: _Rows, then: list[_Waiting]) -> _Refused:
        rows[Insert.CHANGE] = _changes(rows)
        store, db, pruned = self.ledger.blobs, self.ledger.writer, dict[str, str]()
        try:
            if store is not None:
                pruned = store.prunable(db, [row[0] for row in rows.get(Insert.PRUNED, ())])
                rows[Insert.BLOB], rows[Insert.STORED] = store.written(rows.get(Insert.BLOB, []))
            try:
                refused = self._transaction(rows, None)
            except CONTENT:
                alone = {(statement, place) for statement, place, _ in then if statement in ALONE}
                refused = self._transaction(rows, alone)
            if store is not None:
                store.settle(db, [row[0] for row in rows[Insert.STORED]], pruned)
            return refused
        except UNREADABLE as error:
            raise explain(error, self.ledger.path) from error

    def _transaction(self, rows: _Rows, expendable: set[tuple[Insert, int]] | None) -> _Refused:
        """Commit all rows together or, where some are expendable, all that can be written."""
        db, refused = self.ledger.writer, {}
        try:
            db.execute("BEGIN IMMEDIATE")
            for statement in _ORDER:
                if statement not in rows:
                    continue
                if expendable is None:
                    db.executemany(statement.value, rows[statement])
                    continue
                for place, row in enumerate(rows[statement]):
                    try:
                        db.execute(statement.value, row)
                    except CONTENT as error:
                        reason = f"{type(error).__name__}: {words(error)}"
                        refusal = RowRefused(f"{self.ledger.path} cannot hold a row of this run ({reason})")
                        if (statement, place) not in expendable:
                            raise refusal from error
                        refused[statement, place] = refusal
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return refused


#: Where the rows of a statement have the run, and the trial where they have one.
_RUN_AND_TRIAL = {
    Insert.ASKED: (0, 1), Insert.TOLD: (5, 6), Insert.AMENDED: (2, 3), Insert.EVALUATION: (0, None),
    Insert.SHOWN: (0, None), Insert.FEEDBACK: (0, 1),
    Insert.BATCH: (1, None), Insert.NOTE: (0, None), Insert.SUMMARY: (0, None), Insert.RUN: (4, None),
}  # fmt: skip


def _changes(rows: _Rows) -> list[tuple[Any, ...]]:
    """The rows that say, for each run, what a commit changes."""
    trials: dict[int, set[int]] = {}
    for statement, (run, trial) in _RUN_AND_TRIAL.items():
        for row in rows.get(statement, ()):
            numbers = trials.setdefault(row[run], set())
            if trial is not None:
                numbers.add(row[trial])
    cells, batches = rows.get(Insert.EVALUATION, ()), rows.get(Insert.BATCH, ())
    now = time.time()
    return [
        (
            run,
            now,
            encode(sorted(numbers)),
            encode([row[0] for row in batches if row[1] == run]),
            encode([(row[1], row[2]) for row in cells if row[0] == run]),
        )
        for run, numbers in trials.items()
        if run is not None
    ]


_Rows: TypeAlias = dict[Insert, list[tuple[Any, ...]]]
#: Who waits for which row: the statement, the row's place among those of the statement, the callback.
_Waiting: TypeAlias = tuple[Insert, int, Then]
_Refused: TypeAlias = dict[tuple[Insert, int], RowRefused]
