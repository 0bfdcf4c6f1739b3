"""The study's critic, actor and population for a program that answers queries itself, one after the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fanfold.encoding import derive_seed
from fanfold.studies.critic.actor import Actor, Decision, advantages, lesson, pick, standing
from fanfold.studies.critic.bank import breeder_of, first_prompts, material_of, prompt_of
from fanfold.studies.critic.config import EvolutionaryParams, RewardWeights
from fanfold.studies.critic.critic import LinearCritic
from fanfold.studies.critic.evolution import EXPECTED_SHARE, Member, Population
from fanfold.studies.critic.features import CUES, NAMES, cues, features
from fanfold.studies.critic.reward import Reward

#: The assumed worth of a prompt that nobody knows yet: average feedback, as expected, and average coherence.
MIDDLING = Reward(0.5, 0.5, 0.5, 0, 0.0)


@dataclass(frozen=True)
class OnlineResponse:
    """A response that could be shown, and the critic's opinion of it."""

    system_prompt: str
    response: str
    critic_score: float
    fitness: float = 0.0
    coherence: float = 0.0
    tokens: int = 0
    unsafe: float = 0.0
    #: How unsure the critic is, how much evidence it has, and one value that it thinks possible.
    sd: float = 0.0
    confidence: float = 0.0
    drawn: float = 0.0


class AnyCritic(Protocol):
    """What is asked of a critic.  Must be thread-safe, or have `thread_safe = False`."""

    def score(self, system_prompt: str, query: str, response: str) -> float: ...

    def update(self, system_prompt: str, query: str, response: str, feedback: float) -> None: ...


class AnyActor(Protocol):
    """What is asked of an actor.

    It may also have `temperature(query) -> float | None`, `observe(query, candidates, chosen, rewards, real)` and
    `update()`, as `LearnedActor` has.
    """

    def select(self, query: str, candidates: Sequence[OnlineResponse]) -> int: ...


class LearnedCritic:
    """The study's critic: learns online what feedback responses get, and knows how sure it is.  Thread-safe."""

    thread_safe = True

    def __init__(self) -> None:
        self._critic = LinearCritic(len(NAMES))
        self._lock = threading.Lock()

    def score(self, system_prompt: str, query: str, response: str) -> float:
        """The feedback it expects, from 0 to 1."""
        return self.opinion(system_prompt, query, response)["critic_score"]

    def opinion(
        self, system_prompt: str, query: str, response: str, rng: random.Random | None = None
    ) -> dict[str, float]:
        """The feedback it expects, how unsure it is, on how much evidence, and one value that it thinks possible."""
        row = features(prompt_of(system_prompt), query, response)
        with self._lock:
            seen = self._critic.predict(row, rng)
        return {
            "critic_score": min(1.0, max(0.0, float(seen.mean[0]))),
            "sd": float(seen.sd[0]),
            "confidence": float(seen.confidence[0]),
            "drawn": float(seen.drawn[0]),
        }

    def update(self, system_prompt: str, query: str, response: str, feedback: float) -> None:
        """Learn from the feedback that a response got."""
        row = features(prompt_of(system_prompt), query, response)
        with self._lock:
            self._critic.learn(row, feedback)

    def prefer(self, query: str, better: tuple[str, str], worse: tuple[str, str]) -> None:
        """Learn from a preference between two (system prompt, response)."""
        rows = [features(prompt_of(prompt), query, response) for prompt, response in (better, worse)]
        with self._lock:
            self._critic.prefer(rows[0], rows[1], 1.0)

    @property
    def lessons(self) -> int:
        """How much feedback it has learnt from."""
        return int(self._critic.count + self._critic.pairs)


