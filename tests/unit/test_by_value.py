"""What a script defines reaches workers whole, also functions and properties that remember."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fanfold import Case, ConfigError, Study, Sweep
from fanfold.executors import worker

SCRIPT = """
import functools

from fanfold import Study, Sweep


@functools.lru_cache(maxsize=7)
def table():
    return {"factor": 2}


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Evaluate:
    @functools.cached_property
    def offset(self):
        return 100

    @functools.lru_cache
    def tenfold(self, n):
        return 10 * n

    def __call__(self, candidate, case):
        assert table.cache_parameters()["maxsize"] == 7
        return table()["factor"] * fibonacci(candidate) + self.offset + self.tenfold(candidate)


if __name__ == "__main__":
    evaluate = Evaluate()
    evaluate.offset, evaluate.tenfold(1)
    run = Study(Sweep([10, 20]), evaluate).run("processes:2")
    print(run.best.score, [failure.message for failure in run.failures])
"""


@pytest.mark.slow
def test_functions_and_properties_of_a_script_that_remember_run_in_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.stdout == f"{2 * 6765 + 100 + 200}.0 []\n", ended.stderr


def test_a_cached_function_within_a_function_can_be_sent() -> None:
    @functools.lru_cache(maxsize=None, typed=True)
    def factorial(n: int) -> int:
        """Of n."""
        return n * factorial(n - 1) if n else 1

    arrived = worker.loads(worker.dumps(factorial))
    assert arrived(5) == 120 and arrived.cache_info().currsize == 6
    assert arrived.cache_parameters() == factorial.cache_parameters() and arrived.__doc__ == "Of n."


def test_a_cached_function_of_a_module_is_sent_by_name() -> None:
    assert worker.loads(worker.dumps((remembered, lambda: 0)))[0] is remembered


def test_what_keeps_an_evaluator_from_being_sent_is_named() -> None:
    class Evaluate:
        def __init__(self) -> None:
            self.client = {"lock": threading.Lock()}

        def __call__(self, candidate: int, case: Case) -> float:
            return candidate

    with pytest.raises(ConfigError, match=r"there is evaluate\.client\.lock \(_thread.lock\)\)"):
        Study(Sweep([1]), Evaluate()).run("processes:1")


@functools.lru_cache
def remembered() -> int:
    return 1


SPAWNING = """
import multiprocessing

from fanfold import Study, Sweep


def evaluate(candidate, case):
    return 2.0 * candidate


def best(executor, count):
    run = Study(Sweep(range(count)), evaluate).run(executor, ledger="runs.db", run="same")
    return run.best.score, len(list(run.view.evaluations()))


if __name__ == "__main__":
    print(*best("processes:2", 3))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*pool.apply(best, ("processes:2", 5)))
"""


@pytest.mark.slow
def test_a_process_that_a_script_has_spawned_runs_and_resumes_its_studies(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SPAWNING)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["4.0 3", "8.0 5"], done.stderr
