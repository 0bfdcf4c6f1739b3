"""The network and its optimisers: the arithmetic that PyTorch's own modules do, and dropout without a generator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from fanfold.studies.neuro import network
from fanfold.studies.neuro.genome import ACTIVATIONS, OPTIMISERS, Conv, Dense, NetworkGenome, Shape
from fanfold.studies.neuro.layout import layout
from fanfold.studies.neuro.optimiser import FIRST, Flat, Moments, corrections, joined

SHAPE = Shape(2, 9, 7, 4)
MODULES: dict[str, Any] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "selu": nn.SELU,
}


def genome(
    activation: str = "relu", norm: str = "batch", dropout: float = 0.0, optimiser: str = "adam"
) -> NetworkGenome:
    """Three convolutions, the last on a map that is too small to be halved."""
    convs = (Conv(5, 3, activation), Conv(6, 5, activation), Conv(3, 1, activation))
    return NetworkGenome(convs, (Dense(8, activation), Dense(6, activation)), norm, dropout, optimiser, 0.01)


def module(genome: NetworkGenome, shape: Shape, net: dict[str, Tensor]) -> nn.Sequential:
    """The same network as PyTorch's users write it, the pooling behind the activation."""
    layers: list[nn.Module] = []
    channels, side = shape.channels, min(shape.height, shape.width)
    for i, conv in enumerate(genome.conv):
        made = nn.Conv2d(channels, conv.filters, conv.kernel, padding="same", bias=genome.norm == "none").double()
        own = {"weight": net[f"conv.{i}.weight"]} | ({"bias": net[f"conv.{i}.bias"]} if genome.norm == "none" else {})
        made.load_state_dict(own)
        layers.append(made)
        if genome.norm == "batch":
            normed = nn.BatchNorm2d(conv.filters).double()
            parts = {"weight": "weight", "bias": "bias", "running_mean": "mean", "running_var": "var"}
            own = {theirs: net[f"norm.{i}.{ours}"] for theirs, ours in parts.items()}
            normed.load_state_dict(own | {"num_batches_tracked": torch.tensor(0)})
            layers.append(normed)
        layers.append(MODULES[conv.activation]())
        if side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        channels = conv.filters
    layers.append(nn.Flatten())
    names = [f"dense.{j}" for j in range(len(genome.dense))] + ["out"]
    for name in names:
        weight = net[f"{name}.weight"]
        linear = nn.Linear(weight.shape[1], weight.shape[0]).double()
        linear.load_state_dict({"weight": weight, "bias": net[f"{name}.bias"]})
        layers.append(linear)
        if name != "out":
            layers.append(MODULES[genome.dense[int(name[-1])].activation]())
    return nn.Sequential(*layers)


def tensors(genome: NetworkGenome, shape: Shape = SHAPE, seed: int = 3) -> dict[str, Tensor]:
    return {name: torch.tensor(array).double() for name, array in network.initial(genome, shape, seed).items()}


def some_images(count: int = 12, shape: Shape = SHAPE) -> Tensor:
    rng = np.random.default_rng(5)
    return torch.tensor(rng.normal(size=(count, shape.channels, shape.height, shape.width)))


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_network_is_the_one_that_modules_would_make(activation: str, norm: str) -> None:
    tested = genome(activation, norm)
    net = tensors(tested)
    same, images = module(tested, SHAPE, net), some_images()
    net = {name: tensor.clone() for name, tensor in net.items()}
    for _ in range(2):  # the second time with other running statistics
        learnt = network.forward(tested, net, images, [0, 0])
        assert torch.allclose(learnt, same.train()(images), rtol=0, atol=1e-12)
    assert torch.allclose(network.forward(tested, net, images), same.eval()(images), rtol=0, atol=1e-12)


def test_running_statistics_move_in_training_and_in_training_only() -> None:
    tested = genome()
    net = tensors(tested)
    before = {name: tensor.clone() for name, tensor in net.items()}
    network.forward(tested, net, some_images())
    assert all(torch.equal(net[name], before[name]) for name in net)
    network.forward(tested, net, some_images(), [0, 0])
    moved = {name for name in net if not torch.equal(net[name], before[name])}
    assert moved == {f"norm.{i}.{part}" for i in range(3) for part in ("mean", "var")}
    assert not any(network.trained(name) for name in moved)


