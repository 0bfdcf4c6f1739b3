"""A genetic search: tournament selection, crossover and mutation, in generations or in a steady state."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError, check_whole
from fanfold.snapshots import Told, Unsaved, check_untouched, packed, rng_state, set_rng, unpacked, untouched
from fanfold.space import Space
from fanfold.strategies.breeding import (
    Bred,
    Breeder,
    Crossover,
    Merit,
    Mutate,
    Operators,
    Sample,
    Selection,
    SelectionKind,
    operators,
    scores,
)
from fanfold.strategies.generations import Generations
from fanfold.strategies.open import OpenCandidates
from fanfold.strategy import Strategy
from fanfold.types import Result

#: How often a child that already exists is mutated again before it is accepted: then the space is that small.
_ATTEMPTS = 16


class Genetic(Strategy[Any]):
    """Breeds candidates from the better ones told so far.

    It searches a `Space`, or anything given by the functions `sample(rng)`, `mutate(candidate, rng, rate)` and
    `crossover(a, b, rng)`. They return candidates, and may change their arguments for that; without `crossover`,
    children are mutations. A `breeder` can replace these functions and may learn.

    By default it works in generations. It asks for a population and breeds the next one when all of it has been told,
    so the order of telling does not matter. The best `elites` complete results stay in the population with their score
    and are not asked again. With `steady=True` the first `population` candidates are samples. From then on each ask
    breeds from the best `population` told so far and waits for nobody.

    `selection` (see `breeding.Selection`; default: a tournament) chooses parents by their `merit` (default: the score).
    A merit that sees all members at once can rank them by several objectives. A failed result never becomes a parent. A
    dropped one competes with the score it was given but never becomes an elite. Without parents, candidates are
    sampled. A child equal to a member or to another child is changed again, up to 16 times.

    With `adaptive=True` the mutation rate moves between a tenth and five times `mutation_rate` (at most 1), once per
    generation (steady: per `population` children told). It follows the share of these children that beat their better
    parent: above one fifth the rate grows, below it shrinks: `rate *= exp((share - 0.2) / 1.6)`. If diversity is lost,
    the rate grows by half instead. That means that more than a quarter of the children were duplicates at first, or
    that all possible parents score the same.

    `seeds` are your own candidates, which open the first generation. `generations=N` ends the search after N
    generations (steady: after N * `population` candidates). With `until`, rules of convergence end the search, and the
    origin of a candidate has its `generation`. Memory is bounded by the population and the open trials.
    """

    def __init__(
        self,
        space: Space | None = None,
        *,
        sample: Sample | None = None,
        mutate: Mutate | None = None,
        crossover: Crossover | None = None,
        population: int = 32,
        elites: int = 2,
        tournament: int = 3,
        crossover_rate: float = 0.8,
        mutation_rate: float = 0.2,
        adaptive: bool = True,
        steady: bool = False,
        seeds: Iterable[Any] = (),
        generations: int | None = None,
        breeder: Breeder[Any] | None = None,
        selection: SelectionKind = "tournament",
        pressure: float = 1.5,
        merit: Merit = scores,
        until: Generations | None = None,
    ) -> None:
        seeds = tuple(seeds)
        if steady and until is not None:
            raise ConfigError("Genetic: a steady search has no generations: leave out steady, or until")
        check_whole(population, "Genetic: population", 2)
        check_whole(elites, "Genetic: elites", 0, population - 1)
        check_whole(tournament, "Genetic: tournament", 1)
        _check_share("crossover_rate", crossover_rate)
        _check_share("mutation_rate", mutation_rate)
        if mutation_rate == 0:
            raise ConfigError("Genetic: mutation_rate must be more than 0, or children would copy their parents")
        if generations is not None:
            check_whole(generations, "Genetic: generations", 1)
        if len(seeds) > population:
            raise ConfigError(f"Genetic: {len(seeds)} seeds do not fit a population of {population}; raise population")
        if breeder is None:
            breeder = operators(space, sample, mutate, crossover, crossover_rate)
        elif any(part is not None for part in (space, sample, mutate, crossover)):
            raise ConfigError("Genetic takes a breeder, or a Space, or functions, and only one of them")
        self._breeder: Breeder[Any] = breeder
        self._selection = Selection(selection, tournament, pressure)
        self._merit = merit
        for seed in seeds:
            if space is not None:
                space.check(seed)
        self._population = population
        self._elites = elites
        self._steady = steady
        self._seeds = seeds
        self._generations = generations
        self._until = until
        self._rate = _MutationRate(mutation_rate, adaptive)
        self._members: list[_Member] = []
        self._children = _Children("Genetic")
        self._generation = 0
        self.window = max(2, population // 2) if steady else population

    @property
    def generation(self) -> int:
        """The generation being asked or evaluated, counted from 1; 0 before the first ask."""
        return self._generation

    @property
    def rate(self) -> float:
        """The mutation rate in use."""
        return self._rate.value

    def ask(self, n: int) -> list[Any]:
        candidates: list[Any] = []
        while len(candidates) < n:
            if not self._children.queue and not self._breed():
                break
            candidates.append(self._children.ask())
        return candidates

    def origin(self, candidate: Any) -> Any:
        child = self._children.latest(candidate)
        if child is None:
            return None
        born = {} if self._until is None else {"generation": self._generation}
        return {**child.bred.origin, **born}

    def tell(self, result: Result[Any]) -> None:
        child = self._children.take(result.candidate)
        # Our own candidate, not the result's: one read back from a ledger may have lost its type.
        trial = dataclasses.replace(result.trial, candidate=child.bred.candidate, origin=child.bred.origin)
        result = dataclasses.replace(result, trial=trial)
        better = None
        if child.bar is not None:
            better = result.score is not None and result.score > child.bar
            self._rate.count(success=better)
        self._breeder.learn(result, better)
        self._members.append(_Member(child.key, child.born, result))
        if self._until is not None:
            self._until.tell(result)
        if self._steady:
            self._members = self._fittest()
            if self._rate.children >= self._population:
                self._rate.adapt(scores([member.result for member in self._members]))
            self._enter(self._members)

    def needs(self) -> set[int]:
        """The members, and the parents of the children that wait to be asked."""
        results = [member.result for member in self._members]
        results += [parent for child in self._children.queue for parent in child.bred.parents]
        further = getattr(self._breeder, "needs", tuple)  # a breeder that will still use some says which
        return {result.number for result in results}.union(further())

    # -- checkpoints ---------------------------------------------------------------------------------------------

    replays_quickly = True

    def save(self) -> bytes:
        if not isinstance(self._breeder, Operators):
            raise Unsaved(f"{type(self._breeder).__name__} breeds in ways that are not saved")
        return packed(
            rng=rng_state(self.rng),
            generation=self._generation,
            born=self._children.born,
            queue=[_saved_child(child) for child in self._children.queue],
            open=self._children.save(_saved_child),
            members=[(member.key, member.born, member.result.number) for member in self._members],
            rate=self._rate.counts,
            drawn=[member.number for member in self._selection.drawn],
            until=None if self._until is None else self._until.save(),
            given=untouched(breeder=self._breeder, merit=self._merit),
        )

    def load(self, state: bytes, told: Told) -> None:
        saved = unpacked(state)
        check_untouched(saved["given"], breeder=self._breeder, merit=self._merit)
        set_rng(self.rng, saved["rng"])
        results = functools.cache(lambda number: self._as_bred(told(number)))
        self._generation, self._children.born, self._rate.counts = saved["generation"], saved["born"], saved["rate"]
        self._children.queue.extend(_child_of(one, results) for one in saved["queue"])
        self._children.load(saved["open"], lambda one: _child_of(one, results))
        self._members = [_Member(key, born, results(number)) for key, born, number in saved["members"]]
        if self._steady:
            self._enter(self._members)
            self._selection.drawn.extend(map(results, saved["drawn"]))
        if self._until is not None:
            self._until.load(saved["until"], results)

    def _as_bred(self, result: Result[Any]) -> Result[Any]:
        """A result as it was after `tell`: the origin of its candidate without the generation."""
        origin = {name: value for name, value in (result.trial.origin or {}).items() if name != "generation"}
        return dataclasses.replace(result, trial=dataclasses.replace(result.trial, origin=origin))

    # -- breeding ------------------------------------------------------------------------------------------------

    def _breed(self) -> bool:
        """Put what can be asked next into the queue; False when the next candidate must wait or the search is over."""
        if self._steady:
            return self._breed_one()
        if self._children or self._generation == self._generations:
            return False
        if self._until is not None and self._generation > 0 and (self._until.reason or self._until.close()):
            return False
        self._members.sort(key=lambda member: member.born)
        elites = self._best(self._elites)
        parents = _parents(self._members)
        self._enter(parents)
        if self._generation > 0:
            self._rate.adapt(scores([member.result for member in parents]))
        taken = {member.key for member in self._members}
        for _ in range(self._population - len(elites)):
            self._children.queue.append(self._child(bool(parents), taken))
            taken.add(self._children.queue[-1].key)
        self._members = elites
        self._generation += 1
        return True

    def _breed_one(self) -> bool:
        if self._generations is not None and self._children.born == self._generations * self._population:
            return False
        parents = bool(self._members) and self._children.born >= self._population
        self._children.queue.append(
            self._child(parents, {member.key for member in self._members} | self._children.keys())
        )
        self._generation = -(-self._children.born // self._population)
        return True

    def _child(self, parents: bool, taken: set[str]) -> _Child:
        born = self._children.born
        self._children.born += 1
        if born < len(self._seeds):
            return _Child(encode(self._seeds[born], "a seed of Genetic"), Bred(self._seeds[born], by="seed"), born)
        if parents:
            bred = self._breeder.child(functools.partial(self._selection.pick, self.rng), self.rng, self.rate)
        else:
            bred = self._breeder.sample(self.rng)
        key = encode(bred.candidate, "a candidate of Genetic")
        self._rate.bred(duplicate=key in taken, counts=bool(bred.parents))
        for _ in range(_ATTEMPTS):
            if key not in taken:
                break
            bred = self._breeder.again(bred, self.rng, self.rate)
            key = encode(bred.candidate, "a candidate of Genetic")
        return _Child(key, bred, born)

    def _fittest(self) -> list[_Member]:
        """The pool of the steady state: the elites, then the best of the others, each candidate once."""
        kept = {member.key: member for member in self._best(self._elites)}
        for member in self._ranked(_parents(self._members)):
            if len(kept) == self._population:
                break
            kept.setdefault(member.key, member)
        return list(kept.values())

    def _enter(self, parents: Sequence[_Member]) -> None:
        """These may become parents."""
        results = [member.result for member in parents]
        self._selection.enter(results, self._merit(results))

    def _ranked(self, members: Sequence[_Member]) -> list[_Member]:
        """By merit, the best first; of equals, the older."""
        merits = self._merit([member.result for member in members])
        order = sorted(range(len(members)), key=lambda at: (-merits[at], members[at].born))
        return [members[at] for at in order]

    def _best(self, count: int) -> list[_Member]:
        """The best complete members, no candidate twice."""
        unique: dict[str, _Member] = {}
        for member in self._ranked([member for member in self._members if member.result.complete]):
            unique.setdefault(member.key, member)
        return list(unique.values())[:count]


@dataclass(frozen=True, slots=True)
class _Child:
    """A candidate that waits to be asked or told."""

    key: str
    bred: Bred[Any]
    born: int

    @property
    def bar(self) -> float | None:
        """The score of its better parent; None for a sample."""
        return max(scores(self.bred.parents), default=None)


def _saved_child(child: _Child) -> list[Any]:
    return [child.key, child.born, child.bred.by, [parent.number for parent in child.bred.parents]]


def _child_of(saved: Sequence[Any], told: Told) -> _Child:
    key, born, by, parents = saved
    return _Child(key, Bred(decode(key), tuple(map(told, parents)), by), born)


class _Children(OpenCandidates[_Child]):
    """How many were born, and those that wait: in the queue to be asked, then to be told."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.born = 0
        self.queue: deque[_Child] = deque()

    def ask(self) -> Any:
        child = self.queue.popleft()
        self.add(child.bred.candidate, child, child.key)
        return child.bred.candidate


