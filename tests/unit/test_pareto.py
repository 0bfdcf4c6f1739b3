"""Fronts are those of the definition, at any number of objectives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanfold.strategies.pareto import fronts

Point = tuple[int, ...]


def dominates(a: Point, b: Point) -> bool:
    return a != b and all(x >= y for x, y in zip(a, b))


@given(st.integers(1, 4).flatmap(lambda size: st.lists(st.tuples(*[st.integers(0, 5)] * size), max_size=25)))
def test_a_front_holds_whom_nobody_else_that_is_left_dominates(points: list[Point]) -> None:
    left = set(range(len(points)))
    for front in fronts(points):
        expected = {at for at in left if not any(dominates(points[other], points[at]) for other in left)}
        assert front == sorted(expected)
        left -= expected
    assert not left
