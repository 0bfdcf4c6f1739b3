"""What a search space promises: candidates stay inside it, changes change something, grids cover it."""

from __future__ import annotations

import copy
import math
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.encoding import decode, encode
from fanfold.errors import ConfigError
from fanfold.space import Choice, Dimension, Float, Int, Space

SMALL = Space(x=Float(-2, 2), rate=Float(1e-5, 1e-1, log=True), layers=Int(1, 8), kind=Choice(["a", "b", "c"]))


@st.composite
def floats(draw: st.DrawFn) -> Float:
    log = draw(st.booleans())
    finite = st.floats(1e-300 if log else -1e300, 1e300)
    low, high = sorted(draw(st.lists(finite, min_size=2, max_size=2, unique=True)))
    return Float(low, high, log=log)


@st.composite
def ints(draw: st.DrawFn) -> Int:
    log = draw(st.booleans())
    whole = st.integers(1 if log else -(2**53), 2**53) | st.integers(1, 12)
    low, high = sorted(draw(st.lists(whole, min_size=2, max_size=2, unique=True)))
    return Int(low, high, log=log)


values = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)
choices = st.lists(values, min_size=1, max_size=5, unique_by=encode).map(Choice)
names = st.text(min_size=1, max_size=4)
spaces = st.dictionaries(names, floats() | ints() | choices, min_size=1, max_size=6).map(Space)
rngs = st.integers(0, 2**32).map(random.Random)
rates = st.floats(1e-9, 1)


def can_change(dimension: Dimension) -> bool:
    return not isinstance(dimension, Choice) or len(dimension.options) > 1


@pytest.mark.slow
@given(spaces, rngs, rates)
def test_samples_mutants_and_children_belong_to_the_space(space: Space, rng: random.Random, rate: float) -> None:
    a, b = space.sample(rng), space.sample(rng)
    for candidate in (a, b, space.mutate(a, rng, rate), space.crossover(a, b, rng)):
        space.check(candidate)
        assert list(candidate) == list(space.dimensions)


@pytest.mark.slow
@given(spaces, rngs, rates)
def test_a_mutation_changes_at_least_one_dimension(space: Space, rng: random.Random, rate: float) -> None:
    before = space.sample(rng)
    kept = copy.deepcopy(before)
    after = space.mutate(before, rng, rate)
    assert before == kept
    changeable = any(can_change(dimension) for dimension in space.dimensions.values())
    assert (encode(after) != encode(before)) == changeable


@pytest.mark.slow
@given(spaces, rngs)
def test_a_child_of_equal_parents_equals_them(space: Space, rng: random.Random) -> None:
    parent = space.sample(rng)
    assert space.crossover(parent, dict(parent), rng) == parent


@pytest.mark.slow
@given(spaces, st.integers(0, 2**32))
def test_everything_random_comes_from_the_given_generator(space: Space, seed: int) -> None:
    def draw() -> list[dict[str, Any]]:
        rng = random.Random(seed)
        a, b = space.sample(rng), space.sample(rng)
        return [a, b, space.mutate(a, rng, 0.5), space.crossover(a, b, rng)]

    assert draw() == draw()


@pytest.mark.slow
@given(spaces, rngs)
def test_a_candidate_read_back_from_json_still_belongs(space: Space, rng: random.Random) -> None:
    space.check(decode(encode(space.sample(rng))))


@pytest.mark.slow
@given(st.dictionaries(names, floats() | ints() | choices, min_size=1, max_size=3).map(Space), st.integers(1, 5))
def test_a_grid_stays_inside_and_repeats_nothing(space: Space, steps: int) -> None:
    points = list(space.grid(steps))
    for point in points:
        space.check(point)
    assert points
    assert len({encode(point) for point in points}) == len(points)


@pytest.mark.slow
@given(floats() | ints(), st.floats(0, 1))
def test_positions_and_values_of_a_number_agree(dimension: Float | Int, unit: float) -> None:
    value = dimension.from_unit(unit)
    assert dimension.problem(value) is None
    assert dimension.from_unit(0) == dimension.low
    assert dimension.from_unit(1) == dimension.high
    if isinstance(dimension, Int) and dimension.high < 1000:
        assert dimension.from_unit(dimension.to_unit(value)) == value


def test_about_the_given_share_of_dimensions_mutates() -> None:
    space = Space({f"x{i}": Float(0, 1) for i in range(50)})
    rng = random.Random(1)
    before = space.sample(rng)
    mutants = [space.mutate(before, rng, 0.3) for _ in range(200)]
    changed = sum(mutant[name] != before[name] for mutant in mutants for name in before) / (200 * 50)
    assert 0.27 < changed < 0.33


def test_steps_shrink_with_the_rate() -> None:
    dimension = Float(0, 1)
    rng = random.Random(1)

    def reach(rate: float) -> float:
        return sum(abs(dimension.mutate(0.5, rng, rate) - 0.5) for _ in range(500)) / 500

    assert reach(0.01) < reach(0.1) / 5 < reach(0.5)


def test_a_log_dimension_is_searched_by_magnitude() -> None:
    rng = random.Random(1)
    rate, count = Float(1e-6, 1, log=True), Int(1, 1_000_000, log=True)
    assert 0.45 < sum(rate.sample(rng) < 1e-3 for _ in range(2000)) / 2000 < 0.55
    assert 0.4 < sum(count.sample(rng) < 1000 for _ in range(2000)) / 2000 < 0.6


