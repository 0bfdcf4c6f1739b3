"""The benchmark of learning: cells are kept, the table has medians and ratios, and promises can be missed."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "rl", raising=False)
    return importlib.import_module("rl")


def cell(steps: float, cpu: float = 1.0, wall: float = 1.0, solved: bool = True) -> dict[str, Any]:
    return {"steps": steps, "cpu": cpu, "wall": wall, "solved": solved, "mean": 0.0}


def test_a_table_has_medians_ratios_and_what_was_missed(bench: ModuleType) -> None:
    found = {("stable-baselines3", "CartPole-v1", seed): cell(1000, 30.0) for seed in range(3)}
    found |= {("Fanfold", "CartPole-v1", seed): cell(steps, 5.0) for seed, steps in enumerate((900, 1200, 5000))}
    assert any("1,200" in row and "1.20, 0.17, 1.00" in row for row in bench.table(found))
    assert bench.misses(found) == []
    found |= {("Fanfold", "CartPole-v1", 0): cell(4000, 11.0, solved=False)}
    assert ["solved by 2 of 3" in each or "steps 4.00" in each for each in bench.misses(found)] == [True, True]
    found |= {("Fanfold", "Slow-v1", 0): cell(1, wall=6.0), ("Fanfold, synchronous", "Slow-v1", 0): cell(1, wall=10.0)}
    assert "0.60 times the barrier's" in bench.misses(found)[-1]


def test_finished_cells_are_kept_and_not_measured_again(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(bench, "measured", lambda each: asked.append(each) or cell(10))
    kept = tmp_path / "cells.jsonl"
    both = [("Fanfold", "CartPole-v1", 0), ("Fanfold", "CartPole-v1", 1)]
    bench.measure(both[:1], kept, 2)
    assert bench.measure(both, kept, 2).keys() == set(both) and sorted(asked) == both
    assert len([json.loads(line) for line in kept.read_text().splitlines()]) == 2


@pytest.mark.slow
def test_our_own_cell_stops_at_the_threshold(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import rl_peers  # type: ignore[import-not-found]

    monkeypatch.setitem(rl_peers.TASKS, "CartPole-v1", rl_peers.Goal(25.0, 20_000))
    result = bench.ours("CartPole-v1", 0)
    assert result["solved"] and 2_000 < result["steps"] < 15_000 and result["cpu"] > 0
