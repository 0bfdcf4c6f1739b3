"""How a genetic search makes networks: by changes of single genes, by crossing aligned layers, and by inheritance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeAlias, TypeVar

from fanfold.errors import ConfigError
from fanfold.strategies.breeding import Bred, Pick
from fanfold.studies.neuro.genome import CHOSEN, Individual, NetworkGenome, individual_of, key
from fanfold.studies.neuro.space import NetworkSpace, drawn, random_conv, random_dense, random_genome, repair, rounded
from fanfold.types import Blob, Ok, Result

#: Standard deviations of a step: of a size and a learning rate in powers of e, of the dropout as it is.
_SIZE, _RATE, _DROPOUT = 0.5, 0.7, 0.1
#: How often a genome that was bred before is changed by one gene more, before it is accepted: the space is that small.
_ATTEMPTS = 32

_Told: TypeAlias = Result[Individual]
_Layer = TypeVar("_Layer")
_Choice = TypeVar("_Choice")
_Number = TypeVar("_Number", int, float)
#: A way to change a genome: given the layer it is about (0 where it is about the whole), the space, and randomness.
Change: TypeAlias = Callable[[NetworkGenome, int, NetworkSpace, Random], NetworkGenome]


def _layer(stack: str, gene: str, change: Callable[[Any, NetworkSpace, Random], Any]) -> tuple[str, Change]:
    """A change of one gene of one layer of a stack, `conv` or `dense`."""

    def changed(genome: NetworkGenome, at: int, space: NetworkSpace, rng: Random) -> NetworkGenome:
        layers = getattr(genome, stack)
        layer = replace(layers[at], **{gene: change(getattr(layers[at], gene), space, rng)})
        stacked: dict[str, Any] = {stack: (*layers[:at], layer, *layers[at + 1 :])}
        return replace(genome, **stacked)

    return stack, changed


def _whole(gene: str, change: Callable[[Any, NetworkSpace, Random], Any]) -> tuple[str, Change]:
    """A change of one gene of the whole network."""
    return "", lambda genome, at, space, rng: replace(genome, **{gene: change(getattr(genome, gene), space, rng)})


def _dropout(share: float, space: NetworkSpace, rng: Random) -> float:
    return float(_within(round(rng.gauss(share, _DROPOUT), 3), space.dropout))


def _learning_rate(rate: float, space: NetworkSpace, rng: Random) -> float:
    return float(_within(rounded(rate * math.exp(rng.gauss(0.0, _RATE))), space.learning_rates))


#: Every way to change a genome, and what it is about: each convolution, each dense layer, or the whole.  Those that
#: change the number of layers come last, so that the numbers of the layers hold until then.
CHANGES: dict[str, tuple[str, Change]] = {
    "filters": _layer("conv", "filters", lambda size, space, rng: _resized(size, space.filters, rng)),
    "kernel": _layer("conv", "kernel", lambda side, space, rng: _other(side, space.kernels, rng)),
    "conv activation": _layer("conv", "activation", lambda name, space, rng: _other(name, space.activations, rng)),
    "nodes": _layer("dense", "nodes", lambda size, space, rng: _resized(size, space.nodes, rng)),
    "dense activation": _layer("dense", "activation", lambda name, space, rng: _other(name, space.activations, rng)),
    "norm": _whole("norm", lambda name, space, rng: _other(name, space.norms, rng)),
    "dropout": _whole("dropout", _dropout),
    "optimiser": _whole("optimiser", lambda name, space, rng: _other(name, space.optimisers, rng)),
    "learning rate": _whole("learning_rate", _learning_rate),
    "conv layers": _whole(
        "conv", lambda layers, space, rng: _restacked(layers, space.conv_layers, random_conv(space, rng), rng)
    ),
    "dense layers": _whole(
        "dense", lambda layers, space, rng: _restacked(layers, space.dense_layers, random_dense(space, rng), rng)
    ),
}


def _choice(stack: str, gene: str, choices: str) -> tuple[str, tuple[str, Change]]:
    """Where the choices of a gene stand in the space, and a change to another of them."""

    def change(choice: Any, space: NetworkSpace, rng: Random) -> Any:
        return _other(choice, getattr(space, choices), rng)

    return choices, _layer(stack, gene, change) if stack else _whole(gene, change)


#: The same for the newer genes, which count only where the space has choices.
CHOICES: dict[str, tuple[str, tuple[str, Change]]] = {
    "block": _choice("conv", "block", "blocks"),
    "dense block": _choice("dense", "block", "dense_blocks"),
    **{gene.replace("_", " "): _choice("", gene, choices) for gene, choices in CHOSEN.items()},
}


def _genes(genome: NetworkGenome, space: NetworkSpace) -> list[tuple[Change, int, str]]:
    """What can be changed: the change, the layer, and its name."""
    counts = {"conv": len(genome.conv), "dense": len(genome.dense), "": 1}
    open_choices = {name: way for name, (choices, way) in CHOICES.items() if len(getattr(space, choices)) > 1}
    ways = (open_choices | CHANGES).items()
    return [(change, at, name) for name, (about, change) in ways for at in range(counts[about])]


def mutate(genome: NetworkGenome, space: NetworkSpace, rng: Random, rate: float) -> tuple[NetworkGenome, list[str]]:
    """A genome of the space with each gene changed with probability `rate`, and the names of the changes, if any."""
    names: dict[str, None] = {}
    for change, at, name in [gene for gene in _genes(genome, space) if rng.random() < rate]:
        mutant = change(genome, at, space, rng)
        if mutant != genome:
            genome, names[name] = mutant, None
    return genome, list(names)


def step(genome: NetworkGenome, space: NetworkSpace, rng: Random) -> tuple[NetworkGenome, list[str]]:
    """A genome of the space with one gene changed, and the name of the change; none where there is no other genome."""
    genes = _genes(genome, space)
    for change, at, name in rng.sample(genes, len(genes)):
        mutant = change(genome, at, space, rng)
        if mutant != genome:
            return mutant, [name]
    return genome, []


def crossover(mother: NetworkGenome, father: NetworkGenome, rng: Random) -> NetworkGenome:
    """Each layer from either parent, convolutions aligned from the images on and dense layers from the classes back.

    What one stack has more than the other is inherited as a whole, or not.  How a network is trained comes from one
    parent: the optimiser with its learning rate, the schedule, decay, smoothing and augmentation.
    """
    trained = rng.choice((mother, father))
    return replace(
        trained,
        conv=_crossed(mother.conv, father.conv, rng),
        dense=_crossed(mother.dense[::-1], father.dense[::-1], rng)[::-1],
        norm=rng.choice((mother.norm, father.norm)),
        dropout=rng.choice((mother.dropout, father.dropout)),
        **{
            gene: drawn(list(dict.fromkeys((getattr(mother, gene), getattr(father, gene)))), rng)
            for gene in ("head", "dense_norm", "attention")
        },
    )


def sibling(genome: NetworkGenome, space: NetworkSpace, rng: Random, young: bool = False) -> NetworkGenome:
    """The same network, trained with another learning rate and dropout: any where nothing is known yet, else near."""
    low, high = map(math.log, space.learning_rates)
    step = rng.gauss(0.0, _RATE)
    rate = math.exp(rng.uniform(low, high)) if young else genome.learning_rate * math.exp(step)
    dropout = genome.dropout
    if dropout > 0:  # a network without dropout is of another family
        dropout = max(0.001, round(rng.gauss(dropout, _DROPOUT), 3))
    return repair(replace(genome, learning_rate=rounded(rate), dropout=dropout), space)


def shared(one: NetworkGenome, other: NetworkGenome) -> int:
    """How many layers two genomes have in common, aligned as in `crossover`."""
    conv = sum(mine == theirs for mine, theirs in zip(one.conv, other.conv))
    return conv + sum(mine == theirs for mine, theirs in zip(one.dense[::-1], other.dense[::-1]))


@dataclass(frozen=True)
class Spread:
    """A mutation rate that rises as the scores of the population draw together.

    `rate = base + (1 - min(1, deviation / wide) - 0.5) * swing`, kept between `least` and `most`, where the deviation
    is that of the last `members` scores.  The numbers are the original's, for accuracies between 0 and 1.
    """

    wide: float = 0.1
    swing: float = 0.4
    least: float = 0.1
    most: float = 0.8
    members: int = 10

    def __post_init__(self) -> None:
        if not (self.wide > 0 and math.isfinite(self.wide) and math.isfinite(self.swing)):
            raise ConfigError(f"wide must be above 0 and swing a number, not {self.wide!r} and {self.swing!r}")
        if not 0 <= self.least <= self.most <= 1:
            raise ConfigError(f"least and most must be between 0 and 1 and in order, not {self.least!r}, {self.most!r}")
        if self.members < 2:
            raise ConfigError(f"a spread needs at least 2 members, not {self.members!r}")

    def rate(self, base: float, scores: Collection[float]) -> float:
        """The rate for these scores; of fewer than two nothing is known, and the base holds."""
        if len(scores) > 1:
            narrow = 1.0 - min(1.0, statistics.pstdev(scores) / self.wide)
            base += (narrow - 0.5) * self.swing
        return min(max(base, self.least), self.most)


class NeuroBreeder:
    """Breeds networks for `Genetic(breeder=...)`: every candidate is an `Individual` whose genome is in the space.

    A sample is any genome.  A child is a parent, or with probability `crossover_rate` two parents crossed, mutated; a
    `fresh_share` of them are samples.  No genome is bred twice (by `key`), unless the space is used up.  `spread` moves
    the mutation rate that the search gives by how far the scores lie apart.  With a `litter` above 1, each is followed
    by siblings that differ from it in learning rate and dropout alone: a family, which engines can train as one.

    With `inherit`, a child starts from the weights of a parent: of the one with more layers in common where both have
    any.  `parents` in its origin names that one first.  The weights are those in the data of a result's last case that
    was evaluated (`"weights"`, a Blob).  `by` names the changes ("crossover+filters+dropout").  State is one short key
    for every genome bred, and the last scores.
    """

    def __init__(
        self,
        space: NetworkSpace | None = None,
        crossover_rate: float = 0.5,
        fresh_share: float = 0.05,
        inherit: bool = False,
        spread: Spread | None = None,
        litter: int = 1,
    ) -> None:
        for name, share in (("crossover_rate", crossover_rate), ("fresh_share", fresh_share)):
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, not {share!r}")
        if litter < 1:
            raise ConfigError(f"litter must be at least 1, not {litter!r}")
        self._space = space or NetworkSpace()
        self._litter = litter
        self._first: Bred[Individual] | None = None
        self._siblings = 0
        self._crossover_rate = crossover_rate
        self._fresh_share = fresh_share
        self._inherit = inherit
        self._spread = spread
        self._bred: set[str] = set()
        self._scores: dict[int, float] = {}

    def sample(self, rng: Random) -> Bred[Individual]:
        return self._sibling(rng) or self._follow(self._sample(rng))

    def child(self, pick: Pick[Individual], rng: Random, rate: float) -> Bred[Individual]:
        return self._sibling(rng) or self._follow(self._child(pick, rng, rate))

    def _follow(self, bred: Bred[Individual]) -> Bred[Individual]:
        """The next ones are to be siblings of this one."""
        self._first, self._siblings = bred, self._litter - 1
        return bred

    def _sibling(self, rng: Random) -> Bred[Individual] | None:
        if self._first is None or self._siblings < 1:
            return None
        self._siblings -= 1
        first = self._first
        genome = sibling(first.candidate.genome, self._space, rng, young=not first.parents)
        return self._made(genome, first.parents, [*first.by.split("+"), "sibling"], rng)

    def _sample(self, rng: Random) -> Bred[Individual]:
        return self._made(random_genome(self._space, rng), (), ["sample"], rng)

    def _child(self, pick: Pick[Individual], rng: Random, rate: float) -> Bred[Individual]:
        if rng.random() < self._fresh_share:
            return self._sample(rng)
        mother = pick()
        assert mother is not None
        genome = _genome(mother)
        parents: tuple[_Told, ...] = (mother,)
        by: list[str] = []
        father = pick(but=mother) if rng.random() < self._crossover_rate else None
        if father is not None and (crossed := crossover(genome, _genome(father), rng)) != genome:
            genome, parents, by = crossed, (mother, father), ["crossover"]
        # A parent that the user gave as a seed may lie outside the space.
        genome, names = mutate(repair(genome, self._space), self._space, rng, self._rate(rate))
        return self._made(genome, parents, [*by, *names], rng)

    def again(self, bred: Bred[Individual], rng: Random, rate: float) -> Bred[Individual]:
        genome, names = step(bred.candidate.genome, self._space, rng)
        return self._made(genome, bred.parents, [*bred.by.split("+"), *names] if bred.parents else [bred.by], rng)

    def needs(self) -> list[int]:
        """The trials whose weights the next siblings start from."""
        first = self._first if self._siblings > 0 else None
        return [] if first is None else [parent.number for parent in first.parents]

    def learn(self, result: _Told, better: bool | None) -> None:
        self._bred.add(key(_genome(result)))  # seeds are nobody's children
        if self._spread is not None and result.score is not None:
            self._scores[result.number] = result.score
            if len(self._scores) > self._spread.members:
                del self._scores[min(self._scores)]  # the oldest by number, whatever the order of telling

    def _rate(self, rate: float) -> float:
        return rate if self._spread is None else self._spread.rate(rate, self._scores.values())

    def _made(
        self, genome: NetworkGenome, parents: tuple[_Told, ...], names: Iterable[str], rng: Random
    ) -> Bred[Individual]:
        """The candidate, changed until it is new."""
        by = dict.fromkeys(names)
        for _ in range(_ATTEMPTS):
            if key(genome) not in self._bred:
                break
            genome, further = step(genome, self._space, rng)
            by |= dict.fromkeys(further if parents else ())
        self._bred.add(key(genome))
        blob = None
        if self._inherit:
            # Stable: of parents that are equally near, the one selected first.
            parents = tuple(sorted(parents, key=lambda one: (weights_of(one) is None, -shared(_genome(one), genome))))
            blob = weights_of(parents[0]) if parents else None
        return Bred(Individual(genome, blob), parents, "+".join(by) or "copy")


def weights_of(result: Result[Any]) -> Blob | None:
    """The weights a network ended with: those of its last case that was evaluated; None where none were kept."""
    for outcome in reversed(list(result.outcomes.values())):
        if isinstance(outcome, Ok) and isinstance(outcome.data, Mapping):
            weights = outcome.data.get("weights")
            if isinstance(weights, Blob):
                return weights
    return None


def _genome(result: _Told) -> NetworkGenome:
    return individual_of(result.candidate).genome


def _restacked(layers: tuple[_Layer, ...], bounds: tuple[int, int], new: _Layer, rng: Random) -> tuple[_Layer, ...]:
    """One layer more (new, or a copy of one behind it) or one less, as the bounds allow."""
    least, most = bounds
    ways = ["add"] * (len(layers) < most) + ["copy"] * (0 < len(layers) < most) + ["remove"] * (len(layers) > least)
    if not ways:
        return layers
    way = rng.choice(ways)
    at = rng.randrange(len(layers) + (way == "add"))
    if way == "remove":
        return (*layers[:at], *layers[at + 1 :])
    return (*layers[:at], new if way == "add" else layers[at], *layers[at:])


def _crossed(one: tuple[_Layer, ...], other: tuple[_Layer, ...], rng: Random) -> tuple[_Layer, ...]:
    common = tuple(rng.choice(pair) for pair in zip(one, other))
    longer = max(one, other, key=len)
    return common + (longer[len(common) :] if rng.random() < 0.5 else ())


def _resized(size: int, bounds: tuple[int, int], rng: Random) -> int:
    """A size some steps up or down, in proportion to itself; at a bound, away from it."""
    factor = math.exp(rng.gauss(0.0, _SIZE))
    least, most = bounds
    if size >= most:
        factor = min(factor, 1 / factor)
    elif size <= least:
        factor = max(factor, 1 / factor)
    new = round(size * factor)
    return _within(new if new != size else size + (1 if factor >= 1 else -1), bounds)


def _within(value: _Number, bounds: tuple[_Number, _Number]) -> _Number:
    return min(max(value, bounds[0]), bounds[1])


def _other(choice: _Choice, choices: Sequence[_Choice], rng: Random) -> _Choice:
    """Another choice; the same only where there is no other."""
    return rng.choice([other for other in choices if other != choice] or [choice])
