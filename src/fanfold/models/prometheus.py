"""The model calls of a run as Prometheus text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

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


KINDS = {
    "fanfold_limit_utilisation": ("gauge", "Share of the known rate limit that was used."),
    "fanfold_call_seconds": ("summary", "Seconds from sending a call to its reply, the last try only."),
    "fanfold_batches": ("gauge", "Provider batches by state."),
    "fanfold_batch_requests": ("gauge", "Calls in provider batches by the batch's state."),
    **{name: ("counter", text) for name, text in _COUNTERS.values()},
}

#: Name, suffix, labels and value.
Sample: TypeAlias = tuple[str, str, dict[str, Any], float]


def prometheus(run: str, facts: CallFacts) -> str:
    """The facts of a run in the text format that Prometheus scrapes."""
    return exposition(KINDS, samples(run, facts))


def exposition(kinds: Mapping[str, tuple[str, str]], values: Iterable[Sample]) -> str:
    """Samples by their metric, each with its kind and what it means."""
    lines: dict[str, list[str]] = {}
    for name, suffix, labels, value in values:
        shown = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in sorted(labels.items()))
        lines.setdefault(name, []).append(f"{name}{suffix}{{{shown}}} {float(value)!r}\n")
    metrics = ((name, *kinds[name], rows) for name, rows in lines.items())
    return "".join(
        f"# HELP {name}{'_total' * (kind == 'counter')} {text}\n# TYPE {name}{'_total' * (kind == 'counter')} {kind}\n"
        + "".join(rows)
        for name, kind, text, rows in metrics
    )


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def samples(run: str, facts: CallFacts) -> Iterator[Sample]:
    """What is known of the calls of a run."""
    for name, suffix, labels, value in _samples(facts):
        yield name, suffix, {"run": run, **labels}, value


def _samples(facts: CallFacts) -> Iterator[Sample]:
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