class LearnedActor:
    """The study's actor: chooses by what the critic expects and is unsure of, and learns from groups of candidates.

    With `temperatures` it also chooses the temperature of the responses, by the kind of query.
    """

    def __init__(self, exploration: float = 0.1, temperatures: Sequence[float] | None = None, seed: int = 0) -> None:
        self._chooses_temperature = temperatures is not None
        self._actor = Actor(tuple(temperatures or (0.7,)), len(CUES))
        self._exploration, self._seed = exploration, seed
        self._choices = self._temperature = 0
        self._last: tuple[list[list[float]], list[float], float] | None = None
        self._shown: list[Decision] = []
        self._warmed: list[Decision] = []

    def temperature(self, query: str) -> float | None:
        """The temperature for responses to a query; None leaves it to the caller."""
        if not self._chooses_temperature:
            return None
        _, chances = self._temperatures(query)
        self._temperature = pick(chances, 1, self._rng("temperature"))[0]
        return self._actor.temperatures[self._temperature]

    def select(self, query: str, candidates: Sequence[OnlineResponse], blind: bool = False) -> int:
        """The index of the response to show; `blind` leaves it to chance."""
        options = [_signals(candidate, candidates) for candidate in candidates]
        doubt = 1.0 - sum(candidate.confidence for candidate in candidates) / len(candidates)
        share = 1.0 if blind else self._exploration * doubt
        chances = self._actor.shows.probabilities(options, share)
        chosen = pick(chances, 1, self._rng("choice"))[0]
        self._last = (options, chances.tolist(), share)
        self._choices += 1
        return chosen

    def observe(
        self, query: str, candidates: Sequence[OnlineResponse], chosen: int, rewards: Sequence[float], real: bool
    ) -> None:
        """Keep the result of the last choice for the next update; rewards not seen are those expected."""
        if self._last is None:
            return
        options, before, blind = self._last
        ahead = advantages(rewards)
        trust = [EXPECTED_SHARE * candidate.confidence for candidate in candidates]
        if real:
            trust[chosen] = 1.0
        if blind < 1.0:  # a blind choice has nothing to improve
            self._shown.append(lesson(options, before, blind, ahead, trust))
        if self._chooses_temperature and real:
            choices, chances = self._temperatures(query)
            terms = [(self._temperature, ahead[chosen], 1.0)]
            self._warmed.append(Decision(choices, chances.tolist(), self._exploration, terms))
        self._last = None

    def update(self) -> tuple[float, float]:
        """Learn from all groups kept so far; gives how far the two policies moved (KL divergence)."""
        moved = self._actor.learn(self._shown, self._warmed)
        self._shown, self._warmed = [], []
        return moved

    def _temperatures(self, query: str) -> tuple[list[list[float]], Any]:
        options = self._actor.temperature_options(cues(query))
        return options, self._actor.warms.probabilities(options, self._exploration)

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(derive_seed(self._seed, purpose, self._choices))


def _signals(candidate: OnlineResponse, group: Sequence[OnlineResponse]) -> list[float]:
    """What the study's actor weighs, in the order of its `SIGNALS`."""
    best, mean = max(each.fitness for each in group), sum(each.fitness for each in group) / len(group)
    seen = [candidate.critic_score, candidate.drawn, candidate.sd, standing(candidate.fitness, best, mean)]
    return [*seen, candidate.coherence, candidate.tokens / 100.0, candidate.unsafe]


class PromptPopulation(Population):
    """The study's population of system prompts with their fitness.

    Given prompts are the population; with `params` it is filled up to their `population_size` with the built-in
    clauses, and so it is without any.  `top(k)` gives the fittest, with a bonus for those little is known of,
    which fades as they are tried.
    """

    def __init__(
        self,
        prompts: Iterable[str] = (),
        params: EvolutionaryParams | None = None,
        *,
        exploration: float = 0.1,
        seed: int = 0,
    ) -> None:
        texts = list(dict.fromkeys(prompts))
        settings = params or EvolutionaryParams()
        count = len(texts) if texts and params is None else max(len(texts), settings.population_size)
        rng = random.Random(derive_seed(seed, "population"))
        start = MIDDLING.total(RewardWeights())
        self._material = material_of(texts, None if params is None else "builtin")
        super().__init__(settings, [Member(each, start) for each in first_prompts(count, texts, self._material, rng)])
        self._exploration, self._seed = exploration, seed

    @property
    def prompts(self) -> list[str]:
        return [member.prompt.text for member in self.members]

    def top(
        self, many: int, exploration: float | None = None, suited: Mapping[str, float] | None = None
    ) -> list[Member]:
        return super().top(many, self._exploration if exploration is None else exploration, suited)

    def renew(self, after: int) -> None:
        """One generation: children of good prompts replace the worst; does nothing once evolution has stopped."""
        breeder = breeder_of(self._material, self.params.crossover_rate)
        self.evolve(breeder, random.Random(derive_seed(self._seed, "evolution", after)), after)


@dataclass(frozen=True)
class CompositeReward:
    """`l1 feedback + l2 critic + l3 coherence + l4 tokens + l5 safety`; called with the parts, gives the sum."""

    weights: RewardWeights = field(default_factory=RewardWeights)

    def __call__(self, parts: Reward) -> float:
        return parts.total(self.weights)


AnyReward = Callable[[Reward], float]
AnyAggregator = Callable[[Any, str], float]
