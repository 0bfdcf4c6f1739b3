"""Proximal policy optimisation: its settings, the clipped loss, the optimiser, and one update in numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fanfold.config import Settings, option
from fanfold.rl.experience import OF_PAIRS, Experience, Trajectories, advantages
from fanfold.rl.heads import Array
from fanfold.rl.network import LOG_DEVIATION, SCALE, backward, forward
from fanfold.tensors import Arrays

if TYPE_CHECKING:
    from fanfold.rl.policy import Mlp

#: Returns below this are faint beside the first guesses of a value network.
FAINT = 0.1


@dataclass(frozen=True)
class Ppo(Settings):
    """How a policy learns."""

    learning_rate: float = option(0.003, "step size of the policy, falling to a twentieth towards the end", above=0)
    value_learning_rate: float = option(0.005, "step size of the value network, falling alike", above=0)
    epochs: int = option(
        12, "gradient steps of an update; with many minibatches more, so that each is seen thrice", least=1
    )
    passes: int | None = option(None, "passes over the experience of an update, instead of `epochs` steps", least=1)
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

    def rounds(self, parts: int) -> int:
        """Passes over experience in so many minibatches."""
        return self.passes or max(min(3, self.epochs), -(-self.epochs // parts))


def policy_gradient(
    policy: Mlp,
    weights: Arrays,
    inputs: Array,
    part: Experience,
    clip: float,
    entropy: float,
    scale: float,
    total: float,
) -> tuple[Arrays, float]:
    """The gradient of the clipped loss with entropy bonus, and the distance from the policy that played (KL).

    Of a pair's steps with ratio r to the chance when played, those of positive advantage count min(r, 1 + clip), those
    of negative advantage max(r, 1 - clip): sums of both are all that is needed.  Advantages are divided by `scale`,
    everything by `total` steps.
    """
    low, high, own = forward(weights, "policy", inputs)
    outputs = policy.read(weights, own, policy.masks(part.observations))
    ratio = np.exp(policy.head.log_chances(outputs, part.where, part.action) - part.log_chance)
    pull = (part.gain * (ratio < 1 + clip) + part.loss * (ratio > 1 - clip)) * ratio / (scale * total)
    slope = policy.head.slope(outputs, part.where, part.action, pull, entropy / total * part.visits).astype(own.dtype)
    kl = float((part.count * (ratio - 1 - np.log(ratio))).sum() / part.count.sum())
    gradient = backward(weights, "policy", inputs, low, high, slope[:, : policy.head.own])
    if policy.head.own < policy.head.outputs:
        gradient[LOG_DEVIATION] = slope[:, policy.head.own :].sum(axis=0)
    return gradient, kl


def value_gradient(weights: Arrays, inputs: Array, part: Experience, total: float) -> Arrays:
    """The gradient of half the mean squared error of the value network, in units of its scale."""
    mean, scale = weights[SCALE]
    low, high, outputs = forward(weights, "value", inputs)
    wanted = (part.targets - part.visits * mean) / scale
    slope = ((part.visits * outputs[:, 0] - wanted) / total).astype(outputs.dtype)
    return backward(weights, "value", inputs, low, high, slope[:, None])


def following(weights: Arrays, part: Experience, keep: float) -> Array:
    """The mean and the deviation of the targets so far, which values are in units of, moved towards these targets."""
    mean, scale = (float(each) for each in weights[SCALE])
    fresh = float(part.targets.sum() / part.steps)
    least = 1e-8 if scale > 9e-5 else 1e-24  # a scale that began as small stays so
    deviation = math.sqrt(max(float(part.squares[1]) / part.steps - fresh * fresh, least))
    if (mean, scale) == (0.0, 1.0):
        keep = 0.0
    return np.array([keep * mean + (1 - keep) * fresh, keep * scale + (1 - keep) * deviation])


def begun(weights: Arrays, blocks: Sequence[Trajectories], discount: float) -> Arrays:
    """The weights of a fresh policy whose values are in units of its first returns, where those are faint.

    What a fresh value network guesses is of the order of 1, and would drown them.
    """
    if not blocks or weights.get(SCALE, np.ones(2)).tolist() != [0.0, 1.0]:
        return weights
    most = max(float(np.abs(block.rewards.sum(axis=1)).max()) for block in blocks)
    if not 0.0 < most < FAINT:
        return weights
    targets = []
    for block in blocks:
        unknown, after = np.zeros(block.rewards.shape), np.zeros(len(block.lengths))
        targets.append(advantages(block.rewards, unknown, after, block.lengths, discount, 1.0)[1][block.inside])
    met = np.concatenate(targets)
    return weights | {SCALE: np.array([met.mean(), max(met.std(), 1e-3 * np.abs(met).max())])}


def rescale(weights: Arrays, part: Experience, keep: float = 0.7) -> Arrays:
    """Let the value network's scale follow its targets, with every value as before."""
    (mean, scale), moved = weights[SCALE].tolist(), following(weights, part, keep)
    new_mean, new_scale = moved.tolist()
    changed = dict(weights)
    changed["value.2.weight"] = (weights["value.2.weight"] * (scale / new_scale)).astype(np.float32)
    shifted = (weights["value.2.bias"] * scale + mean - new_mean) / new_scale
    changed["value.2.bias"] = shifted.astype(np.float32)
    changed[SCALE] = moved
    return changed


