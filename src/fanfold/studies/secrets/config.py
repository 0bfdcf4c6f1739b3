"""The fields of the study: which agents play which game, how often, and where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fanfold.addresses import check_address
from fanfold.capabilities import Effort
from fanfold.config import Settings, option
from fanfold.errors import ConfigError, nearest
from fanfold.models.providers import batching
from fanfold.studies.secrets.game import CONTEXT, STYLES, Memory, Mode, Scoring
from fanfold.studies.secrets.model_names import resolved

DEFAULT_MODEL = "local/smollm2"


def services() -> list[str]:
    """How conversations can travel: in realtime, or in the batches of a provider, named by its prefix."""
    return ["default", *batching(), *(f"{name}-conversation" for name in batching()), "auto"]


@dataclass(frozen=True)
class SecretsConfig(Settings):
    """Who plays, by which rules, how many conversations, and how they travel."""

    agent_type: str | None = option(None, "a name of the documents, for all agents")
    models: tuple[str, ...] = option((), "a model (provider/name) per agent, else local/smollm2")
    pairings: Literal["one", "all"] = option(
        "one", "all: every ordered pair of models (and styles), self-play included"
    )
    game_mode: Mode = option("standard", "how points are given")
    num_interactions: int = option(100, "games per pairing", least=1)
    messages_per_interaction: int = option(5, "messages each agent sends in a conversation", least=1)
    batch_service: str = option("default", "realtime, or a provider's batches at half price; auto: the models' own")
    batch_size: int | None = option(None, "the most requests in a provider batch; none: its own", least=1)
    max_concurrent: int = option(10, "calls in flight at once in realtime", least=1)
    agents: int = option(2, "agents in a game", least=2)
    rounds: int = option(1, "rounds of a game; in each, agents are paired at random", least=1)
    style: tuple[str, ...] = option(("regular",), "how agents play, by agent; see styles")
    styles: Mapping[str, str] = field(default_factory=dict, metadata={"help": "further styles: name = instructions"})
    memory: Memory = option("long", "long: agents remember earlier rounds")
    context: tuple[str, ...] = option(CONTEXT, "what agents are shown")
    early_end: bool = option(True, "an agent may end the conversation")
    temperature: float | None = option(0.7, "of all agents; none: the provider's own", least=0, most=2)
    max_tokens: int | None = option(256, "the longest message", least=1)
    reasoning_effort: Effort | None = option(None, "how much the agents and the judge reason, if they do")
    cut_off: Literal["apart", "count"] = option("apart", "whether games with a message cut off at max_tokens count")
    judge: str | None = option(None, "a model that is asked about every secret as well")
    label: Literal["rules", "either"] = option("rules", "either: what only the judge sees counts as revealed, too")
    secrets: tuple[str, ...] = option((), "the agents' secrets in every game; else drawn")
    names: tuple[str, ...] = option((), "the agents' names in every game; else drawn")
    targeted: str | None = option(None, "the targeted secret; else drawn for every scenario")
    aliases: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, metadata={"help": "other words for a secret, which count as it: secret = [words]"}
    )
    leak_words: str | None = option(None, "a file of translations (word: other, other), which count as the word")
    scoring: Scoring = field(default_factory=Scoring)
    base_url: str | None = option(None, "an OpenAI-compatible server that serves the models")
    results: str | None = option("results/batch_jobs", "folder of the jobs' results; none: none")
    seed: int = option(0, "of secrets, names, pairs and conversations")

    def __post_init__(self) -> None:
        if self.batch_service not in services():
            raise ConfigError(
                f"there is no batch_service {self.batch_service!r}{nearest(self.batch_service, services())}"
            )
        super().__post_init__()
        check_address(self.base_url or "")
        if self.agent_type is not None and self.models:
            raise ConfigError("agent_type and models both say who plays: give one of them")
        if self.pairings == "all" and self.agents != 2:
            raise ConfigError("pairings='all' is for two agents: leave agents at 2")
        if self.label == "either" and self.judge is None:
            raise ConfigError("label='either' needs a judge: name a model")
        for style in self.style:
            if style not in self.manners:
                raise ConfigError(f"there is no style {style!r}{nearest(style, self.manners)}")
        players = len(self.players)
        if self.pairings == "one" and max(players, len(self.style)) > self.agents:
            raise ConfigError(
                f"{max(players, len(self.style))} models or styles for {self.agents} agents: give pairings='all', "
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
    def together(self) -> int:
        """The most calls that one game has in flight: one for each conversation of a round."""
        return self.agents // 2

    @property
    def manners(self) -> dict[str, str]:
        return {**STYLES, **self.styles}
