"""Data to learn from: loaded, split, and kept on the device as whole numbers, from where batches are taken."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fanfold import encoding
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, nearest
from fanfold.studies.neuro import network, sources
from fanfold.studies.neuro.genome import Shape
from fanfold.studies.neuro.images import Array, Images, array, images, statistics

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

#: What happens to an image before it is learnt from: the most pixels it is shifted by, and whether it may be mirrored.
AUGMENTS = {"none": (0, False), "shift": (2, False), "flip": (0, True), "shift+flip": (2, True)}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, eq=False)
class Data:
    """Images to learn from, images to choose networks by, and images that are looked at once, at the end.

    `mean` and `scale` are those of each channel in the training part, in the units of the pixels: a network sees
    (pixels - mean) / scale.  `classes` names the classes.
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

    @functools.cached_property
    def digest(self) -> str:
        texts = [repr((self.shape, self.mean, self.scale, self.augment))]
        for part in (self.train, self.validation, self.test):
            state = hashlib.blake2b(repr((part.pixels.shape, part.pixels.dtype.str)).encode(), digest_size=16)
            state.update(np.ascontiguousarray(part.pixels).data)
            state.update(np.ascontiguousarray(part.labels).data)
            texts.append(state.hexdigest())
        return encoding.digest(*texts).hex()[:16]


def digest(data: Data) -> str:
    """A short text that stands for everything a training can see of the data."""
    return data.digest


@dataclass(frozen=True)
class Source:
    """Where data come from and how they are split: a small value that a worker process can load them by.

    `folder` is where the files of `mnist`, `fashion-mnist` and `cifar10` are; they have a test part of their own, and
    `test` does not count.  `size` is the height and width that the images of `folder:PATH` are brought to.
    """

    name: str
    folder: str | None = None
    validation: float | int = 0.1
    test: float | int = 0.1
    seed: int = 0
    augment: str = "none"
    size: int = 32

    def load(self) -> Data:
        raw = sources.read(self.name, self.folder, self.size)
        test: Part = self.test if raw.test is None else raw.test
        return from_arrays(
            raw.pixels,
            raw.labels,
            validation=self.validation,
            test=test,
            seed=self.seed,
            name=self.name,
            classes=raw.classes,
            augment=self.augment,
        )


