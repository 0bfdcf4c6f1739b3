"""The run file: which runs it holds, their trials, evaluations and blobs."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import sqlite3
import struct
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from fanfold.encoding import Encoded, decode, words
from fanfold.errors import LedgerError, nearest
from fanfold.ledger import queries
from fanfold.ledger.blobs import BlobReader, RunBlobs
from fanfold.ledger.records import RunHead, RunInfo
from fanfold.ledger.schema import UNREADABLE, connect, disconnect, explain
from fanfold.ledger.verify import LATEST, RUN_NAME, STATUSES, STEPS, Patience, odd
from fanfold.stores import Store
from fanfold.types import Case, Failed, Ok, Outcome, Result, Trial

#: Stands for an evaluation whose row cannot be read.
UNREADABLE_ROW = Failed("bad-data", "the row of this evaluation cannot be read: a resume evaluates it again")

#: The name of the run that a run belongs to.
OWNER = "CASE WHEN json_valid(meta) THEN json_extract(meta, '$.belongs_to') END"
_RUN = "SELECT id, name, created, updated, elapsed, status, reason, identity, meta FROM run"


#: The files of temporary ledgers in this process.
_TEMPORARY: set[Path] = set()
#: In a forked child, what threads of its parent read with: closing it may wait for a lock that such a thread held.
_LEFT: list[sqlite3.Connection] = []


class ReadConnection:
    """A connection for reading, which ends with the last who holds it."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.db, self._process = connect(path, readonly=True), os.getpid()
        self.patience = Patience(path, seconds)
        self.db.set_progress_handler(self.patience, STEPS)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            if self._process == os.getpid():
                self.close()
            else:
                _LEFT.append(self.db)

    def close(self) -> None:
        disconnect(self.db)


