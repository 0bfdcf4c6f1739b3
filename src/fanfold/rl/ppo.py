"""Proximal policy optimisation, top to bottom: two small networks, advantages, the clipped loss, one update.

Steps with the same observation and action enter the loss only through sums (`Experience`), so an update costs what the
*distinct* pairs cost, and its gradient is exactly that of all steps.  Where no observation repeats, every step is a
pair of its own, and this is ordinary PPO with minibatches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fanfold.config import Settings, option
from fanfold.tensors import Arrays

Array = NDArray[Any]


@dataclass(frozen=True)
class Ppo(Settings):
    """How a policy learns."""

    learning_rate: float = option(0.003, "step size of the policy, falling to a twentieth towards the end", above=0)
    value_learning_rate: float = option(0.005, "step size of the value network, falling alike", above=0)
    epochs: int = option(
        12, "gradient steps of an update; with many minibatches more, so that each is seen thrice", least=1
    )
    minibatch: int = option(1024, "the most distinct observations that one gradient step looks at", least=1)
    clip: float = option(0.2, "how far the chance of an action may move for its reward, as a ratio", above=0)
    target_kl: float = option(
        0.03, "an update of the policy ends beyond this distance from the one that played", above=0
    )
    discount: float = option(0.99, "what the next step's reward counts", least=0, most=1)
    trace: float = option(
        0.95, "the lambda of generalised advantage estimation; 1: Monte-Carlo returns", least=0, most=1
    )
    entropy: float = option(0.01, "bonus for an undecided policy, falling to nothing", least=0)
    max_norm: float = option(0.5, "gradients longer than this are shortened", above=0)
    hidden: int = option(64, "units in each of the two hidden layers", least=1)
    averaging: float = option(
        0.9, "how slowly the averaged policy follows the learning one, per update", least=0, below=1
    )
    correction: Literal["ratio", "vtrace"] = option(
        "ratio", "vtrace: advantages of stale episodes are corrected too; whole episodes then travel"
    )


#: Where the value network's outputs stand: value = mean + scale x output.
SCALE = "value.scale"


def initial(inputs: int, actions: int, hidden: int, seed: int) -> Arrays:
    """Fresh weights of a policy and a value network, each with two hidden layers of tanh."""
    rng = np.random.default_rng(seed)
    weights: Arrays = {}
    for net, outputs, gain in (("policy", actions, 0.01), ("value", 1, 1.0)):
        sizes = (inputs, hidden, hidden, outputs)
        for layer, (n, m) in enumerate(itertools.pairwise(sizes)):
            left, _, right = np.linalg.svd(rng.normal(size=(n, m)), full_matrices=False)
            stretch = gain if layer == 2 else math.sqrt(2)
            weights[f"{net}.{layer}.weight"] = (left @ right * stretch).astype(np.float32)
            weights[f"{net}.{layer}.bias"] = np.zeros(m, np.float32)
    weights[SCALE] = np.array([0, 1], np.float64)
    return weights


def forward(weights: Arrays, net: str, inputs: Array) -> tuple[Array, Array, Array]:
    """The two hidden layers and the outputs."""
    low = np.tanh(inputs @ weights[f"{net}.0.weight"] + weights[f"{net}.0.bias"])
    high = np.tanh(low @ weights[f"{net}.1.weight"] + weights[f"{net}.1.bias"])
    return low, high, high @ weights[f"{net}.2.weight"] + weights[f"{net}.2.bias"]


def backward(weights: Arrays, net: str, inputs: Array, low: Array, high: Array, slope: Array) -> Arrays:
    """The gradient of a loss in all weights of a net, given its slope in the outputs."""
    gradient: Arrays = {}
    for layer, below in ((2, high), (1, low), (0, inputs)):
        gradient[f"{net}.{layer}.weight"] = below.T @ slope
        gradient[f"{net}.{layer}.bias"] = slope.sum(axis=0)
        if layer:
            slope = (slope @ weights[f"{net}.{layer}.weight"].T) * (1 - below * below)
    return gradient


def log_softmax(scores: Array) -> Array:
    scores = scores - scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores


def values(weights: Arrays, inputs: Array) -> Array:
    """What the value network expects of each observation."""
    mean, scale = weights[SCALE]
    expected: Array = mean + scale * forward(weights, "value", inputs)[2][:, 0].astype(np.float64)
    return expected


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


@dataclass(frozen=True, eq=False)
class Experience:
    """What a policy met, folded: all that the clipped loss and the value loss depend on.

    Observations are distinct: packed bits (`uint64`), or rows of numbers.  `where` and `action` are the distinct pairs
    (one per policy version), `log_chance` what the policy that played thought of them; `gain` and `loss` are the sums
    of their steps' positive and of their negative advantages.
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


