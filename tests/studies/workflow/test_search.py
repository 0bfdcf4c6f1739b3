"""The search over workflows: an exact budget, policies passed on, constraints, and the same result anywhere."""

from __future__ import annotations

import copy
import csv
import dataclasses
import itertools
import json
import math
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.rl import ppo
from fanfold.rl.network import values
from fanfold.running import Run
from fanfold.stats import Interval, bootstrap
from fanfold.strategies.gp_ucb import Observation
from fanfold.studies.workflow import WorkflowConfig, baselines, study
from fanfold.studies.workflow import trainings as f
from fanfold.studies.workflow.cage2.policy import PolicyTable
from fanfold.studies.workflow.cage2.rollout import rollout
from fanfold.studies.workflow.cage2.rules import ACTIONS, HOSTS, REMOVE, Cage2Game
from fanfold.studies.workflow.cage2_blocks import network
from fanfold.studies.workflow.chooser import Arm, HalvingChooser, Shuffled, UpperBound
from fanfold.studies.workflow.chooser import InTurn as in_turn
from fanfold.studies.workflow.collect import Cage2Collector, context_of, policy_for
from fanfold.studies.workflow.compliance import Compliance, Stopping, measure
from fanfold.studies.workflow.evaluator import Look, Train, WorkflowTrainer, moved
from fanfold.studies.workflow.orders import NAMED, UNITS, cage2_orders, parse
from fanfold.studies.workflow.spaces import Orders, Workflow, WorkflowSpace, show
from fanfold.studies.workflow.strategy import SearchPlan, WorkflowSearch
from fanfold.studies.workflow.surrogate import Surrogate, WorkflowBeliefs
from fanfold.tensors import about, pack, unpack
from fanfold.types import Blob, Case, Failed, Ok, Result, Trial

SMALL = WorkflowConfig(
    total_episodes=900,
    max_episodes_per_workflow=200,
    episodes_per_update=50,
    look_updates=2,
    length=12,
    results=None,
    fresh_episodes=64,
)


def outcome(train: Train, score: float = -10.0, rate: float = 0.95, used: int | None = None) -> Ok:
    """What a training would give back, as far as the search reads it."""
    data = {
        "compliance": rate,
        "compliance_interval": [rate - 0.01, min(rate + 0.01, 1.0)],
        "compliance_variance": 1e-5,
        "return_variance": 0.1,
        "episodes": train.episodes if used is None else used,
        "agent": Blob.of(f"{show(train.workflow)} {train.visit}".encode()),
    }
    return Ok(score, data)


def result(train: Train, found: Ok | Failed, number: int = 0) -> Result[Train]:
    return Result(Trial(number, train), found.score if isinstance(found, Ok) else None, {"0": found})


ORDERS = tuple(itertools.permutations(UNITS))
SPACE = cage2_orders()
SPACE_OF_B_LINE = WorkflowConfig().workflows


def kendall(a: Workflow, b: Workflow) -> int:
    return SPACE.distance(a, b)


def begun(
    chooser: Any = None,
    total: int = 1000,
    most: int | Sequence[int] = 100,
    least: int = 10,
    space: WorkflowSpace = SPACE,
    **more: Any,
) -> WorkflowSearch:
    plan = SearchPlan(total, (most,) if isinstance(most, int) else tuple(most), least, **more)
    search = WorkflowSearch(space, copy.deepcopy(chooser) or Shuffled(space), plan)
    search.begin(3)
    return search


# ---------------------------------------------------------------- the budget


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 3000),
    most=st.integers(1, 400),
    least=st.integers(1, 100),
    window=st.integers(1, 5),
    fates=st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), min_size=1, max_size=40),
)
def test_what_is_used_and_what_may_be_used_are_never_more_than_all_episodes(
    total: int, most: int, least: int, window: int, fates: list[float | None]
) -> None:
    search = begun(total=total, most=most, least=least)
    pending: list[Train] = []
    used, turn = 0, 0
    while (asked := list(search.ask(window - len(pending)))) or pending:
        pending += asked
        assert used + sum(train.episodes for train in pending) <= total
        assert all(0 < train.episodes <= most for train in pending)
        train, fate = pending.pop(0), fates[turn % len(fates)]
        turn += 1
        if turn > 200:
            break
        if fate is None:
            used += train.episodes  # a training that failed has used nobody knows how many
            search.tell(result(train, Failed("error", "no luck")))
        else:
            took = 1 + int(fate * (train.episodes - 1))
            used += took
            search.tell(result(train, outcome(train, used=took)))
    if turn <= 200:
        assert total - used < max(min(least, most), 1), "nothing was left that could have been used"


