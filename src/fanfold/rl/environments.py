"""Whole episodes of any Gymnasium environment, many of them in step.

Environments are the user's own Python objects, stepped one by one; only the policy is asked about all of them at once.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError, FanfoldError
from fanfold.rl.experience import Trajectories
from fanfold.rl.failures import FailedEpisode
from fanfold.rl.heads import Array, Categories, Head
from fanfold.rl.making import Environment, closed
from fanfold.rl.policy import Mlp, Policy, act
from fanfold.rl.spaces import Decoder, Encoder, head_of, mask_of, refused
from fanfold.tensors import Arrays

#: How many episodes are played in step, so that the policy is asked about many observations at once.
TOGETHER = 64
#: Numbers of observations that are hashed at once, each in eight bytes.
_PORTION = 2**20
#: What a reward usually is.  Anything else is made a number first.
_NUMBERS = (float, int, np.number)
_NOT_FINITE = "an observation is not a finite number of 32 bits (up to 3.4e38)"
_LOCAL = threading.local()
#: The lanes of each environment, those of all threads.
_HELD: weakref.WeakKeyDictionary[Environment, list[_Lanes]] = weakref.WeakKeyDictionary()


def play(
    env: str | Environment,
    weights: Arrays,
    numbers: range,
    seed: int,
    greedy: bool = False,
    policy: Policy | None = None,
    watched: bool = True,
) -> tuple[Trajectories | None, list[FailedEpisode]]:
    """Play these episodes to their end.  Each has its own luck, whatever is played beside it.

    One that fails is left out and said; where all of them fail there are no trajectories.  Those that are not `watched`
    are without observations, which may be large, and without the chances of actions.
    """
    policy, held = policy or policy_for(env), _held(known(env))
    held.busy = True
    try:
        stage = _Stage(known(env), numbers, seed)
        ticks: list[tuple[Array, Array, Array]] = []
        rewards: list[float] = []
        while len(inputs := stage.observed(len(ticks))):
            chosen = act(policy, weights, inputs, stage.keys, greedy)
            ticks.append((stage.rows.copy(), inputs if watched else inputs[:, :0].copy(), chosen))
            stage.step(chosen, rewards, len(ticks))
    finally:
        held.busy = False
    failed = {each.episode - numbers.start for each in stage.failed}
    if len(failed) == len(numbers):
        return None, stage.failed
    row, seen, action = (np.concatenate(parts) for parts in zip(*ticks))
    ticks.clear()
    gained = np.array(rewards, np.float64)
    if failed:
        kept = ~np.isin(row, list(failed))
        number = np.cumsum([each not in failed for each in range(len(numbers))]) - 1
        row, seen, action, gained = number[row[kept]], seen[kept], action[kept], gained[kept]
        stage.finals = {int(number[each]): last for each, last in stage.finals.items() if each not in failed}
    if not watched:
        stage.finals = {each: last[:0] for each, last in stage.finals.items()}
    steps = _assembled(row, seen, action, gained, stage.finals, len(numbers) - len(failed))
    if not watched:
        return steps, stage.failed
    outputs = policy.outputs(weights, steps.observations)
    inside = steps.inside
    steps.log_chance[inside] = policy.head.log_chances(outputs, steps.index[inside], steps.actions[inside])
    return steps, stage.failed


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
            except (Exception, SystemExit) as error:
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
            kind = self.lanes[0].encoder.dtype
            with np.errstate(over="ignore"):  # said below
                inputs = np.concatenate(self.seen, dtype=kind, casting="unsafe").reshape(len(self.lanes), -1)
            if np.isfinite(inputs).all():
                return inputs
            for place in np.flatnonzero(~np.isfinite(inputs).all(axis=1)).tolist():
                self._fail(place, tick + 1, FloatingPointError(_NOT_FINITE))
                self._begin(place, tick)

    def step(self, chosen: Array, rewards: list[float], tick: int) -> None:
        """A step of every lane, and a new episode where one is over."""
        for place, (lane, action) in enumerate(zip(self.lanes, self.lanes[0].decode(chosen))):
            try:
                observation, reward, terminated, truncated, info = lane.step(action)
                reward = checked_reward(reward)
                over = terminated or truncated or tick >= lane.due
                if not over:
                    plain = type(observation) is np.ndarray and observation.shape == lane.shape
                    self.seen[place] = observation if plain else lane.row(observation, info)
                    lane.check_mask(self.seen[place], info)
                elif not terminated:  # what follows a terminal step is worth nothing, whatever it looks like
                    self.finals[int(self.rows[place])] = checked_row(lane.row(observation, info, last=True))
            except (Exception, SystemExit) as error:
                reward, over = 0.0, True
                self._fail(place, tick, error)
            rewards.append(reward)
            if over:
                self._begin(place, tick)


def checked_reward(reward: Any) -> Any:
    """A reward as a finite number, also out of an array or a tensor of one."""
    if not isinstance(reward, _NUMBERS):
        array = np.asarray(reward)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise TypeError(f"the reward {reward!r:.80} is not one number")
        reward = float(array.item())
    if reward - reward != 0:
        raise FloatingPointError(f"the reward {reward} is not a finite number")
    return reward


def checked_row(row: Array) -> Array:
    """An observation of nothing but finite numbers."""
    if not np.isfinite(row).all():
        raise FloatingPointError(_NOT_FINITE)
    return row


def _assembled(
    row: Array, seen: Array, action: Array, rewards: Array, finals: Mapping[int, Array], episodes: int
) -> Trajectories:
    """Steps in the order in which they were taken, as episodes in rows."""
    order = np.argsort(row, kind="stable")
    lengths = np.bincount(row, minlength=episodes)
    inside = np.arange(lengths.max()) < lengths[:, None]
    last = sorted(finals)
    met = np.empty((len(order) + len(last), seen.shape[1]), seen.dtype)
    np.take(seen, order, axis=0, out=met[: len(order)])
    for place, each in enumerate(last, len(order)):
        met[place] = finals[each]
    observations, number = _distinct(met)
    final = np.full(episodes, -1)
    final[last] = number[len(order) :]

    def padded(values: Array) -> Array:
        filled = np.zeros((*inside.shape, *values.shape[1:]), values.dtype)
        filled[inside] = values
        return filled

    index, actions = padded(number[: len(order)]), padded(action[order])
    gained = padded(rewards[order])
    return Trajectories(observations, index, actions, gained, lengths, final, np.zeros(inside.shape))


def _distinct(rows: Array) -> tuple[Array, Array]:
    """The distinct rows, and which of them each row is.

    Rows are told apart by a hash, which is many times faster than sorting them, and compared afterwards.
    """
    bits = rows.view(np.uint32) if rows.dtype == np.float32 else rows
    factors = np.random.default_rng(rows.shape[1]).integers(2**63, size=rows.shape[1], dtype=np.uint64)
    size = max(1, _PORTION // max(1, rows.shape[1]))
    portions = [slice(start, start + size) for start in range(0, len(rows), size)]
    hashes = np.concatenate([bits[portion] @ (2 * factors + np.uint64(1)) for portion in portions])
    _, first, number = np.unique(hashes, return_index=True, return_inverse=True)
    if not all((bits[first[number[portion]]] == bits[portion]).all() for portion in portions):
        distinct, number = np.unique(rows, axis=0, return_inverse=True)
        return distinct, number.ravel()
    return rows[first], number


def spaces_of(env: str | Environment) -> tuple[Encoder, Head]:
    """How an environment's observations become rows, and what its actions are."""
    lane = _lanes(known(env), 1)[0]
    return lane.encoder, lane.head


