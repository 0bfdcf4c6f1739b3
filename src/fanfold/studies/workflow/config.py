"""The options of the study: what is played against whom, how long is learnt, and where."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from fanfold.config import option
from fanfold.errors import ConfigError, nearest
from fanfold.studies.workflow.cage2.rules import REDS, Game
from fanfold.studies.workflow.collect import CAGE2, Collect, Collector, sizes
from fanfold.studies.workflow.learner import Learner
from fanfold.studies.workflow.ppo import Ppo
from fanfold.studies.workflow.training import Conclusion
from fanfold.studies.workflow.workflows import parse
from fanfold.study import Study

#: The names that CybORG and the documented system use for red agents.
NAMES = {"B_lineAgent": "b_line", "MeanderAgent": "meander", "RedMeanderAgent": "meander", "SleepAgent": "sleep"}


@dataclass(frozen=True)
class Config:
    """What is learnt, on which episodes, and how."""

    mode: Literal["ppo"] = option("ppo", "ppo: one policy, with or without a workflow to keep to")
    env: str = option(CAGE2, "cage2, or the id of any Gymnasium environment with a finite set of actions")
    red_agent: str = option("B_lineAgent", "the attacker of CAGE-2: B_lineAgent, MeanderAgent or SleepAgent")
    workflow: str | None = option(None, "the order to keep to: defender>enterprise>op_server>op_host>user; none: any")
    n_workers: int = option(1, "blocks of episodes played at once")
    total_episodes: int = option(100_000, "episodes played in all")
    episodes_per_update: int = option(500, "episodes from which the policy learns at once")
    block: int = option(125, "the most episodes played without a pause: what a worker does at a time")
    in_flight: int | None = option(None, "blocks under way; it bounds how stale a policy plays. none: 4, or n_workers")
    synchronous: bool = option(False, "wait for every update before playing on (for comparison)")
    alignment_lambda: float = option(30.0, "what keeping to the workflow is worth in the reward")
    length: int = option(100, "steps of an episode of CAGE-2")
    green: bool = option(False, "whether CAGE-2's green agent is awake")
    observation: Literal["cyborg", "original"] = option("cyborg", "which table CAGE-2's blue sees")
    timeout: float | None = option(None, "seconds a block may take before its worker is killed and it is played again")
    fresh_episodes: int | None = option(
        None, "episodes the final policy is scored on; none: 4096 of CAGE-2, 256 of other environments"
    )
    results: str | None = option("results/workflow", "folder for agents and logs; none: none")
    ppo: Ppo = field(default_factory=Ppo)
    seed: int = option(0, "of episodes, weights and everything else")

    def __post_init__(self) -> None:
        least = {"n_workers": 1, "total_episodes": 1, "episodes_per_update": 1, "block": 1, "length": 1}
        least |= {"in_flight": 1, "fresh_episodes": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"{name} must be at least {low}, not {value!r}")
        self.red  # noqa: B018 -- an unknown name is an error now
        if self.workflow is not None:
            parse(self.workflow)
            if self.env != CAGE2:
                raise ConfigError(f"workflow={self.workflow!r} is for CAGE-2: leave env at {CAGE2!r}")

    @property
    def red(self) -> str:
        known = NAMES.get(self.red_agent, self.red_agent)
        if known not in REDS:
            hint = nearest(self.red_agent, [*NAMES, *REDS])
            raise ConfigError(f"red_agent: there is no red agent {self.red_agent!r}{hint}")
        return known

    @property
    def scored_on(self) -> int:
        if self.fresh_episodes is not None:
            return self.fresh_episodes
        return 4096 if self.env == CAGE2 else 256

    @property
    def window(self) -> int:
        return max(4, self.n_workers) if self.in_flight is None else self.in_flight


def study(config: Config) -> Study[Collect]:
    """The study that a config describes."""
    workflow = None if config.workflow is None else parse(config.workflow)
    learner = Learner(
        sizes(config.env, workflow),
        config.total_episodes,
        config.episodes_per_update,
        config.block,
        config.window,
        config.ppo,
        workflow,
        config.synchronous,
        -(-config.scored_on // 4),
    )
    game = Game((config.red,), config.length, config.green, config.observation)
    ppo = config.ppo
    collector = Collector(
        config.env, game, ppo.discount, ppo.trace, ppo.correction == "vtrace", config.alignment_lambda
    )
    return Study(
        learner,
        collector,
        seed=config.seed,
        timeout=config.timeout,
        name="workflow",
        conclude=Conclusion(
            collector,
            dataclasses.asdict(config),
            config.total_episodes,
            config.episodes_per_update,
            config.seed,
            config.results,
            config.scored_on,
            learner.block,
            config.timeout,
        ),
    )


def how(config: Config) -> dict[str, Any]:
    """Run options that follow from the config: where blocks are played."""
    if config.n_workers == 1 and config.timeout is None:
        return {"executor": "inline"}
    return {"executor": f"processes:{config.n_workers}"}
