"""The model calls of a run: by model, by batch, and those of one cell."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fanfold.ledger import queries
from fanfold.ledger.batches import batches
from fanfold.ledger.reading import RunRows
from fanfold.ledger.records import BatchCounts, BatchRow, CallFacts, Metrics, ModelCalls, WaveRow
from fanfold.ledger.spending import Spending, belonging
from fanfold.ledger.timeline import QUANTILES


class CallReads(RunRows):
    """What `RunView` reads of model calls."""

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

    def _latency(self, model: str, count: int) -> Mapping[float, float]:
        sql = (
            "SELECT seconds FROM payment WHERE run = ? AND model = ? AND batch IS NULL "
            "ORDER BY seconds LIMIT 1 OFFSET ?"
        )
        places = {share: math.ceil(share * count) - 1 for share in QUANTILES} if count else {}
        return {share: self.ledger.one(sql, (self.id, model, place))[0] for share, place in places.items()}
