"""Policies: what plays and learns.  The network of numpy here is fast where observations are rows of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from fanfold.rl import ppo
from fanfold.rl.experience import Experience
from fanfold.rl.heads import MASKED, Array, Gaussian, Head
from fanfold.rl.network import LOG_DEVIATION, forward, initial, values
from fanfold.rl.ppo import Adam, Ppo
from fanfold.tensors import Arrays

#: The mean, the deviation and the number of the observations so far; with the weights, so that a version plays the
#: same wherever and whenever it does.
MEAN, DEVIATION, COUNT = "observation.mean", "observation.deviation", "observation.count"
#: What normalised observations are multiplied by, where some parts are much wider than others.
SHARE = "observation.share"
#: Where the logarithms of the deviations of continuous actions begin.
BROAD = -0.5
#: The score of an action that is never to be taken: too low to be chosen, or to be learnt from.
BARRED = -30.0
#: How many deviations from the mean an observation counts at most.
FAR = 10.0

#: Numbers of columns, and what they are multiplied by.
Shares: TypeAlias = tuple[tuple[int, float], ...]


class Policy(Protocol):
    """What collection and learning ask of a policy.  Its weights are arrays, which travel as safetensors.

    A row is what an environment observed, as numbers (`spaces.Encoder`), followed by the mask of allowed choices where
    the environment has one.  `head` says what the outputs mean.
    """

    @property
    def head(self) -> Head: ...

    def initial(self, seed: int) -> Arrays:
        """Fresh weights."""

    def outputs(self, weights: Arrays, rows: Array) -> Array:
        """What the head reads, for every row."""

    def judge(self, weights: Arrays, rows: Array) -> tuple[Array, Array]:
        """What the head reads, and the return that is expected from there on."""

    def observe(self, weights: Arrays, rows: Array, visits: Array) -> Arrays:
        """The weights with what is remembered of observations: each row was met `visits` times."""

    def learn(
        self, weights: Arrays, adam: Adam, experience: Experience, settings: Ppo, progress: float, seed: int
    ) -> tuple[Arrays, float]:
        """The weights after an update, and how far the policy moved; `progress` goes from 0 to 1."""


def act(policy: Policy, weights: Arrays, rows: Array, keys: Array, greedy: bool) -> Array:
    """An action for every row, by its own luck: `keys` moves to the next draws."""
    outputs = policy.outputs(weights, rows)
    return policy.head.best(outputs) if greedy else policy.head.sample(outputs, keys)


@dataclass(frozen=True)
class Mlp:
    """A policy and a value network, each with two hidden layers of tanh, in numpy.

    Observations are `width` numbers, or as many bits packed into words (`uint64`); the networks see them followed by
    `context`, which is the same at every step.  With `normalise` they see them in deviations from the mean of all so
    far, times their `shares` (`spaces.Encoder`).  Actions that are `barred` are never taken.
    """

    width: int
    head: Head
    context: tuple[float, ...] = ()
    hidden: int = 64
    normalise: bool = False
    barred: tuple[int, ...] = ()
    shares: Shares = ()

    @property
    def fingerprint(self) -> dict[str, Any]:
        return identity_of(self)

    def initial(self, seed: int) -> Arrays:
        weights = initial(self.width + len(self.context), self.head.own, self.hidden, seed)
        weights["policy.2.bias"][list(self.barred)] = BARRED
        return weights | beside(self.head, self.width, self.normalise, self.shares)

    def inputs(self, weights: Arrays, rows: Array) -> Array:
        """Rows as the networks see them."""
        if rows.dtype == np.uint64:
            octets = np.ascontiguousarray(rows, "<u8").reshape(len(rows), -1).view(np.uint8)
            seen: Array = np.unpackbits(octets, axis=1, count=self.width, bitorder="little").astype(np.float32)
        else:
            seen = np.asarray(rows[:, : self.width], np.float32)
        seen = normalised(weights, seen)
        if not self.context:
            return seen
        return np.hstack([seen, np.tile(np.asarray(self.context, np.float32), (len(seen), 1))])

    def masks(self, rows: Array) -> Array | None:
        """Which choices are allowed, where rows say so."""
        return rows[:, self.width :] if rows.dtype != np.uint64 and rows.shape[1] > self.width else None

    def read(self, weights: Arrays, own: Array, masks: Array | None) -> Array:
        """What the head reads, from the network's own outputs."""
        if isinstance(self.head, Gaussian):
            return np.hstack([own, np.broadcast_to(weights[LOG_DEVIATION], own.shape)])
        return own if masks is None else np.where(masks > 0, own, own.dtype.type(MASKED))

    def outputs(self, weights: Arrays, rows: Array) -> Array:
        own = forward(weights, "policy", self.inputs(weights, rows))[2]
        return self.read(weights, own, self.masks(rows))

    def judge(self, weights: Arrays, rows: Array) -> tuple[Array, Array]:
        inputs = self.inputs(weights, rows)
        own = forward(weights, "policy", inputs)[2]
        return self.read(weights, own, self.masks(rows)), values(weights, inputs)

    def observe(self, weights: Arrays, rows: Array, visits: Array) -> Arrays:
        if not self.normalise:
            return weights
        return observed(weights, rows[:, : self.width], visits)

    def learn(
        self, weights: Arrays, adam: Adam, experience: Experience, settings: Ppo, progress: float, seed: int
    ) -> tuple[Arrays, float]:
        return ppo.update(self, weights, adam, experience, settings, progress, seed)


def identity_of(policy: Any) -> dict[str, Any]:
    """What decides what a policy does; runs of versions that knew no shares continue where there are none."""
    return {name: value for name, value in vars(policy).items() if name != "shares" or value}


def beside(head: Head, width: int, normalise: bool, shares: Shares) -> Arrays:
    """What a policy begins with beside its networks: broad actions, and nothing known of observations."""
    weights: Arrays = {}
    if isinstance(head, Gaussian):
        weights[LOG_DEVIATION] = np.full(head.size, BROAD, np.float32)
    if normalise:
        weights |= {MEAN: np.zeros(width), DEVIATION: np.ones(width), COUNT: np.zeros(1)}
        if shares:
            weights[SHARE] = np.concatenate([np.full(columns, share, np.float32) for columns, share in shares])
    return weights


def normalised(weights: Arrays, seen: Array) -> Array:
    """Observations in deviations from the mean of all so far, where a policy sees them so."""
    if MEAN not in weights:
        return seen
    apart = np.clip((seen - weights[MEAN]) / weights[DEVIATION], -FAR, FAR)
    return (apart * weights[SHARE] if SHARE in weights else apart).astype(np.float32)


def observed(weights: Arrays, rows: Array, visits: Array, within: Array | float = 0.0) -> Arrays:
    """The weights with the mean and deviation of all observations so far and these, each met `visits` times.

    Rows may be means of many numbers; `within` is then the variance of those.
    """
    seen, share = rows.astype(np.float64), visits / visits.sum()
    mean = share @ seen
    variance = share @ (np.square(seen - mean) + within)
    before, count = float(weights[COUNT][0]), float(visits.sum())
    part = count / (before + count)
    apart = mean - weights[MEAN]
    together = (1 - part) * np.square(weights[DEVIATION]) * (before > 0) + part * variance
    together += part * (1 - part) * np.square(apart)
    return weights | {
        MEAN: weights[MEAN] + part * apart,
        DEVIATION: np.sqrt(np.maximum(together, 1e-6)),
        COUNT: np.array([before + count]),
    }
