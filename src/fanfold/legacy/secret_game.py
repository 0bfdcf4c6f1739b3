"""The documented nouns of the secret game: agents, modes, who speaks for the agents, and jobs with their tasks."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from fanfold.errors import ConfigError, nearest
from fanfold.ledger import RunView
from fanfold.legacy.settings import default_model
from fanfold.studies.secrets.config import SecretsConfig
from fanfold.studies.secrets.job_files import standings
from fanfold.studies.secrets.model_names import AGENT_TYPES, SPELLINGS, resolved
from fanfold.summary import Summary

Status: TypeAlias = Literal["pending", "in_progress", "completed", "failed"]


class GameMode(enum.StrEnum):
    """How points are scored."""

    STANDARD = "standard"
    RETAINED = "retained"
    DIVERSITY = "diversity"
    TARGETED = "targeted"


@dataclass(frozen=True)
class Agent:
    """A player with a secret.  `model` and `style` are its own; else those of the game's agent service."""

    id: str
    name: str
    secret: str
    model: str | None = None
    style: str | None = None


@dataclass(frozen=True)
class AgentService:
    """The model that speaks for agents, and how it plays: a documented name (`gpt35`) or `provider/name`.

    A documented name means the model that takes its place today, or what $FANFOLD_MODEL says.  Without a name the
    environment decides, as everywhere in `fanfold.legacy`.
    """

    model: str | None = None
    style: str = "regular"
    agent_type: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        """The model as it was named, or what stands in for it."""
        return voice(self.model or self.agent_type)


class GPT35Agent(AgentService):
    agent_type = "gpt35"


class GPT4oMiniAgent(AgentService):
    agent_type = "gpt4o_mini"


class ClaudeOpusAgent(AgentService):
    agent_type = "claude_opus"


class ClaudeSonnetAgent(AgentService):
    agent_type = "claude_sonnet"


def voice(name: str | None) -> str:
    """A model's name, where $FANFOLD_MODEL stands in for documented names and for none at all."""
    if name is None:
        return default_model()
    documented = SPELLINGS.get(name, name) in AGENT_TYPES
    return (os.environ.get("FANFOLD_MODEL") if documented else None) or name


def provider(name: str) -> str:
    """Whose batches a model's calls can travel in: `openai` or `anthropic`; `local` has none."""
    maker, _, model = resolved(name).partition("/")
    if maker == "simulated":
        return "anthropic" if "claude" in model else "openai"
    return maker


#: What a batch job decides itself, and a game service therefore cannot.
_DECIDED = frozenset(
    {"agent_type", "models", "pairings", "game_mode", "num_interactions", "messages_per_interaction", "batch_service"}
    | {"batch_size", "max_concurrent", "agents", "style", "secrets", "names", "results", "seed"}
)


class GameService:
    """The game that is played: who speaks, and by which rules.

    `settings` are further fields of `SecretsConfig`: `temperature`, `max_tokens`, `judge`, `scoring`, `targeted`,
    `early_end`, `memory`, `context`, `rounds` and so on.
    """

    def __init__(self, agent_service: AgentService | None = None, **settings: Any) -> None:
        if agent_service is not None and not isinstance(agent_service, AgentService):
            raise ConfigError(f"agent_service must be one such as GPT35Agent(), not {agent_service!r}")
        known = [each.name for each in dataclasses.fields(SecretsConfig) if each.name not in _DECIDED]
        for name in settings:
            if name in _DECIDED:
                raise ConfigError(f"GameService: {name} belongs to a batch service or a job")
            if name not in known:
                raise ConfigError(f"GameService has no setting {name!r}{nearest(name, known)}")
        self.agent_service = agent_service or AgentService()
        self.settings = settings

    def model_of(self, agent: Agent) -> str:
        return self.agent_service.name if agent.model is None else voice(agent.model)

    def style_of(self, agent: Agent) -> str:
        return agent.style or self.agent_service.style


