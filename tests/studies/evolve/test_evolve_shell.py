"""`fanfold run evolve`: from a file and an evaluator to a better file; mistakes are said before anything is paid."""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fanfold.cli import cli
from fanfold.simulator import Latency, SimulatorConfig

SOLVER = "# EVOLVE-BLOCK-START\nGAIN = 8\n# EVOLVE-BLOCK-END\nPOWER = 2\n\ndef answer(x):\n    return GAIN * x**POWER\n"
SCORE = """
def evaluate(text, case=None):
    names = {}
    exec(text, names)
    x = 3 if case is None else float(case["x"])
    return -abs(names["answer"](x) - 2 * x * x)
"""
WRITER = ("--writer", "simulated/writer")
RUN = ("run", "evolve", "--file", "solver.py", "--evaluator", "score_it.py")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FANFOLD_LEDGER", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "solver.py").write_text(SOLVER)
    (tmp_path / "score_it.py").write_text(SCORE)
    yield tmp_path
    for name in ("score_it", "score_them"):
        sys.modules.pop(name, None)


def fanfold(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, list(arguments), prog_name="fanfold")
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.slow
def test_a_file_gets_better_and_the_best_is_written(folder: Path) -> None:
    said = fanfold(*RUN, *WRITER, "--calls", "50", "-o", "best.py", "--report", "r.html")
    assert "50 calls: the start and about 24 new texts" in said.stderr
    best = (folder / "best.py").read_text()
    assert best != SOLVER and best.replace(best.splitlines()[1], "GAIN = 8") == SOLVER  # the rest is as it was
    assert "-GAIN = 8" in said.stdout and "against the start" in said.stdout
    assert (folder / "solver.py").read_text() == SOLVER
    shown, again = fanfold("show", "last").stdout, fanfold("resume", "last", "--json").stdout
    assert "Lineage" in shown and json.loads(again)["reused"] == 0 and "GAIN" in (folder / "r.html").read_text()
    assert fanfold("evolve", "best", "last").stdout == best
    rows = fanfold("export", "last", "--rows", "lineage").stdout.splitlines()
    assert json.loads(rows[0])["by"] == "seed" and len(rows) == json.loads(again)["trials"]


@pytest.mark.slow
def test_cases_from_a_table_and_a_command_as_evaluator(folder: Path) -> None:
    (folder / "cases.csv").write_text("x\n1\n2\n3\n4\n5\n")
    as_json = json.loads(fanfold(*RUN, *WRITER, "--cases", "cases.csv", "--calls", "40", "--json").stdout)
    assert as_json["summary"]["start_score"] == pytest.approx(-6 * 55 / 5) and as_json["summary"]["score"] > -66
    (folder / "score_them.py").write_text(
        "import sys\nfrom score_it import evaluate\n"
        "print('looked at', sys.argv[1])\nprint(evaluate(open(sys.argv[1]).read()))\n"
    )
    command = f"env PYTHONPATH={folder} {sys.executable} score_them.py {{file}}"
    fanfold(
        "run", "evolve", "--file", "solver.py", "--evaluator", command, *WRITER, "--calls", "8", "--run", "by-command"
    )
    refused = fanfold("resume", "by-command", code=2).stderr
    assert "run the command" in refused and "--trust" in refused
    fanfold("resume", "by-command", "--trust")


@pytest.mark.slow
def test_several_files_are_several_parts(folder: Path) -> None:
    (folder / "a.txt").write_text("gain 8")
    (folder / "b.txt").write_text("limit 3")
    (folder / "score_them.py").write_text(
        "def evaluate(texts):\n    a, b = (float(texts[name].split()[1]) for name in ('a.txt', 'b.txt'))\n"
        "    return -abs(a - 4) - abs(b - 6)\n"
    )
    words = ("run", "evolve", "--file", "a.txt", "--file", "b.txt", "--evaluator", "score_them.py", *WRITER)
    fanfold(*words, "--calls", "50", "-o", "best")
    assert (folder / "best" / "a.txt").read_text() == "gain 4" and (folder / "best" / "b.txt").exists()


@pytest.mark.slow
def test_the_writer_speaks_a_real_protocol(start: Callable[..., Any]) -> None:
    served = start(SimulatorConfig(answer="fanfold.studies.evolve.simulated:writer"))
    words = (*RUN, "--writer", "openai/gpt-4o-mini", "--base-url", f"{served.url}/v1", "--calls", "12", "--json")
    runner = CliRunner(env={"OPENAI_API_KEY": "not-a-key-at-all"})
    done = runner.invoke(cli, list(words), prog_name="fanfold")
    assert done.exit_code == 0, done.output
    assert len(served.simulator.billing.charges) == 5 == json.loads(done.stdout)["trials"] - 1


