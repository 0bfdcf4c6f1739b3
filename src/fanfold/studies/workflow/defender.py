"""One policy for CAGE-2: what its training comes to, with its compliance and an episode to watch."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fanfold.encoding import derive_seed
from fanfold.rl.agent import card_of
from fanfold.rl.collect import Collect
from fanfold.rl.conclusion import PolicyConclusion
from fanfold.rl.logs import Curves
from fanfold.rl.making import Environment
from fanfold.rl.updates import EndPolicy, Update
from fanfold.studies.workflow import logs, shown
from fanfold.studies.workflow.baselines import rated
from fanfold.studies.workflow.cage2 import ENVIRONMENT_ID
from fanfold.studies.workflow.cage2.rules import REDS, Cage2Game
from fanfold.studies.workflow.collect import CAGE2, environment
from fanfold.studies.workflow.orders import parse
from fanfold.studies.workflow.spaces import Workflow
from fanfold.summary import Section
from fanfold.tensors import unpack


def defender_card(game: Cage2Game, context: Sequence[float]) -> dict[str, Any]:
    """What the agent's file says: the environment by which others can play the same game."""
    names = ("length", "green", "observation", "memory")
    kwargs = {"reds": list(game.reds), **{name: getattr(game, name) for name in names}}
    card = card_of(Environment.of(environment(ENVIRONMENT_ID), kwargs))
    return {**card, "env": {**card["env"], "alias": CAGE2}, "context": list(context)}


def _by_red(blocks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean return against each attacker."""
    returns: dict[str, list[float]] = {}
    for block in blocks:
        for red, total in zip(block["reds"], block["returns"]):
            returns.setdefault(REDS[red], []).append(total)
    return {red: statistics.fmean(totals) for red, totals in sorted(returns.items())}


@dataclass(frozen=True)
class DefenderConclusion(PolicyConclusion):
    """Of a policy for CAGE-2.  `settings` are a `WorkflowConfig`."""

    @property
    def order(self) -> Workflow | None:
        return None if self.settings.workflow is None else parse(self.settings.workflow, self.settings.grain)

    def measured(self, blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        if blocks and "reds" in blocks[0]:
            figures["return_against"] = _by_red(blocks)
        if blocks and "fixes" in blocks[0]:
            figures |= rated("compliance", (pair for block in blocks for pair in zip(block["kept"], block["fixes"])))
        return figures

    def ended(self, figures: Mapping[str, Any], policies: Sequence[EndPolicy]) -> Section:
        section = super().ended(figures, policies)
        if against := figures.get("return_against"):
            returns = ", ".join(f"{red} {mean:.2f}" for red, mean in against.items())
            section = replace(section, text=f"{section.text} By attacker: {returns}.")
        if figures.get("compliance") is None:
            return section
        low, high = figures["compliance_interval"]
        return replace(
            section, text=f"{section.text} Compliance {figures['compliance']:.3f} ({low:.3f} to {high:.3f})."
        )

    async def more(self, best: EndPolicy) -> list[Section]:
        return [await asyncio.to_thread(self._watched, best)]

    def _watched(self, policy: EndPolicy) -> Section:
        from fanfold.studies.workflow.watching import watched  # compiled code

        chosen, seed = msgspec.convert(policy.candidate, Collect), derive_seed(self.seed, "watch")
        weights = unpack(chosen.weights.read())
        return shown.replayed(watched(weights, self.settings.game, self.order, chosen.greedy, seed))

    def log(self, learnt: Sequence[Update]) -> bytes:
        return logs.policy_log(learnt, self.order)

    def curves(self, learnt: Sequence[Update]) -> Curves:
        return {**super().curves(learnt), "compliance": logs.compliance_curve(learnt)}
