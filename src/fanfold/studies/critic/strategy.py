"""The search: which prompts answer the next query, which response is shown, and what is learnt from the feedback."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from fanfold.encoding import derive_seed
from fanfold.identity import formerly
from fanfold.prompting.genome import Genome
from fanfold.strategies.reflective import MOST_CHARACTERS, ShownCase
from fanfold.strategy import Strategy
from fanfold.studies.critic.actor import Actor, Decision, advantages, lesson, pick, standing
from fanfold.studies.critic.bank import breeder_of, clauses_of, first_prompts, material_of, prompt_of
from fanfold.studies.critic.config import CriticConfig
from fanfold.studies.critic.critic import LinearCritic
from fanfold.studies.critic.evaluator import SLOT, Generate, Show, Shown, Step, Write, is_former, response_of, step_of
from fanfold.studies.critic.evolution import EXPECTED_SHARE, Member, Population, Prospects
from fanfold.studies.critic.features import CUES, NAMES, STYLE, combined, cues, features, situation, style
from fanfold.studies.critic.habits import Habits, outlook
from fanfold.studies.critic.memory import (
    RECENT,
    AppraisedResponse,
    CriticMemory,
    CriticState,
    PendingChoice,
    QueryRecord,
)
from fanfold.studies.critic.reward import Reward, coherence, unsafe
from fanfold.types import Ok, Result

#: What is saved of the population.
_POPULATION = ("members", "generations", "reference", "stale", "stopped")
#: Changes when what is saved would be misread.
LAYOUT = "3"
#: How many disliked responses the writer is shown.
SHOWN_CASES = 3


@formerly("Search")
class CriticStrategy(Strategy[Step]):
    """For each query: asks for the responses of the best prompts, shows one of them, and learns from the feedback.

    With `window` queries under way, what is chosen for a query rests on the feedback to all but the last few.
    """

    revive = staticmethod(step_of)

    def __init__(self, config: CriticConfig, queries: Sequence[str]) -> None:
        self.config = config
        self.queries = tuple(queries)
        self.material = material_of(config.prompts, config.bank)
        self.window = config.concurrent

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self.seed = seed
        config = self.config
        size = config.evolution.population_size if config.evolve or not config.prompts else 0
        prompts = first_prompts(size, config.prompts, self.material, self._rng("population", 0))
        members = [Member(prompt, self.middling(), guessed=1.0) for prompt in prompts]
        self.population = Population(config.evolution, members)
        self.critic = LinearCritic(len(NAMES), config.half_life)
        self.actor = Actor(config.temperatures, len(CUES))
        clauses = [clause for prompt in prompts for clause in clauses_of(prompt)]
        clauses += [clause.strip() for section in self.material.clauses.values() for clause in section]
        self.habits = Habits(clauses, len(STYLE))
        self.memory = CriticMemory()

    def middling(self) -> float:
        return Reward(0.5, 0.5, 0.5, self.config.max_tokens // 2, 0.0).total(self.config.reward)

    @property
    def evolution_stopped(self) -> bool:
        return self.population.stopped

    @property
    def done(self) -> bool:
        """Whether every query has been dealt with."""
        memory = self.memory
        return memory.answered + memory.skipped + memory.unanswered == self.config.total

    def _rng(self, purpose: str, number: int) -> random.Random:
        """Chance for one purpose at one query: nothing depends on what was drawn before, so nothing has to be saved."""
        return random.Random(derive_seed(self.seed, purpose, number))

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, n: int) -> Sequence[Step]:
        asked: list[Step] = []
        while len(asked) < n:
            if self.memory.shows:
                asked.append(self.memory.shows.pop(0))
            elif self.memory.asked < self.config.total:
                number, many = self.memory.asked, len(self.queries)
                asked.append(self.propose(number, self.queries[number % many], number // many))
                self.memory.asked += 1
            else:
                break
        return asked

    def known_size(self) -> int:
        """Every query is answered and judged; a writer is asked once for each generation."""
        config, generations = self.config, 0
        if config.evolve and config.writer is not None:
            generations = max(0, config.total - config.bootstrap_queries) // config.evolution.evolution_interval
        return 2 * config.total + generations

    def propose(self, number: int, query: str, sample: int = 0) -> Generate:
        """Which prompts answer a query, and at which temperatures."""
        params = self.config.actor_critic
        if self._bootstrapping(number):
            members = self.population.least_known(params.num_candidates)
        else:
            members = self.population.top(params.num_candidates, params.exploration, self._suited(query))
        options = self.actor.temperature_options(cues(query))
        warm = self.actor.warms.probabilities(options, params.exploration).tolist()
        self.memory.generating[number] = warm
        drawn = self._rng("temperature", number).choices(self.config.temperatures, warm, k=len(members))
        prompts = tuple(member.prompt for member in members)
        return Generate(number, query, prompts, tuple(drawn), sample)

    def _bootstrapping(self, number: int) -> bool:
        return number < self.config.bootstrap_queries

    def _suited(self, query: str) -> dict[str, float]:
        """By how much more (or less) reward than usual each prompt may earn with a query, as the critic sees it.

        The critic is linear in style and situation, so a prompt's mean style in this situation and in the mean one
        stand for the responses it would give.
        """
        known = [member for member in self.population.members if member.style]
        if not known:
            return {}
        places = (situation(query), self.memory.situations.mean)
        expected = self.critic.predict([combined(m.prompt, place, m.style) for place in places for m in known]).mean
        worth = self.config.reward.lambda_feedback + self.config.reward.lambda_critic
        gains = worth * (expected[: len(known)] - expected[len(known) :])
        return {member.prompt.text: float(gain) for member, gain in zip(known, gains)}

    def origin(self, candidate: Step) -> Any:
        """What the critic expected of the responses, and how likely those shown were to be chosen."""
        waiting = self.memory.waiting.get(candidate.number)
        if not isinstance(candidate, Show) or waiting is None:
            return None
        return {
            "expected": [round(each.expected, 4) for each in waiting.candidates],
            "sd": [round(each.sd, 4) for each in waiting.candidates],
            "probability": [round(waiting.probabilities[each], 4) for each in waiting.chosen],
            "chosen": list(waiting.chosen),
        }

    def follow(self, asked: Step, recorded: Any) -> Step | None:
        """The step that version 0.1.0 recorded in the place of one that was just asked; None: it must be the same.

        A run that began with that version's search is learnt from as it was, and continues with the search of today.
        """
        if not is_former(recorded):
            return None
        step = step_of(recorded)
        if isinstance(step, Write) or isinstance(asked, Write):
            return None
        if (type(step), step.number, step.query) != (type(asked), asked.number, asked.query):
            return None
        if isinstance(step, Generate):
            self.population.adopt(step.prompts, self.middling())
        else:
            waiting = self.memory.waiting[step.number]
            slots = [each.shown.slot for each in waiting.candidates]
            self.memory.waiting[step.number] = replace(waiting, chosen=[slots.index(each.slot) for each in step.shown])
        return step

    # -- choosing ----------------------------------------------------------------------------------------------------

    def tell(self, result: Result[Step]) -> None:
        step, memory = result.candidate, self.memory
        if isinstance(step, Write):
            self._join(step, result)
        elif isinstance(step, Generate):
            responses = _responses(step, result)
            self.notice(step.query, [(shown.prompt, shown.response) for shown, _ in responses])
            choice = self.choose(step, responses, 2 if self.config.ask == "pair" else 1)
            if choice is None:
                memory.skipped += 1
            else:
                memory.waiting[step.number] = choice
                memory.shows.append(choice.show(step.number, step.query))
        else:
            waiting, scores = memory.waiting.pop(step.number), _scores(step, result)
            if scores is None:
                memory.unanswered += 1
            else:
                self.learn(step, waiting, scores)
        if self.done:
            self.population.refine(self.config.fitness_threshold)

    def notice(self, query: str, responses: Sequence[tuple[Genome, str]]) -> None:
        """Take in what queries are like, and how prompts answer them."""
        self.memory.situations.notice(situation(query))
        for prompt, response in responses:
            look = style(query, response)
            self.habits.learn(prompt, look)
            if (member := self.population.find(prompt)) is not None:
                member.notice(look)

    def choose(self, asked: Generate, responses: Sequence[tuple[Shown, int]], wanted: int = 1) -> PendingChoice | None:
        """Which of the responses (with their tokens) the actor shows; None where there are fewer than wanted."""
        rng, warm = self._rng("choice", asked.number), self.memory.generating.pop(asked.number)
        if len(responses) < wanted:
            return None
        candidates, drawn = self._candidates(asked, responses, rng)
        options = [self._signals(each, worth) for each, worth in zip(candidates, drawn)]
        doubt = 1.0 - sum(each.confidence for each in candidates) / len(candidates)
        blind = self.config.actor_critic.exploration * doubt
        if self.config.actor == "random" or self._bootstrapping(asked.number):
            blind = 1.0
        probabilities = self.actor.shows.probabilities(options, blind)
        chosen = pick(probabilities, wanted, rng)
        return PendingChoice(candidates, chosen, options, probabilities.tolist(), blind, warm)

    def _candidates(
        self, asked: Generate, responses: Sequence[tuple[Shown, int]], rng: random.Random
    ) -> tuple[list[AppraisedResponse], list[float]]:
        """What there is to choose from, and for each a value that it may have."""
        rows = [features(shown.prompt, asked.query, shown.response) for shown, _ in responses]
        seen = self.critic.predict(rows, rng if self.config.critic else None)
        candidates = [
            AppraisedResponse(
                shown=shown,
                expected=min(1.0, max(0.0, float(seen.mean[i]))),
                sd=float(seen.sd[i]),
                confidence=float(seen.confidence[i]),
                coherence=coherence(asked.query, shown.response),
                tokens=tokens,
                unsafe=unsafe(shown.prompt.text, asked.query, shown.response),
            )
            for i, (shown, tokens) in enumerate(responses)
        ]
        return candidates, seen.drawn.tolist()

    def _signals(self, candidate: AppraisedResponse, worth: float) -> list[float]:
        """What the actor weighs, in the order of `SIGNALS`."""
        member = self.population.find(candidate.shown.prompt)
        best, mean = self.population.best.fitness, self.population.mean
        stands = 0.0 if member is None else standing(member.fitness, best, mean)
        seen = [candidate.expected, worth, candidate.sd]
        return [*seen, stands, candidate.coherence, candidate.tokens / 100.0, candidate.unsafe]

    # -- learning ----------------------------------------------------------------------------------------------------

    def learn(self, shown: Show, waiting: PendingChoice, scores: Sequence[float]) -> None:
        """Learn from the feedback on what was chosen."""
        if self.config.critic:  # one that is not wanted is never taught, and knows nothing
            self._teach(shown, scores)
        if self.config.half_life is not None:
            self.population.fade(self.config.half_life)
        given = dict(zip(waiting.chosen, scores))
        rewards = [
            each.reward(given.get(i, each.expected)).total(self.config.reward)
            for i, each in enumerate(waiting.candidates)
        ]
        self.population.settle(self.memory.usual(rewards[waiting.chosen[0]], self.middling()))
        for i, (each, reward) in enumerate(zip(waiting.candidates, rewards)):
            self.population.credit(each.shown.prompt, reward, None if i in given else each.confidence)
        self._remember(shown, waiting, rewards, given)
        self._turn()

    def _teach(self, shown: Show, scores: Sequence[float]) -> None:
        rows = [features(each.prompt, shown.query, each.response) for each in shown.shown]
        if len(rows) == 2:
            self.critic.prefer(rows[0], rows[1], scores[0])
        else:
            self.critic.learn(rows[0], scores[0])

    def revise(self, shown: Show, before: Sequence[float], after: Sequence[float], age: int) -> None:
        """Somebody changed their mind about what was learnt so many answers ago."""
        for response, old, new in zip(shown.shown, before, after):
            self.population.correct(response.prompt, self.config.reward.lambda_feedback * (new - old))
        if self.config.critic and len(shown.shown) == 2:
            self._teach(shown, after)  # the newer preference stands beside the older, which it cancels or confirms
        elif self.config.critic:
            response = shown.shown[0]
            row = features(response.prompt, shown.query, response.response)
            self.critic.revise(row, before[0], after[0], age)

    def _remember(
        self, shown: Show, waiting: PendingChoice, rewards: Sequence[float], given: Mapping[int, float]
    ) -> None:
        """Keep the group for the actor's next update, and the record for people."""
        memory, ahead, choices = self.memory, advantages(rewards), self.config.temperatures
        trust = [1.0 if i in given else EXPECTED_SHARE * each.confidence for i, each in enumerate(waiting.candidates)]
        if waiting.blind < 1.0:  # a blind choice has nothing to improve
            memory.shown.append(lesson(waiting.options, waiting.probabilities, waiting.blind, ahead, trust))
        warm = [
            (choices.index(each.shown.temperature), ahead[i], trust[i]) for i, each in enumerate(waiting.candidates)
        ]
        options = self.actor.temperature_options(cues(shown.query))
        memory.warmed.append(Decision(options, waiting.warm, self.config.actor_critic.exploration, warm))
        first = waiting.chosen[0]
        chosen = waiting.candidates[first]
        if self.config.writer is not None and given[first] < 0.5:
            said, score = chosen.shown.response[:MOST_CHARACTERS], f"liked by {given[first]:.2f} of 1"
            case = ShownCase(shown.query[:MOST_CHARACTERS], "", said, score)
            memory.disliked = [*memory.disliked, (chosen.shown.prompt.text, case)][-RECENT:]
        expected, sd = waiting.guess()
        memory.records.append(
            QueryRecord(
                number=shown.number,
                prompt=chosen.shown.prompt.text,
                temperature=chosen.shown.temperature,
                feedback=given[first],
                expected=expected,
                sd=sd,
                reward=rewards[first],
                best=self.population.best.fitness,
                probability=waiting.probabilities[first],
            )
        )

    def _turn(self) -> None:
        """Count an answer, and do what is due after so many: an update of the actor, a generation."""
        config, memory = self.config, self.memory
        memory.answered += 1
        if memory.answered % config.actor_critic.update_interval == 0:
            if config.actor == "learned":
                self.actor.learn(memory.shown, memory.warmed)
            memory.shown, memory.warmed = [], []
        beyond = memory.answered - config.bootstrap_queries
        if config.evolve and beyond > 0 and beyond % config.evolution.evolution_interval == 0:
            rng = self._rng("evolution", memory.answered)
            breeder = breeder_of(self.material, config.evolution.crossover_rate)
            self.population.evolve(breeder, rng, memory.answered, self._outlook if config.critic else None)
            if config.writer is not None and memory.asked < config.total and not self.population.stopped:
                memory.shows.append(self._request(rng))

    def _outlook(self, members: Sequence[Member]) -> Prospects:
        return outlook(members, self.memory.situations.recent, self.critic, self.habits)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _request(self, rng: random.Random) -> Write:
        """What the writer is asked: a better version of a good prompt, from responses that were not liked."""
        parent = max(rng.choices(self.population.members, k=2), key=lambda member: member.fitness)
        own = [case for prompt, case in self.memory.disliked if prompt == parent.prompt.text]
        cases = own or [case for _, case in self.memory.disliked]
        return Write(self.memory.answered, (parent.prompt,), tuple(cases[-SHOWN_CASES:]))

    def _join(self, request: Write, result: Result[Step]) -> None:
        """Take in what the writer wrote, if it did."""
        outcome = result.outcomes.get(f"{SLOT}0")
        if isinstance(outcome, Ok) and isinstance(outcome.data, Mapping) and outcome.data.get("text"):
            prompt = prompt_of(str(outcome.data["text"]))
            self.population.join(prompt, request.prompts, request.number, self._outlook if self.config.critic else None)

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        people = {name: getattr(self.population, name) for name in _POPULATION}
        learnt = {name: getattr(self, name).state() for name in ("critic", "actor", "habits")}
        return msgspec.json.encode(CriticState(self.memory, **people, **learnt, layout=LAYOUT))

    def load(self, state: bytes) -> bool:
        saved = msgspec.json.decode(state, type=CriticState)
        if saved.layout != LAYOUT:
            return False
        self.memory = saved.memory
        people = {name: getattr(saved, name) for name in _POPULATION}
        self.population = Population(self.config.evolution, **people)
        self.critic = LinearCritic.of(saved.critic, self.config.half_life)
        self.actor.load(saved.actor)
        self.habits.load(saved.habits)
        return True


def _responses(asked: Generate, result: Result[Step]) -> list[tuple[Shown, int]]:
    """The responses that came, each with its tokens."""
    came = []
    for slot, (prompt, temperature) in enumerate(zip(asked.prompts, asked.temperatures)):
        outcome = result.outcomes.get(f"{SLOT}{slot}")
        response = response_of(outcome.data) if isinstance(outcome, Ok) else None
        if response is not None:
            came.append((Shown(slot, prompt, temperature, response[0]), response[1]))
    return came


def _scores(shown: Show, result: Result[Step]) -> list[float] | None:
    """The feedback on each response that was shown; None if there is none."""
    outcome = result.outcomes.get(f"{SLOT}0")
    if not isinstance(outcome, Ok):
        return None
    score = min(1.0, max(0.0, outcome.score))
    return [score, 1.0 - score] if len(shown.shown) == 2 else [score]
