"""`fanfold compare`: figures side by side, paired differences where cases are shared, settings that differ."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fanfold import Case, ConfigError, MaxTrials, Study, Sweep
from fanfold.ledger import RunView
from fanfold.report import compare
from fanfold.running import Go, Run
from fanfold.summary import Summary

Fanfold = Callable[..., Result]
Json = Callable[..., Any]

CASES = [10, 20, 30, 40]


def scored(candidate: int, case: Case) -> float:
    return float(candidate + case.data)


async def examined(run: Run[Any], go: Go) -> Summary:
    """Score what was found on two cases the search has not seen."""
    assert run.best is not None
    await go("held-out", Study(Sweep([run.best.candidate, 0]), scored, cases=[100, 200], name="held-out"))
    return Summary()


def search(
    name: str, candidates: Sequence[int], cases: Sequence[Any] = CASES, ledger: str = "fanfold.db", **more: Any
) -> None:
    Study(Sweep(candidates), scored, cases=list(cases), **more).run(ledger=ledger, run=name).ledger.close()


def test_best_candidates_are_compared_on_the_cases_they_share(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    search("first", [1, 2, 3])
    search("second", [1, 8], [*CASES[:3], 99])
    found = as_json("compare", "first", "second")
    [difference] = found["differences"]
    assert (difference["run"], difference["against"], difference["cases"]) == ("second", "first", "search")
    assert (difference["estimate"], difference["low"], difference["high"], difference["n"]) == (5.0, 5.0, 5.0, 3)
    assert difference["p"] == 0.25, "three cases, all of one sign"
    assert [run["best"] for run in found["runs"]] == [3 + 25.0, 8 + 39.75]
    shown = fanfold("compare", "first", "second").stdout
    for words in ("Difference from first", "5 to 5", "best score", "trials", "Settings that differ"):
        assert words in shown
    assert found["settings"]["cases"] == {"first": "4", "second": "4, others"}


def test_every_run_is_compared_with_the_first(as_json: Json, folder: Path) -> None:
    for name, best in (("a", 1), ("b", 3), ("c", 0)):
        search(name, [best])
    found = as_json("compare", "a", "b", "c")
    assert [(each["run"], each["estimate"]) for each in found["differences"]] == [("b", 2.0), ("c", -1.0)]


def test_a_minimised_score_is_compared_in_its_own_units(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    search("first", [5, 6, 7], minimize=True)
    search("second", [2, 9], minimize=True)
    [difference] = as_json("compare", "first", "second")["differences"]
    assert (difference["estimate"], difference["low"], difference["high"]) == (-3.0, -3.0, -3.0)
    assert "-3 to -3" in fanfold("compare", "first", "second").stdout
    with RunView.open("fanfold.db", "first") as first, RunView.open("fanfold.db", "second") as second:
        [difference] = compare({"first": first, "second": second}).differences
    assert (difference.better, difference.worse) == (4, 0), "less is better"


def test_runs_of_different_ledgers_are_told_apart_by_the_ledger(as_json: Json, folder: Path) -> None:
    search("it", [1], ledger="one.db")
    search("it", [4], ledger="two.db")
    found = as_json("compare", "one.db#it", "two.db#last")
    assert [run["run"] for run in found["runs"]] == ["it", "two.db#it"]
    assert found["differences"][0]["estimate"] == 3.0


@pytest.mark.slow
def test_held_out_scores_are_compared_where_both_runs_have_them(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    search("with", [1, 5], conclude=examined)
    search("also", [2, 9], conclude=examined)
    search("without", [7])
    found = as_json("compare", "with", "also", "without")
    assert [run["held_out"] for run in found["runs"]] == [155.0, 159.0, None]
    kinds = [(each["run"], each["cases"], each["estimate"], each["n"]) for each in found["differences"]]
    assert kinds == [("also", "search", 4.0, 4), ("also", "held-out", 4.0, 2), ("without", "search", 2.0, 4)]
    assert "held-out score 155" in fanfold("show", "with").stdout


def test_runs_without_a_case_in_common_have_no_paired_difference(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    search("first", [1])
    search("second", [1], [1000, 2000])
    assert as_json("compare", "first", "second")["differences"] == []
    assert "share no cases" in fanfold("compare", "first", "second").stdout


def test_cases_of_the_same_name_and_other_content_are_not_shared(as_json: Json, folder: Path) -> None:
    search("first", [1], [Case("a", 1)])
    search("second", [1], [Case("a", 2)])
    assert as_json("compare", "first", "second")["differences"] == []


def test_a_failed_case_is_left_out_of_the_pairs(as_json: Json, folder: Path) -> None:
    def picky(candidate: int, case: Case) -> float:
        if case.data == 20:
            raise ValueError("not this one")
        return scored(candidate, case)

    search("first", [1])
    Study(Sweep([3]), picky, cases=CASES, failed_score=0.0).run(ledger="fanfold.db", run="second").ledger.close()
    [difference] = as_json("compare", "first", "second")["differences"]
    assert (difference["estimate"], difference["n"]) == (2.0, 3)


def test_only_settings_that_differ_are_listed(as_json: Json, folder: Path) -> None:
    search("first", [1], stop=MaxTrials(5))
    search("second", [1, 2], stop=MaxTrials(5), seed=4)
    settings = as_json("compare", "first", "second")["settings"]
    assert settings["seed"] == {"first": 0, "second": 4}
    assert "window" not in settings and "strategy" not in settings


@pytest.mark.slow
def test_a_run_of_the_shell_and_one_of_python_differ_only_in_what_was_given(
    fanfold: Fanfold, as_json: Json, folder: Path
) -> None:
    (folder / "own.py").write_text(
        "from fanfold import MaxTrials, Study, Sweep\n\n\ndef score(candidate, case):\n    return candidate\n\n\n"
        "def study(seed):\n    return Study(Sweep(range(9)), score, cases=[1], stop=MaxTrials(3), seed=seed)\n\n\n"
        "shell = study(0)\n\nif __name__ == '__main__':\n    study(1).run(ledger='fanfold.db', run='python')\n"
    )
    subprocess.run([sys.executable, "own.py"], cwd=folder, check=True)
    fanfold("run", "own.py:shell", "--run", "shell", "--max-trials", "5", "--executor", "threads:2")
    assert as_json("compare", "python", "shell")["settings"] == {"seed": {"python": 1, "shell": 0}}


def test_the_names_of_settings_are_not_cut_and_parts_of_another_kind_are_one_line(
    fanfold: Fanfold, as_json: Json, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, strategy in (("drawn", "random"), ("genes", "genetic")):
        fanfold("run", "functions", "--strategy", strategy, "--trials", "10", "--run", name)
    settings = as_json("compare", "drawn", "genes")["settings"]
    assert settings["fields.strategy"] == {"drawn": "random", "genes": "genetic"}
    parts = [name for name in settings if name.startswith("parts.")]
    assert parts and list(settings)[-len(parts) :] == parts and all(None not in settings[n].values() for n in parts)
    monkeypatch.setenv("COLUMNS", "70")
    shown = fanfold("compare", "drawn", "genes").stdout
    assert all(name in shown for name in settings)


def test_one_run_is_not_a_comparison(fanfold: Fanfold, folder: Path) -> None:
    search("only", [1])
    assert "two runs or more" in fanfold("compare", "only", code=2).stderr
    with pytest.raises(ConfigError, match="two runs or more"):
        compare({})
