"""Data whose classes count the same, however rare they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fanfold.errors import ConfigError
from fanfold.studies.neuro.images import Images

if TYPE_CHECKING:
    from fanfold.studies.neuro.data import Data


def balanced(data: Data) -> Data:
    """The data with every class counting the same, however rare: in training by weights, and in the score."""
    if data.shape.target != "classes":
        raise ConfigError(f"{data.name}: only classes can be balanced, not {data.shape.target}: leave balanced out")
    counts = np.bincount(data.train.labels, minlength=data.shape.classes)

    def weighed(part: Images) -> Images:
        weights = 1.0 if part.weights is None else part.weights
        return Images(part.pixels, part.labels, np.asarray(weights * scale[part.labels], np.float32))

    scale = len(data.train) / (np.maximum(counts, 1) * np.count_nonzero(counts))
    if data.train.weights is not None:
        scale = scale / np.mean(data.train.weights * scale[data.train.labels])
    parts = (weighed(data.train), weighed(data.validation), weighed(data.test))
    return replace(data, train=parts[0], validation=parts[1], test=parts[2], shape=replace(data.shape, balanced=True))
