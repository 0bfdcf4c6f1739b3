"""What a grader of the user's own promises: any usual result counts, and what cannot work is refused before a call."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.errors import ConfigError
from fanfold.events import Notice
from fanfold.models import model
from fanfold.studies.prompts import PromptsConfig, study
from fanfold.studies.prompts.study import _sizes
from fanfold.tasks import Grade, Problem, Task, grader, load
from fanfold.tasks.task import Own

PROBLEMS = tuple(Problem(str(n), f"text {n}", "ab"[n % 2]) for n in range(20))


def plain(reply: str, problem: Problem) -> bool:
    return reply == problem.answer


async def awaited(reply: str, problem: Problem) -> float:
    await asyncio.sleep(0)
    return float(reply == problem.answer)


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, reply: str, problem: Problem) -> tuple[bool, str]:
        self.count += 1
        return reply == problem.answer, f"number {self.count}"


@dataclass(frozen=True)
class AlwaysGood:
    async def __call__(self, reply: str, problem: Problem) -> Grade:
        return Grade(1.0)


@pytest.mark.parametrize(
    ("function", "grade"),
    [
        (plain, Grade(1.0)),
        (awaited, Grade(1.0)),
        (lambda reply, problem: awaited(reply, problem), Grade(1.0)),
        (Counting(), Grade(1.0, "", "number 2")),
        (AlwaysGood(), Grade(1.0)),
        (lambda reply, problem: {"score": 0.5, "feedback": "half"}, Grade(0.5, "", "half")),
        (lambda reply, problem: (0.25, None), Grade(0.25)),
    ],
)
def test_a_grader_returns_what_is_natural(function: Any, grade: Grade) -> None:
    task = Task("mine", PROBLEMS, function)
    given = asyncio.run(task.grader("a", PROBLEMS[0]))
    assert (given.score, given.said) == (grade.score, grade.said)
    assert given.feedback.startswith("number") if isinstance(function, Counting) else given.feedback == grade.feedback


def test_a_numpy_number_is_a_score() -> None:
    numpy = pytest.importorskip("numpy")
    task = Task("mine", PROBLEMS, lambda reply, problem: numpy.float32(0.5))
    assert asyncio.run(task.grader("a", PROBLEMS[0])) == Grade(0.5)


def only_right(reply: str, problem: Problem) -> bool | None:
    return True if reply == problem.answer else None


def only_readable(reply: str, problem: Problem) -> bool | None:
    found = re.fullmatch("[ab]", reply)
    return None if found is None else found[0] == problem.answer


def only_read_and_right(reply: str, problem: Problem) -> bool | None:
    return True if ["a", "b"].index(reply) == ["a", "b"].index(problem.answer) else None


class Judging:
    def grade(self, reply: str, problem: Problem) -> float:
        return 1.0


def broken(reply: str, problem: Problem) -> float:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda reply, problem: None, "it returned None, and must return True or False, a number from 0 to 1"),
        (lambda reply, problem: float("nan"), "it returned nan"),
        (lambda reply, problem: "good", "it returned 'good'"),
        (lambda reply, problem: 7, "it returned 7"),
        (lambda reply: 1.0, r"is called with \(reply, problem\): too many positional arguments"),
        (broken, "given the right answer of problem '0', it raises KeyError: 'x' .the reply was 'a'; return 0 for"),
        (lambda reply, problem: sys.exit(3), "given the right answer of problem '0', it raises SystemExit: 3"),
        ("exact", r"grader must be callable, and 'exact' is not: give a function of \(reply, problem\)"),
        (Judging(), r"or grader\('exact'\) of one that is known by its name"),
        (only_right, "it returned None, .*, also for the reply 'b' to problem '0'"),
        (only_readable, "it returned None, .*, also for the reply 'I do not know.'"),
        (only_read_and_right, "it returned None, .*, also for the reply 'b'"),
    ],
)
def test_a_grader_that_cannot_work_is_refused_before_anything_is_asked(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Task("mine", PROBLEMS, function)


def test_a_result_that_only_a_reply_brings_fails_its_own_evaluation() -> None:
    task = Task("mine", PROBLEMS, lambda reply, problem: None if reply == "x" else 1.0)
    with pytest.raises(ConfigError, match="it returned None"):
        asyncio.run(task.grader("x", PROBLEMS[0]))


def reading(reply: str, problem: Problem) -> bool:
    return bool(json.loads(reply)["label"] == problem.answer)


async def read_later(reply: str, problem: Problem) -> bool:
    return reading(reply, problem)


@pytest.mark.parametrize("function", [reading, read_later])
@pytest.mark.parametrize(
    ("reply", "said"),
    [("I do not know.", "JSONDecodeError: Expecting value"), ("{}", "KeyError: 'label'"), ("3", "TypeError: 'int'")],
)
def test_a_reply_that_a_grader_cannot_read_is_wrong(function: Any, reply: str, said: str) -> None:
    grade = asyncio.run(Own(function)(reply, PROBLEMS[0]))
    assert grade.score == 0 and grade.feedback.startswith(f"the grader raises {said}")
    assert asyncio.run(Own(function)('{"label": "a"}', PROBLEMS[0])) == Grade(1.0)


def test_a_grader_that_looks_for_a_line_in_vain_does_not_hang() -> None:
    def grade(reply: str, problem: Problem) -> bool:
        return next(line for line in reply.splitlines() if line.startswith("Answer")) == problem.answer

    async def main() -> Grade:
        return await asyncio.wait_for(Own(grade)("none", PROBLEMS[0]), 5)

    assert asyncio.run(main()).feedback == "the grader raises LookupError: next() has found nothing"


def test_a_grader_that_lacks_its_server_fails_the_evaluation() -> None:
    def grade(reply: str, problem: Problem) -> bool:
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        asyncio.run(Own(grade)("a", PROBLEMS[0]))


@pytest.mark.slow
def test_replies_that_a_grader_cannot_read_are_said_once_and_leave_a_winner() -> None:
    problems = tuple(Problem(str(n), f"text {n}", '{"label": "a"}', {"shown": '{"label": "a"}'}) for n in range(30))
    task = Task("mine", problems, lambda reply, problem: json.loads(reply)["label"] == "a")
    watched: list[Any] = []
    run = study(PromptsConfig(model=("simulated/gpt-4o-mini",), trials=4), task=task).run(watch=watched.append)
    said = [event.message for event in watched if isinstance(event, Notice) and "grader raises" in event.message]
    assert len(said) == 1 and "JSONDecodeError" in said[0] and "(the reply: " in said[0]
    assert run.summary is not None and run.summary.figures["held_out"]["accuracy"] == 0


def test_a_grader_that_asks_a_model_is_not_tried_but_may_ask_during_the_run() -> None:
    asked = []

    def judge(name: str, messages: Any, parameters: Any, rng: Any) -> str:
        asked.append(messages)
        return "yes"

    globals()["judge"] = judge
    second = model("simulated/judge", answer=f"{__name__}:judge")

    def grade(reply: str, problem: Problem) -> bool:
        return second.generate_sync(f"Is {reply} right?").text == "yes"

    task = Task("mine", PROBLEMS, grade)
    assert not asked
    run = study(PromptsConfig(model=("simulated/gpt-4o-mini",), trials=2), task=task).run("async:4")
    assert asked and run.summary is not None and run.summary.figures["held_out"]["accuracy"] == 1.0


@pytest.mark.parametrize("function", [plain, awaited, AlwaysGood()])
def test_a_grader_of_ones_own_needs_no_answers(function: Any) -> None:
    task = load([{"prompt": f"Write {n}"} for n in range(20)], grader=function)
    assert task.problems[0] == Problem("1", "Write 0", None) and task.source == "rows: 20 problems, input from 'prompt'"
    some = [{"prompt": f"Write {n}", "answer": None if n == 3 else "a"} for n in range(20)]
    assert len(load(some, grader=function).problems) == 19


@pytest.mark.parametrize("function", [plain, awaited, AlwaysGood()])
def test_a_run_that_an_earlier_version_began_knows_the_grader(function: Any) -> None:
    built = study(PromptsConfig(model=("simulated/gpt-4o-mini",)), task=Task("mine", PROBLEMS, function))
    assert built.evaluate.fingerprint["grader"] is function


FILE = """
import beside_it

