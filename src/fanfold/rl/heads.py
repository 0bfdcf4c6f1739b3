"""What a policy's outputs mean: chances of actions, and the slopes of their logarithms.

A head reads the outputs of a network, one row an observation.  Actions are rows, too: whole numbers of choices, or
numbers of a continuous action in units of its range.  `where` says to which row of outputs each action belongs, so
that an observation met many times is computed once.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

#: What the output of a masked choice is set to.
MASKED = -1e9
#: The constants of SplitMix64, the generator behind an episode's choices.
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def draws(keys: Array, count: int) -> Array:
    """So many numbers between 0 and 1 of every episode's own luck, in rows: `keys` moves behind them."""
    ahead = _GOLDEN * np.arange(1, count + 1, dtype=np.uint64)
    mixed = keys[:, None] + ahead
    keys += ahead[-1]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    points: Array = (mixed >> np.uint64(11)) * 2.0**-53
    return points


def log_softmax(scores: Array) -> Array:
    scores = scores - scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores


@dataclass(frozen=True)
class Categories:
    """Choices among finitely many, independent of each other: one of `sizes[k]` in column k of an action.

    One choice is a Discrete space, several are a MultiDiscrete or, with two ways each, a MultiBinary one.  Actions of
    one choice have no columns.
    """

    sizes: tuple[int, ...]

    @property
    def outputs(self) -> int:
        return sum(self.sizes)

    #: How many of the outputs are the network's own; the others are weights that do not look at the observation.
    own = outputs

    def spans(self) -> list[slice]:
        """Where the outputs of each choice stand."""
        return [slice(*ends) for ends in itertools.pairwise(itertools.accumulate(self.sizes, initial=0))]

    def stuck(self, mask: Array) -> bool:
        """Whether a mask leaves some choice nothing."""
        return not all(mask[span].any() for span in self.spans())

    def _logs(self, outputs: Array) -> Array:
        if len(self.sizes) == 1:
            return log_softmax(outputs)
        return np.concatenate([log_softmax(outputs[:, span]) for span in self.spans()], axis=1)

    def best(self, outputs: Array) -> Array:
        return self._rows([outputs[:, span].argmax(axis=1) for span in self.spans()])

    def sample(self, outputs: Array, keys: Array) -> Array:
        """An action for every row of outputs, drawn by the row's own key."""
        points, columns = draws(keys, len(self.sizes)), []
        for column, span in enumerate(self.spans()):
            scores = outputs[:, span]
            bounds = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64).cumsum(axis=1)
            passed: Array = bounds[:, :-1] <= (points[:, column] * bounds[:, -1])[:, None]
            columns.append(passed.sum(axis=1))
        return self._rows(columns)

    def _rows(self, columns: list[Array]) -> Array:
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)

    def _columns(self, actions: Array) -> Array:
        """Where in a row of outputs each choice of an action stands."""
        offsets = np.array([span.start for span in self.spans()])
        places: Array = actions.reshape(len(actions), len(self.sizes)).astype(np.int64) + offsets
        return places

    def log_chances(self, outputs: Array, where: Array, actions: Array) -> Array:
        logs: Array = self._logs(outputs)[where[:, None], self._columns(actions)]
        return logs.sum(axis=1) if logs.shape[1] > 1 else logs[:, 0]

    def slope(self, outputs: Array, where: Array, actions: Array, pull: Array, bonus: Array) -> Array:
        """Of minus `pull` times each action's log-chance and minus `bonus` times each row's entropy, in the outputs."""
        logs, kind = self._logs(outputs), outputs.dtype
        slope: Array = np.exp(logs)
        pulls = np.bincount(where, pull, minlength=len(outputs)).astype(kind)[:, None]
        if not bonus.any():
            slope *= pulls
        else:
            bonus = bonus.astype(kind)[:, None]
            for span in self.spans():
                chance, log = slope[:, span], logs[:, span]
                log -= (chance * log).sum(axis=1, keepdims=True)
                log *= bonus
                log += pulls
                chance *= log
        places = where[:, None] * outputs.shape[1] + self._columns(actions)
        np.subtract.at(slope.reshape(-1), places.ravel(), np.repeat(pull.astype(kind), places.shape[1]))
        return slope

    def entropy(self, outputs: Array) -> Array:
        logs = self._logs(outputs)
        undecided: Array = -(np.exp(logs) * logs).sum(axis=1)
        return undecided


@dataclass(frozen=True)
class Gaussian:
    """A continuous action of `size` numbers, each drawn around its mean: a Box space.

    Numbers are in units of the space's range (`spaces.Box`), which clips them where the environment gets them.  Outputs
    are the means and the logarithms of the deviations; a network of ours learns the latter as weights that are the same
    everywhere.
    """

    size: int

    @property
    def outputs(self) -> int:
        return 2 * self.size

    @property
    def own(self) -> int:
        return self.size

    def best(self, outputs: Array) -> Array:
        return outputs[:, : self.size]

    def sample(self, outputs: Array, keys: Array) -> Array:
        points = draws(keys, 2 * self.size)
        radius = np.sqrt(-2.0 * np.log1p(-points[:, : self.size]))
        luck = radius * np.cos(2.0 * math.pi * points[:, self.size :])
        actions: Array = outputs[:, : self.size] + np.exp(outputs[:, self.size :]) * luck
        return actions.astype(np.float32)

    def log_chances(self, outputs: Array, where: Array, actions: Array) -> Array:
        log_deviations = outputs[where, self.size :]
        distance = (actions - outputs[where, : self.size]) * np.exp(-log_deviations)
        logs: Array = -(0.5 * distance * distance + log_deviations + 0.5 * math.log(2.0 * math.pi)).sum(axis=1)
        return logs

    def slope(self, outputs: Array, where: Array, actions: Array, pull: Array, bonus: Array) -> Array:
        """As of `Categories`; the entropy grows with the deviations alone."""
        inverse = np.exp(-outputs[where, self.size :])
        distance = (actions - outputs[where, : self.size]) * inverse
        slopes = np.hstack([-pull[:, None] * distance * inverse, -pull[:, None] * (distance * distance - 1.0)])
        slope: Array = np.stack(
            [np.bincount(where, slopes[:, column], minlength=len(outputs)) for column in range(self.outputs)], axis=1
        )
        slope[:, self.size :] -= bonus[:, None]
        return slope

    def entropy(self, outputs: Array) -> Array:
        undecided: Array = (outputs[:, self.size :] + 0.5 * math.log(2.0 * math.pi * math.e)).sum(axis=1)
        return undecided


Head: TypeAlias = Categories | Gaussian
