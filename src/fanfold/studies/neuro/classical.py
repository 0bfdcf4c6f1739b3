"""Models of scikit-learn on the same split: what anyone would try before a network."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fanfold.encoding import derive_seed, digest
from fanfold.studies.neuro.data import Data, Source, identity, resident
from fanfold.studies.neuro.genome import Shape
from fanfold.studies.neuro.images import Array, Images
from fanfold.studies.neuro.targets import as_outputs, score
from fanfold.types import Case, Ok

#: Rows that a support vector machine, whose effort grows with their square, learns from at most.
MOST_ROWS = 5000
#: The settings of each, of which the validation part chooses.
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "SVM": ({"C": 1.0}, {"C": 10.0}),
    "gradient boosting": ({"learning_rate": 0.1}, {"learning_rate": 0.03}),
}


def fitting(data: Data) -> list[str]:
    """The models that suit the data."""
    return ["SVM", "gradient boosting"] if data.shape.kind == "table" else ["SVM"]


@dataclass(frozen=True)
class Classical:
    """Fits the model of a name, with the setting that does best on the validation part, and asks it about the test."""

    source: Source | Data
    seed: int = 0

    @functools.cached_property
    def fingerprint(self) -> str:
        return f"neuro-classical-1@{digest(repr((identity(self.source), self.seed))).hex()[:16]}"

    def __call__(self, candidate: str, case: Case) -> Ok:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn needs it, too

        data = resident(self.source, "cpu", "float32", self.seed).data
        began, shape = time.thread_time(), data.shape
        with threadpool_limits(1):
            train = _least(data.train, self.seed) if candidate == "SVM" else data.train
            tried: list[tuple[float, int, Any]] = []
            for settings in SETTINGS[candidate]:
                model = _model(candidate, shape, settings)
                model.fit(_rows(train, data), _wanted(train))
                said = model.predict(_rows(data.validation, data))
                outputs = as_outputs(said, shape.target, shape.classes)
                worth = float(score(outputs, torch.from_numpy(data.validation.labels), shape.scored))
                tried.append((worth, -len(tried), model))
            best, _, model = max(tried, key=lambda found: found[:2])
            said = model.predict(_rows(data.test, data)) if len(data.test) else np.zeros(0)
        return Ok(best, {"said": np.asarray(said).tolist(), "cpu": time.thread_time() - began})


def _rows(part: Images, data: Data) -> Array:
    mean, scale = (np.asarray(each, np.float32).reshape(-1, 1, 1) for each in (data.mean, data.scale))
    rows: Array = ((part.pixels - mean) / scale).reshape(len(part), -1)
    return rows


def _wanted(part: Images) -> Array:
    return part.labels[:, 0] if part.labels.ndim > 1 and part.labels.shape[1] == 1 else part.labels


def _least(part: Images, seed: int) -> Images:
    if len(part) <= MOST_ROWS:
        return part
    return part.take(np.random.default_rng(derive_seed(seed, "classical")).permutation(len(part))[:MOST_ROWS])


def _model(name: str, shape: Shape, settings: dict[str, Any]) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.multioutput import MultiOutputRegressor
    from sklearn.svm import SVC, SVR

    number = shape.target == "numbers"
    if shape.balanced:
        settings = {**settings, "class_weight": "balanced"}
    if name == "SVM":
        model = (SVR if number else SVC)(**settings)
    else:
        kind = HistGradientBoostingRegressor if number else HistGradientBoostingClassifier
        model = kind(max_iter=200, early_stopping=False, random_state=0, **settings)
    if number:
        return MultiOutputRegressor(model) if shape.classes > 1 else model
    return OneVsRestClassifier(model) if shape.target == "labels" else model
