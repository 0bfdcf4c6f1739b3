"""The documented search for convolutional networks, `HybridNeuroevolution`, over the study `neuro`."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fanfold.config import from_mapping
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, FanfoldError
from fanfold.events import Event, RunStopped, TrialTold
from fanfold.files import write_files
from fanfold.legacy.neuro_settings import CONFIG, Settings, as_dict, as_genome
from fanfold.running import Run
from fanfold.stop import Never, Target
from fanfold.strategies import Genetic, Sweep
from fanfold.studies import neuro
from fanfold.studies.neuro.data import Data, from_loaders, load
from fanfold.studies.neuro.export import Classifier, best
from fanfold.studies.neuro.genome import Individual, NetworkSpace, describe, individual_of, key, random_genome
from fanfold.studies.neuro.strategy import NeuroBreeder
from fanfold.study import Study
from fanfold.types import Result

__all__ = ["CONFIG", "Evolution", "HybridNeuroevolution", "Record"]

#: The best fitness of so many generations must differ by this many per cent, or the search has converged.
GENERATIONS, GAIN = 3, 0.5
DATASETS = {"MNIST": "mnist", "CIFAR10": "cifar10"}


@dataclass
class Record:
    """What happened, generation by generation, from results in the order of telling."""

    settings: Settings
    stats: list[dict[str, Any]] = field(default_factory=list)
    members: list[Result[Any]] = field(default_factory=list)
    #: What the first network that failed said.
    failure: str | None = None

    def tell(self, result: Result[Any]) -> None:
        self.members.append(result)
        for failed in result.failures.values():
            self.failure = self.failure or failed.message

    def close(self) -> dict[str, Any]:
        """The generation is complete: its figures.  The best stay for the next."""
        fitnesses = [percent(member) for member in self.members]
        known = sorted((m.number, m.score) for m in self.members if m.score is not None)[
            -self.settings.population_size :
        ]
        self.stats.append(
            {
                "generation": len(self.stats),
                "avg_fitness": statistics.fmean(fitnesses),
                "max_fitness": max(fitnesses),
                "min_fitness": min(fitnesses),
                "std_fitness": statistics.pstdev(fitnesses),
                "mutation_rate": self.settings.spread.rate(
                    self.settings.base_mutation_rate, [score for _, score in known]
                ),
                "failed": sum(member.score is None for member in self.members),
            }
        )
        ranked = sorted((m for m in self.members if m.complete), key=lambda member: (-percent(member), member.number))
        self.members = ranked[: self.settings.elites]
        return self.stats[-1]

    @property
    def converged(self) -> str | None:
        last = [each["max_fitness"] for each in self.stats[-GENERATIONS:]]
        if len(last) == GENERATIONS and max(last) - min(last) < GAIN:
            return f"the best fitness varied by less than {GAIN} per cent over {GENERATIONS} generations"
        return None


class Evolution(Genetic):
    """The engine's genetic search with the documented rates, which also ends when the best fitness stays the same."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            breeder=NeuroBreeder(
                settings.space, settings.crossover_rate, fresh_share=0.0, inherit=False, spread=settings.spread
            ),
            population=settings.population_size,
            elites=settings.elites,
            tournament=3,
            mutation_rate=max(settings.base_mutation_rate, 1e-9),
            adaptive=False,
            generations=settings.max_generations,
        )
        self._record = Record(settings)
        self._over = False

    def ask(self, n: int) -> list[Any]:
        before = self.generation
        candidates = [] if self._over else super().ask(n)
        # A new generation is bred once all of the last has been told: that one is complete now.
        if self.generation > before > 0:
            self._record.close()
            if self._record.converged is not None:
                self._over = True
                return []
        return candidates

    def tell(self, result: Result[Any]) -> None:
        super().tell(result)
        self._record.tell(result)

    def origin(self, candidate: Any) -> Any:
        return {**(super().origin(candidate) or {}), "generation": self.generation}


