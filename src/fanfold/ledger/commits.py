"""Grouped durable writes: what is put while one commit is under way goes out together in the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, TypeAlias

from fanfold.ledger.schema import UNREADABLE, explain
from fanfold.ledger.store import Ledger

#: Called in the loop's thread once a row is safe (None), or with what kept it from being written.
Then: TypeAlias = Callable[[BaseException | None], None]


class Insert(Enum):
    """Every statement a run writes, in the order in which those of one commit are executed."""

    BLOB = "INSERT OR IGNORE INTO blob (digest, data) VALUES (?, ?)"
    ASKED = "INSERT INTO trial (run, number, candidate, asked_after, origin) VALUES (?, ?, ?, ?, ?)"
    BATCH = "INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    BATCH_ITEM = "INSERT OR REPLACE INTO batch_item VALUES (?, ?, ?)"
    OWED = "INSERT OR REPLACE INTO owed VALUES (?, ?, ?)"
    PAYMENT = "INSERT INTO payment VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    CALL = "INSERT OR REPLACE INTO call VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    EVALUATION = "INSERT OR REPLACE INTO evaluation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    TOLD = "UPDATE trial SET told = ?, score = ?, dropped = ?, evaluations = ?, cost = ? WHERE run = ? AND number = ?"
    SNAPSHOT = "INSERT OR REPLACE INTO snapshot (run, told, asked, state) VALUES (?, ?, ?, ?)"
    DESK = "INSERT OR REPLACE INTO desk VALUES (?, ?)"
    SUMMARY = "INSERT OR REPLACE INTO summary VALUES (?, ?)"
    RUN = "UPDATE run SET updated = ?, elapsed = ?, status = ?, reason = ? WHERE id = ?"


#: Seconds between two commits in which rows gather: a commit costs as much CPU as writing dozens of rows.
GATHER = 0.002


class Commits:
    """Writes rows in groups, so that each commit is as large as the disk is slow.

    One thread commits; everything else belongs to the event loop that puts.  The first commit that fails is the last:
    its rows and all later ones fail with its error, so that the file never has a gap, and `failed` is called once.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.failed: Callable[[BaseException], None] = lambda error: None
        self._error: BaseException | None = None
        self._rows: dict[Insert, list[tuple[Any, ...]]] = {}
        self._then: list[Then] = []
        self._commit: asyncio.Future[None] | None = None
        self._scheduled = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fanfold-ledger")

    def put(self, statement: Insert, row: tuple[Any, ...], then: Then | None = None) -> None:
        """Write a row with the next commit; `then` is called when that is over."""
        if self._error is not None:
            if then is not None:
                asyncio.get_running_loop().call_soon(then, self._error)
            return
        self._rows.setdefault(statement, []).append(row)
        if then is not None:
            self._then.append(then)
        if self._commit is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    async def safe(self, statement: Insert, row: tuple[Any, ...]) -> None:
        """Write a row and return when it is on disk."""
        landed = asyncio.get_running_loop().create_future()

        def then(error: BaseException | None) -> None:
            if not landed.done():
                landed.set_result(None) if error is None else landed.set_exception(error)

        self.put(statement, row, then)
        await landed

    async def flush(self) -> None:
        """Return when everything put so far is on disk, or has failed."""
        while self._scheduled or self._commit is not None:
            await (asyncio.wait([self._commit]) if self._commit is not None else asyncio.sleep(0))

    def close(self) -> None:
        self._thread.shutdown()

    def _start(self) -> None:
        self._scheduled = False
        rows = [(statement.value, self._rows[statement]) for statement in Insert if statement in self._rows]
        then, self._then, self._rows = self._then, [], {}
        self._commit = asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)
        self._commit.add_done_callback(lambda commit: self._committed(commit, then))

    def _committed(self, commit: asyncio.Future[None], then: list[Then]) -> None:
        self._commit = None
        self._error = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        if self._error is not None:
            then, self._then, self._rows = then + self._then, [], {}
            self.failed(self._error)
        else:
            # In the thread, not by a timer of the loop: whose clock may be a virtual one.
            self._commit = asyncio.get_running_loop().run_in_executor(self._thread, time.sleep, GATHER)
            self._commit.add_done_callback(self._gathered)
        for callback in then:
            callback(self._error)

    def _gathered(self, pause: asyncio.Future[None]) -> None:
        self._commit = None
        if self._rows and not pause.cancelled():
            self._start()

    def _write(self, rows: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
        db = self.ledger.writer
        try:
            db.execute("BEGIN IMMEDIATE")
            for sql, batch in rows:
                db.executemany(sql, batch)
            db.execute("COMMIT")
        except UNREADABLE as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise explain(error, self.ledger.path) from error
