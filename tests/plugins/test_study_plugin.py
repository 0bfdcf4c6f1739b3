"""A study from another package works wherever our own do, and brings its own commands."""

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


@pytest.fixture(scope="module")
def acme(install: Callable[[str], Environment]) -> Environment:
    return install("acme_study")


@pytest.mark.slow
def test_it_is_run_resumed_shown_and_reported_by_its_name(acme: Environment) -> None:
    done = acme.fanfold("run", "acme", "--weight", "0.25", "--run", "first", "--json")
    assert json.loads(done.stdout)["trials"] == 6
    assert "on threads:2" in done.stderr
    assert json.loads(acme.fanfold("resume", "first", "--max-trials", "9", "--json").stdout)["trials"] == 9
    shown = acme.fanfold("show", "first").stdout
    assert "the anvil is off by 0." in shown and "an anvil of 0." in shown
    acme.fanfold("report", "first", "-o", "first.html")
    page = (acme.folder / "first.html").read_text()
    assert "the anvil is off by 0." in page and "an anvil of 0." in page


#: What the page asks for about a run, as it gets it.
PAGES = """
import json, sys
from fanfold.ledger import RunView
from fanfold.report.pages.candidates import candidate, evaluation, texts
from fanfold.report.pages.comparing import comparing
from fanfold.report.pages.overview import overview
from fanfold.report.pages.parts import ShownRun
with RunView.open("fanfold.db", "pages") as view, RunView.open("fanfold.db", "more") as other:
    shown, both = ShownRun(view), [ShownRun(view), ShownRun(other)]
    made = [overview(shown), candidate(shown, 0), evaluation(shown, 0, 0), texts(shown, [0]), comparing(both)]
    print(json.dumps(made))
"""


@pytest.mark.slow
def test_its_pages_are_drawn_from_its_data(acme: Environment) -> None:
    for run in ("pages", "more"):
        acme.fanfold("run", "acme", "--trials", "3", "--run", run)
    overview, candidate, cell, texts, compared = json.loads(acme.python("-c", PAGES).stdout)
    assert [drawing["kind"] for drawing in overview["sections"][0]["drawings"]] == ["scatter"]
    assert len(overview["sections"][0]["drawings"][0]["data"]["points"]) == 3 and overview["scale"] == [-1.0, 0.0]
    [section] = candidate["sections"]
    assert section["title"] == "On the scales" and section["drawings"][0]["data"]["rows"][0]["name"] == "this anvil"
    assert candidate["trial"]["brief"].endswith(" kg of iron") and texts["texts"]["0"].startswith("Weight:\n0.")
    assert [section["title"] for section in cell["sections"]] == ["Thud"]
    assert [section["text"] for section in compared["sections"]] == ["2 forges"]


@pytest.mark.slow
def test_help_lists_its_fields_and_its_commands(acme: Environment) -> None:
    fields = acme.fanfold("run", "acme", "--help").stdout
    assert "Fields of acme" in fields and "the weight of the best anvil" in fields
    own = acme.fanfold("acme", "--help").stdout
    assert "Which anvil is looked for" in own and "Look for an anvil near a weight." in own and "calibrate" in own
    assert "  acme " in acme.fanfold("--help").stdout


@pytest.mark.slow
def test_completion_offers_it_and_its_commands(acme: Environment) -> None:
    assert acme.completions("ac") == ["acme", "acme-broken", "acme-lab", "acme-old"]
    assert acme.completions("run", "ac") == ["acme", "acme-broken", "acme-lab", "acme-old"]
    assert acme.completions("estimate", "fun") == ["functions"]
    assert acme.completions("acme", "ne") == ["near"]


@pytest.mark.slow
def test_its_command_runs_it_with_the_options_of_run(acme: Environment) -> None:
    said = acme.fanfold("acme", "near", "--weight", "0.75", "--max-trials", "4", "--run", "near").stdout
    assert said.index("an anvil of weight 0.75") < said.index("near: Stopped after 4 trials") < said.index("off by")
    with_json = acme.fanfold("acme", "near", "--weight", "0.75", "--max-trials", "2", "--json").stdout
    assert json.loads(with_json)["trials"] == 2
    assert json.loads(acme.fanfold("resume", "near", "--max-trials", "5", "--json").stdout)["trials"] == 5
    assert "Missing option '--weight'" in acme.fanfold("acme", "near", code=2).stderr


@pytest.mark.slow
def test_it_is_calibrated_with_its_fields(acme: Environment) -> None:
    assert "good for 7 anvils" in acme.fanfold("acme", "calibrate", "--trials", "7").stdout
    assert "try acme, neuro" in acme.fanfold("functions", "calibrate", code=2).stderr


@pytest.mark.slow
def test_an_installed_study_wins_over_a_folder_of_its_name(acme: Environment) -> None:
    (acme.folder / "acme").mkdir()
    (acme.folder / "elsewhere").mkdir()
    assert json.loads(acme.fanfold("run", "acme", "--trials", "2", "--json").stdout)["trials"] == 2
    assert "elsewhere is neither a .py nor a .toml file" in acme.fanfold("run", "elsewhere", code=2).stderr


@pytest.mark.slow
def test_a_module_written_for_version_0_1_still_works(acme: Environment) -> None:
    done = acme.fanfold("run", "acme-old", "--trials", "2", "--json")
    assert json.loads(done.stdout)["trials"] == 2 and "on async:5" in done.stderr


@pytest.mark.slow
def test_one_that_cannot_be_used_is_refused_with_the_remedy_and_disturbs_nobody(acme: Environment) -> None:
    assert "pip install 'acme-study[acme-lab]'" in acme.fanfold("run", "acme-lab", code=1).stderr
    refused = acme.fanfold("run", "acme-broken", code=2).stderr
    assert "of the package 'acme-study' cannot be imported" in refused and "upgrade 'acme-study'" in refused
    assert "acme-broken" in acme.fanfold("--help").stdout


def test_the_doctor_looks_at_it(acme: Environment) -> None:
    checks = {check["name"]: check for check in json.loads(acme.fanfold("doctor", "--json").stdout)["checks"]}
    assert checks["study acme"]["ok"] and checks["study acme"]["found"] == "acme-study 2.1"
    assert checks["anvils"]["found"] == "none here"
    assert (
        not checks["study acme-lab"]["ok"] and "pip install 'acme-study[acme-lab]'" in checks["study acme-lab"]["note"]
    )
    assert not checks["study acme-broken"]["ok"]


def test_its_author_checks_it_with_our_suite(acme: Environment) -> None:
    file = Path(__file__).parents[1] / "data/acme_study/conformance.py"
    options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(acme.folder)]
    assert " passed" in acme.python("-m", "pytest", *options, str(file)).stdout
