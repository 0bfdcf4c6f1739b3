"""Whole episodes of any Gymnasium environment with a finite set of actions, many of them in step.

Environments are the user's own Python objects, stepped one by one; only the policy is asked about all of them at once.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, FanfoldError
from fanfold.rl import ppo
from fanfold.rl.failures import FailedEpisode
from fanfold.rl.making import Environment
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


def play(
    env: str | Environment, weights: Arrays, numbers: range, seed: int, greedy: bool = False
) -> tuple[Trajectories | None, list[FailedEpisode]]:
    """Play these episodes to their end.  Each has its own luck, whatever is played beside it.

    One that fails is left out and said; where all of them fail there are no trajectories.
    """
    stage = _Stage(known(env), numbers, seed)
    ticks: list[tuple[Array, Array, Array]] = []
    rewards: list[float] = []
    while len(inputs := stage.observed(len(ticks))):
        chosen = _choices(weights, inputs, stage.keys, greedy)
        ticks.append((stage.rows.copy(), inputs, chosen))
        stage.step(chosen, rewards, len(ticks))
    failed = {each.episode - numbers.start for each in stage.failed}
    if len(failed) == len(numbers):
        return None, stage.failed
    row, seen, action = (np.concatenate(parts) for parts in zip(*ticks))
    gained = np.array(rewards, np.float64)
    if failed:
        kept = ~np.isin(row, list(failed))
        number = np.cumsum([each not in failed for each in range(len(numbers))]) - 1
        row, seen, action, gained = number[row[kept]], seen[kept], action[kept], gained[kept]
        stage.finals = {int(number[each]): last for each, last in stage.finals.items() if each not in failed}
    return _assembled(row, seen, action, gained, stage.finals, len(numbers) - len(failed), weights), stage.failed


class _Stage:
    """Lanes that play in step, and the episodes that wait for one."""

    def __init__(self, env: Environment, numbers: range, seed: int) -> None:
        self.env, self.numbers, self.seed = env, numbers, seed
        self.lanes = _lanes(env, len(numbers))
        self.rows: Array = np.zeros(len(self.lanes), np.int64)
        self.keys: Array = np.zeros(len(self.lanes), np.uint64)
        self.seen: list[Array] = []
        self.finals: dict[int, Array] = {}
        self.failed: list[FailedEpisode] = []
        self._waiting = iter(range(len(numbers)))
        self._idle: list[int] = []
        for place in range(len(self.lanes)):
            self.seen.append(np.zeros(0))
            self._begin(place, 0)

    def _begin(self, place: int, tick: int) -> None:
        """Begin the next episode in this lane; without one that can be begun, the lane is idle."""
        for row in self._waiting:
            own = derive_seed(self.seed, "episode", self.numbers[row])
            self.rows[place], self.keys[place] = row, own
            try:
                self.seen[place] = self.lanes[place].begin(own % 2**31, tick)
            except FanfoldError:
                raise
            except Exception as error:
                self._fail(place, tick, error)
            else:
                return
        self._idle.append(place)

    def _fail(self, place: int, tick: int, error: BaseException) -> None:
        """The episode is lost, and its environment is in a state that nobody knows: another takes its place."""
        number = self.numbers[int(self.rows[place])]
        own = derive_seed(self.seed, "episode", number)
        self.failed.append(FailedEpisode.of(number, own, max(0, tick - self.lanes[place].begun - 1), error))
        self.lanes[place].replace(self.env)

    def observed(self, tick: int) -> Array:
        """What the lanes observe, in rows; those whose observation is not finite begin another episode."""
        while True:
            if self._idle:
                kept = [place for place in range(len(self.lanes)) if place not in self._idle]
                self.lanes, self.seen = [self.lanes[place] for place in kept], [self.seen[place] for place in kept]
                self.rows, self.keys, self._idle = self.rows[kept], self.keys[kept], []
            if not self.lanes:
                return np.zeros((0, 0), np.float32)
            inputs = np.concatenate(self.seen, dtype=np.float32, casting="unsafe").reshape(len(self.lanes), -1)
            if np.isfinite(inputs).all():
                return inputs
            for place in np.flatnonzero(~np.isfinite(inputs).all(axis=1)).tolist():
                self._fail(place, tick + 1, FloatingPointError("an observation is not a finite number"))
                self._begin(place, tick)

    def step(self, chosen: Array, rewards: list[float], tick: int) -> None:
        """A step of every lane, and a new episode where one is over."""
        for place, (lane, action) in enumerate(zip(self.lanes, chosen.tolist())):
            try:
                observation, reward, terminated, truncated, _ = lane.step(action + lane.start)
                if reward - reward != 0:
                    raise FloatingPointError(f"the reward {reward} is not a finite number")
                self.seen[place] = lane.flat(observation) if lane.compound else observation
                over = terminated or truncated or tick >= lane.due
                if over and not terminated:
                    self.finals[int(self.rows[place])] = lane.flat(observation)
            except (Exception, SystemExit) as error:
                reward, over = 0.0, True
                self._fail(place, tick, error)
            rewards.append(reward)
            if over:
                self._begin(place, tick)


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
    row: Array, seen: Array, action: Array, rewards: Array, finals: Mapping[int, Array], episodes: int, weights: Arrays
) -> Trajectories:
    """Steps in the order in which they were taken, as episodes in rows."""
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
    gained = padded(rewards[order])
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


def sizes(env: str | Environment) -> tuple[int, int]:
    """How many numbers an observation has, and how many actions there are."""
    one = _lanes(known(env), 1)[0]
    return one.size, int(one.env.action_space.n)


class Lane:
    """An environment that plays one episode after another, with what every step needs at hand."""

    def __init__(self, env: Environment) -> None:
        self.name = env.name
        self._take(env())

    def _take(self, made: Any) -> None:
        from gymnasium.spaces import Discrete, flatdim

        if not isinstance(made.action_space, Discrete):
            raise ConfigError(
                f"env={self.name!r} has the actions {made.action_space}: only a finite set of actions is learnt"
            )
        self.env, self.limit = _peeled(made)
        self.step = self.env.step
        self.start = int(self.env.action_space.start)
        space = self.env.observation_space
        self.compound = len(space.shape or ()) != 1
        self.size = flatdim(space) if self.compound else space.shape[0]
        self.begun, self.due = 0, math.inf
        inner = self.env.unwrapped.action_space
        if type(inner) is Discrete:
            # Many environments check every action, and asking the space takes longer than the rest of a small step.
            vars(inner)["contains"] = range(int(inner.start), int(inner.start + inner.n)).__contains__

    def replace(self, env: Environment) -> None:
        """Another environment in place of one that failed."""
        with contextlib.suppress(Exception):
            self.env.close()
        self._take(env())

    def begin(self, seed: int, tick: int) -> Array:
        """A new episode, of which no step is taken after `due`."""
        self.begun, self.due = tick, tick + self.limit
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


@functools.cache
def _of_text(env: str) -> Environment:
    return Environment.of(env)


def known(env: str | Environment) -> Environment:
    """An environment, also by what a user writes."""
    return _of_text(env) if isinstance(env, str) else env


def _lanes(env: Environment, count: int) -> list[Lane]:
    """Lanes of this thread, made once and used for block after block."""
    if not hasattr(_LOCAL, "lanes"):
        _LOCAL.lanes = weakref.WeakKeyDictionary()
    made: list[Lane] = _LOCAL.lanes.setdefault(env, [])
    while len(made) < min(count, TOGETHER):
        made.append(Lane(env))
    return made[: min(count, TOGETHER)]
