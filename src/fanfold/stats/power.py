"""What a comparison can find before it is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fanfold.errors import ConfigError
from fanfold.stats.checks import checked_share, checked_whole
from fanfold.stats.distributions import normal_cdf, t_quantile


@dataclass(frozen=True, slots=True)
class PowerRow:
    """The smallest difference from a rate that `n` games on each side would show, None where none would."""

    n: int
    per_cluster: int
    clusters: int
    icc: float
    deff: float
    difference: float | None


def power_of_rate_difference(
    p1: float, p2: float, n: int, deff: float = 1.0, *, level: float = 0.95, df: float = math.inf
) -> float:
    """The chance that a two-sided test tells the rates apart, with `n` unpaired games on each side.

    `deff` is what clusters make of n (1 + (games per cluster - 1) * icc); `df` the degrees of freedom of the test,
    2 * (clusters - 1) where clusters are few.  A normal approximation; pairing on the same cases needs fewer games.
    """
    for name, p in (("p1", p1), ("p2", p2)):
        if not 0.0 <= p <= 1.0:
            raise ConfigError(f"{name}={p!r}: give a rate, from 0 to 1")
    if not 1.0 <= deff < math.inf:
        raise ConfigError(f"deff={deff!r}: give a design effect, 1 or more")
    size = checked_whole(n, "n", at_least=1) / deff
    pooled = (p1 + p2) / 2.0
    needed = t_quantile(0.5 + checked_share(level, "level") / 2.0, df) * math.sqrt(2.0 * pooled * (1.0 - pooled) / size)
    spread = math.sqrt((p1 * (1.0 - p1) + p2 * (1.0 - p2)) / size)
    if spread == 0.0:
        return 1.0 if abs(p1 - p2) > needed else 0.0
    return normal_cdf((abs(p1 - p2) - needed) / spread) + normal_cdf((-abs(p1 - p2) - needed) / spread)


def detectable_difference(
    p: float, n: int, deff: float = 1.0, *, power: float = 0.8, level: float = 0.95, df: float = math.inf
) -> float | None:
    """The smallest difference from the rate `p`, towards 1/2 and beyond, that `n` games on each side would show."""
    if not 0.5 <= power < 1.0:
        raise ConfigError(f"power={power!r}: give a probability from 0.5 to below 1, such as 0.8")
    way = 1.0 if p <= 0.5 else -1.0

    def enough(difference: float) -> bool:
        other = min(1.0, max(0.0, p + way * difference))
        return power_of_rate_difference(p, other, n, deff, level=level, df=df) >= power

    low, high = 0.0, 1.0 - p if way > 0 else p
    if not enough(high):
        return None
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def power_table(
    p: float,
    games: Sequence[int],
    per_cluster: Sequence[int] = (1,),
    icc: Sequence[float] = (0.0,),
    *,
    power: float = 0.8,
    level: float = 0.95,
) -> tuple[PowerRow, ...]:
    """What a run could show before it is paid for: a row for every number of games, games per cluster, and icc.

    `p` is the rate expected; `icc` how alike games of one cluster are (0 not at all, 1 always the same).
    """
    rows = []
    for n in games:
        for size in per_cluster:
            m = min(checked_whole(size, "per_cluster", at_least=1), checked_whole(n, "games", at_least=1))
            clusters = -(-n // m)
            for alike in icc:
                if not 0.0 <= alike <= 1.0:
                    raise ConfigError(f"icc={alike!r}: give a correlation within clusters, from 0 to 1")
                deff = 1.0 + (m - 1) * alike
                df = math.inf if m == 1 else 2.0 * (clusters - 1)
                difference = detectable_difference(p, n, deff, power=power, level=level, df=df) if df else None
                rows.append(PowerRow(n, m, clusters, alike, deff, difference))
    return tuple(rows)
