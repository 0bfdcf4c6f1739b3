"""A small problem of one's own: three machines to be served, and what their order is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

MACHINES = ("press", "oven", "belt")
WEIGHT = {"press": 3.0, "oven": 2.0, "belt": 1.0}


class Workshop(gymnasium.Env[Any, Any]):
    """All machines wait.  Serving one ends its waiting; each that waits costs its weight at every step."""

    observation_space = gymnasium.spaces.MultiBinary(3)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.waiting, self.steps = np.ones(3, np.int8), 0
        return self.waiting.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.waiting[int(action)] = 0
        self.steps += 1
        cost = sum(WEIGHT[name] for name, waits in zip(MACHINES, self.waiting) if waits)
        return self.waiting.copy(), -float(cost), not self.waiting.any(), self.steps >= 8, {}


def make_env() -> Workshop:
    return Workshop()


def kept_order(workflow: Sequence[str], episode: Any) -> list[bool | None]:
    """Whether each service was of the first machine in the order that waited; None where it did not wait."""
    marks: list[bool | None] = []
    for row, action in zip(episode.observations, episode.actions):
        waits = [name for name, bit in zip(MACHINES, row) if bit]
        name = MACHINES[int(action)]
        marks.append(None if name not in waits else name == next(each for each in workflow if each in waits))
    return marks


def kept_subset(workflow: frozenset[str], episode: Any) -> float:
    """The share of services that were of chosen machines."""
    served = [MACHINES[int(action)] in workflow for action in episode.actions]
    return sum(served) / len(served)


def kept_shifts(workflow: Mapping[str, str], episode: Any) -> float:
    """The machine that is assigned to the first step was served first."""
    return float(MACHINES[int(episode.actions[0])] == workflow["first"])


def belt_last(workflow: Sequence[str]) -> Sequence[str]:
    return (*(name for name in workflow if name != "belt"), "belt")


def broken(workflow: Any, episode: Any) -> float:
    return 7.0