def load(name: str, **settings: Any) -> Data:
    """Data by name; the settings are the fields of `Source`.

    A name is `digits`, `mnist-5000`, `mnist`, `fashion-mnist`, `cifar10`, `folder:PATH` or `arrays:FILE.npz`.
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
) -> Data:
    """Data of images (n, height, width) or (n, channels, height, width) and of whole numbers from 0, their classes.

    `validation` and `test` are taken out of these images, each class in proportion, or are separate as (x, y).  Nothing
    is rescaled: images are kept as uint8 if that says the same, otherwise as float32.
    """
    if augment not in AUGMENTS:
        raise ConfigError(f"augment={augment!r} is not known{nearest(str(augment), AUGMENTS)}")
    whole = images(x, y, name)
    separate = {
        part: images(*value, f"{name}, {part} part")
        for part, value in (("validation", validation), ("test", test))
        if isinstance(value, tuple)
    }
    names = _names(classes, [whole, *separate.values()], name)
    _complete(whole, names, name)
    counts = [
        0 if isinstance(value, tuple) else _count(part, value, len(whole), name)
        for part, value in (("validation", validation), ("test", test))
    ]
    rest, *taken = (whole.take(index) for index in split(whole.labels, counts, seed, name))
    parts = {part: separate.get(part, portion) for part, portion in zip(("validation", "test"), taken)}
    for part, portion in parts.items():
        if len(portion) and portion.pixels.shape[1:] != whole.pixels.shape[1:]:
            raise ConfigError(
                f"{name}: images of {_size(whole)} to learn from, but of {_size(portion)} in the {part} part: "
                "make them of one size"
            )
    if not len(parts["validation"]):
        raise ConfigError(f"{name}: the validation part is empty, and networks are chosen by it: validation=0.1")
    channels, height, width = whole.pixels.shape[1:]
    shape = Shape(channels, height, width, len(names))
    mean, scale = statistics(rest.pixels)
    return Data(name, rest, parts["validation"], parts["test"], shape, mean, scale, names, augment)


def from_loaders(
    train: Iterable[Any],
    test: Iterable[Any] | None = None,
    *,
    validation: float | int | Iterable[Any] = 0.1,
    name: str = "loaders",
    **more: Any,
) -> Data:
    """Data of PyTorch DataLoaders, or of any iterables of (images, labels), which are read once.

    `more` are further arguments of `from_arrays`.
    In whichever order a loader shuffles its images, they are the same data.  What a loader changes at random in its
    images is changed once and for all: leave that to `augment`.
    """
    whole = images(*_gathered(train, f"{name}, training part"), name)
    whole = whole.take(_by_content(whole))
    return from_arrays(
        whole.pixels,
        whole.labels,
        validation=validation if isinstance(validation, float | int) else _gathered(validation, f"{name}, validation"),
        test=0 if test is None else _gathered(test, f"{name}, test part"),
        name=name,
        **more,
    )


def _names(classes: int | Sequence[str] | None, parts: Sequence[Images], where: str) -> tuple[str, ...]:
    most = max(int(part.labels.max()) for part in parts) + 1
    count = most if classes is None else classes if isinstance(classes, int) else len(classes)
    if count < 2:
        raise ConfigError(f"{where}: classes can be told apart only if there are two or more; here is {count}")
    if most > count:
        raise ConfigError(f"{where}: the label {most - 1}, but {count} classes: number them from 0 to {count - 1}")
    if count > len(parts[0]):
        raise ConfigError(f"{where}: {count} classes, but {len(parts[0])} images to learn from: number them from 0")
    return tuple(map(str, range(count))) if classes is None or isinstance(classes, int) else tuple(classes)


def _complete(whole: Images, names: tuple[str, ...], where: str) -> None:
    missing = sorted(set(range(len(names))) - set(np.unique(whole.labels).tolist()))
    if missing:
        text = ", ".join(repr(names[label]) for label in missing[:5]) + ("..." if len(missing) > 5 else "")
        raise ConfigError(f"{where}: no image to learn from of class {text}: add some, or number the rest from 0")


def _count(part: str, value: float | int, n: int, where: str) -> int:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and value >= 0:
        return int(value)
    if isinstance(value, float) and 0 <= value < 1:
        return max(1, round(value * n)) if value else 0
    raise ConfigError(f"{where}: {part}={value!r} is neither a share from 0 to below 1 nor a number of images")


def _size(part: Images) -> str:
    return " x ".join(map(str, part.pixels.shape[1:]))


def split(labels: NDArray[np.int64], counts: Sequence[int], seed: int, where: str = "data") -> list[Array]:
    """Indices of what is left, and of parts of the given sizes; in all of them each class has about its share."""
    sizes = np.bincount(labels)
    room = np.maximum(sizes - 1, 0)  # something of each class is left to learn from
    if sum(counts) > room.sum():
        raise ConfigError(
            f"{where}: {len(labels)} images are too few to set {sum(counts)} aside and learn from the rest: lower "
            f"validation= or test="
        )
    rng = np.random.default_rng(derive_seed(seed, "split"))
    lots = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(sizes))]
    used = np.zeros_like(sizes)
    parts = []
    for count in counts:
        share = _shares(sizes, room - used, count)
        some = [lot[start : start + size] for lot, start, size in zip(lots, used, share)]
        parts.append(np.sort(np.concatenate(some)))
        used += share
    rest = np.sort(np.concatenate([lot[start:] for lot, start in zip(lots, used)]))
    return [rest, *parts]


def _shares(sizes: Array, room: Array, count: int) -> Array:
    """`count` divided in proportion to `sizes`, within `room`; what rounding leaves goes where most is owed."""
    owed = count * sizes / max(1, sizes.sum())
    share: Array = np.minimum(np.floor(owed).astype(np.int64), room)
    while share.sum() < count:
        share[np.argmax(np.where(share < room, owed - share, -np.inf))] += 1
    return share


def order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """The order in which every network of a run meets the images in one epoch."""
    rng = np.random.Generator(np.random.PCG64(derive_seed(seed, "order", epoch)))
    return rng.permutation(n).astype(np.int64)


def _gathered(loader: Iterable[Any], where: str) -> tuple[Array, Array]:
    if isinstance(loader, tuple) and len(loader) == 2 and hasattr(loader[0], "shape"):
        loader = [loader]  # all of it as one batch
    pixels: list[Array] = []
    labels: list[Array] = []
    for number, batch in enumerate(loader):
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise ConfigError(f"{where}: batch {number} is a {type(batch).__name__}, not a pair (images, labels)")
        x, y = (array(each, f"{where}, batch {number}") for each in batch)
        if y.ndim == 0:
            x, y = x[None], y[None]
        if pixels and x.shape[1:] != pixels[0].shape[1:]:
            raise ConfigError(f"{where}, batch {number}: images of {x.shape[1:]} after {pixels[0].shape[1:]}")
        pixels.append(x)
        labels.append(y)
    if not pixels:
        raise ConfigError(f"{where}: the loader gave nothing; one that can be gone through only once may be used up")
    return np.concatenate(pixels), np.concatenate(labels)


def _by_content(part: Images) -> NDArray[np.int64]:
    keys = [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in part.pixels]
    return np.array(sorted(range(len(part)), key=lambda place: (keys[place], part.labels[place])), np.int64)


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
        self.pixels = torch.from_numpy(data.train.pixels.transpose(0, 2, 3, 1).copy()).to(device)
        self.labels = torch.from_numpy(data.train.labels).to(device)
        self.mean = torch.tensor(data.mean, device=device, dtype=DTYPES[dtype])
        self.scale = torch.tensor(data.scale, device=device, dtype=DTYPES[dtype])
        #: Three for each image: its move down, its move to the right, and whether it is mirrored.
        self.places = network.places(3 * len(self.labels), self.pixels.device).view(-1, 3)
        #: The validation part as networks see it, and its labels.
        self.validation = (self.prepared(data.validation.pixels), torch.from_numpy(data.validation.labels).to(device))

    def __len__(self) -> int:
        """How many images there are to learn from."""
        return len(self.labels)

    def prepared(self, pixels: Array) -> Tensor:
        return prepared(pixels, self.data.mean, self.data.scale, self.device, self.dtype)

    def order(self, epoch: int) -> Tensor:
        return torch.from_numpy(order(self.seed, epoch, len(self))).to(self.device)

    def base(self, epoch: int) -> int:
        """The number that decides how images are changed in one epoch."""
        return network.dropout_base(derive_seed(self.seed, "augment"), epoch, 0)

    def batch(self, index: Tensor, base: int | Tensor) -> tuple[Tensor, Tensor]:
        """The images at `index` as networks see them in the epoch of `base`, and their labels."""
        shift, flip = AUGMENTS[self.data.augment]
        chosen = self._moved(index, base, shift, flip) if shift or flip else self.pixels[index]
        return _normalised(chosen, self.mean, self.scale), self.labels[index]

    def _moved(self, index: Tensor, base: int | Tensor, shift: int, flip: bool) -> Tensor:
        """What an image becomes follows from its number and the epoch alone.  At the border, pixels are repeated."""
        height, width = self.pixels.shape[1:3]
        lots = network.drawn(self.places[index], base)
        moves = lots[:, :2] % (2 * shift + 1) - shift
        rows = (torch.arange(height, device=index.device) + moves[:, :1]).clamp(0, height - 1)
        columns = (torch.arange(width, device=index.device) + moves[:, 1:]).clamp(0, width - 1)
        if flip:
            columns = torch.where(lots[:, 2:] < network.LOTS // 2, width - 1 - columns, columns)
        return self.pixels[index[:, None, None], rows[:, :, None], columns[:, None, :]]


_LOADING = threading.Lock()
#: A worker process needs one; a sweep in one process a few.
_KEPT = 4
_residents: dict[tuple[Any, ...], Resident] = {}


def identity(data: Data | Source) -> Source | str:
    """What data are told apart by: where they come from, or what they hold."""
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