def coding_of(env: str | Environment) -> tuple[Encoder, Decoder]:
    """How an environment's observations become rows, and how rows become its actions."""
    lane = _lanes(known(env), 1)[0]
    return lane.encoder, lane.decode


def try_observation(env: str | Environment) -> tuple[Array, ...]:
    """The first observations of two episodes of one seed, as rows; refused where they do not fit their space."""
    try:
        (lane,) = _lanes(known(env), 1)
        return lane.begin(0, 0), lane.begin(0, 0)
    except FanfoldError:
        raise
    except (Exception, SystemExit):
        return (np.zeros(0),)  # this episode fails, and others may not


def policy_for(env: str | Environment, hidden: int = 64) -> Mlp:
    """A network of numpy that fits an environment's spaces."""
    encoder, head = spaces_of(env)
    return Mlp(encoder.width, head, hidden=hidden, normalise=encoder.continuous, shares=encoder.shares)


class Lane:
    """An environment that plays one episode after another, with what every step needs at hand."""

    def __init__(self, env: Environment, **more: Any) -> None:
        self.name = env.name
        self._take(env(**more), env)

    def _take(self, made: Any, env: Environment) -> None:
        from gymnasium.spaces import Discrete

        self.env, limit = _peeled(made)
        self.limit = min(limit, env.longest(made))
        self.step = self.env.step
        with refused(self.name):
            self.encoder, self.head = Encoder(self.env.observation_space), head_of(self.env.action_space)
        self.decode = Decoder(self.env.action_space)
        #: Whether choices are masked; known when the first episode begins.
        self.masked = False
        shape = self.env.observation_space.shape
        #: The shape of observations that are rows already; none where they are made rows first.
        self.shape = None if self.encoder.marked or len(shape or ()) != 1 else shape
        self.begun, self.due = 0, math.inf
        inner = self.env.unwrapped.action_space
        if type(inner) is Discrete:
            # Many environments check every action, and asking the space takes longer than the rest of a small step.
            vars(inner)["contains"] = range(int(inner.start), int(inner.start + inner.n)).__contains__

    def replace(self, env: Environment) -> None:
        """Another environment in place of one that failed."""
        self.close()
        self._take(env(), env)

    def close(self) -> None:
        closed(self.env)

    def begin(self, seed: int, tick: int) -> Array:
        """A new episode, of which no step is taken after `due`."""
        self.begun, self.due = tick, tick + self.limit
        observation, info = self.env.reset(seed=seed)
        self.masked = mask_of(self.env, observation, info, self.head) is not None
        self.shape = None if self.masked else self.shape
        row = self.row(observation, info)
        self.check_mask(row, info)
        return row

    def check_mask(self, row: Array, info: Mapping[str, Any]) -> None:
        """Refuse a row after which no action is allowed, and a mask of which the network does not know."""
        if self.masked and isinstance(self.head, Categories) and self.head.stuck(row[self.encoder.width :]):
            raise ValueError("the action mask allows no action, and the episode is not over")
        if info and not self.masked and "action_mask" in info and isinstance(self.head, Categories):
            raise ConfigError(f"env={self.name!r} gave no action mask when an episode began, and then one")

    def row(self, observation: Any, info: Mapping[str, Any], last: bool = False) -> Array:
        """An observation as a row of numbers, followed by the mask of allowed choices where there is one.

        The last one of an episode, after which nothing is chosen, needs no mask.
        """
        seen = self.encoder(observation)
        if seen.shape != (self.encoder.width,):
            raise ConfigError(
                f"env={self.name!r} observed {seen.size} numbers where its observation_space says "
                f"{self.encoder.width}: one of the two is wrong"
            )
        if not self.masked:
            return seen
        mask = mask_of(self.env, observation, info, self.head)
        if mask is None and last:
            mask = np.ones(self.head.outputs)
        if mask is None:
            raise ConfigError(f"env={self.name!r} gave an action mask when an episode began, and then none")
        return np.concatenate([seen, mask.astype(seen.dtype)])


