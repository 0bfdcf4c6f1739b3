"""What is searched: a network with the way it is trained.

Each convolution keeps the size of its map (padding is half the kernel), is normalised or has a bias, is halved by a
maximum while the shorter side of the map is at least 4, and is activated.  Its block says what is added: `depthwise`
splits it into a convolution of each channel and a mix of all, `squeeze` scales each map by a factor between 0 and 2
that follows from the means of all maps, and `residual` adds what came in, cut or filled with zeros to fit.  The last
map is laid out flat, or its mean taken.  Dense layers follow, each normalised if the genome says so, activated, dropped
out, and added to what came in if it is residual; a last one gives the outputs.  With `attention`, the features of a
table are also seen as tokens of that width that attend to each other, and their mean joins what the dense layers see.
So every genome can be built for data of any shape.  A side of length 1 is neither convolved over nor halved: sequences
have convolutions in one dimension.

`layout` has the names and sizes of the tensors, which are laid out as PyTorch has them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

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
BLOCKS = ("plain", "residual", "depthwise", "squeeze", "residual+squeeze", "residual+depthwise")
DENSE_BLOCKS = ("plain", "residual")
DENSE_NORMS = ("none", "batch", "layer")
HEADS = ("flat", "mean")
SCHEDULES = ("constant", "cosine", "one-cycle")
#: How images are varied in training; `data`: as the data say.
AUGMENTED = ("data", "none", "shift", "flip", "shift+flip", "warp")
#: What the newer genes of a whole network are chosen from: fields of the space.
CHOSEN = {
    "head": "heads",
    "dense_norm": "dense_norms",
    "attention": "attentions",
    "schedule": "schedules",
    "decay": "decays",
    "smoothing": "smoothings",
    "augment": "augments",
}

#: A table of more features has no attention, which takes their square.
ATTENDED = 64
_T = TypeVar("_T")


@functools.cache
def _defaults(kind: type[Any]) -> list[tuple[str, Any]]:
    return [(each.name, each.default) for each in fields(kind) if each.default is not MISSING]


class Sparse:
    """A dataclass that is written and shown without the fields that have their default.

    So records, keys and seeds of before a field existed are those of its default.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        held = self.__dict__
        for name, default in _defaults(type(self)):  # type: ignore[arg-type]
            if name in held and held[name] == default:
                del held[name]

    def __repr__(self) -> str:
        held = [f"{name}={self.__dict__[name]!r}" for name in self.__dataclass_fields__ if name in self.__dict__]
        return f"{type(self).__name__}({', '.join(held)})"


@dataclass(frozen=True, repr=False)
class Shape(Sparse):
    """What networks see and what they say.

    `kind`: `images`; a `table` of (features, 1, 1); a `sequence` of (channels, 1, length).  `target`: one of several
    classes; `numbers`; `labels`, of which any may hold at once.  `classes` is how many of them there are.  With
    `balanced`, all classes count the same in the score.
    """

    channels: int
    height: int
    width: int
    classes: int
    kind: str = "images"
    target: str = "classes"
    balanced: bool = False

    @property
    def scored(self) -> str:
        """How networks are scored."""
        return "balanced" if self.balanced else self.target

    def __post_init__(self) -> None:
        for name in ("channels", "height", "width", "classes"):
            if not whole(value := getattr(self, name)) or value < 1:
                raise ConfigError(f"{name} of the images must be a whole number of at least 1, not {value!r}")
        for name, known in (("kind", KINDS), ("target", TARGETS)):
            if (word := getattr(self, name)) not in known:
                raise ConfigError(f"{name} of a shape: there is no {word!r}{nearest(str(word), known)}")
        if not isinstance(self.balanced, bool) or (self.balanced and self.target != "classes"):
            raise ConfigError(f"balanced of a shape: {self.balanced!r} for {self.target}: only classes can be (True)")
        super().__post_init__()


@dataclass(frozen=True, repr=False)
class Conv(Sparse):
    """A convolution: how many maps it makes, the side of its kernel, what it is activated by, and its block."""

    filters: int
    kernel: int
    activation: str
    block: str = "plain"


@dataclass(frozen=True, repr=False)
class Dense(Sparse):
    """A layer in which every node sees everything."""

    nodes: int
    activation: str
    block: str = "plain"


