"""Networks of one family stacked: their tensors laid end to end, and one operation for all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fanfold.studies.neuro.genome import NetworkGenome, Shape
from fanfold.studies.neuro.layout import layout, operations
from fanfold.studies.neuro.network import EPSILON, MOMENTUM, activate, around, drawn, places, pooled, rarity, trained
from fanfold.studies.neuro.optimiser import Flat, Moments, gap
from fanfold.tensors import Arrays

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8


def family(genome: NetworkGenome, shape: Shape) -> str:
    """What networks must share to be stacked: everything but their numbers, the learning rate and the share dropped."""
    conv = " ".join(f"{conv.filters}x{conv.kernel} {conv.activation}" for conv in genome.conv)
    dense = " ".join(f"{dense.nodes} {dense.activation}" for dense in genome.dense)
    images = f"{shape.channels}x{shape.height}x{shape.width} to {shape.classes}"
    return " | ".join((images, conv, genome.norm, dense, "dropout" * _drops(genome), genome.optimiser))


def _drops(genome: NetworkGenome) -> bool:
    return genome.dropout > 0 and bool(genome.dense)


class Stack:
    """Networks of one family, as a function of tensors that hold all of them: `conv.0.weight` is (count, filters, ...).

    The channels of maps are (network, channel), which convolutions in groups keep apart.
    """

    def __init__(self, genome: NetworkGenome, shape: Shape, count: int) -> None:
        self.genome, self.shape, self.count = genome, shape, count
        self.key, self.cost = (family(genome, shape), count), count * operations(genome, shape)
        sizes = layout(genome, shape).tensors
        self.trained = {name: (count, *size) for name, size in sizes.items() if trained(name)}
        self.running = {name: (count, *size) for name, size in sizes.items() if not trained(name)}
        #: The widths of the layers that drop.
        self.dropping = tuple(dense.nodes for dense in genome.dense) if _drops(genome) else ()

    def scores(self, net: Mapping[str, Tensor], images: Tensor, factors: Sequence[Tensor] | None = None) -> Tensor:
        """The scores of (network, image, class).  With `factors` of dropout, maybe none, networks are being trained."""
        genome, x = self.genome, images
        for i, conv in enumerate(genome.conv):
            bias = net.get(f"conv.{i}.bias")
            weight = net[f"conv.{i}.weight"].flatten(0, 1)
            x = F.conv2d(
                x,
                weight,
                None if bias is None else bias.flatten(),
                padding=around(weight),
                groups=self.count if i else 1,  # all networks see the same images
            )
            if genome.norm == "batch":
                mean, var, weight, shift = (
                    net[f"norm.{i}.{part}"].view(-1) for part in ("mean", "var", "weight", "bias")
                )
                x = F.batch_norm(x, mean, var, weight, shift, factors is not None, MOMENTUM, EPSILON)
            x = activate(conv.activation, pooled(x))
        if genome.conv:
            x = x.reshape(len(x), self.count, -1).transpose(0, 1)
        else:
            x = x.flatten(1).expand(self.count, -1, -1)
        for j, dense in enumerate(genome.dense):
            x = activate(dense.activation, _linear(x, net[f"dense.{j}.weight"], net[f"dense.{j}.bias"]))
            if factors:
                x = x * factors[j]
        return _linear(x, net["out.weight"], net["out.bias"])

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean cross entropy of each network."""
        if self.count == 1:
            return F.cross_entropy(scores[0], labels).view(1)
        each = F.cross_entropy(scores.flatten(0, 1), labels.repeat(self.count), reduction="none")
        return each.view(self.count, -1).mean(1)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if len(x) == 1:  # spares a kernel, which counts where networks are many and small
        return F.linear(x[0], weight[0], bias[0]).unsqueeze(0)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class Ground:
    """Tensors of stacks laid end to end in one vector.  `views` has those of each stack by name, `parts` its slice."""

    def __init__(self, stacks: Sequence[Mapping[str, tuple[int, ...]]], where: Mapping[str, Any]) -> None:
        self.parts: list[slice] = []
        tensors: dict[str, Tensor] = {"": torch.zeros(0, **where)}  # there may be no others
        self._spans: list[dict[str, tuple[slice, tuple[int, ...]]]] = []
        self._lengths: list[int] = []
        place = 0
        for s, sizes in enumerate(stacks):
            start, spans = place, {}
            for name, size in sizes.items():
                length = math.prod(size)
                spans[name] = (slice(place, place + length), size)
                tensors[f"{s} {name}"] = torch.zeros(size, **where)
                self._lengths += [*([math.prod(size[1:])] * size[0]), gap(length)]
                place += length + gap(length)
            self._spans.append(spans)
            self.parts.append(slice(start, place))
        flat = Flat(tensors)
        self.vector = flat.vector
        self.views = [{name: flat.views[f"{s} {name}"] for name in sizes} for s, sizes in enumerate(stacks)]

    def put(self, vector: Tensor, networks: Sequence[Sequence[Mapping[str, NDArray[Any]]]]) -> None:
        """Fill a vector of this layout with the arrays of the networks of each stack."""
        host = _beside(vector)
        numbers = host.numpy()
        blocks = [
            (numbers[span].reshape(size), [arrays[name] for arrays in stacked])
            for spans, stacked in zip(self._spans, networks, strict=True)
            for name, (span, size) in spans.items()
        ]

        def fill(pair: tuple[NDArray[Any], NDArray[Any]]) -> None:
            target, array = pair
            target[...] = array

        at_once(fill, [(block[k], array) for block, arrays in blocks for k, array in enumerate(arrays)])
        for spans in self._spans:
            for span, size in spans.values():
                numbers[span.stop : span.stop + gap(math.prod(size))] = 0
        vector.copy_(host)

    def taken(self, vector: Tensor) -> list[list[Arrays]]:
        """The arrays of the networks of each stack from a vector of this layout: parts of one copy."""
        host = _beside(vector).copy_(vector).numpy()
        stacks = []
        for spans in self._spans:
            blocks = {name: host[span].reshape(size) for name, (span, size) in spans.items()}
            count = max((len(block) for block in blocks.values()), default=0)
            stacks.append([{name: block[k] for name, block in blocks.items()} for k in range(count)])
        return stacks

    def spread(self, values: Sequence[Sequence[float]]) -> Tensor:
        """A vector of this layout in which all numbers of a network are that network's value."""
        each: list[float] = []
        for spans, stacked in zip(self._spans, values, strict=True):
            each += [*stacked, 0.0] * len(spans)
        repeats = torch.tensor(self._lengths, device=self.vector.device)
        those = torch.tensor(each, dtype=self.vector.dtype, device=self.vector.device)
        return those.repeat_interleave(repeats, output_size=len(self.vector))


