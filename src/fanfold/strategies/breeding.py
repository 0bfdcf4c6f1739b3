"""How candidates come about in a genetic search: sampled, or bred from parents that were selected."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from fanfold.encoding import apart
from fanfold.errors import ConfigError, nearest
from fanfold.space import Space
from fanfold.types import C, Result

Sample: TypeAlias = Callable[[random.Random], Any]
Mutate: TypeAlias = Callable[[Any, random.Random, float], Any]
Crossover: TypeAlias = Callable[[Any, Any, random.Random], Any]
#: What makes a member a better parent, given all of them: one number each, higher is better.
Merit: TypeAlias = Callable[[Sequence[Result[Any]]], Sequence[float]]
SelectionKind: TypeAlias = Literal["tournament", "roulette", "rank", "sus", "elitist"]
KINDS = ("tournament", "roulette", "rank", "sus", "elitist")

B = TypeVar("B", covariant=False)


@dataclass(frozen=True, slots=True)
class Bred(Generic[C]):
    """A new candidate, the results of its parents, and in a word or two how it was made of them."""

    candidate: C
    parents: tuple[Result[C], ...] = ()
    by: str = ""

    @property
    def origin(self) -> dict[str, Any]:
        """What is kept with the trial: the numbers of the parents' trials, and how."""
        return {"parents": [parent.number for parent in self.parents], "by": self.by}


class Pick(Protocol[B]):
    """Selects a parent; with `but`, one that is not that one, or None where there is no other."""

    def __call__(self, but: Result[B] | None = None) -> Result[B] | None: ...


class Breeder(Protocol[B]):
    """Makes candidates, and may learn which ways of making them pay.  Pure, like the strategy it serves."""

    def sample(self, rng: random.Random) -> Bred[B]:
        """A candidate of no parents."""
        ...

    def child(self, pick: Pick[B], rng: random.Random, rate: float) -> Bred[B]:
        """A candidate made of selected parents (there is at least one), changed the more the higher the rate."""
        ...

    def again(self, bred: Bred[B], rng: random.Random, rate: float) -> Bred[B]:
        """The same candidate exists already: change it further."""
        ...

    def learn(self, result: Result[B], better: bool | None) -> None:
        """A candidate was told, and whether it beat its better parent (None: it had none)."""
        ...


@dataclass(frozen=True, slots=True)
class Operators:
    """A breeder of three functions: crossover of two parents (or a copy of one), then mutation."""

    sampler: Sample
    mutate: Mutate
    crossover: Crossover | None
    crossover_rate: float

    def sample(self, rng: random.Random) -> Bred[Any]:
        return Bred(_made("sample", self.sampler(rng)), by="sample")

    def child(self, pick: Pick[Any], rng: random.Random, rate: float) -> Bred[Any]:
        mother = pick()
        assert mother is not None
        if self.crossover is not None and rng.random() < self.crossover_rate:
            father = pick(but=mother)
            if father is not None:
                mixed = _made("crossover", self.crossover(apart(mother.candidate), apart(father.candidate), rng))
                return Bred(self._mutated(mixed, rng, rate), (mother, father), "crossover")
        return Bred(self._mutated(mother.candidate, rng, rate), (mother,), "mutation")

    def again(self, bred: Bred[Any], rng: random.Random, rate: float) -> Bred[Any]:
        return Bred(self._mutated(bred.candidate, rng, rate), bred.parents, bred.by)

    def _mutated(self, candidate: Any, rng: random.Random, rate: float) -> Any:
        return _made("mutate", self.mutate(apart(candidate), rng, rate))

    def learn(self, result: Result[Any], better: bool | None) -> None:
        """Functions do not learn."""


def _made(how: str, candidate: Any) -> Any:
    if candidate is None:
        raise ConfigError(f"Genetic: {how} returned None: it must return a candidate, also where it changes one")
    return candidate


