"""What the study promises: the same search on every engine, after every accident, with nothing trained twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from neuro_world import PLAIN  # noqa: E402

from fanfold.errors import ConfigError, LedgerError  # noqa: E402
from fanfold.ledger import Ledger  # noqa: E402
from fanfold.running import Run  # noqa: E402
from fanfold.studies.neuro import NeuroConfig, run_options, study  # noqa: E402
from fanfold.studies.neuro import evaluator as domain_module  # noqa: E402
from fanfold.studies.neuro.config import source  # noqa: E402
from fanfold.studies.neuro.data import Data, from_arrays  # noqa: E402
from fanfold.studies.neuro.engines import engine  # noqa: E402
from fanfold.studies.neuro.evaluator import Trainer  # noqa: E402
from fanfold.studies.neuro.genome import Individual, Shape, individual_of, key  # noqa: E402
from fanfold.studies.neuro.morph import packed  # noqa: E402
from fanfold.studies.neuro.network import initial  # noqa: E402
from fanfold.studies.neuro.space import NetworkSpace, handmade, valid  # noqa: E402
from fanfold.studies.neuro.training import TrainingSettings  # noqa: E402
from fanfold.types import Blob, Case, Ok  # noqa: E402

SMALL: dict[str, Any] = {
    "dataset": "digits",
    "population": 6,
    "elites": 1,
    "trials": 14,
    "epochs": 4,
    "rungs": 2,
    "eta": 2,
    "max_batches": 3,
    "conv_layers": (1, 2),
    "filters": (3, 6),
    "nodes": (8, 16),
    "dense_layers": (1, 1),
    "results": None,
    "baselines": "no",
    "seed": 3,
}


def config(**changes: Any) -> NeuroConfig:
    return NeuroConfig(**{**SMALL, **changes})


def searched(**changes: Any) -> Run[Any]:
    chosen = config(**changes)
    return study(chosen).run(run_options(chosen)["executor"])


@pytest.fixture(scope="module")
def alone() -> Run[Any]:
    return searched(engine="sequential")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["threads", "processes"])
def test_the_search_is_the_same_bit_for_bit_on_every_cpu_engine(alone: Run[Any], name: Any) -> None:
    other = searched(engine=name, concurrent=2, finalists=0)  # they come after the search
    assert other.trace == alone.trace
    for one, two in zip(alone.results(), other.results(), strict=True):
        for a, b in zip(one.outcomes.values(), two.outcomes.values(), strict=True):
            assert isinstance(a, Ok) and isinstance(b, Ok)
            assert a.data["weights"] == b.data["weights"] and a.data.get("state") == b.data.get("state")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph", "fused"])
def test_networks_trained_as_one_make_the_same_search(name: Any) -> None:
    alone, together = (
        searched(**PLAIN, engine=engine, dtype="float64", device="cpu", concurrent=5) for engine in ("sequential", name)
    )
    assert _course(together) == _course(alone)


def _course(run: Run[Any]) -> list[tuple[Any, ...]]:
    """What was asked and what came of it, but for the last digits of the weights."""
    return [(r.number, individual_of(r.candidate).genome, r.score, r.dropped) for r in run.results()]


@pytest.mark.slow
def test_rungs_are_parts_of_one_training() -> None:
    rungs = searched(engine="sequential", trials=6, inherit=False, schedules=("constant",))
    whole = searched(engine="sequential", trials=6, rungs=1, inherit=False, schedules=("constant",))
    straight = {key(individual_of(r.candidate).genome): r for r in whole.results()}
    climbed = [result for result in rungs.results() if result.complete]
    assert climbed
    for result in climbed:
        other = straight[key(individual_of(result.candidate).genome)]
        last, only = list(result.outcomes.values())[-1], list(other.outcomes.values())[-1]
        assert isinstance(last, Ok) and isinstance(only, Ok)
        assert last.data["weights"] == only.data["weights"] and last.data["curve"] == only.data["curve"]


@pytest.mark.slow
def test_no_genome_is_trained_twice_and_elites_are_not_trained_again(alone: Run[Any]) -> None:
    keys = [key(individual_of(result.candidate).genome) for result in alone.results()]
    assert len(keys) == len(set(keys)) == 14


@pytest.mark.slow
def test_children_start_from_the_weights_of_a_parent_unless_told_otherwise(alone: Run[Any]) -> None:
    heirs = [result for result in alone.results() if individual_of(result.candidate).inherited is not None]
    assert heirs and all(result.trial.origin["parents"] for result in heirs)
    cold = searched(engine="sequential", inherit=False, trials=8)
    assert all(individual_of(result.candidate).inherited is None for result in cold.results())


def test_the_test_part_is_scored_once_with_an_interval(alone: Run[Any]) -> None:
    assert alone.summary is not None
    figures = alone.summary.figures
    low, high = figures["test_interval"]
    assert low <= figures["test"] <= high and figures["test_images"] == 180
    titles = [section.title for section in alone.summary.sections]
    assert {"Best network", "Effort", "Search", "Lineage of the winner"} <= set(titles)
    assert all(len(row) == len(section.columns) for section in alone.summary.sections for row in section.rows)


@pytest.mark.slow
def test_the_winner_is_written_to_files(tmp_path: Path) -> None:
    done = searched(engine="sequential", trials=6, results=str(tmp_path))
    assert done.summary is not None
    folder = Path(done.summary.figures["folder"])
    assert {"model.safetensors", "model.py", "model.json"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_several_objectives_give_a_front() -> None:
    done = searched(engine="sequential", objectives=("accuracy", "parameters", "latency"), rungs=1, epochs=1)
    assert done.summary is not None
    (front,) = [section for section in done.summary.sections if section.title == "Pareto front"]
    assert front.columns == ("trial", "accuracy", "parameters", "latency", "network")
    points = [row[1:3] for row in front.rows]
    for accuracy, parameters in points:
        assert not any(a > accuracy and p < parameters for a, p in points) or len(points) > 1


@pytest.mark.slow
def test_the_rung_without_training_sends_networks_home_that_are_never_ahead_of_trained_ones() -> None:
    done = searched(engine="sequential", prefilter=True)
    guessed = [r for r in done.results() if len(r.outcomes) == 1]
    trained = [r for r in done.results() if len(r.outcomes) > 1]
    assert guessed and trained
    assert max(r.score or -1 for r in guessed) < 0 <= min(r.score or 0 for r in trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sequential", "graph"])
def test_weights_that_siblings_start_from_are_read_once(name: Any) -> None:
    (parent,) = [genome for genome in handmade(NetworkSpace(), Shape(1, 8, 8, 10)) if genome.conv][:1]
    data = packed(parent, initial(parent, Shape(1, 8, 8, 10), 1))
    reads: list[str] = []

    def load(digest: str) -> bytes:
        reads.append(digest)
        return data

    children = [
        Individual(replace(parent, learning_rate=0.01 / n), Blob(Blob.of(data).digest, load)) for n in (1, 2, 3)
    ]
    trainer = Trainer(source(config()), TrainingSettings(64, max_batches=1), engine(name, "cpu"))
    cells = [(child, Case("1", {"epochs": 1}, 0), None) for child in children]
    together, alone = trainer.evaluate_block(cells), [trainer(*cell) for cell in cells]
    assert len(reads) == 1 + 3
    assert [outcome.score for outcome in together] == pytest.approx([outcome.score for outcome in alone])


@pytest.mark.slow
def test_a_steady_search_waits_for_nobody() -> None:
    done = searched(engine="sequential", steady=True)
    assert done.progress.told == 14 and done.best is not None


@pytest.mark.slow
def test_networks_that_do_not_fit_together_are_trained_in_smaller_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    import fanfold.studies.neuro.stacked_training as graphs

    plain = searched(**PLAIN, engine="graph", device="cpu", concurrent=6, dtype="float64")
    real, sizes = graphs.train_graphs, []

    def scarce(jobs: Any, *rest: Any, **more: Any) -> Any:
        sizes.append(len(jobs))
        if len(jobs) > 2:
            raise torch.OutOfMemoryError("injected")
        return real(jobs, *rest, **more)

    monkeypatch.setattr(graphs, "train_graphs", scarce)
    monkeypatch.setattr(domain_module, "_PLACES", {})
    scarce_run = searched(**PLAIN, engine="graph", device="cpu", concurrent=6, dtype="float64")
    assert max(sizes) > 2 and _course(scarce_run) == _course(plain)
    assert scarce_run.progress.failures == 0


@pytest.mark.slow
def test_a_training_that_raises_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = domain_module.train, []

    def fragile(job: Any, *rest: Any) -> Any:
        calls.append(job)
        if len(calls) == 3:
            raise RuntimeError("injected")
        return real(job, *rest)

    monkeypatch.setattr(domain_module, "train", fragile)
    done = searched(engine="sequential")
    assert done.progress.failures == 1 and done.best is not None and done.progress.told == 14


@pytest.mark.slow
def test_a_network_too_large_for_the_machine_fails_without_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(job: Any, *rest: Any) -> Any:
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(domain_module, "train", full)
    monkeypatch.setattr(domain_module, "_PLACES", {})
    done = searched(engine="sequential", trials=6)
    kinds = {failure.kind for result in done.results() for failure in result.failures.values()}
    assert kinds == {"out-of-memory"} and all(result.score is None for result in done.results())


@pytest.mark.slow
def test_a_killed_search_goes_on_to_the_same_best_network(tmp_path: Path) -> None:
    sizes = {"dataset": "digits", "trials": 14, "population": 6, "epochs": 4, "rungs": 2, "seed": 5, "max_batches": 6}
    chosen = {**sizes, "results": str(tmp_path / "r"), "engine": "sequential", "baselines": "no"}
    flags = [text for name, value in chosen.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    study(NeuroConfig(**chosen)).run("inline", ledger=tmp_path / "whole.db", run="r").ledger.close()
    process = _fanfold(tmp_path, "cut", flags)
    _wait_for_evaluations(tmp_path / "cut.db", 5)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    again = _fanfold(tmp_path, "cut", flags).communicate()
    assert "Stopped after 14 trials" in again[0]
    with Ledger(tmp_path / "whole.db") as one, Ledger(tmp_path / "cut.db") as two:
        results = [list(ledger.results(ledger.run("r").id)) for ledger in (one, two)]
        summaries = [ledger.summary(ledger.run("r").id)["figures"]["winner"] for ledger in (one, two)]
    assert [(r.number, r.score) for r in results[0]] == [(r.number, r.score) for r in results[1]]
    assert summaries[0] == summaries[1]


def _fanfold(folder: Path, name: str, flags: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fanfold", "run", "neuro", *flags, "--ledger", f"{name}.db", "--run", "r"]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _wait_for_evaluations(path: Path, count: int) -> None:
    for _ in range(1200):
        with contextlib.suppress(LedgerError), Ledger(path, readonly=True) as ledger:
            if ledger.one("SELECT count(*) FROM evaluation")[0] >= count:
                return
        time.sleep(0.05)
    raise AssertionError("the run did not get going")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objectives": ("accuracy", "size")}, "there is no 'size'"),
        ({"objectives": ("parameters",)}, "must have accuracy"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"filters": (8, 4)}, "filters of the space"),
        ({"kernels": (2,)}, "kernels of the space"),
        ({"batch_size": 1}, "batch_size must be at least 2"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**changes)


def test_engines_that_need_a_gpu_say_so_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="needs a GPU"):
        engine("streams")
    with pytest.raises(ConfigError, match="sees no GPU"):
        engine("auto", "cuda")


def test_the_ladder_of_epochs() -> None:
    assert NeuroConfig(epochs=18, rungs=3, eta=3).ladder == (2, 6, 18)
    assert NeuroConfig(epochs=18, rungs=1).ladder == (18,)
    assert NeuroConfig(epochs=3, rungs=4, eta=2, prefilter=True).ladder == (0, 1, 2, 3)


@pytest.mark.slow
def test_the_calibration_measures_engines_and_room() -> None:
    from fanfold.studies.neuro import calibrate

    engines, room = calibrate(config())
    assert {"sequential", "threads", "processes"} <= {row[0] for row in engines.rows}
    assert all(row[3] > 0 for row in engines.rows) and room.rows[0][2] > 0


@pytest.mark.slow
def test_an_engine_can_be_found_by_measuring_and_the_search_is_the_same(alone: Run[Any]) -> None:
    found = searched(engine="measured")
    assert found.trace == alone.trace


def test_a_config_written_with_lists_is_the_same_config() -> None:
    listed = config(filters=[3, 6], objectives=["accuracy"], engine="sequential")
    assert listed == config(engine="sequential") and run_options(listed) == {"executor": "inline"}


@pytest.mark.slow
def test_the_search_opens_with_networks_of_known_design(alone: Run[Any]) -> None:
    ways = [result.trial.origin["by"] for result in alone.results() if result.trial.origin]
    assert ways[:3] == ["seed"] * 3 and "seed" not in ways[3:]


def test_networks_of_known_design_fit_the_kind_of_data() -> None:
    shapes = (("table", (13, 1, 1)), ("images", (3, 32, 32)), ("images", (1, 28, 28)), ("sequence", (1, 1, 64)))
    for (kind, shape), way in zip(shapes, ("data", "shift+flip", "warp", "shift")):  # only colours are photographs
        space = NeuroConfig().space.within(Shape(*shape, 4, kind))
        designs = handmade(space, Shape(*shape, 4, kind))
        assert len({key(genome) for genome in designs}) == 3 and all(valid(genome, space) for genome in designs)
        assert all(bool(genome.conv) == (kind != "table") for genome in designs)
        assert designs[0].augment == way and designs[0].schedule == "cosine"


def test_a_run_of_before_images_were_warped_opens_with_the_networks_it_had() -> None:
    before = NeuroConfig(augments=("none", "shift", "shift+flip"))
    assert [genome.augment for genome in handmade(before.space, Shape(1, 28, 28, 10))] == ["shift", "shift", "none"]


def test_a_run_of_before_the_newer_genes_continues_in_the_space_it_had() -> None:
    old = {"filters": (4, 32), "conv_layers": (1, 3), "dense_layers": (1, 2), "nodes": (32, 128)}
    assert NeuroConfig(**NeuroConfig.formerly(old)).space == NetworkSpace()
    before = NeuroConfig(**NeuroConfig.formerly(old | {"epochs": 7}))
    assert not before.handmade and before.finalist_epochs == 7


def test_what_nothing_reads_of_a_config_is_said_where_the_data_are_given() -> None:
    def said(varied: str = "none", **changes: Any) -> tuple[str, ...]:
        images, labels = np.zeros((60, 6, 6)) + np.arange(60)[:, None, None], np.arange(60) % 2
        data = from_arrays(images, labels, validation=0.2, test=0.2, augment=varied)
        return study(NeuroConfig(trials=2, results=None, **changes), data).remarks

    assert said() == said("flip", augment="flip") == said("flip", augments=("data",)) == ()
    unread = "not used, because the data are given; say it to from_arrays"
    assert said(test=0.3, validation=0.3, augment="flip") == (f"test, validation, augment: {unread}",)
    (note,) = said("flip")
    assert note.startswith("augment='flip' of the data is not used, because each network has its own")


def test_results_that_cannot_be_written_are_refused_before_anything_is_trained() -> None:
    with pytest.raises(
        ConfigError, match=r"results=.* cannot be written: .*test_neuro_study\.py is a file; name anoth"
    ):
        study(config(results=f"{__file__}/networks"))


def test_that_weights_count_in_training_alone_is_said() -> None:
    images, labels = np.zeros((60, 6, 6)) + np.arange(60)[:, None, None], np.arange(60) % 2
    data = from_arrays(images, labels, weights=np.arange(60) % 3)
    (note,) = study(NeuroConfig(trials=2, results=None), data).remarks
    assert note.startswith("weights count in training alone")


def rare() -> Data:
    """Rows of which one in 25 is of the rarer class, which nothing tells for certain."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(1000, 4)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=1000) > 2.4).astype(np.int64)
    return from_arrays(x, y, validation=200, test=400, name="rare")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sequential", "graph"])
