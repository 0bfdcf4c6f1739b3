"""The study as estimators of scikit-learn: fit, predict, and everything there that takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fanfold.config import from_mapping
from fanfold.errors import ConfigError, MissingExtra
from fanfold.studies.neuro.config import OF_SOURCE, NeuroConfig
from fanfold.studies.neuro.data import from_arrays
from fanfold.studies.neuro.export import Saved, best
from fanfold.studies.neuro.genome import describe, individual_of
from fanfold.studies.neuro.images import array, unmasked
from fanfold.studies.neuro.study import run_options, study

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_X_y, validate_data
except ModuleNotFoundError as error:
    raise MissingExtra("scikit-learn", "sklearn", "NeuroevolutionClassifier") from error


class NeuroevolutionEstimator(BaseEstimator):  # type: ignore[misc]
    """Searches for a network, and is then that network: what the classifier and the regressor share.

    `X` holds images of (n, height, width) or (n, channels, height, width), rows of (n, features), or a frame of pandas
    with numbers, categories and dates.  Rows are images if `image_shape` says so, as (height, width) or (channels,
    height, width); else each feature is standardised on its own, gaps are filled and marked, and networks are dense.

    `trials` networks are tried, in generations of `population`; the best are trained for `epochs` epochs, the others
    for fewer.  A share `validation` of the data decides which are good, and is not trained on.  `engine`, `n_jobs` and
    `gpus` say how many are trained at once and where; that does not change what is found.  `settings` are further
    fields of the study's config.  With a `ledger` file the trainings are kept, and a `fit` of the same data and
    parameters trains nothing.

    Fitted, it has `n_features_in_`, `best_genome_`, `best_score_` (on the validation share), `history_` (a dict for
    every network tried) and `network_`, which `save` writes as files.
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
        gpus: int | str | None = None,
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
        self.gpus = gpus
        self.ledger = ledger
        self.settings = settings
        self.random_state = random_state

    def save(self, folder: str | Path) -> Saved:
        """Write the network as files that need neither Fanfold nor scikit-learn; see `export.Classifier`."""
        check_is_fitted(self)
        return self.network_.save(folder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # gaps are filled
        tags.target_tags.multi_output = True
        return tags

    def _checked(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """`X` and `y` by the rules of scikit-learn; a frame that holds more than numbers keeps its columns."""
        X, y = _stacked(X), array(y, "y") if hasattr(y, "detach") else unmasked(y)
        self._shape, self._by_name = self._image_shape(X), _mixed(X)
        if self._by_name:
            validate_data(self, X, y, skip_check_array=True)
            _, y = check_X_y(np.zeros((len(X), 1)), y, multi_output=True, y_numeric=False, dtype=None)
        else:
            finite = True if self._shape else "allow-nan"
            X, y = validate_data(self, _rows(X), y, multi_output=True, ensure_all_finite=finite, ensure_min_samples=2)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, np.zeros((len(y), 1)))
            counts = np.flatnonzero(sample_weight)  # what counts nothing chooses no network either
            if 0 < len(counts) < len(y):
                X, y, sample_weight = (X.iloc if hasattr(X, "iloc") else X)[counts], y[counts], sample_weight[counts]
        return X, y, sample_weight

    def _search(self, X: Any, answers: NDArray[Any], weights: Any, target: str, names: Sequence[str]) -> Self:
        config = self._config(int(check_random_state(self.random_state).randint(2**31 - 1)))
        shape = self._shape
        data = from_arrays(
            X if shape is None else X.reshape(-1, *shape),
            answers,
            validation=(self.settings or {}).get("validation", self.validation),
            test=0,
            seed=config.seed,
            name="X",
            classes=names,
            augment=config.augment,
            kind="table" if shape is None else "images",
            target=target,
            weights=weights,
        )
        search = replace(study(config, data), keep=None)  # a later fit may need any of the networks
        run = search.run(**run_options(config), ledger=self.ledger, reuse="ledger")
        with run.ledger:
            self.network_ = best(run, data)
            self.history_ = [_told(result) for result in run.results()]
            self.best_score_ = float(run.best.score or 0.0)
        self._table = data.table
        self.best_genome_ = self.network_.genome
        return self

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        X = _stacked(X)
        shape = getattr(X, "shape", ())
        if len(shape) > 2 and _image(tuple(shape[1:])) != self._shape:
            raise ConfigError(f"X holds images of {shape[1:]}, and the network was trained on {self._shape}")
        if self._by_name and hasattr(X, "columns"):
            validate_data(self, X, reset=False, skip_check_array=True)
        else:
            X = validate_data(self, _rows(X), reset=False, ensure_all_finite=True if self._shape else "allow-nan")
        if self._table is None:
            return self.network_.scores(X.reshape(-1, *(self._shape or ())))
        return self.network_.scores(self._table.encode(X)[:, :, None, None].astype(np.float64))

    def _image_shape(self, X: Any) -> tuple[int, int, int] | None:
        """Channels, height and width; None where rows are not images."""
        shape = getattr(X, "shape", None)
        if shape is not None and len(shape) > 2:
            return _image(tuple(shape[1:]))
        if self.image_shape is None:
            return None
        if np.ndim(self.image_shape) != 1:
            raise ConfigError(
                f"image_shape must be (height, width) or (channels, height, width), not {self.image_shape!r}"
            )
        image = _image(tuple(self.image_shape))
        if shape is not None and len(shape) == 2 and shape[1] != np.prod(image):
            raise ConfigError(f"image_shape={self.image_shape!r} does not fit rows of {shape[1]} features")
        return image

    def _config(self, seed: int) -> NeuroConfig:
        jobs = self.n_jobs
        if jobs is not None and (not isinstance(jobs, int | np.integer) or (jobs < 1 and jobs != -1)):
            raise ConfigError(f"n_jobs must be at least 1, or -1 for as many as the machine has cores, not {jobs!r}")
        settings = self.settings or {}
        if not isinstance(settings, Mapping):
            kind = type(settings).__name__
            raise ConfigError(f"settings must be a dict of fields, such as {{'finalists': 0}}, not a {kind}")
        if unread := [name for name in OF_SOURCE if name in settings]:
            raise ConfigError(f"settings of {', '.join(unread)}: the data are what fit is given")
        names = ("trials", "population", "epochs", "rungs", "batch_size", "engine", "gpus")
        fields = {name: getattr(self, name) for name in names}
        fields |= {"concurrent": None if jobs == -1 else jobs, "results": None, "seed": seed, "baselines": "no"}
        return from_mapping(NeuroConfig, {**fields, **settings}, type(self).__name__)


class NeuroevolutionClassifier(ClassifierMixin, NeuroevolutionEstimator):  # type: ignore[misc]
    """Searches for a network that tells classes apart, or that says which of several labels hold.

    `y` holds a class for each row, or a 0 or 1 for each row and label.  Fitted, it also has `classes_`; its chances
    are calibrated on the validation share.  For the rest see `NeuroevolutionEstimator`.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Search, and keep the best network."""
        X, y, weights = self._checked(X, y, sample_weight)
        check_classification_targets(y)
        if type_of_target(y) == "multilabel-indicator":
            self.classes_ = np.arange(y.shape[1])
            return self._search(X, y, weights, "labels", [str(name) for name in self.classes_])
        if np.ndim(y) > 1:
            if y.shape[1] > 1:
                raise ValueError("Multioutput targets are not supported: fit a classifier for each column of y")
            y = column(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(f"y has 1 class, {self.classes_[0]!r}: at least 2 are needed to tell apart")
        return self._search(X, labels, weights, "classes", [str(name) for name in self.classes_])

    def predict(self, X: Any) -> NDArray[Any]:
        outputs = self._outputs(X)
        if self.network_.shape.target == "labels":
            return (outputs > 0).astype(np.int64)
        classes: NDArray[Any] = self.classes_[outputs.argmax(axis=1)]
        return classes

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The chance of each class or label, in the order of `classes_`."""
        outputs = self._outputs(X)
        if self.network_.shape.target == "labels":
            return np.asarray(1.0 / (1.0 + np.exp(-outputs)))
        raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        chances: NDArray[np.float64] = raised / raised.sum(axis=1, keepdims=True)
        return chances


class NeuroevolutionRegressor(RegressorMixin, NeuroevolutionEstimator):  # type: ignore[misc]
    """Searches for a network that predicts numbers, one or several for each row; see `NeuroevolutionEstimator`."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Search, and keep the best network."""
        X, y, weights = self._checked(X, y, sample_weight)
        y = np.asarray(y, np.float64)
        self._flat = y.ndim == 1
        names = ["y"] if self._flat else [f"y{place}" for place in range(y.shape[1])]
        return self._search(X, y, weights, "numbers", names)

    def predict(self, X: Any) -> NDArray[np.float64]:
        outputs = self._outputs(X)
        return outputs[:, 0] if self._flat else outputs


def column(y: Any) -> NDArray[Any]:
    """A column vector as one row of values, with the warning that scikit-learn gives."""
    from sklearn.utils.validation import column_or_1d

    return np.asarray(column_or_1d(y, warn=True))


def _mixed(X: Any) -> bool:
    """Whether a frame holds more than plain numbers."""
    kinds = [getattr(kind, "kind", "O") for kind in getattr(X, "dtypes", ())] if hasattr(X, "columns") else []
    return any(kind not in "buif" for kind in kinds)


def _stacked(X: Any) -> Any:
    """A list of images, a tensor or an array with a mask as one array."""
    images = isinstance(X, list | tuple) and len(X) and np.ndim(X[0]) > 1
    return array(X, "X") if images or hasattr(X, "detach") or np.ma.is_masked(X) else X


def _rows(X: Any) -> Any:
    """Images laid out flat: what scikit-learn checks are rows of numbers."""
    shape = getattr(X, "shape", ())
    return np.asarray(X).reshape(len(X), -1) if len(shape) > 2 else X


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) not in (2, 3):
        raise ConfigError(f"images are of (height, width) or (channels, height, width), not {shape}")
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    return channels, height, width


def _told(result: Any) -> dict[str, Any]:
    return {
        "trial": result.number,
        "genome": describe(individual_of(result.candidate).genome),
        "score": result.score,
        "rungs": len(result.outcomes),
        "dropped": result.dropped,
        **(result.trial.origin or {}),
    }
