"""Training: in rungs as straight through, the same wherever it runs, and what PyTorch's own parts would come to."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from torch import nn

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.executors import make
from fanfold.studies.neuro import network
from fanfold.studies.neuro.data import Data, Images, Resident, from_arrays, order, resident
from fanfold.studies.neuro.genome import OPTIMISERS, SCHEDULES, Conv, Dense, NetworkGenome, Shape
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.training import (
    Session,
    TrainedNetwork,
    TrainingJob,
    TrainingProgress,
    TrainingSettings,
    bases_of,
    correct,
    evaluate,
    packed,
    pinned_threads,
    predict,
    right,
    scored,
    settled,
    step_size,
    train,
    unpacked,
)
from fanfold.tensors import pack, unpack

SMALL = NetworkGenome((Conv(4, 3, "relu"), Conv(6, 3, "tanh")), (Dense(16, "relu"),), "batch", 0.3, "adam", 0.01)
FAST = TrainingSettings(batch=16)


def stripes(count: int = 90, seed: int = 0, augment: str = "none") -> Data:
    """Images of noise with a bright stripe: lying, standing or slanting."""
    rng = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = rng.integers(0, 120, (count, 8, 8))
    for image, kind, place in zip(x, y, rng.integers(1, 7, count)):
        if kind == 0:
            image[place] += 130
        elif kind == 1:
            image[:, place] += 130
        else:
            image[np.arange(8), (np.arange(8) + place) % 8] += 130
    return from_arrays(x, y, validation=21, test=9, seed=seed, augment=augment)


DATA = stripes()
IMAGES = Resident(DATA, seed=5)


def same(one: TrainedNetwork, other: TrainedNetwork) -> bool:
    """Equal bit for bit, in everything."""
    fields = {field.name for field in dataclasses.fields(TrainedNetwork)} - {"weights", "end"} | {"state"}
    alike = all(repr(getattr(one, name)) == repr(getattr(other, name)) for name in fields)
    pairs = [(array, other.weights[name]) for name, array in one.weights.items()]
    return alike and all(a.tobytes() == b.tobytes() for a, b in pairs) and one.weights.keys() == other.weights.keys()


# ---------------------------------------------------------------- rungs


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_training_in_rungs_is_training_straight_through(optimiser: str, dtype: Any) -> None:
    data = resident(stripes(augment="shift+flip"), dtype=dtype, seed=5)
    training = TrainingSettings(batch=16, dtype=dtype)
    genome = dataclasses.replace(SMALL, optimiser=optimiser, learning_rate=0.005)
    straight = train(TrainingJob(genome, 9, 4), data, training)
    state = None
    for epochs in (1, 2, 2, 4):
        rung = train(TrainingJob(genome, 9, epochs, state), data, training)
        state = rung.state
        assert rung.epochs == epochs and rung.curve == straight.curve[:epochs]
    assert same(rung, straight)
    assert straight.steps == 4 * (60 // 16)


@pytest.mark.slow
def test_what_is_handed_over_matters() -> None:
    """Otherwise the test above could not fail: without moments, steps or statistics another network comes out."""
    first, straight = train(TrainingJob(SMALL, 9, 1), IMAGES, FAST), train(TrainingJob(SMALL, 9, 2), IMAGES, FAST)
    held = unpack(first.state)
    for name in ("first", "second", "steps", "norm.0.var", "out.bias"):
        spoilt = pack({**held, name: held[name] * 0})
        assert not same(train(TrainingJob(SMALL, 9, 2, spoilt), IMAGES, FAST), straight), name
    assert not same(train(TrainingJob(SMALL, 9, 2, inherited=pack(first.weights)), IMAGES, FAST), straight)


def test_a_state_says_all_that_a_progress_does() -> None:
    session = Session(TrainingJob(SMALL, 1, 2), IMAGES, FAST)
    session.epoch()
    before = session.progress()
    after = unpacked(TrainingJob(SMALL, 1, 2, packed(before)), IMAGES.shape, "float32")
    assert (after.steps, after.curve) == (before.steps, before.curve) == (3, session.curve)
    assert list(after.arrays) == list(before.arrays)
    for name in before.arrays:
        assert np.array_equal(after.arrays[name], before.arrays[name])
    assert before.first is not None and np.array_equal(after.first, before.first)
    assert before.second is not None and np.array_equal(after.second, before.second)


# ---------------------------------------------------------------- the same wherever it runs

SPACE = NetworkSpace(filters=(3, 8), nodes=(8, 20))


def _genomes(count: int) -> list[NetworkGenome]:
    rng = random.Random(4)
    return [random_genome(SPACE, rng) for _ in range(count)]


def _alone(number: int) -> TrainedNetwork:
    with pinned_threads():
        data = resident(stripes(augment="shift"), seed=5)
        return train(TrainingJob(_genomes(number + 1)[number], 100 + number, 2), data, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["threads:3", "processes:2"])
def test_networks_come_to_the_same_bit_for_bit_wherever_they_are_trained(place: str) -> None:
    expected = [_alone(number) for number in range(6)]

    async def everywhere() -> list[TrainedNetwork]:
        async with make(place) as executor:
            return list(await asyncio.gather(*(executor.run(_alone, number) for number in range(6))))

    found = asyncio.run(everywhere())
    assert [same(one, other) for one, other in zip(found, expected)] == [True] * 6
    assert len({one.state for one in expected}) == 6


@pytest.mark.slow
def test_no_global_generator_is_used_or_changed() -> None:
    expected = train(TrainingJob(SMALL, 3, 2), IMAGES, FAST)
    torch.manual_seed(1234)
    np.random.seed(1234)
    random.seed(1234)
    before = (torch.get_rng_state(), repr(np.random.get_state()), random.getstate(), torch.get_num_threads())
    assert same(train(TrainingJob(SMALL, 3, 2), IMAGES, FAST), expected)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (repr(np.random.get_state()), random.getstate(), torch.get_num_threads()) == before[1:]


@pytest.mark.slow
def test_a_network_depends_on_its_own_seed_and_on_that_of_the_data() -> None:
    found = {
        train(TrainingJob(SMALL, seed, 1), Resident(DATA, seed=luck), FAST).state for seed in (1, 2) for luck in (1, 2)
    }
    assert len(found) == 4
    still = dataclasses.replace(SMALL, dropout=0.0)
    given_weights = pack(network.initial(still, DATA.shape, 0))
    one, other = (train(TrainingJob(still, seed, 1, inherited=given_weights), IMAGES, FAST) for seed in (1, 2))
    assert same(one, other)  # the seed of a job is its first weights and its dropout, and nothing else


def test_threads_are_pinned_where_they_have_computed_before_and_given_back_at_the_end() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2

            def pinned() -> int:
                with pinned_threads():
                    return torch.get_num_threads()

            with pinned_threads():
                assert torch.get_num_threads() == 1
                assert pool.submit(pinned).result() == 1
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
            with pytest.raises(ZeroDivisionError), pinned_threads():
                _ = 1 / 0
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# ---------------------------------------------------------------- what PyTorch's own parts would come to

PEERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda tensors, lr: torch.optim.SGD(tensors, lr, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
}


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_an_epoch_is_what_a_plain_training_loop_does(optimiser: str) -> None:
    genome = NetworkGenome((Conv(4, 3, "relu"),), (Dense(16, "tanh"),), "batch", 0.0, optimiser, 0.003)
    found = train(
        TrainingJob(genome, 7, 1), resident(DATA, dtype="float64", seed=5), TrainingSettings(batch=16, dtype="float64")
    )
    start = network.initial(genome, DATA.shape, derive_seed(7, "weights"))
    plain = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.Tanh(),
        nn.Linear(16, 3),
    ).double()
    names = {"conv.0": 0, "norm.0": 1, "dense.0": 5, "out": 7}
    ours = {f"{at}.{part}": f"{name}.{part}" for name, at in names.items() for part in ("weight", "bias")}
    plain.load_state_dict({theirs: torch.tensor(start[n]) for theirs, n in ours.items() if n in start}, strict=False)
    mean, std = DATA.mean[0], DATA.scale[0]
    peer, losses = PEERS[optimiser](plain.parameters(), lr=genome.learning_rate), []
    for batch in np.split(order(5, 0, 60)[:48], 3):
        images = (torch.tensor(DATA.train.pixels[batch]).double() - mean) / std
        loss = nn.functional.cross_entropy(plain(images), torch.tensor(DATA.train.labels[batch]))
        peer.zero_grad()
        loss.backward()
        peer.step()
        losses.append(loss.item())
    held, theirs = unpack(found.state), plain.state_dict()
    for their, name in ours.items():
        if name in held:
            assert np.allclose(held[name], theirs[their].numpy(), rtol=0, atol=1e-11), name
    assert np.allclose(held["norm.0.var"], theirs["1.running_var"].numpy(), rtol=0, atol=1e-12)
    assert found.loss == pytest.approx(np.mean(losses), abs=1e-12)
    seen = (torch.tensor(DATA.validation.pixels).double() - mean) / std
    plain.eval()
    right_ones = (plain(seen).argmax(1).numpy() == DATA.validation.labels).mean()
    assert found.accuracy == pytest.approx(right_ones)


@pytest.mark.slow
def test_networks_learn_and_their_accuracy_is_that_of_their_weights() -> None:
    found = train(TrainingJob(SMALL, 1, 20), IMAGES, FAST)
    assert found.accuracy >= 0.8 and found.curve[-1][1] < found.curve[0][1] / 2
    assert found.accuracy == found.curve[-1][0] == evaluate(SMALL, found.weights, DATA.validation, IMAGES)
    assert evaluate(SMALL, found.weights, DATA.test, IMAGES) >= 0.6
    chances = predict(SMALL, found.weights, IMAGES.prepared(DATA.test.pixels))
    assert chances.shape == (9, 3) and np.allclose(chances.sum(1), 1, atol=1e-6)
    assert (chances.argmax(1) == DATA.test.labels).tolist() == correct(SMALL, found.weights, DATA.test, IMAGES)
    assert all(array.dtype == np.float32 for array in found.weights.values())


@pytest.mark.slow
def test_children_start_from_what_they_inherit() -> None:
    parent = train(TrainingJob(SMALL, 1, 20), IMAGES, FAST)
    session = Session(TrainingJob(SMALL, 2, 1, inherited=pack(parent.weights)), IMAGES, FAST)
    assert session.accuracy() == parent.accuracy
    assert (session.steps, session.curve) == (0, ())
    untrained = train(TrainingJob(SMALL, 2, 0, inherited=pack(parent.weights)), IMAGES, FAST)
    assert untrained.epochs == 0 and all(np.array_equal(untrained.weights[n], a) for n, a in parent.weights.items())


# ---------------------------------------------------------------- batches


def test_an_incomplete_batch_is_left_out_unless_it_is_the_only_one() -> None:
    assert [TrainingSettings(batch=16).steps(n) for n in (2, 15, 16, 31, 32, 60)] == [1, 1, 1, 1, 2, 3]
    assert [TrainingSettings(batch=16, max_batches=2).steps(n) for n in (15, 60)] == [1, 2]
    assert train(TrainingJob(SMALL, 1, 1), IMAGES, TrainingSettings(batch=1000)).steps == 1
    assert train(TrainingJob(SMALL, 1, 2), IMAGES, TrainingSettings(batch=16, max_batches=2)).steps == 4


def test_batches_are_the_order_of_the_epoch_cut_up() -> None:
    seen: list[Any] = []

    class Watched(Resident):
        def batch(self, index: Any, base: Any, augment: str = "data") -> Any:
            seen.append((index.tolist(), base))
            return super().batch(index, base, augment)

    train(TrainingJob(SMALL, 1, 2), Watched(DATA, seed=5), FAST)
    expected = [order(5, epoch, 60)[start : start + 16].tolist() for epoch in (0, 1) for start in (0, 16, 32)]
    assert [index for index, _ in seen] == expected
    assert len({base for _, base in seen}) == 2


def test_each_layer_drops_something_else_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = network.forward

    def watched(genome: Any, net: Any, images: Any, bases: Any = None) -> Any:
        seen.append(bases)
        return real(genome, net, images, bases)

    monkeypatch.setattr(network, "forward", watched)
    job = TrainingJob(dataclasses.replace(SMALL, dense=SMALL.dense * 2), 1, 2)
    train(job, IMAGES, FAST)
    learnt = [bases for bases in seen if bases is not None]
    assert learnt == [bases_of(job, step) for step in range(6)]
    assert len({base for bases in learnt for base in bases}) == 12
    assert not {*bases_of(dataclasses.replace(job, seed=2), 0)} & {*bases_of(job, 0)}
    assert len(seen) == 8  # the validation part, after each epoch


# ---------------------------------------------------------------- stopping and breaking

accuracies = st.lists(st.integers(0, 10).map(lambda n: n / 10), max_size=12)


def _curve(values: list[float]) -> tuple[tuple[float, float], ...]:
    return tuple((value, 1.0) for value in values)


def test_patience_counts_epochs_since_the_last_gain() -> None:
    patient = TrainingSettings(patience=2)
    assert not settled(_curve([0.5, 0.4]), patient)
    assert settled(_curve([0.5, 0.4, 0.5]), patient)
    assert not settled(_curve([0.5, 0.4, 0.6, 0.5]), patient)
    demanding = TrainingSettings(patience=2, gain=0.2)
    assert settled(_curve([0.5, 0.6, 0.65]), demanding)
    assert not settled(_curve([0.5, 0.6, 0.75]), demanding)
    assert not settled(_curve([0.0, 0.0]), patient) and settled(_curve([0.0] * 3), patient)
    assert not settled(_curve([0.1] * 50), TrainingSettings())


@pytest.mark.slow
@given(accuracies, st.integers(1, 4), st.sampled_from([0.0, 0.15, 0.3]))
def test_whoever_has_run_out_of_patience_gains_nothing_in_the_last_epochs(
    values: list[float], patience: int, gain: float
) -> None:
    out = settled(_curve(values), TrainingSettings(patience=patience, gain=gain))
    if out:
        assert len(values) > patience
        assert max(values[-patience:]) <= max(values[:-patience]) + gain
    if gain == 0.0 and len(values) > patience:
        assert out == (max(values[-patience:]) <= max(values[:-patience]))


@pytest.mark.slow
def test_a_training_that_stops_stays_stopped_and_in_rungs_stops_where_it_would() -> None:
    training = TrainingSettings(batch=16, patience=1, gain=0.3)
    straight = train(TrainingJob(SMALL, 2, 30), IMAGES, training)
    assert straight.stopped and straight.epochs < 30
    state = None
    for epochs in range(1, 31):
        rung = train(TrainingJob(SMALL, 2, epochs, state), IMAGES, training)
        state = rung.state
    assert same(rung, straight)


@pytest.mark.parametrize("genome", [SMALL, dataclasses.replace(SMALL, norm="none", optimiser="sgd")])
def test_a_network_that_breaks_ends_early_without_an_exception(genome: NetworkGenome) -> None:
    wild = dataclasses.replace(genome, learning_rate=1e38)
    found = train(TrainingJob(wild, 1, 6), IMAGES, FAST)
    assert found.broken and not found.stopped and found.epochs < 6
    assert 0.0 <= found.accuracy <= 1.0
    again = train(TrainingJob(wild, 1, 6, found.state), IMAGES, FAST)
    assert same(again, found)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_network_that_breaks_in_its_last_step_is_broken(optimiser: str) -> None:
    wild = dataclasses.replace(SMALL, optimiser=optimiser, learning_rate=1e39)
    found = train(TrainingJob(wild, 1, 3), IMAGES, TrainingSettings(batch=60))
    assert math.isfinite(found.loss)
    assert (found.broken, found.epochs, found.steps, found.accuracy) == (True, 1, 1, 0.0)


def test_scores_that_are_no_numbers_are_wrong() -> None:
    scores = torch.tensor([[1.0, 0.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 1.0]])
    assert right(scores, torch.tensor([0, 0, 0, 0])).tolist() == [True, False, False, False]
    assert right(torch.stack([scores, -scores]), torch.tensor([0, 0, 0, 1])).sum(-1).tolist() == [2, 0]


# ---------------------------------------------------------------- what is refused


def test_states_and_weights_of_other_networks_are_refused() -> None:
    found = train(TrainingJob(SMALL, 1, 1), IMAGES, FAST)
    wider = dataclasses.replace(SMALL, dense=(Dense(17, "relu"),))
    deeper = dataclasses.replace(SMALL, dense=SMALL.dense * 2)
    for genome, name in ((wider, "dense.0"), (deeper, "dense.1"), (dataclasses.replace(SMALL, norm="none"), "conv.0")):
        with pytest.raises(ConfigError, match=name):
            train(TrainingJob(genome, 1, 2, found.state), IMAGES, FAST)
        with pytest.raises(ConfigError, match=name):
            train(TrainingJob(genome, 1, 2, inherited=pack(found.weights)), IMAGES, FAST)
    with pytest.raises(ConfigError, match="second"):
        train(TrainingJob(dataclasses.replace(SMALL, optimiser="sgd"), 1, 2, found.state), IMAGES, FAST)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200) | st.integers(0, 3000).map(lambda n: STATE[:n]) | st.sampled_from(["curve", "steps"]))
def test_bytes_that_are_no_state_are_refused(data: bytes | str) -> None:
    if isinstance(data, str):
        held = unpack(STATE)
        data = pack({name: array for name, array in held.items() if name != data})
    with pytest.raises(ConfigError):
        unpacked(TrainingJob(SMALL, 1, 2, data), IMAGES.shape, "float32")


STATE = train(TrainingJob(SMALL, 1, 1), IMAGES, FAST).state


@pytest.mark.parametrize(
    "wrong", [{"batch": 1}, {"patience": 0}, {"max_batches": 0}, {"gain": -0.1}, {"gain": 1.0}, {"gain": math.nan}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TrainingSettings(**wrong)


def test_data_in_other_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="float64"):
        train(TrainingJob(SMALL, 1, 1), IMAGES, TrainingSettings(dtype="float64"))


def test_no_images_are_no_accuracy() -> None:
    found = train(TrainingJob(SMALL, 1, 1), IMAGES, FAST)
    nothing = DATA.test.take(np.zeros(0, np.int64))
    assert correct(SMALL, found.weights, nothing, IMAGES) == []
    with pytest.raises(ConfigError, match="test part"):
        evaluate(SMALL, found.weights, nothing, IMAGES)


def test_scoring_in_pieces_is_scoring_each_image() -> None:
    net = {name: torch.tensor(array) for name, array in network.initial(SMALL, DATA.shape, 1).items()}
    images = IMAGES.prepared(np.concatenate([DATA.train.pixels] * 10))
    whole = scored([(SMALL, net)], images)
    assert len(whole) == 600
    assert torch.allclose(whole[:60], whole[540:], atol=1e-6)
    assert not whole.requires_grad


def test_a_progress_without_an_epoch_can_be_handed_over() -> None:
    fresh = unpacked(TrainingJob(SMALL, 1, 1), DATA.shape, "float32")
    assert not fresh.broken
    assert not isinstance(fresh.first, np.ndarray)
    nothing_done = train(TrainingJob(SMALL, 1, 0), IMAGES, FAST)
    assert same(
        train(TrainingJob(SMALL, 1, 1, nothing_done.state), IMAGES, FAST), train(TrainingJob(SMALL, 1, 1), IMAGES, FAST)
    )
    worn = TrainingProgress({**fresh.arrays, "out.bias": np.full(3, np.nan)}, None, None, 0, ())
    assert worn.broken


# ---------------------------------------------------------------- newer genes


def test_a_schedule_falls_to_nothing_within_a_rung_and_one_cycle_rises_first() -> None:
    def sizes(schedule: str) -> list[float]:
        genome = dataclasses.replace(SMALL, schedule=schedule, learning_rate=1.0)
        return [step_size(genome, step, 100) for step in range(100)]

    constant, cosine, cycle = map(sizes, SCHEDULES)
    assert constant == [1.0] * 100
    assert cosine == sorted(cosine, reverse=True) and cosine[0] > 0.99 and cosine[-1] < 0.001
    assert cosine[50] == pytest.approx(0.5, abs=0.02)
    assert cycle[:25] == sorted(cycle[:25]) and cycle[0] < 0.12 and max(cycle) > 0.99 and cycle[-1] < 0.001


def test_every_rung_has_a_schedule_of_its_own_and_continues_from_the_state_before() -> None:
    genome = dataclasses.replace(SMALL, schedule="cosine")
    short = train(TrainingJob(genome, 1, 1), IMAGES, FAST)
    further = train(TrainingJob(genome, 1, 3, state=short.state), IMAGES, FAST)
    assert further.curve[:1] == short.curve and len(further.curve) == 3
    again = train(TrainingJob(genome, 1, 3, state=short.state), IMAGES, FAST)
    assert same(further, again) and not same(further, train(TrainingJob(genome, 1, 3), IMAGES, FAST))


@pytest.mark.parametrize(
    "change",
    [{"decay": 1.0}, {"smoothing": 0.3}, {"schedule": "one-cycle"}]
    + [{"augment": augment} for augment in ("shift", "flip", "warp")],
)
def test_a_newer_way_of_training_changes_what_is_learnt(change: dict[str, Any]) -> None:
    plain = train(TrainingJob(SMALL, 1, 1), IMAGES, FAST)
    assert not same(plain, train(TrainingJob(dataclasses.replace(SMALL, **change), 1, 1), IMAGES, FAST))


def test_decay_shrinks_numbers_that_nothing_else_moves() -> None:
    still = dataclasses.replace(SMALL, optimiser="sgd", learning_rate=1e-12, decay=1e11, dropout=0.0)
    session = Session(TrainingJob(still, 1, 1), IMAGES, FAST)
    before = session.flat.vector.clone()
    session.epoch()
    assert torch.allclose(session.flat.vector, before * 0.9**session.steps, rtol=1e-4, atol=1e-7)


def test_a_networks_own_augmentation_takes_the_place_of_that_of_the_data() -> None:
    of_data = train(TrainingJob(SMALL, 1, 2), Resident(stripes(augment="flip"), seed=5), FAST)
    own = train(TrainingJob(dataclasses.replace(SMALL, augment="flip"), 1, 2), Resident(stripes(), seed=5), FAST)
    none = train(
        TrainingJob(dataclasses.replace(SMALL, augment="none"), 1, 2),
        Resident(stripes(augment="flip"), seed=5),
        FAST,
    )
    assert same(of_data, own) and same(none, train(TrainingJob(SMALL, 1, 2), Resident(stripes(), seed=5), FAST))


def test_a_network_shifts_images_by_a_part_of_their_size() -> None:
    images = Resident(from_arrays(np.eye(28)[None].repeat(20, 0), np.arange(20) % 2), seed=5)
    small, index = Resident(stripes(), seed=5), torch.arange(10)
    for held, most in ((images, 2), (small, 1)):
        pixels = held.batch(index, 3, "none")[0]
        moved = held.batch(index, 3, "shift")[0]
        wide = torch.nn.functional.pad(pixels, (most,) * 4, mode="replicate")
        side = pixels.shape[-1]
        spots = [(y, x) for y in range(2 * most + 1) for x in range(2 * most + 1)]
        for image, padded in zip(moved, wide):
            assert any(torch.equal(image, padded[:, y : y + side, x : x + side]) for y, x in spots)
        assert not torch.equal(pixels, moved)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["numbers", "labels"])
def test_networks_learn_numbers_and_labels_of_a_table(target: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 5)).astype(np.float32)
    truth = np.stack([rows[:, 0] * 2 - rows[:, 1], np.abs(rows[:, 2])], 1).astype(np.float32)
    wanted = truth / truth.std(0) if target == "numbers" else (truth > 0.5).astype(np.float32)
    images = rows[:, :, None, None]
    parts = [Images(images[part], wanted[part]) for part in (slice(240), slice(240, 300), slice(0))]
    data = Data("rows", *parts, Shape(5, 1, 1, 2, "table", target), (0.0,) * 5, (1.0,) * 5, ("a", "b"))
    genome = NetworkGenome((), (Dense(32, "relu"),), "none", 0.0, "adam", 0.01, attention=4, schedule="cosine")
    assert train(TrainingJob(genome, 1, 20), Resident(data), FAST).accuracy > 0.85
