"""Fresh episodes, which a policy is scored on: in blocks, and one by one where the worker of a block was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fanfold.rl.collect import Collect, Collector
from fanfold.rl.failures import ALL_FAILED
from fanfold.schedule import Plan, Schedule
from fanfold.strategies import Sweep
from fanfold.study import Study
from fanfold.types import Case, Failed, Trial

#: Blocks that are played before the episodes of lost ones.  Far more blocks lost in a row look like a broken evaluator.
_TOGETHER = 20


@dataclass(frozen=True)
class BlocksFirst(Schedule):
    """Plays blocks of episodes, and single episodes in place of a block whose worker hung or died.

    A block is a case, and so is each episode in its place, whose id begins with that of the block and a dot.
    """

    remembers = False

    def plan(self, trial: Trial[Any], cases: Sequence[Case]) -> Plan:
        blocks = [case for case in cases if "." not in case.id]
        for first in range(0, len(blocks), _TOGETHER):
            some = blocks[first : first + _TOGETHER]
            outcomes = yield some
            lost = {
                case.id
                for case, outcome in zip(some, outcomes)
                if isinstance(outcome, Failed) and outcome.kind != ALL_FAILED
            }
            if singly := [case for case in cases if "." in case.id and case.id.partition(".")[0] in lost]:
                yield singly
        return None


def fresh_study(
    collector: Collector, policy: Collect, episodes: int, block: int, seed: int, timeout: float | None
) -> Study[Collect]:
    """The policy on so many fresh episodes.  Where one could not be played, the trial as a whole has no score."""
    size = min(block, episodes)
    blocks = [Case(f"fresh-{first // size}", episodes - first) for first in range(0, episodes, size)]
    singly = [Case(f"{case.id}.{n}", 1) for case in blocks if size > 1 for n in range(min(size, case.data))]
    return Study(
        Sweep([replace(policy, first_episode=0, episodes=size, attempt=0)]),
        collector,
        [*blocks, *singly],
        BlocksFirst(),
        seed=seed,
        timeout=timeout,
        retries=2,
        name="fresh",
    )
