"""Compliance: what counts, that it cannot be had for nothing, and when training may stop."""

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
from fanfold.stats import Interval
from fanfold.studies.workflow import compliance as c
from fanfold.studies.workflow.cage2 import rollout
from fanfold.studies.workflow.cage2 import rules as g
from fanfold.studies.workflow.cage2.policy import PolicyNetwork, PolicyTable
from fanfold.studies.workflow.compliance import (
    Marks,
    Stopping,
    alignment,
    contested_pairs,
    judge,
    measure,
    reachable,
)
from fanfold.studies.workflow.orders import GRAINS, NAMED, UNITS, cage2_orders
from fanfold.studies.workflow.spaces import Workflow

USER_FIRST = NAMED["user_priority"]
USER_LAST = NAMED["critical_first"]  # defender, op_server, enterprise, op_host, user


def one(*steps: tuple[str, str, bool]) -> tuple[np.ndarray, np.ndarray]:
    """An episode of (blue's action, the hosts red holds, whether the action took something from red)."""
    actions = [[g.ACTIONS.index(action) for action, _, _ in steps]]
    held = [[sum(1 << g.HOSTS.index(host) for host in hosts.split()) | c.FIXED * fixed for _, hosts, fixed in steps]]
    return np.array(actions, np.uint8), np.array(held, np.uint16)


def said(marks: Marks) -> list[str]:
    """What is said of each step of the first episode."""
    words = {(False, False): "-", (True, False): "broken", (True, True): "kept"}
    return [words[bool(a), bool(b)] for a, b in zip(marks.counted[0], marks.compliant[0])]


def slow(action: int, word: int, workflow: Workflow, definition: str) -> tuple[bool, bool]:
    """One step judged by names, as the specification tells it."""
    name = g.ACTIONS[action]
    verb, _, host = name.partition(" ")
    hosts = {each for i, each in enumerate(g.HOSTS) if word >> i & 1}
    if definition == "original":
        hosts.add("User0")
    types = {each.rstrip("0123456789").lower() for each in hosts}
    if verb not in ("Remove", "Restore"):
        return False, False
    if definition != "original" and (not word & c.FIXED or not hosts):
        return False, False
    if definition == "contested" and len(types) < 2:
        return False, False
    required = next(unit for unit in workflow if unit in types)
    return True, host.rstrip("0123456789").lower() == required


def played(red: str, policy: Any, episodes: int = 200, **options: Any) -> rollout.EpisodeBlock:
    return rollout.rollout(PolicyTable(policy), g.Cage2Game((red,), **options), range(episodes))


def always(action: str) -> Any:
    scores = np.full(145, -np.inf, np.float32)
    scores[g.ACTIONS.index(action)] = 0.0
    return lambda keys: np.tile(scores, (len(keys), 1))


NETWORK = PolicyNetwork.initial(0)


# ---------------------------------------------------------------- what counts


def test_the_hosts_have_the_types_of_the_original_and_the_words_are_those_of_a_block() -> None:
    assert c.FIXED == rollout.FIXED
    types = dict(zip(g.HOSTS, GRAINS["units"]))
    assert types["Defender"] == "defender" and types["Op_Server0"] == "op_server" and types["Op_Host2"] == "op_host"
    assert [list(types.values()).count(unit) for unit in UNITS] == [1, 3, 1, 3, 5]


def test_the_first_type_of_the_order_that_red_holds_is_to_be_fixed() -> None:
    steps = one(
        ("Remove User1", "User1 Enterprise0", True),
        ("Restore Enterprise2", "User1 Enterprise0", True),
        ("Restore Op_Server0", "User1 Enterprise0 Op_Server0", True),
        ("Restore User2", "User2", True),
    )
    assert said(judge(*steps, USER_LAST)) == ["broken", "kept", "kept", "kept"]
    assert said(judge(*steps, USER_FIRST)) == ["kept", "broken", "broken", "kept"]


def test_only_fixes_that_took_something_from_red_count() -> None:
    steps = one(
        ("Remove User1", "User1", False),
        ("Analyse User1", "User1", False),
        ("DecoyApache User1", "User1", False),
        ("Sleep", "User1", False),
        ("Restore User1", "", True),  # a file was left there, but nothing was held: any order would do
    )
    assert said(judge(*steps, USER_LAST)) == ["-"] * 5
    assert said(judge(*steps, USER_LAST, "original")) == ["kept", "-", "-", "-", "kept"]


