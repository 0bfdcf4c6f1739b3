"""What `make mutants` promises: a busy machine kills no mutant, and what no test could notice is counted apart."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
PROFILE = "from hypothesis import settings\nsettings.register_profile('same')\n"
SOURCE = b"def add(a, b):\n    return a + b\n"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import mutants

    return mutants


def first_mutant(tool: ModuleType) -> Any:
    name, mutation = next(tool.names_of(tool.mutations(SOURCE)))
    return tool.Mutant("module", name, mutation)


class Scripted:
    """A copy of the tree whose tests answer as they are told to: (on the mutant?, tests) gives (exit code, output)."""

    def __init__(self, tool: ModuleType, root: Path, answers: dict[tuple[bool, str], list[tuple[int | None, str]]]):
        self.root, self.current, self.answers = root, root / "current.txt", answers
        self.runs: list[tuple[bool, str]] = []
        self.file = root / tool.PACKAGE / "module.py"
        self.file.parent.mkdir(parents=True)
        self.file.write_bytes(SOURCE)

    def change(self, module: str, source: bytes) -> None:
        self.file.write_bytes(source)

    def pytest(self, chosen: str, *args: str, limit: float, each: float) -> tuple[int | None, str]:
        run = self.file.read_bytes() != SOURCE, Path(chosen[1:]).read_text().replace("\n", " ")
        self.runs.append(run)
        code, output = self.answers[run].pop(0)
        self.current.write_text(output)
        return code, "" if code is None else output


LATE = "FAILED tests/slow - Failed: Timeout (>60.0s) from pytest-timeout."
TESTS = "tests/quick tests/slow tests/last"


@pytest.mark.parametrize("first", [(1, LATE), (None, "tests/slow")], ids=["one test", "all together"])
@pytest.mark.parametrize(
    ("unchanged", "again", "rest", "outcome"),
    [
        (0, 1, None, ("hung", "tests/slow")),
        (0, None, None, ("hung", "tests/slow")),
        (0, 0, 0, ("survived", None)),
        (0, 0, 1, ("killed", "tests/last")),
        (1, None, 0, ("survived", None)),
    ],
    ids=["hangs", "hangs for good", "was slow once", "another test decides", "hangs on the unchanged code too"],
)
def test_a_test_that_takes_too_long_kills_only_if_it_hangs_on_the_mutant_alone(
    tool: ModuleType, tmp_path: Path, first: Any, unchanged: int, again: Any, rest: int | None, outcome: Any
) -> None:
    answers = {
        (True, TESTS): [first],
        (False, "tests/slow"): [(unchanged, "")],
        (True, "tests/slow"): [(again, "")],
        (True, "tests/last"): [(rest, "FAILED tests/last - assert False")],
    }
    copy = Scripted(tool, tmp_path / "tree", answers)
    verdict = tool.judge(copy, first_mutant(tool), TESTS.split(), 1.0)
    assert (verdict.outcome, verdict.by) == outcome
    assert ((True, "tests/last") in copy.runs) == (rest is not None)
    assert copy.file.read_bytes() == SOURCE


@pytest.mark.slow
@pytest.mark.parametrize(("each", "code"), [(0.5, None), (60.0, 1)], ids=["one that hangs on", "slow ones"])
def test_tests_have_time_as_long_as_they_go_on(tool: ModuleType, tmp_path: Path, each: float, code: int | None) -> None:
    class Bare(tool.Copy):  # type: ignore[name-defined, misc]
        """A tree with one file of tests, of which the last one fails after a while."""

        def __init__(self) -> None:
            self.root = tmp_path
            (tmp_path / "tools").symlink_to(TOOLS)
            (tmp_path / "conftest.py").write_text(PROFILE)
            (tmp_path / "test_it.py").write_text("import time\ndef test_it():\n    time.sleep(4)\n    assert False\n")

    assert Bare().pytest("test_it.py", limit=120, each=each)[0] == code


def test_a_few_tests_are_tried_first_and_then_the_others(tool: ModuleType, tmp_path: Path) -> None:
    names = [f"tests/{number}" for number in range(tool.FIRST + 2)]
    first, others = " ".join(names[: tool.FIRST]), " ".join(names[tool.FIRST :])
    answers = {(True, first): [(0, "")], (True, others): [(1, f"FAILED {names[-1]} - no")]}
    verdict = tool.judge(Scripted(tool, tmp_path / "tree", answers), first_mutant(tool), names, 1.0)
    assert (verdict.outcome, verdict.by, verdict.tests) == ("killed", names[-1], len(names))


def test_work_is_shared_by_the_copies_and_the_first_error_ends_it(tool: ModuleType) -> None:
    both, seen = threading.Barrier(2), []

    def note(copy: str, item: int) -> None:
        if item < 2:
            both.wait(20)  # passes only when two are at work together
        seen.append((copy, item))

    tool.side_by_side(["a", "b"], range(9), note)
    assert sorted(item for _, item in seen) == list(range(9))
    assert {copy for copy, item in seen if item < 2} == {"a", "b"}

    def fail(copy: str, item: int) -> None:
        seen.append((copy, item))
        raise RuntimeError("no tests")

    seen.clear()
    with pytest.raises(RuntimeError, match="no tests"):
        tool.side_by_side(["a", "b"], range(9), fail)
    assert len(seen) <= 2


@pytest.mark.slow
def test_a_test_counts_only_if_it_fails_twice_in_a_row(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PROFILE)
    (tmp_path / "test_it.py").write_text(
        "runs = []\ndef test_by_chance():\n    runs.append(1)\n    assert len(runs) > 1\n"
        "def test_always():\n    assert False\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(TOOLS), "REACH_CURRENT": str(tmp_path / "current.txt")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "reach", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "1 failed, 1 passed" in done.stdout and "test_always" in done.stdout.rpartition("FAILED")[2]
    assert (tmp_path / "current.txt").read_text() == "test_it.py::test_always"


def test_the_share_is_stated_with_and_without_those_that_no_test_could_notice(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [tool.Mutant("module", name, each) for name, each in tool.names_of(tool.mutations(SOURCE))]
    verdicts = [tool.Verdict(each, "survived" if n == 0 else "killed", None, 1, 1.0) for n, each in enumerate(found)]
    row = verdicts[0].as_json()
    lines = [f"{name} = '''{row[name]}'''" for name in tool.ACCEPTED_BY]
    register = tmp_path / "accepted.toml"
    register.write_text("\n".join(["[[mutant]]", *lines, "why = 'it is'", "equivalent = true"]))
    monkeypatch.setattr(tool, "ACCEPTED", register)
    tool.report(verdicts, [])
    said = capsys.readouterr().out
    killed = len(found) - 1
    assert killed > 0 and f"{killed / len(found):.1%} killed" in said
    assert f"{killed} of {killed} that are not equivalent (1 are): 100.0% killed" in said
