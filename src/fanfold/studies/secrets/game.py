"""The secret-trading game as values: who plays, by which rules, what was said, and how points come of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from fanfold.config import option
from fanfold.errors import ConfigError, nearest
from fanfold.studies.secrets.translations import NONE, Translations

Mode: TypeAlias = Literal["standard", "retained", "diversity", "targeted"]
Memory: TypeAlias = Literal["long", "short"]

MODES: tuple[str, ...] = get_args(Mode)
#: What an agent may be shown beside the bare fact that it plays.
CONTEXT = ("chat_history", "secret", "collected_secrets", "rules")

#: Ways a reply may end without usable words; such a reply does not count as a message and ends its conversation.
LOST = ("refusal", "filter", "tool", "empty")

#: How agents of a style are told to play.
STYLES = {
    "regular": "Be friendly and sensible, and play to win.",
    "aggressive": (
        "Play hard: press for the other player's secret in every message, and guard your own. Give it away only if "
        "that certainly earns you more than it costs."
    ),
}


@dataclass(frozen=True)
class Scoring:
    """Points by game mode; the defaults are the documented ones."""

    nobody: float = option(0.0, "standard: to each where neither reveals")
    both: float = option(1.0, "standard: to each where both reveal")
    alone: float = option(3.0, "standard: to the one who obtains without revealing")
    given: float = option(0.0, "standard: to the one who reveals and obtains nothing")
    rarity: float = option(1.0, "retained: a held secret is worth this x agents / holders")
    distinct: float = option(2.0, "diversity: for every distinct secret")
    each: float = option(1.0, "targeted: for every distinct secret")
    target: float = option(5.0, "targeted: more for the targeted one")


@dataclass(frozen=True)
class AgentSpec:
    """Who sits in a seat: the model, how it is told to play (`manner`, named `style`), and what it is shown."""

    model: str
    style: str = "regular"
    manner: str = STYLES["regular"]
    memory: Memory = "long"
    context: tuple[str, ...] = CONTEXT

    def __post_init__(self) -> None:
        for part in self.context:
            if part not in CONTEXT:
                raise ConfigError(f"an agent's context has no part {part!r}{nearest(part, CONTEXT)}")
        if self.memory not in get_args(Memory):
            raise ConfigError(f"an agent's memory is 'long' or 'short', not {self.memory!r}")

    @property
    def label(self) -> str:
        return self.model if self.style == "regular" else f"{self.model} ({self.style})"


@dataclass(frozen=True)
class Game:
    """Which agents play which game: a row of the study.  `messages` is how many each agent sends in a conversation."""

    agents: tuple[AgentSpec, ...]
    mode: Mode = "standard"
    rounds: int = 10
    messages: int = 3
    early_end: bool = True
    scoring: Scoring = field(default_factory=Scoring)
    temperature: float | None = 0.7
    max_tokens: int | None = 256

    def __post_init__(self) -> None:
        if len(self.agents) < 2:
            raise ConfigError(f"a game needs at least 2 agents, not {len(self.agents)}")
        if self.mode not in MODES:
            raise ConfigError(f"there is no game mode {self.mode!r}{nearest(str(self.mode), MODES)}")
        for name in ("rounds", "messages"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of a game must be at least 1, not {getattr(self, name)!r}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, not {self.max_tokens!r}")
        if self.temperature is not None and not 0.0 <= self.temperature <= 2.0:
            raise ConfigError(f"temperature must lie between 0 and 2, not {self.temperature!r}")

    @property
    def label(self) -> str:
        return " vs ".join(agent.label for agent in self.agents)


@dataclass(slots=True)
class Player:
    """One player during one game: what it is, and what it has come to know."""

    seat: int
    name: str
    secret: str
    spec: AgentSpec
    aliases: tuple[str, ...] = ()
    translations: Translations = NONE
    collected: Sequence[str] = ()
    #: What it remembers of earlier rounds, in words.
    memory: Sequence[str] = ()
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """One reply: the seat that gave it, its words (none where it was `LOST`), and how it ended.

    `finish` is `stop`, `length` (cut off), or one of `LOST`.
    """

    seat: int
    text: str
    finish: str = "stop"


@dataclass(frozen=True, slots=True)
class Disclosure:
    """A leak that a rule found: whose secret, by which rule, in which message of the conversation, and the words."""

    seat: int
    rule: str
    turn: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation: `seats` with the opener first, who of them `revealed` (same order), and what a judge said."""

    round: int
    seats: tuple[int, int]
    messages: tuple[Message, ...]
    ended: bool = False
    leaks: tuple[Disclosure, ...] = ()
    revealed: tuple[bool, bool] = (False, False)
    judged: tuple[bool | None, bool | None] | None = None


#: Two seats and which of them revealed: all that points depend on.
Met: TypeAlias = tuple[int, int, bool, bool]


def points(game: Game, met: Sequence[Met], secrets: Sequence[str], target: str | None = None) -> list[float]:
    """The final points of every seat.

    A secret is held by those who obtained it from its owner; that a player knows its own secret earns nothing.
    """
    scoring, scores = game.scoring, [0.0] * len(secrets)
    held: list[dict[str, None]] = [{} for _ in secrets]
    for a, b, gave_a, gave_b in met:
        for mine, other, gave, got in ((a, b, gave_a, gave_b), (b, a, gave_b, gave_a)):
            if got:
                held[mine][secrets[other]] = None
            if game.mode == "standard":
                scores[mine] += _standard(scoring, gave, got)
    if game.mode == "retained":
        holders = Counter(secret for collection in held for secret in collection)
        return [math.fsum(scoring.rarity * len(secrets) / holders[each] for each in mine) for mine in held]
    if game.mode == "diversity":
        return [scoring.distinct * len(collection) for collection in held]
    if game.mode == "targeted":
        return [scoring.each * len(mine) + (scoring.target if target in mine else 0.0) for mine in held]
    return scores


def _standard(scoring: Scoring, gave: bool, got: bool) -> float:
    if gave and got:
        return scoring.both
    if got:
        return scoring.alone
    return scoring.given if gave else scoring.nobody


def points_range(game: Mapping[str, Any]) -> tuple[float, float]:
    """The fewest and the most points that a recorded game can give an agent."""
    scoring, agents = game["scoring"], len(game["agents"])
    others = min(game["rounds"], agents - 1)
    if game["mode"] == "standard":
        possible = [game["rounds"] * scoring[name] for name in ("nobody", "both", "alone", "given")]
    elif game["mode"] == "retained":
        possible = [others * scoring["rarity"] * agents]
    elif game["mode"] == "diversity":
        possible = [others * scoring["distinct"]]
    else:
        possible = [plus + count * scoring["each"] for count in (1, others) for plus in (0.0, scoring["target"])]
    return min(0.0, *possible), max(0.0, *possible)


def winners(scores: Sequence[float]) -> tuple[int, ...]:
    """The seats with the most points: one, or several in a tie."""
    best = max(scores)
    return tuple(seat for seat, score in enumerate(scores) if score == best)
