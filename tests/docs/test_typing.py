"""Type checkers accept the first example of the README, and know that the best of a run has a score."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MORE = """
    score: float = run.best.score                                 # never None
    failed: list[str] = [row.message or "" for row in run.failures]
    print(score > 0.5, failed, run.best.candidate["rate"], [cell.score for cell in run.cells()])
"""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    first = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    path = tmp_path / "example.py"
    path.write_text(first + MORE)
    return path


@pytest.mark.slow
def test_mypy_accepts_the_readme_in_strict_mode(example: Path) -> None:
    pytest.importorskip("mypy")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    done = subprocess.run([*command, str(example)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    example.write_text(example.read_text() + "    wrong: int = run.best\n")
    done = subprocess.run([*command, str(example)], capture_output=True, text=True, cwd=ROOT)
    assert "Incompatible types" in done.stdout  # it did look


@pytest.mark.slow
def test_pyright_accepts_the_readme(example: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed: npm install --global pyright")
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict", "reportMissingTypeStubs": False}
    (example.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run([pyright, "."], capture_output=True, text=True, cwd=example.parent)
    assert done.returncode == 0, done.stdout
