"""A trained network as files that need no Fanfold: safetensors, a PyTorch module to read, ONNX, and what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError
from fanfold.files import write_files
from fanfold.studies.neuro import columns
from fanfold.studies.neuro.columns import TableEncoder
from fanfold.studies.neuro.genome import NetworkGenome, Shape, describe
from fanfold.studies.neuro.layout import layout, parameters
from fanfold.studies.neuro.modules import source
from fanfold.studies.neuro.morph import unpacked
from fanfold.studies.neuro.onnx_graph import input_shape, onnx_model
from fanfold.studies.neuro.strategy import weights_of
from fanfold.tensors import Arrays, pack
from fanfold.types import Blob, Result

if TYPE_CHECKING:
    from fanfold.running import Run
    from fanfold.studies.neuro.data import Data

#: Images that are scored at once.
CHUNK = 512


@dataclass(frozen=True)
class Saved:
    """The files of a network, and a note for each that could not be written."""

    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()


#: A genome and its trained tensors.
Member: TypeAlias = tuple[NetworkGenome, Arrays]


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network with what it takes to use it: how images are normalised, and what the classes are called.

    `images` are always (n, channels, height, width) with the values of the data that it was trained on; `table` makes
    them of the rows of a table.  With `others` it is an ensemble: the scores of all of them are averaged.
    """

    genome: NetworkGenome
    shape: Shape
    weights: Arrays
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    classes: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    table: TableEncoder | None = None
    others: tuple[Member, ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        return ((self.genome, self.weights), *self.others)

    def __post_init__(self) -> None:
        for genome, weights in self.members:
            wanted = dict(layout(genome, self.shape).tensors)
            shapes = {name: array.shape for name, array in weights.items()}
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

        from fanfold.studies.neuro.network import averaged

        expected = (self.shape.channels, self.shape.height, self.shape.width)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise ConfigError(f"images must be of (n, {', '.join(map(str, expected))}), not {images.shape}")
        nets = [
            (genome, {name: torch.tensor(array, dtype=torch.float64) for name, array in weights.items()})
            for genome, weights in self.members
        ]
        mean, scale = (np.asarray(each, np.float64).reshape(-1, 1, 1) for each in (self.mean, self.scale))
        chunks = [np.empty((0, self.shape.classes))]
        with torch.inference_mode():
            for first in range(0, len(images), CHUNK):
                chunk = (images[first : first + CHUNK] - mean) / scale
                chunks.append(averaged(nets, torch.from_numpy(chunk)).numpy())
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
        if self.table is not None:
            files["table.py"] = Path(columns.__file__).read_bytes()
        files["model.json"] = self.card([*files, "model.json"]).encode()
        try:
            write_files(place, files)
        except OSError as error:
            raise ConfigError(f"the network cannot be written to {str(folder)!r}: {error}") from error
        return Saved(place, tuple(files), notes)

    def tensors(self) -> Arrays:
        """All that the network consists of, under the names of the PyTorch module."""
        tensors: Arrays = {}
        for k, (_, weights) in enumerate(self.members):
            prefix = f"members.{k}." if self.others else ""
            tensors |= {prefix + _name(name): np.asarray(array, np.float32) for name, array in weights.items()}
        for name in ("mean", "scale"):
            tensors[name] = np.asarray(getattr(self, name), np.float32).reshape(-1, 1, 1)
        return tensors

    def card(self, files: Sequence[str] = ()) -> str:
        """What the network and its files are as JSON: for people, and for programs that load them."""
        card = {
            "description": describe(self.genome),
            "classes": list(self.classes),
            "input": {"name": "images", "shape": list(input_shape(self.shape))},
            "output": {"name": "scores", "shape": ["n", self.shape.classes], "of": self.shape.target},
            "normalised_inside": {"mean": list(self.mean), "scale": list(self.scale)},
            "parameters": sum(parameters(genome, self.shape) for genome, _ in self.members),
            "genome": asdict(self.genome),
            "members": [asdict(genome) for genome, _ in self.members],
            "files": list(files),
            **self.about,
        }
        if self.table is not None:
            card |= {"table": self.table.as_dict()}
        return json.dumps(card, indent=2) + "\n"

    def source(self) -> str:
        """The network as the text of a PyTorch module that imports nothing but torch."""
        return source([genome for genome, _ in self.members], self.shape, tuple(self.classes))

    def onnx(self) -> bytes:
        """The network as a model of ONNX: `images` of any number in, `scores` out."""
        return onnx_model([genome for genome, _ in self.members], self.shape, self.tensors())


def best(run: Run[Any], data: Data, classes: Sequence[str] | None = None) -> Classifier:
    """The best network of a run of the study on `data`; `classes` are other names for its classes."""
    if run.best_or_none is None:
        raise ConfigError(f"run {run.id} has no best network: nothing was trained to the end ({run.reason})")
    figures = {} if run.summary is None else run.summary.figures
    if "ensemble" in figures:
        members = [Blob(digest, run.ledger.blob) for digest in figures["ensemble"]]
        return together(members, data, figures["validation"], figures["temperature"], classes)
    return classifier(run.best, data, classes)


def classifier(result: Result[Any], data: Data, classes: Sequence[str] | None = None) -> Classifier:
    """The network of one finished trial, with its weights as they were after its last rung."""
    weights = weights_of(result)
    if weights is None:
        raise ConfigError(f"trial {result.number} has no trained network: none of its rungs left weights")
    return together([weights], data, result.score, None, classes)


def together(
    members: Sequence[Blob],
    data: Data,
    score: float | None,
    heat: float | None,
    classes: Sequence[str] | None = None,
) -> Classifier:
    """One network of packed weights, or several that answer together; `heat` is the temperature, where it is known."""
    networks = [
        (genome, {name: np.array(array) for name, array in arrays.items()})
        for genome, arrays in (unpacked(weights.read()) for weights in members)
    ]
    about = {} if score is None else {"validation_accuracy": score}
    names = data.classes if classes is None else tuple(classes)
    first, *others = networks
    plain = Classifier(*first[:1], data.shape, first[1], data.mean, data.scale, names, about, data.table, tuple(others))
    return calibrated(plain, data, heat)


def calibrated(network: Classifier, data: Data, heat: float | None = None) -> Classifier:
    """The network with numbers in their own units, or with scores whose chances fit the validation part.

    `heat` is the temperature that does so, where it is known: networks of other folds have seen the validation part.
    """
    import torch

    from fanfold.studies.neuro.targets import folded, temperature

    if data.shape.target == "numbers":
        mean, scale = np.array(data.units).T
    else:
        if heat is None:
            scores = torch.from_numpy(network.scores(data.validation.pixels))
            heat = temperature(scores, torch.from_numpy(data.validation.labels), data.shape.target)
        mean, scale = np.zeros(1), np.full(1, 1.0 / heat)
    others = tuple((genome, folded(weights, scale, mean)) for genome, weights in network.others)
    return replace(network, weights=folded(network.weights, scale, mean), others=others)


def _name(name: str) -> str:
    """PyTorch's name of a tensor: only running statistics and parts of blocks are called otherwise."""
    if name.startswith("squeeze."):
        return f"{name}.weight"
    if name.endswith(".depth"):
        return f"depth.{name.split('.')[1]}.weight"
    return name.replace(".mean", ".running_mean").replace(".var", ".running_var")