def test_episodes_that_a_training_did_not_use_are_there_for_others() -> None:
    search = begun(in_turn(ORDERS), total=250, most=100, least=60)
    first, second = search.ask(9)
    assert (first.episodes, second.episodes) == (100, 100), "the 50 that are left are too few"
    search.tell(result(first, outcome(first, used=40)))
    (third,) = search.ask(9)
    assert third.episodes == 100 and third.workflow == ORDERS[2]
    search.tell(result(second, outcome(second)))
    assert search.ask(9) == []


def test_the_finale_makes_the_best_compliant_policy_better_in_one_thorough_training() -> None:
    showy, sound = ORDERS[0], ORDERS[40]
    search = begun(in_turn([showy, sound]), total=1000, most=100, finale=0.3)
    asked: list[Train] = []
    while trains := search.ask(1):
        asked += trains
        complies = trains[0].workflow == sound
        found = outcome(trains[0], -20.0 + len(asked), 0.95) if complies else outcome(trains[0], -1.0, 0.2)
        search.tell(result(trains[0], found, len(asked) - 1))
    *chosen, last = asked
    assert [train.workflow for train in chosen] == [showy, sound] * 3 + [showy]
    assert not any(train.thorough for train in chosen)
    assert last.workflow == sound and last.thorough, "a higher return does not count that does not comply"
    assert last.episodes == 300 and sum(train.episodes for train in asked) == 1000
    assert last.inherited == outcome(chosen[5]).data["agent"], "from its best policy"
    assert (search.origin(last) or {})["finale"] is True


def test_without_a_compliant_workflow_the_search_goes_on_to_the_end() -> None:
    search = begun(in_turn(ORDERS[:3]), total=500, most=100, finale=0.5)
    asked = []
    while trains := search.ask(1):
        asked.append(trains[0].workflow)
        search.tell(result(trains[0], outcome(trains[0], -5.0, rate=0.1), len(asked) - 1))
    assert asked == [*ORDERS[:3], *ORDERS[:2]]


def test_fewer_episodes_than_an_update_are_one_training_all_the_same() -> None:
    search = begun(total=7, most=100, least=10)
    assert [train.episodes for train in search.ask(3)] == [7]


@pytest.mark.parametrize("chooser", [UpperBound(SPACE, 100, 0.9), Shuffled(SPACE), in_turn(list(NAMED.values()))])
def test_what_is_asked_does_not_depend_on_how_much_is_asked_for_at_once(chooser: Any) -> None:
    one, many = begun(chooser), begun(chooser)
    assert [*one.ask(1), *one.ask(3)] == list(many.ask(4))


def test_fixed_workflows_take_turns_and_an_exhaustive_search_trains_each_order_once() -> None:
    fixed = study(WorkflowConfig(mode="fixed", total_episodes=40_000)).strategy
    fixed.begin(0)
    asked = [(train.workflow, train.visit) for train in fixed.ask(50)]
    assert asked == [*((order, 0) for order in NAMED.values()), *((order, 1) for order in list(NAMED.values())[:2])]
    everything = study(WorkflowConfig(exhaustive=True, total_episodes=1)).strategy
    everything.begin(0)
    assert [train.workflow for train in everything.ask(1000)] == list(SPACE_OF_B_LINE.arms), "equal ones are one"
    assert len(SPACE_OF_B_LINE.arms) == 6


# ---------------------------------------------------------------- pauses


def paused(train: Train, score: float) -> Ok:
    """A training that pauses where its schedule says so."""
    ended = outcome(train, score)
    whole = train.schedule is None or train.until == train.schedule
    return ended if whole else dataclasses.replace(ended, data=ended.data | {"state": Blob.of(b"half way")})


def test_a_training_that_paused_continues_when_its_workflow_is_chosen_again() -> None:
    first, second = ORDERS[:2]
    search = begun(in_turn([first, second, first, first]), total=1000, most=(40, 100))
    asked = []
    for _ in range(4):
        (train,) = search.ask(1)
        asked.append(train)
        search.tell(result(train, paused(train, -10.0)))
    assert [(each.workflow, each.visit, each.learnt, each.until) for each in asked] == [
        (first, 0, 0, 40),
        (second, 0, 0, 40),
        (first, 0, 40, 100),
        (first, 1, 0, 40),
    ]
    assert asked[2].state == Blob.of(b"half way") and asked[2].inherited is None
    assert search.left == 1000 - 40 - 40 - 60 - 40


def test_of_drawn_trainings_the_better_half_continues() -> None:
    search = begun(HalvingChooser(SPACE, (40, 100), 0.9), total=800, most=(40, 100))
    whole = []
    for number in range(10):
        (train,) = search.ask(1)
        if train.learnt:
            whole.append(train.workflow)
        search.tell(result(train, paused(train, float(-train.workflow.index("user"))), number))
    scores = [-each.index("user") for each in whole]
    assert 3 <= len(whole) <= 5 and statistics.fmean(scores) > -2.0, "two is the mean of all"


