"""Honest reports: a search stands beside what needs none, on the same rows, and nothing of it is trained twice."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from neuro_world import one_thread

from fanfold.errors import ConfigError
from fanfold.ledger import Ledger
from fanfold.metrics import metrics
from fanfold.running import Run
from fanfold.studies.neuro import NeuroConfig, run_options, study
from fanfold.studies.neuro import classical as classical_models
from fanfold.studies.neuro.baselines import Baselines, Rival
from fanfold.studies.neuro.classical import Classical, fitting
from fanfold.studies.neuro.data import from_arrays
from fanfold.studies.neuro.evaluator import Trainer
from fanfold.studies.neuro.shown import OURS, answered, evaluation, headline
from fanfold.types import Case

__all__ = ["one_thread"]
RNG = np.random.default_rng(3)
SMALL: dict[str, Any] = {
    "trials": 4, "population": 2, "epochs": 4, "rungs": 2, "engine": "sequential", "results": None, "batch_size": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prices") / "prices.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["area", "town", "price"])
        for i in range(150):
            writer.writerow([i % 50 + 20, "abc"[i % 3], (i % 50) * 10 + 300 * (i % 3) + i % 7 / 10])
    return path


@pytest.fixture(scope="module")
def searched(prices: Path) -> Run[Any]:
    """A search on the table, with its ledger beside it."""
    config = NeuroConfig(dataset=str(prices), **SMALL)
    return study(config).run(**run_options(config), ledger=str(prices.with_suffix(".db")), run="r")


@pytest.mark.slow
def test_every_report_has_the_rivals_with_intervals_on_the_same_rows(searched: Run[Any]) -> None:
    assert searched.summary is not None
    figures = searched.summary.figures
    rows = {row["name"]: row for row in figures["baselines"]}
    assert set(rows) == {OURS, "hand-made network", "random search", "SVM", "gradient boosting"}
    assert rows[OURS]["test"] == pytest.approx(figures["test"], abs=1e-4)
    assert all(row["interval"][0] <= row["test"] <= row["interval"][1] for row in rows.values())
    (section,) = (section for section in searched.summary.sections if section.title == "Baselines")
    tests = [row[1] for row in section.rows]
    assert tests == sorted(tests, reverse=True) and "test R2" in section.columns
    assert "95 % interval" in section.text and "--baselines no" in section.text
    best = next(row for row in figures["baselines"] if row["name"] != OURS)
    assert str(headline(figures)).endswith(f"; {best['name']} {best['test']:.4f}")


@pytest.mark.slow
def test_rivals_get_a_share_of_the_effort_and_the_last_word_is_the_winners_test(searched: Run[Any]) -> None:
    runs = {run.info.name.removeprefix("r.").rpartition("-")[0]: run for run in searched.view.siblings()}
    assert runs["random"].progress().told == 2  # half of the search's networks
    (by_hand,) = runs["by-hand"].evaluations(blobs=False)
    assert by_hand.data["epochs"] <= 3 * SMALL["epochs"]
    assert searched.summary is not None
    (kept,) = (metric.value for metric in metrics(searched.view) if metric.label == "held-out score")
    assert kept == searched.summary.figures["test"]


@pytest.mark.slow
def test_a_finished_run_trains_no_rival_again(searched: Run[Any], prices: Path) -> None:
    config = NeuroConfig(dataset=str(prices), **SMALL)
    again = study(config).run(**run_options(config), ledger=str(prices.with_suffix(".db")), run="r")
    assert again.summary is not None and searched.summary is not None
    assert again.summary.figures == searched.summary.figures
    with Ledger(str(prices.with_suffix(".db"))) as ledger:
        names = [str(name) for (name,) in ledger.read("SELECT name FROM run")]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_pages_show_errors_in_the_units_of_the_numbers_and_pages_of_tests_open(searched: Run[Any]) -> None:
    assert searched.summary is not None
    (errors,) = (section for section in searched.summary.sections if section.title == "Errors on the test part")
    assert errors.rows[0][0] == "price" and 1 < errors.rows[0][3] < 500  # prices go from 0 to 1,100
    assert errors.drawings[0].data["x"] == "price"
    (tested,) = searched.view.siblings()[-1].evaluations(blobs=False)
    (shown,) = evaluation(searched.view, tested)
    assert shown.title == "Errors on the test part" and "deviations" in shown.text
    trained = next(iter(searched.view.evaluations(blobs=False)))
    assert [section.title for section in evaluation(searched.view, trained)][1] == "Validation R2"


def test_labels_that_were_missed_are_counted() -> None:
    section = answered([[1, 0], [1, 1], [0, 0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], ("red", "large"))
    assert section.rows == (("red", 2, 1, 1), ("large", 1, 0, 0))


@pytest.mark.slow
def test_without_baselines_there_are_none(prices: Path) -> None:
    config = NeuroConfig(dataset=str(prices), **{**SMALL, "trials": 2, "epochs": 1, "rungs": 1, "baselines": "no"})
    run = study(config).run(**run_options(config))
    assert run.summary is not None and "baselines" not in run.summary.figures
    with pytest.raises(ConfigError, match="baselines"):
        NeuroConfig(baselines="maybe")  # type: ignore[arg-type]


TARGETS: dict[str, Any] = {
    "classes": RNG.integers(3, size=120),
    "numbers": RNG.normal(size=120),
    "several numbers": RNG.normal(size=(120, 2)),
    "labels": RNG.integers(2, size=(120, 3)),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_models_of_scikit_learn_take_every_kind_of_target(kind: str) -> None:
    y = TARGETS[kind]
    x = np.column_stack([y, RNG.normal(size=(120, 2))])
    data = from_arrays(x, y, validation=0.2, test=0.2)
    model = Classical(data)
    for name in fitting(data):
        outcome = model(name, Case("all"))
        assert outcome.score > 0.6 and len(outcome.data["said"]) == len(data.test)
        assert outcome.data["cpu"] >= 0


def test_a_model_is_chosen_by_validation_and_large_sets_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.arange(300) % 2
    data = from_arrays(np.column_stack([y, RNG.normal(size=300)]), y, validation=0.2, test=0.2)
    seen: list[int] = []
    made = classical_models._model

    def spy(*settings: Any) -> Any:
        model = made(*settings)
        fit = model.fit
        model.fit = lambda x, wanted: (seen.append(len(x)), fit(x, wanted))[1]
        return model

    monkeypatch.setattr(classical_models, "MOST_ROWS", 50)
    monkeypatch.setattr(classical_models, "_model", spy)
    Classical(data)("SVM", Case("all"))
    Classical(data)("gradient boosting", Case("all"))
    assert seen == [50, 50, 180, 180]


@pytest.mark.parametrize("settings", [({"C": 1e-9}, {"C": 10.0}), ({"C": 10.0}, {"C": 1e-9})])
def test_the_setting_that_does_best_on_validation_is_asked_about_the_test(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = (np.arange(300) % 3 == 0).astype(int)
    data = from_arrays(np.column_stack([y, RNG.normal(size=300)]), y, validation=0.2, test=0.2)
    monkeypatch.setitem(classical_models.SETTINGS, "SVM", settings)
    outcome = Classical(data)("SVM", Case("all"))
    assert outcome.score == 1.0 and outcome.data["said"] == data.test.labels.tolist()


@pytest.mark.parametrize(("wrong", "verdict"), [(0, "better than"), (33, "not clearly different"), (70, "worse than")])
def test_the_report_says_in_words_whether_the_search_was_worth_it(wrong: int, verdict: str) -> None:
    y = np.arange(500) % 2
    data = from_arrays(RNG.normal(size=(500, 2)), y, validation=0.2, test=0.4)
    truth = data.test.labels
    ours = np.where(np.arange(200) < wrong, 1 - truth, truth)
    other = np.where(np.arange(200) >= 165, 1 - truth, truth)
    config = NeuroConfig(**SMALL)
    baselines = Baselines(config, Trainer(data, *(None, None)), data, config.space)  # type: ignore[arg-type]
    rivals = [Rival("SVM", 0.8, other.tolist(), 1.0), Rival("guess", 0.5, (1 - truth).tolist(), 1.0)]
    section, figures = baselines.section(Rival(OURS, 0.9, ours.tolist(), 5.0, 4), rivals)
    assert f"{verdict} SVM" in str(section.brief) or f"{verdict} from SVM" in str(section.brief)
    assert [row["name"] for row in figures][-1] == "guess"
