"""Any mix of networks trained at once: each becomes what it becomes alone, however they are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from neuro_world import apart, one_thread  # noqa: F401 (a fixture)

from fanfold.errors import ConfigError
from fanfold.studies.neuro import cuda_graph, stacked_training
from fanfold.studies.neuro.cuda_graph import Captured
from fanfold.studies.neuro.data import Resident, from_arrays
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.stacked_training import Together, train_graphs
from fanfold.studies.neuro.training import TrainedNetwork, TrainingJob, TrainingSettings, train, unpacked
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


def mixed(count: int, epochs: int = 2, seed: int = 3) -> list[TrainingJob]:
    """Networks of any kind; every third is of the family of the one before."""
    rng, found = Random(seed), []
    for n in range(count):
        genome = replace(found[-1].genome, learning_rate=0.02) if n % 3 == 2 else random_genome(SPACE, rng)
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
        assert one.accuracy == other.accuracy


@pytest.mark.slow
def test_networks_of_any_kind_become_what_they_become_alone(resident: Resident) -> None:
    jobs = mixed(9)
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))


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


def test_inherited_weights_are_started_from(resident: Resident) -> None:
    job = mixed(1)[0]
    parent = train(job, resident, TRAINING)
    child = TrainingJob(job.genome, 99, 1, inherited=pack(parent.weights))
    same([train(child, resident, TRAINING)], train_graphs([child, mixed(2)[1]], resident, TRAINING)[:1])


@pytest.mark.slow
def test_few_that_are_left_are_put_together_anew(resident: Resident, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    plain = stacked_training.Group.__init__

    def counted(self: Any, jobs: Sequence[TrainingJob], *rest: Any) -> None:
        sizes.append(len(jobs))
        plain(self, jobs, *rest)

    monkeypatch.setattr(stacked_training.Group, "__init__", counted)
    for ended, groups in ((1, [6]), (4, [6, 2])):
        sizes.clear()
        jobs = [replace(job, epochs=1 if n < ended else 3) for n, job in enumerate(mixed(6))]
        same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))
        assert sizes == groups


def test_images_fewer_than_a_batch_are_one_batch(resident: Resident) -> None:
    training = replace(TRAINING, batch=64)
    jobs = mixed(3)
    same([train(job, resident, training) for job in jobs], train_graphs(jobs, resident, training))


def test_a_step_finds_everything_where_it_was(resident: Resident, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured step needs: no tensor that it reads or writes is ever another one."""
    seen: list[dict[str, int]] = []
    plain = Together.step

    def watched(self: Together, *fork: Any) -> None:
        held = {
            "images": self.images,
            "labels": self.labels,
            "bases": self.dropout.bases,
            "running": self.running.vector,
        }
        for m, mover in enumerate(self.movers):
            held |= {f"{m} {name}": getattr(mover, name) for name in ("slope", "rate", "scales")}
            held |= {f"{m} numbers": mover.ground.vector}
        held |= {f"loss {s}": losses for s, losses in enumerate(self.losses)}
        seen.append({name: tensor.data_ptr() for name, tensor in held.items()})
        plain(self, *fork)

    monkeypatch.setattr(Together, "step", watched)
    train_graphs(mixed(4), resident, TRAINING)
    assert len(seen) == 6 and all(each == seen[0] for each in seen)


