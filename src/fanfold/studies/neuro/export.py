"""A trained network as files that need no Fanfold: safetensors, a PyTorch module to read, ONNX, and what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError
from fanfold.files import write_files
from fanfold.studies.neuro.genome import NetworkGenome, Shape, describe
from fanfold.studies.neuro.layout import layout, parameters
from fanfold.studies.neuro.morph import unpacked
from fanfold.studies.neuro.strategy import weights_of
from fanfold.tensors import Arrays, pack
from fanfold.types import Result

if TYPE_CHECKING:
    from fanfold.running import Run
    from fanfold.studies.neuro.data import Data

#: Images that are scored at once.
CHUNK = 512
#: The version of ONNX's operators that is written, and of its files: what every runtime of the last years reads.
OPERATORS, FORMAT = 17, 8

_CALLS = {
    "relu": "torch.relu",
    "leaky_relu": "F.leaky_relu",
    "tanh": "torch.tanh",
    "sigmoid": "torch.sigmoid",
    "selu": "torch.selu",
}
_NODES = {"relu": "Relu", "leaky_relu": "LeakyRelu", "tanh": "Tanh", "sigmoid": "Sigmoid", "selu": "Selu"}


@dataclass(frozen=True)
class Saved:
    """The files of a network, and a note for each that could not be written."""

    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network with what it takes to use it: how images are normalised, and what the classes are called.

    `images` are always (n, channels, height, width) with the values of the data that it was trained on.
    """

    genome: NetworkGenome
    shape: Shape
    weights: Arrays
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    classes: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = dict(layout(self.genome, self.shape).tensors)
        shapes = {name: array.shape for name, array in self.weights.items()}
        if shapes != wanted:
            wrong = sorted(name for name in wanted | shapes if wanted.get(name) != shapes.get(name))
            raise ConfigError(f"these weights are not of this genome: {', '.join(wrong)} should be of other shapes")
        if len(self.classes) != self.shape.classes:
            raise ConfigError(f"{len(self.classes)} names were shapes for {self.shape.classes} classes")
        if {len(self.mean), len(self.scale)} != {self.shape.channels}:
            raise ConfigError(f"mean and scale need one number for each of {self.shape.channels} channels")

    def scores(self, images: NDArray[Any]) -> NDArray[np.float64]:
        """The score of every class for every image, in double precision: the same alone and among others."""
        import torch

        from fanfold.studies.neuro.network import forward

        expected = (self.shape.channels, self.shape.height, self.shape.width)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise ConfigError(f"images must be of (n, {', '.join(map(str, expected))}), not {images.shape}")
        net = {name: torch.tensor(array, dtype=torch.float64) for name, array in self.weights.items()}
        mean, scale = (np.asarray(each, np.float64).reshape(-1, 1, 1) for each in (self.mean, self.scale))
        chunks = [np.empty((0, self.shape.classes))]
        with torch.inference_mode():
            for first in range(0, len(images), CHUNK):
                chunk = (images[first : first + CHUNK] - mean) / scale
                chunks.append(forward(self.genome, net, torch.from_numpy(chunk)).numpy())
        return np.concatenate(chunks)

    def save(self, folder: str | Path) -> Saved:
        """Write `model.safetensors`, `model.py`, `model.onnx` (with the package onnx) and `model.json`."""
        place = Path(folder)
        files = {"model.safetensors": pack(self.tensors(), {"genome": describe(self.genome)})}
        files["model.py"] = self.source().encode()
        notes: tuple[str, ...] = ()
        try:
            files["model.onnx"] = self.onnx()
        except ImportError:
            notes = ("model.onnx was not written: pip install 'fanfold[onnx]'",)
        files["model.json"] = self.card([*files, "model.json"]).encode()
        try:
            write_files(place, files)
        except OSError as error:
            raise ConfigError(f"the network cannot be written to {str(folder)!r}: {error}") from error
        return Saved(place, tuple(files), notes)

    def tensors(self) -> Arrays:
        """All that the network consists of, under the names of the PyTorch module."""
        tensors = {_name(name): np.asarray(array, np.float32) for name, array in self.weights.items()}
        for name in ("mean", "scale"):
            tensors[name] = np.asarray(getattr(self, name), np.float32).reshape(-1, 1, 1)
        return tensors

    def card(self, files: Sequence[str] = ()) -> str:
        """What the network and its files are as JSON: for people, and for programs that load them."""
        card = {
            "description": describe(self.genome),
            "classes": list(self.classes),
            "input": {"name": "images", "shape": ["n", self.shape.channels, self.shape.height, self.shape.width]},
            "output": {"name": "scores", "shape": ["n", self.shape.classes]},
            "normalised_inside": {"mean": list(self.mean), "scale": list(self.scale)},
            "parameters": parameters(self.genome, self.shape),
            "genome": asdict(self.genome),
            "files": list(files),
            **self.about,
        }
        return json.dumps(card, indent=2) + "\n"

    def source(self) -> str:
        """The network as the text of a PyTorch module that imports nothing but torch."""
        made, flow = [], []
        for layer in layers(self.genome, self.shape):
            made += layer.made()
            flow += layer.flow()
        flow.insert(len(self.genome.conv), "x = x.flatten(1)")
        size = f"{self.shape.channels} x {self.shape.height} x {self.shape.width}"
        template = Path(__file__).with_name("model.py.txt").read_text(encoding="utf-8")
        return template.format(
            about=f"A network for images of {size} in {self.shape.classes} classes.",
            classes=repr(tuple(self.classes)),
            channels=self.shape.channels,
            made="\n".join(f"        {line}" for line in made),
            flow="\n".join(f"        {line}" for line in flow),
        )

    def onnx(self) -> bytes:
        """The network as a model of ONNX: `images` of any number in, `scores` out."""
        from onnx import TensorProto, checker, helper, numpy_helper

        nodes = [helper.make_node("Sub", ["images", "mean"], ["x0"])]

        def then(kind: str, *others: str, **settings: Any) -> None:
            before = nodes[-1].output[0]
            nodes.append(helper.make_node(kind, [before, *others], [f"x{len(nodes)}"], **settings))

        then("Div", "scale")
        for position, layer in enumerate(layers(self.genome, self.shape)):
            if position == len(self.genome.conv):
                then("Flatten", axis=1)
            for kind, others, settings in layer.nodes():
                then(kind, *others, **settings)
        nodes[-1].output[0] = "scores"
        shape = self.shape
        graph = helper.make_graph(
            nodes,
            "network",
            [
                helper.make_tensor_value_info(
                    "images", TensorProto.FLOAT, ["n", shape.channels, shape.height, shape.width]
                )
            ],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", shape.classes])],
            [numpy_helper.from_array(array, name) for name, array in self.tensors().items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPERATORS)], ir_version=FORMAT)
        checker.check_model(model, full_check=True)
        data: bytes = model.SerializeToString()
        return data


