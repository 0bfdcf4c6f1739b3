"""Everything `concurrent_neuroevolution.md` shows runs, with one import line for the notebook's cells, and is true."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blocks import DOCUMENTS, Block, blocks_of, run

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Subset, TensorDataset

from fanfold.errors import ConfigError, FanfoldError
from fanfold.legacy import neuroevolution
from fanfold.legacy.neuro_settings import NotebookSettings, as_dict, as_genome
from fanfold.legacy.neuroevolution import (
    CONFIG,
    PRESETS,
    HybridNeuroevolution,
    generations_of,
    plot_fitness_evolution,
)
from fanfold.studies.neuro import NeuroConfig, evaluator
from fanfold.studies.neuro.config import PRESETS as STUDY_PRESETS
from fanfold.studies.neuro.genome import Conv, key
from fanfold.studies.neuro.space import NetworkSpace, random_genome, valid
from fanfold.types import Result, Trial

ROOT = Path(__file__).parents[2]
DOCUMENT = (DOCUMENTS / "concurrent_neuroevolution.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(DOCUMENTS / "concurrent_neuroevolution.md", "python")
#: What the notebook's cells would have defined.
IMPORTS = "import torch\nfrom fanfold.legacy.neuroevolution import CONFIG, HybridNeuroevolution\n"
#: Every key of the notebook's CONFIG and its default.
DOCUMENTED = {
    "population_size": 10, "max_generations": 30, "fitness_threshold": 99.9, "concurrent_models": 2,
    "max_concurrent_models": 4, "base_mutation_rate": 0.35, "mutation_rate_min": 0.10, "mutation_rate_max": 0.80,
    "current_mutation_rate": 0.35, "crossover_rate": 0.99, "elite_percentage": 0.2, "dataset": "MNIST",
    "num_channels": 1, "px_h": 28, "px_w": 28, "num_classes": 10, "batch_size": 128, "test_split": 0.35,
    "num_epochs": 12, "learning_rate": 0.01, "early_stopping_patience": 1000, "epoch_patience": 3,
    "improvement_threshold": 0.2, "min_conv_layers": 1, "max_conv_layers": 7, "min_fc_layers": 1, "max_fc_layers": 7,
    "min_filters": 2, "max_filters": 256, "min_fc_nodes": 128, "max_fc_nodes": 2048, "dataset_path": None,
}  # fmt: skip
#: Settings that the document's programs leave alone, made small.
SMALL = {
    "population_size": 4, "max_generations": 3, "num_epochs": 3, "early_stopping_patience": 8, "batch_size": 32,
    "max_conv_layers": 2, "max_filters": 8, "max_fc_layers": 1, "min_fc_nodes": 16, "max_fc_nodes": 32,
    "px_h": 8, "px_w": 8,
}  # fmt: skip


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """The notebook's CONFIG, of small networks, and as it was before afterwards."""
    before = copy.deepcopy(CONFIG)
    CONFIG.update(SMALL)
    yield
    CONFIG.clear()
    CONFIG.update(before)


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    pixels, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels))
    train, test = Subset(digits, range(300)), Subset(digits, range(300, 400))
    return DataLoader(train, batch_size=64, shuffle=True), DataLoader(test, batch_size=64)


def evolution(said: list[str] | None = None, **changes: Any) -> HybridNeuroevolution:
    lines: list[str] = [] if said is None else said
    return HybridNeuroevolution({**CONFIG, **changes}, *loaders(), say=lines.append)


