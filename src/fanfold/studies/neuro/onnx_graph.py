"""Networks as a model of ONNX: `images` of any number in, `scores` out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.studies.neuro.genome import NetworkGenome, Shape
from fanfold.studies.neuro.layout import halving, layout
from fanfold.tensors import Arrays

#: The version of ONNX's operators that is written, and of its files: what every runtime of the last years reads.
OPERATORS, FORMAT = 17, 8
_NODES = {"relu": "Relu", "leaky_relu": "LeakyRelu", "tanh": "Tanh", "sigmoid": "Sigmoid", "selu": "Selu"}
_NORM = ("weight", "bias", "running_mean", "running_var")


def onnx_model(genomes: Sequence[NetworkGenome], shape: Shape, tensors: Arrays) -> bytes:
    """The model of one network, or of several whose outputs are averaged; `tensors` by the names of the module."""
    from onnx import TensorProto, checker, helper, numpy_helper

    graph = _Graph(tensors)
    x, size = "images", input_shape(shape)
    if len(size) < 4:
        x = graph.add("Reshape", x, graph.whole(-1, shape.channels, shape.height, shape.width))
    x = graph.add("Div", graph.add("Sub", x, "mean"), "scale")
    prefixes = [f"members.{k}." if len(genomes) > 1 else "" for k in range(len(genomes))]
    outputs = [_Layers(graph, genome, shape, prefix).outputs(x) for genome, prefix in zip(genomes, prefixes)]
    graph.add("Mean", *outputs)
    graph.nodes[-1].output[0] = "scores"
    whole = helper.make_graph(
        graph.nodes,
        "network",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, list(size))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", shape.classes])],
        [numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPERATORS)], ir_version=FORMAT)
    checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


def input_shape(shape: Shape) -> tuple[str | int, ...]:
    """What `images` are: (n, features) of a table, (n, channels, length) of sequences, or images."""
    sizes = {"table": (shape.channels,), "sequence": (shape.channels, shape.width)}
    return ("n", *sizes.get(shape.kind, (shape.channels, shape.height, shape.width)))


class _Graph:
    """Nodes in order, each with one output, and the constants that they read."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self.nodes: list[Any] = []
        self.constants = dict(tensors)

    def add(self, kind: str, *inputs: str, **settings: Any) -> str:
        from onnx import helper

        name = f"x{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **settings))
        return name

    def whole(self, *numbers: int) -> str:
        """A constant of whole numbers."""
        return self._kept("whole", np.array(numbers, np.int64))

    def number(self, value: float) -> str:
        return self._kept("number", np.array(value, np.float32))

    def _kept(self, kind: str, array: NDArray[Any]) -> str:
        name = f"{kind}.{'_'.join(map(str, array.ravel().tolist()))}"
        self.constants[name] = array
        return name


class _Layers:
    """One network from what it sees to its outputs."""

    def __init__(self, graph: _Graph, genome: NetworkGenome, shape: Shape, prefix: str) -> None:
        self.graph, self.genome, self.shape, self.prefix = graph, genome, shape, prefix
        self.sizes = layout(genome, shape)

    def outputs(self, x: str) -> str:
        add, genome = self.graph.add, self.genome
        for i in range(len(genome.conv)):
            x = self._convolved(x, i)
        if genome.conv and genome.head == "mean":
            x = add("ReduceMean", x, axes=[2, 3], keepdims=0)
        else:
            x = add("Flatten", x, axis=1)
        if "attend.key" in self.sizes.tensors:
            x = add("Concat", x, self._attended(x), axis=1)
        inputs = self.sizes.features
        for j, dense in enumerate(genome.dense):
            before, x = x, self._linear(x, f"dense.{j}")
            if genome.dense_norm == "batch":
                x = add("BatchNormalization", x, *self._named(f"dense_norm.{j}", _NORM))
            elif genome.dense_norm == "layer":
                x = add("LayerNormalization", x, *self._named(f"dense_norm.{j}", _NORM[:2]), axis=-1, epsilon=1e-5)
            x = add(_NODES[dense.activation], x)
            if dense.block == "residual":
                x = add("Add", x, self._fitted(before, inputs, dense.nodes, 2))
            inputs = dense.nodes
        return self._linear(x, "out")

    def _convolved(self, x: str, i: int) -> str:
        add, conv, before = self.graph.add, self.genome.conv[i], x
        tensors, channels = self.sizes.tensors, self.sizes.maps[i][0]
        if (depth := tensors.get(f"conv.{i}.depth")) is not None:
            weight = f"{self.prefix}depth.{i}.weight"
            x = add("Conv", x, weight, pads=[side // 2 for side in depth[2:]] * 2, group=channels)
        named = self._named(f"conv.{i}", ("weight", "bias") if self.genome.norm == "none" else ("weight",))
        x = add("Conv", x, *named, pads=[side // 2 for side in tensors[f"conv.{i}.weight"][2:]] * 2)
        if self.genome.norm == "batch":
            x = add("BatchNormalization", x, *self._named(f"norm.{i}", _NORM))
        if "squeeze" in conv.block:
            factor = add("ReduceMean", x, axes=[2, 3], keepdims=0)
            factor = add("Relu", add("Gemm", factor, f"{self.prefix}squeeze.{i}.down.weight", transB=1))
            factor = add("Sigmoid", add("Gemm", factor, f"{self.prefix}squeeze.{i}.up.weight", transB=1))
            factor = add("Mul", factor, self.graph.number(2.0))
            x = add("Mul", x, add("Unsqueeze", factor, self.graph.whole(2, 3)))
        if "residual" in conv.block:
            x = add("Add", x, self._fitted(before, channels, conv.filters, 4))
        if self.sizes.pooled[i]:
            by = list(halving(*self.sizes.maps[i][1:]))
            x = add("MaxPool", x, kernel_shape=by, strides=by)
        return add(_NODES[conv.activation], x)

    def _attended(self, x: str) -> str:
        add, parts = self.graph.add, dict(zip(["embed", "place", "query", "key", "value"], self._parts()))
        tokens = add("Add", add("Mul", add("Unsqueeze", x, self.graph.whole(2)), parts["embed"]), parts["place"])
        query, key, value = (add("MatMul", tokens, parts[name]) for name in ("query", "key", "value"))
        alike = add("MatMul", query, add("Transpose", key, perm=[0, 2, 1]))
        chances = add("Softmax", add("Div", alike, self.graph.number(math.sqrt(self.genome.attention))), axis=2)
        seen = add("Relu", add("Add", tokens, add("MatMul", chances, value)))
        return add("ReduceMean", seen, axes=[1], keepdims=0)

    def _parts(self) -> list[str]:
        return self._named("attend", ("embed", "place", "query", "key", "value"))

    def _linear(self, x: str, name: str) -> str:
        return self.graph.add("Gemm", x, *self._named(name, ("weight", "bias")), transB=1)

    def _named(self, layer: str, parts: Sequence[str]) -> list[str]:
        return [f"{self.prefix}{layer}.{part}" for part in parts]

    def _fitted(self, x: str, have: int, want: int, axes: int) -> str:
        """As many channels as wanted: the first ones, or all and zeros."""
        if have == want:
            return x
        if have > want:
            whole = self.graph.whole
            return self.graph.add("Slice", x, whole(0), whole(want), whole(1))
        ends = [0, want - have, *([0] * (axes - 2))]
        return self.graph.add("Pad", x, self.graph.whole(*([0] * axes), *ends))
