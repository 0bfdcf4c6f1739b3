"""Measures the training of networks on a processor: one at a time, on threads and in processes, pinned and unpinned.

python benchmarks/neuro_engines.py --quick
python benchmarks/neuro_engines.py --json neuro_engines.json --strict

A network is trained for 32 steps of 128 images over 4,096 images of MNIST, and then scored on 904 others (`--quick`:
fewer steps).  Tiny: convolutions of 4 and 8 filters and a dense layer of 32 nodes; small: 16, 32 and 128; mixed: random
genomes of 1 to 3 convolutions of 4 to 32 filters and 1 or 2 dense layers of 32 to 128 nodes.  All ways take turns, so
that ratios are taken within a round.  With one thread inside, all ways must come to the same weights, bit for bit.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import torch
from measure import Line, Sampled, Table, Target, stopwatch
from torch import Tensor, nn

from fanfold.encoding import derive_seed, digest
from fanfold.executors import Executor, Inline, Processes, Threads
from fanfold.studies.neuro.data import Resident, Source, resident
from fanfold.studies.neuro.genome import Conv, Dense, NetworkGenome
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.training import Session, TrainingJob, TrainingSettings, pinned_threads, train
from fanfold.sync import run_sync
from models import parse, publish

SOURCE = Source("mnist-5000", validation=904, test=0)
RATE, RATIO, WORTH = "networks/s", "x sequential", "x unpinned"
#: Where they run, and how many threads are inside each training; none: as many as PyTorch takes by itself.
WAYS: dict[str, tuple[str, int | None]] = {
    "one at a time, PyTorch's threads": ("inline", None),
    "one at a time, 1 thread": ("inline", 1),
    "2 threads x 1": ("threads", 1),
    "2 threads x PyTorch's": ("threads", None),
    "2 processes x 1": ("processes", 1),
    "2 processes x PyTorch's": ("processes", None),
}
SEQUENTIAL, _, *_CONCURRENT = WAYS
PINNED, UNPINNED = _CONCURRENT[::2], _CONCURRENT[1::2]
#: What the better of threads and processes must reach with small networks, and what pinning must be worth with tiny.
CONCURRENT, PINNING = 1.3, 1.5


@dataclass(frozen=True)
class Sizes:
    """How often everything is measured, the networks of a round by size, and the steps of each."""

    repeats: int
    tiny: int
    small: int
    mixed: int
    steps: int


FULL = Sizes(7, 8, 8, 16, 32)
QUICK = Sizes(3, 4, 4, 8, 8)
TINY = Sizes(1, 2, 2, 2, 1)


def _network(first: int, second: int, nodes: int) -> NetworkGenome:
    convs = (Conv(first, 3, "relu"), Conv(second, 3, "relu"))
    return NetworkGenome(convs, (Dense(nodes, "relu"),), "batch", 0.3, "adam", 1e-3)


def genomes(size: str, count: int) -> list[NetworkGenome]:
    if size == "mixed":
        rng = random.Random(7)
        space = NetworkSpace(norms=("batch",), dropout=(0.1, 0.5))
        return [random_genome(space, rng) for _ in range(count)]
    return [_network(4, 8, 32) if size == "tiny" else _network(16, 32, 128)] * count


def trained(genome: NetworkGenome, seed: int, steps: int, threads: int) -> str:
    """One network; what it came to, in short."""
    torch.set_num_threads(threads)
    found = train(TrainingJob(genome, seed, 1), resident(SOURCE), TrainingSettings(max_batches=steps))
    return digest(found.state).hex()


# ---------------------------------------------------------------- many networks


def measure(sizes: Sizes) -> Iterator[Table]:
    threads = torch.get_num_threads()
    try:
        for size in ("tiny", "small", "mixed"):
            chosen = genomes(size, getattr(sizes, size))
            rounds = run_sync(lambda chosen=chosen: _rounds(sizes, chosen, threads))
            yield _compared(size, sizes, len(chosen), threads, rounds)
        yield _step(sizes)
    finally:
        torch.set_num_threads(threads)


async def _rounds(sizes: Sizes, chosen: Sequence[NetworkGenome], default: int) -> dict[str, list[float]]:
    """Networks per second of each way, one sample of each in every round."""
    places: dict[str, Executor] = {}
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    weights: set[tuple[str, ...]] = set()
    async with AsyncExitStack() as stack:
        for way, (where, inside) in WAYS.items():
            kinds: dict[str, Callable[[], Executor]] = {
                "inline": Inline,
                "threads": lambda: Threads(2),
                "processes": lambda inside=inside: Processes(2, inside or default),
            }
            places[way] = await stack.enter_async_context(kinds[where]())
            # Workers start, load the images and choose their kernels before anything is timed.
            await _all(places[way], chosen[:2], 1, inside or default)
        for _ in range(sizes.repeats):
            for way, (_, inside) in WAYS.items():
                began = time.perf_counter()
                done = await _all(places[way], chosen, sizes.steps, inside or default)
                found[way].append(len(chosen) / (time.perf_counter() - began))
                if inside == 1:
                    weights.add(done)
    if len(weights) != 1:
        raise SystemExit("the same networks came to other weights elsewhere: these times compare different things")
    return found


async def _all(executor: Executor, chosen: Sequence[NetworkGenome], steps: int, threads: int) -> tuple[str, ...]:
    waiting, done = iter(enumerate(chosen)), dict.fromkeys(range(len(chosen)), "")

    async def work() -> None:
        for number, genome in waiting:
            done[number] = await executor.run(trained, genome, number, steps, threads)

    await asyncio.gather(*(work() for _ in range(executor.slots)))
    return tuple(done.values())


def _compared(size: str, sizes: Sizes, count: int, threads: int, rounds: dict[str, list[float]]) -> Table:
    def over(ways: Sequence[str], others: Sequence[str]) -> Sampled:
        """In each round the best of some ways over the best of others."""
        samples = zip(zip(*(rounds[way] for way in ways)), zip(*(rounds[way] for way in others)))
        return Sampled(tuple(max(mine) / max(theirs) for mine, theirs in samples))

    lines = []
    for way, rates in rounds.items():
        lines.append(Line(way, {RATE: Sampled(tuple(rates)), RATIO: over([way], [SEQUENTIAL])}))
    target = Target(RATIO, CONCURRENT, at_most=False) if size == "small" else None
    lines.append(Line("the better of threads and processes x 1", {RATIO: over(PINNED, [SEQUENTIAL])}, target))
    for pinned, unpinned in zip(PINNED, UNPINNED):
        needed = Target(WORTH, PINNING, at_most=False) if size == "tiny" and "processes" in pinned else None
        lines.append(Line(f"{pinned} over {unpinned}", {WORTH: over([pinned], [unpinned])}, needed))
    title = f"{count} {size} networks, {sizes.steps} steps each; PyTorch takes {threads} thread(s) by itself"
    return Table(f"{title}; with 1 thread the same weights everywhere", lines)


# ---------------------------------------------------------------- one step


class _ChannelsFirst(Resident):
    """The images as most programs lay them out."""

    def batch(self, index: Tensor, base: int | Tensor, augment: str = "data") -> tuple[Tensor, Tensor]:
        images, labels = super().batch(index, base, augment)
        # With one channel the images are contiguous in both orders, and contiguous() would change nothing.
        return images.clone(memory_format=torch.contiguous_format), labels


def _step(sizes: Sizes) -> Table:
    """CPU time of a step on one thread, against PyTorch's own modules and optimiser on the same batches."""
    data = SOURCE.load()
    last, first = Resident(data), _ChannelsFirst(data)
    samples: dict[str, dict[str, list[float]]] = {}
    with pinned_threads():
        for size in ("tiny", "small"):
            genome = genomes(size, 1)[0]
            ways: dict[str, Callable[[int], None]] = {
                "modules and torch.optim": _modules(genome, first, pool_first=False),
                "the same, channels last": _modules(genome, last, pool_first=False),
                "the same, pooled before activated": _modules(genome, last, pool_first=True),
                "this training, channels first": _ours(genome, first),
                "this training": _ours(genome, last),
            }
            for way in ways.values():
                way(2)
            for _ in range(sizes.repeats):
                for name, way in ways.items():
                    with stopwatch() as watch:
                        way(sizes.steps)
                    taken = samples.setdefault(name, {}).setdefault(size, [])
                    taken.append(1000 * watch.cpu / sizes.steps)
    lines = []
    for name, taken in samples.items():
        values = {f"{size}, CPU-ms": Sampled(tuple(times)) for size, times in taken.items()}
        for size, times in taken.items():
            plain = samples["modules and torch.optim"][size]
            values[f"{size}, x modules"] = Sampled(tuple(a / b for a, b in zip(plain, times)))
        lines.append(Line(name, values))
    return Table("A step of 128 images on one thread, its batch included", lines)


