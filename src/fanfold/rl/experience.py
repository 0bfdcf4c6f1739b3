"""What was played, and what learning needs of it: advantages and targets, summed over equal steps.

Steps with the same observation and action enter the loss only through sums (`Experience`), so an update costs what the
*distinct* pairs cost, and its gradient is exactly that of all steps.  Where no observation repeats, every step is a
pair of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fanfold.rl.heads import Array
from fanfold.tensors import Arrays, pack, unpack

if TYPE_CHECKING:
    from fanfold.rl.policy import Policy


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Episodes in rows, padded to the longest: numbers of observations, actions and rewards by step.

    `final` is the observation that followed an episode's last step where the episode was only cut off, and -1 where
    it was terminated; `log_chance` is what the policy that played thought of each action.
    """

    observations: Array
    index: Array
    actions: Array
    rewards: Array
    lengths: Array
    final: Array
    log_chance: Array

    @property
    def inside(self) -> Array:
        """Which places in the rows are steps."""
        within: Array = np.arange(self.index.shape[1]) < self.lengths[:, None]
        return within


@dataclass(frozen=True, eq=False)
class Experience:
    """What a policy met, folded: all that the clipped loss and the value loss depend on.

    Observations are distinct: packed bits (`uint64`, a word or a row of words each), or rows of numbers.  `where` and
    `action` are the distinct pairs (one per policy version), `log_chance` what the policy that played thought of them;
    `gain` and `loss` are the sums of their steps' positive and of their negative advantages.
    """

    observations: Array
    visits: Array
    targets: Array
    where: Array
    action: Array
    log_chance: Array
    count: Array
    gain: Array
    loss: Array
    #: Sums over all steps of squared advantages and of squared targets.
    squares: Array

    @property
    def steps(self) -> int:
        return int(self.visits.sum())

    @property
    def scale(self) -> float:
        """What advantages are divided by: the root of their mean square."""
        return math.sqrt(float(self.squares[0]) / self.steps) + 1e-8


#: Steps are folded where distinct observations are at most this share of them.
REPEATED = 0.8
OF_PAIRS = ("action", "log_chance", "count", "gain", "loss")


def advantages(
    rewards: Array,
    expected: Array,
    finally_expected: Array,
    lengths: Array,
    discount: float,
    trace: float,
    ratios: Array | None = None,
) -> tuple[Array, Array]:
    """Generalised advantages and value targets of episodes in rows, padded to a common length.

    `expected` are the values of the observations, `finally_expected` that of what followed an episode's last step: 0
    where the episode was terminated, and what could still have come where it was only cut off.  With `ratios`, the
    chance of each action now over its chance when it was played, targets are V-trace's.
    """
    episodes, steps = rewards.shape
    after = np.zeros((episodes, steps))
    after[:, :-1] = expected[:, 1:]
    after[np.arange(episodes), lengths - 1] = finally_expected
    surprise = rewards + discount * after - expected
    kept = np.ones_like(surprise) if ratios is None else np.minimum(ratios, 1.0)
    inside = np.arange(steps) < np.asarray(lengths)[:, None]
    gains, corrections = np.zeros((episodes, steps)), np.zeros((episodes, steps + 1))
    for t in range(steps - 1, -1, -1):
        later = discount * trace * corrections[:, t + 1]
        gains[:, t] = inside[:, t] * (surprise[:, t] + later)
        corrections[:, t] = inside[:, t] * kept[:, t] * (surprise[:, t] + later)
    return gains, expected + corrections[:, :-1]


def fold(
    observations: Array, index: Array, action: Array, advantage: Array, target: Array, log_chance: Array
) -> Experience:
    """Steps folded to distinct pairs; `index` numbers each step's observation.

    Where observations hardly repeat, and for actions of several columns, every step is a pair of its own.
    """
    n, steps, log_chance = len(observations), len(index), log_chance.astype(np.float64)
    positive, negative = np.maximum(advantage, 0.0), np.minimum(advantage, 0.0)
    squares = np.array([np.square(advantage).sum(), np.square(target).sum()])
    if action.ndim > 1 or n > REPEATED * steps:
        once = np.ones(steps, np.int64)
        return Experience(
            observations[index], once, target, np.arange(steps), action, log_chance, once, positive, negative, squares
        )
    actions = int(action.max()) + 1
    pairs, first, pair, count = np.unique(
        index.astype(np.int64) * actions + action, return_index=True, return_inverse=True, return_counts=True
    )
    return Experience(
        observations,
        np.bincount(index, minlength=n),
        np.bincount(index, target, minlength=n),
        pairs // actions,
        pairs % actions,
        log_chance[first],
        count,
        np.bincount(pair, positive, minlength=len(pairs)),
        np.bincount(pair, negative, minlength=len(pairs)),
        squares,
    )


