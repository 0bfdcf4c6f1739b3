"""Checks of what the statistics accept; an error names the argument."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Sequence

from fanfold.errors import ConfigError


def checked_share(value: float, what: str) -> float:
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{what}={value!r}: give a number between 0 and 1, such as 0.95")
    return value


def check_degrees(df: float) -> None:
    if not df > 0.0:
        raise ConfigError(f"df={df!r}: give degrees of freedom above 0")


def checked_whole(value: int, what: str, *, at_least: int | None = 0) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{what}={value!r}: give a whole number") from None
    if at_least is not None and number < at_least:
        raise ConfigError(f"{what}={value!r}: give a whole number, at least {at_least}")
    return number


def checked_pair(key: Hashable, pair: tuple[int, int]) -> tuple[int, int]:
    try:
        successes, n = pair
    except (TypeError, ValueError):
        raise ConfigError(f"cluster {key!r} holds {pair!r}: give (successes, n)") from None
    return successes, n


def checked_counts(successes: int, n: int, where: str) -> tuple[int, int]:
    successes, n = checked_whole(successes, f"{where}: successes"), checked_whole(n, f"{where}: n")
    if successes > n:
        raise ConfigError(f"{where}: {successes} successes of {n}: give (successes, n) with successes <= n")
    return successes, n


def checked_finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise ConfigError(f"{what} is {value!r}: give finite numbers, and count what has no value apart (see bounds)")
    return value


def defined(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def checked_pvalues(pvalues: Sequence[float]) -> Sequence[float]:
    for number, p in enumerate(pvalues):
        if not 0.0 <= p <= 1.0:
            raise ConfigError(f"p-value number {number} is {p!r}: give probabilities, from 0 to 1")
    return pvalues