def test_a_contested_fix_is_one_where_there_was_something_to_choose() -> None:
    steps = one(("Remove User1", "User1 User2", True), ("Remove User1", "User1 Op_Host0", True))
    assert said(judge(*steps, USER_FIRST, "contested")) == ["-", "kept"]
    assert said(judge(*steps, USER_LAST, "contested")) == ["-", "broken"]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 144), st.integers(0, 2**14 - 1)), min_size=1, max_size=30),
    st.permutations(UNITS).map(tuple),
    st.sampled_from(c.DEFINITIONS),
)
def test_every_step_is_judged_as_the_slow_way_by_names_does(
    steps: list[tuple[int, int]], workflow: Workflow, definition: str
) -> None:
    marks = judge([[a for a, _ in steps]], [[w for _, w in steps]], workflow, definition)
    expected = [slow(action, word, workflow, definition) for action, word in steps]
    assert list(zip(marks.counted[0].tolist(), marks.compliant[0].tolist())) == expected


def test_blocks_that_were_played_are_judged_alike() -> None:
    block = played("meander", NETWORK, 8)
    for definition in c.DEFINITIONS:
        marks = judge(block.actions, block.held, USER_FIRST, definition)
        steps = zip(block.actions.ravel().tolist(), block.held.ravel().tolist())
        expected = [slow(action, word, USER_FIRST, definition) for action, word in steps]
        assert list(zip(marks.counted.ravel().tolist(), marks.compliant.ravel().tolist())) == expected
        assert marks.counted.any()


@pytest.mark.parametrize(
    ("actions", "held", "says"),
    [
        ([1, 2], [1, 2], "arrays"),
        ([[1, 2]], [[1]], r"\(1, 2\) and \(1, 1\)"),
        ([[145]], [[0]], "actions: numbers from 0 to 144"),
        ([[-1]], [[0]], "actions"),
        ([[1]], [[1 << 14]], "held: numbers from 0 to 16383"),
        ([[1.5]], [[0]], "whole numbers"),
    ],
)
def test_arrays_that_are_no_episodes_are_refused(actions: Any, held: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        judge(actions, held, USER_FIRST)


def test_a_definition_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="'efective'; did you mean 'effective'"):
        judge([[1]], [[1]], USER_FIRST, "efective")


# ---------------------------------------------------------------- not to be had for nothing


def test_the_free_no_op_that_satisfies_the_original_earns_nothing() -> None:
    block = played("b_line", always("Remove User0"))
    gamed = measure(block.actions, block.held, USER_FIRST)
    assert gamed.original == 1.0
    assert gamed.rate == Interval(None, 0.0, 1.0, 0, 0) and gamed.fixes == 0.0
    assert Stopping(0.5).decide([gamed.rate], 1) is None


def test_the_no_op_does_not_dilute_violations_either() -> None:
    steps = one(*[("Remove User0", "Enterprise0", False)] * 50, ("Remove Enterprise0", "Enterprise0 User3", True))
    assert judge(*steps, USER_FIRST, "original").rates()[0] > 0.98
    assert judge(*steps, USER_FIRST).rates()[0] == 0.0


def test_users_first_can_be_kept_to_because_the_foothold_does_not_count() -> None:
    steps = one(("Restore Enterprise1", "Enterprise1", True))
    assert said(judge(*steps, USER_FIRST)) == ["kept"]
    assert said(judge(*steps, USER_FIRST, "original")) == ["broken"]


def test_a_policy_that_does_nothing_has_shown_nothing() -> None:
    block = played("b_line", always("Sleep"))
    idle = measure(block.actions, block.held, USER_LAST)
    assert idle.original == 0.5
    assert (idle.rate.estimate, idle.rate.low, idle.rate.high) == (None, 0.0, 1.0)
    value, variance = idle.observed()
    assert value == 0.5 and variance == pytest.approx((0.5 / 1.959964) ** 2)


