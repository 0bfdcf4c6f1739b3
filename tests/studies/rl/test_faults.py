"""An episode that fails costs that episode: it is counted, said and left out, and the others are as they would be."""

from __future__ import annotations

import functools
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import rl_world

from fanfold.errors import ConfigError
from fanfold.rl import environments, network, train
from fanfold.rl.collect import Collect, Collector
from fanfold.rl.config import StepPpo
from fanfold.rl.failures import ALL_FAILED, Diverged, FailedEpisode, FailureTally, TooManyFailures, failed_of
from fanfold.rl.making import Environment
from fanfold.tensors import pack
from fanfold.types import Blob, Case, Failed, Ok

WEIGHTS = network.initial(2, 2, 8, 0)
CASE = Case("0", None, 5)


def block(episodes: int = 40, **more: Any) -> Collect:
    return Collect(0, Blob.of(pack(WEIGHTS)), 0, episodes, **more)


@pytest.mark.parametrize(
    ("make", "kind", "message", "step"),
    [
        (rl_world.Raises, "ZeroDivisionError", "the simulator broke down", 3),
        (rl_world.NotANumber, "FloatingPointError", "the reward nan is not a finite number", 3),
        (functools.partial(rl_world.NotANumber, observed=True), "FloatingPointError", "an observation is not", 4),
    ],
)
def test_an_episode_that_fails_is_said_and_the_others_are_as_they_would_be(
    make: Any, kind: str, message: str, step: int
) -> None:
    failing = Collector(Environment.of(make, {"share": 0.2}))(block(), CASE)
    sound = Collector(Environment.of(rl_world.Raises, {"share": 0.0}))(block(), CASE)
    assert isinstance(failing, Ok) and isinstance(sound, Ok)
    failed = [FailedEpisode(**each) for each in failing.data["failed"]]
    assert 2 < len(failed) < 16 and {each.kind for each in failed} == {kind}
    assert all(each.message.startswith(message) and each.step == step for each in failed)
    lost = {each.episode for each in failed}
    assert failing.data["returns"] == [each for at, each in enumerate(sound.data["returns"]) if at not in lost]
    assert failing.data["lengths"] == [10] * (40 - len(lost))


