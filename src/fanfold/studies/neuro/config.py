"""The fields of the study: which data, which networks, how they are bred, how long and where they are trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fanfold.config import Settings, option
from fanfold.encoding import derive_seed, digest
from fanfold.errors import ConfigError, check_whole, nearest
from fanfold.strategies.generations import Convergence
from fanfold.studies.neuro.engines import EngineName
from fanfold.studies.neuro.genome import (
    ACTIVATIONS,
    BLOCKS,
    DENSE_BLOCKS,
    DENSE_NORMS,
    HEADS,
    NORMS,
    OPTIMISERS,
    SCHEDULES,
)
from fanfold.studies.neuro.objectives import OBJECTIVES
from fanfold.studies.neuro.space import NetworkSpace

if TYPE_CHECKING:
    from fanfold.studies.neuro.data import Source
    from fanfold.studies.neuro.training import TrainingSettings


#: Setups of the original notebook in the words of the study; see `preset`.
PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "conservative": {"population": 6, "epochs": 8, "engine": "sequential"},
    "recommended": {"population": 10, "epochs": 12, "concurrent": 2},
    "high-performance": {"population": 12, "trials": 240, "epochs": 12, "concurrent": 3},
    "debugging": {"trials": 4, "population": 2, "epochs": 1, "rungs": 1, "max_batches": 10, "engine": "sequential"},
}
#: Fields that say where data come from; nothing reads them where the caller has data.
OF_SOURCE = (
    "dataset", "predict", "predict_as", "ignore", "encoding", "features", "kind", "folder", "test", "image_size",
)  # fmt: skip


@dataclass(frozen=True)
class NeuroConfig(Settings):
    """Data, the space of networks, the search, the training and where it runs."""

    dataset: str = option(
        "digits",
        "FILE.csv, FILE.parquet, digits, mnist-5000, mnist, fashion-mnist, cifar10, folder:PATH or arrays:FILE.npz",
    )
    predict: tuple[str, ...] = option(
        (), "columns of a table to predict; none: one called target, label, class or y, or else the last"
    )
    predict_as: Literal["auto", "classes", "numbers", "labels"] = option(
        "auto", "what is predicted: one of several classes, numbers (regression), or any of several labels"
    )
    ignore: tuple[str, ...] = option((), "columns of a table to leave out")
    encoding: str | None = option(None, "encoding of a table; none: UTF-8, or Windows-1252 if it is not that")
    features: Literal["rich", "plain"] = option(
        "rich", "what columns of a table become; plain: without features for frequent texts and parts of dates"
    )
    kind: Literal["auto", "images", "sequence", "table"] = option(
        "auto", "what arrays:FILE.npz holds; auto: (n, features) is a table, else images"
    )
    folder: str | None = option(None, "where the files of mnist, fashion-mnist or cifar10 are")
    validation: float | None = option(
        None, "rows that networks are chosen by: a share, or a number; none: 0.1, of a table of few rows 0.2"
    )
    test: float | None = option(None, "rows that the winner is scored on once: a share, or a number; none: the same")
    augment: Literal["none", "shift", "flip", "shift+flip", "warp"] = option(
        "none", "how images are varied for all networks; none: as each has it, see augments"
    )
    image_size: int = option(32, "height and width that the images of folder:PATH are brought to", least=1)

    preset: Literal["none", "conservative", "recommended", "high-performance", "debugging"] = option(
        "none", "sizes of the search for weak or strong machines, or to debug; for what you leave at its default"
    )
    trials: int = option(60, "networks to try", least=1)
    population: int = option(12, "networks in a generation", least=2)
    elites: int = option(2, "networks kept from one generation to the next, with their scores")
    tournament: int = option(3, "networks in a tournament for parents")
    crossover_rate: float = option(0.5, "share of networks with two parents")
    mutation_rate: float = option(0.2, "how strongly networks are changed, at first")
    adaptive: Literal["success", "spread", "no"] = option(
        "success", "what the mutation rate follows: success; spread: how far apart scores are; no: nothing"
    )
    mutation_range: tuple[float, float] = option((0.1, 0.8), "least and most of a rate that follows the spread")
    fresh_share: float = option(0.05, "share of networks that have no parents", least=0, most=1)
    until: Convergence = field(default_factory=Convergence)
    steady: bool = option(False, "no generations and no waiting: each network is bred from the best so far")
    litter: int = option(
        1, "networks of one shape in a row, with other learning rates: families train faster on a GPU", least=1
    )
    inherit: bool = option(True, "whether a network starts from a parent's weights")
    objectives: tuple[str, ...] = option(
        ("accuracy",), "accuracy, parameters, operations, latency; several: a Pareto front"
    )
    target: float | None = option(None, "stop once a network reaches this validation score")
    patience: int | None = option(None, "stop after so many networks without a better one")

    epochs: int = option(18, "epochs of a network that gets to the last rung", least=1)
    rungs: int = option(3, "rungs of successive halving up to those epochs; 1: every network gets all of them", least=1)
    eta: int = option(
        3, "the best 1/eta of the networks continue to the next rung, which has eta times the epochs", least=2
    )
    prefilter: bool = option(False, "a rung before the first that trains nothing: who looks hopeless goes at once")
    epoch_patience: int | None = option(None, "end a training after so many epochs without gain; none: never", least=1)
    epoch_gain: float = option(0.002, "the gain in validation accuracy that counts for that")
    batch_size: int = option(64, "images in a step", least=2)
    max_batches: int | None = option(None, "steps of an epoch, at most", least=1)
    dtype: Literal["float32", "float64"] = option("float32", "of weights and activations")

    balanced: bool = option(
        False, "every class counts the same, however rare: in training, and in the score (balanced accuracy)"
    )
    finalists: int = option(
        3, "best networks that are trained again on other folds and may answer together; at most 1 in 8 tried", least=0
    )
    finalist_epochs: int | None = option(
        None, "epochs of finalists; none: epochs, and twice as many for networks that vary their images", least=1
    )
    handmade: bool = option(True, "whether a few networks of known good design open the search")
    conv_layers: tuple[int, int] = option((1, 5), "convolutions, at least and at most")
    filters: tuple[int, int] = option((4, 64), "filters of a convolution")
    kernels: tuple[int, ...] = option((3, 5), "sides of kernels: 1, 3, 5, 7")
    blocks: tuple[str, ...] = option(
        BLOCKS, "what convolutions are: plain, residual, depthwise, squeeze (and excite), residual+squeeze, ..."
    )
    heads: tuple[str, ...] = option(HEADS, "how dense layers see the last map: flat, mean")
    dense_layers: tuple[int, int] = option((0, 3), "dense layers before the last")
    nodes: tuple[int, int] = option((16, 256), "nodes of a dense layer")
    dense_blocks: tuple[str, ...] = option(DENSE_BLOCKS, "what dense layers are: plain, residual")
    dense_norms: tuple[str, ...] = option(DENSE_NORMS, "norms of dense layers: none, batch, layer")
    attentions: tuple[int, ...] = option((0, 8, 16), "widths of an attention over the features of a table; 0: none")
    activations: tuple[str, ...] = option(ACTIVATIONS, "relu, leaky_relu, tanh, sigmoid, selu")
    norms: tuple[str, ...] = option(NORMS, "batch, none")
    dropout: tuple[float, float] = option((0.0, 0.5), "share that dense layers drop")
    optimisers: tuple[str, ...] = option(OPTIMISERS, "adam, adamw, sgd (with momentum), rmsprop")
    learning_rates: tuple[float, float] = option((1e-4, 3e-2), "least and most")
    schedules: tuple[str, ...] = option(SCHEDULES, "how learning rates move: constant, cosine, one-cycle")
    decays: tuple[float, ...] = option((0.0, 0.01, 0.1, 1.0), "weight decays")
    smoothings: tuple[float, ...] = option((0.0, 0.1), "shares of a label that are spread over all classes")
    augments: tuple[str, ...] = option(
        ("none", "shift", "shift+flip", "warp"),
        "how networks vary images: none, shift, flip, shift+flip, warp (turn, stretch and slant); data: see augment",
    )

    engine: EngineName = option(
        "auto", "how networks are trained at once; measured: as seconds of trying show; see `fanfold neuro calibrate`"
    )
    concurrent: int | None = option(None, "networks trained at once; none: as many as the machine is good for", least=1)
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where networks are trained")
    gpus: int | Literal["all"] | None = option(
        None, "GPUs of this machine, each with a worker of its own, or all; with --executor ray:N, one for each task"
    )
    timeout: float | None = option(
        None, "seconds a rung may take before its worker is killed (engine processes)", above=0
    )
    baselines: Literal["yes", "no"] = option(
        "yes", "whether others learn the same rows for comparison, in about half the time of the search"
    )
    results: str | None = option("results/neuro", "folder for the best network; none: none")
    seed: int = option(0, "of the search, the split and every network")

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            if isinstance(value := getattr(self, each.name), list):  # the same config, however it was written
                object.__setattr__(self, each.name, tuple(value))
        if not isinstance(self.dataset, str):
            raise ConfigError(
                f"dataset must be a name or a file, not a {type(self.dataset).__name__}: give frames and arrays as "
                "study(config, from_arrays(x, y))"
            )
        super().__post_init__()
        for name, value in PRESETS[self.preset].items():
            if getattr(self, name) == getattr(NeuroConfig, name):
                object.__setattr__(self, name, value)
        for objective in self.objectives:
            if objective not in OBJECTIVES:
                raise ConfigError(f"objectives: there is no {objective!r}{nearest(objective, OBJECTIVES)}")
        if "accuracy" not in self.objectives:
            raise ConfigError(f"objectives={self.objectives!r} must have accuracy among them: the best is chosen by it")
        if self.gpus is not None and self.gpus != "all":
            check_whole(self.gpus, "gpus")
        self.space  # noqa: B018 -- bounds that cannot be are an error now

    @property
    def space(self) -> NetworkSpace:
        return NetworkSpace(**{each.name: getattr(self, each.name) for each in dataclasses.fields(NetworkSpace)})

    @classmethod
    def formerly(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What a version without these settings did."""
        plain = {each.name: each.default for each in dataclasses.fields(NetworkSpace)}
        usual = fields.get("epochs", cls.epochs)
        plain["features"] = "plain"
        return {**plain, "handmade": False, "finalists": 0, "finalist_epochs": usual, "baselines": "no", **fields}

    @property
    def kept(self) -> int:
        """Elites, at most all but one of the population."""
        return min(self.elites, self.population - 1)

    @property
    def ladder(self) -> tuple[int, ...]:
        """The epochs at the end of each rung; 0 is the rung on which nothing is trained."""
        rungs = [max(1, round(self.epochs / self.eta**k)) for k in range(self.rungs)]
        return (0,) * self.prefilter + tuple(sorted(set(rungs)))


