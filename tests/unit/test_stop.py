"""Stopping rules stop when they say, never overrun a budget, and compose."""

from __future__ import annotations

import copy
import math
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold import Study, Sweep
from fanfold.errors import ConfigError
from fanfold.events import Progress
from fanfold.stop import MaxCost, MaxEvaluations, MaxTime, MaxTrials, Never, Plateau, Rule, Target


def _plateau_reasons(rule: Rule, bests: list[float | None]) -> list[bool]:
    return [rule.check(Progress(told=told, best=best)) is not None for told, best in enumerate(bests, start=1)]


def test_max_trials_allows_what_is_left_and_stops_when_all_are_told() -> None:
    rule = MaxTrials(10)
    assert rule.allowance(Progress(asked=7, told=3)) == 3
    assert rule.allowance(Progress(asked=12)) == 0
    assert rule.check(Progress(asked=10, told=9)) is None
    assert rule.check(Progress(asked=10, told=10)) == "10 trials"
    assert MaxTrials(1).check(Progress(asked=1, told=1)) == "1 trial"


@pytest.mark.slow
@given(
    n=st.integers(1, 200),
    cases=st.integers(1, 12),
    window=st.integers(1, 9),
    used=st.randoms(use_true_random=False),
)
def test_max_evaluations_is_never_exceeded_and_leaves_no_full_row_unused(
    n: int, cases: int, window: int, used: random.Random
) -> None:
    rule = MaxEvaluations(n)
    asked = told = evaluations = 0
    while True:
        progress = Progress(asked=asked, told=told, told_evaluations=evaluations, cases=cases)
        if (reason := rule.check(progress)) is not None:
            break
        asked += int(min(rule.allowance(progress), window - progress.open))
        assert asked > told, "neither stopped nor allowed to go on"
        told += 1
        evaluations += used.randint(1, cases)  # a schedule may drop a row early
        assert evaluations + (asked - told) * cases <= n
    assert asked == told
    assert n - evaluations < cases
    assert reason == ("1 evaluation" if n == 1 else f"{n} evaluations")


@pytest.mark.parametrize(
    ("given", "seconds"), [(90, 90.0), (1.5, 1.5), ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), (" 0.5 h ", 1800.0)]
)
def test_max_time_takes_seconds_or_a_text(given: float | str, seconds: float) -> None:
    rule = MaxTime(given)
    assert rule.seconds == seconds
    assert rule.check(Progress(elapsed=seconds - 0.001)) is None
    assert rule.check(Progress(elapsed=seconds)) is not None


def test_max_time_says_the_limit_as_it_was_given() -> None:
    assert MaxTime("15m").check(Progress(elapsed=1e6)) == "time limit of 15m"
    assert MaxTime(90).check(Progress(elapsed=1e6)) == "time limit of 90s"


def test_max_cost_stops_once_the_amount_is_spent() -> None:
    assert MaxCost(5.0).check(Progress(cost=4.99)) is None
    assert MaxCost(5.0).check(Progress(cost=5.0)) == "cost limit of 5"


def test_target_stops_once_the_best_reaches_it() -> None:
    assert Target(0.9).check(Progress(best=None)) is None
    assert Target(0.9).check(Progress(best=0.89)) is None
    assert Target(0.9).check(Progress(best=0.9)) == "target of 0.9 reached"


def test_plateau_stops_after_so_many_trials_without_improvement() -> None:
    reasons = _plateau_reasons(Plateau(3), [0.1, 0.2, 0.2, 0.2, 0.2])
    assert reasons == [False, False, False, False, True]
    rule = Plateau(3)
    rule.check(Progress(told=1, best=0.2))
    assert rule.check(Progress(told=4, best=0.2)) == "no improvement in 3 trials"


def test_plateau_does_not_count_a_rise_within_min_delta_but_small_rises_add_up() -> None:
    assert _plateau_reasons(Plateau(3, 0.1), [0.0, 0.05, 0.08, 0.1]) == [False, False, False, True]
    assert not any(_plateau_reasons(Plateau(3, 0.1), [0.06 * i for i in range(30)]))


def test_plateau_counts_trials_without_any_score() -> None:
    assert _plateau_reasons(Plateau(3), [None, None, None]) == [False, False, True]


def test_a_copied_plateau_starts_with_its_own_memory() -> None:
    rule = Plateau(2)
    twin = copy.deepcopy(rule)
    _plateau_reasons(rule, [0.9, 0.9])
    assert _plateau_reasons(twin, [0.1, 0.2, 0.3]) == [False, False, False]


def test_either_stops_with_the_first_reason_and_allows_the_least() -> None:
    rule = MaxTrials(10) | MaxEvaluations(30) | Target(0.5)
    progress = Progress(asked=4, told=4, told_evaluations=20, cases=5, best=0.6)
    assert rule.allowance(progress) == 2
    assert rule.check(progress) == "target of 0.5 reached"
    assert rule.check(Progress(cases=5)) is None


def test_both_needs_all_reasons_and_allows_the_most() -> None:
    rule = MaxTrials(10) & Target(0.5)
    assert rule.check(Progress(told=10, best=0.4)) is None
    assert rule.check(Progress(told=9, best=0.6)) is None
    assert rule.check(Progress(told=12, best=0.6)) == "10 trials and target of 0.5 reached"
    assert rule.allowance(Progress(asked=10)) == math.inf
    assert (MaxTrials(10) & MaxTrials(20)).allowance(Progress(asked=5)) == 15


