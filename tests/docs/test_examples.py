"""Every example in the README and the docs runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    for number, code in enumerate(blocks(page, "python")):
        script = tmp_path / f"block_{number}.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"block {number} of {page.name}:\n{code}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_the_commands_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """Commands that start with `fanfold` or `python examples/` are executed; set-up (`pip`, `make`) is not."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for code in blocks(page, "console"):
        for line in code.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ").split("  #")[0].strip()
            if line.startswith(("$ fanfold", "$ python examples/")):
                done = subprocess.run(
                    shlex.split(command), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_the_example_gives_the_same_answer_on_every_executor() -> None:
    script = ROOT / "examples" / "custom_study.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        "inline",
        "async:8",
        "threads:4",
        "processes:2",
        "ThreadPoolExecutor",
    ]
    assert len({line.split("best")[1] for line in lines}) == 1, done.stdout


@pytest.mark.slow
def test_every_public_name_can_be_imported_and_nothing_heavy_is_loaded_by_it() -> None:
    import fanfold

    for name in fanfold.__all__:
        assert getattr(fanfold, name) is not None
    assert len(fanfold.__all__) <= 40
    heavy = ("msgspec", "asyncio", "sqlite3", "rich", "click")
    code = f"import sys, fanfold; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
