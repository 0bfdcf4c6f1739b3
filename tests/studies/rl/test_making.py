"""What a stranger writes for an environment: it is made, or refused with the remedy before anything is played."""

from __future__ import annotations

import functools
import math
import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import rl_world

from fanfold.config import from_text
from fanfold.errors import ConfigError
from fanfold.executors.worker import dumps, loads
from fanfold.fingerprints import fingerprint
from fanfold.rl import Agent, train
from fanfold.rl.agent import card_of
from fanfold.rl.config import RlConfig
from fanfold.rl.environments import play, policy_for
from fanfold.rl.failures import TooManyFailures
from fanfold.rl.making import Environment
from fanfold.rl.torch_policy import convolutions
from fanfold.rl.training import study_of

FILE = """
import rl_world

def make_env(length=10):
    return rl_world.Walk(length)
"""


def test_environments_are_named_in_every_way_that_people_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_walk.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    for env in ("own_walk.py:make_env", str(tmp_path / "own_walk.py:make_env"), "own_walk:make_env", "rl_world:Walk"):
        assert Environment.of(env, {"length": 7}).check().length == 7, env
    assert Environment.of(rl_world.make_walk).check().length == 10
    assert Environment.of(functools.partial(rl_world.Walk, length=4)).check().length == 4
    assert Environment.of("CartPole-v1").check().spec.id == "CartPole-v1"
    assert "gym_world" in str(Environment.of("gym_world:Corridor-v0").check().unwrapped.__class__)


def test_a_script_that_starts_a_run_when_something_in_it_is_named_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "own_script.py"
    script.write_text(f"{FILE}\nfrom fanfold.rl import train\ntrain(make_env, total_steps=100)\n")
    with pytest.raises(ConfigError, match=r"own_script.py starts a run.*below if __name__ == \"__main__\""):
        Environment.of(f"{script}:make_env")


def test_wrappers_are_called_in_order_by_name_or_as_functions() -> None:
    def tail(env: Any) -> Any:
        return gymnasium.wrappers.TransformReward(env, lambda reward: 10 * reward)

    made = Environment.of(rl_world.Walk, wrappers=["RecordEpisodeStatistics", tail]).check()
    assert isinstance(made, gymnasium.wrappers.TransformReward)
    assert isinstance(made.env, gymnasium.wrappers.RecordEpisodeStatistics)
    made.reset(seed=0)
    assert made.step(1)[1] == 10.0


def test_one_wrapper_needs_no_list() -> None:
    for wrapper in ("RecordEpisodeStatistics", gymnasium.wrappers.RecordEpisodeStatistics):
        made = Environment.of(rl_world.Walk, wrappers=wrapper).check()
        assert isinstance(made, gymnasium.wrappers.RecordEpisodeStatistics)


def test_arguments_of_a_wrapper_are_what_json_or_python_says(tmp_path: Path) -> None:
    config = from_text(tuple[str, ...], "rl_world:noted?shape=(8,16)&flag=False&by=1e+3,rl_world:noted?x=[1,2]", "", "")
    first, second = Environment.of(rl_world.Walk, wrappers=config).wrappers
    made = second(first(rl_world.Walk()))
    assert made.noted == [{"shape": (8, 16), "flag": False, "by": 1000.0}, {"x": [1, 2]}]


def test_wrappers_take_arguments_by_name(tmp_path: Path) -> None:
    text = "FrameStackObservation?stack_size=3&padding_type=zero"
    env = Environment.of(rl_world.Walk, wrappers=[text])
    assert env.check().reset(seed=0)[0].shape == (3, 2)
    assert (env.check().reset(seed=0)[0][:2] == 0).all()
    other = Environment.of(rl_world.Walk, wrappers=["FrameStackObservation?stack_size=4&padding_type=zero"])
    assert fingerprint(env).text == fingerprint(Environment.of(rl_world.Walk, wrappers=[text])).text
    assert fingerprint(env).text != fingerprint(other).text
    policy = policy_for(env, 8)
    Agent(policy, policy.initial(0), card_of(env)).save(tmp_path)
    assert Agent.load(tmp_path).environment().check().reset(seed=0)[0].shape == (3, 2)
    assert loads(dumps(env)).check().reset(seed=0)[0].shape == (3, 2)


