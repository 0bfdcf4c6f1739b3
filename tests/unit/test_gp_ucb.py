"""GP-UCB over a finite set: exact beliefs, a search that is better than luck, and many arms open at once."""

from __future__ import annotations

import functools
import itertools
import math
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.stop import MaxTrials
from fanfold.strategies import gaussian_process
from fanfold.strategies.gaussian_process import fit, fitted_with, posterior
from fanfold.strategies.gp_ucb import GpUcb, Observation, measured
from fanfold.strategy import Strategy
from fanfold.studies.workflow.orders import UNITS
from fanfold.studies.workflow.spaces import Orders
from fanfold.study import Study
from fanfold.testing.strategies import StrategyConformance
from fanfold.types import Case, Failed, Ok, Result, Trial

ORDERS = list(itertools.permutations(UNITS))
#: Decays of the kernel to choose from: from nearly linear in the pairs to every order for itself.
DECAYS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5)


def mallows(arms: Sequence[tuple[str, ...]], decay: float) -> np.ndarray:
    """exp(-decay * Kendall distance) of any two orders."""
    rows = np.array([Orders(UNITS).features(arm) for arm in arms])
    return np.exp(-decay * (rows[:, None, :] != rows[None, :, :]).sum(axis=2))


APART = -np.log(mallows(ORDERS, 1.0))
KERNEL = functools.partial(mallows, ORDERS)
LINE = list(range(20))


def on_a_line(scale: float) -> np.ndarray:
    places = np.arange(len(LINE))
    return np.exp(-scale * np.abs(places[:, None] - places))


def line(**options: Any) -> GpUcb[int]:
    strategy: GpUcb[int] = GpUcb(LINE, on_a_line, [0.05, 0.1, 0.3, 1.0], **options)
    strategy.begin(1)
    return strategy


def told(strategy: GpUcb[Any], candidate: Any, score: float | None, **outcomes: float) -> None:
    strategy.tell(Result(Trial(0, candidate), score, {name: Ok(value) for name, value in outcomes.items()}))


def planted(seed: int, decay: float = 0.3, deviation: float = 30.0) -> np.ndarray:
    """Values of the 120 orders drawn from a Mallows process."""
    root = np.linalg.cholesky(np.exp(-decay * APART) + 1e-9 * np.eye(120))
    return -60.0 + deviation * (root @ np.random.default_rng(seed).normal(size=120))


def picks(strategy: GpUcb[Any], truth: np.ndarray, seed: int, n: int, opened: int = 1, noise: float = 5.0) -> list[int]:
    """Which arms are told in a search with so many open at once."""
    luck = np.random.default_rng(10_000 + seed)
    strategy.begin(seed)
    found: list[int] = []
    waiting: list[int] = []
    while len(found) < n:
        waiting += [ORDERS.index(arm) for arm in strategy.ask(opened - len(waiting))]
        found.append(waiting.pop(0))
        told(strategy, ORDERS[found[-1]], float(truth[found[-1]] + noise * luck.normal()))
    return found


class TestOrdersConform(StrategyConformance):
    trials = 40

    def make(self) -> Strategy[Any]:
        return GpUcb(ORDERS[::2], functools.partial(mallows, ORDERS[::2]), DECAYS[::3])


class TestConstrainedConforms(StrategyConformance):
    trials = 30

    def make(self) -> Strategy[Any]:
        return GpUcb(LINE, on_a_line, [0.1, 0.5], read=lambda r: Observation(r.score or 0.0, 0.1, 0.5), threshold=0.4)


# ---------------------------------------------------------------- beliefs


