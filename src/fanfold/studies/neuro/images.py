"""Images and what they show: checked, and kept as bytes where that says the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError

Array: TypeAlias = NDArray[Any]
#: Images that statistics are taken of at a time.
_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Images:
    """Pixels of (images, channels, height, width), as uint8 or else float32, and what is to be said of each image.

    `labels` are the classes; or a row of float32 for each image, of numbers or of 0 and 1.  `weights` say how much
    each image counts in training; their mean is 1.
    """

    pixels: Array
    labels: Array
    weights: Array | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Array) -> Images:
        weights = None if self.weights is None else self.weights[index]
        return Images(self.pixels[index], self.labels[index], weights)


def images(x: Any, y: Any, where: str, target: str = "classes", kind: str = "images") -> Images:
    """Images and labels as they are kept, or a ConfigError that says what is wrong with them and `where`."""
    pixels, labels = array(x, where), array(y, where)
    if target == "classes" and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if kind == "sequence":
        if pixels.ndim not in (2, 3):
            raise ConfigError(f"{where}: sequences must be of (n, length) or (n, channels, length), not {pixels.shape}")
        if pixels.ndim == 3 and pixels.shape[2] <= 4 < pixels.shape[1]:
            raise ConfigError(f"{where}: the channels of {pixels.shape} come last: use x.transpose(0, 2, 1)")
        pixels = pixels.reshape(len(pixels), -1, 1, pixels.shape[-1])
    elif pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.ndim != 4:
        raise ConfigError(
            f"{where}: images must be of (n, height, width) or (n, channels, height, width), not of {pixels.shape}: "
            f"reshape them"
        )
    if kind != "sequence" and pixels.shape[3] in (1, 3, 4) and min(pixels.shape[1:3]) > 4:
        raise ConfigError(f"{where}: the channels of {pixels.shape} come last: use x.transpose(0, 3, 1, 2)")
    if labels.shape != (len(pixels),) if target == "classes" else labels.shape[:1] != (len(pixels),):
        raise ConfigError(f"{where}: {len(pixels)} images, but labels of {labels.shape}: give one label for each")
    if not pixels.size:
        raise ConfigError(f"{where}: there are no images (an array of {pixels.shape})")
    return Images(_compact(pixels, where), answers(labels, target, where))


def by_name(x: Any) -> bool:
    """Whether these are columns or rows with names, and not a frame: a mapping of columns, or mappings."""
    first = x[0] if isinstance(x, list) and x else x
    return isinstance(first, Mapping) or hasattr(x, "collect_schema")


def array(value: Any, where: str) -> Array:
    """Numbers of any library as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # numpy has no such numbers
    if hasattr(value, "toarray"):
        raise ConfigError(f"{where}: sparse numbers are not read: give x.toarray()")
    try:
        numbers = np.asarray(unmasked(value))
    except (ValueError, TypeError) as error:  # rows of different lengths, numbers that numpy has not
        remedy = "; cut or pad them to one size" if isinstance(error, ValueError) else ""
        raise ConfigError(f"{where}: these are not numbers of one shape: {str(error).rstrip('.')}{remedy}") from error
    if numbers.dtype.kind not in "buif":
        raise ConfigError(f"{where}: numbers are needed, not {numbers.dtype}; rows with texts may be a frame or dicts")
    return numbers


def unmasked(value: Any) -> Any:
    """An array whose masked values are missing: NaN among numbers, else None.  Anything else as it is."""
    if not np.ma.is_masked(value):
        return value
    if value.dtype.kind in "buif":
        return value.astype(np.float64).filled(np.nan)
    return np.where(value.mask, None, value.data.astype(object))


