"""What the command line tests share: a folder to work in and the real command, in this process or in its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fanfold.cli import cli

Fanfold = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FANFOLD_LEDGER", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def fanfold(folder: Path) -> Fanfold:
    """`fanfold(*arguments, code=0)` runs the command here and checks its exit code."""

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(arguments), prog_name="fanfold")
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        assert not unexpected, result.exc_info
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def as_json(fanfold: Fanfold) -> Callable[..., Any]:
    """The same with `--json`, read."""
    return lambda *arguments, code=0: json.loads(fanfold(*arguments, "--json", code=code).stdout)
