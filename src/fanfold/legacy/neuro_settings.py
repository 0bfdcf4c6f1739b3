"""The documented settings of a search for networks, the documented form of a genome, and what they stand for here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fanfold.config import Settings, option
from fanfold.errors import ConfigError
from fanfold.legacy.settings import names
from fanfold.strategies.generations import Convergence
from fanfold.studies import neuro
from fanfold.studies.neuro.genome import Conv, Dense, NetworkGenome, key
from fanfold.studies.neuro.space import NetworkSpace, repair
from fanfold.studies.neuro.strategy import Spread


@dataclass(frozen=True)
class NotebookSettings(Settings):
    """Every documented key of `CONFIG`, with its documented default."""

    population_size: int = option(10, "networks in a generation", least=2)
    max_generations: int = option(30, "generations at most", least=1)
    fitness_threshold: float = option(99.9, "stop once a network has this accuracy in per cent")
    concurrent_models: int = option(2, "networks trained at a time; 1: one after another")
    max_concurrent_models: int = option(4, "the most that concurrent_models may be", least=1)
    base_mutation_rate: float = option(0.35, "chance that a gene is changed, at a middling spread", least=0, most=1)
    mutation_rate_min: float = option(0.10, "the least of it, where networks differ much", least=0, most=1)
    mutation_rate_max: float = option(0.80, "the most of it, where they are alike", least=0, most=1)
    current_mutation_rate: float = option(0.35, "the rate in use; kept up to date by the search")
    crossover_rate: float = option(0.99, "share of networks with two parents", least=0, most=1)
    elite_percentage: float = option(0.2, "share of a generation that is kept, with its fitness", least=0, below=1)
    dataset: Literal["MNIST", "CIFAR10", "CUSTOM"] = option("MNIST", "what is read if there are no loaders")
    num_channels: int = option(1, "of the images; the loaders' own count")
    px_h: int = option(28, "height of the images; the loaders' own count")
    px_w: int = option(28, "width of the images; the loaders' own count")
    num_classes: int = option(10, "classes; the loaders' own count")
    batch_size: int = option(128, "images in a step", least=2)
    test_split: float = option(0.35, "share of a CUSTOM dataset that is kept for the test", least=0, below=1)
    num_epochs: int = option(12, "epochs of a network, at most", least=1)
    learning_rate: float = option(0.01, "not used: every genome has its own")
    early_stopping_patience: int = option(1000, "steps of an epoch, at most", least=1)
    epoch_patience: int = option(3, "stop training after so many epochs without ...", least=1)
    improvement_threshold: float = option(0.2, "... a gain of this many per cent in accuracy")
    min_conv_layers: int = option(1, "convolutions, at least")
    max_conv_layers: int = option(7, "convolutions, at most")
    min_fc_layers: int = option(1, "dense layers, at least")
    max_fc_layers: int = option(7, "dense layers, at most")
    min_filters: int = option(2, "filters of a convolution, at least")
    max_filters: int = option(256, "filters of a convolution, at most")
    min_fc_nodes: int = option(128, "nodes of a dense layer, at least")
    max_fc_nodes: int = option(2048, "nodes of a dense layer, at most")
    dataset_path: str | None = option(None, "where the files of the dataset are")

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = [(f"min_{name}", f"max_{name}") for name in _BOUNDED]
        for least_name, most_name in [*pairs, ("mutation_rate_min", "mutation_rate_max")]:
            low, high = getattr(self, least_name), getattr(self, most_name)
            if low > high:
                raise ConfigError(f"{least_name}={low} is more than {most_name}={high}")

    @property
    def at_once(self) -> int:
        """Networks trained at a time: what was asked for, within its bounds."""
        return max(1, min(self.concurrent_models, self.max_concurrent_models))

    @property
    def elites(self) -> int:
        return min(max(1, int(self.population_size * self.elite_percentage)), self.population_size - 1)

    @property
    def spread(self) -> Spread:
        return Spread(least=self.mutation_rate_min, most=self.mutation_rate_max, members=self.population_size)

    @property
    def space(self) -> NetworkSpace:
        bounds = {
            ours: (getattr(self, f"min_{name}"), getattr(self, f"max_{name}"))
            for ours, name in zip(("conv_layers", "filters", "dense_layers", "nodes"), _BOUNDED)
        }
        return dataclasses.replace(NetworkSpace.original(), **bounds)

    def study(self, until: Convergence, seed: int) -> neuro.NeuroConfig:
        """The same search in the words of the study."""
        return neuro.NeuroConfig(
            **{ours: getattr(self, documented) for ours, documented in _STUDY.items()},
            **{each.name: getattr(self.space, each.name) for each in dataclasses.fields(NetworkSpace)},
            trials=self.population_size * self.max_generations,
            mutation_rate=max(self.base_mutation_rate, 1e-9),
            adaptive="spread",
            mutation_range=(self.mutation_rate_min, self.mutation_rate_max),
            fresh_share=0.0,
            handmade=False,
            finalists=0,
            until=until,
            inherit=False,
            target=self.fitness_threshold / 100,
            rungs=1,
            epoch_gain=self.improvement_threshold / 100,
            engine="sequential" if self.at_once == 1 else "threads",
            results=None,
            baselines="no",
            seed=seed,
        )


#: What settings of the study are called in the document.
_STUDY = names(
    "population=population_size elites crossover_rate epochs=num_epochs epoch_patience batch_size "
    "max_batches=early_stopping_patience concurrent=at_once"
)
#: What has a least and a most, in the documented words.
_BOUNDED = ("conv_layers", "filters", "fc_layers", "fc_nodes")
#: The settings as the document has them: a dict to change before it is handed over.
CONFIG: dict[str, Any] = dataclasses.asdict(NotebookSettings())
#: The documented setups by name, to be laid over it: `CONFIG | PRESETS["conservative"]`.
PRESETS: dict[str, dict[str, Any]] = {
    "conservative": {"concurrent_models": 1, "population_size": 6, "num_epochs": 8},
    "recommended": {"concurrent_models": 2},
    "high-performance": {"concurrent_models": 3, "population_size": 12, "max_generations": 20},
    "debugging": {"concurrent_models": 1, "population_size": 3, "max_generations": 2, "num_epochs": 1},
}


def as_dict(genome: NetworkGenome, fitness: float = 0.0) -> dict[str, Any]:
    """A genome under the documented keys, and two more: the activations of dense layers, and the normalisation."""
    return {
        "num_conv_layers": len(genome.conv),
        "num_fc_layers": len(genome.dense),
        "filters": [conv.filters for conv in genome.conv],
        "kernel_sizes": [conv.kernel for conv in genome.conv],
        "fc_nodes": [dense.nodes for dense in genome.dense],
        "activations": [conv.activation for conv in genome.conv],
        "fc_activations": [dense.activation for dense in genome.dense],
        "normalization": genome.norm,
        "dropout_rate": genome.dropout,
        "learning_rate": genome.learning_rate,
        "optimizer": genome.optimiser,
        "fitness": fitness,
        "id": key(genome)[:8],
    }


def as_genome(genes: Mapping[str, Any], space: NetworkSpace) -> NetworkGenome:
    """The genome of such a dict, brought into the space; lists may be too short or too long for the counts."""

    def at(name: str, place: int, otherwise: Any) -> Any:
        values: Sequence[Any] = genes.get(name) or [otherwise]
        return values[place % len(values)]

    conv = [
        Conv(at("filters", i, None), at("kernel_sizes", i, None), at("activations", i, "relu"))
        for i in range(_count(genes, "num_conv_layers", "filters"))
    ]
    dense = [
        Dense(at("fc_nodes", i, None), at("fc_activations", i, "relu"))
        for i in range(_count(genes, "num_fc_layers", "fc_nodes"))
    ]
    network = NetworkGenome(
        tuple(conv),
        tuple(dense),
        genes.get("normalization", "batch"),
        genes.get("dropout_rate", 0.0),
        genes.get("optimizer", "adam"),
        genes.get("learning_rate", 0.001),
    )
    return repair(network, space)


def _count(genes: Mapping[str, Any], count: str, values: str) -> int:
    layers = genes.get(count, len(genes.get(values, ())))
    if isinstance(layers, bool) or not isinstance(layers, int):
        raise ConfigError(f"a genome's {count} must be a whole number, not {layers!r}")
    return layers
