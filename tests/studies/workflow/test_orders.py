"""Workflows: orders of unit types, how far apart they are, and the kernels over them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.studies.workflow.orders import (
    DECAYS,
    NAMED,
    UNITS,
    Workflow,
    checked,
    distances,
    kendall,
    mallows,
    nearest_workflow,
    one_hot,
    orders,
    parse,
    show,
)

ORDERS = orders()
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


# ---------------------------------------------------------------- orders and their text


def test_there_are_120_different_workflows_always_in_the_same_order() -> None:
    assert len(set(ORDERS)) == 120
    assert ORDERS[0] == UNITS and ORDERS[-1] == UNITS[::-1]
    assert orders() == ORDERS


@given(an_order)
def test_what_is_shown_can_be_read_again(workflow: Workflow) -> None:
    assert parse(show(workflow)) == workflow
    assert checked(list(workflow)) == workflow


@pytest.mark.parametrize(
    "text",
    [
        "user>op_host>defender>enterprise>op_server",
        " user -> op_host -> defender -> enterprise -> op_server ",
        "user → op_host → defender → enterprise → op_server",
        "user, op host, Defender, ENTERPRISE, op-server",
    ],
)
def test_a_workflow_may_be_written_with_arrows_or_commas(text: str) -> None:
    assert parse(text) == ("user", "op_host", "defender", "enterprise", "op_server")


def test_named_orders_are_workflows() -> None:
    assert all(parse(name) == checked(order) for name, order in NAMED.items())
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
def test_what_is_no_workflow_is_refused_with_a_reason(text: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse(text)


def test_unknown_types_in_a_list_are_named() -> None:
    with pytest.raises(ConfigError, match="missing: user; unknown: users"):
        checked(["defender", "enterprise", "op_server", "op_host", "users"])


def test_a_network_is_told_which_type_stands_in_which_place() -> None:
    rows = np.array(one_hot(("user", "defender", "enterprise", "op_server", "op_host"))).reshape(5, 5)
    assert rows.argmax(axis=1).tolist() == [4, 0, 1, 2, 3]
    assert rows.sum() == 5.0
    assert len({one_hot(order) for order in ORDERS}) == 120


# ---------------------------------------------------------------- distances


@pytest.mark.slow
@given(an_order, an_order, an_order)
def test_kendalls_distance_is_a_metric_and_counts_swaps_of_neighbours(a: Workflow, b: Workflow, c: Workflow) -> None:
    assert kendall(a, b) == kendall(b, a) == swaps(a, b)
    assert (kendall(a, b) == 0) == (a == b)
    assert kendall(a, c) <= kendall(a, b) + kendall(b, c)
    assert kendall(a, a[::-1]) == 10


@pytest.mark.slow
@given(an_order, an_order, st.permutations(range(5)))
def test_renaming_the_types_in_both_orders_changes_no_distance(a: Workflow, b: Workflow, names: list[int]) -> None:
    renamed = [tuple(UNITS[names[UNITS.index(unit)]] for unit in order) for order in (a, b)]
    assert kendall(*renamed) == kendall(a, b)


def test_the_matrix_of_distances_holds_kendalls() -> None:
    some = ORDERS[::7]
    for ignore in ((), ("defender",), ("defender", "op_host"), UNITS):
        found = distances(some, ignore)
        assert found.tolist() == [[kendall(a, b, ignore) for b in some] for a in some]
    assert len(np.unique(distances(ORDERS, ("defender",)), axis=0)) == 24
    assert len(np.unique(distances(ORDERS, ("defender", "op_host")), axis=0)) == 6


@pytest.mark.slow
@given(st.floats(0.01, 5.0))
def test_the_mallows_kernel_is_positive_definite_for_every_decay(decay: float) -> None:
    kernel = mallows(ORDERS, decay)
    assert np.allclose(kernel, kernel.T) and (np.diagonal(kernel) == 1.0).all()
    assert np.linalg.eigvalsh(kernel).min() > 0.0
    assert kernel[0, 119] == pytest.approx(np.exp(-10 * decay))


def test_the_decays_to_choose_from_reach_from_near_to_far() -> None:
    assert list(DECAYS) == sorted(set(DECAYS))
    assert mallows(ORDERS, DECAYS[0])[0, 119] > 0.5
    assert mallows(ORDERS, DECAYS[-1])[0, 1] < 0.25


@pytest.mark.parametrize("decay", [0.0, -1.0, float("nan"), float("inf")])
def test_a_decay_must_be_above_zero(decay: float) -> None:
    with pytest.raises(ConfigError, match="decay="):
        mallows(ORDERS, decay)


def test_an_ignored_type_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="'defence'; did you mean 'defender'"):
        distances(ORDERS, ["defence"])


# ---------------------------------------------------------------- whose policy to inherit


@pytest.mark.slow
@given(an_order, st.lists(an_order, min_size=1, max_size=12), st.randoms())
def test_the_nearest_trained_workflow_is_nearest_whatever_the_order_of_training(
    workflow: Workflow, trained: list[Workflow], rng: Any
) -> None:
    found = nearest_workflow(workflow, trained)
    assert found in trained
    assert kendall(workflow, found) == min(kendall(workflow, other) for other in trained)
    rng.shuffle(trained)
    assert nearest_workflow(workflow, trained) == found


def test_of_equally_near_ones_that_which_agrees_on_the_most_urgent_types_is_taken() -> None:
    last_two, first_two = list(UNITS), list(UNITS)
    last_two[3:] = last_two[:2:-1]
    first_two[:2] = first_two[1::-1]
    for trained in itertools.permutations([last_two, first_two]):
        assert nearest_workflow(UNITS, trained) == tuple(last_two)


def test_the_same_workflow_is_the_nearest_and_without_any_there_is_none() -> None:
    assert nearest_workflow(UNITS, ORDERS) == UNITS
    assert nearest_workflow(UNITS, []) is None