class HybridNeuroevolution:
    """Evolves convolutional networks on the images of two loaders: `evolve()` gives the best genome as a dict.

    Networks are chosen by their accuracy on a share `validation` of the training images, and the best is scored once
    on the test loader (`test_accuracy`).  `concurrent_models` networks are trained at a time, which changes how long it
    takes and nothing else.  With a `ledger` file, `evolve(run="name")` goes on where a run of that name stopped.

    Afterwards there are `best_individual`, `generation_stats`, `fitness_history`, `population` (genomes as dicts),
    `network` (the best network, with `save(folder)`) and `reason`.  `say` is told what is going on, line by line.
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
        self.settings = from_mapping(Settings, config, "CONFIG")
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
        at_once, began = self.settings.at_once, time.perf_counter()
        self.say(_mode(at_once))
        search = dataclasses.replace(
            self._study(at_once), strategy=Evolution(self.settings), stop=Target(self.settings.fitness_threshold / 100)
        )
        done = self._run(search, at_once, run)
        with done.ledger:
            record, generation = Record(self.settings), 1
            for result in done.results():
                while (result.trial.origin or {}).get("generation", generation) > generation:
                    record.close()
                    generation += 1
                record.tell(result)
            self.population = [as_dict(individual_of(each.candidate).genome, percent(each)) for each in record.members]
            record.close()
            self._conclude(record, done)
        self.execution_time = time.perf_counter() - began
        assert self.best_individual is not None
        return self.best_individual

    def save_results(self, folder: str | Path = ".") -> Path:
        """Write `best_architecture_<timestamp>.json`: settings, best genome, statistics and time."""
        if self.best_individual is None:
            raise ConfigError("there is nothing to save yet: call evolve() first")
        place = Path(folder) / f"best_architecture_{time.strftime('%Y%m%d_%H%M%S')}.json"
        found = {
            "config": self.config,
            "best_genome": self.best_individual,
            "test_accuracy": self.test_accuracy,
            "generation_stats": self.generation_stats,
            "reason": self.reason,
            "execution_time": self.execution_time,
        }
        try:
            write_files(place.parent, {place.name: f"{json.dumps(found, indent=2)}\n".encode()})
        except OSError as error:
            raise ConfigError(f"the results cannot be written to {str(folder)!r}: {error}") from error
        return place

    def _evaluated(self, at_once: int) -> list[float]:
        if not self.population:
            self.initialize_population()
        self.say(_mode(at_once))
        candidates = [Individual(as_genome(each, self.settings.space)) for each in self.population]
        sweep = dataclasses.replace(self._study(at_once), strategy=Sweep(candidates), stop=Never(), conclude=None)
        record = Record(self.settings)
        done = self._run(sweep, at_once, None)
        with done.ledger:
            results = sorted(done.results(), key=lambda result: result.number)
        for genome, result in zip(self.population, results):
            record.tell(result)
            genome["fitness"] = percent(result)
        leader = max(self.population, key=lambda genome: float(genome["fitness"]))
        if self.best_individual is None or leader["fitness"] > self.best_individual["fitness"]:
            self.best_individual = dict(leader)
        self.generation_stats.append({**record.close(), "generation": len(self.generation_stats)})
        return [genome["fitness"] for genome in self.population]

    def _study(self, at_once: int) -> Study[Individual]:
        settings = self.settings
        space = {each.name: getattr(settings.space, each.name) for each in dataclasses.fields(NetworkSpace)}
        config = neuro.Config(
            population=settings.population_size,
            epochs=settings.num_epochs,
            rungs=1,
            epoch_patience=settings.epoch_patience,
            epoch_gain=settings.improvement_threshold / 100,
            batch_size=settings.batch_size,
            max_batches=settings.early_stopping_patience,
            engine="sequential" if at_once == 1 else "threads",
            concurrent=at_once,
            results=None,
            seed=self.seed,
            **space,
        )
        return neuro.study(config, self.data)

    def _run(self, study: Study[Any], at_once: int, run: str | None) -> Run[Any]:
        executor = "inline" if at_once == 1 else f"threads:{at_once}"
        return study.run(executor, ledger=self._ledger, run=run, watch=self._teller())

    def _teller(self) -> Callable[[Event], None]:
        """A watcher that says what became of each network, and of each generation when it is complete."""
        record, generation, over = Record(self.settings), 1, False

        def watch(event: Event) -> None:
            nonlocal generation, over
            if over:  # what is told after the search is the test
                return
            if isinstance(event, TrialTold):
                if (event.result.trial.origin or {}).get("generation", generation) > generation:
                    generation += 1
                    self.say(_line(record.close()))
                record.tell(event.result)
                self.say(_told(event.result))
            elif isinstance(event, RunStopped):
                over = True
                if record.members:
                    self.say(_line(record.close()))

        return watch

    def _conclude(self, record: Record, done: Run[Any]) -> None:
        self.generation_stats = record.stats
        self.config["current_mutation_rate"] = record.stats[-1]["mutation_rate"]
        self.reason = done.reason
        if max(self.fitness_history) < self.settings.fitness_threshold:
            self.reason = record.converged or f"{len(record.stats)} generations"
        if done.best is None:
            raise FanfoldError(f"no network could be trained: {record.failure or done.reason}")
        self.best_individual = as_dict(individual_of(done.best.candidate).genome, percent(done.best))
        self.network = best(done, self.data)
        figures: Mapping[str, Any] = {} if done.summary is None else done.summary.figures
        self.test_accuracy = None if figures.get("test") is None else 100.0 * figures["test"]
        tested = "" if self.test_accuracy is None else f", {self.test_accuracy:.2f} % on the test images"
        self.say(f"Best: {self.best_individual['fitness']:.2f} %{tested} (stopped: {self.reason})")


def percent(result: Result[Any]) -> float:
    """Fitness as the document has it: accuracy in per cent, and 0 for a network that could not be trained."""
    return 0.0 if result.score is None else 100.0 * result.score


def _data(settings: Settings, train: Any, test: Any, validation: float, seed: int) -> Data:
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


def _notes(settings: Settings, data: Data) -> list[str]:
    """What was not taken as it was given."""
    notes = []
    if settings.at_once != settings.concurrent_models:
        bound = "below 1" if settings.concurrent_models < 1 else f"above max_concurrent_models={settings.at_once}"
        notes.append(f"concurrent_models={settings.concurrent_models} is {bound}: {settings.at_once} at a time")
    said = (settings.num_channels, settings.px_h, settings.px_w, settings.num_classes)
    shape = data.shape
    found = (shape.channels, shape.height, shape.width, shape.classes)
    if said != found:
        names = ("num_channels", "px_h", "px_w", "num_classes")
        text = ", ".join(f"{name}={value}" for name, value in zip(names, found))
        notes.append(f"the images count, not the settings: {text}")
    return notes


def _told(result: Result[Any]) -> str:
    genome = individual_of(result.candidate).genome
    failures = [failure.message for failure in result.failures.values()]
    text = f"failed: {failures[0]}" if failures else f"{percent(result):.2f} %"
    return f"Model {result.number + 1} ({key(genome)[:8]}): {text}  [{describe(genome)}]"


def _mode(at_once: int) -> str:
    if at_once == 1:
        return "Evaluation mode: sequential, one model after another"
    return f"Evaluation mode: concurrent, {at_once} models at a time"


def _line(stats: Mapping[str, Any]) -> str:
    failed = f", {stats['failed']} failed" if stats["failed"] else ""
    return (
        f"Generation {stats['generation'] + 1}: best {stats['max_fitness']:.2f} %, mean {stats['avg_fitness']:.2f} %, "
        f"deviation {stats['std_fitness']:.2f}, mutation rate {stats['mutation_rate']:.2f}{failed}"
    )