def merge(parts: Sequence[Experience]) -> Experience:
    """The experience of several blocks as one; equal packed observations become one, also of different versions."""
    offsets = np.cumsum([0, *(len(part.observations) for part in parts)])
    met = np.concatenate([part.observations for part in parts])
    where = np.concatenate([part.where + offset for part, offset in zip(parts, offsets)])
    visits = np.concatenate([part.visits for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    if met.dtype == np.uint64:
        met, number = _distinct(met)
        where = number[where]
        visits = np.bincount(number, visits, minlength=len(met))
        targets = np.bincount(number, targets, minlength=len(met))
    squares = np.sum([part.squares for part in parts], axis=0)
    rest = {name: np.concatenate([getattr(part, name) for part in parts]) for name in OF_PAIRS}
    return Experience(met, visits, targets, where, **rest, squares=squares)


def _distinct(words: Array) -> tuple[Array, Array]:
    """The distinct ones of packed observations, and which of them each is."""
    if words.ndim == 1:
        return np.unique(words, return_inverse=True)
    order = np.lexsort(words.T)
    ranked = words[order]
    first = np.ones(len(words), bool)
    first[1:] = (ranked[1:] != ranked[:-1]).any(axis=1)
    number = np.empty(len(words), np.int64)
    number[order] = np.cumsum(first) - 1
    return ranked[first], number


def folded(
    steps: Trajectories, policy: Policy, weights: Arrays, discount: float, trace: float, correct: bool = False
) -> Experience:
    """Advantages by the value network of these weights, summed over equal steps.

    With `correct`, the steps may be another policy's: targets are V-trace's, advantages count by truncated importance
    weights, and the loss compares with what this policy thinks of the actions, not the one that played.
    """
    inside = steps.inside
    index, action, log_chance = steps.index[inside], steps.actions[inside], steps.log_chance[inside]
    outputs, expected = policy.judge(weights, steps.observations)
    ratios = None
    if correct:
        now = policy.head.log_chances(outputs, index, action)
        ratios = np.ones(steps.index.shape)
        ratios[inside], log_chance = np.exp(np.minimum(now - log_chance, 20.0)), now
    after = np.where(steps.final >= 0, expected[steps.final], 0.0)
    estimates = advantages(steps.rewards, expected[steps.index], after, steps.lengths, discount, trace, ratios)
    advantage, target = (each[inside] for each in estimates)
    if ratios is not None:
        advantage = advantage * np.minimum(ratios[inside], 1.0)
    return fold(steps.observations, index, action, advantage, target, log_chance)


_COMPACT = {
    "visits": np.int32,
    "where": np.int32,
    "log_chance": np.float32,
    "count": np.int32,
    "gain": np.float32,
    "loss": np.float32,
    "index": np.int32,
    "rewards": np.float32,
    "lengths": np.int32,
    "final": np.int32,
}


def written(steps: Experience | Trajectories) -> bytes:
    """Experience or trajectories as bytes, in numbers no wider than needed."""
    arrays: dict[str, Array] = {each.name: getattr(steps, each.name) for each in fields(steps)}
    chosen = "action" if isinstance(steps, Experience) else "actions"
    kinds = {**_COMPACT, chosen: _kind(arrays[chosen])}
    return pack({name: np.asarray(array, kinds.get(name, array.dtype)) for name, array in arrays.items()})


def _kind(actions: Array) -> Any:
    if actions.dtype.kind == "f":
        return np.float32
    return np.int16 if actions.max(initial=0) < 2**15 else np.int32


def read(data: bytes) -> Experience | Trajectories:
    """What `written` wrote."""
    arrays = unpack(data)
    return Trajectories(**arrays) if "index" in arrays else Experience(**arrays)
