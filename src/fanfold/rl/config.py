"""The fields of a training: which environment is learnt, by which policy, how long, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fanfold.config import Settings, option
from fanfold.rl.making import Environment
from fanfold.rl.ppo import Ppo


@dataclass(frozen=True)
class RlConfig(Settings):
    """Train a policy by PPO on any Gymnasium environment."""

    env: str = option(
        "CartPole-v1", "the id of a Gymnasium environment, or a function or class: module:name, file.py:name"
    )
    env_kwargs: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "arguments of the environment, as a table or in JSON"}
    )
    wrappers: tuple[str, ...] = option(
        (),
        "wrappers of the environment, the innermost first: a name in gymnasium.wrappers, module:name or file.py:name",
    )
    max_episode_steps: int | None = option(
        None, "steps after which an episode is cut off; none: the environment's own limit, or 10,000", least=1
    )
    total_episodes: int = option(2_000, "episodes learnt from in all", least=1)
    episodes_per_update: int = option(20, "episodes from which the policy learns at once", least=1)
    block: int = option(10, "the most episodes that a worker plays at a time", least=1)
    n_workers: int = option(1, "blocks of episodes played at once, in processes of their own", least=1)
    in_flight: int | None = option(None, "blocks under way; none: 4, or n_workers if more", least=1)
    synchronous: bool = option(False, "wait for every update before playing on (for comparison)")
    timeout: float | None = option(
        None, "seconds a block may take before its worker is killed and the block is played again", above=0
    )
    max_failed_share: float = option(
        0.1, "the run stops when more than this share of its latest 1,000 episodes failed", least=0, most=1
    )
    fresh_episodes: int = option(256, "episodes that the final policy is scored on", least=1)
    results: str | None = option("results/rl", "folder for agents and logs; none: none")
    ppo: Ppo = field(default_factory=Ppo)
    seed: int = option(0, "of episodes, weights and everything else")

    @property
    def environment(self) -> Environment:
        return Environment.of(self.env, self.env_kwargs, self.wrappers, self.max_episode_steps)

    @property
    def window(self) -> int:
        return max(4, self.n_workers) if self.in_flight is None else self.in_flight

    @property
    def executor(self) -> str:
        """Where blocks are played."""
        return "inline" if self.n_workers == 1 and self.timeout is None else f"processes:{self.n_workers}"
