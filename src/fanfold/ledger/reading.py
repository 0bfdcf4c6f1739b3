"""The rows of one run, read and checked: what all parts of `RunView` share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from fanfold.encoding import decode
from fanfold.ledger import queries
from fanfold.ledger.records import EvaluationRow, TrialRow
from fanfold.ledger.store import Ledger, text

#: Rows are read in pages, each in full: a reader that pauses inside a query keeps a run on the same file from clearing
#: its write-ahead log.
PAGE = 1000


class RunRows:
    """The rows of the run with this id."""

    def __init__(self, ledger: Ledger, id: int) -> None:
        self.ledger = ledger
        self.id = id

    def _trials(self, numbers: Sequence[int], blobs: bool) -> Iterator[TrialRow]:
        for first in range(0, len(numbers), PAGE):
            page = list(numbers[first : first + PAGE])
            rows = {row[0]: row for row in self.ledger.read(queries.TRIALS, (self.id, str(page)))}
            yield from (self._trial(*rows[number], blobs=blobs) for number in page if number in rows)

    def _trial(self, number: int, order: Any, score: Any, dropped: Any, cost: Any, *rest: Any, blobs: bool) -> TrialRow:
        evaluations, failures, candidate, origin = rest
        proposed = self.ledger.value(candidate, blobs=blobs, what=f"trial {number} of run {self.id}")
        head = (number, order, number_of(score), text_of(dropped), number_of(cost), evaluations, failures)
        return TrialRow(*head, proposed, self.ledger.origin(origin))

    def _evaluation(self, row: tuple[Any, ...], cases: Sequence[str], blobs: bool) -> EvaluationRow:
        trial, position, score, failure, message, detail, cost, started, seconds, tries, reused, data = row
        return EvaluationRow(
            *(trial, position, cases[position], number_of(score), text_of(failure), text_of(message), text_of(detail)),
            *(number_of(cost), number_of(started), number_of(seconds), tries, bool(reused)),
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


def text_of(value: bytes | None) -> str | None:
    return None if value is None else text(value)


def number_of(value: Any) -> float | None:
    """A recorded number; None for what an earlier version, or another program, wrote in its place."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None
