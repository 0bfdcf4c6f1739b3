"""What a flow is put together from: the study's critic, actor, population, reward and feedback under the old verbs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.legacy.prompt_rl.params import EvolutionaryParams, RewardWeights
from fanfold.studies.critic import config as study
from fanfold.studies.critic.actor import SIGNALS, Actor, Decision, advantages, pick
from fanfold.studies.critic.critic import Critic
from fanfold.studies.critic.evolution import EXPECTED_SHARE, Member, Population
from fanfold.studies.critic.features import CUES, NAMES, cues, features
from fanfold.studies.critic.feedback import KINDS, Feedback, aggregate, read
from fanfold.studies.critic.genome import BANK, Bank, Prompt, first_prompts
from fanfold.studies.critic.reward import Reward

#: What a prompt of which nothing is known is taken to be worth: middling feedback, as expected, middling coherence.
MIDDLING = Reward(0.5, 0.5, 0.5, 0, 0.0)


@dataclass(frozen=True)
class Candidate:
    """A response that could be shown, and what is thought of it."""

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
    """What a flow asks of a critic.  Must be thread-safe, or have `thread_safe = False`."""

    def score(self, system_prompt: str, query: str, response: str) -> float: ...

    def update(self, system_prompt: str, query: str, response: str, feedback: float) -> None: ...


class AnyActor(Protocol):
    """What a flow asks of an actor.

    It may also have `temperature(query) -> float | None`, `observe(query, candidates, chosen, rewards, real)` and
    `update()`, as `LearnedActor` has.
    """

    def select(self, query: str, candidates: Sequence[Candidate]) -> int: ...


class LearnedCritic:
    """The study's critic: learns online what feedback responses get, and knows how sure it is.  Thread-safe."""

    thread_safe = True

    def __init__(self) -> None:
        self._critic = Critic(len(NAMES))
        self._lock = threading.Lock()

    def score(self, system_prompt: str, query: str, response: str) -> float:
        """The feedback it expects, from 0 to 1."""
        return self.opinion(system_prompt, query, response)["critic_score"]

    def opinion(
        self, system_prompt: str, query: str, response: str, rng: random.Random | None = None
    ) -> dict[str, float]:
        """The feedback it expects, how unsure it is, on how much evidence, and one value that it thinks possible."""
        row = features(Prompt.of(system_prompt), query, response)
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
        row = features(Prompt.of(system_prompt), query, response)
        with self._lock:
            self._critic.learn(row, feedback)

    def prefer(self, query: str, better: tuple[str, str], worse: tuple[str, str]) -> None:
        """Learn from a preference between two (system prompt, response)."""
        rows = [features(Prompt.of(prompt), query, response) for prompt, response in (better, worse)]
        with self._lock:
            self._critic.prefer(rows[0], rows[1], 1.0)

    @property
    def lessons(self) -> int:
        """How much feedback it has learnt from."""
        return int(self._critic.count) + self._critic.pairs


class LearnedActor:
    """The study's actor: chooses by what the critic expects and is unsure of, and learns from groups of candidates.

    With `temperatures` it also chooses the temperature of the responses, by the kind of query.
    """

    def __init__(self, exploration: float = 0.1, temperatures: Sequence[float] | None = None, seed: int = 0) -> None:
        self._chooses_temperature = temperatures is not None
        self._actor = Actor(tuple(temperatures or (0.7,)), len(CUES))
        self._exploration = exploration
        self._seed = seed
        self._choices = 0
        self._last: tuple[list[list[float]], list[float], float] | None = None
        self._temperature = 0
        self._shown: list[Decision] = []
        self._warmed: list[Decision] = []
        #: How likely the last choice was.
        self.probability = 1.0

    def temperature(self, query: str) -> float | None:
        """The temperature for responses to a query; None leaves it to the flow."""
        if not self._chooses_temperature:
            return None
        chances = self._actor.warms.probabilities(self._actor.temperature_options(cues(query)), self._exploration)
        self._temperature = pick(chances, 1, self._rng("temperature"))[0]
        return self._actor.temperatures[self._temperature]

    def select(self, query: str, candidates: Sequence[Candidate], blind: bool = False) -> int:
        """The index of the response to show; `blind` leaves it to chance."""
        options = [_signals(candidate, candidates) for candidate in candidates]
        doubt = 1.0 - sum(candidate.confidence for candidate in candidates) / len(candidates)
        share = 1.0 if blind else self._exploration * doubt
        chances = self._actor.shows.probabilities(options, share)
        chosen = pick(chances, 1, self._rng("choice"))[0]
        self._last = (options, chances.tolist(), share)
        self._choices += 1
        self.probability = float(chances[chosen])
        return chosen

    def observe(
        self, query: str, candidates: Sequence[Candidate], chosen: int, rewards: Sequence[float], real: bool
    ) -> None:
        """Keep what came of the last choice for the next update; rewards not seen are those expected."""
        if self._last is None:
            return
        options, before, blind = self._last
        ahead = advantages(rewards)
        trust = [
            1.0 if real and at == chosen else EXPECTED_SHARE * candidate.confidence
            for at, candidate in enumerate(candidates)
        ]
        if blind < 1.0:  # a blind choice has nothing to improve
            terms = [
                (at, ahead[at], trust[at] * (1.0 if at == chosen else before[at])) for at in range(len(candidates))
            ]
            self._shown.append(Decision(options, before, blind, terms))
        if self._chooses_temperature and real:
            choices = self._actor.temperature_options(cues(query))
            chances = self._actor.warms.probabilities(choices, self._exploration).tolist()
            self._warmed.append(
                Decision(choices, chances, self._exploration, [(self._temperature, ahead[chosen], 1.0)])
            )
        self._last = None

    def update(self) -> tuple[float, float]:
        """Learn from all groups kept so far; gives how far the two policies moved (KL divergence)."""
        moved = self._actor.learn(self._shown, self._warmed)
        self._shown, self._warmed = [], []
        return moved

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(derive_seed(self._seed, purpose, self._choices))


