"""Agents: what was trained is loaded, acts, plays, is drawn, and is exported to what computes the same."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rl_world
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from fanfold.errors import ConfigError
from fanfold.rl import Agent, train
from fanfold.rl.agent import card_of
from fanfold.rl.config import RlConfig
from fanfold.rl.environments import policy_for, spaces_of
from fanfold.rl.exports import export, to_torchscript
from fanfold.rl.making import Environment, name_of
from fanfold.rl.space_json import space_from_json, space_to_json
from fanfold.rl.torch_policy import convolutions
from fanfold.rl.training import chosen_policy
from fanfold.studies.rl.commands import _picture

SPACES: list[Any] = [
    Box(-1, 1, (3,), np.float32),
    Box(np.array([-1, -np.inf], np.float32), np.array([np.inf, 2], np.float32)),
    Box(0, 255, (4, 4, 3), np.uint8),
    Discrete(5, start=2),
    MultiDiscrete([3, 4]),
    MultiBinary(4),
    Dict(a=Discrete(2), b=Tuple((Box(0, 1, (2,), np.float32), MultiBinary((2, 2))))),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_survives_its_file(space: Any) -> None:
    assert space_from_json(space_to_json(space)) == space


def test_the_parts_of_a_space_keep_their_order_where_names_are_sorted() -> None:
    space = Dict([("b", Discrete(2)), ("a", Box(0, 1, (3,), np.float32))])
    record = json.loads(json.dumps(space_to_json(space), sort_keys=True))
    assert list(space_from_json(record).spaces) == ["b", "a"]
    earlier = {"kind": "Dict", "parts": {"a": {"kind": "Discrete", "n": 2, "start": 0}}}
    assert space_from_json(earlier) == Dict(a=Discrete(2))


class Dial(Box):
    """A space of somebody's own, which is a box in all but its name."""


def test_a_space_of_ones_own_kind_survives_its_file() -> None:
    assert space_from_json(space_to_json(Dial(-1, 1, (2,), np.float32))) == Box(-1, 1, (2,), np.float32)


class Spaces(rl_world.Walk):
    """Five steps of whatever spaces are given."""

    def __init__(self, observed: Any, acted: Any) -> None:
        super().__init__(5)
        self.observation_space, self.action_space = observed, acted

    def _seen(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.age += 1
        return self._seen(), 1.0, self.age == 5, False, {}


def untrained(observed: Any, acted: Any) -> Agent:
    env = Environment.of(lambda: Spaces(observed, acted))
    policy = policy_for(env, 8)
    weights = {name: np.array(array) for name, array in policy.initial(1).items()}
    if "observation.mean" in weights:
        weights["observation.mean"] += 0.3
        weights["observation.deviation"] *= 0.2
    return Agent(policy, weights, {**card_of(env), "greedy": True})


ACTED = [Discrete(3), Discrete(3, start=4), MultiDiscrete([2, 3]), MultiBinary(3), Box(-2, 2, (2,), np.float32)]


@pytest.mark.parametrize("acted", ACTED, ids=str)
def test_an_agent_that_was_saved_acts_as_before(acted: Any, tmp_path: Path) -> None:
    observed = Dict(a=Discrete(2), b=Box(0, 1, (2,), np.float32))
    agent = untrained(observed, acted)
    agent.save(tmp_path)
    loaded = Agent.load(tmp_path)
    for seed in range(5):
        observed.seed(seed)
        seen = observed.sample()
        action = loaded.act(seen)
        assert acted.contains(action)
        assert np.array_equal(action, agent.act(seen))
        assert acted.contains(loaded.act(seen, greedy=False))
    (episode,) = loaded.play(lambda: Spaces(observed, acted), 1)
    assert episode.length == 5 and episode.total == 5.0 and episode.failed is None


BESIDE = Dict(picture=Box(0, 1, (4, 5), np.float32), place=Box(-1, 1, (2,), np.float32))


@pytest.mark.parametrize("acted", [Discrete(3), Box(-2, 2, (2,), np.float32)], ids=str)
@pytest.mark.parametrize("observed", [Box(-1, 1, (3,), np.float32), BESIDE], ids=["rows", "a picture beside"])
@pytest.mark.slow
def test_exports_compute_what_the_policy_does(observed: Any, acted: Any, tmp_path: Path) -> None:
    onnxruntime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    agent = untrained(observed, acted)
    onnx, script = export(agent, tmp_path)
    rows = np.random.default_rng(0).normal(size=(6, agent.policy.width)).astype(np.float32)
    wanted = agent.policy.outputs(agent.weights, rows)
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(["outputs"], {"observations": rows})[0], wanted, atol=1e-5)
    assert np.allclose(torch.jit.load(script)(torch.from_numpy(rows)).numpy(), wanted, atol=1e-5)
    with pytest.raises(ConfigError, match="no format 'tflite'; known: onnx, torchscript"):
        export(agent, tmp_path, ("tflite",))