@pytest.mark.parametrize("shape", [Shape(1, 1, 1, 2), Shape(3, 2, 9, 5), Shape(1, 28, 28, 10), Shape(1, 1, 40, 3)])
def test_a_network_is_built_for_images_of_any_size(shape: Shape) -> None:
    for tested in (genome(), genome(norm="none"), NetworkGenome((), (), "none", 0.0, "sgd", 0.1)):
        found = network.forward(tested, tensors(tested, shape), some_images(3, shape), [0, 0])
        assert found.shape == (3, shape.classes)
        assert torch.isfinite(found).all()


def test_nothing_is_dropped_where_nothing_is_learnt() -> None:
    still, dropping = genome(), genome(dropout=0.5)
    net = tensors(still)
    images = some_images()
    assert torch.equal(network.forward(still, dict(net), images), network.forward(dropping, dict(net), images))
    trained = [network.forward(each, dict(tensors(still)), images, [1, 2]) for each in (still, dropping)]
    assert not torch.allclose(*trained)


# ---------------------------------------------------------------- the first weights


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_first_weights_are_uniform_within_the_reach_of_their_layer(norm: str) -> None:
    tested = NetworkGenome((Conv(32, 5, "relu"),), (Dense(64, "relu"),), norm, 0.0, "adam", 0.01)
    shape = Shape(3, 16, 16, 10)
    found = network.initial(tested, shape, 1)
    assert {name: array.shape for name, array in found.items()} == dict(layout(tested, shape).tensors)
    for layer in ("conv.0", "dense.0", "out"):
        weight = found[f"{layer}.weight"]
        reach = 1 / math.sqrt(math.prod(weight.shape[1:]))
        assert 0.98 * reach < np.abs(weight).max() <= reach * (1 + 1e-6)
        assert abs(weight.mean()) < 5 * reach / math.sqrt(3 * weight.size)
        assert weight.std() == pytest.approx(reach / math.sqrt(3), rel=0.1)
        if f"{layer}.bias" in found:
            assert 0.5 * reach < np.abs(found[f"{layer}.bias"]).max() <= reach * (1 + 1e-6)
    for name, array in found.items():
        assert array.dtype == np.float32
        if name.startswith("norm."):
            assert (array == (1.0 if name.endswith((".weight", ".var")) else 0.0)).all()


def test_first_weights_follow_from_the_seed_alone() -> None:
    one, same, other = (network.initial(genome(), SHAPE, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not any(np.array_equal(one[name], other[name]) for name in one if not name.startswith("norm."))


# ---------------------------------------------------------------- dropout


def lots(base: int, rows: int = 256, columns: int = 256) -> Any:
    return network.lots(rows, columns, base, torch.device("cpu")).numpy()


@pytest.mark.parametrize("shift", [0, 8, 16])
def test_lots_are_spread_evenly_in_each_of_their_bytes(shift: int) -> None:
    counts = np.bincount((lots(network.dropout_base(7, 0, 0)).ravel() >> shift) & 255, minlength=256)
    expected = 256.0
    # Chi-squared of 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert 255 - 5 * 22.6 < ((counts - expected) ** 2 / expected).sum() < 255 + 5 * 22.6
    assert lots(123).min() >= 0 and lots(123).max() < network.LOTS


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.8])
def test_the_share_that_is_dropped_is_the_rate_and_the_rest_makes_up_for_it(rate: float) -> None:
    shares = []
    for step in range(30):
        x = torch.ones(64, 128, dtype=torch.float64)
        found = network.dropped(x, *network.rarity(rate), network.dropout_base(11, step, 0))
        assert set(found.unique().tolist()) == {0.0, 1 / (1 - rate)}
        shares.append((found == 0).double().mean().item())
    sigma = math.sqrt(rate * (1 - rate) / (64 * 128))
    assert abs(np.mean(shares) - rate) < 5 * sigma / math.sqrt(30)
    assert 0.5 * sigma < np.std(shares) < 1.6 * sigma  # neither locked to the rate nor clumped


