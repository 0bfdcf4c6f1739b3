"""CAGE-2 as Gymnasium environments."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from fanfold.errors import ConfigError
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.engine import play, start, unpack
from fanfold.studies.workflow.cage2.env import Cage2, Cage2Vector


def test_gymnasium_finds_nothing_wrong_with_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for reds in ("b_line", "meander", ("b_line", "meander")):
            check_env(gymnasium.make("fanfold/Cage2-v0", reds=reds, length=20, green=True).unwrapped)


@pytest.mark.slow
def test_it_can_be_made_by_name_alone_with_its_module() -> None:
    code = "import gymnasium; print(gymnasium.make('fanfold.studies.workflow.cage2.env:fanfold/Cage2-v0', length=7))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "fanfold/Cage2-v0" in out


@pytest.mark.slow
def test_registering_does_not_import_what_playing_needs() -> None:
    code = (
        "import sys; from fanfold.studies.workflow.cage2 import register; register(); register(); "
        "import gymnasium; assert 'fanfold/Cage2-v0' in gymnasium.registry; assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def episode(env: gymnasium.Env, actions: list[int]) -> list[tuple[list[int], float, bool]]:
    steps = []
    for action in actions:
        seen, reward, terminated, truncated, _ = env.step(action)
        assert not terminated
        steps.append((seen.tolist(), reward, truncated))
    return steps


def test_it_plays_the_kernels_episodes() -> None:
    actions = np.random.default_rng(0).integers(0, 145, 40)
    env = Cage2("meander", length=40, green=True)
    game = g.Cage2Game(("meander",), length=40, green=True)
    for seed in (3, None):
        seen, info = env.reset(seed=seed)
        assert not seen.any() and info["red"] == "meander"
        states = start(game, 3, np.array([info["episode_id"]]))
        keys, tenths = np.zeros((1, 40), np.uint64), np.zeros((1, 40), np.int32)
        play(states, game.tables(), actions[None].astype(np.uint8), keys, tenths)
        steps = episode(env, actions.tolist())
        assert [step[0] for step in steps] == unpack(keys)[0].tolist()
        assert [step[1] for step in steps] == (tenths[0] / 10).tolist()
        assert [step[2] for step in steps] == [False] * 39 + [True]
    assert info["episode_id"] == 1


def test_the_same_seed_and_number_give_the_same_episode() -> None:
    env = Cage2(("b_line", "meander"), length=30)
    actions = np.random.default_rng(1).integers(0, 145, 30).tolist()
    env.reset(seed=9)
    env.reset()
    _, info = env.reset()
    third = episode(env, actions)
    assert info["episode_id"] == 2
    assert env.reset(seed=9, options={"episode_id": 2})[1] == info
    assert episode(env, actions) == third
    env.reset(seed=10, options={"episode_id": 2})
    assert episode(env, actions) != third


def test_actions_that_do_not_exist_are_refused() -> None:
    env = Cage2()
    with pytest.raises(ConfigError, match="reset"):
        env.step(0)
    env.reset()
    for action in (-1, 145, 1.5, "Restore", [0, 1]):
        with pytest.raises(ConfigError, match="actions"):
            env.step(action)
    vector = Cage2Vector(2)
    vector.reset()
    for actions in ([0], [0, 145], [0, -1], [0.0, 1.0], 3):
        with pytest.raises(ConfigError, match="actions"):
            vector.step(actions)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'meander'"):
        Cage2("meandr")
    with pytest.raises(ConfigError, match="at least one environment"):
        Cage2Vector(0)
    with pytest.raises(ConfigError, match="one whole number"):
        Cage2Vector(2).reset(seed=[1, 2])


def test_many_in_step_play_what_each_would_play_alone() -> None:
    n, length = 5, 12
    actions = np.random.default_rng(2).integers(0, 145, (2 * length, n))
    vector = gymnasium.make_vec(
        "fanfold/Cage2-v0",
        num_envs=n,
        vectorization_mode="vector_entry_point",
        reds=("b_line", "meander"),
        length=length,
    )
    first, infos = vector.reset(seed=4)
    assert first.shape == (n, 52) and vector.observation_space.contains(first)
    assert infos["episode_id"].tolist() == [0, 1, 2, 3, 4]
    seen, rewards, last = [], [], []
    for t, row in enumerate(actions):
        observations, reward, terminated, truncated, infos = vector.step(row)
        over = t % length == length - 1
        assert not terminated.any() and truncated.tolist() == [over] * n
        rewards.append(reward)
        seen.append(infos["final_obs"] if over else observations)
        if over:
            assert infos["_final_obs"].all() and not observations.any()
            last.append(infos["episode_id"].tolist())
    assert last == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    alone = Cage2(("b_line", "meander"), length=length)
    for i in range(n):
        for round_ in range(2):
            alone.reset(seed=4, options={"episode_id": round_ * n + i})
            here = slice(round_ * length, (round_ + 1) * length)
            steps = episode(alone, actions[here, i].tolist())
            assert [step[0] for step in steps] == [row[i].tolist() for row in seen[here]]
            assert [step[1] for step in steps] == [row[i] for row in rewards[here]]


def test_gymnasiums_wrappers_fit_around_it() -> None:
    env = RecordEpisodeStatistics(Cage2Vector(3, length=4))
    env.reset(seed=0)
    for _ in range(4):
        *_, infos = env.step(env.action_space.sample())
    assert infos["episode"]["l"].tolist() == [4, 4, 4]
