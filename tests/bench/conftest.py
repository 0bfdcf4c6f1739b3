"""What the tests of the benchmarks share: their folder is on the path, as it is for the scripts themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def on_the_path() -> Iterator[None]:
    """The folder is where the modules of a script are found, also by worker processes."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path[:] = before
