"""The documented search for convolutional networks, `HybridNeuroevolution`, over the study `neuro`."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from fanfold.config import from_mapping
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, FanfoldError
from fanfold.events import Event, RunStopped, TrialTold
from fanfold.files import write_files
from fanfold.legacy.neuro_settings import CONFIG, PRESETS, NotebookSettings, as_dict, as_genome
from fanfold.running import Run
from fanfold.stop import Never
from fanfold.strategies import Sweep
from fanfold.strategies.generations import Convergence, GenerationRecord, Generations
from fanfold.studies import neuro
from fanfold.studies.neuro.data import Data, from_loaders, load
from fanfold.studies.neuro.export import Classifier, best
from fanfold.studies.neuro.genome import Individual, describe, individual_of, key
from fanfold.studies.neuro.plots import plot_generations
from fanfold.studies.neuro.space import random_genome
from fanfold.study import Study
from fanfold.types import Result

__all__ = ["CONFIG", "PRESETS", "HybridNeuroevolution", "plot_fitness_evolution"]

#: The best fitness of so many generations must differ by this many per cent, or the search has converged.
GENERATIONS, GAIN = 3, 0.5
DATASETS = {"MNIST": "mnist", "CIFAR10": "cifar10"}


class HybridNeuroevolution:
    """Evolves convolutional networks on the images of two loaders: `evolve()` gives the best genome as a dict.

    Networks are chosen by their accuracy on a share `validation` of the training images, and the best is scored once
    on the test loader (`test_accuracy`).  `concurrent_models` networks are trained at a time, which changes how long it
    takes and nothing else.  With a `ledger` file, `evolve(run="name")` continues where a run of that name stopped.

    Afterwards there are `best_individual`, `generation_stats`, `fitness_history`, `population` (genomes as dicts),
    `network` (the best network, with `save(folder)`) and `reason`.  `say` receives the progress, line by line.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        train_loader: Iterable[Any] | None = None,
        test_loader: Iterable[Any] | None = None,
        *,
        validation: float = 0.1,
        seed: int = 42,
        ledger: str | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        if not isinstance(config, Mapping):
            raise ConfigError(f"config must be a dict such as CONFIG, not {config!r:.80}")
        self.settings = from_mapping(NotebookSettings, config, "CONFIG")
        self.say, self.seed, self._ledger = say, seed, ledger
        self.data = _data(self.settings, train_loader, test_loader, validation, seed)
        self.config = {**dataclasses.asdict(self.settings), "concurrent_models": self.settings.at_once}
        for note in _notes(self.settings, self.data):
            say(f"Note: {note}")
        self.population: list[dict[str, Any]] = []
        self.best_individual: dict[str, Any] | None = None
        self.generation_stats: list[dict[str, Any]] = []
        self.network: Classifier | None = None
        self.test_accuracy: float | None = None
        self.reason, self.execution_time = "", 0.0

    @property
    def fitness_history(self) -> list[float]:
        """The best fitness of each generation."""
        return [each["max_fitness"] for each in self.generation_stats]

    def initialize_population(self) -> None:
        """Random genomes, the same for the same seed."""
        rng = Random(derive_seed(self.seed, "population"))
        space, size = self.settings.space, self.settings.population_size
        self.population = [as_dict(random_genome(space, rng)) for _ in range(size)]

    def evaluate_population(self) -> list[float]:
        """Train every genome of `population`, fill in its fitness, and give the fitnesses in order."""
        at_once = self.settings.at_once
        return self._evaluate_population_sequential() if at_once == 1 else self._evaluate_population_concurrent()

    def _evaluate_population_sequential(self) -> list[float]:
        return self._evaluated(1)

    def _evaluate_population_concurrent(self) -> list[float]:
        return self._evaluated(self.settings.at_once)

    def evolve(self, run: str | None = None) -> dict[str, Any]:
        """Search to the end, and give the best genome."""
        began = time.perf_counter()
        done = self._run(self._study(self.settings.at_once), self.settings.at_once, run)
        with done.ledger:
            generations = generations_of(self.settings, done.results())
            self._conclude(generations, done)
        self.execution_time = time.perf_counter() - began
        assert self.best_individual is not None
        return self.best_individual

    def save_results(self, folder: str | Path = ".") -> Path:
        """Write `best_architecture_<timestamp>.json`: settings, best genome, statistics and time."""
        if self.best_individual is None:
            raise ConfigError("there is nothing to save yet: call evolve() first")
        place = Path(folder) / f"best_architecture_{time.strftime('%Y%m%d_%H%M%S')}.json"
        record = {
            "config": self.config,
            "best_genome": self.best_individual,
            "test_accuracy": self.test_accuracy,
            "generation_stats": self.generation_stats,
            "reason": self.reason,
            "execution_time": self.execution_time,
        }
        try:
            write_files(place.parent, {place.name: f"{json.dumps(record, indent=2)}\n".encode()})
        except OSError as error:
            raise ConfigError(f"the results cannot be written to {str(folder)!r}: {error}") from error
        return place

    def _evaluated(self, at_once: int) -> list[float]:
        if not self.population:
            self.initialize_population()
        candidates = [Individual(as_genome(each, self.settings.space)) for each in self.population]
        sweep = dataclasses.replace(self._study(at_once), strategy=Sweep(candidates), stop=Never(), conclude=None)
        done = self._run(sweep, at_once, None)
        with done.ledger:
            results = sorted(done.results(), key=lambda result: result.number)
        for genome, result in zip(self.population, results):
            genome["fitness"] = percent(result)
        leader = max(self.population, key=lambda genome: float(genome["fitness"]))
        if self.best_individual is None or leader["fitness"] > self.best_individual["fitness"]:
            self.best_individual = dict(leader)
        (record,) = generations_of(self.settings, results).records
        self.generation_stats.append({**_stats(self.settings, record), "generation": len(self.generation_stats)})
        return [genome["fitness"] for genome in self.population]

    def _study(self, at_once: int) -> Study[Individual]:
        settings = dataclasses.replace(self.settings, concurrent_models=at_once)
        return neuro.study(settings.study(convergence(settings), self.seed), self.data)

    def _run(self, study: Study[Any], at_once: int, run: str | None) -> Run[Any]:
        mode = "sequential, one model after another" if at_once == 1 else f"concurrent, {at_once} models at a time"
        self.say(f"Evaluation mode: {mode}")
        executor = "inline" if at_once == 1 else f"threads:{at_once}"
        return study.run(executor, ledger=self._ledger, run=run, watch=self._teller(), progress=False)

    def _teller(self) -> Callable[[Event], None]:
        """A watcher that reports each network, and each generation when it is complete."""
        generations, over = generations_of(self.settings), False

        def close() -> None:
            generations.close()
            self.say(_line(_stats(self.settings, generations.records[-1])))

        def watch(event: Event) -> None:
            nonlocal over
            if over:  # what is told after the search is the test
                return
            if isinstance(event, TrialTold):
                if (event.result.trial.origin or {}).get("generation", 1) > len(generations.records) + 1:
                    close()
                generations.tell(event.result)
                self.say(_told(event.result))
            elif isinstance(event, RunStopped):
                over = True
                if generations.members:
                    close()

        return watch

    def _conclude(self, generations: Generations, done: Run[Any]) -> None:
        records = generations.records
        self.population = [as_dict(individual_of(each.candidate).genome, percent(each)) for each in records[-1].members]
        self.generation_stats = [_stats(self.settings, record) for record in records]
        self.config["current_mutation_rate"] = self.generation_stats[-1]["mutation_rate"]
        self.reason = done.reason
        if max(self.fitness_history) < self.settings.fitness_threshold:
            self.reason = f"{len(records)} generations"
            if (generations.reason or "").startswith("stagnation"):
                self.reason = f"the best fitness varied by less than {GAIN} per cent over {GENERATIONS} generations"
        if done.best_or_none is None:
            failures = [
                failed.message for record in records for each in record.members for failed in each.failures.values()
            ]
            raise FanfoldError(f"no network could be trained: {[*failures, done.reason][0]}")
        self.best_individual = as_dict(individual_of(done.best.candidate).genome, percent(done.best))
        self.network = best(done, self.data)
        figures: Mapping[str, Any] = {} if done.summary is None else done.summary.figures
        self.test_accuracy = None if figures.get("test") is None else 100.0 * figures["test"]
        tested = "" if self.test_accuracy is None else f", {self.test_accuracy:.2f} % on the test images"
        self.say(f"Best: {self.best_individual['fitness']:.2f} %{tested} (stopped: {self.reason})")


