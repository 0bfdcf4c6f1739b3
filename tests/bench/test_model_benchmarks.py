"""That the benchmarks of model calls and limits run on tiny sizes and give numbers that can be true."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def url(on_the_path: None) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "fanfold.simulator",
        "--port",
        "0",
        "--latency",
        str(import_module("models").LATENCY),
    ]
    with import_module("models").server(command) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fanfold-durable", "fanfold-forgetful", "fanfold-study", "openai"])
def test_every_contender_answers_every_call_once_and_no_faster_than_the_latency_allows(url: str, name: str) -> None:
    values = import_module("models").one(name, url, 60, 20)
    assert values.pop("no core") >= 0
    assert all(value > 0 for value in values.values())
    assert values["of ideal"] < 1.05  # a timer may be a millisecond early
    assert values["CPU ms/call"] * values["calls/CPU-s"] == pytest.approx(1000)


@pytest.mark.slow
def test_calls_that_were_charged_twice_are_an_error_and_not_a_measurement(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = import_module("models")
    monkeypatch.setattr(models, "WARM_UP", models.WARM_UP - 1)
    with pytest.raises(RuntimeError, match="0 of 20 calls failed, and 21 were charged"):
        models.one("fanfold-forgetful", url, 20, 20)


@pytest.mark.slow
def test_a_peer_that_fails_is_noted_with_its_last_words(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = import_module("models")
    monkeypatch.setattr(models, "python_of", lambda name: sys.executable)
    found = models.Found()
    models._add(found, "no-such-library", url, 20, 20)
    assert not found.samples and "invalid choice: 'no-such-library'" in found.note


def test_a_peer_without_its_environment_is_skipped_with_the_way_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = import_module("models")
    monkeypatch.setattr(models, "ROOT", tmp_path)
    found = models.Found()
    models._add(found, "litellm", "http://127.0.0.1:1", 20, 20)
    assert not found.samples and "make bench-peers" in found.note


def test_no_key_of_the_user_reaches_a_contender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-real-one")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://example.com")
    environment = import_module("models").environment("home")
    assert "a-real-one" not in environment.values() and "https://example.com" not in environment.values()


def made_up(calls_per_cpu_second: dict[str, float]) -> dict[tuple[str, int], Any]:
    """Findings in which wall clock and CPU agree, at one concurrency."""
    found = import_module("models").Found
    return {
        (name, 100): found([{"calls/CPU-s": speed, "calls/s": speed, "of ideal": speed / 2000}] if speed else [])
        for name, speed in calls_per_cpu_second.items()
    }


def test_targets_are_met_and_missed_by_what_was_found() -> None:
    models = import_module("models")
    names = [*models.OURS, *models.THEIRS]
    speeds = {**dict.fromkeys(names, 0.0), "fanfold-durable": 4000.0, "fanfold-forgetful": 5000.0}
    speeds |= {"fanfold-study": 3000.0, "openai": 400.0, "litellm": 300.0, "inspect-eval": 40.0}
    table = models._targets(made_up(speeds), [100], 1000, {"peak MB": 60.0})
    missed = {line.name for line in table.lines if line.missed}
    ratios = [line.values["value"].median for line in table.lines if " over " in line.name]
    assert ratios == pytest.approx([10, 4000 / 300, 75])
    assert missed == {
        "generate over litellm acompletion, concurrency 100, by CPU",
        "share of throughput that durability costs, 100, by wall clock",
        "share of throughput that durability costs, 100, by CPU",
    }


def test_a_peer_that_is_missing_has_no_ratio_and_no_target() -> None:
    models = import_module("models")
    speeds = {**dict.fromkeys(models.THEIRS, 0.0), **dict.fromkeys(models.OURS, 4000.0)}
    table = models._targets(made_up(speeds), [100], 1000, {"peak MB": 60.0})
    assert not [line for line in table.lines if " over " in line.name]
    assert all(not line.values for line in models._ratios(made_up(speeds), [100]).lines)


def test_what_is_published_is_saved_and_a_missed_target_fails_only_a_strict_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, measure = import_module("models"), import_module("measure")
    slow = measure.Line("slow", {"s": measure.Sampled((2.0,))}, measure.Target("s", 1.5))
    file = tmp_path / "folder" / "models.json"
    for strict in (False, True):
        assert models.publish(iter([measure.Table("made up", [slow])]), models.QUICK, file, strict) == int(strict)
    assert "1 target(s) MISSED: slow" in capsys.readouterr().out
    assert json.loads(file.read_text())["tables"][0]["lines"][0]["met"] is False


@pytest.mark.slow
@given(st.floats(0.1, 1.0), st.integers(0, 1), st.integers(300, 2000))
def test_utilisation_is_the_share_of_the_allowed_rate_that_was_admitted(share: float, rate: int, calls: int) -> None:
    limits = import_module("limits")
    case = limits.Case(*limits.RATES[rate], "told", False)
    # Calls of 100 tokens: the tokens bind where they are limited, the requests elsewhere.
    allowed = case.rpm / 60 if case.tpm is None else min(case.rpm / 60, case.tpm / 60 / 100)
    admitted = [(1000.0 + number / (share * allowed), 100) for number in range(calls)]
    assert limits.utilisation(case, 1000.0, admitted) == pytest.approx(share, rel=0.05)


def test_a_burst_before_the_first_second_is_over_does_not_count() -> None:
    limits = import_module("limits")
    case = limits.Case(1200, None, "told", False)
    assert limits.utilisation(case, 0.0, [(0.5, 100)] * 50) == 0.0
    assert limits.utilisation(case, 0.0, [(0.5, 100)] * 50 + [(2.0, 100)] * 10) == pytest.approx(0.5)


@pytest.mark.parametrize("mode", ["told", "headers", "adaptive"])
@pytest.mark.parametrize("counts", [False, True])
def test_on_the_virtual_clock_every_case_ends_with_nothing_failed(mode: str, counts: bool) -> None:
    limits = import_module("limits")
    sizes = limits.Sizes(requests=100, tokens=100, repeats=1, seeds=1)
    got = limits.virtually(limits.Case(1200, None, mode, counts), sizes, seed=1)
    assert 0.3 < got["utilisation"] < 1.5
    assert got["failed"] == 0
    assert 0 <= got["refused"] < (0.5 if mode == "adaptive" else 0.01)
    assert got["makespan s"] >= 100 / 20 - 1  # the server allows 20 a second after a burst of 20


@pytest.mark.slow
def test_the_limit_is_enforced_on_a_client_that_is_told_ten_times_too_much() -> None:
    limits = import_module("limits")

    class Lied(limits.Case):  # type: ignore[misc, name-defined]
        @property
        def limits(self) -> Any:
            return limits.Limits(requests_per_minute=12_000)

    sizes = limits.Sizes(requests=100, tokens=100, repeats=1, seeds=1)
    assert limits.virtually(Lied(1200, None, "told", False), sizes, seed=1)["refused"] > 0.05


@pytest.mark.slow
def test_over_sockets_every_case_has_its_own_limit() -> None:
    limits = import_module("limits")
    sizes = limits.Sizes(requests=30, tokens=30, repeats=1, seeds=1)
    cases = [limits.Case(*rate, "told", True) for rate in limits.RATES]

    async def work() -> Any:
        names = {case.name: case.allowance for case in cases}
        config = limits.SimulatorConfig(model_limits=names, latency=limits.Latency(0.1))
        async with limits.serve(limits.Simulator(config)) as url:
            return await limits.over_sockets(url, cases, sizes, 0)

    got = asyncio.run(work())
    assert set(got) == set(cases)
    assert all(sample["failed"] == 0 and sample["makespan s"] > 0.1 for sample in got.values())