def test_an_environment_that_cannot_be_closed_is_learnt_all_the_same() -> None:
    class Lasting(rl_world.Walk):
        def close(self) -> None:
            raise RuntimeError("the simulator is busy")

    assert train(Lasting, total_steps=200, fresh_episodes=2).agent.act(np.zeros(2)) in (0, 1)


def test_pictures_beside_other_things_are_said_to_be_learnt_as_numbers() -> None:
    class Camera(rl_world.Walk):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Dict(
                {"arm": gymnasium.spaces.Box(-1, 1, (2,)), "eye": gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)}
            )

        def _seen(self) -> Any:
            return self.observation_space.sample()

    env = Environment.of(Camera)
    assert r"pictures among other things (eye)" in study_of(RlConfig(), env).remarks[0]


class Alone(rl_world.Walk):
    """Of which there can be one at a time, such as a simulator behind a port."""

    there = 0

    def __init__(self, **more: Any) -> None:
        if Alone.there:
            raise OSError("address already in use")
        Alone.there += 1
        super().__init__(**more)

    def close(self) -> None:
        Alone.there -= 1


@pytest.mark.parametrize("executor", ["inline", "threads:1"])
def test_an_environment_of_which_there_can_be_one_is_learnt_in_blocks_of_one(executor: str) -> None:
    trained = train(Alone, total_steps=300, block=1, fresh_episodes=3, executor=executor)
    assert len(trained.curve) >= 1 and trained.run.summary.figures["failed_episodes"] == 0
    assert Alone.there == 0
    assert next(trained.agent.play(Alone)).length == 10


def test_episodes_are_played_in_as_many_environments_as_there_can_be() -> None:
    both = [train(env, total_steps=600, fresh_episodes=20, seed=3) for env in (Alone, rl_world.Walk)]
    assert both[0].curve == both[1].curve and Alone.there == 0
    assert both[0].run.summary.figures["failed_episodes"] == 0


def test_environments_are_closed_when_a_run_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[rl_world.Walk] = []
    closed: list[rl_world.Walk] = []

    def make_env() -> rl_world.Walk:
        made.append(rl_world.Walk())
        return made[-1]

    monkeypatch.setattr(rl_world.Walk, "close", lambda env: closed.append(env))
    train(make_env, total_steps=600, fresh_episodes=20)
    assert len(made) > 20 and {id(each) for each in made} == {id(each) for each in closed}


def test_one_environment_for_all_episodes_is_refused_with_the_remedy() -> None:
    one = rl_world.Walk()
    with pytest.raises(ConfigError, match=r"gave the same environment twice: let the function make a new one"):
        train(lambda: one, total_steps=60)
    assert train(lambda: rl_world.Walk(), total_steps=60, fresh_episodes=2).curve


def test_what_changes_nothing_or_too_much_is_said() -> None:
    wrappers = ("NormalizeObservation", "NormalizeReward")
    remarks = study_of(RlConfig("CartPole-v1", wrappers=wrappers, device="cuda")).remarks
    assert [re.search("Leave it out|on the CPU", each) is not None for each in remarks] == [True] * 3
    assert remarks[1].startswith("NormalizeObservation of CartPole-v1 keeps statistics of its own")
    assert study_of(RlConfig("CartPole-v1", wrappers=("FrameStackObservation?stack_size=2",))).remarks == ()


def test_an_environment_that_ignores_its_seed_is_said() -> None:
    class Unseeded(rl_world.Walk):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return super().reset()

    remarks = study_of(RlConfig(), Environment.of(Unseeded)).remarks
    assert "two episodes of" in remarks[-1] and "let reset call super().reset(seed=seed)" in remarks[-1]
    assert len(remarks) == 1 + len(study_of(RlConfig(), Environment.of(rl_world.Walk)).remarks)


def test_pictures_of_large_numbers_are_said() -> None:
    class Bright(rl_world.Walk):
        def __init__(self, kind: Any = np.float32) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), kind)

        def _seen(self) -> Any:
            return np.full((16, 16, 3), 255, self.observation_space.dtype)

    def own(spaces: Any) -> Any:
        return convolutions(spaces)

    (remark, _) = study_of(RlConfig(), Environment.of(Bright), own).remarks
    assert "pictures with numbers up to 255, which a network gets as they are: let them be bytes (uint8)" in remark
    assert len(study_of(RlConfig(), Environment.of(Bright, {"kind": np.uint8}), own).remarks) == 1
    assert len(study_of(RlConfig(), Environment.of(Bright)).remarks) == 1, "ours normalises them"