@pytest.mark.parametrize(
    ("observed", "acted", "make"),
    [
        (Box(-1, 1, (3,), np.float32), Discrete(3), rl_world.network),
        (Box(-1, 1, (3,), np.float32), Box(-2, 2, (2,), np.float32), rl_world.network),
        (BESIDE, Discrete(3), rl_world.network),
        (Box(0, 255, (20, 16, 3), np.uint8), Discrete(3), convolutions),
        (Box(0, 1, (2, 16, 20), np.float32), Discrete(3), convolutions),
    ],
    ids=["rows", "continuous", "a picture beside", "pictures", "channels first"],
)
@pytest.mark.slow
def test_networks_of_pytorch_are_saved_loaded_and_exported(
    observed: Any, acted: Any, make: Any, tmp_path: Path
) -> None:
    onnxruntime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    env = Environment.of(lambda: Spaces(observed, acted))
    policy = chosen_policy(RlConfig(), env, make)
    weights = {name: np.array(array) for name, array in policy.initial(1).items()}
    if "observation.mean" in weights:
        weights["observation.mean"] += 0.3
    Agent(policy, weights, {**card_of(env), "greedy": True, "network": name_of(make)}).save(tmp_path)
    agent = Agent.load(tmp_path)
    observed.seed(3)
    seen = [observed.sample() for _ in range(5)]
    rows = np.stack([spaces_of(env)[0](each) for each in seen])
    wanted = policy.outputs(weights, rows)
    assert np.array_equal(agent.policy.outputs(agent.weights, rows), wanted)
    assert all(acted.contains(agent.act(each)) for each in seen)
    onnx, script = export(agent, tmp_path)
    rows = rows.astype(np.float32)
    assert np.allclose(torch.jit.load(script)(torch.from_numpy(rows)).detach().numpy(), wanted, atol=1e-5)
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(["outputs"], {"observations": rows})[0], wanted, atol=1e-4)


def test_a_network_of_a_run_plays_in_another_environment(tmp_path: Path) -> None:
    train(
        "rl_world:Walk",
        policy="rl_world:network",
        wrappers=None,
        total_steps=60,
        fresh_episodes=2,
        ledger=tmp_path / "l",
        run="one",
    )
    agent = Agent.load("one", ledger=tmp_path / "l", env=lambda: rl_world.Walk(6))
    assert [episode.length for episode in agent.play(lambda: rl_world.Walk(6), 2)] == [6, 6]


def test_a_run_whose_agent_does_not_fit_an_environment_says_so(tmp_path: Path) -> None:
    train("rl_world:Walk", total_steps=60, fresh_episodes=2, ledger=tmp_path / "l", run="one")
    agent = Agent.load("one", ledger=tmp_path / "l", env="CartPole-v1")
    with pytest.raises(ConfigError, match=r"but the agent was trained on Box\(-20.0, 20.0, \(2,\), float32\)"):
        next(agent.play())


def test_an_agent_whose_environment_is_elsewhere_says_how_to_name_it() -> None:
    agent = walker()
    moved = {**agent.card, "env": {**agent.card["env"], "name": "nowhere.py:make_env", "code": []}}
    with pytest.raises(ConfigError, match=r"nowhere.py.*The agent was trained on nowhere.py:make_env: .* or --env"):
        Agent(agent.policy, agent.weights, moved).environment()


def test_a_network_that_only_one_program_knows_is_given_again(tmp_path: Path) -> None:
    env = Environment.of("rl_world:Walk")
    policy = chosen_policy(RlConfig(), env, lambda spaces: rl_world.network(spaces))
    card = {**card_of(env), "network": name_of(policy.make)}  # type: ignore[attr-defined]
    Agent(policy, policy.initial(1), card).save(tmp_path)
    with pytest.raises(ConfigError, match=r"<lambda>, is code of another program: load it with policy="):
        Agent.load(tmp_path)
    assert Agent.load(tmp_path, policy=rl_world.network).act(np.zeros(2, np.float32)) in (0, 1)
    Agent(policy, policy.initial(1), {**card, "network": "nowhere.py:Net"}).save(tmp_path)
    with pytest.raises(ConfigError, match=r"no file .*nowhere.py.* trained with nowhere.py:Net: play it in the folder"):
        Agent.load(tmp_path)


