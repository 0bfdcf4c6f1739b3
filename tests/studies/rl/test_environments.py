"""Environments of others: stepped as they are, whatever wraps them, whatever they observe, and with fair choices."""

from __future__ import annotations

import tracemalloc
from typing import Any

import gymnasium
import numpy as np
import pytest
import rl_world
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import gym_world
from fanfold.errors import ConfigError
from fanfold.rl import Agent, heads, network
from fanfold.rl import environments as gym
from fanfold.rl.agent import card_of
from fanfold.rl.experience import Trajectories
from fanfold.rl.heads import Categories
from fanfold.rl.making import Environment


class Observed(gymnasium.Env[Any, int]):
    """Some steps of whatever the space has to offer; the reward is the number of the step."""

    def __init__(self, space: Any, steps: int = 3, actions: int = 2) -> None:
        self.observation_space, self.steps = space, steps
        self.action_space = Discrete(actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.age = 0
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.observation_space.sample(), self.age, self.age == self.steps, False, {}


class Wrong(Observed):
    """Says it observes three numbers, and observes four."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(4, np.float32), super().reset(seed=seed)[1]


class Reused(Observed):
    """Gives the same array every time, and writes over it."""

    seen = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen[:] = 0
        return self.seen, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.seen += 1
        return self.seen, *super().step(action)[1:]


class Doubled(gymnasium.RewardWrapper[Any, int]):
    def reward(self, reward: Any) -> Any:
        return 2 * reward


SPACES: dict[str, tuple[Any, int]] = {
    "line": (Box(-1, 1, (3,), np.float64), 3),
    "image": (Box(0, 255, (2, 3), np.uint8), 6),
    "number": (Discrete(5), 5),
    "numbers": (MultiDiscrete([3, 4]), 7),
    "bits": (MultiBinary(4), 4),
    "pair": (Tuple((Discrete(3), Box(0, 1, (2,), np.float32))), 5),
    "named": (Dict(a=Box(0, 1, (1,), np.float32), b=Discrete(2)), 3),
}
LINE = SPACES["line"][0]
for name, (space, _) in SPACES.items():
    gymnasium.register(f"Observed-{name}-v0", lambda space=space: Observed(space))
gymnasium.register("Limited-v0", lambda: Observed(LINE, steps=9), max_episode_steps=4)
gymnasium.register("Doubled-v0", lambda: Doubled(Observed(LINE, steps=9)), max_episode_steps=4)
gymnasium.register("OnTheDot-v0", lambda: Observed(LINE, steps=4), max_episode_steps=4)
gymnasium.register("Reused-v0", lambda: Reused(Box(-1, 9, (3,), np.float32), steps=9), max_episode_steps=4)
gymnasium.register("Wrong-v0", lambda: Wrong(LINE))
gymnasium.register("Many-v0", lambda: Observed(LINE, steps=40, actions=7))


def play(env: str, episodes: int = 5, seed: int = 3, **more: Any) -> Trajectories:
    return by(gym.policy_for(env, 8).initial(0), env, range(episodes), seed, **more)


def by(weights: Any, env: str, numbers: range, seed: int, **more: Any) -> Trajectories:
    steps, failed = gym.play(env, weights, numbers, seed, **more)
    assert steps is not None and not failed
    return steps


@pytest.mark.parametrize("name", SPACES)
def test_whatever_is_observed_becomes_a_row_of_numbers(name: str) -> None:
    env, (space, size) = f"Observed-{name}-v0", SPACES[name]
    assert (gym.policy_for(env).width, gym.policy_for(env).head) == (size, Categories((2,)))
    found = play(env)
    assert found.observations.shape[1] == size and found.observations.dtype == np.float32
    assert (found.lengths == 3).all() and (found.final == -1).all()
    # What the first episode saw first, straight from the environment.
    own = gym.derive_seed(3, "episode", 0)
    first, _ = gymnasium.make(env).reset(seed=own % 2**31)
    expected = gymnasium.spaces.flatten(space, first)
    assert np.allclose(found.observations[found.index[0, 0]], np.asarray(expected, np.float32).ravel())


def test_a_time_limit_cuts_off_and_the_environment_does_not() -> None:
    cut, ended = play("Limited-v0"), play("OnTheDot-v0")
    assert (cut.lengths == 4).all() and (cut.final >= 0).all()
    assert (ended.lengths == 4).all() and (ended.final == -1).all(), "over by itself at the very step of the limit"
    assert (cut.rewards == [[1, 2, 3, 4]] * 5).all()


def test_a_wrapper_of_the_users_own_stays() -> None:
    assert (play("Doubled-v0").rewards == [[2, 4, 6, 8]] * 5).all()


def test_steps_are_those_of_the_environment_as_gymnasium_makes_it() -> None:
    """The wrappers taken off change nothing: the same actions in the full environment bring the same episode."""
    weights = gym.policy_for("CartPole-v1", 8).initial(0)
    found = by(weights, "CartPole-v1", range(40), 11)
    full = gymnasium.make("CartPole-v1")
    for row in (0, 7, 39):
        seen, _ = full.reset(seed=gym.derive_seed(11, "episode", row) % 2**31)
        for step in range(found.lengths[row]):
            assert np.array_equal(found.observations[found.index[row, step]], seen)
            seen, reward, terminated, truncated, _ = full.step(int(found.actions[row, step]))
            assert reward == found.rewards[row, step]
            assert (terminated or truncated) == (step == found.lengths[row] - 1)


def test_environments_may_write_over_what_they_gave() -> None:
    found = by(network.initial(3, 2, 8, 0), "Reused-v0", range(1), 0)
    assert found.observations[found.index[0]][:, 0].tolist() == [0, 1, 2, 3]
    assert found.observations[found.final[0]][0] == 4
    lane = gym._lanes(gym.known("Reused-v0"), 1)[0]
    first = lane.begin(0, 0)
    lane.step(1)
    assert first.tolist() == [0, 0, 0]


def test_what_is_played_beside_an_episode_does_not_matter() -> None:
    together = play("CartPole-v1", 8)
    weights = network.initial(4, 2, 8, 0)
    assert len(set(together.lengths.tolist())) > 4, "they should end at different times"
    for row in range(8):
        alone, length = by(weights, "CartPole-v1", range(row, row + 1), 3), together.lengths[row]
        assert alone.lengths[0] == length
        assert (alone.actions[0] == together.actions[row, :length]).all()


def test_an_observation_of_another_size_than_promised_is_an_error_that_says_so() -> None:
    with pytest.raises(ConfigError, match=r"'Wrong-v0' observed 4 numbers where its observation_space says 3"):
        play("Wrong-v0")


class Irregular(rl_world.Walk):
    """Observes more and fewer numbers than its space says, here and there."""

    def _seen(self) -> Any:
        odd = self.age and self.np_random.random() < 0.1
        return np.zeros(self.np_random.choice([1, 3])) if odd else super()._seen()


def test_observations_of_changing_sizes_cost_their_own_episodes_and_mix_with_no_others() -> None:
    env = gym.known(Environment.of(Irregular))
    steps, failed = gym.play(env, gym.policy_for(env, 8).initial(0), range(64), 3)
    assert 20 < len(failed) < 60
    assert all("where its observation_space says 2" in each.message for each in failed)
    assert steps is not None and steps.observations.shape[1] == 2


def test_a_number_may_be_an_observation_of_one() -> None:
    class Gauge(rl_world.Walk):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Box(-20, 20, (1,), np.float32)

        def _seen(self) -> Any:
            return self.place

    env = gym.known(Environment.of(Gauge))
    steps, failed = gym.play(env, gym.policy_for(env, 8).initial(0), range(4), 3)
    assert steps is not None and not failed


class Stuck(rl_world.Walk):
    """Allows nothing any more after four steps, and in the end of other episodes."""

    def __init__(self, length: int = 10) -> None:
        super().__init__(length)
        self.observation_space = gymnasium.spaces.Dict(
            {"seen": self.observation_space, "action_mask": gymnasium.spaces.MultiBinary(2)}
        )

    def _seen(self) -> Any:
        return {"seen": super()._seen(), "action_mask": np.array([0, self.age < 4], np.int8)}

    def misbehave(self) -> None:
        pass


def test_an_agent_keeps_to_a_mask_that_it_observes_until_there_is_none() -> None:
    env = gym.known(Environment.of(Stuck))
    policy = gym.policy_for(env, 8)
    steps, failed = gym.play(env, policy.initial(0), range(4), 3)
    assert steps is None and {each.message for each in failed} == {
        "the action mask allows no action, and the episode is not over"
    }
    ending = Environment.of(Stuck, {"length": 4})
    agent = Agent(policy, policy.initial(0), card_of(ending))
    (episode,) = agent.play(ending, 1)
    assert episode.failed is None and episode.actions == [1] * 4
    (episode,) = agent.play(env, 1)
    assert episode.failed is not None and "allows no action" in episode.failed.message
    assert agent.act(ending.check(step=False).reset(seed=1)[0], greedy=False) == 1
    assert agent.act({"seen": np.zeros(2), "action_mask": np.ones(2)}, mask=[1, 0]) == 0


class Late(rl_world.Walk):
    """Says which choices are allowed after every step, and not when an episode begins."""

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {"action_mask": np.array([1, 0], np.int8)})


def test_a_mask_that_comes_too_late_is_not_ignored() -> None:
    policy, message = gym.policy_for(Environment.of(Late), 8), "gave no action mask when an episode began, and then one"
    steps, failed = gym.play(Environment.of(Late), policy.initial(0), range(4), 3, policy=policy)
    assert steps is None and all(message in each.message for each in failed)
    (episode,) = Agent(policy, policy.initial(0), card_of(Environment.of(Late))).play(Late, 1)
    assert episode.failed is not None and message in episode.failed.message


def test_an_action_outside_the_space_is_still_refused_by_environments_that_check() -> None:
    lane = gym._lanes(gym.known("CartPole-v1"), 1)[0]
    lane.begin(1, 0)
    with pytest.raises(AssertionError):
        lane.step(2)
    assert lane.env.action_space.contains(np.int64(1)) and not lane.env.action_space.contains(-1)


@pytest.mark.slow
def test_actions_are_drawn_with_the_chances_that_the_policy_gives_them() -> None:
    """Chi-square against each step's own chances: 7 actions, 16,000 draws."""
    weights = network.initial(3, 7, 8, 0)
    weights["policy.2.bias"] = np.log(np.array([0.4, 0.2, 0.2, 0.1, 0.06, 0.03, 0.01], np.float32))
    found = by(weights, "Many-v0", range(400), 3)
    outputs = gym.policy_for("Many-v0").outputs(weights, found.observations[found.index.ravel()])
    chances = np.exp(heads.log_softmax(outputs.astype(float))).sum(axis=0)
    counts = np.bincount(found.actions.ravel(), minlength=7)
    assert counts.sum() == 16_000
    assert ((counts - chances) ** 2 / chances).sum() < 22.5  # 0.1 % of fair draws exceed it


@pytest.mark.slow
def test_draws_of_episodes_and_of_steps_have_nothing_to_do_with_each_other() -> None:
    found = play("Many-v0", 400)
    draws = found.actions.astype(float)
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]) < 0.03
    assert (play("Many-v0", 5, seed=4).actions != found.actions[:5]).any()