def operators(
    space: Space | None,
    sample: Sample | None,
    mutate: Mutate | None,
    crossover: Crossover | None,
    crossover_rate: float,
) -> Operators:
    """The operators of a space, or those given as functions."""
    if space is not None:
        if not isinstance(space, Space):
            raise ConfigError(f"Genetic needs a Space, or the functions sample=, mutate= and crossover=, not {space!r}")
        if sample is not None or mutate is not None or crossover is not None:
            raise ConfigError("Genetic takes a Space or the functions sample=, mutate= and crossover=, not both")
        return Operators(space.sample, space.mutate, space.crossover, crossover_rate)
    for name, function in (("sample", sample), ("mutate", mutate), ("crossover", crossover)):
        if function is None and name != "crossover":
            raise ConfigError(f"Genetic without a Space needs the function {name}=")
        if function is not None and not callable(function):
            raise ConfigError(f"Genetic: {name} must be a function, not {function!r}")
    assert sample is not None and mutate is not None
    return Operators(sample, mutate, crossover, crossover_rate)


def scores(results: Sequence[Result[Any]]) -> list[float]:
    """The merit that is the score itself; a failed result has the least."""
    return [float("-inf") if result.score is None else result.score for result in results]


class Selection:
    """Draws parents by merit.

    `tournament`: the best of `size` drawn at random.  `roulette`: in proportion to how far a merit is above the least.
    `rank`: in proportion to the rank, the best `pressure` times as likely as the average.  `sus`: the same wheel as
    `rank`, with all parents of a generation drawn in one spin of evenly spaced hands, so that no luck favours anyone.
    `elitist`: any of the best quarter.
    """

    def __init__(self, kind: str, size: int, pressure: float) -> None:
        if kind not in KINDS:
            raise ConfigError(f"Genetic: there is no selection {kind!r}{nearest(kind, KINDS)}")
        if not 1.0 < pressure <= 2.0:
            raise ConfigError(f"Genetic: pressure must be above 1 and at most 2, not {pressure!r}")
        self._kind, self._size, self._pressure = kind, size, pressure
        self._members: Sequence[Result[Any]] = ()
        self._merits: dict[int, float] = {}
        self.drawn: deque[Result[Any]] = deque()

    def enter(self, members: Sequence[Result[Any]], merits: Sequence[float]) -> None:
        """From now on these may be parents."""
        self._members = members
        self._merits = {id(member): merit for member, merit in zip(members, merits)}
        self.drawn.clear()

    def pick(self, rng: random.Random, but: Result[Any] | None = None) -> Result[Any] | None:
        """One of the members, or None where there is no other than `but`."""
        members = self._members if but is None else [member for member in self._members if member is not but]
        if not members:
            return None
        if self._kind == "tournament":
            return max(rng.sample(members, min(self._size, len(members))), key=self._merit)
        if self._kind == "sus":
            return self._from_wheel(rng, but)
        ranked = sorted(members, key=self._merit)
        if self._kind == "elitist":
            return rng.choice(ranked[-max(1, len(ranked) // 4) :])
        weights = self._ranks(len(ranked)) if self._kind == "rank" else self._heights(ranked)
        return rng.choices(ranked, weights)[0]

    def _merit(self, member: Result[Any]) -> float:
        return self._merits[id(member)]

    def _heights(self, ranked: Sequence[Result[Any]]) -> list[float]:
        merits = [self._merit(member) for member in ranked]
        least, most = merits[0], merits[-1]
        # The least keeps a small chance; where all are alike, so are their chances.
        floor = (most - least) / (10 * len(merits)) or 1.0
        return [merit - least + floor for merit in merits]

    def _ranks(self, n: int) -> list[float]:
        if n == 1:
            return [1.0]
        spread = self._pressure - 1.0
        return [(1.0 - spread) + 2.0 * spread * at / (n - 1) for at in range(n)]

    def _from_wheel(self, rng: random.Random, but: Result[Any] | None) -> Result[Any]:
        for _ in range(2):
            for at, member in enumerate(self.drawn):
                if member is not but:
                    del self.drawn[at]
                    return member
            self._spin(rng)
        return next(member for member in self._members if member is not but)

    def _spin(self, rng: random.Random) -> None:
        ranked = sorted(self._members, key=self._merit)
        weights = self._ranks(len(ranked))
        step = sum(weights) / len(ranked)
        hand, reached, drawn = rng.random() * step, 0.0, []
        for member, weight in zip(ranked, weights):
            reached += weight
            while hand < reached:
                drawn.append(member)
                hand += step
        rng.shuffle(drawn)
        self.drawn.extend(drawn)
