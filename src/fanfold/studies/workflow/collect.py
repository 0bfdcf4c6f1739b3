"""Collection: whole episodes played by one version of a policy, folded to what learning needs where they were played."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fanfold.encoding import derive_seed
from fanfold.studies.workflow import gym, ppo
from fanfold.studies.workflow.cage2.policy import BITS, CHOICES, Network, PolicyTable
from fanfold.studies.workflow.cage2.rollout import Block, rollout
from fanfold.studies.workflow.cage2.rules import Game
from fanfold.studies.workflow.compliance import Marks, alignment, judge
from fanfold.studies.workflow.gym import Trajectories
from fanfold.studies.workflow.ppo import Array, Experience
from fanfold.studies.workflow.tensors import Arrays, pack, unpack
from fanfold.studies.workflow.workflows import one_hot
from fanfold.types import Blob, Case, Ok

CAGE2 = "cage2"
_LOCAL = threading.local()


@dataclass(frozen=True)
class Collect:
    """A block of whole episodes to be played by one version of a policy.

    With `learn`, what came of it is given back for learning; without, only its returns, on episodes of another kind
    than those learnt from.  `attempt` counts how often the block failed before.
    """

    version: int
    weights: Blob
    first_episode: int
    episodes: int
    workflow: tuple[str, ...] | None = None
    greedy: bool = False
    learn: bool = True
    attempt: int = 0


@dataclass(frozen=True)
class Collector:
    """Plays blocks.  What comes of one is a function of its weights, its episodes' numbers and the case's seed alone."""

    env: str = CAGE2
    game: Game = field(default_factory=Game)
    discount: float = 0.99
    trace: float = 0.95
    #: Give back whole trajectories, for a learner that corrects them itself.
    raw: bool = False
    alignment_lambda: float = 0.0

    def __call__(self, candidate: Collect, case: Case) -> Ok:
        weights = unpack(candidate.weights.read())
        # Held-out episodes must not be those that are learnt from, whatever their numbers.
        seed = case.seed if candidate.learn else derive_seed(case.seed or 0, "held out")
        numbers = range(candidate.first_episode, candidate.first_episode + candidate.episodes)
        found: dict[str, Any] = {}
        if self.env == CAGE2:
            block = play(candidate, weights, self.game, numbers, seed or 0)
            marks = None if candidate.workflow is None else judge(block.actions, block.held, candidate.workflow)
            returns = block.returns
            if marks is not None:
                bonus = alignment(marks, self.alignment_lambda)
                found |= {"fixes": marks.fixes.tolist(), "kept": marks.kept.tolist(), "bonus": float(bonus.sum())}
        else:
            steps = gym.play(self.env, weights, numbers, seed or 0, candidate.greedy)
            returns = steps.rewards.sum(axis=1)
        found |= {"returns": [round(each, 6) for each in returns.tolist()]}
        if candidate.learn:
            steps = trajectories(block, weights, marks, self.alignment_lambda) if self.env == CAGE2 else steps
            context = () if candidate.workflow is None else one_hot(candidate.workflow)
            kept = steps if self.raw else folded(steps, weights, self.discount, self.trace, context)
            found["experience"] = Blob.of(written(kept))
        return Ok(float(np.mean(returns)), found)


def play(candidate: Collect, weights: Arrays, game: Game, numbers: range, seed: int) -> Block:
    """A block of CAGE-2; the table of what a version does is kept for the next block of the same version."""
    identity = (candidate.weights.digest, candidate.workflow, candidate.greedy)
    known = getattr(_LOCAL, "known", None)
    if known is None or known[0] != identity:
        policy = network(weights, () if candidate.workflow is None else one_hot(candidate.workflow))
        table = PolicyTable(policy) if known is None else known[1]
        table.load(policy, candidate.version, greedy=candidate.greedy)
        _LOCAL.known = known = (identity, table)
    return rollout(known[1], game, numbers, seed)


def network(weights: Arrays, context: Sequence[float]) -> Network:
    """The policy's weights as the simulation takes them."""
    layers = [weights[f"policy.{layer}.{part}"] for layer in range(3) for part in ("weight", "bias")]
    return Network(*layers, np.asarray(context, np.float32))


def trajectories(block: Block, weights: Arrays, marks: Marks | None, alignment_lambda: float) -> Trajectories:
    """A block as trajectories.

    Blue is not told the time, so to the value network an episode does not end but is cut off: its last observation
    stands for all that would follow, and its last step only shows that observation.
    """
    context = np.zeros(len(weights["policy.0.weight"]) - BITS, np.float32)
    if len(context):
        _, table = _LOCAL.known
        context = table.policy.context
    rewards = block.rewards.astype(np.float64)
    if marks is not None:
        rewards += alignment(marks, alignment_lambda)
    episodes, length = rewards.shape
    last = length - 1 if length > 1 else 1
    return Trajectories(
        block.keys,
        block.observations[:, :last],
        block.actions[:, :last],
        rewards[:, :last],
        np.full(episodes, last),
        block.observations[:, -1] if length > 1 else np.full(episodes, -1),
        network(weights, context).log_probabilities(block.keys),
    )


def folded(
    steps: Trajectories,
    weights: Arrays,
    discount: float,
    trace: float,
    context: Sequence[float] = (),
    correct: bool = False,
) -> Experience:
    """Advantages by the value network of these weights, summed over equal steps; with `correct`, V-trace's."""
    inputs = ppo.inputs_of(steps.observations, len(weights["policy.0.weight"]), context)
    expected = ppo.values(weights, inputs)
    ratios = None
    if correct:
        now = ppo.log_softmax(ppo.forward(weights, "policy", inputs)[2])
        ratios = np.exp(now - steps.log_chances)[steps.index, steps.actions]
    after = np.where(steps.final >= 0, expected[steps.final], 0.0)
    found = ppo.advantages(steps.rewards, expected[steps.index], after, steps.lengths, discount, trace, ratios)
    inside = np.arange(steps.index.shape[1]) < steps.lengths[:, None]
    return ppo.fold(
        steps.observations, steps.index[inside], steps.actions[inside], *(x[inside] for x in found), steps.log_chances
    )


# ---------------------------------------------------------------- as bytes

_COMPACT = {
    "visits": np.int32,
    "where": np.int32,
    "action": np.int16,
    "log_chance": np.float32,
    "count": np.int32,
    "gain": np.float32,
    "loss": np.float32,
    "index": np.int32,
    "actions": np.int16,
    "rewards": np.float32,
    "lengths": np.int32,
    "final": np.int32,
    "log_chances": np.float32,
}


def written(steps: Experience | Trajectories) -> bytes:
    """Experience or trajectories as bytes, in numbers no wider than needed."""
    arrays: dict[str, Array] = {each.name: getattr(steps, each.name) for each in fields(steps)}
    return pack({name: np.asarray(array, _COMPACT.get(name, array.dtype)) for name, array in arrays.items()})


def read(data: bytes) -> Experience | Trajectories:
    """What `written` wrote."""
    arrays = unpack(data)
    return Trajectories(**arrays) if "log_chances" in arrays else Experience(**arrays)


def sizes(env: str, workflow: tuple[str, ...] | None) -> tuple[int, int]:
    """How many inputs and actions a policy has."""
    if env == CAGE2:
        return BITS + (0 if workflow is None else len(one_hot(workflow))), CHOICES
    return gym.sizes(env)
