"""`fanfold STUDY calibrate`: a study that can be measured is, and others are refused with those that can."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.studies import neuro
from fanfold.summary import Section


def test_a_calibration_is_shown_and_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: neuro.Config) -> list[Section]:
        return [Section("Engines", f"on {config.dataset}", ("engine", "rate"), (("threads", 2.5),))]

    monkeypatch.setattr(neuro, "plugin", dataclasses.replace(neuro.plugin, calibrate=measured))
    shown = CliRunner().invoke(cli, ["neuro", "calibrate", "--dataset", "mnist-5000"])
    assert shown.exit_code == 0 and "on mnist-5000" in shown.output and "threads" in shown.output
    given = CliRunner().invoke(cli, ["neuro", "calibrate", "--json"])
    assert json.loads(given.stdout)[0]["rows"] == [["threads", 2.5]]


@pytest.mark.slow
def test_a_study_without_a_calibration_is_refused_with_those_that_have_one() -> None:
    refused = CliRunner().invoke(cli, ["functions", "calibrate"])
    assert refused.exit_code == 2 and "try neuro" in refused.output


def test_an_unknown_field_is_named() -> None:
    refused = CliRunner().invoke(cli, ["neuro", "calibrate", "--datset", "digits"])
    assert refused.exit_code == 2 and "--dataset" in refused.output


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["calibrate", "functions"], "fanfold functions calibrate"),
        (["cage2", "replay", "missing.jsonl"], "fanfold workflow replay"),
        (["compare", "--models", "nobody/nothing", "--plan"], "fanfold secrets compare"),
    ],
)
def test_the_old_spelling_of_a_studys_command_still_works_and_names_the_new_one(old: list[str], new: str) -> None:
    result = CliRunner().invoke(cli, old)
    assert result.exit_code == 2 and f"is now `{new} ...`" in result.stderr
    assert "nothing to calibrate" in result.stderr or "missing.jsonl" in result.stderr or "nobody" in result.stderr
    listed = [
        line for line in CliRunner().invoke(cli, ["--help"]).stdout.splitlines() if line.startswith(f"  {old[0]} ")
    ]
    assert listed == ([] if old[0] != "compare" else ["  compare     Compare two or more runs."])