class Ledger:
    """One SQLite file that many runs share.  Without a path it is a private file that goes away with this object.

    With `patience`, a statement that reads for more seconds is ended, and a LedgerError says so.
    """

    def __init__(self, path: str | Path | None = None, *, readonly: bool = False, patience: float = math.inf) -> None:
        self._temporary: weakref.finalize[Any, Any] | None = None
        if path is None:
            folder = tempfile.mkdtemp(prefix="fanfold-")
            # Not a TemporaryDirectory, which warns if the garbage collector comes to it before it comes to the ledger.
            self._temporary = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            path = Path(folder, "ledger.db")
        self.path = Path(path)
        if not readonly and not self.path.parent.is_dir():
            raise LedgerError(f"the folder of {self.path} does not exist: create it, or give another --ledger")
        if self.path.is_dir():
            raise LedgerError(f"{self.path} is a folder: give the path of a file, such as {self.path / 'fanfold.db'}")
        if self._temporary is not None:
            _TEMPORARY.add(self.path)
        # Also for another object on the file of a temporary one: nothing of it outlives this process.
        self._writer = None if readonly else connect(self.path, durable=self.path not in _TEMPORARY)
        self._patience = patience
        #: The connection for reading of each thread; and all of them, as long as their threads last.
        self._own = threading.local()
        self._readers: weakref.WeakSet[ReadConnection] = weakref.WeakSet()
        self._opening, self._closed = threading.Lock(), False
        self._reader()  # what cannot be read is refused now
        self._log = self.path.with_name(f"{self.path.name}-wal")
        self._remarked = False
        #: Where the blobs of the run that writes go; and stores that were read from, by address.
        self.blobs: RunBlobs | None = None
        self.stores: dict[str, Store] = {}

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        with self._opening:
            self._closed, readers = True, list(self._readers)
        for reader in readers:
            reader.close()
        if self._writer is not None:
            disconnect(self._writer)
        if self._temporary is not None:
            self._temporary()
            _TEMPORARY.discard(self.path)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def remark(self) -> str | None:
        """A warning, given once, about a write-ahead log that grows because it cannot be cleared, or about a store."""
        if self.blobs is not None and (news := self.blobs.remark()) is not None:
            return news
        log = self._log
        try:
            size = 0 if self._remarked else log.stat().st_size
        except OSError:
            return None
        if size <= MOST_LOG:
            return None
        self._remarked = True
        return (
            f"{log} has grown to {size / 2**20:.0f} MiB: a program that reads the ledger, and pauses, keeps it from "
            "being cleared; end that program (an open `sqlite3`, a notebook, a paused export), or the disk fills up"
        )

    @property
    def temporary(self) -> bool:
        return self._temporary is not None

    @property
    def writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise LedgerError(f"{self.path} was opened for reading only")
        return self._writer

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a query.  Readers never block a run that is writing."""
        reader = self._reader()
        try:
            reader.patience.renew()
            # Not `yield from`: that would close an abandoned cursor, which fails once the file is closed.
            for row in reader.db.execute(sql, parameters):  # noqa: UP028
                yield row
        except UNREADABLE as error:
            if reader.patience.late:
                raise LedgerError(f"{self.path} took longer than {reader.patience.seconds:g} s to answer") from error
            raise explain(error, self.path) from error

    def _reader(self) -> ReadConnection:
        """The connection of this thread: on one that others share, it would miss what was written since they began."""
        reader: ReadConnection | None = getattr(self._own, "reader", None)
        if reader is None:
            with self._opening:
                if self._closed:
                    raise LedgerError(f"{self.path} was closed: open it again")
                reader = self._own.reader = ReadConnection(self.path, self._patience)
                self._readers.add(reader)
        return reader

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The first row of a query that must have one."""
        for row in self.read(sql, parameters):
            return row
        raise explain(LookupError("a row is missing"), self.path)

    def value(self, text: Any, kind: Any = Any, *, blobs: bool = True, what: str = "a value") -> Any:
        """The value of a JSON text of this file, checked against a kind; an error calls it `what`."""
        try:
            if text.count("[") + text.count("{") > MOST_DEEP:
                _check_depth(text)
            value = decode(text, self.blob if blobs else None)
            return value if kind is Any else msgspec.convert(value, kind)
        except (msgspec.DecodeError, TypeError, AttributeError, UnicodeError, RecursionError) as error:
            raise odd(self.path, what, str(error)) from error

    @property
    def data_version(self) -> int:
        """Another number whenever another connection has written to the file since; costs next to nothing."""
        return int(self.one("PRAGMA data_version")[0])

    def run_heads(self) -> list[RunHead]:
        """Every run with what tells whether it has changed, newest first; quick, however much they hold."""
        sql = (
            f"SELECT id, name, {OWNER}, created, updated, status, (SELECT max(seq) FROM change WHERE run = run.id) "
            "FROM run ORDER BY id DESC"
        )
        rows = list(self.read(sql))
        sound = (isinstance(row[1], str) and RUN_NAME.fullmatch(row[1]) and isinstance(row[3], float) for row in rows)
        return [RunHead(*row) for row, fine in zip(rows, sound) if fine]

    def run_rows(self, before: int | None = None, count: int = 200) -> list[tuple[RunInfo, list[RunInfo]]]:
        """A page of runs, newest first: those with a smaller id than `before`, each with the runs that belong to it."""
        whole = f"{_RUN} WHERE id < ? AND {OWNER} IS NULL ORDER BY id DESC LIMIT ?"
        rows = list(self.read(whole, (2**63 - 1 if before is None else before, count)))
        part = f"{_RUN} WHERE name > ?1 || '.' AND name < ?1 || '/' AND {OWNER} = ?1 ORDER BY id"
        return [(self._info(row), [self._info(helper) for helper in list(self.read(part, (row[1],)))]) for row in rows]

    def runs(self, before: int | None = None, count: int = -1) -> list[RunInfo]:
        """Every run, newest first; or so many of those with a smaller id than `before`."""
        sql = f"{_RUN} WHERE id < ? ORDER BY {'created DESC, ' if count < 0 else ''}id DESC LIMIT ?"
        rows = list(self.read(sql, (2**63 - 1 if before is None else before, count)))
        return [self._info(row) for row in rows]

    def names(self, start: str = "", most: int = 1000) -> list[str]:
        """The names of runs that begin so, newest first; quick, however much they hold."""
        # No name has a character after "z".
        sql = "SELECT name FROM run WHERE name >= ? AND name < ? ORDER BY id DESC LIMIT ?"
        return [str(name) for (name,) in self.read(sql, (start, f"{start}{{", most))]

    def run_count(self) -> int:
        """How many runs there are, without those that belong to another one."""
        return int(self.one(f"SELECT count(*) FROM run WHERE {OWNER} IS NULL")[0])

    def run(self, name: str) -> RunInfo:
        """The run of that name (or the only one whose name starts so)."""
        return self.info(self.named(name))

    def named(self, name: str) -> int:
        """The id of the run of that name (or of the only one whose name starts so)."""
        if (exact := self.find(name)) is not None:
            return exact
        # No name has a character after "z".
        rows = list(self.read("SELECT id, name FROM run WHERE name >= ? AND name < ?", (name, f"{name}{{")))
        if len(rows) != 1:
            if rows:
                several = ", ".join(sorted(name for _, name in rows))
                raise LedgerError(f"several runs in {self.path} begin with {name!r}: {several}")
            raise LedgerError(f"{name!r} is not in {self.path}{nearest(name, self.names(), 8)}")
        return int(rows[0][0])

    def last(self) -> int:
        """The id of the run called `last`, or else of the one updated last; runs that belong to another come second."""
        sql = f"SELECT id FROM run ORDER BY name = 'last' DESC, {OWNER} IS NOT NULL, updated DESC, id DESC LIMIT 1"
        for (id,) in self.read(sql):
            return int(id)
        raise LedgerError(f"{self.path} has no runs yet: start one with `fanfold run`")

    def find(self, name: str) -> int | None:
        """The id of the run of exactly that name."""
        return next((int(id) for (id,) in self.read("SELECT id FROM run WHERE name = ?", (name,))), None)

    def identity(self, run: int) -> Any:
        """What must stay the same for a run to be resumed."""
        return self.value(self.one("SELECT identity FROM run WHERE id = ?", (run,))[0], what=f"run {run}")

    def info(self, run: int) -> RunInfo:
        """The run of that id."""
        return self._info(self.one(f"{_RUN} WHERE id = ?", (run,)))

    def _info(self, row: tuple[Any, ...]) -> RunInfo:
        id, name, created, updated, elapsed, status, reason, identity, meta = row
        counted = next(self.read(queries.COUNTED, (id,)), None) if status != "running" else None
        evaluations, failures, cost, trials, best = counted or self.one(queries.COUNTS, (id,))
        (unpriced,) = self.one(queries.UNPRICED, (id,))
        what = f"run {id}"
        if not isinstance(name, str) or RUN_NAME.fullmatch(name) is None:
            raise odd(self.path, what, "its name is not one a run can have")
        if status not in STATUSES or not isinstance(reason, str | None):
            raise odd(self.path, what, "its status is not one a run can have")
        times = all(isinstance(time, int | float) and 0 <= time <= LATEST for time in (created, updated, elapsed))
        if not times or not isinstance(best, int | float | None):
            raise odd(self.path, what, "a value of the wrong type or size")
        settings = self.value(identity, dict[str, Any], what=what), self.value(meta, dict[str, Any], what=what)
        head = (id, name, created, updated, elapsed, status, reason, *settings)
        return RunInfo(*head, trials, evaluations, failures, cost, best, unpriced)

    def cases(self, run: int) -> list[Case]:
        rows = self.read("SELECT id, data, seed FROM run_case WHERE run = ? ORDER BY position", (run,))
        return [
            Case(id, None if data is None else self.value(data, what=f"case {id} of run {run}"), seed)
            for id, data, seed in rows
        ]

    def results(self, run: int) -> Iterator[Result[Any]]:
        """The told trials of a run in the order of telling, candidates as plain JSON-like values."""
        cases = self.cases(run)
        told = self.read(
            "SELECT number, candidate, score, dropped, origin FROM trial WHERE run = ? AND told IS NOT NULL "
            "ORDER BY told",
            (run,),
        )
        for number, candidate, score, dropped, origin in list(told):
            recorded = self.outcomes(run, number)
            if not recorded.keys() <= set(range(len(cases))):
                raise odd(self.path, f"trial {number} of run {run}", "it has evaluations of cases that the run has not")
            outcomes = {cases[position].id: outcome for position, outcome in recorded.items()}
            proposed = self.value(candidate, what=f"trial {number} of run {run}")
            trial = Trial(number, proposed, self.origin(origin))
            yield Result(trial, score if isinstance(score, float) else None, outcomes, dropped and words(dropped))

    def outcomes(self, run: int, trial: int) -> dict[int, Outcome]:
        """The recorded outcomes of one trial, by the position of the case."""
        rows = self.read(f"{_OUTCOME} WHERE run = ? AND trial = ? ORDER BY position", (run, trial))
        return {position: self._outcome(*rest) for position, *rest in rows}

    def lookup(self, key: bytes, run: int | None) -> Ok | None:
        """A finished evaluation with this key, in one run or (None) in any; its data `Encoded`."""
        clause, parameters = ("", (key,)) if run is None else (" AND run = ?", (key, run))
        for _, *row in self.read(f"{_OUTCOME} WHERE key = ? AND failure IS NULL AND reused = 0{clause}", parameters):
            outcome = self._outcome(*row)
            if isinstance(outcome, Ok):
                return outcome if outcome.data is None else replace(outcome, data=Encoded(row[2].decode()))
        return None

    def origin(self, text: str | None) -> Any:
        """Where a trial's candidate came from, as its strategy said."""
        return None if text is None else self.value(text)

    def summary(self, run: int, kind: Any = Any) -> Any:
        """A study's conclusion about a run, as JSON-like values or as a kind; None if there is none."""
        for (text,) in self.read("SELECT text FROM summary WHERE run = ?", (run,)):
            return self.value(text, kind, what=f"the summary of run {run}")
        return None

    def reply(self, key: bytes) -> str | None:
        """The recorded reply to the model call of that key (JSON)."""
        return next((text for (text,) in self.read("SELECT reply FROM call WHERE key = ?", (key,))), None)

    def has_replies(self) -> bool:
        return bool(list(self.read("SELECT 1 FROM call LIMIT 1")))

    def learnt(self, model: str) -> dict[str, str]:
        """What runs have learnt of a model."""
        return dict(self.read("SELECT name, value FROM learnt WHERE model = ?", (model,)))

    @property
    def blob(self) -> BlobReader:
        """Gives the bytes of a blob by its digest."""
        return BlobReader(self)

    def blob_size(self, digest: str) -> int | None:
        """The bytes of a blob; None where there is none, or it was pruned."""
        return self.blob.size(digest)

    def settle(self, shrinks: bool) -> None:
        """Bring its log into the file, which people copy alone; if that shrinks, free pages go back to the disk."""
        shrink = "PRAGMA incremental_vacuum;" if shrinks else ""  # a file of an older version keeps its pages
        with contextlib.suppress(sqlite3.Error):  # another program writes: next time
            self.writer.executescript(f"{shrink} PRAGMA wal_checkpoint(PASSIVE)")  # `execute` would free one page

    def _outcome(self, failure: Any, score: Any, data: Any, cost: Any, message: Any, detail: Any) -> Outcome:
        paid = cost if type(cost) is float else _cost(cost)
        if paid is None or (failure is None and not (isinstance(score, float) and math.isfinite(score))):
            return UNREADABLE_ROW
        if failure is not None:
            return Failed(text(failure), text(message), text(detail), paid)
        try:
            return Ok(score, None if data is None else decode(data, self.blob), paid)
        except (msgspec.DecodeError, TypeError, UnicodeDecodeError, RecursionError):
            return UNREADABLE_ROW