def _beside(vector: Tensor) -> Tensor:
    """Room for a vector in memory that the processor can read, and a GPU copies to and from fast."""
    return torch.empty(len(vector), dtype=vector.dtype, pin_memory=vector.is_cuda)


class Mover:
    """The trained numbers of all stacks with one optimiser, which moves them in a few operations."""

    def __init__(
        self, kind: str, stacks: Sequence[int], sizes: Sequence[Mapping[str, tuple[int, ...]]], where: Any
    ) -> None:
        self.kind, self.stacks = kind, stacks
        self.ground = Ground(sizes, where)
        self.moments = Moments(kind, self.ground.vector)
        self.slope, self.rate = torch.zeros_like(self.ground.vector), torch.zeros_like(self.ground.vector)
        self.scales = torch.ones(2, **where)

    def move(self) -> None:
        self.moments.move(self.ground.vector, self.slope, self.rate, (self.scales[0], self.scales[1]))


class Dropout:
    """What every layer of every network drops in a step, found in one go: factors of 0, or of what the kept grow by."""

    def __init__(self, stacks: Sequence[Stack], rows: int, where: Mapping[str, Any]) -> None:
        device = where["device"]
        self.sizes = [[(stack.count, rows, nodes) for nodes in stack.dropping] for stack in stacks]
        blocks = [size for sizes in self.sizes for size in sizes]
        lengths = [rows * nodes for count, _, nodes in blocks for _ in range(count)]
        self._place = torch.cat(
            [places(rows * nodes, device).repeat(count) for count, _, nodes in blocks] or [_none(device)]
        )
        repeats = torch.tensor(lengths, dtype=torch.int64, device=device)
        self._owner = torch.arange(len(lengths), device=device, dtype=torch.int32).repeat_interleave(
            repeats, output_size=sum(lengths)
        )
        self._least = torch.zeros(sum(lengths), dtype=torch.int32, device=device)
        self._scale = torch.zeros(sum(lengths), **where)
        #: One for each network and layer, in the order of `columns`.
        self.bases = torch.zeros(len(lengths), dtype=torch.int64, device=device)

    def columns(self, networks: Sequence[Sequence[Any]]) -> list[tuple[Any, int]]:
        """Networks of stacks, each with a layer of it that drops, in the order of `bases`."""
        return [
            (each, layer)
            for sizes, stacked in zip(self.sizes, networks, strict=True)
            for layer in range(len(sizes))
            for each in stacked
        ]

    def put(self, genomes: Sequence[Sequence[NetworkGenome]]) -> None:
        rarities = [rarity(genome.dropout) for genome, _ in self.columns(genomes)]
        if not rarities:
            return
        for target, values in zip((self._least, self._scale), zip(*rarities)):
            target.copy_(torch.tensor(values, dtype=target.dtype, device=target.device).index_select(0, self._owner))

    def factors(self) -> list[list[Tensor]]:
        """Of every stack, of every layer that drops: (network, image, node)."""
        if not len(self.bases):
            return [[] for _ in self.sizes]
        kept = (drawn(self._place, self.bases.index_select(0, self._owner)) >= self._least) * self._scale
        blocks = iter(torch.split(kept, [math.prod(size) for sizes in self.sizes for size in sizes]))
        return [[next(blocks).view(size) for size in sizes] for sizes in self.sizes]


def _none(device: Any) -> Tensor:
    return torch.zeros(0, dtype=torch.int64, device=device)


def at_once(do: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """In threads: for work on arrays of the processor, most of which is done outside the interpreter."""
    threads = min(_THREADS, os.cpu_count() or 1, len(items) // 8)
    if threads < 2:
        return [do(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(do, items))
