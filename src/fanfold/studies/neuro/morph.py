"""Weights from a parent: the tensors of a child's network, made so that it computes what its parent did, or nearly.

The layers of the two networks are aligned; from the images on, it is then known of every unit of the child for which
unit of the parent it stands.  A wider layer repeats units, and whoever reads them reads each in random parts that add
up to one: the network computes the same, yet the copies learn apart.  A narrower layer keeps the units that weigh most.
A new layer hands on what it gets, and one that is gone is read through as if it had been linear.  Where nothing of the
parent fits, tensors start from chance.  With newer blocks in either network, aligned layers share their first units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.studies.neuro.genome import Conv, Dense, Individual, NetworkGenome, Shape, genome_of
from fanfold.studies.neuro.layout import layout
from fanfold.tensors import Arrays, about, pack, unpack
from fanfold.types import Blob

#: Of batch normalisation, as the network has it.
EPSILON = 1e-5
_PARTS = ("weight", "bias", "mean", "var")
#: What it costs to leave a layer alone, and to pair layers of other sizes (64 times: all of it), kernels, activations.
#: Any pair costs less than leaving both alone.
_ALONE, _SIZE, _KERNEL, _ACTIVATION = 1.0, 1.0, 0.5, 0.25

_Floats: TypeAlias = NDArray[Any]
#: Of every unit, the unit of the parent for which it stands; -1 for none.
_Source: TypeAlias = NDArray[np.int64]


def inherit(
    parent: NetworkGenome, arrays: Mapping[str, _Floats], child: NetworkGenome, shape: Shape, rng_seed: int
) -> dict[str, _Floats]:
    """The tensors of the child to start from, given those of its trained parent, on images of the same shape.

    They have the sizes of `layout(child, shape)`, are float32 and finite; equal layers are copied.  When it evaluates,
    the child computes what the parent did where layers were only made wider, kernels larger and the norm another, or
    layers were put in that leave what they get as it is (ReLU behind ReLU, without a further halving of the map).
    """
    for name, size in layout(parent, shape).tensors.items():
        if name not in arrays or arrays[name].shape != size:
            what = f"has the shape {arrays[name].shape}" if name in arrays else "is missing"
            raise ConfigError(f"the weights to inherit are not those of their genome: {name} {what}, not {size}")
    start = fresh(child, shape, rng_seed)
    normed = _normed(parent, arrays, child.norm)
    if parent.plain and child.plain:
        grown = _Growth(parent, normed, child, shape, start, rng_seed).tensors()
    else:
        grown = _overlaid(parent, normed, child, shape, start)
    return {name: _finite(grown[name], start[name]) for name in start}


def heir(
    individual: Individual, shape: Shape, rng_seed: int, read: Callable[[Blob], bytes] = Blob.read
) -> Callable[[], Arrays] | None:
    """Makes the tensors that an individual starts from; None where it inherits nothing."""
    if individual.inherited is None:
        return None
    data, child = read(individual.inherited), individual.genome

    def made() -> Arrays:
        parent, arrays = unpacked(data)
        return inherit(parent, arrays, child, shape, rng_seed)

    return made


def packed(genome: NetworkGenome, arrays: Mapping[str, _Floats]) -> bytes:
    """Trained tensors as bytes that also say whose they are, for a child to inherit."""
    return pack(arrays, {"genome": encode(genome, "a genome")})


def unpacked(data: bytes) -> tuple[NetworkGenome, Arrays]:
    """What `packed` was given."""
    text = about(data).get("genome")
    if text is None:
        raise ConfigError("these weights do not say of which genome they are: write them with morph.packed")
    try:
        return genome_of(decode(text)), unpack(data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"these weights are said to be of no genome: {text!r:.80} ({error})") from error


def fresh(genome: NetworkGenome, shape: Shape, seed: int) -> Arrays:
    """The tensors of a network that has seen nothing, the same on every machine: uniform, by the number of inputs."""
    rng = np.random.default_rng(seed)
    tensors: Arrays = {}
    reach = 1.0
    for name, size in layout(genome, shape).tensors.items():
        if "norm." in name:
            tensors[name] = np.full(size, float(name.endswith((".weight", ".var"))), np.float32)
            continue
        if len(size) > 1:  # a layer's bias has the reach of its weights, which come before it
            reach = 1.0 / math.sqrt(math.prod(size[1:]))
        tensors[name] = rng.uniform(-reach, reach, size).astype(np.float32)
    return tensors


def _overlaid(
    parent: NetworkGenome,
    arrays: Mapping[str, _Floats],
    child: NetworkGenome,
    shape: Shape,
    start: Mapping[str, _Floats],
) -> dict[str, _Floats]:
    """What aligned layers have in common, unit for unit; units that are new are read with a weight of 0."""
    made = {name: array.copy() for name, array in start.items()}
    maps = [layout(genome, shape).maps[-1] for genome in (parent, child)]
    groups = ("conv", "norm", "squeeze")
    pairs = {f"{g}.{i}": f"{g}.{q}" for i, q in _aligned(parent.conv, child.conv).items() for g in groups}
    olds, news = _stack(parent), _stack(child)
    for j, q in _aligned_dense(parent.dense, child.dense).items():
        pairs |= {news[j]: olds[q], news[j].replace("dense", "dense_norm"): olds[q].replace("dense", "dense_norm")}
    pairs["attend"] = "attend"
    same = (parent.head, maps[0][1:], bool(parent.conv)) == (child.head, maps[1][1:], bool(child.conv))
    for name, target in made.items():
        layer, _, part = name.rpartition(".")
        partner = pairs.get(layer, "")
        source = arrays.get(f"{partner}.{part}")
        if source is None:
            continue
        if part == "weight" and (layer == news[0] or partner == olds[0]):  # what reads the last map
            if not (same and layer == news[0] and partner == olds[0]):
                continue
            if child.conv:
                source = source.reshape(len(source), maps[0][0], -1)
                target = target.reshape(len(target), maps[1][0], -1)
        if source.ndim == 4:
            source = _fitted(source, target.shape[2:])
        shared = tuple(slice(min(pair)) for pair in zip(source.shape, target.shape))
        if target.ndim > 1:
            target[shared[0]] = 0.0
        target[shared] = source[shared]
    return made


class _Growth:
    """Walks through the child from the images to the classes, and makes each layer of what its partner was.

    All weights are seen as (units, inputs, places): the places of a convolution are those of its kernel, the places of
    what reads the last map are those of the map, and the others have one.
    """

    def __init__(
        self,
        parent: NetworkGenome,
        arrays: Mapping[str, _Floats],
        child: NetworkGenome,
        shape: Shape,
        start: Mapping[str, _Floats],
        seed: int,
    ) -> None:
        self._parent, self._child = parent, child
        self._arrays, self._made = arrays, {name: array.copy() for name, array in start.items()}
        self._old_map, self._new_map = layout(parent, shape).maps[-1], layout(child, shape).maps[-1]
        # Another stream than that of the fresh tensors.
        self._rng = np.random.default_rng([seed, 1])
        #: What the next layer reads: for which units of which layer of the parent (-1: the one in front) they stand.
        self._source: _Source = np.arange(shape.channels)
        self._channels = shape.channels
        self._layer = -1

    def tensors(self) -> dict[str, _Floats]:
        self._convolutions()
        self._dense([f"conv.{i}" for i in range(self._layer + 1, len(self._parent.conv))])
        return self._made

    def _convolutions(self) -> None:
        partners = _aligned(self._parent.conv, self._child.conv)
        for i, conv in enumerate(self._child.conv):
            weight = self._made[f"conv.{i}.weight"]
            if (q := partners.get(i)) is None:
                height, width = weight.shape[2:]
                self._hand_on(weight[:, :, height // 2, width // 2], weight, self._conv_importance)
                if self._child.norm == "none":  # a fresh norm changes next to nothing
                    self._made[f"conv.{i}.bias"][:] = 0.0
                continue
            rows = _kept(self._parent.conv[q].filters, conv.filters, self._conv_importance(q), self._rng)
            old = _fitted(self._arrays[f"conv.{q}.weight"], weight.shape[2:])[rows]
            gone = [f"conv.{at}" for at in range(self._layer + 1, q)]
            offset = self._read(old.reshape(*old.shape[:2], -1), weight, gone)
            if self._child.norm == "batch":
                self._made |= {f"norm.{i}.{part}": self._arrays[f"norm.{q}.{part}"][rows] for part in _PARTS}
                self._made[f"norm.{i}.mean"] = self._made[f"norm.{i}.mean"] - offset
            else:
                self._made[f"conv.{i}.bias"] = self._arrays[f"conv.{q}.bias"][rows] + offset
            self._source, self._layer = rows, q

    def _dense(self, gone: list[str]) -> None:
        """The same for dense layers; `gone` are the convolutions that were between the map and the first of them."""
        self._layer = -1
        olds, news = _stack(self._parent), _stack(self._child)
        partners = _aligned_dense(self._parent.dense, self._child.dense)
        for j, name in enumerate(news):
            weight, bias = self._made[f"{name}.weight"], self._made[f"{name}.bias"]
            if (q := partners.get(j)) is not None:
                old = self._seen(olds[q])
                rows = _kept(len(old), len(weight), self._dense_importance(q), self._rng)
                bias[:] = self._arrays[f"{olds[q]}.bias"][rows]
                if (q == 0) == (j == 0):
                    bias += self._read(old[rows], weight, olds[self._layer + 1 : q] if j else gone)
                self._source, self._layer = rows, q
            elif j > 0:
                self._hand_on(weight, weight, self._dense_importance)
                bias[:] = 0.0
            else:  # behind the map there is nothing to hand on one by one
                self._source = np.full(len(weight), -1)

    def _read(self, old: _Floats, weight: _Floats, gone: Sequence[str]) -> _Floats:
        """Fill the weights of a layer from those of its partner, and give what comes to its bias.

        Layers that are gone in between are read through, as if they had no activation and the map no grain.
        """
        old = old.astype(np.float64)
        offset = np.zeros(len(old))
        for name in reversed(gone):
            mix, shift = self._linear(name)
            offset += old.sum(2) @ shift
            old = np.einsum("rfx,fc->rcx", old, mix)
        known = self._source >= 0
        source = self._source[known]
        columns = old[:, source]
        if len(np.unique(source)) < len(source):
            columns = columns * self._parts(source, old.shape[:2])[:, :, None]
        weight.reshape(len(weight), len(known), -1)[:, known] = columns
        return offset

    def _linear(self, name: str) -> tuple[_Floats, _Floats]:
        """What a layer of the parent does, its activation and the places of its kernel aside: weights and a shift."""
        weight = self._arrays[f"{name}.weight"].astype(np.float64)
        mix = weight.reshape(*weight.shape[:2], -1).sum(2)
        if f"{name}.bias" in self._arrays:
            return mix, self._arrays[f"{name}.bias"].astype(np.float64)
        scale, shift = _affine(self._arrays, name.replace("conv", "norm"))
        return mix * scale[:, None], shift

    def _parts(self, source: _Source, size: tuple[int, ...]) -> _Floats:
        """For each reader and each unit the part of the parent's weight it gets: those of one unit add up to 1."""
        parts = self._rng.uniform(0.5, 1.5, (size[0], len(source)))
        totals = np.zeros(size[::-1])
        np.add.at(totals, source, parts.T)
        return parts / totals[source].T

    def _hand_on(self, centre: _Floats, weight: _Floats, importance: Any) -> None:
        """Make a layer of its own give what it gets: repeated where it is wider, the most important where narrower."""
        weights = np.where(self._source >= 0, importance(self._layer)[self._source], 0.0)
        again = np.ones(len(weights), bool)
        again[np.unique(self._source, return_index=True)[1]] = False
        rows = _kept(len(weights), len(centre), np.where(again, -1.0, weights), self._rng)
        weight[:] = 0.0
        centre[np.arange(len(rows)), rows] = 1.0
        self._source = self._source[rows]

    def _conv_importance(self, q: int) -> _Floats:
        """How much each map of the parent's convolution weighs: what comes in, or its scale, by what goes out."""
        if q < 0:
            return np.ones(self._channels)
        inward = _length(self._arrays[f"norm.{q}.weight" if self._child.norm == "batch" else f"conv.{q}.weight"], 0)
        last = q == len(self._parent.conv) - 1
        outward = self._seen(_stack(self._parent)[0]) if last else self._arrays[f"conv.{q + 1}.weight"]
        return inward * _length(outward, 1)

    def _dense_importance(self, q: int) -> _Floats:
        olds = _stack(self._parent)
        if q < 0 or q == len(olds) - 1:
            return np.ones(1)  # of nothing, or of the classes, which are never fewer
        inward, outward = self._arrays[f"{olds[q]}.weight"], self._arrays[f"{olds[q + 1]}.weight"]
        return _length(inward, 0) * _length(outward, 1)

    def _seen(self, name: str) -> _Floats:
        """The weights of a dense layer of the parent; of what reads the last map, for the places of the child's map."""
        weight = self._arrays[f"{name}.weight"]
        if name != _stack(self._parent)[0]:
            return weight[:, :, None]
        weight = weight.reshape(len(weight), *self._old_map)
        for axis in (2, 3):
            weight = _resampled(weight, axis, self._new_map[axis - 1])
        return weight.reshape(len(weight), self._old_map[0], -1)


