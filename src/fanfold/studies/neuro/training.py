"""Trains one network at a time: from nothing, from inherited weights, or from where an earlier training stopped."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fanfold.config import Settings, option
from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.studies.neuro import network, targets
from fanfold.studies.neuro.data import DTYPES, Images, Resident
from fanfold.studies.neuro.genome import NetworkGenome, Shape
from fanfold.studies.neuro.layout import layout
from fanfold.studies.neuro.optimiser import FIRST, SECOND, Flat, Moments, corrections
from fanfold.tensors import Arrays, pack, unpack

#: Of each epoch: validation accuracy, and the mean loss of its steps.
Curve: TypeAlias = tuple[tuple[float, float], ...]
#: Images that are scored at a time.  Part of the arithmetic: sums over another number may round differently.
SCORED = 500
#: What libraries say when memory runs out, on a GPU and on a processor.
_FULL = ("out of memory", "not enough memory", "can't allocate memory")
#: What a state holds beside the tensors.
_BESIDE = ("first", "second", "steps", "curve")


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """How networks are trained, the same for all of a run."""

    batch: int = option(128, "images in one step; one alone cannot be normalised", least=2)
    dtype: Literal["float32", "float64"] = option("float32", "the numbers that are computed with")
    max_batches: int | None = option(None, "the most steps of an epoch; none: all images", least=1)
    patience: int | None = option(None, "training stops after so many epochs without a gain; none: never", least=1)
    gain: float = option(0.0, "how much validation accuracy must rise to count as a gain", least=0, below=1)

    def steps(self, n: int) -> int:
        """Steps of an epoch over `n` images: an incomplete last batch is left out unless it is the only one."""
        whole = max(1, n // self.batch)
        return whole if self.max_batches is None else min(whole, self.max_batches)


@dataclass(frozen=True)
class TrainingJob:
    """A network to be trained until `epochs` epochs are done in all.

    It continues from `state`, an earlier `TrainedNetwork.state`; or starts with `inherited`, packed weights of its
    own shapes, or with those that `heir` makes when they are needed; or from nothing.  `seed` decides its first weights
    and what it drops out; its images are decided by `Resident`.
    """

    genome: NetworkGenome
    seed: int
    epochs: int
    state: bytes | None = None
    inherited: bytes | None = None
    #: Makes weights of its own shapes, all of them finite.
    heir: Callable[[], Arrays] | None = None


@dataclass(frozen=True, eq=False)
class TrainingProgress:
    """Where the training of a network stands: all that is needed to continue.

    `arrays` are its tensors by name, in the numbers they are trained in.  `first` and `second` are the optimiser's
    moments, laid end to end in the order of the trained tensors, where it has them.
    """

    arrays: Arrays
    first: NDArray[Any] | None
    second: NDArray[Any] | None
    steps: int
    curve: Curve

    @property
    def broken(self) -> bool:
        """Whether nothing can continue from here: the last loss, or a trained number, is not finite."""
        if self.curve and not math.isfinite(self.curve[-1][1]):
            return True
        return not all(np.isfinite(array).all() for name, array in self.arrays.items() if network.trained(name))


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """The result of a job, where it stands at its `end`.

    `accuracy` is that of `weights` on the validation part, and `loss` the mean of the last epoch's steps (not a number
    where that is what it was).  `stopped`: patience ended it before all epochs were done.  `broken`: its numbers grew
    beyond all bounds; what they say of an image counts as wrong.
    """

    accuracy: float
    loss: float
    curve: Curve
    weights: Arrays
    end: TrainingProgress
    epochs: int
    steps: int
    stopped: bool
    broken: bool

    @property
    def state(self) -> bytes:
        """What another job continues from."""
        return packed(self.end)


def unpacked(job: TrainingJob, shape: Shape, dtype: str) -> TrainingProgress:
    """Where a job starts from."""
    sizes = layout(job.genome, shape).tensors
    if job.state is None:
        if job.inherited is not None:
            arrays = _fitting(unpack(job.inherited), sizes, "inherited weights")
        elif job.heir is not None:
            arrays = _fitting(job.heir(), sizes, "inherited weights")
        else:
            arrays = network.initial(job.genome, shape, derive_seed(job.seed, "weights"))
        return TrainingProgress(_cast(arrays, dtype), None, None, 0, ())
    held = unpack(job.state)
    arrays = {name: array for name, array in held.items() if name not in _BESIDE}
    arrays = _fitting(arrays, sizes, "the state of an earlier training")
    count = sum(math.prod(size) for name, size in sizes.items() if network.trained(name))
    moments = {"first": (count,)} if job.genome.optimiser in FIRST else {}
    moments |= {"second": (count,)} if job.genome.optimiser in SECOND else {}
    curve = held.get("curve", np.zeros(0))
    others: Arrays = {name: held[name] for name in ("first", "second") if name in held}
    _fitting(others | {"steps": held.get("steps", np.zeros(0))}, moments | {"steps": (1,)}, "an optimiser's memory")
    _fitting({"curve": curve}, {"curve": (len(curve), 2)}, "the state of an earlier training")
    cast = _cast(others, dtype)
    points = tuple((float(accuracy), float(loss)) for accuracy, loss in curve)
    return TrainingProgress(_cast(arrays, dtype), cast.get("first"), cast.get("second"), int(held["steps"][0]), points)


def packed(progress: TrainingProgress) -> bytes:
    """The bytes that `unpacked` continues from."""
    return pack(contents(progress))


def contents(progress: TrainingProgress) -> Arrays:
    """All that is needed to continue: the tensors by their names, and the rest beside them."""
    arrays: Arrays = dict(progress.arrays)
    arrays["curve"] = np.array(progress.curve, np.float64).reshape(-1, 2)
    arrays["steps"] = np.array([progress.steps], np.int64)
    if progress.first is not None:
        arrays["first"] = progress.first
    if progress.second is not None:
        arrays["second"] = progress.second
    return arrays


def finished(progress: TrainingProgress, training: TrainingSettings) -> TrainedNetwork:
    """What a job that stands there has become."""
    accuracy, loss = progress.curve[-1] if progress.curve else (0.0, math.nan)
    return TrainedNetwork(
        accuracy,
        loss,
        progress.curve,
        _cast(progress.arrays, "float32"),
        progress,
        len(progress.curve),
        progress.steps,
        settled(progress.curve, training),
        progress.broken,
    )


def settled(curve: Curve, training: TrainingSettings) -> bool:
    """Whether patience has run out: too many epochs since validation accuracy last rose by the gain."""
    if training.patience is None:
        return False
    best, since = -math.inf, 0
    for accuracy, _ in curve:
        if accuracy > best + training.gain or best == -math.inf:
            best, since = accuracy, 0
        else:
            since += 1
    return since >= training.patience


def going(curve: Curve, broken: bool, job: TrainingJob, training: TrainingSettings) -> bool:
    """Whether a job has another epoch to do."""
    return len(curve) < job.epochs and not broken and not settled(curve, training)


def step_size(genome: NetworkGenome, step: int, steps: int) -> float:
    """The learning rate of one step, counted from 0, of a training up to the next rung, which has so many steps.

    `cosine` falls to 0 along half a cosine; `one-cycle` first rises from a tenth in a quarter of the steps.  Every rung
    ends with small steps, so that networks are compared when they have settled.
    """
    if genome.schedule == "constant":
        return genome.learning_rate
    done, rising = (step + 0.5) / max(1, steps), 0.25 if genome.schedule == "one-cycle" else 0.0
    if done < rising:
        return genome.learning_rate * (0.1 + 0.9 * done / rising)
    return genome.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (done - rising) / (1.0 - rising)))


def bases_of(job: TrainingJob, step: int) -> list[int]:
    """What decides the dropout of each dense layer in one step, counted from 0 at the job's very first."""
    seed = derive_seed(job.seed, "dropout")
    return [network.dropout_base(seed, step, layer) for layer in range(len(job.genome.dense))]


