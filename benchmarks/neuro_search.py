"""Time to the same accuracy: the search as the document has it, against ours; both on the same device and space.

The document's way: a population of 10, trained in 4 threads with plain PyTorch for up to 12 epochs with a patience of
3, the elite trained again in every generation.  Ours: architectures in several variants each, all of a rung in one
graph, a third of them continuing to the next rung, children that inherit weights, and nothing trained twice.  A
network's score is its best validation accuracy of all epochs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from measure import Line, Sampled, Table, Target
from neuro_plain import Loaded, Plain, in_threads

from fanfold.encoding import derive_seed
from fanfold.studies.neuro import cuda_graph
from fanfold.studies.neuro.data import Data, Resident, from_arrays
from fanfold.studies.neuro.genome import NetworkGenome
from fanfold.studies.neuro.morph import inherit
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.stacked_training import train_graphs
from fanfold.studies.neuro.strategy import Spread, crossover, mutate, shared, sibling
from fanfold.studies.neuro.training import TrainedNetwork, TrainingJob, TrainingSettings, evaluate
from fanfold.tensors import pack

BATCH, EPOCHS, PATIENCE, GAIN = 128, 12, 3, 0.002
MUTATION = 0.35


@dataclass(frozen=True)
class Reached:
    """How a search went: the best score so far at so many seconds, and what its best network makes of unseen images."""

    seconds: tuple[float, ...]
    best: tuple[float, ...]
    test: float
    trained: int

    def until(self, target: float) -> float:
        """Seconds until the target; infinity if it was not reached."""
        return next((second for second, best in zip(self.seconds, self.best) if best >= target), float("inf"))


def tournament(ranked: Sequence[tuple[float, NetworkGenome]], rng: random.Random) -> NetworkGenome:
    return max((rng.choice(ranked) for _ in range(3)), key=lambda pair: pair[0])[1]


def child(ranked: Sequence[tuple[float, NetworkGenome]], space: NetworkSpace, rng: random.Random) -> NetworkGenome:
    mother, father = tournament(ranked, rng), tournament(ranked, rng)
    bred = crossover(mother, father, rng) if rng.random() < 0.99 else mother
    return mutate(bred, space, rng, Spread().rate(MUTATION, [score for score, _ in ranked[:10]]))[0]


def documented(data: Data, device: str, space: NetworkSpace, seed: int, generations: int, loaders: bool) -> Reached:
    """The document's way, for so many generations; through loaders, or with all images on the device."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    images = Loaded(data, device) if loaders else Plain.of(Resident(data, device, "float32", seed))
    population = [random_genome(space, rng) for _ in range(10)]
    found: list[tuple[float, float, Any]] = []
    began = time.perf_counter()

    def keep(genome: NetworkGenome, curve: list[float], network: Any) -> None:
        found.append((time.perf_counter() - began, max(curve), network))

    for _ in range(generations):
        curves = in_threads(
            population, images, BATCH, 4, device == "cuda", epochs=EPOCHS, patience=PATIENCE, gain=GAIN, keep=keep
        )
        ranked = sorted(zip(map(max, curves), population), key=lambda pair: -pair[0])
        elite = [genome for _, genome in ranked[:2]]
        population = elite + [child(ranked, space, rng) for _ in range(8)]
    best = np.maximum.accumulate([score for _, score, _ in found])
    network = max(found, key=lambda each: each[1])[2]
    seen, labels = Resident(replace(data, validation=data.test), device).validation
    with torch.no_grad():
        test = (network(seen.contiguous()).argmax(1) == labels).float().mean().item()
    return Reached(tuple(second for second, _, _ in found), tuple(map(float, best)), test, len(found))


@dataclass(frozen=True)
class Ours:
    """Our way: so many architectures at once, each with several learning rates, and rungs of epochs."""

    families: int = 8
    litter: int = 8
    rungs: tuple[int, ...] = (1, 3, 9)
    eta: int = 3