@dataclass(slots=True)
class BatchTask:
    """One interaction of two agents (with more agents: a round of them, all paired), and its result. `id`

     is its id in the raw results.  `result` has points, secrets revealed and obtained by agent, the winners, and
    how many messages there were; every word is in the raw results.
    """

    id: str
    agents: tuple[Agent, ...]
    status: Status = "pending"
    result: Mapping[str, Any] | None = None
    error: str | None = None
    started_at: float | None = None
    completed_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed")

    def begin(self) -> None:
        self.status, self.started_at = "in_progress", time.time()

    def end(self, error: str | None, data: Mapping[str, Any], at: float, started: float | None = None) -> None:
        self.started_at = self.started_at if started is None else started
        self.status, self.error, self.completed_at = "completed" if error is None else "failed", error, at
        names = [agent.name for agent in self.agents]
        self.result = {**standings(data, names), "messages": data["messages"]} if error is None else None


@dataclass(frozen=True, slots=True)
class Requests:
    """Where the messages of a job came from: provider batches, single requests, or the ledger, which costs nothing."""

    batched: int = 0
    single: int = 0
    remembered: int = 0
    #: In US dollars; None where a price is not known.
    cost: float | None = 0.0

    @classmethod
    def of(cls, view: RunView) -> Requests:
        paid = view.costs(siblings=False)
        return cls(paid.batched, paid.calls - paid.batched, paid.from_ledger, None if paid.unpriced else paid.cost)

    def __str__(self) -> str:
        cost = "cost not known" if self.cost is None else f"cost ${self.cost:.4f}"
        return f"{self.batched} requests in batches, {self.single} one by one, {self.remembered} remembered; {cost}"


@dataclass(slots=True)
class BatchJob:
    """Interactions that are run together.  `id` is the name of its run in the ledger, and of its folder of results.

    A job is `completed` when every task has ended, some perhaps `failed`; it is `failed` when it could not go through
    all of them.  It is one or the other before anything is written to `results_path`.
    """

    id: str
    agents: tuple[Agent, ...]
    config: SecretsConfig
    tasks: tuple[BatchTask, ...] = field(repr=False)
    status: Status = "pending"
    error: str | None = None
    created_at: float = field(default_factory=time.time)
    started_at: float | None = None
    completed_at: float | None = None
    results_path: str | None = None
    requests: Requests = Requests()
    #: Its result: sections for people, figures for programs.
    summary: Summary | None = field(default=None, repr=False)
    ledger: str = "fanfold.db"

    @property
    def game_mode(self) -> GameMode:
        return GameMode(self.config.game_mode)

    @property
    def total_tasks(self) -> int:
        return len(self.tasks)

    @property
    def completed_tasks(self) -> int:
        return sum(task.status == "completed" for task in self.tasks)

    @property
    def failed_tasks(self) -> int:
        return sum(task.status == "failed" for task in self.tasks)

    @property
    def progress(self) -> float:
        """The share of tasks that have ended, from 0 to 1."""
        return sum(task.ended for task in self.tasks) / len(self.tasks)

    @property
    def analysis(self) -> Mapping[str, Any]:
        """The figures of `analysis.json`, each agent's with its id and name; empty before the job has ended."""
        if self.summary is None:
            return {}
        figures = self.summary.figures
        named = [{"id": who.id, "name": who.name, **each} for who, each in zip(self.agents, figures["agents"])]
        return {**figures, "agents": named}

    def settle(self, view: RunView) -> None:
        """Read the result of every task from the ledger, and say how the job ended."""
        for row in view.evaluations():  # tasks are in the order of the study's cases
            error = None if row.failure is None else f"{row.failure}: {row.message}"
            started = row.started or 0.0
            self.tasks[row.position].end(error, row.data, started + (row.seconds or 0.0), started)
        self.completed_at = time.time()
        left = sum(not task.ended for task in self.tasks)
        self.status = "failed" if left else "completed"
        self.error = f"{left} of {len(self.tasks)} tasks were not run" if left else None

    def fail(self, error: BaseException) -> None:
        """It cannot continue now: what was under way is pending again, for the next time that it is run."""
        interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
        self.error = (
            "it was interrupted: run it again to continue" if interrupted else str(error) or type(error).__name__
        )
        self.status = "failed"
        for task in self.tasks:
            if not task.ended:
                task.status, task.started_at = "pending", None
