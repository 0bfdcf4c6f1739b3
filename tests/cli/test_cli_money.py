"""What the shell says a run has paid: at its end, in `show`, `runs`, the report, and as JSON."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fanfold import RunView
from fanfold.texts import money

Fanfold = Callable[..., Result]
Json = Callable[..., Any]

STUDY = """
from fanfold import Case, MaxTrials, Study, Sweep
from fanfold.models import model
from fanfold.models.pricing import Price

asked = model("simulated/{name}", usage={usage}, turnaround={{"median": 0.01}})


async def evaluate(candidate: int, case: Case) -> float:
    return float(len((await asked.generate(f"say {{candidate}}", max_tokens=20)).text))


study = Study(Sweep(range(8)), evaluate, stop=MaxTrials(5), window=5)
"""


@pytest.fixture
def write(folder: Path) -> Callable[..., None]:
    def write(name: str = "gpt-6-luna", usage: bool = True) -> None:
        (folder / "asks.py").write_text(STUDY.format(name=name, usage=usage))

    return write


@pytest.mark.slow
def test_the_end_of_a_run_says_what_was_paid(fanfold: Fanfold, as_json: Json, write: Callable[..., None]) -> None:
    write()
    said = fanfold("run", "asks.py", "--executor", "async:4", "--run", "first").stdout
    assert "5 model calls, " in said and " tokens, cost $0.000" in said
    assert "5 model calls, " in fanfold("show", "first").stdout
    money = as_json("show", "first")["money"]
    assert money["calls"] == 5 and money["cost"] > 0 and money["currency"] == "USD" and money["unpriced"] == 0
    result = as_json("run", "asks.py", "--executor", "async:4", "--run", "again", "--quiet")
    assert (result["money"]["calls"], result["money"]["from_ledger"], result["unpriced"]) == (0, 5, 0)
    assert "(5 more answered from the ledger)" in fanfold("show", "again").stdout


@pytest.mark.slow
def test_what_a_killed_evaluation_paid_is_part_of_every_cost(
    fanfold: Fanfold, as_json: Json, folder: Path, write: Callable[..., None]
) -> None:
    write()
    fanfold("run", "asks.py", "--executor", "async:4", "--run", "first")
    with contextlib.closing(sqlite3.connect(folder / "fanfold.db")) as db, db:
        db.execute(
            "INSERT INTO payment SELECT NULL, run, randomblob(16), model, 2.5, 1, 1, 0, 0, at, seconds, 1, NULL, NULL "
            "FROM payment LIMIT 1"
        )
        db.execute("DELETE FROM run_count")  # as if it had been there when the run ended
        paid = db.execute("SELECT sum(cost) FROM payment").fetchone()[0]
    (listed,) = as_json("runs")
    shown = as_json("show", "first")
    resumed = as_json("resume", "first", "--max-trials", "5", "--quiet")
    costs = [listed["cost"], shown["cost"], shown["money"]["cost"], resumed["cost"], resumed["money"]["cost"]]
    assert costs == [pytest.approx(paid)] * 5
    with RunView.open(folder / "fanfold.db", "first") as view:
        assert [view.info.cost, view.cost(), view.progress().cost] == [pytest.approx(paid)] * 3
    assert money(paid) in fanfold("runs").stdout and money(paid) in fanfold("show", "first").stdout
    assert "not in these rows: 2.5 that the run paid" in fanfold("export", "first", "-o", "rows.csv").stdout
    exported = as_json("export", "first", "--evaluations", "-o", "cells.jsonl")
    rows = map(json.loads, (folder / "cells.jsonl").read_text().splitlines())
    assert sum(row["cost"] for row in rows) + exported["cost_not_in_rows"] == pytest.approx(paid)


@pytest.mark.slow
def test_a_reply_that_was_asked_for_again_is_told_from_the_one_an_evaluation_had(
    fanfold: Fanfold, as_json: Json, write: Callable[..., None]
) -> None:
    write()
    fanfold("run", "asks.py", "--executor", "async:4", "--run", "first")
    assert "asked again" not in fanfold("show", "first", "--cell", "0:0").stdout
    fanfold("run", "asks.py", "--executor", "async:4", "--run", "second", "--cache", "refresh")
    assert "asked again since" in fanfold("show", "first", "--cell", "0:0").stdout
    assert "asked again" not in fanfold("show", "second", "--cell", "0:0").stdout
    assert [as_json("show", run, "--cell", "0:0")["calls"][0]["again"] for run in ("first", "second")] == [True, False]


@pytest.mark.slow
def test_a_cost_holds_what_evaluators_report_themselves_and_their_model_calls(
    fanfold: Fanfold, as_json: Json, folder: Path, write: Callable[..., None]
) -> None:
    write()
    text = (folder / "asks.py").read_text().replace("return float(", "return Ok(cost=300.0, score=")
    (folder / "asks.py").write_text(text.replace("import Case,", "import Case, Ok,"))
    fanfold("run", "asks.py", "--executor", "async:4", "--run", "first")
    assert (
        as_json("runs")[0]["cost"] == pytest.approx(1500, abs=1) and "$1,500.00 (simulated)" in fanfold("runs").stdout
    )
    assert "cost $1,500.00, of which model calls $0.000" in fanfold("show", "first").stdout


@pytest.mark.slow
def test_calls_at_half_price_are_told_from_the_others(
    fanfold: Fanfold, as_json: Json, write: Callable[..., None]
) -> None:
    write()
    said = fanfold("run", "asks.py", "--executor", "batch:openai", "--run", "first").stdout
    assert "5 of 5 calls at half price" in said
    said = fanfold("resume", "first", "--max-trials", "6").stdout
    assert "6 of 6 calls at half price" in said
    said = fanfold("resume", "first", "--max-trials", "7", "--batch-fallback", "realtime").stdout
    assert "6 of 7 calls at half price; 1 at full price: fewer than 2 in a wave" in said
    assert as_json("show", "first")["money"]["full_price"] == {"fewer than 2 in a wave": 1}


@pytest.mark.slow
def test_a_price_nobody_knows_is_shown_as_unknown_everywhere(
    fanfold: Fanfold, as_json: Json, folder: Path, write: Callable[..., None]
) -> None:
    write("nobody-knows")
    ran = fanfold("run", "asks.py", "--executor", "async:4", "--run", "first")
    assert "cost unknown (5 calls of unknown price)" in ran.stdout
    assert "the price of simulated/nobody-knows is not known" in ran.stderr
    assert "unknown" in fanfold("runs").stdout and ", cost unknown" in fanfold("show", "first").stdout
    (listed,) = as_json("runs")
    assert listed["unpriced"] == as_json("show", "first")["money"]["unpriced"] == 5
    fanfold("report", "first", "-o", "first.html")
    assert "unknown (5 calls of unknown price)" in (folder / "first.html").read_text()


@pytest.mark.slow
def test_usage_that_was_not_sent_is_said_to_be_estimated(fanfold: Fanfold, write: Callable[..., None]) -> None:
    write(usage=False)
    said = fanfold("run", "asks.py", "--executor", "async:4", "--run", "first").stdout
    assert "tokens estimated for 5 calls" in said
