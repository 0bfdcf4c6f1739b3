"""CAGE-2: blocks of whole episodes with the policy in the loop."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.engine import play, start, unpack
from fanfold.studies.workflow.cage2.policy import PolicyNetwork, PolicyTable, accumulate_all
from fanfold.studies.workflow.cage2.rollout import FIXED, EpisodeBlock, rollout, sample

ORDER = np.eye(5).ravel()
NETWORK = PolicyNetwork.initial(0, ORDER)
DECISIVE = dataclasses.replace(NETWORK, out=NETWORK.out * 40)
MIXED = g.Cage2Game(("b_line", "meander"), length=40, green=True)


def same(a: EpisodeBlock, b: EpisodeBlock) -> bool:
    return all(np.array_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(EpisodeBlock))


def reference(network: PolicyNetwork, keys: np.ndarray) -> np.ndarray:
    """Log-probabilities by plain numpy in double precision."""
    inputs = np.hstack([unpack(keys), np.tile(network.context, (len(keys), 1))]).astype(np.float64)
    low = np.tanh(inputs @ network.first.astype(float) + network.first_bias)
    high = np.tanh(low @ network.second.astype(float) + network.second_bias)
    scores = high @ network.out.astype(float) + network.out_bias
    top = scores.max(axis=1, keepdims=True)
    return scores - top - np.log(np.exp(scores - top).sum(axis=1, keepdims=True))


# ---------------------------------------------------------------- the network


def test_the_original_network_has_77_inputs_and_27794_parameters_with_its_critic() -> None:
    shapes = [getattr(NETWORK, f.name).shape for f in dataclasses.fields(PolicyNetwork)]
    assert shapes == [(77, 64), (64,), (64, 64), (64,), (64, 145), (145,), (25,)]
    actor = sum(int(np.prod(shape)) for shape in shapes[:-1])
    critic = 77 * 64 + 64 + 64 * 64 + 64 + 64 + 1
    assert actor + critic == 27_794


@pytest.mark.slow
@pytest.mark.parametrize("network", [NETWORK, DECISIVE, PolicyNetwork.initial(3, hidden=16)])
def test_the_networks_probabilities_are_those_of_plain_numpy(network: PolicyNetwork) -> None:
    keys = np.random.default_rng(0).integers(0, 1 << 52, 200).astype(np.uint64)
    found = network.log_probabilities(keys)
    assert np.allclose(found, reference(network, keys), atol=2e-5)
    assert np.allclose(np.exp(found.astype(float)).sum(axis=1), 1, atol=1e-5)


def test_the_context_matters_and_an_observation_is_evaluated_alike_in_any_company() -> None:
    keys = np.random.default_rng(1).integers(0, 1 << 52, 50).astype(np.uint64)
    together = NETWORK.log_probabilities(keys)
    alone = np.vstack([NETWORK.log_probabilities(keys[i : i + 1]) for i in range(50)])
    assert (together == alone).all()
    other = dataclasses.replace(NETWORK, context=np.eye(5)[::-1].ravel())
    assert not np.allclose(other.log_probabilities(keys), together)


def test_weights_of_the_wrong_shape_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'out' has the shape \(145, 64\); it must be \(64, 145\)"):
        dataclasses.replace(NETWORK, out=NETWORK.out.T)
    with pytest.raises(ConfigError, match=r"'first' has the shape \(77, 64\); it must be \(52, 64\)"):
        dataclasses.replace(NETWORK, context=())


def test_weights_that_diverged_are_refused() -> None:
    with pytest.raises(ConfigError, match="'second' holds numbers that are not finite"):
        dataclasses.replace(NETWORK, second=NETWORK.second * np.inf)


def test_chances_add_up_to_one_at_the_last_action_that_is_not_forbidden() -> None:
    rng = np.random.default_rng(0)
    for forbidden in (0, 1, 40, 144):
        scores = rng.normal(0, 5, (300, 145)).astype(np.float32)
        chosen = rng.permuted(np.tile(np.arange(145), (300, 1)), axis=1)[:, :forbidden]
        np.put_along_axis(scores, chosen, -np.inf, axis=1)
        allowed = np.isfinite(scores)
        accumulate_all(scores, False)
        last = 144 - allowed[:, ::-1].argmax(axis=1)
        assert (np.take_along_axis(scores, last[:, None], axis=1) == 1).all()
        mass = np.diff(scores, axis=1, prepend=0)
        assert (mass >= 0).all() and (mass[~allowed] == 0).all()


# ---------------------------------------------------------------- blocks


def test_no_episodes_are_an_empty_block() -> None:
    block = rollout(PolicyTable(NETWORK), MIXED, [])
    assert (block.steps, len(block.keys), len(block.returns)) == (0, 0, 0)


def test_a_block_is_what_its_actions_give_when_played_again() -> None:
    block = rollout(PolicyTable(NETWORK, 7), MIXED, range(20, 40), seed=5)
    states = start(MIXED, 5, np.arange(20, 40))
    assert (block.reds == states["red"]).all() and block.version == 7
    seen, tenths = np.zeros(block.actions.shape, np.uint64), np.zeros(block.actions.shape, np.int32)
    play(states, MIXED.tables(), block.actions, seen, tenths)
    assert (block.tenths == tenths).all()
    met = block.keys[block.observations]
    assert (met[:, 0] == 0).all() and (met[:, 1:] == seen[:, :-1]).all()
    assert block.steps == 20 * 40
    assert np.allclose(block.rewards, tenths / 10)
    assert np.allclose(block.returns, tenths.sum(axis=1) / 10)


def test_distinct_observations_are_numbered_as_they_are_met() -> None:
    block = rollout(PolicyTable(NETWORK), MIXED, range(30))
    flat = block.observations.ravel()
    _, first = np.unique(flat, return_index=True)
    assert len(set(block.keys.tolist())) == len(block.keys) == len(first)
    assert (np.diff(first) > 0).all()


@pytest.mark.slow
@settings(max_examples=15)
@given(st.lists(st.integers(0, 2**60), min_size=2, max_size=12, unique=True), st.integers(0, 2**63))
def test_an_episode_is_the_same_in_any_block_and_after_any_history(episodes: list[int], seed: int) -> None:
    table = PolicyTable(NETWORK)
    together = rollout(table, MIXED, episodes, seed)
    assert same(rollout(table, MIXED, episodes, seed), together), "the table has a past now"
    for i, episode in enumerate(episodes[:3]):
        alone = rollout(PolicyTable(NETWORK), MIXED, [episode], seed)
        assert (alone.actions[0] == together.actions[i]).all() and (alone.tenths[0] == together.tenths[i]).all()
        assert (alone.held[0] == together.held[i]).all()
        assert (alone.keys[alone.observations[0]] == together.keys[together.observations[i]]).all()


@pytest.mark.slow
def test_threads_play_the_blocks_that_one_thread_plays() -> None:
    blocks = [range(100 * i, 100 * i + 100) for i in range(6)]
    expected = [rollout(PolicyTable(NETWORK), MIXED, block, 1) for block in blocks]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda block: rollout(PolicyTable(NETWORK), MIXED, block, 1), blocks))
    assert all(same(a, b) for a, b in zip(expected, found))


@pytest.mark.slow
def test_actions_are_drawn_with_the_policys_probabilities() -> None:
    game = g.Cage2Game(("sleep",), length=1)
    block = rollout(PolicyTable(NETWORK), game, range(200_000))
    shares = np.bincount(block.actions.ravel(), minlength=145) / block.steps
    chances = np.exp(reference(NETWORK, np.zeros(1, np.uint64)))[0]
    deviations = (shares - chances) / np.sqrt(chances * (1 - chances) / block.steps)
    assert abs(deviations).max() < 5


@numba.njit
def sampled(chances: Any, points: Any) -> Any:
    return [sample(chances, point) for point in points]


@pytest.mark.slow
def test_an_action_without_chance_is_never_drawn() -> None:
    chances = np.array([0, 0, 0.5, 0.5, 1, 1], np.float32)
    points = np.array([0, 0.25, np.nextafter(np.float32(0.5), np.float32(0)), 0.5, 1 - 2**-24], np.float32)
    assert list(sampled(chances, points)) == [2, 2, 2, 4, 4]


def test_actions_and_the_game_have_separate_luck() -> None:
    """Another policy meets the same red: the user host of B-line does not move."""
    game = g.Cage2Game(("b_line",), length=3)
    users = []
    for network in (NETWORK, PolicyNetwork.initial(9, ORDER)):
        block = rollout(PolicyTable(network), game, range(300))
        states = start(game, 0, np.arange(300))
        play(states, game.tables(), block.actions, np.zeros((300, 3), np.uint64), np.zeros((300, 3), np.int32))
        users.append(states["user"])
    assert (users[0] == users[1]).all()


def test_a_greedy_table_takes_the_best_action_only() -> None:
    block = rollout(PolicyTable(NETWORK, greedy=True), MIXED, range(10))
    best = NETWORK.log_probabilities(block.keys).argmax(axis=1)
    assert (block.actions == best[block.observations]).all()


# ---------------------------------------------------------------- the table


class Counting:
    """The network as any function, counting what it is asked."""

    def __init__(self, network: PolicyNetwork) -> None:
        self.network = network
        self.asked: list[int] = []

    def __call__(self, keys: np.ndarray) -> np.ndarray:
        self.asked += keys.tolist()
        return self.network.scores(keys)


@pytest.mark.slow
def test_a_policy_is_asked_once_for_each_observation_however_many_blocks_are_played() -> None:
    policy = Counting(NETWORK)
    table = PolicyTable(policy)
    blocks = [rollout(table, MIXED, range(50 * i, 50 * i + 50)) for i in range(3)]
    assert len(policy.asked) == len(set(policy.asked)) == len(table)
    assert set(policy.asked) == {key for block in blocks for key in block.keys.tolist()}
    table.load(policy, 1)
    rollout(table, MIXED, range(10))
    assert len(policy.asked) > len(set(policy.asked)), "a new version is asked anew"


@pytest.mark.parametrize("greedy", [False, True])
def test_a_function_plays_as_the_network_it_stands_for(greedy: bool) -> None:
    table = PolicyTable(Counting(NETWORK), greedy=greedy)
    by_network = rollout(PolicyTable(NETWORK, greedy=greedy), MIXED, range(60), 2)
    assert same(rollout(table, MIXED, range(60), 2), by_network)
    assert same(rollout(table, MIXED, range(60), 2), by_network), "also when nothing has to be asked any more"


@pytest.mark.slow
def test_a_function_is_never_asked_about_nothing() -> None:
    policy = Counting(NETWORK)

    def proud(keys: np.ndarray) -> np.ndarray:
        assert len(keys)
        return policy(keys)

    block = rollout(PolicyTable(proud), g.Cage2Game(("meander",), green=True), range(300))
    assert len(block.keys) == len(set(policy.asked)) == len(policy.asked) > 4_096


@pytest.mark.slow
def test_a_table_grows_as_far_as_it_must_and_forgets_beyond_its_limit() -> None:
    game = g.Cage2Game(("meander",), green=True)
    roomy, tight = PolicyTable(NETWORK), PolicyTable(NETWORK, limit=10)
    first = rollout(roomy, game, range(300))
    assert len(roomy) == len(set(first.keys.tolist())) == len(first.keys) > 4_096, "more than it had room for at first"
    assert same(rollout(tight, game, range(300)), first)
    second = rollout(tight, game, range(5))
    assert len(tight) == len(second.keys)
    assert same(rollout(roomy, game, range(5)), second)


def test_loading_another_policy_forgets_the_first() -> None:
    table = PolicyTable(NETWORK, 1)
    rollout(table, MIXED, range(20))
    table.load(DECISIVE, 2, greedy=True)
    assert same(rollout(table, MIXED, range(20)), rollout(PolicyTable(DECISIVE, 2, greedy=True), MIXED, range(20)))


@pytest.mark.parametrize(
    "bad", [lambda keys: np.zeros((len(keys), 144)), lambda keys: np.full((len(keys), 145), np.nan)]
)
def test_a_function_that_gives_no_scores_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="must give finite scores"):
        rollout(PolicyTable(bad), MIXED, range(2))


def test_scores_of_minus_infinity_forbid_actions() -> None:
    def only_restore(keys: np.ndarray) -> np.ndarray:
        scores = np.full((len(keys), 145), -np.inf)
        scores[:, 139:141] = 0
        return scores

    block = rollout(PolicyTable(only_restore), MIXED, range(50))
    assert set(block.actions.ravel().tolist()) == {139, 140}


# ---------------------------------------------------------------- for learning


def test_held_hosts_are_those_red_held_when_blue_chose_without_its_foothold() -> None:
    game = g.Cage2Game(("meander",), length=60)
    block = rollout(PolicyTable(NETWORK), game, range(30))
    states = start(game, 0, np.arange(30))
    seen, tenths = np.zeros((30, 1), np.uint64), np.zeros((30, 1), np.int32)
    extra = False
    for t in range(60):
        sessions = states["sessions"].sum(axis=2)
        sessions[:, 8] -= 1
        expected = ((sessions > 0) << np.arange(13)).sum(axis=1)
        extra |= bool((sessions[:, 8] > 0).any())
        assert (block.held[:, t] & (FIXED - 1) == expected).all()
        play(states, game.tables(), np.ascontiguousarray(block.actions[:, t : t + 1]), seen, tenths)
        assert (block.held[:, t] >= FIXED).tolist() == (states["fixed"] == 1).tolist()
    assert extra, "Meander held more than its foothold on User0 at some time"
    fixes = (block.held >= FIXED).any()
    assert fixes and set((block.actions[block.held >= FIXED] - 2) // 13) <= {1, 10}