def _ours(genome: NetworkGenome, images: Resident) -> Callable[[int], None]:
    session = Session(TrainingJob(genome, 1, 1), images, TrainingSettings())
    order = images.order(0)

    def steps(count: int) -> None:
        for number in range(count):
            session.step(*images.batch(order[128 * number : 128 * number + 128], 0))

    return steps


def _modules(genome: NetworkGenome, images: Resident, pool_first: bool) -> Callable[[int], None]:
    """The network as PyTorch's users write it."""
    layers: list[nn.Module] = []
    channels, side = images.shape.channels, images.shape.height
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(1, "modules"))
        for conv in genome.conv:
            layers += [
                nn.Conv2d(channels, conv.filters, conv.kernel, padding=1, bias=False),
                nn.BatchNorm2d(conv.filters),
            ]
            layers += [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]
            channels, side = conv.filters, side // 2
        nodes = genome.dense[0].nodes
        layers += [nn.Flatten(), nn.Linear(channels * side * side, nodes), nn.ReLU(), nn.Dropout(genome.dropout)]
        network = nn.Sequential(*layers, nn.Linear(nodes, images.shape.classes))
    optimiser = torch.optim.Adam(network.parameters(), lr=genome.learning_rate)
    order = images.order(0)

    def steps(count: int) -> None:
        for number in range(count):
            pixels, labels = images.batch(order[128 * number : 128 * number + 128], 0)
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(pixels), labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return steps


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(__doc__ or "", "neuro_engines.json", arguments)
    sizes = QUICK if options.quick else FULL
    return publish(measure(sizes), sizes, options.json, options.strict)


if __name__ == "__main__":
    sys.exit(main())