def test_what_is_dropped_has_nothing_to_do_with_neighbours_steps_layers_or_seeds() -> None:
    def kept(seed: int, step: int, layer: int) -> Any:
        return (lots(network.dropout_base(seed, step, layer)) >= network.LOTS // 2).astype(float)

    one = kept(1, 0, 0)
    pairs = {
        "next step": (one, kept(1, 1, 0)),
        "next layer": (one, kept(1, 0, 1)),
        "next seed": (one, kept(2, 0, 0)),
        "swapped": (kept(1, 5, 2), kept(1, 2, 5)),
        "next column": (one[:, :-1], one[:, 1:]),
        "next row": (one[:-1], one[1:]),
        "row means": (one[:-1].mean(1), one[1:].mean(1)),
    }
    for name, (a, b) in pairs.items():
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(a.size), name


def test_bases_of_many_steps_at_once_are_those_of_each() -> None:
    seeds, layers = [0, 5, 2**63 - 1], [2, 0, 1]
    found = network.dropout_bases(seeds, layers, range(3, 9)).tolist()
    pairs = [(seed, layer) for seed, layer in zip(seeds, layers)]
    assert found == [[network.dropout_base(seed, step, layer) for seed, layer in pairs] for step in range(3, 9)]
    assert all(-(2**63) <= base < 2**63 for row in found for base in row)


def test_stacked_networks_drop_what_each_would_drop_alone() -> None:
    x = torch.randn(3, 10, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rates, bases = [0.1, 0.5, 0.7], [network.dropout_base(seed, 4, 0) for seed in range(3)]
    alone = [network.dropped(x[k], *network.rarity(rates[k]), bases[k]) for k in range(3)]
    least = torch.tensor([network.rarity(rate)[0] for rate in rates]).view(3, 1, 1)
    scale = torch.tensor([network.rarity(rate)[1] for rate in rates], dtype=torch.float64).view(3, 1, 1)
    assert torch.equal(network.dropped(x, least, scale, torch.tensor(bases).view(3, 1, 1)), torch.stack(alone))


# ---------------------------------------------------------------- optimisers

PEERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda tensors, lr: torch.optim.SGD(tensors, lr, momentum=FIRST["sgd"]),
    "rmsprop": torch.optim.RMSprop,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("rate", [1e-3, 0.05])
def test_an_optimiser_moves_numbers_as_pytorch_does(kind: str, rate: float) -> None:
    rng = np.random.default_rng(2)
    start = {"a": torch.tensor(rng.normal(size=(3, 4))), "b": torch.tensor(rng.normal(size=5))}
    ours = Flat(start)
    moments = Moments(kind, ours.vector)
    theirs = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    peer = PEERS[kind](list(theirs.values()), lr=rate)
    for step in range(1, 60):
        # Slopes from huge to tiny, so that what is added to a root counts.
        slopes = {
            name: torch.tensor(rng.normal(size=tensor.shape)) * 10.0 ** -(step / 6) for name, tensor in start.items()
        }
        for name, tensor in theirs.items():
            tensor.grad = slopes[name]
        peer.step()
        moments.move(ours.vector, joined([slopes["a"], slopes["b"]]), rate, corrections(kind, step))
        for name in start:
            assert torch.allclose(ours.views[name], theirs[name], rtol=1e-12, atol=1e-12), (step, name)


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_rates_of_each_place_and_scales_as_tensors_move_as_numbers_do(kind: str) -> None:
    rng = np.random.default_rng(4)
    start, slopes = torch.tensor(rng.normal(size=6)), torch.tensor(rng.normal(size=(7, 6)))
    alone = []
    for rate in (0.01, 0.1):
        vector = start.clone()
        moments = Moments(kind, vector)
        for step, slope in enumerate(slopes, 1):
            moments.move(vector, slope, rate, corrections(kind, step))
        alone.append(vector)
    together = torch.cat([start, start])
    moments = Moments(kind, together)
    rates = torch.tensor([0.01] * 6 + [0.1] * 6, dtype=torch.float64)
    for step, slope in enumerate(slopes, 1):
        scales = tuple(torch.tensor(scale, dtype=torch.float64) for scale in corrections(kind, step))
        moments.move(together, torch.cat([slope, slope]), rates, scales)
    assert torch.allclose(together, torch.cat(alone), rtol=1e-14, atol=0)


def test_flat_tensors_are_moved_by_moving_the_vector_and_slopes_have_its_layout() -> None:
    flat = Flat({"a": torch.ones(2, 3), "b": torch.full((4,), 2.0)})
    assert flat.packed(flat.vector).tolist() == [1.0] * 6 + [2.0] * 4
    assert torch.equal(flat.laid(flat.packed(flat.vector)), flat.vector)
    assert all(view.data_ptr() % 16 == 0 for view in flat.views.values()), "a GPU's kernels load four numbers at once"
    with torch.no_grad():
        flat.vector.add_(1.0)
    assert flat.views["a"].tolist() == [[2.0] * 3] * 2
    slope = flat.slope((flat.views["a"] ** 2).sum() + 5 * flat.views["b"].sum())
    assert flat.packed(slope).tolist() == [4.0] * 6 + [5.0] * 4
