"""Which rows are learnt from, which choose networks, and which are looked at once at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError

Array = NDArray[Any]
#: Groups of about equal numbers that are split in proportion.
_GROUPS = 10


def size_of(part: str, value: float | int, n: int, where: str) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and value >= 0:
        return int(value)
    if isinstance(value, float | np.floating) and 0 <= value < 1:
        return max(1, round(float(value) * n)) if value else 0
    raise ConfigError(f"{where}: {part}={value!r} is neither a share from 0 to below 1 nor a number of rows")


def split(labels: NDArray[np.int64], counts: Sequence[int], seed: int, where: str = "data") -> list[Array]:
    """Indices of what is left, and of parts of the given sizes; in all of them each class has about its share."""
    sizes = np.bincount(labels)
    room = np.maximum(sizes - 1, 0)  # something of each class is left to learn from
    if sum(counts) > room.sum():
        raise ConfigError(
            f"{where}: {len(labels)} rows are too few to set {sum(counts)} aside and learn from the rest, which has "
            f"one of each class: lower validation= or test="
        )
    rng = np.random.default_rng(derive_seed(seed, "split"))
    lots = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(sizes))]
    used = np.zeros_like(sizes)
    parts = []
    for count in counts:
        share = _shares(sizes, room - used, count)
        some = [lot[start : start + size] for lot, start, size in zip(lots, used, share)]
        parts.append(np.sort(np.concatenate(some)))
        used += share
    rest = np.sort(np.concatenate([lot[start:] for lot, start in zip(lots, used)]))
    return [rest, *parts]


def _shares(sizes: Array, room: Array, count: int) -> Array:
    """`count` divided in proportion to `sizes`, within `room`; what rounding leaves goes where most is owed."""
    owed = count * sizes / max(1, sizes.sum())
    share: Array = np.minimum(np.floor(owed).astype(np.int64), room)
    while share.sum() < count:
        share[np.argmax(np.where(share < room, owed - share, -np.inf))] += 1
    return share


def strata(labels: Array, target: str) -> NDArray[np.int64]:
    """What is split in proportion: classes, or groups of about equal numbers, or of equally many labels."""
    if target == "classes":
        return labels
    if target == "labels":
        return np.unique(labels.sum(axis=1), return_inverse=True)[1].astype(np.int64)
    groups = max(1, min(_GROUPS, len(labels) // _GROUPS))
    places = np.argsort(np.argsort(labels[:, 0], kind="stable"), kind="stable")
    return (places * groups // len(labels)).astype(np.int64)