def _signals(candidate: Candidate, group: Sequence[Candidate]) -> list[float]:
    """What the study's actor weighs, in its order."""
    best, mean = max(each.fitness for each in group), sum(each.fitness for each in group) / len(group)
    values = {
        "drawn": candidate.drawn,
        "sd": candidate.sd,
        "fitness": (candidate.fitness - mean) / max(best - mean, 0.05),
        "coherence": candidate.coherence,
        "tokens": candidate.tokens / 100.0,
        "unsafe": candidate.unsafe,
    }
    return [values.get(name, 0.0) for name in SIGNALS]


class PromptPopulation:
    """System prompts with their fitness, which evolve.

    Given prompts are the population; with `params` it is filled up to their `population_size` by compositions of the
    study's clauses, and so it is without any.  `top(k)` gives the fittest, with a bonus for those little is known of,
    which fades as they are tried.
    """

    def __init__(
        self,
        prompts: Iterable[str] = (),
        params: study.EvolutionaryParams | None = None,
        *,
        exploration: float = 0.1,
        seed: int = 0,
        bank: Bank = BANK,
    ) -> None:
        given = list(dict.fromkeys(prompts))
        count = (
            len(given)
            if given and params is None
            else max(len(given), (params or EvolutionaryParams()).population_size)
        )
        params = params or EvolutionaryParams()
        rng = random.Random(derive_seed(seed, "population"))
        start = MIDDLING.total(RewardWeights())
        members = [Member(prompt, start) for prompt in first_prompts(count, given, bank, rng)]
        self._population = Population(params, members)
        self._exploration = exploration
        self._seed = seed
        self._bank = bank

    @property
    def members(self) -> list[Member]:
        return self._population.members

    @property
    def prompts(self) -> list[str]:
        return [member.prompt.text for member in self.members]

    @property
    def best(self) -> Member:
        return self._population.best

    @property
    def evolution_stopped(self) -> bool:
        return self._population.stopped

    @property
    def generations(self) -> Sequence[Any]:
        """What the population was like at each generation: best, mean, variance, diversity."""
        return self._population.generations

    def top(self, k: int) -> list[Member]:
        return sorted(self.members, key=lambda each: -each.fitness - self._exploration / (1.0 + each.evidence) ** 0.5)[
            :k
        ]

    def credit(self, member: Member, reward: float, confidence: float | None = None) -> None:
        """Fitness becomes 0.9 old + 0.1 reward; an expected reward counts as far as the critic may be trusted."""
        self._population.credit(member.prompt, reward, confidence)

    def evolve(self, after: int) -> None:
        """Mutate, cross over, replace the worst, keep the elite; does nothing once evolution has stopped."""
        rng = random.Random(derive_seed(self._seed, "evolution", after))
        self._population.evolve(self._bank, rng, after)

    def refine(self, threshold: float) -> None:
        """Drop duplicates and prompts under a fitness; the best stays."""
        self._population.refine(threshold)


class CompositeReward:
    """`l1 feedback + l2 critic + l3 coherence + l4 tokens + l5 safety`; called with the parts, gives the sum."""

    def __init__(self, weights: study.RewardWeights | None = None) -> None:
        self.weights = weights or RewardWeights()

    def __call__(self, parts: Reward) -> float:
        return parts.total(self.weights)


class FeedbackAggregator:
    """One score for whatever was said of a response, explicit feedback counting more than implicit.

    Feedback is a number from 0 to 1, true or false, a mapping of kinds to values (`{"rating": 4, "reading": 12.5}`), a
    `Feedback`, or a list of these.  Kinds: score, thumbs, rating, correction, acceptance, reprompt, reading.
    """

    def __call__(self, given: Any, response: str) -> float:
        return aggregate(self.read(given, response))

    def read(self, given: Any, response: str) -> list[Feedback]:
        """The pieces of feedback in what was given."""
        if isinstance(given, Feedback):
            return [given]
        if isinstance(given, bool):
            return [read("thumbs", given)]
        if isinstance(given, int | float):
            return [read("score", given)]
        if isinstance(given, Mapping):
            return [read(kind, raw, response) for kind, raw in given.items()]
        if isinstance(given, list | tuple):
            return [piece for each in given for piece in self.read(each, response)]
        raise ConfigError(
            f"{given!r:.80} is no feedback: give a number from 0 to 1, true or false, or a mapping of kinds "
            f"({', '.join(KINDS)}) to values"
        )


AnyReward = Callable[[Reward], float]
AnyAggregator = Callable[[Any, str], float]
