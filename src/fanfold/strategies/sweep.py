"""Strategies that learn nothing from results: a given list of candidates, and random search."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

from fanfold.encoding import encode
from fanfold.errors import ConfigError
from fanfold.snapshots import check_untouched, packed, rng_state, set_rng, unpacked, untouched
from fanfold.space import Space
from fanfold.strategy import Strategy
from fanfold.types import C


class Sweep(Strategy[C]):
    """Asks each of the given candidates once, in their order, and then ends.

    `candidates` is anything that can be iterated repeatedly in the same order (a list, a tuple, a range), or a function
    without arguments that returns a fresh iterator. The iterator is read only as far as candidates are asked for. Of a
    data frame, each row is a candidate, as a dict.
    """

    window = 256
    replays_quickly = True

    def __init__(self, candidates: Iterable[C] | Callable[[], Iterable[C]]) -> None:
        if hasattr(candidates, "columns"):  # a data frame: iterated over, it gives the names of its columns
            from fanfold.tables import records

            candidates = list(records(candidates))
        _check_candidates(candidates)
        self._candidates = candidates
        self._rest: Iterator[C] | None = None
        self._asked = 0
        #: A second iterator, how far it is, and the digest of what it gave: a checkpoint must be of the same list.
        self._known: tuple[Iterator[C], int, Any] | None = None
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
        self._known = None

    def _each(self) -> Iterator[C]:
        return iter(self._candidates() if callable(self._candidates) else self._candidates)

    def ask(self, n: int) -> list[C]:
        assert self._rest is not None, "begin() comes before ask()"
        candidates = list(itertools.islice(self._rest, n))
        self._asked += len(candidates)
        if n > 0 and not self._asked:
            raise ConfigError(f"Sweep: {self._candidates!r} gave no candidates; it must give at least one")
        return candidates

    def known_size(self) -> int | None:
        if isinstance(self._candidates, Sized):
            return len(self._candidates)
        made: Any = self._candidates  # by a function, which may take long or never end, unless it is that of `grid`
        space = getattr(made.func, "__self__", None) if isinstance(made, functools.partial) else None
        if isinstance(space, Space):
            return math.prod(len(dimension.grid(*made.args)) for dimension in space.dimensions.values())
        return None

    def save(self) -> bytes:
        return packed(asked=self._asked, digest=self._digest())

    def load(self, state: bytes) -> bool:
        saved = unpacked(state)
        self._asked = saved["asked"]
        if self._digest() != saved["digest"]:
            return False
        self._rest = itertools.islice(self._each(), self._asked, None)
        return True

    def _digest(self) -> bytes:
        """The digest of the candidates asked so far, whose list may be longer than at the last checkpoint."""
        each, count, known = self._known or (self._each(), 0, hashlib.blake2b(digest_size=16))
        while count < self._asked and (block := list(itertools.islice(each, min(1000, self._asked - count)))):
            known.update(encode(block, "candidates of Sweep")[1:-1].encode() + b",")
            count += len(block)
        self._known = each, count, known
        return bytes(known.digest())


class Random(Strategy[Any]):
    """Asks for candidates drawn at random, without end: from a `Space`, or by a function `sample(rng) -> candidate`."""

    window = 256
    replays_quickly = True

    def __init__(self, sample: Space | Callable[[random.Random], Any]) -> None:
        if not isinstance(sample, Space) and not callable(sample):
            raise ConfigError(f"Random needs a Space or a function sample(rng) -> candidate, not {sample!r}")
        self._sample = sample.sample if isinstance(sample, Space) else sample

    def ask(self, n: int) -> list[Any]:
        return [self._sample(self.rng) for _ in range(n)]

    def save(self) -> bytes:
        return packed(rng=rng_state(self.rng), given=untouched(sample=self._sample))

    def load(self, state: bytes) -> None:
        saved = unpacked(state)
        check_untouched(saved["given"], sample=self._sample)
        set_rng(self.rng, saved["rng"])


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
    if isinstance(candidates, Mapping):
        raise ConfigError(
            f"Sweep needs a list of candidates, not one {type(candidates).__name__}: write [candidate, ...], or "
            "Sweep.grid(Space(name=Choice([...]), ...), steps) for all combinations"
        )
    if isinstance(candidates, str | bytes) or not isinstance(candidates, Iterable):
        raise ConfigError(
            f"Sweep needs a list of candidates, or a function that returns an iterator, not {candidates!r}"
        )
    if isinstance(candidates, Sized) and not len(candidates):
        raise ConfigError("Sweep: there are no candidates; give at least one")
    first = list(itertools.islice(candidates, 1000))
    if not any({*map(type, first)} == {kind} for kind in (str, int, float)):
        _check_told_apart(first)


def _check_told_apart(candidates: Iterable[Any]) -> None:
    """Refuse candidates that differ, but not in the ledger, which does not know their classes."""
    known: dict[str, Any] = {}
    for candidate in candidates:
        try:
            twin = known.setdefault(encode(candidate), candidate)
            different = bool(twin != candidate)
        except Exception:  # the former is said when it is asked, and arrays have no such answer
            continue
        if different:
            raise ConfigError(
                f"Sweep: {twin!r} and {candidate!r} are the same in the ledger, so one would get the scores of the "
                "other: add what tells them apart, such as a field with the name of the class"
            )
