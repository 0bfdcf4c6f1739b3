"""`RunView` reads all that one run holds, nothing of any other, and follows a run that is under way."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import (
    Case,
    ConfigError,
    Failed,
    Float,
    Genetic,
    LedgerError,
    MaxTrials,
    Ok,
    Racing,
    Random,
    Run,
    RunView,
    Space,
    Study,
    Sweep,
    redaction,
)
from fanfold.errors import MissingExtra
from fanfold.events import Notice

CASES = 4


def evaluate(candidate: dict[str, Any], case: Case) -> Ok:
    if candidate["x"] % 5 == 4:
        raise ValueError(f"{candidate['x']} cannot be had")
    return Ok(float(candidate["x"] * case.data), {"seen": case.data}, cost=0.5)


def study(trials: int = 20) -> Study[Any]:
    return Study(Sweep([{"x": x, "name": "n"} for x in range(trials)]), evaluate, cases=list(range(1, CASES + 1)))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run[Any]]:
    done = study().run(ledger=tmp_path / "runs.db", run="it")
    with done.ledger:
        yield done


def paid(path: Path, run: int = 1) -> None:
    """Give a run model calls, two batches, and what its brokers counted."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for number, (tag, state, created) in enumerate([("t-2", "submitted", 20.0), ("t-1", "done", 10.0)]):
            row = (tag, run, "openai/gpt", "https://x", state, "r", 2, created, None)
            db.execute("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            db.execute("INSERT INTO batch_item VALUES (?, ?, ?)", (tag, f"{tag}-0", bytes([number])))
        for number in range(6):
            tag = "t-1" if number < 2 else None
            row = (run, bytes([number]), "openai/gpt", 0.25, 10, 5, 0, 0, 10.0, 1.0 + number, 1, tag, None)
            db.execute("INSERT INTO payment VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("INSERT INTO desk VALUES (?, ?)", (run, '{"cached": 3}'))


# -- what it reads -----------------------------------------------------------------------------------------------------


def test_a_view_opens_by_path_by_ledger_and_from_a_run(run: Run[Any]) -> None:
    with RunView.open(run.ledger.path, "i") as view:
        assert view.name == "it"
    with pytest.raises(LedgerError, match="closed"):
        _ = view.name
    assert RunView.open(run.ledger).id == run.view.id
    with pytest.raises(LedgerError, match="is not in"):
        RunView.open(run.ledger, "other")


@pytest.mark.parametrize(
    "make",
    [
        study,
        lambda: Study(Random(Space(x=Float(0, 1))), lambda c, case: c["x"], stop=MaxTrials(17)),
        lambda: Study(Sweep(range(30)), lambda c, case: c / 30, cases=range(12), schedule=Racing()),
        lambda: Study(Sweep([1, 1, 2, 1]), lambda c, case: -float(c), window=1),
    ],
)
def test_the_progress_is_the_one_the_run_ended_with(make: Callable[[], Study[Any]], tmp_path: Path) -> None:
    done = make().run(ledger=tmp_path / "runs.db")
    with done.ledger:
        assert replace(done.view.progress(), elapsed=done.progress.elapsed) == done.progress


def test_pages_are_the_whole_in_pieces_and_filters_divide_it(run: Run[Any]) -> None:
    view = run.view
    for order in ("number", "told", "best"):
        whole = list(view.trials(order=order))
        pages = [row for first in range(0, 20, 7) for row in view.trials(order=order, first=first, count=7)]
        assert pages == whole and len(whole) == 20
    failed = set(view.numbers(which="failed"))
    assert failed == {4, 9, 14, 19}
    assert failed | set(view.numbers(which="complete")) == set(view.numbers(which="told")) == set(range(20))
    assert list(view.numbers(which="open")) == list(view.numbers(which="dropped")) == []
    assert [row.number for row in view.trials(order="best", which="complete", count=2)] == [18, 17]
    best = view.best()
    assert best is not None and best.candidate == {"x": 18, "name": "n"} and best.score == 18 * 2.5
    assert view.trial(4).failures == CASES and view.trial(3).cost == 2.0
    with pytest.raises(LedgerError, match="has no trial 20"):
        view.trial(20)


def test_evaluations_can_be_chosen_by_trial_by_outcome_and_by_page(run: Run[Any]) -> None:
    view = run.view
    whole = list(view.evaluations())
    assert [(row.trial, row.position) for row in whole] == [(t, p) for t in range(20) for p in range(CASES)]
    assert list(view.evaluations(after=(3, 1), count=3)) == whole[14:17]
    assert {row.trial for row in view.evaluations(failed=True)} == {4, 9, 14, 19}
    assert list(view.evaluations(trials=[7], failed=False)) == whole[28:32]
    assert whole[28].data == {"seen": 1} and whole[28].score == 7.0 and not whole[28].reused
    assert whole[16].failure == "error" and whole[16].message == "ValueError: 4 cannot be had"


def test_a_slice_of_the_matrix_has_scores_failures_and_gaps(run: Run[Any]) -> None:
    part = run.view.matrix([4, 2, 99], range(1, 3))
    assert part.trials == (4, 2, 99) and part.cases == ("1", "2")
    assert part.cells == (("error", "error"), (4.0, 6.0), (None, None))
    assert run.view.matrix([1]).cells == ((1.0, 2.0, 3.0, 4.0),)


def test_results_and_outcomes_are_what_the_strategy_was_told(run: Run[Any]) -> None:
    results = list(run.view.results())
    assert results == list(run.results())
    assert run.view.outcomes(3) == results[3].outcomes
    assert isinstance(run.view.outcomes(4)["0"], Failed)


def test_the_lineage_of_a_trial_goes_back_to_those_without_parents(tmp_path: Path) -> None:
    search = Study(Genetic(Space(x=Float(0, 1)), population=4), lambda c, case: c["x"], stop=MaxTrials(40), seed=3)
    run = search.run(ledger=tmp_path / "runs.db")
    with run.ledger:
        view = run.view
        for number in (0, 39):
            family = {row.number: row for row in view.lineage(number)}
            assert number in family
            for row in family.values():
                parents = (row.origin or {}).get("parents", [])
                assert set(parents) <= family.keys() and all(parent < row.number for parent in parents)
        assert len(view.lineage(39)) > 2


def test_calls_costs_batches_and_waves_are_those_of_the_run(run: Run[Any]) -> None:
    paid(run.ledger.path)
    view = run.view
    [model] = view.calls().models
    assert (model.calls, model.batched, model.cost, model.latency) == (6, 2, 1.5, {0.5: 4.0, 0.9: 6.0, 0.99: 6.0})
    assert view.counts().cached == 3 and view.costs().cost == 1.5 and view.costs().batched == 2
    assert [batch.tag for batch in view.batches()] == ["t-1", "t-2"]
    assert [batch.tag for batch in view.batches(open=True)] == ["t-2"]
    waves = [(wave.number, wave.tag, wave.answered, wave.seconds) for wave in view.waves()]
    assert waves == [(1, "t-1", 2, 2.0), (2, "t-2", 0, None)]


def test_timings_leave_out_what_was_reused(tmp_path: Path) -> None:
    for name in ("first", "second"):
        study(3).run(ledger=tmp_path / "runs.db", run=name, reuse="ledger").ledger.close()
    with RunView.open(tmp_path / "runs.db", "first") as view:
        timings = view.timings()
        assert timings.evaluations == 3 * CASES and set(timings.quantiles) == {0.5, 0.9, 0.99}
        assert timings.first is not None and timings.last is not None and timings.first <= timings.last
        assert len(list(view.times())) == 3 * CASES
    with RunView.open(tmp_path / "runs.db", "second") as view:
        assert view.timings().evaluations == 0 and view.progress().reused == 3 * CASES


# -- no rows of other runs ---------------------------------------------------------------------------------------------

#: Every public name of a view, used in every way that makes another statement.
USES: dict[str, Callable[[RunView], object]] = {
    "open": lambda view: RunView.open(view.ledger, view.name),
    "info": lambda view: view.info,
    "name": lambda view: view.name,
    "status": lambda view: view.status,
    "progress": lambda view: view.progress(),
    "cases": lambda view: view.cases(),
    "summary": lambda view: view.summary(),
    "siblings": lambda view: view.siblings(),
    "notes": lambda view: view.notes(),
    "numbers": lambda view: [
        view.numbers(order=order, which=which, first=1, count=3)
        for order in ("number", "told", "best")
        for which in ("all", "told", "open", "complete", "dropped", "failed")
    ],
    "trials": lambda view: list(view.trials(order="best")),
    "trial": lambda view: view.trial(0),
    "some_trials": lambda view: view.some_trials([0, 1]),
    "count_calls": lambda view: view.count_calls(0),
    "trials_after": lambda view: [
        view.trials_after(after, order=order, which=which, contains=contains)
        for order in ("number", "told", "best")
        for which in ("all", "failed")
        for after, contains in ((None, ""), ((0.0, 1.0, 1), "n"))
    ],
    "origins": lambda view: view.origins(),
    "children": lambda view: view.children(0),
    "history": lambda view: view.history(5),
    "spark": lambda view: view.spark(3),
    "evaluation": lambda view: view.evaluation(1, 1),
    "case": lambda view: view.case(1),
    "neighbours": lambda view: view.neighbours(1, 1),
    "values": lambda view: view.values("seconds").means(),
    "failure_groups": lambda view: view.failure_groups(),
    "slots": lambda view: view.slots(),
    "throughput": lambda view: view.throughput(3),
    "questions": lambda view: view.questions(),
    "comments": lambda view: [view.comments(), view.comments(1)],
    "best": lambda view: view.best(),
    "lineage": lambda view: view.lineage(3),
    "results": lambda view: list(view.results()),
    "outcomes": lambda view: view.outcomes(0),
    "scores": lambda view: list(view.scores()),
    "evaluations": lambda view: [
        list(view.evaluations(trials=trials, failed=failed)) for trials in (None, [1, 2]) for failed in (None, True)
    ],
    "matrix": lambda view: view.matrix([0, 1], range(2)),
    "failures": lambda view: view.failures(),
    "timings": lambda view: view.timings(),
    "times": lambda view: list(view.times()),
    "calls": lambda view: view.calls(),
    "calls_of": lambda view: view.calls_of(0, 0),
    "counts": lambda view: view.counts(),
    "cost": lambda view: view.cost(),
    "costs": lambda view: [view.costs(), view.costs(siblings=False)],
    "batches": lambda view: [view.batches(), view.batches(open=True)],
    "waves": lambda view: view.waves(),
    "mark": lambda view: view.mark,
    "changes": lambda view: view.changes(0),
    "frame": lambda view: [view.frame(rows="trials"), view.frame(rows="evaluations")],
}
SHARED = {
    *("run", "run_case", "trial", "evaluation", "superseded", "snapshot", "call", "batch", "batch_item", "desk"),
    *(
        "summary",
        "payment",
        "owed",
        "change",
        "note",
        "cell_call",
        "request",
        "comment",
        "blob",
        "e",
        "t",
        "b",
        "p",
        "r",
        "i",
        "o",
        "c",
    ),
}


def test_every_name_of_a_view_is_looked_at() -> None:
    assert set(USES) == {name for name in dir(RunView) if not name.startswith("_")}


@pytest.mark.parametrize("name", USES)
def test_no_statement_scans_a_table_that_runs_share(name: str, run: Run[Any]) -> None:
    paid(run.ledger.path)
    statements: list[str] = []
    reader = run.ledger._reader().db
    view = run.view
    reader.set_trace_callback(statements.append)
    USES[name](view)
    reader.set_trace_callback(None)
    read = [statement for statement in statements if not statement.startswith("PRAGMA")]
    assert read
    for statement in read:
        for *_, step in reader.execute(f"EXPLAIN QUERY PLAN {statement}"):
            words = step.split()
            assert words[0] != "SCAN" or words[1] not in SHARED, (statement, step)


def test_what_a_view_reads_does_not_depend_on_the_other_runs_of_the_file(run: Run[Any]) -> None:
    paid(run.ledger.path)
    before = {name: seen(use, run.view) for name, use in USES.items()}
    study(7).run(ledger=run.ledger.path, run="it.but-not-of-it").ledger.close()
    study(9).run(ledger=run.ledger.path, run="another").ledger.close()
    paid_again = run.ledger.named("another")
    with contextlib.closing(sqlite3.connect(run.ledger.path)) as db, db:
        db.execute("INSERT INTO payment SELECT NULL, ?, key, model, 9.0, 1, 1, 0, 0, at, seconds, tries, batch, NULL "
                   "FROM payment", (paid_again,))  # fmt: skip
    assert {name: seen(use, run.view) for name, use in USES.items()} == before


def seen(use: Callable[[RunView], object], view: RunView) -> str:
    found = use(view)
    return "view" if isinstance(found, RunView) else repr(found)


# -- following ---------------------------------------------------------------------------------------------------------


def test_following_a_run_gives_every_row_once_written_and_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    marks, told, cells = [0], [], []
    followed: list[RunView] = []

    def watch(event: Any) -> None:
        if not followed:
            followed.append(RunView.open(path, "it"))
        changes = followed[0].changes(marks[-1])
        assert changes.mark >= marks[-1] and not changes.more
        marks.append(changes.mark)
        told.extend(row.number for row in changes.trials if row.order is not None)
        cells.extend((row.trial, row.position) for row in changes.evaluations)

    done = study().run("threads:3", ledger=path, run="it", watch=watch)
    watch(None)
    with followed[0], done.ledger:
        assert sorted(told) == list(range(20))
        assert sorted(cells) == [(trial, position) for trial in range(20) for position in range(CASES)]
        assert marks == sorted(marks) and followed[0].mark == marks[-1]
        last = followed[0].changes(marks[-1])
        assert (last.mark, last.trials, last.evaluations, last.status) == (marks[-1], (), (), "finished")
        assert last.progress == done.view.progress()


@given(limit=st.integers(1, 7))
@settings(max_examples=7, deadline=None)
def test_changes_in_small_pieces_are_the_same_as_all_at_once(limit: int, followed: RunView) -> None:
    whole = followed.changes(0, limit=10_000)
    trials: dict[int, Any] = {}
    cells: dict[tuple[int, int], Any] = {}
    mark, more = 0, True
    while more:
        part = followed.changes(mark, limit=limit)
        trials |= {row.number: row for row in part.trials}
        cells |= {(row.trial, row.position): row for row in part.evaluations}
        mark, more = part.mark, part.more
    assert mark == whole.mark == followed.mark
    assert sorted(trials) == [row.number for row in whole.trials] == list(range(20))
    assert sorted(cells) == [(row.trial, row.position) for row in whole.evaluations]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunView]:
    path = tmp_path_factory.mktemp("followed") / "runs.db"
    study().run(ledger=path, run="it").ledger.close()
    with RunView.open(path) as view:
        yield view


def test_a_failure_that_is_evaluated_again_is_a_change(tmp_path: Path) -> None:
    path, broken = tmp_path / "runs.db", [True]

    def flaky(candidate: int, case: Case) -> float:
        if broken and candidate == 3:
            raise OSError("not now")
        return float(candidate)

    flaky.fingerprint = "flaky"  # type: ignore[attr-defined]
    searched = Study(Sweep(range(6)), flaky)
    searched.run(ledger=path, run="it").ledger.close()
    with RunView.open(path) as view:
        mark = view.mark
        broken.clear()
        searched.run(ledger=path, run="it", retry_failed=True).ledger.close()
        changes = view.changes(mark)
        assert [row.number for row in changes.trials] == [3] and changes.trials[0].score == 3.0
        assert [(row.trial, row.score) for row in changes.evaluations] == [(3, 3.0)]


# -- frames ------------------------------------------------------------------------------------------------------------


def test_a_frame_has_a_row_for_each_trial_and_a_column_for_each_key(run: Run[Any]) -> None:
    frame = run.frame()
    assert list(frame.columns)[:3] == ["number", "order", "score"] and len(frame) == 20
    assert frame["candidate.x"].tolist() == list(range(20)) and frame["candidate.name"][0] == "n"
    assert frame["score"].isna().sum() == 4
    cells = run.frame("evaluations")
    assert len(cells) == 20 * CASES and set(cells["failure"].dropna()) == {"error"}
    assert cells["score"].sum() == sum(x * case for x in range(20) if x % 5 != 4 for case in range(1, CASES + 1))


def test_a_frame_is_of_polars_where_that_is_asked_for(run: Run[Any]) -> None:
    polars = pytest.importorskip("polars")
    frame = run.view.frame(library="polars")
    assert isinstance(frame, polars.DataFrame) and frame["candidate.x"].to_list() == list(range(20))


def test_without_a_library_a_frame_names_the_command_that_installs_one(
    run: Run[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"pip install 'fanfold\[pandas\]'"):
        run.frame()
    with pytest.raises(ConfigError, match="one of 'pandas' or 'polars'"):
        run.view.frame(library="arrow")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'trials' or 'evaluations'"):
        run.frame("cells")  # type: ignore[arg-type]


def test_a_view_is_a_public_name() -> None:
    assert importlib.import_module("fanfold").RunView is RunView


# -- notes -------------------------------------------------------------------------------------------------------------


def test_what_the_user_is_told_is_kept_with_or_without_a_watcher(tmp_path: Path) -> None:
    heard: list[str] = []

    def watch(event: Any) -> None:
        if isinstance(event, Notice):
            heard.append(event.message)

    for name, watcher in (("watched", watch), ("alone", None)):
        done = replace(study(6), window=1).run("threads:8", ledger=tmp_path / "runs.db", run=name, watch=watcher)
        with done.ledger:
            notes = done.view.notes()
            assert [note.text for note in notes] == heard != []
            assert "8 slots" in notes[0].text and notes[0].at > 0
            assert done.view.changes(0).notes == tuple(notes)
            assert done.view.changes(done.view.mark).notes == ()


def test_no_key_is_kept_in_a_note(tmp_path: Path) -> None:
    from fanfold.ledger import Commits, Ledger, RunJournal

    redaction.know("sk-canary-0123456789abcdef")
    study(1).run(ledger=tmp_path / "runs.db", run="it").ledger.close()

    async def note() -> None:
        with Ledger(tmp_path / "runs.db") as ledger:
            commits = Commits(ledger)
            RunJournal(ledger, 1, commits).note("refused: sk-canary-0123456789abcdef")
            await commits.flush()
            commits.close()

    asyncio.run(note())
    with RunView.open(tmp_path / "runs.db") as view:
        assert [note.text for note in view.notes()] == ["refused: ***"]
