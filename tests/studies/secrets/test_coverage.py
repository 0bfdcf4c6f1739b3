"""Simulated coverage: how often the 95 % intervals that the secrets study reports hold the true value."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from fanfold.stats import Interval, bootstrap, bradley_terry, clustered_mean, clustered_rate, ranking, rate

Groups = dict[int, tuple[int, int]]


@functools.cache
def intercept(p: float, tau: float) -> float:
    """The mean of the clusters' logits at which their marginal rate is `p`."""
    grid = [-8.0 + i / 50 for i in range(801)]
    weights = [math.exp(-z * z / 2) for z in grid]

    def marginal(middle: float) -> float:
        rates = (weight / (1 + math.exp(-middle - tau * z)) for z, weight in zip(grid, weights))
        return math.fsum(rates) / math.fsum(weights)

    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if marginal(middle) < p else (low, middle)
    return low


def play(sizes: Sequence[int], p: float, tau: float, rng: random.Random) -> Groups:
    groups = {}
    for i, size in enumerate(sizes):
        chance = 1 / (1 + math.exp(-intercept(p, tau) - tau * rng.gauss(0, 1)))
        groups[i] = (sum(rng.random() < chance for _ in range(size)), size)
    return groups


def coverage(
    method: Callable[[Groups], Interval], sizes: Sequence[int], p: float, tau: float, seed: int, repeats: int = 3000
) -> float:
    rng = random.Random(seed)
    found = (method(play(sizes, p, tau, rng)) for _ in range(repeats))
    return sum(interval.low <= p <= interval.high for interval in found) / repeats


def pooled(groups: Groups) -> Interval:
    return rate(sum(x for x, _ in groups.values()), sum(n for _, n in groups.values()))


@pytest.mark.slow
def test_the_coverage_designs_have_the_marginal_rate_they_state() -> None:
    rng = random.Random(2)
    for p, tau in ((0.24, 1.0), (0.13, 1.0), (0.03, 1.0)):
        groups = play([1] * 40_000, p, tau, rng)
        assert sum(x for x, _ in groups.values()) / 40_000 == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 40_000))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "p", "tau"),
    [
        pytest.param([1] * 20, 0.02, 0.0, id="20 games, rate 0.02"),
        pytest.param([1] * 100, 0.05, 0.0, id="100 games, rate 0.05"),
        pytest.param([20] * 10, 0.24, 1.0, id="10 clusters of 20, rate 0.24"),
        pytest.param([20] * 20, 0.13, 1.0, id="20 clusters of 20, rate 0.13"),
        pytest.param([10] * 50, 0.03, 1.0, id="50 clusters of 10, rate 0.03"),
    ],
)
def test_coverage_of_clustered_rates_is_what_they_say(sizes: list[int], p: float, tau: float) -> None:
    assert 0.93 <= coverage(clustered_rate, sizes, p, tau, seed=1) <= 0.975


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "p"),
    [
        pytest.param([1] * 4 + [5] * 4 + [40] * 4, 0.2, id="four of twelve clusters hold nearly all"),
        pytest.param([50] * 2 + [5] * 20, 0.2, id="two of 22 clusters hold half"),
        pytest.param([1] * 15 + [30] * 5, 0.1, id="five of 20 clusters hold nearly all"),
    ],
)
def test_coverage_survives_clusters_of_very_different_size(sizes: list[int], p: float) -> None:
    assert 0.93 <= coverage(clustered_rate, sizes, p, 1.0, seed=4) <= 0.975


def test_coverage_is_lost_when_clusters_are_ignored() -> None:
    assert coverage(pooled, [20] * 10, 0.24, 1.0, seed=1) < 0.75


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clusters", "size", "p", "tau"),
    [(10, 2, 0.02, 0.0), (50, 2, 0.05, 0.0), (10, 20, 0.24, 1.0), (20, 20, 0.13, 1.0), (50, 10, 0.03, 1.0)],
)
def test_coverage_of_points_and_of_shares_of_games_won(clusters: int, size: int, p: float, tau: float) -> None:
    outcomes = [(own, other) for own in (0, 1) for other in (0, 1)]
    figures = {
        "points": ({(0, 0): 0.0, (1, 1): 1.0, (0, 1): 3.0, (1, 0): 0.0}, (0.0, 3.0)),
        "share won": ({(0, 0): 0.5, (1, 1): 0.5, (0, 1): 1.0, (1, 0): 0.0}, (0.0, 1.0)),
    }
    rng, repeats = random.Random(6), 1000
    played = [
        {
            scenario: [(int(i < revealed), int(rng.random() < p)) for i in range(size)]
            for scenario, (revealed, _) in play([size] * clusters, p, tau, rng).items()
        }
        for _ in range(repeats)
    ]
    for what, (value, within) in figures.items():
        truth = sum(value[own, other] * (p if own else 1 - p) * (p if other else 1 - p) for own, other in outcomes)
        found = [
            clustered_mean({key: [value[game] for game in games] for key, games in groups.items()}, within=within)
            for groups in played
        ]
        held = sum(one.low <= truth <= one.high for one in found) / repeats
        print(f"{what}: {held:.1%}")
        assert held >= 0.94
        assert all(one.low < one.high for one in found)


@pytest.mark.slow
def test_coverage_of_a_bootstrapped_mean_of_eight_values() -> None:
    def average(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    rng, repeats = random.Random(8), 600
    samples = [[rng.gauss(0, 1) for _ in range(8)] for _ in range(repeats)]
    found = [bootstrap(sample, average, seed=i, resamples=300) for i, sample in enumerate(samples)]
    assert 0.92 <= sum(one.low <= 0 <= one.high for one in found) / repeats <= 0.98


@pytest.mark.slow
def test_coverage_of_ranked_strengths_with_eight_clusters() -> None:
    rng = random.Random(5)
    skills = (0.6, -0.1, -0.5)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]

    def cluster(expected: bool) -> dict[tuple[int, int], float]:
        here = [skill + rng.gauss(0, 0.8) for skill in skills]
        wins = dict.fromkeys(pairs, 0.0)
        for a, b in pairs:  # each pair twice, as either may open
            chance = 1 / (1 + math.exp(here[b] - here[a]))
            won = chance if expected else float(rng.random() < chance)
            wins[a, b] += won
            wins[b, a] += 1 - won
        return wins

    many = [cluster(expected=True) for _ in range(8000)]
    truth = bradley_terry({pair: math.fsum(wins[pair] for wins in many) for pair in pairs})
    held, repeats = 0, 120
    for i in range(repeats):
        found = ranking({k: cluster(expected=False) for k in range(8)}, seed=i, resamples=200)
        held += sum(one.strength.low <= truth[one.player] <= one.strength.high for one in found)  # type: ignore[index]
    assert 0.91 <= held / (3 * repeats) <= 0.985
