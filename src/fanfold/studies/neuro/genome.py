"""What is searched: a convolutional network with the way it is trained, and what it takes to build and to run it.

A genome stands for this network.  Each convolution keeps the size of its map (padding is half the kernel), is
normalised or has a bias, is halved by a 2x2 maximum while the shorter side of the map is at least 4, and is activated.
The last map is laid out flat; dense layers follow, each activated and then dropped out, and a last one gives the
classes.  So every genome can be built for images of any size.  Its tensors are called `conv.0.weight`, `conv.0.bias`
(without normalisation), `norm.0.weight`, `norm.0.bias`, `norm.0.mean`, `norm.0.var` (with it; the last two are running
statistics), `dense.0.weight`, `dense.0.bias`, `out.weight` and `out.bias`, and laid out as PyTorch has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar

import msgspec

from fanfold.encoding import digest, encode
from fanfold.errors import ConfigError, nearest
from fanfold.types import Blob

ACTIVATIONS = ("relu", "leaky_relu", "tanh", "sigmoid", "selu")
OPTIMISERS = ("adam", "adamw", "sgd", "rmsprop")
NORMS = ("batch", "none")
KERNELS = (1, 3, 5, 7)
KINDS = ("images", "sequence", "table")
TARGETS = ("classes", "numbers", "labels")

_T = TypeVar("_T")


class Sparse:
    """A dataclass that is written and shown without the fields that have their default.

    So records, keys and seeds of before a field existed are those of its default.
    """

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            if each.default is not MISSING and getattr(self, each.name) == each.default:
                self.__dict__.pop(each.name, None)

    def __repr__(self) -> str:
        names = [each.name for each in fields(self) if each.name in self.__dict__]  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


@dataclass(frozen=True, repr=False)
class Shape(Sparse):
    """What networks see and what they say.

    `kind`: `images`; a `table` of (features, 1, 1); a `sequence` of (channels, 1, length).  `target`: one of several
    classes; `numbers`; `labels`, of which any may hold at once.  `classes` is how many of them there are.
    """

    channels: int
    height: int
    width: int
    classes: int
    kind: str = "images"
    target: str = "classes"

    def __post_init__(self) -> None:
        for name in ("channels", "height", "width", "classes"):
            if not _whole(value := getattr(self, name)) or value < 1:
                raise ConfigError(f"{name} of the images must be a whole number of at least 1, not {value!r}")
        for name, known in (("kind", KINDS), ("target", TARGETS)):
            if (word := getattr(self, name)) not in known:
                raise ConfigError(f"{name} of a shape: there is no {word!r}{nearest(str(word), known)}")
        super().__post_init__()


@dataclass(frozen=True)
class Conv:
    """A convolution: how many maps it makes, the side of its kernel, and what it is activated by."""

    filters: int
    kernel: int
    activation: str


@dataclass(frozen=True)
class Dense:
    """A layer in which every node sees everything."""

    nodes: int
    activation: str


@dataclass(frozen=True)
class NetworkGenome:
    """A network and how it is trained.  A plain value that promises nothing: `valid` checks it, `repair` fixes it."""

    conv: tuple[Conv, ...]
    dense: tuple[Dense, ...]
    norm: str
    dropout: float
    optimiser: str
    learning_rate: float

    @property
    def plain(self) -> bool:
        """Whether it has only what every engine can stack: no newer blocks, and no newer ways of training."""
        return True


@dataclass(frozen=True)
class Individual:
    """A candidate: a genome, and the weights of a parent where it is not to start from nothing."""

    genome: NetworkGenome
    inherited: Blob | None = None


@dataclass(frozen=True)
class NetworkSpace:
    """Which genomes are searched: the least and the most of each number, and the choices.

    The default holds networks for small images that a processor trains in seconds.
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

    def __post_init__(self) -> None:
        for name, least in (("conv_layers", 0), ("filters", 1), ("dense_layers", 0), ("nodes", 1)):
            _check_range(name, getattr(self, name), least, math.inf, whole=True)
        _check_range("dropout", self.dropout, 0.0, 0.95)
        _check_range("learning_rates", self.learning_rates, 1e-12, 1e3)
        _check_choices("kernels", self.kernels, KERNELS)
        _check_choices("activations", self.activations, ACTIVATIONS)
        _check_choices("norms", self.norms, NORMS)
        _check_choices("optimisers", self.optimisers, OPTIMISERS)

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


