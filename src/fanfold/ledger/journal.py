"""The writing side of one run: what is asked, evaluated and told goes to disk in groups, and comes back on resume."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fanfold.encoding import BLOB_KEY, blobs_in, encode
from fanfold.errors import ReplayDivergence
from fanfold.ledger.schema import explain
from fanfold.ledger.store import Ledger
from fanfold.types import Failed, Outcome, Result, Trial

# In the order in which they are executed within one commit.
_BLOB = "INSERT OR IGNORE INTO blob (digest, data) VALUES (?, ?)"
_ASKED = "INSERT INTO trial (run, number, candidate, asked_after) VALUES (?, ?, ?, ?)"
_EVALUATION = "INSERT OR REPLACE INTO evaluation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TOLD = "UPDATE trial SET told = ?, score = ?, dropped = ?, evaluations = ?, cost = ? WHERE run = ? AND number = ?"
_SNAPSHOT = "INSERT OR REPLACE INTO snapshot (run, told, asked, state) VALUES (?, ?, ?, ?)"
_RUN = "UPDATE run SET updated = ?, elapsed = ?, status = ?, reason = ? WHERE id = ?"
_ORDER = (_BLOB, _ASKED, _EVALUATION, _TOLD, _SNAPSHOT, _RUN)


class RunJournal:
    """Writes one run.  A token given with an evaluation comes back through `durable` once it is safely on disk.

    Rows queue up while a commit is under way and go out together in the next, so each commit is as large as the disk
    is slow.  One thread commits; everything else belongs to the event loop.  What the run already holds is checked
    instead of written again: asking something else than recorded raises ReplayDivergence.
    """

    def __init__(self, ledger: Ledger, run: int) -> None:
        self.ledger = ledger
        self.run = run
        self._rows: dict[str, list[tuple[Any, ...]]] = {sql: [] for sql in _ORDER}
        self._tokens: list[Any] = []
        self._commit: asyncio.Future[None] | None = None
        self._scheduled = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fanfold-ledger")
        self._durable: Callable[[list[Any]], None] = lambda tokens: None
        self._failed: Callable[[BaseException], None] = lambda error: None
        self.recorded = self._count("SELECT count(*) FROM trial WHERE run = ?")
        self.recorded_told = self._count("SELECT count(*) FROM trial WHERE run = ? AND told IS NOT NULL")
        self.elapsed = float(next(ledger.read("SELECT elapsed FROM run WHERE id = ?", (run,)))[0])

    def on(self, durable: Callable[[list[Any]], None], failed: Callable[[BaseException], None]) -> None:
        """Who is called in the loop's thread when tokens are safe, and when the disk refused."""
        self._durable, self._failed = durable, failed

    # -- writing -----------------------------------------------------------------------------------------------------

    def asked(self, trial: Trial[Any], text: str, asked_after: int) -> None:
        if trial.number < self.recorded:
            self._check_asked(trial.number, text)
        else:
            self._keep_blobs(trial.candidate, text)
            self._put(_ASKED, (self.run, trial.number, text, asked_after))

    def told(self, order: int, result: Result[Any]) -> None:
        if order < self.recorded_told:
            self._check_told(order, result)
        else:
            row = (order, result.score, result.dropped, len(result.outcomes), result.cost, self.run, result.number)
            self._put(_TOLD, row)

    def evaluated(
        self,
        trial: int,
        position: int,
        key: bytes,
        outcome: Outcome,
        times: tuple[float, float, int],
        reused: bool,
        token: Any,
    ) -> str | None:
        """Write one outcome; `token` comes back when it is durable.  Gives the JSON of its data.

        `times` are the start (seconds since the epoch), the duration, and the number of tries.
        """
        failure = score = data = message = detail = None
        if isinstance(outcome, Failed):
            failure, message, detail = outcome.kind, outcome.message, outcome.detail
        else:
            score = outcome.score
            if outcome.data is not None:
                data = encode(outcome.data, f"the data returned for trial {trial}")
                self._keep_blobs(outcome.data, data)
        head = (self.run, trial, position, key, failure, score, data, message, detail)
        self._tokens.append(token)
        self._put(_EVALUATION, (*head, outcome.cost, *times, int(reused)))
        return data

    def snapshot(self, told: int, asked: int, state: bytes) -> None:
        self._put(_SNAPSHOT, (self.run, told, asked, state))

    def status(self, status: str, reason: str | None, elapsed: float) -> None:
        self._put(_RUN, (time.time(), elapsed, status, reason, self.run))

    async def flush(self) -> None:
        """Return when everything put so far is on disk."""
        while self._scheduled or self._commit is not None:
            await (asyncio.wait([self._commit]) if self._commit is not None else asyncio.sleep(0))

    def close(self) -> None:
        self._thread.shutdown()

    def _keep_blobs(self, value: Any, text: str) -> None:
        if f'"{BLOB_KEY}"' in text:
            for blob in blobs_in(value):
                self._put(_BLOB, (blob.digest, blob.read()))

    def _put(self, sql: str, row: tuple[Any, ...]) -> None:
        self._rows[sql].append(row)
        if self._commit is None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        rows = [(sql, batch) for sql, batch in self._rows.items() if batch]
        tokens, self._tokens = self._tokens, []
        self._rows = {sql: [] for sql in _ORDER}
        self._commit = asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)
        self._commit.add_done_callback(lambda commit: self._committed(commit, tokens))

    def _committed(self, commit: asyncio.Future[None], tokens: list[Any]) -> None:
        self._commit = None
        error = asyncio.CancelledError() if commit.cancelled() else commit.exception()
        if error is not None:
            self._rows = {sql: [] for sql in _ORDER}  # what the disk refused is not tried again and was not told
            self._failed(error)
            return
        if any(self._rows.values()):
            self._start()
        if tokens:
            self._durable(tokens)

    def _write(self, rows: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
        db = self.ledger.writer
        try:
            db.execute("BEGIN IMMEDIATE")
            for sql, batch in rows:
                db.executemany(sql, batch)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise explain(error, self.ledger.path) from error

    # -- what the run already holds ----------------------------------------------------------------------------------

    def recall(self, trial: int) -> Mapping[int, Outcome]:
        """The outcomes this run has for a trial, by position of the case."""
        return self.ledger.outcomes(self.run, trial) if trial < self.recorded else {}

    def script(self, after: int = 0) -> array[int]:
        """The numbers of the trials told so far, in order, from the `after`-th on."""
        sql = "SELECT number FROM trial WHERE run = ? AND told >= ? ORDER BY told"
        return array("q", (number for (number,) in self.ledger.read(sql, (self.run, after))))

    def last_snapshot(self) -> tuple[int, int, bytes] | None:
        sql = "SELECT told, asked, state FROM snapshot WHERE run = ?"
        return next(((told, asked, bytes(state)) for told, asked, state in self.ledger.read(sql, (self.run,))), None)

    def told_rows(self, before: int) -> Iterator[tuple[Any, ...]]:
        """Number, candidate, score and dropped of the trials told before the `before`-th, in order."""
        sql = "SELECT number, candidate, score, dropped FROM trial WHERE run = ? AND told < ? ORDER BY told"
        return self.ledger.read(sql, (self.run, before))

    def open_rows(self, told: int, asked: int) -> list[tuple[int, str]]:
        """Number and candidate of the trials that were open when `asked` had been asked and `told` told."""
        sql = (
            "SELECT number, candidate FROM trial "
            "WHERE run = ? AND number < ? AND (told IS NULL OR told >= ?) ORDER BY number"
        )
        return [(number, text) for number, text in self.ledger.read(sql, (self.run, asked, told))]

    def _check_asked(self, number: int, text: str) -> None:
        sql = "SELECT candidate FROM trial WHERE run = ? AND number = ?"
        recorded = next(self.ledger.read(sql, (self.run, number)))[0]
        if recorded != text:
            raise ReplayDivergence(
                f"trial {number} of this run was {_short(recorded)}, but the strategy now asks {_short(text)}: its "
                "code, its settings or a package it uses has changed. Undo that, or start a new run under another name"
            )

    def _check_told(self, order: int, result: Result[Any]) -> None:
        sql = "SELECT score, dropped FROM trial WHERE run = ? AND number = ?"
        score, dropped = next(self.ledger.read(sql, (self.run, result.number)))
        if (score, dropped) != (result.score, result.dropped):
            raise ReplayDivergence(
                f"trial {result.number} of this run scored {score} ({dropped or 'complete'}), but now {result.score} "
                f"({result.dropped or 'complete'}) from the same outcomes: the schedule or the fold has changed. "
                "Undo the change, or start a new run under another name"
            )

    def _count(self, sql: str) -> int:
        return int(next(self.ledger.read(sql, (self.run,)))[0])


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
