"""What the shell prints fits its screen, reads as a person writes, and can be pasted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.cli.ending import further
from fanfold.cli.output import table
from fanfold.ledger import RunView
from fanfold.report import metrics

SHAKY = """
from fanfold import Float, MaxTrials, Random, Space, Study

def evaluate(candidate, case):
    if (candidate["x"] * 10 + case.data) % 7 < 1:
        raise ValueError(f"{candidate['x']} metres")
    return {"loss": abs(candidate["x"] - case.data), "seconds": 1.5}

space = Space(x=Float(0, 1))
study = Study(Random(space), evaluate, cases=range(6), stop=MaxTrials(30), minimize=True, objective="loss")
"""
#: Small runs of studies that need no extra package.
RUNS: dict[str, tuple[str, ...]] = {
    "functions": ("functions", "--trials", "40", "--dimensions", "20"),
    "shaky": ("my study.py",),
    "prompts": ("prompts", "--model", "simulated/gpt-6-luna", "--max-evaluations", "150"),
    "secrets": (
        *("secrets", "--models", "simulated/talker-of-many-words-2026,simulated/keeper-of-few-words-2026"),
        *("--pairings", "all"),
        *("--num-interactions", "2", "--messages-per-interaction", "2", "--results", "none"),
    ),
}
LEDGER = "my runs.db"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("screen")
    (path / "my study.py").write_text(SHAKY)
    return path


@pytest.fixture(scope="module")
def endings(folder: Path) -> dict[str, str]:
    """What each run printed at its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {name: said("run", *words, "--run", name, "--ledger", LEDGER) for name, words in RUNS.items()}


def said(*words: str, code: int = 0, **environment: str) -> str:
    result = CliRunner().invoke(cli, list(words), env=environment, prog_name="fanfold")
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.mark.slow
def test_what_a_study_says_in_a_line_is_not_cut(endings: dict[str, str]) -> None:
    assert re.search(r"Calls: .* on held-out problems\b", " ".join(endings["prompts"].split()))


def told(*words: str) -> Any:
    return json.loads(said(*words, "--json", "--ledger", LEDGER))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_the_end_of_a_run_fits_on_a_screen(name: str, endings: dict[str, str]) -> None:
    lines = endings[name].splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80, endings[name]
    assert re.match(rf"{name}: [A-Z].*\.$", lines[0])
    assert any("best" in line or "accuracy" in line or "revealed" in line for line in lines[1:3])
    assert name == "secrets" or any("┤" in line for line in lines)  # the chart
    assert any(line.startswith("  fanfold show") for line in lines)


