"""Workflows for any environment: a function of the user says how well each episode kept to its workflow."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fanfold.contracts import check_call
from fanfold.errors import ConfigError, FanfoldError
from fanfold.rl import environments
from fanfold.rl.agent import card_of
from fanfold.rl.collect import Collect, Collector
from fanfold.rl.experience import Trajectories
from fanfold.rl.failures import all_failed, failed_in
from fanfold.rl.heads import Array
from fanfold.rl.making import closed
from fanfold.rl.policy import Mlp
from fanfold.rl.training import remarks_of
from fanfold.studies.workflow.compliance import Compliance, Marks, alignment, rate_of
from fanfold.studies.workflow.spaces import Workflow, WorkflowSpace
from fanfold.studies.workflow.user_code import user_code
from fanfold.tensors import Arrays

#: A share of an episode counts as so many fixes.
WHOLE = 100
_WANTED = "give a share from 0 to 1, or True, False or None for every step"


@dataclass(frozen=True, eq=False)
class JudgedEpisode:
    """One whole episode, step by step: what was observed, what was done, and its reward.

    Observations and actions are those of the environment's spaces: arrays with a row for each step, or lists where they
    have parts.
    """

    observations: Any
    actions: Any
    rewards: Array


#: Takes a workflow (as `WorkflowSpace.value` has it) and an episode.  Gives the share of the episode that kept to the
#: workflow, from 0 to 1; or for every step True (kept), False (broken) or None (there was nothing to keep to).
Kept = Callable[[Any, JudgedEpisode], float | Sequence[bool | None]]


class EpisodesFailed(FanfoldError):
    """Of the episodes that were to be judged, all failed."""


@dataclass(frozen=True)
class OwnProblem:
    """Workflows of a space for an environment: an id, `module:name`, `file.py:name`, or a function that makes one."""

    space: WorkflowSpace
    env: Any
    kept: Kept

    def __post_init__(self) -> None:
        if not isinstance(self.space, WorkflowSpace):
            raise ConfigError(f"space must be Orders(...), Subsets(...) or Assignments(...), not {self.space!r:.80}")
        if not callable(self.kept):
            raise ConfigError(f"kept must be a function of (workflow, episode), not {self.kept!r:.80}")
        check_call(self.kept, "kept", ("workflow", "episode"))


@dataclass(frozen=True)
class KeptCollector(Collector):
    """Plays blocks of any environment; what breaks the workflow costs reward while a policy learns."""

    kept: Kept = field(kw_only=True)
    space: WorkflowSpace = field(kw_only=True)
    workflow: Workflow | None = None
    alignment_lambda: float = 0.0
    alignment_kind: str = "each"
    judges: ClassVar[bool] = True

    @property
    def context(self) -> tuple[float, ...]:
        """A policy learns for one workflow alone, and is told nothing of it."""
        return ()

    def network(self, hidden: int) -> Mlp:
        """The network of a policy."""
        return environments.policy_for(self.env, hidden)

    def drawn(self, weights: Arrays, greedy: bool, seed: int) -> None:
        """Nobody knows how to draw an episode of any environment."""

    def play(
        self, candidate: Collect, weights: Arrays, numbers: range, seed: int
    ) -> tuple[Trajectories | None, Array, dict[str, Any]]:
        steps, returns, figures = super().play(candidate, weights, numbers, seed)
        if self.workflow is None or steps is None:
            return steps, returns, figures
        fixes, kept, bonus = self._judged(steps)
        if candidate.learn:
            steps = replace(steps, rewards=steps.rewards + bonus)
        return steps, returns, figures | {"fixes": fixes, "kept": kept, "bonus": float(bonus.sum())}

    def watch(
        self, candidate: Collect, weights: Arrays, numbers: range, seed: int, level: float
    ) -> tuple[Array, Compliance]:
        """The return of each episode, and how well they kept to the workflow."""
        _, returns, figures = self.play(candidate, weights, numbers, seed)
        if not len(returns):
            raise EpisodesFailed(all_failed(failed_in(figures)).message)
        rate = rate_of(zip(figures["kept"], figures["fixes"]), level)
        return returns, Compliance(rate, None, None, len(returns), sum(figures["fixes"]) / max(len(returns), 1))

    def checked(self, step: bool) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Refuse an environment and a function that cannot work; without `step`, no episode is played here.

        Gives what was inferred about the environment, and what an agent's file says of it.
        """
        env = environments.known(self.env)
        made = env.check(step)
        closed(made)  # before another is made: of some there can be one at a time
        try:
            begun = environments.try_observation(env)
            if step:
                self._try_kept()
            return remarks_of(env, made, self.policy or environments.policy_for(env), begun), card_of(env, made)
        finally:
            environments.release(env)

    def _try_kept(self) -> None:
        policy = self.policy or environments.policy_for(self.env)
        steps, _ = environments.play(self.env, policy.initial(0), range(1), 0, policy=policy)
        if steps is not None:  # otherwise the episode failed, and others may not
            replace(self, workflow=self.space.canonical(self.space.draw(random.Random(0))))._judged(steps)

    def _verdict(self, value: Any, episode: JudgedEpisode) -> float | list[Any]:
        """What `kept` says of an episode: a share, or a mark for every step."""
        with user_code("kept"):
            verdict: Any = self.kept(value, episode)
            if isinstance(verdict, int | float | np.number | np.bool_) or getattr(verdict, "ndim", None) == 0:
                return _share(float(verdict))
            return _marks(verdict, len(episode.rewards))

    def _judged(self, steps: Trajectories) -> tuple[list[int], list[int], Array]:
        """Of each episode the fixes that counted and those that kept to the workflow, and the bonus of every step."""
        assert self.workflow is not None
        value = self.space.value(self.workflow)
        encoder, decoder = environments.coding_of(self.env)
        shape = steps.rewards.shape
        counted, compliant, shares = np.zeros(shape, bool), np.zeros(shape, bool), np.full(len(steps.lengths), math.nan)
        for row, length in enumerate(steps.lengths.tolist()):
            observations = encoder.decode(steps.observations[steps.index[row, :length]])
            actions = np.array(decoder(steps.actions[row, :length]))
            verdict = self._verdict(value, JudgedEpisode(observations, actions, steps.rewards[row, :length]))
            if isinstance(verdict, float):
                shares[row] = verdict
                continue
            counted[row, :length] = [mark is not None for mark in verdict]
            compliant[row, :length] = [bool(mark) for mark in verdict]
        marks_of = Marks(counted, compliant)
        bonus = alignment(marks_of, self.alignment_lambda, self.alignment_kind)
        whole = ~np.isnan(shares)
        bonus[whole] = 0.0
        bonus[whole, steps.lengths[whole] - 1] = self.alignment_lambda * (shares[whole] - 1.0)
        fixes = np.where(whole, WHOLE, marks_of.fixes)
        kept = np.where(whole, np.round(WHOLE * np.nan_to_num(shares)), marks_of.kept)
        return fixes.astype(int).tolist(), kept.astype(int).tolist(), bonus


def _marks(verdict: Any, length: int) -> list[Any]:
    marks = list(verdict) if isinstance(verdict, Iterable) and not isinstance(verdict, str | Mapping) else None
    if marks is None or any(mark is not None and mark not in (True, False) for mark in marks):
        raise ConfigError(f"`kept` said {verdict!r:.80}: {_WANTED}")
    if len(marks) != length:
        raise ConfigError(f"`kept` said something of {len(marks)} steps of an episode of {length}: {_WANTED}")
    return marks


def _share(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"`kept` said {value!r}: {_WANTED}")
    return value
