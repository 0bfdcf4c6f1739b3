"""Answering queries online: responses of the best prompts, a choice, feedback on it, and what is learnt from that."""

from __future__ import annotations

import operator
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.mapping import run_parallel, serialised
from fanfold.studies.critic.config import OnlineConfig
from fanfold.studies.critic.evaluator import answering
from fanfold.studies.critic.evolution import Member
from fanfold.studies.critic.feedback import FeedbackAggregator
from fanfold.studies.critic.online import (
    AnyActor,
    AnyAggregator,
    AnyCritic,
    AnyReward,
    CompositeReward,
    LearnedActor,
    LearnedCritic,
    OnlineResponse,
    PromptPopulation,
)
from fanfold.studies.critic.responses import AnyLLM, generate_candidates, generate_candidates_parallel
from fanfold.studies.critic.reward import Reward, coherence, unsafe

#: Characters per token, where nobody counts tokens.
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class OnlineStep:
    """The result of one query.

    `prompt_index_used` is the shown response's place among the `candidates`.  Without feedback, `feedback_score` is
    None, nothing is learnt from it, and the reward is the expected one.
    """

    query: str
    system_prompt_used: str
    prompt_index_used: int
    response_shown: str
    candidates: list[str]
    feedback_score: float | None
    critic_score: float
    reward_total: float
    info: dict[str, Any] = field(default_factory=dict)
    temperature_used: float = 0.7


