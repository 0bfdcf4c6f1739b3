"""The study that a config describes: a genetic search over networks, each trained rung by rung."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fanfold.encoding import derive_seed
from fanfold.errors import MissingExtra
from fanfold.executors.resources import visible_gpus
from fanfold.files import check_results
from fanfold.schedule import Schedule
from fanfold.schedules import AllCases, Halving, last_rung
from fanfold.stop import stop_after
from fanfold.strategies import Genetic
from fanfold.strategies.generations import Convergence, Generations
from fanfold.studies.neuro.config import OF_SOURCE, NeuroConfig, source, training
from fanfold.studies.neuro.engines import TrainingEngine, engine, engine_apart
from fanfold.studies.neuro.genome import Individual
from fanfold.studies.neuro.objectives import merit
from fanfold.studies.neuro.shown import trained
from fanfold.studies.neuro.space import handmade
from fanfold.studies.neuro.strategy import NeuroBreeder, Spread
from fanfold.study import Study
from fanfold.summary import Section
from fanfold.types import Case

#: The best networks whose weights stay in the ledger, besides those that may still become parents.
KEPT = 8

if TYPE_CHECKING:
    from fanfold.studies.neuro.data import Data


def study(config: NeuroConfig, data: Data | None = None) -> Study[Individual]:
    """The study that a config describes; on its dataset, or on data that the caller has."""
    try:
        from fanfold.studies.neuro.balance import balanced
        from fanfold.studies.neuro.conclusion import NeuroConclusion
        from fanfold.studies.neuro.data import resident
        from fanfold.studies.neuro.evaluator import Trainer
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "torch", "neuro", "the neuro study") from error
    check_results(config.results)
    where = source(config) if data is None else balanced(data) if config.balanced else data
    luck = derive_seed(config.seed, "images")
    # Read now: data that cannot be used are an error before the run, not in every evaluation.
    images = resident(where, "cpu", config.dtype, luck).data
    trainer = Trainer(where, training(config), _engine(config), "latency" in config.objectives, luck, config.epochs)
    trainer.warm_up()
    least, most = config.mutation_range
    spread = Spread(least=least, most=most, members=config.population) if config.adaptive == "spread" else None
    ranked = merit(config.objectives)
    space = config.space.within(images.shape)
    if config.augment != "none":
        space = replace(space, augments=("data",))
    first = handmade(space, images.shape)[: config.population // 2] if config.handmade else []
    strategy = Genetic(
        seeds=[Individual(genome) for genome in first],
        breeder=NeuroBreeder(
            space,
            config.crossover_rate,
            config.fresh_share,
            inherit=config.inherit,
            spread=spread,
            litter=config.litter,
        ),
        population=config.population,
        elites=config.kept,
        tournament=config.tournament,
        mutation_rate=config.mutation_rate,
        adaptive=config.adaptive == "success",
        steady=config.steady,
        merit=ranked,
        until=None if config.until == Convergence() else Generations(config.until, config.kept, ranked),
    )
    # One seed for all rungs: they are parts of one training.
    luck_of_networks = derive_seed(config.seed, "networks")
    cases = [Case(f"{epochs} epochs", {"epochs": epochs}, luck_of_networks) for epochs in config.ladder]
    return Study(
        strategy,
        trainer,
        cases,
        schedule=_schedule(config),
        stop=stop_after(config.trials, config.target, config.patience),
        seed=config.seed,
        aggregate=last_rung,
        timeout=config.timeout,
        name="neuro",
        shown=trained,
        remarks=images.remarks if data is None else (*images.remarks, *_unread(config, data)),
        conclude=NeuroConclusion(config, trainer, images),
        keep=KEPT,
    )


def _unread(config: NeuroConfig, data: Data) -> list[str]:
    """What the config says of data that the caller has, or the data of networks, which nothing reads."""
    names = [name for name in (*OF_SOURCE, "validation") if getattr(config, name) != getattr(NeuroConfig, name)]
    names += ["augment"] * (config.augment not in ("none", data.augment))
    notes = [f"{', '.join(names)}: not used, because the data are given; say it to from_arrays"] if names else []
    if data.train.weights is not None:
        notes.append(
            "weights count in training alone: to choose, calibrate and score networks, every row of the other parts "
            "counts once"
        )
    if config.augment == "none" != data.augment and "data" not in config.augments:
        notes.append(
            f"augment={data.augment!r} of the data is not used, because each network has its own: say it to "
            "NeuroConfig too"
        )
    return notes


def _schedule(config: NeuroConfig) -> Schedule:
    if len(config.ladder) == 1:
        return AllCases()
    if config.steady:
        return Halving(config.eta, asynchronous=True)
    return Halving(config.eta, cohort=config.population - config.kept)


def run_options(config: NeuroConfig) -> dict[str, Any]:
    """Run options that follow from the config: where networks are trained, and what each worker gets of it."""
    executor = {"executor": _engine(config).executor}
    return executor if config.gpus is None or config.device == "cpu" else {**executor, "resources": "gpu=1"}


@functools.lru_cache(maxsize=8)
def _engine(config: NeuroConfig) -> TrainingEngine:
    """The engine that is asked for; one that is to be found by measuring is measured once."""
    if config.gpus is not None:
        workers = len(visible_gpus()) or 1 if config.gpus == "all" else config.gpus
        return engine_apart(config.engine, config.device, config.concurrent, workers)
    if config.engine != "measured":
        return engine(config.engine, config.device, config.concurrent)
    from fanfold.studies.neuro.calibration import fastest

    return fastest(config)


def calibrate(config: NeuroConfig) -> list[Section]:
    """How fast each engine trains networks of this config on this machine, and which to use."""
    try:
        from fanfold.studies.neuro.calibration import calibration
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "torch", "neuro", "the neuro study") from error
    return calibration(config)
