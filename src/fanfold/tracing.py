"""OpenTelemetry spans of model calls and evaluations, where the package `opentelemetry-api` is installed."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

from fanfold.context import here
from fanfold.errors import CallFailed
from fanfold.flights import Call, Send, Sent
from fanfold.types import Outcome

if TYPE_CHECKING:
    from opentelemetry.trace import Span

#: Sends a call and tells a tracer about it.
Observe: TypeAlias = "Callable[[Call, Send], Awaitable[Sent]]"
#: Tells the span of an evaluation its outcomes, and after how many tries.
Ended: TypeAlias = "Callable[[Sequence[Outcome], int], None]"


class Spans(Protocol):
    """What gives the evaluations of a run their spans."""

    def evaluation(self, trial: int, case: str) -> AbstractContextManager[Ended]: ...


Evaluated = TypeVar("Evaluated")


@functools.cache
def observer() -> Observe | None:
    """What traces calls; None without the package, so that tracing costs nothing."""
    return None if importlib.util.find_spec("opentelemetry") is None else traced


async def spanned(spans: Spans, trial: int, case: str, work: Awaitable[Evaluated]) -> Evaluated:
    """Do the work of an evaluation inside a span.  What goes wrong with the span is not the evaluation's business."""
    ended: Ended | None = None
    with suppress(Exception):
        span = spans.evaluation(trial, case)
        ended = span.__enter__()
    tried: Any = None
    try:
        tried = await work
        return tried  # type: ignore[no-any-return]
    finally:
        if ended is not None:
            with suppress(Exception):
                if tried is not None:
                    ended(tried.outcomes, tried.tries)
            with suppress(Exception):
                span.__exit__(None, None, None)


def traced(call: Call, send: Send) -> Awaitable[Sent]:
    """Send a call inside a span of the GenAI conventions.  What was said is not recorded, only how much of it.

    The span also covers the wait for the limiter and all tries.  A rehearsed call is none.
    """
    tracer = _tracer()
    return send(call) if tracer is None or here().rehearsal is not None else _in_span(tracer, call, send)


async def _in_span(tracer: Any, call: Call, send: Send) -> Sent:
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
    trace = _opentelemetry()
    # While none is set, `get_tracer_provider` looks for one in the environment: too dear for every call.
    if getattr(trace, "_TRACER_PROVIDER", trace) is None and not _named():
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return trace.get_tracer("fanfold")


@functools.cache
def _opentelemetry() -> Any:
    from opentelemetry import trace

    return trace


@functools.cache
def _named() -> bool:
    """Whether the environment names a provider."""
    return "OTEL_PYTHON_TRACER_PROVIDER" in os.environ


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