@dataclass(frozen=True, repr=False)
class NetworkGenome(Sparse):
    """A network and how it is trained.  A plain value that promises nothing: `valid` checks it, `repair` fixes it.

    `schedule` is how the learning rate moves while a network is trained up to a rung.  `decay` shrinks all numbers by
    that share of the learning rate in each step, beside what the optimiser does.  `smoothing` is the share of a label
    that is spread over all classes.
    """

    conv: tuple[Conv, ...]
    dense: tuple[Dense, ...]
    norm: str
    dropout: float
    optimiser: str
    learning_rate: float
    head: str = "flat"
    dense_norm: str = "none"
    attention: int = 0
    schedule: str = "constant"
    decay: float = 0.0
    smoothing: float = 0.0
    augment: str = "data"

    @property
    def plain(self) -> bool:
        """Whether it has only what every engine can stack: no newer blocks, and no newer ways of training."""
        return not CHOSEN.keys() & self.__dict__.keys() and set(self.block_names) <= {"plain"}

    @property
    def block_names(self) -> list[str]:
        return [conv.block for conv in self.conv] + [dense.block for dense in self.dense]


@dataclass(frozen=True)
class Individual:
    """A candidate: a genome, and the weights of a parent where it is not to start from nothing."""

    genome: NetworkGenome
    inherited: Blob | None = None


@dataclass(frozen=True)
class Ensemble:
    """Trained networks that answer together: their outputs are averaged."""

    members: tuple[Individual, ...]


def key(genome: NetworkGenome) -> str:
    """What a genome is, as a short text: equal for genomes that stand for the same training.

    Floats count to six digits; a dropout without dense layers and a norm without convolutions do nothing.
    """
    plain = replace(
        genome,
        norm=genome.norm if genome.conv else "none",
        head=genome.head if genome.conv else "flat",
        dense_norm=genome.dense_norm if genome.dense else "none",
        dropout=_plain(genome.dropout) if genome.dense else 0.0,
        learning_rate=_plain(genome.learning_rate),
    )
    return digest(encode(plain, "a genome")).hex()


def describe(genome: NetworkGenome) -> str:
    """A genome in one line, as people write it: `conv 16x3 relu, batch norm, dense 128 tanh, adam 0.001`."""

    def layer(text: str, block: str) -> str:
        return text if block == "plain" else f"{text} {block}"

    parts = [f"attention {genome.attention}"] * bool(genome.attention)
    parts += [layer(f"conv {conv.filters}x{conv.kernel} {conv.activation}", conv.block) for conv in genome.conv]
    if genome.conv:
        parts += [f"{genome.norm} norm"] * (genome.norm != "none") + ["mean"] * (genome.head == "mean")
    parts += [layer(f"dense {dense.nodes} {dense.activation}", dense.block) for dense in genome.dense]
    if genome.dense:
        parts += [f"dense {genome.dense_norm} norm"] * (genome.dense_norm != "none")
        parts += [f"dropout {genome.dropout:g}"] * bool(genome.dropout)
    rate = f"{genome.optimiser} {genome.learning_rate:g}"
    parts.append(rate if genome.schedule == "constant" else f"{rate} {genome.schedule}")
    parts += [f"{name} {getattr(genome, name):g}" for name in ("decay", "smoothing") if getattr(genome, name)]
    return ", ".join([*parts, *([f"augment {genome.augment}"] if genome.augment != "data" else [])])


def individual_of(value: Any) -> Individual:
    """A candidate as it was asked, though it may have lost its type on the way through a ledger."""
    return value if isinstance(value, Individual) else _converted(value, Individual)


def members_of(value: Any) -> tuple[Individual, ...]:
    """The networks of an ensemble, or of a candidate the one that it is."""
    if isinstance(value, Mapping) and "members" in value:
        value = _converted(value, Ensemble)
    return value.members if isinstance(value, Ensemble) else (individual_of(value),)


def genome_of(value: Any) -> NetworkGenome:
    """A genome, though it may have lost its type on the way through a ledger."""
    return value if isinstance(value, NetworkGenome) else _converted(value, NetworkGenome)


def _converted(value: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this is not a network of this study: {value!r:.100} ({error})") from error


def _plain(value: float) -> float:
    return float(f"{value:.6g}") + 0.0  # adding 0.0 makes -0.0 a plain zero


def whole(value: Any) -> bool:
    """Whether a value is a whole number, and not True or False."""
    return isinstance(value, int) and not isinstance(value, bool)