def walker() -> Agent:
    env = Environment.of("rl_world:Walk")
    policy = policy_for(env, 8)
    return Agent(policy, policy.initial(0), card_of(env))


def test_an_agent_knows_its_environment_with_arguments_and_wrappers(tmp_path: Path) -> None:
    env = Environment.of(rl_world.Walk, {"length": 4}, ["RecordEpisodeStatistics"], max_steps=3)
    policy = policy_for(env, 8)
    Agent(policy, policy.initial(0), card_of(env)).save(tmp_path)
    made = Agent.load(tmp_path).environment()
    assert made().unwrapped.length == 4 and type(made()).__name__ == "RecordEpisodeStatistics"
    assert next(Agent.load(tmp_path).play(episodes=1)).length == 3
    env = Environment.of(lambda: rl_world.Walk())
    with pytest.raises(ConfigError, match=r"<lambda> belongs to the program that trained the agent: say env="):
        Agent(policy, policy.initial(0), card_of(env)).environment()


class Priced(rl_world.Walk):
    """Takes what no file of JSON holds."""

    def __init__(self, prices: Any = None, fee: Any = 0.1, size: Any = (2, 3)) -> None:
        super().__init__(4)
        self.prices, self.fee, self.size = prices, fee, size


def test_arguments_that_no_file_holds_do_not_cost_the_training(tmp_path: Path) -> None:
    arguments = {"prices": np.arange(5.0), "fee": np.float64(0.25), "size": (4, 5)}
    how: dict[str, Any] = {"total_steps": 60, "fresh_episodes": 4, "results": tmp_path, "run": "priced"}
    agent = train(Priced, env_kwargs=arguments, **how).agent
    assert Agent.load(tmp_path / "priced").card["env"]["kwargs"] == {"fee": 0.25, "size": [4, 5]}
    with pytest.raises(ConfigError, match=r"env_kwargs\['prices'\] belongs to the program that trained the agent"):
        next(agent.play())
    assert next(agent.play(lambda: Priced(**arguments))).length == 4


def test_an_environment_that_the_agent_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    closed: list[Any] = []
    agent = walker()

    def make_env() -> rl_world.Walk:
        made.append(rl_world.Walk())
        return made[-1]

    monkeypatch.setattr(rl_world.Walk, "close", lambda env: closed.append(env))
    stacked = Environment.of(make_env, wrappers=["FrameStackObservation?stack_size=3"])
    with pytest.raises(ConfigError, match=r"but the agent was trained on Box.*: give the same arguments and wrappers"):
        next(agent.play(stacked))
    assert len(made) == 1 and made[0] in closed


def test_a_part_of_an_observation_that_is_called_like_a_mask_masks_no_continuous_action() -> None:
    observed = Dict(action_mask=MultiBinary(5), gauge=Box(-1, 1, (2,)))
    agent = untrained(observed, Box(-1, 1, (1,)))
    assert agent.act(observed.sample()) in Box(-1, 1, (1,))


def test_an_agent_of_a_run_is_shown_in_short_and_names_no_network_that_it_has_not(tmp_path: Path) -> None:
    agent = train("rl_world:Walk", total_steps=60, fresh_episodes=2, ledger=tmp_path / "l", run="one").agent
    assert "network" not in agent.card
    assert len(repr(agent)) < 1000


def test_episodes_are_cut_off_as_in_the_training_also_in_an_environment_that_is_given(tmp_path: Path) -> None:
    where: dict[str, Any] = {"results": tmp_path, "ledger": tmp_path / "runs.db", "run": "short"}
    trained = train(rl_world.Walk, max_episode_steps=3, total_steps=300, fresh_episodes=4, **where)
    unlike = Agent.load("short", ledger=tmp_path / "runs.db", env=rl_world.make_walk)
    own = Environment.of(rl_world.Walk, max_steps=5)
    for agent in (trained.agent, unlike, Agent.load(tmp_path / "short")):
        assert [episode.length for episode in agent.play(lambda: rl_world.Walk(7), 2)] == [3, 3]
        assert [episode.length for episode in agent.play(own, 1)] == [5], "it says so itself"
    assert [episode.length for episode in unlike.play(episodes=1)] == [3]


def test_an_episode_is_played_again_by_its_seed() -> None:
    agent = walker()
    one, two, other = (next(agent.play(seed=seed, greedy=False)) for seed in (7, 7, 8))
    assert one.actions == two.actions and one.seed == 7
    assert [each.seed for each in agent.play(episodes=3, seed=7)][1:] != [7, 7]
    assert other.actions != one.actions