def library(kernel: np.ndarray, seen: list[int], values: np.ndarray, noises: np.ndarray) -> tuple[Any, Any]:
    """The posterior of scikit-learn's Gaussian process with the same kernel matrix."""
    process = pytest.importorskip("sklearn.gaussian_process")
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")

    class Given(kernels.Kernel):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            pass

        def __call__(self, x: Any, y: Any = None, eval_gradient: bool = False) -> Any:
            rows, columns = x[:, 0].astype(int), (x if y is None else y)[:, 0].astype(int)
            return kernel[np.ix_(rows, columns)]

        def diag(self, x: Any) -> Any:
            return np.diagonal(kernel)[x[:, 0].astype(int)]

        def is_stationary(self) -> bool:
            return False

    model = process.GaussianProcessRegressor(Given(), alpha=noises, optimizer=None)
    model.fit(np.array(seen, float)[:, None], values)
    return model.predict(np.arange(len(kernel), dtype=float)[:, None], return_cov=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_posterior_is_that_of_scikit_learn_on_the_same_kernel_matrix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = 7.0 * mallows(ORDERS, (0.1, 0.3, 1.0, 3.0)[seed])
    seen = [*rng.permutation(120)[: 5 + 20 * seed].tolist(), 3, 3]
    values, noises = rng.normal(size=len(seen)) * 3, rng.uniform(0.01, 4.0, len(seen))
    found = posterior(kernel, seen, values + 11.0, noises, mean=11.0)
    mean, covariance = library(kernel, seen, values, noises)
    assert np.allclose(found.mean, mean + 11.0, atol=1e-9)
    assert np.allclose(found.covariance, covariance, atol=1e-9)
    assert np.allclose(found.deviation, np.sqrt(np.diagonal(covariance)), atol=1e-9)


def test_pending_arms_leave_the_mean_and_shrink_the_variance_as_observing_them_would() -> None:
    kernel = 2.0 * mallows(ORDERS, 0.3)
    now = posterior(kernel, [3, 50], [1.0, -1.0], [0.1, 0.2])
    then = now.given(7, 0.5).given(90, 0.5)
    observed = posterior(kernel, [3, 50, 7, 90], [1.0, -1.0, now.mean[7], now.mean[90]], [0.1, 0.2, 0.5, 0.5])
    assert np.allclose(then.mean, observed.mean) and np.allclose(then.covariance, observed.covariance)
    assert (then.mean == now.mean).all() and (then.deviation <= now.deviation).all()
    assert then.deviation[7] < 0.6 * now.deviation[7]


def dense(kernel: np.ndarray, y: np.ndarray, v: np.ndarray, a: float, s: float) -> float:
    """The logarithm of the density of the contrasts of y (its mean integrated out) and of the priors, the slow way."""
    n = len(y)
    cov = a * kernel + np.diag(v + s)
    contrasts = np.linalg.svd(np.ones((1, n)))[2][1:]
    inner = contrasts @ cov @ contrasts.T
    apart = contrasts @ y
    likelihood = -0.5 * apart @ np.linalg.solve(inner, apart) - 0.5 * np.linalg.slogdet(inner)[1]
    priors = [
        0.5 * (math.log(value / middle) / spread) ** 2
        for value, (middle, spread) in ((a, gaussian_process.AMPLITUDE_PRIOR), (s, gaussian_process.NOISE_PRIOR))
    ]
    return float(likelihood - sum(priors))


def test_the_evidence_is_the_restricted_likelihood_computed_the_slow_way() -> None:
    rng = np.random.default_rng(0)
    where = rng.permutation(120)[:15]
    kernel, y, v = mallows(ORDERS, 0.4)[np.ix_(where, where)], rng.normal(size=15), rng.uniform(0, 0.5, 15)
    settings_ = [(a, s) for a in gaussian_process.AMPLITUDES for s in gaussian_process.NOISES]
    amplitudes, noises = (np.array(each) for each in zip(*settings_))
    found, means = gaussian_process._evidence(kernel, y, v, amplitudes, noises)
    slow = np.array([dense(kernel, y, v, a, s) for a, s in settings_])
    assert np.allclose(found - found[0], slow - slow[0], atol=1e-7)
    inverse = np.linalg.inv(amplitudes[7] * kernel + np.diag(v + noises[7]))
    assert means[7] == pytest.approx((inverse @ y).sum() / inverse.sum())


@pytest.mark.slow
def test_lengthscale_and_noise_are_found_from_data() -> None:
    kernels = np.stack([mallows(ORDERS, decay) for decay in DECAYS])
    seen = list(range(0, 120, 2)) * 2
    for number, decay, noise in ((0, 0.05, 2.0), (3, 0.35, 10.0), (7, 1.5, 20.0)):
        fits = []
        for seed in range(5):
            truth, luck = planted(seed, decay), np.random.default_rng(seed)
            values = np.array([truth[arm] for arm in seen]) + noise * luck.normal(size=120)
            fits.append(fit(kernels, seen, values, np.zeros(120)))
        assert abs(np.median([found.scale for found in fits]) - number) <= 1
        assert 0.7 < np.median([found.noise for found in fits]) / noise**2 < 1.5


def test_noise_that_is_measured_is_not_counted_again_in_the_noise_that_is_fitted() -> None:
    kernels = np.stack([mallows(ORDERS, decay) for decay in DECAYS])
    seen = list(range(0, 120, 2)) * 2
    values = planted(0)[seen] + 15.0 * np.random.default_rng(3).normal(size=120)
    unknown = fit(kernels, seen, values, np.zeros(120))
    known = fit(kernels, seen, values, np.full(120, 225.0))
    assert unknown.noise > 100.0 and known.noise < 0.3 * unknown.noise


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e5), st.integers(0, 2**20))
@settings(max_examples=25)
def test_the_fit_follows_shift_and_unit_of_the_scores(shift: float, unit: float, seed: int) -> None:
    kernels = np.stack([on_a_line(scale) for scale in (0.1, 0.5)])
    rng = np.random.default_rng(seed)
    values, variances = rng.normal(size=12), rng.uniform(0.0, 0.5, 12)
    one = fit(kernels, range(12), values, variances)
    other = fit(kernels, range(12), shift + unit * values, unit**2 * variances)
    if unit > 1e-4 * abs(shift):  # else rounding is part of the data
        assert one.scale == other.scale
        assert other.noise == pytest.approx(unit**2 * one.noise, rel=1e-3)
        assert other.amplitude == pytest.approx(unit**2 * one.amplitude, rel=1e-3)


