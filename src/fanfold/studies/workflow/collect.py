"""Collection: whole episodes by one version of a policy, folded to what learning needs where they are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from fanfold.encoding import derive_seed
from fanfold.studies.workflow import gym, ppo
from fanfold.studies.workflow.cage2.rules import ACTIONS, HOSTS, Cage2Game
from fanfold.studies.workflow.compliance import alignment, judge
from fanfold.studies.workflow.gym import Trajectories
from fanfold.studies.workflow.orders import one_hot
from fanfold.studies.workflow.ppo import Array, Experience
from fanfold.tensors import Arrays, pack, unpack
from fanfold.types import Blob, Case, Ok

CAGE2 = "cage2"


@dataclass(frozen=True)
class Collect:
    """A block of whole episodes to be played by one version of a policy.

    With `learn`, its experience is returned for learning; without, only its returns, on episodes of another kind
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
    """Plays blocks.  The result of one follows from its weights, its episodes' numbers and the case's seed alone.

    A case may hold a number: the most episodes of a block that are played on it.
    """

    env: str = CAGE2
    game: Cage2Game = field(default_factory=Cage2Game)
    discount: float = 0.99
    trace: float = 0.95
    #: Give back whole trajectories, for a learner that corrects them itself.
    raw: bool = False
    alignment_lambda: float = 0.0
    alignment_kind: str = "rate"

    def __call__(self, candidate: Collect, case: Case) -> Ok:
        weights = unpack(candidate.weights.read())
        # Held-out episodes must not be those that are learnt from, whatever their numbers.
        seed = case.seed if candidate.learn else derive_seed(case.seed or 0, "held out")
        count = candidate.episodes if case.data is None else min(candidate.episodes, case.data)
        numbers = range(candidate.first_episode, candidate.first_episode + count)
        if self.env == CAGE2:
            return self._cage2(candidate, weights, numbers, seed or 0)
        steps = gym.play(self.env, weights, numbers, seed or 0, candidate.greedy)
        return self._outcome(candidate, weights, steps, steps.rewards.sum(axis=1), {})

    def _cage2(self, candidate: Collect, weights: Arrays, numbers: range, seed: int) -> Ok:
        from fanfold.studies.workflow.cage2_blocks import play, trajectories  # compiled code, which others do without

        policy, block = play(candidate, weights, self.game, numbers, seed)
        figures: dict[str, Any] = {}
        bonus: Array = np.zeros(1)
        if candidate.workflow is not None:
            marks = judge(block.actions, block.held, candidate.workflow)
            bonus = alignment(marks, self.alignment_lambda, self.alignment_kind)
            figures = {"fixes": marks.fixes.tolist(), "kept": marks.kept.tolist(), "bonus": float(bonus.sum())}
        steps = trajectories(block, policy, bonus) if candidate.learn else None
        return self._outcome(candidate, weights, steps, block.returns, figures)

    def _outcome(
        self, candidate: Collect, weights: Arrays, steps: Trajectories | None, returns: Array, figures: dict[str, Any]
    ) -> Ok:
        figures["returns"] = [round(each, 6) for each in returns.tolist()]
        if candidate.learn and steps is not None:
            context = context_of(candidate.workflow)
            kept = steps if self.raw else folded(steps, weights, self.discount, self.trace, context)
            figures["experience"] = Blob.of(written(kept))
        return Ok(float(np.mean(returns)), figures)


def context_of(workflow: tuple[str, ...] | None) -> tuple[float, ...]:
    """What a network is told of the workflow, besides the observation."""
    return () if workflow is None else one_hot(workflow)


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
    estimates = ppo.advantages(steps.rewards, expected[steps.index], after, steps.lengths, discount, trace, ratios)
    inside = np.arange(steps.index.shape[1]) < steps.lengths[:, None]
    advantage, target = (each[inside] for each in estimates)
    index, action = steps.index[inside], steps.actions[inside]
    return ppo.fold(steps.observations, index, action, advantage, target, steps.log_chances)


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
        return 4 * len(HOSTS) + len(context_of(workflow)), len(ACTIONS)
    return gym.sizes(env)
