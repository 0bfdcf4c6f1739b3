"""The model calls of a run: by model, by batch, and those of one cell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fanfold.ledger import queries
from fanfold.ledger.batches import batches
from fanfold.ledger.reading import RunRows
from fanfold.ledger.records import BatchCounts, BatchRow, CallFacts, CallRow, Metrics, ModelCalls, WaveRow
from fanfold.ledger.spending import Spending, belonging
from fanfold.ledger.timeline import QUANTILES

#: Bytes of a call's key.
KEY = 16


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a page shows of a reply."""

    text: str = ""
    finish: str = "stop"
    refusal: str | None = None
    cached_tokens: int = 0


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

    def calls_of(self, trial: int, position: int) -> list[CallRow] | None:
        """The model calls of a cell in the order of their replies; None in a run that did not record them.

        Those of a reused cell are the calls of the one it was taken from.
        """
        for keys, cached, end in self.ledger.read(queries.CALLED, (self.id, trial, position)):
            return self._call_rows(keys, cached, end)
        for keys, _, end in self.ledger.read(queries.CALLED_FOR_ANOTHER, (self.id, trial, position)):
            return self._call_rows(keys, b"\1" * (len(keys) // KEY), end)
        recorded = list(self.ledger.read("SELECT 1 FROM cell_call WHERE run = ? LIMIT 1", (self.id,)))
        counts = self.counts()
        return None if not recorded and (counts.calls or counts.cached or counts.shared) else []

    def count_calls(self, trial: int) -> int:
        """How many model calls the evaluations of a trial made."""
        sql = f"SELECT coalesce(sum(length(keys)), 0) / {KEY} FROM cell_call WHERE run = ? AND trial = ?"
        return int(self.ledger.one(sql, (self.id, trial))[0])

    def _call_rows(self, keys: bytes, cached: bytes, end: float | None) -> list[CallRow]:
        rows = [
            (bool(held), row)
            for number, held in enumerate(cached)
            for row in list(self.ledger.read(queries.CALL, (keys[number * KEY : (number + 1) * KEY],)))
        ]
        return [self._call_row(held, end, *row) for held, row in rows]

    def _call_row(self, cached: bool, end: float | None, model: str, request: Any, reply: Any, *rest: Any) -> CallRow:
        answer = self.ledger.value(reply, _Answer, what="a reply")
        input_tokens, output_tokens, cost, started, seconds, tries, batch = rest
        return CallRow(
            model=model,
            request=self.ledger.value(request, what="a request"),
            text=answer.text or answer.refusal or "",
            finish=answer.finish,
            input_tokens=input_tokens or 0,
            output_tokens=output_tokens or 0,
            cached_tokens=answer.cached_tokens,
            cost=0.0 if cached else cost,
            started=started,
            seconds=seconds,
            tries=tries,
            cached=cached,
            batch=batch,
            again=end is not None and started > end,
        )

    def counts(self) -> Metrics:
        """Counts of the run's calls, such as cache hits and refusals."""
        for (counts,) in self.ledger.read("SELECT counts FROM desk WHERE run = ?", (self.id,)):
            return self.ledger.value(counts, Metrics, what=f"the counts of run {self.id}")  # type: ignore[no-any-return]
        return Metrics()

    def costs(self, *, siblings: bool = True) -> Spending:
        """What the run has paid for model calls, together with its siblings or alone."""
        runs = belonging(self.ledger, self.id) if siblings else [self.id]
        return Spending.of(self.ledger, *runs)

    def cost(self) -> float:
        """What the run and its siblings cost: their model calls, and what their evaluations report themselves."""
        return sum(self.ledger.info(run).cost for run in belonging(self.ledger, self.id))

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
