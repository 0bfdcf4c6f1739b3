"""The documented step of actor-critic prompt optimisation: responses, a choice, feedback on it, and what is learnt."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanfold.encoding import derive_seed
from fanfold.errors import ConfigError
from fanfold.legacy.prompt_rl.parallel import (
    AnyLLM,
    generate_candidates,
    generate_candidates_parallel,
)
from fanfold.legacy.prompt_rl.params import TrainingConfig
from fanfold.legacy.prompt_rl.parts import (
    AnyActor,
    AnyAggregator,
    AnyCritic,
    AnyReward,
    Candidate,
    CompositeReward,
    FeedbackAggregator,
    LearnedActor,
    LearnedCritic,
    PromptPopulation,
)
from fanfold.mapping import run_parallel, serialised
from fanfold.studies.critic.evaluator import answering
from fanfold.studies.critic.evolution import Member
from fanfold.studies.critic.reward import Reward, coherence, unsafe

#: A token is taken to be so many characters where nobody counts them.
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class FlowStepResult:
    """What became of one query.

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


class HybridOptimizationFlow:
    """Answers queries with the best prompts of a population, and learns from what is said of the answers.

    The parts default to the study's learned ones; a population may be a list of prompts.  With `parallel_eval`, the
    responses to a query are generated, and scored by the critic, on `max_workers` threads (None: at most 4), so the
    backend and the critic must be thread-safe or say `thread_safe = False`.  Ours are.
    """

    def __init__(
        self,
        llm: AnyLLM,
        population: PromptPopulation | Iterable[str] | None = None,
        actor: AnyActor | None = None,
        critic: AnyCritic | None = None,
        reward_fn: AnyReward | None = None,
        feedback_aggregator: AnyAggregator | None = None,
        top_k_prompts: int = 5,
        max_tokens: int = 512,
        temperature: float = 0.7,
        parallel_eval: bool = False,
        max_workers: int | None = None,
    ) -> None:
        if top_k_prompts < 1:
            raise ConfigError(f"top_k_prompts must be at least 1, not {top_k_prompts}")
        own = population if isinstance(population, PromptPopulation) else PromptPopulation(population or ())
        self.llm = answering(llm) if isinstance(llm, str) else llm
        self.population = own
        self.actor: AnyActor = actor or LearnedActor()
        self.critic: AnyCritic = critic or LearnedCritic()
        self.reward_fn: AnyReward = reward_fn or CompositeReward()
        self.feedback_aggregator: AnyAggregator = feedback_aggregator or FeedbackAggregator()
        self.top_k_prompts = top_k_prompts
        self.max_tokens = max_tokens
        self.temperature = temperature
        self.parallel_eval = parallel_eval
        self.max_workers = max_workers
        self._steps = 0

    @classmethod
    def from_config(
        cls, llm: AnyLLM, config: TrainingConfig | None = None, prompts: Iterable[str] = (), seed: int = 0, **flow: Any
    ) -> HybridOptimizationFlow:
        """A flow of learned parts with the settings of a config, its threads included."""
        config = config or TrainingConfig()
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
            **flow,
        )

    def step(self, query: str, human_feedback: Any = None, *, blind: bool = False) -> FlowStepResult:
        """Answer a query and learn from the feedback.

        `human_feedback` is about the response that is shown: a function of (query, response) is asked once that exists;
        a value (see `FeedbackAggregator`) is taken to be about it, whichever is shown.  `blind` shows any response.
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
        return FlowStepResult(
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

    def _candidates(self, members: Sequence[Member], query: str, responses: Sequence[str]) -> list[Candidate]:
        triples = [(member.prompt.text, query, response) for member, response in zip(members, responses)]
        return [
            Candidate(
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

    def _select(self, query: str, candidates: Sequence[Candidate], blind: bool) -> int:
        if isinstance(self.actor, LearnedActor):
            return self.actor.select(query, candidates, blind)
        if blind:
            return random.Random(derive_seed(0, "blind", self._steps)).randrange(len(candidates))
        chosen = self.actor.select(query, candidates)
        if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < len(candidates):
            raise ConfigError(f"the actor chose {chosen!r} among {len(candidates)} candidates: give an index of them")
        return chosen

    def _learn(
        self,
        query: str,
        members: Sequence[Member],
        candidates: Sequence[Candidate],
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


def _parts(candidate: Candidate, feedback: float) -> Reward:
    return Reward(feedback, candidate.critic_score, candidate.coherence, candidate.tokens, candidate.unsafe)