@pytest.mark.slow
def test_an_evaluator_may_have_a_pool_of_processes_of_its_own(folder: Path) -> None:
    (folder / "score_them.py").write_text(
        "from concurrent.futures import ProcessPoolExecutor\n\n\ndef length(line):\n    return len(line)\n\n\n"
        "def evaluate(text):\n    with ProcessPoolExecutor(2) as pool:\n"
        "        return -sum(pool.map(length, text.splitlines()))\n"
    )
    done = fanfold(*RUN[:4], "--evaluator", "score_them.py", *WRITER, "--calls", "6", "--run", "pool")
    assert "0 failures" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--evaluator", "score_it.py", *WRITER), "file is missing"),
        (("--file", "solver.py", *WRITER), "evaluator is missing"),
        (("--file", "nowhere.py", "--evaluator", "score_it.py", *WRITER), "there is no file nowhere.py"),
        (("--file", "solver.py", "--evaluator", "score_it.py:scor", *WRITER), "has no 'scor'"),
        (("--file", "solver.py", "--evaluator", "score_it.py"), "writer is missing"),
        ((*RUN[2:], "--writer", "openai/gpt-4o-mini"), "OPENAI_API_KEY"),
        ((*RUN[2:], *WRITER, "--calls", "2"), "give --calls 3 or more"),
        ((*RUN[2:], *WRITER, "--cases", "none.csv"), "none.csv"),
        ((*RUN[2:], *WRITER, "-o", "solver.py"), "name another file"),
        ((*RUN[2:], *WRITER, "-o", "bets/best.py"), "there is no folder bets"),
        ((*RUN[2:], *WRITER, "--outptu", "x"), "did you mean '--output'"),
    ],
)
@pytest.mark.slow
def test_first_contact(flags: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert words in fanfold("run", "evolve", *flags, code=2).stderr


def test_a_start_that_the_evaluator_refuses_is_said_with_its_traceback(folder: Path) -> None:
    (folder / "solver.py").write_text("GAIN = 1\n")
    said = fanfold(*RUN, *WRITER, "--executor", "threads:1", code=2).stderr
    assert "fails for the text that the search starts from" in said and "KeyError: 'answer'" in said


@pytest.mark.slow
@pytest.mark.parametrize("form", ["{python} score.py {{file}}", "sh -c '{python} score.py {{file}} | tail -1'"])
def test_a_search_does_not_continue_when_the_script_of_its_command_was_changed(folder: Path, form: str) -> None:
    script = "import sys\nprint(-len(open(sys.argv[1]).read()))\n"
    (folder / "score.py").write_text(script)
    command = form.format(python=sys.executable)
    words = ("run", "evolve", "--file", "solver.py", "--evaluator", command, *WRITER, "--calls", "6", "--run", "it")
    fanfold(*words, "--executor", "threads:1")
    (folder / "score.py").write_text(script.replace("-len", "len"))
    for again in ((*words, "--executor", "threads:1"), ("resume", "it", "--trust")):
        said = fanfold(*again, code=4).stderr
        assert "its study has changed" in said and "score.py" in said and "--accept-changes" in said
    (folder / "score.py").write_text(script)
    fanfold("resume", "it", "--trust")


def test_the_goal_may_be_the_text_of_a_file(folder: Path) -> None:
    (folder / "goal.txt").write_text("Make it short.")
    fanfold(*RUN, *WRITER, "--calls", "4", "--executor", "threads:1", "--goal", "@goal.txt")
    (folder / "goal.txt").unlink()
    assert json.loads(fanfold("runs", "--json").stdout)[0]["meta"]["fields"]["goal"] == "Make it short."
    fanfold("resume", "last")


def test_an_evaluator_that_needs_a_case_is_said_to_get_none(folder: Path) -> None:
    (folder / "score_them.py").write_text("def evaluate(text, case):\n    return case['x']\n")
    said = fanfold(*RUN[:4], "--evaluator", "score_them.py", *WRITER, "--executor", "threads:1", code=2).stderr
    assert "there are no cases, so the evaluator gets None as its case (--cases)" in said


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["plain", "marked"])
def test_line_breaks_and_mark_of_the_file_are_those_of_what_is_written(folder: Path, mark: bytes) -> None:
    windows = mark + SOLVER.replace("\n", "\r\n").encode()
    (folder / "solver.py").write_bytes(windows)
    fanfold(*RUN, *WRITER, "--calls", "6", "--executor", "threads:1", "-o", "best.py")
    best = (folder / "best.py").read_bytes()
    assert best.count(b"\r\n") == best.count(b"\n") == windows.count(b"\n")
    assert best.startswith(mark + b"#")
    fanfold("evolve", "best", "last", "-o", "again.py")
    assert (folder / "again.py").read_bytes() == best
    assert fanfold("evolve", "best", "last").stdout_bytes == best
    (folder / "solver.py").write_text(SOLVER)
    fanfold("resume", "last", "--trust")


@pytest.mark.slow
def test_after_a_kill_the_best_so_far_is_there_and_resuming_pays_nothing_twice(
    folder: Path, start: Callable[..., Any]
) -> None:
    served = start(SimulatorConfig(answer="fanfold.studies.evolve.simulated:writer", latency=Latency(0.1)))
    words = [
        *RUN,
        "--writer",
        "openai/gpt-4o-mini",
        "--base-url",
        f"{served.url}/v1",
        "--calls",
        "60",
        "--run",
        "killed",
    ]
    environment = {**os.environ, "OPENAI_API_KEY": "not-a-key-at-all"}
    command = [sys.executable, "-m", "fanfold", *words]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while len(served.simulator.billing.charges) < 10 and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    paid = len(served.simulator.billing.charges)
    assert 10 <= paid < 29
    so_far = fanfold("evolve", "best", "killed").stdout
    assert so_far.startswith("# EVOLVE-BLOCK-START\nGAIN = ") and so_far.endswith("GAIN * x**POWER\n")
    again = subprocess.run(
        [*command[:3], "resume", "killed"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    repeated = len(served.simulator.billing.charges) - 29
    assert 0 <= repeated <= 4  # calls on their way when the process died: nobody could write their replies down