@pytest.mark.slow
def test_a_training_that_pauses_learns_what_it_would_have_learnt_without() -> None:
    workflow, case = order("enterprise>op_server>user>op_host>defender"), Case("0", None, 7)
    trainer = dataclasses.replace(EASY, early=False)
    whole = trainer(Train(workflow, 0, 300), case)
    half = trainer(Train(workflow, 0, 180, schedule=300), case)
    assert half.data["stopped"] == "pause" and half.data["episodes"] == 180
    rest = trainer(Train(workflow, 0, 120, schedule=300, learnt=180, state=half.data["state"]), case)
    assert half.data["curve"] + rest.data["curve"] == whole.data["curve"]
    assert half.data["looks"] + rest.data["looks"] == whole.data["looks"]
    assert rest.data["stopped"] == "budget" and "state" not in rest.data and rest.data["episodes"] == 120


def test_a_synchronous_search_chooses_nothing_before_all_chosen_together_are_told() -> None:
    search = begun(in_turn(ORDERS), window=3, synchronous=True)
    together = [*search.ask(1), *search.ask(5)]
    assert len(together) == 3 and search.ask(3) == []
    for train in together[:2]:
        search.tell(result(train, outcome(train)))
        assert search.ask(3) == []
    search.tell(result(together[2], outcome(together[2])))
    assert len(search.ask(5)) == 3


# ---------------------------------------------------------------- what the surrogate knows


def believes(surrogate: Surrogate, *workflows: Workflow) -> list[float]:
    return surrogate.beliefs(list(workflows)).mean.tolist()


def test_a_short_training_is_not_held_against_its_workflow() -> None:
    surrogate = Surrogate(SPACE, 1000)
    for workflow in ORDERS[:24:4]:
        surrogate.observe(workflow, 500, 0, Observation(-200.0, 1.0))
        surrogate.observe(workflow, 1000, 0, Observation(-100.0, 1.0))
    surrogate.observe(ORDERS[30], 500, 0, Observation(-200.0, 1.0))
    assert believes(surrogate, ORDERS[30])[0] == pytest.approx(-100.0, abs=15.0)


def test_what_was_inherited_is_not_credited_to_the_workflow() -> None:
    """Every later training is better because it began with a better policy, whatever was chosen."""
    surrogate = Surrogate(SPACE, 1000)
    for number, workflow in enumerate(ORDERS[:30:3]):
        surrogate.observe(workflow, 1000, 1000 * number, Observation(-150.0 + 20.0 * math.log2(1 + number), 1.0))
    first, last = believes(surrogate, ORDERS[0], ORDERS[27])
    assert last - first < 20.0, "of the 66 that lie between their returns"


def test_a_workflow_whose_trainings_differ_is_believed_less() -> None:
    surrogate = Surrogate(SPACE, 1000)
    for number in range(4):
        surrogate.observe(ORDERS[0], 1000, 0, Observation(-100.0 + 30.0 * (-1) ** number, 1.0))
        surrogate.observe(ORDERS[119], 1000, 0, Observation(-100.0 + 2.0 * (-1) ** number, 1.0))
    noisy, steady = surrogate.beliefs([ORDERS[0], ORDERS[119]]).deviation
    assert noisy > 1.2 * steady


def raced(
    chooser: Any, worth: dict[Workflow, float], noise: float, count: int, seed: int
) -> list[tuple[Workflow, float]]:
    """The workflows of a search without pauses, two at a time, and what each training returned."""
    space = chooser.space
    search = WorkflowSearch(space, copy.deepcopy(chooser), SearchPlan(100 * count, (100,), 100, inherit=False))
    search.begin(seed)
    luck, told, waiting = random.Random(seed), list[tuple[Workflow, float]](), list[Train]()
    while waiting := [*waiting, *search.ask(2 - len(waiting))]:
        train = waiting.pop(0)
        score = worth[space.canonical(train.workflow)] + luck.gauss(0.0, noise)
        search.tell(result(train, outcome(train, score), len(told)))
        told.append((space.canonical(train.workflow), score))
    return told


@pytest.mark.slow
def test_two_workflows_that_may_be_the_best_are_both_trained_until_it_shows() -> None:
    """An upper bound alone would train the leader again and again."""
    first, second = (SPACE_OF_B_LINE.canonical(order(text)) for text in ("balanced", "critical_first"))
    worth = dict.fromkeys(SPACE_OF_B_LINE.arms or (), -150.0) | {first: -65.0, second: -60.0}
    for seed in range(8):
        asked = [workflow for workflow, _ in raced(UpperBound(SPACE_OF_B_LINE, 100, 0.9), worth, 15.0, 24, seed)]
        assert min(asked.count(first), asked.count(second)) >= 6, "of 24, of which six are for a first look"


