"""What pages need of a run: pages by key, history, lineage, tiles of the matrix, failures by cause, the timeline."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import Case, Float, Genetic, Ledger, LedgerError, MaxTrials, Ok, Racing, Run, Space, Study, Sweep
from fanfold.ledger import CellValues, RunView
from fanfold.ledger import matrix as matrix_module
from fanfold.ledger import timeline as timeline_module

CASES = 4


def evaluate(candidate: dict[str, Any], case: Case) -> Ok:
    if candidate["x"] % 5 == 4:
        raise ValueError(f"{candidate['x']} cannot be had at 0x7f{case.data}")
    return Ok(float(candidate["x"] * case.data), {"seen": case.data}, cost=0.5)


def study(trials: int = 20) -> Study[Any]:
    return Study(Sweep([{"x": x, "name": f"n{x}"} for x in range(trials)]), evaluate, cases=list(range(1, CASES + 1)))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run[Any]]:
    done = study().run(ledger=tmp_path / "runs.db", run="it")
    with done.ledger:
        yield done


# -- trials ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["all", "told", "open", "complete", "dropped", "failed"])
@pytest.mark.parametrize("order", ["number", "told", "best"])
@pytest.mark.parametrize("count", [1, 7, 20])
def test_pages_by_key_are_the_whole_in_pieces(order: Any, which: Any, count: int, run: Run[Any]) -> None:
    with contextlib.closing(sqlite3.connect(run.ledger.path)) as db, db:
        db.execute("UPDATE trial SET told = NULL, score = NULL WHERE number IN (17, 18)")
        db.execute("UPDATE trial SET score = 7.5 WHERE number IN (2, 5, 6)")
        db.execute("UPDATE trial SET dropped = 'too low' WHERE number = 3")
    rows, after = [], None
    while True:
        page = run.view.trials_after(after, order=order, which=which, count=count)
        rows += page.rows
        after = page.next
        if after is None:
            break
    assert rows == list(run.view.trials(order=order, which=which))


def test_a_page_can_be_of_the_trials_that_contain_a_text(run: Run[Any]) -> None:
    assert [row.number for row in run.view.trials_after(contains="N1").rows] == [1, *range(10, 20)]
    assert run.view.trials_after(contains="%").rows == ()


def test_the_history_keeps_every_new_best_however_much_it_leaves_out(tmp_path: Path) -> None:
    scores = [float(x % 50 + x // 50) for x in range(300)]
    done = Study(Sweep(range(300)), lambda c, case: Ok(scores[c], cost=0.25), cases=range(2)).run(
        ledger=tmp_path / "runs.db"
    )
    with done.ledger:
        whole, some = done.view.history(), done.view.history(20)
    assert whole.trial == whole.order == list(range(300)) and whole.score == scores
    assert whole.evaluations[-1] == 600 and whole.cost[-1] == 150.0
    assert whole.seconds == sorted(whole.seconds) and whole.seconds[0] >= 0
    rises = [at for at in range(300) if at == 0 or whole.best[at] != whole.best[at - 1]]
    assert set(rises) <= set(some.trial) and len(some.trial) <= len(rises) + 20
    places = [whole.trial.index(number) for number in some.trial]
    assert some.best == [whole.best[at] for at in places]
    assert some.evaluations == [whole.evaluations[at] for at in places]
    lengths = {len(getattr(some, name)) for name in ("order", "trial", "score", "best", "complete", "cost", "seconds")}
    assert lengths == {len(some.evaluations)}


def test_a_dropped_trial_is_part_of_the_history_and_never_the_best(tmp_path: Path) -> None:
    done = Study(Sweep(range(30)), lambda c, case: 1 - c / 30, cases=range(40), schedule=Racing(), window=2).run(
        ledger=tmp_path / "runs.db"
    )
    with done.ledger:
        history = done.view.history()
    assert history.evaluations[-1] == done.progress.evaluations
    assert history.best[-1] == done.progress.best and False in history.complete


@given(st.lists(st.floats(-100, 100), max_size=30), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
@pytest.mark.slow
def test_a_spark_line_is_short_and_ends_with_the_best(scores: list[float], most: int) -> None:
    if not scores:
        return
    done = Study(Sweep(range(len(scores))), lambda c, case: scores[c]).run()
    with done.ledger:
        spark = done.view.spark(most)
    assert len(spark) <= most and spark == sorted(spark) and spark[-1] == max(scores)


def test_origins_name_parents_and_how_and_children_are_found(tmp_path: Path) -> None:
    space = Space(x=Float(0, 1))
    done = Study(
        Genetic(space, population=6), lambda c, case: c["x"], stop=MaxTrials(40)
    ).run(ledger=tmp_path / "runs.db")  # fmt: skip
    with done.ledger:
        view = done.view
        origins = view.origins()
        assert [origin.trial for origin in origins] == list(range(40))
        bred = next(origin for origin in origins if origin.parents)
        assert bred.by and bred.score is not None
        assert bred.trial in view.children(bred.parents[0])
        for number in range(40):
            assert view.children(number) == [origin.trial for origin in origins if number in origin.parents]


# -- cells -------------------------------------------------------------------------------------------------------------


def test_one_evaluation_and_one_case_are_found_by_their_place(run: Run[Any]) -> None:
    cell = run.view.evaluation(3, 1)
    assert cell is not None and (cell.score, cell.data) == (6.0, {"seen": 2})
    assert run.view.evaluation(3, 99) is None and run.view.evaluation(99, 0) is None
    assert run.view.case(1) == run.view.cases()[1] and run.view.case(CASES) is None


def test_a_tile_has_a_byte_for_every_cell(run: Run[Any]) -> None:
    values = run.view.values()
    assert (values.low, values.high) == (0.0, 72.0)
    tile = values.tile([0, 4, 18, 99], range(CASES), 0.0, 72.0)
    assert list(tile) == [2] * CASES + [1] * CASES + [65, 128, 192, 255] + [0] * CASES  # 18, 36, 54 and 72 of 72
    assert values.tile([18], [3, 0], 0.0, 72.0) == bytes([255, 65])
    assert values.tile([18], [2], 0.0, 72.0) == bytes([192])
    assert values.tile([18], [], 0.0, 72.0) == b""
    assert values.tile([18], range(CASES), 36.0, 36.0) == bytes([2] * CASES)
    assert values.tile([18], range(CASES), 20.0, 50.0)[0] == 2  # what lies outside the limits is cut
    assert [round(mean or 0, 3) for mean in values.means()] == [9.0, 18.0, 27.0, 36.0]


def test_a_coarse_tile_has_means_and_shows_where_most_failed(run: Run[Any]) -> None:
    values = run.view.values()
    fine = values.tile([17, 18], range(CASES), 0.0, 72.0)
    coarse = values.tile([17, 18], range(CASES), 0.0, 72.0, factor=2)
    assert list(coarse) == [round((fine[at] + fine[at + 1] + fine[at + 4] + fine[at + 5]) / 4) for at in (0, 2)]
    assert list(values.tile([4, 9, 3], range(CASES), 0.0, 72.0, factor=3)) == [1, 1]
    assert min(values.tile([4, 3], range(CASES), 0.0, 72.0, factor=2)) > 1
    assert list(values.tile([99, 98], range(CASES), 0.0, 72.0, factor=4)) == [0]


def test_seconds_cost_and_failure_have_tiles_too(run: Run[Any]) -> None:
    assert set(run.view.values("cost").tile([0], range(CASES), 0.0, 0.5)) == {255}
    assert set(run.view.values("seconds").tile([0], range(CASES), 0.0, 1e9)) == {2}
    assert run.view.values("failure").tile([3, 4], range(CASES), 0.0, 1.0) == bytes([2] * CASES + [1] * CASES)


@pytest.mark.slow
def test_values_follow_a_run_and_are_then_as_if_read_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_module, "ROWS", 7)
    path = tmp_path / "runs.db"
    study(3).run(ledger=path, run="it").ledger.close()
    broken = replace(study(12), evaluate=evaluate)
    with Ledger(path, readonly=True) as ledger:
        values = CellValues(ledger, 1)
        assert values.refresh(ledger) == set()
        broken.run(ledger=path, run="it2").ledger.close()
        assert values.refresh(ledger) == set(), "of another run"
    late = tmp_path / "late.db"
    seen: list[CellValues] = []
    changed: set[tuple[int, int]] = set()

    def watch(event: Any) -> None:
        with Ledger(late, readonly=True) as ledger:
            if not seen:
                seen.append(CellValues(ledger, 1))
            changed.update(seen[0].refresh(ledger))

    broken.run(ledger=late, watch=watch).ledger.close()
    with Ledger(late, readonly=True) as ledger:
        changed.update(seen[0].refresh(ledger))
        fresh = CellValues(ledger, 1)
    assert changed == {(trial, position) for trial in range(12) for position in range(CASES)}
    whole = (range(12), range(CASES), 0.0, 44.0)
    assert seen[0].tile(*whole) == fresh.tile(*whole) and fresh.tile(*whole).count(1) == 2 * CASES
    assert (seen[0].low, seen[0].high, seen[0].mark) == (fresh.low, fresh.high, fresh.mark)


def test_failures_of_one_cause_are_one_group(run: Run[Any]) -> None:
    (group,) = run.view.failure_groups()
    assert (group.kind, group.count) == ("error", 16) and "4 cannot be had" in group.message
    assert group.cells[:2] == [(4, 0, run.view.cases()[0].id), (4, 1, run.view.cases()[1].id)]
    assert "Traceback" in group.traceback and "cannot be had" in group.traceback
    assert group.first is not None and group.last is not None and group.first <= group.last
    with contextlib.closing(sqlite3.connect(run.ledger.path)) as db, db:
        db.execute("UPDATE evaluation SET message = 'something else' WHERE trial = 9")
    assert [group.count for group in run.view.failure_groups()] == [12, 4]
    assert [group.count for group in run.view.failure_groups(1)] == [12]


# -- time --------------------------------------------------------------------------------------------------------------


def timed(path: Path, spans: list[tuple[float, float]]) -> RunView:
    """A run whose evaluations started and took what is given, counted from its beginning."""
    done = Study(Sweep(range(len(spans))), lambda c, case: 1.0).run(ledger=path)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        (began,) = db.execute("SELECT created FROM run").fetchone()
        for trial, (start, took) in enumerate(spans):
            db.execute("UPDATE evaluation SET started = ?, seconds = ? WHERE trial = ?", (began + start, took, trial))
    return done.view


def test_evaluations_that_ran_beside_each_other_have_slots_of_their_own(tmp_path: Path) -> None:
    view = timed(tmp_path / "runs.db", [(0, 10), (0, 3), (4, 2), (5, 1), (11, 1)])
    slots = view.slots()
    assert slots.count == 3 and slots.left_out == 0
    assert {span.trial: span.slot for span in slots.spans} in (
        {0: 0, 1: 1, 2: 1, 3: 2, 4: 0},
        {0: 1, 1: 0, 2: 0, 3: 2, 4: 0},
    )
    assert [round(span.start) for span in slots.spans] == [0, 0, 4, 5, 11]
    assert {span.trial for span in view.slots(first=10.5).spans} == {4}
    longest = view.slots(most=2)
    assert {span.trial for span in longest.spans} == {0, 1} and longest.left_out == 3


def test_throughput_counts_what_ended_in_each_part(tmp_path: Path) -> None:
    view = timed(tmp_path / "runs.db", [(0, 1), (0, 2), (0, 9), (0, 10)])
    throughput = view.throughput(2)
    assert throughput.seconds == pytest.approx((5, 10))
    assert throughput.evaluations == pytest.approx((0.4, 0.4)) and throughput.calls == (0, 0)


def test_the_times_of_a_large_run_are_estimated_from_some_of_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = timed(tmp_path / "runs.db", [(at, 1) for at in range(100)])
    exact = view.timings()
    monkeypatch.setattr(timeline_module, "MOST", 25)
    assert view.timings().evaluations == exact.evaluations == 100
    assert view.timings().quantiles == pytest.approx(exact.quantiles)
    assert sum(view.throughput(4).evaluations) == pytest.approx(4, rel=0.05)


# -- runs --------------------------------------------------------------------------------------------------------------


def test_runs_come_in_pages_with_those_that_belong_to_them(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for name, meta in (("a", {}), ("a.held-out-1", {"belongs_to": "a"}), ("b", {}), ("a.other", {})):
        study(2).run(ledger=path, run=name, meta=meta).ledger.close()
    with Ledger(path, readonly=True) as ledger:
        rows = ledger.run_rows()
        assert [(info.name, [helper.name for helper in helpers]) for info, helpers in rows] == [
            ("a.other", []), ("b", []), ("a", ["a.held-out-1"]),
        ]  # fmt: skip
        assert [info for info, _ in rows][1:] == [info for info, _ in ledger.run_rows(before=rows[0][0].id)]
        assert [info.name for info, _ in ledger.run_rows(count=1)] == ["a.other"]
        assert rows[0][0].evaluations == 8


def test_a_reader_notices_that_another_has_written(run: Run[Any]) -> None:
    with Ledger(run.ledger.path, readonly=True) as ledger:
        before = ledger.data_version
        assert ledger.data_version == before
        study(2).run(ledger=run.ledger.path, run="other").ledger.close()
        assert ledger.data_version != before


def test_a_statement_that_takes_too_long_is_ended_and_called_late_not_damaged(run: Run[Any]) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with Ledger(run.ledger.path, readonly=True, patience=0.01) as ledger:
        with pytest.raises(LedgerError, match=r"took longer than 0\.01 s"):
            ledger.one(endless)
        assert ledger.run_rows(), "what follows is quick, and answered"


def test_counts_are_those_of_the_rows_while_a_run_works_and_after(tmp_path: Path) -> None:
    """A told trial knows how many evaluations it had: nobody counts a million rows for that."""
    path = tmp_path / "runs.db"
    seen: list[tuple[int, int, float]] = []

    def counted() -> tuple[int, int, float]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            rows = db.execute("SELECT count(*), count(failure), total(cost) FROM evaluation").fetchone()
        with RunView.open(path, "it") as view:
            seen.append((view.info.evaluations, view.info.failures, view.info.cost))
        return tuple(rows)

    def watch(event: object) -> None:
        if len(seen) < 15:
            before, after = counted(), counted()
            assert before <= seen[-1] and seen[-2] <= after

    done = study(30).run("threads:3", ledger=path, run="it", watch=watch)
    with done.ledger:
        assert counted() == seen[-1] == (120, 24, 48.0)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM evaluation")
    with RunView.open(path, "it") as view:
        assert view.info.evaluations == 0, "an application has trials that people judge, and no evaluations"
