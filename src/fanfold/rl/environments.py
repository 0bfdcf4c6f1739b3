"""Whole episodes of any Gymnasium environment with a finite set of actions, many of them in step.

Environments are the user's own Python objects, stepped one by one; only the policy is asked about all of them at once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, MissingExtra
from fanfold.rl import ppo
from fanfold.rl.ppo import Array
from fanfold.tensors import Arrays

#: How many episodes are played in step, so that the policy is asked about many observations at once.
TOGETHER = 64
_LOCAL = threading.local()
#: The constants of SplitMix64, the generator behind an episode's choices.
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


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


def play(env: str, weights: Arrays, numbers: range, seed: int, greedy: bool = False) -> Trajectories:
    """Play these episodes to their end.  Each has its own luck, whatever is played beside it."""
    lanes = _environments(env, len(numbers))
    waiting = iter(range(len(numbers)))
    rows: Array = np.zeros(len(lanes), np.int64)
    keys: Array = np.zeros(len(lanes), np.uint64)
    ticks: list[tuple[Array, Array, Array]] = []
    rewards: list[float] = []
    finals: dict[int, Array] = {}

    def begin(place: int, row: int) -> Array:
        own = derive_seed(seed, "episode", numbers[row])
        rows[place], keys[place] = row, own
        return lanes[place].begin(own % 2**31, len(ticks))

    seen = [begin(place, next(waiting)) for place in range(len(lanes))]
    while lanes:
        inputs = np.concatenate(seen, dtype=np.float32, casting="unsafe").reshape(len(lanes), -1)
        chosen = _choices(weights, inputs, keys, greedy)
        ticks.append((rows.copy(), inputs, chosen))
        idle, tick = [], len(ticks)
        for place, (lane, action) in enumerate(zip(lanes, chosen.tolist())):
            observation, reward, terminated, truncated, _ = lane.step(action + lane.start)
            seen[place] = lane.flat(observation) if lane.compound else observation
            rewards.append(reward)
            if not (terminated or truncated or tick >= lane.due):
                continue
            if not terminated:
                finals[int(rows[place])] = lane.flat(observation)
            if (following := next(waiting, None)) is not None:
                seen[place] = begin(place, following)
            else:
                idle.append(place)
        if idle:
            kept = [place for place in range(len(lanes)) if place not in idle]
            lanes, seen = [lanes[place] for place in kept], [seen[place] for place in kept]
            rows, keys = rows[kept], keys[kept]
    return _assembled(ticks, rewards, finals, len(numbers), weights)


def _choices(weights: Arrays, inputs: Array, keys: Array, greedy: bool) -> Array:
    """An action for every episode by its own luck: `keys` moves to the next draw."""
    scores = ppo.forward(weights, "policy", inputs)[2]
    if greedy:
        best: Array = scores.argmax(axis=1)
        return best
    keys += _GOLDEN
    mixed = (keys ^ (keys >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    mixed ^= mixed >> np.uint64(31)
    points = (mixed >> np.uint64(11)) * 2.0**-53
    bounds = np.exp(scores - scores.max(axis=1, keepdims=True), dtype=np.float64).cumsum(axis=1)
    passed: Array = bounds[:, :-1] <= (points * bounds[:, -1])[:, None]
    actions: Array = passed.sum(axis=1)
    return actions


def _assembled(
    ticks: Sequence[tuple[Array, Array, Array]],
    rewards: Sequence[float],
    finals: Mapping[int, Array],
    episodes: int,
    weights: Arrays,
) -> Trajectories:
    """Steps in the order in which they were taken, as episodes in rows."""
    row, seen, action = (np.concatenate(parts) for parts in zip(*ticks))
    order = np.argsort(row, kind="stable")
    lengths = np.bincount(row, minlength=episodes)
    inside = np.arange(lengths.max()) < lengths[:, None]
    last = sorted(finals)
    observations, number = _distinct(np.concatenate([seen[order], *(finals[each][None] for each in last)]))
    final = np.full(episodes, -1)
    final[last] = number[len(order) :]

    def padded(values: Array) -> Array:
        filled = np.zeros(inside.shape, values.dtype)
        filled[inside] = values
        return filled

    chances = ppo.log_softmax(ppo.forward(weights, "policy", observations)[2])
    index, actions = padded(number[: len(order)]), padded(action[order])
    gained = padded(np.array(rewards, np.float64)[order])
    return Trajectories(observations, index, actions, gained, lengths, final, chances)


def _distinct(rows: Array) -> tuple[Array, Array]:
    """The distinct rows, and which of them each row is.

    Rows are told apart by a hash, which is many times faster than sorting them, and compared afterwards.
    """
    bits = rows.view(np.uint32)
    factors = np.random.default_rng(rows.shape[1]).integers(2**63, size=rows.shape[1], dtype=np.uint64)
    hashes = bits @ (2 * factors + np.uint64(1))
    _, first, number = np.unique(hashes, return_index=True, return_inverse=True)
    if not (bits[first[number]] == bits).all():
        distinct, number = np.unique(rows, axis=0, return_inverse=True)
        return distinct, number.ravel()
    return rows[first], number


def sizes(env: str) -> tuple[int, int]:
    """How many numbers an observation has, and how many actions there are."""
    one = _environments(env, 1)[0]
    return one.size, int(one.env.action_space.n)


class _Lane:
    """An environment that plays one episode after another, with what every step needs at hand."""

    def __init__(self, name: str, made: Any) -> None:
        from gymnasium.spaces import Discrete, flatdim

        self.name = name
        self.env, self.limit = _peeled(made)
        self.step = self.env.step
        self.start = int(self.env.action_space.start)
        space = self.env.observation_space
        self.compound = len(space.shape or ()) != 1
        self.size = flatdim(space) if self.compound else space.shape[0]
        self.due = math.inf
        inner = self.env.unwrapped.action_space
        if type(inner) is Discrete:
            # Many environments check every action, and asking the space takes longer than the rest of a small step.
            vars(inner)["contains"] = range(int(inner.start), int(inner.start + inner.n)).__contains__

    def begin(self, seed: int, tick: int) -> Array:
        """A new episode, of which no step is taken after `due`."""
        self.due = tick + self.limit
        seen = self.flat(self.env.reset(seed=seed)[0])
        if seen.shape != (self.size,):
            raise ConfigError(
                f"env={self.name!r} observed {seen.size} numbers where its observation_space says {self.size}: one of "
                f"the two is wrong"
            )
        return seen

    def flat(self, observation: Any) -> Array:
        """An observation as a row of numbers: whole numbers and parts of compound ones become as many as needed."""
        if self.compound:
            from gymnasium.spaces import flatten

            observation = flatten(self.env.observation_space, observation)
        return np.array(observation, np.float32).ravel()  # a copy: some environments write over what they gave


def _peeled(made: Any) -> tuple[Any, float]:
    """An environment without the wrappers that Gymnasium adds on the outside, and the time limit that was one of them.

    They check how an environment is used, at every step; here it is always used rightly.
    """
    from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

    limit = math.inf
    while type(made) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        if type(made) is TimeLimit:
            limit = min(limit, made._max_episode_steps)
        made = made.env
    return made, limit


def _environments(env: str, count: int) -> list[_Lane]:
    """Environments of this thread, made once and used for block after block."""
    known: dict[str, list[_Lane]] = _LOCAL.__dict__.setdefault("environments", {})
    made = known.setdefault(env, [])
    while len(made) < min(count, TOGETHER):
        made.append(_Lane(env, _make(env)))
    return made[: min(count, TOGETHER)]


def _make(env: str) -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtra("gymnasium", "workflow", f"the environment {env!r}") from error
    try:
        made = gymnasium.make(env)
    except gymnasium.error.Error as error:
        raise ConfigError(f"env={env!r} cannot be made: {error}") from error
    if not isinstance(made.action_space, gymnasium.spaces.Discrete):
        raise ConfigError(f"env={env!r} has the actions {made.action_space}: only a finite set of actions is learnt")
    return made
