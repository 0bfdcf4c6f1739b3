"""The cells of a run: evaluations one by one, slices of the matrix, failures by cause."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fanfold.ledger import queries
from fanfold.ledger.matrix import CellValues, Quantity
from fanfold.ledger.page_records import FailureGroup
from fanfold.ledger.reading import PAGE, RunRows, number_of
from fanfold.ledger.records import EvaluationRow, FailureKind, MatrixSlice
from fanfold.ledger.store import UNREADABLE_ROW, text
from fanfold.texts import same_cause
from fanfold.types import Case

#: How many cells a group of failures names, and how many failures are looked at.
EXAMPLES, MOST_FAILURES = 50, 200_000


class CellReads(RunRows):
    """What `RunView` reads of cells."""

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

    def evaluation(self, trial: int, position: int) -> EvaluationRow | None:
        """The evaluation of a trial on the case at a position, or None while there is none."""
        rows = self.ledger.read(f"{queries.EVALUATIONS} AND trial = ? AND position = ?", (self.id, trial, position))
        return next((self._evaluation(row, self._case_ids(), blobs=True) for row in list(rows)), None)

    def neighbours(self, trial: int, position: int) -> tuple[int | None, int | None]:
        """The positions of a trial's evaluations next to this one: before it, and after it."""
        sql = (
            "SELECT (SELECT max(position) FROM evaluation WHERE run = ?1 AND trial = ?2 AND position < ?3), "
            "(SELECT min(position) FROM evaluation WHERE run = ?1 AND trial = ?2 AND position > ?3)"
        )
        before, after = self.ledger.one(sql, (self.id, trial, position))
        return before, after

    def case(self, position: int) -> Case | None:
        """The case at a position."""
        sql = "SELECT id, data, seed FROM run_case WHERE run = ? AND position = ?"
        for id, data, seed in self.ledger.read(sql, (self.id, position)):
            return Case(id, None if data is None else self.ledger.value(data, what=f"case {id} of run {self.id}"), seed)
        return None

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

    def values(self, of: Quantity = "score") -> CellValues:
        """One number for each cell, in memory: it gives tiles of the matrix, and follows the run with `refresh`."""
        return CellValues(self.ledger, self.id, of)

    def failures(self) -> tuple[FailureKind, ...]:
        """The failures by kind, the most frequent first."""
        cases = self._case_ids()
        rows = self.ledger.read(queries.FAILURES, (self.id,))
        return tuple(FailureKind(text(kind), n, trial, cases[at], text(why)) for kind, n, trial, at, why in rows)

    def failure_groups(self, most: int = 100) -> list[FailureGroup]:
        """The failures by cause (the same kind, and the same message but for its numbers), the most frequent first."""
        groups: dict[tuple[str, str], FailureGroup] = {}
        cause, cases = functools.lru_cache(10_000)(same_cause), self._case_ids()
        after, looked = (-1, -1), 0
        while looked < MOST_FAILURES:
            page = list(self.ledger.read(queries.FAILED_PAGE, (self.id, *after, PAGE)))
            for trial, position, kind, message, ended in page:
                why = text(message)
                way = text(kind), cause(why)
                if (group := groups.get(way)) is None:
                    group = groups[way] = FailureGroup(way[0], why)
                group.add(trial, position, cases[position], number_of(ended), EXAMPLES)
            looked += len(page)
            if len(page) < PAGE:
                break
            after = page[-1][0], page[-1][1]
        chosen = sorted(groups.values(), key=lambda group: -group.count)[:most]
        for group in chosen:
            example = self.evaluation(*group.cells[0][:2])
            group.traceback = "" if example is None else example.detail or ""
        return chosen


def _cell(failure: bytes | None, score: Any) -> float | str:
    if failure is not None:
        return text(failure)
    return score if isinstance(score, float) and math.isfinite(score) else UNREADABLE_ROW.kind
