"""Networks of one family stacked: their tensors laid end to end, and one operation for all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fanfold.studies.neuro import network
from fanfold.studies.neuro.genome import Conv, NetworkGenome, Shape
from fanfold.studies.neuro.layout import layout, operations
from fanfold.studies.neuro.network import EPSILON, MOMENTUM, activate, around, drawn, fitted, places, pooled, rarity
from fanfold.studies.neuro.optimiser import Flat, gap
from fanfold.tensors import Arrays

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 8
#: Bytes up to which a copy to a GPU waits for nothing.
_SMALL = 2**16
#: The most places whose dropout is found in one go.
_DRAWN = 2**21


def family(genome: NetworkGenome, shape: Shape) -> str:
    """What networks must share to be stacked: everything but their numbers, the learning rate and the share dropped."""
    return f"{shape!r} {replace(genome, learning_rate=1.0, dropout=0.5 * _drops(genome))!r}"


def stackable(genome: NetworkGenome) -> bool:
    """Whether one operation can serve several such networks; others are trained beside each other."""
    return not genome.attention


def simple(genome: NetworkGenome, shape: Shape, networks: int, images: int) -> bool:
    """Whether `convolutions` can compute so many networks for so many images at a time: plain blocks, and not vast."""
    if not genome.conv or any(conv.block != "plain" for conv in genome.conv):
        return False
    maps = layout(genome, shape).maps
    largest = max(conv.filters * height * width for conv, (_, height, width) in zip(genome.conv, maps))
    return images * shape.height * shape.width < 2**22 and networks * images * largest < 2**31


def _drops(genome: NetworkGenome) -> bool:
    return genome.dropout > 0 and bool(genome.dense)


class Stack:
    """Networks of one family, as a function of tensors that hold all of them: `conv.0.weight` is (count, filters, ...).

    The channels of maps are (network, channel), which convolutions in groups keep apart.  One network by itself is
    computed as if it were alone.
    """

    def __init__(self, genome: NetworkGenome, shape: Shape, count: int, kernels: bool = False) -> None:
        self.genome, self.shape, self.count = genome, shape, count
        #: Whether kernels of our own compute the convolutions.
        self.kernels = kernels
        self.key, self.cost = (family(genome, shape), count), count * operations(genome, shape)
        sizes = layout(genome, shape).tensors
        self.trained = {name: (count, *size) for name, size in sizes.items() if network.trained(name)}
        self.running = {name: (count, *size) for name, size in sizes.items() if not network.trained(name)}
        #: The widths of the layers that drop.
        self.dropping = tuple(dense.nodes for dense in genome.dense) if _drops(genome) else ()

    def outputs(self, net: Mapping[str, Tensor], images: Tensor, dropout: Sequence[Tensor] | None = None) -> Tensor:
        """The outputs of (network, image, output).  With `dropout` networks are being trained.

        It holds the factors of each layer that drops, maybe none: (network, image, node).
        """
        if self.count == 1 and not self.kernels:
            alone = {name: tensor.view(tensor.shape[1:]) for name, tensor in net.items()}
            factors = None if dropout is None else [factor.squeeze(0) for factor in dropout]
            return network.forward(self.genome, alone, images, factors).unsqueeze(0)
        genome, x, training = self.genome, images, dropout is not None
        for i, conv in enumerate(() if self.kernels else genome.conv):
            x = activate(conv.activation, pooled(self._convolved(conv, i, net, x, training)))
        if self.kernels:
            x = self._by_kernels(net, images, training)
        elif not genome.conv:
            x = x.flatten(1).expand(self.count, -1, -1)
        elif genome.head == "mean":
            x = self._apart(x.mean((2, 3)))
        else:
            x = self._apart(x.flatten(1))
        for j, dense in enumerate(genome.dense):
            before, x = x, _linear(x, net[f"dense.{j}.weight"], net[f"dense.{j}.bias"])
            if genome.dense_norm != "none":
                x = self._dense_normed(f"dense_norm.{j}", net, x, training)
            x = activate(dense.activation, x)
            if dropout:
                x = x * dropout[j]
            if dense.block == "residual":
                missing = x.shape[2] - before.shape[2]
                x = x + (before[:, :, : x.shape[2]] if missing <= 0 else F.pad(before, (0, missing)))
        return _linear(x, net["out.weight"], net["out.bias"])

    def _apart(self, x: Tensor) -> Tensor:
        """Rows of (image, network and number) as (network, image, number)."""
        return x.reshape(len(x), self.count, -1).transpose(0, 1)

    def _by_kernels(self, net: Mapping[str, Tensor], images: Tensor, training: bool) -> Tensor:
        from fanfold.studies.neuro.convolutions import layer

        x = images.unsqueeze(0)
        for i, conv in enumerate(self.genome.conv):
            running = (net[f"norm.{i}.mean"], net[f"norm.{i}.var"]) if f"norm.{i}.mean" in net else None
            gain = net.get(f"norm.{i}.weight")
            shift = net[f"conv.{i}.bias" if gain is None else f"norm.{i}.bias"]
            x = layer(x, net[f"conv.{i}.weight"], gain, shift, running, conv.activation, training)
        return x.mean((3, 4)) if self.genome.head == "mean" else x.flatten(2)

    def _convolved(self, conv: Conv, i: int, net: Mapping[str, Tensor], x: Tensor, training: bool) -> Tensor:
        before, apart = x, i > 0  # at first, all networks see the same images
        if (depth := net.get(f"conv.{i}.depth")) is not None:
            depth = depth.flatten(0, 1)
            x = x if apart else x.repeat(1, self.count, 1, 1)
            x, apart = F.conv2d(x, depth, padding=around(depth), groups=len(depth)), True
        weight, bias = net[f"conv.{i}.weight"].flatten(0, 1), net.get(f"conv.{i}.bias")
        shift = None if bias is None else bias.flatten()
        x = F.conv2d(x, weight, shift, padding=around(weight), groups=self.count if apart else 1)
        if f"norm.{i}.weight" in net:
            x = _normed(f"norm.{i}", net, x, training)
        if "squeeze" in conv.block:
            within = torch.relu(torch.bmm(self._apart(x.mean((2, 3))), net[f"squeeze.{i}.down"].transpose(1, 2)))
            factors = 2.0 * torch.sigmoid(torch.bmm(within, net[f"squeeze.{i}.up"].transpose(1, 2)))
            x = x * factors.transpose(0, 1).flatten(1)[:, :, None, None]
        if "residual" not in conv.block:
            return x
        if not i:
            before = before.repeat(1, self.count, 1, 1)
        each = before.reshape(len(x) * self.count, -1, *before.shape[2:])
        return x + fitted(each, conv.filters).reshape(len(x), -1, *before.shape[2:])

    def _dense_normed(self, name: str, net: Mapping[str, Tensor], x: Tensor, training: bool) -> Tensor:
        if self.genome.dense_norm == "batch":
            return self._apart(_normed(name, net, x.transpose(0, 1).flatten(1), training))
        return F.layer_norm(x, x.shape[2:], eps=EPSILON) * net[f"{name}.weight"][:, None] + net[f"{name}.bias"][:, None]


def _normed(name: str, net: Mapping[str, Tensor], x: Tensor, training: bool) -> Tensor:
    mean, var, weight, shift = (net[f"{name}.{part}"].view(-1) for part in ("mean", "var", "weight", "bias"))
    return F.batch_norm(x, mean, var, weight, shift, training, MOMENTUM, EPSILON)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class Ground:
    """Tensors of the networks of a stack laid end to end in one vector.  `views` has them by name."""

    def __init__(self, sizes: Mapping[str, tuple[int, ...]], where: Mapping[str, Any]) -> None:
        tensors: dict[str, Tensor] = {"": torch.zeros(0, **where)}  # there may be no others
        flat = Flat(tensors | {name: torch.zeros(size, **where) for name, size in sizes.items()})
        self.vector, self.sizes = flat.vector, sizes
        self.views = {name: flat.views[name] for name in sizes}
        self._places = flat.places

    def put(self, vector: Tensor, networks: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Fill a vector of this layout with the arrays of the networks."""
        host = _beside(vector).zero_()
        numbers = host.numpy()
        for name, size in self.sizes.items():
            block = numbers[self._places[name]].reshape(size)
            for k, arrays in enumerate(networks):
                block[k] = arrays[name]
        vector.copy_(host, non_blocking=True)

    def taken(self, host: Tensor) -> list[Arrays]:
        """The arrays of the networks from a copy of a vector of this layout."""
        numbers = host.numpy()
        blocks = {name: numbers[self._places[name]].reshape(size) for name, size in self.sizes.items()}
        count = max((len(block) for block in blocks.values()), default=0)
        return [{name: block[k] for name, block in blocks.items()} for k in range(count)]

    def spread(self, values: Sequence[float]) -> Tensor:
        """A vector of this layout in which all numbers of a network are that network's value."""
        each, lengths = list[float](), list[int]()
        for size in self.sizes.values():
            each += [*values, 0.0]
            lengths += [*([math.prod(size[1:])] * size[0]), gap(math.prod(size))]
        spread = torch.tensor(each, dtype=self.vector.dtype).repeat_interleave(torch.tensor(lengths))
        return _beside(self.vector).copy_(spread)


