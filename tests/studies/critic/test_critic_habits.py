"""What is known of clauses: their effect on the style of responses, learnt from every response."""

from __future__ import annotations

import json

import pytest

from fanfold.prompting.genome import Genome
from fanfold.studies.critic.features import combined, situation, style
from fanfold.studies.critic.habits import Habits, imagined

LISTS, KIND, NEW = "Use lists.", "Be kind.", "Sing."


def taught() -> Habits:
    """Lists raise the first number by 1, kindness the second by 0.5; everything begins at 0.2."""
    habits = Habits([LISTS, KIND, NEW], 2)
    for lists in (0, 1):
        for kind in (0, 1):
            prompt = Genome(("You help.",), (KIND,) * kind, (), (LISTS,) * lists)
            for _ in range(200):
                habits.learn(prompt, [0.2 + lists, 0.2 + 0.5 * kind])
    return habits


def test_a_combination_that_was_never_tried_is_imagined_from_its_clauses() -> None:
    habits = Habits([LISTS, KIND], 2)
    for _ in range(300):
        habits.learn(Genome(), [0.2, 0.2])
        habits.learn(Genome(instruction=(KIND,)), [0.2, 0.7])
        habits.learn(Genome(format=(LISTS,)), [1.2, 0.2])
    assert habits.expect(Genome(instruction=(KIND,), format=(LISTS,))) == pytest.approx([1.2, 0.7], abs=0.05)


def test_a_clause_that_was_never_tried_changes_nothing() -> None:
    habits = taught()
    assert habits.expect(Genome(instruction=(NEW,))) == pytest.approx(habits.expect(Genome()))
    assert habits.expect(Genome(instruction=("Unheard of.",))) == pytest.approx(habits.expect(Genome()))


def test_before_any_response_nothing_is_expected() -> None:
    assert Habits([LISTS], 2).expect(Genome(format=(LISTS,))) == [0.0, 0.0]


def test_a_few_responses_are_believed_only_in_part() -> None:
    habits = Habits([LISTS], 1)
    for _ in range(50):
        habits.learn(Genome(), [0.0])
    habits.learn(Genome(format=(LISTS,)), [1.0])
    assert 0.0 < habits.expect(Genome(format=(LISTS,)))[0] < 0.5


def test_saved_habits_are_the_same() -> None:
    habits, twin = taught(), Habits([LISTS, KIND, NEW], 2)
    twin.load(json.loads(json.dumps(habits.state())))
    prompt = Genome(instruction=(KIND,), format=(LISTS,))
    assert twin.expect(prompt) == habits.expect(prompt)


def test_a_prompt_is_imagined_in_many_situations_as_in_each() -> None:
    prompt, look = Genome(instruction=(KIND,)), style("Why?", "1. Because.\n2. So.")
    places = [situation(query) for query in ("How do I make tea?", "I feel sad.", "Tea or coffee?")]
    assert imagined(prompt, places, look).tolist() == [combined(prompt, place, look) for place in places]
