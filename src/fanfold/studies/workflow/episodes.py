"""Single episodes of CAGE-2, played by a policy, for programs that have workers of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fanfold.errors import ConfigError
from fanfold.rl.collect import Collect
from fanfold.studies.workflow.cage2_blocks import play
from fanfold.studies.workflow.collect import cage2_policy, context_of
from fanfold.studies.workflow.compliance import judge
from fanfold.studies.workflow.config import WorkflowConfig
from fanfold.studies.workflow.orders import parse
from fanfold.tensors import pack, unpack
from fanfold.types import Blob


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode of CAGE-2 as it was played, step by step.

    `observations` are rows of 52 bits, or with memory more; `compliance` is the share of fixes that kept to the
    workflow, None where there was none to keep to or nothing to fix.
    """

    number: int
    observations: Any
    actions: Any
    rewards: Any
    fixes: int = 0
    compliance: float | None = None

    @property
    def length(self) -> int:
        return len(self.actions)

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum())


def initial_policy(workflow: str | None = None, hidden: int = 64, seed: int = 0) -> bytes:
    """An untrained policy as the bytes of a safetensors file, as a trained agent is kept."""
    return pack(cage2_policy(context_of(None if workflow is None else parse(workflow)), hidden).initial(seed))


def collect_single_episode(
    policy: bytes,
    episode: int = 0,
    workflow: str | None = None,
    red_agent: str = "B_lineAgent",
    seed: int = 0,
    greedy: bool = False,
) -> Episode:
    """Play one whole episode.  What happens in it follows from the arguments alone, whoever plays it.

    Blue has a memory where the policy learnt with one.
    """
    order = None if workflow is None else parse(workflow)
    weights = unpack(policy)
    networks = [cage2_policy(context_of(order), memory=memory) for memory in (False, True)]
    widths = [network.width + len(network.context) for network in networks]
    width = len(weights.get("policy.0.weight", ()))
    if width not in widths:
        raise ConfigError(
            f"policy is not one for workflow={workflow!r}: it should have {widths[0]} inputs, or with memory "
            f"{widths[1]}. Policies learn with or without a workflow, and play likewise"
        )
    memory = width == widths[1]
    config = WorkflowConfig(mode="ppo", red_agent=red_agent, workflow=workflow, memory=memory)
    block = Collect(0, Blob.of(policy), episode, 1, context_of(order), greedy)
    _, played = play(block, weights, config.game, range(episode, episode + 1), seed)
    seen = cage2_policy(memory=memory).inputs({}, played.keys[played.observations[0]])
    fixes, compliance = 0, None
    if order is not None:
        marks = judge(played.actions, played.held, order)
        fixes = int(marks.fixes[0])
        compliance = float(marks.kept[0]) / fixes if fixes else None
    return Episode(episode, seen, played.actions[0], played.rewards[0], fixes, compliance)
