"""Errors on their way home from a worker process."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fanfold import errors
from fanfold.errors import CallFailed, FanfoldError, Interrupted, MissingExtra, OnlyFailures
from fanfold.models.http import HttpError

MADE: list[FanfoldError] = [
    CallFailed("rate-limit", "later", retry_after=3.0, sent=False, parameters=("stop",)),
    HttpError("no route", "network", sent=False),
    Interrupted("stopped", run_id="mine", ledger="runs.db", code=143),
    MissingExtra("numba", "workflow", "the simulation"),
    OnlyFailures("every call fails", "a trace"),
]
PLAIN = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, FanfoldError) and kind.__init__ is FanfoldError.__init__
]


@pytest.mark.parametrize(
    "error", [*MADE, *(kind("it broke") for kind in PLAIN)], ids=lambda error: type(error).__name__
)
def test_every_error_comes_home_whole(error: FanfoldError) -> None:
    again: Any = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
