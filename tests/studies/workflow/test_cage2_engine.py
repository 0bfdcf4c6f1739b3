"""CAGE-2: an episode is a function of its seed, its number and blue's actions; the state never contradicts itself."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.engine import play, start, unpack
from fanfold.studies.workflow.cage2.state import STATE, luck

MIXED = g.Cage2Game(("b_line", "meander", "sleep"), green=True)
EDITION = STATE.names[-1]


def played(
    game: g.Cage2Game, seed: int, episodes: Any, actions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    states = start(game, seed, np.asarray(episodes, np.int64))
    seen, rewards = np.zeros(actions.shape, np.uint64), np.zeros(actions.shape, np.int32)
    play(states, game.tables(), actions, seen, rewards)
    return states, seen, rewards


def random_actions(seed: int, n: int, steps: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 145, (n, steps)).astype(np.uint8)


# ---------------------------------------------------------------- luck


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(-(2**70), 2**70), st.lists(st.integers(0, 2**62), min_size=2, max_size=8), st.randoms())
def test_an_episode_does_not_depend_on_its_company(seed: int, episodes: list[int], rng: Any) -> None:
    actions = np.repeat(random_actions(1, 1, 60), len(episodes), axis=0)
    states, seen, rewards = played(MIXED, seed, episodes, actions)
    order = list(range(len(episodes)))
    rng.shuffle(order)
    again = played(MIXED, seed, [episodes[i] for i in order], actions)
    assert (again[0] == states[order]).all()
    assert (again[1] == seen[order]).all() and (again[2] == rewards[order]).all()
    alone = played(MIXED, seed, episodes[:1], actions[:1])
    assert alone[0][0] == states[0]


def test_steps_one_by_one_are_the_steps_of_a_block() -> None:
    actions = random_actions(2, 16, 50)
    states, seen, rewards = played(MIXED, 5, range(16), actions)
    step_by_step = start(MIXED, 5, np.arange(16))
    for t in range(50):
        one, reward = np.zeros((16, 1), np.uint64), np.zeros((16, 1), np.int32)
        play(step_by_step, MIXED.tables(), np.ascontiguousarray(actions[:, t : t + 1]), one, reward)
        assert (one[:, 0] == seen[:, t]).all() and (reward[:, 0] == rewards[:, t]).all()
    assert (step_by_step == states).all()


def test_states_set_back_are_as_new() -> None:
    states, _, _ = played(MIXED, 7, range(16), random_actions(3, 16, 50))
    fresh = start(MIXED, 7, np.arange(16))
    assert (start(MIXED, 7, np.arange(16), states) == fresh).all()


def test_seeds_and_numbers_give_other_luck_but_the_same_rules() -> None:
    game = g.Cage2Game(("meander",))
    actions = np.zeros((400, 40), np.uint8)
    _, seen, _ = played(game, 1, range(400), actions)
    _, other, _ = played(game, 2, range(400), actions)
    assert len({tuple(row) for row in seen.tolist()}) > 350
    assert not {tuple(row) for row in seen.tolist()} & {tuple(row) for row in other.tolist()}


def test_luck_of_a_step_does_not_depend_on_what_blue_did_before() -> None:
    """Policies are compared under the same luck: here, the host B-line starts from."""
    idle, busy = np.zeros((200, 3), np.uint8), random_actions(4, 200, 3)
    game = g.Cage2Game(("b_line",), green=True)
    assert (played(game, 3, range(200), idle)[0]["user"] == played(game, 3, range(200), busy)[0]["user"]).all()


def test_an_episodes_red_is_drawn_from_its_own_luck_and_evenly() -> None:
    states = start(g.Cage2Game(("b_line", "meander", "meander")), 11, np.arange(30_000))
    assert abs((states["red"] == g.MEANDER).mean() - 2 / 3) < 0.02
    assert set(states["red"].tolist()) == {g.B_LINE, g.MEANDER}
    assert (start(g.Cage2Game(("b_line", "meander", "meander")), 11, np.array([77]))["red"] == states["red"][77]).all()


@numba.njit
def all_luck(states: Any, steps: int) -> Any:
    drawn = np.zeros((len(states), steps, g.PLACES), np.int64)
    for i in range(len(states)):
        for t in range(steps):
            states[i].step = t
            for place in range(g.PLACES):
                drawn[i, t, place] = luck(states[i], place)
    return drawn


@pytest.mark.slow
def test_every_chance_of_every_step_of_every_episode_has_a_draw_of_its_own() -> None:
    states = start(MIXED, 0, np.arange(50))
    drawn = all_luck(states, 100)
    assert drawn.min() >= 0 and drawn.max() < 2**32
    assert drawn.size - len(np.unique(drawn)) <= 3, "40,000 of 2^32 hardly ever meet"
    for axis in range(3):
        assert abs(drawn.mean(axis=axis) / 2**32 - 0.5).max() < 5 * np.sqrt(1 / 12 / drawn.shape[axis])
    assert len(set(states["key"].tolist())) == len(set(states["stride"].tolist())) == 50
    assert (states["stride"] % 2 == 1).all(), "so that a stream comes back to its beginning only after 2^64 draws"


# ---------------------------------------------------------------- the state


def assert_consistent(states: Any, action: int) -> None:
    for state in states:
        sessions = state["sessions"]
        assert (sessions >= 0).all()
        assert sessions[8, 3] >= 1, "red's foothold"
        assert int(state["held"]) == sum(1 << h for h in range(13) if sessions[h].any())
        admin = [h for h in range(13) if sessions[h, 3]]
        assert int(state["admin"]) == sum(1 << h for h in admin)
        assert int(state["cost"]) == sum(g.HOST[h].cost for h in admin)
        stopped = 0 if state["running"] else 100
        assert int(state["reward"]) == -int(state["cost"]) - stopped - (10 if action >= 132 else 0)
        assert not sessions[0].any(), "Defender can never be taken"
        assert 0 <= int(state["observation"]) < 1 << 52
        assert int(state["observation"]) & ~int(state["table"]) & 0xCCCCCCCCCCCCC == 0
        assert not state["pinned"] or state["running"]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 144), min_size=1, max_size=120))
def test_the_state_never_contradicts_itself(seed: int, actions: list[int]) -> None:
    states = start(MIXED, seed, np.arange(6))
    seen, rewards = np.zeros((6, 1), np.uint64), np.zeros((6, 1), np.int32)
    for number, action in enumerate(actions, 1):
        play(states, MIXED.tables(), np.full((6, 1), action, np.uint8), seen, rewards)
        assert_consistent(states, action)
        assert (states["step"] == number).all()
        assert (seen[:, 0] == states["observation"].astype(np.uint64)).all()
        assert (rewards[:, 0] == states["reward"]).all()


def test_episodes_of_any_length_can_be_played() -> None:
    for length in (1, 30, 50, 100, 3_000):
        states, _, _ = played(g.Cage2Game(("meander",), length=length), 0, [0], np.zeros((1, length), np.uint8))
        assert states["step"][0] == length


def test_an_idle_blue_loses_what_it_loses_in_cyborg() -> None:
    """CybORG: -1140.8 against B-line and -1024.5 against Meander over 100 steps (its documents: -1134.0, -972.4)."""
    actions = np.zeros((4_000, 100), np.uint8)
    for red, low, high in (("b_line", -1160, -1120), ("meander", -1050, -960), ("sleep", 0, 0)):
        mean = played(g.Cage2Game((red,)), 1, range(4_000), actions)[2].sum(axis=1).mean() / 10
        assert low <= mean <= high, (red, mean)


def test_one_early_restore_of_the_op_server_is_worth_what_it_is_in_cyborg() -> None:
    """CybORG, 120 episodes: -280.4 +- 0.4 against B-line, instead of -1140.8."""
    actions = np.zeros((4_000, 100), np.uint8)
    actions[:, 0] = 139
    mean = played(g.Cage2Game(), 1, range(4_000), actions)[2].sum(axis=1).mean() / 10
    assert -281.6 < mean < -279.2
    fixed = played(g.Cage2Game(restore_quirk=False), 1, range(4_000), actions)[2].sum(axis=1).mean() / 10
    assert fixed < -1_000


def test_observations_unpack_host_by_host_lowest_bit_first() -> None:
    rows = unpack(np.array([[0b1011, 1 << 51]], np.uint64))
    assert rows.shape == (1, 2, 52) and rows.dtype == np.int8
    assert rows[0, 0].tolist() == [1, 1, 0, 1] + [0] * 48
    assert rows[0, 1].tolist() == [0] * 51 + [1]


def test_the_type_of_the_state_names_the_edition_of_the_code() -> None:
    assert EDITION.startswith("edition_") and len(EDITION) == len("edition_") + 12


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"reds": ("bline",)}, "did you mean 'b_line'"),
        ({"reds": ()}, "name at least one of"),
        ({"observation": "cybrog"}, "did you mean 'cyborg'"),
        ({"length": 0}, "at least one step"),
        ({"length": 2.5}, "at least one step"),
    ],
)
def test_settings_that_make_no_game_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        g.Cage2Game(**settings_)


def test_one_red_can_be_given_by_its_name() -> None:
    assert g.Cage2Game("meander") == g.Cage2Game(("meander",))  # type: ignore[arg-type]
