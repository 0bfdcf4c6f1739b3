"""Any mix of networks trained at once: each becomes what it becomes alone, however they are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from neuro_world import apart, one_thread  # noqa: F401 (a fixture)

from fanfold.errors import ConfigError
from fanfold.studies.neuro import cuda_graph, stacked_training, stacks
from fanfold.studies.neuro.cuda_graph import Captured
from fanfold.studies.neuro.data import Resident, from_arrays
from fanfold.studies.neuro.genome import AUGMENTED, BLOCKS, DENSE_BLOCKS, HEADS, SCHEDULES
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.stack_steps import StackSteps, StepOptions
from fanfold.studies.neuro.stacked_training import train_graphs
from fanfold.studies.neuro.training import TrainedNetwork, TrainingJob, TrainingSettings, train
from fanfold.tensors import pack

SPACE = NetworkSpace(conv_layers=(0, 2), filters=(2, 4), kernels=(1, 3), dense_layers=(0, 2), nodes=(3, 6))
TRAINING = TrainingSettings(batch=8, dtype="float64", max_batches=3)


@pytest.fixture(scope="module")
def resident() -> Resident:
    rng = np.random.default_rng(1)
    labels = np.arange(60) % 3
    pixels = rng.integers(0, 120, (60, 1, 6, 6))
    pixels[np.arange(60), :, labels] += 100
    data = from_arrays(pixels.astype(np.uint8), labels, validation=20, test=0, augment="shift+flip")
    return Resident(data, "cpu", "float64", 4)


#: Everything that networks have been given since.  Not batch normalisation of dense layers: the slope of the bias
#: before it is nothing but rounding, which some optimisers make much of.
WIDE = replace(
    SPACE,
    blocks=BLOCKS,
    dense_blocks=DENSE_BLOCKS,
    heads=HEADS,
    dense_norms=("none", "layer"),
    schedules=SCHEDULES,
    decays=(0.0, 0.5, 60.0),
    smoothings=(0.0, 0.1),
    augments=AUGMENTED,
)


def mixed(count: int, epochs: int = 2, seed: int = 3, space: NetworkSpace = SPACE) -> list[TrainingJob]:
    """Networks of any kind; every third is of the family of the one before."""
    rng, found = Random(seed), []
    for n in range(count):
        genome = replace(found[-1].genome, learning_rate=0.02) if n % 3 == 2 else random_genome(space, rng)
        found.append(TrainingJob(genome, n, epochs))
    return found


def same(alone: Sequence[TrainedNetwork], beside: Sequence[TrainedNetwork]) -> None:
    assert len(alone) == len(beside)
    for one, other in zip(alone, beside):
        assert apart(one, other) <= 1e-10
        assert (one.epochs, one.steps, one.stopped, one.broken) == (
            other.epochs,
            other.steps,
            other.stopped,
            other.broken,
        )
        assert one.accuracy == pytest.approx(other.accuracy, rel=1e-9)


@pytest.mark.slow
def test_networks_of_any_kind_become_what_they_become_alone(resident: Resident) -> None:
    jobs = mixed(9)
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))


@pytest.mark.slow
def test_newer_blocks_and_ways_of_training_are_the_same_in_a_stack(resident: Resident) -> None:
    jobs = mixed(45, space=WIDE)
    assert set(BLOCKS) == {name for job in jobs for name in job.genome.block_names}
    assert set(AUGMENTED) == {job.genome.augment for job in jobs}
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))


@pytest.mark.parametrize("target", ["numbers", "labels"])
def test_weighted_rows_and_other_targets_are_the_same_in_a_stack(target: Any) -> None:
    rng = np.random.default_rng(2)
    wanted = rng.normal(size=(60, 2)) if target == "numbers" else rng.integers(0, 2, (60, 2))
    data = from_arrays(rng.normal(size=(60, 5)), wanted, validation=20, test=0, target=target, weights=rng.random(60))
    table = Resident(data, "cpu", "float64", 4)
    jobs = mixed(6, space=replace(SPACE, conv_layers=(0, 0)))
    assert table.weights is not None
    same([train(job, table, TRAINING) for job in jobs], train_graphs(jobs, table, TRAINING))


def test_attention_is_trained_beside_others_of_its_family() -> None:
    rng = np.random.default_rng(2)
    data = from_arrays(rng.normal(size=(60, 5)), np.arange(60) % 3, validation=20, test=0)
    table = Resident(data, "cpu", "float64", 4)
    jobs = mixed(3, space=replace(SPACE, conv_layers=(0, 0), dense_layers=(1, 2), attentions=(4,)))
    assert all(job.genome.attention for job in jobs)
    same([train(job, table, TRAINING) for job in jobs], train_graphs(jobs, table, TRAINING))


def test_rungs_are_the_same_as_going_straight_through(resident: Resident) -> None:
    jobs = mixed(5, epochs=3)
    straight = train_graphs(jobs, resident, TRAINING)
    first = train_graphs([replace(job, epochs=1) for job in jobs], resident, TRAINING)
    again = [replace(job, state=found.state) for job, found in zip(jobs, first)]
    rungs = train_graphs(again, resident, TRAINING)
    assert [found.state for found in rungs] == [found.state for found in straight]


def test_one_engine_goes_on_where_another_stopped(resident: Resident) -> None:
    jobs = mixed(4, epochs=2)
    alone = [train(job, resident, TRAINING) for job in jobs]
    begun = [replace(job, state=train(replace(job, epochs=1), resident, TRAINING).state) for job in jobs]
    same(alone, train_graphs(begun, resident, TRAINING))
    begun_beside = train_graphs([replace(job, epochs=1) for job in jobs], resident, TRAINING)
    on = [replace(job, state=found.state) for job, found in zip(jobs, begun_beside)]
    same(alone, [train(job, resident, TRAINING) for job in on])


def test_the_order_of_jobs_does_not_matter(resident: Resident) -> None:
    jobs = mixed(6)
    forth, back = train_graphs(jobs, resident, TRAINING), train_graphs(jobs[::-1], resident, TRAINING)
    same(forth, back[::-1])


def test_jobs_may_stand_at_different_epochs_and_end_at_different_ones(resident: Resident) -> None:
    jobs = [replace(job, epochs=1 + n % 4) for n, job in enumerate(mixed(6))]
    for n in (3, 5):
        jobs[n] = replace(jobs[n], state=train(replace(jobs[n], epochs=1), resident, TRAINING).state, epochs=3)
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))


def test_a_job_that_is_done_comes_back_as_it_was(resident: Resident) -> None:
    job = mixed(1)[0]
    done = train(job, resident, TRAINING)
    (found,) = train_graphs([replace(job, state=done.state)], resident, TRAINING)
    assert (found.state, found.accuracy) == (done.state, done.accuracy)
    assert train_graphs([], resident, TRAINING) == []


def test_what_is_made_of_each_network_comes_in_the_order_of_the_jobs(resident: Resident) -> None:
    jobs = [replace(job, epochs=n % 3) for n, job in enumerate(mixed(7))]
    made = train_graphs(jobs, resident, TRAINING, ended=lambda job, network: (job.seed, network.state))
    assert made == [(job.seed, found.state) for job, found in zip(jobs, train_graphs(jobs, resident, TRAINING))]


def test_inherited_weights_are_started_from(resident: Resident) -> None:
    job = mixed(1)[0]
    parent = train(job, resident, TRAINING)
    child = TrainingJob(job.genome, 99, 1, inherited=pack(parent.weights))
    same([train(child, resident, TRAINING)], train_graphs([child, mixed(2)[1]], resident, TRAINING)[:1])


def test_weights_that_an_heir_makes_are_those_started_from(resident: Resident) -> None:
    job = mixed(1)[0]
    weights = train(job, resident, TRAINING).weights
    given = TrainingJob(job.genome, 99, 1, inherited=pack(weights))
    made = TrainingJob(job.genome, 99, 1, heir=lambda: weights)
    expected = train(given, resident, TRAINING)
    same([expected, expected], [train(made, resident, TRAINING), train_graphs([made], resident, TRAINING)[0]])
    (untrained,) = train_graphs([replace(made, epochs=0)], resident, TRAINING)
    assert all(np.array_equal(untrained.weights[name], weights[name]) for name in weights)


def test_images_fewer_than_a_batch_are_one_batch(resident: Resident) -> None:
    training = replace(TRAINING, batch=64)
    jobs = mixed(3)
    same([train(job, resident, training) for job in jobs], train_graphs(jobs, resident, training))


def test_a_step_finds_everything_where_it_was(resident: Resident, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured step needs: no tensor that it reads or writes is ever another one."""
    seen: dict[int, list[dict[str, int]]] = {}
    plain = StackSteps.step

    def watched(self: StackSteps) -> None:
        held = dict(vars(self.tables)) | {"table": self.dropout.table, "losses": self.losses, "seen": self.seen}
        held |= {"numbers": self.state.numbers.vector, "running": self.state.running.vector, "slope": self.state.slope}
        held |= {name: getattr(self.state.moments, name) for name in ("first", "second")} | {"rate": self.state.rate}
        places = {name: tensor.data_ptr() for name, tensor in held.items() if tensor is not None}
        seen.setdefault(id(self), []).append(places)
        plain(self)

    monkeypatch.setattr(StackSteps, "step", watched)
    train_graphs(mixed(4), resident, TRAINING)
    for places in seen.values():
        assert len(places) == 6 and all(each == places[0] for each in places)


