"""What the wrapped optimisers promise: the contract, failures handled, no noise, and that they find things."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest

from fanfold.errors import ConfigError, MissingExtra
from fanfold.space import Choice, Float, Int, Space
from fanfold.strategies import Cmaes, Nevergrad, Optuna
from fanfold.strategy import Strategy
from fanfold.testing.strategies import StrategyConformance
from fanfold.types import Result, Trial

NUMBERS = Space(x=Float(-5, 5), y=Float(1e-4, 1, log=True), n=Int(1, 9))
MIXED = Space({**NUMBERS.dimensions, "kind": Choice([("a", 1), None])})


def height(candidate: dict[str, Any]) -> float:
    return -((candidate["x"] - 1) ** 2) - (candidate["n"] - 3) ** 2 / 10


def tell(strategy: Strategy[Any], candidate: Any, score: float | None) -> None:
    strategy.tell(Result(Trial(0, candidate), score, {}))


def search(strategy: Strategy[Any], trials: int, fails: float = float("inf")) -> list[float]:
    """The scores in the order of telling; a candidate whose x lies above `fails` fails."""
    strategy.begin(1)
    waiting: list[Any] = []
    scores: list[float] = []
    for _ in range(trials):
        waiting += strategy.ask(strategy.window - len(waiting))
        candidate = waiting.pop(0)
        failed = candidate["x"] > fails
        tell(strategy, candidate, None if failed else height(candidate))
        scores.append(float("-inf") if failed else height(candidate))
    return scores


class TestOptunaConforms(StrategyConformance):
    trials = 16

    def make(self) -> Strategy[Any]:
        return Optuna(MIXED)


class TestCmaesConforms(StrategyConformance):
    trials = 32

    def make(self) -> Strategy[Any]:
        return Cmaes(NUMBERS)


class TestCmaesOfOneWholeNumberConforms(StrategyConformance):
    trials = 20

    def make(self) -> Strategy[Any]:
        return Cmaes(Space(n=Int(0, 3)), population=5)


@pytest.mark.slow
class TestNevergradConforms(StrategyConformance):
    trials = 14

    def make(self) -> Strategy[Any]:
        return Nevergrad(MIXED, "DE")


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", [Optuna(NUMBERS), Cmaes(NUMBERS), Nevergrad(NUMBERS, "DE", 200), Nevergrad(MIXED, "NGOpt", 60)]
)
def test_it_gets_better_as_it_is_told(strategy: Strategy[Any]) -> None:
    scores = search(strategy, 60)
    assert sorted(scores[-20:])[10] > sorted(scores[:20])[10]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Cmaes(NUMBERS), Nevergrad(NUMBERS, "DE", 200)])
def test_it_leaves_a_region_where_everything_fails(strategy: Strategy[Any]) -> None:
    scores = search(strategy, 100, fails=2.0)
    failed = [score == float("-inf") for score in scores]
    assert sum(failed[:50]) > sum(failed[50:])


def test_optuna_is_told_failures_as_failed_trials() -> None:
    strategy = Optuna(NUMBERS)
    strategy.begin(1)
    good, bad = strategy.ask(2)
    tell(strategy, bad, None)
    tell(strategy, good, 1.5)
    assert [(trial.state.name, trial.value) for trial in strategy._study.trials] == [("COMPLETE", 1.5), ("FAIL", None)]


def test_optuna_takes_any_sampler_and_hands_it_a_seed() -> None:
    import optuna

    seeds: list[int] = []

    def sampler(seed: int) -> Any:
        seeds.append(seed)
        return optuna.samplers.RandomSampler(seed=seed)

    def first(run_seed: int) -> list[Any]:
        strategy = Optuna(MIXED, sampler)
        strategy.begin(run_seed)
        return strategy.ask(3)

    assert first(2**62) == first(2**62) != first(5)
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_optuna_stays_quiet_and_leaves_the_verbosity_alone(capsys: pytest.CaptureFixture[str]) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.INFO)
    search(Optuna(NUMBERS), 3, fails=0.0)
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_cmaes_waits_for_a_generation_and_forgets_the_order_of_telling() -> None:
    def second_generation(order: int) -> list[Any]:
        strategy = Cmaes(NUMBERS, population=6)
        strategy.begin(3)
        generation = strategy.ask(10)
        assert len(generation) == 6
        for candidate in generation[::order]:
            assert strategy.ask(1) == []
            tell(strategy, candidate, float(candidate["x"] > 0))  # ties, where the order could matter
        return strategy.ask(6)

    assert second_generation(1) == second_generation(-1)


def test_cmaes_starts_again_when_it_has_converged() -> None:
    strategy = Cmaes(Space(x=Float(0, 1)), sigma=0.1, population=4)
    strategy.begin(1)
    optimizer = strategy._optimizer
    for _ in range(80):
        for candidate in strategy.ask(4):
            tell(strategy, candidate, 1.0)
    assert strategy._optimizer is not optimizer


@pytest.mark.slow
def test_nevergrad_ends_with_its_budget() -> None:
    strategy = Nevergrad(NUMBERS, "RandomSearch", budget=5)
    strategy.begin(1)
    assert len(strategy.ask(3)) == 3
    assert len(strategy.ask(3)) == 2
    assert strategy.ask(3) == []


@pytest.mark.slow
def test_a_break_down_inside_nevergrad_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> Any:
        raise TypeError("only 0-dimensional arrays can be converted to Python scalars")

    strategy = Nevergrad(NUMBERS)
    strategy.begin(1)
    monkeypatch.setattr(strategy._optimizer, "ask", ask)
    with pytest.raises(ConfigError, match=r"'DE' broke down .*use another optimizer"):
        strategy.ask(1)


@pytest.mark.slow
def test_nevergrad_never_takes_a_failure_for_a_success() -> None:
    strategy = Nevergrad(NUMBERS, "RandomSearch", budget=5)
    strategy.begin(1)
    first, second, third = strategy.ask(3)
    tell(strategy, first, None)
    tell(strategy, second, -1000.0)
    tell(strategy, third, None)
    assert [asked.loss for asked in strategy._optimizer.pareto_front()] == [1000.0]
    assert strategy._optimizer.num_tell == 3


@pytest.mark.parametrize("make", [lambda: Optuna(NUMBERS), lambda: Cmaes(NUMBERS), lambda: Nevergrad(NUMBERS, "DE")])
def test_a_missing_package_is_named_with_its_extra(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = make()
    package = type(strategy).__name__.lower()
    monkeypatch.setitem(sys.modules, package, None)
    copy.deepcopy(strategy)
    with pytest.raises(MissingExtra, match=rf"pip install 'fanfold\[{package}\]'"):
        strategy.begin(1)


@pytest.mark.parametrize("make", [lambda: Optuna(NUMBERS), lambda: Cmaes(NUMBERS), lambda: Nevergrad(NUMBERS, "DE")])
def test_a_candidate_that_was_never_asked_is_refused(make: Any) -> None:
    strategy = make()
    strategy.begin(1)
    with pytest.raises(ConfigError, match="not open"):
        tell(strategy, {"x": 0.0}, 1.0)


@pytest.mark.slow
def test_equal_candidates_may_be_open_at_once() -> None:
    for strategy in (Optuna(Space(n=Int(0, 1))), Nevergrad(Space(n=Int(0, 1)), "DE"), Cmaes(Space(n=Int(0, 1)))):
        strategy.begin(1)
        for candidate in strategy.ask(4):
            tell(strategy, dict(candidate), 1.0)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Optuna({"x": 1}), "Optuna needs a Space"),
        (lambda: Optuna(NUMBERS, "tpe"), "sampler must be a function"),
        (lambda: Cmaes(MIXED), "cannot search the Choice 'kind'"),
        (lambda: Cmaes(NUMBERS, sigma=0), "sigma"),
        (lambda: Cmaes(NUMBERS, population=1), "population"),
        (lambda: Nevergrad(NUMBERS, budget=0), "budget"),
        (lambda: Nevergrad(NUMBERS, 3), "optimizer must be a name"),
        (lambda: Nevergrad(NUMBERS, "NGOptt").begin(1), "did you mean 'NGOpt'"),
        (lambda: Nevergrad(NUMBERS, "zzz").begin(1), "see nevergrad.optimizers.registry"),
        (lambda: Nevergrad(NUMBERS, "Cobyla").begin(1), "only one open trial"),
    ],
)
@pytest.mark.slow
def test_arguments_that_make_no_sense_are_refused_with_a_reason(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()
