"""`fanfold runs`, `show`, `export`, `report`, `doctor`, `completion`, and help."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from fanfold import Blob, Ok, Study, Sweep
from fanfold.cli import cli
from fanfold.summary import Section, Summary

Fanfold = Callable[..., Result]
Json = Callable[..., Any]


@pytest.fixture
def mixed(folder: Path) -> None:
    """A run whose candidates are unlike each other and of which some fail."""
    candidates: list[Any] = [
        {"x": 1, "deep": {"y": 2.5}, "name": 'a "quoted", text'},
        {"x": 2.5, "tags": ["p", "q"]},
        {"x": 3, "on": True, "big": 2**70, "either": 1},
        {"x": 9, "either": "word", "weights": Blob.of(b"abc")},
    ]

    def evaluate(candidate: Any, case: Any) -> Ok:
        if candidate["x"] == 9:
            raise ValueError(f"too large\n{case.data}")
        return Ok(candidate["x"] * case.data, {"seen": [case.data]}, cost=0.25)

    Study(Sweep(candidates), evaluate, cases=[1, 2]).run(ledger="fanfold.db", run="mixed").ledger.close()


def test_a_run_of_a_program_is_said_to_be_continued_there(mixed: None, fanfold: Fanfold) -> None:
    shown = fanfold("show", "mixed").output
    assert "Resume: study.run(run='mixed', ledger='fanfold.db') in the program that started it" in shown
    assert "fanfold resume" not in shown


def test_a_page_takes_its_ledger_as_every_command_does(mixed: None, fanfold: Fanfold) -> None:
    Path("fanfold.db").rename("other.db")
    fanfold("view", "--ledger", "other.db", "--save", "flag.html")
    fanfold("view", "other.db", "--save", "argument.html")
    assert "mixed" in Path("flag.html").read_text() and Path("argument.html").exists()
    fanfold("view", "--ledger", "gone.db", "--save", "gone.html", code=3)
    assert "name one LEDGER" in fanfold("view", "other.db", "more.db", "--save", "both.html", code=2).stderr
    assert "one --run" in fanfold("view", "other.db", "--run", "a", "--run", "b", "--save", "b.html", code=2).stderr


def test_a_page_is_asked_for_by_the_name_of_a_run(mixed: None, fanfold: Fanfold) -> None:
    Study(Sweep([{"x": 1}]), lambda candidate, case: 1.0).run(ledger="fanfold.db", run="later").ledger.close()
    fanfold("view", "mixed", "--save", "mixed.html")
    assert "<title>mixed" in Path("mixed.html").read_text()
    refused = fanfold("view", "mixd", "--no-open", code=3).stderr
    assert "no ledger at mixd" in refused and "did you mean 'mixed'" in refused
    assert "not in fanfold.db" in fanfold("view", "--run", "mixd", "--no-open", code=3).stderr


def test_a_report_is_not_written_under_the_name_of_a_picture(mixed: None, fanfold: Fanfold) -> None:
    refused = fanfold("report", "mixed", "-o", "run.png", code=2).stderr
    assert "name it run.html" in refused and "--png CHART" in refused and not Path("run.png").exists()


def test_runs_are_listed_newest_first(fanfold: Fanfold, as_json: Json, mixed: None) -> None:
    fanfold("run", "functions", "--trials", "4", "--run", "second", "--executor", "inline")
    lines = fanfold("runs").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["name", "second", "mixed"]
    assert "finished" in lines[2]
    listed = as_json("runs")[1]
    assert (listed["trials"], listed["evaluations"], listed["failures"], listed["best"]) == (4, 8, 2, 4.5)


def test_a_killed_run_is_listed_as_interrupted(fanfold: Fanfold, as_json: Json, mixed: None) -> None:
    import sqlite3

    with sqlite3.connect("fanfold.db") as db:
        db.execute("UPDATE run SET status = 'running', reason = NULL")
    db.close()
    assert as_json("runs")[0]["status"] == "interrupted"
    assert "interrupted" in fanfold("show", "mixed").stdout


def test_show_says_what_was_found_and_what_failed(fanfold: Fanfold, as_json: Json, mixed: None) -> None:
    shown = fanfold("show", "mix", "--trials", "2").stdout
    for words in ("Best: 4.5, trial 2", "ValueError: too large 1", "The 2 best trials", "fanfold export mixed"):
        assert words in shown
    facts = as_json("show", "last")
    assert facts["best_trial"]["cases"] == {"0": {"score": 3.0}, "1": {"score": 6.0}}
    assert facts["failures_by_kind"][0]["count"] == 2


@pytest.mark.parametrize("command", ["show", "export --format csv", "report -o run.html"])
def test_without_a_name_the_newest_run_is_looked_at(fanfold: Fanfold, mixed: None, command: str) -> None:
    name, *flags = command.split()
    assert fanfold(name, *flags).stdout == fanfold(name, "last", *flags).stdout


def test_one_section_is_shown_in_short(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    async def conclude(run: Any, go: Any) -> Summary:
        return Summary(
            {}, (Section("Lineage", "all of it", ("trial",), ((1,),), brief="in short"), Section("Gain", "2"))
        )

    Study(Sweep([1.0]), lambda candidate, case: candidate, conclude=conclude).run(ledger="fanfold.db")
    assert fanfold("show", "--section", "lineage").stdout.strip().splitlines() == ["Lineage", "in short"]
    assert fanfold("show", "--section", "Gain").stdout.strip().splitlines() == ["Gain", "2"]
    assert as_json("show", "--section", "lineage")["text"] == "all of it"
    assert "did you mean 'lineage'?" in fanfold("show", "--section", "linage", code=2).stderr


def test_trials_are_exported_as_csv_with_a_column_for_each_key(fanfold: Fanfold, folder: Path, mixed: None) -> None:
    fanfold("export", "mixed", "-o", "out.csv")
    rows = list(csv.DictReader(io.StringIO((folder / "out.csv").read_text())))
    assert [row["score"] for row in rows] == ["1.5", "3.75", "4.5", ""]
    assert rows[0]["candidate.deep.y"] == "2.5" and rows[0]["candidate.name"] == 'a "quoted", text'
    assert rows[1]["candidate.tags"] == '["p","q"]' and rows[2]["candidate.on"] == "true"
    assert [row["failures"] for row in rows] == ["0", "0", "0", "2"]
    assert not list(folder.glob("*.part"))


@pytest.mark.slow
def test_trials_are_exported_as_parquet_with_fitting_types(fanfold: Fanfold, as_json: Json, mixed: None) -> None:
    from pyarrow import parquet

    assert as_json("export", "mixed", "-o", "out.parquet")["rows"] == 4
    table = parquet.read_table("out.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types["candidate.x"] == "double" and types["candidate.on"] == "bool" and types["number"] == "int64"
    assert table["candidate.x"].to_pylist() == [1.0, 2.5, 3.0, 9.0]
    assert table["candidate.either"].to_pylist() == [None, None, "1", "word"]
    assert table["candidate.big"].to_pylist()[2] == str(2**70)


def test_json_lines_keep_candidates_as_they_are(fanfold: Fanfold, mixed: None) -> None:
    rows = [json.loads(line) for line in fanfold("export", "mixed").stdout.splitlines()]
    assert [row["order"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["candidate"] == {"x": 2.5, "tags": ["p", "q"]}
    assert rows[0]["cost"] == 0.5 and rows[3]["score"] is None


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_evaluation_can_be_exported(fanfold: Fanfold, folder: Path, mixed: None, kind: str) -> None:
    fanfold("export", "mixed", "--evaluations", "--format", kind, "-o", "out")
    if kind == "parquet":
        from pyarrow import parquet

        rows = parquet.read_table("out").to_pylist()
    elif kind == "csv":
        rows = list(csv.DictReader(io.StringIO((folder / "out").read_text())))
    else:
        rows = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    assert [str(row["case"]) for row in rows] == ["0", "1"] * 4
    assert rows[1]["data"] == {"seen": [2]} if kind == "jsonl" else rows[1]["data"] == '{"seen":[2]}'
    assert rows[6]["failure"] == "error" and rows[6]["message"].startswith("ValueError: too large")


def test_an_export_that_cannot_be_written_leaves_nothing_behind(fanfold: Fanfold, folder: Path, mixed: None) -> None:
    assert "names no format" in fanfold("export", "mixed", "-o", "out.xyz", code=2).stderr
    assert "cannot be written" in fanfold("export", "mixed", "-o", "nowhere/out.csv", code=2).stderr
    assert not list(folder.glob("out*"))


def test_a_missing_optional_package_is_named_with_the_command_that_installs_it(
    fanfold: Fanfold, mixed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'fanfold[parquet]'" in fanfold("export", "mixed", "-o", "out.parquet", code=1).stderr


def test_a_report_is_written_under_the_runs_name(fanfold: Fanfold, folder: Path, mixed: None) -> None:
    fanfold("report", "last")
    assert "mixed" in (folder / "mixed.html").read_text()


@pytest.mark.parametrize("command", [["runs"], ["show", "x"], ["export", "x"], ["report", "x"], ["resume", "x"]])
def test_a_missing_or_foreign_ledger_exits_with_3(fanfold: Fanfold, folder: Path, command: list[str]) -> None:
    assert "there is no ledger" in fanfold(*command, code=3).stderr
    (folder / "fanfold.db").write_text("not a database, but a letter")
    assert "is not a ledger" in fanfold(*command, code=3).stderr


def test_an_unknown_run_is_answered_with_the_nearest_name(fanfold: Fanfold, mixed: None) -> None:
    assert "did you mean 'mixed'" in fanfold("show", "mixde", code=3).stderr


def test_an_empty_ledger_says_what_to_do(fanfold: Fanfold, as_json: Json) -> None:
    assert "start one with" in fanfold("runs", "--upgrade").stdout
    assert as_json("runs") == []


@pytest.mark.slow
def test_the_doctor_is_content_here_and_not_without_a_folder_to_write_to(fanfold: Fanfold, as_json: Json) -> None:
    checks = {check["name"]: check for check in as_json("doctor")["checks"]}
    assert checks["SQLite"]["ok"] and checks["click"]["required"] and not checks["optuna"]["required"]
    assert "MISSING" in fanfold("doctor", "--ledger", "nowhere/fanfold.db", code=1).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_begins_with_the_line_to_add(fanfold: Fanfold, shell: str) -> None:
    script = fanfold("completion", shell).stdout
    assert script.startswith("# Add this line to ") and "_FANFOLD_COMPLETE" in script


@pytest.mark.parametrize("command", [[], *([name] for name in cli.commands)])
def test_every_help_ends_with_examples(fanfold: Fanfold, command: list[str]) -> None:
    shown = fanfold(*command, "--help").stdout
    assert shown.rstrip().rpartition("Examples:")[2].strip().splitlines()


def test_the_help_of_a_study_lists_its_fields(fanfold: Fanfold) -> None:
    shown = fanfold("run", "functions", "--help").stdout
    assert "Fields of functions" in shown and "--dimensions" in shown


def test_unknown_commands_and_options_suggest_the_nearest(fanfold: Fanfold) -> None:
    assert "--ledger" in fanfold("runs", "--leger", "x", code=2).stderr
    fanfold("rnus", code=2)


def leaves(group: click.Group) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from ((name, *rest) for rest in leaves(command))
        else:
            yield (name,)


@pytest.mark.parametrize("command", list(leaves(cli)), ids=" ".join)
def test_every_command_has_the_common_options(fanfold: Fanfold, command: tuple[str, ...]) -> None:
    shown = fanfold(*command, "--help").stdout
    assert all(option in shown for option in ("--json", "--quiet", "--no-color"))


def test_a_run_that_is_not_there_is_told_with_the_newest_names_only(fanfold: Fanfold) -> None:
    for number in range(12):
        Study(Sweep([1]), lambda candidate, case: 1.0).run(ledger="fanfold.db", run=f"try-{number}").ledger.close()
    refused = fanfold("show", "elsewhere", code=3).stderr
    assert "known: try-11, try-10, " in refused and refused.rstrip().endswith("try-4 and 4 more")
