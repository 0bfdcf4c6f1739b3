"""Quantiles and tails of the distributions that intervals and tests rest on."""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

from fanfold.errors import ConfigError
from fanfold.stats.checks import check_degrees, checked_share, checked_whole

_NORMAL = NormalDist()


def normal_quantile(p: float) -> float:
    """The value that a standard normal variable stays below with probability `p`."""
    return _NORMAL.inv_cdf(checked_share(p, "p"))


def t_cdf(t: float, df: float) -> float:
    """The probability that Student's t with `df` degrees of freedom (above 0, also infinity) is at most `t`."""
    check_degrees(df)
    if math.isnan(t):
        raise ConfigError("t_cdf: t is not a number")
    return _t_tail(-t, df) if t < 0 else 1.0 - _t_tail(t, df)


def t_quantile(p: float, df: float) -> float:
    """The value that Student's t with `df` degrees of freedom stays below with probability `p`."""
    checked_share(p, "p")
    check_degrees(df)
    size = _t_upper(min(p, 1.0 - p), df)
    return -size if p < 0.5 else size


def binomial_tail(k: int, n: int, p: float) -> float:
    """The probability of at least `k` successes in `n` trials, each with probability `p`: no approximation."""
    k, n = checked_whole(k, "k", at_least=None), checked_whole(n, "n")
    if not 0.0 <= p <= 1.0:
        raise ConfigError(f"p={p!r}: give a probability, from 0 to 1")
    if k <= 0 or k > n or p in (0.0, 1.0):
        return 1.0 if k <= 0 else 0.0 if k > n else float(p)
    odds = p / (1.0 - p)
    mode = min(n, int((n + 1) * p))
    # Relative to the most likely count every other is at most 1, so that nothing overflows; what underflows is nothing.
    above, below = [1.0], [1.0]
    while above[-1] and (i := mode + len(above) - 1) < n:
        above.append(above[-1] * ((n - i) / (i + 1) * odds))
    while below[-1] and (i := mode - len(below) + 1) > 0:
        below.append(below[-1] * (i / ((n - i + 1) * odds)))
    masses = below[:0:-1] + above
    return math.fsum(masses[max(0, k - (mode - len(below) + 1)) :]) / math.fsum(masses)


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))  # unlike 1 + erf, right to the last digit far out on the left


@functools.lru_cache(maxsize=4096)
def _t_upper(tail: float, df: float) -> float:
    """The value that is exceeded with probability `tail` <= 1/2, by bisection down to neighbouring floats."""
    low, high = 0.0, 1.0
    if df == math.inf or tail == 0.5:
        return abs(_NORMAL.inv_cdf(tail))
    while _t_tail(high, df) > tail:
        low, high = high, 2.0 * high
    while low < (middle := low + (high - low) / 2.0) < high:
        low, high = (middle, high) if _t_tail(middle, df) > tail else (low, middle)
    return high


def _t_tail(t: float, df: float) -> float:
    """The probability that Student's t exceeds `t` >= 0."""
    if df > 1e7:  # so nearly normal that one correction is exact, while the beta function has begun to cancel
        return normal_cdf(-t * (1.0 - 0.25 / df) / math.sqrt(1.0 + 0.5 * t * t / df)) if t < 1e9 else 0.0
    u = t / math.sqrt(df)
    if u * u == 0.0:
        return 0.5
    if math.isinf(u):
        return 0.0
    # x = df / (df + t²) and its complement, each without the loss of a subtraction or an overflow.
    log_x, rest = (-math.log1p(u * u), u * u / (1.0 + u * u)) if u < 1e100 else (-2.0 * math.log(u), 1.0)
    a = df / 2.0
    front = math.exp(a * log_x + 0.5 * math.log(rest) - _log_beta_half(a))
    if t * t < 3.0:
        return 0.5 - 0.5 * front * _beta_fraction(rest, 0.5, a) / 0.5
    return 0.5 * front * _beta_fraction(math.exp(log_x), a, 0.5) / a


def _log_beta_half(a: float) -> float:
    """log B(a, 1/2): for large `a` by the asymptotic ratio, because lgamma(a) - lgamma(a + 1/2) would cancel."""
    if a < 100.0:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    return 0.5 * math.log(math.pi / a) + (1.0 / 8.0 - (1.0 / 192.0 - 1.0 / (640.0 * a * a)) / (a * a)) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, evaluated from the front (Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / ((1.0 - (a + b) * x / (a + 1.0)) or tiny)
    value = d
    for m in range(1, 100_000):
        before = value
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c = (1.0 + step / c) or tiny
            d = 1.0 / ((1.0 + step * d) or tiny)
            value *= c * d
        if abs(value - before) <= 1e-16 * abs(value):
            break
    return value
