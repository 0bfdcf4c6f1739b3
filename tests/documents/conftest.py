"""What the documents' programs find around them: old names under new modules, a model to ask, a clock, a folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from blocks import ENVIRONMENT

from fanfold.ledger import commits
from fanfold.testing import VirtualLoop

# Small matrices are worked on by one thread faster than by several that wait for each other; read when numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and a model to ask."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FANFOLD_LEDGER", raising=False)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


class _Here(Executor):
    """Calls at once, in the thread that submits."""

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def submit(self, fn: Any, /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class _VirtualPolicy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = VirtualLoop


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`asyncio.run` on a clock that jumps: minutes of waiting take no time, and take exactly minutes."""
    # While time stands still nothing gathers for a common commit, and a thread for each would cost real time.
    monkeypatch.setattr(commits, "GATHER", 0.0)
    monkeypatch.setattr(commits, "ThreadPoolExecutor", _Here)
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_VirtualPolicy())
    yield
    asyncio.set_event_loop_policy(before)
