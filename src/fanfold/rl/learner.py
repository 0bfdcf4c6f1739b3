"""The learner as a strategy: it asks for blocks of episodes by its newest policy, and learns from those it is told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import msgspec
import numpy as np

from fanfold.encoding import derive_seed
from fanfold.rl import ppo
from fanfold.rl.collect import Collect
from fanfold.rl.experience import Experience, Trajectories, folded, merge, read
from fanfold.rl.failures import ALL_FAILED, UNKNOWN, FailedEpisode, FailureTally, failed_in
from fanfold.rl.heads import Array
from fanfold.rl.policy import Policy
from fanfold.rl.ppo import Adam, Ppo
from fanfold.strategy import Strategy
from fanfold.tensors import Arrays, pack, unpack
from fanfold.types import Blob, Failed, Ok, Outcome, Result

#: Whose a block is: the newest policy's, to learn from; or that of one of the four that training ends with.
_LEARN, _POLICIES = -1, 4


@dataclass(frozen=True)
class LearningPlan:
    """How long a policy learns, and in which portions.

    Up to `window` blocks of at most `block` episodes are under way; the policy learns after every `per_update` of all
    `total` episodes.  `context` is what the policy is told besides what it observes.  With `synchronous`, no block is
    asked for that an update under way would make stale.  Step sizes fall from where `begun` says (0: at the beginning
    of learning) to the end, where each of four policies plays the same `held_out` episodes.  Learning stops when more
    than the share `max_failed` of the latest episodes failed.
    """

    policy: Policy
    total: int
    per_update: int = 500
    block: int = 125
    window: int = 4
    ppo: Ppo = field(default_factory=Ppo)
    context: tuple[float, ...] = ()
    synchronous: bool = False
    held_out: int = 1024
    begun: float = 0.0
    max_failed: float = 0.1

    @property
    def most(self) -> int:
        """Episodes of the largest block."""
        return min(self.block, self.per_update)


@dataclass(slots=True)
class EpisodeCounts:
    """Episodes asked for, told, and told since the last update; held-out plays asked for."""

    asked: int = 0
    told: int = 0
    fresh: int = 0
    chosen: int = 0


class Learner(Strategy[Collect]):
    """PPO as ask and tell.

    A block is asked for with the newest policy; what is learnt from may be a window older, which the ratio to the
    policy that played corrects.  At the end the last policy and the averaged one, sampled and greedy, are asked to play
    held-out episodes.  An episode that fails is not learnt from.  A block that fails as a whole, because its worker
    hung or died, is asked for again in halves, until the episode is known that did it.
    """

    candidate_type = Collect

    def __init__(self, plan: LearningPlan) -> None:
        self.plan, self.window = plan, plan.window

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self.seed = seed
        self.weights = self.plan.policy.initial(derive_seed(seed, "weights"))
        self.slow = self.weights
        self.adam = Adam()
        #: Blocks to learn from: their trials, and their experience.
        self.pending: list[tuple[int, bytes]] = []
        #: What the latest updates learnt from and how long they took, until that is said.
        self.news: list[dict[str, Any]] = []
        self.failures = FailureTally(self.plan.max_failed)
        #: Halves of blocks that failed: whose they are, their first episode, how many, and the attempt.
        self.again: list[tuple[int, int, int, int]] = []
        self.version = 0
        self.counts = EpisodeCounts()
        self._publish()

    def take_over(self, weights: Arrays, moments: Arrays) -> None:
        """Begin with another learner's weights and, where it has any, its optimiser's moments; after `begin`."""
        self.weights = self.slow = weights
        self.adam = Adam(moments)
        self._publish()

    def _publish(self) -> None:
        """The newest policy as a blob: one object for all blocks that play it."""
        self.blob = Blob.of(pack(self.weights))

    def ask(self, n: int) -> Sequence[Collect]:
        blocks: list[Collect] = []
        while len(blocks) < n and (following := self._following()) is not None:
            blocks.append(following)
        return blocks

    def _following(self) -> Collect | None:
        if self.again:
            return self._block(*self.again.pop(0))
        if self.counts.asked < self.plan.total:
            limit = self.plan.total
            if self.plan.synchronous:
                limit = min(limit, (self.version + 1) * self.plan.per_update)
            count = min(self.plan.most, limit - self.counts.asked)
            if count < 1:
                return None
            self.counts.asked += count
            return self._block(_LEARN, self.counts.asked - count, count)
        if self.counts.told < self.plan.total:
            return None
        policy, piece = divmod(self.counts.chosen, -(-self.plan.held_out // self.plan.most))
        if policy == _POLICIES:
            return None
        self.counts.chosen += 1
        first = piece * self.plan.most
        return self._block(policy, first, min(self.plan.most, self.plan.held_out - first))

    def _block(self, policy: int, first: int, count: int, attempt: int = 0) -> Collect:
        """Episodes to learn from, or held-out ones for one of the policies that training ended with."""
        if policy == _LEARN:
            return Collect(self.version, self.blob, first, count, self.plan.context, attempt=attempt)
        weights = Blob.of(pack(self.slow)) if policy >= 2 else self.blob
        return Collect(self.version, weights, first, count, self.plan.context, bool(policy % 2), False, attempt)

    def tell(self, result: Result[Collect]) -> None:
        block = result.candidate
        outcome = next(iter(result.outcomes.values()))
        if isinstance(outcome, Failed) and outcome.kind != ALL_FAILED and block.episodes > 1:
            self._halve(block)
            return
        self.failures.add(block.episodes, _failed(block, outcome), block.version)
        if not block.learn:
            return
        if isinstance(outcome, Ok):
            self.pending.append((result.number, _experience(outcome)))
        self.counts.told += block.episodes
        self.counts.fresh += block.episodes
        if self.counts.fresh >= self.plan.per_update or self.counts.told == self.plan.total:
            self._learn()

    def _halve(self, block: Collect) -> None:
        policy = _LEARN if block.learn else 2 * (block.weights != self.blob) + block.greedy
        half = block.episodes // 2
        for first, count in ((0, half), (half, block.episodes - half)):
            self.again.append((policy, block.first_episode + first, count, block.attempt + 1))

    def origin(self, candidate: Collect) -> Any:
        """With the first block after updates: which trials they learnt from, and how long they took."""
        news, self.news = self.news, []
        return {"updates": news} if news else None

    def _learn(self) -> None:
        began = time.perf_counter()
        if self.pending:
            self._improve()
        self.version += 1
        trials = [trial for trial, _ in self.pending]
        self.pending, self.counts.fresh = [], 0
        self._publish()
        seconds = round(time.perf_counter() - began, 6)
        self.news.append({"number": self.version, "trials": trials, "seconds": seconds})

    def _improve(self) -> None:
        experience = self._experience()
        seed = derive_seed(self.seed, "update", self.version)
        progress = self.plan.begun + (1.0 - self.plan.begun) * (self.counts.told / self.plan.total)
        learnt = (self.weights, self.adam, experience, self.plan.ppo, progress, seed)
        self.weights, _ = self.plan.policy.learn(*learnt)
        # At first there is nothing worth remembering, so the average starts short.
        keep = min(self.plan.ppo.averaging, (self.version + 1) / (self.version + 11))
        self.slow = ppo.averaged(self.slow, self.weights, keep)

    def _experience(self) -> Experience:
        """All pending blocks; whole trajectories are folded by what is known and thought now."""
        blocks, policy, settings = [read(data) for _, data in self.pending], self.plan.policy, self.plan.ppo
        for block in blocks:
            if isinstance(block, Trajectories):
                visits = np.bincount(block.index[block.inside], minlength=len(block.observations))
                self.weights = policy.observe(self.weights, block.observations, visits)
        return merge(
            [
                block
                if isinstance(block, Experience)
                else folded(block, policy, self.weights, settings.discount, settings.trace, correct=True)
                for block in blocks
            ]
        )

    def save(self) -> bytes:
        counts = np.array([self.version, *astuple(self.counts)])
        arrays: Arrays = {"counts": counts}
        for name, group in (("weights", self.weights), ("slow", self.slow), ("adam", self.adam.state)):
            arrays |= {f"{name}:{key}": array for key, array in group.items()}
        for trial, data in self.pending:
            arrays[f"pending:{trial}"] = np.frombuffer(data, np.uint8)
        if self.again:
            arrays["again"] = np.array(self.again)
        news = [{**each, "seconds": 0.0} for each in self.news]  # a state is the same everywhere
        for name, data in (("news", msgspec.json.encode(news)), ("failures", self.failures.state)):
            arrays[name] = np.frombuffer(data, np.uint8)
        return pack(arrays)

    def load(self, state: bytes) -> None:
        arrays = unpack(state)
        self.version, *numbers = arrays.pop("counts").tolist()
        self.counts = EpisodeCounts(*numbers)
        self.weights, self.slow = _group(arrays, "weights"), _group(arrays, "slow")
        self.adam = Adam(_group(arrays, "adam"))
        pending = _group(arrays, "pending")
        self.pending = [(trial, pending[str(trial)].tobytes()) for trial in sorted(map(int, pending))]
        self._publish()
        again = arrays.get("again", np.zeros((0, 4), np.int64)).tolist()
        self.again = [(policy, first, count, attempt) for policy, first, count, attempt in again]
        if "news" in arrays:
            self.news = msgspec.json.decode(arrays["news"].tobytes())
            self.failures = FailureTally(self.plan.max_failed, arrays["failures"].tobytes())


def _group(arrays: Arrays, name: str) -> dict[str, Array]:
    return {key.partition(":")[2]: array for key, array in arrays.items() if key.startswith(f"{name}:")}


def _failed(block: Collect, outcome: Outcome) -> list[FailedEpisode]:
    """The episodes of a block that failed."""
    if isinstance(outcome, Ok):
        return failed_in(outcome.data)
    numbers = range(block.first_episode, block.first_episode + block.episodes)
    return [FailedEpisode(number, UNKNOWN, 0, outcome.kind, outcome.message) for number in numbers]


def _experience(outcome: Ok) -> bytes:
    data: bytes = outcome.data["experience"].read()
    return data
