"""`RunView`: the only reader of a run."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from fanfold.encoding import decode
from fanfold.errors import LedgerError
from fanfold.events import Progress
from fanfold.ledger import frame, queries
from fanfold.ledger.batches import batches
from fanfold.ledger.lock import locked
from fanfold.ledger.records import (
    BatchCounts,
    BatchRow,
    CallFacts,
    ChangedRows,
    EvaluationRow,
    FailureKind,
    MatrixSlice,
    Metrics,
    ModelCalls,
    Note,
    RunInfo,
    Timings,
    TrialRow,
    WaveRow,
)
from fanfold.ledger.spending import Spending, belonging
from fanfold.ledger.store import UNREADABLE_ROW, Ledger, text
from fanfold.ledger.verify import odd, verify
from fanfold.summary import Summary
from fanfold.types import Case, Outcome, Result

Order: TypeAlias = Literal["number", "told", "best"]
Which: TypeAlias = Literal["all", "told", "open", "complete", "dropped", "failed"]

#: Rows are read in pages, each in full: a reader that pauses inside a query keeps a run on the same file from clearing
#: its write-ahead log.
PAGE = 1000
LATEST_MARK = 2**63 - 1
QUANTILES = (0.5, 0.9, 0.99)


class RunView:
    """Everything one run holds, read from its ledger and never written.

    Every method reads again, so a view follows a run that is still running. No method reads a row of another run,
    however many the file holds. `siblings` names the runs that belong to this one.
    """

    def __init__(self, ledger: Ledger, id: int, *, owner: bool = False) -> None:
        self.ledger = ledger
        self.id = id
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
        """The run's row, with its counts."""
        return self.ledger.info(self.id)

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

    def notes(self) -> list[Note]:
        """What the run told its user, in order."""
        return self._notes(0, LATEST_MARK)

    # -- trials ------------------------------------------------------------------------------------------------------

    def numbers(
        self, *, order: Order = "number", which: Which = "all", first: int = 0, count: int | None = None
    ) -> array[int]:
        """The numbers of `count` trials, starting with the `first`: in order of asking, of telling, or best first."""
        clauses = f"{queries.WHICH[which]} ORDER BY {queries.ORDERS[order]} LIMIT ? OFFSET ?"
        limit = -1 if count is None else count
        return array(
            "q", (number for (number,) in self.ledger.read(f"{queries.NUMBERS} {clauses}", (self.id, limit, first)))
        )

    def trials(
        self,
        *,
        order: Order = "number",
        which: Which = "all",
        first: int = 0,
        count: int | None = None,
        blobs: bool = True,
    ) -> Iterator[TrialRow]:
        """A page of trials, or all. Without `blobs`, candidates keep their references to large parts."""
        return self._trials(self.numbers(order=order, which=which, first=first, count=count), blobs)

    def trial(self, number: int) -> TrialRow:
        for row in self._trials([number], blobs=True):
            return row
        raise LedgerError(f"run {self.name!r} of {self.ledger.path} has no trial {number}")

    def best(self) -> TrialRow | None:
        """The best complete trial; the first of equals."""
        return next(self.trials(order="best", which="complete", count=1), None)

    def lineage(self, number: int) -> list[TrialRow]:
        """The ancestors of a trial, as far as its strategy names parents, and the trial itself; oldest first."""
        rows: dict[int, TrialRow] = {}
        waiting = {number}
        while waiting:
            rows |= {row.number: row for row in self._trials(sorted(waiting), blobs=False)}
            waiting = {parent for at in waiting if at in rows for parent in _parents(rows[at])} - rows.keys()
        return [rows[at] for at in sorted(rows)]

    def results(self) -> Iterator[Result[Any]]:
        """The told trials in the order of telling, with all outcomes, as a strategy is told them."""
        return self.ledger.results(self.id)

    def outcomes(self, trial: int) -> dict[str, Outcome]:
        """The outcomes of a trial by the id of the case."""
        cases = self._case_ids()
        return {cases[position]: outcome for position, outcome in self.ledger.outcomes(self.id, trial).items()}

    def scores(self) -> Iterator[tuple[int, float, bool]]:
        """Place in the order of telling, score, and whether it is complete, for every told trial with a score."""
        sql = (
            "SELECT told, score, dropped IS NULL FROM trial WHERE run = ? AND told IS NOT NULL "
            "AND typeof(score) = 'real' ORDER BY told"
        )
        for order, score, complete in self.ledger.read(sql, (self.id,)):
            yield order, score, bool(complete)

    # -- cells -------------------------------------------------------------------------------------------------------

    def evaluations(
        self,
        *,
        trials: Iterable[int] | None = None,
        failed: bool | None = None,
        after: tuple[int, int] = (-1, -1),
        count: int | None = None,
        blobs: bool = True,
    ) -> Iterator[EvaluationRow]:
        """The evaluations in the order of trials and cases: those of some trials, failed or not, `after` a cell."""
        clause = "" if failed is None else f" AND failure IS {'NOT ' * failed}NULL"
        parameters: tuple[Any, ...] = ()
        if trials is not None:
            clause += " AND trial IN (SELECT value FROM json_each(?))"
            parameters = (str(list(trials)),)
        sql = f"{queries.EVALUATIONS}{clause} AND (trial, position) > (?, ?) ORDER BY trial, position LIMIT ?"
        cases = self._case_ids()
        left = math.inf if count is None else count
        while left > 0:
            page = list(self.ledger.read(sql, (self.id, *parameters, *after, int(min(left, PAGE)))))
            yield from (self._evaluation(row, cases, blobs) for row in page)
            if len(page) < PAGE:
                return
            left -= len(page)
            after = page[-1][0], page[-1][1]

    def matrix(self, trials: Sequence[int], cases: range | None = None) -> MatrixSlice:
        """The cells of some trials on some positions of cases (all of them where none are given)."""
        ids = self._case_ids()
        columns = range(len(ids)) if cases is None else cases
        rows: dict[int, list[float | str | None]] = {number: [None] * len(columns) for number in trials}
        sql = (
            "SELECT trial, position, CAST(failure AS BLOB), score FROM evaluation "
            "WHERE run = ? AND trial IN (SELECT value FROM json_each(?)) AND position BETWEEN ? AND ?"
        )
        ends = (min(columns, default=0), max(columns, default=-1))
        for trial, position, failure, score in self.ledger.read(sql, (self.id, str(list(trials)), *ends)):
            if position in columns:
                rows[trial][columns.index(position)] = _cell(failure, score)
        cells = tuple(tuple(rows[number]) for number in trials)
        return MatrixSlice(tuple(trials), tuple(ids[at] for at in columns), cells)

    def failures(self) -> tuple[FailureKind, ...]:
        """The failures by kind, the most frequent first."""
        cases = self._case_ids()
        rows = self.ledger.read(queries.FAILURES, (self.id,))
        return tuple(FailureKind(text(kind), n, trial, cases[at], text(why)) for kind, n, trial, at, why in rows)

    def timings(self) -> Timings:
        sql = "SELECT seconds, started FROM evaluation WHERE run = ? AND reused = 0"
        rows = list(self.ledger.read(sql, (self.id,)))
        if not rows:
            return Timings()
        seconds = sorted(row[0] for row in rows)
        quantiles = {share: seconds[math.ceil(share * len(seconds)) - 1] for share in QUANTILES}
        ends = (min(started for _, started in rows), max(started + took for took, started in rows))
        return Timings(len(rows), math.fsum(seconds), quantiles, *ends)

    def times(self) -> Iterator[tuple[int, int, float, float]]:
        """Trial, position of the case, start and seconds of every evaluation."""
        sql = "SELECT trial, position, started, seconds FROM evaluation WHERE run = ? ORDER BY trial, position"
        yield from self.ledger.read(sql, (self.id,))

    # -- model calls -------------------------------------------------------------------------------------------------

    def calls(self) -> CallFacts:
        """The run's model calls: paid ones by model, batches by state, and what was counted besides."""
        rows = list(self.ledger.read(queries.MODELS, (self.id,)))
        models = tuple(ModelCalls(*(*row, self._latency(row[0], row[1] - row[2]))) for row in rows)
        sql = (
            "SELECT model, state, count(*), sum(requests) FROM batch WHERE run = ? "
            "GROUP BY model, state ORDER BY model, state"
        )
        states = tuple(BatchCounts(*row) for row in self.ledger.read(sql, (self.id,)))
        return CallFacts(models, states, self.counts())

    def counts(self) -> Metrics:
        """Counts of the run's calls, such as cache hits and refusals."""
        for (counts,) in self.ledger.read("SELECT counts FROM desk WHERE run = ?", (self.id,)):
            return self.ledger.value(counts, Metrics, what=f"the counts of run {self.id}")  # type: ignore[no-any-return]
        return Metrics()

    def costs(self, *, siblings: bool = True) -> Spending:
        """What the run has paid for model calls, together with its siblings or alone."""
        runs = belonging(self.ledger, self.id) if siblings else [self.id]
        return Spending.of(self.ledger, *runs)

    def batches(self, *, open: bool = False) -> list[BatchRow]:
        """The run's provider batches, or only those that are still `open`, in the order in which they were made."""
        return batches(self.ledger, self.id, open=open)

    def waves(self) -> list[WaveRow]:
        """The calls that left together, in order, and what came back."""
        rows = enumerate(self.ledger.read(queries.WAVES, (self.id,)), start=1)
        return [WaveRow(*(at, *row, None if took is None else max(0.0, took))) for at, (*row, took) in rows]

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
        evaluated = self.evaluations(trials=sorted({trial for trial, _ in cells}), blobs=False)
        return ChangedRows(
            mark,
            len(rows) == limit,
            self.status,
            self.progress(),
            tuple(self._trials(sorted(trials), blobs=False)),
            tuple(row for row in evaluated if (row.trial, row.position) in cells),
            tuple(row for row in (self.batches() if tags else ()) if row.tag in tags),
            tuple(self._notes(since, mark)),
        )

    def frame(
        self, rows: Literal["trials", "evaluations"] = "trials", library: Literal["pandas", "polars"] | None = None
    ) -> Any:
        """A data frame of pandas or polars, whichever is installed, with one column for each key of the candidates."""
        return frame.build(self, rows, library)

    # -- rows --------------------------------------------------------------------------------------------------------

    def _trials(self, numbers: Sequence[int], blobs: bool) -> Iterator[TrialRow]:
        for first in range(0, len(numbers), PAGE):
            page = list(numbers[first : first + PAGE])
            rows = {row[0]: row for row in self.ledger.read(queries.TRIALS, (self.id, str(page)))}
            yield from (self._trial(*rows[number], blobs=blobs) for number in page if number in rows)

    def _trial(self, number: int, order: Any, score: Any, dropped: Any, cost: Any, *rest: Any, blobs: bool) -> TrialRow:
        evaluations, failures, candidate, origin = rest
        proposed = self.ledger.value(candidate, blobs=blobs, what=f"trial {number} of run {self.id}")
        head = (number, order, _number(score), _text(dropped), _number(cost), evaluations, failures)
        return TrialRow(*head, proposed, self.ledger.origin(origin))

    def _evaluation(self, row: tuple[Any, ...], cases: Sequence[str], blobs: bool) -> EvaluationRow:
        trial, position, score, failure, message, detail, cost, started, seconds, tries, reused, data = row
        return EvaluationRow(
            *(trial, position, cases[position], _number(score), _text(failure), _text(message), _text(detail)),
            *(_number(cost), _number(started), _number(seconds), tries, bool(reused)),
            None if data is None else self._data(data, blobs),
        )

    def _data(self, data: bytes, blobs: bool) -> Any:
        """The data of an outcome; its text where that is not JSON."""
        try:
            return decode(data, self.ledger.blob if blobs else None)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return text(data)

    def _case_ids(self) -> list[str]:
        sql = "SELECT id FROM run_case WHERE run = ? ORDER BY position"
        return [id for (id,) in self.ledger.read(sql, (self.id,))]

    def _latency(self, model: str, count: int) -> Mapping[float, float]:
        sql = (
            "SELECT seconds FROM payment WHERE run = ? AND model = ? AND batch IS NULL "
            "ORDER BY seconds LIMIT 1 OFFSET ?"
        )
        places = {share: math.ceil(share * count) - 1 for share in QUANTILES} if count else {}
        return {share: self.ledger.one(sql, (self.id, model, place))[0] for share, place in places.items()}

    def _notes(self, since: int, until: int) -> list[Note]:
        sql = "SELECT at, text FROM note WHERE run = ? AND seq > ? AND seq <= ? ORDER BY seq, rowid"
        return [Note(*row) for row in self.ledger.read(sql, (self.id, since, until))]


def _parents(row: TrialRow) -> list[int]:
    parents = row.origin.get("parents") if isinstance(row.origin, dict) else None
    return [parent for parent in parents if isinstance(parent, int)] if isinstance(parents, list) else []


def _cell(failure: bytes | None, score: Any) -> float | str:
    if failure is not None:
        return text(failure)
    return score if isinstance(score, float) and math.isfinite(score) else UNREADABLE_ROW.kind


def _text(value: bytes | None) -> str | None:
    return None if value is None else text(value)


def _number(value: Any) -> float | None:
    """A recorded number; None for what an earlier version, or another program, wrote in its place."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None
