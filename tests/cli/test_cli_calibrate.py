"""`fanfold calibrate`: a study that can be measured is, and others are refused with those that can."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.studies import neuro
from fanfold.summary import Section


def test_a_calibration_is_shown_and_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: neuro.Config) -> list[Section]:
        return [Section("Engines", f"on {config.dataset}", ("engine", "rate"), (("threads", 2.5),))]

    monkeypatch.setattr(neuro, "calibrate", measured)
    shown = CliRunner().invoke(cli, ["calibrate", "neuro", "--dataset", "mnist-5000"])
    assert shown.exit_code == 0 and "on mnist-5000" in shown.output and "threads" in shown.output
    given = CliRunner().invoke(cli, ["calibrate", "neuro", "--json"])
    assert json.loads(given.stdout)[0]["rows"] == [["threads", 2.5]]


def test_a_study_without_a_calibration_is_refused_with_those_that_have_one() -> None:
    refused = CliRunner().invoke(cli, ["calibrate", "functions"])
    assert refused.exit_code == 2 and "try neuro" in refused.output


def test_an_unknown_field_is_named() -> None:
    refused = CliRunner().invoke(cli, ["calibrate", "neuro", "--datset", "digits"])
    assert refused.exit_code == 2 and "--dataset" in refused.output
