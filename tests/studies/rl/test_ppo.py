"""PPO: exact gradients of folded experience, advantages, and learning on small problems."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.config import from_mapping
from fanfold.errors import ConfigError
from fanfold.rl import experience, heads, network, ppo
from fanfold.rl.experience import Experience
from fanfold.rl.heads import Categories
from fanfold.rl.policy import Mlp
from fanfold.rl.ppo import Adam, Ppo
from fanfold.studies.workflow.config import WorkflowConfig
from fanfold.tensors import about, pack, unpack

ACTIONS, WIDTH = 4, 6
POLICY = Mlp(WIDTH, Categories((ACTIONS,)))


def exact(seed: int) -> dict[str, Any]:
    """Weights in double precision, large enough that nothing is nearly linear."""
    weights = network.initial(WIDTH, ACTIONS, 8, seed)
    rng = np.random.default_rng(seed + 1)
    found = {name: rng.normal(0, 0.6, array.shape) for name, array in weights.items()}
    found[network.SCALE] = np.array([-3.0, 2.5])
    return found


def steps(seed: int, n: int = 300, distinct: int = 9) -> tuple[Any, ...]:
    """Many steps over few observations, played by another policy than the one that learns."""
    rng = np.random.default_rng(seed)
    keys = rng.choice(2**WIDTH, distinct, replace=False).astype(np.uint64)
    index, action = rng.integers(0, distinct, n), rng.integers(0, ACTIONS, n)
    return keys, index, action, rng.normal(size=n), rng.normal(-3, 2, size=n)


def chances(weights: Any, keys: Any) -> Any:
    return heads.log_softmax(network.forward(weights, "policy", POLICY.inputs({}, keys).astype(float))[2])


def gradients(weights: Any, part: Experience, entropy: float = 0.05) -> dict[str, Any]:
    inputs = POLICY.inputs({}, part.observations).astype(float)
    policy, _ = ppo.policy_gradient(POLICY, weights, inputs, part, 0.2, entropy, 1.7, part.steps)
    return {**policy, **ppo.value_gradient(weights, inputs, part, part.steps)}


def loss(weights: Any, played: Any, keys: Any, index: Any, action: Any, advantage: Any, target: Any) -> float:
    """The textbook loss, step by step."""
    inputs = POLICY.inputs({}, keys).astype(float)[index]
    logs = heads.log_softmax(network.forward(weights, "policy", inputs)[2])
    ratio = np.exp(logs[np.arange(len(index)), action] - played[index, action])
    scaled = advantage / 1.7
    clipped = np.minimum(ratio * scaled, np.clip(ratio, 0.8, 1.2) * scaled)
    entropy = -(np.exp(logs) * logs).sum(axis=1)
    mean, scale = weights[network.SCALE]
    value = network.forward(weights, "value", inputs)[2][:, 0]
    error = value - (target - mean) / scale
    return float(-clipped.mean() - 0.05 * entropy.mean() + 0.5 * (error**2).mean())


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_of_folded_experience_is_that_of_all_its_steps(seed: int) -> None:
    keys, index, action, advantage, target = steps(seed)
    played = chances(exact(50 + seed), keys)
    together = experience.fold(keys, index, action, advantage, target, played[index, action])
    assert len(together.where) < len(index) / 5
    apart = experience.fold(keys[index], np.arange(len(index)), action, advantage, target, played[index, action])
    assert len(apart.where) == len(index)
    weights = exact(seed)
    folded, plain = gradients(weights, together), gradients(weights, apart)
    assert max(np.abs(folded[name] - plain[name]).max() for name in plain) < 1e-10
    assert max(np.abs(array).max() for array in folded.values()) > 1e-3


@pytest.mark.parametrize("seed", range(2))
def test_the_gradient_is_the_slope_of_the_textbook_loss(seed: int) -> None:
    keys, index, action, advantage, target = steps(seed, 80)
    played = chances(exact(50 + seed), keys)
    weights = exact(seed)
    found = gradients(weights, experience.fold(keys, index, action, advantage, target, played[index, action]))
    rng = np.random.default_rng(0)
    for name in found:
        spot = tuple(rng.integers(0, size) for size in weights[name].shape)
        sides = []
        for move in (1e-6, -1e-6):
            moved = {**weights, name: weights[name].copy()}
            moved[name][spot] += move
            sides.append(loss(moved, played, keys, index, action, advantage, target))
        assert np.isclose(found[name][spot], (sides[0] - sides[1]) / 2e-6, atol=1e-7, rtol=1e-5), name


def test_blocks_of_different_versions_merge_to_what_they_are_apart() -> None:
    weights, parts = exact(0), []
    for version in (1, 2, 3):
        keys, index, action, advantage, target = steps(version, distinct=20)
        parts.append(
            experience.fold(keys, index, action, advantage, target, chances(exact(60 + version), keys)[index, action])
        )
    merged = experience.merge(parts)
    assert len(merged.observations) == len(set(merged.observations.tolist())) < 60
    assert merged.steps == 900
    sums: dict[str, Any] = {}
    for part in parts:
        for name, array in gradients(weights, part).items():
            sums[name] = sums.get(name, 0) + array / 3
    together = gradients(weights, merged)
    assert max(np.abs(together[name] - sums[name]).max() for name in sums) < 1e-10


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_advantages_are_those_of_a_slow_reference(seed: int, discount: float, trace: float, stale: bool) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 8, 5)
    shape = (5, int(lengths.max()))
    rewards, expected = rng.normal(size=shape), rng.normal(size=shape)
    after = np.where(rng.random(5) < 0.5, 0.0, rng.normal(size=5))
    ratios = rng.uniform(0.3, 3, shape) if stale else None
    gains, targets = experience.advantages(rewards, expected, after, lengths, discount, trace, ratios)
    for row, length in enumerate(lengths.tolist()):
        for t in range(length):
            total, weight = 0.0, 1.0
            target = 0.0
            for k in range(t, length):
                following = expected[row, k + 1] if k + 1 < length else after[row]
                surprise = rewards[row, k] + discount * following - expected[row, k]
                own = 1.0 if ratios is None else min(1.0, ratios[row, k])
                if k > t:
                    weight *= discount * trace
                    total += weight * (own if ratios is not None else 1.0) * surprise
                    weight *= own
                else:
                    total += surprise
            target = expected[row, t] + (1.0 if ratios is None else min(1.0, ratios[row, t])) * total
            assert np.isclose(gains[row, t], total) and np.isclose(targets[row, t], target)
        assert (gains[row, length:] == 0).all()


def test_a_cut_off_episode_is_worth_what_would_have_followed_and_a_terminated_one_is_not() -> None:
    rewards, expected = np.ones((2, 3)), np.zeros((2, 3))
    gains, _ = experience.advantages(rewards, expected, np.array([0.0, 10.0]), np.array([3, 3]), 1.0, 1.0)
    assert gains[:, 0].tolist() == [3.0, 13.0]


def test_rescaling_changes_no_value() -> None:
    weights = network.initial(WIDTH, ACTIONS, 8, 3)
    keys, index, action, advantage, target = steps(1)
    part = experience.fold(keys, index, action, advantage, 100 * target, np.zeros(len(index)))
    inputs = POLICY.inputs({}, keys)
    changed = ppo.rescale(weights, part)
    assert np.allclose(network.values(changed, inputs), network.values(weights, inputs), atol=1e-3)
    assert abs(changed[network.SCALE][0] + 300) < 40 and 150 < changed[network.SCALE][1] < 250


def bandit(weights: Any, rng: Any, prizes: Any, n: int) -> tuple[Experience, float]:
    """One step in each of a few rooms, in each of which another action is best."""
    keys = np.arange(len(prizes), dtype=np.uint64)
    logs = heads.log_softmax(network.forward(weights, "policy", POLICY.inputs({}, keys))[2])
    rooms = rng.integers(0, len(prizes), n)
    bounds = np.exp(logs.astype(float)).cumsum(axis=1)
    action = (bounds[rooms] < rng.random(n)[:, None] * bounds[rooms][:, -1:]).sum(axis=1)
    reward = prizes[rooms, action] + rng.normal(0, 0.5, n)
    expected = network.values(weights, POLICY.inputs({}, keys))[rooms]
    return experience.fold(keys, rooms, action, reward - expected, reward, logs[rooms, action]), float(reward.mean())


@pytest.mark.slow
@pytest.mark.parametrize("minibatch", [2, 1024])
def test_a_bandit_is_learnt(minibatch: int) -> None:
    rng = np.random.default_rng(0)
    prizes = 10 * np.eye(ACTIONS)[[0, 3, 1, 2, 2]] - 50
    weights, adam, means = network.initial(WIDTH, ACTIONS, 16, 0), Adam(), []
    chosen = Ppo(learning_rate=0.01, minibatch=minibatch, entropy=0.001, hidden=16)
    for number in range(60):
        part, mean = bandit(weights, rng, prizes, 300)
        weights, _ = ppo.update(POLICY, weights, adam, part, chosen, number / 60, number)
        means.append(mean)
    assert means[0] < -46 and means[-1] > -40.6, "chance is worth -47.5, the best -40"


@pytest.mark.slow
def test_an_update_stops_before_the_policy_has_moved_too_far() -> None:
    weights = network.initial(WIDTH, ACTIONS, 16, 0)
    part, _ = bandit(weights, np.random.default_rng(0), 10 * np.eye(ACTIONS), 300)

    def moved(target: float) -> float:
        chosen = Ppo(learning_rate=0.03, epochs=60, target_kl=target, clip=0.5)
        after, _ = ppo.update(POLICY, weights, Adam(), part, chosen, 0.0, 0)
        inputs = POLICY.inputs({}, part.observations)
        return ppo.policy_gradient(POLICY, after, inputs, part, 0.2, 0.0, 1.0, 1.0)[1]

    assert moved(0.01) < 0.1 < moved(100.0)


def test_minibatches_hold_every_step_once() -> None:
    keys, index, action, advantage, target = steps(3)
    whole = experience.fold(keys, index, action, advantage, target, np.zeros(len(index)))
    inputs = POLICY.inputs({}, keys)
    parts = list(ppo.minibatches(whole, inputs, 4, np.random.default_rng(0)))
    assert len(parts) == 4
    assert sum(part.steps for part, _ in parts) == whole.steps
    assert np.isclose(sum(part.gain.sum() + part.loss.sum() for part, _ in parts), advantage.sum())
    for part, seen in parts:
        assert (seen == POLICY.inputs({}, part.observations)).all()
        assert set(part.where.tolist()) <= set(range(len(seen)))


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 0.0), ("epochs", 0), ("discount", 1.5), ("clip", -1.0)])
def test_settings_that_cannot_work_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be"):
        dataclasses.replace(Ppo(), **{name: value})
    with pytest.raises(ConfigError, match=f"^s.toml: ppo.{name} must be"):
        from_mapping(WorkflowConfig, {"ppo": {name: value}}, "s.toml")


# ---------------------------------------------------------------- arrays as bytes


def test_arrays_come_back_as_they_were() -> None:
    given = {
        "a": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "b": np.array([], np.float64),
        "c": np.array([1.5, -0.0], np.float32),
        "d": np.array([2**63], np.uint64),
        "e": np.array([True, False]),
    }
    data = pack(given, {"env": "cage2"})
    assert pack(unpack(data), {"env": "cage2"}) == data
    assert about(data) == {"env": "cage2"} and about(pack(given)) == {}
    for name, array in unpack(data).items():
        assert array.dtype == given[name].dtype and (array == given[name]).all()
    assert int.from_bytes(data[:8], "little") % 8 == 0, "numbers are aligned"


@pytest.mark.parametrize(
    "damage", [lambda d: d[:5], lambda d: d[:-1], lambda d: d[:8] + b"x" + d[9:], lambda d: b"\xff" * 40]
)
def test_damaged_bytes_are_refused(damage: Any) -> None:
    with pytest.raises(ConfigError, match="safetensors"):
        unpack(damage(pack({"a": np.arange(4)})))
