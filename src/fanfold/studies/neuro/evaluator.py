"""What a cell of the study is: a network trained up to a rung, one alone or many as one, and its result."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

import torch

from fanfold.blobs import fetched
from fanfold.encoding import derive_seed, digest
from fanfold.identity import told
from fanfold.studies.neuro import genome as genomes
from fanfold.studies.neuro import layout as layouts
from fanfold.studies.neuro import morph, network, targets
from fanfold.studies.neuro.data import DTYPES, Data, Resident, Source, identity, resident
from fanfold.studies.neuro.engines import Devices, TrainingEngine, has_gpu
from fanfold.studies.neuro.genome import Individual, NetworkGenome, individual_of, members_of
from fanfold.studies.neuro.memory import DeviceMemory, DoesNotFit, GroupPace, free_memory, in_groups
from fanfold.studies.neuro.training import (
    TrainedNetwork,
    TrainingJob,
    TrainingSettings,
    bases_of,
    contents,
    out_of_memory,
    pinned_threads,
    scored,
    train,
    unpacked,
)
from fanfold.tensors import pack, unpack
from fanfold.types import Blob, Case, Failed, Ok, Outcome

#: Images for which the time of an answer is taken, and how often.
_ASKED, _TIMES = 64, 5

Cell = tuple[Any, Case, Ok | None]


@told(data="the data are others: rows or values changed since the run began")
@dataclass(frozen=True)
class Trainer:
    """Trains networks: `case.data["epochs"]` epochs in all, from where the rung before left off.

    The result of a network does not depend on the engine or on what is trained beside it (to rounding where networks
    are stacked, or a GPU adds), so an evaluation is the same on every engine.  With 0 epochs nothing is trained:
    the score is then a guess from the first slopes, below every accuracy.
    """

    source: Source | Data
    training: TrainingSettings
    engine: TrainingEngine
    #: Also measure how long the network takes to answer.
    latency: bool = False
    seed: int = 0
    #: The epochs after which nothing continues: what the optimiser remembers then is not kept.
    last: int | None = None

    continues: ClassVar[bool] = True
    #: The optimiser's memory serves the next rung alone.
    passing: ClassVar[tuple[str, ...]] = ("state",)

    @property
    def block_size(self) -> int:
        return self.engine.group

    def warm_up(self) -> None:
        """Begin to make a GPU of this process ready that will train networks as one, while the run begins."""
        if self.engine.together == "each" or self.engine.devices[0] != "cuda" or self.engine.executor != "inline":
            return

        from fanfold.studies.neuro import cuda_graph, stacked_training

        def ready() -> None:
            with contextlib.suppress(RuntimeError):  # said where it is needed
                resident(self.source, "cuda", self.training.dtype, self.seed)
                cuda_graph.lanes(torch.device("cuda"), cuda_graph.THREADS)

        for task in (ready, lambda: stacked_training.kernels_ready("cuda", self.training.dtype)):
            threading.Thread(target=task, name="fanfold-gpu", daemon=True).start()

    @functools.cached_property
    def fingerprint(self) -> str:
        """What decides about outcomes: the data and how networks are trained."""
        settings = (self.training.batch, self.training.dtype, self.training.max_batches)
        patience = (self.training.patience, self.training.gain)
        return (
            f"neuro-1@{digest(repr((identity(self.source), settings, patience, self.latency, self.seed))).hex()[:16]}"
        )

    @property
    def fingerprint_of(self) -> dict[str, Any]:
        """What the fingerprint stands for, in the words of the config."""
        how = self.training
        settings = {"batch_size": how.batch, "dtype": how.dtype, "max_batches": how.max_batches}
        patience = {"epoch_patience": how.patience, "epoch_gain": how.gain}
        return {**_told_apart(self.source), **settings, **patience, "latency": self.latency}

    def __call__(self, candidate: Any, case: Case, previous: Ok | None = None) -> Outcome:
        return self.evaluate_block([(candidate, case, previous)])[0]

    def evaluate_block(self, cells: Sequence[Cell]) -> list[Outcome]:
        with pinned_threads():
            place = _place(self.engine)
            device = place.devices.take()
            try:
                images = resident(self.source, device, self.training.dtype, self.seed)
                return self._evaluated(cells, images, place)
            finally:
                place.devices.give(device)

    def _evaluated(self, cells: Sequence[Cell], images: Resident, place: _Place) -> list[Outcome]:
        individuals = [individual_of(candidate) for candidate, _, _ in cells]
        inputs = {blob.digest: blob for blob in _inputs(individuals, cells)}  # siblings start from the same
        with fetched(inputs.values()):
            # Here, because each thread would open the ledger.
            read = {name: blob.read() for name, blob in inputs.items()}
        wanted = [n for n, (_, case, _) in enumerate(cells) if case.data["epochs"]]
        jobs = [_job(individuals[n], *cells[n][1:], images, lambda blob: read[blob.digest]) for n in wanted]
        outcomes = dict(zip(wanted, self._trained(jobs, images, place)))
        return [
            outcomes[n] if n in outcomes else _guessed(individuals[n], case, images, self.training)
            for n, (_, case, _) in enumerate(cells)
        ]

    def _trained(self, jobs: Sequence[TrainingJob], images: Resident, place: _Place) -> list[Outcome]:
        memory = place.memory(images.device)

        def bytes_of(job: TrainingJob) -> int:
            return layouts.memory(job.genome, images.shape, self.training.batch) * (
                2 if self.training.dtype == "float64" else 1
            )

        def group(part: Sequence[TrainingJob]) -> list[Ok]:
            # Later, others take up the memory of the first.
            first = images.device == "cuda" and self.engine.together != "each" and memory.factor == 1.0
            if first:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            began = time.perf_counter()
            outcomes = self._together(part, images)
            place.pace.saw(len(part), time.perf_counter() - began)
            if first:
                memory.measured(sum(map(bytes_of, part)), torch.cuda.max_memory_allocated() - before)
            return outcomes

        # On a GPU more at once always were faster; the first groups only seem slow, while all is made ready.
        most = self.engine.group if images.device == "cuda" else None
        results = in_groups(jobs, bytes_of, memory, group, out_of_memory, lambda: most or place.pace.size)
        return [Failed("out-of-memory", str(one)) if isinstance(one, DoesNotFit) else one for one in results]

    def _together(self, jobs: Sequence[TrainingJob], images: Resident) -> list[Ok]:
        outcome = functools.partial(self._outcome, images)
        if self.engine.together != "each":
            from fanfold.studies.neuro import stacked_training

            graphs = self.engine.together == "graph"
            train_as_one = stacked_training.train_graphs if graphs else stacked_training.train_fused
            if not self.latency:
                return train_as_one(jobs, images, self.training, ended=outcome)
            return list(map(outcome, jobs, train_as_one(jobs, images, self.training)))  # timed when all is quiet
        if self.engine.name == "streams":
            with torch.cuda.stream(_stream()):
                networks = [train(job, images, self.training) for job in jobs]
                torch.cuda.current_stream().synchronize()
        else:
            networks = [train(job, images, self.training) for job in jobs]
        return list(map(outcome, jobs, networks))

    def _outcome(self, images: Resident, job: TrainingJob, found: TrainedNetwork) -> Ok:
        data: dict[str, Any] = {
            "accuracy": found.accuracy,
            "loss": _finite(found.loss),
            "curve": [[accuracy, _finite(loss)] for accuracy, loss in found.curve],
            "epochs": found.epochs,
            "parameters": layouts.parameters(job.genome, images.shape),
            "operations": layouts.operations(job.genome, images.shape),
            "stopped": found.stopped,
            "shape": astuple(images.shape),
            "weights": Blob.of(morph.packed(job.genome, found.weights)),
        }
        if job.epochs != self.last:
            # The weights are kept once, unless they are trained in finer numbers than they are kept in.
            whole = self.training.dtype != "float32"
            state = {name: array for name, array in contents(found.end).items() if whole or name not in found.weights}
            data["state"] = Blob.of(pack(state))
        if found.broken:
            data["broken"] = True
        if self.latency:
            data["latency"] = latency(job.genome, found, images)
        return Ok(found.accuracy, data)


@dataclass(frozen=True)
class Examiner:
    """Scores networks on the test part, alone or together: a candidate's weights are those it inherited."""

    source: Source | Data
    training: TrainingSettings
    seed: int = 0

    @functools.cached_property
    def fingerprint(self) -> str:
        return f"neuro-test-1@{digest(repr((identity(self.source), self.training.dtype, self.seed))).hex()[:16]}"

    def __call__(self, candidate: Any, case: Case) -> Ok:
        stored = [(member.genome, member.inherited) for member in members_of(candidate)]
        with pinned_threads():
            images = resident(self.source, "cpu", self.training.dtype, self.seed)
            test = images.data.test
            nets = [(genome, _tensors(weights, self.training.dtype)) for genome, weights in stored if weights]
            outputs = scored(nets, images.prepared(test.pixels))
            found = float(targets.score(outputs, images.wanted(test.labels), images.shape.scored))
            said = targets.predictions(outputs, images.shape.target).nan_to_num(0.0)
        return Ok(found, {"said": said.tolist(), "labels": test.labels.tolist()})