def test_a_precise_observation_counts_for_more_than_a_vague_one() -> None:
    def read(result: Result[int]) -> Observation:
        return Observation(result.score or 0.0, 0.01 if result.candidate < 10 else 50.0)

    strategy = line(read=read)
    for arm in LINE:
        told(strategy, arm, 5.0 if arm in (4, 15) else 0.0)
    believed = {belief.arm: belief for belief in strategy.beliefs()}
    assert believed[4].mean > 3.0 > 1.0 > believed[15].mean
    assert believed[4].deviation < believed[15].deviation


def test_the_variance_of_a_score_is_that_of_the_mean_of_its_cases() -> None:
    outcomes = {"a": Ok(1.0), "b": Ok(3.0), "c": Ok(5.0), "d": Failed("error", "no")}
    seen = measured(Result(Trial(0, 1), 3.0, outcomes))
    assert seen == Observation(3.0, pytest.approx(4.0 / 3.0))
    assert measured(Result(Trial(0, 1), 3.0, {"a": Ok(3.0)})) == Observation(3.0, 0.0)


def test_a_long_search_does_not_fit_with_every_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(kernels: Any, seen: Any, values: Any, variances: Any) -> Any:
        sizes.append(len(seen))
        return fit(kernels, seen, values, variances)

    monkeypatch.setattr(gaussian_process, "fit", counted)
    picks(GpUcb(ORDERS, KERNEL, [0.3]), planted(0), 0, 50)
    assert sizes == [*range(1, 25), 27, 30, 33, 37, 41, 46]


def test_settings_are_fitted_with_every_observation_at_first_and_then_with_a_tenth_more() -> None:
    assert [fitted_with(n) for n in range(25)] == list(range(25))
    assert [fitted_with(n) for n in (25, 26, 27, 29, 30, 33)] == [24, 24, 27, 27, 30, 33]
    assert all(n / 1.11 - 1 < fitted_with(n) <= n for n in range(1, 400))


# ---------------------------------------------------------------- searching


@pytest.mark.slow
def test_the_search_has_less_regret_than_random_choice_at_equal_evaluations() -> None:
    found, random_, summed, summed_random = [], [], [], []
    for seed in range(8):
        truth = planted(seed)
        gap = truth.max() - truth
        chosen = picks(GpUcb(ORDERS, KERNEL, DECAYS), truth, seed, 20)
        found.append(gap[chosen].min())
        summed.append(gap[chosen].sum())
        for other in range(20):
            drawn = np.random.default_rng(100 * seed + other).permutation(120)[:20]
            random_.append(gap[drawn].min())
            summed_random.append(gap[drawn].sum())
    assert np.mean(found) < 0.6 * np.mean(random_)
    assert np.mean(summed) < 0.9 * np.mean(summed_random)