def believed_best(space: Orders, told: Sequence[tuple[Workflow, float]]) -> Workflow:
    surrogate = Surrogate(space, 100)
    for workflow, score in told:
        surrogate.observe(workflow, 100, 0, Observation(score, 0.1))
    trained = list(dict.fromkeys(workflow for workflow, _ in told))
    return trained[int(surrogate.beliefs(trained).mean.argmax())]


def ahead_of_chance(seeds: range) -> list[float]:
    """By how much the search recommends better than a random choice, seed by seed, in worlds of pairs and noise."""
    space, ahead = Orders(("a", "b", "c", "d")), []
    assert space.arms is not None
    for seed in seeds:
        rng = random.Random(seed)
        weights = [rng.gauss(0.0, 8.0) for _ in space.pairs]
        weights[rng.randrange(len(weights))] *= 6.0
        worth = {
            arm: sum(weight if kept else -weight for weight, kept in zip(weights, space.features(arm)))
            for arm in space.arms
        }
        searched = raced(UpperBound(space, 100, 0.9), worth, 12.0, 12, seed)
        drawn = max(raced(Shuffled(space), worth, 12.0, 12, seed), key=lambda each: each[1])[0]
        ahead.append(worth[believed_best(space, searched)] - worth[drawn])
    return ahead


@pytest.mark.slow
def test_where_pairs_matter_the_search_recommends_better_than_chance_and_not_without_its_surrogate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert bootstrap(ahead_of_chance(range(60)), statistics.fmean, 1).low > 0.0

    def ignorant(self: Surrogate, workflows: Sequence[Workflow], pending: Sequence[Workflow] = ()) -> WorkflowBeliefs:
        nothing = np.zeros(len(workflows))
        return WorkflowBeliefs(nothing, nothing + 1.0, nothing + 1.0)

    monkeypatch.setattr(Surrogate, "beliefs", ignorant)
    assert bootstrap(ahead_of_chance(range(60)), statistics.fmean, 1).high < 0.0


@pytest.mark.slow
def test_in_a_space_too_large_to_list_the_search_finds_what_a_random_choice_does_not() -> None:
    """Each of twelve hosts that stands before one with a smaller number costs one; chance loses 33 of 66."""
    space = WorkflowConfig(red_agent="MeanderAgent", grain="hosts").workflows
    assert isinstance(space, Orders) and space.arms is None
    wanted = {name: place for place, name in enumerate(space.relevant)}

    def loss(workflow: Workflow) -> int:
        pairs = itertools.combinations([name for name in workflow if name in wanted], 2)
        return sum(wanted[a] > wanted[b] for a, b in pairs)

    lost = {}
    for name, chooser in (("search", UpperBound(space, 100, 0.9)), ("random", Shuffled(space))):
        search = begun(chooser, total=2000, space=space)
        lost[name] = []
        while trains := search.ask(1):
            lost[name].append(loss(trains[0].workflow))
            search.tell(result(trains[0], outcome(trains[0], -float(lost[name][-1]))))
    assert min(lost["search"]) < min(lost["random"]) / 2
    assert statistics.fmean(lost["search"][10:]) < statistics.fmean(lost["random"]) / 3


# ---------------------------------------------------------------- inheritance


def order(text: str) -> Workflow:
    return parse(text)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(ORDERS), min_size=2, max_size=8, unique=True))
def test_a_workflow_begins_with_the_policy_of_the_nearest_one(given_orders: list[Workflow]) -> None:
    *trained, last = given_orders
    search = begun(in_turn(given_orders), total=10_000)
    for train in list(search.ask(len(trained))):
        assert train.inherited is None, "nothing was told yet"
        search.tell(result(train, outcome(train)))
    (train,) = search.ask(1)
    assert train.workflow == last and train.parent in trained and train.inherited is not None
    assert kendall(last, train.parent) == min(kendall(last, other) for other in trained)
    assert train.inherited.read() == f"{show(train.parent)} 0".encode()
    assert search.origin(train)["distance"] == kendall(last, train.parent)


def test_types_that_red_cannot_hold_do_not_make_workflows_different() -> None:
    near = order("enterprise>op_server>user>op_host>defender")
    same = order("defender>op_host>enterprise>user>op_server")
    wanted = order("enterprise>user>op_server>op_host>defender")
    for space, parent in ((SPACE, near), (SPACE_OF_B_LINE, same)):
        search = begun(in_turn([near, same, wanted]), space=space)
        for train in list(search.ask(2)):
            search.tell(result(train, outcome(train)))
        assert search.ask(1)[0].parent == parent


