"""Data to learn from: loaded, split, and kept on the device as whole numbers, from where batches are taken."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fanfold import encoding
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, nearest
from fanfold.studies.neuro import network, sources
from fanfold.studies.neuro.augmentation import AUGMENTS, meant, moved, places, warped
from fanfold.studies.neuro.balance import balanced
from fanfold.studies.neuro.genome import KINDS, TARGETS, Shape
from fanfold.studies.neuro.images import Array, Images, array, by_name, images, in_units, statistics, units_of, weighted
from fanfold.studies.neuro.labels import names_of, numbered
from fanfold.studies.neuro.loaders import by_content, gathered
from fanfold.studies.neuro.splits import size_of, split, strata

if TYPE_CHECKING:
    from fanfold.studies.neuro.columns import TableEncoder
    from fanfold.studies.neuro.tables import TableOptions

__all__ = [
    "AUGMENTS",
    "DTYPES",
    "Data",
    "Images",
    "Part",
    "Resident",
    "Source",
    "digest",
    "from_arrays",
    "from_loaders",
    "identity",
    "load",
    "order",
    "prepared",
    "resident",
    "split",
]

#: A share of all images, their number, or the images and labels themselves.
Part: TypeAlias = float | int | tuple[Any, Any]

#: The least rows of an epoch on a table.
EPOCH = 2000
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Data:
    """Images to learn from, images to choose networks by, and images that are looked at once, at the end.

    A row of a table is an image of one pixel with many channels, and a sequence one of a single line.  `mean` and
    `scale` are those of each channel in the training part, in the units of the pixels: a network sees
    (pixels - mean) / scale.  `classes` names the classes, labels or numbers that are predicted.  `units` are mean and
    deviation of each such number, in which networks learn them.  `table` makes features of the rows of a table.
    `remarks` say what was inferred.
    """

    name: str
    train: Images
    validation: Images
    test: Images
    shape: Shape
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    classes: tuple[str, ...]
    augment: str = "none"
    units: tuple[tuple[float, float], ...] = ()
    table: TableEncoder | None = None
    remarks: tuple[str, ...] = ()

    @functools.cached_property
    def digest(self) -> str:
        texts = [repr((self.shape, self.mean, self.scale, self.augment))]
        for part in (self.train, self.validation, self.test):
            state = hashlib.blake2b(repr((part.pixels.shape, part.pixels.dtype.str)).encode(), digest_size=16)
            state.update(np.ascontiguousarray(part.pixels).data)
            state.update(np.ascontiguousarray(part.labels).data)
            if part.weights is not None:
                state.update(np.ascontiguousarray(part.weights).data)
            texts.append(state.hexdigest())
        return encoding.digest(*texts).hex()[:16]


def digest(data: Data) -> str:
    """A short text that stands for everything a training can see of the data."""
    return data.digest


@dataclass(frozen=True, repr=False)
class Source:
    """Where data come from and how they are split: a small value that a worker process can load them by.

    `folder` is where the files of `mnist`, `fashion-mnist` and `cifar10` are.  Where data have a test or validation
    part of their own, `test` or `validation` do not count.  `size` is the height and width that the images of
    `folder:PATH` are brought to.  `columns` says how a table is read, and what is predicted; there, no share set aside
    means one that fits its length.  `balanced` data are those of `balanced()`.
    """

    name: str
    folder: str | None = None
    validation: float | int | None = 0.1
    test: float | int | None = 0.1
    seed: int = 0
    augment: str = "none"
    size: int = 32
    columns: TableOptions | None = None
    balanced: bool = False

    def __repr__(self) -> str:
        """What evaluations are told apart by; without what version 0.1 did not have, as there."""
        later = {"columns": None, "balanced": False}
        names = [e.name for e in fields(self) if e.name not in later or getattr(self, e.name) != later[e.name]]
        return f"Source({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def load(self) -> Data:
        return balanced(self._read()) if self.balanced else self._read()

    def _read(self) -> Data:
        settings: dict[str, Any] = {"validation": self.validation, "seed": self.seed, "name": self.name}
        if sources.is_table(self.name):
            from fanfold.studies.neuro import tables

            return tables.load(self.columns or tables.TableOptions(), test=self.test, **settings)
        raw = sources.read(self.name, self.folder, self.size)
        if self.columns is not None:
            settings |= {"kind": self.columns.kind, "target": self.columns.predict_as}
        settings["validation"] = raw.validation or (0.1 if self.validation is None else self.validation)
        test: Part = raw.test or (0.1 if self.test is None else self.test)
        data = from_arrays(raw.pixels, raw.labels, test=test, classes=raw.classes, augment=self.augment, **settings)
        return replace(data, remarks=(_inferred(data), *raw.notes)) if ":" in self.name else data


def _inferred(data: Data) -> str:
    """What a folder or arrays were taken for."""
    rows = {"table": "rows of numbers", "sequence": "sequences"}.get(data.shape.kind, "images")
    size = " x ".join(str(side) for side in data.train.pixels.shape[1:] if side > 1)
    if data.name.startswith("folder:"):
        some = ", ".join(data.classes[:3]) + ("..." if len(data.classes) > 3 else "")
        count = len(data.train) + len(data.validation) + len(data.test)
        return f"{data.name} holds {count:,} images in {len(data.classes)} classes ({some}), resized (--image-size)"
    return f"{data.name} holds {rows} of {size}, to predict {data.shape.target} (--kind, --predict-as)"


def load(name: str, **settings: Any) -> Data:
    """Data by name; the settings are the fields of `Source`.

    A name is a table (`FILE.csv`, `FILE.parquet`), `digits`, `mnist-5000`, `mnist`, `fashion-mnist`, `cifar10`,
    `folder:PATH` or `arrays:FILE.npz`.
    """
    return Source(name, **settings).load()


def from_arrays(
    x: Any,
    y: Any,
    *,
    validation: Part = 0.1,
    test: Part = 0.1,
    seed: int = 0,
    name: str = "arrays",
    classes: int | Sequence[str] | None = None,
    augment: str = "none",
    kind: str = "auto",
    target: str = "auto",
    weights: Any = None,
) -> Data:
    """Data of images (n, height, width) or (n, channels, height, width), or of rows (n, features), and what to say.

    `target` is what `y` holds: `classes`, texts or whole numbers from 0; `numbers`; or `labels`, 0 or 1 for each.
    `auto` takes classes for images, and for rows what fits.  Rows may also be a frame, columns by name or mappings.
    `kind="sequence"` takes (n, channels, length).  `weights` say how much each counts in training.

    `validation` and `test` are taken out of these images, each class in proportion, or are separate as (x, y).  Nothing
    is rescaled: images are kept as uint8 if that says the same, otherwise as float32.
    """
    _check_words(augment=(augment, AUGMENTS), kind=(kind, ("auto", *KINDS)), target=(target, ("auto", *TARGETS)))
    (y, validation, test), classes = _numbered(y, validation, test, classes, target, name)
    if kind == "auto" and not hasattr(x, "shape") and not by_name(x):
        x = array(x, name)  # lists
    if kind == "table" or (kind == "auto" and (by_name(x) or len(x.shape) == 2)):
        from fanfold.studies.neuro import tables

        separate: dict[str, Any] = {"validation": validation, "test": test, "seed": seed}
        return tables.from_rows(x, y, name=name, classes=classes, target=target, weights=weights, **separate)
    kind, target = ("images" if kind == "auto" else kind), ("classes" if target == "auto" else target)
    whole = weighted(images(x, y, name, target, kind), weights, name)
    separate = {
        part: images(*value, f"{name}, {part} part", target, kind)
        for part, value in (("validation", validation), ("test", test))
        if isinstance(value, tuple)
    }
    names = names_of(classes, [whole, *separate.values()], name, target)
    counts = [
        0 if isinstance(value, tuple) else size_of(part, value, len(whole), name)
        for part, value in (("validation", validation), ("test", test))
    ]
    rest, *taken = (whole.take(index) for index in split(strata(whole.labels, target), counts, seed, name))
    parts = {part: separate.get(part, portion) for part, portion in zip(("validation", "test"), taken)}
    for part, portion in parts.items():
        if len(portion) and portion.pixels.shape[1:] != whole.pixels.shape[1:]:
            raise ConfigError(
                f"{name}: images of {_size(whole)} to learn from, but of {_size(portion)} in the {part} part: "
                "make them of one size"
            )
    channels, height, width = whole.pixels.shape[1:]
    shape = Shape(channels, height, width, len(names), kind, target)
    return assembled(name, (rest, parts["validation"], parts["test"]), shape, names, augment=augment)


def _numbered(
    y: Any, validation: Part, test: Part, classes: int | Sequence[str] | None, target: str, where: str
) -> tuple[tuple[Any, Part, Part], int | Sequence[str] | None]:
    """Labels of all parts as numbers, and the names of texts among them."""
    (y, *rest), names = numbered(
        [y, *(part[1] for part in (validation, test) if isinstance(part, tuple))], classes, target, where
    )
    parts = [(part[0], rest.pop(0)) if isinstance(part, tuple) else part for part in (validation, test)]
    return (y, parts[0], parts[1]), names


def assembled(
    name: str, parts: tuple[Images, Images, Images], shape: Shape, classes: tuple[str, ...], **more: Any
) -> Data:
    """Data of three parts, with the statistics of the first."""
    rest, validation, test = parts
    if not len(validation):
        raise ConfigError(f"{name}: the validation part is empty, and networks are chosen by it: validation=0.1")
    units = units_of(rest.labels) if shape.target == "numbers" else ()
    if shape.kind == "table":
        mean, scale = (0.0,) * shape.channels, (1.0,) * shape.channels
    else:
        mean, scale = statistics(rest.pixels)
    parts = (in_units(rest, units), in_units(validation, units), in_units(test, units))
    return Data(name, *parts, shape, mean, scale, classes, units=units, **more)


def _check_words(**words: tuple[str, Iterable[str]]) -> None:
    for name, (word, known) in words.items():
        if word not in known:
            raise ConfigError(f"{name}={word!r} is not known{nearest(str(word), known)}")


def from_loaders(
    train: Iterable[Any],
    test: Iterable[Any] | None = None,
    *,
    validation: float | int | Iterable[Any] = 0.1,
    name: str = "loaders",
    **more: Any,
) -> Data:
    """Data of PyTorch DataLoaders, or of any iterables of (images, labels) or (rows, answers), which are read once.

    `more` are further arguments of `from_arrays`.  In whichever order a loader shuffles, its data are the same.  What
    it changes at random in its images is changed once and for all: leave that to `augment`.
    """
    if not isinstance(validation, float | int | np.number):
        validation = gathered(validation, f"{name}, validation")
    x, y = gathered(train, f"{name}, training part")
    if more.get("kind", "auto") in ("auto", "images") and x.ndim != 2:
        target = more.get("target", "auto").replace("auto", "classes")
        (numbers,), _ = numbered([y], None, target, name)
        whole = images(x, numbers, name, target)
        x, y = whole.pixels, whole.labels if y is numbers else y  # texts of all parts are numbered together
    return from_arrays(
        *by_content(x, y),
        validation=validation,
        test=0 if test is None else gathered(test, f"{name}, test part"),
        name=name,
        **more,
    )


def _size(part: Images) -> str:
    return " x ".join(map(str, part.pixels.shape[1:]))


def order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """The order in which every network of a run meets the images in one epoch."""
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "order", epoch)))
    return rng.permutation(n).astype(np.int64)


def prepared(pixels: Array, mean: Sequence[float], scale: Sequence[float], device: str, dtype: str) -> Tensor:
    """Images as networks see them: normalised, and with the channels last in memory, which is faster."""
    tensor = torch.from_numpy(pixels.transpose(0, 2, 3, 1).copy()).to(device)
    middle, spread = (torch.tensor(each, device=device, dtype=DTYPES[dtype]) for each in (mean, scale))
    return _normalised(tensor, middle, spread)


def _normalised(pixels: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    return ((pixels.to(mean.dtype) - mean) / scale).permute(0, 3, 1, 2)


class Resident:
    """Data on a device, and the luck of one run: `seed` decides the order of the images and how they are changed.

    All networks of a run see the same batches.  Nothing here is written to after it is made, so threads may share it.
    """

    def __init__(self, data: Data, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"dtype={dtype!r} is not known{nearest(str(dtype), DTYPES)}")
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"device={device!r}: PyTorch finds no GPU here; use device='cpu'")
        self.data, self.shape = data, data.shape
        self.device, self.dtype, self.seed = device, dtype, seed
        kind = DTYPES[dtype]
        self.pixels = torch.from_numpy(data.train.pixels.transpose(0, 2, 3, 1).copy()).to(device)
        self.labels = self.wanted(data.train.labels)
        #: How much each image counts, where that differs.
        self.weights = None if data.train.weights is None else torch.from_numpy(data.train.weights).to(device, kind)
        self.mean = torch.tensor(data.mean, device=device, dtype=kind)
        self.scale = torch.tensor(data.scale, device=device, dtype=kind)
        #: How often an epoch goes through a table: networks are validated after steps that count.
        self.passes = max(1, -(-EPOCH // len(self.labels))) if self.shape.kind == "table" else 1
        self.places = places(len(self.labels), self.pixels.device)
        #: The validation part as networks see it, and its labels.
        self.validation = (self.prepared(data.validation.pixels), self.wanted(data.validation.labels))

    def __len__(self) -> int:
        """How many images an epoch has: all there are to learn from, of a small table several times."""
        return len(self.labels) * self.passes

    def prepared(self, pixels: Array) -> Tensor:
        return prepared(pixels, self.data.mean, self.data.scale, self.device, self.dtype)

    def wanted(self, labels: Array) -> Tensor:
        """What is wanted on the device: whole numbers as they are, others in the numbers of this training."""
        tensor = torch.from_numpy(labels).to(self.device)
        return tensor if labels.ndim == 1 else tensor.to(DTYPES[self.dtype])

    def order(self, epoch: int) -> Tensor:
        first, n = epoch * self.passes, len(self.labels)
        orders = [order(self.seed, number, n) for number in range(first, first + self.passes)]
        return torch.from_numpy(np.concatenate(orders)).to(self.device)

    def base(self, epoch: int) -> int:
        """The number that decides how images are changed in one epoch."""
        return network.dropout_base(derive_seed(self.seed, "augment"), epoch, 0)

    def batch(self, index: Tensor, base: int | Tensor, augment: str = "data") -> tuple[Tensor, Tensor]:
        """The images at `index` as networks see them in the epoch of `base`, and their labels.

        They are varied as the data say, or as `augment`, which shifts by a part of their size.
        """
        how = meant(augment, self.data.augment)
        if how.shift and augment != "data":
            side = min((side for side in self.pixels.shape[1:3] if side > 1), default=1)
            how = how._replace(shift=max(1, round(side / 14)))
        if how.warp:
            seen = warped(self._seen(self.pixels[index]), self.places[index], base, how)
        elif how.shift or how.flip:
            seen = self._seen(moved(self.pixels, index, self.places, base, how))
        else:
            seen = self._seen(self.pixels[index])
        return seen, self.labels[index]

    def _seen(self, pixels: Tensor) -> Tensor:
        return _normalised(pixels, self.mean, self.scale)


_LOADING = threading.Lock()
#: A worker process needs one; a sweep in one process a few.
_KEPT = 4
_residents: dict[tuple[Any, ...], Resident] = {}


def identity(data: Data | Source) -> Source | str:
    """What data are told apart by: where they come from, or what they hold."""
    if not isinstance(data, Data | Source):
        raise ConfigError(
            f"data must be what from_arrays(x, y) or from_loaders(...) gives, not a {type(data).__name__}"
        )
    return data if isinstance(data, Source) else data.digest


def resident(data: Data | Source, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> Resident:
    """The data on a device: loaded once in a process, however many networks are trained there."""
    key = (identity(data), device, dtype, seed)
    with _LOADING:
        if key not in _residents:
            loaded = data.load() if isinstance(data, Source) else data
            while len(_residents) >= _KEPT:
                _residents.pop(next(iter(_residents)))
            _residents[key] = Resident(loaded, device, dtype, seed)
        return _residents[key]
