"""Intervals, tests, rankings and power: against textbook values, closed forms, full enumeration and simulation."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.stats import (
    Bounds,
    Interval,
    binomial_tail,
    bootstrap,
    bounds,
    bradley_terry,
    clustered_mean,
    clustered_rate,
    detectable_difference,
    holm,
    mcnemar,
    mean,
    normal_quantile,
    paired,
    power_of_rate_difference,
    power_table,
    ranking,
    rate,
    sign_flip,
    spearman,
    t_cdf,
    t_quantile,
)

levels = st.floats(0.5, 0.999)
cluster = st.integers(0, 12).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
clusters = st.dictionaries(st.integers(), cluster, max_size=12)
pvalues = st.lists(st.floats(0.0, 1.0), max_size=12)
whole = st.integers(-20, 20)


# Distributions


def central_t(t: float, df: int) -> float:
    """P(|T| < t) for whole degrees of freedom: the finite trigonometric sums of the tables."""
    angle = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    total, term = 0.0, cosine if df % 2 else 1.0
    for power in range(df % 2, df - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cosine * cosine
    return 2.0 / math.pi * (angle + sine * total) if df % 2 else sine * total


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 9, 10, 31, 98, 199, 200, 1001])
def test_t_agrees_with_the_closed_form_for_whole_degrees_of_freedom(df: int) -> None:
    for t in (1e-9, 0.01, 0.3, 1.0, 1.7, 1.8, 2.5, 6.0, 40.0):
        expected = 0.5 + central_t(t, df) / 2.0
        assert t_cdf(t, df) == pytest.approx(expected, abs=1e-12)
        assert t_cdf(-t, df) == pytest.approx(1.0 - expected, abs=1e-12)


@pytest.mark.parametrize("df", [1.5, 2.75, 7.3, 150.5])
def test_t_agrees_with_the_integral_of_its_density_for_other_degrees_of_freedom(df: float) -> None:
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)

    def density(x: float) -> float:
        return scale * math.pow(1 + x * x / df, -(df + 1) / 2)

    for t in (0.4, 1.6, 3.1):
        steps = 2000
        width = t / steps
        inner = sum((4 if i % 2 else 2) * density(i * width) for i in range(1, steps))
        assert t_cdf(t, df) == pytest.approx(0.5 + (density(0) + inner + density(t)) * width / 3, abs=1e-11)


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [
        (0.975, 1, 12.70620),
        (0.975, 2, 4.30265),
        (0.975, 5, 2.57058),
        (0.975, 9, 2.26216),
        (0.975, 30, 2.04227),
        (0.975, 120, 1.97993),
        (0.995, 5, 4.03214),
        (0.95, 4, 2.13185),
        (0.025, 10, -2.22814),
    ],
)
def test_t_quantiles_are_those_of_the_table(p: float, df: float, expected: float) -> None:
    assert t_quantile(p, df) == pytest.approx(expected, abs=6e-6)


@pytest.mark.slow
@given(st.floats(1e-9, 1 - 1e-9))
def test_t_quantiles_are_exact_where_there_is_a_formula(p: float) -> None:
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-10, abs=1e-10)
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-6, abs=1e-10)
    assert t_quantile(p, math.inf) == normal_quantile(p)


@pytest.mark.slow
@given(st.floats(1e-6, 1 - 1e-6), st.floats(1.0, 1e9))
def test_a_t_quantile_has_its_probability_below_it(p: float, df: float) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


def test_t_is_right_in_the_middle_and_at_the_far_ends() -> None:
    for df in (0.5, 1, 3, 80.5, 1e8, math.inf):
        assert t_cdf(0.0, df) == 0.5 and t_quantile(0.5, df) == 0.0
        assert t_cdf(math.inf, df) == 1.0 and t_cdf(-math.inf, df) == 0.0
    assert t_cdf(-1e120, 1) == pytest.approx(1 / (math.pi * 1e120))
    assert t_quantile(1e-200, 1) == pytest.approx(-1e200 / math.pi)


def test_t_becomes_normal_without_a_step() -> None:
    # The distance to the normal is (z^3 + z) / (4 df) to first order, on both sides of the change of method.
    z = normal_quantile(0.975)
    for df in (0.9e7, 1.1e7, 1e9, 1e14):
        assert (t_quantile(0.975, df) - z) * df == pytest.approx((z**3 + z) / 4, abs=max(0.01, df * 1e-15))


def test_normal_quantiles_are_those_of_the_table() -> None:
    assert [round(normal_quantile(p), 6) for p in (0.025, 0.8, 0.995)] == [-1.959964, 0.841621, 2.575829]


@pytest.mark.slow
@given(st.integers(-1, 31), st.integers(0, 30), st.fractions(0, 1, max_denominator=64))
def test_a_binomial_tail_is_the_sum_of_its_terms(k: int, n: int, p: Fraction) -> None:
    exact = sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(max(0, k), n + 1)), Fraction())
    assert binomial_tail(k, n, float(p)) == pytest.approx(float(exact), rel=1e-11, abs=1e-300)


def test_a_binomial_tail_of_many_trials_neither_overflows_nor_loses_its_far_end() -> None:
    exact = Fraction(sum(math.comb(3000, i) for i in range(2000, 3001)), 2**3000)
    assert binomial_tail(2000, 3000, 0.5) == pytest.approx(float(exact), rel=1e-10)
    assert binomial_tail(1, 10**6, 1e-6) == pytest.approx(1 - math.exp(10**6 * math.log1p(-1e-6)), rel=1e-10)


# Rates


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_are_those_newcombe_published(successes: int, n: int, low: float, high: float) -> None:
    found = rate(successes, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    assert (found.estimate, found.n, found.clusters, found.level) == (successes / n, n, n, 0.95)


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(0, 200), levels)
def test_a_wilson_limit_is_a_rate_at_which_the_score_test_just_rejects(successes: int, more: int, level: float) -> None:
    n = successes + more + 1
    found, z = rate(successes, n, level), normal_quantile(0.5 + level / 2)
    for limit in (found.low, found.high):
        if 0.0 < limit < 1.0:
            score = (successes / n - limit) / math.sqrt(limit * (1 - limit) / n)
            assert abs(score) == pytest.approx(z, rel=1e-6)


def exact_coverage(n: int, p: float) -> float:
    held = [k for k in range(n + 1) if rate(k, n).low <= p <= rate(k, n).high]
    return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in held)


def test_wilson_holds_what_it_says_for_small_samples_counted_out_in_full() -> None:
    assert exact_coverage(20, 0.02) == pytest.approx(0.9401, abs=1e-4)
    assert exact_coverage(100, 0.05) == pytest.approx(0.966, abs=1e-3)


def by_hand(successes: Sequence[int], size: int) -> tuple[float, float]:
    """Wilson + design effect + t for clusters of equal size, from the formulas."""
    k, n = len(successes), len(successes) * size
    p = sum(successes) / n
    variance = k / (k - 1) * sum((x - p * size) ** 2 for x in successes) / n**2
    m = n / max(1.0, variance / (p * (1 - p) / (n - 1)))
    t = t_quantile(0.975, k - 1)
    centre, reach = p + t * t / (2 * m), t * math.sqrt(p * (1 - p) / m + t * t / (4 * m * m))
    return (centre - reach) / (1 + t * t / m), (centre + reach) / (1 + t * t / m)


def test_a_clustered_rate_is_wilson_with_the_design_effect_and_t() -> None:
    successes = (0, 9, 1, 7, 2, 10)
    found = clustered_rate({i: (x, 10) for i, x in enumerate(successes)})
    assert (found.low, found.high) == pytest.approx(by_hand(successes, 10))
    assert (found.estimate, found.n, found.clusters) == (29 / 60, 60, 6)
    assert found.high - found.low > 2 * (rate(29, 60).high - rate(29, 60).low)
    alike = clustered_rate(dict.fromkeys(range(10), (5, 20)))  # less than chance between clusters is chance
    assert (alike.low, alike.high) == pytest.approx(by_hand((5,) * 10, 20))


@pytest.mark.slow
@given(st.lists(st.booleans(), max_size=60), levels)
def test_clusters_of_one_observation_are_independent_observations(seen: list[bool], level: float) -> None:
    assert clustered_rate({i: (int(x), 1) for i, x in enumerate(seen)}, level) == rate(sum(seen), len(seen), level)


@pytest.mark.slow
@given(clusters, levels)
def test_a_clustered_rate_is_never_surer_than_independent_observations(
    groups: dict[int, tuple[int, int]], level: float
) -> None:
    found = clustered_rate(groups, level)
    plain = rate(sum(x for x, _ in groups.values()), sum(n for _, n in groups.values()), level)
    assert (found.estimate, found.n) == (plain.estimate, plain.n)
    assert found.clusters == sum(n > 0 for _, n in groups.values())
    assert found.high - found.low >= plain.high - plain.low - 1e-12
    assert 0.0 <= found.low <= (found.estimate or 0.0) and (found.estimate or 0.0) <= found.high <= 1.0


@pytest.mark.slow
@given(clusters)
def test_counting_failures_instead_of_successes_mirrors_the_interval(groups: dict[int, tuple[int, int]]) -> None:
    found, other = clustered_rate(groups), clustered_rate({key: (n - x, n) for key, (x, n) in groups.items()})
    assert (other.low, other.high) == pytest.approx((1 - found.high, 1 - found.low), abs=1e-9)


@pytest.mark.slow
@given(clusters, st.randoms(use_true_random=False))
def test_the_order_and_the_empty_clusters_do_not_matter(groups: dict[int, tuple[int, int]], rng: random.Random) -> None:
    items = [*((str(key), pair) for key, pair in groups.items()), ("empty", (0, 0))]
    rng.shuffle(items)
    found, other = clustered_rate(groups), clustered_rate(dict(items))
    assert (found.n, found.clusters) == (other.n, other.clusters)
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=1e-12)


def test_nothing_observed_says_nothing() -> None:
    assert rate(0, 0) == clustered_rate({}) == clustered_rate({"a": (0, 0)}) == Interval(None, 0.0, 1.0, 0, 0, 0.95)


def test_one_cluster_says_nothing_about_others() -> None:
    assert clustered_rate({"a": (3, 10)}) == Interval(0.3, 0.0, 1.0, 10, 1, 0.95)


@pytest.mark.parametrize("all_of", [False, True])
def test_never_and_always_leave_room_for_the_other(all_of: bool) -> None:
    found = clustered_rate(dict.fromkeys(range(10), (20 * all_of, 20)))
    t = t_quantile(0.975, 9)
    room = t * t / (200 + t * t)
    assert (found.low, found.high) == pytest.approx((1 - room, 1.0) if all_of else (0.0, room))
    assert found.estimate == (found.high if all_of else found.low)


def test_one_huge_cluster_among_small_ones_counts_for_little_more_than_one() -> None:
    equal = clustered_rate({i: (4 + i % 3, 20) for i in range(10)})
    lopsided = clustered_rate({0: (55, 182), **{i: (i % 2, 2) for i in range(1, 10)}})
    assert equal.n == lopsided.n and equal.clusters == lopsided.clusters
    assert equal.high - equal.low < 0.2 and lopsided.high - lopsided.low > 0.8
    overwhelmed = clustered_rate({"a": (10**16, 10**17), "b": (0, 1)})
    assert (overwhelmed.low, overwhelmed.high) == pytest.approx((0.0, 1.0))


# Means


def test_a_mean_has_students_interval() -> None:
    # Ten values with mean 5.5 and variance 55/6: 5.5 +- 2.26216 * sqrt(55/60).
    found = mean(range(1, 11))
    reach = 2.262157 * math.sqrt(55 / 60)
    assert (found.estimate, found.n, found.clusters) == (5.5, 10, 10)
    assert (found.low, found.high) == pytest.approx((5.5 - reach, 5.5 + reach), abs=1e-5)


def test_a_mean_within_0_and_1_of_zeros_and_ones_is_a_clustered_rate() -> None:
    groups = {i: [1.0] * (i % 4) + [0.0] * (5 - i % 3) for i in range(12)}
    found = clustered_mean(groups, within=(0.0, 1.0))
    expected = clustered_rate({key: (int(sum(values)), len(values)) for key, values in groups.items()})
    assert (found.estimate, found.low, found.high) == pytest.approx((expected.estimate, expected.low, expected.high))


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=1, max_size=3), min_size=2, max_size=20),
    st.floats(-5, 5),
    st.floats(0.1, 10),
)
def test_a_mean_within_limits_has_a_width_and_stays_within_them(
    groups: list[list[float]], shift: float, factor: float
) -> None:
    found = clustered_mean(dict(enumerate(groups)), within=(0.0, 3.0))
    assert found.estimate is not None
    assert 0.0 <= found.low <= found.estimate <= found.high <= 3.0 and found.low < found.high
    moved = {i: [factor * value + shift for value in group] for i, group in enumerate(groups)}
    other = clustered_mean(moved, within=(min(map(min, moved.values())), factor * 3.0 + shift + 1e-9))
    if any(0.0 in group for group in groups):
        assert other.high == pytest.approx(factor * found.high + shift, abs=1e-6)


def test_a_value_outside_of_the_limits_of_a_mean_is_an_error() -> None:
    with pytest.raises(ConfigError, match="outside"):
        clustered_mean({1: [0.0], 2: [2.0]}, within=(0.0, 1.0))


def test_a_clustered_mean_of_equal_clusters_is_the_mean_of_their_means() -> None:
    groups = {"a": (1.0, 2.0, 3.0), "b": (4.0, 4.0, 7.0), "c": (0.5, 1.0, 0.0), "none": ()}
    found, expected = clustered_mean(groups), mean([2.0, 5.0, 0.5])
    assert (found.estimate, found.low, found.high) == pytest.approx((expected.estimate, expected.low, expected.high))
    assert (found.n, found.clusters) == (9, 3)


@pytest.mark.slow
@given(
    st.lists(st.lists(whole, min_size=1, max_size=5), min_size=2, max_size=6), st.integers(-5, 5).filter(bool), whole
)
def test_a_mean_moves_and_stretches_with_its_values(groups: list[list[int]], factor: int, shift: int) -> None:
    found = clustered_mean(dict(enumerate(groups)))
    other = clustered_mean({i: [factor * value + shift for value in group] for i, group in enumerate(groups)})
    limits = sorted((factor * found.low + shift, factor * found.high + shift))
    assert [other.low, other.high] == pytest.approx(limits, rel=1e-6, abs=1e-6)


def test_unequal_clusters_weigh_as_the_shares_they_have() -> None:
    # Sums 6, 5, 0 of 3, 1, 2 values: mean 11/6; what each cluster is apart, squared, over its complement's share.
    found = clustered_mean({"a": [1.0, 2.0, 3.0], "b": [5.0], "c": [0.0, 0.0]})
    apart = [(6 - 3 * 11 / 6) ** 2 / (3 / 6), (5 - 11 / 6) ** 2 / (5 / 6), (0 - 2 * 11 / 6) ** 2 / (4 / 6)]
    reach = t_quantile(0.975, 36 / 14 - 1) * math.sqrt(sum(apart)) / 6
    assert (found.low, found.high) == pytest.approx((11 / 6 - reach, 11 / 6 + reach))


def test_too_little_for_a_mean_has_no_limits() -> None:
    assert mean([]) == Interval(None, -math.inf, math.inf, 0, 0, 0.95)
    assert mean([3.0]) == Interval(3.0, -math.inf, math.inf, 1, 1, 0.95)
    assert clustered_mean({"a": [1.0, 2.0]}) == Interval(1.5, -math.inf, math.inf, 2, 1, 0.95)
    assert mean([2.0, 2.0, 2.0]) == Interval(2.0, 2.0, 2.0, 3, 3, 0.95)
    assert clustered_mean({"a": [1.0] * 10**5, "b": [1.0]}).low == 1.0


# Bootstrap and bounds


def average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def test_a_bootstrap_is_the_same_for_the_same_seed_only() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0, 1) for _ in range(30)]
    first = bootstrap(values, average, seed=1)
    assert first == bootstrap(values, average, seed=1) != bootstrap(values, average, seed=2)


def test_a_bootstrapped_mean_of_many_values_is_about_students() -> None:
    rng = random.Random(7)
    values = [rng.gauss(10, 2) for _ in range(200)]
    found, expected = bootstrap(values, average, seed=3), mean(values)
    assert found.estimate == expected.estimate
    width = expected.high - expected.low
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.1 * width)


def test_few_values_are_bootstrapped_with_wider_percentiles() -> None:
    values = [0.0, 1.0, 4.0, 9.0, 16.0]
    found = bootstrap(values, average, seed=0, resamples=4000)
    draws = sorted(average([values[i] for i in drawn]) for drawn in itertools.product(range(5), repeat=5))
    share = [sum(value < limit for value in draws) / len(draws) for limit in (found.low, found.high)]
    # Phi(-sqrt(5/4) * 2.77645) = 0.00096 instead of 0.025
    assert share[0] < 0.003 and share[1] > 0.997


def test_a_statistic_that_is_undefined_in_a_resample_could_be_anything() -> None:
    pairs = [(1.0, 2.0), (2.0, 1.0), (3.0, 3.0)]

    def correlation(rows: Sequence[tuple[float, float]]) -> float | None:
        return spearman([x for x, _ in rows], [y for _, y in rows])

    found = bootstrap(pairs, correlation, seed=0)
    assert found.estimate == 0.5 and (found.low, found.high) == (-math.inf, math.inf)
    assert bootstrap([1.0, 2.0], lambda _: math.nan, seed=0).estimate is None


def test_too_little_to_bootstrap_has_no_limits() -> None:
    assert bootstrap([], average, seed=0) == Interval(None, -math.inf, math.inf, 0, 0, 0.95)
    assert bootstrap([4.0], average, seed=0) == Interval(4.0, -math.inf, math.inf, 1, 1, 0.95)


def test_games_without_an_answer_widen_a_rate_to_what_they_could_have_been() -> None:
    found = bounds(30, 50, 20)
    assert (found.estimate, found.low, found.high, found.n, found.unknown) == (0.375, 0.3, 0.5, 100, 20)
    assert bounds(3, 1, 0).low == bounds(3, 1, 0).high == bounds(3, 1, 0).estimate == 0.75
    assert (bounds(0, 0, 5).estimate, bounds(0, 0, 5).low, bounds(0, 0, 5).high) == (None, 0.0, 1.0)
    assert bounds(0, 0, 0) == Bounds(None, 0.0, 1.0, 0, 0)


# Comparisons


def test_mcnemar_is_the_sign_test_of_the_pairs_that_differ() -> None:
    assert mcnemar(1, 9) == mcnemar(9, 1) == pytest.approx(2 * (1 + 10) / 1024)
    assert mcnemar(0, 0) == mcnemar(5, 5) == 1.0
    assert mcnemar(0, 6) == pytest.approx(2 / 64)


def test_sign_flips_of_darwins_maize_give_fishers_count() -> None:
    # Fisher (1935): 863 of the 32,768 assignments have a sum of at least 314; both sides twice that.
    maize = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert sum(maize) == 314 and sign_flip(maize) == 2 * 863 / 32768


def flipped_in_full(values: Sequence[float], slack: float = 1e-9) -> float:
    observed = abs(sum(values)) - slack
    sums = [abs(sum(map(math.prod, zip(values, signs)))) for signs in itertools.product((1, -1), repeat=len(values))]
    return sum(total >= observed for total in sums) / len(sums)


@pytest.mark.slow
@given(st.lists(st.one_of(whole, st.sampled_from([0.1, 0.2, 0.3, -0.7, 1.1])), max_size=9))
def test_a_sign_flip_test_counts_every_assignment(values: list[float]) -> None:
    assert sign_flip(values) == flipped_in_full(values)


def test_rounding_does_not_break_ties_between_sums() -> None:
    assert 0.1 + 0.2 != 0.3
    assert sign_flip([0.1, 0.2, -0.3, 0.6]) == flipped_in_full([1, 2, -3, 6])
    assert sign_flip([1e-320, 2e-320, 3e-320]) == 2 / 8


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_a_sign_flip_test_of_single_games_is_mcnemar(b: int, c: int, ties: int) -> None:
    assert sign_flip([1.0] * b + [-1.0] * c + [0.0] * ties) == pytest.approx(mcnemar(b, c), rel=1e-9)


def test_sixteen_clusters_of_any_kind_are_counted_exactly() -> None:
    rng = random.Random(4)
    values = [rng.gauss(0.4, 1) for _ in range(16)]
    assert (sign_flip(values, seed=1) * 2**16).is_integer() and sign_flip(values, seed=1) == sign_flip(values, seed=2)


@pytest.mark.slow
def test_many_clusters_are_drawn_from_the_seed_close_to_the_exact_answer() -> None:
    rng = random.Random(9)
    values = [rng.gauss(0.2, 1) for _ in range(60)]
    drawn = sign_flip(values, seed=1)
    z = abs(sum(values)) / math.sqrt(sum(value * value for value in values))
    assert drawn == sign_flip(values, seed=1) != sign_flip(values, seed=2)
    assert drawn == pytest.approx(math.erfc(z / math.sqrt(2)), abs=0.02)
    assert drawn == sign_flip(values[::-1], seed=1)


def test_a_drawn_p_value_is_never_zero() -> None:
    assert sign_flip([10.0 + i / 7 + i * i / 1000 for i in range(40)], resamples=999) == 1 / 1000


def test_draws_use_every_cluster_and_both_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [1.0, 2.5, -1.5, 4.0, 0.5, 3.0, -2.0, 1.0, 5.0, -6.0, 2.0]  # more than one byte of signs, not two
    exact = sign_flip(values)
    monkeypatch.setattr("fanfold.stats.comparisons._EXACT_STEPS", 0)
    assert sign_flip(values, resamples=40_000) == pytest.approx(exact, abs=0.01)


def test_a_paired_comparison_swaps_whole_clusters() -> None:
    # Four scenarios that all favour the first: 2 of the 16 assignments are as extreme, however many games each has.
    groups = {i: [(1.0, 0.0)] * (i + 1) for i in range(4)}
    found = paired(groups)
    assert found.p == 2 / 16 and found.difference == clustered_mean({i: [1.0] * (i + 1) for i in range(4)})
    mirrored = paired({i: [(b, a) for a, b in group] for i, group in groups.items()})
    assert mirrored.p == found.p and mirrored.difference.estimate == -1.0
    assert paired({}).p == 1.0 and paired({}).difference.estimate is None


def test_pairing_on_the_same_scenarios_finds_what_separate_scenarios_hide() -> None:
    rng = random.Random(0)
    groups = {}
    for i in range(300):
        scenario = rng.gauss(0, 3)
        chances = (1 / (1 + math.exp(-scenario - 0.8)), 1 / (1 + math.exp(-scenario)))
        groups[i] = [tuple(float(rng.random() < chance) for chance in chances)]
    found = paired(groups)  # type: ignore[arg-type]
    b = sum(group == [(1.0, 0.0)] for group in groups.values())
    c = sum(group == [(0.0, 1.0)] for group in groups.values())
    assert found.p == pytest.approx(mcnemar(b, c)) and found.p < 0.05


@given(pvalues)
def test_adjusted_p_values_keep_their_order_and_never_shrink(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(p <= q <= 1.0 for p, q in zip(values, adjusted)) and len(adjusted) == len(values)
    assert all(q <= r for (p, q), (o, r) in itertools.product(zip(values, adjusted), repeat=2) if p <= o)


def test_adjusted_p_values_are_those_worked_out_by_hand() -> None:
    values = (0.01, 0.04, 0.03, 0.005)
    assert holm(values) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([1e-9, 0.5]) == (2e-9, 0.5)


def test_holm_holds_the_error_of_fifteen_null_pairs() -> None:
    rng = random.Random(15)
    runs = [[rng.random() for _ in range(15)] for _ in range(3000)]
    raw, held = (sum(min(adjust(run)) <= 0.05 for run in runs) / len(runs) for adjust in (tuple, holm))
    assert raw == pytest.approx(1 - 0.95**15, abs=0.03)
    assert 0.035 < held < 0.065


def test_spearman_is_that_of_the_textbook() -> None:
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(-29 / 165)


def test_tied_values_share_their_average_rank() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert spearman([1, 5, 5, 9], [10, 20, 30, 40]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert spearman([1, 1, 1], [1, 2, 3]) is None and spearman([], []) is None and spearman([1], [1]) is None


@given(st.lists(whole, min_size=2, max_size=30, unique=True))
def test_spearman_sees_only_the_order(xs: list[int]) -> None:
    assert spearman(xs, [math.exp(x) for x in xs]) == 1.0
    assert spearman(xs, [-(x**3) for x in xs]) == -1.0


# Rankings

TEAMS = ("Milwaukee", "Detroit", "Toronto", "New York", "Boston", "Cleveland", "Baltimore")
WON = (
    (0, 7, 9, 7, 7, 9, 11),
    (6, 0, 7, 5, 11, 9, 9),
    (4, 6, 0, 7, 7, 8, 12),
    (6, 8, 6, 0, 6, 7, 10),
    (6, 2, 6, 7, 0, 7, 12),
    (4, 4, 5, 6, 6, 0, 6),
    (2, 4, 1, 3, 1, 7, 0),
)
SEASON = {(TEAMS[i], TEAMS[j]): float(WON[i][j]) for i in range(7) for j in range(7) if i != j}


def test_the_baseball_season_of_the_textbook_has_its_strengths() -> None:
    # Agresti, Categorical Data Analysis: American League East 1987, log strengths relative to Baltimore.
    found = bradley_terry(SEASON, prior=1e-9)
    logs = {team: math.log(found[team] / found["Baltimore"]) for team in TEAMS}
    expected = (1.58, 1.44, 1.29, 1.25, 1.11, 0.68, 0.0)
    assert [round(logs[team], 2) for team in TEAMS] == [pytest.approx(value, abs=0.011) for value in expected]


matches = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 4)), st.integers(0, 30), max_size=20)


@pytest.mark.slow
@given(matches)
def test_strengths_predict_as_many_wins_as_there_were(wins: dict[tuple[int, int], int]) -> None:
    # The likelihood is highest where every player's expected wins are those won, the prior's included.
    found = bradley_terry(wins, prior=0.1)
    assert math.prod(found.values()) == pytest.approx(1.0, rel=1e-6)
    for a in found:
        others = [b for b in found if b != a]
        won = sum(wins.get((a, b), 0) + 0.1 for b in others)
        games = {b: wins.get((a, b), 0) + wins.get((b, a), 0) + 0.2 for b in others}
        expected = sum(count * found[a] / (found[a] + found[b]) for b, count in games.items())
        assert expected == pytest.approx(won, rel=1e-6, abs=1e-6)


def test_the_undefeated_stay_finite_and_those_who_never_met_are_comparable() -> None:
    found = bradley_terry({("a", "b"): 10.0})
    assert found["a"] / found["b"] == pytest.approx(10.1 / 0.1)
    apart = bradley_terry({("a", "b"): 50.0, ("b", "a"): 50.0, ("c", "d"): 90.0, ("d", "c"): 10.0})
    assert apart["c"] > apart["a"] == pytest.approx(apart["b"], rel=1e-6) and apart["b"] > apart["d"]


def test_a_tie_is_half_a_win_for_both_and_self_play_says_nothing() -> None:
    assert bradley_terry({("a", "b"): 2.5, ("b", "a"): 2.5}) == pytest.approx({"a": 1.0, "b": 1.0})
    with_self = bradley_terry({("a", "b"): 3.0, ("b", "a"): 1.0, ("a", "a"): 70.0})
    assert with_self == bradley_terry({("a", "b"): 3.0, ("b", "a"): 1.0})
    assert bradley_terry({}) == {} and bradley_terry({("a", "a"): 1.0}) == {"a": 1.0}


def rounds(count: int) -> dict[int, dict[tuple[str, str], float]]:
    rng = random.Random(11)
    found: dict[int, dict[tuple[str, str], float]] = {}
    for i in range(count):
        found[i] = {("weak", "weak"): 1.0}
        for a, b, chance in (("strong", "weak", 0.95), ("middle", "weak", 0.7), ("strong", "middle", 0.7)):
            won = float(rng.random() < chance)
            found[i] |= {(a, b): won, (b, a): 1 - won}
    return found


def test_a_ranking_goes_from_strongest_to_weakest_with_limits() -> None:
    found = ranking(rounds(40), seed=1, resamples=200)
    assert [one.player for one in found] == ["strong", "middle", "weak"] and [one.rank for one in found] == [1, 2, 3]
    whole_season: dict[tuple[str, str], float] = {}
    for games in rounds(40).values():
        for pair, value in games.items():
            whole_season[pair] = whole_season.get(pair, 0.0) + value
    strengths = bradley_terry(whole_season)
    for one in found:
        assert one.strength.estimate == pytest.approx(strengths[str(one.player)], rel=1e-6)
        assert one.strength.low < strengths[str(one.player)] < one.strength.high
        assert (one.strength.n, one.strength.clusters) == (120, 40)
        assert one.rank_low <= one.rank <= one.rank_high
    assert found[0].rank_high < 3 and found[2].rank_low > 1
    assert found == ranking(rounds(40), seed=1, resamples=200) != ranking(rounds(40), seed=2, resamples=200)


def test_fewer_clusters_give_wider_rankings() -> None:
    few, many = (ranking(rounds(count), seed=1, resamples=200) for count in (8, 80))
    assert few[0].strength.high / few[0].strength.low > 2 * many[0].strength.high / many[0].strength.low


def test_one_cluster_ranks_without_limits() -> None:
    found = ranking({"only": {("a", "b"): 3.0, ("b", "a"): 1.0}})
    assert [(one.player, one.rank, one.rank_low, one.rank_high) for one in found] == [("a", 1, 1, 2), ("b", 2, 1, 2)]
    assert (found[0].strength.low, found[0].strength.high) == (0.0, math.inf)
    assert ranking({}) == () and ranking({"none": {}}) == ()


def test_equal_players_share_a_rank() -> None:
    found = ranking({i: {("a", "b"): 1.0, ("b", "a"): 1.0, ("a", "c"): 1.0, ("b", "c"): 1.0} for i in range(5)})
    assert [(one.player, one.rank) for one in found] == [("a", 1), ("b", 1), ("c", 3)]
    close = ranking({"only": {("a", "b"): 1000.0, ("b", "a"): 1001.0}})
    assert [(one.player, one.rank) for one in close] == [("b", 1), ("a", 2)]


# Power


def test_the_games_needed_are_those_of_the_textbook() -> None:
    # Fleiss: 0.6 against 0.7 at 5 % and 80 % needs 356 on each side.
    assert power_of_rate_difference(0.6, 0.7, 355) < 0.8 <= power_of_rate_difference(0.6, 0.7, 356)
    assert power_of_rate_difference(0.6, 0.7, 3 * 356, deff=3.0) == power_of_rate_difference(0.6, 0.7, 356)


def test_power_is_about_what_counting_every_outcome_gives() -> None:
    n, p1, p2 = 60, 0.2, 0.45

    def mass(k: int, p: float) -> float:
        return math.comb(n, k) * p**k * (1 - p) ** (n - k)

    def rejects(i: int, j: int) -> bool:
        pooled = (i + j) / (2 * n)
        return abs(i - j) / n > 1.959964 * math.sqrt(2 * pooled * (1 - pooled) / n)

    pairs = itertools.product(range(n + 1), repeat=2)
    exact = math.fsum(mass(i, p1) * mass(j, p2) for i, j in pairs if rejects(i, j))
    assert power_of_rate_difference(p1, p2, n) == pytest.approx(exact, abs=0.015)


def test_power_without_a_difference_is_the_level_of_the_test() -> None:
    assert power_of_rate_difference(0.3, 0.3, 100) == pytest.approx(0.05)
    assert power_of_rate_difference(0.3, 0.3, 100, level=0.9) == pytest.approx(0.1)
    assert power_of_rate_difference(0.0, 0.0, 100) == 0.0
    assert power_of_rate_difference(0.0, 1.0, 1) == 0.0 and power_of_rate_difference(0.0, 1.0, 10) == 1.0


@given(st.floats(0.0, 1.0), st.integers(1, 5000), st.floats(1.0, 30.0), st.sampled_from([0.5, 0.8, 0.95]))
def test_a_detectable_difference_is_the_smallest(p: float, n: int, deff: float, power: float) -> None:
    found = detectable_difference(p, n, deff, power=power)
    way = 1 if p <= 0.5 else -1
    for share in (0.1, 0.5, 0.9, 0.999):
        difference = share * (found if found is not None else max(p, 1 - p))
        assert power_of_rate_difference(p, p + way * difference, n, deff) < power
    if found is not None:
        assert power_of_rate_difference(p, min(1.0, max(0.0, p + way * found)), n, deff) >= power


def test_a_power_table_shows_what_clusters_cost_before_the_run() -> None:
    table = power_table(0.2, games=(100, 400), per_cluster=(1, 10), icc=(0.0, 0.2))
    found = {(row.n, row.per_cluster, row.icc): row for row in table}
    assert [(row.n, row.per_cluster, row.icc) for row in table] == list(
        itertools.product((100, 400), (1, 10), (0.0, 0.2))
    )
    assert found[100, 1, 0.0].difference == found[100, 1, 0.2].difference == detectable_difference(0.2, 100)
    clustered = found[100, 10, 0.2]
    assert clustered.clusters == 10 and clustered.deff == pytest.approx(2.8)
    assert clustered.difference == detectable_difference(0.2, 100, 2.8, df=18)
    assert clustered.difference > detectable_difference(0.2, 100, 2.8)  # type: ignore[operator]
    assert found[400, 10, 0.2].difference < clustered.difference  # type: ignore[operator]


def test_a_run_that_can_show_nothing_says_so() -> None:
    lone, tiny = power_table(0.5, games=(50,), per_cluster=(100,), icc=(0.1,)) + power_table(0.5, games=(2,))
    assert (lone.per_cluster, lone.clusters, lone.difference) == (50, 1, None)
    assert (tiny.per_cluster, tiny.clusters, tiny.deff, tiny.difference) == (1, 2, 1.0, None)


# What is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rate(5, 3), "5 successes of 3"),
        (lambda: rate(-1, 3), "successes=-1"),
        (lambda: rate(1.5, 3), "whole number"),  # type: ignore[arg-type]
        (lambda: rate(1, 3, 95), "level=95"),
        (lambda: rate(0, 0, 1.0), "level=1.0"),
        (lambda: clustered_rate({"a": (1, 9), "story 7": (3, 2)}), "cluster 'story 7'.*3 successes of 2"),
        (lambda: clustered_rate({"a": 3}), r"cluster 'a' holds 3: give \(successes, n\)"),  # type: ignore[dict-item]
        (lambda: clustered_rate({"a": (1, 2)}, level=0.0), "level=0.0"),
        (lambda: mean([1.0, math.nan]), "is nan"),
        (lambda: clustered_mean({"a": [math.inf]}), "cluster 'a' is inf"),
        (lambda: paired({"a": [(math.nan, 0.0)]}), "cluster 'a' is nan"),
        (lambda: sign_flip([math.inf]), "is inf"),
        (lambda: sign_flip([math.sqrt(i) for i in range(40)], resamples=0), "resamples=0"),
        (lambda: mcnemar(-1, 2), "b=-1"),
        (lambda: holm([0.1, 1.2]), "p-value number 1 is 1.2"),
        (lambda: spearman([1, 2], [1]), "2 values against 1"),
        (lambda: spearman([1, math.nan], [1, 2]), "is nan"),
        (lambda: bradley_terry({("a", "b"): -1.0}), r"wins\['a', 'b'\]=-1.0"),
        (lambda: bradley_terry({("a", "b"): 1.0}, prior=0.0), "prior=0.0"),
        (lambda: ranking({1: {("a", "b"): math.nan}}), "wins"),
        (lambda: bootstrap([1.0, 2.0], average, 0, resamples=0), "resamples=0"),
        (lambda: bounds(1, -2, 0), "failures=-2"),
        (lambda: t_quantile(1.0, 3), "p=1.0"),
        (lambda: t_quantile(0.5, 0), "df=0"),
        (lambda: t_cdf(math.nan, 3), "not a number"),
        (lambda: normal_quantile(0.0), "p=0.0"),
        (lambda: binomial_tail(1, 2, 1.5), "p=1.5"),
        (lambda: power_of_rate_difference(0.1, 1.2, 10), "p2=1.2"),
        (lambda: power_of_rate_difference(0.1, 0.2, 10, deff=0.5), "deff=0.5"),
        (lambda: power_of_rate_difference(0.1, 0.2, 0), "n=0"),
        (lambda: detectable_difference(0.3, 10, power=0.2), "power=0.2"),
        (lambda: power_table(0.3, [10], [2], [1.5]), "icc=1.5"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_remedy(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_results_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        rate(1, 2).low = 0.0  # type: ignore[misc]