def test_both_can_stop_while_rows_beyond_a_spent_budget_are_open() -> None:
    rule = MaxEvaluations(20) & Target(0.5)
    assert rule.check(Progress(asked=9, told=4, told_evaluations=20, cases=5, best=0.6)) is not None


@pytest.mark.parametrize("compose", [lambda a, b: a | b, lambda a, b: a & b, lambda a, b: b | a])
def test_a_composed_plateau_sees_every_trial_although_another_rule_already_spoke(
    compose: Callable[[Rule, Rule], Rule],
) -> None:
    plateau = Plateau(3)
    rule = compose(Target(0.0), plateau)
    for told, best in enumerate([0.1, 0.2, 0.3, 0.3], start=1):
        rule.check(Progress(told=told, best=best))
    assert plateau.check(Progress(told=5, best=0.3)) is None
    assert plateau.check(Progress(told=6, best=0.3)) is not None


def test_never_leaves_the_end_to_the_strategy() -> None:
    assert Never().check(Progress(told=10**9, best=1.0)) is None
    assert Never().allowance(Progress()) == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "MaxTrials(500) | MaxCost(5.0) | Plateau(20)",
        "MaxTrials(100) & Plateau(20, min_delta=0.01) | MaxEvaluations(5000)",
        "(Target(0.9) | MaxTime('2h')) & MaxTrials(10)",
        "Never()",
    ],
)
def test_a_rule_reads_as_it_was_written(text: str) -> None:
    assert repr(eval(text)) == text


def test_only_rules_compose() -> None:
    with pytest.raises(TypeError):
        MaxTrials(1) | 5  # type: ignore[operator]
    with pytest.raises(TypeError):
        MaxTrials(1) & None  # type: ignore[operator]


@pytest.mark.parametrize(
    "make",
    [
        lambda: MaxTrials(0),
        lambda: MaxTrials(1.5),  # type: ignore[arg-type]
        lambda: MaxTrials(True),
        lambda: MaxEvaluations(-1),
        lambda: MaxTime(0),
        lambda: MaxTime("soon"),
        lambda: MaxTime("5 days"),
        lambda: MaxTime(math.inf),
        lambda: MaxCost(0),
        lambda: MaxCost(math.nan),
        lambda: Target(math.nan),
        lambda: Target("high"),  # type: ignore[arg-type]
        lambda: Plateau(0),
        lambda: Plateau(5, -0.1),
    ],
)
def test_bad_numbers_are_refused(make: Callable[[], Rule]) -> None:
    with pytest.raises(ConfigError, match=r"give|must be a whole number"):
        make()


@pytest.mark.parametrize("combine", [lambda a, b: a or b, lambda a, b: a and b, lambda a, b: not a])
def test_rules_joined_by_the_words_of_python_are_refused(combine: Any) -> None:
    with pytest.raises(ConfigError, match=r"combined by \| and &"):
        combine(MaxTrials(5), MaxCost(1.0))


class Own(Rule):
    """As a user might write one."""

    def __init__(self, says: Any) -> None:
        self.says = says

    def check(self, progress: Progress) -> Any:
        return self.says(progress.told >= 7)


@pytest.mark.parametrize("says", [bool, lambda over: "seven" if over else "", lambda over: "seven" if over else None])
@pytest.mark.parametrize("extend", [lambda rule: rule, lambda rule: rule | MaxTrials(9), lambda rule: rule & Own(bool)])
def test_a_rule_of_ones_own_may_just_say_whether(says: Any, extend: Any) -> None:
    run = Study(Sweep(range(20)), lambda candidate, case: candidate, stop=extend(Own(says)), window=1).run()
    assert run.progress.told == 7 and ("Own(" in run.reason or "seven" in run.reason)


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(ConfigError, match=r"stopping rule Own cannot be copied .*lock"):
        Study(Sweep([1]), lambda candidate, case: candidate, stop=Own(threading.Lock())).run()
    strategy = Sweep([1])
    strategy.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"strategy Sweep cannot be copied .*make it in begin\(\)"):
        Study(strategy, lambda candidate, case: candidate).run()


@pytest.mark.parametrize("extend", [lambda rule: rule, lambda rule: rule | MaxTrials(9)])
def test_a_rule_of_ones_own_sees_the_scores_of_the_evaluator_also_where_low_ones_are_wanted(extend: Any) -> None:
    class Below(Rule):
        def check(self, progress: Progress) -> bool:
            return progress.best is not None and progress.best < 1.5

    study = Study(Sweep([3, 2, 1, 4]), lambda candidate, case: candidate, minimize=True, stop=extend(Below()), window=1)
    for run in (study.run(), study.run()):
        assert run.progress.told == 3 and run.reason == "Below()"


@pytest.mark.parametrize(("rule", "score", "told"), [(Plateau, 4, 14), (Target, 93, 7)])
def test_a_rule_that_extends_ours_looks_for_low_scores_where_those_are_wanted(rule: Any, score: int, told: int) -> None:
    class Later(rule):  # type: ignore[misc]
        def check(self, progress: Progress) -> str | None:
            reason = super().check(progress)
            return reason if progress.told >= 7 else None

    scores = [*range(99, 89, -1), *[100] * 10]
    study = Study(Sweep(range(20)), lambda i, case: scores[i], minimize=True, stop=Later(score), window=1)
    assert study.run().progress.told == told