def test_a_balanced_search_finds_networks_that_answer_a_rare_class(name: Any) -> None:
    recalls, figures = [], {}
    for balanced in (False, True):
        more = {**PLAIN, "engine": name, "device": "cpu", "trials": 8, "epochs": 12, "max_batches": None}
        chosen = config(**more, baselines="yes", balanced=balanced)
        run = study(chosen, rare()).run(run_options(chosen)["executor"])
        (tested,) = [each for each in run.view.siblings() if each.name.startswith(f"{run.id}.test")]
        (cell,) = tested.evaluations()
        said, labels = np.array(cell.data["said"]), np.array(cell.data["labels"])
        recalls.append(said[labels == 1].mean())
        assert run.summary is not None
        figures = run.summary.figures
    assert recalls[1] > 0.5 and recalls[1] >= recalls[0] + 0.3
    assert figures["score"] == "balanced accuracy" and figures["test"] == pytest.approx(cell.score)
    (machine,) = [row for row in figures["baselines"] if row["name"] == "SVM"]
    assert machine["test"] > 0.6, "balanced as well"


@pytest.mark.slow
def test_balanced_networks_are_trained_side_by_side_as_one_by_one() -> None:
    common = {**PLAIN, "dtype": "float64", "device": "cpu", "concurrent": 5, "balanced": True}
    runs = [study(config(**common, engine=name), rare()).run() for name in ("sequential", "graph")]
    assert [result.score for result in runs[0].results()] == [result.score for result in runs[1].results()]


def test_what_is_not_classes_cannot_be_balanced() -> None:
    numbers = from_arrays(np.zeros((60, 3), np.float32), np.linspace(0, 1, 60), name="numbers")
    with pytest.raises(ConfigError, match="numbers: only classes can be balanced, not numbers"):
        study(config(balanced=True), numbers)