def test_numbers_too_large_for_their_differences_are_said() -> None:
    class Clock(rl_world.Walk):
        def _seen(self) -> Any:
            return np.array([1.7e9 + self.age, 0.5])

    (remark, _) = study_of(RlConfig(), Environment.of(Clock)).remarks
    assert "observes numbers as large as 1.7e+09, of which seven digits are seen: let it subtract" in remark


def test_numbers_beyond_32_bits_are_said_as_what_they_are() -> None:
    class Huge(rl_world.Walk):
        def __init__(self, begins: float = 1e200) -> None:
            super().__init__()
            self.observation_space, self.begins = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64), begins

        def _seen(self) -> Any:
            return np.array([1e200 if self.age else self.begins])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (remark, _) = study_of(RlConfig(), Environment.of(Huge)).remarks
        assert "not a finite number of 32 bits (up to 3.4e38), and such episodes fail: let it scale or clip" in remark
        with pytest.raises(TooManyFailures, match=r"an observation is not a finite number of 32 bits \(up to 3.4e38\)"):
            train(Huge, env_kwargs={"begins": 1.0}, total_episodes=20, fresh_episodes=2)


@pytest.mark.parametrize(("values", "said"), [(200_000, 1), (500, 0)])
def test_values_that_become_very_many_columns_are_said(values: int, said: int) -> None:
    class Numbered(rl_world.Walk):
        def __init__(self) -> None:
            super().__init__()
            number = gymnasium.spaces.Discrete(values)
            self.observation_space = gymnasium.spaces.Dict({"place": number, "age": gymnasium.spaces.Box(0, 20, (1,))})

        def _seen(self) -> Any:
            return {"place": self.age, "age": np.array([self.age], np.float32)}

    remarks = study_of(RlConfig(), Environment.of(Numbered)).remarks
    assert len([each for each in remarks if "which become 200,000 columns of 0 and 1: that is slow" in each]) == said


def test_episodes_without_a_time_limit_are_cut_off() -> None:
    class Endless(rl_world.Walk):
        def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            return (*super().step(action)[:2], False, False, {})

    assert Environment.of(Endless).longest(Endless()) == 10_000
    limited = Environment.of(lambda: gymnasium.wrappers.TimeLimit(Endless(), 30), wrappers=["RecordEpisodeStatistics"])
    assert limited.longest(limited()) == math.inf
    for env, limit, length in ((Endless, 7, 7), ("CartPole-v1", 8, 8), (limited, None, 30)):
        made = env if isinstance(env, Environment) else Environment.of(env, max_steps=limit)
        steps, _ = play(made, policy_for(made).initial(0), range(3), 1)
        assert steps is not None and steps.lengths.max() == length and (steps.final[steps.lengths == length] >= 0).all()


class Vector:
    num_envs = single_action_space = 1


class Several:
    """As in PettingZoo: an interface of its own, with names of Gymnasium's."""

    possible_agents = ("left", "right")
    reset = step = observation_space = action_space = lambda *_: None


class Ancient:
    """As of a package that registers for `gym`."""

    __module__ = "gym.envs.toy"
    observation_space = action_space = None

    def reset(self) -> Any: ...
    def step(self, action: int) -> Any: ...


class Old(rl_world.Walk):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()[0]


class OldGym(Old):
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset()


class FourValues(rl_world.Walk):
    def step(self, action: int) -> Any:
        return super().step(action)[:4]


class Broken(rl_world.Walk):
    def reset(self, **_: Any) -> Any:
        raise OSError("no licence for the simulator")


class Sized(rl_world.Walk):
    def __init__(self, size: int) -> None:
        super().__init__(size)


