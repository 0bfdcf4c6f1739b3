"""The sizes of a network on data of one shape: its maps and tensors, and what it takes to train and to run it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fanfold.studies.neuro.genome import NetworkGenome, Shape

#: A map is halved only while its shorter side is at least this.
POOLED = 4

#: Bytes for one trained number: itself and its slope, and what the optimiser remembers of it (SGD: its momentum).
_TRAINED = {"adam": 16, "adamw": 16, "sgd": 12, "rmsprop": 12}


@dataclass(frozen=True)
class Layout:
    """The sizes of a network on images of one shape.

    `maps` are channels, height and width: of the images first, then behind each convolution; `pooled` says which of
    the convolutions are halved.  `tensors` has the shape of each by name, in the order of the network.
    """

    maps: tuple[tuple[int, int, int], ...]
    pooled: tuple[bool, ...]
    tensors: Mapping[str, tuple[int, ...]]

    @property
    def features(self) -> int:
        """How many numbers the last map is when it is laid out flat."""
        return math.prod(self.maps[-1])


def layout(genome: NetworkGenome, shape: Shape) -> Layout:
    """The size of every map and of every tensor."""
    channels, height, width = shape.channels, shape.height, shape.width
    maps, pooled = [(channels, height, width)], []
    tensors: dict[str, tuple[int, ...]] = {}
    for i, conv in enumerate(genome.conv):
        tensors[f"conv.{i}.weight"] = (conv.filters, channels, conv.kernel, conv.kernel)
        if genome.norm == "batch":
            tensors |= {f"norm.{i}.{part}": (conv.filters,) for part in ("weight", "bias", "mean", "var")}
        else:
            tensors[f"conv.{i}.bias"] = (conv.filters,)
        channels = conv.filters
        pooled.append(min(height, width) >= POOLED)
        if pooled[-1]:
            height, width = height // 2, width // 2
        maps.append((channels, height, width))
    inputs = channels * height * width
    for j, dense in enumerate(genome.dense):
        tensors |= {f"dense.{j}.weight": (dense.nodes, inputs), f"dense.{j}.bias": (dense.nodes,)}
        inputs = dense.nodes
    tensors |= {"out.weight": (shape.classes, inputs), "out.bias": (shape.classes,)}
    return Layout(tuple(maps), tuple(pooled), tensors)


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
    for i in range(len(genome.conv)):
        _, height, width = sizes.maps[i]
        total += 2 * math.prod(sizes.tensors[f"conv.{i}.weight"]) * height * width
    dense = (size for name, size in sizes.tensors.items() if name.endswith(".weight") and len(size) == 2)
    return total + sum(2 * math.prod(size) for size in dense)


def activation_bytes(genome: NetworkGenome, shape: Shape) -> int:
    """Bytes that the forward pass of one image leaves for the backward one.

    Of a convolution: its output, that again normalised, what pooling leaves and where it was found, and what
    activation makes of it.  Of a dense layer: its output, activated, and what was dropped of it.
    """
    sizes = layout(genome, shape)
    total = 4 * math.prod(sizes.maps[0])
    for i, conv in enumerate(genome.conv):
        _, height, width = sizes.maps[i]
        made, left = conv.filters * height * width, math.prod(sizes.maps[i + 1])
        total += 4 * made * (2 if genome.norm == "batch" else 1) + 4 * left + (12 * left if sizes.pooled[i] else 0)
    return total + sum(dense.nodes * (13 if genome.dropout > 0 else 8) for dense in genome.dense) + 4 * shape.classes


def memory(genome: NetworkGenome, shape: Shape, batch: int) -> int:
    """An estimate of the bytes that training takes at its peak, without the data and the library's own workspace.

    Every trained number takes 16 bytes with Adam and AdamW, 12 with RMSprop and with SGD (which has momentum); to that
    comes what the forward pass of a batch keeps.
    """
    return parameters(genome, shape) * _TRAINED[genome.optimiser] + batch * activation_bytes(genome, shape)