def ours(data: Data, device: str, space: NetworkSpace, seed: int, target: float, limit: float, how: Ours) -> Reached:
    """Until the target or the limit in seconds: nothing trained twice, children start from their parents' weights."""
    rng, resident = random.Random(seed), Resident(data, device, "float32", seed)
    training = TrainingSettings(BATCH)
    ranked: list[tuple[float, NetworkGenome]] = []
    weights: dict[NetworkGenome, Any] = {}
    seconds, best, count = [], [], 0
    top: tuple[float, NetworkGenome, TrainedNetwork] | None = None
    began = time.perf_counter()
    while not (best and best[-1] >= target) and time.perf_counter() - began < limit:
        jobs: list[TrainingJob] = []
        for _ in range(how.families):
            head = child(ranked, space, rng) if ranked else random_genome(space, rng)
            inherited = None
            if ranked:
                parent = max(
                    weights, key=lambda genome: (shared(genome, head), dict(map(reversed, ranked)).get(genome, 0))
                )
                inherited = pack(inherit(parent, weights[parent], head, data.shape, seed))
            brood = [head, *(sibling(head, space, rng, young=not ranked) for _ in range(how.litter - 1))]
            for genome in brood:
                jobs.append(TrainingJob(genome, derive_seed(seed, "network", count), how.rungs[0], inherited=inherited))
                count += 1
        scores: dict[NetworkGenome, float] = {}
        for epochs in how.rungs:
            jobs = [replace(job, epochs=epochs) for job in jobs]
            found = train_graphs(jobs, resident, training)
            results = sorted(zip(map(score, found), range(len(jobs))), reverse=True)
            scores |= {jobs[n].genome: value for value, n in results}
            weights |= {jobs[n].genome: found[n].weights for _, n in results[:8]}
            value, n = results[0]
            if top is None or value > top[0]:
                top = (value, jobs[n].genome, found[n])
            seconds.append(time.perf_counter() - began)
            best.append(top[0])
            if top[0] >= target:
                break
            jobs = [replace(jobs[n], state=found[n].state) for _, n in results[: max(2, len(jobs) // how.eta)]]
        known = [*ranked, *((value, genome) for genome, value in scores.items() if genome in weights)]
        ranked = sorted(known, key=lambda pair: -pair[0])[:8]
        weights = {genome: weights[genome] for _, genome in ranked}
    cuda_graph.forget()
    assert top is not None
    test = evaluate(top[1], top[2].weights, data.test, resident)
    return Reached(tuple(seconds), tuple(best), test, count)


def score(found: TrainedNetwork) -> float:
    return max(accuracy for accuracy, _ in found.curve)


def compared(x: Any, y: Any, device: str, full: bool, say: Callable[[str], None]) -> tuple[Table, list[str]]:
    """Both ways on several seeds, the document's with its loaders and without, and in the original's ranges too."""
    lines, notes = [], []
    usual = NetworkSpace(norms=("batch",), dropout=(0.1, 0.5))
    little = NetworkSpace(conv_layers=(1, 1), filters=(2, 3), dense_layers=(1, 1), nodes=(4, 8), norms=("batch",))
    tests = [
        ("1 to 3 convolutions of 4 to 32, its loaders", usual, 3, 2, Ours(), True),
        ("the same, images on the GPU for both", usual, 3, 2, Ours(), False),
    ]
    if not full:
        tests = [("little networks", little, 1, 1, Ours(2, 2, (1, 2)), False)]
    for name, space, generations, seeds, how, loaders in tests:
        ratios, slow, fast = [], [], []
        for seed in range(1, seeds + 1):
            held = (len(x), 500) if full else (300, 50)
            data = from_arrays(
                x[: held[0]], y[: held[0]], validation=held[1], test=held[1], seed=seed, name="mnist-5000"
            )
            # Nobody pays for what PyTorch does once in a process.
            in_threads(
                [random_genome(space, random.Random(0))], Plain.of(Resident(data, device)), BATCH, 1, False, epochs=1
            )
            ours(data, device, space, 0, 0.0, 1.0, replace(how, families=1, rungs=(1,)))
            theirs = documented(data, device, space, seed, generations, loaders)
            target = theirs.best[-1]
            mine = ours(data, device, space, seed, target, 60.0, how)
            slow.append(theirs.until(target))
            fast.append(mine.until(target))
            ratios.append(slow[-1] / fast[-1])
            notes.append(
                f"end to end, {name}, seed {seed}: the document's way reached {target:.4f} after {slow[-1]:.1f} s of "
                f"{theirs.seconds[-1]:.1f} s and {theirs.trained} trainings (test {theirs.test:.4f}); ours "
                f"{mine.best[-1]:.4f} after {mine.seconds[-1]:.2f} s and {mine.trained} networks "
                f"(test {mine.test:.4f}; "
                + ", ".join(f"{best:.3f} at {second:.2f} s" for second, best in zip(mine.seconds, mine.best))
                + ")"
            )
            say(notes[-1])
        values = {
            "document's way, s": Sampled(tuple(slow)),
            "ours, s": Sampled(tuple(fast)),
            "x": Sampled(tuple(ratios)),
        }
        lines.append(Line(name, values, Target("x", 20.0, at_most=False) if loaders else None))
    return Table("end to end: seconds until the accuracy that the document's way ends with", lines), notes