def test_of_a_workflow_trained_twice_the_better_policy_is_passed_on_and_a_compliant_one_before_all() -> None:
    first, second = NAMED["balanced"], NAMED["critical_first"]
    search = begun(in_turn([first, first, first, second]), total=10_000, inherit=True)
    for train, score, rate in zip(list(search.ask(3)), (-30.0, -20.0, -5.0), (0.95, 0.95, 0.5), strict=True):
        search.tell(result(train, outcome(train, score, rate)))
    (heir,) = search.ask(1)
    assert heir.inherited is not None and heir.inherited.read() == f"{show(first)} 1".encode()


def test_no_policy_is_passed_on_twice_to_the_same_workflow() -> None:
    near, wanted = NAMED["critical_first"], NAMED["balanced"]
    search = begun(in_turn([near, wanted, wanted, wanted, wanted, wanted]), total=10_000)
    parents = []
    for score in (-10.0, -20.0, -30.0, -30.0, -5.0, -5.0):
        (train,) = search.ask(1)
        parents.append(None if train.inherited is None else train.inherited.read().decode())
        search.tell(result(train, outcome(train, score)))
    own, other = show(wanted), show(near)
    assert parents == [None, f"{other} 0", f"{own} 0", None, None, f"{own} 3"], "only what is better is passed on again"


def test_without_inheritance_every_training_begins_anew() -> None:
    search = begun(in_turn([NAMED["balanced"]]), inherit=False)
    for _ in range(3):
        (train,) = search.ask(1)
        assert train.parent is None and train.inherited is None
        search.tell(result(train, outcome(train)))


def test_an_inherited_policy_does_at_first_what_it_did_before() -> None:
    old, new = NAMED["balanced"], NAMED["reverse"]
    weights = policy_for("cage2", old).initial(5)
    keys = np.array([0, 1, 2**51 + 77, 2**30 - 1], np.uint64)
    before = network(weights, context_of(old)).log_probabilities(keys)
    after = network(moved(weights, old, new), context_of(new)).log_probabilities(keys)
    unmoved = network(weights, context_of(new)).log_probabilities(keys)
    assert after == pytest.approx(before, abs=1e-5)
    assert np.abs(unmoved - before).max() > 1e-3
    inputs = [policy_for("cage2", each).inputs({}, keys) for each in (old, new)]
    assert values(moved(weights, old, new), inputs[1]) == pytest.approx(values(weights, inputs[0]), abs=1e-4)


# ---------------------------------------------------------------- when a training ends


def look(episodes: int, mean: float, rate: float, low: float) -> Look:
    share = Interval(rate, low, min(1.0, 2 * rate - low), 100, 50, 0.95)
    return Look(episodes, Interval(mean, mean - 2.0, mean + 2.0, 50, 50, 0.95), Compliance(share, share, 0.5, 50, 2.0))


APPRENTICE = WorkflowTrainer(Cage2Collector(), stopping=Stopping(patience=3))


def ends(
    looks: Sequence[Look], budget: int = 10_000, apprentice: WorkflowTrainer = APPRENTICE
) -> tuple[int, str] | None:
    for number in range(1, len(looks) + 1):
        reason = apprentice.decide(looks[:number], budget)
        if reason is not None:
            return number, reason
    return None


def test_a_compliant_policy_goes_on_until_its_return_no_longer_improves() -> None:
    better = [look(100 * n, -50.0 + 10 * n, 0.99, 0.95) for n in range(1, 5)]
    assert ends(better) is None, "compliant from the first look on, but it still learns"
    flat = [look(500 + 100 * n, -10.0, 0.99, 0.95) for n in range(3)]
    assert ends([*better, *flat]) == (7, "compliant")
    luck = [look(500 + 100 * n, -10.0 + 0.1 * n, 0.99, 0.95) for n in range(3)]
    assert ends([*better, *luck]) == (7, "compliant"), "less than a standard error is no improvement"


def test_a_policy_that_does_not_learn_to_comply_is_given_up() -> None:
    stuck = [look(100 * n, -50.0 + 10 * n, 0.6, 0.55) for n in range(1, 9)]
    assert ends(stuck) == (4, "patience"), "however much its return improves"
    learning = [look(100 * n, -50.0, 0.1 * n, 0.1 * n - 0.05) for n in range(1, 9)]
    assert ends(learning) is None


def test_a_rate_above_the_threshold_is_not_enough_unless_it_is_sure() -> None:
    unsure = [look(100, -50.0, 0.95, 0.85)]
    assert APPRENTICE.compliant_at(unsure) is None
    assert APPRENTICE.compliant_at([*unsure, look(200, -50.0, 0.95, 0.91)]) == 1


