"""Rates and means with their intervals, also where observations come in clusters."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.stats.checks import checked_counts, checked_finite, checked_pair, checked_share, checked_whole, defined
from fanfold.stats.distributions import normal_cdf, normal_quantile, t_quantile

T = TypeVar("T")
C = TypeVar("C", bound=Hashable)  # what names a cluster


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its limits, and how much it rests on: `n` observations in `clusters` independent groups.

    The estimate is None when there was nothing to observe.  Where the data cannot say how wide the interval is (nothing
    observed, or one cluster), the limits are the widest possible, never a narrow guess.
    """

    estimate: float | None
    low: float
    high: float
    n: int
    clusters: int
    level: float = 0.95


def rate(successes: int, n: int, level: float = 0.95) -> Interval:
    """A rate of independent observations, with Wilson's interval."""
    successes, n = checked_counts(successes, n, "rate")
    quantile = normal_quantile(0.5 + checked_share(level, "level") / 2.0)
    if n == 0:
        return Interval(None, 0.0, 1.0, 0, 0, level)
    return Interval(successes / n, *_wilson(successes / n, n, quantile), n, n, level)


def clustered_rate(groups: Mapping[C, tuple[int, int]], level: float = 0.95) -> Interval:
    """A rate of observations that are alike within clusters; `groups` holds (successes, n) of each cluster.

    Wilson's interval with n divided by the design effect, and Student's t for the normal quantile.  The design effect
    is the ratio estimator's variance between clusters over that of independent observations, at least 1 (also at rates
    of 0 and 1, where nothing can be seen of it).  For clusters of equal size the degrees of freedom are clusters - 1;
    unequal ones count as 1 / (sum of squared shares), because a few large clusters are what the rate then rests on.
    When every cluster is a single observation there is nothing to estimate, and this is Wilson's interval.

    It is too narrow where a rare success comes from very few of few clusters (ten clusters, rate 0.05, a standard
    deviation of 2 between their logits: 87 % of the 95 % intervals hold the truth), because most such data do not show
    that there are clusters like that.
    """
    counts = [(key, *checked_counts(*checked_pair(key, pair), f"cluster {key!r}")) for key, pair in groups.items()]
    sums = [successes for _, successes, n in counts if n]
    sizes = [n for _, _, n in counts if n]
    n = sum(sizes)
    if n == len(sizes):
        return rate(sum(sums), n, level)
    checked_share(level, "level")
    estimate = sum(sums) / n
    if len(sizes) == 1:
        return Interval(estimate, 0.0, 1.0, n, 1, level)
    variance, df = _between(sums, sizes, estimate)
    independent = estimate * (1.0 - estimate) / (n - 1)
    effect = max(1.0, variance / independent) if independent > 0.0 else 1.0
    limits = _wilson(estimate, n / effect, t_quantile(0.5 + level / 2.0, df))
    return Interval(estimate, *limits, n, len(sizes), level)


def mean(values: Iterable[float], level: float = 0.95) -> Interval:
    """A mean of independent values, with Student's t interval."""
    return clustered_mean({number: (value,) for number, value in enumerate(values)}, level)


def clustered_mean(
    groups: Mapping[C, Sequence[float]], level: float = 0.95, *, within: tuple[float, float] | None = None
) -> Interval:
    """A mean over all values of all clusters, with a t interval from the differences between clusters.

    Where all values lie `within` known limits, it is Wilson's interval, made for any values between them: a mean is
    rejected as too high if even the observed values, mixed with as many at the upper limit as it takes, would rarely
    give what was observed.  That interval has a width also where no two values differ.
    """
    checked_share(level, "level")
    filled = [
        [checked_finite(value, f"cluster {key!r}") for value in group] for key, group in groups.items() if len(group)
    ]
    sums, sizes = [math.fsum(group) for group in filled], [len(group) for group in filled]
    n = sum(sizes)
    estimate = math.fsum(sums) / n if n else None
    least, most = (-math.inf, math.inf) if within is None else within
    if any(not least <= value <= most for group in filled for value in group):
        raise ConfigError(f"values of a mean lie outside of {within}: give the limits of what they can be")
    if estimate is None or len(sizes) == 1:
        return Interval(estimate, least, most, n, len(sizes), level)
    variance, df = _between(sums, sizes, estimate)
    quantile = t_quantile(0.5 + level / 2.0, df)
    if within is not None:
        spread = math.fsum((value - estimate) ** 2 for group in filled for value in group) / n
        alike = spread <= 1e-12 * (most - least) ** 2  # but for rounding
        effect = 1.0 if alike else max(1.0, variance * (n - 1) / spread)
        limits = _score_limits(estimate, spread, n / effect, quantile, within)
        return Interval(estimate, *limits, n, len(sizes), level)
    reach = quantile * math.sqrt(variance) if variance else 0.0
    return Interval(estimate, estimate - reach, estimate + reach, n, len(sizes), level)


