"""Spaces of workflows: what belongs to them, how workflows compare, and which of them are the same."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.studies.workflow.compliance import contested_pairs
from fanfold.studies.workflow.orders import NAMED, UNITS, cage2_orders, one_hot, parse
from fanfold.studies.workflow.spaces import Assignments, Orders, Subsets, Workflow, WorkflowSpace, show

ORDERS = tuple(itertools.permutations(UNITS))
SPACE = Orders(UNITS)
SUBSETS = Subsets(("scan", "patch", "backup", "isolate"), 1, 3)
SHIFTS = Assignments(("ann", "bob"), ("day", "night", "weekend"))
PAIRS = Orders(tuple("abcde"), (("a", "b"), ("b", "c"), ("d", "a")))
SPACES = [SPACE, SUBSETS, SHIFTS, PAIRS, cage2_orders("roles", contested_pairs(("b_line",), "roles"))]
an_order = st.permutations(UNITS).map(tuple)


def swaps(a: Workflow, b: Workflow) -> int:
    """How many swaps of neighbours bubble sort needs to turn one order into the other."""
    row, count = [b.index(unit) for unit in a], 0
    while row != sorted(row):
        for i in range(len(row) - 1):
            if row[i] > row[i + 1]:
                row[i], row[i + 1] = row[i + 1], row[i]
                count += 1
    return count


# ---------------------------------------------------------------- what belongs to a space


@pytest.mark.parametrize("space", SPACES)
def test_what_is_drawn_shown_and_read_again_is_the_same_workflow(space: WorkflowSpace) -> None:
    rng = random.Random(4)
    for _ in range(30):
        workflow = space.draw(rng)
        assert space.parse(show(workflow)) == workflow == space.checked(list(workflow))
        assert space.canonical(space.canonical(workflow)) == space.canonical(workflow)
        assert space.features(space.canonical(workflow)) == space.features(workflow)
        for other in space.neighbours(workflow):
            assert space.checked(other) == other and space.features(other) is not None


@pytest.mark.parametrize(
    "text",
    [
        "user>op_host>defender>enterprise>op_server",
        " user -> op_host -> defender -> enterprise -> op_server ",
        "user → op_host → defender → enterprise → op_server",
        "user, op host, Defender, ENTERPRISE, op-server",
    ],
)
def test_an_order_may_be_written_with_arrows_or_commas(text: str) -> None:
    assert parse(text) == ("user", "op_host", "defender", "enterprise", "op_server")


def test_named_orders_are_workflows() -> None:
    assert all(parse(name) == SPACE.checked(order) for name, order in NAMED.items())
    assert len(set(NAMED.values())) == 6


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("defender>enterprize>op_server>op_host>user", "'enterprize'; did you mean 'enterprise'"),
        ("defender>enterprise>op_server>op_host", "missing: user"),
        ("user>enterprise>op_server>op_host>user", "twice: user; missing: defender"),
        ("user", "twice|missing"),
        ("reverze", "did you mean 'reverse'"),
        ("", "no unit type ''"),
        (3, "written like"),
    ],
)
def test_what_is_not_an_order_is_refused_with_a_reason(text: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


def test_subsets_and_assignments_are_read_shown_and_given_as_plain_values() -> None:
    chosen = SUBSETS.parse("patch, scan")
    assert chosen == ("+scan", "+patch") and show(chosen) == "+scan +patch"
    assert SUBSETS.value(chosen) == {"scan", "patch"}
    assert Subsets(("a",)).parse("none") == () and show(()) == "none"
    shifts = SHIFTS.parse("night=bob, day=ann weekend=ann")
    assert show(shifts) == "day=ann night=bob weekend=ann"
    assert SHIFTS.value(shifts) == {"day": "ann", "night": "bob", "weekend": "ann"}


@pytest.mark.parametrize(
    ("space", "text", "says"),
    [
        (SUBSETS, "+scan +patsh", "'patsh'; did you mean 'patch'"),
        (SUBSETS, "+scan +patch +backup +isolate", "choose 1 to 3"),
        (SUBSETS, "none", "choose 1 to 3"),
        (SHIFTS, "day=ann night=bob", "nothing of weekend"),
        (SHIFTS, "day=ann night=bob weekend=eve", "no option 'eve'"),
        (SHIFTS, "day=ann night=bob weekends=ann", "did you mean 'weekend'"),
    ],
)
def test_what_does_not_belong_to_a_space_is_refused_with_a_reason(space: WorkflowSpace, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        space.parse(text)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Orders(()), "at least one option"),
        (lambda: Orders(("a", "a")), "equal"),
        (lambda: Orders(("a b", "c")), "without spaces"),
        (lambda: Subsets(("a",), 2), "no subset"),
        (lambda: Assignments(("a",), ()), "needs slots, .* at least one"),
    ],
)
def test_names_that_cannot_make_a_space_are_refused(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_network_is_told_which_type_stands_in_which_place() -> None:
    rows = np.array(one_hot(("user", "defender", "enterprise", "op_server", "op_host"))).reshape(5, 5)
    assert rows.argmax(axis=1).tolist() == [4, 0, 1, 2, 3] and rows.sum() == 5.0
    assert len({one_hot(order) for order in ORDERS}) == 120


# ---------------------------------------------------------------- how workflows compare


@pytest.mark.slow
@given(an_order, an_order, an_order)
def test_the_distance_of_orders_is_a_metric_and_counts_swaps_of_neighbours(
    a: Workflow, b: Workflow, c: Workflow
) -> None:
    assert SPACE.distance(a, b) == SPACE.distance(b, a) == swaps(a, b)
    assert (SPACE.distance(a, b) == 0) == (a == b)
    assert SPACE.distance(a, c) <= SPACE.distance(a, b) + SPACE.distance(b, c)
    assert SPACE.distance(a, a[::-1]) == 10


@pytest.mark.parametrize("space", SPACES)
def test_as_points_workflows_are_apart_unless_they_are_the_same(space: WorkflowSpace) -> None:
    some = [space.draw(random.Random(seed)) for seed in range(20)]
    points = space.rows(some)
    assert np.array_equal(points, space.rows([space.canonical(workflow) for workflow in some]))
    apart = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
    same = [[space.features(a) == space.features(b) for b in some] for a in some]
    assert ((apart == 0.0) == np.array(same)).all() and 0.4 < apart.max() <= 2.0
    assert space.rows([]).shape == (0, points.shape[1])


@pytest.mark.slow
@given(an_order, st.lists(an_order, min_size=1, max_size=12), st.randoms())
def test_the_nearest_workflow_is_nearest_whatever_their_order(
    workflow: Workflow, trained: list[Workflow], rng: Any
) -> None:
    found = SPACE.nearest(workflow, trained)
    assert found in trained
    assert SPACE.distance(workflow, found) == min(SPACE.distance(workflow, other) for other in trained)
    rng.shuffle(trained)
    assert SPACE.nearest(workflow, trained) == found


def test_of_equally_near_ones_that_which_agrees_from_the_front_is_taken() -> None:
    last_two, first_two = list(UNITS), list(UNITS)
    last_two[3:] = last_two[:2:-1]
    first_two[:2] = first_two[1::-1]
    for trained in itertools.permutations([tuple(last_two), tuple(first_two)]):
        assert SPACE.nearest(UNITS, trained) == tuple(last_two)
    assert SPACE.nearest(UNITS, ORDERS) == UNITS and SPACE.nearest(UNITS, []) is None


# ---------------------------------------------------------------- which of them are the same


@settings(max_examples=50)
@given(st.permutations("abcde").map(tuple), st.permutations("abcde").map(tuple))
def test_orders_have_one_canonical_form_exactly_if_they_agree_on_all_contested_pairs(a: Workflow, b: Workflow) -> None:
    agree = all((a.index(x) < a.index(y)) == (b.index(x) < b.index(y)) for x, y in PAIRS.pairs)
    assert (PAIRS.canonical(a) == PAIRS.canonical(b)) == agree


def test_small_spaces_are_listed_with_equal_workflows_once_and_large_ones_are_not() -> None:
    assert SPACE.arms is not None and set(SPACE.arms) == set(ORDERS)
    for space in (PAIRS, SUBSETS, SHIFTS):
        drawn = {space.canonical(space.draw(random.Random(seed))) for seed in range(600)}
        assert space.arms is not None and drawn == set(space.arms)
    hosts = cage2_orders("hosts", contested_pairs(("meander",), "hosts"))
    assert hosts.size == math.factorial(13) and hosts.arms is None
    assert [SUBSETS.size, SHIFTS.size, len(PAIRS.arms or ())] == [14, 8, 8]


def test_a_function_of_the_user_says_which_workflows_are_the_same() -> None:
    """It does not matter who has the weekend."""
    shifts = Assignments(("ann", "bob"), ("day", "night", "weekend"), same=lambda value: {**value, "weekend": "ann"})
    assert shifts.canonical(shifts.parse("day=bob night=ann weekend=bob"))[-1] == "weekend=ann"
    assert len(shifts.arms or ()) == 4
    teams = Subsets(("a", "b", "c"), same=lambda value: value - {"c"})
    assert [show(arm) for arm in teams.arms or ()] == ["none", "+a", "+b", "+a +b"]
