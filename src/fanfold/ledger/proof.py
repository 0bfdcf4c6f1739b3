"""A digest of what a run has told, by which a checkpoint is known to belong to the record it was made from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from fanfold.ledger.journal import RunJournal

#: About how many evaluations are read at a time.
ROWS = 2000
# Texts as blobs: a file may hold some that are not UTF-8.
_TRIALS = (
    "SELECT number, told, CAST(candidate AS BLOB), CAST(dropped AS BLOB), score FROM trial "
    "WHERE run = ? AND number >= ? AND number < ? AND told < ? ORDER BY number"
)
_CELLS = (
    "SELECT trial, position, CAST(failure AS BLOB), score, cost FROM evaluation "
    "WHERE run = ? AND trial >= ? AND trial < ? ORDER BY trial, position"
)
_SUPERSEDED = "SELECT trial, position, CAST(failure AS BLOB), cost FROM superseded WHERE run = ?"

_encode = msgspec.msgpack.Encoder().encode


class Proof:
    """The digest of the first `told` trials of a run, with their evaluations, as the search was told them.

    Trials are read in blocks.  A block in which all have been told is read once, so a digest costs what is new.
    """

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        (cases,) = journal.ledger.one("SELECT count(*) FROM run_case WHERE run = ?", (journal.run,))
        self._step = max(1, ROWS // max(1, cases))
        self._blocks = 0
        self._digest = b""

    def extend(self, settled: int, told: int) -> None:
        """Read the complete blocks among the trials below `settled`, all of which have been told."""
        while (self._blocks + 1) * self._step <= settled:
            self._digest = self._with(self._blocks * self._step, (self._blocks + 1) * self._step, told)
            self._blocks += 1

    def digest(self, settled: int, asked: int, told: int) -> bytes:
        self.extend(settled, told)
        return self._with(self._blocks * self._step, asked, told)

    def _with(self, first: int, end: int, told: int) -> bytes:
        journal, within = self._journal, (self._journal.run, first, end)
        trials = list(journal.ledger.read(_TRIALS, (*within, told)))
        cells: list[Any] = list(journal.ledger.read(_CELLS, within))
        if len(trials) < end - first:
            numbers = {row[0] for row in trials}
            cells = [cell for cell in cells if cell[0] in numbers]
        if journal.superseded:
            trials = [(*row[:4], journal.told_score(row[0], row[4])) for row in trials]
            failures = {row[:2]: (*row[:3], None, row[3]) for row in journal.ledger.read(_SUPERSEDED, (journal.run,))}
            cells = [failures.get(cell[:2], cell) for cell in cells]
        return hashlib.blake2b(self._digest + _encode((trials, cells)), digest_size=16).digest()