@dataclass(frozen=True, slots=True)
class _Member:
    """A told candidate of the population."""

    key: str
    born: int
    result: Result[Any]


class _MutationRate:
    """The mutation rate and the evidence it adapts to; the rule is in the docstring of `Genetic`."""

    def __init__(self, start: float, adaptive: bool) -> None:
        self.value = start
        self.children = 0
        self._adaptive = adaptive
        self._low, self._high = start / 10, min(1.0, start * 5)
        self._forget()

    def _forget(self) -> None:
        self.children = self._successes = self._bred = self._duplicates = 0

    @property
    def counts(self) -> list[float]:
        return [self.value, self.children, self._successes, self._bred, self._duplicates]

    @counts.setter
    def counts(self, counts: Sequence[Any]) -> None:
        self.value, self.children, self._successes, self._bred, self._duplicates = counts

    def count(self, success: bool) -> None:
        """One child was told."""
        self.children += 1
        self._successes += success

    def bred(self, duplicate: bool, counts: bool) -> None:
        """One child was made, at first equal to a known one or not; samples do not count."""
        self._bred += counts
        self._duplicates += duplicate and counts

    def adapt(self, parents: Sequence[float]) -> None:
        """Move the rate by what was counted since the last time and by the scores of those who may be parents."""
        if self._adaptive and self.children:
            alike = len(parents) > 1 and len(set(parents)) == 1
            if alike or self._duplicates > self._bred / 4:
                factor = 1.5
            else:
                factor = math.exp((self._successes / self.children - 0.2) / 1.6)
            self.value = min(max(self.value * factor, self._low), self._high)
        self._forget()


def _check_share(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"Genetic: {name} must be between 0 and 1, not {value!r}")


def _parents(members: Iterable[_Member]) -> list[_Member]:
    return [member for member in members if member.result.score is not None]
