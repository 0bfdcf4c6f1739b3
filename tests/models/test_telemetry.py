"""What others may see of model calls: spans without contents, and counts that never turn the unknown into zero."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fanfold import Case, Study, Sweep
from fanfold.errors import CallFailed
from fanfold.ledger import BatchCounts, CallFacts, ModelCalls, RunView
from fanfold.limits import Limits
from fanfold.models import Model, Price, model
from fanfold.models.prometheus import prometheus
from fanfold.models.providers.anthropic import Anthropic
from fanfold.models.providers.compatible import Compatible
from fanfold.models.providers.openai import OpenAI
from fanfold.models.retry import RetryPolicy
from fanfold.models.simulated import SimulatedTransport
from fanfold.rehearsal import rehearse
from fanfold.simulator import Fault, Faults, Latency, Simulator, SimulatorConfig
from fanfold.testing import run_virtual


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # the official way works once in a process
    yield exporter
    provider.shutdown()


PRICE = Price(1.0, 2.0)


def simulated(*faults: Fault, provider: Any = None, price: Price | None = PRICE, **options: Any) -> Model:
    simulator = Simulator(SimulatorConfig(faults=Faults(faults), latency=Latency(1.0)))
    provider = provider or OpenAI()
    url = "https://api.test" if isinstance(provider, Anthropic) else "https://api.test/v1"
    connect = lambda: SimulatedTransport(simulator)  # noqa: E731
    return Model("some-model", provider, url, Limits(), price, connect=connect, key="sk-secret", **options)


def ask(asked: Model, text: str = "whisper", **parameters: Any) -> Any:
    async def once() -> Any:
        return await asked.generate(text, **parameters)

    return run_virtual(once())


def only(spans: InMemorySpanExporter) -> ReadableSpan:
    (span,) = spans.get_finished_spans()
    return span


@pytest.mark.parametrize("wire", [OpenAI(), Anthropic(), Compatible()], ids=lambda wire: wire.name)
def test_a_call_is_a_span_of_the_genai_conventions(spans: InMemorySpanExporter, wire: Any) -> None:
    reply = ask(simulated(provider=wire), max_tokens=3)
    span = only(spans)
    assert (span.name, span.kind, span.status.status_code) == ("chat some-model", SpanKind.CLIENT, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": wire.name,
        "gen_ai.request.model": "some-model",
        "gen_ai.response.model": "some-model",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": reply.input_tokens,
        "gen_ai.usage.output_tokens": 3,
        "server.address": "api.test",
        "server.port": 443,
        "fanfold.tries": 1,
        "fanfold.cost": reply.cost,
    }


def test_a_plain_completion_says_so_and_an_unknown_cost_is_left_out(spans: InMemorySpanExporter) -> None:
    ask(simulated(provider=Compatible(), price=None, raw=True))
    found = only(spans).attributes or {}
    assert found["gen_ai.operation.name"] == "text_completion" and "fanfold.cost" not in found


def test_a_failed_call_is_a_failed_span_with_the_kind_of_failure(spans: InMemorySpanExporter) -> None:
    asked = simulated(Fault("internal"), again=RetryPolicy(tries=2))
    with pytest.raises(CallFailed):
        ask(asked)
    span = only(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "server"


@pytest.mark.parametrize("faults", [(), (Fault("internal"),)], ids=["good", "failed"])
def test_neither_words_nor_keys_are_recorded(spans: InMemorySpanExporter, faults: Any) -> None:
    said = ""
    try:
        said = ask(simulated(*faults, again=RetryPolicy(tries=1)), "a whisper", system="be discreet").text
    except CallFailed:
        assert faults
    text = only(spans).to_json()
    for word in ("whisper", "discreet", "sk-secret", *([said] if said else [])):
        assert word not in text


def test_an_evaluations_own_span_is_the_parent(spans: InMemorySpanExporter) -> None:
    asked = simulated()

    async def evaluate(candidate: Any, case: Case) -> float:
        with trace.get_tracer("mine").start_as_current_span("mine"):
            await asked.generate("?")
        return 0.0

    run_virtual(Study(Sweep([1]), evaluate).run_async("async")).ledger.close()
    call, mine = spans.get_finished_spans()
    assert call.parent is not None and mine.context is not None
    assert call.parent.span_id == mine.context.span_id


def test_a_rehearsed_call_is_no_call(spans: InMemorySpanExporter) -> None:
    asked = simulated()

    async def evaluate(candidate: Any, case: Case) -> float:
        return len((await asked.generate("?")).text)

    assert rehearse(Study(Sweep([1]), evaluate)).calls == 1
    assert spans.get_finished_spans() == ()


def test_without_a_configured_provider_calls_just_go() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert ask(simulated()).text


def test_without_the_package_nothing_is_traced() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import fanfold.models.model\nfrom fanfold.tracing import observer\nassert observer() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_the_package_is_not_loaded_before_a_call_is_made() -> None:
    code = "import sys, fanfold.models.model; sys.exit('opentelemetry.trace' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def facts_of(asked: Model, executor: str = "async", **how: Any) -> CallFacts:
    async def evaluate(candidate: Any, case: Case) -> float:
        await asked.generate(f"{candidate} {case.id}", max_tokens=4)
        return 0.0

    done = run_virtual(Study(Sweep(range(5)), evaluate, cases=range(4), window=5).run_async(executor, **how))
    try:
        return done.view.calls()
    finally:
        done.ledger.close()


def test_a_runs_calls_are_counted_from_the_ledger() -> None:
    (found,) = facts_of(simulated(Fault("internal", times=2))).models
    assert (found.model, found.calls, found.output_tokens, found.retries) == ("openai/some-model", 20, 80, 2)
    assert found.cost == pytest.approx(Price(1.0, 2.0).cost(found.input_tokens, 80))
    assert found.latency == {0.5: 1.0, 0.9: 1.0, 0.99: 1.0} and found.seconds == pytest.approx(20.0)


@pytest.mark.slow
def test_calls_in_batches_have_no_latency_of_their_own() -> None:
    facts = facts_of(simulated(), "batch:openai")
    (found,) = facts.models
    assert found.calls == found.batched == 20 and found.latency == {}
    assert sum(each.requests for each in facts.batches if each.state == "done") == 20
    text = prometheus("it", facts)
    assert 'fanfold_batch_requests{model="openai/some-model",run="it",state="done"} 20.0' in text.splitlines()


def test_an_unknown_cost_is_never_zero() -> None:
    facts = facts_of(simulated(price=None))
    assert facts.models[0].cost is None and facts.models[0].unpriced == 20
    text = prometheus("it", facts)
    assert "cost" not in text and 'fanfold_calls_unpriced_total{model="openai/some-model",run="it"} 20.0' in text


def test_prometheus_text_needs_no_package_and_its_own_parser_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "prometheus_client", None)
        text = prometheus("it", facts_of(simulated()))
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert families["fanfold_calls"].type == "counter" and families["fanfold_calls"].samples[0].value == 20.0
    assert {sample.name for sample in families["fanfold_call_seconds"].samples} >= {"fanfold_call_seconds_count"}


def test_a_run_without_calls_has_no_facts() -> None:
    async def evaluate(candidate: Any, case: Case) -> float:
        return 0.0

    done = run_virtual(Study(Sweep([1]), evaluate).run_async())
    facts = RunView(done.ledger, 1).calls()
    done.ledger.close()
    assert facts == CallFacts((), ()) and prometheus("it", facts) == ""


LINE = re.compile(r'([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\\n]|\\.)*)"')


@pytest.mark.slow
@given(st.text(), st.text(), st.text(), st.floats(0, 1e6) | st.none())
def test_every_text_survives_as_a_label(run: str, name: str, state: str, cost: float | None) -> None:
    use = ModelCalls(name, 3, 1, 10, 20, cost, 0, 1, 2.5, {0.5: 1.0, 0.9: 1.5, 0.99: 1.5})
    text = prometheus(run, CallFacts((use,), (BatchCounts(name, state, 1, 2),)))
    assert text.endswith("\n")
    samples = [line for line in text.removesuffix("\n").split("\n") if not line.startswith("#")]
    for sample in samples:
        found = LINE.fullmatch(sample)
        assert found is not None, sample
        labels = {
            key: re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)
            for key, value in LABEL.findall(found[2])
        }
        assert labels["run"] == run
        assert labels.get("model", name) == name
        assert labels.get("state", state) == state
        float(found[3])
    declared = {line.split()[2] for line in text.split("\n") if line.startswith("# TYPE")}
    assert {re.sub(r"_(sum|count)$", "", sample.split("{")[0]) for sample in samples} == declared


def test_a_simulated_model_by_name_is_counted_like_any_other() -> None:
    (found,) = facts_of(model("simulated/gpt-6-luna")).models
    assert found.calls == 20 and found.cost is not None and found.cost > 0
