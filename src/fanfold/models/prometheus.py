"""The model calls of a run as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from fanfold.errors import MissingExtra
from fanfold.ledger import CallFacts

_COUNTERS = {
    "calls": ("fanfold_calls", "Model calls that were answered and paid for."),
    "batched": ("fanfold_calls_batched", "Those of them that were sent in a provider batch."),
    "input_tokens": ("fanfold_call_input_tokens", "Tokens sent."),
    "output_tokens": ("fanfold_call_output_tokens", "Tokens received."),
    "cost": ("fanfold_call_cost_usd", "US dollars paid, as far as prices are known."),
    "unpriced": ("fanfold_calls_unpriced", "Calls whose price is not known."),
    "retries": ("fanfold_call_retries", "Tries beyond the first."),
    "cached": ("fanfold_calls_cached", "Calls answered from the ledger."),
    "shared": ("fanfold_calls_shared", "Calls answered by an equal one in flight."),
    "failed": ("fanfold_calls_failed", "Calls that gave no reply."),
    "refused": ("fanfold_calls_refused", "Requests refused for a rate limit (429)."),
}


def prometheus(run: str, facts: CallFacts) -> str:
    """The facts of a run in the text format that Prometheus scrapes."""
    try:
        from prometheus_client import Metric, generate_latest
    except ImportError as error:
        raise MissingExtra("prometheus-client", "prometheus", "--prometheus") from error
    metrics = {name: Metric(name, text, "counter") for name, text in _COUNTERS.values()}
    for name, kind, text in (
        ("fanfold_limit_utilisation", "gauge", "Share of the known rate limit that was used."),
        ("fanfold_call_seconds", "summary", "Seconds from sending a call to its reply, the last try only."),
        ("fanfold_batches", "gauge", "Provider batches by state."),
        ("fanfold_batch_requests", "gauge", "Calls in provider batches by the batch's state."),
    ):
        metrics[name] = Metric(name, text, kind)
    for name, suffix, labels, value in _samples(facts):
        metrics[name].add_sample(name + suffix, {"run": run, **labels}, value)
    registry: Any = SimpleNamespace(collect=lambda: [metric for metric in metrics.values() if metric.samples])
    return generate_latest(registry).decode()


def _samples(facts: CallFacts) -> Iterator[tuple[str, str, dict[str, Any], float]]:
    """Name, suffix, labels and value of every sample."""
    for calls in facts.models:
        model = {"model": calls.model}
        for attribute, (name, _) in _COUNTERS.items():
            if (value := getattr(calls, attribute, None)) is not None:
                yield name, "_total", model, value
        for share, seconds in calls.latency.items():
            yield "fanfold_call_seconds", "", {**model, "quantile": f"{share:g}"}, seconds
        if calls.latency:
            yield "fanfold_call_seconds", "_sum", model, calls.seconds
            yield "fanfold_call_seconds", "_count", model, calls.calls - calls.batched
    for attribute in ("cached", "shared", "failed", "refused"):
        if facts.models or getattr(facts.counts, attribute):
            yield _COUNTERS[attribute][0], "_total", {}, getattr(facts.counts, attribute)
    for name, share in facts.counts.utilisation.items():
        yield "fanfold_limit_utilisation", "", {"model": name}, share
    for batch in facts.batches:
        labels = {"model": batch.model, "state": batch.state}
        yield "fanfold_batches", "", labels, batch.batches
        yield "fanfold_batch_requests", "", labels, batch.requests
