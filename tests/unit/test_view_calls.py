"""Which model calls each cell made, wherever it was evaluated, and what a page shows of them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fanfold import Case, LedgerError, Ok, RunView, Study, Sweep
from fanfold.ledger import CallRow
from fanfold.models import model

MODEL = "simulated/gpt-6-luna"


async def talk(candidate: int, case: Case) -> Ok:
    """Two turns, of which the second depends on the first; none for candidate 0."""
    if candidate == 0:
        return Ok(0.0)
    first = await model(MODEL).generate(f"candidate {candidate}, {case.data}: hello", max_tokens=20)
    second = await model(MODEL).generate(f"you said: {first.text}", max_tokens=20, temperature=0.5)
    return Ok(float(candidate), [first.text, second.text])


def talk_sync(candidate: int, case: Case) -> Ok:
    if candidate == 0:
        return Ok(0.0)
    first = model(MODEL).generate_sync(f"candidate {candidate}, {case.data}: hello", max_tokens=20)
    second = model(MODEL).generate_sync(f"you said: {first.text}", max_tokens=20, temperature=0.5)
    return Ok(float(candidate), [first.text, second.text])


def study(evaluate: Any, candidates: list[int] | None = None) -> Study[Any]:
    return Study(Sweep(candidates or [0, 1, 2]), evaluate, cases=[10, 20])


def rows(view: RunView, trial: int, position: int) -> list[CallRow]:
    calls = view.calls_of(trial, position)
    assert calls is not None
    return calls


PLACES = [
    (talk, "async:4"),
    (talk_sync, "threads:3"),
    (talk_sync, "processes:2"),
    pytest.param(talk, "batch:auto", marks=pytest.mark.slow),
    pytest.param(talk_sync, "ray:2", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("evaluate", "executor"), PLACES)
@pytest.mark.slow
def test_every_cell_knows_its_own_calls_wherever_it_is_evaluated(evaluate: Any, executor: str, tmp_path: Path) -> None:
    if executor.startswith("ray"):
        pytest.importorskip("ray")
    done = study(evaluate).run(executor, ledger=tmp_path / "runs.db")
    with done.ledger:
        view = done.view
        assert rows(view, 0, 0) == []
        for trial in (1, 2):
            for position, data in enumerate((10, 20)):
                first, second = rows(view, trial, position)
                cell = view.evaluation(trial, position)
                assert cell is not None and [first.text, second.text] == cell.data
                assert f"candidate {trial}, {data}: hello" in str(first.request)
                assert f"you said: {first.text}" in str(second.request).replace("\\n", "\n")
                assert (first.model, first.cached, first.tries) == (MODEL, False, 1)
                assert first.input_tokens > 0 and first.output_tokens > 0 and first.cost and first.finish
                assert (first.batch is not None) == executor.startswith("batch")


def test_calls_that_were_shared_or_held_already_are_listed_as_cached(tmp_path: Path) -> None:
    async def alike(candidate: int, case: Case) -> float:
        await model(MODEL).generate("the same for all", max_tokens=20)
        return float(candidate)

    path = tmp_path / "runs.db"
    with study(alike).run("async:9", ledger=path, run="a").ledger as ledger:
        view = RunView.open(ledger, "a")
        cached = [rows(view, trial, position)[0].cached for trial in range(3) for position in range(2)]
        assert sorted(cached) == [False, True, True, True, True, True]
    with study(alike).run("async:9", ledger=path, run="b").ledger as ledger:
        view = RunView.open(ledger, "b")
        (call,) = rows(view, 2, 1)
        assert call.cached and call.cost == 0.0 and "the same for all" in str(call.request)


def test_the_calls_of_a_reused_cell_are_those_of_the_cell_it_was_taken_from(tmp_path: Path) -> None:
    done = Study(Sweep([1, 2, 1]), talk, cases=[10], window=1).run("async:1", ledger=tmp_path / "runs.db")
    with done.ledger:
        assert [row.reused for row in done.view.evaluations()] == [False, False, True]
        original, copied = rows(done.view, 0, 0), rows(done.view, 2, 0)
    assert [call.text for call in copied] == [call.text for call in original]
    assert all(call.cached for call in copied) and not any(call.cached for call in original)


class Blocks:
    """Takes several cells at once."""

    fingerprint = "blocks"
    block_size = 8

    async def __call__(self, candidate: int, case: Case) -> Ok:
        return await talk(candidate, case)

    async def evaluate_block(self, cells: list[Any]) -> list[Ok]:
        return [await talk(*cell) for cell in cells]


def test_the_cells_of_a_block_list_the_calls_of_the_block(tmp_path: Path) -> None:
    done = Study(Sweep([1, 2]), Blocks(), cases=[10, 20], window=2).run("async:1", ledger=tmp_path / "runs.db")
    with done.ledger:
        assert {len(rows(done.view, trial, position)) for trial in range(2) for position in range(2)} == {8}


def test_a_failed_cell_lists_the_calls_it_made_before(tmp_path: Path) -> None:
    async def fails(candidate: int, case: Case) -> float:
        await model(MODEL).generate(f"{candidate} {case.data}", max_tokens=20)
        raise ValueError("then it went wrong")

    done = Study(Sweep([1]), fails, cases=[10]).run("async:1", ledger=tmp_path / "runs.db")
    with done.ledger:
        assert len(rows(done.view, 0, 0)) == 1


def test_cells_that_are_evaluated_again_list_the_calls_of_the_last_time(tmp_path: Path) -> None:
    broken = [True]

    async def recovers(candidate: int, case: Case) -> float:
        if broken[0]:
            await model(MODEL).generate("wrong", max_tokens=20)
            raise ValueError("not yet")
        await model(MODEL).generate("right", max_tokens=20)
        return 1.0

    recovers.fingerprint = "recovers"  # type: ignore[attr-defined]
    path = tmp_path / "runs.db"
    study(recovers, [1]).run("async:1", ledger=path, run="a").ledger.close()
    broken[0] = False
    with study(recovers, [1]).run("async:1", ledger=path, run="a", retry_failed=True).ledger as ledger:
        (call,) = rows(RunView.open(ledger, "a"), 0, 0)
        assert "right" in str(call.request)


def test_a_run_of_before_does_not_say_that_there_were_no_calls(tmp_path: Path) -> None:
    done = study(talk).run("async:4", ledger=tmp_path / "runs.db")
    with done.ledger:
        with contextlib.closing(sqlite3.connect(done.ledger.path)) as db, db:
            db.execute("DELETE FROM cell_call")
        assert done.view.calls_of(1, 0) is None
    plain = Study(Sweep([1]), lambda c, case: 1.0).run()
    with plain.ledger:
        assert plain.view.calls_of(0, 0) == []


def test_a_reply_that_cannot_be_read_is_called_damage(tmp_path: Path) -> None:
    done = study(talk).run("async:4", ledger=tmp_path / "runs.db")
    with done.ledger:
        with contextlib.closing(sqlite3.connect(done.ledger.path)) as db, db:
            db.execute("UPDATE call SET reply = '{\"text\": 5}'")
        with pytest.raises(LedgerError, match="a reply"):
            done.view.calls_of(1, 0)
        with contextlib.closing(sqlite3.connect(done.ledger.path)) as db, db:
            db.execute("DELETE FROM call")
        assert done.view.calls_of(1, 0) == [], "only the cache of replies was cleared"
