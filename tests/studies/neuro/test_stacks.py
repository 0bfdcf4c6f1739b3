"""Networks that are trained stacked: the same as one by one, whatever they are made of."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from neuro_world import apart, one_thread  # noqa: F401 (a fixture)

from fanfold.studies.neuro.data import Resident, from_arrays
from fanfold.studies.neuro.genome import ACTIVATIONS, NORMS, OPTIMISERS, Conv, Dense, NetworkGenome, Shape
from fanfold.studies.neuro.network import dropout_base, dropout_bases
from fanfold.studies.neuro.stack_steps import StackState
from fanfold.studies.neuro.stacked_training import train_fused
from fanfold.studies.neuro.stacks import Stack, family
from fanfold.studies.neuro.training import TrainedNetwork, TrainingJob, TrainingSettings, train, unpacked

GENOME = NetworkGenome((Conv(3, 3, "relu"), Conv(2, 3, "tanh")), (Dense(5, "relu"),), "batch", 0.3, "adam", 0.01)
TRAINING = TrainingSettings(batch=8, dtype="float64", max_batches=3)


@pytest.fixture(scope="module")
def resident() -> Resident:
    """Small images with something to learn in them: a bright row says which class it is."""
    rng = np.random.default_rng(1)
    labels = np.arange(60) % 3
    pixels = rng.integers(0, 120, (60, 2, 6, 5))
    pixels[np.arange(60), :, labels] += 100
    return Resident(from_arrays(pixels.astype(np.uint8), labels, validation=20, test=0), "cpu", "float64", 4)


def same(alone: list[TrainedNetwork], beside: list[TrainedNetwork]) -> None:
    """The same training, to ten digits."""
    assert len(alone) == len(beside)
    for one, other in zip(alone, beside):
        assert apart(one, other) <= 1e-10
        plain = [(each.epochs, each.steps, each.stopped, each.broken, each.accuracy) for each in (one, other)]
        assert plain[0] == plain[1]
        assert np.allclose(one.curve, other.curve, rtol=1e-10)
        assert list(one.weights) == list(other.weights)
        assert {array.dtype for array in other.weights.values()} == {np.dtype(np.float32)}


def stacked(genome: NetworkGenome, count: int = 3, epochs: int = 2) -> list[TrainingJob]:
    """Jobs of one family: rates of learning and of dropout differ, and seeds."""
    return [
        TrainingJob(
            replace(genome, learning_rate=genome.learning_rate * (1 + n), dropout=genome.dropout and 0.2 + 0.1 * n),
            n,
            epochs,
        )
        for n in range(count)
    ]


KINDS = list(itertools.product(OPTIMISERS, NORMS, (0.0, 0.3)))


@pytest.mark.slow
@pytest.mark.parametrize(("optimiser", "norm", "dropout"), KINDS)
def test_stacked_networks_become_what_they_become_alone(
    resident: Resident, optimiser: str, norm: str, dropout: float
) -> None:
    genome = replace(GENOME, optimiser=optimiser, norm=norm, dropout=dropout)
    jobs = stacked(genome)
    same([train(job, resident, TRAINING) for job in jobs], train_fused(jobs, resident, TRAINING))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_the_same_in_a_stack(resident: Resident, activation: str) -> None:
    genome = replace(
        GENOME, conv=(Conv(3, 5, activation),), dense=(Dense(4, activation), Dense(3, activation)), optimiser="sgd"
    )
    jobs = stacked(genome)
    same([train(job, resident, TRAINING) for job in jobs], train_fused(jobs, resident, TRAINING))


@pytest.mark.parametrize("changes", [{"conv": ()}, {"dense": ()}, {"conv": (), "dense": ()}])
def test_networks_without_a_kind_of_layer_can_be_stacked(resident: Resident, changes: dict[str, Any]) -> None:
    jobs = stacked(replace(GENOME, **changes))
    same([train(job, resident, TRAINING) for job in jobs], train_fused(jobs, resident, TRAINING))


def test_one_network_is_a_stack_too(resident: Resident) -> None:
    jobs = stacked(GENOME, 1)
    same([train(job, resident, TRAINING) for job in jobs], train_fused(jobs, resident, TRAINING))


def test_several_families_are_trained_in_turn_and_given_back_in_order(resident: Resident) -> None:
    jobs = [job for pair in zip(stacked(GENOME, 2), stacked(replace(GENOME, optimiser="sgd"), 2)) for job in pair]
    same([train(job, resident, TRAINING) for job in jobs], train_fused(jobs, resident, TRAINING))
    assert train_fused([], resident, TRAINING) == []


def test_neighbours_do_not_feel_a_network_that_breaks(resident: Resident) -> None:
    jobs = stacked(replace(GENOME, optimiser="sgd"), 3, epochs=3)
    jobs[1] = replace(jobs[1], genome=replace(jobs[1].genome, learning_rate=1e200))
    alone, beside = [train(job, resident, TRAINING) for job in jobs], train_fused(jobs, resident, TRAINING)
    assert [found.broken for found in beside] == [False, True, False]
    assert beside[1].epochs == alone[1].epochs == 1
    same([alone[0], alone[2]], [beside[0], beside[2]])


def test_a_broken_state_is_given_back_and_not_trained(resident: Resident) -> None:
    hopeless = replace(GENOME, optimiser="sgd", learning_rate=1e200)
    broken = train(TrainingJob(hopeless, 1, 1), resident, TRAINING)
    jobs = [TrainingJob(hopeless, 1, 5, broken.state), TrainingJob(replace(hopeless, learning_rate=0.1), 2, 2)]
    beside = train_fused(jobs, resident, TRAINING)
    assert beside[0].broken and beside[0].steps == broken.steps and beside[0].state == broken.state
    same([train(jobs[1], resident, TRAINING)], [beside[1]])


@pytest.mark.slow
def test_a_stack_with_patience_keeps_each_network_as_it_was_when_it_stopped(resident: Resident) -> None:
    training = replace(TRAINING, patience=1, gain=0.05)
    jobs = stacked(GENOME, 5, epochs=6)
    alone = [train(job, resident, training) for job in jobs]
    assert len({found.epochs for found in alone}) > 1, "this needs networks that stop at different times"
    same(alone, train_fused(jobs, resident, training))


def test_families_differ_by_all_but_rates() -> None:
    shape = Shape(2, 6, 5, 3)
    same_family = [replace(GENOME, learning_rate=0.5), replace(GENOME, dropout=0.1)]
    assert {family(genome, shape) for genome in same_family} == {family(GENOME, shape)}
    others = [
        replace(GENOME, conv=GENOME.conv[:1]),
        replace(GENOME, conv=(Conv(3, 5, "relu"), GENOME.conv[1])),
        replace(GENOME, conv=(Conv(3, 3, "selu"), GENOME.conv[1])),
        replace(GENOME, conv=(Conv(4, 3, "relu"), GENOME.conv[1])),
        replace(GENOME, dense=(Dense(6, "relu"),)),
        replace(GENOME, dense=(Dense(5, "selu"),)),
        replace(GENOME, norm="none"),
        replace(GENOME, optimiser="adamw"),
        replace(GENOME, dropout=0.0),
    ]
    keys = {family(genome, shape) for genome in [GENOME, *others]} | {family(GENOME, replace(shape, classes=4))}
    assert len(keys) == 11


def test_networks_come_out_as_they_went_in(resident: Resident) -> None:
    jobs = stacked(GENOME, 3)
    begun = [replace(job, state=train(replace(job, epochs=1), resident, TRAINING).state) for job in jobs]
    starts = [unpacked(job, resident.shape, "float64") for job in begun]
    where = {"device": torch.device("cpu"), "dtype": torch.float64}
    state = StackState(Stack(GENOME, resident.shape, 3), where)
    state.put(begun, starts)
    copies = state.copies()
    for k, start in enumerate(starts):
        end = state.taken(copies, k, 3)
        assert list(start.arrays) == list(end.arrays)
        for name, array in start.arrays.items():
            assert np.array_equal(array, end.arrays[name])
        assert start.first is not None and end.first is not None and np.array_equal(start.first, end.first)
        assert start.second is not None and end.second is not None and np.array_equal(start.second, end.second)


@settings(max_examples=50, deadline=None)
@given(
    seeds=st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=3),
    layer=st.integers(0, 5),
    first=st.integers(0, 10**9),
)
def test_tables_of_dropout_hold_what_one_network_uses(seeds: list[int], layer: int, first: int) -> None:
    table = dropout_bases(seeds, [layer] * len(seeds), range(first, first + 3))
    expected = [[dropout_base(seed, step, layer) for seed in seeds] for step in range(first, first + 3)]
    assert table.tolist() == expected
