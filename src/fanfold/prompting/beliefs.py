"""What parts of prompts are worth: a Bayesian linear model over features, and draws from what it believes."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: A prompt's features with their values; what is not named is 0.
Features: TypeAlias = Mapping[str, float]

#: Prior variance of the worth of one feature, in squared accuracy.
PRIOR = 0.03


class Beliefs:
    """Scores of prompts, each the mean over some cases, explained as a sum of what their features are worth.

    A score over n cases is seen with the variance of a share of n draws and a little that features do not explain.
    """

    def __init__(self, noise: float = 0.25, unexplained: float = 0.01) -> None:
        self._noise, self._unexplained = noise, unexplained
        self._rows: list[tuple[Features, float, int]] = []
        self._known: PartWorths | None = None

    def see(self, features: Features, score: float, cases: int) -> None:
        self._rows.append((features, score, cases))
        self._known = None

    def posterior(self) -> PartWorths:
        """What is believed by now; worked out once for all that is proposed before the next score."""
        if self._known is None:
            self._known = PartWorths(self._rows, self._noise, self._unexplained)
        return self._known


class PartWorths:
    """What is believed at one moment.  Features that were never seen are worth what the prior says: nothing, or so."""

    def __init__(self, rows: Sequence[tuple[Features, float, int]], noise: float, unexplained: float) -> None:
        names = sorted({name for features, _, _ in rows for name in features})
        self._at = {name: place for place, name in enumerate(names)}
        weights = [1.0 / (noise / cases + unexplained) for _, _, cases in rows]
        total = sum(weights)
        self.base = sum(weight * score for weight, (_, score, _) in zip(weights, rows)) / total if rows else 0.5
        size = len(names)
        precision = [[0.0] * size for _ in range(size)]
        pull = [0.0] * size
        for place in range(size):
            precision[place][place] = 1.0 / PRIOR
        for weight, (features, score, _) in zip(weights, rows):
            entries = [(self._at[name], value) for name, value in features.items()]
            for one, value in entries:
                pull[one] += weight * value * (score - self.base)
                row = precision[one]
                for other, second in entries:
                    row[other] += weight * value * second
        self._factor = _cholesky(precision)
        self.worth = _back(self._factor, _forward(self._factor, pull))

    def expected(self, features: Features) -> float:
        """The score that a prompt with these features is expected to have."""
        return self.base + self._sum(self.worth, features)

    def draw(self, rng: random.Random, spread: float = 1.0) -> Draw:
        """One possible world: what every feature is worth in it, `spread` times as uncertain as it is."""
        noise = _back(self._factor, [rng.gauss(0.0, 1.0) for _ in self.worth])
        return Draw(self, [mean + spread * part for mean, part in zip(self.worth, noise)], rng, spread)

    def _sum(self, worth: Sequence[float], features: Features) -> float:
        return sum(worth[self._at[name]] * value for name, value in features.items() if name in self._at)


class Draw:
    """A draw from a posterior; what a feature that was never seen is worth in it is drawn when it is first met."""

    def __init__(self, posterior: PartWorths, worth: Sequence[float], rng: random.Random, spread: float) -> None:
        self._posterior, self._worth, self._rng = posterior, worth, rng
        self._spread = spread * math.sqrt(PRIOR)
        self._new: dict[str, float] = {}

    def score(self, features: Features) -> float:
        known = self._posterior._sum(self._worth, features)
        for name, value in features.items():
            if name not in self._posterior._at:
                if name not in self._new:
                    self._new[name] = self._rng.gauss(0.0, self._spread)
                known += self._new[name] * value
        return known


def _cholesky(matrix: list[list[float]]) -> list[list[float]]:
    """The lower triangle L of a positive definite matrix L Lt; a few dozen rows, so plain lists will do."""
    size = len(matrix)
    factor = [[0.0] * size for _ in range(size)]
    for i in range(size):
        row = factor[i]
        for j in range(i + 1):
            other = factor[j]
            rest = matrix[i][j] - sum(map(operator.mul, row, other[:j]))
            row[j] = math.sqrt(rest) if i == j else rest / other[j]
    return factor


def _forward(factor: list[list[float]], values: Sequence[float]) -> list[float]:
    """x of L x = values."""
    solved: list[float] = []
    for row, value in zip(factor, values):
        solved.append((value - sum(part * known for part, known in zip(row, solved))) / row[len(solved)])
    return solved


def _back(factor: list[list[float]], values: Sequence[float]) -> list[float]:
    """x of Lt x = values."""
    size = len(values)
    solved = [0.0] * size
    for i in range(size - 1, -1, -1):
        rest = values[i] - sum(factor[k][i] * solved[k] for k in range(i + 1, size))
        solved[i] = rest / factor[i][i]
    return solved