@pytest.mark.parametrize("red", g.REDS)
def test_red_holds_only_types_it_is_said_to_reach(red: str) -> None:
    block = played(red, NETWORK, 1000)
    ever = int(np.bitwise_or.reduce(block.held, axis=None)) & (c.FIXED - 1)
    held = {GRAINS["units"][i] for i in range(13) if ever >> i & 1}
    assert held == set(reachable((red,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("red", "grain", "arms"), [("b_line", "units", 6), ("meander", "units", 24), ("b_line", "roles", 96)]
)
def test_orders_that_agree_on_what_red_can_hold_together_ask_for_the_same_fixes(
    red: str, grain: str, arms: int
) -> None:
    block = played(red, NETWORK, 300)
    space = cage2_orders(grain, contested_pairs((red,), grain))
    asked: dict[Workflow, set[bytes]] = {}
    rng = random.Random(1)
    for workflow in (*(space.arms or ()), *(space.draw(rng) for _ in range(200))):
        judged = judge(block.actions, block.held, workflow).compliant.tobytes()
        asked.setdefault(space.canonical(workflow), set()).add(judged)
    assert len(asked) == arms
    assert all(len(judged) == 1 for judged in asked.values())
    assert len(set.union(*asked.values())) >= 6, "what red can hold together makes a difference"


@pytest.mark.parametrize("red", ["b_line", "meander"])
def test_no_hosts_are_held_together_that_are_not_said_to_be(red: str) -> None:
    block = played(red, always("Sleep"), 300)
    words = np.unique(block.held & (c.FIXED - 1)).tolist()
    seen = {
        frozenset((g.HOSTS[a].lower(), g.HOSTS[b].lower()))
        for word in words
        for a, b in itertools.combinations([i for i in range(13) if word >> i & 1], 2)
    }
    pairs = {frozenset(pair) for pair in contested_pairs((red,), "hosts")}
    assert seen <= pairs and len(seen) > 10


def test_single_hosts_can_be_put_in_order() -> None:
    steps = one(("Remove User1", "User1 User3", True), ("Remove User3", "User1 User3", True))
    options = cage2_orders("hosts").options
    first = ("user3", *(host for host in options if host != "user3"))
    assert said(judge(*steps, first)) == ["broken", "kept"]
    assert said(judge(*steps, options)) == ["kept", "broken"]
    assert said(judge(*steps, options, "contested")) == ["kept", "broken"], "of one type, and yet there was a choice"


def test_a_red_that_does_not_exist_is_named() -> None:
    assert reachable(("b_line", "meander")) == ("enterprise", "op_server", "op_host", "user")
    with pytest.raises(ConfigError, match="'bline'; did you mean 'b_line'"):
        reachable(("bline",))


# ---------------------------------------------------------------- measured with an interval


def test_the_rate_is_over_all_fixes_and_its_interval_from_differences_between_episodes() -> None:
    counted = np.ones((40, 10), bool)
    alike, apart = np.zeros((40, 10), bool), np.zeros((40, 10), bool)
    alike[:, :8] = True
    apart[:32] = True
    close, wide = (c._rate(Marks(counted, each), 0.95) for each in (alike, apart))
    assert close.estimate == wide.estimate == 0.8
    assert (close.n, close.clusters) == (400, 40)
    assert wide.high - wide.low > 2.5 * (close.high - close.low)


def test_a_measurement_says_what_it_rests_on() -> None:
    block = played("meander", NETWORK, 400)
    found = measure(block.actions, block.held, USER_FIRST)
    marks = judge(block.actions, block.held, USER_FIRST)
    assert found.rate.estimate == marks.kept.sum() / marks.fixes.sum()
    assert found.rate.low < found.rate.estimate < found.rate.high
    assert found.episodes == 400 and found.fixes == marks.fixes.mean()
    assert found.contested.n < found.rate.n
    original = judge(block.actions, block.held, USER_FIRST, "original")
    assert found.original == pytest.approx(original.rates(empty=0.5).mean())
    value, variance = found.observed()
    assert value == found.rate.estimate
    assert 2 * 1.959964 * math.sqrt(variance) == pytest.approx(found.rate.high - found.rate.low)


def test_no_episodes_are_measured_as_nothing() -> None:
    none = measure(np.zeros((0, 100), np.uint8), np.zeros((0, 100), np.uint16), USER_FIRST)
    assert none.rate.estimate is None and none.episodes == 0 and none.fixes == 0.0


# ---------------------------------------------------------------- rewarded


def marks_of(*steps: str) -> Marks:
    counted = np.array([[step != "-" for step in steps]])
    return Marks(counted, np.array([[step == "kept" for step in steps]]))


def test_the_reward_of_the_rate_follows_the_running_rate() -> None:
    marks = marks_of("-", "kept", "broken", "-", "kept")
    assert alignment(marks, 60.0)[0].tolist() == pytest.approx([0.0, 60.0, -30.0, 0.0, 10.0])


@pytest.mark.slow
@given(st.lists(st.sampled_from(["-", "kept", "broken"]), min_size=1, max_size=40))
def test_the_rewards_of_the_rate_sum_to_the_weight_times_the_final_rate(steps: list[str]) -> None:
    marks = marks_of(*steps)
    total = alignment(marks, 100.0).sum()
    fixes = len(steps) - steps.count("-")
    assert total == pytest.approx(100.0 * steps.count("kept") / fixes if fixes else -20.0)


def test_a_broken_order_costs_the_same_whenever_it_is_broken_if_each_fix_counts_for_itself() -> None:
    marks = marks_of("kept", "broken", "-", "broken")
    assert alignment(marks, 5.0, "each")[0].tolist() == [0.0, -5.0, 0.0, -5.0]
    assert alignment(marks_of("-"), 5.0, "each")[0].tolist() == [0.0]


def test_rewards_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="'rates'; did you mean 'rate'"):
        alignment(marks_of("kept"), 1.0, "rates")
    with pytest.raises(ConfigError, match="weight=nan"):
        alignment(marks_of("kept"), math.nan)


# ---------------------------------------------------------------- enough


def look(estimate: float | None, low: float = 0.0) -> Interval:
    return Interval(estimate, low, 1.0, 100, 50)


def test_training_stops_when_the_lower_limit_reaches_the_threshold_not_the_estimate() -> None:
    rule = Stopping(0.9, patience=5, max_episodes=1000)
    assert rule.decide([look(0.97, 0.88)], 10) is None
    assert rule.decide([look(0.97, 0.9)], 10) == "compliant"
    assert rule.decide([look(0.97, 0.95), look(0.9, 0.8)], 10) is None, "only the policy of the last look counts"
    assert rule.decide([], 10) is None


def test_training_stops_when_the_episodes_are_used_up() -> None:
    rule = Stopping(0.9, max_episodes=1000)
    assert rule.decide([look(0.5)], 999) is None
    assert rule.decide([look(0.5)], 1000) == "budget"
    assert rule.decide([look(0.99, 0.95)], 1000) == "compliant"


def test_training_stops_when_patience_is_at_its_end() -> None:
    rule = Stopping(0.9, patience=3, gain=0.01)
    rates = [0.3, 0.5, 0.505, 0.4]
    assert rule.decide([look(rate) for rate in rates], 1) is None
    assert rule.decide([look(rate) for rate in [*rates, 0.509]], 1) == "patience"
    assert rule.decide([look(rate) for rate in [*rates, 0.52]], 1) is None
    assert rule.decide([look(None)] * 3, 1) is None
    assert rule.decide([look(None)] * 4, 1) == "patience"


def test_all_looks_together_spend_no_more_than_the_error_that_is_allowed() -> None:
    rule = Stopping(0.9, confidence=0.9)
    spent = sum((1.0 - rule.level_at(k)) / 2.0 for k in range(1, 5000))
    assert 0.0999 < spent < 0.1
    assert all(0.0 < rule.level_at(k) < rule.level_at(k + 1) < 1.0 for k in range(1, 100))
    with pytest.raises(ConfigError, match="counted from 1"):
        rule.level_at(0)


@pytest.mark.slow
def test_a_policy_just_below_the_threshold_seldom_stops_the_training_in_many_looks() -> None:
    """300 trainings of 20 looks at 60 episodes each, with a true rate of 0.89 against a threshold of 0.9."""
    rule, rng = Stopping(0.9, confidence=0.9, patience=10**6, max_episodes=10**9), np.random.default_rng(0)
    stopped = careless = 0
    for _ in range(300):
        fooled = eager = False
        for number in range(1, 21):
            kept = rng.random((60, 4)) < 0.89
            marks = Marks(np.ones((60, 4), bool), kept)
            fooled |= rule.decide([c._rate(marks, rule.level_at(number))], 0) == "compliant"
            eager |= float(kept.mean()) >= 0.9
        stopped += fooled
        careless += eager
    assert stopped / 300 < 0.13
    assert careless / 300 > 0.9, "the mean of a batch, which the original looks at, is fooled almost always"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threshold": 1.0}, "threshold=1.0"),
        ({"confidence": 0.3}, "between 0.5 and 1"),
        ({"patience": 0}, "patience must be a whole number of at least 1, not 0"),
        ({"max_episodes": 1.5}, "max_episodes must be a whole number"),
        ({"gain": math.nan}, "gain=nan"),
    ],
)
def test_rules_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Stopping(**options)
