"""Training further: an agent's weights begin a new run, which is another study with another agent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rl_world
import torch
from gymnasium.spaces import Box, Dict

from fanfold.errors import ConfigError, FanfoldError
from fanfold.rl import Agent, train
from fanfold.rl.policy import COUNT, MEAN, SHARE
from fanfold.rl.training import Trained

SMALL: dict[str, Any] = {"total_episodes": 80, "episodes_per_update": 40, "block": 10, "fresh_episodes": 8}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def first(agents: Path) -> Trained:
    return train("rl_world:Once", results=str(agents), run="first", **SMALL)


def test_an_agent_is_trained_further_with_all_that_it_remembers(first: Trained, agents: Path) -> None:
    more = train("rl_world:Once", start=first, **SMALL)
    begun = Agent.load(more.run, version=0, env="rl_world:Once").weights
    assert all(np.array_equal(begun[name], array) for name, array in first.agent.weights.items())
    assert begun[MEAN].any() and more.agent.weights[COUNT] > begun[COUNT] > 0
    assert more.curve[0][1] > first.curve[0][1], "it begins where the other ended"
    ways: list[Any] = [first.agent, first.run, agents / "first", str(agents / "first" / "agent.json")]
    for start in ways:
        assert train("rl_world:Once", start=start, **SMALL).run.trace == more.run.trace


@pytest.mark.slow
def test_training_further_is_the_same_on_every_executor(first: Trained) -> None:
    traces = [
        train("rl_world:Once", start=first, executor=executor, **SMALL).run.trace
        for executor in ("inline", "processes:2")
    ]
    assert traces[0] == traces[1]


def test_a_run_that_began_with_another_agent_is_not_resumed(first: Trained, tmp_path: Path) -> None:
    settings = {**SMALL, "ledger": tmp_path / "runs.db", "run": "further"}
    more = train("rl_world:Once", start=first, **settings)
    assert train("rl_world:Once", start=first, **settings).run.trace == more.run.trace
    for other in (more, None):
        with pytest.raises(FanfoldError, match="start"):
            train("rl_world:Once", start=other, **settings)


class Pictured(rl_world.Once):
    """The same with a picture beside."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Dict(seen=self.observation_space, picture=Box(0, 255, (16, 16), np.uint8))

    def reset(self, **more: Any) -> Any:
        seen, info = super().reset(**more)
        return {"seen": seen, "picture": np.zeros((16, 16), np.uint8)}, info

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        return {"seen": seen, "picture": np.zeros((16, 16), np.uint8)}, *rest


def test_an_agent_of_a_version_that_did_not_balance_pictures_learns_on_as_it_did() -> None:
    begun = train(Pictured, **SMALL).agent
    assert SHARE in begun.weights
    older = dataclasses.replace(begun, weights={name: each for name, each in begun.weights.items() if name != SHARE})
    assert SHARE not in train(Pictured, start=older, **SMALL).agent.weights


class Wide(torch.nn.Module):
    def __init__(self, spaces: Any) -> None:
        super().__init__()
        self.act, self.value = torch.nn.Linear(spaces.width, spaces.outputs), torch.nn.Linear(spaces.width, 1)

    def forward(self, observations: Any) -> Any:
        return self.act(observations), self.value(observations)


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("CartPole-v1", {}, r"rl_world:Once with the observation_space Box\(-20.*'CartPole-v1' has Box\(\[-4.8"),
        ("rl_world:Once", {"ppo": {"hidden": 8}}, r"\(64,\) in the agent, and \(8,\) here: set ppo.hidden=64"),
        ("rl_world:Once", {"policy": Wide}, "another network.*not there here: leave out the network"),
        ("rl_world:Once", {"start": "nowhere"}, "there is no agent.json in nowhere"),
    ],
)
def test_an_agent_that_does_not_fit_is_refused(env: str, settings: Any, message: str, first: Trained) -> None:
    with pytest.raises(ConfigError, match=message):
        train(env, **{"start": first, **SMALL, **settings})


def test_a_network_of_ones_own_is_trained_further_and_named_where_it_is_not_given(first: Trained) -> None:
    own = train("rl_world:Once", policy=Wide, **SMALL)
    more = train("rl_world:Once", policy=Wide, start=own, **SMALL)
    begun = Agent.load(more.run, version=0, env="rl_world:Once", policy=Wide).weights
    assert all(np.array_equal(begun[name], array) for name, array in own.agent.weights.items())
    with pytest.raises(ConfigError, match=r"give its network, .*Wide"):
        train("rl_world:Once", start=own, **SMALL)