def test_dropout_that_does_not_fit_is_drawn_in_parts(resident: Resident, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_DRAWN", 100)
    jobs = mixed(6)
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))


class Graph:
    """A captured task without a GPU: the task itself, remembered."""

    def __init__(self, task: Callable[[], None]) -> None:
        self.replay = task


class Mark:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


class HostLane:
    """A lane without a GPU."""

    def __init__(self, captures: list[int]) -> None:
        self.thread, self.captures = ThreadPoolExecutor(1), captures
        self.capturing = None

    def capture(self, task: Callable[[], None]) -> Graph:
        self.captures.append(1)
        return Graph(task)

    def preparing(self) -> Any:
        return nullcontext()

    replaying = preparing

    def follow(self) -> None: ...

    def let_go(self) -> None: ...

    def mark(self) -> Mark:
        return Mark()


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Steps are captured as on a GPU; how many stacks, it tells."""
    made: list[int] = []
    every = [HostLane(made) for _ in range(3)]
    monkeypatch.setattr(cuda_graph, "lanes", lambda device, count: every[:count])
    monkeypatch.setattr(stacked_training, "_how", lambda resident, training, lanes, *rest: StepOptions(lanes))
    cuda_graph.forget()
    yield lambda: len(made) // 2  # a step and a validation each
    cuda_graph.forget()


@pytest.mark.slow
def test_networks_in_lanes_become_what_they_become_alone(resident: Resident, captured: Callable[[], int]) -> None:
    jobs = mixed(9)
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING, 3))
    assert captured() == 6


@pytest.mark.slow
def test_what_was_captured_serves_the_next_networks_of_the_same_families(
    resident: Resident, captured: Callable[[], int]
) -> None:
    jobs = mixed(4)
    others = [replace(job, seed=50 + n, genome=replace(job.genome, learning_rate=0.005)) for n, job in enumerate(jobs)]
    for some in (jobs, others[::-1], jobs):
        same([train(job, resident, TRAINING) for job in some], train_graphs(some, resident, TRAINING))
    assert captured() == 3
    # So do later rungs of the same networks.
    train_graphs([replace(job, epochs=3) for job in jobs], resident, TRAINING)
    assert captured() == 3
    train_graphs(jobs, resident, replace(TRAINING, max_batches=2))
    assert captured() == 6


@pytest.mark.slow
def test_what_was_captured_serves_one_stack_at_a_time(resident: Resident, captured: Callable[[], int]) -> None:
    jobs = mixed(1)
    train_graphs(jobs, resident, TRAINING)
    (key,) = cuda_graph.captured
    assert cuda_graph.take(key) is not None and cuda_graph.take(key) is None


@pytest.mark.slow
def test_only_a_few_captured_steps_are_kept(
    resident: Resident, captured: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "KEPT", 3)
    for n in range(5):
        cuda_graph.keep(n % 4, object())
    assert list(cuda_graph.captured) == [2, 3, 0] or list(cuda_graph.captured) == [0, 2, 3]
    cuda_graph.forget()


@pytest.mark.slow
def test_memory_that_captured_steps_hold_is_given_up_for_others(
    resident: Resident, captured: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = mixed(1, seed=1), mixed(1, seed=2)
    train_graphs(first, resident, TRAINING)
    plain = StackSteps.__init__

    def short(self: StackSteps, *rest: Any) -> None:
        if cuda_graph.captured:
            raise torch.OutOfMemoryError("no room")
        plain(self, *rest)

    monkeypatch.setattr(StackSteps, "__init__", short)
    same([train(job, resident, TRAINING) for job in second], train_graphs(second, resident, TRAINING))


@pytest.mark.slow
def test_running_out_of_memory_is_said_and_leaves_nothing_behind(
    resident: Resident, captured: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = mixed(3)
    train_graphs(jobs, resident, TRAINING)
    plain, puts = StackSteps.put, []

    def full(self: StackSteps, *rest: Any) -> None:
        puts.append(1)
        if len(puts) > 1:
            raise torch.OutOfMemoryError("no room")
        plain(self, *rest)

    monkeypatch.setattr(StackSteps, "put", full)
    with pytest.raises(torch.OutOfMemoryError, match="no room") as caught:
        train_graphs(jobs, resident, TRAINING)
    assert caught.value.__context__ is None, "the frames of the failure would hold its tensors"
    assert not cuda_graph.captured
    monkeypatch.setattr(StackSteps, "put", plain)
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))


@pytest.mark.slow
def test_what_a_library_says_when_memory_runs_out_is_understood(
    resident: Resident, captured: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: Exception) -> Callable[..., None]:
        def step(self: StackSteps) -> None:
            try:
                raise error
            finally:
                if "first" in str(error):
                    raise RuntimeError("the capture was invalidated")

        return step

    for error in (RuntimeError("CUDA error: out of memory"), torch.OutOfMemoryError("at first")):
        monkeypatch.setattr(StackSteps, "step", fails(error))
        with pytest.raises(torch.OutOfMemoryError):
            train_graphs(mixed(1), resident, TRAINING)
    monkeypatch.setattr(StackSteps, "step", fails(RuntimeError("misaligned address")))
    with pytest.raises(RuntimeError, match="misaligned") as caught:
        train_graphs(mixed(1), resident, TRAINING)
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_what_must_be_loaded_first_is_loaded_by_running_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    class Refusing(HostLane):
        def capture(self, task: Callable[[], None]) -> Graph:
            if not ran:
                raise RuntimeError("operation not permitted when stream is capturing")
            return super().capture(task)

    lane: Any = Refusing([])
    Captured(lambda: ran.append("task"), lane)()
    assert ran == ["task", "task"]


def test_what_cannot_be_is_refused(resident: Resident) -> None:
    jobs = mixed(1)
    with pytest.raises(ConfigError, match="make both the same"):
        train_graphs(jobs, resident, TrainingSettings(dtype="float32"))
    with pytest.raises(ConfigError, match="at least 1"):
        train_graphs(jobs, resident, TRAINING, 0)
    with pytest.raises(ConfigError, match="leave graph out"):
        train_graphs(jobs, resident, TRAINING, graph=True)
    with pytest.raises(ConfigError, match="leave half out"):
        train_graphs(jobs, resident, TRAINING, half=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_trains_the_same_networks() -> None:
    rng = np.random.default_rng(1)
    data = from_arrays(rng.integers(0, 255, (60, 1, 6, 6)).astype(np.uint8), np.arange(60) % 3, validation=20, test=0)
    resident = Resident(data, "cuda", "float64", 4)
    jobs = mixed(9)
    for _ in range(2):
        same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING, 4))