def grade(reply, problem):
    return beside_it.right(reply, problem), "as in the file"

class Grading:
    async def __call__(self, reply, problem):
        return 0.5
"""


@pytest.fixture
def graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A run of the shell with a grader in a file, which imports another one beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    Path("my_grading.py").write_text(FILE)
    Path("beside_it.py").write_text("def right(reply, problem):\n    return problem.answer in reply\n")
    Path("a.csv").write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(30)))
    model = ["--model", "simulated/gpt-4o-mini", "--trials", "2", "--ledger", "a.db"]
    return lambda named: CliRunner().invoke(cli, ["run", "prompts", "--task", "a.csv", "--grader", named, *model])


def test_a_python_file_is_a_grader_in_the_shell(graded: Callable[..., Any]) -> None:
    for named in ("my_grading.py", "my_grading.py:Grading"):
        ran = graded(named)
        assert ran.exit_code == 0 and "graded by a function of yours" in " ".join(ran.output.split()), ran.output
    assert "held-out accuracy 0.500" in ran.output
    made = load("a.csv", grader="my_grading.py").grader
    assert isinstance(made, Own) and pickle.loads(pickle.dumps(made)) == made  # noqa: S301
    for table in ({"kind": "own", "function": "my_grading.py:grade"}, {"kind": "my_grading.py:grade"}):
        assert str(grader(table)) == "the grader 'grade'"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("my_grading.py:grad", "has no 'grad'; did you mean 'grade'? write def grade(reply, problem)"),
        ("none.py", "there is no file"),
    ],
)
def test_a_file_without_the_grader_is_refused(graded: Callable[..., Any], named: str, said: str) -> None:
    ran = graded(named)
    assert ran.exit_code == 2 and not Path("a.db").exists()
    assert said.split("? ")[0] in " ".join(ran.output.split()), ran.output


def test_a_run_continues_with_the_same_grader_and_no_other(tmp_path: Path) -> None:
    config = PromptsConfig(model=("simulated/gpt-4o-mini",), trials=2)
    first = study(config, task=Task("mine", PROBLEMS, plain)).run(ledger=tmp_path / "a.db", run="a")
    again = study(config, task=Task("mine", PROBLEMS, plain)).run(ledger=tmp_path / "a.db", run="a")
    assert again.progress.evaluations == first.progress.evaluations
    with pytest.raises(Exception, match="grader"):
        study(config, task=Task("mine", PROBLEMS, awaited)).run(ledger=tmp_path / "a.db", run="a")


@pytest.mark.slow
def test_one_failure_among_the_held_out_problems_leaves_an_accuracy_of_the_others() -> None:
    lost: list[str] = []

    def grade(reply: str, problem: Problem) -> float:
        if problem.id in lost:
            raise ConnectionError("the grader's server is gone")
        return 0.5

    task = Task("mine", PROBLEMS, grade)
    config = PromptsConfig(model=("simulated/gpt-4o-mini",), trials=3, held_out=6)
    made = study(config, task=task)
    lost.append(task.split(config.seed, **_sizes(config, task)).held_out[0].id)
    summary = made.run().summary
    assert summary is not None
    assert (summary.figures["held_out"]["accuracy"], summary.figures["held_out"]["n"]) == (0.5, 5)
    assert 0 < summary.figures["held_out"]["low"] < 0.5 < summary.figures["held_out"]["high"] < 1
    (said,) = [section.text for section in summary.sections if section.title == "Held-out problems without a score"]
    assert said == "1 of 6 of the winner's evaluations failed as 'error', and are left out of its accuracy"


@pytest.mark.parametrize("setting", [{"grader": "contains"}, {"answer_field": "label"}, {"encoding": "cp1251"}])
def test_settings_of_a_file_are_refused_beside_a_task_that_is_made(setting: dict[str, Any]) -> None:
    config = PromptsConfig(model=("simulated/gpt-4o-mini",), **setting)
    with pytest.raises(ConfigError, match=rf"{next(iter(setting))} says how a file is read, .* fanfold.tasks.load"):
        study(config, task=Task("mine", PROBLEMS, plain))


def test_a_grader_that_gives_nothing_for_a_right_answer_is_noticed_before_a_call() -> None:
    def of_another_library(prediction: str, expected: Any) -> bool:
        return bool(prediction == expected)

    config = PromptsConfig(model=("simulated/gpt-4o-mini",))
    said = "the grader 'of_another_library' gives 0 to the right answer of problem '0' ('a'): it is called"
    assert any(said in remark for remark in study(config, task=Task("mine", PROBLEMS, of_another_library)).remarks)
    for fine in (plain, awaited, lambda reply, problem: 0.1):
        assert not any("gives 0" in remark for remark in study(config, task=Task("mine", PROBLEMS, fine)).remarks)
