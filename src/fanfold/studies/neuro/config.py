"""The options of the study: which images, which networks, how they are bred, how long and where they are trained."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fanfold.config import option
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, MissingExtra, nearest
from fanfold.schedule import Schedule
from fanfold.schedules import AllCases, Halving, last_rung
from fanfold.stop import MaxTrials, Plateau, Rule, Target
from fanfold.strategies import Genetic
from fanfold.studies.neuro.breeding import NeuroBreeder, Spread
from fanfold.studies.neuro.engines import Engine, EngineName, engine
from fanfold.studies.neuro.genome import ACTIVATIONS, NORMS, OPTIMISERS, Individual, Space, describe
from fanfold.studies.neuro.objectives import OBJECTIVES, merit
from fanfold.study import Study
from fanfold.summary import Section
from fanfold.types import Case, Result

if TYPE_CHECKING:
    from fanfold.studies.neuro.data import Data, Source
    from fanfold.studies.neuro.training import Training


@dataclass(frozen=True)
class Config:
    """Data, the space of networks, the search, the training and where it runs."""

    dataset: str = option("digits", "digits, mnist-5000, mnist, fashion-mnist, cifar10, folder:PATH, arrays:FILE.npz")
    folder: str | None = option(None, "where the files of mnist, fashion-mnist or cifar10 are")
    validation: float = option(0.1, "images that networks are chosen by: a share, or a number")
    test: float = option(0.1, "images that the winner is scored on once: a share, or a number")
    augment: Literal["none", "shift", "flip", "shift+flip"] = option("none", "how images are varied in training")
    image_size: int = option(32, "height and width that the images of folder:PATH are brought to")

    trials: int = option(60, "networks to try")
    population: int = option(12, "networks in a generation")
    elites: int = option(2, "networks kept from one generation to the next, with their scores")
    tournament: int = option(3, "networks in a tournament for parents")
    crossover_rate: float = option(0.5, "share of networks with two parents")
    mutation_rate: float = option(0.2, "how strongly networks are changed, at first")
    adaptive: Literal["success", "spread", "no"] = option(
        "success", "what the mutation rate follows: success; spread: how far apart scores are; no: nothing"
    )
    steady: bool = option(False, "no generations and no waiting: each network is bred from the best so far")
    litter: int = option(1, "networks of one shape in a row, with other learning rates: families train faster on a GPU")
    inherit: bool = option(True, "whether a network starts from a parent's weights")
    objectives: tuple[str, ...] = option(
        ("accuracy",), "accuracy, parameters, operations, latency; several: a Pareto front"
    )
    target: float | None = option(None, "stop once a network reaches this validation accuracy")
    patience: int | None = option(None, "stop after so many networks without a better one")

    epochs: int = option(18, "epochs of a network that gets to the last rung")
    rungs: int = option(3, "rungs of successive halving up to those epochs; 1: every network gets all of them")
    eta: int = option(3, "the best 1/eta of the networks go on to the next rung, which has eta times the epochs")
    prefilter: bool = option(False, "a rung before the first that trains nothing: who looks hopeless goes at once")
    epoch_patience: int | None = option(None, "end a training after so many epochs without gain; none: never")
    epoch_gain: float = option(0.002, "the gain in validation accuracy that counts for that")
    batch_size: int = option(64, "images in a step")
    max_batches: int | None = option(None, "steps of an epoch, at most")
    dtype: Literal["float32", "float64"] = option("float32", "of weights and activations")

    conv_layers: tuple[int, int] = option((1, 3), "convolutions, at least and at most")
    filters: tuple[int, int] = option((4, 32), "filters of a convolution")
    kernels: tuple[int, ...] = option((3, 5), "sides of kernels: 1, 3, 5, 7")
    dense_layers: tuple[int, int] = option((1, 2), "dense layers before the last")
    nodes: tuple[int, int] = option((32, 128), "nodes of a dense layer")
    activations: tuple[str, ...] = option(ACTIVATIONS, "relu, leaky_relu, tanh, sigmoid, selu")
    norms: tuple[str, ...] = option(NORMS, "batch, none")
    dropout: tuple[float, float] = option((0.0, 0.5), "share that dense layers drop")
    optimisers: tuple[str, ...] = option(OPTIMISERS, "adam, adamw, sgd (with momentum), rmsprop")
    learning_rates: tuple[float, float] = option((1e-4, 3e-2), "least and most")

    engine: EngineName = option(
        "auto", "how networks are trained at once; measured: as seconds of trying show; see `fanfold neuro calibrate`"
    )
    concurrent: int | None = option(None, "networks trained at once; none: as many as the machine is good for")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where networks are trained")
    timeout: float | None = option(None, "seconds a rung may take before its worker is killed (engine processes)")
    results: str | None = option("results/neuro", "folder for the best network; none: none")
    seed: int = option(0, "of the search, the split and every network")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), list):  # the same config, however it was written
                object.__setattr__(self, field.name, tuple(value))
        least = {"trials": 1, "population": 2, "epochs": 1, "rungs": 1, "eta": 2, "batch_size": 2, "image_size": 1}
        for name, low in (least | {"litter": 1, "concurrent": 1, "max_batches": 1, "epoch_patience": 1}).items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} must be at least {low}, not {value!r}")
        for objective in self.objectives:
            if objective not in OBJECTIVES:
                raise ConfigError(f"objectives: there is no {objective!r}{nearest(objective, OBJECTIVES)}")
        if "accuracy" not in self.objectives:
            raise ConfigError(f"objectives={self.objectives!r} must have accuracy among them: the best is chosen by it")
        self.space  # noqa: B018 -- bounds that cannot be are an error now

    @property
    def space(self) -> Space:
        return Space(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Space)})

    @property
    def kept(self) -> int:
        """Elites, at most all but one of the population."""
        return min(self.elites, self.population - 1)

    @property
    def ladder(self) -> tuple[int, ...]:
        """The epochs at the end of each rung; 0 is the rung on which nothing is trained."""
        found = [max(1, round(self.epochs / self.eta**k)) for k in range(self.rungs)]
        return (0,) * self.prefilter + tuple(sorted(set(found)))


def source(config: Config) -> Source:
    from fanfold.studies.neuro.data import Source

    def part(share: float) -> float | int:
        return int(share) if share >= 1 else share

    return Source(
        config.dataset,
        config.folder,
        part(config.validation),
        part(config.test),
        derive_seed(config.seed, "split"),
        config.augment,
        config.image_size,
    )


def training(config: Config) -> Training:
    from fanfold.studies.neuro.training import Training

    return Training(
        batch=config.batch_size,
        dtype=config.dtype,
        max_batches=config.max_batches,
        patience=config.epoch_patience,
        gain=config.epoch_gain,
    )


def study(config: Config, data: Data | None = None) -> Study[Individual]:
    """The study that a config describes; on its dataset, or on data that the caller has."""
    try:
        from fanfold.studies.neuro.conclusion import Conclusion
        from fanfold.studies.neuro.data import resident
        from fanfold.studies.neuro.domain import Trainer
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "torch", "neuro", "the neuro study") from error
    where = source(config) if data is None else data
    luck = derive_seed(config.seed, "images")
    # Read now: data that cannot be used are an error before the run, not in every evaluation.
    images = resident(where, "cpu", config.dtype, luck).data
    trainer = Trainer(where, training(config), _engine(config), "latency" in config.objectives, luck)
    strategy = Genetic(
        breeder=NeuroBreeder(
            config.space,
            config.crossover_rate,
            inherit=config.inherit,
            spread=Spread(members=config.population) if config.adaptive == "spread" else None,
            litter=config.litter,
        ),
        population=config.population,
        elites=config.kept,
        tournament=config.tournament,
        mutation_rate=config.mutation_rate,
        adaptive=config.adaptive == "success",
        steady=config.steady,
        merit=merit(config.objectives),
    )
    # One seed for all rungs: they are parts of one training.
    luck_of_networks = derive_seed(config.seed, "networks")
    cases = [Case(f"{epochs} epochs", {"epochs": epochs}, luck_of_networks) for epochs in config.ladder]
    return Study(
        strategy,
        trainer,
        cases,
        schedule=_schedule(config),
        stop=_stop(config),
        seed=config.seed,
        aggregate=last_rung,
        timeout=config.timeout,
        name="neuro",
        shown=_shown,
        conclude=Conclusion(config, trainer, images),
    )


def _shown(result: Result[Individual]) -> str:
    """A network in a few words."""
    score = "failed" if result.score is None else f"{result.score:.4f}"
    return f"{score} by {describe(result.candidate.genome)}"


def _schedule(config: Config) -> Schedule:
    if len(config.ladder) == 1:
        return AllCases()
    if config.steady:
        return Halving(config.eta, asynchronous=True)
    return Halving(config.eta, cohort=config.population - config.kept)


def _stop(config: Config) -> Rule:
    rule: Rule = MaxTrials(config.trials)
    if config.target is not None:
        rule = rule | Target(config.target)
    if config.patience is not None:
        rule = rule | Plateau(config.patience)
    return rule


def run_options(config: Config) -> dict[str, Any]:
    """Run options that follow from the config: where networks are trained."""
    return {"executor": _engine(config).executor}


@functools.lru_cache(maxsize=8)
def _engine(config: Config) -> Engine:
    """The engine that is asked for; one that is to be found by measuring is measured once."""
    if config.engine != "measured":
        return engine(config.engine, config.device, config.concurrent)
    from fanfold.studies.neuro.calibration import fastest

    return fastest(config)


def calibrate(config: Config) -> list[Section]:
    """How fast each engine trains networks of this config on this machine, and which to use."""
    try:
        from fanfold.studies.neuro.calibration import calibration
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "torch", "neuro", "the neuro study") from error
    return calibration(config)
