"""Which genomes are searched: bounds and choices, genomes drawn from them, and genomes brought within them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

from fanfold.errors import ConfigError, nearest
from fanfold.studies.neuro.genome import (
    ACTIVATIONS,
    ATTENDED,
    AUGMENTED,
    BLOCKS,
    CHOSEN,
    DENSE_BLOCKS,
    DENSE_NORMS,
    HEADS,
    KERNELS,
    NORMS,
    OPTIMISERS,
    SCHEDULES,
    Conv,
    Dense,
    NetworkGenome,
    Shape,
    key,
    whole,
)

_KNOWN = {
    "kernels": KERNELS,
    "activations": ACTIVATIONS,
    "norms": NORMS,
    "optimisers": OPTIMISERS,
    "blocks": BLOCKS,
    "dense_blocks": DENSE_BLOCKS,
    "heads": HEADS,
    "dense_norms": DENSE_NORMS,
    "schedules": SCHEDULES,
    "augments": AUGMENTED,
}

_T = TypeVar("_T")


@dataclass(frozen=True)
class NetworkSpace:
    """Which genomes are searched: the least and the most of each number, and the choices.

    The default holds plain networks for small images that a processor trains in seconds.
    """

    conv_layers: tuple[int, int] = (1, 3)
    filters: tuple[int, int] = (4, 32)
    kernels: tuple[int, ...] = (3, 5)
    dense_layers: tuple[int, int] = (1, 2)
    nodes: tuple[int, int] = (32, 128)
    activations: tuple[str, ...] = ACTIVATIONS
    norms: tuple[str, ...] = NORMS
    dropout: tuple[float, float] = (0.0, 0.5)
    optimisers: tuple[str, ...] = OPTIMISERS
    learning_rates: tuple[float, float] = (1e-4, 3e-2)
    blocks: tuple[str, ...] = ("plain",)
    dense_blocks: tuple[str, ...] = ("plain",)
    heads: tuple[str, ...] = ("flat",)
    dense_norms: tuple[str, ...] = ("none",)
    attentions: tuple[int, ...] = (0,)
    schedules: tuple[str, ...] = ("constant",)
    decays: tuple[float, ...] = (0.0,)
    smoothings: tuple[float, ...] = (0.0,)
    augments: tuple[str, ...] = ("data",)

    def __post_init__(self) -> None:
        for name, least in (("conv_layers", 0), ("filters", 1), ("dense_layers", 0), ("nodes", 1)):
            _check_range(name, getattr(self, name), least, math.inf, wholes=True)
        _check_range("dropout", self.dropout, 0.0, 0.95)
        _check_range("learning_rates", self.learning_rates, 1e-12, 1e3)
        for name, known in _KNOWN.items():
            _check_choices(name, getattr(self, name), known)
        for name, most in (("attentions", 64), ("decays", 100.0), ("smoothings", 0.9)):
            for choice in getattr(self, name) or (None,):
                _check_range(name, (0, choice), 0, most, wholes=name == "attentions")

    def within(self, shape: Shape) -> NetworkSpace:
        """The part of the space that makes a difference on data of a shape."""
        space = self
        if shape.kind == "table":
            space = replace(space, conv_layers=(0, 0), norms=space.norms[:1], heads=space.heads[:1], augments=("data",))
        if shape.kind == "sequence":  # backwards it is another one, and it has no angles
            forward = tuple(name for name in space.augments if "flip" not in name and name != "warp")
            space = replace(space, augments=forward or ("none",))
        if shape.kind != "table" or shape.channels > ATTENDED:
            space = replace(space, attentions=(0,))
        return space if shape.target != "numbers" else replace(space, smoothings=(0.0,))

    @classmethod
    def original(cls) -> NetworkSpace:
        """The ranges of the original system, those of creation and of mutation together."""
        return cls(
            conv_layers=(1, 7),
            filters=(2, 256),
            kernels=(1, 3, 5, 7),
            dense_layers=(1, 7),
            nodes=(128, 2048),
            norms=("batch",),
            dropout=(0.1, 0.8),
            learning_rates=(1e-6, 5e-2),
        )


def random_genome(space: NetworkSpace, rng: Random) -> NetworkGenome:
    """Any genome of the space: counts of layers evenly, sizes and learning rates evenly on a logarithmic scale."""
    genome = NetworkGenome(
        conv=tuple(random_conv(space, rng) for _ in range(rng.randint(*space.conv_layers))),
        dense=tuple(random_dense(space, rng) for _ in range(rng.randint(*space.dense_layers))),
        norm=rng.choice(space.norms),
        dropout=round(rng.uniform(*space.dropout), 3),
        optimiser=rng.choice(space.optimisers),
        learning_rate=rounded(math.exp(rng.uniform(*map(math.log, space.learning_rates)))),
        **{gene: drawn(getattr(space, choices), rng) for gene, choices in CHOSEN.items()},
    )
    return repair(genome, space)


def handmade(space: NetworkSpace, shape: Shape) -> list[NetworkGenome]:
    """Networks of known good design, the first the best known, brought into the space."""
    cosine: dict[str, Any] = {"schedule": "cosine"}
    if shape.kind == "table":
        two = (Dense(64, "relu"), Dense(64, "relu"))
        deep = (Dense(128, "selu"), Dense(128, "relu", "residual"))
        designs = [
            NetworkGenome((), two, "none", 0.1, "adamw", 5e-3, decay=0.1, **cosine),
            NetworkGenome((), deep, "none", 0.2, "adamw", 3e-3, dense_norm="batch", schedule="one-cycle"),
            NetworkGenome((), (), "none", 0.0, "adam", 1e-2, **cosine),
        ]
    else:
        drawn_by_hand = shape.channels == 1 and shape.height > 1 and "warp" in space.augments
        photograph = shape.channels == 3 and shape.height > 1
        cosine["augment"] = "warp" if drawn_by_hand else "shift+flip" if photograph else "shift"
        width = 64 if min(shape.height, shape.width) < 16 else 32
        conv = (Conv(width, 3, "relu"), Conv(64, 3, "relu"))
        residual = (*conv, Conv(64, 3, "relu", "residual"))
        still = cosine | {"augment": "none"}
        designs = [
            NetworkGenome(conv, (Dense(128, "relu"),), "batch", 0.3, "adam", 3e-3, **cosine),
            NetworkGenome(residual, (), "batch", 0.0, "adamw", 5e-3, "mean", smoothing=0.1, **cosine),
            NetworkGenome(residual[::2], (Dense(64, "relu"),), "batch", 0.2, "adam", 3e-3, **still),
        ]
    return list({key(genome): genome for genome in (repair(design, space) for design in designs)}.values())


def random_conv(space: NetworkSpace, rng: Random) -> Conv:
    filters, kernel = _size(space.filters, rng), rng.choice(space.kernels)
    return Conv(filters, kernel, rng.choice(space.activations), drawn(space.blocks, rng))


def random_dense(space: NetworkSpace, rng: Random) -> Dense:
    return Dense(_size(space.nodes, rng), rng.choice(space.activations), drawn(space.dense_blocks, rng))


def drawn(choices: Sequence[_T], rng: Random) -> _T:
    """One of the choices; a single one takes no randomness, as before there was a choice."""
    return choices[0] if len(choices) == 1 else rng.choice(choices)


def rounded(rate: float) -> float:
    """A learning rate to three significant digits: more would only look like knowledge."""
    return float(f"{rate:.3g}")


def repair(genome: NetworkGenome, space: NetworkSpace) -> NetworkGenome:
    """The genome of the space that is nearest, whatever was in the fields; one of the space comes back as it was.

    Numbers go to the nearest bound, and anything else to the middle; unknown names become the first choice; layers
    too many are left out at the end, and layers too few are repeated.
    """

    def words(layer: Any, blocks: tuple[str, ...]) -> tuple[str, str]:
        activation = _known(getattr(layer, "activation", None), space.activations)
        return activation, _known(getattr(layer, "block", None), blocks)

    def size(layer: Any, name: str) -> int:
        return _clamped_whole(getattr(layer, name, None), getattr(space, name))

    conv = _layers(genome.conv, space.conv_layers)
    kernels = [_nearest_kernel(getattr(layer, "kernel", None), space.kernels) for layer in conv]
    dense = _layers(genome.dense, space.dense_layers)
    return NetworkGenome(
        conv=tuple(
            Conv(size(layer, "filters"), kernel, *words(layer, space.blocks)) for layer, kernel in zip(conv, kernels)
        ),
        dense=tuple(Dense(size(layer, "nodes"), *words(layer, space.dense_blocks)) for layer in dense),
        norm=_known(genome.norm, space.norms),
        dropout=_clamped(genome.dropout, space.dropout, sum(space.dropout) / 2),
        optimiser=_known(genome.optimiser, space.optimisers),
        learning_rate=_clamped(
            genome.learning_rate, space.learning_rates, rounded(math.sqrt(math.prod(space.learning_rates)))
        ),
        **{gene: _known(getattr(genome, gene, None), getattr(space, choices)) for gene, choices in CHOSEN.items()},
    )


def faults(genome: NetworkGenome, space: NetworkSpace) -> list[str]:
    """What keeps a genome out of the space, each with what would fit."""
    mended = repair(genome, space)
    # By their text: True is no 1, and NaN not equal to itself.
    pairs = [(each.name, getattr(genome, each.name), getattr(mended, each.name)) for each in fields(NetworkGenome)]
    return [f"{name} is {was!r:.200}, near it is {now!r:.200}" for name, was, now in pairs if repr(was) != repr(now)]


def valid(genome: NetworkGenome, space: NetworkSpace) -> bool:
    """Whether a genome is one of the space; then it can be built for images of any size."""
    return not faults(genome, space)


def _size(bounds: tuple[int, int], rng: Random) -> int:
    least, most = bounds
    return min(most, int(math.exp(rng.uniform(math.log(least), math.log(most + 1)))))


def _layers(layers: Any, bounds: tuple[int, int]) -> list[Any]:
    least, most = bounds
    kept = list(layers)[:most] if isinstance(layers, Sequence) and not isinstance(layers, str) else []
    return kept + [kept[-1] if kept else None] * (least - len(kept))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # only NaN is not itself
        return None
    return value


def _clamped(value: Any, bounds: tuple[float, float], middle: float) -> float:
    number = _number(value)
    least, most = bounds
    return float(min(max(middle if number is None else number, least), most))


def _clamped_whole(value: Any, bounds: tuple[int, int]) -> int:
    least, most = bounds
    number = _number(value)
    if number is None:
        return (least + most) // 2
    return round(min(max(number, least), most))


def _nearest_kernel(value: Any, kernels: tuple[int, ...]) -> int:
    number = _number(value)
    if number is None:
        return kernels[0]
    bounded = min(max(number, 0), max(KERNELS) + 1)
    return min(kernels, key=lambda kernel: (abs(kernel - bounded), kernel))


def _known(value: Any, choices: Sequence[_T]) -> _T:
    return next((choice for choice in choices if type(choice) is type(value) and choice == value), choices[0])


def _check_range(name: str, bounds: Any, least: float, most: float, wholes: bool = False) -> None:
    kind = "whole numbers" if wholes else "numbers"
    numbers = isinstance(bounds, tuple) and len(bounds) == 2 and all(_number(bound) is not None for bound in bounds)
    if not numbers or (wholes and not all(map(whole, bounds))):
        raise ConfigError(f"{name} of the space must be two {kind}, the least and the most, not {bounds!r}")
    if any(one > other for one, other in pairwise((least, *bounds, most))):
        limit = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise ConfigError(f"{name} of the space must be {limit} and in rising order, not {bounds!r}")


def _check_choices(name: str, chosen: Any, known: Sequence[Any]) -> None:
    if not isinstance(chosen, tuple) or not chosen:
        raise ConfigError(f"{name} of the space must be a tuple of some of {known!r}, not {chosen!r}")
    for choice in chosen:
        if choice not in known or isinstance(choice, bool):
            raise ConfigError(f"{name} of the space: there is no {choice!r}{nearest(str(choice), map(str, known))}")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"{name} of the space names one choice twice: {chosen!r}; leave the second out")