@pytest.mark.parametrize(
    ("env", "more", "message"),
    [
        ("CartPool-v1", {}, "did you mean 'CartPole-v1'"),
        ("CartPole-v7", {}, r"version `v7`.*did you mean 'CartPole-v1'"),
        ("highway-fast-v0", {}, r"as in module:highway-fast-v0, and one of your own as file.py:make_env"),
        ("my.Zeppelin", {}, "Environment `my.Zeppelin` doesn't exist; name"),
        ("no_such_module:Env-v0", {}, "there is no module 'no_such_module'. Install the package"),
        ("rl_world:Wolk", {}, "rl_world has no 'Wolk'; did you mean 'Walk'"),
        ("no_such_file.py:make_env", {}, "there is no file .*no_such_file.py"),
        ("mine.py", {}, "say which function in it, as in mine.py:make_env"),
        ("CartPole-v1", {"kwargs": {"size": 3}}, r"does not take env_kwargs=\{'size': 3\}"),
        (rl_world.make_walk, {"kwargs": {"size": 3}}, r"does not take env_kwargs=\{'size': 3\}"),
        (Sized, {"kwargs": '{"size": 3}'}, "env_kwargs must be a mapping of names to values"),
        (Sized, {}, r"cannot be made without arguments: .* 'size'\. Give them as env_kwargs \(--env-kwargs\)"),
        ("CartPole-v1", {"wrappers": ["TimeAwareObservatio"]}, "did you mean 'TimeAwareObservation'"),
        (
            "CartPole-v1",
            {"wrappers": ["FrameStackObservation"]},
            r"missing .* 'stack_size'\. Arguments are written as in",
        ),
        ("CartPole-v1", {"wrappers": ["FrameStackObservation?size=4"]}, r"keyword argument 'size'\. Arguments are"),
        ("CartPole-v1", {"wrappers": ["FrameStackObservation?4"]}, r"'4' has no value\. Write arguments as name=value"),
        (rl_world.Walk(), {}, "not an id and not callable: give a function"),
        (Vector, {}, "is a vector of environments: give a single one"),
        (lambda: 3, {}, "which has no reset and no step .* should be a gymnasium.Env"),
        (Several, {}, "PettingZoo and other interfaces for several agents are not supported"),
        (Ancient, {}, "older package `gym` need a converter"),
        ("GymV21Environment-v0", {}, "cannot be made: To use the gym compatibility environments, run `pip install"),
        (Old, {}, r"Episodes are seeded: write reset\(self, \*, seed=None"),
        (OldGym, {}, "must return an observation and a dict"),
        (FourValues, {}, r"step\(\) must return .* as Gymnasium has it, not 4 values"),
        (Broken, {}, "cannot begin an episode: .* OSError: no licence for the simulator"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(env: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Environment.of(env, **more).check()


def test_a_space_that_cannot_be_learnt_is_refused_with_the_environment_and_the_remedy() -> None:
    class Told(rl_world.Walk):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Dict(mission=gymnasium.spaces.Text(9))

    with pytest.raises(ConfigError, match=r"env='.*Told': observations of the kind Text cannot .* Wrap"):
        study_of(RlConfig(), Environment.of(Told))


def test_a_package_that_an_environment_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def make_env() -> Any:
        import a_simulator_nobody_has  # type: ignore[import-not-found]  # noqa: F401

    with pytest.raises(ConfigError, match=r"needs the module 'a_simulator_nobody_has'.* pip install"):
        Environment.of(make_env).check()


def test_the_code_of_an_environment_is_part_of_a_runs_identity() -> None:
    def one() -> Any:
        return rl_world.Walk(10)

    def other() -> Any:
        return rl_world.Walk(11)

    def text(env: Any, **more: Any) -> str:
        return fingerprint(Environment.of(env, **more)).text.partition("@")[2]

    other.__qualname__ = one.__qualname__
    assert text(one) == text(one) != text(other)
    assert text(rl_world.Walk) != text(rl_world.Walk, kwargs={"length": 3})
    assert text("CartPole-v1") == text("CartPole-v1") != text("CartPole-v1", wrappers=["TimeAwareObservation"])


def test_an_id_that_only_this_process_registered_is_made_in_others_too() -> None:
    gymnasium.register("OnlyHere-v0", lambda: rl_world.Walk(5), max_episode_steps=3)
    travelled = loads(dumps(Environment.of("OnlyHere-v0")))
    del gymnasium.registry["OnlyHere-v0"]
    assert travelled.check().unwrapped.length == 5
