"""What the actor promises: better than its group becomes likelier, within a clip and a bound."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.studies.critic.actor import KL_BOUND, SIGNALS, Actor, ChoicePolicy, Decision, advantages, pick
from fanfold.studies.critic.online import OnlineResponse
from fanfold.studies.critic.online_loop import OnlineOptimiser

signals = st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=2, max_size=6)


def decision(
    policy: ChoicePolicy, options: list[list[float]], terms: list[tuple[int, float, float]], blind: float
) -> Decision:
    return Decision(options, policy.probabilities(options, blind).tolist(), blind, terms)


@pytest.mark.slow
@given(signals, st.integers(0, 5), st.floats(0.0, 0.5))
def test_a_choice_better_than_its_group_becomes_likelier_and_a_worse_one_less(
    options: list[list[float]], which: int, blind: float
) -> None:
    chosen = which % len(options)
    for advantage in (1.0, -1.0):
        policy = ChoicePolicy([0.3, -0.2, 0.1])
        made = decision(policy, options, [(chosen, advantage, 1.0)], blind)
        policy.update([made])
        now = policy.probabilities(options, blind)[chosen]
        assert advantage * (now - made.before[chosen]) >= -1e-12


@pytest.mark.slow
@given(st.lists(signals, min_size=1, max_size=5), st.floats(-50, 50), st.floats(0, 0.9))
def test_no_update_goes_beyond_the_bound(groups: list[list[list[float]]], advantage: float, blind: float) -> None:
    policy = ChoicePolicy([5.0, -2.0, 0.0])
    made = [decision(policy, options, [(0, advantage, 1.0), (1, -advantage, 0.3)], blind) for options in groups]
    moved = policy.update(made)
    actual = np.mean(
        [
            sum(p * np.log(p / q) for p, q in zip(each.before, policy.probabilities(each.options, blind)) if p > 0)
            for each in made
        ]
    )
    assert 0.0 <= moved <= KL_BOUND + 1e-12
    assert actual == pytest.approx(moved, abs=1e-9)


def test_a_group_without_differences_teaches_nothing() -> None:
    policy = ChoicePolicy([1.0, 1.0, 1.0])
    options = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]]
    policy.update([decision(policy, options, [(i, a, 1.0) for i, a in enumerate(advantages([0.7, 0.7]))], 0.1)])
    assert policy.weights.tolist() == [1.0, 1.0, 1.0]
    assert policy.update([]) == 0.0


@pytest.mark.slow
def test_many_updates_learn_which_signal_matters() -> None:
    policy, rng = ChoicePolicy([0.0, 0.0]), random.Random(1)
    for _ in range(60):
        batch = []
        for _ in range(10):
            options = [[rng.random(), rng.random()] for _ in range(4)]
            chosen = pick(policy.probabilities(options, 0.1), 1, rng)[0]
            ahead = advantages([option[1] for option in options])  # only the second signal is worth anything
            batch.append(decision(policy, options, [(chosen, ahead[chosen], 1.0)], 0.1))
        policy.update(batch)
    assert policy.weights[1] > 2.0 > 2.0 * abs(policy.weights[0])


def test_the_clip_holds_one_decision_back_where_the_bound_on_all_of_them_would_not() -> None:
    policy = ChoicePolicy([0.0])
    loud = decision(policy, [[0.0], [1.0]], [(1, 500.0, 1.0)], 0.0)
    silent = [decision(policy, [[0.0], [0.0]], [(0, 0.0, 1.0)], 0.0) for _ in range(60)]
    policy.update([loud, *silent])
    assert 1.1 < policy.probabilities(loud.options)[1] / loud.before[1] < 1.4


@pytest.mark.slow
def test_temperatures_are_learnt_by_kind_of_query() -> None:
    actor, rng = Actor((0.2, 1.0), 2), random.Random(2)
    for _ in range(60):
        batch = []
        for _ in range(10):
            cues = [float(rng.random() < 0.5), 0.0]
            options = actor.temperature_options(cues)
            before = actor.warms.probabilities(options, 0.1).tolist()
            drawn = rng.choices((0, 1), before, k=5)
            ahead = advantages([float(option == cues[0]) for option in drawn])  # warm where the cue shows, else cool
            terms = [(option, gain, 1.0) for option, gain in zip(drawn, ahead)]
            batch.append(Decision(options, before, 0.1, terms))
        actor.learn([], batch)
    cold = actor.warms.probabilities(actor.temperature_options([0.0, 0.0]))
    warm = actor.warms.probabilities(actor.temperature_options([1.0, 0.0]))
    assert cold[0] > 0.8 and warm[1] > 0.8


def test_before_it_has_learnt_it_shows_what_is_expected_to_be_good_and_nothing_unsafe() -> None:
    def signal(**values: float) -> list[float]:
        return [values.get(name, 0.0) for name in SIGNALS]

    actor = Actor((0.7,), 3)
    good = actor.shows.probabilities([signal(expected=0.8, drawn=0.8), signal(expected=0.5, drawn=0.5)])
    assert good[0] > 0.99
    safe = actor.shows.probabilities([signal(unsafe=1.0), signal()])
    assert safe[0] < 0.05


def test_a_saved_actor_chooses_the_same() -> None:
    actor, twin = Actor((0.3, 0.7), 2), Actor((0.3, 0.7), 2)
    options = actor.temperature_options([1.0, 0.0])
    actor.learn([], [Decision(options, [0.5, 0.5], 0.0, [(0, 1.0, 1.0)])])
    twin.load(actor.state())
    assert twin.warms.probabilities(options).tolist() == actor.warms.probabilities(options).tolist() != [0.5, 0.5]


@pytest.mark.slow
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 4), st.integers(0, 10**6))
def test_so_many_different_options_are_picked(weights: list[float], many: int, seed: int) -> None:
    drawn = pick(np.array(weights), many, random.Random(seed))
    assert len(set(drawn)) == len(drawn) == min(many, len(weights))


@pytest.mark.slow
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_advantages_are_relative_to_the_group(rewards: list[float]) -> None:
    ahead = advantages(rewards)
    assert sum(ahead) == pytest.approx(0.0, abs=1e-6)
    assert ahead == pytest.approx(advantages([reward + 10 for reward in rewards]), abs=1e-6)


def test_decisions_judged_long_after_they_were_made_do_not_hold_up_the_actor() -> None:
    policy = ChoicePolicy([0.0])
    options = [[0.0], [1.0]]
    made = policy.probabilities(options).tolist()
    policy.weights += 5.0  # much was learnt in the meantime
    moved = policy.update([Decision(options, made, 0.0, [(0, 1.0, 1.0)])])
    assert policy.weights[0] < 5.0
    assert moved > KL_BOUND  # since then, not in this step


def test_an_actor_of_ones_own_may_choose_by_argmax() -> None:
    class Longest:
        def select(self, query: str, candidates: Sequence[OnlineResponse]) -> int:
            return np.argmax([len(each.response) for each in candidates])  # type: ignore[return-value]

    def echo(system_prompt: str, query: str, *, max_tokens: int, temperature: float) -> str:
        return f"{system_prompt} {query}"

    step = OnlineOptimiser(echo, ["Hm.", "Be warm and kind.", "Be brief."], actor=Longest()).step("Why?", np.float32(1))
    assert step.response_shown == "Be warm and kind. Why?" and step.feedback_score == 1.0
    assert type(step.prompt_index_used) is int

    class Several(Longest):
        def select(self, query: str, candidates: Sequence[OnlineResponse]) -> int:
            return np.array([0, 1])  # type: ignore[return-value]

    with pytest.raises(ConfigError, match="give an index"):
        OnlineOptimiser(echo, ["Hm.", "Be brief."], actor=Several()).step("Why?", 1.0)