def source(config: NeuroConfig) -> Source:
    from fanfold.studies.neuro.data import Source
    from fanfold.studies.neuro.sources import is_table
    from fanfold.studies.neuro.tables import TableOptions

    def part(share: float | None) -> float | int | None:
        return int(share) if share is not None and share >= 1 else share if table or share is not None else 0.1

    table = is_table(config.dataset)
    names = ["predict", "predict_as", "ignore", "encoding", "kind", *(["features"] if table else [])]
    columns = TableOptions(**{name: getattr(config, name) for name in names})
    if table and (path := Path(config.dataset)).is_file():
        columns = dataclasses.replace(columns, stamp=digest(path.read_bytes()).hex()[:16])
    elif not table and (odd := [name for name in ("predict", "ignore") if getattr(config, name)]):
        raise ConfigError(f"{odd[0]}: {config.dataset} has no columns; they are for a table such as FILE.csv")
    return Source(
        config.dataset,
        config.folder,
        part(config.validation),
        part(config.test),
        derive_seed(config.seed, "split"),
        config.augment,
        config.image_size,
        columns if table or columns != TableOptions() else None,
        config.balanced,
    )


def training(config: NeuroConfig) -> TrainingSettings:
    from fanfold.studies.neuro.training import TrainingSettings

    return TrainingSettings(
        batch=config.batch_size,
        dtype=config.dtype,
        max_batches=config.max_batches,
        patience=config.epoch_patience,
        gain=config.epoch_gain,
    )