@pytest.mark.slow
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 30), st.integers(1, 4)),
        elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, float("inf")]),
    )
)
def test_distinct_rows_are_all_rows_once(rows: Any) -> None:
    found, number = gym._distinct(rows)
    assert np.array_equal(found[number], rows)
    assert len({row.tobytes() for row in found}) == len(found) == len({row.tobytes() for row in rows})


def test_rows_whose_hashes_meet_are_told_apart_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero:
        def integers(self, *_: Any, size: int, **__: Any) -> Any:
            return np.full(size, 2**63 - 1, np.uint64)  # every factor alike: columns can be swapped unnoticed

    monkeypatch.setattr(np.random, "default_rng", lambda *_: Zero())
    rows = np.array([[1, 2], [2, 1], [1, 2]], np.float32)
    found, number = gym._distinct(rows)
    assert np.array_equal(found[number], rows) and len(found) == 2


class Pictures(gymnasium.Env[Any, Any]):
    """Twenty pictures, one of them met twice."""

    observation_space, action_space = Box(0, 255, (48, 48, 3), np.uint8), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.np_random.integers(0, 256, (48, 48, 3), np.uint8), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.age += 1
        seen = self.np_random.integers(0, 256, (48, 48, 3), np.uint8)
        return seen if self.age > 1 else np.zeros_like(seen), float(action), False, self.age == 20, {}


