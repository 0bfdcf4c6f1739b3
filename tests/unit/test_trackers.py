"""Trackers by name: they see what happens, and whatever they do, a run is the same with them and without."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from fanfold import Case, MaxTrials, Study, Sweep, trackers
from fanfold.cli.options import ShellOptions
from fanfold.errors import ConfigError, MissingExtra
from fanfold.events import Event, RunConcluded, RunStarted, RunStopped, TrialTold
from fanfold.models import model
from fanfold.summary import Summary


def score(candidate: int, case: Case) -> float:
    if candidate == 3:
        raise ValueError("three")
    return candidate / 10


async def ask(candidate: int, case: Case) -> float:
    await model("simulated/gpt-6-luna").generate(f"{candidate} {case.id}", max_tokens=4)
    return candidate / 10


def study(evaluate: Any = score, trials: int = 6, **more: Any) -> Study[int]:
    return Study(Sweep(range(20)), evaluate, cases=range(2), stop=MaxTrials(trials), name="small", **more)


@pytest.fixture
def bring(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers a factory of a tracker, as an installed package would."""

    def bring(name: str, factory: Any) -> None:
        globals()["_factory_" + name] = factory
        entry = EntryPoint(name, f"{__name__}:_factory_{name}", trackers.GROUP)
        known = {**trackers.known_trackers(), name: entry}
        monkeypatch.setattr(trackers, "known_trackers", lambda: known)

    return bring


def traced(**how: Any) -> str:
    run = study().run(**how)
    run.ledger.close()
    return run.trace


# -- whatever a tracker does ------------------------------------------------------------------------------------------


def fails_when_made(address: str | None) -> Any:
    raise RuntimeError("no server")


def fails_at_events(address: str | None) -> Any:
    def watch(event: Event) -> None:
        raise RuntimeError("no disk")

    return watch


class FailsAtTheEnd:
    def __init__(self, address: str | None) -> None: ...

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None:
        raise RuntimeError("cannot close")


@pytest.mark.parametrize(
    "factory", [fails_when_made, fails_at_events, FailsAtTheEnd], ids=lambda factory: factory.__name__
)
def test_a_tracker_that_raises_is_left_out_with_a_warning(bring: Callable[..., None], factory: Any) -> None:
    bring("broken", factory)
    with pytest.warns(UserWarning, match="broken"):
        assert traced(track="broken") == traced()


