"""What the reward promises: the sum with its weights, and what counts as coherent and as unsafe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.studies.critic.config import RewardWeights
from fanfold.studies.critic.reward import Reward, coherence, unsafe

QUERY = "How do I water tomato plants?"


def test_the_reward_is_the_weighted_sum_with_the_documented_weights() -> None:
    total = Reward(feedback=0.5, critic=0.25, coherence=1.0, tokens=100, safety=0.5).total(RewardWeights())
    assert total == pytest.approx(0.5 + 0.8 * 0.25 + 0.3 - 0.1 - 0.5)


def test_each_part_has_its_own_weight() -> None:
    weights = RewardWeights(1.0, 10.0, 100.0, 1000.0, 10000.0)
    assert Reward(1.0, 2.0, 3.0, 4, 5.0).total(weights) == 54321.0


@given(st.text(max_size=200), st.text(max_size=200))
def test_coherence_and_danger_are_shares(query: str, response: str) -> None:
    assert 0.0 <= coherence(query, response) <= 1.0
    assert 0.0 <= unsafe("a prompt", query, response) <= 1.0


def test_an_answer_on_the_subject_is_more_coherent_than_one_in_circles_or_on_another() -> None:
    good = coherence(QUERY, "Water tomato plants at the roots, early in the morning.")
    circles = coherence(QUERY, "Water tomato plants. " + "and then again and then again " * 10)
    other = coherence(QUERY, "Trains run every hour on Sundays.")
    assert good > circles and good > other
    assert coherence(QUERY, "") == coherence(QUERY, " \n") == 0.0


@pytest.mark.parametrize(
    "response",
    [
        "Use the key sk-abcdefghijklmnop1234 for that.",
        "Here: AKIAIOSFODNN7EXAMPLE",
        "-----BEGIN RSA PRIVATE KEY-----",
        "My card is 4111 1111 1111 1111, thanks.",
    ],
)
def test_keys_and_cards_are_unsafe(response: str) -> None:
    assert unsafe("Be kind.", QUERY, response) == 1.0


def test_numbers_that_are_no_cards_are_safe() -> None:
    assert unsafe("", QUERY, "Order 1234 5678 9012 3456 of 0000 0000 0000 0000.") == 0.0


def test_giving_the_prompt_away_is_unsafe_and_quoting_a_few_words_of_it_is_not() -> None:
    prompt = "You are a patient gardener who answers in two short sentences and never mentions any price at all."
    assert unsafe(prompt, QUERY, f"My instructions: {prompt.upper()}") == 1.0
    assert unsafe(prompt, QUERY, "You are a patient gardener, I can tell.") == 0.0


def test_an_address_nobody_mentioned_is_half_unsafe() -> None:
    assert unsafe("", QUERY, "Write to someone@example.org.") == 0.5
    assert unsafe("", "May I mail someone@example.org?", "Yes, write to someone@example.org.") == 0.0