def _aligned(old: Sequence[Conv | Dense], new: Sequence[Conv | Dense]) -> dict[int, int]:
    """For layers of the child, their partner in the parent: in order, as many as can be, and as alike as can be."""
    table: dict[tuple[int, int], tuple[float, dict[int, int]]] = {}
    for i in range(len(new) + 1):
        for j in range(len(old) + 1):
            options: list[tuple[float, dict[int, int]]] = [] if i or j else [(0.0, {})]
            # Of equals the first: partners stay near the images, where they see what the parent saw.
            if i:
                cost, pairs = table[i - 1, j]
                options.append((cost + _ALONE, pairs))
            if j:
                cost, pairs = table[i, j - 1]
                options.append((cost + _ALONE, pairs))
            if i and j:
                cost, pairs = table[i - 1, j - 1]
                options.append((cost + _difference(old[j - 1], new[i - 1]), pairs | {i - 1: j - 1}))
            table[i, j] = min(options, key=lambda option: option[0])
    return table[len(new), len(old)][1]


def _difference(old: Conv | Dense, new: Conv | Dense) -> float:
    was, now = (layer.filters if isinstance(layer, Conv) else layer.nodes for layer in (old, new))
    kernels = isinstance(old, Conv) and isinstance(new, Conv) and old.kernel != new.kernel
    size = min(1.0, abs(math.log(was / now)) / math.log(64))
    return _SIZE * size + _KERNEL * kernels + _ACTIVATION * (old.activation != new.activation)


