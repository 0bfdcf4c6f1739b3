"""The learner as a strategy: it asks for blocks of episodes by its newest policy, and learns from those it is told."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from fanfold.encoding import derive_seed
from fanfold.rl import ppo
from fanfold.rl.collect import Collect
from fanfold.rl.experience import Experience, Trajectories, folded, merge, read
from fanfold.rl.failures import ALL_FAILED, Diverged, FailureTally, failed_of
from fanfold.rl.heads import Array
from fanfold.rl.policy import Policy
from fanfold.rl.ppo import Adam, Ppo
from fanfold.strategy import Strategy
from fanfold.tensors import Arrays, pack, unpack
from fanfold.types import Blob, Failed, Ok, Result

#: Whose a block is: the newest policy's, to learn from; or that of one of the four that training ends with.
_LEARN, _POLICIES = -1, 4
#: Episodes that score policies, where nobody says how many.
LEAST_FRESH, MOST_FRESH = 64, 256


@dataclass(frozen=True)
class LearningPlan:
    """How long a policy learns, and in which portions.

    Up to `window` blocks of at most `block` episodes are under way; the policy learns after every `per_update` of all
    `total` episodes.  Updates and blocks grow steadily, up to `growth` times as large: at first many updates matter,
    at last exact ones.  With `steps`, it learns in portions of steps instead, and for so many.  `context` is what the
    policy is told besides what it observes.  With `synchronous`, no block is asked for that an update under way would
    make stale.  Step sizes fall from where `begun` says (0: at the beginning of learning) to the end, where each of
    four policies plays the same `held_out` episodes (none: by what was learnt from).  Learning stops when more than
    the share `max_failed` of the latest episodes failed.  It begins with the weights `start`, or with fresh ones.
    """

    policy: Policy
    total: int
    per_update: int = 500
    block: int = 125
    window: int = 4
    ppo: Ppo = field(default_factory=Ppo)
    context: tuple[float, ...] = ()
    synchronous: bool = False
    held_out: int | None = 1024
    begun: float = 0.0
    max_failed: float = 0.8
    steps: StepPlan | None = None
    growth: float = 1.0
    start: Blob | None = None

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Without `max_failed`: a run that ended by it continues with a higher one, and learns the same."""
        kept = vars(replace(self, max_failed=LearningPlan.max_failed, start=None))
        del kept["start"]  # runs of versions that did not know it continue
        return kept if self.start is None else kept | {"start": self.start.digest}

    @property
    def most(self) -> int:
        """Episodes of the largest block."""
        return min(self.block, self.per_update)

    def scored(self, counts: EpisodeCounts) -> int:
        """Held-out episodes of each policy: as many as the plan says, or all together as long as the training."""
        if self.held_out is not None:
            return self.held_out
        return round(min(MOST_FRESH, max(LEAST_FRESH, counts.steps / max(1.0, counts.length))) / _POLICIES)

    def piece(self, episodes: int) -> int:
        """Episodes of a block, where so many score policies: in as many blocks as can be under way."""
        return min(self.most, -(-episodes // self.window))

    def size(self, counts: EpisodeCounts) -> int:
        """Episodes of the next block to learn from."""
        if self.steps is None:
            limit = self.total
            if self.synchronous:
                limit = min(limit, counts.told - counts.fresh + self._grown(self.per_update, counts))
            return min(self._grown(self.most, counts), limit - counts.asked)
        return self.steps.size(counts, self)

    def due(self, counts: EpisodeCounts) -> bool:
        """Whether it is time for an update."""
        if self.steps is None:
            return counts.fresh >= self._grown(self.per_update, counts) or counts.told == self.total
        waited = counts.asked == counts.told
        enough = counts.fresh_steps >= self.steps.portion(counts)
        return (enough and (waited or not self.synchronous)) or self.over(counts)

    def _grown(self, episodes: int, counts: EpisodeCounts) -> int:
        """Episodes of a block or an update, which were as many at first."""
        share = (counts.told - counts.fresh) / self.total
        return round(episodes * math.pow(self.growth, share))

    def over(self, counts: EpisodeCounts) -> bool:
        """Whether all is learnt."""
        return self._done(counts) >= 1.0 and counts.asked == counts.told

    def progress(self, counts: EpisodeCounts) -> float:
        """How much of the learning is done, from 0 to 1."""
        return self.begun + (1.0 - self.begun) * min(1.0, self._done(counts))

    def _done(self, counts: EpisodeCounts) -> float:
        in_steps = None if self.steps is None else self.steps.total
        return counts.told / self.total if in_steps is None else counts.steps / in_steps


@dataclass(frozen=True)
class StepPlan:
    """Learning in steps: an update after `per_update` of them, `total` in all (none: as many as the episodes have).

    By default an update learns from about eight episodes as long as the latest ones, but from 1,024 to 2,048 steps, and
    from four episodes where even those are longer.  Blocks are whole episodes: a quarter of an update, divided among
    those that are under way.  So most of what an update learns from is the newest policy's.
    """

    total: int | None = None
    per_update: int | None = None

    def portion(self, counts: EpisodeCounts) -> float:
        """Steps of the update that is due next."""
        return self.per_update or max(1024.0, min(8 * counts.length, 2048.0), 4 * counts.length)

    def size(self, counts: EpisodeCounts, plan: LearningPlan) -> int:
        under_way = counts.asked - counts.told
        left = plan.total - counts.asked if self.total is None else plan.block
        if not counts.length:
            return int(left > 0 and under_way < plan.window)  # the first episodes show how long they are
        expected = counts.length * under_way
        if under_way and self.total is not None and counts.steps + expected >= self.total:
            return 0
        if plan.synchronous and under_way and counts.fresh_steps + expected >= self.portion(counts):
            return 0
        share = self.portion(counts) / (4 * plan.window)
        if plan.window == 1:  # nothing gets stale while one block is played
            share = self.portion(counts) - counts.fresh_steps
        if self.total is not None:
            share = min(share, self.total - counts.steps - expected)
        return min(left, max(1, min(plan.block, round(share / counts.length))))


@dataclass(slots=True)
class EpisodeCounts:
    """Episodes asked for, told, and told since the last update; held-out plays asked for; steps told in all and since
    the last update; and how long an episode is lately."""

    asked: int = 0
    told: int = 0
    fresh: int = 0
    chosen: int = 0
    steps: int = 0
    fresh_steps: int = 0
    length: float = 0.0

    def tell(self, episodes: int, lengths: Sequence[int]) -> None:
        self.told += episodes
        self.fresh += episodes
        self.steps += sum(lengths)
        self.fresh_steps += sum(lengths)
        for length in lengths:
            self.length += (length - self.length) * (0.1 if self.length else 1.0)


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
        start = self.plan.start
        fresh = self.plan.policy.initial
        self.weights = fresh(derive_seed(seed, "weights")) if start is None else unpack(start.read())
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
        if not self.plan.over(self.counts):
            if (count := self.plan.size(self.counts)) < 1:
                return None
            self.counts.asked += count
            return self._block(_LEARN, self.counts.asked - count, count)
        episodes = self.plan.scored(self.counts)
        size = self.plan.piece(_POLICIES * episodes)
        policy, piece = divmod(self.counts.chosen, -(-episodes // size))
        if policy == _POLICIES:
            return None
        self.counts.chosen += 1
        return self._block(policy, piece * size, min(size, episodes - piece * size))

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
        numbers = range(block.first_episode, block.first_episode + block.episodes)
        self.failures.add(block.episodes, failed_of(outcome, numbers), block.version)
        if not block.learn:
            return
        if isinstance(outcome, Ok):
            self.pending.append((result.number, _experience(outcome)))
        self.counts.tell(block.episodes, outcome.data.get("lengths", ()) if isinstance(outcome, Ok) else ())
        if self.plan.due(self.counts):
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
        self.pending, self.counts.fresh, self.counts.fresh_steps = [], 0, 0
        self._publish()
        seconds = round(time.perf_counter() - began, 6)
        self.news.append({"number": self.version, "trials": trials, "seconds": seconds})

    def _improve(self) -> None:
        experience = self._experience()
        seed = derive_seed(self.seed, "update", self.version)
        learnt = (self.weights, self.adam, experience, self.plan.ppo, self.plan.progress(self.counts), seed)
        self.weights, _ = self.plan.policy.learn(*learnt)
        if not all(np.isfinite(array).all() for array in self.weights.values()):
            raise Diverged(
                f"the weights of the policy are no longer finite after update {self.version + 1}: lower "
                f"ppo.learning_rate (now {self.plan.ppo.learning_rate:g}) or ppo.value_learning_rate (now "
                f"{self.plan.ppo.value_learning_rate:g}), or make the rewards smaller"
            )
        # At first there is nothing worth remembering, so the average starts short.
        keep = min(self.plan.ppo.averaging, (self.version + 1) / (self.version + 11))
        self.slow = ppo.averaged(self.slow, self.weights, keep)

    def _experience(self) -> Experience:
        """All pending blocks; whole trajectories are folded by what is known and thought now."""
        blocks, policy, settings = [read(data) for _, data in self.pending], self.plan.policy, self.plan.ppo
        whole = [block for block in blocks if isinstance(block, Trajectories)]
        for block in whole:
            visits = np.bincount(block.index[block.inside], minlength=len(block.observations))
            self.weights = policy.observe(self.weights, block.observations, visits)
        self.weights = ppo.begun(self.weights, whole, settings.discount)
        return merge(
            [
                block
                if isinstance(block, Experience)
                else folded(block, policy, self.weights, settings.discount, settings.trace, correct=True)
                for block in blocks
            ]
        )

    def save(self) -> bytes:
        *counts, length = astuple(self.counts)
        arrays: Arrays = {"counts": np.array([self.version, *counts]), "length": np.array([length])}
        for name, group in (("weights", self.weights), ("slow", self.slow), ("adam", self.adam.state)):
            arrays |= {f"{name}:{key}": array for key, array in group.items()}
        for at, (trial, data) in enumerate(self.pending):
            arrays[f"pending:{at:06}:{trial}"] = np.frombuffer(data, np.uint8)
        if self.again:
            arrays["again"] = np.array(self.again)
        news = [{**each, "seconds": 0.0} for each in self.news]  # a state is the same everywhere
        for name, data in (("news", msgspec.json.encode(news)), ("failures", self.failures.state)):
            arrays[name] = np.frombuffer(data, np.uint8)
        return pack(arrays)

    def load(self, state: bytes) -> None:
        arrays = unpack(state)
        version, asked, told, fresh, chosen, steps, fresh_steps = map(int, arrays["counts"])
        self.version, self.counts = version, EpisodeCounts(asked, told, fresh, chosen, steps, fresh_steps)
        self.counts.length = float(arrays["length"][0])
        self.weights, self.slow = _group(arrays, "weights"), _group(arrays, "slow")
        self.adam = Adam(_group(arrays, "adam"))
        pending = _group(arrays, "pending")
        self.pending = [(int(name.partition(":")[2]), pending[name].tobytes()) for name in sorted(pending)]
        self._publish()
        again = arrays.get("again", np.zeros((0, 4), np.int64)).tolist()
        self.again = [(policy, first, count, attempt) for policy, first, count, attempt in again]
        if "news" in arrays:
            self.news = msgspec.json.decode(arrays["news"].tobytes())
            self.failures = FailureTally(self.plan.max_failed, arrays["failures"].tobytes())


def _group(arrays: Arrays, name: str) -> dict[str, Array]:
    return {key.partition(":")[2]: array for key, array in arrays.items() if key.startswith(f"{name}:")}


def _experience(outcome: Ok) -> bytes:
    data: bytes = outcome.data["experience"].read()
    return data
