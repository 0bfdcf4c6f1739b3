"""Evaluators as people write them: what they may return, where they may live, and what is said of useless ones."""

from __future__ import annotations

import os
import pickle
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from fanfold.errors import ConfigError
from fanfold.evaluation import outcome_of
from fanfold.studies.evolve.scoring import Command, Scorer, load_evaluator, needs_case, read_result
from fanfold.types import Failed, Ok


@dataclass
class Graded:
    score: float
    feedback: str
    speed: float


class Named(NamedTuple):
    score: float
    feedback: str


@pytest.mark.parametrize(
    ("value", "score", "feedback"),
    [
        (3, 3, None),
        (True, 1, None),
        ((0.5, "too slow"), 0.5, "too slow"),
        ((0.5, {"stderr": "boom", "tests": [1, 2]}), 0.5, "stderr: boom\ntests: 1\n2"),
        ({"score": 2.0, "feedback": "fine"}, 2.0, "fine"),
        ({"combined_score": 2.0, "text_feedback": "fine"}, 2.0, "fine"),
        ({"score": 1.0, "speed": 7.5}, 1.0, "speed: 7.5"),
        ([0.5, "too slow"], 0.5, "too slow"),
        (Graded(0.5, "too slow", 7.5), 0.5, "too slow\nspeed: 7.5"),
        (Named(0.5, "too slow"), 0.5, "too slow"),
        (SimpleNamespace(score=np.float32(0.5), feedback="too slow"), 0.5, "too slow"),
        (SimpleNamespace(metrics={"combined_score": 2.0, "speed": 7.5}, artifacts={"stderr": "boom"}), 2.0,
         "stderr: boom\nspeed: 7.5"),
        (Ok(4.0, {"feedback": "own"}), 4.0, "own"),
    ],
)  # fmt: skip
def test_a_score_may_come_with_words(value: Any, score: float, feedback: str | None) -> None:
    outcome = read_result(value)
    assert isinstance(outcome, Ok) and outcome.score == score
    assert (outcome.data or {}).get("feedback") == feedback


@pytest.mark.parametrize("value", [None, "0.5", b"1", {"accuracy": 1.0}, float("nan"), [1.0], (None, "words")])
def test_what_is_not_a_score_fails_its_own_text_alone(value: Any) -> None:
    outcome = outcome_of(read_result(value))
    assert isinstance(outcome, Failed) and outcome.kind == "bad-score" and "returned" in outcome.message


