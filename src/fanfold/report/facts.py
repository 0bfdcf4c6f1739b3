"""The facts of one run, read from the ledger: what `fanfold show` prints and the report draws."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fanfold.errors import LedgerError
from fanfold.ledger import Ledger, RunInfo, odd, text, verify
from fanfold.money import Spending
from fanfold.summary import Summary
from fanfold.types import Case, Outcome


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A told trial with its outcomes by the id of the case; `order` is its place in the order of telling."""

    number: int
    order: int
    candidate: Any
    score: float
    outcomes: dict[str, Outcome]


@dataclass(frozen=True, slots=True)
class FailureKind:
    """All failures of one kind, and the first of them as an example."""

    kind: str
    count: int
    trial: int
    case: str
    message: str


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Everything worth telling about a run except its single trials."""

    info: RunInfo
    status: str
    cases: tuple[Case, ...]
    top: tuple[TrialRow, ...]
    failures: tuple[FailureKind, ...]
    dropped: int
    reused: int
    #: Seconds of evaluation, all evaluations together.
    busy: float
    #: What its study concluded.
    summary: Summary | None = None
    #: What it paid for model calls.
    money: Spending = field(default_factory=Spending)

    @property
    def best(self) -> TrialRow | None:
        return self.top[0] if self.top else None

    @property
    def per_second(self) -> float:
        """Evaluations a second that were run rather than reused."""
        return (self.info.evaluations - self.reused) / self.info.elapsed if self.info.elapsed > 0 else 0.0


def find_run(ledger: Ledger, name: str) -> RunInfo:
    """The run called so, the only one whose name starts so, or (`last`) the one worked on last; its rows are sound."""
    found = ledger.run(name) if name != "last" else _last(ledger)
    verify(ledger, found.id)
    return found


def _last(ledger: Ledger) -> RunInfo:
    runs = ledger.runs()
    if not runs:
        raise LedgerError(f"{ledger.path} has no runs yet: start one with `fanfold run`")
    named = next((run for run in runs if run.name == "last"), None)
    # A run that belongs to another is a part of that one.
    whole = [run for run in runs if "belongs_to" not in run.meta] or runs
    return named or max(whole, key=lambda run: run.updated)


def status_of(ledger: Path, info: RunInfo) -> str:
    """The recorded status, or `interrupted` for a run that says it is running although no process holds its lock."""
    if info.status == "running" and not _locked(ledger.with_name(f"{ledger.name}.{info.name}.lock")):
        return "interrupted"
    return info.status


def _locked(path: Path) -> bool:
    """Whether a process holds the lock.  Only looks: neither makes nor removes the file."""
    try:
        # Looked at without following a link, or waiting at a pipe, that somebody put in its place.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def facts(ledger: Ledger, info: RunInfo, top: int = 1) -> RunFacts:
    """Read the facts of a run with its `top` best complete trials."""
    cases = tuple(ledger.cases(info.id))
    dropped = _one(ledger, "SELECT count(*) FROM trial WHERE run = ? AND dropped IS NOT NULL", info.id)
    reused = _one(ledger, "SELECT sum(reused) FROM evaluation WHERE run = ?", info.id)
    busy = _one(ledger, "SELECT sum(seconds) FROM evaluation WHERE run = ? AND reused = 0", info.id)
    best, failures = _top(ledger, info.id, cases, top), _failures(ledger, info.id, cases)
    counts = (int(dropped), int(reused), float(busy))
    summary = ledger.summary(info.id, Summary)
    if summary is not None and any(len(row) != len(s.columns) for s in summary.sections for row in s.rows):
        raise odd(ledger.path, f"the summary of run {info.id}", "a row is not as long as its table is wide")
    money = Spending.whole(ledger, info.id)
    return RunFacts(info, status_of(ledger.path, info), cases, best, failures, *counts, summary, money)


def _one(ledger: Ledger, sql: str, run: int) -> Any:
    return next(ledger.read(sql, (run,)))[0] or 0


def _top(ledger: Ledger, run: int, cases: tuple[Case, ...], count: int) -> tuple[TrialRow, ...]:
    sql = (
        "SELECT number, told, candidate, score FROM trial WHERE run = ? AND told IS NOT NULL AND dropped IS NULL "
        "AND typeof(score) = 'real' ORDER BY score DESC, told LIMIT ?"
    )
    found = []
    for number, order, candidate, score in list(ledger.read(sql, (run, count))):
        outcomes = {cases[position].id: outcome for position, outcome in ledger.outcomes(run, number).items()}
        proposed = ledger.value(candidate, blobs=False, what=f"trial {number} of run {run}")
        found.append(TrialRow(number, order, proposed, score, outcomes))
    return tuple(found)


def _failures(ledger: Ledger, run: int, cases: tuple[Case, ...]) -> tuple[FailureKind, ...]:
    # SQLite takes the other columns from the row that has the smallest trial.
    sql = (
        "SELECT CAST(failure AS BLOB), count(*), min(trial), position, CAST(message AS BLOB) FROM evaluation "
        "WHERE run = ? AND failure IS NOT NULL GROUP BY failure ORDER BY count(*) DESC, failure"
    )
    rows = ledger.read(sql, (run,))
    return tuple(FailureKind(text(kind), n, trial, cases[at].id, text(said)) for kind, n, trial, at, said in rows)
