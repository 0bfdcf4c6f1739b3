"""What prompts in sections promise: never empty, never twice the same clause, and text that survives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.studies.critic.genome import (
    BANK,
    MOST_CLAUSES,
    SECTIONS,
    Prompt,
    compose,
    crossover,
    distance,
    diversity,
    first_prompts,
    mutate,
)

seeds = st.integers(0, 10**9)


def is_sound(prompt: Prompt) -> bool:
    sections = [getattr(prompt, section) for section in SECTIONS]
    return bool(prompt.text) and all(len(set(each)) == len(each) <= MOST_CLAUSES for each in sections)


@pytest.mark.slow
@given(seeds, st.floats(0, 1))
def test_every_composed_and_every_mutated_prompt_is_sound(seed: int, rate: float) -> None:
    rng = random.Random(seed)
    prompt = compose(BANK, rng)
    assert is_sound(prompt)
    for _ in range(10):
        prompt = mutate(prompt, BANK, rng, rate)
        assert is_sound(prompt)


@given(seeds)
def test_a_child_has_each_section_from_one_of_its_parents(seed: int) -> None:
    rng = random.Random(seed)
    a, b = compose(BANK, rng), compose(BANK, rng)
    child = crossover(a, b, rng)
    assert is_sound(child)
    assert all(getattr(child, section) in (getattr(a, section), getattr(b, section)) for section in SECTIONS)


@given(seeds)
def test_a_mutation_of_rate_zero_still_changes_one_section(seed: int) -> None:
    rng = random.Random(seed)
    prompt = compose(BANK, rng)
    changed = mutate(prompt, BANK, rng, 0.0)
    assert sum(getattr(prompt, section) != getattr(changed, section) for section in SECTIONS) <= 1


def test_the_first_prompts_are_the_given_ones_and_then_different_ones() -> None:
    given_prompts = ("Be brief. Be kind.", "Answer in rhyme.")
    prompts = first_prompts(12, given_prompts, BANK, random.Random(1))
    assert [prompt.text for prompt in prompts[:2]] == list(given_prompts)
    assert len({prompt.text for prompt in prompts}) == 12


def test_a_bank_too_small_for_different_prompts_still_fills_the_population() -> None:
    bank = {section: ("Be kind.",) if section == "tone" else () for section in SECTIONS}
    bank["system_role"] = ("You help.",)
    assert len(first_prompts(8, (), bank, random.Random(1))) == 8


@pytest.mark.slow
@given(st.lists(st.sampled_from(["Be brief.", "Why not?", "Use lists", "No: never!"]), min_size=1, max_size=6))
def test_a_plain_prompt_keeps_its_words(parts: list[str]) -> None:
    text = "\n".join(parts)
    assert Prompt.of(text).text.split() == text.split()


@given(seeds)
def test_distance_is_zero_to_itself_and_the_same_both_ways(seed: int) -> None:
    rng = random.Random(seed)
    a, b = compose(BANK, rng), compose(BANK, rng)
    assert distance(a, a) == 0.0
    assert 0.0 <= distance(a, b) == distance(b, a) <= 1.0


def test_diversity_falls_when_prompts_become_alike() -> None:
    prompts = first_prompts(6, (), BANK, random.Random(3))
    assert diversity(prompts) > diversity([prompts[0]] * 3 + prompts[3:]) > diversity([prompts[0]] * 6) == 0.0