def key(genome: NetworkGenome) -> str:
    """What a genome is, as a short text: equal for genomes that stand for the same training.

    Floats count to six digits; a dropout without dense layers and a norm without convolutions do nothing.
    """
    plain = replace(
        genome,
        norm=genome.norm if genome.conv else "none",
        dropout=_plain(genome.dropout) if genome.dense else 0.0,
        learning_rate=_plain(genome.learning_rate),
    )
    return digest(encode(plain, "a genome")).hex()


def describe(genome: NetworkGenome) -> str:
    """A genome in one line, as people write it: `conv 16x3 relu, batch norm, dense 128 tanh, adam 0.001`."""
    parts = [f"conv {conv.filters}x{conv.kernel} {conv.activation}" for conv in genome.conv]
    if genome.conv and genome.norm != "none":
        parts.append(f"{genome.norm} norm")
    parts += [f"dense {dense.nodes} {dense.activation}" for dense in genome.dense]
    if genome.dense and genome.dropout:
        parts.append(f"dropout {genome.dropout:g}")
    return ", ".join([*parts, f"{genome.optimiser} {genome.learning_rate:g}"])


def individual_of(value: Any) -> Individual:
    """A candidate as it was asked, though it may have lost its type on the way through a ledger."""
    return value if isinstance(value, Individual) else _converted(value, Individual)


def genome_of(value: Any) -> NetworkGenome:
    """A genome, though it may have lost its type on the way through a ledger."""
    return value if isinstance(value, NetworkGenome) else _converted(value, NetworkGenome)


def random_genome(space: NetworkSpace, rng: Random) -> NetworkGenome:
    """Any genome of the space: counts of layers evenly, sizes and learning rates evenly on a logarithmic scale."""
    genome = NetworkGenome(
        conv=tuple(random_conv(space, rng) for _ in range(rng.randint(*space.conv_layers))),
        dense=tuple(random_dense(space, rng) for _ in range(rng.randint(*space.dense_layers))),
        norm=rng.choice(space.norms),
        dropout=round(rng.uniform(*space.dropout), 3),
        optimiser=rng.choice(space.optimisers),
        learning_rate=rounded(math.exp(rng.uniform(*map(math.log, space.learning_rates)))),
    )
    return repair(genome, space)


def random_conv(space: NetworkSpace, rng: Random) -> Conv:
    return Conv(_size(space.filters, rng), rng.choice(space.kernels), rng.choice(space.activations))


def random_dense(space: NetworkSpace, rng: Random) -> Dense:
    return Dense(_size(space.nodes, rng), rng.choice(space.activations))


def rounded(rate: float) -> float:
    """A learning rate to three significant digits: more would only look like knowledge."""
    return float(f"{rate:.3g}")


def repair(genome: NetworkGenome, space: NetworkSpace) -> NetworkGenome:
    """The genome of the space that is nearest, whatever was in the fields; one of the space comes back as it was.

    Numbers go to the nearest bound, and anything else to the middle; unknown names become the first choice; layers
    too many are left out at the end, and layers too few are repeated.
    """

    def activation(layer: Any) -> str:
        return _known(getattr(layer, "activation", None), space.activations)

    def size(layer: Any, name: str) -> int:
        return _clamped_whole(getattr(layer, name, None), getattr(space, name))

    conv = _layers(genome.conv, space.conv_layers)
    kernels = [_nearest_kernel(getattr(layer, "kernel", None), space.kernels) for layer in conv]
    dense = _layers(genome.dense, space.dense_layers)
    return NetworkGenome(
        conv=tuple(Conv(size(layer, "filters"), kernel, activation(layer)) for layer, kernel in zip(conv, kernels)),
        dense=tuple(Dense(size(layer, "nodes"), activation(layer)) for layer in dense),
        norm=_known(genome.norm, space.norms),
        dropout=_clamped(genome.dropout, space.dropout, sum(space.dropout) / 2),
        optimiser=_known(genome.optimiser, space.optimisers),
        learning_rate=_clamped(
            genome.learning_rate, space.learning_rates, rounded(math.sqrt(math.prod(space.learning_rates)))
        ),
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


def _known(value: Any, names: tuple[str, ...]) -> str:
    return value if isinstance(value, str) and value in names else names[0]


def _plain(value: float) -> float:
    return float(f"{value:.6g}") + 0.0  # adding 0.0 makes -0.0 a plain zero


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_range(name: str, bounds: Any, least: float, most: float, whole: bool = False) -> None:
    kind = "whole numbers" if whole else "numbers"
    numbers = isinstance(bounds, tuple) and len(bounds) == 2 and all(_number(bound) is not None for bound in bounds)
    if not numbers or (whole and not all(map(_whole, bounds))):
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


def _converted(value: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is not a network of this study: {value!r:.100} ({error})") from error
