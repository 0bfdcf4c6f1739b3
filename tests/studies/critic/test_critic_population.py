"""What the population promises: the formula of fitness, elites that stay, newcomers that get their chance, an end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.prompting.genome import Genome
from fanfold.studies.critic.bank import breeder_of, first_prompts, material_of
from fanfold.studies.critic.config import EvolutionaryParams
from fanfold.studies.critic.evolution import ENOUGH, Member, Population

BUILT_IN = material_of(())
BREEDER = breeder_of(BUILT_IN)
rewards = st.floats(-2, 3)


def population(many: int = 10, seed: int = 1, evidence: float = 5.0, **params: float) -> Population:
    prompts = first_prompts(many, (), BUILT_IN, random.Random(seed))
    members = [Member(prompt, i / many, evidence) for i, prompt in enumerate(prompts)]
    return Population(EvolutionaryParams(**params), members)  # type: ignore[arg-type]


@pytest.mark.slow
@given(rewards, rewards)
def test_real_reward_counts_a_tenth(fitness: float, reward: float) -> None:
    people = population()
    people.members[3].fitness = fitness
    people.credit(people.members[3].prompt, reward)
    assert people.members[3].fitness == pytest.approx(0.9 * fitness + 0.1 * reward)
    assert people.members[3].evidence == 6.0


@pytest.mark.slow
@given(rewards, rewards, st.floats(-1, 2))
def test_what_is_only_expected_always_counts_less_than_what_was_said(
    fitness: float, reward: float, confidence: float
) -> None:
    real, expected = population(), population()
    for each in (real, expected):
        each.members[0].fitness = fitness
    real.credit(real.members[0].prompt, reward)
    expected.credit(expected.members[0].prompt, reward, confidence)
    moved, guessed = abs(real.members[0].fitness - fitness), abs(expected.members[0].fitness - fitness)
    assert guessed <= 0.5 * moved + 1e-12
    assert (expected.members[0].fitness - fitness) * (reward - fitness) >= 0.0


def test_a_critic_without_evidence_moves_nothing() -> None:
    people = population()
    people.credit(people.members[0].prompt, 2.0, 0.0)
    assert people.members[0].fitness == 0.0 and people.members[0].evidence == 5.0


def test_a_prompt_that_has_gone_gets_no_credit() -> None:
    people = population()
    before = [member.fitness for member in people.members]
    people.credit(Genome(("Gone.",)), 9.0)
    assert [member.fitness for member in people.members] == before


def test_a_better_first_guess_moves_what_rests_on_it() -> None:
    people = population()
    fresh, used = people.members[0], people.members[1]
    for member in (fresh, used):
        member.fitness, member.guessed = 1.0, 1.0
    for _ in range(10):
        people.credit(used.prompt, 2.0)
    before = used.fitness
    people.settle(0.5)
    assert fresh.fitness == 1.5
    assert used.fitness == pytest.approx(before + 0.5 * 0.9**10)


@pytest.mark.slow
@given(st.integers(0, 10**6))
def test_the_elite_stays_and_the_worst_goes(seed: int) -> None:
    people = population(seed=seed)
    elite = [member.prompt for member in people.members[-2:]]
    worst = [member.prompt for member in people.members[:2]]
    people.evolve(BREEDER, random.Random(seed), 30)
    prompts = [member.prompt for member in people.members]
    assert len(prompts) == 10 and len({prompt.text for prompt in prompts}) == 10
    assert all(prompt in prompts for prompt in elite)
    assert not any(prompt in prompts for prompt in worst)


def test_a_newcomer_is_not_replaced_before_it_had_its_chance() -> None:
    people = population(evidence=ENOUGH / 2)
    before = [member.prompt for member in people.members]
    people.evolve(BREEDER, random.Random(1), 30)
    assert [member.prompt for member in people.members] == before


def test_children_begin_with_what_their_parents_lead_to_expect() -> None:
    people = population()
    for member in people.members:
        member.notice([0.25, 0.5])
    people.evolve(BREEDER, random.Random(1), 30)
    children = [member for member in people.members if member.born == 30]
    assert len(children) == 2
    assert all(0.0 < child.fitness < 1.0 and child.evidence == 0.0 for child in children)
    assert all(child.style == [0.25, 0.5] for child in children)


def test_evolution_stops_when_the_best_no_longer_improves_and_says_so() -> None:
    people = population(patience=3, min_improvement=0.05)
    for generation in range(4):
        assert not people.stopped
        people.evolve(BREEDER, random.Random(generation), generation)
        for member in people.members:
            member.fitness, member.evidence = min(member.fitness, 0.92), 5.0  # improves by less than 0.05
    assert people.stopped
    before = [member.prompt for member in people.members]
    people.evolve(BREEDER, random.Random(9), 9)
    assert [member.prompt for member in people.members] == before
    assert len(people.generations) == 5  # what it is like is still written down


def test_evolution_goes_on_while_the_best_improves() -> None:
    people = population(patience=2, min_improvement=0.05)
    for generation in range(8):
        people.best.fitness += 0.06
        people.evolve(BREEDER, random.Random(generation), generation)
    assert not people.stopped


def test_the_best_answer_and_the_little_known_are_tried() -> None:
    people = population(evidence=1000.0)
    assert [member.fitness for member in people.top(3, 0.1, {})] == [0.9, 0.8, 0.7]
    people.members[0].evidence, people.members[0].fitness = 0.0, 0.65
    assert people.members[0] in people.top(3, 0.1, {})
    assert people.members[0] not in people.top(3, 0.0, {})
    assert people.members[1] in people.top(3, 0.0, {people.members[1].prompt.text: 0.9})
    assert people.least_known(1) == [people.members[0]]


def test_refinement_drops_doubles_and_the_unfit_but_never_the_best() -> None:
    people = population()
    people.members[8] = Member(people.members[9].prompt, 0.85)
    people.refine(0.45)
    assert [member.fitness for member in people.members] == [0.9, 0.7, 0.6, 0.5]
    people.refine(5.0)
    assert [member.fitness for member in people.members] == [0.9]
