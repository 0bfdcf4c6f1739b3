"""The critic: predicts the feedback a response will get, and how sure it is, by Bayesian linear regression."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import Any, TypeAlias

from fanfold.errors import MissingExtra

try:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
except ImportError as error:
    raise MissingExtra("numpy", "critic", "the critic study") from error

__all__ = ["Array", "LinearCritic", "Prediction", "as_numbers", "as_text", "np"]

Array: TypeAlias = "NDArray[np.float64]"

#: Precisions of the weights' prior, in units of the noise; the evidence says how much each counts.
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
#: The noise's inverse-gamma prior: about 0.2 on feedback between 0 and 1.
SHAPE, RATE = 2.0, 0.04
#: What feedback is expected to be before there is any, and how many feedbacks that counts.
CENTRE, CENTRE_COUNT = 0.5, 1.0
#: A difference of this much makes the better of two responses preferred by 73 in 100.
PREFERENCE_SCALE = 0.15
#: Features vary by about this much at least, so one that was constant so far cannot explode when it first moves.
LEAST_SPREAD, FARTHEST = 0.2, 4.0


@dataclass(frozen=True)
class Prediction:
    """What the critic expects of some responses.

    `sd` is how unsure it is of the expected feedback (without the noise of a single one, which is `noise`);
    `confidence` is the share of its first uncertainty that evidence has removed; `drawn` is one possible truth.
    """

    mean: Array
    sd: Array
    confidence: Array
    noise: float
    drawn: Array


class LinearCritic:
    """Learns what feedback responses get.

    Normal-inverse-gamma regression on standardised features, averaged over a grid of prior precisions by their
    evidence, so noise and shrinkage are learnt.  All that is kept are sums: learning costs O(d^2), the order of
    feedback does not matter, and standardisation is exact at any time.  The posterior is worked out when next needed.

    A preference between two is a Bradley-Terry likelihood, taken in by its curvature where the critic stands.

    With a `half_life`, feedback counts half after so much more of it, so that a taste that changes is followed.
    """

    def __init__(self, size: int, half_life: float | None = None) -> None:
        self.size = size
        self._kept = 1.0 if half_life is None else 0.5 ** (1.0 / half_life)
        self.count = self.pairs = 0.0
        self._x: Array = np.zeros(size)
        self._xx: Array = np.zeros((size, size))
        self._xy: Array = np.zeros(size)
        self._y = np.zeros(2)  # sums of feedback and of its square
        self._dd: Array = np.zeros((size, size))  # the same for differences of two responses
        self._dt: Array = np.zeros(size)
        self._tt = 0.0
        self._posterior: _Posterior | None = None

    def learn(self, features: ArrayLike, score: float) -> None:
        """Take in the feedback that one response got."""
        x = np.asarray(features, dtype=np.float64)
        self._fade()
        self.count += 1.0
        self._x += x
        self._xx += np.outer(x, x)
        self._xy += score * x
        self._y += (score, score * score)
        self._posterior = None

    def prefer(self, first: ArrayLike, second: ArrayLike, share: float) -> None:
        """Take in a preference between two responses: `share` is 1 for the first, 0 for the second, 0.5 for neither."""
        a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
        posterior = self._now()
        gap = float(posterior.expect(posterior.standard(a) - posterior.standard(b)))
        likely = 1.0 / (1.0 + float(np.exp(-np.clip(gap / PREFERENCE_SCALE, -20.0, 20.0))))
        # A surprise far in the tail has next to no curvature: bounded, or its target would be at infinity.
        curvature = max(likely * (1.0 - likely), 0.05) / PREFERENCE_SCALE**2
        target = gap + (share - likely) / PREFERENCE_SCALE / curvature
        weight = curvature * posterior.noise**2
        delta = a - b
        self._fade()
        self.pairs += 1.0
        self._dd += weight * np.outer(delta, delta)
        self._dt += weight * target * delta
        self._tt += weight * target * target
        self._posterior = None

    def revise(self, features: ArrayLike, before: float, after: float, age: int) -> None:
        """Replace the feedback that a response got so many lessons ago."""
        share = self._kept**age
        self._xy += share * (after - before) * np.asarray(features, dtype=np.float64)
        self._y += (share * (after - before), share * (after**2 - before**2))
        self._posterior = None

    def _fade(self) -> None:
        """Let what is known count less, by one lesson."""
        if self._kept < 1.0:
            for name in ("count", "pairs", "_tt", "_x", "_xx", "_xy", "_y", "_dd", "_dt"):
                setattr(self, name, getattr(self, name) * self._kept)

    def predict(self, features: ArrayLike, rng: random.Random | None = None) -> Prediction:
        """What is expected of each row; with `rng`, also one draw of what the truth may be, jointly for all rows."""
        return self._now().predict(np.atleast_2d(np.asarray(features, dtype=np.float64)), rng)

    def _now(self) -> _Posterior:
        if self._posterior is None:
            self._posterior = self._fit()
        return self._posterior

    def _fit(self) -> _Posterior:
        n = max(self.count, 1.0)
        middle = self._x / n
        spread = np.maximum(np.sqrt(np.maximum(np.diag(self._xx) / n - middle**2, 0.0)), LEAST_SPREAD)
        level = (self._y[0] + CENTRE_COUNT * CENTRE) / (self.count + CENTRE_COUNT)
        gram = self._xx - self.count * np.outer(middle, middle) + self._dd
        cross = self._xy - self._y[0] * middle + self._dt
        square = self._y[1] + CENTRE_COUNT * CENTRE**2 - (self.count + CENTRE_COUNT) * level**2 + self._tt
        values, basis = np.linalg.eigh(gram / np.outer(spread, spread))
        values, turned = np.maximum(values, 0.0), basis.T @ (cross / spread)
        ridges = np.array(RIDGES)[:, None]
        shape = SHAPE + (self.count + self.pairs) / 2.0
        rates = RATE + 0.5 * np.maximum(square - (turned**2 / (values + ridges)).sum(axis=1), 0.0)
        evidence = 0.5 * np.log(ridges / (values + ridges)).sum(axis=1) - shape * np.log(rates)
        belief = np.exp(evidence - evidence.max())
        return _Posterior(
            middle=middle,
            spread=spread,
            level=float(level),
            basis=basis,
            weights=turned / (values + ridges),
            precisions=values + ridges,
            variances=rates / (shape - 1.0),
            belief=belief / belief.sum(),
            centre_count=self.count + CENTRE_COUNT,
        )

    def state(self) -> dict[str, Any]:
        """Everything learnt, as JSON-like values."""
        half = np.triu_indices(self.size)
        return {
            "size": self.size,
            "count": self.count,
            "pairs": self.pairs,
            "tt": self._tt,
            **{name: as_text(getattr(self, f"_{name}")) for name in ("x", "xy", "y", "dt")},
            **{name: as_text(getattr(self, f"_{name}")[half]) for name in ("xx", "dd")},
        }

    @classmethod
    def of(cls, state: dict[str, Any], half_life: float | None = None) -> LinearCritic:
        """The critic that `state()` described."""
        critic = cls(state["size"], half_life)
        critic.count, critic.pairs, critic._tt = state["count"], state["pairs"], state["tt"]
        for name in ("x", "xy", "y", "dt"):
            setattr(critic, f"_{name}", as_numbers(state[name]))
        half = np.triu_indices(critic.size)
        for name in ("xx", "dd"):
            matrix = np.zeros((critic.size, critic.size))
            matrix[half] = as_numbers(state[name])
            setattr(critic, f"_{name}", np.triu(matrix) + np.triu(matrix, 1).T)
        return critic


@dataclass(frozen=True)
class _Posterior:
    """What follows from the sums; one row per prior precision, in the basis of the features' own directions."""

    middle: Array
    spread: Array
    level: float
    basis: Array
    weights: Array
    precisions: Array
    variances: Array
    belief: Array
    centre_count: float

    @property
    def noise(self) -> float:
        return float(np.sqrt(self.belief @ self.variances))

    def standard(self, features: Array) -> Array:
        return np.clip((features - self.middle) / self.spread, -FARTHEST, FARTHEST)

    def expect(self, standard: Array) -> Any:
        """The expected difference from the level."""
        return standard @ self.basis @ (self.belief @ self.weights)

    def predict(self, features: Array, rng: random.Random | None) -> Prediction:
        turned = self.standard(features) @ self.basis
        each = self.level + self.weights @ turned.T
        mean = self.belief @ each
        unsure = self.variances[:, None] * ((1.0 / self.precisions) @ (turned**2).T + 1.0 / self.centre_count)
        first = self.variances[:, None] * ((turned**2).sum(axis=1)[None, :] / np.array(RIDGES)[:, None] + 1.0)
        variance = self.belief @ (unsure + (each - mean) ** 2)
        # Rounded, so that prompts nothing is known of are equal in that on every machine.
        confidence = np.clip(1.0 - (self.belief @ unsure) / (self.belief @ first), 0.0, 1.0).round(6)
        drawn = mean if rng is None else self._draw(turned, rng)
        return Prediction(mean, np.sqrt(variance), confidence, self.noise, drawn)

    def _draw(self, turned: Array, rng: random.Random) -> Array:
        """What the responses are worth if one set of weights, drawn by how likely it is, were the true one.

        Drawn from the joint distribution of the responses, not in the features' own directions: where these are not
        determined (fewer feedbacks than features), each machine may find others.
        """
        chosen = rng.choices(range(len(self.belief)), self.belief.tolist())[0]
        spread = (turned / self.precisions[chosen]) @ turned.T * self.variances[chosen]
        steady = spread + np.eye(len(spread)) * (1e-9 + 1e-6 * float(np.trace(spread)))
        luck = np.array([rng.gauss(0.0, 1.0) for _ in range(len(spread))])
        drawn: Array = self.level + turned @ self.weights[chosen] + np.linalg.cholesky(steady) @ luck
        return drawn


def as_text(numbers: Array) -> str:
    """Numbers as text that holds them exactly."""
    return base64.b64encode(np.ascontiguousarray(numbers, dtype="<f8").tobytes()).decode()


def as_numbers(text: str) -> Array:
    return np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64)
