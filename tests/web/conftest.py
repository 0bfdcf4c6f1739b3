"""A ledger with a run of every study, made once for all workers, and a browser over it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import worlds
from browsing import CHROMIUM, chromium, serving
from playwright.sync_api import Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The first test of each worker waits until the world is made, which takes minutes on a busy machine.
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "world" in names:
            item.add_marker(pytest.mark.timeout(600))
        if {"world", "browser", "server"} & {*names}:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger that `worlds.py` makes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "worlds"
    with (folder.parent / "worlds.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return worlds.made(folder)


@pytest.fixture(scope="module")
def address(world: Path) -> Iterator[str]:
    """The address of a server over that ledger, with its token."""
    with serving(world) as url:
        yield url


# A module each, not the session: Playwright's loop would be in the way of other tests that start one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with chromium() as started:
        yield started
