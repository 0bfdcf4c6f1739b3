"""Providers work wherever one is named: studies, batches, doctor, completion, estimates and rehearsals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.providers import find_provider
from fanfold.simulator import Latency, SimulatorConfig, addresses

Start = Callable[[SimulatorConfig], Any]
NAMES = ("gemini", "mistral", "groq")


def _run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def running(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulator that speaks every dialect on one port, and that the variables of each provider name."""
    monkeypatch.chdir(tmp_path)
    running = start(SimulatorConfig(turnaround=Latency(0.2)))
    for variable, address in addresses(running.url).items():
        monkeypatch.setenv(variable, address)
    for name in NAMES:
        monkeypatch.setenv(find_provider(name).key_variable, "a-key-of-a-test")
    return running


def _study(name: str) -> tuple[str, ...]:
    model = f"{name}/{find_provider(name).examples[0]}"
    return ("prompts", "--model", model, "--trials", "3", "--train", "4", "--schedule", "all")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_study_runs_in_its_batches_at_half_price(name: str, running: Any) -> None:
    _run("run", *_study(name), "--executor", f"batch:{name}", "--ledger", "fanfold.db")
    charges = list(running.simulator.charges)
    assert charges and {charge.provider for charge in charges} == {name}
    assert {charge.price for charge in charges} == {"batch"}, "a call was paid at full price"
    batches = json.loads(_run("batches", "--json", "--ledger", "fanfold.db"))
    assert batches and {batch["model"].partition("/")[0] for batch in batches} == {name}
    shown = json.loads(_run("show", "last", "--json", "--ledger", "fanfold.db"))
    assert shown["model_calls"][0]["cost"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_is_estimated_and_rehearsed_without_a_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(find_provider(name).key_variable, raising=False)
    rehearsed = json.loads(_run("run", *_study(name), "--rehearse", "--executor", f"batch:{name}", "--json"))
    assert rehearsed["usage"][0]["batched"] > 0 and rehearsed["cost"] > 0
    estimate = json.loads(_run("estimate", *_study(name), "--json"))
    assert 0 < estimate["low"]["cost"] <= estimate["expected"]["cost"] <= estimate["high"]["cost"]


@pytest.mark.parametrize("name", NAMES)
def test_doctor_and_completion_name_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = find_provider(name)
    monkeypatch.setenv(provider.key_variable, "a-key-of-a-test")
    checks = json.loads(_run("doctor", "--json"))["checks"]
    row = next(check for check in checks if check["name"] == f"provider {name}")
    assert row["ok"] and f"{provider.key_variable}" in row["note"] and f"batch:{name}" in row["note"]
    assert f"batch:{name}" in BatchExecutor.spellings()