@dataclass
class OnlineOptimiser:
    """Answers queries with the best prompts of a population, and learns from feedback on the answers.

    The parts default to the study's learned ones; a population may be a list of prompts. With `parallel_eval`, the
    responses to a query are generated and scored on `max_workers` threads (None: at most 4). The backend and the critic
    must then be thread-safe or say `thread_safe = False`. Ours are thread-safe.
    """

    llm: AnyLLM
    #: A `PromptPopulation`, or prompts that become one.
    population: Any = ()
    actor: AnyActor = field(default_factory=LearnedActor)
    critic: AnyCritic = field(default_factory=LearnedCritic)
    reward_fn: AnyReward = field(default_factory=CompositeReward)
    feedback_aggregator: AnyAggregator = field(default_factory=FeedbackAggregator)
    top_k_prompts: int = 5
    max_tokens: int = 512
    temperature: float = 0.7
    parallel_eval: bool = False
    max_workers: int | None = None
    _steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.top_k_prompts < 1:
            raise ConfigError(f"top_k_prompts must be at least 1, not {self.top_k_prompts}")
        if not isinstance(self.population, PromptPopulation):
            self.population = PromptPopulation(self.population or ())
        if isinstance(self.llm, str):
            self.llm = answering(self.llm)

    @classmethod
    def from_config(
        cls, llm: AnyLLM, config: OnlineConfig | None = None, prompts: Iterable[str] = (), seed: int = 0, **more: Any
    ) -> OnlineOptimiser:
        """Learned parts with the settings of a config, its threads included."""
        config = config or OnlineConfig()
        params = config.actor_critic
        return cls(
            llm,
            PromptPopulation(prompts, config.evolutionary, exploration=params.exploration, seed=seed),
            LearnedActor(params.exploration, seed=seed),
            LearnedCritic(),
            CompositeReward(config.reward),
            FeedbackAggregator(),
            top_k_prompts=params.num_candidates,
            parallel_eval=params.parallel_eval,
            max_workers=params.max_workers,
            **more,
        )

    def step(self, query: str, human_feedback: Any = None, *, blind: bool = False) -> OnlineStep:
        """Answer a query and learn from the feedback.

        `human_feedback` is about the response that is shown. A function of (query, response) is called once the
        response exists. A value (see `FeedbackAggregator`) applies to whichever response is shown. `blind` shows any
        response.
        """
        members = self.population.top(self.top_k_prompts)
        temperature = self._temperature(query)
        prompts = [member.prompt.text for member in members]
        responses = self._generate(prompts, query, temperature)
        candidates = self._candidates(members, query, responses)
        chosen = self._select(query, candidates, blind)
        shown = candidates[chosen]
        said = human_feedback(query, shown.response) if callable(human_feedback) else human_feedback
        score = None if said is None else float(self.feedback_aggregator(said, shown.response))
        rewards = [
            self.reward_fn(_parts(each, score if score is not None and at == chosen else each.critic_score))
            for at, each in enumerate(candidates)
        ]
        self._learn(query, members, candidates, chosen, rewards, score)
        self._steps += 1
        return OnlineStep(
            query=query,
            system_prompt_used=shown.system_prompt,
            prompt_index_used=chosen,
            response_shown=shown.response,
            candidates=responses,
            feedback_score=score,
            critic_score=shown.critic_score,
            reward_total=rewards[chosen],
            info={
                "critic_scores": [each.critic_score for each in candidates],
                "rewards": rewards,
                "feedback": said,
                "coherence": shown.coherence,
                "tokens": shown.tokens,
                "unsafe": shown.unsafe,
                "blind": blind,
            },
            temperature_used=temperature,
        )

    def _temperature(self, query: str) -> float:
        choose = getattr(self.actor, "temperature", None)
        chosen = choose(query) if callable(choose) else None
        return self.temperature if chosen is None else float(chosen)

    def _generate(self, prompts: Sequence[str], query: str, temperature: float) -> list[str]:
        if self.parallel_eval:
            return generate_candidates_parallel(
                self.llm, prompts, query, self.max_tokens, temperature, max_workers=self.max_workers
            )
        return generate_candidates(self.llm, prompts, query, self.max_tokens, temperature)

    def _candidates(self, members: Sequence[Member], query: str, responses: Sequence[str]) -> list[OnlineResponse]:
        triples = [(member.prompt.text, query, response) for member, response in zip(members, responses)]
        return [
            OnlineResponse(
                prompt,
                response,
                fitness=member.fitness,
                coherence=coherence(query, response),
                tokens=-(-len(response) // CHARACTERS_PER_TOKEN),
                unsafe=unsafe(prompt, query, response),
                **opinion,
            )
            for member, (prompt, _, response), opinion in zip(members, triples, self._opinions(triples))
        ]

    def _opinions(self, triples: Sequence[tuple[str, str, str]]) -> list[dict[str, float]]:
        """What the critic thinks of each; one that has only scores is taken at its word."""
        opinion = getattr(self.critic, "opinion", None)
        if callable(opinion):
            seed = derive_seed(0, "opinion", self._steps)
            # The same chance for each: what is drawn is one possible truth about all of them.
            return self._called(opinion, [(*triple, random.Random(seed)) for triple in triples])
        scores = self._called(self.critic.score, triples)
        return [{"critic_score": float(score), "drawn": float(score), "confidence": 0.5} for score in scores]

    def _called(self, fn: Callable[..., Any], items: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The function on each item: on threads, or one after the other."""
        return run_parallel(fn, items, self.max_workers) if self.parallel_eval else [fn(*item) for item in items]

    def _select(self, query: str, candidates: Sequence[OnlineResponse], blind: bool) -> int:
        if isinstance(self.actor, LearnedActor):
            return self.actor.select(query, candidates, blind)
        if blind:
            return random.Random(derive_seed(0, "blind", self._steps)).randrange(len(candidates))
        chosen = self.actor.select(query, candidates)
        try:
            place = operator.index(chosen)  # numpy's argmax gives its own integers
        except TypeError:
            place = -1
        if isinstance(chosen, bool) or not 0 <= place < len(candidates):
            raise ConfigError(f"the actor chose {chosen!r} among {len(candidates)} candidates: give an index of them")
        return place

    def _learn(
        self,
        query: str,
        members: Sequence[Member],
        candidates: Sequence[OnlineResponse],
        chosen: int,
        rewards: Sequence[float],
        score: float | None,
    ) -> None:
        shown = candidates[chosen]
        if score is not None:
            serialised(self.critic.update)(shown.system_prompt, query, shown.response, score)
        for at, (member, candidate) in enumerate(zip(members, candidates)):
            real = at == chosen and score is not None
            self.population.credit(member.prompt, rewards[at], None if real else candidate.confidence)
        observe = getattr(self.actor, "observe", None)
        if callable(observe):
            observe(query, candidates, chosen, rewards, score is not None)


def _parts(candidate: OnlineResponse, feedback: float) -> Reward:
    return Reward(feedback, candidate.critic_score, candidate.coherence, candidate.tokens, candidate.unsafe)


#: Feedback on a response: a value, or a function of (query, response) that is asked once the response exists.
AnyFeedback = Any

PHASES = ("initialise", "main", "refine", "done")


class OnlineTraining:
    """Trains an optimiser in phases.

    `initialise` shows responses blindly, to seed the critic; `main` updates the actor every `update_interval` queries
    and evolves the population every `evolution_interval`, until the best improves less than `min_improvement` over
    `patience` generations (`evolution_stopped`); `refine` drops duplicates and weak prompts.  `run` does all three.
    """

    def __init__(self, flow: OnlineOptimiser, config: OnlineConfig | None = None) -> None:
        self.flow = flow
        self.config = config or OnlineConfig()
        self.phase = PHASES[0]
        self.steps: list[OnlineStep] = []
        self._answered = 0
        self._fitness: list[float] = []

    @property
    def evolution_stopped(self) -> bool:
        return bool(self.flow.population.stopped)

    def run(self, queries: Iterable[str], feedback: AnyFeedback, threshold: float = 0.5) -> list[OnlineStep]:
        """All phases: the first `bootstrap_queries` of the queries seed the critic, the others are the main loop."""
        if isinstance(queries, str):
            raise ConfigError(f"queries must be a list of texts, not the text {queries!r:.60}")
        left = iter(queries)
        self.initialise(left, feedback)
        self.main(left, feedback)
        self.refine(threshold)
        return self.steps

    def initialise(self, queries: Iterable[str], feedback: AnyFeedback) -> list[OnlineStep]:
        """Answer up to `bootstrap_queries` queries with a blind choice."""
        self.phase = "initialise"
        limit = self.config.bootstrap_queries
        if self.config.max_queries_per_phase is not None:
            limit = min(limit, self.config.max_queries_per_phase)
        return [self._step(query, feedback, blind=True) for query in islice(queries, limit)]

    def main(self, queries: Iterable[str], feedback: AnyFeedback) -> list[OnlineStep]:
        """Answer queries, learn and evolve."""
        self.phase = "main"
        done = []
        for query in islice(queries, self.config.max_queries_per_phase):
            done.append(self._step(query, feedback, blind=False))
            self._answered += 1
            if self._answered % self.config.actor_critic.update_interval == 0:
                self._update()
            if self._answered % self.config.evolutionary.evolution_interval == 0:
                self.flow.population.renew(self._answered)
        return done

    def refine(self, threshold: float = 0.5) -> list[str]:
        """Drop duplicates and prompts whose fitness is under the threshold; gives the prompts that stay."""
        self.phase = "refine"
        self.flow.population.refine(threshold)
        self.phase = "done"
        return list(self.flow.population.prompts)

    def metrics(self, window: int = 20) -> dict[str, Any]:
        """Fitness over time, variance between prompts, satisfaction in a window, slope, diversity per generation."""
        heard = [step.feedback_score for step in self.steps if step.feedback_score is not None]
        generations = self.flow.population.generations
        worth = [member.fitness for member in self.flow.population.members]
        return {
            "fitness": list(self._fitness),
            "variance": statistics.pvariance(worth),
            "satisfaction": statistics.fmean(heard[-window:]) if heard else None,
            "slope": _slope(self._fitness[-window:]),
            "diversity": [generation.diversity for generation in generations],
            "generations": len(generations),
            "evolution_stopped": self.evolution_stopped,
        }

    def _step(self, query: str, feedback: AnyFeedback, blind: bool) -> OnlineStep:
        step = self.flow.step(query, feedback, blind=blind)
        self.steps.append(step)
        self._fitness.append(self.flow.population.best.fitness)
        return step

    def _update(self) -> None:
        """The group-relative update of the actor; the critic has learnt from each answer when it came."""
        update: Callable[[], Any] | None = getattr(self.flow.actor, "update", None)
        if callable(update):
            update()


def _slope(values: Sequence[float]) -> float:
    """How much a value changes from one query to the next, by a straight line through the last of them."""
    if len(values) < 2:
        return 0.0
    return statistics.linear_regression(range(len(values)), values).slope