def test_the_budget_ends_every_training_and_a_fixed_one_ends_by_nothing_else() -> None:
    looks = [look(100 * n, -10.0, 0.6, 0.5) for n in range(1, 11)]
    assert ends(looks, budget=300) == (3, "budget")
    fixed = dataclasses.replace(APPRENTICE, early=False)
    assert ends(looks, 1000, fixed) == (10, "budget")
    assert ends([look(100 * n, -10.0, 0.99, 0.98) for n in range(1, 11)], 1000, fixed) == (10, "budget")
    assert APPRENTICE.decide(looks, 2000) == "patience" and APPRENTICE.decide(looks, 2000, thorough=True) is None


EASY = WorkflowTrainer(
    Cage2Collector(game=Cage2Game(("b_line",), 30), alignment_lambda=30.0, alignment_kind="each"),
    stopping=Stopping(threshold=0.05, patience=1),
    per_update=60,
    every=1,
    look=64,
    held_out=64,
)


@pytest.mark.slow
def test_a_training_reports_both_moments_and_never_learns_from_more_than_its_budget() -> None:
    easy = EASY
    train, case = Train(order("enterprise>op_server>user>op_host>defender"), 0, 500), Case("0", None, 7)
    early = easy(train, case)
    assert early.data["stopped"] == "compliant" and early.data["compliant_at"] == 60
    assert early.data["episodes"] < 500 and early.data["compliant_return"] is not None
    assert easy(train, case) == early, "it follows from the candidate and the case"
    whole = dataclasses.replace(easy, early=False)(train, case)
    assert whole.data["stopped"] == "budget" and whole.data["episodes"] == 500
    assert [row[0] for row in whole.data["curve"]] == [60] * 8 + [20]
    assert whole.data["curve"][: len(early.data["curve"])] == early.data["curve"]
    heir = dataclasses.replace(train, visit=1, parent=train.workflow, inherited=whole.data["agent"])
    again = dataclasses.replace(easy, early=False, keep_optimiser=True)(heir, case)
    assert again.data["curve"][0][1] > whole.data["curve"][0][1] + 50, "it begins where the other ended"
    assert any(name.startswith("adam:") for name in unpack(again.data["agent"].read()))
    assert not any(name.startswith("adam:") for name in unpack(whole.data["agent"].read()))


@pytest.mark.slow
def test_a_policy_that_was_better_before_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt, updates = ppo.update, itertools.count(1)

    def ruined(*given_to: Any) -> Any:
        weights, moved_by = learnt(*given_to)
        if next(updates) > 6:
            weights = weights | {"policy.2.weight": np.zeros_like(weights["policy.2.weight"])}
        return weights, moved_by

    train, fixed = Train(NAMED["enterprise_focus"], 0, 600), dataclasses.replace(EASY, early=False)
    monkeypatch.setattr(ppo, "update", ruined)
    found = fixed(train, Case("0", None, 7))
    assert found.data["policy"].startswith("best") and found.score > found.data["looks"][-1][1] + 20


# ---------------------------------------------------------------- compliance


@pytest.mark.slow
def test_the_search_asks_for_what_complies_although_what_does_not_pays_more() -> None:
    """Fixing users first pays a hundred times more, and never complies."""
    search = begun(UpperBound(SPACE, 100, 0.9), total=4000, most=100, least=100, inherit=False)
    asked = []
    while trains := search.ask(2):
        for train in trains:
            first = train.workflow[0] == "user"
            place = train.workflow.index("enterprise")
            search.tell(result(train, outcome(train, 100.0 if first else -float(place), 0.4 if first else 0.97)))
            asked.append(train.workflow)
    late = asked[20:]
    assert sum(each[0] == "user" for each in late) <= 1, "what does not comply is left alone once that is known"
    assert sum(each[0] == "enterprise" for each in late) > len(late) / 3, "a fifth of all would be chance"


def training(score: float, rate: float | None, low: float, number: int = 0) -> f.FinishedTraining:
    data = {"compliance": rate, "compliance_interval": [low, 1.0], "return_variance": 0.1, "compliance_variance": 0.01}
    return f.FinishedTraining(number, NAMED["balanced"], 0, score, data, {})


def test_the_best_is_the_best_of_those_that_comply() -> None:
    sure, likely, fails = training(-30.0, 0.95, 0.92), training(-20.0, 0.91, 0.85), training(-1.0, 0.89, 0.88)
    assert max([fails, likely, sure], key=lambda each: each.standing(0.9)) is sure
    assert max([fails, likely], key=lambda each: each.standing(0.9)) is likely
    assert max([fails, training(-2.0, 0.2, 0.1)], key=lambda each: each.standing(0.9)) is fails
    assert fails.standing(0.9)[0] == 0


