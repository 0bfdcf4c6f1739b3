"""Small Gymnasium environments with a known best policy, one of which can misbehave once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gymnasium.Env[Any, int]):
    """Go right, through noise, to the end: 1 a step at the goal's side, 0 elsewhere; terminated below, cut off by time.

    `COUNT` says how many were made in this process.
    """

    COUNT = 0

    def __init__(self, goal: bool = True) -> None:
        type(self).COUNT += 1
        self.goal = goal
        self.observation_space = Box(-10, 10, (2,), np.float32)
        self.action_space = Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(-1, 1))
        return self._seen(), {}

    def _seen(self) -> Any:
        return np.array([self.place, self.np_random.normal()], np.float32)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in (5, 6)
        misbehave()
        self.place += 0.5 if action == 6 else -0.5
        over = self.goal and abs(self.place) > 3
        return self._seen(), float(self.place > 0), over, False, {}


def misbehave() -> None:
    """Hang or die, once: the file named in FANFOLD_TEST_ONCE is made before."""
    once = os.environ.get("FANFOLD_TEST_ONCE")
    if once is None or Path(once).exists():
        return
    Path(once).touch()
    if os.environ["FANFOLD_TEST_DEED"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


for name, goal in (("Corridor-v0", True), ("Endless-v0", False)):
    gymnasium.register(name, lambda goal=goal: Corridor(goal), max_episode_steps=20)