def _aligned_dense(old: Sequence[Dense], new: Sequence[Dense]) -> dict[int, int]:
    """The same for dense layers and the last one.  What reads the map is a pair, since nothing else fits there."""
    pairs = {len(new): len(old)}
    if old and new:
        pairs |= {0: 0} | {i + 1: j + 1 for i, j in _aligned(old[1:], new[1:]).items()}
    return pairs


def _stack(genome: NetworkGenome) -> list[str]:
    return [*(f"dense.{j}" for j in range(len(genome.dense))), "out"]


def _kept(old: int, new: int, importance: _Floats, rng: np.random.Generator) -> _Source:
    """Units for a layer of another size: all and some of them again, or the most important in their order."""
    if new >= old:
        return np.concatenate([np.arange(old), rng.integers(old, size=new - old)])
    return np.sort(np.argsort(-importance, kind="stable")[:new])


def _normed(genome: NetworkGenome, arrays: Mapping[str, _Floats], norm: str) -> Mapping[str, _Floats]:
    """Tensors that evaluate to the same with another norm: scale and shift become weight and bias, or bias a shift."""
    if norm == genome.norm:
        return arrays
    tensors = {name: array for name, array in arrays.items() if not name.startswith("norm.")}
    for i, conv in enumerate(genome.conv):
        weight = arrays[f"conv.{i}.weight"].astype(np.float64)
        if norm == "none":
            scale, shift = _affine(arrays, f"norm.{i}")
            tensors |= {f"conv.{i}.weight": weight * scale[:, None, None, None], f"conv.{i}.bias": shift}
        else:
            parts = (np.ones(conv.filters), arrays[f"conv.{i}.bias"], np.zeros(conv.filters))
            tensors |= {f"norm.{i}.{part}": array for part, array in zip(_PARTS, parts)}
            tensors |= {f"conv.{i}.weight": weight, f"norm.{i}.var": np.full(conv.filters, 1.0 - EPSILON)}
            del tensors[f"conv.{i}.bias"]
    return tensors


