"""Learning in steps: portions follow the episodes' length, and what is stale is known and corrected."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import rl_world

from fanfold.rl.collect import Collector
from fanfold.rl.environments import policy_for
from fanfold.rl.experience import Experience, folded, read
from fanfold.rl.learner import EpisodeCounts, Learner, LearningPlan, StepPlan
from fanfold.rl.making import Environment
from fanfold.rl.policy import COUNT
from fanfold.rl.ppo import Ppo
from fanfold.rl.updates import updates
from fanfold.study import Study
from fanfold.types import Case, Ok, Result, Trial

WALK = Environment.of(rl_world.Walk)
SETTINGS = Ppo(correction="vtrace", passes=2, minibatch=64, hidden=8)
PLAN = LearningPlan(
    policy_for(WALK, 8), 0, block=16, ppo=SETTINGS, held_out=4, window=2, steps=StepPlan(2_000, per_update=400)
)


def run(plan: LearningPlan, executor: str = "inline") -> list[Result[Any]]:
    return list(Study(Learner(plan), Collector(WALK, raw=True), seed=3).run(executor).results())


def lags(results: list[Result[Any]]) -> set[int]:
    return {lag for update in updates(results) for lag in update.lags}


def test_updates_are_of_so_many_steps_and_learning_ends_after_all_of_them() -> None:
    results = run(PLAN)
    sizes = [update.steps for update in updates(results)]
    assert len(sizes) == 5 and all(400 <= size < 500 for size in sizes[:-1]) and sum(sizes) >= 2_000
    first = next(iter(results)).candidate
    assert first["episodes"] == 1, "the first episode shows how long they are"
    assert {each.candidate["learn"] for each in results[-4:]} == {False}


@pytest.mark.parametrize("window", [1, 4])
def test_no_more_is_learnt_from_than_was_asked_for_but_the_end_of_an_episode(window: int) -> None:
    plan = dataclasses.replace(PLAN, block=500, window=window, steps=StepPlan(1_300, per_update=1_000))
    assert 1_300 <= sum(update.steps for update in updates(run(plan))) < 1_310


def test_policies_are_scored_on_as_many_steps_as_were_learnt_from_in_as_many_blocks_as_can_be_under_way() -> None:
    plan = dataclasses.replace(PLAN, held_out=None, block=64, per_update=64)
    for steps, length, episodes in ((100_000, 20.0, 64), (10_000, 100.0, 25), (8_000, 1_000.0, 16), (0, 0.0, 16)):
        assert plan.scored(EpisodeCounts(steps=steps, length=length)) == episodes
    assert [dataclasses.replace(plan, window=window).piece(256) for window in (1, 4, 16, 512)] == [64, 64, 16, 1]
    plan = dataclasses.replace(PLAN, held_out=4, window=8)
    asked = [each.candidate for each in run(plan) if not each.candidate["learn"]]
    assert [(each["first_episode"], each["episodes"]) for each in asked] == [(0, 2), (2, 2)] * 4


@pytest.mark.slow
def test_most_of_what_is_learnt_from_is_the_newest_policys_and_all_of_it_where_updates_are_waited_for() -> None:
    plan = dataclasses.replace(PLAN, window=4)
    free = updates(run(plan))
    assert lags(run(plan)) == {0, 1} and np.mean([update.lag for update in free[1:]]) < 0.6
    assert lags(run(dataclasses.replace(plan, synchronous=True))) == {0}
    assert lags(run(dataclasses.replace(plan, window=1))) == {0}


class Uneven(rl_world.Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        begun = super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 60))
        return begun


@pytest.mark.slow
def test_nothing_is_stale_where_updates_are_waited_for_however_uneven_episodes_are() -> None:
    plan = dataclasses.replace(PLAN, window=4, synchronous=True, block=1, steps=StepPlan(4_000, per_update=150))
    results = list(Study(Learner(plan), Collector(Environment.of(Uneven), raw=True), seed=3).run("inline").results())
    assert lags(results) == {0} and len(updates(results)) > 20


@pytest.mark.slow
def test_the_result_does_not_depend_on_where_blocks_are_played() -> None:
    assert [(each.score, each.candidate["version"]) for each in run(PLAN)] == [
        (each.score, each.candidate["version"]) for each in run(PLAN, "threads:2")
    ]


@pytest.mark.parametrize(("length", "portion"), [(1, 1024), (200, 1600), (500, 2048), (1_000, 4_000)])
def test_a_portion_is_some_episodes_whatever_their_length(length: float, portion: int) -> None:
    assert StepPlan(10**6).portion(EpisodeCounts(length=length)) == portion
    assert StepPlan(10**6, 300).portion(EpisodeCounts(length=length)) == 300


def test_a_learner_saved_between_updates_continues_as_if_nothing_had_happened() -> None:
    straight, restored = Learner(PLAN), Learner(PLAN)
    collect = Collector(WALK, raw=True)
    for learner in (straight, restored):
        learner.begin(1)
    for number in range(12):
        (block,) = straight.ask(1)
        assert restored.ask(1) == [block]
        outcome = collect(block, Case("0", None, 1))
        assert isinstance(outcome, Ok)
        for learner in (straight, restored):
            learner.tell(Result(Trial(number, block), outcome.score, {"0": outcome}))
        state, restored = restored.save(), Learner(PLAN)
        restored.begin(1)
        restored.load(state)
        assert restored.save() == straight.save()
    assert straight.version >= 1 and straight.weights[COUNT][0] > 0


def test_stale_steps_count_by_truncated_importance_weights() -> None:
    policy, learner = PLAN.policy, Learner(PLAN)
    learner.begin(1)
    (block,) = learner.ask(1)
    outcome = Collector(WALK, raw=True)(dataclasses.replace(block, episodes=20), Case("0", None, 1))
    assert isinstance(outcome, Ok)
    steps = read(outcome.data["experience"].read())
    assert not isinstance(steps, Experience)
    same = folded(steps, policy, learner.weights, 0.99, 0.95, correct=True)
    plain = folded(steps, policy, learner.weights, 0.99, 0.95)
    assert np.allclose(same.gain, plain.gain, rtol=1e-4) and np.allclose(same.targets, plain.targets, rtol=1e-4)
    newer = {**learner.weights, "policy.2.bias": np.array([3.0, 0.0], np.float32)}
    stale = folded(steps, policy, newer, 0.99, 0.0, correct=True)
    one_step = folded(steps, policy, learner.weights, 0.99, 0.0)
    size = (stale.gain + stale.loss) / (one_step.gain + one_step.loss)
    unlikely = stale.action == 1
    assert np.allclose(size[~unlikely], 1), "no step counts more than once"
    assert np.allclose(size[unlikely], 2 * 0.047, atol=0.01), "chances of 1 in 2 became 1 in 21"
    now = policy.head.log_chances(policy.outputs(newer, stale.observations), stale.where, stale.action)
    assert np.allclose(stale.log_chance, now, atol=1e-5), "the loss compares with the policy that learns"


def test_updates_and_their_blocks_grow_towards_the_end() -> None:
    plan = LearningPlan(policy_for(WALK, 8), 1_000, 100, 25, growth=4.0, synchronous=True)
    for told, block, portion in ((0, 25, 100), (500, 50, 200), (900, 87, 348)):
        counts = EpisodeCounts(asked=told, told=told)
        assert plan.size(counts) == block
        counts.fresh, counts.told = portion - 1, told + portion - 1
        assert not plan.due(counts) or counts.told >= 1_000
        counts.fresh, counts.told = portion, told + portion
        assert plan.due(counts)
    counts = EpisodeCounts(asked=190, told=190, fresh=190)
    assert plan.size(counts) < 1, "synchronously, nothing is asked for that the update would make stale"