def plot_fitness_evolution(neuroevolution: HybridNeuroevolution) -> Any:
    """The documented plots, as a figure of matplotlib that a notebook shows, with `savefig(path)`."""
    return plot_generations(neuroevolution.generation_stats, neuroevolution.settings.fitness_threshold)


def convergence(settings: NotebookSettings) -> Convergence:
    """The documented end: so many generations, or a best fitness that stays the same."""
    return Convergence(settings.max_generations, stagnation=GENERATIONS - 1, stagnation_gain=GAIN / 100)


def generations_of(settings: NotebookSettings, told: Iterable[Result[Any]] = ()) -> Generations:
    """What happened, generation by generation, from results in the order of telling."""
    return Generations.of(told, convergence(settings), settings.elites)


def _stats(settings: NotebookSettings, record: GenerationRecord) -> dict[str, Any]:
    """The documented figures of a generation; a network that could not be trained has the fitness 0."""
    fitnesses = [percent(member) for member in record.members]
    latest = [record.merits[number] for number in sorted(record.merits)[-settings.population_size :]]
    return {
        "generation": record.number - 1,
        "avg_fitness": statistics.fmean(fitnesses),
        "max_fitness": max(fitnesses),
        "min_fitness": min(fitnesses),
        "std_fitness": statistics.pstdev(fitnesses),
        "mutation_rate": settings.spread.rate(settings.base_mutation_rate, latest),
        "failed": sum(member.score is None for member in record.members),
    }


