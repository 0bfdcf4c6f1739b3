"""That every section of the engine's benchmark runs on tiny sizes and gives numbers that can be true."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold import RunView


def tables_of(section: str) -> list[Any]:
    return list(import_module(section).measure(import_module("measure").TINY))


def medians(table: Any, column: str) -> dict[str, float]:
    return {line.name: line.values[column].median for line in table.lines if column in line.values}


@pytest.mark.slow
def test_the_overhead_of_every_executor_is_measured_with_both_ledgers() -> None:
    (table,) = tables_of("overhead")
    wall, cpu = medians(table, "wall ms"), medians(table, "parent CPU ms")
    assert len(wall) == 2 * len(import_module("overhead").PLACES)
    assert all(value > 0 for value in [*wall.values(), *cpu.values()])


@pytest.mark.slow
def test_no_contender_is_busier_than_the_ideal() -> None:
    utilisation = import_module("utilisation")
    *asleep, busy = tables_of("utilisation")
    assert [len(table.lines) for table in asleep] == [len(utilisation.SLEEPERS) + 1] * len(utilisation.SHAPES)
    assert len(busy.lines) == len(utilisation.SPINNERS)
    for table in [*asleep, busy]:
        assert all(0 < value <= 1 + 1e-9 for value in medians(table, "utilisation").values())


def test_every_target_of_the_utilisation_names_a_contender_and_a_shape() -> None:
    utilisation = import_module("utilisation")
    assert all(name in utilisation.SLEEPERS and shape in utilisation.SHAPES for name, shape in utilisation.TARGETS)


def test_every_contender_gets_the_same_durations_with_the_mean_that_was_asked_for() -> None:
    utilisation = import_module("utilisation")
    for shape in utilisation.SHAPES:
        durations = utilisation.durations_of(shape, 500, 0.04, seed=1)
        assert durations == utilisation.durations_of(shape, 500, 0.04, seed=1)
        assert 0.02 < sum(durations) / 500 <= 0.04 * (1 + 1e-9)


@pytest.mark.slow
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=50), st.integers(1, 16))
def test_the_ideal_is_a_bound_that_one_slot_reaches(durations: list[float], slots: int) -> None:
    ideal, greedy = import_module("utilisation").ideal, import_module("utilisation").greedy
    assert max(durations) <= ideal(durations, slots) <= greedy(durations, slots) * (1 + 1e-9)
    assert math.isclose(ideal(durations, 1), greedy(durations, 1))


@pytest.mark.slow
def test_a_replay_is_timed_until_the_first_new_evaluation() -> None:
    (table,) = tables_of("replay")
    assert len(medians(table, "CPU s")) == 3  # by replay, from a checkpoint, and from one of a large run
    assert all(value > 0 for value in medians(table, "CPU s").values())


@pytest.mark.slow
def test_memory_is_read_from_a_process_of_its_own() -> None:
    (table,) = tables_of("memory")
    assert 1 < medians(table, "at 10 % MB")["Random on async:64"] < 1_000


@pytest.mark.slow
def test_fanfold_loses_nothing_when_a_worker_is_killed_and_a_standard_pool_breaks() -> None:
    peers = import_module("peers")
    names = ["Fanfold processes:2, file ledger", "ProcessPoolExecutor(2)"]
    ours, pool = (peers.in_subprocess(name, 8, 100, rounds=0) for name in names)
    assert (ours["got"], ours["executions"], ours["error"]) == (8, 9, "")
    assert pool["got"] < 8 and pool["error"] == "BrokenProcessPool"


@pytest.mark.slow
def test_the_speed_of_a_peer_is_a_ratio_above_one() -> None:
    answer = import_module("peers").in_subprocess("Fanfold processes:2, file ledger", 8, 1_000, rounds=2)
    assert answer["error"] == ""
    assert [round_["time over ideal"] > 1 for round_ in answer["rounds"]] == [True, True]


@pytest.mark.slow
def test_the_queries_of_a_small_run_are_timed_beside_a_large_one() -> None:
    table, commands = tables_of("queries")
    assert set(medians(table, "ms")) == set(import_module("queries").QUERIES)
    assert all(milliseconds > 0 for milliseconds in medians(table, "ms").values())
    assert "fanfold runs" in medians(commands, "CPU s")


@pytest.mark.slow
def test_a_peer_that_is_missing_is_skipped_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = import_module("peers")
    monkeypatch.setattr(peers, "CONTENDERS", {"nobody": ("no_such_package", None)})
    speed, death = tables_of("peers")
    assert "pip install 'fanfold[bench]'" in str(speed) and not death.lines


@pytest.mark.slow
def test_a_missed_target_is_printed_and_fails_only_a_strict_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, measure = import_module("engine"), import_module("measure")
    slow = measure.Line("slow", {"s": measure.Sampled((1.0, 3.0, 2.0))}, measure.Target("s", 1.5))
    fast = measure.Line("fast", {"s": measure.Sampled((1.0,))}, measure.Target("s", 1.5))
    monkeypatch.setattr(engine, "SECTIONS", {"made-up": lambda sizes: iter([measure.Table("made up", [slow, fast])])})
    file = tmp_path / "folder" / "engine.json"
    arguments = ["--quick", "--only", "made-up", "--json", str(file)]
    assert engine.main(arguments) == 0
    assert engine.main([*arguments, "--strict"]) == 1
    assert "1 target(s) MISSED: slow" in capsys.readouterr().out
    saved = json.loads(file.read_text())
    assert saved["sections"][0]["tables"][0]["lines"][0]["values"]["s"]["samples"] == [1.0, 3.0, 2.0]
    assert saved["machine"]["cores"] >= 1


def test_a_section_that_does_not_exist_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        import_module("engine").main(["--only", "memroy"])
    assert "did you mean 'memory'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_is_measured_over_a_ledger_made_by_sql(tmp_path: Path) -> None:
    view = import_module("view")
    view.fill(tmp_path / "big.db", 20)
    with RunView.open(tmp_path / "big.db") as opened:
        assert opened.progress().evaluations == 20 * view.CASES and opened.progress().failures == 4
    with view.Server(tmp_path / "big.db") as server:
        lines = list(view.answers(server, 2))
    assert {"Overview", "matrix", "tile, level 0", "work", "memory of the server"} <= {line.name for line in lines}
    assert all(sampled.median > 0 for line in lines for sampled in line.values.values())


@pytest.mark.slow
def test_the_study_that_a_page_follows_says_what_it_took(tmp_path: Path) -> None:
    with import_module("view").start(tmp_path / "live.db", 0.2) as run:
        output, _ = run.communicate(timeout=60)
    assert set(json.loads(output)) == {"evaluations/s", "CPU us"}
