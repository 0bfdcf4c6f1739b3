"""What model calls do, for those who watch: OpenTelemetry spans as they happen, and a run's counts from the ledger."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fanfold.calls import REHEARSAL, Call, CallBroker, Metrics, Send, Sent, counted
from fanfold.errors import CallFailed
from fanfold.ledger import Ledger

if TYPE_CHECKING:
    from opentelemetry.trace import Span

QUANTILES = (0.5, 0.9, 0.99)


def install() -> None:
    """Trace calls if the package `opentelemetry-api` is installed; without it, tracing costs nothing."""
    if importlib.util.find_spec("opentelemetry") is not None:
        CallBroker.observe = staticmethod(traced)


async def traced(call: Call, send: Send) -> Sent:
    """Send a call inside a span of the GenAI conventions.  What was said is not recorded, only how much of it.

    The span also covers the wait for the limiter and all tries.  A rehearsed call is none.
    """
    tracer = _tracer()
    if tracer is None or REHEARSAL.get() is not None:
        return await send(call)
    from opentelemetry.trace import SpanKind, StatusCode

    request = _request(call)
    name = f"{request['gen_ai.operation.name']} {request['gen_ai.request.model']}"
    with tracer.start_as_current_span(
        name, kind=SpanKind.CLIENT, attributes=request, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            sent = await send(call)
        except BaseException as error:
            # Not the message: a provider may quote the request in it.
            span.set_attribute("error.type", error.kind if isinstance(error, CallFailed) else type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise
        _describe(span, sent)
        return sent


def _tracer() -> Any:
    """A tracer, or None while no provider of any is configured."""
    from opentelemetry import trace

    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer("fanfold")


@functools.lru_cache(256)
def _place(endpoint: str) -> Mapping[str, str | int]:
    parts = urlsplit(endpoint)
    plain = parts.path.endswith("/completions") and not parts.path.endswith("/chat/completions")
    found: dict[str, str | int] = {"gen_ai.operation.name": "text_completion" if plain else "chat"}
    if parts.hostname:
        found["server.address"] = parts.hostname
        found["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return found


def _request(call: Call) -> dict[str, str | int]:
    provider, _, name = call.model.partition("/")
    return {**_place(call.endpoint), "gen_ai.provider.name": provider, "gen_ai.request.model": name}


def _describe(span: Span, sent: Sent) -> None:
    reply = sent.reply
    span.set_attribute("gen_ai.response.model", reply.model)
    span.set_attribute("gen_ai.response.finish_reasons", [reply.finish])
    span.set_attribute("gen_ai.usage.input_tokens", reply.input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", reply.output_tokens)
    span.set_attribute("fanfold.tries", sent.tries)
    if reply.cost is not None:
        span.set_attribute("fanfold.cost", reply.cost)
    if sent.batch is not None:
        span.set_attribute("fanfold.batch", sent.batch)


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """A run's paid calls to one model.

    `cost` is that of the calls whose price is known, None where that is none; `unpriced` counts the others.  `latency`
    has the quantiles of calls that did not travel in a batch, in seconds.
    """

    model: str
    calls: int
    batched: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    unpriced: int
    retries: int
    seconds: float
    latency: Mapping[float, float]


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """A run's provider batches to one model in one state."""

    model: str
    state: str
    batches: int
    requests: int


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a run asked of models; empty for a run that asked none."""

    models: tuple[ModelCalls, ...]
    batches: tuple[BatchCounts, ...]
    counts: Metrics = field(default_factory=Metrics)

    @classmethod
    def of(cls, ledger: Ledger, run: int) -> CallFacts:
        sums = (
            "SELECT model, count(*), count(batch), coalesce(sum(input_tokens), 0), coalesce(sum(output_tokens), 0), "
            "sum(cost), count(*) - count(cost), sum(max(tries - 1, 0)), "
            "total(CASE WHEN batch IS NULL THEN seconds END) FROM payment WHERE run = ? GROUP BY model ORDER BY model"
        )
        counts = (
            "SELECT model, state, count(*), sum(requests) FROM batch WHERE run = ? "
            "GROUP BY model, state ORDER BY model, state"
        )
        rows = list(ledger.read(sums, (run,)))
        latencies = [_latency(ledger, run, model, calls - batched) for model, calls, batched, *_ in rows]
        models = [ModelCalls(*values) for values in ((*row, latency) for row, latency in zip(rows, latencies))]
        batches = tuple(BatchCounts(*row) for row in ledger.read(counts, (run,)))
        return cls(tuple(models), batches, counted(ledger, run))


def _latency(ledger: Ledger, run: int, model: str, count: int) -> dict[float, float]:
    sql = "SELECT seconds FROM payment WHERE run = ? AND model = ? AND batch IS NULL ORDER BY seconds LIMIT 1 OFFSET ?"
    places = {share: math.ceil(share * count) - 1 for share in QUANTILES} if count else {}
    return {share: ledger.one(sql, (run, model, place))[0] for share, place in places.items()}


_COUNTERS = {
    "calls": "Model calls that were answered and paid for.",
    "batched": "Those of them that travelled in a provider batch.",
    "input_tokens": "Tokens sent.",
    "output_tokens": "Tokens received.",
    "cost": "US dollars paid, as far as prices are known.",
    "unpriced": "Calls whose price is not known.",
    "retries": "Tries beyond the first.",
}
_DESK_COUNTERS = {
    "cached": "Calls answered from the ledger.",
    "shared": "Calls answered by an equal one in flight.",
    "failed": "Calls that gave no reply.",
    "refused": "Requests refused for a rate limit (429).",
}
_NAMES = {
    "calls": "fanfold_calls_total",
    "cost": "fanfold_call_cost_usd_total",
    **{name: f"fanfold_call_{name}_total" for name in ("input_tokens", "output_tokens", "retries")},
    **{name: f"fanfold_calls_{name}_total" for name in ("batched", "unpriced")},
}


def prometheus(run: str, facts: CallFacts) -> str:
    """The facts of a run as Prometheus reads them."""
    lines = [line for name in _COUNTERS for line in _counter(run, name, facts.models)]
    for name, text in _DESK_COUNTERS.items():
        if facts.models or getattr(facts.counts, name):
            lines += _head(f"fanfold_calls_{name}_total", "counter", text)
            lines.append(_sample(f"fanfold_calls_{name}_total", {"run": run}, getattr(facts.counts, name)))
    if facts.counts.utilisation:
        lines += _head("fanfold_limit_utilisation", "gauge", "Share of the known rate limit that was used.")
    for model, used in facts.counts.utilisation.items():
        lines.append(_sample("fanfold_limit_utilisation", {"run": run, "model": model}, used))
    if any(each.latency for each in facts.models):
        lines += _head(
            "fanfold_call_seconds", "summary", "Seconds from sending a call to its reply, the last try only."
        )
    for each in facts.models:
        labels = {"run": run, "model": each.model}
        for share, seconds in each.latency.items():
            lines.append(_sample("fanfold_call_seconds", {**labels, "quantile": f"{share:g}"}, seconds))
        if each.latency:
            lines.append(_sample("fanfold_call_seconds_sum", labels, each.seconds))
            lines.append(_sample("fanfold_call_seconds_count", labels, each.calls - each.batched))
    for name, column, text in (
        ("fanfold_batches", "batches", "Provider batches by state."),
        ("fanfold_batch_requests", "requests", "Calls in provider batches by the batch's state."),
    ):
        lines += _head(name, "gauge", text) if facts.batches else []
        for batch in facts.batches:
            labels = {"run": run, "model": batch.model, "state": batch.state}
            lines.append(_sample(name, labels, getattr(batch, column)))
    return "".join(f"{line}\n" for line in lines)


def _counter(run: str, name: str, models: tuple[ModelCalls, ...]) -> Iterator[str]:
    found = [(each.model, getattr(each, name)) for each in models]
    known = [(model, value) for model, value in found if value is not None]
    if known:
        yield from _head(_NAMES[name], "counter", _COUNTERS[name])
    for model, value in known:
        yield _sample(_NAMES[name], {"run": run, "model": model}, value)


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