class Adam:
    """Adaptive moments of all weights.  `state` is what a resume needs."""

    def __init__(self, state: Arrays | None = None) -> None:
        self.state: Arrays = dict(state or {})

    def step(self, weights: Arrays, gradient: Arrays, rate: float, max_norm: float) -> None:
        """Move the weights of one net against a gradient, in place of the mapping, not of the arrays."""
        net = next(iter(gradient)).partition(".")[0]
        slope = np.concatenate([each.ravel() for each in gradient.values()])
        norm = math.sqrt(float(np.dot(slope, slope)))
        if norm > max_norm:
            slope *= slope.dtype.type(max_norm / (norm + 1e-9))
        one, two = self.state.get(f"{net}/1"), self.state.get(f"{net}/2")
        count = int(self.state.get(f"{net}/n", np.zeros(1, np.int64))[0]) + 1
        one = np.float32(0.1) * slope if one is None else np.float32(0.9) * one + np.float32(0.1) * slope
        slope *= slope
        two = np.float32(0.01) * slope if two is None else np.float32(0.99) * two + np.float32(0.01) * slope
        self.state |= {f"{net}/1": one, f"{net}/2": two, f"{net}/n": np.array([count])}
        size = rate * math.sqrt(1 - 0.99**count) / (1 - 0.9**count)
        move = np.float32(size) * one / (np.sqrt(two) + np.float32(1e-7))
        start = 0
        for name, array in gradient.items():
            weights[name] = weights[name] - move[start : start + array.size].reshape(array.shape)
            start += array.size


def update(
    policy: Mlp, weights: Arrays, adam: Adam, experience: Experience, ppo: Ppo, progress: float, seed: int
) -> tuple[Arrays, float]:
    """Learn from one batch of experience; the new weights, and how far the policy moved.  `progress` is from 0 to 1."""
    weights = rescale(weights, experience)
    inputs = policy.inputs(weights, experience.observations)
    scale, fading = experience.scale, 1 - progress
    rate = max(fading, 0.05)
    rng = np.random.default_rng(seed)
    parts = -(-len(inputs) // ppo.minibatch)
    total = experience.steps / parts
    kl, stopped = 0.0, False
    for _ in range(ppo.rounds(parts)):
        for part, seen in minibatches(experience, inputs, parts, rng):
            if not stopped:
                shape = (ppo.clip, ppo.entropy * fading, scale, total)
                gradient, kl = policy_gradient(policy, weights, seen, part, *shape)
                stopped = kl > ppo.target_kl
                if not stopped:
                    adam.step(weights, gradient, ppo.learning_rate * rate, ppo.max_norm)
            slopes = value_gradient(weights, seen, part, total)
            adam.step(weights, slopes, ppo.value_learning_rate * rate, ppo.max_norm)
    return weights, kl


def minibatches(
    experience: Experience, inputs: Array, parts: int, rng: np.random.Generator
) -> Iterator[tuple[Experience, Array]]:
    """The experience in parts of about equally many observations, drawn again each time."""
    if parts == 1:
        yield experience, inputs
        return
    n = len(inputs)
    one_each = len(experience.where) == n and bool((experience.where == np.arange(n)).all())
    for chosen in np.array_split(rng.permutation(n), min(parts, n)):
        if one_each:
            where, pairs = np.arange(len(chosen)), chosen
        else:
            number = np.full(n, -1)
            number[chosen] = np.arange(len(chosen))
            pairs = np.flatnonzero(number[experience.where] >= 0)
            where = number[experience.where[pairs]]
        picked: dict[str, Any] = {name: getattr(experience, name)[pairs] for name in OF_PAIRS}
        observed = (experience.observations[chosen], experience.visits[chosen], experience.targets[chosen])
        yield Experience(*observed, where, **picked, squares=experience.squares), inputs[chosen]


def averaged(slow: Arrays, fast: Arrays, keep: float) -> Arrays:
    """A step of the slow weights towards the fast ones; what both remember of observations is the same."""

    def between(name: str) -> Array:
        mixed: Array = (keep * slow[name] + (1 - keep) * fast[name]).astype(fast[name].dtype)
        return mixed

    return {name: fast[name] if name.startswith("observation.") else between(name) for name in fast}
