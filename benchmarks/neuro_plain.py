"""What the neuro benchmarks compare with: networks in plain PyTorch, as they are usually written, and in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fanfold.studies.neuro.data import Data, Images, Resident
from fanfold.studies.neuro.genome import NetworkGenome, Shape
from fanfold.studies.neuro.layout import POOLED

ACTIVATIONS = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "selu": nn.SELU}
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
}


@dataclass(frozen=True, eq=False)
class Plain:
    """Images and labels as tensors on the device, normalised beforehand: to learn from, and to validate on."""

    images: Tensor
    labels: Tensor
    validation: tuple[Tensor, Tensor]
    shape: Shape

    @classmethod
    def of(cls, resident: Resident) -> Plain:
        images, labels = resident.batch(torch.arange(len(resident), device=resident.device), 0)
        seen, answers = resident.validation
        return cls(images.contiguous(), labels, (seen.contiguous(), answers), resident.shape)

    @property
    def device(self) -> torch.device:
        return self.images.device

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The images of an epoch, in a new order."""
        order = torch.randperm(len(self.labels), device=self.device)
        for place in range(0, len(order) - size + 1, size):
            index = order[place : place + size]
            yield self.images[index], self.labels[index]

    def accuracy(self, network: nn.Module) -> float:
        images, labels = self.validation
        return (network(images).argmax(1) == labels).float().mean().item()


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images one by one, as torchvision's MNIST gives them: made a tensor and normalised when they are asked for."""

    def __init__(self, images: Images, mean: Sequence[float], scale: Sequence[float]) -> None:
        from torchvision import transforms

        self._images = images
        self._made = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize([m / 255 for m in mean], [s / 255 for s in scale])]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        from PIL import Image

        return self._made(Image.fromarray(self._images.pixels[number, 0])), int(self._images.labels[number])


class Loaded:
    """Images through PyTorch's loaders with two workers each, as the document's notebook has them."""

    def __init__(self, data: Data, device: str) -> None:
        self.shape, self.device = data.shape, torch.device(device)
        self._train, self._validation = (
            Pictures(part, data.mean, data.scale) for part in (data.train, data.validation)
        )

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        yield from self._through(self._train, size, shuffle=True)

    def accuracy(self, network: nn.Module) -> float:
        right = sum(
            (network(images).argmax(1) == labels).sum().item()
            for images, labels in self._through(self._validation, 128)
        )
        return right / len(self._validation)

    def _through(self, pictures: Pictures, size: int, shuffle: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        pinned = self.device.type == "cuda"
        for images, labels in DataLoader(pictures, size, shuffle=shuffle, num_workers=2, pin_memory=pinned):
            yield images.to(self.device), labels.to(self.device)


def module(genome: NetworkGenome, shape: Shape) -> nn.Module:
    """The network of a genome from the layers of PyTorch."""
    layers: list[nn.Module] = []
    channels, height, width = shape.channels, shape.height, shape.width
    for conv in genome.conv:
        plain = genome.norm != "batch"
        layers.append(nn.Conv2d(channels, conv.filters, conv.kernel, padding=conv.kernel // 2, bias=plain))
        if not plain:
            layers.append(nn.BatchNorm2d(conv.filters))
        if min(height, width) >= POOLED:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        layers.append(ACTIVATIONS[conv.activation]())
        channels = conv.filters
    layers.append(nn.Flatten())
    inputs = channels * height * width
    for dense in genome.dense:
        layers += [nn.Linear(inputs, dense.nodes), ACTIVATIONS[dense.activation](), nn.Dropout(genome.dropout)]
        inputs = dense.nodes
    return nn.Sequential(*layers, nn.Linear(inputs, shape.classes))


def train(
    genome: NetworkGenome,
    plain: Plain | Loaded,
    batch: int,
    epochs: int = 1,
    patience: int | None = None,
    gain: float = 0.0,
    stream: Any = None,
    keep: Callable[[NetworkGenome, list[float], nn.Module], None] | None = None,
) -> list[float]:
    """Train one network; its validation accuracy after every epoch.  `keep` receives the result."""
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        network = module(genome, plain.shape).to(plain.device)
        optimiser = OPTIMISERS[genome.optimiser](network.parameters(), lr=genome.learning_rate)
        loss_of = nn.CrossEntropyLoss()
        found, best, since = list[float](), -1.0, 0
        for _ in range(epochs):
            network.train()
            for images, labels in plain.batches(batch):
                optimiser.zero_grad(set_to_none=True)
                loss_of(network(images), labels).backward()
                optimiser.step()
            network.eval()
            with torch.no_grad():
                found.append(plain.accuracy(network))
            best, since = (found[-1], 0) if found[-1] > best + gain else (best, since + 1)
            if patience is not None and since >= patience:
                break
        if keep is not None:
            keep(genome, found, network)
        return found


def in_threads(
    genomes: Sequence[NetworkGenome], plain: Plain | Loaded, batch: int, threads: int, streams: bool, **how: Any
) -> list[list[float]]:
    """Train networks in threads that share the device, each with the default stream or with one of its own."""
    free = [torch.cuda.Stream(plain.device) if streams else None for _ in range(threads)]

    def one(genome: NetworkGenome) -> list[float]:
        stream = free.pop()
        try:
            return train(genome, plain, batch, stream=stream, **how)
        finally:
            free.append(stream)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, genomes))