def percent(result: Result[Any]) -> float:
    """Fitness as the document has it: accuracy in per cent, and 0 for a network that could not be trained."""
    return 0.0 if result.score is None else 100.0 * result.score


def _data(settings: NotebookSettings, train: Any, test: Any, validation: float, seed: int) -> Data:
    split = derive_seed(seed, "split")
    if train is not None:
        return from_loaders(train, test, validation=validation, seed=split)
    if settings.dataset == "CUSTOM":
        if settings.dataset_path is None:
            raise ConfigError(
                "dataset='CUSTOM' without loaders needs dataset_path: a folder with a folder for each class"
            )
        name, size = f"folder:{settings.dataset_path}", settings.px_h
        return load(name, validation=validation, test=settings.test_split, seed=split, size=size)
    return load(DATASETS[settings.dataset], folder=settings.dataset_path, validation=validation, seed=split)


def _notes(settings: NotebookSettings, data: Data) -> list[str]:
    """Settings that could not be used as they are."""
    notes = []
    if settings.at_once != settings.concurrent_models:
        bound = "below 1" if settings.concurrent_models < 1 else f"above max_concurrent_models={settings.at_once}"
        notes.append(f"concurrent_models={settings.concurrent_models} is {bound}: {settings.at_once} at a time")
    stated = (settings.num_channels, settings.px_h, settings.px_w, settings.num_classes)
    shape = data.shape
    actual = (shape.channels, shape.height, shape.width, shape.classes)
    if stated != actual:
        names = ("num_channels", "px_h", "px_w", "num_classes")
        text = ", ".join(f"{name}={value}" for name, value in zip(names, actual))
        notes.append(f"the images count, not the settings: {text}")
    return notes


def _told(result: Result[Any]) -> str:
    genome = individual_of(result.candidate).genome
    failures = [failure.message for failure in result.failures.values()]
    text = f"failed: {failures[0]}" if failures else f"{percent(result):.2f} %"
    return f"Model {result.number + 1} ({key(genome)[:8]}): {text}  [{describe(genome)}]"


def _line(stats: Mapping[str, Any]) -> str:
    failed = f", {stats['failed']} failed" if stats["failed"] else ""
    return (
        f"Generation {stats['generation'] + 1}: best {stats['max_fitness']:.2f} %, mean {stats['avg_fitness']:.2f} %, "
        f"deviation {stats['std_fitness']:.2f}, mutation rate {stats['mutation_rate']:.2f}{failed}"
    )
