"""Settings for the whole suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Tests run side by side: a numerical library that takes every core for itself slows all of them to a crawl.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# The same examples every time, so that a failure is somebody's change and not somebody's luck;
# FANFOLD_EXPLORE=1 looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.load_profile("explore" if os.environ.get("FANFOLD_EXPLORE") else "same")

#: Folders, files and tests that take long by nature: processes killed, pages run, models loaded.  A test of them that
#: is quick says so itself (`@pytest.mark.fast`), and `make check` runs it.
SLOW = (
    "faults/",
    "bench/",
    "docs/",
    "documents/",
    "studies/",
    "cli/test_cli_process.py",
    "cli/test_kept_ledgers.py::test_a_kept_ledger_continues_where_it_stopped",
    "cli/test_cli_models.py",
    "models/test_batch_executor.py",
    "models/test_local.py",
    "models/test_rehearsal.py",
    "simulator/test_simulator_anthropic_sdk.py",
    "simulator/test_simulator_openai_sdk.py",
    "unit/test_ledger.py",
    "unit/test_wrap.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent
    for item in items:
        name = f"{item.path.relative_to(root).as_posix()}::{item.name}"
        if name.startswith(SLOW) and item.get_closest_marker("fast") is None:
            item.add_marker(pytest.mark.slow)