def test_removing_red_from_its_foothold_does_not_raise_compliance() -> None:
    """The original counts it as keeping to a workflow with users in front."""
    remove = 2 + len(HOSTS) * REMOVE + HOSTS.index("User0")
    workflow = order("user>enterprise>op_server>op_host>defender")

    def gaming(keys: Any) -> Any:
        scores = np.full((len(keys), len(ACTIONS)), -np.inf, np.float32)
        scores[:, remove] = 0.0
        return scores

    block = rollout(PolicyTable(gaming), Cage2Game(("b_line",)), range(64), 1)
    found = measure(block.actions, block.held, workflow)
    assert found.original > 0.9
    assert found.rate.estimate is None and found.rate.low == 0.0
    rate, _ = found.observed()
    assert rate < 0.9 and training(-1.0, None, 0.0).standing(0.9)[0] == 0


# ---------------------------------------------------------------- the same everywhere


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Run[Any]:
    results = tmp_path_factory.mktemp("results")
    return study(dataclasses.replace(SMALL, results=str(results))).run(run="mine")


def choices(run: Run[Any]) -> list[tuple[Any, ...]]:
    """Everything that a training was and came to."""
    found = []
    for each in run.results():
        (data,) = (outcome.data for outcome in each.outcomes.values() if isinstance(outcome, Ok))
        found.append((each.candidate["workflow"], each.candidate["visit"], each.score, data["curve"], data["agent"]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["threads:2", pytest.param("processes:2", marks=pytest.mark.slow)])
def test_choices_and_curves_do_not_depend_on_the_workers(executor: str, reference: Run[Any]) -> None:
    run = study(SMALL).run(executor)
    assert run.trace == reference.trace
    assert choices(run) == choices(reference)
    assert run.summary is not None and reference.summary is not None
    assert run.summary.figures["return"] == reference.summary.figures["return"]
    assert run.summary.figures["beliefs"] == reference.summary.figures["beliefs"]


@pytest.mark.slow
def test_another_seed_is_another_search(reference: Run[Any]) -> None:
    assert study(dataclasses.replace(SMALL, seed=1, total_episodes=300)).run().trace != reference.trace


_SCRIPT = """
import json, sys
from fanfold.studies.workflow import Config, study
study(Config(**json.loads(sys.argv[1]))).run("threads:2", ledger=sys.argv[2], run="killed")
"""


@pytest.mark.slow
def test_a_killed_search_resumes_to_the_identical_choices_and_curves(tmp_path: Path, reference: Run[Any]) -> None:
    ledger = tmp_path / "ledger.sqlite"
    plain = {name: value for name, value in dataclasses.asdict(SMALL).items() if not isinstance(value, dict)}
    fields = json.dumps(plain)
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT, fields, str(ledger)])
    deadline = time.monotonic() + 60
    while told(ledger) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed before its end"
    assert 2 <= told(ledger) < len(choices(reference))
    resumed = study(SMALL).run(ledger=ledger, run="killed")
    assert resumed.trace == reference.trace
    assert choices(resumed) == choices(reference)
    assert resumed.progress.evaluations >= len(choices(reference))


def told(ledger: Path) -> int:
    try:
        with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM trial WHERE told IS NOT NULL").fetchone()[0])
    except sqlite3.OperationalError:  # it is not there yet
        return 0


# ---------------------------------------------------------------- what comes of it


def test_a_search_ends_with_the_best_workflow_scored_afresh_and_with_files(reference: Run[Any]) -> None:
    assert reference.summary is not None
    figures = reference.summary.figures
    assert figures["episodes"] <= 900 and figures["fresh_episodes"] == 64
    assert figures["trainings"] == sum(figures["stopped"].values()) == len(figures["regret"])
    low, high = figures["return_interval"]
    assert low <= figures["return"] <= high and set(figures["rivals"]) == {"greedy", "random"}
    assert len(figures["beliefs"]) == 6, "to B-line the 120 orders are six"
    assert figures["regret"][-1][2] in (0.0, None), "without a run of all workflows, the best known is our own"
    folder = Path(figures["folder"])
    training_rows = list(csv.DictReader((folder / "training_log.csv").open()))
    assert list(training_rows[0]) == [
        "Workflow_ID",
        "Workflow_Order",
        "Update",
        "Episodes",
        "Total_Episodes_Sampled",
        "Env_Reward",
        "Alignment_Bonus",
        "Total_Reward",
        "Compliance",
        "Avg_Fixes",
        "Collection_Time",
        "Update_Time",
    ]
    assert int(training_rows[-1]["Total_Episodes_Sampled"]) == figures["episodes"]
    rows = list(csv.DictReader((folder / "gp_sampling_log.csv").open()))
    columns = ["Iteration", "Workflow", "UCB_Score", "Reward", "Final_Compliance", "Episodes_Trained", "GP_Updated"]
    assert list(rows[0]) == columns and len(rows) == figures["trainings"]
    assert all(parse(row["Workflow"]) and math.isfinite(float(row["UCB_Score"])) for row in rows)
    assert json.loads((folder / "experiment_config.json").read_text())["mode"] == "search"
    agent = (folder / f"workflow_{figures['trial']}_agent.safetensors").read_bytes()
    assert about(agent)["workflow"] == figures["workflow"] and unpack(agent)["policy.0.weight"].shape == (77, 64)


