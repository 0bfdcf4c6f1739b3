"""`RunView`: the only reader of a run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fanfold.encoding import encode
from fanfold.events import Progress
from fanfold.ledger import frame, queries
from fanfold.ledger.call_reads import CallReads
from fanfold.ledger.cells import CellReads
from fanfold.ledger.lock import locked
from fanfold.ledger.page_records import Comment, RunRequest
from fanfold.ledger.reading import PAGE
from fanfold.ledger.records import ChangedRows, Note, RunInfo
from fanfold.ledger.requests import requests_of
from fanfold.ledger.spending import belonging
from fanfold.ledger.store import Ledger
from fanfold.ledger.timeline import TimelineReads
from fanfold.ledger.trials import TrialReads
from fanfold.ledger.verify import odd, verify
from fanfold.summary import Summary
from fanfold.types import Case

LATEST_MARK = 2**63 - 1


class RunView(TrialReads, CellReads, CallReads, TimelineReads):
    """Everything one run holds, read from its ledger and never written.

    Every method reads again, so a view follows a run that is still running. No method reads a row of another run,
    however many the file holds. `siblings` names the runs that belong to this one.
    """

    def __init__(self, ledger: Ledger, id: int, *, owner: bool = False) -> None:
        super().__init__(ledger, id)
        self._owner = owner

    @classmethod
    def open(cls, ledger: Ledger | str | Path, run: str = "last") -> RunView:
        """The run of that name, the only one whose name starts with it, or (`last`) the one used last.

        Its rows are checked first, and a damaged run is refused. Given a path, the view opens the file for reading and
        closes it at the end of a `with` block.
        """
        if not isinstance(ledger, Ledger):
            opened = Ledger(ledger, readonly=True)
            try:
                return cls(opened, cls.open(opened, run).id, owner=True)
            except BaseException:
                opened.close()
                raise
        id = ledger.last() if run == "last" else ledger.named(run)
        verify(ledger, id)
        return cls(ledger, id)

    def __enter__(self) -> RunView:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._owner:
            self.ledger.close()

    # -- the run -----------------------------------------------------------------------------------------------------

    @property
    def info(self) -> RunInfo:
        """The run's row, with its counts; of one that has not ended, with its time up to now."""
        info = self.ledger.info(self.id)
        if info.status != "running":
            return info
        worked = "SELECT at FROM change WHERE run = ? AND cells <> '[]' ORDER BY seq DESC LIMIT 1"
        until = time.time() if self.status == "running" else next(self.ledger.read(worked, (self.id,)), (0.0,))[0]
        return replace(info, elapsed=info.elapsed + max(0.0, until - info.updated))

    @property
    def name(self) -> str:
        return str(self.ledger.one("SELECT name FROM run WHERE id = ?", (self.id,))[0])

    @property
    def status(self) -> str:
        """The recorded status, or `interrupted` for a run marked as running that no process works on."""
        name, status = self.ledger.one("SELECT name, status FROM run WHERE id = ?", (self.id,))
        return "interrupted" if status == "running" and not locked(self.ledger.path, name) else str(status)

    def progress(self) -> Progress:
        """How far the run has come."""
        info = self.info
        asked, told, ran, written, failed, cases, reused, best = self.ledger.one(queries.PROGRESS, (self.id,))
        return Progress(
            asked=asked,
            told=told,
            told_evaluations=ran,
            told_calls=ran + written - failed,
            cases=cases,
            evaluations=info.evaluations,
            failures=info.failures,
            reused=reused,
            cost=info.cost,
            best=info.best,
            since_best=told if best is None else told - best - 1,
            elapsed=info.elapsed,
        )

    def cases(self) -> list[Case]:
        return self.ledger.cases(self.id)

    def summary(self) -> Summary | None:
        """What the study concluded."""
        summary: Summary | None = self.ledger.summary(self.id, Summary)
        if summary is not None and any(len(row) != len(s.columns) for s in summary.sections for row in s.rows):
            raise odd(self.ledger.path, f"the summary of run {self.id}", "a row is not as long as its table is wide")
        return summary

    def siblings(self) -> list[RunView]:
        """The runs that belong to this one, such as its held-out run, in the order in which they began."""
        return [RunView(self.ledger, id) for id in belonging(self.ledger, self.id) if id != self.id]

    def comments(self, trial: int | None = None) -> list[Comment]:
        """What people wrote about the run or, given a trial, about that one; oldest first."""
        clause, parameters = ("", (self.id,)) if trial is None else (" AND trial = ?", (self.id, trial))
        sql = f"SELECT id, trial, at, text FROM comment WHERE run = ?{clause} ORDER BY id"
        return [Comment(*row) for row in self.ledger.read(sql, parameters)]

    def questions(self) -> list[RunRequest]:
        """What the run asks people and nobody has answered yet; oldest first.

        The value of each has the `trial` and the `position` of the cell that waits, and what is asked.
        """
        requests = requests_of(self.ledger, self.id)
        return [request for request in requests if request.what == "question" and request.taken is None]

    def notes(self) -> list[Note]:
        """What the run told its user, in order."""
        return self._notes(0, LATEST_MARK)

    # -- following ---------------------------------------------------------------------------------------------------

    @property
    def mark(self) -> int:
        """Where the run is now: `changes(since=mark)` returns what is written later."""
        return int(self.ledger.one("SELECT coalesce(max(seq), 0) FROM change WHERE run = ?", (self.id,))[0])

    def changes(self, since: int, limit: int = PAGE) -> ChangedRows:
        """What was written after a mark, from at most `limit` commits.

        To follow a run: take `mark`, read what is there, then ask for the changes since, again and again.
        """
        sql = "SELECT seq, trials, batches, cells FROM change WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?"
        rows = list(self.ledger.read(sql, (self.id, since, limit)))
        mark = rows[-1][0] if rows else since
        what = f"the changes of run {self.id}"
        trials = {number for row in rows for number in self.ledger.value(row[1], list[int], what=what)}
        tags = {tag for row in rows for tag in self.ledger.value(row[2], list[str], what=what)}
        cells = {cell for row in rows for cell in self.ledger.value(row[3], list[tuple[int, int]], what=what)}
        ids, sql = self._case_ids(), f"{queries.EVALUATIONS} AND {queries.AMONG} ORDER BY trial, position"
        evaluated = list(self.ledger.read(sql, (self.id, encode(sorted(cells)))))
        return ChangedRows(
            mark,
            len(rows) == limit,
            self.status,
            self.progress(),
            tuple(self._trials(sorted(trials), blobs=False)),
            tuple(self._evaluation(row, ids, blobs=False) for row in evaluated),
            tuple(row for row in (self.batches() if tags else ()) if row.tag in tags),
            tuple(self._notes(since, mark)),
        )

    def frame(
        self, rows: Literal["trials", "evaluations"] = "trials", library: Literal["pandas", "polars"] | None = None
    ) -> Any:
        """A data frame of pandas or polars, whichever is installed, with one column for each key of the candidates."""
        return frame.build(self, rows, library)

    def _notes(self, since: int, until: int) -> list[Note]:
        sql = "SELECT at, text FROM note WHERE run = ? AND seq > ? AND seq <= ? ORDER BY seq, rowid"
        return [Note(*row) for row in self.ledger.read(sql, (self.id, since, until))]
