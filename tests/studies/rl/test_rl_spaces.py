"""Spaces of every kind: observations become rows, rows become actions, and the gradient of every head is its slope."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Text, Tuple

from fanfold.errors import ConfigError
from fanfold.rl import heads, ppo
from fanfold.rl.experience import Experience, fold
from fanfold.rl.heads import Categories, Gaussian, Head
from fanfold.rl.network import SCALE
from fanfold.rl.policy import COUNT, DEVIATION, MEAN, Mlp
from fanfold.rl.spaces import Decoder, Encoder, head_of, mask_of

HEADS: dict[str, Head] = {
    "discrete": Categories((4,)),
    "multi-discrete": Categories((3, 2, 4)),
    "multi-binary": Categories((2, 2, 2)),
    "box": Gaussian(3),
}


def outputs(head: Head, n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 0.7, (n, head.outputs))


def drawn(head: Head, params: Any, seed: int = 1) -> Any:
    return head.sample(params, np.random.default_rng(seed).integers(2**63, size=len(params), dtype=np.uint64))


# ---------------------------------------------------------------- heads


@pytest.mark.parametrize("name", HEADS)
def test_the_slope_of_a_head_is_that_of_its_log_chances_and_entropy(name: str) -> None:
    head, rng = HEADS[name], np.random.default_rng(3)
    params, where = outputs(head, 5), rng.integers(0, 5, 30)
    actions = drawn(head, params[where])
    pull, bonus = rng.normal(size=30), rng.random(5)
    slope = head.slope(params, where, actions, pull, bonus)

    def loss(moved: Any) -> float:
        logs = head.log_chances(moved, where, actions)
        return float(-(pull * logs).sum() - (bonus * head.entropy(moved)).sum())

    for place in np.ndindex(params.shape):
        sides = []
        for move in (1e-6, -1e-6):
            moved = params.copy()
            moved[place] += move
            sides.append(loss(moved))
        assert slope[place] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-5), place


@pytest.mark.parametrize("name", HEADS)
def test_the_gradient_of_a_whole_network_is_the_slope_of_the_clipped_loss(name: str) -> None:
    head, rng = HEADS[name], np.random.default_rng(5)
    policy = Mlp(6, head, hidden=5, normalise=True)
    rows = rng.normal(1, 3, (40, 6))
    weights = {key: array.astype(float) for key, array in policy.initial(0).items()}
    weights = {key: array + rng.normal(0, 0.4, array.shape) * (key != SCALE) for key, array in weights.items()}
    weights = policy.observe(weights | {COUNT: np.zeros(1)}, rows, np.ones(40))
    inputs = policy.inputs(weights, rows).astype(float)
    actions = drawn(head, policy.outputs(weights, rows))
    played = head.log_chances(policy.outputs(weights, rows), np.arange(40), actions) + rng.normal(0, 0.3, 40)
    advantage = rng.normal(size=40)
    part = fold(rows, np.arange(40), actions, advantage, rng.normal(size=40), played)
    gradient, _ = ppo.policy_gradient(policy, weights, inputs, part, 0.2, 0.1, 1.0, 40.0)

    def loss(moved: Any) -> float:
        params = policy.read(moved, ppo.forward(moved, "policy", inputs)[2], None)
        ratio = np.exp(head.log_chances(params, np.arange(40), actions) - played)
        clipped = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage)
        return float(-clipped.mean() - 0.1 * head.entropy(params).mean())

    assert set(gradient) >= {"policy.0.weight", "policy.2.bias"}
    for key, slopes in gradient.items():
        place = tuple(rng.integers(0, size) for size in slopes.shape)
        sides = []
        for move in (1e-6, -1e-6):
            moved = {**weights, key: weights[key].copy()}
            moved[key][place] += move
            sides.append(loss(moved))
        assert slopes[place] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-6), key


@pytest.mark.parametrize("name", HEADS)
def test_actions_are_drawn_with_the_chances_that_the_head_says(name: str) -> None:
    head = HEADS[name]
    params = np.repeat(outputs(head, 1, seed=4), 4000, axis=0)
    actions = drawn(head, params)
    assert len(np.unique(actions.reshape(4000, -1), axis=0)) > 3
    chance = head.log_chances(params, np.arange(4000), actions)
    assert -chance.mean() == pytest.approx(head.entropy(params[:1])[0], abs=0.06), "the entropy is minus their mean"


def test_draws_of_an_episode_do_not_depend_on_its_neighbours() -> None:
    head, params = HEADS["box"], outputs(HEADS["box"], 3)
    keys = np.array([5, 9, 2**60], np.uint64)
    together = head.sample(params, keys.copy())
    alone = head.sample(params[1:2], keys[1:2].copy())
    assert np.array_equal(together[1:2], alone)
    assert not np.array_equal(heads.draws(keys, 2), heads.draws(keys, 2)), "keys move on"


def test_masked_choices_are_never_drawn_and_not_learnt() -> None:
    policy = Mlp(2, Categories((3, 2)), hidden=4)
    weights = policy.initial(0)
    rows = np.hstack([np.random.default_rng(0).normal(size=(200, 2)), np.tile([1, 0, 1, 0, 1], (200, 1))])
    params = policy.outputs(weights, rows.astype(np.float32))
    actions = drawn(policy.head, params)
    assert set(actions[:, 0].tolist()) == {0, 2} and set(actions[:, 1].tolist()) == {1}
    assert set(policy.head.best(params)[:, 1].tolist()) == {1}
    slope = policy.head.slope(params, np.arange(200), actions, np.ones(200), np.ones(200))
    assert (slope[:, [1, 3]] == 0).all() and slope[:, 0].any()


# ---------------------------------------------------------------- observations and actions

IMAGE = Box(0, 255, (20, 24, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "width"),
    [
        (Box(-1, 1, (2, 3)), 6),
        (Discrete(3, start=7), 3),
        (MultiDiscrete([2, 3]), 5),
        (MultiBinary((2, 2)), 4),
        (Dict(b=Discrete(2), a=Tuple((Box(0, 1, (2,)), MultiDiscrete([2, 2])))), 8),
        (IMAGE, 1440),
    ],
)
def test_observations_become_rows(space: Any, width: int) -> None:
    encoder = Encoder(space)
    space.seed(0)
    row = encoder(space.sample())
    assert encoder.width == width == len(row) and row.dtype == encoder.dtype
    assert encoder.image == (space.shape if space is IMAGE else None)


def test_a_number_is_marked_in_its_place_and_parts_stand_in_the_order_of_the_space() -> None:
    encoder = Encoder(Dict(b=Discrete(3, start=7), a=Box(0, 9, (2,))))
    assert encoder({"b": 8, "a": np.array([4.0, 5.0])}).tolist() == [0, 1, 0, 4, 5]


@pytest.mark.parametrize(
    ("space", "observation"),
    [(Discrete(5), -1), (Discrete(5), 5), (Discrete(3, start=2), 1), (MultiDiscrete([3, 3]), np.array([4, 0]))],
)
def test_a_number_outside_its_space_is_not_taken_for_another(space: Any, observation: Any) -> None:
    with pytest.raises(ValueError, match="an observation is not in its space"):
        Encoder(space)(observation)


def test_a_row_is_not_what_the_environment_writes_over() -> None:
    seen = np.zeros(3, np.float32)
    row = Encoder(Box(-1, 1, (3,)))(seen)
    seen += 1
    assert row.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "space",
    [
        Discrete(4, start=2),
        MultiDiscrete([[2, 3], [4, 5]]),
        MultiBinary((2, 3)),
        Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)),
        Box(-np.inf, np.inf, (2, 2)),
        Box(np.array([0, -np.inf], np.float64), np.array([np.inf, 3], np.float64), dtype=np.float64),
    ],
)
def test_every_action_of_a_head_is_one_of_the_space(space: Any) -> None:
    head = head_of(space)
    params = 3 * outputs(head, 50)
    for action in Decoder(space)(drawn(head, params)):
        assert space.contains(action), action


def test_a_continuous_action_is_in_units_of_its_range() -> None:
    decode = Decoder(Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)))
    assert np.allclose(decode(np.array([[0, 0], [1, -1], [9, 0.5]])), [[0, 5], [2, 0], [2, 7.5]])


def test_the_largest_float_is_no_bound() -> None:
    most = np.finfo(np.float32).max
    decode = Decoder(Box(np.array([-most, 0], np.float32), np.array([most, most], np.float32)))
    assert np.allclose(decode(np.array([[3, 3], [-3, -3]])), [[3, 3], [-3, 0]])


@pytest.mark.parametrize("space", [Text(4), Graph(Box(0, 1, (2,)), None), Dict(a=Text(4))])
def test_observations_that_cannot_be_learnt_from_are_refused_by_name(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"(Text|Graph).*Wrap"):
        Encoder(space)


@pytest.mark.parametrize("space", [Text(4), Tuple((Discrete(2), Discrete(2))), Box(0, 5, (2,), np.int64)])
def test_actions_that_cannot_be_learnt_are_refused_by_name(space: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be learnt: wrap"):
        head_of(space)


class Masking:
    def action_masks(self) -> Any:
        return [True, False]

    @property
    def unwrapped(self) -> Any:
        return self


class Shows(Masking):
    action_masks = (False, True)


def test_masks_may_be_those_of_a_wrapper() -> None:
    class Masker(gymnasium.Wrapper[Any, Any, Any, Any]):
        def action_masks(self) -> Any:
            return [1, 0]

    env = gymnasium.wrappers.RecordEpisodeStatistics(Masker(gymnasium.make("CartPole-v1")))
    assert mask_of(env, None, {}, Categories((2,))).tolist() == [1, 0]  # type: ignore[union-attr]
    assert mask_of(env.env.env, None, {}, Categories((2,))) is None


def test_masks_come_from_the_info_from_what_is_observed_or_from_a_method() -> None:
    assert mask_of(Masking(), None, {}, Categories((2,))).tolist() == [1, 0]  # type: ignore[union-attr]
    assert mask_of(Masking(), None, {"action_mask": np.array([0, 1], np.int8)}, Categories((2,))).tolist() == [0, 1]  # type: ignore[union-attr]
    assert mask_of(Masking(), None, {}, Gaussian(2)) is None
    assert mask_of(Shows(), None, {}, Categories((2,))).tolist() == [0, 1]  # type: ignore[union-attr]
    assert mask_of(Masking(), {"action_mask": [0, 1]}, {}, Categories((2,))).tolist() == [0, 1]  # type: ignore[union-attr]
    pairs = {"action_mask": (np.array([0, 1]), np.array([1, 0, 1]))}
    assert mask_of(Masking(), None, pairs, Categories((2, 3))).tolist() == [0, 1, 1, 0, 1]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="2 entries, and the actions have 3 choices"):
        mask_of(Masking(), None, {}, Categories((3,)))


# ---------------------------------------------------------------- what is remembered of observations


def test_what_is_remembered_of_observations_is_their_mean_and_deviation() -> None:
    policy, rng = Mlp(3, Categories((2,)), normalise=True), np.random.default_rng(0)
    parts = [rng.normal((1, -50, 0), (1, 20, 1e-9), (n, 3)) for n in (10, 200, 50)]
    weights = policy.initial(0)
    for rows in parts:
        weights = policy.observe(weights, rows, np.ones(len(rows)))
    together = np.concatenate(parts)
    assert np.allclose(weights[MEAN], together.mean(axis=0))
    assert np.allclose(weights[DEVIATION], together.std(axis=0), atol=1.1e-3) and weights[COUNT] == 260
    twice = policy.observe(policy.initial(0), together[:2], np.array([3.0, 1.0]))
    assert np.allclose(twice[MEAN], (3 * together[0] + together[1]) / 4)
    seen = policy.inputs(weights, together)
    assert np.allclose(seen.std(axis=0), [1, 1, 0], atol=0.2) and np.abs(seen).max() <= 10


def test_parts_of_many_numbers_and_the_small_parts_together_weigh_alike() -> None:
    nested = Dict(goal=Discrete(2), seen=Tuple((Box(0, 255, (16, 16), np.uint8), Box(-9, 9, (3,), np.float32))))
    for space, groups in (
        (Dict(picture=Box(0, 255, (16, 16), np.uint8), place=Box(0, 1, (2,))), [range(256), range(256, 258)]),
        (nested, [range(2, 258), [0, 1, 258, 259, 260]]),
        (Dict(a=Box(0, 1, (8, 8)), b=Box(0, 1, (4, 4, 3))), [range(64), range(64, 112)]),
        (Dict(goal=Box(-1, 1, (2,)), scan=Box(0, 1, (90,)), place=Box(-1, 1, (2,))), [range(2, 92), [0, 1, 92, 93]]),
    ):
        encoder, rng = Encoder(space), np.random.default_rng(0)
        rows = rng.normal(5, 3, (2000, encoder.width)).astype(np.float32)
        policy = Mlp(encoder.width, Categories((2,)), normalise=True, shares=encoder.shares)
        seen = np.square(policy.inputs(policy.observe(policy.initial(0), rows, np.ones(2000)), rows)).mean(axis=0)
        each = [float(seen[list(group)].sum()) for group in groups]
        assert each == pytest.approx([encoder.width / len(groups)] * len(groups), rel=1e-3)


@pytest.mark.parametrize("space", [IMAGE, Box(-1, 1, (90,)), Dict(a=Box(0, 1, (10,)), b=Box(0, 1, (3,)))], ids=str)
def test_one_part_and_small_parts_are_not_balanced(space: Any) -> None:
    assert Encoder(space).shares == ()


def test_steps_that_do_not_repeat_are_not_compared() -> None:
    rows = np.arange(10.0)[:, None]
    part = fold(rows, np.arange(10), np.zeros(10, int), np.ones(10), np.ones(10), np.zeros(10))
    assert isinstance(part, Experience) and part.where.tolist() == list(range(10)) and part.steps == 10
