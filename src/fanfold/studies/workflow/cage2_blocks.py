"""Blocks of CAGE-2: a policy's weights in the simulation's form, and what was played in the learner's."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from fanfold.rl.collect import Collect
from fanfold.rl.experience import Trajectories
from fanfold.rl.heads import Array
from fanfold.studies.workflow.cage2.policy import PolicyNetwork, PolicyTable
from fanfold.studies.workflow.cage2.rollout import EpisodeBlock, rollout
from fanfold.studies.workflow.cage2.rules import Cage2Game
from fanfold.tensors import Arrays

_LOCAL = threading.local()


def play(
    candidate: Collect, weights: Arrays, game: Cage2Game, numbers: range, seed: int
) -> tuple[PolicyNetwork, EpisodeBlock]:
    """A block of CAGE-2; the table of what a version does is kept for the next block of the same version."""
    identity = (candidate.weights.digest, candidate.context, candidate.greedy)
    known = getattr(_LOCAL, "known", None)
    if known is None or known[0] != identity:
        policy = network(weights, candidate.context)
        table = PolicyTable(policy) if known is None else known[2]
        table.load(policy, candidate.version, greedy=candidate.greedy)
        _LOCAL.known = known = (identity, policy, table)
    return known[1], rollout(known[2], game, numbers, seed)


def network(weights: Arrays, context: Sequence[float]) -> PolicyNetwork:
    """The policy's weights as the simulation takes them."""
    names = ("first", "second", "out")
    layers = {name: weights[f"policy.{number}.weight"] for number, name in enumerate(names)}
    biases = {f"{name}_bias": weights[f"policy.{number}.bias"] for number, name in enumerate(names)}
    return PolicyNetwork(**layers, **biases, context=np.asarray(context, np.float32))


def trajectories(block: EpisodeBlock, policy: PolicyNetwork, bonus: Array) -> Trajectories:
    """A block as trajectories, with a bonus added to its rewards.

    Blue is not told the time, so to the value network an episode does not end but is cut off: its last observation
    stands for all that would follow, and its last step only shows that observation.
    """
    rewards = block.rewards + bonus
    episodes, length = rewards.shape
    last = max(length - 1, 1)
    return Trajectories(
        block.keys,
        block.observations[:, :last],
        block.actions[:, :last],
        rewards[:, :last],
        np.full(episodes, last),
        block.observations[:, -1] if length > 1 else np.full(episodes, -1),
        policy.log_probabilities(block.keys)[block.observations[:, :last], block.actions[:, :last]],
    )
