"""The fields of the study: what is played against whom, how long is learnt, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fanfold.config import Settings, option
from fanfold.errors import ConfigError, nearest
from fanfold.rl import environments
from fanfold.rl.config import RlConfig, StepPpo
from fanfold.rl.making import Environment, named
from fanfold.rl.ppo import Ppo
from fanfold.studies.workflow.cage2.rules import REDS, Cage2Game
from fanfold.studies.workflow.collect import CAGE2, Cage2Collector, environment
from fanfold.studies.workflow.compliance import contested_pairs
from fanfold.studies.workflow.orders import cage2_orders, parse
from fanfold.studies.workflow.own import KeptCollector, OwnProblem
from fanfold.studies.workflow.spaces import Assignments, Orders, Subsets, WorkflowSpace

#: The names that CybORG and the documented system use for red agents.
NAMES = {"B_lineAgent": "b_line", "MeanderAgent": "meander", "RedMeanderAgent": "meander", "SleepAgent": "sleep"}
#: What only CAGE-2 has, and its values where nobody chose one (or None).
OF_CAGE2 = {
    "grain": "units",
    "red_agent": "B_lineAgent",
    "length": 100,
    "green": False,
    "observation": "cyborg",
    "memory": False,
}
#: The attackers of `random`.
RANDOM = ("b_line", "meander")


def _function(text: str, what: str) -> Any:
    """The function that `module:name` or `file.py:name` names."""
    function = named(text, what)
    if not callable(function):
        raise ConfigError(f"{what}={text!r} names no function: write module:function, or file.py:function")
    return function


@dataclass(frozen=True)
class SpaceSettings(Settings):
    """What a workflow of an environment of your own can be."""

    kind: Literal["order", "subset", "assignment"] = option(
        "order", "order: every option once; subset: some of them; assignment: one option for each slot"
    )
    options: tuple[str, ...] = option((), "the names of what is put in order, chosen or assigned")
    slots: tuple[str, ...] = option((), "kind=assignment: the names of what options are assigned to")
    least: int = option(0, "kind=subset: the fewest options of a workflow", least=0)
    most: int | None = option(None, "kind=subset: the most options of a workflow; none: all", least=0)
    same: str | None = option(
        None,
        "module:function or file.py:function that maps a workflow to the one that stands for all like it",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        of_subsets = self.least > 0 or self.most is not None
        for kind, given, names in (("subset", of_subsets, "least and most"), ("assignment", self.slots, "slots")):
            if given and self.kind != kind:
                raise ConfigError(f"{names} belong to kind={kind!r}, and kind={self.kind!r} has none")

    @property
    def space(self) -> WorkflowSpace:
        same = None if self.same is None else _function(self.same, "space.same")
        if self.kind == "order":
            return Orders(self.options, same=same)
        if self.kind == "subset":
            return Subsets(self.options, self.least, self.most, same=same)
        return Assignments(self.options, self.slots, same=same)


@dataclass(frozen=True)
class WorkflowConfig(Settings):
    """What is learnt, on which episodes, and how."""

    mode: Literal["search", "halving", "random", "fixed", "ppo"] = option(
        "search",
        "search: train those workflows that could be best (by a surrogate); halving: drawn ones, of which the best "
        "continue; random: drawn ones; fixed: the one given, or the six that have names; ppo: one policy, with or "
        "without a workflow to keep to",
    )
    env: str = option(CAGE2, "cage2, the id of a Gymnasium environment, module:function or file.py:function")
    kept: str | None = option(
        None,
        "module:function or file.py:function that says how well an episode kept to its workflow",
    )
    space: SpaceSettings = field(default_factory=SpaceSettings)
    grain: Literal["units", "roles", "hosts"] = option(
        "units", "what CAGE-2's workflows put in order: 5 types of machines, 8 roles, or all 13 hosts"
    )
    red_agent: str = option(
        "B_lineAgent",
        "the attacker of CAGE-2: B_lineAgent, MeanderAgent or SleepAgent; several, joined by commas: one is drawn for "
        "each episode; random: B_lineAgent,MeanderAgent",
    )
    workflow: str | None = option(None, "what to keep to, as in defender>enterprise>op_server>op_host>user; none: any")
    n_workers: int = option(1, "workflows trained at once; with mode=ppo, blocks of episodes played at once", least=1)
    total_episodes: int = option(100_000, "episodes learnt from in all", least=1)
    max_episodes_per_workflow: int = option(5_000, "the most that one training of a workflow learns from", least=1)
    fixed_episodes_per_workflow: int | None = option(None, "exactly so many instead: no training ends early", least=1)
    pauses: int = option(
        1, "mode=search, halving: how often a training pauses, each time halfway; it continues if chosen again", least=0
    )
    episodes_per_update: int | None = option(
        None, "episodes from which a policy learns at once; none: 100, with mode=ppo and without memory 500", least=1
    )
    growth: float | None = option(
        None, "mode=ppo: how many times as large updates become in the end; none: with memory 4, else 1", least=1
    )
    compliance_threshold: float = option(0.9, "the share of fixes that must keep to the workflow", above=0, below=1)
    patience_updates: int = option(40, "a training that has not improved for so many updates ends", least=1)
    look_updates: int = option(5, "updates from one look at held-out episodes to the next", least=1)
    inherit: Literal["nearest", "none"] = option("nearest", "whose policy a workflow begins with")
    inherit_optimiser: bool = option(False, "whether the optimiser's moments come along")
    finale: float = option(
        0.25, "mode=search: the last share of the episodes, which the best workflow is trained with", least=0, below=1
    )
    exhaustive: bool = option(False, "train every workflow once, whatever total_episodes says; equal ones are one")
    block: int | None = option(
        None, "mode=ppo: the most episodes that a worker plays at a time; none: a quarter of an update's", least=1
    )
    in_flight: int | None = option(
        None,
        "trainings (mode=ppo: blocks) under way; a choice knows all others. none: 2 (4), or n_workers if more",
        least=1,
    )
    synchronous: bool = option(
        False, "wait for all trainings under way before choosing more; mode=ppo: for every update (for comparison)"
    )
    alignment_lambda: float = option(30.0, "what keeping to the workflow is worth in the reward")
    alignment: Literal["each", "rate"] = option(
        "each", "each: a fix that breaks the order costs lambda; rate: lambda times the change of the episode's rate"
    )
    length: int = option(100, "steps of an episode of CAGE-2", least=1)
    green: bool = option(False, "whether CAGE-2's green agent is awake")
    observation: Literal["cyborg", "original"] = option("cyborg", "which table CAGE-2's blue sees")
    memory: bool | None = option(
        None,
        "whether CAGE-2's blue also sees which decoys stand, where it saw red before, and whether it restored "
        "Op_Server0; none: with mode=ppo and no workflow",
    )
    timeout: float | None = option(
        None,
        "seconds a training may take before its worker is killed; mode=ppo: a block, which is then played again",
        above=0,
    )
    fresh_episodes: int | None = option(
        None, "episodes the final policy is scored on; none: 4096 of CAGE-2, 256 of other environments", least=1
    )
    results: str | None = option("results/workflow", "folder for agents and logs; none: none")
    ppo: Ppo = field(default_factory=Ppo)
    seed: int = option(0, "of episodes, weights and everything else")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reds  # noqa: B018 -- an unknown name is an error now
        self._check_mode()
        if self.workflow is not None and self.mode != "fixed":  # `study` reads that one: it may be of another space
            self.workflows.parse(self.workflow)

    @classmethod
    def formerly(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Blue had no memory before there was an option.  What is CAGE-2's did nothing beside other environments."""
        idle = OF_CAGE2 if fields.get("env", CAGE2) != CAGE2 else ()
        return {"memory": False, **{name: value for name, value in fields.items() if name not in idle}}

    def check_other(self) -> None:
        """Refuse what only CAGE-2 has, beside another environment."""
        for name, usual in OF_CAGE2.items():
            if (chosen := getattr(self, name)) not in (usual, None):
                raise ConfigError(f"{name}={chosen!r} is for CAGE-2, and this is another environment: leave it out")

    def _check_mode(self) -> None:
        """Options that would not do what they say in this mode."""
        if self.env != CAGE2:
            self.check_other()
        own = self.kept is not None or bool(self.space.options)
        if self.env == CAGE2 and own:
            raise ConfigError(f"kept and space are for environments of your own: env={CAGE2!r} has its workflows")
        if self.env != CAGE2 and self.mode == "ppo" and (self.workflow is not None or own):
            what = "space" if self.workflow is None else f"workflow={self.workflow!r}"
            raise ConfigError(f"with mode='ppo', {what} is for CAGE-2: use another mode, or leave env at {CAGE2!r}")
        if self.env != CAGE2 and self.mode != "ppo" and not (self.space.options and self.kept):
            raise ConfigError(
                f"env={self.env!r}: give space.options, the names that workflows are made of, and kept, which says how "
                "well an episode kept to one (module:function, file.py:function); or train one policy with mode='ppo'"
            )
        if self.mode == "fixed" and self.workflow is None and (self.env != CAGE2 or self.grain != "units"):
            raise ConfigError("mode='fixed' without a workflow trains those with names, which only grain='units' has")
        if self.workflow is not None and (self.mode in ("search", "halving", "random") or self.exhaustive):
            raise ConfigError(
                f"workflow={self.workflow!r} is one workflow, and this is a choice among all: train it with "
                "mode='fixed' or mode='ppo'"
            )
        if self.exhaustive and self.mode != "ppo" and self.workflows.arms is None:
            raise ConfigError("exhaustive=True: there are too many workflows to train all of them")
        if self.exhaustive and self.mode == "ppo":
            raise ConfigError("exhaustive=True trains every workflow, and mode='ppo' one policy: leave one of them out")
        if self.mode != "ppo" and self.ppo.correction == "vtrace":
            raise ConfigError("ppo.correction='vtrace' corrects stale episodes, which only mode='ppo' has")

    @property
    def per_update(self) -> int:
        if self.episodes_per_update is not None:
            return self.episodes_per_update
        return 500 if self.mode == "ppo" and not self.remembers else 100

    @property
    def per_block(self) -> int:
        return self.block or -(-self.per_update // 4)

    @property
    def per_workflow(self) -> int:
        return self.fixed_episodes_per_workflow or self.max_episodes_per_workflow

    @property
    def rungs(self) -> tuple[int, ...]:
        """The episodes after which a training pauses, and those of a whole one."""
        whole, every = self.per_workflow, self.per_update
        pausing = self.mode in ("search", "halving") and not self.exhaustive and not self.fixed_episodes_per_workflow
        parts = (-(-whole // (2**number * every)) * every for number in range(self.pauses * pausing, 0, -1))
        return (*(part for part in dict.fromkeys(parts) if part < whole), whole)

    @property
    def workflows(self) -> WorkflowSpace:
        """All workflows; those that the red agents of CAGE-2 cannot tell apart are the same."""
        if self.env != CAGE2:
            return self.space.space
        return cage2_orders(self.grain, contested_pairs(self.game.reds, self.grain))

    @property
    def reds(self) -> tuple[str, ...]:
        names = RANDOM if self.red_agent == "random" else self.red_agent.split(",")
        known = tuple(NAMES.get(name.strip(), name.strip()) for name in names)
        for name in known:
            if name not in REDS:
                hint = nearest(name, [*NAMES, *REDS, "random"])
                raise ConfigError(f"red_agent: there is no red agent {name!r}{hint}")
        return known

    @property
    def remembers(self) -> bool:
        """Whether blue has a memory."""
        if self.memory is None:
            return self.env == CAGE2 and self.mode == "ppo" and self.workflow is None
        return self.memory

    @property
    def scored_on(self) -> int:
        if self.fresh_episodes is not None:
            return self.fresh_episodes
        return 4096 if self.env == CAGE2 else 256

    @property
    def window(self) -> int:
        return max(4 if self.mode == "ppo" else 2, self.n_workers) if self.in_flight is None else self.in_flight

    @property
    def game(self) -> Cage2Game:
        return Cage2Game(self.reds, self.length, self.green, self.observation, memory=self.remembers)

    @property
    def as_rl(self) -> RlConfig:
        """The same for another environment than CAGE-2, where `fanfold run rl` does the work."""
        own: dict[str, Any] = {}
        if self.episodes_per_update is not None:
            own = {"episodes_per_update": self.per_update, "block": self.per_block}
        usual = Ppo()
        changed = {name: value for name, value in vars(self.ppo).items() if value != getattr(usual, name)}
        return RlConfig(
            environment(self.env),
            total_episodes=self.total_episodes,
            n_workers=self.n_workers,
            in_flight=self.in_flight,
            synchronous=self.synchronous,
            timeout=self.timeout,
            fresh_episodes=self.scored_on,
            results=self.results,
            ppo=StepPpo(**changed),
            seed=self.seed,
            **own,
        )

    @property
    def cage2(self) -> Cage2Collector:
        """Plays blocks of CAGE-2."""
        order = None if self.workflow is None else parse(self.workflow, self.grain)
        return Cage2Collector(
            CAGE2,
            *self._learning,
            game=self.game,
            workflow=order,
            alignment_lambda=self.alignment_lambda,
            alignment_kind=self.alignment,
        )

    @property
    def own(self) -> OwnProblem | None:
        """The problem of the user that the settings name; None: CAGE-2."""
        if self.env == CAGE2:
            return None
        return OwnProblem(self.space.space, environment(self.env), _function(self.kept or "", "kept"))

    def collector_for(self, own: OwnProblem | None) -> Cage2Collector | KeptCollector:
        """Plays the episodes of workflows."""
        if own is None:
            return self.cage2
        env = Environment.of(own.env)
        policy = environments.policy_for(env, self.ppo.hidden)
        environments.release(env)  # before another is made: of some there can be one at a time
        return KeptCollector(
            env,
            *self._learning,
            policy=policy,
            kept=own.kept,
            space=own.space,
            alignment_lambda=self.alignment_lambda,
            alignment_kind=self.alignment,
        )

    @property
    def _learning(self) -> tuple[float, float, bool]:
        return self.ppo.discount, self.ppo.trace, self.ppo.correction == "vtrace"
