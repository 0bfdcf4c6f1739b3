"""What a study concludes: held-out runs beside the run, their resume, their money, and where the summary is seen."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold import Case, Genetic, MaxCost, MaxTrials, Ok, Study, Sweep
from fanfold.cli import cli
from fanfold.ledger import Ledger, RunView
from fanfold.report import write_report
from fanfold.space import Float, Space
from fanfold.summary import Section, Summary

SPACE = Space(x=Float(0, 1))
CALLS: list[str] = []


async def evaluate(candidate: Any, case: Case) -> Ok:
    CALLS.append(case.id)
    await asyncio.sleep(0)
    return Ok(candidate["x"] - case.data, cost=0.5)


async def conclude(run: Any, go: Any) -> Summary:
    assert run.best is not None
    held = await go("held-out", Study(Sweep([run.best.candidate]), evaluate, cases=[Case("h0", 0.1), Case("h1", 0.2)]))
    score = None if held.best_or_none is None else held.best.score
    row = ("<b>held out</b>", score)
    return Summary({"held_out": score}, (Section("Held out", "once <only>", ("what", "score"), (row,)),))


def searched(trials: int = 6, **changes: Any) -> Study[Any]:
    study = Study(
        Genetic(SPACE, population=3, elites=1), evaluate, cases=[0.0, 0.5], stop=MaxTrials(trials), conclude=conclude
    )
    return dataclasses.replace(study, **changes)


@pytest.fixture(autouse=True)
def fresh() -> None:
    CALLS.clear()


@pytest.mark.parametrize("executor", ["inline", "async:4", "threads:2"])
def test_the_winner_is_scored_beside_the_run_on_the_same_executor(executor: str, tmp_path: Path) -> None:
    run = searched().run(executor, ledger=tmp_path / "l.db", run="r")
    assert run.best is not None and run.summary is not None
    assert run.summary.figures["held_out"] == pytest.approx(run.best.candidate["x"] - 0.15)
    assert CALLS.count("h0") == CALLS.count("h1") == 1
    assert [info.name for info in run.ledger.runs()] == ["r.held-out-6", "r"]


def test_it_works_without_a_ledger_of_ones_own() -> None:
    run = searched().run()
    assert run.summary is not None and run.summary.figures["held_out"] is not None


def test_a_finished_run_concludes_again_without_evaluating_anything(tmp_path: Path) -> None:
    first = searched().run(ledger=tmp_path / "l.db", run="r")
    CALLS.clear()
    again = searched().run(ledger=tmp_path / "l.db", run="r")
    assert CALLS == []
    assert again.summary == first.summary


def test_what_the_search_left_of_the_money_is_all_the_rest_may_cost(tmp_path: Path) -> None:
    seen = []

    async def look(run: Any, go: Any) -> Summary:
        held = await go("held-out", Study(Sweep([{"x": 0.5}]), evaluate, cases=[0.1, 0.2, 0.3]))
        seen.append(held.reason)
        return Summary()

    searched(stop=MaxTrials(6) | MaxCost(1.0), conclude=look).run(ledger=tmp_path / "l.db")
    assert len(seen) == 1 and "cost limit" in seen[0]


def test_the_summary_is_shown_by_the_shell_and_escaped_in_the_report(tmp_path: Path) -> None:
    searched().run(ledger=tmp_path / "l.db", run="r")
    shown = CliRunner().invoke(cli, ["show", "r", "--ledger", str(tmp_path / "l.db")])
    assert "Held out" in shown.output and "once <only>" in shown.output
    as_json = CliRunner().invoke(cli, ["show", "r", "--ledger", str(tmp_path / "l.db"), "--json"])
    assert json.loads(as_json.output)["summary"]["held_out"] is not None
    page = write_report(tmp_path / "l.db", "r", tmp_path / "r.html").read_text()
    assert r"\u003cb>held out\u003c/b>" in page and "<b>held out</b>" not in page
    assert r"once \u003conly>" in page


def test_the_last_run_is_never_one_that_belongs_to_another(tmp_path: Path) -> None:
    searched().run(ledger=tmp_path / "l.db", run="r")
    with Ledger(tmp_path / "l.db", readonly=True) as ledger:
        assert RunView.open(ledger, "last").name == "r"


def test_a_conclusion_that_fails_loses_nothing_of_the_search(tmp_path: Path) -> None:
    async def broken(run: Any, go: Any) -> Summary:
        raise RuntimeError("no disk")

    with pytest.raises(RuntimeError, match="no disk"):
        searched(conclude=broken).run(ledger=tmp_path / "l.db", run="r")
    CALLS.clear()
    run = searched().run(ledger=tmp_path / "l.db", run="r")
    assert set(CALLS) == {"h0", "h1"}
    assert run.summary is not None


def test_a_run_stopped_while_it_concludes_goes_on_there(tmp_path: Path) -> None:
    """Cancelling in the middle of the held-out run keeps the search, and a second run pays only for what is missing."""
    waiting: list[asyncio.Event] = []

    async def slow(candidate: Any, case: Case) -> float:
        CALLS.append(case.id)
        if case.id == "h1" and not waiting:
            waiting.append(asyncio.Event())
            await waiting[0].wait()
        return float(candidate["x"])

    async def end(run: Any, go: Any) -> Summary:
        held = await go("held-out", Study(Sweep([run.best.candidate]), slow, cases=[Case("h0"), Case("h1")]))
        return Summary({"held_out": held.best.score})

    study = Study(Genetic(SPACE, population=3, elites=1), slow, cases=[0.0], stop=MaxTrials(4), conclude=end)

    async def interrupted() -> None:
        task = asyncio.ensure_future(study.run_async("async:1", ledger=tmp_path / "l.db", run="r", grace=0.1))
        while not waiting:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupted())
    CALLS.clear()
    run = study.run("async:1", ledger=tmp_path / "l.db", run="r")
    assert CALLS == ["h1"]
    assert run.best is not None and run.summary == Summary({"held_out": run.best.score})
