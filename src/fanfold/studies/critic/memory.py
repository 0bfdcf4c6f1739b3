"""What a search remembers between asking and being told, as values that can be saved and read back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from fanfold.strategies.reflective import ShownCase
from fanfold.studies.critic.actor import Decision
from fanfold.studies.critic.evaluator import Show, Shown, Write
from fanfold.studies.critic.evolution import GenerationStats, Member
from fanfold.studies.critic.reward import Reward

#: How many queries are looked back on when a prompt is imagined.
RECENT = 40


@dataclass(frozen=True)
class AppraisedResponse:
    """A response that could be shown, and the critic's opinion of it at the time."""

    shown: Shown
    expected: float
    sd: float
    confidence: float
    coherence: float
    tokens: int
    unsafe: float

    def reward(self, feedback: float) -> Reward:
        return Reward(feedback, self.expected, self.coherence, self.tokens, self.unsafe)


@dataclass(frozen=True)
class PendingChoice:
    """A choice that waits for its feedback: the candidates, those chosen, and how both policies stood."""

    candidates: list[AppraisedResponse]
    chosen: list[int]
    options: list[list[float]]
    probabilities: list[float]
    blind: float
    warm: list[float]

    def guess(self) -> tuple[float, float]:
        """The feedback expected on what was chosen, and how unsure that is; of two, that the first is preferred."""
        a, *others = [self.candidates[at] for at in self.chosen]
        if not others:
            return a.expected, a.sd
        return 0.5 + (a.expected - others[0].expected) / 2, (a.sd**2 + others[0].sd ** 2) ** 0.5 / 2

    def show(self, number: int, query: str) -> Show:
        """What is put up for feedback."""
        return Show(number, query, tuple(self.candidates[each].shown for each in self.chosen))


@dataclass(frozen=True)
class QueryRecord:
    """The result of one query; `expected` is the critic's guess before it knew, `best` the best fitness after."""

    number: int
    prompt: str
    temperature: float
    feedback: float
    expected: float
    sd: float
    reward: float
    best: float
    probability: float


@dataclass
class Situations:
    """The mean situation of the queries so far, how many these are, and the situations of the last ones."""

    mean: list[float] = field(default_factory=list)
    count: int = 0
    recent: list[list[float]] = field(default_factory=list)

    def notice(self, situation: list[float]) -> None:
        """Take in one more query."""
        self.count += 1
        self.recent = [*self.recent, situation][-RECENT:]
        old = self.mean or situation
        self.mean = [mean + (value - mean) / self.count for mean, value in zip(old, situation)]


@dataclass
class CriticMemory:
    """All of a search that is not in its population, critic and actor."""

    asked: int = 0
    answered: int = 0
    #: Queries without a response to show, and responses without feedback.
    skipped: int = 0
    unanswered: int = 0
    #: How likely each temperature was, for the queries that are being answered.
    generating: dict[int, list[float]] = field(default_factory=dict)
    waiting: dict[int, PendingChoice] = field(default_factory=dict)
    #: Choices that are ready to be asked about, and what the writer is to be asked.
    shows: list[Show | Write] = field(default_factory=list)
    #: Responses that were not liked, with the prompt they came from.
    disliked: list[tuple[str, ShownCase]] = field(default_factory=list)
    #: The sum of the rewards so far.
    rewards: float = 0.0
    situations: Situations = field(default_factory=Situations)
    #: What the actor has not learnt from yet.
    shown: list[Decision] = field(default_factory=list)
    warmed: list[Decision] = field(default_factory=list)
    records: list[QueryRecord] = field(default_factory=list)

    def usual(self, reward: float, guess: float) -> float:
        """Take in a reward; gives the change of the mean reward, which is a `guess` before there was any."""
        before = self.rewards / self.answered if self.answered else guess
        self.rewards += reward
        return self.rewards / (self.answered + 1) - before


class CriticState(msgspec.Struct):
    """A saved search."""

    memory: CriticMemory
    members: list[Member]
    generations: list[GenerationStats]
    reference: float | None
    stale: int
    stopped: bool
    critic: dict[str, Any]
    actor: dict[str, Any]
    habits: dict[str, Any]
    #: What the numbers mean; another version's are not taken over.
    layout: str = ""