def test_numbers_beside_the_score_are_kept_as_metrics() -> None:
    outcome = read_result({"score": 1, "speed": 2, "note": "x"})
    assert isinstance(outcome, Ok) and outcome.data["metrics"] == {"speed": 2.0}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_file_holds_a_function_or_a_class(place: Path) -> None:
    (place / "judge_it.py").write_text(
        "def evaluate(text): return 1\ndef other(text): return 2\n"
        "class Scorer:\n    def __call__(self, text): return 3\n"
    )
    named = ("judge_it.py", "judge_it.py:other", "judge_it.py:Scorer")
    assert [load_evaluator(name)("x") for name in named] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("wrong_a.py", "def evaluate(text:\n", "SyntaxError"),
        ("wrong_b.py", "def evaluat(text): return 1\n", "has no 'evaluate'.*did you mean 'evaluat'"),
        ("wrong_c.py", "import nothing_of_this_name\n", "No module named"),
        ("wrong_d.py", "class evaluate:\n    def __init__(self, n): pass\n", "missing 1 required"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(place: Path, name: str, code: str, words: str) -> None:
    (place / name).write_text(code)
    with pytest.raises(ConfigError, match=words):
        load_evaluator(name)


def test_what_is_no_evaluator_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        load_evaluator("nowhere.py")
    with pytest.raises(ConfigError, match="neither a Python file"):
        load_evaluator("bash run.sh")
    with pytest.raises(ConfigError, match=r"nor a command with \{file\} in it"):
        load_evaluator("python score.py")
    with pytest.raises(ConfigError, match="is not a command: No closing quotation"):
        load_evaluator("python 'score.py {file}")
    with pytest.raises(ConfigError, match="takes one argument"):
        Scorer.of(lambda text: 1, True, True)
    with pytest.raises(ConfigError, match="takes 3 arguments"):
        Scorer.of(lambda text, case, more: 1, True, True)
    with pytest.raises(ConfigError, match="must be a function"):
        Scorer.of(0.5, True, False)  # type: ignore[arg-type]


def command(last: str) -> Command:
    """A command that prints a word, and then what an expression gives."""
    return Command(f"{sys.executable} -c \"import sys, json; print('looked'); print({last})\" {{file}} {{case}}")


@pytest.mark.parametrize(
    ("last", "score", "feedback"),
    [
        ("len(open(sys.argv[1]).read())", 4, "looked"),
        ("json.dumps(dict(score=json.load(open(sys.argv[2]))))", 7, "looked"),
        ("json.dumps(dict(score=2, feedback='own'))", 2, "own"),
    ],
)
def test_a_command_gets_the_text_in_a_file_and_ends_with_its_score(last: str, score: float, feedback: str) -> None:
    outcome = read_result(command(last)({"a/solver.py": "text"}, 7))
    assert isinstance(outcome, Ok) and outcome.score == score and outcome.data["feedback"] == feedback


def test_a_command_that_fails_or_ends_without_a_score_is_an_error_with_its_output() -> None:
    """And without a traceback of ours, which says nothing about the command."""
    failed = read_result(command("1/0")({"a": ""}))
    assert isinstance(failed, Failed) and re.search(r"(?s)status 1.*looked.*ZeroDivisionError", failed.message)
    wordy = read_result(command("'done'")({"a": ""}))
    assert isinstance(wordy, Failed) and "must be a number or JSON with a score, not 'done'" in wordy.message
    missing = read_result(Command("no-such-program {file}")({"a": ""}))
    assert isinstance(missing, Failed) and "'no-such-program' cannot be started: No such file" in missing.message


def test_an_evaluator_that_asks_for_a_path_gets_a_file_with_the_text() -> None:
    def evaluate(program_path: str) -> float:
        assert program_path.endswith("solver.py")
        return len(Path(program_path).read_text())

    assert Scorer.of(evaluate, True, False)({"src/solver.py": "text"}, None) == 4


@pytest.mark.parametrize("name", ["dockerfile", "makefile", "profile", "xpath"])
def test_an_argument_whose_name_only_ends_like_a_file_is_the_text(name: str) -> None:
    made: dict[str, Any] = {}
    exec(f"def evaluate({name}): return len({name})", made)
    assert Scorer.of(made["evaluate"], single=True, cases=False)({"solver.py": "abc"}, None) == 3
    exec(f"def evaluate(my_{name[-4:]}): return open(my_{name[-4:]}).read()", made)
    assert Scorer.of(made["evaluate"], single=True, cases=False)({"solver.py": "abc"}, None) == "abc"


def test_without_cases_a_default_of_the_evaluators_own_stays() -> None:
    def evaluate(text: str, timeout: float = 30.0) -> float:
        return timeout

    def given_nothing(text: str, case: Any) -> Any:
        return case

    assert Scorer.of(evaluate, True, False)({"a": "x"}, None) == 30.0
    assert Scorer.of(evaluate, True, True)({"a": "x"}, 5.0) == 5.0
    assert Scorer.of(given_nothing, True, False)({"a": "x"}, None) is None


def test_an_evaluator_that_needs_a_case_is_known() -> None:
    assert needs_case(lambda text, case: 1.0) and not needs_case(lambda text: 1.0)
    assert not needs_case(lambda text, timeout=30: 1.0) and not needs_case(lambda *given: 1.0) and not needs_case(len)


def test_an_evaluator_is_loaded_once_so_that_pools_of_its_own_find_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "pooled_score.py"
    path.write_text("def helper(x):\n    return x\n\n\ndef evaluate(text):\n    return helper(len(text))\n")
    first, again = load_evaluator(str(path)), load_evaluator(str(path))
    assert first is again
    assert pickle.loads(pickle.dumps(first)) is first  # noqa: S301
    path.write_text("def evaluate(text):\n    return 7\n")
    os.utime(path, ns=(1, 1))
    assert load_evaluator(str(path))("") == 7
    sys.modules.pop("pooled_score")


def test_signs_of_a_shell_in_a_command_are_said_and_a_shell_can_be_named() -> None:
    piped = Command("echo 1 {file} | tail -n 1")
    assert piped.misread == "| is given to the command as an argument; for a shell write sh -c " + repr(piped.command)
    failed = piped({"a": "x"})
    assert isinstance(failed, Failed) and "sh -c" in failed.message
    assert Command("sh -c 'echo {file} 1 | tail -c 2'").misread == ""
    assert Command("sh -c 'echo {file} 1 | tail -c 2'")({"a": "x"}) == (1, "")
    assert isinstance(Command("cd {folder} && ls")({"a": "x"}), Failed)