# -- the document's programs -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line-{block.line}")
def test_every_program_of_the_document_runs(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    CONFIG.update(num_epochs=1, early_stopping_patience=3)
    train_loader, test_loader = loaders()
    given = run(IMPORTS, {})
    left = run(block.text, {**given, "train_loader": train_loader, "test_loader": test_loader}, f"line {block.line}")
    assert left["CONFIG"] is CONFIG
    if "evolve()" in block.text:
        genome, said = left["best_genome"], capsys.readouterr().out
        keys = ("num_conv_layers", "filters", "kernel_sizes", "fc_nodes", "activations", "dropout_rate")
        assert {*keys, "learning_rate", "optimizer", "fitness", "id"} <= set(genome)
        assert 0.0 < genome["fitness"] <= 100.0 and len(genome["id"]) == 8
        models = CONFIG["concurrent_models"]
        mode = "sequential, one" if models == 1 else f"concurrent, {models} models at a time"
        assert f"Evaluation mode: {mode}" in said
        assert "Generation 1: best" in said and "Best: " in said


def test_the_document_has_the_programs_that_are_tested_here() -> None:
    assert [block.line for block in BLOCKS if "evolve()" in block.text] and len(BLOCKS) == 7


@pytest.mark.slow
def test_the_demo_prints_the_documents_lines_with_what_it_measured() -> None:
    (expected,) = (
        block.text for block in blocks_of(DOCUMENTS / "concurrent_neuroevolution.md") if "Speedup" in block.text
    )
    command = [
        sys.executable,
        ROOT / "examples" / "demo_concurrent_neuroevolution.py",
        "--population",
        "3",
        "--epochs",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

    def plain(line: str) -> str:
        return re.sub(r"\d+(\.\d+)?", "N", line)

    lines = done.stdout.splitlines()
    assert [plain(line) for line in lines[:4]] == [plain(line) for line in expected.strip().splitlines()]
    sequential, concurrent, speedup, efficiency = (float(re.findall(r"[\d.]+", line)[0]) for line in lines[:4])
    assert speedup == pytest.approx(sequential / concurrent, rel=0.1)
    assert efficiency == pytest.approx(100 * speedup / 2, abs=1.0)
    assert lines[4].endswith("to the last bit")


# -- what it promises --------------------------------------------------------------------------------------------------


def test_config_has_every_key_with_its_default() -> None:
    assert {**CONFIG, **{name: DOCUMENTED[name] for name in SMALL}} == DOCUMENTED


@pytest.mark.slow
def test_sequential_and_concurrent_find_the_same_to_the_last_bit() -> None:
    one, two, three = (evolution(concurrent_models=models) for models in (1, 2, 3))
    genomes = [each.evolve() for each in (one, two, three)]
    assert genomes[0] == genomes[1] == genomes[2]
    for other in (two, three):
        assert other.generation_stats == one.generation_stats and other.population == one.population
        assert other.test_accuracy == one.test_accuracy
        assert one.network is not None and other.network is not None
        for name, array in one.network.weights.items():
            np.testing.assert_array_equal(array, other.network.weights[name])


@pytest.mark.slow
def test_a_population_is_evaluated_in_either_mode_with_the_same_fitness() -> None:
    search = evolution(concurrent_models=3)
    search.initialize_population()
    one_by_one = search._evaluate_population_sequential()
    assert search._evaluate_population_concurrent() == one_by_one == search.evaluate_population()
    assert [genome["fitness"] for genome in search.population] == one_by_one
    assert search.best_individual is not None and search.best_individual["fitness"] == max(one_by_one)
    assert [each["max_fitness"] for each in search.generation_stats] == [max(one_by_one)] * 3
    assert len(set(one_by_one)) > 1


class Trainings:
    """Notes in which threads networks are trained, and how many at once; the first few wait for company."""

    def __init__(self, company: int, breaks: str | None = None) -> None:
        self.threads: set[int] = set()
        self.count = 0
        self._barrier = threading.Barrier(company)
        self._breaks = breaks
        self._lock = threading.Lock()
        self._real = evaluator.train

    def __call__(self, job: Any, *others: Any) -> Any:
        with self._lock:
            self.threads.add(threading.get_ident())
            self.count += 1
            first = self.count <= self._barrier.parties
        if first:
            self._barrier.wait(timeout=30)  # broken, and an error, where fewer are under way at once
        if self._breaks == key(job.genome)[:8]:
            raise ZeroDivisionError("a broken network")
        return self._real(job, *others)


@pytest.mark.slow
@pytest.mark.parametrize("models", [1, 2, 4])
def test_so_many_models_are_trained_at_once(models: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = Trainings(models)
    monkeypatch.setattr(evaluator, "train", trainings)
    evolution(concurrent_models=models).evaluate_population()
    assert trainings.count == 4 and len(trainings.threads) == models


@pytest.mark.parametrize(
    ("asked", "most", "trained", "says"),
    [
        (9, 4, 4, "concurrent_models=9 is above max_concurrent_models=4: 4 at a time"),
        (0, 4, 1, "concurrent_models=0 is below 1: 1 at a time"),
        (-3, 4, 1, "concurrent_models=-3 is below 1: 1 at a time"),
        (3, 4, 3, None),
    ],
)
def test_the_number_of_models_is_kept_within_bounds_and_a_note_says_so(
    asked: int, most: int, trained: int, says: str | None
) -> None:
    said: list[str] = []
    search = evolution(said, concurrent_models=asked, max_concurrent_models=most)
    assert search.config["concurrent_models"] == trained
    notes = [line for line in said if "concurrent_models" in line]
    assert notes == ([] if says is None else [f"Note: {says}"])


@pytest.mark.slow
def test_a_network_that_fails_among_others_has_no_fitness_and_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    search = evolution(concurrent_models=2)
    search.initialize_population()
    expected = search.evaluate_population()
    broken = search.population[1]["id"]
    monkeypatch.setattr(evaluator, "train", Trainings(2, breaks=broken))
    said: list[str] = []
    again = evolution(said, concurrent_models=2)
    again.initialize_population()
    assert again.evaluate_population() == [0.0 if n == 1 else fitness for n, fitness in enumerate(expected)]
    assert again.generation_stats[0]["failed"] == 1
    assert any("failed: ZeroDivisionError: a broken network" in line for line in said)


@pytest.mark.slow
def test_where_no_network_can_be_trained_the_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise ZeroDivisionError("nothing works")

    monkeypatch.setattr(evaluator, "train", fails)
    with pytest.raises(FanfoldError, match="nothing works"):
        evolution(max_generations=1).evolve()


@pytest.mark.slow
def test_elites_keep_their_fitness_and_are_not_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = Trainings(1)
    monkeypatch.setattr(evaluator, "train", trainings)
    said: list[str] = []
    search = evolution(said, population_size=5, max_generations=3, elite_percentage=0.4, concurrent_models=1)
    search.evolve()
    assert len(search.generation_stats) == 3 and len(search.population) == 5
    assert trainings.count == 5 + 2 * 3
    assert [line.split()[0] for line in said[1:]] == [
        *["Model"] * 5,
        *["Generation", *["Model"] * 3] * 2,
        "Generation",
        "Best:",
    ]
    assert search.fitness_history == sorted(search.fitness_history)


@pytest.mark.slow
def test_the_test_images_decide_nothing() -> None:
    search = evolution(max_generations=1)
    best = search.evolve()
    train, _ = loaders()
    other = HybridNeuroevolution(CONFIG | {"max_generations": 1}, train, None, say=lambda line: None)
    assert other.evolve() == best
    assert other.test_accuracy is None and search.test_accuracy is not None
    pixels, labels = search.data.test.pixels, search.data.test.labels
    assert search.network is not None
    right = (search.network.scores(pixels).argmax(axis=1) == labels).mean()
    assert search.test_accuracy == pytest.approx(100 * right)


@pytest.mark.slow
def test_a_run_of_a_name_goes_on_and_trains_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def search() -> HybridNeuroevolution:
        return HybridNeuroevolution(CONFIG, *loaders(), ledger="mine.db", say=lambda line: None)

    first = search()
    best = first.evolve(run="mine")
    trainings = Trainings(1)
    monkeypatch.setattr(evaluator, "train", trainings)
    second = search()
    assert second.evolve(run="mine") == best
    assert second.generation_stats == first.generation_stats and trainings.count == 0


@pytest.mark.slow
def test_the_search_ends_at_the_threshold_or_when_the_best_stays_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    search = evolution(fitness_threshold=5.0)
    search.evolve()
    assert len(search.generation_stats) == 1 and "0.05" in search.reason
    with monkeypatch.context() as patched:
        patched.setattr(neuroevolution, "GAIN", 101.0)  # whatever the best does, it counts as the same
        search = evolution(max_generations=5, num_epochs=1)
        search.evolve()
        assert len(search.generation_stats) == 3 and "varied by less" in search.reason
    record = generations_of(search.settings)
    for generation in range(3):
        record.tell(Result(Trial(generation, None), 0.9 + 0.001 * generation, {}))
        record.close()
    assert record.reason is not None
    record.tell(Result(Trial(3, None), 0.95, {}))
    record.close()
    assert record.reason is None


@pytest.mark.slow
def test_the_four_documented_setups_are_presets() -> None:
    """The setups of the document's examples, by the names it gives them."""
    assert list(PRESETS) == ["conservative", "recommended", "high-performance", "debugging"]
    assert list(STUDY_PRESETS)[1:] == list(PRESETS)
    for name, preset in PRESETS.items():
        assert dataclasses.asdict(NotebookSettings(**preset)).items() >= preset.items(), name
        config = NeuroConfig(preset=name)  # type: ignore[arg-type]
        assert all(getattr(config, field) == value for field, value in STUDY_PRESETS[name].items())
    assert NeuroConfig(preset="conservative", population=9).population == 9


@pytest.mark.slow
def test_the_documented_plots_show_every_generation(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    search = evolution()
    with pytest.raises(ConfigError, match="nothing to draw"):
        plot_fitness_evolution(search)
    figures = {"max_fitness": 90.0, "avg_fitness": 70.0, "min_fitness": 50.0, "std_fitness": 10.0}
    failed = dict.fromkeys(figures, 0.0)
    search.generation_stats = [{"generation": n, **(failed if n == 1 else figures)} for n in range(3)]
    figure = plot_fitness_evolution(search)
    fitness, spread = figure.axes
    assert [line.get_label() for line in fitness.lines] == ["best", "mean", "least", "target 99.9 %"]
    assert fitness.lines[0].get_xdata().tolist() == [1, 3]
    assert spread.lines[0].get_ydata().tolist() == [10.0, 10.0]
    figure.savefig(tmp_path / "fitness.png")
    assert (tmp_path / "fitness.png").stat().st_size > 5000


@pytest.mark.slow
def test_results_are_written_on_request() -> None:
    search = evolution(max_generations=1)
    with pytest.raises(ConfigError, match="evolve"):
        search.save_results()
    best = search.evolve()
    path = search.save_results("found")
    assert re.fullmatch(r"best_architecture_\d{8}_\d{6}\.json", path.name)
    found = json.loads(path.read_text())
    assert found["best_genome"] == best and found["config"]["population_size"] == 4
    assert found["generation_stats"] == search.generation_stats and found["execution_time"] > 0
    assert search.network is not None and search.network.save("model").folder.is_dir()


# -- genomes as dicts --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_a_genome_as_a_dict_and_back_is_the_same(seed: int) -> None:
    genome = random_genome(NetworkSpace.original(), random.Random(seed))
    assert as_genome(as_dict(genome), NetworkSpace.original()) == genome


_SIZES = st.lists(st.integers(-5, 5000), max_size=9)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {"num_conv_layers": st.integers(-1, 9), "num_fc_layers": st.integers(-1, 9)},
        optional={
            "filters": _SIZES, "kernel_sizes": _SIZES, "fc_nodes": _SIZES,
            "activations": st.lists(st.sampled_from(["relu", "selu", "swish"]), max_size=9),
            "dropout_rate": st.floats(), "learning_rate": st.floats(), "optimizer": st.sampled_from(["adam", "lion"]),
        },
    )
)  # fmt: skip
@settings(max_examples=300)
def test_a_genome_of_the_originals_kind_can_always_be_built(given: dict[str, Any]) -> None:
    assert valid(as_genome(given, NetworkSpace.original()), NetworkSpace.original())


@pytest.mark.slow
def test_a_population_of_ones_own_is_evaluated() -> None:
    search = evolution()
    own = {"num_conv_layers": 1, "num_fc_layers": 1, "filters": [6], "kernel_sizes": [3], "fc_nodes": [20]}
    own |= {"activations": ["relu"], "dropout_rate": 0.1, "learning_rate": 0.005, "optimizer": "adam"}
    search.population = [own, dict(own, learning_rate=0.001)]
    fitnesses = search.evaluate_population()
    assert own["fitness"] == fitnesses[0] and 1.0 < fitnesses[0] <= 100.0
    assert as_genome(own, search.settings.space).conv == (Conv(6, 3, "relu"),)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"concurent_models": 2}, "did you mean 'concurrent_models'"),
        ({"population_size": 1}, "population_size must be at least 2"),
        ({"population_size": "ten"}, "population_size must be a whole number"),
        ({"max_concurrent_models": 0}, "max_concurrent_models must be at least 1"),
        ({"min_filters": 9, "max_filters": 4}, "min_filters=9 is more than max_filters=4"),
        ({"crossover_rate": 1.5}, "crossover_rate must be from 0 to 1"),
        ({"mutation_rate_min": 0.9}, "mutation_rate_min=0.9 is more than mutation_rate_max=0.8"),
        ({"dataset": "MNITS"}, "did you mean 'MNIST'"),
    ],
)
def test_a_mistake_in_the_settings_is_an_error_that_names_it(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        evolution(**changes)


def test_without_loaders_the_dataset_is_read_or_an_error_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dataset_path"):
        HybridNeuroevolution({**CONFIG, "dataset": "CUSTOM"})
    with pytest.raises(ConfigError, match="mnist"):
        HybridNeuroevolution({**CONFIG, "dataset_path": str(tmp_path)})


def test_settings_that_are_no_dict_and_loaders_that_give_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a dict such as CONFIG"):
        HybridNeuroevolution([("population_size", 4)], *loaders())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="gave nothing"):
        HybridNeuroevolution(CONFIG, [])


def test_images_of_another_size_than_the_settings_say_are_taken_with_a_note() -> None:
    said: list[str] = []
    evolution(said, px_h=28, px_w=28)
    assert said == ["Note: the images count, not the settings: num_channels=1, px_h=8, px_w=8, num_classes=10"]


def test_the_migration_page_has_every_name_setting_and_command() -> None:
    page = (ROOT / "docs" / "migration-neuro.md").read_text(encoding="utf-8")
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    names = {"HybridNeuroevolution", "evolve()", "generation_stats", "best_architecture_", *DOCUMENTED}
    names |= set(re.findall(r"`(\w+\(\))`", DOCUMENT)) | {
        "torch.cuda.empty_cache()",
        "demo_concurrent_neuroevolution.py",
    }
    for name in names:
        assert f"`{name}" in rows or name in re.findall(r"[\w.]+\.py", rows), name
    assert f"`{neuroevolution.__name__}`" in page or neuroevolution.__name__ in page