class _Lanes(list[Lane]):
    """The lanes that one thread has of an environment; environments may not like to be stepped by another thread."""

    #: Whether episodes are being played in them.
    busy = False
    #: How many there can be.
    most = TOGETHER


def _held(env: Environment) -> _Lanes:
    """The lanes of this thread."""
    if not hasattr(_LOCAL, "lanes"):
        _LOCAL.lanes = weakref.WeakKeyDictionary()
    if env not in _LOCAL.lanes:
        _LOCAL.lanes[env] = _Lanes()
        _HELD.setdefault(env, []).append(_LOCAL.lanes[env])
        weakref.finalize(env, _close, _LOCAL.lanes[env])
    held: _Lanes = _LOCAL.lanes[env]
    return held


def release(env: str | Environment) -> None:
    """Close what this process has made of an environment; whoever plays it afterwards makes it again."""
    for lanes in _HELD.get(env, ()) if isinstance(env, Environment) else ():
        _close(lanes)


def _close(lanes: _Lanes) -> None:
    lanes.most = TOGETHER
    while lanes and not lanes.busy:
        lanes.pop().close()


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
    """Lanes of this thread, made once and used for block after block, and closed when nobody can use them any more."""
    made = _held(env)
    while len(made) < min(count, made.most):
        try:
            made.append(Lane(env))
        except FanfoldError:
            raise
        except Exception:  # such as a port that is taken, or a licence: what could be made plays
            if not made:
                raise
            made.most = len(made)
    return made[: min(count, made.most)]