def _told_apart(data: Data | Source) -> dict[str, Any]:
    """What makes these data others than those of another run, by the names of the config."""
    if isinstance(data, Data):
        return {"data": data.digest}
    held = {"dataset": data.name, "image_size": data.size, "split": data.seed}
    held |= {name: getattr(data, name) for name in ("folder", "validation", "test", "augment", "balanced")}
    columns = {} if data.columns is None else vars(data.columns)
    return held | {{"stamp": "data"}.get(name, name): value for name, value in columns.items()}


def _job(
    individual: Individual,
    case: Case,
    previous: Ok | None,
    images: Resident,
    read: Callable[[Blob], bytes] = Blob.read,
) -> TrainingJob:
    genome, key = individual.genome, genomes.key(individual.genome)
    seed = derive_seed(case.seed or 0, "network", key)
    if previous is not None and isinstance(previous.data, Mapping) and "state" in previous.data:
        _, weights = morph.unpacked(read(previous.data["weights"]))
        state = weights | unpack(read(previous.data["state"]))
        return TrainingJob(genome, seed, case.data["epochs"], pack(state))
    return TrainingJob(genome, seed, case.data["epochs"], heir=morph.heir(individual, images.shape, seed, read))


def _inputs(individuals: Sequence[Individual], cells: Sequence[Cell]) -> Iterator[Blob]:
    """The blobs that cells start from."""
    for individual, (_, _, previous) in zip(individuals, cells):
        earlier = previous.data if previous is not None and isinstance(previous.data, Mapping) else {}
        for blob in (individual.inherited, earlier.get("weights"), earlier.get("state")):
            if isinstance(blob, Blob):
                yield blob


