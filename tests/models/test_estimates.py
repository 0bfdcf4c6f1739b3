"""What is said about money before and after a run: three figures that differ, the end included, simulated as such."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold import Case, MaxTrials, Study, Sweep
from fanfold.cli import cli
from fanfold.models import model
from fanfold.plugins import find_study
from fanfold.rehearsal import Estimate, estimate, rehearsing
from fanfold.summary import Summary


def judged(name: str, executor: str = "async:8", **fields: Any) -> Estimate:
    plugin = find_study(name)
    with rehearsing():
        study = plugin.build(plugin.config(**fields))
    return estimate(study, executor, sample=2)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["async:8", "batch:auto"])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("prompts", {"model": ("openai/gpt-6-luna",)}),
        ("critic", {"model": "openai/gpt-6-luna"}),
        ("secrets", {"models": ("openai/gpt-6-luna",), "num_interactions": 4, "max_tokens": 1, "results": None}),
    ],
)
def test_low_is_below_what_is_expected_and_that_below_high(name: str, fields: dict[str, Any], executor: str) -> None:
    found = judged(name, executor, **fields)
    for what in ("cost", "seconds", "input_tokens", "output_tokens"):
        low, middle, high = (getattr(bound, what) for bound in (found.low, found.expected, found.high))
        assert low < middle < high, what
    assert found.low.calls <= found.expected.calls <= found.high.calls
    assert (found.currency, found.simulated) == ("USD", False)


def asking(calls_at_the_end: int, trials: int, failing: bool = False) -> Study[Any]:
    async def evaluate(candidate: int, case: Case) -> float:
        await model("openai/gpt-6-luna", key="k").generate(f"{candidate}", max_tokens=50)
        return 1.0

    async def conclude(run: Any, go: Any) -> Summary:
        cases = [Case(str(number)) for number in range(calls_at_the_end)]
        await go("held-out", Study(Sweep([-1]), evaluate_held_out, cases, stop=MaxTrials(1)))
        if failing:
            raise ValueError("these words mean nothing to me")
        return Summary()

    async def evaluate_held_out(candidate: int, case: Case) -> float:
        await model("openai/gpt-6-luna", key="k").generate(f"held out {case.id}", max_tokens=50)
        return 1.0

    return Study(Sweep(range(trials)), evaluate, [Case("0")], stop=MaxTrials(trials), conclude=conclude)


@pytest.mark.slow
def test_the_end_of_a_run_is_included_once_however_many_trials_there_are() -> None:
    found = estimate(asking(7, trials=100), "async:8", sample=10)
    assert found.expected.calls == 107 and found.end.calls == 7
    assert found.end.cost is not None and 0 < found.end.cost < (found.expected.cost or 0) / 5
    assert 0 < found.end.seconds < found.expected.seconds


@pytest.mark.slow
def test_an_end_that_made_up_replies_break_is_said_and_the_rest_is_estimated() -> None:
    found = estimate(asking(3, trials=20, failing=True), "async:8", sample=10)
    assert found.expected.calls >= 20
    assert found.end_failure is not None and "these words mean nothing" in found.end_failure


@pytest.mark.slow
def test_a_simulated_model_is_called_simulated_wherever_its_cost_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = ("--models", "simulated/gpt-6-luna", "--num-interactions", "2", "--messages-per-interaction", "1")

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(cli, list(arguments), prog_name="fanfold")
        assert result.exit_code == 0, result.output
        return result.stdout

    page = tmp_path / "it.html"
    run = said("run", "secrets", *fields, "--run", "it", "--report", str(page))
    texts = (run, said("runs"), said("show", "it"), said("estimate", "secrets", *fields))
    assert "simulated" in page.read_text()
    for text in texts:
        for line in text.splitlines():
            if re.search(r"\$\d", line) or line.startswith("it "):
                assert "simulated" in line or line.startswith("it stopped"), line
        assert "simulated" in text
    assert "nothing is paid" in run
    assert "(simulated)" not in said("estimate", "secrets", "--models", "openai/gpt-6-luna", *fields[2:])
