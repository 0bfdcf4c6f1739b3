"""The options of the study: which agents play which game, how often, where, and what is made of it."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fanfold.addresses import check_address
from fanfold.config import option
from fanfold.errors import ConfigError, nearest
from fanfold.stop import MaxTrials
from fanfold.strategies import Sweep
from fanfold.studies.secrets.conclusion import Conclusion
from fanfold.studies.secrets.domain import CONTEXT, STYLES, AgentSpec, Game, Memory, Mode, Scoring
from fanfold.studies.secrets.evaluate import Evaluate, named
from fanfold.studies.secrets.names import remarks, resolved
from fanfold.studies.secrets.scenarios import scenarios
from fanfold.study import Study

DEFAULT_MODEL = "local/smollm2"
#: Stands for the points of a failed game, which has none.
FAILED = -1e300

Service = Literal["default", "openai", "anthropic", "openai-conversation", "anthropic-conversation", "auto"]


@dataclass(frozen=True)
class Config:
    """Who plays, by which rules, how many conversations, and how they travel."""

    agent_type: str | None = option(None, "a documented name such as gpt4o_mini, for all agents")
    models: tuple[str, ...] = option((), "a model (provider/name) per agent, else local/smollm2")
    pairings: Literal["one", "all"] = option(
        "one", "all: every ordered pair of models (and styles), self-play included"
    )
    game_mode: Mode = option("standard", "how points are given")
    num_interactions: int = option(100, "games per pairing")
    messages_per_interaction: int = option(5, "messages each agent sends in a conversation")
    batch_service: Service = option(
        "default", "realtime, or provider batches at half price; auto: by the models' provider"
    )
    batch_size: int | None = option(None, "the most requests in a provider batch; none: its own")
    max_concurrent: int = option(10, "conversations at once in realtime")
    agents: int = option(2, "agents in a game")
    rounds: int = option(1, "rounds of a game; in each, agents are paired at random")
    style: tuple[str, ...] = option(("regular",), "how agents play, by agent; see styles")
    styles: Mapping[str, str] = field(default_factory=dict, metadata={"help": "further styles: name = instructions"})
    memory: Memory = option("long", "long: agents remember earlier rounds")
    context: tuple[str, ...] = option(CONTEXT, "what agents are shown")
    early_end: bool = option(True, "an agent may end the conversation")
    temperature: float | None = option(0.7, "of all agents; none: the provider's own")
    max_tokens: int | None = option(256, "the longest message")
    cut_off: Literal["apart", "count"] = option("apart", "whether games with a message cut off at max_tokens count")
    judge: str | None = option(None, "a model that is asked about every secret as well")
    label: Literal["rules", "either"] = option("rules", "either: what only the judge sees counts as revealed, too")
    secrets: tuple[str, ...] = option((), "the agents' secrets in every game; else drawn")
    names: tuple[str, ...] = option((), "the agents' names in every game; else drawn")
    targeted: str | None = option(None, "the targeted secret; else drawn for every scenario")
    aliases: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, metadata={"help": "other words for a secret, which count as it: secret = [words]"}
    )
    scoring: Scoring = field(default_factory=Scoring)
    base_url: str | None = option(None, "an OpenAI-compatible server that serves the models")
    results: str | None = option("results/batch_jobs", "folder of the jobs' results; none: none")
    seed: int = option(0, "of secrets, names, pairs and conversations")

    def __post_init__(self) -> None:
        check_address(self.base_url or "")
        for name in ("num_interactions", "messages_per_interaction", "max_concurrent", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.agents < 2:
            raise ConfigError(f"agents must be at least 2, not {self.agents!r}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1 or none, not {self.batch_size!r}")
        if self.agent_type is not None and self.models:
            raise ConfigError("agent_type and models both say who plays: give one of them")
        if self.pairings == "all" and self.agents != 2:
            raise ConfigError("pairings='all' is for two agents: leave agents at 2")
        if self.label == "either" and self.judge is None:
            raise ConfigError("label='either' needs a judge: name a model")
        for style in self.style:
            if style not in self.manners:
                raise ConfigError(f"there is no style {style!r}{nearest(style, self.manners)}")
        given = len(self.players)
        if self.pairings == "one" and max(given, len(self.style)) > self.agents:
            raise ConfigError(
                f"{max(given, len(self.style))} models or styles for {self.agents} agents: give pairings='all', "
                "or as many agents"
            )

    @property
    def given(self) -> tuple[str, ...]:
        """The names of models as they were given."""
        return self.models or ((self.agent_type,) if self.agent_type is not None else (DEFAULT_MODEL,))

    @property
    def players(self) -> tuple[str, ...]:
        """The models as provider/name."""
        return tuple(resolved(name, self.base_url is not None) for name in self.given)

    @property
    def manners(self) -> dict[str, str]:
        return {**STYLES, **self.styles}


def games(config: Config) -> tuple[Game, ...]:
    """The rows of the study: one pairing, or every ordered pair."""

    def spec(model: str, style: str) -> AgentSpec:
        return AgentSpec(model, style, config.manners[style], config.memory, config.context)

    players, styles = config.players, config.style or ("regular",)
    if config.pairings == "all":
        each = [spec(model, style) for model in players for style in styles]
        seats = [(first, second) for first in each for second in each]
    else:
        one = [spec(players[i % len(players)], styles[i % len(styles)]) for i in range(config.agents)]
        seats = [tuple(one)]  # type: ignore[list-item]
    return tuple(
        Game(
            agents,
            config.game_mode,
            config.rounds,
            config.messages_per_interaction,
            config.early_end,
            config.scoring,
            config.temperature,
            config.max_tokens,
        )
        for agents in seats
    )


def study(config: Config) -> Study[Game]:
    """The study that a config describes."""
    rows = games(config)
    judge = None if config.judge is None else resolved(config.judge, config.base_url is not None)
    for name in {spec.model for game in rows for spec in game.agents} | ({judge} if judge else set()):
        named(name, config.base_url, rows[0])  # an unknown model or a missing key is an error now, not in every game
    if config.results is not None:
        _check_folder(config.results)
    return Study(
        Sweep(rows),
        Evaluate(config.base_url, judge, config.label == "either", config.results),
        scenarios(
            config.num_interactions,
            config.agents,
            config.seed,
            secrets=config.secrets,
            names=config.names,
            targeted=config.game_mode == "targeted",
            target=config.targeted,
            aliases=config.aliases,
        ),
        stop=MaxTrials(len(rows)),
        seed=config.seed,
        aggregate=mean_of_played,
        failed_score=FAILED,
        name="secrets",
        conclude=Conclusion(len(rows), config.results, config.seed, tuple(remarks(config.given)), config.cut_off),
    )


def mean_of_played(scores: Sequence[float]) -> float:
    """The mean points of the games that did not fail, which are counted apart; not a number where all did."""
    played = [score for score in scores if score != FAILED]
    return statistics.fmean(played) if played else math.nan


def run_options(config: Config) -> dict[str, Any]:
    """Run options that follow from the config: which executor."""
    service = config.batch_service.removesuffix("-conversation")
    if service == "auto":
        remote = any(not name.startswith("local/") for name in config.players)
        service = "auto" if remote and config.base_url is None else "default"
    if service == "default":
        return {"executor": f"async:{config.max_concurrent}"}
    return {"executor": f"batch:{service}" + (f":{config.batch_size}" if config.batch_size else "")}


def _check_folder(folder: str) -> None:
    """That results can be written is known before anything is paid for; here nothing is made yet."""
    path = Path(folder)
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise ConfigError(f"results={folder!r} cannot be made: {path} is no folder that can be written to")
