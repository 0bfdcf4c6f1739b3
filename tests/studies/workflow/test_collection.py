"""Collection: blocks are functions of weights, episodes and seed, and hold exactly what was played."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gym_world
from fanfold.errors import ConfigError
from fanfold.rl import environments as gym
from fanfold.rl.collect import Collect, Collector
from fanfold.rl.environments import TOGETHER
from fanfold.rl.experience import Experience, Trajectories, advantages, folded, read
from fanfold.rl.network import values
from fanfold.studies.workflow.cage2.policy import PolicyTable
from fanfold.studies.workflow.cage2.rollout import rollout
from fanfold.studies.workflow.cage2.rules import Cage2Game
from fanfold.studies.workflow.cage2_blocks import network
from fanfold.studies.workflow.collect import Cage2Collector, context_of, environment, policy_for
from fanfold.studies.workflow.orders import UNITS, one_hot
from fanfold.tensors import pack
from fanfold.types import Blob, Case, Ok

GAME = Cage2Game(("b_line",), length=30)
PLAIN = Cage2Collector(game=GAME)
CASE = Case("0", None, 77)
POLICY = policy_for("cage2")


def weights_for(env: str = "cage2", seed: int = 0, workflow: Any = None, loud: float = 30) -> dict[str, Any]:
    weights = policy_for(env, workflow, 16).initial(seed)
    weights["policy.2.weight"] = weights["policy.2.weight"] * np.float32(loud)
    return weights


def block(weights: Any, first: int = 0, episodes: int = 40, **more: Any) -> Collect:
    return Collect(3, Blob.of(pack(weights)), first, episodes, **more)


def experience(outcome: Ok) -> Experience:
    found = read(outcome.data["experience"].read())
    assert isinstance(found, Experience)
    return found


# ---------------------------------------------------------------- CAGE-2


@pytest.mark.slow
def test_a_block_gives_the_same_bytes_wherever_and_after_whatever_it_is_played() -> None:
    weights, others = weights_for(), weights_for(seed=1)
    expected = PLAIN(block(weights), CASE)
    PLAIN(block(others), CASE)
    PLAIN(block(weights, 500), CASE)
    assert PLAIN(block(weights), CASE) == expected
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda b: PLAIN(b, CASE), [block(weights), block(others), block(weights)]))
    assert found[0] == found[2] == expected != found[1]


@pytest.mark.slow
def test_a_block_holds_what_its_steps_add_up_to() -> None:
    weights = weights_for()
    outcome = PLAIN(block(weights, 100), CASE)
    played = rollout(PolicyTable(network(weights, ())), GAME, range(100, 140), 77)
    assert outcome.data["returns"] == pytest.approx(played.returns.tolist())
    assert outcome.score == pytest.approx(played.returns.mean())
    found = experience(outcome)
    assert found.steps == found.count.sum() == 40 * 29, "the last step only shows where the episode was cut off"
    pairs = {
        (key, action): count
        for key, action, count in zip(found.observations[found.where].tolist(), found.action.tolist(), found.count)
    }
    steps = list(
        zip(played.keys[played.observations[:, :-1]].ravel().tolist(), played.actions[:, :-1].ravel().tolist())
    )
    assert pairs == {pair: steps.count(pair) for pair in set(steps)}
    expected = values(weights, POLICY.inputs({}, played.keys))[played.observations]
    last = expected[:, -1]
    gains, targets = advantages(played.rewards[:, :-1], expected[:, :-1], last, np.full(40, 29), 0.99, 0.95)
    assert found.gain.sum() == pytest.approx(np.maximum(gains, 0).sum(), rel=1e-5)
    assert found.loss.sum() == pytest.approx(np.minimum(gains, 0).sum(), rel=1e-5)
    assert found.targets.sum() == pytest.approx(targets.sum(), rel=1e-5)
    logs = network(weights, ()).log_probabilities(found.observations)
    assert np.allclose(found.log_chance, logs[found.where, found.action])


@pytest.mark.slow
def test_held_out_episodes_are_not_those_that_are_learnt_from() -> None:
    weights = weights_for()
    learnt, held_out = PLAIN(block(weights), CASE), PLAIN(block(weights, learn=False), CASE)
    assert learnt.data["returns"] != held_out.data["returns"]
    assert set(held_out.data) == {"returns"}


def test_whole_trajectories_folded_by_the_policy_that_played_are_the_same_experience() -> None:
    weights = weights_for()
    raw = read(dataclasses.replace(PLAIN, raw=True)(block(weights), CASE).data["experience"].read())
    assert isinstance(raw, Trajectories)
    corrected, plain = folded(raw, POLICY, weights, 0.99, 0.95, correct=True), experience(PLAIN(block(weights), CASE))
    for name in ("visits", "targets", "where", "action", "count", "gain", "loss", "log_chance"):
        assert np.allclose(getattr(corrected, name), getattr(plain, name), rtol=1e-3, atol=1e-3), name
    newer = folded(raw, POLICY, weights_for(seed=5), 0.99, 0.95, correct=True)
    assert not np.allclose(newer.targets, plain.targets, rtol=1e-2)


def test_a_workflow_is_seen_by_the_policy_and_rewarded() -> None:
    order, other = UNITS, UNITS[::-1]
    weights = weights_for(workflow=order)
    assert len(weights["policy.0.weight"]) == 52 + 25
    kept = dataclasses.replace(PLAIN, workflow=order)
    rewarded = dataclasses.replace(kept, alignment_lambda=30.0)
    found = rewarded(block(weights, context=context_of(order)), CASE)
    assert found.data["returns"] != rewarded(block(weights, context=context_of(other)), CASE).data["returns"]
    assert len(found.data["fixes"]) == len(found.data["kept"]) == 40
    unrewarded = kept(block(weights, context=context_of(order)), CASE)
    assert unrewarded.data["returns"] == found.data["returns"], "the bonus is no part of the game's own return"
    assert unrewarded.data["bonus"] == 0 != found.data["bonus"]
    assert not np.allclose(experience(found).targets, experience(unrewarded).targets)
    logs = network(weights, one_hot(order)).log_probabilities(experience(found).observations)
    part = experience(found)
    assert np.allclose(part.log_chance, logs[part.where, part.action])


# ---------------------------------------------------------------- any environment


def play(env: str, episodes: range = range(150), loud: float = 1) -> Trajectories:
    return gym.play(environment(env), weights_for(env, loud=loud), episodes, 5)[0]


@pytest.mark.slow
def test_every_episode_of_a_block_is_played_once_and_in_its_place() -> None:
    many, few = play("gym_world:Corridor-v0"), play("gym_world:Corridor-v0", range(17, 20))
    assert many.rewards.shape[0] == 150 > 2 * TOGETHER
    for row in range(3):
        length = few.lengths[row]
        assert length == many.lengths[17 + row]
        assert (few.actions[row, :length] == many.actions[17 + row, :length]).all()
        assert (few.rewards[row, :length] == many.rewards[17 + row, :length]).all()
        seen = few.observations[few.index[row, :length]]
        assert np.array_equal(seen, many.observations[many.index[17 + row, :length]])
    assert len({tuple(row) for row in many.observations[many.index[:, 0]].tolist()}) == 150


@pytest.mark.slow
def test_terminated_episodes_have_no_last_observation_and_cut_off_ones_do() -> None:
    ended, endless = play("gym_world:Corridor-v0"), play("gym_world:Endless-v0")
    assert (ended.final == -1).any()
    assert ((ended.final == -1) | (ended.lengths == 20)).all()
    assert (endless.lengths == 20).all() and (endless.final >= 0).all()
    ends = endless.observations[endless.final][:, 0]
    before = endless.observations[endless.index[:, -1]][:, 0]
    moves = np.where(endless.actions[:, -1] == 1, 0.5, -0.5)
    assert np.allclose(ends, before + moves, atol=1e-5)


@pytest.mark.slow
def test_environments_are_made_once_and_used_again() -> None:
    play("gym_world:Endless-v0", range(30))
    before = gym_world.Corridor.COUNT
    for first in (0, 100, 200):
        play("gym_world:Endless-v0", range(first, first + 30))
    assert before == gym_world.Corridor.COUNT


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "fanfold/Cage2-v0"])
def test_gymnasium_environments_are_played(env: str) -> None:
    weights = weights_for(env)
    outcome = Collector(environment(env))(block(weights, episodes=3), CASE)
    assert len(outcome.data["returns"]) == 3
    assert experience(outcome).steps == sum(play_lengths(env, weights))
    assert outcome == Collector(environment(env))(block(weights, episodes=3), CASE)


def play_lengths(env: str, weights: Any) -> list[int]:
    lengths: list[int] = gym.play(environment(env), weights, range(3), 77)[0].lengths.tolist()
    return lengths


@pytest.mark.slow
def test_observations_that_are_whole_numbers_become_one_input_each_and_fold() -> None:
    assert policy_for("FrozenLake-v1").width == 16
    found = experience(Collector("FrozenLake-v1")(block(weights_for("FrozenLake-v1"), episodes=100), CASE))
    assert len(found.observations) <= 16 < found.steps


def test_greedy_episodes_take_the_best_action() -> None:
    weights = weights_for("CartPole-v1")
    found = gym.play("CartPole-v1", weights, range(4), 0, greedy=True)[0]
    best = policy_for("CartPole-v1").outputs(weights, found.observations).argmax(axis=1)
    for row, length in enumerate(found.lengths.tolist()):
        assert (found.actions[row, :length] == best[found.index[row, :length]]).all()


def test_environments_that_cannot_be_learnt_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'CartPole-v1'"):
        policy_for("CartPoole-v1")
