"""What the critic promises: it learns, knows how sure it is, forgets no order, and can be saved."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.studies.critic.critic import LinearCritic

SIZE = 40


class World:
    """A linear truth of a few features under noise."""

    def __init__(self, seed: int, noise: float = 0.15) -> None:
        self.rng = np.random.default_rng(seed)
        self.weights = self.rng.normal(size=SIZE) * 0.05
        self.noise = noise

    def rows(self, many: int) -> np.ndarray:
        return self.rng.normal(size=(many, SIZE)) * 0.5 + 0.3

    def truth(self, rows: np.ndarray) -> np.ndarray:
        return 0.5 + (rows - 0.3) @ self.weights * 2

    def taught(self, many: int) -> LinearCritic:
        critic, rows = LinearCritic(SIZE), self.rows(many)
        for row, truth in zip(rows, self.truth(rows)):
            critic.learn(row, truth + self.noise * self.rng.normal())
        return critic


def test_before_any_feedback_it_expects_the_middle_and_is_sure_of_nothing() -> None:
    seen = LinearCritic(SIZE).predict(World(1).rows(5))
    assert np.allclose(seen.mean, 0.5)
    assert np.all(seen.confidence == 0.0)
    assert np.all(seen.sd > 0.1)


def test_it_predicts_better_and_is_surer_with_more_feedback() -> None:
    errors, doubts, trusts = [], [], []
    for many in (10, 60, 400):
        world = World(2)
        critic, rows = world.taught(many), world.rows(200)
        seen = critic.predict(rows)
        errors.append(float(np.abs(seen.mean - world.truth(rows)).mean()))
        doubts.append(float(seen.sd.mean()))
        trusts.append(float(seen.confidence.mean()))
    assert errors[0] > errors[1] > errors[2] < 0.06
    assert doubts[0] > doubts[2]
    assert trusts[0] < trusts[1] < trusts[2] < 1.0


def test_its_uncertainty_is_calibrated() -> None:
    inside = []
    for seed in range(30):
        world = World(seed)
        critic, rows = world.taught(50), world.rows(40)
        seen = critic.predict(rows)
        inside.append(float((np.abs(seen.mean - world.truth(rows)) < 1.645 * seen.sd).mean()))
    assert 0.82 < float(np.mean(inside)) < 0.96  # nominally 0.90


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_it_learns_how_noisy_feedback_is(noise: float) -> None:
    assert World(3, noise).taught(400).predict(np.zeros(SIZE)).noise == pytest.approx(noise, rel=0.15)


@given(st.permutations(range(25)))
@settings(max_examples=20)
def test_the_order_of_feedback_does_not_matter(order: list[int]) -> None:
    world = World(4)
    rows, scores = world.rows(25), [((7 * i) % 11) / 10 for i in range(25)]
    straight, shuffled = LinearCritic(SIZE), LinearCritic(SIZE)
    for i in range(25):
        straight.learn(rows[i], scores[i])
        shuffled.learn(rows[order[i]], scores[order[i]])
    there = world.rows(4)
    assert np.allclose(straight.predict(there).mean, shuffled.predict(there).mean, atol=1e-9)
    assert np.allclose(straight.predict(there).sd, shuffled.predict(there).sd, atol=1e-9)


def test_constant_features_and_constant_feedback_are_harmless() -> None:
    critic = LinearCritic(3)
    for _ in range(30):
        critic.learn([1.0, 0.0, 5.0], 1.0)
    seen = critic.predict([[1.0, 0.0, 5.0], [1.0, 1.0, -900.0]])
    assert np.all(np.isfinite(seen.mean)) and np.all(np.isfinite(seen.sd))
    assert seen.mean[0] > 0.9
    assert seen.sd[1] > seen.sd[0]  # it has never seen such a thing, and says so


def test_where_features_lie_does_not_matter() -> None:
    world = World(11)
    rows, there = world.rows(60), world.rows(5)
    near, far = LinearCritic(SIZE), LinearCritic(SIZE)
    for row, score in zip(rows, world.truth(rows)):
        near.learn(row, score)
        far.learn(row + 7.0, score)
    assert np.allclose(near.predict(there).mean, far.predict(there + 7.0).mean, atol=1e-6)
    assert np.allclose(near.predict(there).sd, far.predict(there + 7.0).sd, atol=1e-6)


def test_preferences_teach_what_is_better() -> None:
    world, rng = World(5), random.Random(5)
    critic = LinearCritic(SIZE)
    for _ in range(300):
        a, b = world.rows(2)
        gap = float(world.truth(a[None])[0] - world.truth(b[None])[0])
        critic.prefer(a, b, float(rng.random() < 1 / (1 + np.exp(-gap / 0.15))))
    rows = world.rows(200)
    assert np.corrcoef(critic.predict(rows).mean, world.truth(rows))[0, 1] > 0.75
    assert critic.pairs == 300 and critic.count == 0


def test_a_preference_raises_the_first_and_its_mirror_says_the_same() -> None:
    world = World(6)
    a, b = world.rows(2)
    one, other, tie = LinearCritic(SIZE), LinearCritic(SIZE), LinearCritic(SIZE)
    one.prefer(a, b, 1.0)
    other.prefer(b, a, 0.0)
    tie.prefer(a, b, 0.5)
    seen = one.predict([a, b]).mean
    assert seen[0] > seen[1]
    assert np.allclose(seen, other.predict([a, b]).mean)
    assert np.allclose(tie.predict([a, b]).mean, 0.5)


def test_the_same_preference_a_hundred_times_stays_finite() -> None:
    world = World(7)
    a, b = world.rows(2)
    critic = LinearCritic(SIZE)
    for _ in range(100):
        critic.prefer(a, b, 1.0)
    critic.prefer(a, b, 0.0)  # against all expectation
    seen = critic.predict([a, b])
    assert np.all(np.isfinite(seen.mean)) and seen.mean[0] > seen.mean[1]


@pytest.mark.slow
def test_draws_vary_about_the_mean_as_the_uncertainty_says() -> None:
    world = World(8)
    critic, rows = world.taught(30), world.rows(3)
    draws = np.array([critic.predict(rows, random.Random(i)).drawn for i in range(1500)])
    seen = critic.predict(rows)
    assert np.allclose(draws.mean(axis=0), seen.mean, atol=0.03)
    # A draw leaves out the doubt about the level, which is the same for all.
    assert np.all(draws.std(axis=0) < 1.3 * seen.sd) and np.all(draws.std(axis=0) > 0.5 * seen.sd)


def test_equal_responses_are_drawn_equal() -> None:
    world = World(9)
    critic, row = world.taught(20), world.rows(1)[0]
    drawn = critic.predict([row, row], random.Random(1)).drawn
    assert drawn[0] == pytest.approx(drawn[1], abs=0.01)


def test_a_saved_critic_goes_on_as_if_nothing_had_happened() -> None:
    world = World(10)
    critic = world.taught(25)
    critic.prefer(*world.rows(2), 1.0)
    loaded = LinearCritic.of(json.loads(json.dumps(critic.state())))
    row, there = world.rows(1)[0], world.rows(6)
    for each in (critic, loaded):
        each.learn(row, 0.9)
    before, after = critic.predict(there, random.Random(1)), loaded.predict(there, random.Random(1))
    assert np.array_equal(before.mean, after.mean) and np.array_equal(before.drawn, after.drawn)