class Replay(Captured):
    """A captured step without a GPU: the step itself, remembered."""

    def __init__(self, together: Together, branches: int) -> None:
        self.together = together
        together.step()  # as the first step of a capture: it leaves the networks in any state

    def __call__(self) -> None:
        self.together.step()


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Steps are captured as on a GPU; how often, it tells."""
    made: list[int] = []

    class Counted(Replay):
        def __init__(self, together: Together, branches: int) -> None:
            made.append(branches)
            super().__init__(together, branches)

    monkeypatch.setattr(stacked_training, "Captured", Counted)
    monkeypatch.setattr(
        stacked_training, "_how", lambda resident, training, branches, *rest: stacked_training.StepOptions(branches)
    )
    cuda_graph.forget()
    yield lambda: len(made)
    cuda_graph.forget()


@pytest.mark.slow
def test_what_was_captured_serves_the_next_networks_of_the_same_families(
    resident: Resident, captured: Callable[[], int]
) -> None:
    jobs = mixed(4)
    others = [replace(job, seed=50 + n, genome=replace(job.genome, learning_rate=0.005)) for n, job in enumerate(jobs)]
    for some in (jobs, others[::-1], jobs):
        same([train(job, resident, TRAINING) for job in some], train_graphs(some, resident, TRAINING))
    assert captured() == 1
    train_graphs(jobs, resident, TRAINING, branches=4)
    assert captured() == 2


@pytest.mark.slow
def test_a_captured_step_serves_one_group_at_a_time(resident: Resident, captured: Callable[[], int]) -> None:
    jobs = mixed(2)
    train_graphs(jobs, resident, TRAINING, branches=3)
    starts = [unpacked(job, resident.shape, "float64") for job in jobs]
    one, other = (
        stacked_training.Group(jobs, starts, resident, TRAINING, stacked_training.StepOptions(3)) for _ in range(2)
    )
    assert captured() == 2 and one.together is not other.together


@pytest.mark.slow
def test_only_a_few_captured_steps_are_kept(resident: Resident, captured: Callable[[], int]) -> None:
    once = replace(TRAINING, max_batches=1)
    for n in range(cuda_graph.KEPT + 2):
        train_graphs(mixed(1, epochs=1, seed=n), resident, once)
    assert len(cuda_graph.captured) == cuda_graph.KEPT


@pytest.mark.slow
def test_memory_that_captured_steps_hold_is_given_up_for_others(
    resident: Resident, captured: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = mixed(1, seed=1), mixed(1, seed=2)
    train_graphs(first, resident, TRAINING)
    plain = stacked_training._made

    def short(*rest: Any) -> Any:
        if cuda_graph.captured:
            raise torch.OutOfMemoryError("no room")
        return plain(*rest)

    monkeypatch.setattr(stacked_training, "_made", short)
    same([train(job, resident, TRAINING) for job in second], train_graphs(second, resident, TRAINING))


@pytest.mark.slow
def test_running_out_of_memory_is_said_and_leaves_nothing_behind(
    resident: Resident, captured: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = mixed(3)
    train_graphs(jobs, resident, TRAINING)
    plain, steps = Together.step, []

    def full(self: Together, *fork: Any) -> None:
        steps.append(1)
        if len(steps) > 4:
            raise torch.OutOfMemoryError("no room")
        plain(self, *fork)

    monkeypatch.setattr(Together, "step", full)
    with pytest.raises(torch.OutOfMemoryError, match="no room") as caught:
        train_graphs(jobs, resident, TRAINING)
    assert caught.value.__context__ is None, "the frames of the failure would hold its tensors"
    assert not cuda_graph.captured
    monkeypatch.setattr(Together, "step", plain)
    same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING))


@pytest.mark.slow
def test_what_a_library_says_when_memory_runs_out_is_understood(
    resident: Resident, captured: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: Exception) -> Callable[..., None]:
        def step(self: Together, *fork: Any) -> None:
            try:
                raise error
            finally:
                if "first" in str(error):
                    raise RuntimeError("the capture was invalidated")

        return step

    for error in (RuntimeError("CUDA error: out of memory"), torch.OutOfMemoryError("at first")):
        monkeypatch.setattr(Together, "step", fails(error))
        with pytest.raises(torch.OutOfMemoryError):
            train_graphs(mixed(1), resident, TRAINING)
    monkeypatch.setattr(Together, "step", fails(RuntimeError("misaligned address")))
    with pytest.raises(RuntimeError, match="misaligned") as caught:
        train_graphs(mixed(1), resident, TRAINING)
    assert not isinstance(caught.value, torch.OutOfMemoryError)


def test_what_cannot_be_is_refused(resident: Resident) -> None:
    jobs = mixed(1)
    with pytest.raises(ConfigError, match="make both the same"):
        train_graphs(jobs, resident, TrainingSettings(dtype="float32"))
    with pytest.raises(ConfigError, match="at least 1"):
        train_graphs(jobs, resident, TRAINING, branches=0)
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
        same([train(job, resident, TRAINING) for job in jobs], train_graphs(jobs, resident, TRAINING, branches=4))
