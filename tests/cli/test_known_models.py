"""`fanfold models` and `doctor` show every name that works here, the user's own first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fanfold.cli import cli
from fanfold.models.pricing import TABLE


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fanfold(*words: str) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return done.output


def test_every_priced_model_and_every_provider_is_listed() -> None:
    rows: list[dict[str, Any]] = json.loads(fanfold("models", "--json"))
    names = [row["name"] for row in rows]
    assert len(names) == len(set(names)) and all(any(name.endswith(priced) for name in names) for priced in TABLE)
    luna = next(row for row in rows if row["name"] == "openai/gpt-6-luna")
    assert (luna["input"], luna["output"], luna["context"]) == (0.1, 0.5, 922_000) and "stop" in luna["refuses"]
    own = next(row for row in rows if row["name"] == "ollama/MODEL")
    assert own["input"] == 0
    some = next(row for row in rows if row["name"] == "openai-compatible/MODEL")
    assert some["input"] is None


def test_names_of_ones_own_come_first_with_their_settings_and_problems(folder: Path) -> None:
    (folder / "models.toml").write_text(
        '[mine]\nmodel = "openai/gpt-6-luna"\nprice = [7, 8]\nlimits = "conservative"\n[bad]\nmodel = "opnai/x"\n'
    )
    mine, bad, *_ = json.loads(fanfold("models", "--json"))
    assert (mine["name"], mine["model"], mine["input"], mine["from"]) == ("mine", "openai/gpt-6-luna", 7, "models.toml")
    assert mine["limits"] == "conservative" and "did you mean 'openai'" in bad["problem"]
    said = fanfold("models")
    assert said.splitlines()[1].split()[:3] == ["mine", "7", "8"] and "did you mean" in said


@pytest.mark.slow
def test_a_text_chooses_names() -> None:
    assert {row["name"].partition("/")[0] for row in json.loads(fanfold("models", "GROK", "--json"))} == {"xai"}
    assert "no known name contains 'nothing-like-it'" in fanfold("models", "nothing-like-it")


@pytest.mark.slow
def test_doctor_names_what_models_toml_defines_or_what_is_wrong_with_it(folder: Path) -> None:
    assert "models.toml" not in fanfold("doctor")
    (folder / "models.toml").write_text('[mine]\nmodel = "openai/gpt-6-luna"\n')
    checks = {check["name"]: check for check in json.loads(fanfold("doctor", "--json"))["checks"]}
    assert checks["models.toml"]["found"] == "mine" and "needs no key" in checks["provider ollama"]["note"]
    (folder / "models.toml").write_text("[mine\n")
    checks = {check["name"]: check for check in json.loads(fanfold("doctor", "--json"))["checks"]}
    assert not checks["models.toml"]["ok"] and "not valid TOML" in checks["models.toml"]["note"]
