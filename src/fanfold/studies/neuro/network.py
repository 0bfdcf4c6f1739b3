"""A genome as a network: its tensors, how they start, and what it makes of images.

The network is a function of named tensors, not an object that owns them: one after another, stacked, or in a CUDA
graph, it is the same arithmetic on the same names.  See `genome` for the names.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fanfold.studies.neuro.genome import Conv, NetworkGenome
from fanfold.studies.neuro.layout import halving
from fanfold.studies.neuro.morph import fresh

#: Of batch normalisation.
EPSILON, MOMENTUM = 1e-5, 0.1
LOTS = 2**24
_WORD = 2**64
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def trained(name: str) -> bool:
    """Whether a tensor is trained, and no running statistic."""
    return not name.endswith((".mean", ".var"))


#: The tensors of a network that has seen nothing.
initial = fresh


def forward(
    genome: NetworkGenome, net: Mapping[str, Tensor], images: Tensor, bases: Sequence[int | Tensor] | None = None
) -> Tensor:
    """The outputs.  With `bases`, one for each dense layer, the network is being trained.

    Each decides what its layer drops, or has the factors of its nodes.
    """
    x, training = images, bases is not None
    for i, conv in enumerate(genome.conv):
        x = activate(conv.activation, pooled(_convolved(conv, i, net, x, training)))
    x = x.mean((2, 3)) if genome.conv and genome.head == "mean" else x.flatten(1)
    if "attend.key" in net:
        x = torch.cat([x, _attended(net, x)], 1)
    for j, dense in enumerate(genome.dense):
        before, x = x, F.linear(x, net[f"dense.{j}.weight"], net[f"dense.{j}.bias"])
        if genome.dense_norm == "layer":
            x = F.layer_norm(x, x.shape[1:], net[f"dense_norm.{j}.weight"], net[f"dense_norm.{j}.bias"], EPSILON)
        elif genome.dense_norm == "batch":
            x = _normed(f"dense_norm.{j}", net, x, training)
        x = activate(dense.activation, x)
        if bases is not None and genome.dropout > 0:
            base = bases[j]
            x = x * base if isinstance(base, Tensor) else dropped(x, *rarity(genome.dropout), base)
        if dense.block == "residual":
            x = x + fitted(before, x.shape[1])
    return F.linear(x, net["out.weight"], net["out.bias"])


def _through(genome: NetworkGenome, images: Tensor, net: Mapping[str, Tensor]) -> Tensor:
    return forward(genome, net, images)


def averaged(nets: Sequence[tuple[NetworkGenome, Mapping[str, Tensor]]], images: Tensor) -> Tensor:
    """The mean of the outputs of several networks; those of one genome are stacked and go through as one."""
    kinds: dict[NetworkGenome, list[Mapping[str, Tensor]]] = {}
    for genome, net in nets:
        kinds.setdefault(genome, []).append(net)
    total: Tensor | float = 0.0
    for genome, same in kinds.items():
        if len(same) == 1:
            total = total + forward(genome, same[0], images)
        else:
            stacked = {name: torch.stack([net[name] for net in same]) for name in same[0]}
            total = total + torch.vmap(functools.partial(_through, genome, images))(stacked).sum(0)
    assert isinstance(total, Tensor)
    return total / len(nets)


def _convolved(conv: Conv, i: int, net: Mapping[str, Tensor], x: Tensor, training: bool) -> Tensor:
    before = x
    if (depth := net.get(f"conv.{i}.depth")) is not None:
        x = F.conv2d(x, depth, padding=around(depth), groups=len(depth))
    weight = net[f"conv.{i}.weight"]
    x = F.conv2d(x, weight, net.get(f"conv.{i}.bias"), padding=around(weight))
    if f"norm.{i}.weight" in net:
        x = _normed(f"norm.{i}", net, x, training)
    if "squeeze" in conv.block:
        within = torch.relu(F.linear(x.mean((2, 3)), net[f"squeeze.{i}.down"]))
        x = x * (2.0 * torch.sigmoid(F.linear(within, net[f"squeeze.{i}.up"])))[:, :, None, None]
    return x + fitted(before, x.shape[1]) if "residual" in conv.block else x


def _normed(name: str, net: Mapping[str, Tensor], x: Tensor, training: bool) -> Tensor:
    weight, bias, mean, var = (net[f"{name}.{part}"] for part in ("weight", "bias", "mean", "var"))
    return F.batch_norm(x, mean, var, weight, bias, training, MOMENTUM, EPSILON)


def _attended(net: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """The features of each row as tokens that attend to each other: their mean."""
    tokens = rows[:, :, None] * net["attend.embed"] + net["attend.place"]
    query, key, value = (tokens @ net[f"attend.{part}"] for part in ("query", "key", "value"))
    chances = (query @ key.transpose(1, 2) / math.sqrt(tokens.shape[2])).softmax(2)
    return torch.relu(tokens + chances @ value).mean(1)


def around(kernel: Tensor) -> tuple[int, int]:
    """The padding that keeps the size of a map."""
    return kernel.shape[-2] // 2, kernel.shape[-1] // 2


def pooled(x: Tensor) -> Tensor:
    """Maps with their sides halved while they are long enough."""
    by = halving(x.shape[-2], x.shape[-1])
    return x if by == (1, 1) else F.max_pool2d(x, by)


def fitted(x: Tensor, channels: int) -> Tensor:
    """As many channels as asked for: the first ones, or all and zeros."""
    missing = channels - x.shape[1]
    return x[:, :channels] if missing <= 0 else F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))


_ACTIVATIONS: dict[str, Any] = {
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "selu": torch.selu,
}


def activate(name: str, x: Tensor) -> Tensor:
    activated: Tensor = _ACTIVATIONS[name](x)
    return activated


# What is dropped follows from a number of the network, the step and the layer alone: the same wherever, beside
# whatever and on whichever device a network is trained.  64-bit integers wrap around, in Python made to.


def dropout_base(seed: int, step: int, layer: int) -> int:
    """The number that decides what one layer drops in one step, as a signed 64-bit integer."""
    word = _mixed(_mixed(seed % _WORD + _GOLDEN * (step + 1)) ^ (_SECOND * (layer + 1)))
    return _signed(word)


def dropout_bases(seeds: Sequence[int], layers: Sequence[int], steps: range) -> NDArray[np.int64]:
    """`dropout_base` of every step (in rows) for pairs of a seed and a layer (in columns)."""
    first = np.arange(steps.start + 1, steps.stop + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    salts = np.array([_SECOND * (layer + 1) % _WORD for layer in layers], np.uint64)
    words = np.array([seed % _WORD for seed in seeds], np.uint64) + first[:, None]
    return _scrambled(_scrambled(words) ^ salts).view(np.int64)


def _scrambled(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def _mixed(word: int) -> int:
    word %= _WORD
    word = (word ^ (word >> 30)) * _FIRST % _WORD
    word = (word ^ (word >> 27)) * _SECOND % _WORD
    return word ^ (word >> 31)


def _signed(word: int) -> int:
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word


def rarity(rate: float) -> tuple[int, float]:
    """For a share to be dropped: the lot from which on a place is kept, and what the kept are multiplied by."""
    return round(rate * LOTS), 1.0 / (1.0 - rate)


def dropped(x: Tensor, least: int | Tensor, scale: float | Tensor, base: int | Tensor) -> Tensor:
    """`x` of (..., rows, columns) with some places set to 0 and the rest scaled up, as `rarity` says.

    The others are numbers, or tensors that broadcast against `x` where there are networks in front of the rows.
    """
    return x * (lots(x.shape[-2], x.shape[-1], base, x.device) >= least) * scale


def lots(rows: int, columns: int, base: int | Tensor, device: torch.device) -> Tensor:
    """Whole numbers from 0 to below LOTS for every place, evenly spread, which follow from the base."""
    return drawn(places(rows * columns, device).view(rows, columns), base)


def places(count: int, device: torch.device) -> Tensor:
    """A number for every place of a layer, far from its neighbours'."""
    return torch.arange(count, device=device) * _signed(_GOLDEN)


def drawn(place: Tensor, base: int | Tensor) -> Tensor:
    """The lots of places under a base, or each under its own."""
    word = place ^ base
    word = (word ^ (word >> 32)) * _signed(_FIRST)
    word = (word ^ (word >> 29)) * _signed(_SECOND)
    return (word >> 40) & (LOTS - 1)