@pytest.mark.slow
def test_with_eight_arms_open_at_once_it_still_beats_random_choice() -> None:
    found, random_ = [], []
    for seed in range(8):
        truth = planted(seed)
        gap = truth.max() - truth
        found.append(gap[picks(GpUcb(ORDERS, KERNEL, DECAYS), truth, seed, 30, opened=8)].min())
        random_ += [gap[np.random.default_rng(other).permutation(120)[:30]].min() for other in range(30)]
    assert np.mean(found) < 0.6 * np.mean(random_)


def test_no_arm_is_asked_twice_and_when_all_were_asked_it_ends() -> None:
    strategy = line()
    asked = strategy.ask(7)
    for arm in asked[:3]:
        told(strategy, arm, float(arm))
    asked += strategy.ask(100)
    assert sorted(asked) == LINE
    assert strategy.ask(3) == []


def test_what_was_told_without_being_asked_is_learnt_from_and_not_asked() -> None:
    strategy = line()
    told(strategy, 4, 3.0)
    told(strategy, 4, 3.0)
    asked = strategy.ask(100)
    assert sorted([*asked, 4]) == LINE
    believed = strategy.origin(asked[0])
    assert believed is not None and believed["mean"] > 2.0


def test_open_arms_spread_out_because_pending_ones_count_as_observed() -> None:
    strategy = line()
    told(strategy, 0, 0.0)
    told(strategy, 19, 0.5)
    asked = sorted(strategy.ask(4))
    assert min(b - a for a, b in itertools.pairwise(asked)) >= 2


def test_the_bound_grows_as_the_schedule_for_finite_sets_says() -> None:
    strategy = line(boldness=1.0, delta=0.05)
    for t in range(1, 6):
        (arm,) = strategy.ask(1)
        seen = strategy.origin(arm)
        assert seen is not None
        beta = 2.0 * math.log(20 * t * t * math.pi**2 / 6 / 0.05)
        assert seen["bound"] - seen["mean"] == pytest.approx(math.sqrt(beta) * seen["deviation"])
        told(strategy, arm, math.sin(arm))
    never = next(belief.arm for belief in strategy.beliefs() if not belief.told)
    assert strategy.origin(never) is None


def test_without_boldness_it_asks_what_it_believes_to_be_best() -> None:
    strategy = line(boldness=0.0)
    for arm in (0, 5, 10, 15):
        told(strategy, arm, -abs(arm - 10.0))
    (asked,) = strategy.ask(1)
    assert asked in (9, 11)


