"""That the benchmark of CAGE-2 runs on tiny sizes and gives numbers that can be true."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def cage2() -> Iterator[Any]:
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("cage2")
    sys.path[:] = before


@pytest.mark.slow
def test_both_tables_are_measured_printed_and_saved(
    cage2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cage2, "QUICK", cage2.TINY)
    file = tmp_path / "folder" / "cage2.json"
    assert cage2.main(["--quick", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "quoted, not measured here" in out and "written to" in out
    alone, in_the_loop = json.loads(file.read_text())["tables"]
    targets = {
        line["name"]: line["target"] for table in (alone, in_the_loop) for line in table["lines"] if "target" in line
    }
    assert sum("256 environments step by step" in name for name in targets) == 3
    assert sum("77-64-64-145" in name for name in targets) == 4
    for table in (alone, in_the_loop):
        for line in table["lines"]:
            assert line["values"][cage2.RATE]["median"] > 0
    shares = [line["values"][cage2.DISTINCT]["median"] for line in in_the_loop["lines"]]
    assert all(0 < share < 1 for share in shares)


@pytest.mark.slow
def test_a_missed_target_fails_only_a_strict_run(
    cage2: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cage2, "QUICK", cage2.TINY)
    monkeypatch.setattr(cage2, "ALONE", 1e9)
    monkeypatch.setattr(cage2, "IN_THE_LOOP", dict.fromkeys(cage2.IN_THE_LOOP, 0.0))
    arguments = ["--quick", "--json", str(tmp_path / "cage2.json")]
    assert cage2.main(arguments) == 0
    assert cage2.main([*arguments, "--strict"]) == 1
    assert "3 target(s) MISSED" in capsys.readouterr().out


@pytest.mark.slow
def test_defenders_are_trained_once_and_scored_against_their_goals(
    cage2: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("cage2_defence")
    file = tmp_path / "defence.jsonl"
    cells = module.cells(1, 8)
    rows = [{**cell._asdict(), "return": -10.0 - number, "cpu": 1.0} for number, cell in enumerate(cells)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows[1:]))
    (table,) = module.defence(1, 8, 1, file)
    assert "B_lineAgent, memory True, seed 0" in capsys.readouterr().out and len(file.read_text().splitlines()) == 6
    trained = module.finished(file)[cells[0]]
    assert -2000 < trained["return"] < 0 and trained["cpu"] > 0 and trained["fresh_episodes"] == 4096
    goals = {line.name: line.target.limit for line in table.lines if line.target is not None}
    both = round((trained["return"] - 12.0) / 2 - 1.5, 2)
    assert goals == {
        "B_lineAgent, with memory": -14.0,
        "MeanderAgent, with memory": -17.5,
        "random, with memory": pytest.approx(both, abs=0.01),
    }
    assert [line.missed for line in table.lines] == [True, False, False, False, both > -14.0, False]