def test_an_episode_that_fails_while_playing_is_shown_with_its_traceback() -> None:
    agent = walker()
    (episode,) = agent.play(lambda: rl_world.Raises(1.0), 1)
    assert episode.failed is not None and episode.failed.step == 3
    assert "ZeroDivisionError: the simulator broke down" in episode.traceback


@pytest.mark.parametrize(
    ("observed", "step", "message"),
    [
        (False, 3, "the reward nan is not a finite number"),
        (True, 4, "an observation is not a finite number of 32 bits (up to 3.4e38)"),
    ],
)
def test_what_is_not_a_number_fails_while_playing_as_it_does_in_training(
    observed: bool, step: int, message: str
) -> None:
    (episode,) = walker().play(lambda: rl_world.NotANumber(1.0, observed), 1)
    assert episode.failed is not None and (episode.failed.step, episode.failed.message) == (step, message)


def test_a_reward_in_an_array_is_played() -> None:
    class Wrapped(rl_world.Walk):
        def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            seen, reward, *rest = super().step(action)
            return seen, np.array([reward]), *rest  # type: ignore[return-value]

    (wrapped,), (plain,) = (list(walker().play(env, 1)) for env in (Wrapped, rl_world.Walk))
    assert wrapped.failed is None and wrapped.rewards == plain.rewards


@pytest.mark.parametrize("observation", [np.zeros(3), np.zeros((2, 2)), None, 0.0])
def test_an_observation_of_another_size_is_refused(observation: Any) -> None:
    with pytest.raises(ConfigError, match=r"trained on observations of 2 numbers, and this one has \d: give one"):
        walker().act(observation)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ((np.zeros(2, np.float32), {}), r"env.reset\(\) returns a tuple of an observation and a dict"),
        ("nothing", r"the agent cannot take this observation \(ValueError: could not convert .* give one as Box"),
        ([np.nan, 0.0], "not a finite number"),
    ],
)
def test_what_is_no_observation_gets_no_action(observation: Any, message: str) -> None:
    with pytest.raises((ConfigError, FloatingPointError), match=message):
        walker().act(observation)


def test_an_episode_becomes_a_picture_that_moves(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    episode = next(walker().play(episodes=1, render_mode="rgb_array"))
    path = _picture(episode, tmp_path / "new")
    with image.open(path) as picture:
        assert picture.n_frames > 5 and picture.size == (48, 16)


def test_a_network_with_lazy_layers_is_exported() -> None:
    torch = pytest.importorskip("torch")

    class Lazy(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, spaces: Any) -> None:
            super().__init__()
            self.act, self.value = torch.nn.LazyLinear(spaces.outputs), torch.nn.LazyLinear(1)

        def forward(self, observations: Any) -> Any:
            return self.act(observations), self.value(observations)

    env = Environment.of(lambda: Spaces(Box(-1, 1, (3,), np.float32), Discrete(3)))
    policy = chosen_policy(RlConfig(), env, Lazy)
    agent = Agent(policy, policy.initial(1), {**card_of(env), "greedy": True})
    script = torch.jit.load(io.BytesIO(to_torchscript(agent)))
    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    assert np.allclose(script(torch.from_numpy(rows)).numpy(), policy.outputs(agent.weights, rows), atol=1e-5)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "file").touch()
    episode = next(walker().play(episodes=1, render_mode="rgb_array"))
    with pytest.raises(ConfigError, match=r"file/new' cannot be written: .*; name another folder"):
        _picture(episode, tmp_path / "file" / "new")
    with pytest.raises(ConfigError, match=r"file/new' cannot be written: .*; name another folder"):
        export(walker(), tmp_path / "file" / "new")


def test_what_is_no_agent_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"give a folder with agent.json, or a run's ledger"):
        Agent.load(tmp_path / "nothing")
    agent = walker()
    agent.save(tmp_path)
    with pytest.raises(ConfigError, match="a folder holds one version"):
        Agent.load(tmp_path, version=3)
    (tmp_path / "agent.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Agent.load(tmp_path)


def test_plain_numpy_reads_an_agent(tmp_path: Path) -> None:
    """As the documentation shows it."""
    safetensors = pytest.importorskip("safetensors.numpy")
    agent = walker()
    agent.save(tmp_path)
    net = safetensors.load_file(tmp_path / "agent.safetensors")
    row = np.array([1.0, 0.5], np.float32)
    seen = np.clip((row - net["observation.mean"]) / net["observation.deviation"], -10, 10)
    for layer in range(3):
        seen = seen @ net[f"policy.{layer}.weight"] + net[f"policy.{layer}.bias"]
        seen = np.tanh(seen) if layer < 2 else seen
    assert int(seen.argmax()) == agent.act(row)
