"""The Work page: what ran where and when, how fast, on which limits, in which batches, for how much."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fanfold.ledger import CallFacts, RunView
from fanfold.ledger.spending import cost_text
from fanfold.report.pages.parts import Payload, ShownRun, finite

#: Rows of a table.
MOST = 500


def work(shown: ShownRun) -> Payload:
    """Everything about the machine's side of a run."""
    view = shown.view
    slots, throughput, calls = view.slots(), view.throughput(), view.calls()
    return {
        "slots": {"count": slots.count, "spans": [asdict(span) for span in slots.spans], "thinned": slots.left_out},
        "throughput": {
            "seconds": list(throughput.seconds),
            "evaluations": list(throughput.evaluations),
            "calls": list(throughput.calls),
        },
        "money": {"seconds": list(throughput.seconds), "cost": list(throughput.cost)},
        "latency": _latencies(view, calls),
        "models": _models(calls),
        "counts": _counts(calls),
        "batches": _batches(view),
        "waves": _waves(view),
        "sections": [],
    }


def _latencies(view: RunView, calls: CallFacts) -> list[Payload]:
    timings = view.timings()
    rows = [("evaluation", timings.quantiles, timings.evaluations)]
    rows += [(model.model, model.latency, model.calls - model.batched) for model in calls.models]
    return [
        {"name": name, "count": count, **{f"p{share * 100:g}": finite(at) for share, at in quantiles.items()}}
        for name, quantiles, count in rows
        if quantiles
    ]


def _models(calls: CallFacts) -> Payload:
    columns = ["model", "calls", "in batches", "input tokens", "output tokens", "cost", "retries", "share of the limit"]
    rows: list[list[Any]] = [
        [
            *(model.model, model.calls, model.batched, model.input_tokens, model.output_tokens),
            cost_text(model.cost or 0.0, model.unpriced, model.calls),
            model.retries,
            finite(calls.counts.utilisation.get(model.model)),
        ]
        for model in calls.models
    ]
    return {"columns": columns, "rows": rows}


def _counts(calls: CallFacts) -> list[Payload]:
    names = {
        "cached": "calls answered from the ledger",
        "shared": "calls answered by an equal one in flight",
        "failed": "calls without a reply",
        "retries": "tries beyond the first",
        "refused": "requests refused for a rate limit",
        "lost": "tries that got no reply although they were sent",
    }
    counts = [{"name": words, "value": getattr(calls.counts, name)} for name, words in names.items()]
    return [count for count in counts if count["value"]]


def _batches(view: RunView) -> Payload:
    rows = [
        [batch.tag, batch.model, batch.state, batch.requests, batch.created, batch.remote or "", batch.note or ""]
        for batch in view.batches()[-MOST:]
    ]
    return {"columns": ["batch", "model", "state", "calls", "made", "the provider's id", "note"], "rows": rows}


def _waves(view: RunView) -> Payload:
    rows = [
        [wave.number, wave.model, wave.state, wave.requests, wave.answered, finite(wave.seconds)]
        for wave in view.waves()[-MOST:]
    ]
    return {"columns": ["wave", "model", "state", "calls", "answered", "seconds"], "rows": rows}
