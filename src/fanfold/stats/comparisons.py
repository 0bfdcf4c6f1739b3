"""Paired tests, corrections for many tests, and rank correlation."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.stats.checks import checked_finite, checked_pvalues, checked_whole
from fanfold.stats.distributions import binomial_tail
from fanfold.stats.intervals import Interval, clustered_mean

C = TypeVar("C", bound=Hashable)  # what names a cluster

#: How many partial sums an exact permutation test may visit: all of up to 17 clusters, or hundreds of equal ones.
_EXACT_STEPS = 2**18


@dataclass(frozen=True, slots=True)
class Paired:
    """The mean difference (first - second) of things tried on the same cases, and the p-value of there being none."""

    difference: Interval
    p: float


def paired(
    pairs: Mapping[C, Sequence[tuple[float, float]]],
    level: float = 0.95,
    *,
    seed: int = 0,
    within: tuple[float, float] | None = None,
) -> Paired:
    """Compare two things on the same cases: `pairs` holds (first, second) of each case, grouped by cluster.

    The p-value is of a permutation that swaps first and second in whole clusters.  `within` are limits of the values,
    if they have any (see `clustered_mean`).
    """
    differences = {
        key: [
            checked_finite(first, f"cluster {key!r}") - checked_finite(second, f"cluster {key!r}")
            for first, second in group
        ]
        for key, group in pairs.items()
    }
    p = sign_flip([math.fsum(group) for group in differences.values()], seed=seed)
    reach = None if within is None else (within[0] - within[1], within[1] - within[0])
    return Paired(clustered_mean(differences, level, within=reach), p)


def mcnemar(b: int, c: int) -> float:
    """The exact two-sided p-value when, of the pairs that differ, `b` favour one side and `c` the other."""
    b, c = checked_whole(b, "b"), checked_whole(c, "c")
    return min(1.0, 2.0 * binomial_tail(max(b, c), b + c, 0.5))


def sign_flip(differences: Iterable[float], *, seed: int = 0, resamples: int = 9999) -> float:
    """The two-sided p-value of a sum of differences, one per cluster, had each been as likely with the other sign.

    Exact for up to 16 clusters, and beyond as long as few sums are possible (games won and lost); otherwise by
    `resamples` seeded draws, where what was observed counts as one of them, so that p is never 0.
    """
    values = [checked_finite(value, "a difference") for value in differences]
    # On a grid of whole numbers equal sums are equal; a unit of slack for each rounding keeps ties as ties.
    exponent = math.frexp(max(map(abs, values), default=0.0))[1]
    signed = [round(math.ldexp(value, 40 - exponent)) for value in values]
    steps = sorted(abs(step) for step in signed if step)
    observed = abs(sum(signed)) - len(signed)
    counts = _all_sums(steps)
    if counts is not None:
        return sum(ways for total, ways in counts.items() if abs(total) >= observed) / sum(counts.values())
    checked_whole(resamples, "resamples", at_least=1)
    tables = [_byte_table(steps[start : start + 8]) for start in range(0, len(steps), 8)]
    rng = random.Random(derive_seed(seed, "sign-flip"))
    draws = (sum(map(operator.getitem, tables, rng.randbytes(len(tables)))) for _ in range(resamples))
    return (1 + sum(abs(total) >= observed for total in draws)) / (1 + resamples)


def _all_sums(steps: Sequence[int]) -> dict[int, int] | None:
    """How many of all choices of signs give each sum; None when that is too much to go through."""
    counts, visited = {0: 1}, 0
    for step in steps:
        visited += len(counts)
        if visited > _EXACT_STEPS:
            return None
        following: dict[int, int] = {}
        for total, ways in counts.items():
            for reached in (total + step, total - step):
                following[reached] = following.get(reached, 0) + ways
        counts = following
    return counts


def _byte_table(steps: Sequence[int]) -> list[int]:
    """The sum of up to eight steps for each of the 256 choices of signs, so that a random byte draws eight at once."""
    sums = [0]
    for step in steps:
        sums = [total + step for total in sums] + [total - step for total in sums]
    return sums * (256 // len(sums))


def holm(pvalues: Sequence[float]) -> tuple[float, ...]:
    """p-values, in their order, adjusted so that the chance of any false finding stays below the level."""
    adjusted, highest = list(checked_pvalues(pvalues)), 0.0
    for place, index in enumerate(sorted(range(len(pvalues)), key=pvalues.__getitem__)):
        highest = max(highest, min(1.0, (len(pvalues) - place) * pvalues[index]))
        adjusted[index] = highest
    return tuple(adjusted)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """The rank correlation, ties sharing their average rank; None where one side does not vary."""
    if len(xs) != len(ys):
        raise ConfigError(f"spearman: {len(xs)} values against {len(ys)}: give one y for each x")
    a, b = _ranks(xs), _ranks(ys)
    a_squares, b_squares = sum(i * i for i in a), sum(j * j for j in b)
    if a_squares == 0 or b_squares == 0:
        return None
    return max(-1.0, min(1.0, sum(i * j for i, j in zip(a, b)) / math.sqrt(a_squares * b_squares)))


def _ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, less the average: whole numbers that sum to zero."""
    order = sorted(range(len(values)), key=lambda i: checked_finite(values[i], "a value to be ranked"))
    ranks, start = [0] * len(values), 0
    while start < len(order):
        end = start + 1
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for i in order[start:end]:
            ranks[i] = start + end - len(order)
        start = end
    return ranks
