"""That the benchmark of the search runs on tiny sizes, compares like with like and can miss its target."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    module = importlib.import_module("workflow_search")
    monkeypatch.setattr(module, "QUICK", module.TINY)
    monkeypatch.setattr(module, "WORKERS", 1)
    return module


@pytest.mark.slow
def test_both_reds_are_measured_printed_and_saved(
    search: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "search.json"
    assert search.main(["--quick", "--json", str(file)]) == 0
    assert "Meander" in capsys.readouterr().out
    tables = json.loads(file.read_text())["tables"]
    assert len(tables) == 2
    for table in tables:
        *ours, theirs = (line["values"] for line in table["lines"])
        assert len(ours) == 2
        for each in ours:
            pairs = zip(each["return"]["samples"], theirs["return"]["samples"], strict=True)
            assert each["ahead"]["samples"] == [one - other for one, other in pairs]
        assert all(value < 0 for each in (*ours, theirs) for value in each["return"]["samples"])


@pytest.mark.slow
def test_a_search_that_is_behind_fails_a_strict_run(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worth = {"search": -20.0, "random": -10.0}
    monkeypatch.setattr(search, "run", lambda sizes, red, seed, mode, **more: search.Seen(worth[mode], 1.0, True, 3))
    arguments = ["--quick", "--json", str(tmp_path / "search.json")]
    assert search.main(arguments) == 0
    assert search.main([*arguments, "--strict"]) == 1
    worth["search"] = -5.0
    assert search.main([*arguments, "--strict"]) == 0
