"""What inheritance promises: tensors that fit, and a child that computes what its parent did wherever that can be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuro_world import everything

from fanfold.errors import ConfigError
from fanfold.studies.neuro.genome import KERNELS, Conv, Dense, Individual, NetworkGenome, Shape
from fanfold.studies.neuro.layout import layout
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.strategy import crossover, mutate
from fanfold.tensors import pack
from fanfold.types import Blob

np = pytest.importorskip("numpy")

from fanfold.studies.neuro import morph  # noqa: E402
from fanfold.studies.neuro.morph import fresh, heir, inherit, packed, unpacked  # noqa: E402

SPACE = NetworkSpace(conv_layers=(0, 4), filters=(1, 9), kernels=KERNELS, dense_layers=(0, 3), nodes=(1, 12))
SHAPE = Shape(2, 9, 12, 3)
seeds = st.integers(0, 2**32)
shapes = st.builds(Shape, st.integers(1, 3), st.integers(1, 17), st.integers(1, 17), st.integers(1, 5))
RELU = NetworkGenome(
    (Conv(5, 3, "relu"), Conv(4, 3, "relu")), (Dense(7, "relu"), Dense(6, "relu")), "none", 0.2, "adam", 1e-3
)


def trained(genome: NetworkGenome, shape: Shape, seed: int) -> dict[str, Any]:
    """Tensors as training might leave them: no norm is at rest, and no bias is zero."""
    rng = np.random.default_rng(seed)
    arrays = fresh(genome, shape, seed)
    for name, array in arrays.items():
        if name.endswith(".var") or (name.startswith("norm") and name.endswith(".weight")):
            arrays[name] = rng.uniform(0.5, 2.0, array.shape).astype(np.float32)
        elif name.startswith("norm") or name.endswith(".bias"):
            arrays[name] = rng.normal(0.0, 0.5, array.shape).astype(np.float32)
    return arrays


def computed(genome: NetworkGenome, arrays: Mapping[str, Any], shape: Shape, count: int = 6) -> Any:
    """What a network makes of a few images."""
    torch = pytest.importorskip("torch")
    from fanfold.studies.neuro import network

    images = np.random.default_rng(7).uniform(0.0, 1.0, (count, shape.channels, shape.height, shape.width))
    net = {name: torch.from_numpy(np.array(array, np.float64)) for name, array in arrays.items()}
    with torch.no_grad():
        return network.forward(genome, net, torch.from_numpy(images)).numpy()


def distance(parent: NetworkGenome, child: NetworkGenome, shape: Shape = SHAPE, seed: int = 0) -> float:
    """How far the child is from computing what its parent does."""
    arrays = trained(parent, shape, seed)
    inherited = inherit(parent, arrays, child, shape, seed + 1)
    return float(np.abs(computed(parent, arrays, shape) - computed(child, inherited, shape)).max())


def with_conv(genome: NetworkGenome, at: int, **changes: Any) -> NetworkGenome:
    conv = list(genome.conv)
    conv[at] = replace(conv[at], **changes)
    return replace(genome, conv=tuple(conv))


def with_dense(genome: NetworkGenome, at: int, **changes: Any) -> NetworkGenome:
    dense = list(genome.dense)
    dense[at] = replace(dense[at], **changes)
    return replace(genome, dense=tuple(dense))


# -- what always holds ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(seeds, seeds, shapes, st.booleans())
def test_any_child_of_any_parent_gets_tensors_that_fit(one: int, other: int, shape: Shape, wild: bool) -> None:
    rng = Random(one)
    parent = random_genome(SPACE, rng)
    if wild:
        child = random_genome(SPACE, Random(other))
    else:
        child, _ = mutate(crossover(parent, random_genome(SPACE, rng), rng), SPACE, rng, 0.3)
    arrays = trained(parent, shape, one)
    kept = {name: array.copy() for name, array in arrays.items()}
    inherited = inherit(parent, arrays, child, shape, other)
    assert {name: array.shape for name, array in inherited.items()} == dict(layout(child, shape).tensors)
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in inherited.values())
    again = inherit(parent, arrays, child, shape, other)
    assert all(np.array_equal(inherited[name], again[name]) for name in inherited)
    assert all(np.array_equal(kept[name], arrays[name]) for name in kept)


@pytest.mark.slow
@given(seeds, shapes)
def test_a_child_like_its_parent_is_its_copy(seed: int, shape: Shape) -> None:
    genome = random_genome(SPACE, Random(seed))
    arrays = trained(genome, shape, seed)
    inherited = inherit(genome, arrays, replace(genome, optimiser="sgd", learning_rate=1.0), shape, seed)
    assert all(np.array_equal(inherited[name], arrays[name]) for name in arrays)


@pytest.mark.slow
@settings(max_examples=60)
@given(seeds, shapes)
def test_wider_layers_larger_kernels_and_another_norm_change_nothing(seed: int, shape: Shape) -> None:
    rng = Random(seed)
    parent = random_genome(SPACE, rng)
    child = replace(
        parent,
        conv=tuple(
            replace(
                layer,
                filters=layer.filters + rng.randint(0, 9),
                kernel=rng.choice([kernel for kernel in KERNELS if kernel >= layer.kernel]),
            )
            for layer in parent.conv
        ),
        dense=tuple(replace(layer, nodes=layer.nodes + rng.randint(0, 9)) for layer in parent.dense),
        norm=rng.choice(("batch", "none")),
    )
    arrays = trained(parent, shape, seed)
    before = computed(parent, arrays, shape)
    after = computed(child, inherit(parent, arrays, child, shape, seed), shape)
    assert np.abs(before - after).max() <= 1e-5 * max(1.0, np.abs(before).max())


@pytest.mark.slow
@settings(max_examples=60)
@given(seeds)
def test_a_layer_of_relu_that_is_doubled_hands_on_what_it_gets(seed: int) -> None:
    rng = Random(seed)
    shape = Shape(2, 3, 3, 4)  # too small to be halved: a further halving could not be undone
    conv = [Conv(rng.randint(1, 6), rng.choice(KERNELS), "relu") for _ in range(rng.randint(1, 3))]
    dense = [Dense(rng.randint(1, 8), "relu") for _ in range(rng.randint(1, 3))]
    parent = NetworkGenome(tuple(conv), tuple(dense), rng.choice(("batch", "none")), 0.0, "adam", 1e-3)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(conv))
        conv.insert(at, conv[at])
        at = rng.randrange(len(dense))
        dense.insert(at, dense[at])
    child = replace(parent, conv=tuple(conv), dense=tuple(dense))
    assert distance(parent, child, shape, seed) < (1e-5 if parent.norm == "none" else 1e-4)


# -- single changes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_one_wider_layer_changes_nothing(norm: str, activation: str) -> None:
    parent = replace(RELU, norm=norm)
    for at in (0, 1):
        parent = with_dense(with_conv(parent, at, activation=activation), at, activation=activation)
    for at in (0, 1):
        assert distance(parent, with_conv(parent, at, filters=17)) < 1e-5
        assert distance(parent, with_dense(parent, at, nodes=40)) < 1e-5


def test_repeated_units_are_read_in_unlike_parts_so_that_they_learn_apart() -> None:
    child = with_dense(RELU, 0, nodes=14)
    arrays = trained(RELU, SHAPE, 0)
    inherited = inherit(RELU, arrays, child, SHAPE, 1)
    rows, columns = inherited["dense.0.weight"], inherited["dense.1.weight"]
    for unit in range(7):
        same = [at for at in range(14) if np.array_equal(rows[at], arrays["dense.0.weight"][unit])]
        assert np.allclose(columns[:, same].sum(1), arrays["dense.1.weight"][:, unit], atol=1e-6)
        shares = columns[:, same] / arrays["dense.1.weight"][:, [unit]]
        assert (shares > 0).all()
        if len(same) > 1:
            assert np.ptp(shares, axis=0).min() > 0.01, "not even one reader's parts in proportion to another's"


def test_a_narrower_layer_keeps_what_weighs_most() -> None:
    arrays = trained(RELU, SHAPE, 0)
    for name in ("conv.0.weight", "dense.1.weight"):
        arrays[name][[0, 2]] = 0.0
    for name in ("conv.0.bias", "dense.1.bias"):
        arrays[name][[0, 2]] = 0.0
    child = with_dense(with_conv(RELU, 0, filters=3), 1, nodes=4)
    inherited = inherit(RELU, arrays, child, SHAPE, 1)
    assert np.array_equal(inherited["conv.0.weight"], arrays["conv.0.weight"][[1, 3, 4]])
    assert np.array_equal(inherited["conv.1.weight"], arrays["conv.1.weight"][:, [1, 3, 4]])
    assert np.array_equal(inherited["dense.1.bias"], arrays["dense.1.bias"][[1, 3, 4, 5]])
    assert np.abs(computed(RELU, arrays, SHAPE) - computed(child, inherited, SHAPE)).max() < 1e-5


def test_with_a_norm_its_scale_weighs_and_not_the_size_of_the_kernel() -> None:
    parent = replace(RELU, norm="batch")
    arrays = trained(parent, SHAPE, 0)
    arrays["conv.1.weight"][0] *= 100.0
    arrays["norm.1.weight"][0] = 1e-6
    inherited = inherit(parent, arrays, with_conv(parent, 1, filters=3), SHAPE, 1)
    assert np.array_equal(inherited["conv.1.weight"], arrays["conv.1.weight"][1:])
    assert np.array_equal(inherited["norm.1.var"], arrays["norm.1.var"][1:])


def test_a_narrower_map_in_front_of_the_dense_layers_is_cut_out_of_them() -> None:
    arrays = trained(RELU, SHAPE, 0)
    arrays["dense.0.weight"].reshape(7, 4, -1)[:, 1] = 0.0
    child = with_conv(RELU, 1, filters=3)
    inherited = inherit(RELU, arrays, child, SHAPE, 1)
    assert np.array_equal(inherited["conv.1.weight"], arrays["conv.1.weight"][[0, 2, 3]])
    assert np.abs(computed(RELU, arrays, SHAPE) - computed(child, inherited, SHAPE)).max() < 1e-5


def test_a_kernel_grows_and_shrinks_around_its_centre() -> None:
    arrays = trained(RELU, SHAPE, 0)
    larger = with_conv(RELU, 0, kernel=7)
    grown = inherit(RELU, arrays, larger, SHAPE, 1)
    assert np.array_equal(grown["conv.0.weight"][:, :, 2:5, 2:5], arrays["conv.0.weight"])
    assert np.abs(grown["conv.0.weight"]).sum() == pytest.approx(np.abs(arrays["conv.0.weight"]).sum())
    smaller = inherit(RELU, arrays, with_conv(RELU, 0, kernel=1), SHAPE, 1)
    assert np.array_equal(smaller["conv.0.weight"], arrays["conv.0.weight"][:, :, 1:2, 1:2])
    back = inherit(larger, grown, RELU, SHAPE, 1)
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize(("was", "now"), [("none", "batch"), ("batch", "none")])
def test_another_norm_takes_over_scale_and_shift(was: str, now: str) -> None:
    assert distance(replace(RELU, norm=was), replace(RELU, norm=now)) < 1e-5


def test_a_new_dense_layer_may_be_wider_and_a_narrower_one_hands_on_what_weighs_most() -> None:
    wider = replace(RELU, dense=(*RELU.dense, Dense(11, "relu")))
    assert distance(RELU, wider) < 1e-5
    single = replace(RELU, dense=(Dense(6, "relu"),))
    repeated = replace(RELU, dense=(Dense(12, "relu"), Dense(6, "relu")))
    apart = max(distance(single, repeated, seed=seed) for seed in range(5))
    assert apart < 1e-5, "of units that are repeated, one is enough"
    arrays = trained(RELU, SHAPE, 0)
    arrays["out.weight"][:, [1, 4]] = 0.0
    inherited = inherit(RELU, arrays, narrower := replace(RELU, dense=(*RELU.dense, Dense(4, "relu"))), SHAPE, 1)
    assert np.abs(computed(RELU, arrays, SHAPE) - computed(narrower, inherited, SHAPE)).max() < 1e-5


@pytest.mark.slow
@settings(max_examples=60)
@given(seeds)
def test_a_layer_that_handed_on_can_go_again(seed: int) -> None:
    rng = Random(seed)
    shape = Shape(2, 3, 3, 4)
    conv = tuple(Conv(rng.randint(1, 6), 1, "relu") for _ in range(rng.randint(1, 3)))
    dense = tuple(Dense(rng.randint(1, 8), "relu") for _ in range(rng.randint(1, 3)))
    parent = NetworkGenome(conv, dense, rng.choice(("batch", "none")), 0.0, "adam", 1e-3)
    more = replace(
        parent, conv=(*conv, *conv[-1:] * rng.randint(0, 2)), dense=(*dense, *dense[-1:] * rng.randint(0, 2))
    )
    arrays = trained(parent, shape, seed)
    back = inherit(more, inherit(parent, arrays, more, shape, 1), parent, shape, 2)
    difference = np.abs(computed(parent, arrays, shape) - computed(parent, back, shape)).max()
    assert difference < (1e-5 if parent.norm == "none" else 1e-4)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_a_layer_that_goes_is_read_through_as_if_it_had_been_linear(norm: str) -> None:
    """With images, weights and shifts that never go below zero, ReLU is linear, and nothing is lost."""
    shape = Shape(2, 3, 3, 4)
    conv = (Conv(3, 1, "relu"), Conv(5, 1, "relu"), Conv(4, 1, "relu"))
    dense = (Dense(6, "relu"), Dense(7, "relu"))
    parent = NetworkGenome(conv, dense, norm, 0.0, "adam", 1e-3)
    arrays = {name: np.abs(array) for name, array in trained(parent, shape, 0).items()}
    arrays |= {name: -array for name, array in arrays.items() if name.endswith(".mean")}
    before = computed(parent, arrays, shape)
    fewer = [replace(parent, conv=conv[:at] + conv[at + 1 :]) for at in range(3)]
    fewer += [
        replace(parent, dense=dense[:1]),
        replace(parent, conv=conv[:1], dense=dense[:1]),
        replace(parent, conv=()),
    ]
    for child in fewer:
        after = computed(child, inherit(parent, arrays, child, shape, 1), shape)
        assert np.allclose(after, before, rtol=1e-4), child


def test_a_map_of_another_size_is_read_by_the_weights_of_the_same_places() -> None:
    """A layer more halves the map; of equal numbers all over a map, the dense layer makes what it made."""
    shape = Shape(1, 8, 8, 3)
    parent = NetworkGenome((Conv(3, 1, "relu"),), (Dense(5, "relu"),), "none", 0.0, "adam", 1e-3)
    child = replace(parent, conv=(Conv(3, 1, "relu"), Conv(3, 1, "relu")))
    arrays = trained(parent, shape, 0)
    inherited = inherit(parent, arrays, child, shape, 1)
    old, new = arrays["dense.0.weight"].reshape(5, 3, 4, 4), inherited["dense.0.weight"].reshape(5, 3, 2, 2)
    assert np.allclose(new, old.reshape(5, 3, 2, 2, 2, 2).sum((3, 5)), atol=1e-6)
    back = inherit(child, inherited, parent, shape, 1)["dense.0.weight"].reshape(5, 3, 4, 4)
    assert np.allclose(back, new.repeat(2, 2).repeat(2, 3) / 4, atol=1e-6)
    for was, now in ((7, 3), (3, 7), (5, 1), (4, 6)):
        found = morph._resampled(np.random.default_rng(0).normal(size=(2, was)), 1, now)
        expected = np.random.default_rng(0).normal(size=(2, was)).sum(1)
        assert found.shape == (2, now) and np.allclose(found.sum(1), expected)


def test_where_nothing_fits_a_network_starts_afresh() -> None:
    flat = replace(RELU, dense=())
    arrays, start = trained(RELU, SHAPE, 0), fresh(flat, SHAPE, 1)
    inherited = inherit(RELU, arrays, flat, SHAPE, 1)
    assert np.array_equal(inherited["out.weight"], start["out.weight"])
    assert np.array_equal(inherited["out.bias"], arrays["out.bias"])
    assert np.array_equal(inherited["conv.1.weight"], arrays["conv.1.weight"])


def test_fresh_tensors_are_those_a_network_starts_from() -> None:
    pytest.importorskip("torch")
    from fanfold.studies.neuro import network

    for norm in ("batch", "none"):
        genome = replace(RELU, norm=norm)
        one, other = fresh(genome, SHAPE, 5), network.initial(genome, SHAPE, 5)
        assert list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_parent_that_diverged_still_gives_finite_numbers() -> None:
    parent = replace(RELU, norm="batch")
    arrays = trained(parent, SHAPE, 0)
    arrays["conv.1.weight"][:] = np.nan
    arrays["norm.0.mean"][0] = np.inf
    arrays["out.weight"][:] = 3e38
    for child in (parent, RELU, with_conv(parent, 1, filters=2), with_dense(parent, 1, nodes=3)):
        inherited = inherit(parent, arrays, child, SHAPE, 1)
        assert all(np.isfinite(array).all() for array in inherited.values())
    start = fresh(parent, SHAPE, 1)
    inherited = inherit(parent, arrays, parent, SHAPE, 1)
    assert np.array_equal(inherited["conv.1.weight"], start["conv.1.weight"])
    assert np.array_equal(inherited["dense.0.weight"], arrays["dense.0.weight"])


def test_weights_of_another_genome_are_refused() -> None:
    arrays = trained(RELU, SHAPE, 0)
    with pytest.raises(ConfigError, match=r"conv.0.weight has the shape \(5, 2, 3, 3\)"):
        inherit(with_conv(RELU, 0, filters=6), arrays, RELU, SHAPE, 0)
    del arrays["out.bias"]
    with pytest.raises(ConfigError, match=r"out.bias is missing"):
        inherit(RELU, arrays, RELU, SHAPE, 0)


def test_an_individual_starts_from_what_it_inherits() -> None:
    arrays = trained(RELU, SHAPE, 0)
    child = with_dense(RELU, 0, nodes=9)
    data = packed(RELU, arrays)
    genome, found = unpacked(data)
    assert genome == RELU and all(np.array_equal(found[name], arrays[name]) for name in arrays)
    started = heir(Individual(child, Blob.of(data)), SHAPE, 3)
    expected = inherit(RELU, arrays, child, SHAPE, 3)
    assert started is not None
    made = started()
    assert all(np.array_equal(made[name], expected[name]) for name in expected)
    assert heir(Individual(child), SHAPE, 3) is None


@pytest.mark.parametrize("data", [b"", b"nonsense", pack({}), pack({}, {"genome": "{}"}), pack({}, {"genome": "{"})])
def test_bytes_that_are_no_weights_of_a_genome_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError):
        unpacked(data)


NEWER = everything(SPACE)
kinds = (
    shapes
    | st.builds(Shape, st.integers(1, 9), st.just(1), st.integers(1, 1), st.integers(1, 4), st.just("table"))
    | st.builds(Shape, st.integers(1, 3), st.just(1), st.integers(2, 30), st.integers(1, 4), st.just("sequence"))
)


@pytest.mark.slow
@settings(max_examples=60)
@given(seeds, seeds, kinds)
def test_any_child_with_newer_blocks_gets_tensors_that_fit(one: int, other: int, shape: Shape) -> None:
    parent, child = random_genome(NEWER, Random(one)), random_genome(NEWER, Random(other))
    inherited = inherit(parent, trained(parent, shape, 0), child, shape, 1)
    assert {name: array.shape for name, array in inherited.items()} == dict(layout(child, shape).tensors)
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in inherited.values())
    copy = inherit(parent, trained(parent, shape, 0), parent, shape, 1)
    assert all(np.array_equal(array, trained(parent, shape, 0)[name]) for name, array in copy.items())


@pytest.mark.parametrize(
    "child",
    [
        with_conv(RELU, 0, filters=9),
        with_conv(RELU, 1, kernel=5),
        with_dense(RELU, 0, nodes=12),
        replace(RELU, norm="batch"),
    ],
)
def test_between_newer_networks_wider_layers_change_nothing(child: NetworkGenome) -> None:
    extra: dict[str, Any] = {"schedule": "cosine", "smoothing": 0.1}
    assert distance(replace(RELU, **extra), replace(child, **extra)) < 1e-5


def test_an_attention_that_is_new_changes_nothing_at_first() -> None:
    rows = Shape(6, 1, 1, 3, "table")
    plain = NetworkGenome((), (Dense(7, "relu"),), "none", 0.0, "adam", 1e-3)
    assert distance(plain, replace(plain, attention=4), rows) < 1e-6
