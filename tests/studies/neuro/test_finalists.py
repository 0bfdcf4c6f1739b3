"""What finalists promise: luck in the search does not decide, and networks that answer together stay one network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fanfold.running import Run  # noqa: E402
from fanfold.studies.neuro import NeuroConfig, run_options, study  # noqa: E402
from fanfold.studies.neuro.data import Data, Resident, from_arrays  # noqa: E402
from fanfold.studies.neuro.engines import engine  # noqa: E402
from fanfold.studies.neuro.evaluator import Trainer  # noqa: E402
from fanfold.studies.neuro.export import best  # noqa: E402
from fanfold.studies.neuro.finalists import FOLDS, LONGER, FoldTrainer, Validated, fold  # noqa: E402
from fanfold.studies.neuro.genome import Conv, Individual, NetworkGenome  # noqa: E402
from fanfold.studies.neuro.morph import packed  # noqa: E402
from fanfold.studies.neuro.network import initial  # noqa: E402
from fanfold.studies.neuro.training import TrainingSettings  # noqa: E402
from fanfold.types import Blob, Case, Ok  # noqa: E402

SMALL: dict[str, Any] = {"trials": 16, "population": 6, "epochs": 2, "rungs": 1, "batch_size": 32, "results": None}
SMALL |= {"baselines": "no", "nodes": (4, 16), "dense_layers": (0, 2), "seed": 2, "finalists": 2}


def rows(target: str = "classes") -> Data:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4))
    y = x[:, 0] - x[:, 1] * x[:, 2]
    return from_arrays(x, y if target == "numbers" else (y > 0).astype(int), target=target, name="rows", test=0.2)


def searched(data: Data, **changes: Any) -> Run[Any]:
    config = NeuroConfig(**{**SMALL, "engine": "sequential", **changes})
    return study(config, data).run(run_options(config)["executor"])


@pytest.fixture(scope="module")
def data() -> Data:
    return rows()


@pytest.fixture(scope="module")
def done(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Run[Any]:
    return searched(data, results=str(tmp_path_factory.mktemp("results")))


def figures(run: Run[Any]) -> dict[str, Any]:
    assert run.summary is not None
    return run.summary.figures


@pytest.mark.slow
def test_folds_set_other_rows_aside_and_never_those_of_the_test(data: Data) -> None:
    folds = [fold(data, number, FOLDS, 5) for number in range(FOLDS)]
    whole = {row.tobytes() for part in (data.train, data.validation) for row in part.pixels}
    aside = [{row.tobytes() for row in each.validation.pixels} for each in folds]
    assert all(len(rows) == len(data.validation) for rows in aside) and not set.intersection(*aside)
    for each, rows_aside in zip(folds, aside):
        learnt = {row.tobytes() for row in each.train.pixels}
        assert not learnt & rows_aside and learnt | rows_aside == whole and each.test is data.test


@pytest.mark.slow
def test_the_answer_is_that_of_networks_of_every_fold_together(done: Run[Any], data: Data) -> None:
    assert len(figures(done)["ensemble"]) in (3, 4, 6, 7)  # one or two genomes on three folds, and the search's own
    network = best(done, data)
    assert len(network.members) == len(figures(done)["ensemble"])
    assert network.about["validation_accuracy"] == figures(done)["validation"] > 0.6
    hits = network.scores(data.test.pixels).argmax(1) == data.test.labels
    assert figures(done)["test"] == pytest.approx(hits.mean())
    sections = {section.title: section for section in done.summary.sections} if done.summary else {}
    assert "answer together" in sections["Finalists"].text and len(sections["Finalists"].rows) == 2


@pytest.mark.slow
def test_the_files_hold_all_of_them_as_one_model(done: Run[Any], data: Data) -> None:
    runtime = pytest.importorskip("onnxruntime")
    folder = Path(figures(done)["folder"])
    session = runtime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    pixels = data.test.pixels.astype(np.float32)
    (scores,) = session.run(["scores"], {"images": pixels.reshape(-1, *session.get_inputs()[0].shape[1:])})
    np.testing.assert_allclose(scores, best(done, data).scores(pixels), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["threads", "processes"])
def test_the_answer_is_the_same_on_every_engine(done: Run[Any], data: Data, name: Any) -> None:
    other = searched(data, engine=name, concurrent=2 if name == "threads" else 1)
    assert figures(other)["ensemble"] == figures(done)["ensemble"]


@pytest.mark.slow
def test_numbers_are_averaged_in_their_own_units() -> None:
    data = rows("numbers")
    run = searched(data)
    assert figures(run)["temperature"] == 1.0
    answers = best(run, data).scores(data.test.pixels)[:, 0]
    mean, scale = data.units[0]
    truth = data.test.labels[:, 0] * scale + mean
    r2 = 1 - np.square(answers - truth).sum() / np.square(truth - truth.mean()).sum()
    assert r2 == pytest.approx(figures(run)["test"], abs=1e-3)


@pytest.mark.slow
def test_few_networks_or_several_objectives_have_no_finalists(data: Data) -> None:
    for changes in ({"trials": 7}, {"finalists": 0}, {"objectives": ("accuracy", "parameters"), "trials": 8}):
        assert "ensemble" not in figures(searched(data, **changes))


@pytest.mark.parametrize(("augment", "epochs"), [("none", 1), ("warp", 2), ("data", 2)])
def test_finalists_that_vary_their_images_are_trained_longer(augment: str, epochs: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 8, 8))
    images = from_arrays(pixels, np.arange(60) % 2, validation=12, test=0, augment="shift")
    trainer = FoldTrainer(Trainer(images, TrainingSettings(batch=16), engine("sequential", "cpu")), FOLDS, LONGER)
    genome = NetworkGenome((Conv(4, 3, "relu"),), (), "batch", 0.0, "adam", 1e-3, augment=augment)
    outcome = trainer(Individual(genome), Case("fold 1", {"epochs": 1, "fold": 0}, 3))
    assert isinstance(outcome, Ok) and outcome.data["epochs"] == epochs and "state" not in outcome.data


@pytest.mark.slow
def test_epochs_of_finalists_can_be_set(data: Data) -> None:
    run = searched(data, finalist_epochs=3)
    [finals] = [each for each in run.ledger.runs() if "finalists" in each.name]
    cases = {case.id: case.data["epochs"] for case in run.ledger.cases(finals.id)}
    assert cases == {f"fold {k}": 3 for k in (1, 2, 3)}


@pytest.mark.slow
def test_a_network_that_was_lucky_in_the_search_does_not_win(data: Data) -> None:
    """Of two genomes the one that is right on the folds ranks first, and the other spoils the ensemble."""
    parts = [Resident(fold(data, number, FOLDS, 5)) for number in range(FOLDS)]
    genome = NetworkGenome((), (), "none", 0.0, "adam", 1e-3)

    def network(sign: float) -> Individual:
        arrays = {name: np.zeros_like(array) for name, array in initial(genome, data.shape, 0).items()}
        arrays["out.weight"][:, 0] = np.array([-sign, sign])
        return Individual(genome, Blob.of(packed(genome, arrays)))

    validated = Validated(data.shape, parts, {0: [network(-3.0)] * FOLDS, 1: [network(1.0)] * FOLDS})
    assert validated.worth([1]) > validated.worth([0]) and validated.worth([1]) > validated.worth([0, 1])
