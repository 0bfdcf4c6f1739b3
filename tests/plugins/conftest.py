"""Packages from outside the repository: installed into a folder of their own, used by commands in their own process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fanfold

DATA = Path(__file__).parents[1] / "data"


class Environment:
    """A folder with an installed package, and Python and `fanfold` as one who installed it has them."""

    def __init__(self, packages: Path, folder: Path) -> None:
        self.packages = packages
        self.folder = folder

    def python(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.packages), str(Path(fanfold.__file__).parents[1])])
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def fanfold(self, *arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.python("-c", "from fanfold.cli import main; main()", *arguments, code=code, **environment)

    def completions(self, *words: str) -> list[str]:
        """What the shell offers for the last word."""
        asked = {"COMP_WORDS": " ".join(["fanfold", *words]), "COMP_CWORD": str(len(words))}
        lines = self.fanfold(_FANFOLD_COMPLETE="bash_complete", **asked).stdout.splitlines()
        return [line.partition(",")[2] for line in lines]


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """`install("acme_executor")` installs that folder of tests/data; nothing is downloaded."""

    def install(name: str) -> Environment:
        source, packages, folder = (tmp_path_factory.mktemp(word) for word in ("source", "packages", "work"))
        shutil.copytree(DATA / name, source / name)
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(packages)]
        command = [sys.executable, "-m", "pip", "install", *options, str(source / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return Environment(packages, folder)

    return install
