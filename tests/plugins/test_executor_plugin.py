"""An executor from another package works wherever our own do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Environment

pytestmark = pytest.mark.slow  # every test starts interpreters

SMALL = ("functions", "--dimensions", "2", "--trials", "6", "--population", "4")


@pytest.fixture(scope="module")
def acme(install: Callable[[str], Environment]) -> Environment:
    return install("acme_executor")


@pytest.mark.slow
def test_a_run_on_it_is_recorded_and_resumed_there(acme: Environment) -> None:
    done = acme.fanfold("run", *SMALL, "--executor", "acme:4", "--run", "first", "--json")
    assert json.loads(done.stdout)["trials"] == 6
    assert "on acme:4" in done.stderr
    again = acme.fanfold("resume", "first", "--max-trials", "9", "--json")
    assert json.loads(again.stdout)["trials"] == 9
    assert "on acme:4" in again.stderr


@pytest.mark.slow
def test_a_toml_file_and_python_name_it_alike(acme: Environment) -> None:
    (acme.folder / "search.toml").write_text('study = "functions"\ntrials = 4\n[run]\nexecutor = "acme"\n')
    assert "on acme:3" in acme.fanfold("run", "search.toml").stderr
    code = (
        "from fanfold import Study\nfrom fanfold.strategies import Sweep\n"
        "study = Study(Sweep([1, 2, 3]), lambda candidate, case: candidate)\n"
        "print(study.run('acme:2').best.score)"
    )
    assert acme.python("-c", code).stdout == "3.0\n"


@pytest.mark.slow
def test_help_completion_doctor_and_errors_list_it(acme: Environment) -> None:
    assert "acme" in acme.fanfold("run", "--help").stdout
    assert acme.completions("run", "functions", "--executor", "ac") == ["acme"]
    checks = json.loads(acme.fanfold("doctor", "--json").stdout)["checks"]
    row = next(check for check in checks if check["name"] == "executor acme")
    assert row["ok"] and row["found"] == "acme-executor 1.2" and "acme:N" in row["note"]
    assert "did you mean 'acme'" in acme.fanfold("run", *SMALL, "--executor", "acmee:4", code=2).stderr


@pytest.mark.slow
def test_what_it_refuses_is_refused_before_the_first_evaluation(acme: Environment) -> None:
    assert "executor='acme:none'" in acme.fanfold("run", *SMALL, "--executor", "acme:none", code=2).stderr
    refused = acme.fanfold("run", *SMALL, "--executor", "acme:2", "--cancel-batches", code=2).stderr
    assert "makes no provider batches" in refused


@pytest.mark.slow
def test_one_that_cannot_be_imported_disturbs_nobody(acme: Environment) -> None:
    assert "broken" in acme.completions("run", "functions", "--executor", "")
    checks = json.loads(acme.fanfold("doctor", "--json").stdout)["checks"]
    assert not next(check for check in checks if check["name"] == "executor broken")["ok"]
    refused = acme.fanfold("run", *SMALL, "--executor", "broken", code=2).stderr
    assert "'acme-executor 1.2' cannot be imported" in refused


@pytest.mark.slow
def test_completion_knows_every_executor_of_ours(acme: Environment) -> None:
    ours = {"inline", "async", "threads", "processes", "ray", "batch:auto", "batch:openai", "batch:anthropic", "auto"}
    assert ours <= set(acme.completions("run", "functions", "--executor", ""))


@pytest.mark.slow
def test_its_author_checks_it_with_our_suite(acme: Environment) -> None:
    file = Path(__file__).parents[1] / "data/acme_executor/conformance.py"
    options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(acme.folder)]
    assert " passed" in acme.python("-m", "pytest", *options, str(file)).stdout
