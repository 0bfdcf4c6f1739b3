"""The population: which prompts answer next, what they are worth, and how better ones take their places."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fanfold.prompting.breeding import PromptBreeder
from fanfold.prompting.genome import Candidate, Genome
from fanfold.studies.critic.bank import TRIES, diversity
from fanfold.studies.critic.config import EvolutionaryParams
from fanfold.types import Result, Trial

#: How much of a prompt's fitness each reward replaces.
RATE = 0.1
#: The most that an expected reward counts, as a share of a real one.
EXPECTED_SHARE = 0.5
#: The share of the non-elite that a generation replaces, and what a prompt must have seen before it may go.
REPLACED, ENOUGH = 0.25, 2.0
#: How many children are imagined for each that is born.
BROOD = 12
#: Over how many responses a prompt's style is averaged, and as how many its parents' style counts for a child.
STYLE_MEMORY, INHERITED = 50.0, 2.0


@dataclass
class Member:
    """A prompt in the population, its fitness, and on how much it rests (rewards; an expected one counts in part)."""

    prompt: Genome
    fitness: float
    evidence: float = 0.0
    born: int = 0
    #: The mean style of its responses, and on how many it rests.
    style: list[float] = field(default_factory=list)
    seen: float = 0.0
    #: The share of the fitness that is still the first guess.
    guessed: float = 0.0
    #: Responses of it that were shown and may still get feedback.
    open: int = 0

    def notice(self, style: Sequence[float]) -> None:
        """Take one more response into the mean; the last few dozen count most."""
        self.seen = min(self.seen + 1.0, STYLE_MEMORY)
        old = self.style or list(style)
        self.style = [mean + (value - mean) / self.seen for mean, value in zip(old, style)]


@dataclass(frozen=True)
class GenerationStats:
    """What the population was like when a generation was made; `query` says after how many answers."""

    query: int
    best: float
    mean: float
    variance: float
    diversity: float


#: How much each member would be missed, and what a prompt that is not among them promises.
Prospects: TypeAlias = tuple[Mapping[str, float], Callable[[Genome], float]]
Outlook: TypeAlias = "Callable[[Sequence[Member]], Prospects]"


@dataclass
class Population:
    """Prompts with their fitness.  Evolution stops when the best has not improved for so many generations."""

    params: EvolutionaryParams
    members: list[Member]
    generations: list[GenerationStats] = field(default_factory=list)
    reference: float | None = None
    stale: int = 0
    stopped: bool = False

    @property
    def best(self) -> Member:
        return max(self.members, key=lambda member: member.fitness)

    @property
    def mean(self) -> float:
        return sum(member.fitness for member in self.members) / len(self.members)

    def find(self, prompt: Genome) -> Member | None:
        return next((member for member in self.members if member.prompt == prompt), None)

    def top(self, many: int, exploration: float = 0.1, suited: Mapping[str, float] | None = None) -> list[Member]:
        """The best by fitness, by how they suit the query, and a bonus for the little known, which fades with use."""

        def standing(member: Member) -> float:
            bonus = exploration / math.sqrt(1.0 + member.evidence + member.open)
            return member.fitness + (suited or {}).get(member.prompt.text, 0.0) + bonus

        return sorted(self.members, key=standing, reverse=True)[:many]

    def least_known(self, many: int) -> list[Member]:
        return sorted(self.members, key=lambda member: member.evidence + member.open)[:many]

    def credit(self, prompt: Genome, reward: float, confidence: float | None = None) -> None:
        """Move a prompt's fitness: by a real reward, or by an expected one as far as the critic may be trusted.

        A prompt that has left the population in the meantime is ignored.
        """
        member = self.find(prompt)
        if member is None:
            return
        share = 1.0 if confidence is None else EXPECTED_SHARE * min(1.0, max(0.0, confidence))
        member.fitness += RATE * share * (reward - member.fitness)
        member.guessed *= 1.0 - RATE * share
        member.evidence += share

    def adopt(self, prompts: Sequence[Genome], fitness: float) -> None:
        """Take prompts in, in the places of others that never answered."""
        for prompt in prompts:
            if self.find(prompt) is None:
                unused = [at for at, m in enumerate(self.members) if not m.seen and m.prompt not in prompts]
                if unused:
                    del self.members[unused[0]]
                self.members.append(Member(prompt, fitness, guessed=1.0))

    def correct(self, prompt: Genome, change: float) -> None:
        """A reward that a prompt was credited with has changed by so much."""
        if (member := self.find(prompt)) is not None:
            member.fitness += RATE * change

    def fade(self, half_life: float) -> None:
        """Believe less of what is known, by one answer, so that a prompt that was bad long ago is tried again."""
        kept, mean = 0.5 ** (1.0 / half_life), self.mean
        for member in self.members:
            member.fitness = mean + kept * (member.fitness - mean)
            member.evidence *= kept

    def settle(self, change: float) -> None:
        """The first guess has changed by so much: move each fitness by the share of it that is still that guess.

        Without this a prompt's fitness would tell how often it was used rather than how good it is.
        """
        for member in self.members:
            member.fitness += member.guessed * change

    def evolve(self, breeder: PromptBreeder, rng: random.Random, query: int, outlook: Outlook | None = None) -> None:
        """One generation: children of good prompts replace the worst that had their chance.

        With an outlook, the worst are those that would be missed least, so a prompt that is the best for one kind of
        query stays though it is bad on average; and each child is the most promising of a brood.
        """
        self._note(query)
        if self.stopped:
            return
        elite = self._elite()
        room = max(1, round(REPLACED * (len(self.members) - len(elite))))
        taken = {member.prompt.text for member in self.members}  # those that leave are not born again at once
        for _ in range(room):
            brood = [self._child(breeder, rng, query, taken) for _ in range(1 if outlook is None else BROOD)]
            born = [child for child in brood if child is not None]
            child = self._settle_in(born, elite, outlook)
            if child is None:
                return
            taken.add(child.prompt.text)

    def join(self, prompt: Genome, parents: Sequence[Genome], query: int, outlook: Outlook | None = None) -> None:
        """Take in a prompt that was written, in the place of the worst that had its chance."""
        if prompt.clauses and self.find(prompt) is None:
            members = [member for member in map(self.find, parents) if member is not None] or [self.best]
            self._settle_in([self._born(prompt, members, query)], self._elite(), outlook)

    def _elite(self) -> list[Member]:
        return sorted(self.members, key=lambda member: -member.fitness)[: self.params.elite_size]

    def _settle_in(self, born: Sequence[Member], elite: Sequence[Member], outlook: Outlook | None) -> Member | None:
        """Let the most promising newcomer take the place of the worst that had its chance; None if nothing moved."""
        mature = [m for m in self.members if m.evidence >= ENOUGH and not any(m is each for each in elite)]
        if not mature or not born:
            return None
        if outlook is None:
            leaving, child = min(mature, key=lambda member: member.fitness), born[0]
        else:
            missed, promise = outlook(self.members)
            leaving = min(mature, key=lambda member: (missed[member.prompt.text], member.fitness))
            child = max(born, key=lambda each: promise(each.prompt))
        self.members[next(i for i, member in enumerate(self.members) if member is leaving)] = child
        return child

    def _note(self, query: int) -> None:
        """Write down what the population is like, and see whether it still gets better."""
        scores, mean = [member.fitness for member in self.members], self.mean
        spread = sum((score - mean) ** 2 for score in scores) / len(scores)
        prompts = [member.prompt for member in self.members]
        self.generations.append(GenerationStats(query, max(scores), mean, spread, diversity(prompts)))
        if self.reference is None or max(scores) >= self.reference + self.params.min_improvement:
            self.reference, self.stale = max(scores), 0
        else:
            self.stale += 1
        self.stopped = self.stopped or self.stale >= self.params.patience

    def _child(self, breeder: PromptBreeder, rng: random.Random, query: int, taken: set[str]) -> Member | None:
        """A new prompt, with the fitness its parents lead to expect; None if all that was tried exists already."""
        results: list[Result[Candidate]] = [
            Result(Trial(at, member.prompt), member.fitness, {}) for at, member in enumerate(self.members)
        ]

        def pick(but: Result[Candidate] | None = None) -> Result[Candidate] | None:
            """The better of two drawn at random."""
            others = [result for result in results if result is not but]
            return (
                max(rng.choice(others), rng.choice(others), key=lambda result: result.score or 0.0) if others else None
            )

        bred = breeder.child(pick, rng, self.params.mutation_rate)
        for _ in range(TRIES):
            if isinstance(bred.candidate, Genome) and bred.candidate.clauses and bred.candidate.head() not in taken:
                return self._born(bred.candidate, [self.members[result.number] for result in bred.parents], query)
            bred = breeder.again(bred, rng, self.params.mutation_rate)
        return None

    def _born(self, prompt: Genome, parents: Sequence[Member], query: int) -> Member:
        expected = sum(parent.fitness for parent in parents) / len(parents)
        styles = [parent.style for parent in parents if parent.style]
        style = [sum(values) / len(values) for values in zip(*styles)]
        return Member(prompt, (expected + self.mean) / 2, 0.0, query, style, INHERITED if style else 0.0)

    def refine(self, threshold: float) -> None:
        """Drop prompts that read alike, and those under the threshold; the best always stays."""
        best, kept, seen = self.best, [], set()
        for member in sorted(self.members, key=lambda member: -member.fitness):
            if member.prompt.text not in seen and (member is best or member.fitness >= threshold):
                kept.append(member)
            seen.add(member.prompt.text)
        self.members = kept