_OF_PAIRS = ("action", "log_chance", "count", "gain", "loss")


def fold(
    observations: Array, index: Array, action: Array, advantage: Array, target: Array, log_chances: Array
) -> Experience:
    """Steps (any shape, all alike) folded to distinct pairs; `index` numbers each step's observation."""
    index, action, advantage, target = (each.ravel() for each in (index, action, advantage, target))
    n, actions = log_chances.shape
    pairs, pair, count = np.unique(index.astype(np.int64) * actions + action, return_inverse=True, return_counts=True)
    where, chosen = pairs // actions, pairs % actions
    return Experience(
        observations,
        np.bincount(index, minlength=n),
        np.bincount(index, target, minlength=n),
        where,
        chosen,
        log_chances[where, chosen].astype(np.float64),
        count,
        np.bincount(pair, np.maximum(advantage, 0.0), minlength=len(pairs)),
        np.bincount(pair, np.minimum(advantage, 0.0), minlength=len(pairs)),
        np.array([np.square(advantage).sum(), np.square(target).sum()]),
    )


def merge(parts: Sequence[Experience]) -> Experience:
    """The experience of several blocks as one; equal packed observations become one, also of different versions."""
    offsets = np.cumsum([0, *(len(part.observations) for part in parts)])
    met = np.concatenate([part.observations for part in parts])
    where = np.concatenate([part.where + offset for part, offset in zip(parts, offsets)])
    visits = np.concatenate([part.visits for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    if met.ndim == 1:
        met, number = np.unique(met, return_inverse=True)
        where = number[where]
        visits = np.bincount(number, visits, minlength=len(met))
        targets = np.bincount(number, targets, minlength=len(met))
    squares = np.sum([part.squares for part in parts], axis=0)
    rest = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _OF_PAIRS}
    return Experience(met, visits, targets, where, **rest, squares=squares)


def inputs_of(observations: Array, width: int, context: Sequence[float] = ()) -> Array:
    """Observations as the networks see them: bits or numbers, followed by a context that is the same for all."""
    if observations.ndim == 1:
        shifts = np.arange(width - len(context), dtype=np.uint64)
        seen = (observations[:, None] >> shifts & np.uint64(1)).astype(np.float32)
    else:
        seen = np.asarray(observations, np.float32)
    if not len(context):
        return seen
    return np.hstack([seen, np.tile(np.asarray(context, np.float32), (len(seen), 1))])


def policy_gradient(
    weights: Arrays, inputs: Array, part: Experience, clip: float, entropy: float, scale: float, total: float
) -> tuple[Arrays, float]:
    """The gradient of the clipped loss with entropy bonus, and the distance from the policy that played (KL).

    Of a pair's steps with ratio r to the chance when played, those of positive advantage count min(r, 1 + clip), those
    of negative advantage max(r, 1 - clip): sums of both are all that is needed.  Advantages are divided by `scale`,
    everything by `total` steps.
    """
    low, high, scores = forward(weights, "policy", inputs)
    logs = log_softmax(scores)
    chances = np.exp(logs)
    ratio = np.exp(logs[part.where, part.action] - part.log_chance)
    pull = (part.gain * (ratio < 1 + clip) + part.loss * (ratio > 1 - clip)) * ratio / (scale * total)
    n, actions = logs.shape
    slope = np.bincount(part.where * actions + part.action, pull, minlength=n * actions).reshape(n, actions)
    slope = chances * slope.sum(axis=1, keepdims=True) - slope
    if entropy:
        undecided = -(chances * logs).sum(axis=1, keepdims=True)
        slope += (entropy / total) * part.visits[:, None] * chances * (logs + undecided)
    kl = float((part.count * (ratio - 1 - np.log(ratio))).sum() / part.count.sum())
    return backward(weights, "policy", inputs, low, high, slope.astype(scores.dtype)), kl


def value_gradient(weights: Arrays, inputs: Array, part: Experience, total: float) -> Arrays:
    """The gradient of half the mean squared error of the value network, in units of its scale."""
    mean, scale = weights[SCALE]
    low, high, outputs = forward(weights, "value", inputs)
    wanted = (part.targets - part.visits * mean) / scale
    slope = ((part.visits * outputs[:, 0] - wanted) / total).astype(outputs.dtype)
    return backward(weights, "value", inputs, low, high, slope[:, None])


def rescale(weights: Arrays, part: Experience, keep: float = 0.7) -> Arrays:
    """Let the value network's scale follow its targets, with every value as before."""
    steps = part.steps
    mean, scale = (float(each) for each in weights[SCALE])
    fresh = float(part.targets.sum() / steps)
    variance = max(float(part.squares[1]) / steps - fresh * fresh, 1e-8)
    if (mean, scale) == (0.0, 1.0):
        keep = 0.0
    new_mean, new_scale = keep * mean + (1 - keep) * fresh, keep * scale + (1 - keep) * math.sqrt(variance)
    changed = dict(weights)
    changed["value.2.weight"] = (weights["value.2.weight"] * (scale / new_scale)).astype(np.float32)
    shifted = (weights["value.2.bias"] * scale + mean - new_mean) / new_scale
    changed["value.2.bias"] = shifted.astype(np.float32)
    changed[SCALE] = np.array([new_mean, new_scale])
    return changed


class Adam:
    """Adaptive moments of all weights.  `state` is what a resume needs."""

    def __init__(self, state: Arrays | None = None) -> None:
        self.state: Arrays = dict(state or {})

    def step(self, weights: Arrays, gradient: Arrays, rate: float, max_norm: float) -> None:
        """Move the weights of one net against a gradient, in place of the mapping, not of the arrays."""
        norm = math.sqrt(sum(float(np.square(each, dtype=np.float64).sum()) for each in gradient.values()))
        shorten = min(1.0, max_norm / (norm + 1e-9))
        for name, slope in gradient.items():
            slope = slope * np.float32(shorten)
            one = self.state.get(f"{name}/1", np.zeros_like(slope))
            two = self.state.get(f"{name}/2", np.zeros_like(slope))
            count = int(self.state.get(f"{name}/n", np.zeros(1, np.int64))[0]) + 1
            one = np.float32(0.9) * one + np.float32(0.1) * slope
            two = np.float32(0.99) * two + np.float32(0.01) * slope * slope
            self.state[f"{name}/1"], self.state[f"{name}/2"] = one, two
            self.state[f"{name}/n"] = np.array([count])
            size = rate * math.sqrt(1 - 0.99**count) / (1 - 0.9**count)
            weights[name] = weights[name] - np.float32(size) * one / (np.sqrt(two) + np.float32(1e-7))


def update(
    weights: Arrays,
    adam: Adam,
    experience: Experience,
    ppo: Ppo,
    progress: float,
    seed: int,
    context: Sequence[float] = (),
) -> tuple[Arrays, float]:
    """Learn from one batch of experience; the new weights, and how far the policy moved.  `progress` is from 0 to 1."""
    weights = rescale(weights, experience)
    inputs = inputs_of(experience.observations, len(weights["policy.0.weight"]), context)
    scale = math.sqrt(float(experience.squares[0]) / experience.steps) + 1e-8
    fading = 1 - progress
    rate = max(fading, 0.05)
    rng = np.random.default_rng(seed)
    parts = -(-len(inputs) // ppo.minibatch)
    total = experience.steps / parts
    kl, stopped = 0.0, False
    for _ in range(max(min(3, ppo.epochs), -(-ppo.epochs // parts))):
        for part, seen in _parts(experience, inputs, parts, rng):
            weights = dict(weights)
            if not stopped:
                gradient, kl = policy_gradient(weights, seen, part, ppo.clip, ppo.entropy * fading, scale, total)
                stopped = kl > ppo.target_kl
                if not stopped:
                    adam.step(weights, gradient, ppo.learning_rate * rate, ppo.max_norm)
            slopes = value_gradient(weights, seen, part, total)
            adam.step(weights, slopes, ppo.value_learning_rate * rate, ppo.max_norm)
    return weights, kl


def _parts(experience: Experience, inputs: Array, parts: int, rng: Any) -> Any:
    """The experience in parts of about equally many observations, drawn again each time."""
    if parts == 1:
        yield experience, inputs
        return
    n = len(inputs)
    for chosen in np.array_split(rng.permutation(n), min(parts, n)):
        number = np.full(n, -1)
        number[chosen] = np.arange(len(chosen))
        pairs = np.flatnonzero(number[experience.where] >= 0)
        picked = {name: getattr(experience, name)[pairs] for name in _OF_PAIRS}
        yield (
            Experience(
                experience.observations[chosen],
                experience.visits[chosen],
                experience.targets[chosen],
                number[experience.where[pairs]],
                **picked,
                squares=experience.squares,
            ),
            inputs[chosen],
        )


def averaged(slow: Arrays, fast: Arrays, keep: float) -> Arrays:
    """A step of the slow weights towards the fast ones."""
    return {name: (keep * slow[name] + (1 - keep) * fast[name]).astype(fast[name].dtype) for name in fast}