class Ends(rl_world.Walk):
    """Ends with an observation of its own, terminated or cut off."""

    def __init__(self, last: Any, terminated: bool, masked: bool = False) -> None:
        super().__init__()
        self.last, self.terminated, self.masked = last, terminated, masked

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        seen, _ = super().reset(seed=seed)
        return seen, {"action_mask": np.ones(2)} if self.masked else {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, reward, over, *_ = super().step(action)
        info = {"action_mask": np.ones(2)} if self.masked and not over else {}
        return self.last if over else seen, reward, over and self.terminated, over and not self.terminated, info


@pytest.mark.parametrize("last", [None, {}, np.full(2, np.nan), np.zeros(3)])
def test_an_observation_after_the_last_step_of_a_terminated_episode_may_be_anything(last: Any) -> None:
    outcome = Collector(Environment.of(Ends, {"last": last, "terminated": True}))(block(), CASE)
    assert isinstance(outcome, Ok) and "failed" not in outcome.data


def test_an_episode_that_is_cut_off_with_no_number_fails_alone_and_poisons_nothing() -> None:
    outcome = Collector(Environment.of(Ends, {"last": np.full(2, np.nan), "terminated": False}))(block(), CASE)
    assert (
        isinstance(outcome, Failed) and "FloatingPointError: an observation is not a finite number" in outcome.message
    )


@pytest.mark.parametrize("terminated", [True, False])
def test_no_mask_is_needed_after_the_last_step(terminated: bool) -> None:
    arguments = {"last": np.zeros(2, np.float32), "terminated": terminated, "masked": True}
    outcome = Collector(Environment.of(Ends, arguments))(block(), CASE)
    assert isinstance(outcome, Ok) and "failed" not in outcome.data


class Leaves(rl_world.Raises):
    """Leaves the program where an episode should begin."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        begun = super().reset(seed=seed)
        if self.bad:
            raise SystemExit(3)
        return begun


def test_an_environment_that_leaves_the_program_in_its_reset_costs_that_episode() -> None:
    outcome = Collector(Environment.of(Leaves, {"share": 0.2}))(block(), CASE)
    assert isinstance(outcome, Ok)
    assert {each["kind"] for each in outcome.data["failed"]} == {"SystemExit"}
    assert len(outcome.data["returns"]) == 40 - len(outcome.data["failed"]) > 20


def test_the_seed_of_a_failed_episode_plays_it_again() -> None:
    steps, failed = environments.play(Environment.of(rl_world.Raises, {"share": 0.2}), WEIGHTS, range(40), 7)
    assert steps is not None and len(steps.lengths) == 40 - len(failed)
    env = rl_world.Raises(0.2)
    for each in failed:
        env.reset(seed=each.seed % 2**31)
        assert env.bad


class Rewards(rl_world.Walk):
    """Wraps every reward in something else."""

    def __init__(self, wrap: Any = float) -> None:
        super().__init__()
        self.wrap = wrap

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, reward, *rest = super().step(action)
        return seen, self.wrap(reward), *rest  # type: ignore[return-value]


@pytest.mark.parametrize("wrap", [lambda reward: np.array([reward]), np.asarray, np.float32, int, bool])
def test_a_reward_may_be_in_an_array(wrap: Any) -> None:
    plain = Collector(Environment.of(Rewards))(block(), CASE)
    wrapped = Collector(Environment.of(Rewards, {"wrap": wrap}))(block(), CASE)
    assert isinstance(plain, Ok) and isinstance(wrapped, Ok)
    assert wrapped.data == plain.data


@pytest.mark.parametrize("wrap", [lambda reward: [reward, 1.0], lambda reward: None, str])
def test_a_reward_that_is_not_one_number_is_said(wrap: Any) -> None:
    outcome = Collector(Environment.of(Rewards, {"wrap": wrap}))(block(3), CASE)
    assert isinstance(outcome, Failed) and re.search(r"TypeError: the reward .* is not one number", outcome.message)


def test_a_block_without_a_sound_episode_fails_with_the_commonest_reason() -> None:
    outcome = Collector(Environment.of(rl_world.Raises, {"share": 1.0}))(block(3), CASE)
    assert isinstance(outcome, Failed) and outcome.kind == ALL_FAILED
    assert outcome.message.startswith("all 3 episodes failed, with ZeroDivisionError: the simulator broke down")
    failed = failed_of(outcome, range(3))
    assert [each.episode for each in failed] == [0, 1, 2] and {each.step for each in failed} == {3}
    assert "\n".join(each.line for each in failed) == outcome.detail


def test_an_environment_that_failed_is_replaced_by_a_new_one() -> None:
    made = []

    def make() -> Any:
        made.append(rl_world.Raises(0.5))
        return made[-1]

    _, failed = environments.play(Environment.of(make), WEIGHTS, range(10), 7)
    assert failed and len(made) == 10 + len(failed)


def test_a_run_ends_when_failures_pass_a_share_of_the_latest_episodes() -> None:
    def lost(count: int) -> list[FailedEpisode]:
        return [FailedEpisode(n, 77, 3, "OSError" if n % 3 else "KeyError", "gone") for n in range(count)]

    tally = FailureTally(0.1)
    for _ in range(30):
        tally.add(50, lost(5), 2)
    tally.add(50, [], 2)
    with pytest.raises(TooManyFailures, match=r"1\d\d of the latest 1000 .*OSError: gone.*--version 2 --seed 77"):
        FailureTally(0.1, tally.state).add(50, lost(11), 2)
    few = FailureTally(0.1)
    few.add(9, lost(9), 0)  # too few to judge by


def test_what_cannot_be_learnt_is_refused_by_its_space() -> None:
    from gymnasium.spaces import Text

    class Speaks(rl_world.Walk):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Text(5)

    with pytest.raises(ConfigError, match=r"Speaks.*Text"):
        environments.policy_for(Environment.of(Speaks))


def test_trajectories_hold_what_was_played() -> None:
    steps, _ = environments.play(Environment.of(rl_world.Raises, {"share": 0.3}), WEIGHTS, range(30), 7)
    assert steps is not None
    assert (steps.rewards.sum(axis=1) == steps.actions.sum(axis=1)).all()
    assert np.isfinite(steps.observations).all()


@pytest.mark.parametrize("unit", [1e-3, 1e-5])
def test_rewards_are_learnt_in_any_small_unit(unit: float) -> None:
    def returns(unit: float) -> list[float]:
        def make_env() -> Any:
            return gymnasium.wrappers.TransformReward(rl_world.Walk(), lambda reward: reward * unit)

        return [mean / unit for _, mean in train(make_env, total_steps=4_000, fresh_episodes=2).curve]

    assert np.allclose(returns(unit), returns(1e-2 / 4), atol=0.5)


def test_a_training_that_diverged_ends_with_the_remedy() -> None:
    fast = StepPpo(learning_rate=1e30, value_learning_rate=1e30)
    with pytest.raises(Diverged, match=r"no longer finite after update \d+: lower ppo.learning_rate \(now 1e\+30\)"):
        train(rl_world.Walk, ppo=fast, total_steps=4000, steps_per_update=200)