def test_every_whole_number_is_drawn_about_equally_often() -> None:
    rng = random.Random(1)
    drawn = [Int(1, 4).sample(rng) for _ in range(4000)]
    assert all(850 < drawn.count(value) < 1150 for value in (1, 2, 3, 4))


def test_bounds_may_be_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    whole, real = Int(1, numpy.int64(4)), Float(numpy.float32(0.5), numpy.float64(2))
    assert (whole, real) == (Int(1, 4), Float(0.5, 2.0)) and {type(whole.high), type(real.low)} == {int, float}
    with pytest.raises(ConfigError, match="whole numbers"):
        Int(1, numpy.float64(4))  # type: ignore[arg-type]


def test_a_small_whole_number_moves_by_one_even_at_a_tiny_rate() -> None:
    rng = random.Random(1)
    assert {Int(0, 9).mutate(5, rng, 1e-6) for _ in range(50)} == {4, 6}
    assert Int(0, 9).mutate(0, rng, 1e-6) == 1
    assert Int(0, 9).mutate(9, rng, 1e-6) == 8


def test_a_blend_of_floats_lies_around_its_parents() -> None:
    rng = random.Random(1)
    children = [Float(0, 10).crossover(4.0, 6.0, rng) for _ in range(300)]
    assert all(3.5 <= child <= 6.5 for child in children)
    assert len(set(children)) == 300


def test_choices_that_python_calls_equal_are_told_apart() -> None:
    rng = random.Random(1)
    assert Choice([1, True]).mutate(1, rng, 0.5) is True


def test_a_grid_takes_the_ends_all_options_and_the_last_name_fastest() -> None:
    space = Space(x=Float(0, 1), kind=Choice(["abc", "z"]))
    assert list(space.grid(2)) == [
        {"x": 0.0, "kind": "abc"},
        {"x": 0.0, "kind": "z"},
        {"x": 1.0, "kind": "abc"},
        {"x": 1.0, "kind": "z"},
    ]
    assert [point["x"] for point in Space(x=Float(1, 100, log=True)).grid(3)] == pytest.approx([1, 10, 100])
    assert [point["n"] for point in Space(n=Int(0, 10)).grid(3)] == [0, 5, 10]
    assert [point["n"] for point in Space(n=Int(0, 3)).grid(99)] == [0, 1, 2, 3]
    assert [point["x"] for point in Space(x=Float(0, 1)).grid(1)] == [0.5]


def test_a_grid_is_lazy() -> None:
    huge = Space({f"x{i}": Int(0, 9) for i in range(30)}).grid(10)
    assert next(huge) == {f"x{i}": 0 for i in range(30)}


def test_spaces_are_values() -> None:
    assert Space(x=Float(0, 1)) == Space({"x": Float(0, 1)})
    assert Space(x=Float(0, 1)) != Space(x=Float(0, 2))
    assert copy.deepcopy(SMALL) == SMALL
    assert pickle.loads(pickle.dumps(SMALL)) == SMALL  # noqa: S301 - ours, made one line above


def test_a_space_does_not_follow_later_changes_of_its_arguments() -> None:
    given_dimensions: dict[str, Dimension] = {"x": Float(0, 1)}
    options = ["a", "b"]
    space = Space(given_dimensions, kind=Choice(options))
    given_dimensions["y"] = Int(0, 1)
    options.append("c")
    assert list(space.dimensions) == ["x", "kind"]
    assert list(space.grid(1)) == [{"x": 0.5, "kind": "a"}, {"x": 0.5, "kind": "b"}]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Space(), "empty"),
        (lambda: Space({}), "empty"),
        (lambda: Space([1]), "dict of dimensions"),
        (lambda: Space({1: Float(0, 1)}), "string"),
        (lambda: Space(x=3), "'x' must be a Float"),
        (lambda: Float(1, 1), "low must be less than high"),
        (lambda: Float(2, 1), "low must be less than high"),
        (lambda: Float(0, 1, log=True), "log scale"),
        (lambda: Float(0, math.inf), "finite"),
        (lambda: Float(math.nan, 1), "finite"),
        (lambda: Float("a", 1), "finite numbers, not 'a'"),
        (lambda: Float(-1e308, 1e308), "wider"),
        (lambda: Int(0, 10, log=True), "log scale"),
        (lambda: Int(0.5, 2), "whole numbers"),
        (lambda: Int(0, 2**60), "2\\*\\*53"),
        (lambda: Int(5, 5), "low must be less"),
        (lambda: Choice([]), "nothing to choose"),
        (lambda: Choice("abc"), "list or tuple"),
        (lambda: Choice(3), "list or tuple"),
        (lambda: Choice({"a", "b"}), "fixed order"),
        (lambda: Choice(["a", "a"]), "twice"),
        (lambda: Choice([object()]), "option"),
        (lambda: SMALL.grid(0), "steps"),
        (lambda: SMALL.grid(2.0), "steps"),
        (lambda: SMALL.check("a"), "dict of"),
        (lambda: SMALL.check({"layer": 1}), "did you mean 'layers'"),
        (lambda: SMALL.check({"x": 0.0}), "has no 'rate'"),
        (lambda: SMALL.check({"x": 9, "rate": 1e-3, "layers": 2, "kind": "a"}), "9 .*outside -2 to 2"),
        (lambda: SMALL.check({"x": 1, "rate": 1e-3, "layers": 2.5, "kind": "a"}), "whole number"),
        (lambda: SMALL.check({"x": "1", "rate": 1e-3, "layers": 2, "kind": "a"}), "not a number"),
        (lambda: SMALL.check({"x": 1, "rate": 1e-3, "layers": 2, "kind": "q"}), "the options are"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_a_reason(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()
