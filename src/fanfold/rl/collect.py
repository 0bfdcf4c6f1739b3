"""Collection: whole episodes by one version of a policy, folded to what learning needs where they are played."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from fanfold.encoding import derive_seed
from fanfold.rl import environments
from fanfold.rl.experience import Trajectories, folded, written
from fanfold.rl.failures import all_failed, failed_in
from fanfold.rl.heads import Array
from fanfold.rl.making import Environment
from fanfold.rl.policy import Policy
from fanfold.tensors import Arrays, unpack
from fanfold.types import Blob, Case, Ok, Outcome


@dataclass(frozen=True)
class Collect:
    """A block of whole episodes to be played by one version of a policy.

    With `learn`, its experience is returned for learning; without, only its returns, on episodes of another kind
    than those learnt from.  `context` is what the policy is told besides what it observes, the same at every step.
    `attempt` counts how often the block failed before.
    """

    version: int
    weights: Blob
    first_episode: int
    episodes: int
    context: tuple[float, ...] = ()
    greedy: bool = False
    learn: bool = True
    attempt: int = 0


@dataclass(frozen=True)
class Collector:
    """Plays blocks.  The result of one follows from its weights, its episodes' numbers and the case's seed alone.

    A case may hold a number: the most episodes of a block that are played on it.  Without a `policy`, it is the network
    of numpy that fits the environment.
    """

    env: str | Environment
    discount: float = 0.99
    trace: float = 0.95
    #: Give back whole trajectories, for a learner that corrects them itself.
    raw: bool = False
    policy: Policy | None = None
    #: Whether observations matter also where nothing is learnt.
    judges: ClassVar[bool] = False

    def __call__(self, candidate: Collect, case: Case) -> Outcome:
        weights = unpack(candidate.weights.read())
        # Held-out episodes must not be those that are learnt from, whatever their numbers.
        seed = case.seed if candidate.learn else derive_seed(case.seed or 0, "held out")
        count = candidate.episodes if case.data is None else min(candidate.episodes, case.data)
        numbers = range(candidate.first_episode, candidate.first_episode + count)
        steps, returns, figures = self.play(candidate, weights, numbers, seed or 0)
        if not len(returns):
            return all_failed(failed_in(figures))
        figures["returns"] = [round(each, 6) for each in returns.tolist()]
        if candidate.learn and steps is not None:
            policy = self.policy_of(candidate, weights)
            kept = steps if self.raw else folded(steps, policy, weights, self.discount, self.trace)
            figures["experience"] = Blob.of(written(kept))
        return Ok(float(np.mean(returns)), figures)

    def policy_of(self, candidate: Collect, weights: Arrays) -> Policy:
        """Whose weights the candidate has."""
        return environments.policy_for(self.env) if self.policy is None else self.policy

    def play(
        self, candidate: Collect, weights: Arrays, numbers: range, seed: int
    ) -> tuple[Trajectories | None, Array, dict[str, Any]]:
        """What was played, the return of each episode, and further figures of the block."""
        watched = candidate.learn or self.judges
        steps, failed = environments.play(self.env, weights, numbers, seed, candidate.greedy, self.policy, watched)
        figures: dict[str, Any] = {"failed": [asdict(each) for each in failed]} if failed else {}
        if steps is None:
            return None, np.zeros(0), figures
        returns, lengths = steps.rewards.sum(axis=1), steps.lengths
        figures["scores"] = {"return": float(returns.mean()), "length": float(lengths.mean()), "failed": len(failed)}
        return steps, returns, figures | {"lengths": lengths.tolist()}
