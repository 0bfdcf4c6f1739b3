"""Blocks of CAGE-2 as the learner's episodes, and what a policy is told of the workflow it keeps to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fanfold.drawings import Drawing
from fanfold.rl import environments
from fanfold.rl.collect import Collect, Collector
from fanfold.rl.experience import Trajectories
from fanfold.rl.heads import Array, Categories
from fanfold.rl.policy import Mlp
from fanfold.studies.workflow.cage2 import ENVIRONMENT_ID
from fanfold.studies.workflow.cage2.rules import ACTIONS, IDLE, Cage2Game
from fanfold.studies.workflow.compliance import Compliance, alignment, judge, measure
from fanfold.studies.workflow.orders import one_hot
from fanfold.tensors import Arrays

CAGE2 = "cage2"


@dataclass(frozen=True)
class Cage2Collector(Collector):
    """Plays blocks of CAGE-2, compiled; with a workflow, a bonus for keeping to it is part of what is learnt from."""

    env: str = CAGE2
    game: Cage2Game = field(default_factory=Cage2Game)
    workflow: tuple[str, ...] | None = None
    alignment_lambda: float = 0.0
    alignment_kind: str = "rate"

    def play(
        self, candidate: Collect, weights: Arrays, numbers: range, seed: int
    ) -> tuple[Trajectories | None, Array, dict[str, Any]]:
        from fanfold.studies.workflow.cage2_blocks import play, trajectories  # compiled code, which others do without

        policy, block = play(candidate, weights, self.game, numbers, seed)
        figures: dict[str, Any] = {"reds": block.reds.tolist()} if len(self.game.reds) > 1 else {}
        bonus: Array = np.zeros(1)
        if self.workflow is not None:
            marks = judge(block.actions, block.held, self.workflow)
            bonus = alignment(marks, self.alignment_lambda, self.alignment_kind)
            figures |= {"fixes": marks.fixes.tolist(), "kept": marks.kept.tolist(), "bonus": float(bonus.sum())}
        steps = trajectories(block, policy, bonus) if candidate.learn else None
        return steps, block.returns, figures

    def policy_of(self, candidate: Collect, weights: Arrays) -> Mlp:
        without = cage2_policy(candidate.context)
        learnt_without = len(weights["policy.0.weight"]) == without.width + len(without.context)
        return without if learnt_without else cage2_policy(candidate.context, memory=True)

    @property
    def context(self) -> tuple[float, ...]:
        """What the policy of a workflow is told besides what it observes."""
        return context_of(self.workflow)

    def network(self, hidden: int) -> Mlp:
        """The network of a workflow's policy."""
        return cage2_policy(self.context, hidden, self.game.memory)

    def drawn(self, weights: Arrays, greedy: bool, seed: int) -> Drawing | None:
        """An episode of a policy, step by step."""
        from fanfold.studies.workflow.watching import watched  # compiled code

        return watched(weights, self.game, self.workflow, greedy, seed)

    def watch(
        self, candidate: Collect, weights: Arrays, numbers: range, seed: int, level: float
    ) -> tuple[Array, Compliance]:
        """The return of each episode, and how well they kept to the workflow."""
        from fanfold.studies.workflow.cage2_blocks import play

        assert self.workflow is not None
        block = play(candidate, weights, self.game, numbers, seed)[1]
        return block.returns, measure(block.actions, block.held, self.workflow, level)


def context_of(workflow: Sequence[str] | None) -> tuple[float, ...]:
    """What a network is told of the workflow, besides the observation."""
    return () if workflow is None else one_hot(workflow)


def environment(env: str) -> str:
    """The id by which Gymnasium makes an environment; that of CAGE-2's own names the module that registers it."""
    return f"fanfold.studies.workflow.cage2.env:{env}" if env == ENVIRONMENT_ID else env


def policy_for(env: str, workflow: tuple[str, ...] | None = None, hidden: int = 64) -> Mlp:
    """The network for an environment, told the workflow where there is one."""
    return (
        cage2_policy(context_of(workflow), hidden)
        if env == CAGE2
        else environments.policy_for(environment(env), hidden)
    )


def cage2_policy(context: tuple[float, ...] = (), hidden: int = 64, memory: bool = False) -> Mlp:
    """The network of a blue; one with a memory knows which decoys a host has room for."""
    bits, barred = Cage2Game(memory=memory).bits, IDLE if memory else ()
    return Mlp(bits, Categories((len(ACTIONS),)), context, hidden, barred=barred)
