"""`fanfold run` and `fanfold resume`: targets, flags, files, errors and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fanfold import Case, Study, Sweep
from fanfold.ledger import Ledger

Fanfold = Callable[..., Result]
Json = Callable[..., Any]

SMALL = ("functions", "--dimensions", "2", "--trials", "20", "--population", "8", "--executor", "inline")
STUDY = """
from fanfold import Case, MaxTrials, Ok, Study, Sweep

def evaluate(candidate, case):
    return Ok(-abs(candidate - case.data), cost=0.5)

study = Study(Sweep(range(10)), evaluate, cases=[3, 4], name="mine")

def smaller(count=4):
    return Study(Sweep(range(count)), evaluate, cases=[3, 4], name="smaller")

def needy(count):
    return study

def failing():
    return 1 / 0

number = 5
"""


@pytest.mark.slow
def test_a_study_is_run_by_its_name_with_its_fields_as_flags(as_json: Json) -> None:
    done = as_json("run", *SMALL, "--function=ackley", "--run", "one")
    assert (done["run"], done["trials"], done["evaluations"]) == ("one", 20, 60)
    assert set(done["best"]["candidate"]) == {"x0", "x1"}
    assert as_json("runs")[0]["meta"]["fields"]["function"] == "ackley"


@pytest.mark.slow
def test_flags_beat_the_file(folder: Path, as_json: Json) -> None:
    text = 'study = "functions"\ntrials = 30\ndimensions = 3\n[run]\nexecutor = "inline"\nrun = "from-file"\n'
    (folder / "search.toml").write_text(text)
    done = as_json("run", "search.toml", "--trials", "12")
    assert (done["run"], done["trials"], len(done["best"]["candidate"])) == ("from-file", 12, 3)
    assert as_json("run", "search.toml", "--run", "other", "--max-trials", "5")["trials"] == 5


@pytest.mark.slow
def test_the_seed_of_a_file_is_beaten_by_the_seed_of_a_flag(folder: Path, as_json: Json) -> None:
    (folder / "search.toml").write_text('study = "functions"\ntrials = 8\n[run]\nexecutor = "inline"\nseed = 1\n')
    traces = {
        "file": as_json("run", "search.toml")["trace"],
        "flag": as_json("run", "search.toml", "--seed", "2")["trace"],
        "same": as_json("run", "search.toml", "--seed", "1")["trace"],
    }
    assert traces["file"] == traces["same"] != traces["flag"]


@pytest.mark.slow
def test_the_example_file_runs(as_json: Json) -> None:
    example = Path(__file__).parents[2] / "examples" / "functions.toml"
    assert as_json("run", str(example), "--trials", "50", "--executor", "inline")["trials"] == 50


@pytest.mark.parametrize(("target", "trials"), [("mine_a.py", 10), ("mine_a.py:study", 10), ("mine_a.py:smaller", 4)])
def test_a_python_file_gives_its_study_or_a_function_that_makes_one(
    folder: Path, as_json: Json, target: str, trials: int
) -> None:
    (folder / "mine_a.py").write_text(STUDY)
    done = as_json("run", target, "--executor", "inline")
    assert done["trials"] == trials and done["best"]["candidate"] == 3
    assert done["cost"] == trials * 2 * 0.5


@pytest.mark.slow
def test_worker_processes_find_what_a_python_file_defines(folder: Path, as_json: Json) -> None:
    (folder / "mine-with-dash.py").write_text(STUDY)
    done = as_json("run", "mine-with-dash.py", "--executor", "processes:1")
    assert (done["trials"], done["failures"]) == (10, 0)


@pytest.mark.slow
def test_stop_flags_replace_the_studys_own_rule(as_json: Json) -> None:
    assert as_json("run", *SMALL, "--max-trials", "30")["trials"] == 30
    assert as_json("run", *SMALL, "--max-evaluations", "10", "--max-trials", "30")["evaluations"] == 9
    assert as_json("run", *SMALL, "--target=-1e9")["trials"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["functoins"], "did you mean 'functions'"),
        (["functions", "--dimensons", "3"], "did you mean '--dimensions'"),
        (["functions", "--exectuor", "inline"], "did you mean '--executor'"),
        (["functions", "--dimensions", "many"], "--dimensions must be a whole number, not 'many'"),
        (["functions", "--dimensions"], "--dimensions needs a value"),
        (["functions", "--dimensions", "0"], "dimensions must be at least 1"),
        (["functions", "extra"], "unexpected argument 'extra'"),
        (["functions", "--executor", "procesess"], "did you mean 'processes'"),
        (["functions", "--max-time", "soon"], "90s"),
        (["functions", "--max-trials", "0"], "at least 1"),
        (["functions", "--run", "a/b"], "letters, digits"),
        (["absent.py"], "there is no file"),
        (["absent.toml"], "there is no file"),
        (["bad_b.toml"], "line 2"),
        (["typo_b.toml"], "did you mean 'dimensions'"),
        (["option_b.toml"], "did you mean 'executor'"),
        (["nameless_b.toml"], 'study = "functions"'),
        (["mine_b.py:stduy"], "did you mean 'study'"),
        (["mine_b.py:needy"], "needs arguments"),
        (["mine_b.py:number"], "is a int"),
        (["mine_b.py", "--dimensions", "3"], "takes no fields"),
        (["mine_b.py", "--max-trails", "3"], "did you mean '--max-trials'"),
        (["random.py"], "rename the file"),
        (["notes.txt"], "neither a .py nor a .toml"),
        (["rows.csv"], "is a table: say what it is for, as in `fanfold run prompts --task rows.csv`"),
        (["rows.ndjson"], "is a table"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_remedy(
    folder: Path, fanfold: Fanfold, arguments: list[str], words: str
) -> None:
    (folder / "mine_b.py").write_text(STUDY)
    (folder / "random.py").write_text(STUDY)
    (folder / "notes.txt").write_text("x")
    (folder / "rows.csv").write_text("text,label\n")
    (folder / "rows.ndjson").write_text("{}\n")
    (folder / "bad_b.toml").write_text("a = 1\nb = = 2\n")
    (folder / "typo_b.toml").write_text('study = "functions"\ndimension = 2\n')
    (folder / "option_b.toml").write_text('study = "functions"\n[run]\nexecuter = "inline"\n')
    (folder / "nameless_b.toml").write_text("dimensions = 2\n")
    result = fanfold("run", *arguments, code=2)
    assert words in result.stderr and result.stderr.startswith("error: ")
    assert "Traceback" not in result.output
    assert not (folder / "fanfold.db").exists()


@pytest.mark.parametrize(
    "code", ["import os\nos.nothing_there()\n", "def study():\n    os.nothing_there()\nimport os\n"]
)
def test_an_error_in_the_users_file_shows_the_users_traceback_only(folder: Path, fanfold: Fanfold, code: str) -> None:
    path = folder / "mine_c.py"
    path.write_text(code)
    shown = fanfold("run", "mine_c.py", code=2).stderr
    assert "nothing_there" in shown and re.findall(r'File "([^"]+)"', shown) == [str(path)]


def test_a_syntax_error_shows_the_line(folder: Path, fanfold: Fanfold) -> None:
    (folder / "mine_d.py").write_text("study = (\n")
    shown = fanfold("run", "mine_d.py", code=2).stderr
    assert "SyntaxError" in shown and "mine_d.py" in shown and "fanfold/cli" not in shown


def test_a_file_that_imports_from_the_package_around_it_is_told_what_to_set(fanfold: Fanfold, folder: Path) -> None:
    inside = folder / "mypkg" / "searches"
    inside.mkdir(parents=True)
    (inside / "absolute_e.py").write_text("from mypkg.model import net")
    (inside / "relative_e.py").write_text("from ..model import net")
    shown = fanfold("run", "mypkg/searches/absolute_e.py", code=2).stderr
    assert "No module named 'mypkg'" in shown and f"set PYTHONPATH={folder}" in shown
    assert "by the name of the package" in fanfold("run", "mypkg/searches/relative_e.py", code=2).stderr


def test_a_run_without_any_complete_result_exits_with_1(folder: Path, fanfold: Fanfold) -> None:
    (folder / "mine_e.py").write_text(STUDY.replace("return Ok", "raise ValueError('no'); return Ok"))
    result = fanfold("run", "mine_e.py", "--executor", "inline", code=1)
    assert "no candidate has a complete result" in result.stdout and "20 failures" in result.stderr


@pytest.mark.slow
def test_a_run_is_resumed_without_evaluating_anything_twice(as_json: Json) -> None:
    first = as_json("run", *SMALL, "--run", "cut", "--max-trials", "10")
    resumed = as_json("resume", "cu", "--max-trials", "20", "--executor", "threads:2")
    whole = as_json("run", *SMALL, "--run", "whole")
    assert (first["trials"], resumed["trials"], resumed["evaluations"]) == (10, 20, 60)
    assert resumed["trace"] == whole["trace"]
    assert as_json("resume", "last")["run"] == "whole"


def test_a_run_is_resumed_on_the_executor_it_was_begun_on(fanfold: Fanfold) -> None:
    fanfold("run", *SMALL, "--run", "cut", "--max-trials", "5", "--executor", "inline")
    assert "cut on inline" in fanfold("resume", "cut", "--max-trials", "6").stderr


def test_a_resume_says_what_a_settings_file_that_was_edited_since_has_otherwise(fanfold: Fanfold, folder: Path) -> None:
    file, before = folder / "search.toml", 'study = "functions"\ndimensions = 2\n[run]\nmax_trials = 4\n'
    file.write_text(before)
    fanfold("run", "search.toml", "--executor", "inline", "--run", "cut")
    assert "has changed" not in fanfold("resume", "cut").stderr
    file.write_text(before.replace("dimensions = 2", "dimensions = 3").replace("= 4", "= 6"))
    said = " ".join(fanfold("resume", "cut").stderr.split())
    assert "search.toml has changed since the run began" in said
    assert "dimensions was 2, is 3; max_trials was 4, is 6." in said
    assert "`fanfold resume cut --max-trials 6`" in said and "`fanfold run search.toml` begins a run" in said
    assert "max_trials was" not in fanfold("resume", "cut", "--max-trials", "6").stderr
    file.write_text(before + "# a remark\n")
    assert "has changed" not in fanfold("resume", "cut", "--max-trials", "4").stderr
    for broken in ("study =", 'study = "functions"\nrun = 3\n'):
        file.write_text(broken)
        assert "search.toml has changed since the run began" in fanfold("resume", "cut").stderr
    file.unlink()
    assert "has changed" not in fanfold("resume", "cut").stderr


def test_a_resume_without_a_name_says_what_can_be_resumed(fanfold: Fanfold, folder: Path) -> None:
    (folder / "mine_r.py").write_text(STUDY.replace("return Ok", "raise ValueError('no'); return Ok"))
    fanfold("run", "functions", "--trials", "4", "--run", "whole")
    assert "fanfold.db the newest, whole, has finished" in " ".join(fanfold("resume", code=2).stderr.split())
    fanfold("run", "mine_r.py", "--executor", "inline", "--run", "broken", code=1)
    said = " ".join(fanfold("resume", code=2).stderr.split())
    assert "name the run to resume, or `last`" in said and "not finished: broken (failed)" in said


def test_a_resume_without_a_name_does_not_take_a_running_run_for_a_finished_one(fanfold: Fanfold, folder: Path) -> None:
    said: list[str] = []

    def evaluate(candidate: int, case: Case) -> float:
        said.append(" ".join(fanfold("resume", code=2).stderr.split()))
        return 1.0

    Study(Sweep([1]), evaluate).run("inline", ledger="fanfold.db", run="live")
    assert said[0].endswith("the newest, live, is running")


@pytest.mark.slow
def test_a_run_whose_file_has_moved_says_how_it_continues(fanfold: Fanfold, as_json: Json, folder: Path) -> None:
    (folder / "mine_moved.py").write_text(STUDY)
    fanfold("run", "mine_moved.py", "--executor", "inline", "--run", "first", "--max-trials", "4")
    (folder / "there").mkdir()
    (folder / "mine_moved.py").rename(folder / "there" / "mine_moved.py")
    assert "fanfold run FILE --run NAME" in fanfold("resume", "first", "--max-trials", "10", code=2).stderr
    del sys.modules["mine_moved"]  # as in another process
    moved = as_json("run", "there/mine_moved.py", "--executor", "inline", "--run", "first", "--quiet")
    assert (moved["run"], moved["trials"]) == ("first", 10)


@pytest.mark.slow
def test_a_python_file_is_resumed_with_the_seed_it_was_given(folder: Path, as_json: Json) -> None:
    text = STUDY.replace("Sweep(range(10))", "Random(Space(x=Int(0, 99)))").replace("candidate -", "candidate['x'] -")
    (folder / "mine_f.py").write_text(text.replace("import Case", "import Random, Space, Int"))
    how = ("mine_f.py", "--executor", "inline", "--seed", "7")
    as_json("run", *how, "--run", "cut", "--max-trials", "5")
    resumed = as_json("resume", "cut", "--max-trials", "12")
    assert resumed["trace"] == as_json("run", *how, "--run", "whole", "--max-trials", "12")["trace"]


@pytest.mark.slow
def test_a_changed_study_is_not_continued(folder: Path, as_json: Json, fanfold: Fanfold) -> None:
    path = folder / "mine_g.py"
    path.write_text(STUDY)
    as_json("run", "mine_g.py", "--run", "it", "--executor", "inline", "--max-trials", "5")
    path.write_text(STUDY.replace("-abs(candidate", "-2 * abs(candidate"))
    assert "the code of __main__.evaluate changed" in fanfold("resume", "it", code=4).stderr
    assert as_json("resume", "it", "--accept-changes", "--max-trials", "8")["trials"] == 8


@pytest.mark.slow
def test_a_script_and_fanfold_run_of_its_file_are_the_same_study(folder: Path, as_json: Json) -> None:
    start = "study.run('inline', ledger='fanfold.db', run='it', max_trials=5)"
    (folder / "mine_h.py").write_text(f"{STUDY}\nif __name__ == '__main__':\n    {start}\n")
    subprocess.run([sys.executable, "mine_h.py"], check=True, cwd=folder)
    assert as_json("run", "mine_h.py", "--run", "it", "--executor", "inline", "--max-trials", "8")["trials"] == 8
    again = as_json("run", "mine_h.py", "--executor", "inline", "--max-trials", "5", "--reuse", "ledger")
    assert again["reused"] == 10


def test_a_run_started_from_python_says_how_it_goes_on(folder: Path, fanfold: Fanfold) -> None:
    from fanfold import Study, Sweep

    Study(Sweep([1]), lambda candidate, case: 1.0).run(ledger="fanfold.db", run="by-hand").ledger.close()
    shown = fanfold("resume", "by-hand", code=2).stderr
    assert "study.run(run='by-hand', ledger='fanfold.db')" in shown


@pytest.mark.slow
def test_a_run_that_another_process_works_on_is_left_alone(folder: Path, fanfold: Fanfold) -> None:
    from fanfold.ledger import RunLock

    fanfold("run", *SMALL, "--run", "it", "--quiet")
    lock = RunLock(Path("fanfold.db"), "it")
    assert "is being worked on" in fanfold("resume", "it", code=3).stderr
    lock.release()


@pytest.mark.slow
def test_the_ledger_comes_from_the_flag_then_the_file_then_the_environment(
    folder: Path, as_json: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANFOLD_LEDGER", "environment.db")
    (folder / "s.toml").write_text('study = "functions"\ntrials = 4\n[run]\nledger = "file.db"\nexecutor = "inline"\n')
    assert as_json("run", *SMALL)["ledger"] == "environment.db"
    assert as_json("run", "s.toml")["ledger"] == "file.db"
    assert as_json("run", "s.toml", "--ledger", "flag.db")["ledger"] == "flag.db"
    assert len(as_json("runs")) == 1


@pytest.mark.slow
def test_quiet_prints_nothing_and_json_prints_only_json(fanfold: Fanfold, as_json: Json) -> None:
    assert fanfold("run", *SMALL, "--quiet").output == ""
    assert as_json("run", *SMALL, "--quiet")["trials"] == 20
    assert as_json("run", "functoins", code=2)["error"]["type"] == "ConfigError"


def test_a_place_where_no_report_can_be_written_is_refused_before_the_run(folder: Path, fanfold: Fanfold) -> None:
    (folder / "it.html").write_text("an older report")
    for place in ("nowhere/it.html", "."):
        done = fanfold("run", *SMALL, "--report", place, code=2)
        assert "report cannot be written" in done.output and not (folder / "fanfold.db").exists()
    assert [path.name for path in folder.iterdir()] == ["it.html"]
    fanfold("run", "functions", "--trials", "1", "--executor", "inline", "--report", "/dev/null")


@pytest.mark.slow
def test_what_a_resume_needs_is_kept_as_plain_values(folder: Path, fanfold: Fanfold) -> None:
    from fanfold import __version__

    fanfold("run", *SMALL, "--run", "it", "--report", "it.html", "--max-time", "10m", "--max-trials", "5")
    with Ledger("fanfold.db", readonly=True) as ledger:
        meta = ledger.run("it").meta
    assert meta["target"] == "functions" and meta["fields"]["dimensions"] == 2 and meta["version"] == __version__
    assert meta["options"]["max_time"] == "10m"
    assert (folder / "it.html").read_text().startswith("<!doctype html>")


def test_a_run_that_is_begun_again_with_another_setting_names_the_setting(fanfold: Fanfold) -> None:
    begun = ("run", "prompts", "--model", "simulated/gpt-6-luna", "--run", "it", "--held-out", "4")
    fanfold(*begun, "--calls", "60")
    refused = fanfold(*begun, "--calls", "200", code=4).stderr
    assert "its study has changed: calls was 60, is 200. Undo the change" in refused and "strategy" not in refused
    refused = fanfold(*begun, "--calls", "60", "--search", "random", code=4).stderr
    assert "its study has changed: search was None, is 'random'. Undo" in refused