@dataclass(frozen=True)
class Layer:
    """One layer of a network, with its name in the tensors and what is done to its outputs."""

    name: str
    inputs: int
    outputs: int
    kernel: int | None = None
    normalised: bool = False
    pooled: bool = False
    activation: str | None = None
    dropout: float = 0.0

    @property
    def norm(self) -> str:
        return self.name.replace("conv", "norm")

    def made(self) -> list[str]:
        """How a PyTorch module makes it."""
        group, _, place = self.name.partition(".")
        if self.kernel is None:
            layer = f"nn.Linear({self.inputs}, {self.outputs})"
            return [f"self.{group}.append({layer})" if place else f"self.{group} = {layer}"]
        settings = f"{self.inputs}, {self.outputs}, {self.kernel}, padding={self.kernel // 2}"
        bias = ", bias=False" if self.normalised else ""
        lines = [f"self.conv.append(nn.Conv2d({settings}{bias}))"]
        return lines + [f"self.norm.append(nn.BatchNorm2d({self.outputs}))"] * self.normalised

    def flow(self) -> list[str]:
        """What a PyTorch module does with `x`."""
        group, _, place = self.name.partition(".")
        call = f"self.{group}[{place}](x)" if place else f"self.{group}(x)"
        if self.normalised:
            call = f"self.norm[{place}]({call})"
        if self.pooled:
            call = f"F.max_pool2d({call}, 2)"
        if self.activation is None:
            return [f"return {call}"]
        call = f"{_CALLS[self.activation]}({call})"
        return [f"x = F.dropout({call}, {self.dropout!r}, self.training)" if self.dropout else f"x = {call}"]

    def nodes(self) -> list[tuple[str, list[str], dict[str, Any]]]:
        """The nodes of ONNX that take one tensor further: operator, other inputs, settings."""
        if self.kernel is None:
            nodes: list[tuple[str, list[str], dict[str, Any]]]
            nodes = [("Gemm", [f"{self.name}.weight", f"{self.name}.bias"], {"transB": 1})]
        else:
            bias = [] if self.normalised else [f"{self.name}.bias"]
            nodes = [("Conv", [f"{self.name}.weight", *bias], {"pads": [self.kernel // 2] * 4})]
        if self.normalised:
            parts = ("weight", "bias", "running_mean", "running_var")
            nodes.append(("BatchNormalization", [f"{self.norm}.{part}" for part in parts], {}))
        if self.pooled:
            nodes.append(("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}))
        if self.activation is not None:
            nodes.append((_NODES[self.activation], [], {}))
        return nodes


def layers(genome: NetworkGenome, shape: Shape) -> list[Layer]:
    """The layers of a network from its input to its output."""
    stack: list[Layer] = []
    sizes = layout(genome, shape)
    batch = genome.norm == "batch"
    for i, conv in enumerate(genome.conv):
        channels, pooled = sizes.maps[i][0], sizes.pooled[i]
        stack.append(Layer(f"conv.{i}", channels, conv.filters, conv.kernel, batch, pooled, conv.activation))
    inputs = sizes.features
    for j, dense in enumerate(genome.dense):
        stack.append(Layer(f"dense.{j}", inputs, dense.nodes, activation=dense.activation, dropout=genome.dropout))
        inputs = dense.nodes
    return [*stack, Layer("out", inputs, shape.classes)]


def best(run: Run[Any], data: Data, classes: Sequence[str] | None = None) -> Classifier:
    """The best network of a run of the study on `data`; `classes` are other names for its classes."""
    if run.best_or_none is None:
        raise ConfigError(f"run {run.id} has no best network: nothing was trained to the end ({run.reason})")
    return classifier(run.best, data, classes)


def classifier(result: Result[Any], data: Data, classes: Sequence[str] | None = None) -> Classifier:
    """The network of one finished trial, with its weights as they were after its last rung."""
    weights = weights_of(result)
    if weights is None:
        raise ConfigError(f"trial {result.number} has no trained network: none of its rungs left weights")
    genome, arrays = unpacked(weights.read())
    about = {} if result.score is None else {"validation_accuracy": result.score}
    copied = {name: np.array(array) for name, array in arrays.items()}
    names = data.classes if classes is None else tuple(classes)
    return Classifier(genome, data.shape, copied, data.mean, data.scale, names, about)


def _name(name: str) -> str:
    """PyTorch's name of a tensor: only the running statistics are called otherwise."""
    return name.replace(".mean", ".running_mean").replace(".var", ".running_var")
