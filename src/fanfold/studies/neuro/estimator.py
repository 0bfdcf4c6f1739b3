"""The study as a classifier of scikit-learn: fit, predict, and everything there that takes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fanfold.config import from_mapping
from fanfold.errors import ConfigError, MissingExtra
from fanfold.studies.neuro.config import NeuroConfig
from fanfold.studies.neuro.data import Data, Images, from_arrays
from fanfold.studies.neuro.export import Saved, best
from fanfold.studies.neuro.genome import Shape, describe, individual_of
from fanfold.studies.neuro.study import run_options, study

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    raise MissingExtra("scikit-learn", "sklearn", "NeuroevolutionClassifier") from error

#: Rows of numbers that are not images have nothing to convolve.
_VECTORS = {"conv_layers": (0, 0), "dense_layers": (1, 3), "nodes": (16, 128)}


class NeuroevolutionClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Searches for a network that tells classes apart, and is then that network.

    `X` holds images of (n, height, width) or (n, channels, height, width), or rows of (n, features).  Rows are images
    if `image_shape` says so, as (height, width) or (channels, height, width); else each feature is normalised on its
    own and networks are dense layers only.

    `trials` networks are tried, in generations of `population`; the best are trained for `epochs` epochs, the others
    for fewer.  A share `validation` of the data decides which are good, and is not trained on.  `engine` and `n_jobs`
    say how many are trained at once; that does not change what is found.  `settings` are further fields of the study's
    config.  With a `ledger` file the trainings are kept, and a `fit` of the same data and parameters trains nothing.

    Fitted, it has `classes_`, `n_features_in_`, `best_genome_`, `best_score_` (the accuracy on the validation share),
    `history_` (a dict for every network tried) and `network_`, which `save` writes as files.
    """

    def __init__(
        self,
        trials: int = 24,
        *,
        population: int = 8,
        epochs: int = 18,
        rungs: int = 3,
        batch_size: int = 64,
        validation: float = 0.2,
        image_shape: Sequence[int] | None = None,
        engine: str = "auto",
        n_jobs: int | None = None,
        ledger: str | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.trials = trials
        self.population = population
        self.epochs = epochs
        self.rungs = rungs
        self.batch_size = batch_size
        self.validation = validation
        self.image_shape = image_shape
        self.engine = engine
        self.n_jobs = n_jobs
        self.ledger = ledger
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Search, and keep the best network."""
        shape = self._image_shape(X)
        X, y = validate_data(self, _rows(X), y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(f"y has 1 class, {self.classes_[0]!r}: at least 2 are needed to tell apart")
        self._shape = (X.shape[1], 1, 1) if shape is None else shape
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        names = [str(name) for name in self.classes_]
        split: dict[str, Any] = {"validation": self.validation, "test": 0, "seed": seed, "name": "X", "classes": names}
        normal: dict[str, Any] = {}
        if shape is None:
            # Before they become short numbers, which cannot tell a large mean from its neighbours.
            mean, scale = _statistics(X)
            normal = {"mean": tuple(mean.tolist()), "scale": tuple(scale.tolist())}
            data = _pixels(from_arrays(((X - mean) / scale).reshape(-1, 1, 1, X.shape[1]), labels, **split))
        else:
            data = from_arrays(X.reshape(-1, *shape), labels, **split)
        config = self._config(seed, images=shape is not None)
        run = study(config, data).run(**run_options(config), ledger=self.ledger, reuse="ledger")
        with run.ledger:
            self.network_ = replace(best(run, data), **normal)
            self.history_ = [_told(result) for result in run.results()]
        self.best_genome_ = self.network_.genome
        self.best_score_ = float(self.network_.about["validation_accuracy"])
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        scores = self._scores(X)
        classes: NDArray[Any] = self.classes_[scores.argmax(axis=1)]
        return classes

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The chance of each class, in the order of `classes_`."""
        scores = self._scores(X)
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances: NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True)
        return chances

    def save(self, folder: str | Path) -> Saved:
        """Write the network as files that need neither Fanfold nor scikit-learn; see `export.Classifier`."""
        check_is_fitted(self)
        return self.network_.save(folder)

    def _scores(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        shape = getattr(X, "shape", ())
        if len(shape) > 2 and _image(tuple(shape[1:])) != self._shape:
            raise ConfigError(f"X holds images of {shape[1:]}, and the network was trained on {self._shape}")
        X = validate_data(self, _rows(X), reset=False)
        return self.network_.scores(X.reshape(-1, *self._shape))

    def _image_shape(self, X: Any) -> tuple[int, int, int] | None:
        """Channels, height and width; None where rows are not images."""
        shape = getattr(X, "shape", None)
        if shape is not None and len(shape) > 2:
            return _image(tuple(shape[1:]))
        if self.image_shape is None:
            return None
        image = _image(tuple(self.image_shape))
        if shape is not None and len(shape) == 2 and shape[1] != np.prod(image):
            raise ConfigError(f"image_shape={self.image_shape!r} does not fit rows of {shape[1]} features")
        return image

    def _config(self, seed: int, images: bool) -> NeuroConfig:
        jobs = self.n_jobs
        if jobs is not None and (not isinstance(jobs, int) or (jobs < 1 and jobs != -1)):
            raise ConfigError(f"n_jobs must be at least 1, or -1 for as many as the machine has cores, not {jobs!r}")
        names = ("trials", "population", "epochs", "rungs", "batch_size", "engine")
        fields = {name: getattr(self, name) for name in names}
        fields |= {"concurrent": None if jobs == -1 else jobs, "results": None, "seed": seed}
        settings = {**fields, **({} if images else _VECTORS), **(self.settings or {})}
        return from_mapping(NeuroConfig, settings, "NeuroevolutionClassifier")


def _rows(X: Any) -> Any:
    """Images laid out flat: what scikit-learn checks are rows of numbers."""
    shape = getattr(X, "shape", ())
    return np.asarray(X).reshape(len(X), -1) if len(shape) > 2 else X


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) not in (2, 3):
        raise ConfigError(f"images are of (height, width) or (channels, height, width), not {shape}")
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    return channels, height, width


def _statistics(X: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each feature; of one that is always the same, 1."""
    most = np.abs(X).max(axis=0).astype(np.float64)
    most = np.where(most > 0, most, 1.0)
    mean, scale = (X / most).mean(axis=0), (X / most).std(axis=0)  # the square of a large number may be too large
    return mean * most, np.where(scale <= 1e-12 * np.abs(mean), 1.0, scale * most)


def _pixels(data: Data) -> Data:
    """Rows of normal numbers as images of one pixel, with a channel for each."""

    def turned(part: Images) -> Images:
        return Images(np.ascontiguousarray(part.pixels.transpose(0, 3, 1, 2)), part.labels)

    features = data.shape.width
    return replace(
        data,
        train=turned(data.train),
        validation=turned(data.validation),
        test=turned(data.test),
        shape=Shape(features, 1, 1, data.shape.classes),
        mean=(0.0,) * features,
        scale=(1.0,) * features,
    )


def _told(result: Any) -> dict[str, Any]:
    return {
        "trial": result.number,
        "genome": describe(individual_of(result.candidate).genome),
        "score": result.score,
        "rungs": len(result.outcomes),
        "dropped": result.dropped,
        **(result.trial.origin or {}),
    }