def _beside(vector: Tensor) -> Tensor:
    """Room for a vector in memory that the processor can read, and a GPU copies to and from fast."""
    return torch.empty(len(vector), dtype=vector.dtype, pin_memory=vector.is_cuda)


def pinned(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor in memory of the processor from which a GPU copies without a wait, where it is for one.

    Of a small one the driver takes a copy at once, which is quicker than to pin it.
    """
    tensor = tensor.to(like.dtype)
    return tensor.pin_memory() if like.is_cuda and tensor.nbytes > _SMALL else tensor


def copied(vector: Tensor | None) -> Tensor | None:
    """A copy of a vector in memory of the processor; on a GPU it is there once the stream has come so far."""
    return None if vector is None else _beside(vector).copy_(vector, non_blocking=True)


class Dropout:
    """What every layer of every network drops in some steps: factors of 0, or of what the kept grow by.

    `table` has a row for each step: the layers one behind the other, each (network, image, node).
    """

    def __init__(self, stack: Stack, rows: int, steps: int, where: Mapping[str, Any]) -> None:
        device, count = where["device"], stack.count
        self.sizes = [(count, rows, nodes) for nodes in stack.dropping]
        #: Pairs of a layer and a network, in the order of the columns of `bases`.
        self.columns = [(layer, k) for layer in range(len(self.sizes)) for k in range(count)]
        lengths = [rows * nodes for _, _, nodes in self.sizes for _ in range(count)]
        width = sum(lengths)
        self.steps = max(1, min(steps, _DRAWN // max(1, width)))
        none = torch.zeros(0, dtype=torch.int64, device=device)
        self._place = torch.cat([places(rows * nodes, device).repeat(count) for _, _, nodes in self.sizes] or [none])
        repeats = torch.tensor(lengths, dtype=torch.int64, device=device)
        owners = torch.arange(len(lengths), device=device, dtype=torch.int32)
        self._owner = owners.repeat_interleave(repeats, output_size=width)
        self._least = torch.zeros(width, dtype=torch.int32, device=device)
        self._scale = torch.zeros(width, **where)
        self.table = torch.zeros(self.steps, width, **where)

    def put(self, genomes: Sequence[NetworkGenome]) -> None:
        rarities = [rarity(genomes[k].dropout) for _, k in self.columns]
        if not rarities:
            return
        for target, values in zip((self._least, self._scale), zip(*rarities)):
            some = pinned(torch.tensor(values, dtype=target.dtype), target).to(target.device, non_blocking=True)
            target.copy_(some.index_select(0, self._owner))

    def draw(self, bases: Tensor) -> None:
        """Fill the table for steps with these bases, (step, column), in memory of the processor."""
        if self.columns:
            there = pinned(bases, self._place).to(self._place.device, non_blocking=True)
            kept = drawn(self._place, there.index_select(1, self._owner)) >= self._least
            torch.mul(kept, self._scale, out=self.table[: len(bases)])

    def factors(self, at: Tensor) -> list[Tensor]:
        """Of every layer that drops, in the step of a row of the table: (network, image, node)."""
        if not self.columns:
            return []
        blocks = torch.split(self.table.index_select(0, at)[0], [math.prod(size) for size in self.sizes])
        return [block.view(size) for block, size in zip(blocks, self.sizes)]


def at_once(do: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """In threads: for work on arrays of the processor, most of which is done outside the interpreter."""
    threads = min(_THREADS, os.cpu_count() or 1, len(items) // 8)
    if threads < 2:
        return [do(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(do, items))
