"""Runs of other ledgers brought into one: what is equal is there once, and no payment is counted twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fanfold.errors import LedgerError
from fanfold.ledger.blobs import KEEP_BLOB
from fanfold.ledger.holdings import check_rows
from fanfold.ledger.lock import scratch, under_way
from fanfold.ledger.pruning import digests_of
from fanfold.ledger.schema import UNREADABLE, connect, copy_ledger, disconnect, explain, tables
from fanfold.ledger.store import OWNER, Ledger

Relation = Literal["same", "behind", "ahead", "diverged"]

#: Tables whose rows are shared by runs, or added to by people: each has a rule of its own.  Any other table with a
#: column `run` is the record of a run, which is copied as a whole.
SHARED = (
    *("run", "call", "payment", "batch", "batch_item", "owed", "learnt", "comment", "request"),
    *("blob", "stored_blob", "blob_holder"),
)

#: How far the life of a batch has come, by its state.
_STAGE = "CASE {}.state WHEN 'intent' THEN 0 WHEN 'submitted' THEN 1 ELSE 2 END"


@dataclass
class Merged:
    """What a merge brought: runs by name, there and here; and how many rows that runs share."""

    added: dict[str, str] = field(default_factory=dict)
    updated: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    #: Runs of `added` that are an earlier one of this ledger, continued in another way.
    diverged: list[str] = field(default_factory=list)
    replies: int = 0
    payments: int = 0
    blobs: int = 0

    @property
    def renamed(self) -> dict[str, str]:
        """Runs that have another name here; those that belong to another run follow it, and are left out."""
        names = self.added.keys() | self.updated.keys() | self.known.keys()
        own = [there for there in self.added if there.rpartition(".")[0] not in names]
        return {there: self.added[there] for there in own if there != self.added[there]}


def merge(into: Path, source: Path) -> Merged:
    """Bring the runs of another ledger into this one, in one transaction; the other is not changed."""
    if into.exists() and source.exists() and into.samefile(source):
        raise LedgerError(f"{source} is the ledger to merge into: name another one")
    with copy_of(source, into.absolute().parent) as copy:
        check_idle(source, copy)
        with Ledger(into) as ledger:
            check_idle(into, ledger)
            return _Merge(ledger, copy).done()


@contextmanager
def copy_of(
    source: Path, folder: Path, *, check: bool = True, progress: Callable[[int, int], None] | None = None
) -> Iterator[Ledger]:
    """An up-to-date copy of a ledger, in a folder of its own that goes away; its rows are checked."""
    if not folder.is_dir():
        raise LedgerError(f"there is no folder {folder}: create it, or name another file")
    with scratch(folder) as place:
        path = place / source.name
        copy_ledger(source, path, progress)
        disconnect(connect(path, durable=False))
        with Ledger(path, readonly=True) as copy:
            if check:
                try:
                    check_rows(copy)
                except LedgerError as error:
                    raise LedgerError(str(error).replace(str(path), str(source))) from None
            yield copy


def check_idle(path: Path, ledger: Ledger) -> None:
    """Refuse a ledger with a run that a process works on."""
    live = under_way(path, (run.name for run in ledger.run_heads()))
    if live:
        raise LedgerError(f"run {live[0]!r} of {path} is under way: wait for it, or stop it, then try again")


def relation(here: Ledger, run: int, there: Ledger, other: int) -> Relation:
    """How the other's copy of a run stands to ours.

    Every commit leaves a row in the log of its run.  So one of two copies continues the other if its log has the last
    commit of the other; commits that hold no work, such as a comment, do not count.
    """
    ours, theirs = last_work(here, run), last_work(there, other)
    if ours is None and theirs is None:  # written by a version without such a log
        sql = "SELECT updated, elapsed, status FROM run WHERE id = ?"
        return "same" if here.one(sql, (run,)) == there.one(sql, (other,)) else "diverged"
    sql = "SELECT updated FROM run WHERE id = ?"
    updated, later = here.one(sql, (run,))[0], there.one(sql, (other,))[0]
    if ours == theirs:
        return "same" if updated == later else "ahead" if updated < later else "behind"
    if _continues(there, other, ours, updated):
        return "ahead"
    return "behind" if _continues(here, run, theirs, later) else "diverged"


def runs_by_origin(ledger: Ledger) -> dict[tuple[float, str], list[tuple[int, str]]]:
    """The id and name of every run, by when and as what it began: copies of one run have that in common."""
    runs: dict[tuple[float, str], list[tuple[int, str]]] = {}
    for id, name, *origin in ledger.read("SELECT id, name, created, identity FROM run ORDER BY id"):
        runs.setdefault((origin[0], origin[1]), []).append((id, name))
    return runs


_WORK = "FROM change WHERE run = ? AND (trials, batches, cells) <> ('[]', '[]', '[]')"


def last_work(ledger: Ledger, run: int) -> float | None:
    """The time of the last commit that holds some of a run's work."""
    return next((at for (at,) in list(ledger.read(f"SELECT at {_WORK} ORDER BY seq DESC LIMIT 1", (run,)))), None)


