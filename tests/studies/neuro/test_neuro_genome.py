"""What a genome promises: every one of the space can be built, counts are true, and broken ones are mended."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuro_world import everything

from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.studies.neuro.genome import (
    ACTIVATIONS,
    BLOCKS,
    CHOSEN,
    DENSE_BLOCKS,
    KERNELS,
    NORMS,
    OPTIMISERS,
    TARGETS,
    Conv,
    Dense,
    Individual,
    NetworkGenome,
    Shape,
    describe,
    genome_of,
    individual_of,
    key,
)
from fanfold.studies.neuro.layout import activation_bytes, layout, memory, operations, parameters
from fanfold.studies.neuro.space import NetworkSpace, faults, random_genome, repair, valid
from fanfold.types import Blob

MNIST = Shape(1, 28, 28, 10)
GENOME = NetworkGenome((Conv(16, 3, "relu"), Conv(32, 5, "tanh")), (Dense(128, "selu"),), "batch", 0.25, "adam", 1e-3)
#: Spaces at the edges: a single genome, no layers at all, and those of every size.

SPACES = (
    NetworkSpace(),
    NetworkSpace.original(),
    NetworkSpace(conv_layers=(0, 0), dense_layers=(0, 0)),
    NetworkSpace((2, 2), (7, 7), (5,), (1, 1), (9, 9), ("tanh",), ("none",), (0.2, 0.2), ("sgd",), (0.1, 0.1)),
    NetworkSpace(
        conv_layers=(0, 12), filters=(1, 3), kernels=KERNELS, dense_layers=(0, 9), nodes=(1, 2), dropout=(0.0, 0.95)
    ),
    everything(NetworkSpace(conv_layers=(0, 5), filters=(1, 40), kernels=KERNELS, dense_layers=(0, 3), nodes=(1, 40))),
)
shapes = st.builds(Shape, *(st.integers(1, 40) for _ in range(4))) | st.builds(
    Shape, st.integers(1, 80), st.just(1), st.just(1), st.integers(1, 4), st.just("table"), st.sampled_from(TARGETS)
)
spaces = st.sampled_from(SPACES)
seeds = st.integers(0, 2**32)


def plain(filters: tuple[int, ...], kernels: tuple[int, ...], nodes: int, norm: str = "batch") -> NetworkGenome:
    conv = tuple(Conv(count, kernel, "relu") for count, kernel in zip(filters, kernels))
    return NetworkGenome(conv, (Dense(nodes, "relu"),), norm, 0.0, "adam", 1e-3)


TINY, SMALL, MEDIUM = plain((4, 8), (3, 3), 32), plain((16, 32), (3, 3), 128), plain((98, 83), (5, 3), 153)


# -- building ---------------------------------------------------------------------------------------------------------


def consistent(genome: NetworkGenome, shape: Shape) -> bool:
    """Whether each tensor reads exactly what the one before it gives, and no map is empty."""
    sizes = layout(genome, shape)
    inputs = shape.channels
    for i, (channels, height, width) in enumerate(sizes.maps[1:]):
        weight = sizes.tensors[f"conv.{i}.weight"]
        kernel = sizes.tensors.get(f"conv.{i}.depth", weight)[2:]
        sides = [1 if side == 1 else genome.conv[i].kernel for side in sizes.maps[i][1:]]
        if weight[:2] != (channels, inputs) or list(kernel) != sides or min(height, width) < 1:
            return False
        inputs = channels
    inputs = sizes.features
    for name in (*(f"dense.{j}" for j in range(len(genome.dense))), "out"):
        nodes, read = sizes.tensors[f"{name}.weight"]
        if read != inputs or sizes.tensors[f"{name}.bias"] != (nodes,):
            return False
        inputs = nodes
    return inputs == shape.classes


@pytest.mark.slow
def test_none_of_ten_thousand_random_genomes_is_invalid() -> None:
    rng = Random(1)
    shapes = [Shape(rng.randint(1, 4), rng.randint(1, 33), rng.randint(1, 33), rng.randint(1, 11)) for _ in range(99)]
    wrong = 0
    for number in range(10_000):
        space = SPACES[1 if number % 8 == 0 else 5 if number % 8 == 1 else 0]
        genome = random_genome(space, rng)
        wrong += not (valid(genome, space) and consistent(genome, shapes[number % 99]))
    assert wrong == 0


@pytest.mark.slow
@given(spaces, seeds, shapes)
def test_a_random_genome_of_any_space_can_be_built_for_any_shape(space: NetworkSpace, seed: int, shape: Shape) -> None:
    genome = random_genome(space, Random(seed))
    assert valid(genome, space) and not faults(genome, space) and consistent(genome, shape)
    assert genome == random_genome(space, Random(seed))


def test_random_genomes_reach_every_newer_choice() -> None:
    rng, space = Random(0), SPACES[5]
    drawn = [random_genome(space, rng) for _ in range(200)]
    for gene, choices in CHOSEN.items():
        assert {getattr(genome, gene) for genome in drawn} == set(getattr(space, choices))
    assert {layer.block for genome in drawn for layer in genome.conv} == set(BLOCKS)
    assert {layer.block for genome in drawn for layer in genome.dense} == set(DENSE_BLOCKS)
    assert not all(genome.plain for genome in drawn) and all(random_genome(SPACES[0], rng).plain for _ in range(20))


def test_random_genomes_reach_every_choice_and_both_ends() -> None:
    rng = Random(0)
    found = [random_genome(SPACES[4], rng) for _ in range(400)]
    layers = [layer for genome in found for layer in genome.conv]
    assert {layer.kernel for layer in layers} == set(KERNELS) and {layer.filters for layer in layers} == {1, 2, 3}
    assert {layer.activation for layer in layers} == set(ACTIVATIONS)
    assert {len(genome.conv) for genome in found} == set(range(13))
    assert {len(genome.dense) for genome in found} == set(range(10))
    assert {genome.norm for genome in found} == set(NORMS) and {genome.optimiser for genome in found} == set(OPTIMISERS)
    rates = [genome.learning_rate for genome in found]
    assert all(float(f"{rate:.3g}") == rate for rate in rates) and min(rates) < 2e-4 and max(rates) > 2e-2


@pytest.mark.slow
def test_two_hundred_genomes_are_really_built() -> None:
    pytest.importorskip("torch")
    import torch

    from fanfold.studies.neuro import network

    rng = Random(2)
    small = NetworkSpace(conv_layers=(0, 5), filters=(1, 12), kernels=KERNELS, dense_layers=(0, 3), nodes=(1, 24))
    for number in range(200):
        genome = random_genome(everything(small) if number % 2 else small, rng)
        shape = Shape(rng.randint(1, 3), rng.randint(1, 20), rng.randint(1, 20), rng.randint(2, 6))
        if number % 5 == 0:
            shape = replace(shape, height=1, width=1, kind="table")
        net = {name: torch.from_numpy(array) for name, array in network.initial(genome, shape, number).items()}
        scores = network.forward(genome, net, torch.rand(2, shape.channels, shape.height, shape.width))
        assert scores.shape == (2, shape.classes) and bool(torch.isfinite(scores).all())


# -- counting ---------------------------------------------------------------------------------------------------------


def test_counts_are_those_of_the_networks_that_were_measured() -> None:
    assert [parameters(genome, MNIST) for genome in (TINY, SMALL, MEDIUM)] == [13_254, 206_970, 699_962]
    steps = [operations(genome, MNIST) * 3 * 128 / 1e9 for genome in (TINY, SMALL, MEDIUM)]
    assert steps == pytest.approx([0.075, 0.935, 12.97], rel=0.005)


def test_maps_are_halved_only_while_they_are_large_enough() -> None:
    genome = plain((2, 2, 2, 2), (7, 1, 3, 5), 5)
    sizes = layout(genome, Shape(3, 15, 9, 4))
    assert sizes.maps == ((3, 15, 9), (2, 7, 4), (2, 3, 2), (2, 3, 2), (2, 3, 2))
    assert sizes.pooled == (True, True, False, False) and sizes.features == 12
    sequence = layout(genome, Shape(1, 1, 100, 2))
    assert sequence.maps[-1] == (2, 1, 6) and sequence.tensors["conv.0.weight"] == (2, 1, 1, 7)


def test_a_norm_takes_the_place_of_the_bias() -> None:
    with_norm, without = layout(SMALL, MNIST).tensors, layout(replace(SMALL, norm="none"), MNIST).tensors
    assert "conv.0.bias" not in with_norm and with_norm["norm.1.var"] == (32,)
    assert not any(name.startswith("norm") for name in without) and without["conv.1.bias"] == (32,)
    assert parameters(SMALL, MNIST) - parameters(replace(SMALL, norm="none"), MNIST) == 16 + 32


@pytest.mark.slow
def test_memory_is_what_training_keeps() -> None:
    torch = pytest.importorskip("torch")
    from fanfold.studies.neuro import network

    for genome in (TINY, SMALL, replace(SMALL, norm="none"), MEDIUM, plain((8, 8, 8, 8), (3, 5, 3, 3), 300)):
        kept: dict[int, int] = {}

        def keep(tensor: Any, kept: dict[int, int] = kept) -> Any:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        arrays = network.initial(genome, MNIST, 0)
        net = {name: torch.from_numpy(array).requires_grad_(network.trained(name)) for name, array in arrays.items()}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network.forward(genome, net, torch.rand(16, 1, 28, 28), [0] * len(genome.dense))
        own = {tensor.untyped_storage().data_ptr() for tensor in net.values()}
        measured = sum(size for place, size in kept.items() if place not in own)
        assert activation_bytes(genome, MNIST) * 16 == pytest.approx(measured, rel=0.25)


def test_memory_grows_with_the_batch_and_with_what_the_optimiser_remembers() -> None:
    weights = parameters(SMALL, MNIST)
    assert memory(SMALL, MNIST, 0) == 16 * weights
    assert memory(replace(SMALL, optimiser="sgd"), MNIST, 0) == memory(replace(SMALL, optimiser="rmsprop"), MNIST, 0)
    assert memory(replace(SMALL, optimiser="sgd"), MNIST, 0) == 12 * weights
    assert memory(SMALL, MNIST, 128) - memory(SMALL, MNIST, 0) == 128 * activation_bytes(SMALL, MNIST)
    # The peak that was measured on a graphics card, per network of this size, lies between 24 and 55 MiB.
    assert 24 < memory(SMALL, MNIST, 128) / 2**20 < 55


# -- identity ---------------------------------------------------------------------------------------------------------


def test_a_key_leaves_out_what_has_no_effect() -> None:
    bare = replace(GENOME, dense=())
    assert key(bare) == key(replace(bare, dropout=0.4)) and key(GENOME) != key(replace(GENOME, dropout=0.4))
    flat = replace(GENOME, conv=())
    assert key(flat) == key(replace(flat, norm="none")) and key(GENOME) != key(replace(GENOME, norm="none"))
    assert key(GENOME) == key(replace(GENOME, learning_rate=0.001 + 1e-12))
    still = replace(GENOME, dropout=0.0)
    assert key(still) == key(replace(still, dropout=-0.0)) == key(replace(still, dropout=0))
    assert key(replace(still, learning_rate=1.0)) == key(replace(still, learning_rate=1))


@pytest.mark.slow
@given(seeds, seeds)
def test_genomes_that_differ_have_other_keys(one: int, other: int) -> None:
    mine, theirs = (random_genome(SPACES[1], Random(seed)) for seed in (one, other))
    assert (key(mine) == key(theirs)) == (mine == theirs)


@pytest.mark.slow
@given(spaces, seeds)
def test_a_genome_comes_back_from_a_ledger(space: NetworkSpace, seed: int) -> None:
    genome = random_genome(space, Random(seed))
    assert genome_of(decode(encode(genome))) == genome == genome_of(genome)
    for candidate in (Individual(genome), Individual(genome, Blob.of(b"weights"))):
        found = individual_of(decode(encode(candidate), lambda digest: b"weights"))
        assert found == candidate and key(found.genome) == key(genome)
    assert individual_of(candidate) is candidate


@pytest.mark.parametrize("value", [{}, None, "conv 3", {"genome": {"conv": 3}}, {"genome": None}])
def test_what_is_no_network_is_said_to_be_none(value: Any) -> None:
    for read in (individual_of, genome_of):
        with pytest.raises(ConfigError, match="not a network of this study"):
            read(value)


@pytest.mark.slow
def test_a_description_is_one_line_that_tells_genomes_apart() -> None:
    assert describe(GENOME) == ("conv 16x3 relu, conv 32x5 tanh, batch norm, dense 128 selu, dropout 0.25, adam 0.001")
    assert describe(replace(GENOME, conv=(), dense=(), learning_rate=3e-5)) == "adam 3e-05"
    rng = Random(3)
    found = {key(genome): describe(genome) for genome in (random_genome(NetworkSpace(), rng) for _ in range(2000))}
    assert len(set(found.values())) == len(found) and not any("\n" in line for line in found.values())


# -- mending ----------------------------------------------------------------------------------------------------------

numbers = st.floats() | st.integers(-(10**400), 10**400) | st.none() | st.text(max_size=3) | st.booleans()
names = st.sampled_from((*ACTIVATIONS, *NORMS, *OPTIMISERS)) | st.text(max_size=3) | st.none() | st.integers()
broken_conv = st.builds(Conv, numbers, numbers, names) | st.none() | st.integers()
broken_dense = st.builds(Dense, numbers, names) | st.none()
broken = st.builds(
    NetworkGenome,
    st.lists(broken_conv, max_size=14).map(tuple) | st.lists(broken_conv, max_size=3) | st.none() | st.text(max_size=3),
    st.lists(broken_dense, max_size=12).map(tuple) | st.integers(),
    names,
    numbers,
    names,
    numbers,
)


@pytest.mark.slow
@given(broken, spaces, shapes)
def test_whatever_is_broken_is_mended_once_and_for_all(
    genome: NetworkGenome, space: NetworkSpace, shape: Shape
) -> None:
    mended = repair(genome, space)
    assert valid(mended, space) and repair(mended, space) == mended and consistent(mended, shape)
    assert valid(genome, space) == (not faults(genome, space))
    encode(mended)


def test_mending_goes_to_the_nearest_and_leaves_the_rest() -> None:
    space = NetworkSpace()
    odd = NetworkGenome(
        (Conv(999, 7, "relu"), Conv(-3, 4, "swish"), Conv(math.nan, 1, "tanh"), Conv(8, 3, "relu")),  # type: ignore[arg-type]
        (),
        "layer",
        math.inf,
        "sgd",
        math.nan,
    )
    assert repair(odd, space) == NetworkGenome(
        (Conv(32, 5, "relu"), Conv(4, 3, "relu"), Conv(18, 3, "tanh")),
        (Dense(80, "relu"),),
        "batch",
        0.5,
        "sgd",
        1.73e-3,
    )
    assert repair(replace(GENOME, learning_rate=0.00123456), space).learning_rate == 0.00123456


def test_a_fault_names_the_field_and_what_would_fit() -> None:
    assert faults(replace(GENOME, dropout=0.7), NetworkSpace()) == ["dropout is 0.7, near it is 0.5"]
    assert [fault.split()[0] for fault in faults(replace(GENOME, norm="x", conv=()), NetworkSpace())] == [
        "conv",
        "norm",
    ]
    assert not valid(replace(GENOME, dropout=False), NetworkSpace()) and not valid(
        replace(GENOME, dropout=0), NetworkSpace()
    )
    assert not valid(replace(GENOME, conv=list(GENOME.conv)), NetworkSpace())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filters": (0, 3)}, "filters of the space must be at least 1 and in rising order"),
        ({"filters": (9, 3)}, "rising order"),
        ({"filters": (1.0, 3.0)}, "two whole numbers"),
        ({"nodes": [1, 2]}, "two whole numbers"),
        ({"conv_layers": (-1, 3)}, "at least 0"),
        ({"dropout": (0.0, 1.0)}, "between 0 and 0.95"),
        ({"dropout": (math.nan, 0.5)}, "two numbers"),
        ({"learning_rates": (0.0, 0.1)}, "learning_rates"),
        ({"learning_rates": (0.1, math.inf)}, "learning_rates"),
        ({"kernels": (2,)}, "there is no 2"),
        ({"kernels": ()}, "tuple of some of"),
        ({"activations": ("reluu",)}, "did you mean 'relu'"),
        ({"optimisers": "adam"}, "tuple of some of"),
        ({"norms": ("batch", "batch")}, "twice"),
    ],
)
def test_a_space_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NetworkSpace(**options)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None])
@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(Shape)])
def test_a_shape_that_cannot_be_is_refused(name: str, wrong: Any) -> None:
    shape = replace(MNIST, target="labels") if name == "balanced" else MNIST
    with pytest.raises(ConfigError, match=name):
        replace(shape, **{name: wrong})


def test_a_shape_of_before_kinds_and_targets_reads_and_is_written_as_it_was() -> None:
    old = Shape(1, 8, 8, 10)
    assert decode(encode(old)) == {"channels": 1, "height": 8, "width": 8, "classes": 10}
    assert repr(old) == "Shape(channels=1, height=8, width=8, classes=10)"
    assert Shape(*(1, 8, 8, 10)) == old == replace(old, kind="images") and hash(old) == hash(replace(old))
    table = Shape(13, 1, 1, 1, "table", "numbers")
    assert decode(encode(table))["kind"] == "table" and "target='numbers'" in repr(table) and table != old


@pytest.mark.parametrize("words", [{"kind": "tabel"}, {"target": "number"}])
def test_a_shape_of_an_unknown_kind_or_target_names_the_nearest(words: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="mean"):
        Shape(1, 8, 8, 10, **words)
