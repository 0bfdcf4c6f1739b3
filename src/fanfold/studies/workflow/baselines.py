"""Policies side by side on the same fresh episodes: trained agents, and two that have learnt nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fanfold import stats
from fanfold.identity import formerly
from fanfold.rl.collect import Collect
from fanfold.rl.conclusion import returned
from fanfold.rl.heads import Array
from fanfold.studies.workflow.cage2.rules import ACTIONS, HOSTS, REMOVE, RESTORE, Cage2Game
from fanfold.studies.workflow.collect import context_of
from fanfold.studies.workflow.compliance import judge
from fanfold.studies.workflow.orders import options_of_hosts
from fanfold.studies.workflow.own import KeptCollector
from fanfold.studies.workflow.spaces import Workflow
from fanfold.tensors import unpack
from fanfold.types import Blob, Case, Failed, Ok, Outcome, Result


@dataclass(frozen=True)
class Play:
    """A policy to be watched: an agent; `random`, which takes any action; or `greedy`, which fixes what it sees.

    The last two learn nothing.  `greedy` takes the first type in the workflow's order of which a machine looks
    compromised, and restores it where it may be in deep, or else removes.
    """

    who: Literal["agent", "random", "greedy"]
    workflow: tuple[str, ...]
    weights: Blob | None = None
    greedy: bool = False


@formerly("fanfold.studies.workflow.rivals.Watch")
@dataclass(frozen=True)
class Watch:
    """Plays as many episodes as the case says, and tells how they went; all policies play the same ones."""

    game: Cage2Game = field(default_factory=Cage2Game)

    def __call__(self, candidate: Play, case: Case) -> Ok:
        from fanfold.studies.workflow.cage2.policy import PolicyTable
        from fanfold.studies.workflow.cage2.rollout import rollout
        from fanfold.studies.workflow.cage2_blocks import play

        numbers, seed, order = range(case.data), case.seed or 0, candidate.workflow
        if candidate.weights is not None:
            whole = Collect(0, candidate.weights, 0, len(numbers), context_of(order), candidate.greedy, False)
            block = play(whole, unpack(candidate.weights.read()), self.game, numbers, seed)[1]
        else:
            policy = functools.partial(mending, order) if candidate.who == "greedy" else anything
            block = rollout(PolicyTable(policy), replace(self.game, memory=False), numbers, seed)
        figures: dict[str, Any] = {"returns": [round(each, 6) for each in block.returns.tolist()]}
        for definition in ("effective", "contested"):
            marks = judge(block.actions, block.held, order, definition)
            figures[definition] = [marks.kept.tolist(), marks.fixes.tolist()]
        figures["original"] = judge(block.actions, block.held, order, "original").rates(empty=0.5).tolist()
        return Ok(float(np.mean(block.returns)), figures)


@dataclass(frozen=True)
class WatchOwn:
    """Plays as many episodes of any environment as the case says, by a trained agent."""

    collector: KeptCollector

    def __call__(self, candidate: Play, case: Case) -> Outcome:
        assert candidate.weights is not None
        block = Collect(0, candidate.weights, 0, case.data, (), candidate.greedy, False)
        outcome = replace(self.collector, workflow=candidate.workflow)(block, case)
        if isinstance(outcome, Failed):
            return outcome
        figures = {"returns": outcome.data["returns"], "effective": [outcome.data["kept"], outcome.data["fixes"]]}
        return Ok(outcome.score, figures)


def cases(episodes: int, size: int = 1024) -> list[Case]:
    """So many fresh episodes, in pieces that can be played at once."""
    return [Case(f"fresh-{first // size}", min(size, episodes - first)) for first in range(0, episodes, size)]


def judged(result: Result[Any]) -> dict[str, Any]:
    """What a policy did on all cases, with intervals."""
    blocks: list[Mapping[str, Any]] = [each.data for each in result.outcomes.values() if isinstance(each, Ok)]
    figures = returned(blocks)
    for name, definition in (("compliance", "effective"), ("contested", "contested")):
        figures |= rated(name, (pair for block in blocks for pair in zip(*block.get(definition, ((), ())))))
    originals = [each for block in blocks for each in block.get("original", ())]
    return figures | {"original": stats.mean(originals).estimate if originals else None}


def rated(name: str, pairs: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """The share of fixes that kept to the order, of (kept, made) by episode, with its interval."""
    rate = stats.clustered_rate(dict(enumerate(pairs)))
    return {name: rate.estimate, f"{name}_interval": [rate.low, rate.high]}


def anything(keys: Array) -> Array:
    """Every action alike."""
    return np.zeros((len(keys), len(ACTIONS)), np.float32)


def mending(workflow: Workflow, keys: Array) -> Array:
    """See `Play`.  What blue's table says of a host's compromise is none, unknown, user or privileged."""
    scores = np.full((len(keys), len(ACTIONS)), -np.inf, np.float32)
    bits = (keys[:, None] >> np.arange(4 * len(HOSTS), dtype=np.uint64) & np.uint64(1)).astype(bool)
    unsure, entered = bits[:, 2::4], bits[:, 3::4]
    chosen = np.zeros(len(keys), np.int64)
    for unit in reversed(workflow):
        for host in (number for number, its in enumerate(options_of_hosts(workflow)) if its == unit):
            action = np.where(unsure[:, host], RESTORE, REMOVE) * len(HOSTS) + 2 + host
            chosen = np.where(unsure[:, host] | entered[:, host], action, chosen)
    scores[np.arange(len(keys)), chosen] = 0.0
    return scores