def has_work(ledger: Ledger, run: int, at: float) -> bool:
    """Whether a run has a commit of exactly that time."""
    return bool(list(ledger.read(f"SELECT 1 {_WORK} AND at = ? LIMIT 1", (run, at))))


def _continues(ledger: Ledger, run: int, last: float | None, updated: float) -> bool:
    """Whether a run has that last commit; where there is none, whether its log begins after that time."""
    if last is not None:
        return has_work(ledger, run, last)
    return bool(ledger.one(f"SELECT min(at) >= ? {_WORK}", (updated, run))[0])


class _Merge:
    """One merge into a ledger.  The other one is attached as `other`; `moved` says which of its runs is which here."""

    def __init__(self, ledger: Ledger, copy: Ledger) -> None:
        self._here = ledger
        self._there = copy
        self._db = ledger.writer
        self._done = Merged()

    def done(self) -> Merged:
        db = self._db
        try:
            db.execute("ATTACH ? AS other", (self._there.path.absolute().as_uri() + "?mode=ro",))
            db.execute("BEGIN IMMEDIATE")
            db.execute("CREATE TEMP TABLE moved (there INTEGER PRIMARY KEY, here INTEGER, copied INTEGER)")
            self._runs()
            self._records()
            self._shared()
            self._blobs()
            for table in ("moved", "paid", "wanted", "unheld"):
                db.execute(f"DROP TABLE temp.{table}")
            db.execute("COMMIT")
            return self._done
        except UNREADABLE as error:
            raise explain(error, self._here.path) from error
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if any(name == "other" for _, name, _ in db.execute("PRAGMA database_list")):
                db.execute("DETACH other")

    def _runs(self) -> None:
        """Find out which runs are known, write the others, and say which is which."""
        names: dict[str, str] = {}
        known = runs_by_origin(self._here)  # before this merge: of two equal runs in the other file, both come
        sql = f"SELECT id, name, {OWNER}, created, identity FROM run ORDER BY {OWNER} IS NOT NULL, id"  # owners first
        for id, name, owner, created, identity in list(self._there.read(sql)):
            twins = known.get((created, identity), [])
            relations = {relation(self._here, run, self._there, id): (run, here) for run, here in reversed(twins)}
            if twin := relations.get("same") or relations.get("behind"):
                run, names[name] = twin
                self._done.known[name] = names[name]
            else:
                ahead = relations.get("ahead")
                names[name] = ahead[1] if ahead else self._free(name, owner, names)
                run = self._write(id, names[name], ahead and ahead[0])
                if owner in names and names[owner] != owner:
                    moved = "UPDATE main.run SET meta = json_set(meta, '$.belongs_to', ?) WHERE id = ?"
                    self._db.execute(moved, (names[owner], run))
                (self._done.updated if ahead else self._done.added)[name] = names[name]
                if twins and not ahead:
                    self._done.diverged.append(name)
            self._db.execute("INSERT INTO moved VALUES (?, ?, ?)", (id, run, name not in self._done.known))

    def _free(self, name: str, owner: str | None, names: dict[str, str]) -> str:
        """A name for a run that no run here has; a run that belongs to another is named after it."""
        if owner in names and name.startswith(f"{owner}."):
            name = names[owner] + name[len(owner) :]
        candidate, number = name[:80], 1
        while self._db.execute("SELECT 1 FROM main.run WHERE name = ?", (candidate,)).fetchone():
            number += 1
            ending = f"-{number}"
            candidate = name[: 80 - len(ending)] + ending
        return candidate

    def _write(self, there: int, name: str, here: int | None) -> int:
        columns = "created, updated, elapsed, status, reason, identity, meta"
        if here is None:
            sql = f"INSERT INTO main.run (name, {columns}) SELECT ?, {columns} FROM other.run WHERE id = ?"
            run = self._db.execute(sql, (name, there)).lastrowid
            assert run is not None
            return run
        sql = f"UPDATE main.run SET ({columns}) = (SELECT {columns} FROM other.run WHERE id = ?) WHERE id = ?"
        self._db.execute(sql, (there, here))
        return here

    def _records(self) -> None:
        """The rows that belong to one run each; those of a run that is further there are replaced."""
        for table in tables():
            if table in SHARED or "run" not in (columns := self._columns(table)):
                continue
            listed = ", ".join(columns)
            self._db.execute(f"DELETE FROM main.{table} WHERE run IN (SELECT here FROM moved WHERE copied)")
            self._db.execute(
                f"INSERT INTO main.{table} ({listed}) SELECT {self._moved(columns)} FROM moved JOIN other.{table} t "
                "ON t.run = moved.there WHERE moved.copied"
            )

    def _shared(self) -> None:
        """What runs share: each reply, batch and payment once; of what was learnt the newest."""
        count = self._db.total_changes
        self._insert("call", "INSERT OR IGNORE")
        self._done.replies = self._db.total_changes - count
        self._db.execute("CREATE TEMP TABLE paid AS SELECT key, at, batch FROM main.payment")
        self._db.execute("CREATE INDEX temp.paid_key ON paid (key, at)")
        count = self._db.total_changes
        known = "EXISTS (SELECT 1 FROM paid p WHERE p.key = t.key AND p.at = t.at AND p.batch IS t.batch)"
        self._insert("payment", "INSERT", f"WHERE NOT {known} ORDER BY t.id")
        self._done.payments = self._db.total_changes - count
        newer = f"WHERE {_STAGE.format('excluded')} > {_STAGE.format('batch')}"
        state = "state = excluded.state, remote = excluded.remote, note = excluded.note"
        self._insert("batch", "INSERT", f"WHERE 1 ON CONFLICT DO UPDATE SET {state} {newer}")
        for table in ("batch_item", "owed"):
            self._insert(table, "INSERT OR IGNORE")
        newest = "value = excluded.value, at = excluded.at WHERE excluded.at > learnt.at"
        self._insert("learnt", "INSERT", f"WHERE 1 ON CONFLICT DO UPDATE SET {newest}")
        for table, words in (("comment", "text"), ("request", "value")):
            same = f"o.run = moved.here AND o.at = t.at AND o.{words} = t.{words}"
            self._insert(table, "INSERT", f"WHERE NOT EXISTS (SELECT 1 FROM main.{table} o WHERE {same}) ORDER BY t.id")

    def _blobs(self) -> None:
        """The blobs that copied runs name.  One that is kept for good in either file is kept for good here."""
        db = self._db
        runs = [run for (run,) in db.execute("SELECT there FROM moved WHERE copied")]
        db.execute("CREATE TEMP TABLE wanted (digest TEXT PRIMARY KEY)")
        for run in runs:
            db.executemany(
                "INSERT OR IGNORE INTO wanted VALUES (?)", [(digest,) for digest in digests_of(self._there.read, run)]
            )
        loose = " UNION ".join(
            f"SELECT b.digest FROM {place}.{table} b JOIN wanted USING (digest) "
            f"WHERE {full} AND b.digest NOT IN (SELECT digest FROM {place}.blob_holder)"
            for place in ("main", "other")
            for table, full in (("blob", "length(b.data) > 0"), ("stored_blob", "1"))
        )
        db.execute(f"CREATE TEMP TABLE unheld AS {loose}")
        db.execute("DELETE FROM main.blob_holder WHERE digest IN unheld")
        db.execute(
            "INSERT OR IGNORE INTO main.blob_holder SELECT h.digest, moved.here FROM moved "
            "JOIN other.blob_holder h ON h.run = moved.there WHERE moved.copied AND h.digest NOT IN unheld"
        )
        count = db.total_changes
        merged = KEEP_BLOB.replace(
            "VALUES (?, ?)", "SELECT digest, data FROM other.blob JOIN wanted USING (digest) WHERE 1"
        )
        db.execute(merged)
        # What is in a store stays there: only its place is written down.
        here = "EXISTS (SELECT 1 FROM main.blob b WHERE b.digest = t.digest AND length(b.data) > 0)"
        self._insert("stored_blob", "INSERT OR IGNORE", f"JOIN wanted USING (digest) WHERE NOT {here}")
        self._done.blobs = db.total_changes - count

    def _insert(self, table: str, verb: str, rest: str = "") -> None:
        columns = self._columns(table)
        join = "LEFT JOIN moved ON moved.there = t.run" if "run" in columns else ""
        source = f"SELECT {self._moved(columns)} FROM other.{table} t {join} {rest}"
        self._db.execute(f"{verb} INTO main.{table} ({', '.join(columns)}) {source}")

    def _moved(self, columns: list[str]) -> str:
        return ", ".join("moved.here" if column == "run" else f"t.{column}" for column in columns)

    def _columns(self, table: str) -> list[str]:
        """The columns of a table, but for the number of a row, which is given here."""
        return [row[1] for row in self._db.execute(f"PRAGMA main.table_info({table})") if row[1] != "id" or not row[5]]
