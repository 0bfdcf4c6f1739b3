"""What a strategy is: the half of an optimisation that proposes candidates and learns from their results."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic

import msgspec

from fanfold.types import C, Result


class Strategy(ABC, Generic[C]):
    """Proposes candidates and is told their results.  Pure: no I/O, no clock, no threads, no global randomness.

    The contract, checked by `fanfold.testing.StrategyConformance`:

    - `ask(a)` then `ask(b)` gives the same candidates as `ask(a + b)`;
    - everything is a function of the seed, the asks and the tells;
    - `ask` may give fewer than asked for; an empty answer while nothing is in flight ends the study;
    - a result whose `score` is None failed, and is worse than every score;
    - higher scores are better: of a study that minimises, it is told them times -1.

    A study copies the strategy it was given before each run, so one instance can serve many runs.
    """

    #: How many trials may be open at once unless the study says otherwise: an ask knows all but so many results.
    window: int = 64
    #: Set by `begin`; the strategy's only source of randomness.
    rng: random.Random

    def begin(self, seed: int) -> None:
        """Called once, before the first ask, with the seed of this run."""
        self.rng = random.Random(seed)

    @abstractmethod
    def ask(self, n: int) -> Sequence[C]:
        """Up to `n` candidates to evaluate next, as a list or anything else in a fixed order."""

    def tell(self, result: Result[C]) -> None:
        """Learn from one finished trial."""

    def origin(self, candidate: C) -> Any:
        """Where a candidate that was just asked comes from (parents, operator), as a JSON-like value stored with its
        trial.
        """
        return None

    def known_size(self) -> int | None:
        """How many candidates it asks for in all, where that is known before; estimates count with it."""
        return None

    def needs(self) -> Iterable[int] | None:
        """The numbers of the told trials whose data it may still use, or None for all of them.

        Once left out, a trial stays out.  A study with `keep` prunes the blobs of the others.
        """
        return None


def revived(strategy: Strategy[Any], value: Any) -> Any:
    """A recorded candidate as the strategy knows it: what its `revive` makes of it, or of its `candidate_type`."""
    if (revive := getattr(strategy, "revive", None)) is not None:
        return revive(value)
    wanted = getattr(strategy, "candidate_type", None)
    return value if wanted is None else msgspec.convert(value, wanted)