@pytest.mark.slow
def test_long_names_leave_room_for_the_figures(endings: dict[str, str]) -> None:
    head, row = endings["secrets"].partition("Paired comparison\n")[2].splitlines()[:2]
    assert head.split()[:4] == ["first", "second", "of", "difference"]
    assert re.search(r"^simulated/\S*… +simulated/\S*… +points +[-+]?\d\S* \[\S+, \S+\]", row)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_the_commands_at_the_end_work_when_pasted(
    name: str, endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    commands = [
        shlex.split(line.split("   ")[0]) for line in endings[name].splitlines() if line.startswith("  fanfold")
    ]
    pasted = [command[1:] for command in commands if command[1] == "show"]
    assert pasted and (name != "shaky" or len(pasted) == 2)
    for command in pasted:
        words = command[: command.index(LEDGER) + 1]  # a few words of explanation may follow
        assert name in said(*words) or "--failure" in words


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.slow
def test_counts_agree_between_the_end_of_a_run_show_and_report(
    name: str, endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    facts, listed = told("show", name), {run["name"]: run for run in told("runs")}[name]
    with RunView.open(LEDGER, name) as view:
        figures = {metric.key: metric for metric in metrics(view)}
    shown = " ".join(said("show", name, "--ledger", LEDGER).split())
    ending = " ".join(endings[name].split())
    for key in ("trials", "evaluations", "failures"):
        assert facts[key] == listed[key] == figures[key].value
        assert f"{key} {figures[key].text}," in shown
        words = rf"\b{facts[key]:,} {key[:-1] if facts[key] == 1 else key}\b"
        assert re.search(words, ending), (words, ending)
    assert facts["best"] == listed["best"] == figures["best"].value
    cost = figures["cost"].text.partition(" (")[0]
    assert "$" not in cost or (f"cost {cost}" in shown and f"cost {cost}" in ending)


def test_a_limit_that_was_reached_is_doubled_by_the_command_that_continues() -> None:
    assert further("1,200 trials") == "--max-trials 2400" and further("cost limit of 0.5") == "--max-cost 1"
    assert further("time limit of 90s") == "--max-time 180s" and further("300 evaluations") == "--max-evaluations 600"
    assert further("the strategy has nothing more to ask") == "" == further("152 calls")


@pytest.mark.slow
def test_more_is_offered_where_there_is_more_to_search(endings: dict[str, str]) -> None:
    assert "fanfold resume functions --max-trials 80" in endings["functions"]
    assert "fanfold resume" not in endings["secrets"], "a sweep over pairs has no others"


@pytest.mark.slow
def test_a_failure_is_shown_with_its_traceback_and_its_cell(
    endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    shown = said("show", "shaky", "--failure", "1", "--ledger", LEDGER)
    assert "in evaluate" in shown and "metres" in shown and "Cells: " in shown
    command = shlex.split(shown.splitlines()[-1].partition(": ")[2])
    cell = said(*command[1:])
    assert "failed (error): ValueError" in cell and "in evaluate" in cell and "Case" in cell
    assert told("show", "shaky", "--failure", "1")["count"] == told("show", "shaky")["failures"]
    assert "no number 9" in said("show", "shaky", "--failure", "9", "--ledger", LEDGER, code=2)
    assert "has no failures" in said("show", "functions", "--failure", "1", "--ledger", LEDGER, code=2)


@pytest.mark.slow
def test_a_cell_is_shown_with_its_model_calls(
    endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    shown = said("show", "prompts", "--cell", "0:0", "--ledger", LEDGER)
    for words in ("Trial 0 on case city-", "Call 1: simulated/gpt-6-luna, ", "  user:", "  reply (stop):", "Case"):
        assert words in shown, shown
    facts = told("show", "prompts", "--cell", "0:0")
    assert facts["calls"][0]["text"] in shown and facts["trial"] == 0
    for cell, words in (("7", "write TRIAL:CASE"), ("0:nowhere", "has no case"), ("999:0", "has not evaluated")):
        assert words in said("show", "prompts", "--cell", cell, "--ledger", LEDGER, code=2)


@pytest.mark.slow
def test_low_scores_are_shown_as_the_evaluator_returned_them(
    endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    facts = told("show", "shaky")
    assert facts["best"] > 0 and facts["best_trial"]["score"] == facts["best"] and facts["scores.seconds"] == 1.5
    assert all(case.get("score", 1) >= 0 for case in facts["best_trial"]["cases"].values())
    assert "-" not in re.findall(r"Best: (\S+),", said("show", "shaky", "--ledger", LEDGER))[0]


@pytest.mark.slow
def test_runs_that_belong_to_another_are_folded_under_it(
    endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    names = [line.split()[0] for line in said("runs", "--ledger", LEDGER).splitlines()[1:]]
    assert names == ["secrets", "prompts", "shaky", "functions"]
    assert "prompts (+2)" in said("runs", "--ledger", LEDGER)
    every = said("runs", "--all", "--ledger", LEDGER).splitlines()
    place = next(at for at, line in enumerate(every) if line.startswith("prompts "))
    assert every[place + 1].startswith("  prompts.") and every[place + 2].startswith("  prompts.")


@pytest.mark.parametrize("command", [("runs",), ("runs", "--all"), ("show", "secrets"), ("show", "shaky")])
@pytest.mark.slow
def test_tables_survive_a_terminal_of_60_columns(
    command: tuple[str, ...], endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    lines = said(*command, "--ledger", LEDGER, COLUMNS="60").splitlines()
    if command[0] == "runs":
        assert max(map(len, lines)) <= 60
        assert {"name", "status", "best"} <= set(lines[0].split())


def test_no_terminal_is_too_narrow_for_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "best" in said("run", "functions", "--trials", "2", "--executor", "inline", COLUMNS="1").lower()


def test_a_table_gives_up_columns_then_words_then_its_form() -> None:
    head, rows = ["name", "n", "text", "when"], [["first", "1", "a rather long text", "2026-11-16 13:00"]]
    assert "2026" in table(head, rows, ["n"]) and "2026" not in table(head, rows, ["n"], 40, ("when",))
    narrow = table(head, rows, ["n"], 32, ("when",)).splitlines()
    assert narrow[1].split()[:2] == ["first", "1"] and len(narrow[1]) <= 32
    assert "…" in table(head, rows, ["n"], 24, ("when",))
    stacked = table(head, rows, ["n"], 16).splitlines()
    assert stacked[0] == "first" and stacked[1].split() == ["n", "1"] and max(map(len, stacked)) <= 16


def offered(*words: str) -> list[str]:
    """What the shell offers for the last word."""
    from click.shell_completion import ShellComplete

    return [item.value for item in ShellComplete(cli, {}, "fanfold", "_X").get_completions(list(words[:-1]), words[-1])]


@pytest.mark.slow
def test_completion_offers_studies_files_fields_values_and_runs(
    endings: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "mine.toml").write_text('study = "prompts"\n')
    (folder / "notes.txt").write_text("")
    assert {"functions", "prompts", "mine.toml", "my study.py"} <= set(offered("run", ""))
    assert "notes.txt" not in offered("run", "") and offered("run", "fun") == ["functions"]
    assert offered("run", "functions", "--dim") == ["--dimensions"]
    assert "--search" in offered("run", "mine.toml", "--sea") and "--max-trials" in offered("run", "mine.toml", "--max")
    assert "guided" in offered("run", "prompts", "--search", "") and offered("run", "nothing", "--dim") == []
    assert offered("show", "--ledger", LEDGER, "fun") == ["functions"]
    assert offered("show", "--ledger", "nowhere.db", "") == []
    assert offered("init", "pro") == ["prompts"]
