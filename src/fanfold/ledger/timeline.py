"""When a run did what: how long evaluations took, which ran beside each other, and how many per second."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

from fanfold.ledger import queries
from fanfold.ledger.page_records import Span, Throughput, WorkSlots
from fanfold.ledger.reading import RunRows, number_of
from fanfold.ledger.records import Timings

QUANTILES = (0.5, 0.9, 0.99)
#: Evaluations that are looked at; of a larger run, those of every n-th trial stand for all.
MOST = 10_000


class _Took(NamedTuple):
    """An evaluation that was run, and when."""

    start: float
    seconds: float
    trial: int
    position: int
    failed: int
    tries: int

    @property
    def end(self) -> float:
        return self.start + self.seconds


class TimelineReads(RunRows):
    """What `RunView` reads of time."""

    def timings(self) -> Timings:
        """How long evaluations took; of a very large run, estimated from some of its trials."""
        every, rows = self._sample()
        if not rows:
            return Timings()
        seconds = sorted(row.seconds for row in rows)
        quantiles = {share: seconds[math.ceil(share * len(seconds)) - 1] for share in QUANTILES}
        ends = (min(row.start for row in rows), max(row.end for row in rows))
        return Timings(len(rows) * every, math.fsum(seconds) * every, quantiles, *ends)

    def times(self) -> Iterator[tuple[int, int, float, float]]:
        """Trial, position of the case, start and seconds of every evaluation."""
        sql = "SELECT trial, position, started, seconds FROM evaluation WHERE run = ? ORDER BY trial, position"
        yield from self.ledger.read(sql, (self.id,))

    def slots(self, first: float = 0.0, last: float = math.inf, most: int = 3000) -> WorkSlots:
        """The evaluations that ran between two moments (seconds since the run began), each on a slot that was free.

        Where there are more than `most`, those that took longest, failed or were tried again are shown.
        """
        began = self._began()
        sql = f"{queries.TOOK} ORDER BY trial DESC, position DESC LIMIT ?"
        rows = sorted(self._took(sql, (self.id, MOST)))
        free, busy, spans, count = list[int](), list[tuple[float, int]](), list[Span](), 0
        for row in rows:
            while busy and busy[0][0] <= row.start + 1e-4:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                slot = heapq.heappop(free)
            else:
                slot, count = count, count + 1
            heapq.heappush(busy, (row.end, slot))
            start, end = row.start - began, row.end - began
            if end >= first and start <= last:
                spans.append(Span(slot, start, end, row.trial, row.position, bool(row.failed), row.tries))
        shown = sorted(spans, key=lambda span: (span.failed, span.tries > 1, span.end - span.start), reverse=True)[
            :most
        ]
        shown.sort(key=lambda span: span.start)
        return WorkSlots(count, tuple(shown), len(spans) - len(shown))

    def throughput(self, bins: int = 100) -> Throughput:
        """How many evaluations and model calls ended per second, and the cost of calls so far, in `bins` parts."""
        every, rows = self._sample()
        began = self._began()
        last = max((row.end for row in rows), default=began)
        (paid,) = self.ledger.one("SELECT max(at + seconds) FROM payment WHERE run = ?", (self.id,))
        step = max(1e-3, (max(last, number_of(paid) or 0.0) - began) / bins)
        evaluations, calls, cost = [0.0] * bins, [0.0] * bins, [0.0] * bins
        for row in rows:
            evaluations[_bin(row.end - began, step, bins)] += every / step
        for place, count, amount in self.ledger.read(queries.PAID_BY_TIME, (began, step, self.id)):
            calls[_bin(place * step, step, bins)] += count / step
            cost[_bin(place * step, step, bins)] += amount
        for place in range(1, bins):
            cost[place] += cost[place - 1]
        ends = tuple(step * (place + 1) for place in range(bins))
        return Throughput(ends, tuple(evaluations), tuple(calls), tuple(cost))

    def _began(self) -> float:
        return float(self.ledger.one("SELECT created FROM run WHERE id = ?", (self.id,))[0])

    def _sample(self) -> tuple[int, list[_Took]]:
        """Evaluations that were run: of every n-th trial, so that they are not too many; and that n."""
        cells, trials = self.ledger.one(queries.SIZE, (self.id,))
        every = -(-cells // MOST) or 1
        if every == 1:
            return 1, self._took(queries.TOOK, (self.id,))
        numbers = str(list(range(0, trials, every)))
        sql = f"{queries.TOOK} AND trial IN (SELECT value FROM json_each(?))"
        return every, self._took(sql, (self.id, numbers))

    def _took(self, sql: str, parameters: tuple[object, ...]) -> list[_Took]:
        return list(map(_Took._make, self.ledger.read(sql, parameters)))


def _bin(at: float, step: float, bins: int) -> int:
    return min(max(int(at / step), 0), bins - 1)
