"""What Sweep and Random promise, and that the conformance suite catches the ways to break the contract."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fanfold.strategies
from fanfold.errors import ConfigError
from fanfold.space import Choice, Float, Int, Space
from fanfold.strategies import Random, Sweep
from fanfold.strategy import Strategy
from fanfold.testing.strategies import StrategyConformance
from fanfold.types import Result

SPACE = Space(x=Float(-1, 1), n=Int(1, 5), kind=Choice(["a", "b"]))


class TestSweepConforms(StrategyConformance):
    seeds_differ = False

    def make(self) -> Strategy[Any]:
        return Sweep([(i, str(i)) for i in range(30)])


class TestGridConforms(StrategyConformance):
    seeds_differ = False

    def make(self) -> Strategy[Any]:
        return Sweep.grid(SPACE, 4)


class TestRandomConforms(StrategyConformance):
    def make(self) -> Strategy[Any]:
        return Random(SPACE)


def begun(strategy: Strategy[Any], seed: int = 1) -> Strategy[Any]:
    strategy.begin(seed)
    return strategy


def test_a_sweep_asks_each_candidate_once_in_order_and_ends() -> None:
    sweep = begun(Sweep(["c", "a", "b"]))
    assert sweep.ask(2) == ["c", "a"]
    assert sweep.ask(5) == ["b"]
    assert sweep.ask(5) == []


def test_a_sweep_reads_a_function_only_as_far_as_it_is_asked() -> None:
    read: list[int] = []

    def endless() -> Iterator[int]:
        for i in itertools.count():
            read.append(i)
            yield i

    sweep = begun(Sweep(endless))
    assert sweep.ask(3) == [0, 1, 2]
    assert read == [0, 1, 2]


def test_a_grid_sweep_asks_every_point_of_the_grid() -> None:
    sweep = begun(Sweep.grid(SPACE, 3))
    assert sweep.ask(1000) == list(SPACE.grid(3))


def test_the_rows_of_a_data_frame_are_candidates() -> None:
    pandas = pytest.importorskip("pandas")
    sweep = begun(Sweep(pandas.DataFrame({"rate": [0.1, 0.2], "layers": [1, 2]})))
    assert sweep.ask(99) == [{"rate": 0.1, "layers": 1}, {"rate": 0.2, "layers": 2}]


def test_random_takes_a_function_and_gives_it_the_generator_of_the_run() -> None:
    strategy = begun(Random(lambda rng: rng.random()), seed=5)
    rng = random.Random(5)
    assert strategy.ask(3) == [rng.random() for _ in range(3)]


@dataclass
class Ridge:
    alpha: float


@dataclass
class Lasso:
    alpha: float


def test_equal_candidates_may_be_swept_twice_and_those_of_other_classes_beside_each_other() -> None:
    candidates = [Ridge(1.0), Ridge(1.0), Lasso(2.0), 1, True, 1.0, np.float64(1.0), [1, 2], np.array([1, 2])]
    assert begun(Sweep(candidates)).ask(99) == candidates


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sweep(i for i in range(3)), "only once"),
        (lambda: Sweep(iter([1, 2])), "only once"),
        (lambda: Sweep([]), "no candidates"),
        (lambda: Sweep({"a", "b"}), "fixed order"),
        (lambda: Sweep("abc"), "Sweep needs a list"),
        (lambda: Sweep({"rate": [0.1, 0.2]}), r"Sweep\.grid"),
        (lambda: Sweep(3), "Sweep needs a list"),
        (
            lambda: Sweep([Ridge(1.0), Ridge(2.0), Lasso(1.0)]),
            r"Ridge\(alpha=1.0\) and Lasso\(alpha=1.0\)",
        ),
        (lambda: Sweep([{"model": Ridge(1.0)}, {"model": Lasso(1.0)}]), "are the same in the ledger"),
        (lambda: begun(Sweep(lambda: iter(()))).ask(1), "gave no candidates"),
        (lambda: Sweep.grid({"x": 1}, 3), "needs a Space"),
        (lambda: Sweep.grid(SPACE, 0), "steps"),
        (lambda: Random(3), "needs a Space or a function"),
    ],
)
def test_what_cannot_be_swept_is_refused_with_a_reason(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_all_exported_strategies_exist() -> None:
    for name in fanfold.strategies.__all__:
        assert issubclass(getattr(fanfold.strategies, name), Strategy)
    with pytest.raises(AttributeError, match="Optunaa"):
        _ = fanfold.strategies.Optunaa


@pytest.mark.slow
def test_importing_the_strategies_and_the_suite_imports_no_optional_package() -> None:
    code = (
        "import sys, fanfold.strategies, fanfold.testing.strategies; fanfold.strategies.Optuna; "
        "print([m for m in ('optuna', 'cmaes', 'nevergrad', 'numpy', 'pytest') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


class Breaks(Strategy[Any]):
    """A strategy that keeps the contract until a test says how to break it."""

    shared: list[int]

    def __init__(self, how: str) -> None:
        self.how = how
        self.count = 0
        self.shared = SHARED
        self.shared.clear()

    def ask(self, n: int) -> list[Any]:
        if self.how == "counts asks":
            self.count += 1
        if self.how == "gives too many":
            n += 1
        if self.how == "global randomness":
            return [random.random() for _ in range(n)]
        if self.how == "one seed":
            self.rng = random.Random(3 + self.count)
        if self.how == "not encodable":
            return [object() for _ in range(n)]
        if self.how == "shared state":
            self.shared.append(n)
            return [[self.rng.random(), len(self.shared)] for _ in range(n)]
        return [[self.count, self.rng.random()] for _ in range(n)]

    def tell(self, result: Result[Any]) -> None:
        if self.how == "needs a score":
            assert result.score is not None
        if self.how == "needs order":
            assert result.number == self.count
            self.count += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Breaks:
        twin = Breaks.__new__(Breaks)
        twin.__dict__.update(self.__dict__)
        return twin


SHARED: list[int] = []


@pytest.mark.parametrize(
    ("how", "check"),
    [
        ("counts asks", "test_two_asks_give_what_one_ask_for_both_gives"),
        ("counts asks", "test_an_ask_for_none_gives_nothing_and_changes_nothing"),
        ("gives too many", "test_an_ask_never_gives_more_than_asked_for"),
        ("gives too many", "test_an_ask_for_none_gives_nothing_and_changes_nothing"),
        ("global randomness", "test_the_same_seed_gives_the_same_search"),
        ("one seed", "test_different_seeds_give_different_searches"),
        ("not encodable", "test_candidates_can_be_kept_and_read_back"),
        ("needs a score", "test_failed_and_dropped_results_are_tolerated"),
        ("needs order", "test_results_may_be_told_in_any_order"),
        ("shared state", "test_a_copy_made_before_begin_is_independent"),
    ],
)
def test_the_suite_catches_a_strategy_that(how: str, check: str) -> None:
    class Suite(StrategyConformance):
        def make(self) -> Strategy[Any]:
            return Breaks(how)

    with pytest.raises((AssertionError, ConfigError)):
        getattr(Suite(), check)()


def test_the_suite_passes_a_strategy_that_keeps_the_contract() -> None:
    class Suite(StrategyConformance):
        def make(self) -> Strategy[Any]:
            return Breaks("nothing")

    checks = [name for name in dir(Suite) if name.startswith("test_")]
    assert len(checks) == 10
    for check in checks:
        getattr(Suite(), check)()
