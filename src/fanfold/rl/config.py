"""The fields of a training: which environment is learnt, by which policy, how long, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from fanfold.config import Settings, option
from fanfold.errors import ConfigError
from fanfold.rl.learner import LearningPlan, StepPlan
from fanfold.rl.making import Environment
from fanfold.rl.policy import Policy
from fanfold.rl.ppo import Ppo
from fanfold.types import Blob


@dataclass(frozen=True)
class StepPpo(Ppo):
    """How a policy learns from portions of steps; on most environments these defaults need no change."""

    learning_rate: float = option(0.0005, "step size of the policy, falling to a twentieth towards the end", above=0)
    value_learning_rate: float = option(0.001, "step size of the value network, falling alike", above=0)
    passes: int | None = option(10, "passes over the steps of an update", least=1)
    minibatch: int = option(64, "the most steps that one gradient step looks at", least=1)
    correction: Literal["ratio", "vtrace"] = option(
        "vtrace", "vtrace: stale steps count by truncated importance weights; ratio: only the loss is clipped"
    )


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
        "wrappers of the environment, the innermost first: a name in gymnasium.wrappers, module:name or file.py:name, "
        "with arguments as in FrameStackObservation?stack_size=4",
    )
    max_episode_steps: int | None = option(
        None, "steps after which an episode is cut off; none: the environment's own limit, or 10,000", least=1
    )
    network: str | None = option(
        None,
        "a torch.nn.Module that learns, as module:name or file.py:name; none: ours, for images convolutions (PyTorch)",
    )
    start: str | None = option(
        None, "an agent to train further: its folder, or the name of a run in the folder of results; none: begin afresh"
    )
    device: str = option("cpu", "where a network of PyTorch learns: cpu, cuda, cuda:1; it plays on the CPU")
    total_steps: int | None = option(None, "steps learnt from in all; none: 100,000, or total_episodes", least=1)
    total_episodes: int | None = option(None, "episodes learnt from in all, instead of total_steps", least=1)
    steps_per_update: int | None = option(
        None, "steps from which the policy learns at once; none: eight episodes, from 1,024 to 2,048 steps", least=1
    )
    episodes_per_update: int | None = option(None, "episodes learnt from at once, instead of steps_per_update", least=1)
    block: int = option(64, "the most episodes that a worker plays at a time", least=1)
    n_workers: int = option(1, "blocks of episodes played at once, in processes of their own", least=1)
    in_flight: int | None = option(None, "blocks under way; none: 1, or twice n_workers if those are more", least=1)
    synchronous: bool = option(False, "wait for every update before playing on (for comparison)")
    in_order: bool = option(
        True, "learn from blocks in their order, alike on every executor; false: as they end, where some take very long"
    )
    timeout: float | None = option(
        None, "seconds a block may take before its worker is killed and the block is played again", above=0
    )
    max_failed_share: float = option(
        0.8, "the run stops when more than this share of its latest 1,000 episodes failed", least=0, most=1
    )
    fresh_episodes: int | None = option(
        None,
        "episodes that the final policy is scored on; none: as many as the training's steps make, 64 to 256",
        least=1,
    )
    results: str | None = option("results/rl", "folder for agents and logs; none: none")
    ppo: StepPpo = field(default_factory=StepPpo)
    seed: int = option(0, "of episodes, weights and everything else")

    def __post_init__(self) -> None:
        super().__post_init__()
        for steps, episodes in (("total_steps", "total_episodes"), ("steps_per_update", "episodes_per_update")):
            if getattr(self, steps) is not None and getattr(self, episodes) is not None:
                raise ConfigError(f"{steps} and {episodes} say the same in two ways: leave one of them out")
        if self.episodes_per_update is not None and self.total_episodes is None:
            raise ConfigError(
                "episodes_per_update needs total_episodes: how long is learnt is then counted in episodes"
            )

    def plan(self, policy: Policy, start: Blob | None = None) -> LearningPlan:
        """How long and in which portions the policy learns, and from which weights."""
        steps, total, per_update = None, self.total_episodes or 0, self.episodes_per_update
        if per_update is None:
            in_all = None if self.total_episodes is not None else self.total_steps or 100_000
            steps, per_update = StepPlan(in_all, self.steps_per_update), self.block
        return LearningPlan(
            policy,
            total,
            per_update,
            self.block,
            self.window,
            self.ppo,
            synchronous=self.synchronous,
            held_out=None if self.fresh_episodes is None else -(-self.fresh_episodes // 4),
            max_failed=self.max_failed_share,
            steps=steps,
            start=start,
        )

    @property
    def environment(self) -> Environment:
        return Environment.of(self.env, self.env_kwargs, self.wrappers, self.max_episode_steps)

    @property
    def window(self) -> int:
        if self.in_flight is not None:
            return self.in_flight
        return 1 if self.n_workers == 1 else 2 * self.n_workers  # more than are played, as blocks are told in order

    @property
    def executor(self) -> str:
        """Where blocks are played."""
        return executor_of(self.n_workers, self.timeout)


def executor_of(workers: int, timeout: float | None) -> str:
    """In this process, unless there are several workers or one that may have to be killed."""
    return "inline" if workers == 1 and timeout is None else f"processes:{workers}"