class Even(gym.Policy):
    """Takes every action alike, whatever is seen."""

    head = Categories((2,))

    def outputs(self, weights: Any, rows: Any) -> Any:
        return np.zeros((len(rows), 2), np.float32)


def test_pictures_are_played_in_a_few_times_their_own_memory() -> None:
    env, size = gym.Environment.of(Pictures), 40 * 20 * 48 * 48 * 3
    peaks, found = [], []
    for watched in (True, False):
        gym.play(env, {}, range(40), 3, policy=Even(), watched=watched)  # makes the environments
        tracemalloc.start()
        found.append(gym.play(env, {}, range(40), 3, policy=Even(), watched=watched)[0])
        peaks.append(tracemalloc.get_traced_memory()[1] / size)
        tracemalloc.stop()
    assert peaks[0] < 5 and peaks[1] < 0.5
    seen, unseen = found
    assert seen is not None and unseen is not None
    assert (seen.rewards == unseen.rewards).all() and (seen.lengths == unseen.lengths).all()
    assert len(seen.observations) == 40 * 20 + 1 and unseen.observations.size == 0


def test_a_block_of_one_episode_is_as_good_as_any() -> None:
    many, one = play("gym_world:Corridor-v0", 3), play("gym_world:Corridor-v0", 1)
    assert gym_world.Corridor.COUNT > 0
    length = one.lengths[0]
    assert (one.actions[0] == many.actions[0, :length]).all() and length == many.lengths[0]
