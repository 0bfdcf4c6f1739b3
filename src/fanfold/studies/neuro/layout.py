"""The sizes of a network on data of one shape: its maps and tensors, and what it takes to train and to run it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fanfold.studies.neuro.genome import ATTENDED, NetworkGenome, Shape

#: A map is halved only while its shorter side is at least this.
POOLED = 4

#: Bytes for one trained number: itself and its slope, and what the optimiser remembers of it (SGD: its momentum).
_TRAINED = {"adam": 16, "adamw": 16, "sgd": 12, "rmsprop": 12}


@dataclass(frozen=True)
class Layout:
    """The sizes of a network on data of one shape.

    `maps` are channels, height and width: of the data first, then behind each convolution; `pooled` says which of the
    convolutions are halved.  `features` is how many numbers the first dense layer sees.  `tensors` has the shape of
    each by name, in the order of the network:

    - of convolution 0 `conv.0.depth` (depthwise), `conv.0.weight`, `conv.0.bias` (without a norm), `norm.0.weight`,
      `norm.0.bias`, `norm.0.mean`, `norm.0.var` (with one; the last two are running statistics), `squeeze.0.down` and
      `squeeze.0.up`;
    - of the attention `attend.embed`, `attend.place`, `attend.query`, `attend.key`, `attend.value`;
    - of dense layer 0 `dense.0.weight`, `dense.0.bias`, and of its norm the parts of `dense_norm.0`; and `out.weight`,
      `out.bias`.
    """

    maps: tuple[tuple[int, int, int], ...]
    pooled: tuple[bool, ...]
    tensors: Mapping[str, tuple[int, ...]]
    features: int


_PARTS = ("weight", "bias", "mean", "var")


def layout(genome: NetworkGenome, shape: Shape) -> Layout:
    """The size of every map and of every tensor."""
    channels, height, width = shape.channels, shape.height, shape.width
    maps, pooled = [(channels, height, width)], []
    tensors: dict[str, tuple[int, ...]] = {}
    for i, conv in enumerate(genome.conv):
        kernel = (conv.kernel if height > 1 else 1, conv.kernel if width > 1 else 1)
        if "depthwise" in conv.block:
            tensors[f"conv.{i}.depth"], kernel = (channels, 1, *kernel), (1, 1)
        tensors[f"conv.{i}.weight"] = (conv.filters, channels, *kernel)
        if genome.norm == "batch":
            tensors |= {f"norm.{i}.{part}": (conv.filters,) for part in _PARTS}
        else:
            tensors[f"conv.{i}.bias"] = (conv.filters,)
        if "squeeze" in conv.block:
            within = max(1, conv.filters // 4)
            tensors |= {f"squeeze.{i}.down": (within, conv.filters), f"squeeze.{i}.up": (conv.filters, within)}
        channels, by = conv.filters, halving(height, width)
        pooled.append(by != (1, 1))
        height, width = height // by[0], width // by[1]
        maps.append((channels, height, width))
    inputs = channels if genome.conv and genome.head == "mean" else channels * height * width
    if genome.attention and shape.kind == "table" and shape.channels <= ATTENDED and not genome.conv:
        size = genome.attention
        tensors |= {f"attend.{part}": (shape.channels, size) for part in ("embed", "place")}
        tensors |= {f"attend.{part}": (size, size) for part in ("query", "key", "value")}
        inputs += size
    features = inputs
    for j, dense in enumerate(genome.dense):
        tensors |= {f"dense.{j}.weight": (dense.nodes, inputs), f"dense.{j}.bias": (dense.nodes,)}
        if genome.dense_norm != "none":
            parts = _PARTS if genome.dense_norm == "batch" else _PARTS[:2]
            tensors |= {f"dense_norm.{j}.{part}": (dense.nodes,) for part in parts}
        inputs = dense.nodes
    tensors |= {"out.weight": (shape.classes, inputs), "out.bias": (shape.classes,)}
    return Layout(tuple(maps), tuple(pooled), tensors, features)


def halving(height: int, width: int) -> tuple[int, int]:
    """What the sides of a map are divided by: 2, or 1 for a side of length 1 and where the shorter other is short."""
    if min((side for side in (height, width) if side > 1), default=0) < POOLED:
        return 1, 1
    return 1 + (height > 1), 1 + (width > 1)


def parameters(genome: NetworkGenome, shape: Shape) -> int:
    """How many numbers are trained; running statistics are not."""
    tensors = layout(genome, shape).tensors.items()
    return sum(math.prod(size) for name, size in tensors if not name.endswith((".mean", ".var")))


def operations(genome: NetworkGenome, shape: Shape) -> int:
    """Floating-point operations for one image, forward: two for each multiplication and addition of the layers.

    Training takes about three times as many.  What normalising, pooling and activating take is left out.
    """
    sizes = layout(genome, shape)
    total = 0
    for name, size in sizes.tensors.items():
        if len(size) > 1:
            group, place = name.split(".")[:2]
            times = math.prod(sizes.maps[int(place)][1:]) if group == "conv" else 1
            times = shape.channels if place in ("query", "key", "value") else times
            total += 2 * math.prod(size) * times
    if "attend.key" in sizes.tensors:  # every token looks at every other, and takes a part of it
        total += 4 * shape.channels**2 * genome.attention
    return total


def activation_bytes(genome: NetworkGenome, shape: Shape) -> int:
    """Bytes that the forward pass of one image leaves for the backward one.

    Of a convolution: its output, that again normalised, squeezed and with what came in, what pooling leaves and where
    it was found, and what activation makes of it.  Of a dense layer: its output, normalised, activated, and what was
    dropped of it.
    """
    sizes = layout(genome, shape)
    total = 4 * math.prod(sizes.maps[0])
    for i, conv in enumerate(genome.conv):
        channels, height, width = sizes.maps[i]
        made, left = conv.filters * height * width, math.prod(sizes.maps[i + 1])
        kept = 1 + (genome.norm == "batch") + ("squeeze" in conv.block)
        total += 4 * made * kept + 4 * left + (12 * left if sizes.pooled[i] else 0)
        total += 4 * channels * height * width * ("depthwise" in conv.block)
    if "attend.key" in sizes.tensors:
        total += 4 * shape.channels * (7 * genome.attention + 2 * shape.channels)
    node = (13 if genome.dropout > 0 else 8) + 4 * (genome.dense_norm != "none")
    return total + sum(dense.nodes * node for dense in genome.dense) + 4 * shape.classes


def memory(genome: NetworkGenome, shape: Shape, batch: int) -> int:
    """An estimate of the bytes that training takes at its peak, without the data and the library's own workspace.

    Every trained number takes 16 bytes with Adam and AdamW, 12 with RMSprop and with SGD (which has momentum); to that
    comes what the forward pass of a batch keeps.
    """
    return parameters(genome, shape) * _TRAINED[genome.optimiser] + batch * activation_bytes(genome, shape)
