"""The settings of the critic study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fanfold.addresses import check_address
from fanfold.capabilities import Effort
from fanfold.config import Settings, content, option
from fanfold.errors import ConfigError


@dataclass(frozen=True)
class EvolutionaryParams(Settings):
    """How the population of prompts is kept and renewed."""

    population_size: int = option(10, "prompts in the population", least=1)
    elite_size: int = option(2, "best prompts that are never replaced", least=0)
    mutation_rate: float = option(0.3, "how likely each section of a child is changed", least=0, most=1)
    crossover_rate: float = option(0.5, "how likely a child has two parents", least=0, most=1)
    evolution_interval: int = option(5, "answered queries between two generations", least=1)
    min_improvement: float = option(0.01, "the smallest gain of the best fitness that counts as progress", least=0)
    patience: int = option(5, "generations without a better one after which evolution stops", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elite_size > self.population_size:
            raise ConfigError(f"elite_size {self.elite_size} is more than population_size {self.population_size}")


@dataclass(frozen=True)
class StudyEvolution(EvolutionaryParams):
    """The same for a study, where feedback is noisy: five generations without a better one say little."""

    patience: int = option(20, "generations without a better one after which evolution stops", least=1)


@dataclass(frozen=True)
class ActorCriticParams(Settings):
    """How responses are made, chosen and learnt from."""

    num_candidates: int = option(5, "responses to every query, one of which is shown", least=1)
    update_interval: int = option(10, "answered queries between two updates of the actor", least=1)
    exploration: float = option(
        0.1, "how much the actor explores at first; it fades as evidence grows", least=0, most=1
    )


@dataclass(frozen=True)
class RewardWeights(Settings):
    """What the parts of the reward count."""

    lambda_feedback: float = option(1.0, "weight of the feedback")
    lambda_critic: float = option(0.8, "weight of what the critic expects")
    lambda_coherence: float = option(0.3, "weight of coherence")
    lambda_tokens: float = option(-0.001, "weight of every token written")
    lambda_safety: float = option(-1.0, "weight of what is unsafe in a response")


@dataclass(frozen=True)
class OnlineParams(ActorCriticParams):
    """How responses are made, chosen and learnt from online, and on how many threads."""

    parallel_eval: bool = option(False, "whether candidates are generated and scored several at a time")
    max_workers: int | None = option(None, "threads; none: min(number of candidates, 4)", least=1)


@dataclass(frozen=True)
class OnlineConfig(Settings):
    """The settings of a training that answers queries one after the other."""

    evolutionary: EvolutionaryParams = field(default_factory=EvolutionaryParams)
    actor_critic: OnlineParams = field(default_factory=OnlineParams)
    reward: RewardWeights = field(default_factory=RewardWeights)
    bootstrap_queries: int = option(20, "first queries, with a blind choice, to seed the critic", least=0)
    max_queries_per_phase: int | None = option(None, "queries of each phase at most; none: all", least=1)


@dataclass(frozen=True)
class CriticConfig(Settings):
    """What is asked, who answers, who judges, and how it is learnt from."""

    model: str = option("local/smollm2", "the model that answers, as provider/name")
    base_url: str | None = option(None, "an OpenAI-compatible server that serves it")
    queries: str | None = option(
        None, "a file of queries: lines of text, or a table with a column `query`; none: our own"
    )
    total: int = option(60, "queries answered in all; a shorter list is repeated", least=1)
    feedback: str = option("rules", "who judges: rules, human, page, judge:MODEL, simulated, or module:function")
    ask: Literal["score", "rating", "thumbs", "pair"] = option(
        "score", "the form of feedback; a pair shows two responses"
    )
    prompts: tuple[str, ...] = option((), "your system prompts, or @FILE each: what is chosen from, and what evolves")
    pinned: str = option("", "a part of every system prompt, or @FILE, which never changes")
    bank: str | None = option(
        None, "clauses that evolution may add: a file, or `builtin`; none: those of your prompts (builtin without any)"
    )
    writer: str | None = option(None, "a model that writes new versions of prompts from responses nobody liked")
    evolution: StudyEvolution = field(default_factory=StudyEvolution)
    actor_critic: ActorCriticParams = field(default_factory=ActorCriticParams)
    reward: RewardWeights = field(default_factory=RewardWeights)
    bootstrap_queries: int = option(
        20, "first queries, with prompts in turn and a blind choice, to seed the critic", least=0
    )
    critic: bool = option(True, "whether the critic's expectations are used")
    actor: Literal["learned", "random"] = option("learned", "who chooses what is shown")
    half_life: float | None = option(
        None, "answers after which feedback counts half, so that changes are followed; none: never", least=1
    )
    evolve: bool = option(True, "whether the population evolves")
    temperatures: tuple[float, ...] = option(
        (0.3, 0.7, 1.0), "sampling temperatures the actor chooses from", least=0, most=2
    )
    max_tokens: int = option(128, "length limit of a response", least=1)
    reasoning_effort: Effort | None = option(None, "how much the model and the judge reason, if they do")
    concurrent: int = option(1, "queries under way at once; more is faster and learns from older feedback", least=1)
    fitness_threshold: float = option(0.5, "at the end, prompts with less fitness than this are dropped")
    seed: int = option(0, "of the search")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.base_url or "")
        if isinstance(self.prompts, str):
            raise ConfigError(f"prompts must be a list of texts, not the text {self.prompts!r:.60}")
        # what a file says is part of the settings: a run continues without it
        object.__setattr__(self, "prompts", tuple(prompt_text(text, "prompts") for text in self.prompts))
        object.__setattr__(self, "pinned", prompt_text(self.pinned, "pinned"))
        if not self.temperatures:
            raise ConfigError("temperatures is empty: give one or more numbers from 0 to 2")
        if self.ask == "pair" and self.actor_critic.num_candidates < 2:
            raise ConfigError("ask='pair' shows two responses: set actor_critic.num_candidates to 2 or more")
        if self.ask == "pair" and len(set(self.prompts)) == 1 and not self.evolve:
            raise ConfigError("ask='pair' shows the responses of two prompts: give another one, or let yours evolve")
        if self.actor_critic.num_candidates > self.evolution.population_size:
            raise ConfigError(
                f"actor_critic.num_candidates is {self.actor_critic.num_candidates} and evolution.population_size only "
                f"{self.evolution.population_size}: every candidate response has a prompt of its own"
            )

    @classmethod
    def formerly(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What a version without these settings did."""
        return {"bank": "builtin", **fields}


def prompt_text(text: Any, what: str) -> Any:
    """A prompt as it was given; `@FILE` stands for what is in the file, and the mere name of a file is refused."""
    name = text.strip() if isinstance(text, str) else ""
    one_word = len(name.split()) == 1
    if not name or "\n" in name:
        return text
    if name.startswith("@") and (one_word or _is_file(name[1:])):
        if not (found := content(name, what).strip()):
            raise ConfigError(f"{what}: {name[1:]} is empty: write the prompt into it")
        return found
    if one_word and Path(name).suffix and _is_file(name):
        raise ConfigError(f"{what}: {name} is the name of a file: write @{name} for the text in it")
    return text


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a text that is longer, in bytes, than any name
        return False