#: As blobs, because SQLite may hold texts that are not UTF-8, and one of them would end the whole query.
_OUTCOME = (
    "SELECT position, CAST(failure AS BLOB), score, CAST(data AS BLOB), cost, CAST(message AS BLOB), "
    "CAST(detail AS BLOB) FROM evaluation"
)


def text(value: bytes | None) -> str:
    """A text column that was read as a blob."""
    return "" if value is None else value.decode(errors="replace")


def _cost(value: Any) -> float | None:
    """A recorded cost; None where it is not one.  A number of numpy was once kept as its bytes."""
    if isinstance(value, float):
        return value
    codes = {4: ("<f", "<i"), 8: ("<d", "<q")}.get(len(value)) if isinstance(value, bytes) else None
    if codes is None:
        return None
    as_float, as_int = (struct.unpack(code, value)[0] for code in codes)
    # A whole number read as a float is absurdly small.
    cost = float(as_int) if abs(as_float) < 1e-30 else float(as_float)
    return cost if math.isfinite(cost) else None


#: Bytes from which a write-ahead log is too large; it is normally cleared every 4 MiB.
MOST_LOG = 256 * 2**20
#: How deep a JSON text of a ledger may be nested: what is read can then be shown and written, too.
MOST_DEEP = 500


def _check_depth(text: str) -> None:
    depth = 0
    for mark in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text, re.DOTALL):
        depth += (mark[0] in "[{") - (mark[0] in "]}")
        if depth > MOST_DEEP:
            raise RecursionError(f"nested more than {MOST_DEEP} deep")
