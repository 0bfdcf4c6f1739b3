"""The impossible is refused before the first evaluation, and leaves no run behind."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fanfold import Case, Ledger, Strategy, Study, Sweep
from fanfold.cli import cli
from fanfold.errors import ConfigError

UNPICKLABLE = """
import threading
from fanfold import Study, Sweep

class Evaluate:
    fingerprint = "fixed"

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, candidate, case):
        return 1.0

study = Study(Sweep(range(5)), Evaluate())
"""
NO_KEY = """
from fanfold import Study, Sweep
from fanfold.models import model

async def evaluate(candidate, case):
    return float(len((await asked.generate(candidate)).text))

asked = model("openai/gpt-6-luna")
study = Study(Sweep(["a", "b"]), evaluate)
"""
NO_PACKAGE = """
from fanfold import Study, Sweep
from fanfold.errors import MissingExtra

class Evaluate:
    fingerprint = "fixed"

    def check_ready(self):
        raise MissingExtra("nonesuch", "nonesuch", "this evaluator")

    def __call__(self, candidate, case):
        return 1.0

study = Study(Sweep(range(5)), Evaluate())
"""
WRONG_KEY = """
from dataclasses import replace
from fanfold import Study, Sweep
from fanfold.models import model
from fanfold.models.simulated import SimulatedTransport
from fanfold.simulator import Simulator, SimulatorConfig

transport = SimulatedTransport(Simulator(SimulatorConfig(keys=("right",))))
asked = replace(model("simulated/gpt-6-luna"), connect=lambda: transport, key="wrong")

async def evaluate(candidate, case):
    return float(len((await asked.generate(candidate)).text))

evaluate.fingerprint = "fixed"
study = Study(Sweep(["a", "b"]), evaluate)
"""
PROMPTS = ("prompts", "--train", "4", "--held-out", "4")
TABLE = "input,answer\n" + "".join(f"who is number {'I' * n},nobody\n" for n in range(1, 60))


@pytest.fixture
def fanfold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """`fanfold run ...` in an empty folder without any key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "FANFOLD_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    before = set(sys.modules)
    yield lambda *arguments: CliRunner().invoke(cli, ["run", *arguments, "--ledger", "ledger.db"])
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def runs(ledger: Path) -> int:
    if not ledger.exists():
        return 0
    with closing(sqlite3.connect(ledger)) as db:
        return sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("run", "run_case", "trial"))


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("unpicklable.py", "--executor", "processes:2"), "cannot be sent to a worker process", 2),
        (("unpicklable.py", "--executor", "nonesuch"), "there is no executor", 2),
        (("no_key.py",), "OPENAI_API_KEY", 2),
        (("wrong_key.py", "--executor", "async:2"), "key", 1),
        (("no_package.py",), "pip install 'fanfold[nonesuch]'", 1),
        ((*PROMPTS, "--model", "openai/gpt-6-luna"), "OPENAI_API_KEY", 2),
        ((*PROMPTS, "--model", "nonesuch/x"), "names no known provider", 2),
        (
            (*PROMPTS, "--model", "simulated/x", "--task", "table.csv", "--grader", "judge", "--judge", "openai/x"),
            "OPENAI_API_KEY",
            2,
        ),
        (
            (*PROMPTS, "--model", "simulated/x", "--task", "table.csv", "--grader", "numeric"),
            "has no number in it",
            2,
        ),
        (("secrets", "--models", "openai/gpt-6-luna"), "OPENAI_API_KEY", 2),
        (("critic", "--model", "openai/gpt-6-luna"), "OPENAI_API_KEY", 2),
    ],
)
def test_what_cannot_take_place_is_refused_and_leaves_no_run(
    arguments: tuple[str, ...], said: str, code: int, tmp_path: Path, fanfold: Callable[..., Result]
) -> None:
    for name, text in (("unpicklable", UNPICKLABLE), ("no_key", NO_KEY), ("no_package", NO_PACKAGE)):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "wrong_key.py").write_text(WRONG_KEY)
    (tmp_path / "table.csv").write_text(TABLE)
    done = fanfold(*arguments)
    assert done.exit_code == code, done.output
    assert said in done.stderr and "Traceback" not in done.stderr
    assert runs(tmp_path / "ledger.db") == 0


class Raises(Strategy[int]):
    """Fails to ask, at once or after a while."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.asked = 0

    window = 1

    def ask(self, n: int) -> list[int]:
        if self.asked >= self.after:
            raise ZeroDivisionError("nothing to ask")
        self.asked += 1
        return [self.asked]


@pytest.mark.slow
@pytest.mark.parametrize(("after", "kept"), [(0, False), (3, True)])
def test_a_run_that_evaluated_something_stays_in_its_place(after: int, kept: bool, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Study(Raises(after), lambda candidate, case: 1.0).run(ledger=tmp_path / "ledger.db", run="it")
    with Ledger(tmp_path / "ledger.db", readonly=True) as left:
        assert [run.status for run in left.runs()] == (["failed"] if kept else [])


def test_a_run_that_was_there_stays_when_its_resume_is_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"

    class Ready:
        fingerprint = "ready"
        fine = True

        def check_ready(self) -> None:
            if not self.fine:
                raise ConfigError("no key")

        def __call__(self, candidate: int, case: Case) -> float:
            return 1.0

    evaluate = Ready()
    Study(Sweep(range(3)), evaluate).run(ledger=ledger, run="it").ledger.close()
    evaluate.fine = False
    with pytest.raises(ConfigError, match="no key"):
        Study(Sweep(range(3)), evaluate).run(ledger=ledger, run="it")
    with Ledger(ledger, readonly=True) as left:
        assert [(run.name, run.status, run.evaluations) for run in left.runs()] == [("it", "finished", 3)]
