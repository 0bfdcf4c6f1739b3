"""Reads loaders of batches once, and puts what they hold into one order."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fanfold.errors import ConfigError
from fanfold.studies.neuro.images import Array, array


def gathered(loader: Any, where: str) -> tuple[Array, Array]:
    if isinstance(loader, tuple) and len(loader) == 2 and hasattr(loader[0], "shape"):
        loader = [loader]  # all of it as one batch
    if not hasattr(loader, "__iter__") and hasattr(loader, "__len__"):
        loader = map(loader.__getitem__, range(len(loader)))  # a Dataset: only its length says where it ends
    pixels: list[Array] = []
    labels: list[Array] = []
    for number, batch in enumerate(loader):
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise ConfigError(f"{where}: batch {number} is a {type(batch).__name__}, not a pair (images, labels)")
        x = array(batch[0], f"{where}, batch {number}")
        y = np.asarray(batch[1]) if _texts(batch[1]) else array(batch[1], f"{where}, batch {number}")
        if y.ndim == 0:
            x, y = x[None], y[None]
        if pixels and x.shape[1:] != pixels[0].shape[1:]:
            raise ConfigError(f"{where}, batch {number}: images of {x.shape[1:]} after {pixels[0].shape[1:]}: pad them")
        pixels.append(x)
        labels.append(y)
    if not pixels:
        raise ConfigError(f"{where}: the loader gave nothing; one that can be gone through only once may be used up")
    return np.concatenate(pixels), np.concatenate(labels)


def _texts(labels: Any) -> bool:
    """Whether labels of a batch are texts, as a loader leaves them."""
    return isinstance(labels, str) or (
        isinstance(labels, list | tuple) and all(isinstance(each, str) for each in labels)
    )


def by_content(x: Array, y: Array) -> tuple[Array, Array]:
    """The rows in an order that depends on nothing but what they hold."""
    keys = [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in x]
    order = sorted(range(len(x)), key=lambda place: (keys[place], y[place].ravel().tolist()))
    return x[order], y[order]
