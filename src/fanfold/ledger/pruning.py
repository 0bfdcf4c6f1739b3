"""Which blobs nothing needs any more: of a run as it goes, and of runs that are over."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fanfold.blobs import folder_of
from fanfold.encoding import MARK, decode, encode, references
from fanfold.errors import FanfoldError
from fanfold.ledger.blobs import orphans
from fanfold.ledger.lock import under_way
from fanfold.ledger.schema import UNREADABLE, explain
from fanfold.ledger.store import Ledger
from fanfold.types import Ok, Outcome, Result


class Pruner:
    """Follows a run and finds the blobs that it no longer needs.

    These stay: the blobs of open trials, of the best `keep` complete trials, and of the trials that the strategy
    `needs` (None: of all).  Of a told trial, data under the keys in `passing` go, because only its next case needed
    them; where outcomes continue each other, so does everything but the last outcome.  A failed evaluation may be made
    again, so a trial with a failure keeps everything.
    """

    def __init__(self, evaluate: Any, needs: Callable[[], Iterable[int] | None], keep: int) -> None:
        self._passing: Collection[str] = getattr(evaluate, "passing", ())
        self._continues = bool(getattr(evaluate, "continues", False))
        self._needs = needs
        self._keep = keep
        self._best: list[tuple[float, int]] = []
        self._open: dict[int, set[str]] = {}
        self._told: dict[int, set[str]] = {}
        self._forever: set[str] = set()
        self._loose: set[str] = set()
        #: What was pruned and not put again since.
        self.gone: set[str] = set()
        self._counts = (0, 0)
        self._news = False

    def asked(self, number: int, candidate: str) -> None:
        """A trial was asked, with this candidate as JSON."""
        self._counts = (number + 1, self._counts[1])
        self._open[number] = references(candidate)

    def evaluated(self, number: int, data: str) -> None:
        """An open trial has an outcome with this data as JSON."""
        if number in self._open:
            self._open[number] |= references(data)

    def recalled(self, number: int, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Ok) and outcome.data is not None:
                self.evaluated(number, encode(outcome.data))

    def told(self, order: int, result: Result[Any]) -> None:
        self._counts, self._news = (self._counts[0], order + 1), True
        digests = self._open.pop(result.number, set())
        if result.failures:
            self._forever |= digests
            return
        self._loose |= digests
        outcomes = [outcome.data for outcome in result.outcomes.values() if isinstance(outcome, Ok)]
        stays: set[str] = set()
        for data in outcomes[-1:] if self._continues else outcomes:
            if isinstance(data, dict):
                data = {key: value for key, value in data.items() if key not in self._passing}
            stays |= references(encode(data))
        self._told[result.number] = stays
        if result.complete and result.score is not None:
            insort(self._best, (-result.score, result.number))
            del self._best[self._keep :]

    def unneeded(self, recorded: int, recorded_told: int) -> list[str]:
        """The digests that can go since the last time; none while a resume has not caught up with its record."""
        asked, told = self._counts
        if not self._news or asked < recorded or told < recorded_told:
            return []
        self._news = False
        needed = self._needs()
        numbers = set(self._told) if needed is None else {*needed, *(number for _, number in self._best)}
        self._told = {number: stays for number, stays in self._told.items() if number in numbers}
        digests = self._loose.difference(self._forever, *self._open.values(), *self._told.values())
        self._loose -= digests
        self.gone |= digests
        return sorted(digests)


# -- runs that are over ------------------------------------------------------------------------------------------------

#: The columns of a run's rows that may name blobs.
_TEXTS = (
    ("run_case", "data"),
    ("trial", "candidate"),
    ("trial", "origin"),
    ("evaluation", "data"),
)
#: What names blobs by their digests alone: a study's conclusion, and the saved state of a strategy.
_BARE = (("summary", "text"), ("snapshot", "state"))
#: Trials that a resume would continue, or try again.
_UNSETTLED = (
    "SELECT number FROM trial WHERE run = ?1 AND told IS NULL "
    "UNION SELECT trial FROM evaluation WHERE run = ?1 AND failure IS NOT NULL"
)
#: How rows are read: inside a transaction, or before one.
Read: TypeAlias = Callable[[str, Sequence[Any]], Iterable[tuple[Any, ...]]]
_DIGEST = re.compile(rb"[0-9a-f]{40}")


@dataclass(frozen=True)
class Retention:
    """What stays of the blobs of a run that is over: as `Pruner` says, of its best `keep` trials and those needed.

    With `final` the run is never resumed: nothing stays for open or failed trials, or for the strategy.
    """

    keep: int
    needs: Collection[int] | None = ()
    passing: Collection[str] = ()
    continues: bool = False
    #: Digests that are needed besides: of candidates that would be asked next.
    also: frozenset[str] = frozenset()
    final: bool = False
    #: The run's last commit when this was found out; where there is another since, the run is left alone.
    commit: int | None = None

    def digests(self, read: Read, run: int) -> set[str]:
        """The digests that stay, of what the rows of a run name."""
        told = read("SELECT number, score, dropped FROM trial WHERE run = ? AND told IS NOT NULL", (run,))
        scores = {number: score if dropped is None else None for number, score, dropped in told}
        ranked = sorted((-score, number) for number, score in scores.items() if isinstance(score, float))
        best = {number for _, number in ranked[: self.keep]}
        last = scores.keys() if self.needs is None else best.union(self.needs)
        digests = _named(read, run, (("run_case", "data"), ("trial", "origin"))) | self.also
        digests |= _bare(read, run, _BARE[: 1 if self.final else None])
        whole = set() if self.final else {number for (number,) in read(_UNSETTLED, (run,))}
        for number in whole:
            digests |= _named(read, run, (("trial", "candidate"),), f" AND number = {number:d}")
            digests |= _named(read, run, (("evaluation", "data"),), f" AND trial = {number:d}")
        for number in last - whole:
            digests |= self._stay(read, run, number)
        return digests

    def _stay(self, read: Read, run: int, number: int) -> set[str]:
        sql = "SELECT data FROM evaluation WHERE run = ? AND trial = ? AND data IS NOT NULL ORDER BY position"
        texts = [text for (text,) in read(sql, (run, number))]
        digests: set[str] = set()
        for text in texts[-1:] if self.continues else texts:
            if self.passing and isinstance(data := decode(text), dict):
                text = encode({key: value for key, value in data.items() if key not in self.passing})
            digests |= references(text)
        return digests


def last_commit(read: Read, run: int) -> int | None:
    """The number of a run's last commit."""
    return next((seq for (seq,) in read("SELECT max(seq) FROM change WHERE run = ?", (run,))), None)


