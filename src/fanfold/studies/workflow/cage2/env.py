"""The game as Gymnasium environments: one of it, and many in step.

Importing this module registers `fanfold/Cage2-v0`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fanfold.errors import ConfigError, MissingExtra
from fanfold.studies.workflow.cage2 import register
from fanfold.studies.workflow.cage2.engine import play, start, unpack
from fanfold.studies.workflow.cage2.rules import ACTIONS, MEMORY, REDS, Cage2Game

try:
    import gymnasium
    from gymnasium.spaces import Discrete, MultiBinary
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise MissingExtra("gymnasium", "workflow", "the CAGE-2 environment") from error

register()

Bits = NDArray[np.int8]
Reds = str | Sequence[str]


class _Field:
    """Some environments in step, each in an episode of its own."""

    def __init__(self, game: Cage2Game, size: int, seed: int) -> None:
        self.game = game
        self.seed = seed
        self.round = -1
        self.states: Any = None
        self._tables = game.tables()
        self._size = size
        self._left = 0
        self._actions = np.zeros((size, 1), np.uint8)
        self._keys = np.zeros((size, 1), np.uint64)
        self._tenths = np.zeros((size, 1), np.int32)

    def begin(self, seed: int | None, episode: int | None = None) -> None:
        """The next episodes: a seed restarts their count, and `episode` is the first one's number."""
        if seed is not None:
            self.seed, self.round = seed, -1
        self.round = self.round + 1 if episode is None else episode // self._size
        first = self.round * self._size if episode is None else episode
        self.episodes = np.arange(first, first + self._size, dtype=np.int64)
        self.states = start(self.game, self.seed, self.episodes, self.states)
        self._left = self.game.length

    def first_sight(self) -> Bits:
        """What is seen before the first step: nothing."""
        return np.zeros((self._size, self.game.bits), np.int8)

    def step(self, actions: Any) -> tuple[Bits, NDArray[np.float64], bool]:
        """Observations, rewards, and whether the episodes are over."""
        if self.states is None:
            raise ConfigError("the environment has not been reset: call reset() before step()")
        taken = np.asarray(actions)
        if taken.shape != (self._size,) or taken.dtype.kind not in "iu":
            raise ConfigError(f"actions: {self._size} whole numbers are needed, not {actions!r}")
        if taken.min() < 0 or taken.max() >= len(ACTIONS):
            raise ConfigError(f"actions: they go from 0 to {len(ACTIONS) - 1}, not {actions!r}")
        self._actions[:, 0] = taken
        play(self.states, self._tables, self._actions, self._keys, self._tenths)
        self._left -= 1
        seen = unpack(self._keys[:, 0])
        if self.game.memory:
            seen = np.hstack([seen, unpack(self.states["memory"], len(MEMORY))])
        return seen, self._tenths[:, 0] / 10, self._left <= 0


def _game(reds: Reds, more: Mapping[str, Any]) -> Cage2Game:
    return Cage2Game((reds,) if isinstance(reds, str) else tuple(reds), **more)


class Cage2(gymnasium.Env[Bits, np.int64]):
    """One environment: 52 bits are seen (with `memory` more), one of 145 actions is taken, `length` steps are played.

    Episodes are counted from 0 since the last seed; `reset(options={"episode_id": n})` starts any of them, and the same
    seed, number and actions give the same episode.  The arguments are those of `rules.Cage2Game`.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as Gymnasium declares it

    def __init__(self, reds: Reds = "b_line", *, seed: int = 0, render_mode: None = None, **game: Any) -> None:
        self._field = _Field(_game(reds, game), 1, seed)
        self.observation_space = MultiBinary(self._field.game.bits)
        self.action_space = Discrete(len(ACTIONS))
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Bits, dict[str, Any]]:
        super().reset(seed=seed)
        self._field.begin(seed, (options or {}).get("episode_id"))
        red = REDS[int(self._field.states["red"][0])]
        return self._field.first_sight()[0], {"episode_id": int(self._field.episodes[0]), "red": red}

    def step(self, action: Any) -> tuple[Bits, float, bool, bool, dict[str, Any]]:
        bits, rewards, over = self._field.step(np.atleast_1d(action))
        return bits[0], float(rewards[0]), False, over, {}


class Cage2Vector(gymnasium.vector.VectorEnv[Bits, NDArray[np.int64], NDArray[Any]]):
    """Many environments in step.  Environment i of n plays the episodes i, i + n, i + 2n, ... of one seed.

    They end together, and in the same step begin their next episodes: the observations returned are those of the new
    episodes, and `infos["final_obs"]` has the last ones of the old.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP,
    }

    def __init__(
        self, num_envs: int = 1, reds: Reds = "b_line", *, seed: int = 0, render_mode: None = None, **game: Any
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs: at least one environment is needed, not {num_envs}")
        self.num_envs = num_envs
        self.render_mode = render_mode
        self._field = _Field(_game(reds, game), num_envs, seed)
        self.single_observation_space = MultiBinary(self._field.game.bits)
        self.single_action_space = Discrete(len(ACTIONS))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Bits, dict[str, Any]]:
        if not (seed is None or isinstance(seed, int | np.integer)):
            raise ConfigError("seed: one whole number for all, whose episodes each have their own luck under it")
        super().reset(seed=seed)
        self._field.begin(seed, (options or {}).get("episode_id"))
        return self._field.first_sight(), self._about()

    def step(self, actions: Any) -> tuple[Bits, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        bits, rewards, over = self._field.step(actions)
        ended = np.full(self.num_envs, over)
        infos: dict[str, Any] = {}
        if over:
            self._field.begin(None)
            infos = {"final_obs": bits, "_final_obs": ended, **self._about()}
            bits = self._field.first_sight()
        return bits, rewards, np.zeros(self.num_envs, np.bool_), ended, infos

    def _about(self) -> dict[str, Any]:
        everywhere = np.ones(self.num_envs, np.bool_)
        return {"episode_id": self._field.episodes, "_episode_id": everywhere}
