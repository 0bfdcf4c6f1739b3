"""The study as estimators of scikit-learn: its rules are kept, and images, rows and frames are all learnt."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np
from neuro_world import PLAIN
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fanfold.errors import ConfigError
from fanfold.ledger import Ledger
from fanfold.studies.neuro.data import from_arrays
from fanfold.studies.neuro.engines import engine
from fanfold.studies.neuro.estimator import NeuroevolutionClassifier, NeuroevolutionRegressor
from fanfold.studies.neuro.evaluator import Trainer
from fanfold.studies.neuro.export import Classifier
from fanfold.studies.neuro.genome import Individual, NetworkGenome
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.training import TrainingSettings
from fanfold.types import Case

DIGITS = load_digits()
#: Small enough for a test, large enough to learn something.
SMALL: dict[str, Any] = {
    "trials": 3, "population": 2, "epochs": 4, "rungs": 1, "batch_size": 32, "engine": "sequential", "random_state": 0,
    "settings": {"learning_rates": (3e-3, 1e-2), "optimisers": ("adam",), "filters": (4, 8), "nodes": (32, 32)}
    | PLAIN,
}  # fmt: skip


def small(**changes: Any) -> NeuroevolutionClassifier:
    return NeuroevolutionClassifier(**{**SMALL, **changes})


#: Which rows a batch holds is drawn at random, by their weights: the same only in the mean.
_NOT_KEPT = {"check_sample_weight_equivalence_on_dense_data": "batches are drawn"}
_QUICK: dict[str, Any] = {
    "trials": 2, "population": 2, "epochs": 1, "rungs": 1, "batch_size": 16, "engine": "sequential", "random_state": 0,
    "settings": {"finalists": 0, "nodes": (16, 64)},
}  # fmt: skip


@pytest.mark.slow
@parametrize_with_checks(
    [NeuroevolutionClassifier(**_QUICK), NeuroevolutionRegressor(**_QUICK)],
    expected_failed_checks=lambda estimator: _NOT_KEPT,
)
def test_it_keeps_the_rules_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any, Any, Any]:
    images, labels = DIGITS.images[:700], DIGITS.target[:700]
    parts: tuple[Any, Any, Any, Any] = tuple(train_test_split(images, labels, random_state=0, stratify=labels))
    return parts


@pytest.fixture(scope="module")
def fitted(digits: tuple[Any, Any, Any, Any]) -> NeuroevolutionClassifier:
    return small().fit(digits[0], digits[2])


@pytest.mark.slow
def test_it_learns_images_far_better_than_guessing(fitted: Any, digits: tuple[Any, Any, Any, Any]) -> None:
    assert fitted.score(digits[1], digits[3]) > 0.8
    assert fitted.network_.shape.height == 8 and fitted.n_features_in_ == 64
    assert isinstance(fitted.best_genome_, NetworkGenome) and fitted.best_genome_.conv


@pytest.mark.slow
def test_images_may_come_with_a_channel_or_laid_out_flat_and_are_the_same(
    fitted: Any, digits: tuple[Any, Any, Any, Any]
) -> None:
    images = digits[1]
    expected = fitted.predict_proba(images)
    np.testing.assert_array_equal(fitted.predict_proba(images[:, None]), expected)
    np.testing.assert_array_equal(fitted.predict_proba(images.reshape(len(images), -1)), expected)
    again = small(image_shape=(8, 8)).fit(digits[0].reshape(-1, 64), digits[2])
    np.testing.assert_array_equal(again.predict_proba(images), expected)


@pytest.mark.slow
def test_the_same_seed_finds_the_same_network_and_another_seed_another(
    fitted: Any, digits: tuple[Any, Any, Any, Any]
) -> None:
    threads = small(engine="threads", n_jobs=2).fit(digits[0], digits[2])
    assert threads.best_genome_ == fitted.best_genome_ and threads.history_ == fitted.history_
    np.testing.assert_array_equal(threads.predict_proba(digits[1]), fitted.predict_proba(digits[1]))
    other = small(random_state=1).fit(digits[0], digits[2])
    assert other.best_genome_ != fitted.best_genome_


def test_chances_add_up_and_their_largest_is_what_is_predicted(fitted: Any, digits: tuple[Any, Any, Any, Any]) -> None:
    chances = fitted.predict_proba(digits[1])
    np.testing.assert_allclose(chances.sum(axis=1), 1.0)
    np.testing.assert_array_equal(fitted.classes_[chances.argmax(axis=1)], fitted.predict(digits[1]))


def test_the_history_has_every_network_and_the_best_of_them(fitted: Any) -> None:
    assert [each["trial"] for each in fitted.history_] == [0, 1, 2]
    assert max(each["score"] for each in fitted.history_) == fitted.best_score_
    assert all({"genome", "rungs", "by", "parents"} <= set(each) for each in fitted.history_)


@pytest.mark.slow
def test_rows_of_numbers_are_normalised_one_by_one() -> None:
    X, y = load_wine(return_X_y=True)
    assert X.std(axis=0).max() > 1000 * X.std(axis=0).min()
    X, other, y, target = train_test_split(X, y, random_state=0, stratify=y)
    names = np.array(["barolo", "grignolino", "barbera"])
    fitted = small(epochs=3, batch_size=16).fit(X, names[y])
    assert fitted.score(other, names[target]) > 0.85
    assert fitted.network_.classes == tuple(fitted.classes_) == ("barbera", "barolo", "grignolino")
    assert not fitted.best_genome_.conv and fitted.network_.shape.channels == 13


@pytest.mark.slow
def test_a_feature_far_from_zero_is_still_told_apart() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    X = np.column_stack([1.7e9 + 20.0 * y + rng.normal(size=120), np.full(120, 3.0)])
    assert np.ptp(X[:, 0].astype(np.float32)) in (0.0, 128.0)  # nothing is left of it in short numbers
    assert small(epochs=2, batch_size=16).fit(X, y).score(X, y) > 0.95
    huge = (X - X.mean(axis=0)) * 1e298
    assert small(epochs=2, batch_size=16).fit(huge, y).score(huge, y) > 0.95


def test_a_fitted_network_is_saved_as_files_and_survives_a_pickle(
    fitted: Any, digits: tuple[Any, Any, Any, Any], tmp_path: Path
) -> None:
    saved = fitted.save(tmp_path / "best")
    assert {"model.py", "model.safetensors", "model.json"} <= {each.name for each in saved.folder.iterdir()}
    copy = pickle.loads(pickle.dumps(fitted))  # noqa: S301 -- our own bytes
    assert isinstance(copy.network_, Classifier)
    np.testing.assert_array_equal(copy.predict_proba(digits[1]), fitted.predict_proba(digits[1]))


@pytest.mark.slow
def test_with_a_ledger_what_was_trained_is_not_trained_again(digits: tuple[Any, Any, Any, Any], tmp_path: Path) -> None:
    path = str(tmp_path / "fits.db")
    first, second = (small(ledger=path).fit(digits[0], digits[2]) for _ in range(2))
    assert first.best_genome_ == second.best_genome_
    with Ledger(path) as ledger:
        trained = list(ledger.read("SELECT count(*) FROM evaluation WHERE seconds > 0 GROUP BY run"))
    assert [tuple(row) for row in trained] == [(3,)]


@pytest.mark.slow
def test_it_goes_into_pipelines_and_grids() -> None:
    X, y = load_wine(return_X_y=True)
    made = make_pipeline(StandardScaler(), small(trials=2, batch_size=16))
    grid = GridSearchCV(made, {"neuroevolutionclassifier__epochs": [1, 8]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"neuroevolutionclassifier__epochs": 8}
    assert clone(small()).get_params() == small().get_params()


@pytest.fixture(scope="module")
def frame() -> Any:
    """Numbers with gaps, categories and dates, of which two things can be said exactly."""
    pd = pytest.importorskip("pandas")
    count = np.arange(240)
    age = np.where(count % 11 == 0, np.nan, count % 70)
    city = np.array(["Bern", "Lyon", "Oslo"])[count % 3]
    return pd.DataFrame({"age": age, "city": pd.Categorical(city), "day": pd.date_range("2026-01-01", periods=240)})


@pytest.mark.slow
def test_numbers_are_learnt_from_a_frame_of_numbers_categories_and_dates(frame: Any) -> None:
    wanted = frame["city"].map({"Bern": 100.0, "Lyon": 500.0, "Oslo": 900.0}).astype(float) + frame["age"].fillna(0)
    fitted = NeuroevolutionRegressor(**{**SMALL, "epochs": 8, "batch_size": 16}).fit(frame, wanted)
    assert fitted.score(frame, wanted) > 0.9 and list(fitted.feature_names_in_) == ["age", "city", "day"]
    assert fitted.predict(frame.iloc[:3]).shape == (3,)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame.rename(columns={"city": "town"}))


def test_parameters_may_be_numbers_of_numpy_as_searches_draw_them() -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    drawn = {"trials": np.int64(2), "epochs": np.int64(1), "validation": np.float32(0.25), "n_jobs": np.int64(1)}
    plain = {"trials": 2, "epochs": 1, "validation": 0.25, "n_jobs": 1}
    one, other = (small(**each).fit(X, X[:, 0] > 0) for each in (drawn, plain))
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


@pytest.mark.slow
def test_a_gap_among_plain_numbers_may_be_none_when_predicting() -> None:
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(80, 3)), columns=["a", "b", "c"])
    fitted = small(epochs=1).fit(X, X["a"] > 0)
    asked = X.iloc[:3].astype(object)
    np.testing.assert_array_equal(fitted.predict(asked), fitted.predict(X.iloc[:3]))
    asked.iloc[0, 1] = None
    gap = X.iloc[:3].copy()
    gap.iloc[0, 1] = np.nan
    np.testing.assert_array_equal(fitted.predict_proba(asked), fitted.predict_proba(gap))
    with pytest.raises(ValueError, match="'tall'"):
        fitted.predict(asked.assign(b="tall"))


@pytest.mark.slow
def test_a_frame_of_polars_may_have_weights(frame: Any) -> None:
    polars = pytest.importorskip("polars").from_pandas(frame)
    weights = np.arange(240) % 2
    fitted = small(epochs=1).fit(polars, frame["city"].astype(str), weights)
    assert fitted.predict(polars).tolist() == fitted.predict(frame).tolist()


@pytest.mark.slow
def test_images_may_be_a_list(digits: tuple[Any, Any, Any, Any]) -> None:
    train, test, labels, _ = digits
    listed = small(epochs=1).fit(list(train[:100]), labels[:100])
    assert (
        listed.predict(list(test[:9])).tolist()
        == small(epochs=1).fit(train[:100], labels[:100]).predict(test[:9]).tolist()
    )
    with pytest.raises(ConfigError, match=r"one shape.*cut or pad"):
        small().fit([train[0], train[0][:4]], [0, 1])


@pytest.mark.slow
def test_several_numbers_and_several_labels_are_predicted_at_once(frame: Any, tmp_path: Path) -> None:
    numbers = np.column_stack([frame["age"].fillna(0) * 2, (frame["city"] == "Oslo") * 50.0 + 1000])
    regressor = NeuroevolutionRegressor(**{**SMALL, "epochs": 8, "batch_size": 16}).fit(frame, numbers)
    assert regressor.predict(frame).shape == numbers.shape and regressor.score(frame, numbers) > 0.8
    labels = np.column_stack([frame["city"] == "Oslo", frame["city"] != "Bern"]).astype(int)
    classifier = small(epochs=2, batch_size=16).fit(frame, labels)
    assert classifier.score(frame, labels) > 0.95
    assert ((classifier.predict_proba(frame) > 0.5) == labels).mean() > 0.95
    saved = regressor.save(tmp_path / "numbers")
    assert {"table.py", "model.py", "model.json"} <= set(saved.files)


@pytest.mark.slow
def test_numbers_come_in_their_own_units_from_the_saved_module_too(frame: Any, tmp_path: Path) -> None:
    wanted = frame["age"].fillna(0) * 1000.0 + 1e6
    fitted = NeuroevolutionRegressor(**{**SMALL, "trials": 2, "epochs": 10, "batch_size": 16}).fit(frame, wanted)
    fitted.save(tmp_path)
    rows = [{"age": 12, "city": "Oslo", "day": "2026-02-01"}, {"age": None, "city": "Rom", "day": None}]
    code = (
        "import sys; sys.path.insert(0, '.')\nimport torch\nfrom model import load\nfrom table import TableEncoder\n"
        f"features = TableEncoder.load('model.json').encode({rows!r})\n"
        "print(load()(torch.from_numpy(features)).flatten().tolist()); assert 'fanfold' not in sys.modules"
    )
    alone = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    pd = pytest.importorskip("pandas")
    raw = pd.DataFrame(rows).assign(day=lambda table: pd.to_datetime(table["day"]))
    np.testing.assert_allclose(json.loads(alone.stdout), fitted.predict(raw), rtol=1e-5)
    assert abs(fitted.predict(raw)[0] - 1e6) < 1e5


@pytest.mark.slow
def test_rows_that_count_nothing_are_as_if_they_were_not_there() -> None:
    X = np.random.default_rng(0).normal(size=(120, 3))
    y = (X[:, 0] > 0).astype(int)
    wrong = np.arange(120) % 3 > 0
    quick = {"trials": 2, "epochs": 2, "batch_size": 16}
    fitted = small(**quick).fit(X, np.where(wrong, 1 - y, y), np.where(wrong, 0.0, 1.0))
    without = small(**quick).fit(X[~wrong], y[~wrong])
    np.testing.assert_array_equal(fitted.predict_proba(X), without.predict_proba(X))
    with pytest.raises(ValueError, match="sample_weight"):
        small().fit(X, y, np.ones(5))


@pytest.mark.slow
def test_rows_have_their_weight_where_networks_are_stacked_too() -> None:
    X, y = np.random.default_rng(0).normal(size=(80, 3)), np.arange(80) % 2
    data = from_arrays(X, y, weights=np.arange(80) % 3)
    cells = [
        (Individual(random_genome(NetworkSpace(conv_layers=(0, 0)), Random(n))), Case("3", {"epochs": 3}, 0), None)
        for n in range(2)
    ]
    one, other = (
        Trainer(data, TrainingSettings(16), engine(name, "cpu")).evaluate_block(cells)
        for name in ("sequential", "fused")
    )
    assert [outcome.data["loss"] for outcome in one] == [outcome.data["loss"] for outcome in other]


@pytest.mark.slow
def test_chances_are_calibrated_on_the_validation_share() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    train, test, known, truth = train_test_split(X[:, :4], y, random_state=1, stratify=y)
    fitted = small(trials=2, epochs=10, batch_size=16, settings={**SMALL["settings"], "dropout": (0, 0)})
    fitted.fit(train, known)
    chances = fitted.predict_proba(test)
    cold = chances**4 / (chances**4).sum(axis=1, keepdims=True)  # as sure as networks that are trained for long
    assert log_loss(truth, chances) < log_loss(truth, cold)
    assert abs(chances.max(axis=1).mean() - fitted.score(test, truth)) < 0.08


@pytest.mark.slow
def test_diabetes_is_predicted_better_than_by_the_mean() -> None:
    X, y = load_diabetes(return_X_y=True)
    train, test, known, truth = train_test_split(X, y, random_state=0)
    fitted = NeuroevolutionRegressor(**{**SMALL, "epochs": 20}).fit(train, known)
    assert fitted.score(test, truth) > 0.2 and fitted.best_score_ > 0.3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settings": {"mutation_rat": 0.1}}, "did you mean 'mutation_rate'"),
        ({"trials": 0}, "trials"),
        ({"trials": "many"}, "trials must be a whole number"),
        ({"engine": "sequental"}, "engine"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"image_shape": (7, 8)}, "does not fit rows of 64"),
        ({"image_shape": (64,)}, "height, width"),
        ({"image_shape": 64}, "image_shape must be"),
        ({"settings": ["finalists"]}, r"settings must be a dict of fields, such as {'finalists': 0}, not a list"),
        ({"settings": {"dataset": "x.csv", "test": 0.2}}, "settings of dataset, test: the data are what fit is given"),
        ({"validation": 2.5}, "validation"),
    ],
)
def test_a_mistake_is_an_error_that_names_it(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        small(**changes).fit(DIGITS.data[:50], DIGITS.target[:50])


def test_images_of_another_size_are_refused(fitted: Any) -> None:
    with pytest.raises(ConfigError, match="trained on"):
        fitted.predict(np.zeros((2, 4, 16)))
    with pytest.raises(ValueError, match="features"):
        fitted.predict(np.zeros((2, 63)))
    with pytest.raises(ConfigError, match="channels, height, width"):
        small().fit(np.zeros((4, 2, 2, 2, 2)), [0, 1, 0, 1])


def test_settings_of_the_split_and_of_how_images_are_varied_count() -> None:
    def learnt(share: float = 0.2, **settings: Any) -> list[float]:
        fitted = small(trials=1, validation=share, settings=SMALL["settings"] | settings)
        weights: list[float] = (
            fitted.fit(DIGITS.images[:60], DIGITS.target[:60]).network_.weights["out.weight"].tolist()
        )
        return weights

    assert learnt(validation=0.5) == learnt(0.5) != learnt()
    assert learnt(augment="shift") != learnt(augment="flip")


def test_a_tensor_with_a_gradient_and_an_array_with_a_mask_are_read() -> None:
    torch = pytest.importorskip("torch")
    x, y = DIGITS.data[:60].copy(), DIGITS.target[:60] % 2
    fitted = small(trials=2).fit(torch.tensor(x, requires_grad=True), torch.tensor(y))
    assert np.array_equal(fitted.predict_proba(torch.tensor(x, requires_grad=True)), fitted.predict_proba(x))
    masked, gaps = np.ma.masked_equal(x, 0), np.where(x == 0, np.nan, x)
    fitted = small(trials=2).fit(masked, y)
    assert np.array_equal(fitted.predict_proba(masked), small(trials=2).fit(gaps, y).predict_proba(gaps))
    with pytest.raises(ValueError, match="y contains NaN"):
        small().fit(x, np.ma.masked_equal(y, 1))