def digests_of(read: Read, run: int) -> set[str]:
    """The digests of all blobs that the rows of a run name."""
    return _named(read, run, _TEXTS) | _bare(read, run)


def _named(read: Read, run: int, places: Iterable[tuple[str, str]], clause: str = "") -> set[str]:
    digests: set[str] = set()
    for table, column in places:
        sql = f"SELECT CAST({column} AS BLOB) FROM {table} WHERE run = ? AND instr({column}, ?){clause}"
        for (text,) in read(sql, (run, MARK)):
            digests |= references(text.decode(errors="replace"))
    return digests


def _bare(read: Read, run: int, places: Iterable[tuple[str, str]] = _BARE) -> set[str]:
    digests: set[str] = set()
    for table, column in places:
        for (data,) in read(f"SELECT CAST({column} AS BLOB) FROM {table} WHERE run = ?", (run,)):
            digests |= {digest.decode() for digest in _DIGEST.findall(data)}
    return digests


@dataclass(frozen=True)
class Swept:
    """What pruning frees: blobs of runs, blobs that nothing names, replies of models; and bytes, also in stores."""

    blobs: int
    orphans: int
    blob_size: int
    stored_size: int
    replies: int
    reply_size: int

    @property
    def size(self) -> int:
        return self.blob_size + self.stored_size + self.reply_size


def sweep(
    ledger: Ledger,
    over: Mapping[int, Retention],
    *,
    replies: Collection[int] = (),
    final: bool = False,
    dry: bool = False,
) -> Swept:
    """Remove the blobs that no run needs: of those in `over` what their retention leaves out, of others nothing.

    Of the runs in `replies`, replies to the calls of finished evaluations go, too; with `final` also those that a
    resume, or a retry of failures, would ask for again.  Payments stay.  With `dry` nothing is removed.
    """
    db = ledger.writer
    try:
        db.execute("BEGIN IMMEDIATE")  # nobody adds a row that names a blob meanwhile
        over = {run: retention for run, retention in over.items() if last_commit(db.execute, run) == retention.commit}
        blobs = _BlobSweep(db, over)
        counts = _sweep_replies(db, replies, final) if replies else (0, 0)
        db.execute("ROLLBACK" if dry else "COMMIT")
    except UNREADABLE as error:
        raise explain(error, ledger.path) from error
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    lost, lost_size = blobs.empty_stores(ledger, dry)
    return Swept(blobs.pruned, blobs.orphans + lost, blobs.size, blobs.stored_size + lost_size, *counts)


