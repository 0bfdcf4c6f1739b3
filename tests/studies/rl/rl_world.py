"""Environments of the tests' own: each has a known best policy, and some misbehave on demand."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Walk(gymnasium.Env[Any, int]):
    """Ten steps; going right (1) pays 1, going left (0) nothing.  What is observed is the place and some noise."""

    def __init__(self, length: int = 10, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.observation_space, self.action_space = Box(-20, 20, (2,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age, self.place = 0, 0.0
        return self._seen(), {}

    def _seen(self) -> Any:
        return np.array([self.place, self.np_random.normal()], np.float32)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.age += 1
        self.misbehave()
        self.place += 2.0 * action - 1.0
        return self._seen(), float(action), self.age >= self.length, False, {}

    def misbehave(self) -> None:
        """What others override."""

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"at {self.place:g}"
        frame = np.zeros((16, 48, 3), np.uint8)
        frame[:, int(np.clip(24 + 2 * self.place, 0, 47))] = 255
        return frame

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 10}  # noqa: RUF012


class Raises(Walk):
    """Raises in a share of the episodes, always in the same ones."""

    def __init__(self, share: float = 0.1, **more: Any) -> None:
        super().__init__(**more)
        self.share = share

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        begun = super().reset(seed=seed)
        self.bad = self.np_random.random() < self.share
        return begun

    def misbehave(self) -> None:
        if self.bad and self.age == 4:
            raise ZeroDivisionError(f"the simulator broke down at {self.place:g}")


class NotANumber(Raises):
    """In a share of the episodes a reward, or with `observed` an observation, is not a number."""

    def __init__(self, share: float = 0.1, observed: bool = False) -> None:
        super().__init__(share)
        self.observed = observed

    def misbehave(self) -> None:
        pass

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, reward, *rest = super().step(action)
        if self.bad and self.age == 4:
            seen, reward = (seen * np.nan, reward) if self.observed else (seen, float("nan"))
        return seen, reward, *rest  # type: ignore[return-value]


class Once(Walk):
    """Hangs, dies or exits once: the file named in RL_WORLD_ONCE is made before."""

    def misbehave(self) -> None:
        once = os.environ.get("RL_WORLD_ONCE")
        if once is None or self.age != 3 or Path(once).exists():
            return
        Path(once).touch()
        misdeed(os.environ["RL_WORLD_DEED"])


class Deadly(Raises):
    """Ends its process in a share of the episodes, always in the same ones."""

    def misbehave(self) -> None:
        if self.bad and self.age == 4:
            misdeed("exit")


def misdeed(kind: str) -> None:
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        os._exit(3)
    time.sleep(600)


def noted(env: Any, **arguments: Any) -> Any:
    """A wrapper that keeps what it was given."""
    env.noted = [*getattr(env, "noted", ()), arguments]
    return env


def make_walk(length: int = 10) -> Walk:
    return Walk(length)


def network(spaces: Any) -> Any:
    """A network of PyTorch for rows of numbers, by the contract of two methods."""
    import torch

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(spaces.width, 8)
            self.act, self.value = torch.nn.Linear(8, spaces.outputs), torch.nn.Linear(8, 1)

        def forward(self, observations: Any) -> Any:
            seen = torch.relu(self.body(observations))
            return self.act(seen), self.value(seen)[:, 0]

    return Small()
