"""What happened in an evolution, generation by generation, and whether it has converged: a pure fold over results."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.legacy.settings import EvolutionConfig
from fanfold.legacy.words import PromptGenome, tokens_of
from fanfold.studies.prompts.breeding import genome_of
from fanfold.studies.prompts.genome import distance
from fanfold.studies.prompts.objectives import accuracy, brevity, consistency, efficiency, words
from fanfold.types import Result

SEARCHING = "searching"


def fitness(results: Sequence[Result[Any]]) -> list[float]:
    """The documented fitness of each: of its accuracy, consistency, efficiency and diversity, less a length penalty."""
    return [
        0.7 * accuracy(each) + 0.15 * consistency(each) + 0.10 * efficiency(each) + 0.05 * apart + brevity(each)
        for each, apart in zip(results, diversity(results))
    ]


def diversity(results: Sequence[Result[Any]]) -> list[float]:
    """How far each prompt is from the others on average: the study's objective, with known distances remembered."""
    genomes = [genome_of(result) for result in results]
    sums = [0.0] * len(genomes)
    for at, one in enumerate(genomes):
        for beside in range(at):
            apart = _distance(one, genomes[beside])
            sums[at] += apart
            sums[beside] += apart
    return [total / max(1, len(genomes) - 1) for total in sums]


_distance = functools.lru_cache(maxsize=50_000)(distance)


@dataclass(frozen=True)
class Generation:
    """One generation: its population (the elites of the one before included) when all of it had been evaluated.

    `best_fitness` is the best of the run so far; `status` is `searching`, or why the evolution ended here.
    """

    generation: int
    best_fitness: float | None
    mean_fitness: float | None
    diversity: float
    status: str
    population: dict[str, Any]


@dataclass
class Chronicle:
    """The generations of an evolution, its best prompt, and the reason it converged.

    A prompt keeps the fitness it is given in the generation it is born in, elites included, so the best never falls.
    Raced-out prompts count with the accuracy the race gave them, but cannot be the best.
    """

    config: EvolutionConfig
    generations: list[Generation] = field(default_factory=list)
    best: PromptGenome | None = None
    _elites: list[Result[Any]] = field(default_factory=list)
    _told: list[Result[Any]] = field(default_factory=list)
    _failed: int = 0
    _fitness: dict[int, float] = field(default_factory=dict)
    _history: list[tuple[float, float]] = field(default_factory=list)

    @property
    def reason(self) -> str | None:
        """Why it converged; None while it has not."""
        last = self.generations[-1].status if self.generations else SEARCHING
        return None if last == SEARCHING else last

    def tell(self, result: Result[Any]) -> None:
        """One more prompt of the present generation."""
        if result.score is None:
            self._failed += 1
        else:
            self._told.append(result)

    def close(self) -> str | None:
        """The present generation is complete: write it down, and say why the evolution has converged, if it has."""
        members = [*self._elites, *self._told]
        values = fitness(members)
        for member, value in zip(members, values):
            self._fitness.setdefault(member.number, value)
        for member in self._told:
            self._consider(member)
        apart = diversity(members)
        apart_mean = statistics.fmean(apart) if apart else 0.0
        given = [self._fitness[member.number] for member in members]
        best = None if self.best is None else self.best.fitness
        mean = statistics.fmean(given) if given else None
        if best is not None and mean is not None:
            self._history.append((best, mean))
        status = self._converged(len(self.generations) + 1, apart_mean, len(members)) or SEARCHING
        self.generations.append(
            Generation(len(self.generations) + 1, best, mean, apart_mean, status, self._population(members, given))
        )
        self._renew(members)
        return self.reason

    def _consider(self, result: Result[Any]) -> None:
        value = self._fitness[result.number]
        if not result.complete or (self.best is not None and value <= (self.best.fitness or 0.0)):
            return
        origin = result.trial.origin or {}
        self.best = PromptGenome(
            tokens_of(genome_of(result).head()),
            fitness=value,
            accuracy=accuracy(result),
            generation=len(self.generations) + 1,
            parents=tuple(origin.get("parents", ())),
            mutations=tuple(part for part in str(origin.get("by", "")).split("+") if part),
            number=result.number,
        )

    def _renew(self, members: Sequence[Result[Any]]) -> None:
        """The elites that the next generation begins with, ranked as the search ranks them."""
        complete = [member for member in members if member.complete]
        values = fitness(complete)
        order = sorted(range(len(complete)), key=lambda at: (-values[at], complete[at].number))
        unique = {genome_of(complete[at]): complete[at] for at in reversed(order)}
        ranked = [complete[at] for at in order if unique[genome_of(complete[at])] is complete[at]]
        self._elites = ranked[: elites_of(self.config)]
        kept = {member.number for member in self._elites}
        self._fitness = {number: value for number, value in self._fitness.items() if number in kept}
        self._told, self._failed = [], 0

    def _population(self, members: Sequence[Result[Any]], given: Sequence[float]) -> dict[str, Any]:
        lengths = [words(member) for member in members]
        right = [accuracy(member) for member in members]
        return {
            "size": len(members) + self._failed,
            "elites": len(self._elites),
            "evaluated": len(self._told) + self._failed,
            "raced_out": sum(member.dropped is not None for member in self._told),
            "failed": self._failed,
            "unique": len({genome_of(member).head() for member in members}),
            "fitness_std": statistics.pstdev(given) if given else 0.0,
            "fitness_min": min(given, default=None),
            "fitness_max": max(given, default=None),
            "mean_accuracy": statistics.fmean(right) if right else None,
            "best_accuracy": max(right, default=None),
            "mean_length": statistics.fmean(lengths) if lengths else 0.0,
        }

    def _converged(self, generation: int, apart: float, members: int) -> str | None:
        config, best = self.config, [best for best, _ in self._history]
        if not members:
            return "failure: no prompt of the generation could be scored"
        if best and best[-1] >= config.target_fitness:
            return f"target: fitness {best[-1]:.3f} has reached {config.target_fitness:g}"
        if members > 1 and apart < config.diversity_threshold:
            return f"diversity: prompts are {apart:.3f} apart, less than {config.diversity_threshold:g}"
        over = config.fitness_plateau_generations
        if (gained := self._gained(over, 0)) is not None and gained <= config.fitness_plateau_threshold:
            mean = self._gained(over, 1)
            if mean is not None and mean <= config.fitness_plateau_threshold:
                return f"plateau: neither best nor mean fitness has risen in {over} generations"
        if self._gained(config.convergence_patience, 0) == 0.0:
            return f"patience: no better prompt in {config.convergence_patience} generations"
        gained = self._gained(config.stagnation_threshold, 0)
        if gained is not None and gained < config.improvement_threshold:
            return f"stagnation: {gained:+.4f} in {config.stagnation_threshold} generations"
        if generation >= config.max_generations:
            return f"generation limit: {config.max_generations}"
        return None

    def _gained(self, generations: int, which: int) -> float | None:
        """How much best (0) or mean (1) fitness rose over the last so many generations; None before there are any."""
        if len(self._history) <= generations:
            return None
        return self._history[-1][which] - self._history[-1 - generations][which]


def elites_of(config: EvolutionConfig) -> int:
    return min(config.elite_size, config.population_size - 1)