def right(scores: Tensor, labels: Tensor) -> Tensor:
    """Which of the scores (..., images, classes) are highest at the label; none that is not finite is."""
    return (scores.argmax(-1) == labels) & torch.isfinite(scores).all(-1)


def _cast(arrays: Mapping[str, NDArray[Any]], dtype: str) -> Arrays:
    return {name: array.astype(dtype, copy=False) for name, array in arrays.items()}


def _fitting(arrays: Arrays, sizes: Mapping[str, tuple[int, ...]], what: str) -> Arrays:
    """The arrays in the order of `sizes`, if they are just these."""
    wrong = sorted(arrays.keys() ^ sizes.keys())
    if wrong:
        raise ConfigError(f"{what}: {wrong[0]!r} is {'missing' if wrong[0] in sizes else 'of another network'}")
    for name, size in sizes.items():
        if arrays[name].shape != size:
            raise ConfigError(f"{what}: {name!r} is of {arrays[name].shape}; this network needs {size}")
    return {name: arrays[name] for name in sizes}


class Session:
    """One network being trained, an epoch at a time.

    It uses no global generator and sets nothing global: sessions may run side by side in threads, and each comes to
    what it would come to alone.
    """

    def __init__(self, job: TrainingJob, resident: Resident, training: TrainingSettings) -> None:
        if training.dtype != resident.dtype:
            raise ConfigError(f"a training in {training.dtype} was given data in {resident.dtype}: make both the same")
        self.job, self.resident, self.training = job, resident, training
        start = unpacked(job, resident.shape, training.dtype)
        self.steps, self.curve, self.broken = start.steps, start.curve, start.broken
        #: Where this rung begins, and how many steps it has.
        self.began = start.steps
        self.length = (job.epochs - len(start.curve)) * training.steps(len(resident))
        tensors = {name: torch.tensor(array, device=resident.device) for name, array in start.arrays.items()}
        self.flat = Flat({name: tensor for name, tensor in tensors.items() if network.trained(name)})
        self.net = tensors | self.flat.views
        self.moments = Moments(job.genome.optimiser, self.flat.vector)
        for moment, array in ((self.moments.first, start.first), (self.moments.second, start.second)):
            if moment is not None and array is not None:
                moment.copy_(self.flat.laid(torch.tensor(array)))

    @property
    def going(self) -> bool:
        return going(self.curve, self.broken, self.job, self.training)

    def epoch(self) -> None:
        """One epoch and its validation, if there is one to do."""
        if not self.going:
            return
        number = len(self.curve)
        order, base = self.resident.order(number), self.resident.base(number)
        size, steps = self.training.batch, self.training.steps(len(self.resident))
        total = torch.zeros((), dtype=self.flat.vector.dtype, device=self.flat.vector.device)
        for place in range(0, steps * size, size):
            index = order[place : place + size]
            weights = None if self.resident.weights is None else self.resident.weights[index]
            total += self.step(*self.resident.batch(index, base, self.job.genome.augment), weights)
        loss = float(total) / steps
        self.curve += ((self.accuracy(), loss),)
        self.broken = not math.isfinite(loss) or not bool(torch.isfinite(self.flat.vector).all())

    def step(self, images: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Learn from one batch; the loss before, left on the device."""
        genome = self.job.genome
        outputs = network.forward(genome, self.net, images, bases_of(self.job, self.steps))
        loss = targets.loss(outputs, labels, self.resident.shape.target, weights, genome.smoothing)
        rate = step_size(genome, self.steps - self.began, self.length)
        self.steps += 1
        slope = self.flat.slope(loss)
        if genome.decay:
            self.flat.vector.mul_(1.0 - min(1.0, genome.decay * rate))
        self.moments.move(self.flat.vector, slope, rate, corrections(genome.optimiser, self.steps))
        return loss.detach()

    def accuracy(self) -> float:
        """The score on the whole validation part."""
        images, labels = self.resident.validation
        return float(targets.score(scored([(self.job.genome, self.net)], images), labels, self.resident.shape.scored))

    def progress(self) -> TrainingProgress:
        arrays = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.net.items()}
        first, second = (
            None if moment is None else self.flat.packed(moment).cpu().numpy()
            for moment in (self.moments.first, self.moments.second)
        )
        return TrainingProgress(arrays, first, second, self.steps, self.curve)

    def finish(self) -> TrainedNetwork:
        return finished(self.progress(), self.training)


def train(job: TrainingJob, resident: Resident, training: TrainingSettings) -> TrainedNetwork:
    """The job, done."""
    session = Session(job, resident, training)
    while session.going:
        session.epoch()
    return session.finish()


@torch.no_grad()
def scored(nets: Sequence[tuple[NetworkGenome, Mapping[str, Tensor]]], images: Tensor) -> Tensor:
    """The outputs of networks, averaged, for images as networks see them; nothing is learnt or dropped out."""
    return torch.cat([network.averaged(nets, some) for some in torch.split(images, SCORED)])


def predict(genome: NetworkGenome, weights: Arrays, images: Tensor) -> NDArray[Any]:
    """The chances of the classes, (images, classes), for images as `data.prepared` makes them."""
    net = {name: torch.tensor(array, device=images.device, dtype=images.dtype) for name, array in weights.items()}
    chances: NDArray[Any] = scored([(genome, net)], images).softmax(-1).cpu().numpy()
    return chances


def correct(genome: NetworkGenome, weights: Arrays, images: Images, resident: Resident) -> list[bool]:
    """Which of the images get the right class."""
    seen, kind = resident.prepared(images.pixels), DTYPES[resident.dtype]
    net = {name: torch.tensor(array, device=resident.device, dtype=kind) for name, array in weights.items()}
    labels = torch.from_numpy(images.labels).to(resident.device)
    hits: list[bool] = right(scored([(genome, net)], seen), labels).tolist()
    return hits


def evaluate(genome: NetworkGenome, weights: Arrays, images: Images, resident: Resident) -> float:
    """The share of images that get the right class."""
    if not len(images):
        raise ConfigError("there are no images to evaluate a network on: give the data a test part")
    return sum(correct(genome, weights, images, resident)) / len(images)


def out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out: not all libraries have PyTorch's own error for it, and others may hide it."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in str(error) for words in _FULL):
            return True
        error = error.__context__
    return False


_PINNING = threading.Lock()
_pinned = {"inside": 0, "before": 1}


@contextmanager
def pinned_threads(count: int = 1) -> Iterator[None]:
    """Compute with so many threads for each training; enter it in every thread that trains.

    More trainings than cores only hinder each other, and sums over another number of threads round differently.
    PyTorch keeps the number for each thread, and some of its libraries for the process: the last to leave restores it.
    """
    with _PINNING:
        if not _pinned["inside"]:
            _pinned["before"] = torch.get_num_threads()
        _pinned["inside"] += 1
        torch.set_num_threads(count)
    try:
        yield
    finally:
        with _PINNING:
            _pinned["inside"] -= 1
            if not _pinned["inside"]:
                torch.set_num_threads(_pinned["before"])
