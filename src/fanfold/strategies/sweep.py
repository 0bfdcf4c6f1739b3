"""Strategies that learn nothing from results: a given list of candidates, and random search."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from fanfold.errors import ConfigError
from fanfold.space import Space
from fanfold.strategy import Strategy
from fanfold.types import C


class Sweep(Strategy[C]):
    """Asks each of the given candidates once, in their order, and then ends.

    `candidates` is anything that can be iterated repeatedly in the same order (a list, a tuple, a range), or a function
    without arguments that returns a fresh iterator. The iterator is read only as far as candidates are asked for.
    """

    window = 256

    def __init__(self, candidates: Iterable[C] | Callable[[], Iterable[C]]) -> None:
        _check_candidates(candidates)
        self._candidates = candidates
        self._rest: Iterator[C] | None = None
        self._asked = 0
        if type(self) is Sweep:
            # Every ask is compared with the record, so a longer list of the same beginning may continue a run.
            self.fingerprint = "Sweep"

    @classmethod
    def grid(cls, space: Space, steps: int) -> Sweep[dict[str, Any]]:
        """Every point of a grid with up to `steps` values for each number and all options of each choice."""
        if not isinstance(space, Space):
            raise ConfigError(f"Sweep.grid needs a Space, not {space!r}")
        space.grid(steps)  # so that a bad number of steps is an error here, not in the middle of a run
        return Sweep(functools.partial(space.grid, steps))

    @functools.cached_property
    def candidate_type(self) -> type[Any] | None:
        """The dataclass that candidates are of, judged by the first ones; None for any other candidates."""
        kinds = set(map(type, itertools.islice(self._each(), 1 if callable(self._candidates) else 1000)))
        kind = kinds.pop() if len(kinds) == 1 else None
        return kind if dataclasses.is_dataclass(kind) else None

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._rest = self._each()
        self._asked = 0

    def _each(self) -> Iterator[C]:
        return iter(self._candidates() if callable(self._candidates) else self._candidates)

    def ask(self, n: int) -> list[C]:
        assert self._rest is not None, "begin() comes before ask()"
        candidates = list(itertools.islice(self._rest, n))
        self._asked += len(candidates)
        if n > 0 and not self._asked:
            raise ConfigError(f"Sweep: {self._candidates!r} gave no candidates; it must give at least one")
        return candidates


class Random(Strategy[Any]):
    """Asks for candidates drawn at random, without end: from a `Space`, or by a function `sample(rng) -> candidate`."""

    window = 256

    def __init__(self, sample: Space | Callable[[random.Random], Any]) -> None:
        if not isinstance(sample, Space) and not callable(sample):
            raise ConfigError(f"Random needs a Space or a function sample(rng) -> candidate, not {sample!r}")
        self._sample = sample.sample if isinstance(sample, Space) else sample

    def ask(self, n: int) -> list[Any]:
        return [self._sample(self.rng) for _ in range(n)]


def _check_candidates(candidates: Any) -> None:
    if callable(candidates):
        return
    if isinstance(candidates, Iterator):
        raise ConfigError(
            f"Sweep: {candidates!r} can be gone through only once, and a study needs it again to resume; "
            f"pass a list, or a function that returns a fresh iterator"
        )
    if isinstance(candidates, set | frozenset):
        raise ConfigError("Sweep: a set has no fixed order, so a run could not be resumed; pass a sorted list")
    if isinstance(candidates, str | bytes) or not isinstance(candidates, Iterable):
        raise ConfigError(
            f"Sweep needs a list of candidates, or a function that returns an iterator, not {candidates!r}"
        )
    if isinstance(candidates, Sized) and not len(candidates):
        raise ConfigError("Sweep: there are no candidates; give at least one")