def _tensors(weights: Blob, dtype: str) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array, dtype=DTYPES[dtype]) for name, array in morph.unpacked(weights.read())[1].items()}


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _guessed(individual: Individual, case: Case, images: Resident, training: TrainingSettings) -> Ok:
    """A score below 0 for a network that is not trained: how much its first loss depends on its weights (SNIP)."""
    genome, job = individual.genome, _job(individual, case, None, images)
    arrays = unpacked(job, images.shape, training.dtype).arrays
    net = {name: torch.tensor(array, device=images.device) for name, array in arrays.items()}
    leaves = [tensor.requires_grad_() for name, tensor in net.items() if network.trained(name)]
    pixels, labels = images.batch(images.order(0)[: training.batch], images.base(0), genome.augment)
    loss = targets.loss(network.forward(genome, net, pixels, bases_of(job, 0)), labels, images.shape.target)
    slopes = torch.autograd.grad(loss, leaves)
    depends = float(sum((leaf.detach() * slope).abs().sum() for leaf, slope in zip(leaves, slopes)))
    if not depends >= 0.0:  # not a number
        depends = 0.0
    return Ok(-1.0 / (1.0 + depends), {"proxy": depends, "parameters": layouts.parameters(genome, images.shape)})


def latency(genome: NetworkGenome, found: TrainedNetwork, images: Resident) -> float:
    """Milliseconds that the trained network takes for some images: the least of a few tries."""
    net = {name: torch.tensor(array, device=images.device) for name, array in found.weights.items()}
    batch = images.validation[0][:_ASKED].to(torch.float32)
    times = []
    with torch.no_grad():
        for _ in range(_TIMES + 1):
            began = time.perf_counter()
            network.forward(genome, net, batch).argmax(1).cpu()
            times.append(time.perf_counter() - began)
    return round(1000.0 * min(times), 4)


class _Place:
    """The devices of this process, what fits on each, and how large groups should be."""

    def __init__(self, engine: TrainingEngine) -> None:
        if "cuda" in engine.devices:
            has_gpu()  # a worker of a cluster has not looked yet
        shared = len(set(engine.devices)) == 1
        self.devices = Devices(engine.devices, lambda name: engine.calls if shared else engine.devices.count(name))
        self.pace = GroupPace(engine.group, engine.group)
        self._memory: dict[str, DeviceMemory] = {}

    def memory(self, device: str) -> DeviceMemory:
        if device not in self._memory:
            self._memory[device] = DeviceMemory(free_on_gpu if device == "cuda" else free_memory)
        return self._memory[device]


_PLACES: dict[TrainingEngine, _Place] = {}
_LOCK = threading.Lock()
_LOCAL = threading.local()


def _place(engine: TrainingEngine) -> _Place:
    with _LOCK:
        if engine not in _PLACES:
            _PLACES[engine] = _Place(engine)
        return _PLACES[engine]


def _stream() -> Any:
    if not hasattr(_LOCAL, "stream"):
        _LOCAL.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return _LOCAL.stream


def free_on_gpu() -> int:
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
