"""Whole episodes of any Gymnasium environment with a finite set of actions, several of them in step."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, MissingExtra
from fanfold.studies.workflow import ppo
from fanfold.studies.workflow.cage2 import ENVIRONMENT_ID, register
from fanfold.studies.workflow.ppo import Array
from fanfold.tensors import Arrays

#: How many episodes are played in step, so that the policy is asked about many observations at once.
TOGETHER = 16
_LOCAL = threading.local()


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Episodes in rows, padded to the longest: numbers of observations, actions and rewards by step.

    `final` is the observation that followed an episode's last step where the episode was only cut off, and -1 where
    it was terminated; `log_chances` is what the policy that played thought of every action in each observation.
    """

    observations: Array
    index: Array
    actions: Array
    rewards: Array
    lengths: Array
    final: Array
    log_chances: Array


class _Episode:
    """One episode under way."""

    def __init__(self, env: Any, seed: int, number: int) -> None:
        self.env = env
        own = derive_seed(seed, "episode", number)
        self.points = np.random.default_rng(own)
        self.seen = [_flat(env, env.reset(seed=own % 2**31)[0])]
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.cut_off = False

    def step(self, action: int) -> bool:
        """Whether it is over."""
        start = int(getattr(self.env.action_space, "start", 0))
        seen, reward, terminated, truncated, _ = self.env.step(action + start)
        self.seen.append(_flat(self.env, seen))
        self.actions.append(action)
        self.rewards.append(float(reward))
        self.cut_off = bool(truncated and not terminated)
        return bool(terminated or truncated)


def play(env: str, weights: Arrays, numbers: range, seed: int, greedy: bool = False) -> Trajectories:
    """Play these episodes to their end.  Each has its own luck, whatever is played beside it."""
    done: dict[int, _Episode] = {}
    waiting = iter(numbers)
    made = _environments(env, len(numbers))
    # Environments come first: what is taken from `waiting` must find one.
    under_way = [(number, _Episode(each, seed, number)) for each, number in zip(made, waiting)]
    while under_way:
        inputs = np.stack([episode.seen[-1] for _, episode in under_way])
        logs = ppo.log_softmax(ppo.forward(weights, "policy", inputs)[2])
        if greedy:
            actions = logs.argmax(axis=1)
        else:
            points = np.array([episode.points.random() for _, episode in under_way])
            bounds = np.exp(logs.astype(np.float64)).cumsum(axis=1)
            actions = (bounds < points[:, None] * bounds[:, -1:]).sum(axis=1)
        still = []
        for (number, episode), action in zip(under_way, actions.tolist()):
            if not episode.step(action):
                still.append((number, episode))
                continue
            done[number] = episode
            if (following := next(waiting, None)) is not None:
                still.append((following, _Episode(episode.env, seed, following)))
        under_way = still
    return _padded([done[number] for number in numbers], weights)


def _padded(episodes: list[_Episode], weights: Arrays) -> Trajectories:
    lengths = np.array([len(episode.actions) for episode in episodes])
    starts = np.cumsum([0, *(lengths + 1)])[:-1]
    shape = (len(episodes), int(lengths.max()))
    index, actions, rewards = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    for row, (episode, start, length) in enumerate(zip(episodes, starts.tolist(), lengths.tolist())):
        index[row, :length] = np.arange(start, start + length)
        actions[row, :length] = episode.actions
        rewards[row, :length] = episode.rewards
    final = np.where([episode.cut_off for episode in episodes], starts + lengths, -1)
    seen = np.concatenate([np.stack(episode.seen) for episode in episodes])
    seen, number = np.unique(seen, axis=0, return_inverse=True)
    number = number.ravel()
    final = np.where(final >= 0, number[final], -1)
    chances = ppo.log_softmax(ppo.forward(weights, "policy", seen)[2])
    return Trajectories(seen, number[index], actions, rewards, lengths, final, chances)


def sizes(env: str) -> tuple[int, int]:
    """How many numbers an observation has, and how many actions there are."""
    one = _environments(env, 1)[0]
    return len(_flat(one, one.observation_space.sample())), int(one.action_space.n)


def _environments(env: str, count: int) -> list[Any]:
    """Environments of this thread, made once and used for block after block."""
    known: dict[str, list[Any]] = _LOCAL.__dict__.setdefault("environments", {})
    made = known.setdefault(env, [])
    while len(made) < min(count, TOGETHER):
        made.append(_make(env))
    return made[: min(count, TOGETHER)]


def _make(env: str) -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("gymnasium", "workflow", f"the environment {env!r}") from error
    if env == ENVIRONMENT_ID:
        register()
    try:
        made = gymnasium.make(env)
    except gymnasium.error.Error as error:
        raise ConfigError(f"env={env!r} cannot be made: {error}") from error
    if not isinstance(made.action_space, gymnasium.spaces.Discrete):
        raise ConfigError(f"env={env!r} has the actions {made.action_space}: only a finite set of actions is learnt")
    return made


def _flat(env: Any, observation: Any) -> Array:
    """An observation as a row of numbers: whole numbers and parts of compound ones become as many inputs as needed."""
    if isinstance(observation, np.ndarray) and observation.ndim == 1:
        return observation.astype(np.float32)
    from gymnasium.spaces import flatten

    return np.asarray(flatten(env.observation_space, observation), np.float32).ravel()