def test_arms_near_a_failed_one_are_avoided_and_it_is_not_the_best() -> None:
    strategy = line(boldness=0.0)
    for arm in (2, 9, 16):
        told(strategy, arm, (1.0, 1.1, 0.9)[arm // 7])
    before = {belief.arm: belief.mean for belief in strategy.beliefs()}
    told(strategy, 10, None)
    after = {belief.arm: belief.mean for belief in strategy.beliefs()}
    assert after[10] < before[10] and after[11] < before[11]
    best = strategy.best()
    assert best is not None and best.arm != 10


def test_twins_in_the_kernel_can_be_asked_in_turn() -> None:
    arms = [(place, visit) for visit in range(2) for place in LINE]
    strategy: GpUcb[Any] = GpUcb(arms, lambda scale: np.tile(on_a_line(scale), (2, 2)), [0.1, 0.3])
    strategy.begin(0)
    for _ in range(40):
        (arm,) = strategy.ask(1)
        told(strategy, arm, -abs(arm[0] - 12) + 0.01 * arm[1])
    assert strategy.ask(1) == []
    best = strategy.best()
    assert best is not None and best.arm[0] == 12


@pytest.mark.slow
def test_looking_at_the_beliefs_changes_no_search() -> None:
    truth = planted(5)

    class Looked(GpUcb[Any]):
        def ask(self, n: int) -> list[Any]:
            self.beliefs(), self.best()
            return super().ask(n)

    assert picks(Looked(ORDERS, KERNEL, DECAYS), truth, 5, 35, 3) == picks(
        GpUcb(ORDERS, KERNEL, DECAYS), truth, 5, 35, 3
    )


def order_study(stop: int) -> Study[Any]:
    truth = {order: float(value) for order, value in zip(ORDERS, planted(2))}

    def value(order: Any, case: Case) -> float:
        return truth[tuple(order)] + case.rng().gauss(0, 5)

    strategy: GpUcb[Any] = GpUcb(ORDERS, KERNEL, DECAYS[::3])
    cases = [Case(str(i)) for i in range(3)]
    return Study(evaluate=value, strategy=strategy, cases=cases, stop=MaxTrials(stop), seed=4, name="orders")


@pytest.mark.slow
def test_a_study_asks_the_same_orders_on_any_executor_and_after_a_resume(tmp_path: Path) -> None:
    whole = order_study(16).run(ledger=tmp_path / "whole.db")
    threads = order_study(16).run("threads:3", ledger=tmp_path / "threads.db")
    order_study(9).run(ledger=tmp_path / "resumed.db", run="search")
    resumed = order_study(16).run(ledger=tmp_path / "resumed.db", run="search", accept_changes=True)
    asked = [[result.candidate for result in run.results()] for run in (whole, threads, resumed)]
    assert len(asked[0]) == 16
    assert asked[0] == asked[1] == asked[2]
    assert all(set(result.trial.origin) == {"bound", "mean", "deviation", "feasible"} for result in whole.results())


# ---------------------------------------------------------------- the constraint


def feasible_value(truth: np.ndarray, allowed: np.ndarray, chosen: list[int]) -> float:
    got = [truth[arm] for arm in chosen if allowed[arm]]
    return float(truth[allowed].max() - max(got)) if got else float(np.ptp(truth))


@pytest.mark.slow
def test_the_search_learns_what_is_feasible_and_finds_the_best_of_that() -> None:
    gaps, blind_gaps, random_gaps = [], [], []
    for seed in range(10):
        truth = planted(seed)
        compliance = 0.8 - 0.004 * (truth - truth.mean()) + 0.003 * (planted(seed + 100) + 60.0)
        threshold = float(np.quantile(compliance, 0.7))
        allowed = compliance >= threshold

        def read(result: Result[Any], compliance: np.ndarray = compliance) -> Observation:
            return Observation(result.score or 0.0, 25.0, float(compliance[ORDERS.index(result.candidate)]), 1e-4)

        chosen = picks(GpUcb(ORDERS, KERNEL, DECAYS, read=read, threshold=threshold), truth, seed, 20)
        gaps.append(feasible_value(truth, allowed, chosen))
        blind_gaps.append(feasible_value(truth, allowed, picks(GpUcb(ORDERS, KERNEL, DECAYS), truth, seed, 20)))
        for other in range(20):
            drawn = np.random.default_rng(other).permutation(120)[:20].tolist()
            random_gaps.append(feasible_value(truth, allowed, drawn))
    assert np.mean(gaps) < 0.7 * np.mean(random_gaps)
    assert np.mean(gaps) < 0.7 * np.mean(blind_gaps)


def test_an_infeasible_arm_is_never_the_best_however_high_its_value() -> None:
    def read(result: Result[int]) -> Observation:
        return Observation(result.score or 0.0, 0.0, 0.2 if result.candidate > 12 else 0.95, 1e-4)

    strategy = line(read=read, threshold=0.9)
    for arm in LINE:
        told(strategy, arm, float(arm))
    best = strategy.best()
    assert best is not None and 10 <= best.arm <= 12
    believed = {belief.arm: belief.feasible for belief in strategy.beliefs()}
    assert believed[2] > 0.8 and believed[18] < 0.01


def test_what_is_infeasible_still_teaches_about_values() -> None:
    def read(result: Result[int]) -> Observation:
        return Observation(result.score or 0.0, 0.0, 0.1, 1e-4)

    strategy = line(read=read, threshold=0.9)
    for arm in (4, 12):
        told(strategy, arm, float(arm))
    believed = {belief.arm: belief.mean for belief in strategy.beliefs()}
    assert believed[13] > believed[3] + 1.0
    assert strategy.best() is None


def test_when_nothing_seems_feasible_the_most_probable_is_asked() -> None:
    def read(result: Result[int]) -> Observation:
        return Observation(result.score or 0.0, 0.0, 0.1 + 0.02 * result.candidate, 1e-6)

    strategy = line(read=read, threshold=0.9, feasibility=0.5, boldness=0.0)
    for arm in range(15):
        told(strategy, arm, float(arm))
    (asked,) = strategy.ask(1)
    feasible = {belief.arm: belief.feasible for belief in strategy.beliefs() if not belief.told}
    assert max(feasible.values()) < 0.5
    assert feasible[asked] == max(feasible.values())
    means = {belief.arm: belief.mean for belief in strategy.beliefs() if not belief.told}
    assert means[asked] < max(means.values()), "not the one with the highest bound"


def test_a_constraint_that_was_not_observed_excludes_nothing() -> None:
    strategy = line(threshold=0.9)
    told(strategy, 3, 1.0)
    assert {belief.feasible for belief in strategy.beliefs()} == {1.0}


# ---------------------------------------------------------------- hostile inputs


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 20,
        [1e-160 * i for i in range(20)],
        [1e60 * (-1) ** i for i in range(20)],
        [1e9 + i * 1e-7 for i in range(20)],
    ],
)
def test_scores_of_any_size_or_all_alike_are_searched_through(values: list[float]) -> None:
    strategy = line(read=lambda result: Observation(result.score or 0.0, 1e-3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in LINE:
            (arm,) = strategy.ask(1)
            told(strategy, arm, values[arm])
        beliefs = strategy.beliefs()
    assert all(math.isfinite(belief.mean) and math.isfinite(belief.deviation) for belief in beliefs)


def test_a_kernel_that_is_singular_is_no_trouble() -> None:
    strategy: GpUcb[int] = GpUcb(LINE, lambda scale: np.ones((20, 20)), [1.0])
    strategy.begin(0)
    for _ in LINE:
        (arm,) = strategy.ask(1)
        told(strategy, arm, 2.0)
    assert all(belief.mean == pytest.approx(2.0) for belief in strategy.beliefs())


def test_orders_that_tie_are_taken_in_the_turn_of_the_seed_not_as_rounding_falls() -> None:
    values = np.array([1.0, 2.0, 2.0 - 1e-13, 2.0 + 1e-13, 0.0])
    assert gaussian_process.first_of_best(values, [0, 2, 3, 1, 4]) == 2
    assert gaussian_process.first_of_best(values, [4, 3, 2, 1, 0]) == 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GpUcb([], on_a_line, [1.0]), "at least one arm"),
        (lambda: GpUcb(LINE, on_a_line, []), "at least one scale"),
        (lambda: GpUcb([1, 1], on_a_line, [1.0]), "two arms are equal"),
        (lambda: GpUcb([object()], on_a_line, [1.0]), "an arm cannot be written"),
        (lambda: line(delta=0.0), "delta=0.0"),
        (lambda: line(feasibility=1.0), "feasibility=1.0"),
        (lambda: line(boldness=-1.0), "boldness=-1.0"),
        (lambda: line(boldness=math.nan), "boldness=nan"),
        (lambda: line(threshold=math.inf), "threshold=inf"),
        (lambda: GpUcb([1, 2], on_a_line, [0.3]), r"shape \(20, 20\); 2 arms need \(2, 2\)"),
        (lambda: GpUcb(LINE, lambda s: on_a_line(s) * np.nan, [0.3]), "finite numbers"),
        (lambda: GpUcb([1, 2], lambda s: np.array([[1, 0.5], [0.1, 1]]), [0.3]), "not symmetric"),
        (lambda: GpUcb([1, 2], lambda s: np.array([[1, 2], [2, 1]]), [0.3]), "not positive semidefinite"),
        (lambda: told(line(), 77, 1.0), "none of its arms"),
        (lambda: told(line(read=lambda r: Observation(1.0, -1.0)), 7, 1.0), "variances of at least 0"),
        (lambda: told(line(read=lambda r: Observation(math.nan)), 7, 1.0), "finite numbers"),
        (lambda: told(line(read=lambda r: Observation(1.0, 0.0, math.inf)), 7, 1.0), "finite numbers"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_a_reason(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


@pytest.mark.slow
def test_importing_it_imports_no_numpy() -> None:
    code = "import sys, fanfold.strategies.gp_ucb; print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
