"""Kernels of our own compute what PyTorch does: on a GPU, or on a processor in Triton's interpreter.

PyTorch for processors comes without Triton.  There one test starts the others in a process of their own, with the
Triton that `make test` keeps in `.venv-peers`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from neuro_world import apart
from torch import Tensor
from torch.nn import functional as F

from fanfold.studies.neuro import network, stacked_training
from fanfold.studies.neuro.data import Resident, from_arrays
from fanfold.studies.neuro.genome import ACTIVATIONS, OPTIMISERS
from fanfold.studies.neuro.space import NetworkSpace, random_genome
from fanfold.studies.neuro.stack_steps import StepOptions
from fanfold.studies.neuro.training import TrainingJob, TrainingSettings, train

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HERE = DEVICE == "cuda" or "TRITON_INTERPRET" in os.environ
ROOT = Path(__file__).parents[3]
PEERS = Path(os.environ.get("FANFOLD_PEERS") or ROOT / ".venv-peers")
on_kernels = pytest.mark.skipif(not HERE, reason="runs in the interpreter, by the first test of this file")
WHERE = {"device": DEVICE, "dtype": torch.float64}


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="the tests below run here")
def test_the_kernels_compute_what_pytorch_does_in_the_interpreter() -> None:
    site = next((PEERS / "triton").glob("lib/python*/site-packages/triton"), None)
    if site is None:
        pytest.skip("needs triton in an environment of its own: make .venv-peers/triton/.ready")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(site.parent)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "15 passed" in done.stdout, done.stdout[-5000:] + done.stderr[-1000:]


def by_torch(
    x: Tensor, weight: Tensor, gain: Tensor | None, shift: Tensor, running: tuple[Tensor, Tensor], activation: str
) -> Tensor:
    found = []
    for k in range(len(weight)):
        images = x[k if len(x) > 1 else 0]
        y = F.conv2d(images, weight[k], shift[k] if gain is None else None, padding=network.around(weight[k]))
        if gain is not None:
            y = F.batch_norm(y, running[0][k], running[1][k], gain[k], shift[k], True, network.MOMENTUM)
        found.append(network.activate(activation, network.pooled(y)))
    return torch.stack(found)


@on_kernels
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(
    ("networks", "shared", "size", "filters", "kernel", "activation"),
    [
        (2, False, (3, 2, 7, 7), 5, (3, 3), "relu"),  # an odd side: pooling leaves out the last row
        (3, True, (3, 1, 8, 8), 4, (5, 5), "tanh"),
        (2, True, (2, 4, 6, 6), 5, (5, 5), "selu"),  # shared, and too many weights to be gathered at once
        (1, True, (3, 1, 8, 8), 18, (3, 3), "sigmoid"),
        (2, False, (2, 2, 1, 9), 4, (1, 3), "leaky_relu"),  # a sequence
        (2, False, (1, 33, 4, 4), 34, (3, 3), "relu"),  # more than one block of channels and of filters
        (2, False, (2, 3, 2, 2), 4, (1, 1), "tanh"),  # too small to be pooled
    ],
)
def test_a_layer_and_its_slopes_are_those_of_pytorch(
    networks: int,
    shared: bool,
    size: tuple[int, ...],
    filters: int,
    kernel: tuple[int, int],
    activation: str,
    normed: bool,
) -> None:
    from fanfold.studies.neuro.convolutions import layer

    torch.manual_seed(1)
    x = torch.randn(1 if shared else networks, *size, **WHERE, requires_grad=not shared)
    weight = torch.randn(networks, filters, size[1], *kernel, **WHERE, requires_grad=True)
    gain = torch.randn(networks, filters, **WHERE, requires_grad=True) if normed else None
    shift = torch.randn(networks, filters, **WHERE, requires_grad=True)
    mine, theirs = ([torch.zeros_like(shift), torch.ones_like(shift)] for _ in range(2))
    found = layer(x, weight, gain, shift, tuple(mine) if normed else None, activation, True)
    expected = by_torch(x, weight, gain, shift, tuple(theirs), activation)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    slope, leaves = torch.randn_like(expected), [leaf for leaf in (x, weight, gain, shift) if leaf is not None]
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    pairs = zip(torch.autograd.grad(found, leaves, slope), torch.autograd.grad(expected, leaves, slope))
    for one, other in [*pairs, *zip(mine, theirs)]:
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@on_kernels
def test_networks_trained_by_kernels_become_what_each_becomes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, chance = np.random.default_rng(0), Random(1)
    pixels, labels = rng.integers(0, 255, (40, 7, 7), dtype=np.uint8), rng.integers(0, 3, 40)
    resident = Resident(from_arrays(pixels, labels, validation=8, test=0), DEVICE, "float64", 1)
    training = TrainingSettings(8, "float64", max_batches=1)
    jobs = []
    for n, activation in enumerate(ACTIVATIONS):
        genome = random_genome(NetworkSpace(filters=(4, 9)), chance)
        norm, decay = ("batch", "none")[n % 2], (0.0, 0.1)[n % 2]
        conv = tuple(replace(each, activation=activation) for each in genome.conv)
        genome = replace(genome, conv=conv, norm=norm, decay=decay, optimiser=OPTIMISERS[n % len(OPTIMISERS)])
        jobs += [TrainingJob(replace(genome, learning_rate=1e-3 * k), 10 * n + k, 2) for k in range(1, 3 - n % 2)]
    if DEVICE == "cpu":
        monkeypatch.setattr(stacked_training, "_how", lambda *_: StepOptions(0, channels_last=False, kernels=True))
    together = stacked_training.train_graphs(jobs, resident, training)
    for job, found in zip(jobs, together):
        alone = train(job, resident, training)
        assert apart(alone, found) < 1e-10 and alone.accuracy == found.accuracy
