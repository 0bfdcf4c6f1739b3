"""That the benchmark of conversations runs on tiny sizes, that its bound is one, and that its numbers can be true."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.testing import run_virtual

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def on_the_path() -> Iterator[None]:
    """As for the script itself, whose folder is where its modules are found, also by worker processes."""
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path[:] = before


def bench() -> Any:
    return importlib.import_module("conversations")


def tiny(conversations: int = 6, messages: int = 2) -> Any:
    return bench().Sizes(conversations, messages, seeds=1, real_seeds=1, remembered=(4, 8))


def named(name: str) -> Any:
    return next(setting for setting in bench().SETTINGS if setting.name == name)


@pytest.mark.parametrize("index", range(17))
def test_no_way_beats_the_bound_and_the_engine_is_never_behind_the_barriers(index: int) -> None:
    """A few calls make no statement about schedules, but no schedule beats a bound."""
    setting = bench().SETTINGS[index]
    capped = dataclasses.replace(setting, slots=setting.slots and 3, in_flight=setting.in_flight and 2)
    got = {way: bench().virtually(capped, tiny(), 1, way) for way in bench().WAYS}
    bound = got["barrier-free"]["bound s"]
    for way, values in got.items():
        assert values["bound s"] == pytest.approx(bound), f"{way} was given other work"
        assert values["makespan s"] >= bound * (1 - 1e-9)
    assert got["sequential"]["makespan s"] > got["waves"]["makespan s"] >= got["barrier-free"]["makespan s"]


def test_the_settings_that_are_tested_are_all_there_are() -> None:
    assert len(bench().SETTINGS) == 17


def test_without_limits_a_barrier_free_run_ends_with_its_longest_conversation() -> None:
    got = bench().virtually(named("no limit, no cap"), tiny(20), 3, "barrier-free")
    assert got["makespan s"] == pytest.approx(got["bound s"])


def test_one_after_the_other_takes_the_sum_of_all_calls() -> None:
    setting = dataclasses.replace(named("no limit, no cap"), slots=1)
    got = bench().virtually(setting, tiny(), 2, "sequential")
    assert got["makespan s"] == pytest.approx(got["bound s"])


def test_waves_take_the_sum_of_the_slowest_call_of_every_turn() -> None:
    kept: list[Any] = []
    playing = bench().Playing

    class Kept(playing):  # type: ignore[misc, valid-type]
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench(), "Playing", Kept)
        got = bench().virtually(named("no limit, no cap"), tiny(), 4, "waves")
    turns = zip(*([seconds for _, seconds in talk] for talk in kept[0].took.values()), strict=True)
    assert got["makespan s"] == pytest.approx(sum(map(max, turns)))