class _BlobSweep:
    """The blobs that no run needs, removed from the file; and what can go from stores when that is certain."""

    def __init__(self, db: sqlite3.Connection, over: Mapping[int, Retention]) -> None:
        needed: set[str] = set()
        named: set[str] = set()
        for (run,) in db.execute("SELECT id FROM run").fetchall():
            everything = digests_of(db.execute, run)
            stays = over[run].digests(db.execute, run) if run in over else everything
            named |= everything
            needed |= stays
            if run in over:
                gone = [(digest, run) for digest in everything - stays]
                db.executemany("DELETE FROM blob_holder WHERE digest = ? AND run = ?", gone)
        inside = {digest: size for digest, size in db.execute("SELECT digest, length(data) FROM blob") if size}
        stored = {row[0]: row[1:] for row in db.execute("SELECT digest, store, name, size FROM stored_blob")}
        #: Where stores are, and what of them is not needed.
        self._stores = {place[0] for place in stored.values()} | set(_stores_of_runs(db))
        self._names = [place[:2] for digest, place in stored.items() if digest not in needed]
        gone_now = (inside.keys() | stored.keys()) - needed
        self.pruned, self.orphans = len(gone_now & named), len(gone_now - named)
        self.size = sum(size for digest, size in inside.items() if digest in gone_now)
        self.stored_size = sum(place[2] for digest, place in stored.items() if digest in gone_now)
        for table in ("blob", "stored_blob"):
            db.executemany(f"DELETE FROM {table} WHERE digest = ?", [(digest,) for digest in gone_now])
        # What a row names stays known as pruned.
        db.executemany("INSERT INTO blob VALUES (?, x'')", [(digest,) for digest in gone_now & named])
        db.executemany("DELETE FROM blob_holder WHERE digest = ?", [(digest,) for digest in gone_now - named])

    def empty_stores(self, ledger: Ledger, dry: bool) -> tuple[int, int]:
        """Delete what this ledger has put into stores and no longer names; how many of those nothing named, and bytes.

        A store that is away keeps it until the next time.
        """
        busy = under_way(ledger.path, (head.name for head in ledger.run_heads()))
        own, count, size = f"{folder_of(ledger.path)}/", 0, 0
        for address in sorted(self._stores):
            with contextlib.suppress(FanfoldError):
                store = ledger.blob.store(address)
                gone = {name for place, name in self._names if place == address and name.startswith(own)}
                lost = set() if busy else set(orphans(ledger, store)) - gone
                count, size = count + len(lost), size + sum(store.size(name) or 0 for name in lost)
                for name in () if dry else gone | lost:
                    store.delete(name)
        return count, size


def _stores_of_runs(db: sqlite3.Connection) -> Iterator[str]:
    """The stores that runs were started with: what they hold may be named by nobody any more."""
    sql = "SELECT DISTINCT CASE WHEN json_valid(meta) THEN json_extract(meta, '$.options.blobs') END FROM run"
    for (address,) in db.execute(sql):
        if isinstance(address, str):
            yield str(Path(address).expanduser().absolute()) if "://" not in address else address


def _sweep_replies(db: sqlite3.Connection, runs: Collection[int], final: bool) -> tuple[int, int]:
    """Which calls an evaluation made is known by the keys, 16 bytes each."""
    gone: set[bytes] = set()
    stay: set[bytes] = set()
    sql = (
        "SELECT c.run, c.keys, e.failure IS NULL AND t.told IS NOT NULL FROM cell_call c "
        "JOIN evaluation e ON e.run = c.run AND e.trial = c.trial AND e.position = c.position "
        "JOIN trial t ON t.run = c.run AND t.number = c.trial"
    )
    for run, keys, done in db.execute(sql):
        (gone if run in runs and (done or final) else stay).update(
            keys[start : start + 16] for start in range(0, len(keys), 16)
        )
    if final:
        gone.update(key for run in runs for (key,) in db.execute("SELECT key FROM call WHERE run = ?", (run,)))
    waiting = "SELECT i.key FROM batch_item i JOIN batch b USING (tag) WHERE b.state IN ('intent', 'submitted')"
    gone -= stay.union(key for (key,) in db.execute(waiting))
    count = size = 0
    for key in gone:
        row = db.execute("SELECT length(request) + length(reply) FROM call WHERE key = ?", (key,)).fetchone()
        if row is not None:
            count, size = count + 1, size + int(row[0])
            db.execute("DELETE FROM call WHERE key = ?", (key,))
    return count, size
