"""Large files: what is shown of a run does not depend on what else its ledger holds."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fanfold.ledger.journal
import fanfold.ledger.store
from fanfold import Ledger, Random, RunView, Study, Sweep
from fanfold.cli import cli
from fanfold.cli.output import complete_run

ROWS, RUNS = 20_000, 300
#: Tables that hold the rows of all runs; that of the runs themselves has one row for each.
SHARED = {
    *("run_case", "trial", "evaluation", "superseded", "call", "batch", "payment", "change", "note", "cell_call"),
    *("e", "t", "b", "p", "o", "c"),
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, a large one beside it, and hundreds of others."""
    path = tmp_path_factory.mktemp("large") / "ledger.db"
    Study(Sweep(range(5)), lambda c, case: float(c), cases=range(2)).run(ledger=path, run="small").ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {})"
        db.execute("INSERT INTO run VALUES (2, 'large', 1.0, 1.0, 0, 'finished', NULL, '{}', '{}')")
        db.execute(f"{numbers.format(ROWS)} INSERT INTO trial SELECT 2, i, '1', 0, i, 1.0, NULL, 1, 0.0, NULL FROM n")
        values = "2, i, 0, randomblob(16), NULL, 1.0, NULL, NULL, NULL, 0.0, 1.0, 0.1, 1, 0"
        db.execute(f"{numbers.format(ROWS)} INSERT INTO evaluation SELECT {values} FROM n")
        db.execute(
            f"{numbers.format(RUNS)} INSERT INTO run SELECT 3 + i, printf('run-%03d', i), 2.0 + i, updated, elapsed, "
            "status, reason, identity, meta FROM run, n WHERE id = 1"
        )
    return path


def look(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[sqlite3.Connection, str]]]:
    """Every statement that is read with, and where."""
    seen: list[tuple[sqlite3.Connection, str]] = []
    read = Ledger.read

    def traced(ledger: Ledger, sql: str, parameters: Any = ()) -> Any:
        plan = ledger._reader().db.execute(f"EXPLAIN QUERY PLAN {sql}", parameters) if "PRAGMA" not in sql else ()
        seen.extend((ledger._reader().db, f"{step[-1]}: {sql}") for step in plan)
        return read(ledger, sql, parameters)

    monkeypatch.setattr(Ledger, "read", traced)
    yield seen


@pytest.mark.parametrize(
    "command", ["show", "show --json", "show --trials 3", "report", "compare", "export", "complete"]
)
def test_looking_at_a_small_run_reads_no_row_of_a_large_one(
    command: str, ledger: Path, statements: list[tuple[Any, str]], tmp_path: Path
) -> None:
    name, *rest = command.split()
    if name == "complete":
        context = cli.make_context("fanfold", ["show", "x"], resilient_parsing=True)
        context.params["ledger"] = str(ledger)
        assert complete_run(context, cli.params[0], "sm") == ["small"]
        assert len(statements) < 5
    else:
        also = {
            "compare": ["small"],
            "report": ["-o", str(tmp_path / "x.html")],
            "export": ["-o", str(tmp_path / "x.csv")],
        }
        look(name, "small", *also.get(name, []), *rest, "--ledger", str(ledger))
    scans = [step for _, step in statements if step.split()[0] == "SCAN" and step.split()[1].strip(":") in SHARED]
    assert statements and not scans


def test_runs_are_listed_in_pages_the_newest_first(ledger: Path) -> None:
    first = look("runs", "--ledger", str(ledger))
    assert "run-299" in first and "run-250" in first and "run-249" not in first
    assert f"50 of {RUNS + 2} runs. Older ones: fanfold runs --before run-250 --ledger" in first
    second = look("runs", "--ledger", str(ledger), "--before", "run-250", "--limit", "2")
    assert "run-249" in second and "run-248" in second and "run-247" not in second and "run-250 " not in second
    last = look("runs", "--ledger", str(ledger), "--before", "run-001")
    assert "small" in last and "Older" not in last
    assert "no runs older than small" in look("runs", "--ledger", str(ledger), "--before", "small")
    assert len(look("runs", "--ledger", str(ledger), "--limit", "0").splitlines()) > RUNS
    assert len(json.loads(look("runs", "--ledger", str(ledger), "--json"))) == RUNS + 2
    page = json.loads(look("runs", "--ledger", str(ledger), "--json", "--limit", "3"))
    assert [run["name"] for run in page] == ["run-299", "run-298", "run-297"]


def test_an_unknown_name_is_refused_without_counting_all_runs(ledger: Path, statements: list[tuple[Any, str]]) -> None:
    assert "did you mean" in look("show", "run-29x", "--ledger", str(ledger), code=3)
    assert len(statements) < 20


@pytest.mark.slow
def test_a_large_run_is_counted_when_it_ends_and_again_when_it_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanfold.ledger.journal, "LARGE", 100)
    path = tmp_path / "ledger.db"
    study = Study(Random(lambda rng: rng.random()), lambda c, case: c, cases=range(2))

    def counted() -> list[Any]:
        with Ledger(path, readonly=True) as opened:
            return list(opened.read("SELECT trials, evaluations, best FROM run_count"))

    study.run(ledger=path, run="it", max_trials=60).ledger.close()
    assert counted() == []
    run = study.run(ledger=path, run="it", max_trials=150)
    assert counted() == [(150, 300, run.best.score)]
    with RunView.open(path, "it") as view:
        info = view.info
    run.ledger.writer.execute("DELETE FROM run_count")
    with RunView.open(path, "it") as view:
        assert view.info == info and (info.trials, info.evaluations) == (150, 300)
    run.ledger.close()
    study.run(ledger=path, run="it", max_trials=160).ledger.close()
    assert counted()[0][:2] == (160, 320)
