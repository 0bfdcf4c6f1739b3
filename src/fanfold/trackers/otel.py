"""OpenTelemetry spans of a run, its trials and its evaluations, above those of its model calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fanfold.context import enter
from fanfold.errors import MissingExtra
from fanfold.events import Event, RunStarted, RunStopped, TrialTold
from fanfold.tracing import Ended
from fanfold.types import Failed


class Otel:
    """Spans go to the tracer provider of the process; where there is none, over OTLP to the address.

    Without an address the usual variables (OTEL_EXPORTER_OTLP_ENDPOINT) decide.  As in spans of calls, no words of
    candidates, cases or replies are recorded, only numbers and names.
    """

    packages = ("opentelemetry",)
    in_step = True

    def __init__(self, address: str | None) -> None:
        from opentelemetry import trace

        self._own: Any = None
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            self._own = _provider(address)
            trace.set_tracer_provider(self._own)
        self._trace = trace
        self._tracer = trace.get_tracer("fanfold")
        self._run: Any = None
        self._name = ""
        self._trials: dict[int, Any] = {}

    def __repr__(self) -> str:
        return "otel"

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted) and self._run is None:
            facts = {"fanfold.run": event.run_id, "fanfold.study": event.study, "fanfold.executor": event.executor}
            self._run = self._tracer.start_span("run", attributes={**facts, "fanfold.slots": event.slots})
            self._name = event.run_id
            enter(spans=self)  # for the tasks that this task starts from here on
        elif isinstance(event, TrialTold) and (span := self._trials.pop(event.result.number, None)) is not None:
            if event.result.score is not None:
                span.set_attribute("fanfold.score", event.result.score)
            if event.result.dropped is not None:
                span.set_attribute("fanfold.dropped", True)
            span.end()
        elif isinstance(event, RunStopped) and self._run is not None:
            enter(spans=None)
            self._finish(event)

    def close(self) -> None:
        """End what is open; after an error no event does."""
        self._finish(None)
        if self._own is not None:
            self._own.force_flush(10_000)

    @contextlib.contextmanager
    def evaluation(self, trial: int, case: str) -> Iterator[Ended]:
        """The span of an evaluation: the calls made in this block are below it."""
        run, above = self._run, self._trace.set_span_in_context
        if run is None:
            yield lambda outcomes, tries: None
            return
        if trial not in self._trials:
            facts: dict[str, str | int] = {"fanfold.run": self._name, "fanfold.trial": trial}
            self._trials[trial] = self._tracer.start_span(f"trial {trial}", above(run), attributes=facts)
        facts = {"fanfold.run": self._name, "fanfold.trial": trial, "fanfold.case": case}
        with self._tracer.start_as_current_span(
            "evaluation",
            above(self._trials[trial]),
            attributes=facts,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield lambda outcomes, tries: self._describe(span, outcomes, tries)

    def _describe(self, span: Any, outcomes: Any, tries: int) -> None:
        outcome = outcomes[0]
        span.set_attribute("fanfold.tries", tries)
        if len(outcomes) > 1:
            span.set_attribute("fanfold.cells", len(outcomes))
        elif isinstance(outcome, Failed):
            span.set_attribute("error.type", outcome.kind)
            span.set_status(self._trace.StatusCode.ERROR)
        else:
            span.set_attribute("fanfold.score", outcome.score)

    def _finish(self, event: RunStopped | None) -> None:
        for span in self._trials.values():
            span.end()
        self._trials = {}
        if self._run is not None:
            if event is None:
                self._run.set_status(self._trace.StatusCode.ERROR)
            else:
                progress = event.progress
                facts = {"trials": progress.told, "evaluations": progress.evaluations, "failures": progress.failures}
                best = {} if progress.best is None else {"best": progress.best}
                self._run.set_attributes({f"fanfold.{name}": value for name, value in {**facts, **best}.items()})
            self._run.end()
            self._run = None


def _provider(address: str | None) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "opentelemetry-sdk", "otel", "track='otel'") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "fanfold"}))
    endpoint = None if address is None else address if "/v1/" in address else f"{address.rstrip('/')}/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)))
    return provider
