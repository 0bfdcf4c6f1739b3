"""That the benchmark of the search computes every cell once, compares seed by seed, and can miss its targets."""

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
    """The benchmark at tiny sizes, with trainings that cost nothing: enterprise before user is worth 100 more."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    module = importlib.import_module("workflow_search")
    monkeypatch.setattr(module, "QUICK", module.TINY)

    def table_cell(sizes: Any, red: str, arm: str, seed: int) -> dict[str, Any]:
        good = arm.index("enterprise") < arm.index("user")
        worth = -60.0 - arm.index("op_server") / 10 + seed if good else -160.0
        shown = [[worth / 2 - 200, 0.95, 1.0], [worth, 0.99, 1.0]]
        return {"part": "table", "red": red, "arm": arm, "seed": seed, "shown": shown}

    def run_cell(sizes: Any, part: str, red: str, contender: str, seed: int) -> dict[str, Any]:
        ours = contender == module.SEARCH
        first = "op_server>enterprise>user" if ours else "user>op_server>enterprise"
        ends = {f"at {count}": f"{first}>op_host>defender" for count in sizes.at}
        value = -80.0 if ours else -150.0 - seed
        row = {"part": part, "red": red, "contender": contender, "seed": seed, "return": value, "complies": True}
        return row | ends

    for fake in (table_cell, run_cell):
        monkeypatch.setattr(module, fake.__name__, fake)
    return module


@pytest.mark.slow
def test_every_part_is_measured_printed_and_saved(
    search: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells, file = str(tmp_path / "cells.jsonl"), tmp_path / "all.json"
    assert search.main(["--quick", "--jobs", "1", "--cells", cells, "--json", str(file)]) == 0
    assert "single hosts" in capsys.readouterr().out
    tables = json.loads(file.read_text())["tables"]
    assert len(tables) == 3 * len(search.TINY.at) + 1 + len(search.HOSTS)
    ours, *others = (line["values"] for line in tables[-1]["lines"])
    assert ours["value"]["samples"] == [80.0, 80.0]
    assert others[0]["median ahead"]["samples"] == [70.0, 71.0], "seed by seed"
    assert others[0]["ahead"]["samples"] == [70.5]
    inherited = next(table for table in tables if "nearest policy inherited" in table["title"])
    values = [line["values"]["value"]["samples"] for line in inherited["lines"]]
    assert values[0] == [0.0, 0.0] and all(each[0] > 90.0 for each in values[1:])
    delivered = [table for table in tables if "Loss" in table["title"] and "B-line" in table["title"]]
    assert len(delivered) == 1, "with inheritance, a user takes a policy that learnt from others"


def test_cells_that_are_known_are_not_computed_again(search: Any, tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    rows = search.compute(search.TINY, 1, file)
    before = file.read_text()
    assert search.compute(search.TINY, 1, file) == rows and file.read_text() == before


def test_the_truth_is_not_computed_again_where_it_was_kept(search: Any, tmp_path: Path) -> None:
    file, kept = tmp_path / "cells.jsonl", tmp_path / "truth.json"
    rows = search.compute(search.TINY, 1, file, truth=kept)
    search.keep_truth(search.TINY, rows, kept)
    wanted = {(row["red"], row["arm"], row["seed"]): row["shown"] for row in rows if row["part"] == "table"}
    again = {(row["red"], row["arm"], row["seed"]): row["shown"] for row in search.kept_truth(search.TINY, kept)}
    assert again == wanted
    search.compute(search.TINY, 1, tmp_path / "others.jsonl", truth=kept)
    assert "table" not in (tmp_path / "others.jsonl").read_text()
    assert search.kept_truth(search.FULL, kept) == [], "of other sizes"


def test_looked_up_trainings_are_drawn_again_for_every_seed_and_visit(search: Any, tmp_path: Path) -> None:
    rows = search.compute(search.TINY, 1, tmp_path / "cells.jsonl")
    truth = search.truth_of(rows, search.TINY, "B-line")
    arm = next(iter(truth.shown))
    scores = [[truth.outcome(search.Train(arm, visit, 40), seed).score for visit in range(8)] for seed in range(8)]
    assert scores[0] == [truth.outcome(search.Train(arm, visit, 40), 0).score for visit in range(8)]
    assert len({tuple(each) for each in scores}) > 4 and all(len(set(each)) > 1 for each in scores)


def test_a_search_that_is_behind_fails_a_strict_run(search: Any, tmp_path: Path) -> None:
    values = {search.SEARCH: [5.0, 6.0], search.RANDOM: [4.0, 5.0]}
    assert [line.missed for line in search.compared("regret", values).lines] == [True, True]
    values[search.SEARCH] = [1.0, 2.0]
    assert [line.missed for line in search.compared("regret", values).lines] == [False, False]


@pytest.mark.slow
def test_a_cell_of_the_truth_pauses_and_ends_as_one_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    module = importlib.import_module("workflow_search")
    row = module.table_cell(module.TINY, "B-line", "enterprise>op_server>user>op_host>defender", 0)
    assert len(row["shown"]) == 2 and all(len(each) == 3 for each in row["shown"])
    told = module.run_cell(module.TINY, "nearest", "B-line", module.TPE, 0)
    assert told["return"] < 0 and "at 3" in told