def bootstrap(
    values: Sequence[T],
    statistic: Callable[[Sequence[T]], float | None],
    seed: int,
    level: float = 0.95,
    *,
    resamples: int = 2000,
) -> Interval:
    """Any statistic of independent values (a value may be a whole cluster), with a percentile interval.

    The percentiles lie further out for few values, as t does from the normal, because resampling alone is too sure of
    itself there.  A resample for which the statistic is undefined (None or not a number) could be anything: it counts
    as lowest for the lower limit and as highest for the upper.
    """
    checked_share(level, "level")
    count = len(values)
    estimate = defined(statistic(values)) if count else None
    if count < 2:
        return Interval(estimate, -math.inf, math.inf, count, count, level)
    resampled = [defined(statistic([values[i] for i in drawn])) for drawn in redraw(count, seed, resamples)]
    return Interval(estimate, *percentiles(resampled, count, level), count, count, level)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a rate would be if all `unknown` of the `n` games had gone one way (`low`) or the other (`high`).

    The estimate is that of the games which gave an answer, None without any.
    """

    estimate: float | None
    low: float
    high: float
    n: int
    unknown: int


def bounds(successes: int, failures: int, unknown: int) -> Bounds:
    """The lowest and highest rate that games without an answer could have made of it."""
    successes, failures = checked_whole(successes, "successes"), checked_whole(failures, "failures")
    unknown = checked_whole(unknown, "unknown")
    known = successes + failures
    n = known + unknown
    if n == 0:
        return Bounds(None, 0.0, 1.0, 0, 0)
    return Bounds(successes / known if known else None, successes / n, (successes + unknown) / n, n, unknown)


def _wilson(estimate: float, n: float, quantile: float) -> tuple[float, float]:
    return _score_limits(estimate, estimate * (1.0 - estimate), n, quantile, (0.0, 1.0))


def _score_limits(
    estimate: float, variance: float, n: float, quantile: float, within: tuple[float, float]
) -> tuple[float, float]:
    """The means that `n` values with this mean and variance do not reject; for values of 0 and 1, Wilson's limits.

    A mean x above the estimate, of values up to d above it, is tried as a mixture of what was observed with a share
    x / d of values at the limit: its variance is (1 - x / d) * (variance + x * d), and x * x = quantile² / n times that
    is the equation solved here.
    """
    # Written so that an infinite quantile reaches the limits.
    weight = 1.0 / (1.0 + n / (quantile * quantile)) if quantile else 0.0

    def reach(room: float) -> float:
        if room <= 0.0:
            return 0.0
        pull = weight * (room - variance / room)
        return min(room, (pull + math.sqrt(pull * pull + 4.0 * weight * variance)) / 2.0)

    least, most = within
    return max(least, estimate - reach(estimate - least)), min(most, estimate + reach(most - estimate))


def _between(sums: Sequence[float], sizes: Sequence[int], estimate: float) -> tuple[float, float]:
    """The variance of sum(sums) / sum(sizes) from two or more clusters, and its degrees of freedom.

    A cluster pulls the estimate towards itself by its share of all observations; dividing by what is left undoes that,
    and for clusters of equal size is the usual factor clusters / (clusters - 1).
    """
    n = sum(sizes)
    apart = [(total - estimate * size) / n for total, size in zip(sums, sizes)]
    variance = math.fsum(one * one * n / (n - size) for one, size in zip(apart, sizes))
    squares = sum(size * size for size in sizes)
    return variance, (n * n - squares) / squares


def redraw(count: int, seed: int, resamples: int) -> Iterator[list[int]]:
    checked_whole(resamples, "resamples", at_least=1)
    rng = random.Random(derive_seed(seed, "bootstrap"))
    return (rng.choices(range(count), k=count) for _ in range(resamples))


def percentiles(values: Sequence[float | None], count: int, level: float) -> tuple[float, float]:
    reach = math.sqrt(count / (count - 1.0)) * t_quantile(0.5 + level / 2.0, count - 1)
    out = max(0, int(normal_cdf(-reach) * (len(values) + 1)) - 1)
    lows = sorted(-math.inf if value is None else value for value in values)
    highs = sorted(math.inf if value is None else value for value in values)
    return lows[out], highs[-1 - out]