def test_a_tracker_that_hangs_holds_nobody_up(bring: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = threading.Event()
    bring("stuck", lambda address: lambda event: stuck.wait())
    monkeypatch.setattr(trackers, "GRACE", 0.05)
    monkeypatch.setattr(trackers, "MOST", 3)
    try:
        with pytest.warns(UserWarning, match=r"did not take everything within 0.05 s.*events were left out"):
            assert traced(track=["stuck"]) == traced()
    finally:
        stuck.set()


def test_a_slow_tracker_gets_everything_before_the_run_returns(bring: Callable[..., None]) -> None:
    events: list[Event] = []

    def slowly(event: Event) -> None:
        time.sleep(0.02)
        events.append(event)

    bring("slow", lambda address: slowly)
    study().run(track="slow").ledger.close()
    assert isinstance(events[-1], RunStopped) and sum(isinstance(event, TrialTold) for event in events) == 6


def test_dropping_every_event_changes_no_result(bring: Callable[..., None]) -> None:
    bring("deaf", lambda address: lambda event: None)
    assert traced(track="deaf,deaf") == traced()


def test_a_tracker_is_told_the_run_its_settings_and_its_end(bring: Callable[..., None], tmp_path: Path) -> None:
    events: list[Event] = []
    addresses: list[str | None] = []

    def make(address: str | None) -> Any:
        addresses.append(address)
        return events.append

    async def conclude(run: Any, go: Any) -> Summary:
        (await go("more", study(trials=1))).ledger.close()
        return Summary({"held_out": 0.5})

    bring("mine", make)
    asked = study(conclude=conclude)
    for limit in (4, 6):
        asked.run(
            ledger=tmp_path / "runs.db",
            run="it",
            max_trials=limit,
            track="mine:http://somewhere:80/x",
            meta={"fields": {"size": 3}},
        ).ledger.close()
    assert addresses == ["http://somewhere:80/x"] * 2
    started = [event for event in events if isinstance(event, RunStarted) and event.run_id == "it"]
    assert [(event.study, event.settings, event.resumed, event.told) for event in started] == [
        ("small", {"size": 3}, False, 0),
        ("small", {"size": 3}, True, 4),
    ]
    concluded = [event for event in events if isinstance(event, RunConcluded)]
    assert [(event.run_id, event.figures) for event in concluded] == [("it", {"held_out": 0.5})] * 2


# -- what is refused --------------------------------------------------------------------------------------------------


def test_an_unknown_tracker_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no tracker 'tensorbord'; did you mean 'tensorboard'"):
        study().run(track="tensorbord", ledger=tmp_path / "runs.db")
    assert not (tmp_path / "runs.db").exists()


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard", "otel"])
def test_a_missing_package_is_named_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(MissingExtra, match=rf"pip install 'fanfold\[{name}\]'"):
        study().run(track=name)


def test_a_ledger_cannot_say_where_figures_are_sent() -> None:
    assert "track" not in ShellOptions(track=("mlflow:http://stranger",)).recorded()


# -- TensorBoard ------------------------------------------------------------------------------------------------------


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.mark.slow
def test_tensorboard_shows_a_run_of_any_study_and_a_resumed_one_once(tmp_path: Path) -> None:
    how: dict[str, Any] = {"ledger": tmp_path / "runs.db", "run": "it", "track": f"tensorboard:{tmp_path}/runs"}
    study().run(max_trials=4, **how).ledger.close()
    study().run(max_trials=6, **how).ledger.close()
    read = scalars(tmp_path / "runs" / "it")
    assert [step for step, _ in read["best"]] == [1, 2, 3, 4, 5, 6]
    assert read["score"] == [(step, pytest.approx((step - 1) / 10)) for step in (1, 2, 3, 5, 6)]  # one has failed
    assert read["failures"][-1] == (6, 2.0)


@pytest.mark.slow
def test_a_study_with_a_conclusion_has_its_figures_in_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from fanfold.cli import cli

    monkeypatch.chdir(tmp_path)
    words = "run prompts --model simulated/echo --calls 20 --run it --track tensorboard --quiet"
    assert CliRunner().invoke(cli, words.split()).exit_code == 0
    read = scalars(tmp_path / "runs" / "it")
    assert 0 <= read["summary/held_out.accuracy"][0][1] <= 1


# -- OpenTelemetry ----------------------------------------------------------------------------------------------------


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # the official way works once in a process
    yield exporter
    provider.shutdown()


def above(span: ReadableSpan, all: list[ReadableSpan]) -> str | None:
    """The name of the span above."""
    named = {each.context.span_id: each.name for each in all if each.context is not None}
    return None if span.parent is None else named[span.parent.span_id]


@pytest.mark.parametrize("executor", ["async:4", "threads:2", pytest.param("processes:2", marks=pytest.mark.slow)])
def test_calls_are_below_evaluations_below_trials_below_the_run(spans: InMemorySpanExporter, executor: str) -> None:
    study(ask, 3).run(executor, track="otel", run="it").ledger.close()
    all = list(spans.get_finished_spans())
    tree = sorted({(span.name, above(span, all)) for span in all}, key=str)
    assert tree == sorted(
        [
            ("run", None),
            *((f"trial {number}", "run") for number in range(3)),
            *(("evaluation", f"trial {number}") for number in range(3)),
            ("chat gpt-6-luna", "evaluation"),
        ],
        key=str,
    )
    assert sum(span.name == "evaluation" for span in all) == 6
    (run,) = [span for span in all if span.name == "run"]
    facts = dict(run.attributes or {})
    assert facts["fanfold.run"] == "it" and facts["fanfold.trials"] == 3 and facts["fanfold.best"] == 0.2


def test_a_failed_evaluation_is_a_failed_span_without_its_words(spans: InMemorySpanExporter) -> None:
    study().run(track="otel").ledger.close()
    failed = [span for span in spans.get_finished_spans() if span.status.status_code is StatusCode.ERROR]
    assert [dict(span.attributes or {})["error.type"] for span in failed] == ["error", "error"]
    assert all("three" not in span.to_json() for span in spans.get_finished_spans())


def test_without_the_tracker_only_calls_are_spans(spans: InMemorySpanExporter) -> None:
    study(ask, 1).run("async", track="otel").ledger.close()
    spans.clear()
    study(ask, 1).run("async").ledger.close()
    assert {span.name for span in spans.get_finished_spans()} == {"chat gpt-6-luna"}


def test_a_tracer_that_raises_harms_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    from fanfold.trackers.otel import Otel

    def broken(self: Any, *facts: Any, **more: Any) -> Any:
        raise RuntimeError("no spans today")

    plain = traced()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    monkeypatch.setattr(Otel, "_describe", broken)
    assert traced(track="otel") == plain
    monkeypatch.setattr(Otel, "evaluation", broken)
    with warnings.catch_warnings():
        assert traced(track="otel") == plain