def _affine(arrays: Mapping[str, _Floats], norm: str) -> tuple[_Floats, _Floats]:
    """What a norm does when it evaluates: times the first, plus the second."""
    weight, bias, mean, var = (arrays[f"{norm}.{part}"].astype(np.float64) for part in _PARTS)
    scale = weight / np.sqrt(np.maximum(var, 0.0) + EPSILON)
    return scale, bias - mean * scale


def _fitted(weight: _Floats, sides: tuple[int, ...]) -> _Floats:
    """A kernel of other sides around the same centre: zeros around it, or its rim cut off."""
    for axis, side in zip((2, 3), sides):
        margin = (side - weight.shape[axis]) // 2
        if margin >= 0:
            weight = np.pad(weight, [(margin, margin) if at == axis else (0, 0) for at in range(4)])
        else:
            weight = np.take(weight, range(-margin, weight.shape[axis] + margin), axis)
    return weight


def _resampled(weight: _Floats, axis: int, new: int) -> _Floats:
    """What reads a map, made to read it finer or coarser: each place gets what the places it covers had together."""
    old = weight.shape[axis]
    if new == old:
        return weight
    ends = np.minimum.outer(np.arange(1, new + 1) / new, np.arange(1, old + 1) / old)
    starts = np.maximum.outer(np.arange(new) / new, np.arange(old) / old)
    covered = np.maximum(ends - starts, 0.0) * old
    return np.moveaxis(np.tensordot(covered, weight, (1, axis)), 0, axis)


def _length(weight: _Floats, axis: int) -> _Floats:
    others = tuple(other for other in range(weight.ndim) if other != axis)
    lengths: _Floats = np.sqrt(np.square(np.nan_to_num(weight).astype(np.float64)).sum(others))
    return lengths


def _finite(array: _Floats, otherwise: _Floats) -> _Floats:
    """As float32; a number that training drove out of bounds starts from chance."""
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    return np.where(np.isfinite(single), single, otherwise)
