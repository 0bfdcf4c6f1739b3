"""What model calls do, for those who watch: OpenTelemetry spans as they happen, and a run's counts from the ledger."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Mapping
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
