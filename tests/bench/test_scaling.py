"""That the benchmark of scaling runs on tiny sizes, says what it could not measure, and notices growth."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def scaling(on_the_path: None) -> Any:
    return import_module("scaling")


@pytest.mark.slow
def test_local_workers_are_measured_beside_other_libraries(scaling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "ENGINES", ["local"])
    cells, large, busy, parts = scaling.workers(scaling.TINY)
    ours = [line.name for line in cells.lines if line.name.startswith("Fanfold")]
    assert ours == ["Fanfold inline", "Fanfold async:64", "Fanfold threads:8", "Fanfold processes:2"]
    assert len(cells.lines) > len(ours) and all(line.values["driver CPU ms"].median > 0 for line in cells.lines)
    assert "Fanfold processes:2" in [line.name for line in large.lines]
    shares = [sampled.median for line in busy.lines for sampled in line.values.values()]
    assert shares and all(0 < share <= 1.01 for share in shares)
    assert [line.name for line in parts.lines if line.name.startswith("model calls") and not line.missed] == [
        "model calls on threads:2",
        "model calls on processes:2",
    ]


@pytest.mark.slow
def test_large_ledgers_and_many_runs_are_measured(scaling: Any) -> None:
    large, many = scaling.files(scaling.TINY)
    made, resumed, shown = large.lines
    assert made.values["bytes per evaluation"].median > 100
    assert resumed.values["CPU s"].median > 0 and shown.values["CPU s"].median > 0
    assert many.lines[0].values["CPU s"].median > 0


def test_copies_of_a_run_are_listed(scaling: Any, tmp_path: Path) -> None:
    from fanfold.ledger import Ledger

    files = import_module("scaling_files")
    files.searched(tmp_path / "l.db", "first", 3)
    files.copies(tmp_path / "l.db", 9)
    with Ledger(tmp_path / "l.db", readonly=True) as ledger:
        assert ledger.one("SELECT count(*), count(DISTINCT name) FROM run") == (10, 10)
        assert ledger.one("SELECT count(*), count(DISTINCT run) FROM trial") == (30, 10)


@pytest.mark.slow
def test_an_engine_that_is_missing_is_not_guessed(
    scaling: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scaling, "ENGINES", ["no-such-engine"])
    tables = list(scaling.workers(scaling.TINY))
    (line,) = tables[0].lines
    assert "not measured" in line.verdict and not line.values and line.target is None


def test_what_grows_is_told_from_what_is_noisy() -> None:
    soak = import_module("soak")
    noise = [0.3, -0.2, 0.1, -0.4, 0.2, 0.0, -0.1, 0.1] * 5

    def table(growth: float) -> Any:
        samples = [
            {"minutes": minute, "memory MB": 100 + growth * minute + noise[minute], "descriptors": 9.0}
            | {"threads": 4.0, "children": 0.0}
            for minute in range(40)
        ]
        return soak.slopes(samples, "made up")

    assert not any(line.missed for line in table(0.0).lines)
    assert [line.name for line in table(1.0).lines if line.missed] == ["memory MB"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_soak_kills_workers_and_continues(scaling: Any) -> None:
    (table,) = import_module("soak").measure(0.05)
    assert "failed on purpose" in table.title and len(table.lines) == 4