def _compact(pixels: Array, where: str) -> Array:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        bad = int(np.argmin(np.isfinite(pixels).reshape(len(pixels), -1).all(axis=1)))
        raise ConfigError(f"{where}: image {bad} holds NaN or infinity: leave it out, or fill the gaps")
    if pixels.min() >= 0 and pixels.max() <= 255:
        whole = pixels.astype(np.uint8)
        if np.array_equal(whole, pixels):
            return whole
    with np.errstate(over="ignore"):
        single = pixels.astype(np.float32)
    if not np.isfinite(single).all():
        raise ConfigError(f"{where}: numbers beyond {np.finfo(np.float32).max:.2g} cannot be learnt from: scale them")
    return single


def answers(labels: Array, target: str, where: str) -> Array:
    """What is wanted, checked: classes from 0, or rows of numbers, or of 0 and 1."""
    if target == "classes":
        return _classes(labels, where)
    rows = labels.reshape(len(labels), -1).astype(np.float64)
    if not np.isfinite(rows).all():
        raise ConfigError(f"{where}: what is to be predicted holds NaN or infinity: leave those rows out")
    if target == "labels" and not np.isin(rows, (0, 1)).all():
        raise ConfigError(f"{where}: labels must be 0 or 1 for each row and label")
    return rows


def units_of(rows: Array) -> tuple[tuple[float, float], ...]:
    """Mean and deviation of each number to predict, rounded so that every machine finds the same."""
    most = np.where((most := np.abs(rows).max(axis=0)) > 0, most, 1.0)
    mean, scale = (rows / most).mean(axis=0), (rows / most).std(axis=0)  # squares of large numbers may be too large
    scale = np.where(scale <= 1e-12 * np.abs(mean), 1.0, scale)
    return tuple(zip(_rounded(mean * most, 10), _rounded(scale * most, 10)))


def in_units(part: Images, units: tuple[tuple[float, float], ...]) -> Images:
    """Images whose numbers are standardised; without units, as they are."""
    if part.labels.ndim == 1:
        return part
    mean, scale = np.array(units or ((0.0, 1.0),)).T
    return Images(part.pixels, ((part.labels - mean) / scale).astype(np.float32), part.weights)


def _classes(labels: Array, where: str) -> NDArray[np.int64]:
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == np.floor(labels))).all():
        raise ConfigError(
            f"{where}: labels must be whole numbers: number the classes from 0, or "
            "predict numbers (target='numbers', --predict-as numbers)"
        )
    if labels.min() < 0:
        raise ConfigError(f"{where}: the label {labels.min()} is below 0: number the classes from 0")
    if labels.max() >= 2**31:
        raise ConfigError(f"{where}: the label {labels.max()} is too large: number the classes from 0")
    return labels.astype(np.int64)


def weighted(part: Images, weights: Any, where: str) -> Images:
    """The images with how much each counts: not below 0, and 1 in the mean."""
    return part if weights is None else Images(part.pixels, part.labels, counted(weights, len(part), where))


def counted(weights: Any, n: int, where: str) -> NDArray[np.float32]:
    """How much each of `n` counts, checked."""
    counts = array(weights, where).astype(np.float64)
    if counts.shape != (n,) or not np.isfinite(counts).all() or (counts < 0).any() or not counts.any():
        raise ConfigError(f"{where}: weights must be {n} numbers of at least 0, and not all 0")
    return np.asarray(counts / counts.mean(), np.float32)


def statistics(pixels: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, rounded so that every machine finds the same."""
    total = squares = np.zeros(pixels.shape[1])
    for first in range(0, len(pixels), _CHUNK):
        some = pixels[first : first + _CHUNK].astype(np.float64)
        total, squares = total + some.sum(axis=(0, 2, 3)), squares + np.square(some).sum(axis=(0, 2, 3))
    count = pixels.size // pixels.shape[1]
    mean = total / count
    spread = np.sqrt(np.maximum(squares / count - mean**2, 0))
    blank = spread <= 1e-6 * np.abs(mean)
    return _rounded(mean), _rounded(np.where(blank, 1.0, spread))


def _rounded(values: Array, digits: int = 6) -> tuple[float, ...]:
    return tuple(float(f"{value:.{digits}g}") for value in values)
