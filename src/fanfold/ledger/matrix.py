"""The matrix of a run in memory, one number for each cell, as tiles of bytes that a page can paint."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from fanfold.encoding import encode
from fanfold.ledger.queries import AMONG
from fanfold.ledger.store import Ledger

Quantity: TypeAlias = Literal["score", "seconds", "cost", "failure"]

#: The bytes of a cell that holds nothing and of one that failed; the others are values from low to high.
NOTHING, FAILED, LOWEST, HIGHEST = 0, 1, 2, 255
#: Evaluations that one statement reads: each is short, so that a run on the same file is never held up.
ROWS = 20_000
#: Greater values are kept as this one.
LARGEST = 3e38


class CellValues:
    """One number for each cell of a run: its score, its seconds, its cost, or only whether it failed.

    All of them are read once.  `refresh` then reads what was written since.  `low` and `high` are the extremes so far.
    """

    def __init__(self, ledger: Ledger, run: int, of: Quantity = "score") -> None:
        self.run = run
        self.low, self.high = math.inf, -math.inf
        self.columns = int(ledger.one("SELECT count(*) FROM run_case WHERE run = ?", (run,))[0])
        self._select = f"SELECT trial, position, {_FAILED}, {_VALUES[of]} FROM evaluation WHERE run = ?"
        #: Of the cells in the order of trials and cases: nothing, failed, or there; and their values.
        self._states, self._values = bytearray(), array("f")
        #: The bytes of a trial's cells between two limits, kept while neither changes.
        self._bytes: dict[int, bytes] = {}
        self._limits = (0.0, 0.0)
        # The mark first: what is written meanwhile is read again, and nothing is missed.
        self.mark = _mark(ledger, run)
        after = (-1, -1)
        while True:
            sql = f"{self._select} AND (trial, position) > (?, ?) ORDER BY trial, position LIMIT {ROWS}"
            page = list(ledger.read(sql, (run, *after)))
            self._put(page)
            if len(page) < ROWS:
                return
            after = page[-1][0], page[-1][1]

    def refresh(self, ledger: Ledger) -> set[tuple[int, int]]:
        """Read what was written since the last time; gives the cells."""
        sql = "SELECT cells FROM change WHERE run = ? AND seq > ? AND seq <= ? AND cells <> '[]'"
        mark, what = _mark(ledger, self.run), f"the changes of run {self.run}"
        rows = list(ledger.read(sql, (self.run, self.mark, mark)))
        cells = {cell for (row,) in rows for cell in ledger.value(row, list[tuple[int, int]], what=what)}
        changed = sorted(cells)
        for first in range(0, len(changed), ROWS):
            page = encode(changed[first : first + ROWS])
            self._put(list(ledger.read(f"{self._select} AND {AMONG}", (self.run, page))))
        self.mark = mark
        return cells

    def _put(self, rows: Any) -> None:
        width, states, values, painted = self.columns, self._states, self._values, self._bytes
        low, high = self.low, self.high
        for trial, position, failed, value in rows:
            if position >= width:
                continue
            place = trial * width + position
            if place >= len(states):
                more = (trial + 1) * width - len(states)
                states.extend(bytes(more))
                values.frombytes(bytes(4 * more))
            if painted:
                painted.pop(trial, None)
            if failed or type(value) is not float or not math.isfinite(value):
                states[place] = FAILED
                continue
            value = min(max(value, -LARGEST), LARGEST)
            states[place], values[place] = LOWEST, value
            if value < low:
                low = value
            if value > high:
                high = value
        self.low, self.high = low, high

    def means(self) -> list[float | None]:
        """The mean value on each case; None where there is none."""
        means = list[float | None]()
        for position in range(self.columns):
            states, values = self._states[position :: self.columns], self._values[position :: self.columns]
            there = [value for state, value in zip(states, values) if state == LOWEST]
            means.append(math.fsum(there) / len(there) if there else None)
        return means

    def row(self, trial: int, low: float, high: float) -> bytes:
        """A byte for each case of a trial: 0 where nothing is, 1 failed, 2 to 255 from low to high."""
        if (low, high) != self._limits:
            self._bytes, self._limits = {}, (low, high)
        if (row := self._bytes.get(trial)) is not None:
            return row
        first, last = trial * self.columns, (trial + 1) * self.columns
        states = self._states[first:last]
        if len(states) < self.columns:
            return bytes(self.columns)
        scale = (HIGHEST - LOWEST) / (high - low) if high - low > 1e-300 else 0.0
        row = bytes(
            state if state != LOWEST else LOWEST + round(min(max((value - low) * scale, 0.0), HIGHEST - LOWEST))
            for state, value in zip(states, self._values[first:last])
        )
        self._bytes[trial] = row
        return row

    def tile(self, trials: Sequence[int], positions: Sequence[int], low: float, high: float, factor: int = 1) -> bytes:
        """The bytes of these trials on these cases, row by row.

        With a `factor`, each byte is the mean of so many trials by so many cases: failed where most of them are.
        """
        if not positions:
            return b""
        chosen = itemgetter(*positions)
        whole = positions == range(self.columns)
        rows = [self.row(trial, low, high) for trial in trials]
        if not whole:
            rows = [bytes(chosen(row)) if len(positions) > 1 else bytes([chosen(row)]) for row in rows]
        if factor == 1:
            return b"".join(rows)
        tile = bytearray()
        for top in range(0, len(rows), factor):
            block = rows[top : top + factor]
            for left in range(0, len(positions), factor):
                tile.append(_mean(b"".join([row[left : left + factor] for row in block])))
        return bytes(tile)


def _mean(cells: bytes) -> int:
    there = cells.translate(None, b"\x00\x01")
    failed = cells.count(FAILED)
    if failed > len(there):
        return FAILED
    return round(sum(there) / len(there)) if there else NOTHING


def _mark(ledger: Ledger, run: int) -> int:
    return int(ledger.one("SELECT coalesce(max(seq), 0) FROM change WHERE run = ?", (run,))[0])


_FAILED = "failure IS NOT NULL"
_VALUES = {"score": "score", "seconds": "seconds", "cost": "cost", "failure": "0.0"}