_AGENT = Blob.of(pack(policy_for("cage2", NAMED["balanced"]).initial(5)))


def _pretended(candidate: Train, case: Case) -> Ok:
    """A training that costs nothing: what is best is known, and the very best does not comply."""
    place = candidate.workflow.index("enterprise")
    breaks = candidate.workflow[1] == "user"
    found = outcome(candidate, 50.0 if breaks else -10.0 * place, 0.5 if breaks else 0.97)
    rest: dict[str, Any] = {
        "contested": None,
        "stopped": "budget",
        "compliant_at": None,
        "compliant_return": None,
        "greedy": False,
    }
    rest |= {"held_out_episodes": 0, "policy": "last, sampled", "curve": [], "agent": _AGENT}
    return dataclasses.replace(found, data=found.data | rest)


@pytest.mark.slow
def test_regret_is_measured_by_a_run_of_all_workflows_in_the_same_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    worse = dataclasses.replace(SMALL, mode="fixed", workflow="critical_first")
    alone = dataclasses.replace(study(worse), evaluate=_pretended).run(ledger=ledger, run="before")
    assert alone.summary is not None and alone.summary.figures["best_known_of"] == "before"
    assert [row[2] for row in alone.summary.figures["regret"]] == [0.0] * 5
    everything = dataclasses.replace(SMALL, exhaustive=True)
    whole = dataclasses.replace(study(everything), evaluate=_pretended).run(ledger=ledger, run="all")
    assert whole.summary is not None and whole.summary.figures["trainings"] == 6
    assert whole.summary.figures["workflow"].startswith("enterprise")
    later = dataclasses.replace(study(worse), evaluate=_pretended).run(ledger=ledger, run="after")
    assert later.summary is not None
    assert later.summary.figures["best_known_of"] == "all" and later.summary.figures["best_known"] == 0.0
    assert [row[2] for row in later.summary.figures["regret"]] == [20.0] * 5


@pytest.mark.parametrize("mode", ["search", "ppo"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_learnt(mode: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: .* is a file; name another folder"):
        study(dataclasses.replace(SMALL, mode=mode, results=f"{__file__}/agents"))


@pytest.mark.slow
def test_a_run_of_another_grain_in_the_same_ledger_does_not_matter(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    hosts = study(dataclasses.replace(SMALL, grain="hosts"))
    others = dataclasses.replace(hosts, evaluate=_alike, conclude=None).run(ledger=ledger, run="hosts", max_trials=8)
    assert others.progress.told == 8
    everything = dataclasses.replace(SMALL, exhaustive=True)
    run = dataclasses.replace(study(everything), evaluate=_alike).run(ledger=ledger, run="units")
    assert run.summary is not None and run.summary.figures["best_known_of"] == "units"


def _alike(candidate: Train, case: Case) -> Ok:
    orders = dataclasses.replace(candidate, workflow=NAMED["balanced"])
    return _pretended(orders, case)


@pytest.mark.slow
def test_a_search_without_any_finished_training_says_so(tmp_path: Path) -> None:
    broken = dataclasses.replace(study(SMALL), evaluate=_broken)
    run = broken.run()
    assert run.best_or_none is None and run.summary is not None and run.summary.figures == {"trainings": 0}


def _broken(candidate: Any, case: Case) -> float:
    raise RuntimeError("nothing works today")


@pytest.mark.slow
def test_against_a_red_that_never_moves_no_workflow_can_be_told_from_another() -> None:
    config = dataclasses.replace(SMALL, red_agent="SleepAgent", total_episodes=300)
    run = study(config).run()
    assert run.summary is not None
    assert run.summary.figures["compliance"] is None and not run.summary.figures["complies"]


def test_the_heuristics_do_what_they_say() -> None:
    bits = np.zeros(52, bool)
    bits[4 * 1 + 3] = True  # Enterprise0 looks entered
    bits[[4 * 9 + 2, 4 * 9 + 3]] = True  # User1 looks entered in depth
    key = np.array([sum(1 << number for number in np.flatnonzero(bits).tolist()), 0], np.uint64)
    for text, action in (("enterprise", 15 + 1), ("user", 132 + 9)):
        workflow: Workflow = (text, *(unit for unit in NAMED["balanced"] if unit != text))
        scores = baselines.mending(workflow, key)
        assert scores.argmax(axis=1).tolist() == [action, 0] and (scores == 0).sum() == 2
    arm: Arm = (NAMED["balanced"], 0)
    assert arm[0] in ORDERS and (baselines.anything(key) == 0).all()
