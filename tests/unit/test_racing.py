"""Racing keeps its promise about good candidates, and saves cases on bad ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold.errors import ConfigError
from fanfold.schedules import Racing
from fanfold.types import Case, Dropped, Failed, Ok, Result, Trial

Scores = Sequence[float]


def _cases(n: int) -> list[Case]:
    return [Case(f"c{i}") for i in range(n)]


def _racing_against(incumbent: Scores, **options: Any) -> Racing:
    racing = Racing(**options)
    outcomes = {f"c{i}": Ok(score) for i, score in enumerate(incumbent)}
    racing.tell(Result(Trial(0, "incumbent"), math.fsum(incumbent) / len(incumbent), outcomes))
    return racing


def _race(racing: Racing, candidate: Scores, number: int = 1) -> tuple[Dropped | None, list[str]]:
    """The verdict on a candidate with these scores, and the cases it ran."""
    plan = racing.plan(Trial(number, "candidate"), _cases(len(candidate)))
    ran: list[str] = []
    try:
        chunk = next(plan)
        while True:
            ran += [case.id for case in chunk]
            chunk = plan.send([Ok(candidate[int(case.id[1:])]) for case in chunk])
    except StopIteration as end:
        return end.value, ran


# Pairs (incumbent, candidate) of exactly equal sums, which is the hardest case of the promise.


def _bernoulli(rng: random.Random) -> tuple[Scores, Scores]:
    incumbent = [1.0] * 35 + [0.0] * 25
    candidate = list(incumbent)
    rng.shuffle(candidate)
    return incumbent, candidate


def _mirrored(rng: random.Random) -> tuple[Scores, Scores]:
    incumbent = [rng.randrange(65) / 64 for _ in range(60)]
    return incumbent, incumbent[::-1]


def _rare_wins(rng: random.Random) -> tuple[Scores, Scores]:
    """Slightly worse almost everywhere, made good by three big wins: those who look early see only the losses."""
    return [0.25] * 60, [0.25 - 1 / 32] * 54 + [0.25] * 3 + [0.25 + 0.5625] * 3


def _rare_losses(rng: random.Random) -> tuple[Scores, Scores]:
    return [0.75] * 60, [0.75 + 1 / 32] * 54 + [0.75] * 3 + [0.75 - 0.5625] * 3


@pytest.mark.slow
@pytest.mark.parametrize("pair", [_bernoulli, _mirrored, _rare_wins, _rare_losses])
@pytest.mark.parametrize(("error", "step"), [(0.05, 1), (0.2, 1), (0.2, 8)])
def test_an_equally_good_candidate_is_dropped_no_more_often_than_the_error_says(
    pair: Callable[[random.Random], tuple[Scores, Scores]], error: float, step: int
) -> None:
    races = 700
    rng = random.Random(5)
    drops = 0
    for number in range(1, races + 1):
        incumbent, candidate = pair(rng)
        assert sum(candidate) == sum(incumbent)
        drops += _race(_racing_against(incumbent, error=error, step=step), candidate, number)[0] is not None
    # Were the true rate exactly `error`, more than this would be seen in fewer than 1 of 1,000 such tests.
    assert drops <= races * error + 3.1 * math.sqrt(races * error * (1 - error))


@pytest.mark.parametrize(("gap", "least_saved"), [(0.15, 0.3), (0.3, 0.65), (0.5, 0.8)])
def test_a_clearly_worse_candidate_is_dropped_early(gap: float, least_saved: float) -> None:
    rng = random.Random(7)
    ran = total = 0
    for number in range(1, 101):
        incumbent = [float(rng.random() < 0.7) for _ in range(200)]
        candidate = [float(rng.random() < 0.7 - gap) for _ in range(200)]
        ran += len(_race(_racing_against(incumbent), candidate, number)[1])
        total += 200
    assert 1 - ran / total >= least_saved


score = st.floats(0.0, 1.0)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    pairs=st.lists(st.tuples(score, score), min_size=1, max_size=80),
    error=st.floats(0.001, 0.999),
    step=st.integers(1, 20),
    number=st.integers(1, 10**6),
)
def test_a_candidate_at_least_as_good_on_every_case_is_never_dropped(
    pairs: list[tuple[float, float]], error: float, step: int, number: int
) -> None:
    racing = _racing_against([min(pair) for pair in pairs], error=error, step=step)
    verdict, ran = _race(racing, [max(pair) for pair in pairs], number)
    assert verdict is None
    assert sorted(ran) == sorted(case.id for case in _cases(len(pairs)))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(pairs=st.lists(st.tuples(score, score), min_size=1, max_size=60), step=st.integers(1, 20))
def test_a_raced_out_candidate_gets_a_score_within_bounds_and_not_above_the_incumbent(
    pairs: list[tuple[float, float]], step: int
) -> None:
    incumbent = [a for a, _ in pairs]
    verdict, ran = _race(_racing_against(incumbent, error=0.5, step=step), [b for _, b in pairs])
    assert len(ran) == len(set(ran))
    if verdict is not None:
        assert verdict.score is not None
        assert 0.0 <= verdict.score <= sum(incumbent) / len(incumbent) + 1e-9
        assert len(ran) < len(pairs)
        assert verdict.reason == f"raced out after {len(ran)} of {len(pairs)} cases"


def test_a_dropped_candidate_scores_the_incumbents_mean_plus_its_mean_difference() -> None:
    incumbent = [1.0 if i % 2 else 0.5 for i in range(100)]
    verdict, _ = _race(_racing_against(incumbent), [score - 0.25 for score in incumbent])
    assert verdict is not None
    assert verdict.score == pytest.approx(0.75 - 0.25)


def test_a_candidate_that_cannot_win_any_more_is_dropped_whatever_the_error() -> None:
    verdict, ran = _race(_racing_against([1.0] * 20, error=1e-300, step=1), [0.5] + [1.0] * 19)
    assert verdict is not None
    assert "c0" in ran
    assert ran[-1] == "c0"


def test_a_candidate_that_can_still_draw_level_by_certainty_is_kept() -> None:
    incumbent = [0.5] * 10 + [0.0] * 10
    assert _race(_racing_against(incumbent, error=1e-300, step=1), [0.0] * 10 + [0.5] * 10)[0] is None


def test_the_order_of_cases_depends_on_the_seed_and_the_trial_only() -> None:
    def order(seed: int, number: int) -> list[str]:
        racing = _racing_against([0.5] * 30)
        racing.begin(seed)
        return _race(racing, [0.5] * 30, number)[1]

    assert order(1, 1) == order(1, 1)
    assert order(1, 1) != order(1, 2)
    assert order(1, 1) != order(2, 1)


def test_without_an_incumbent_all_cases_run_together() -> None:
    plan = Racing(step=2).plan(Trial(0, "x"), _cases(7))
    assert list(next(plan)) == _cases(7)


def test_the_incumbent_is_the_one_of_the_moment_the_trial_was_asked() -> None:
    racing = _racing_against([0.2] * 40)
    plan = racing.plan(Trial(3, "x"), _cases(40))
    racing.tell(Result(Trial(2, "better"), 1.0, {f"c{i}": Ok(1.0) for i in range(40)}))
    verdict = None
    try:
        chunk = next(plan)
        while True:
            chunk = plan.send([Ok(0.3)] * len(chunk))
    except StopIteration as end:
        verdict = end.value
    assert verdict is None
    assert _race(racing, [0.3] * 40)[0] is not None


def test_results_that_are_dropped_failed_or_worse_do_not_become_the_incumbent() -> None:
    racing = _racing_against([0.5] * 20)
    lower = {f"c{i}": Ok(0.9) for i in range(20)}
    racing.tell(Result(Trial(1, "dropped"), 0.9, lower, dropped="for a reason"))
    racing.tell(Result(Trial(2, "failed"), None, lower))
    racing.tell(Result(Trial(3, "a failure was given a score"), 0.9, {**lower, "c3": Failed("error", "oh")}))
    racing.tell(Result(Trial(4, "worse"), 0.4, {f"c{i}": Ok(0.4) for i in range(20)}))
    verdict, ran = _race(racing, [0.5] * 20)
    assert verdict is None
    assert len(ran) == 20


@pytest.mark.parametrize("incumbent", [None, [0.5] * 20])
def test_a_failed_case_drops_the_candidate_without_a_score(incumbent: Scores | None) -> None:
    racing = Racing() if incumbent is None else _racing_against(incumbent)
    plan = racing.plan(Trial(1, "x"), _cases(20))
    chunk = next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send([Failed("timeout", "too slow")] + [Ok(0.5)] * (len(chunk) - 1))
    assert end.value.value == Dropped(f"case {chunk[0].id} failed: timeout", None)


@pytest.mark.parametrize("incumbent", [None, [0.5] * 20])
def test_a_score_outside_the_bounds_is_an_error_that_names_case_score_and_bounds(incumbent: Scores | None) -> None:
    racing = Racing() if incumbent is None else _racing_against(incumbent)
    plan = racing.plan(Trial(1, "x"), _cases(20))
    chunk = next(plan)
    with pytest.raises(ConfigError, match=rf"'{chunk[1].id}' gave the score 1.5.*bounds="):
        plan.send([Ok(0.5), Ok(1.5)] + [Ok(0.5)] * (len(chunk) - 2))


@settings(max_examples=50, deadline=None)
@given(shift=st.integers(-1000, 1000), scale=st.sampled_from([0.25, 1.0, 64.0]))
def test_the_verdict_does_not_depend_on_the_unit_of_the_scores(shift: int, scale: float) -> None:
    rng = random.Random(3)
    incumbent = [rng.randrange(5) / 4 for _ in range(60)]
    candidate = [rng.randrange(4) / 4 for _ in range(60)]
    plain = _race(_racing_against(incumbent), candidate)[1]
    bounds = (shift * scale, shift * scale + scale)
    racing = _racing_against([shift * scale + scale * s for s in incumbent], bounds=bounds)
    assert _race(racing, [shift * scale + scale * s for s in candidate])[1] == plain


@pytest.mark.parametrize(
    "options",
    [
        {"error": 0.0},
        {"error": 1.0},
        {"error": math.nan},
        {"step": 0},
        {"step": 1.5},
        {"step": True},
        {"bounds": (1.0, 0.0)},
        {"bounds": (0.0, math.inf)},
        {"bounds": (0.0,)},
        {"bounds": None},
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(options))}[= ]"):
        Racing(**options)
