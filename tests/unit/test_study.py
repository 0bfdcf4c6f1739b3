"""What a study promises: one result everywhere, failures as values, and clear words about bad input."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import sqlite3
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import (
    Blob,
    Case,
    ConfigError,
    Failed,
    Float,
    Genetic,
    Halving,
    MaxCost,
    MaxEvaluations,
    MaxTime,
    MaxTrials,
    Ok,
    Racing,
    Random,
    Result,
    Space,
    Strategy,
    Study,
    Sweep,
    Target,
)
from fanfold.errors import ExecutorBroken, Interrupted
from fanfold.events import EvaluationFinished, Notice, Progress, RunStarted, RunStopped, TrialTold
from fanfold.schedules import last_rung
from fanfold.stop import Never
from fanfold.testing import run_virtual

SPACE = Space(x=Float(-5, 5), y=Float(-5, 5))


def bowl(candidate: dict[str, float], case: Case) -> float:
    return -(candidate["x"] ** 2) - (candidate["y"] - case.data) ** 2 + case.rng().random() * 0.01


async def bowl_async(candidate: dict[str, float], case: Case) -> float:
    await asyncio.sleep(0.0005 * case.rng().random())
    return bowl(candidate, case)


def genetic(**options: Any) -> Study[dict[str, float]]:
    defaults: dict[str, Any] = {"cases": [0.0, 1.0, 2.0], "stop": MaxTrials(60), "seed": 3}
    return Study(Genetic(SPACE, population=12), bowl, **{**defaults, **options})


def sweep(evaluate: Any, candidates: Any = range(10), **options: Any) -> Study[Any]:
    return Study(Sweep(candidates), evaluate, **options)


# -- the same everywhere ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", [None, Racing(bounds=(-80, 1), step=1), Halving(eta=2)], ids=["all", "racing", "halving"]
)
def test_the_same_study_gives_the_same_search_on_every_executor(schedule: Any) -> None:
    study = genetic(**({} if schedule is None else {"schedule": schedule, "aggregate": last_rung}))
    with ThreadPoolExecutor(3) as pool:
        runs = [study.run(where) for where in ("inline", "async:7", "threads:3", "processes:2", pool)]
    assert len({run.trace for run in runs}) == 1
    assert {run.best.candidate["x"] for run in runs if run.best} == {runs[0].best.candidate["x"]}  # type: ignore[union-attr]
    assert runs[0].progress.told == 60


@pytest.mark.slow
@given(delays=st.lists(st.floats(0, 5), min_size=30, max_size=30), slots=st.integers(1, 9))
@settings(max_examples=25, deadline=None)
def test_timing_never_changes_an_in_order_search(delays: list[float], slots: int) -> None:
    async def evaluate(candidate: dict[str, float], case: Case) -> float:
        await asyncio.sleep(delays[int(abs(candidate["x"]) * 1000) % 30])
        return bowl(candidate, case)

    def trace(where: str, fn: Any) -> str:
        study = Study(Genetic(SPACE, population=6, steady=True), fn, cases=[0.0, 1.0], stop=MaxTrials(30))
        return run_virtual(study.run_async(where)).trace

    assert trace(f"async:{slots}", evaluate) == trace("inline", bowl)


@pytest.mark.slow
def test_an_ask_knows_all_but_the_last_window_results() -> None:
    seen: list[tuple[int, int]] = []

    class Watching(Strategy[int]):
        asked = told = 0

        def ask(self, n: int) -> list[int]:
            first, self.asked = self.asked, self.asked + n
            seen.extend((number, self.told) for number in range(first, self.asked))
            return list(range(first, self.asked))

        def tell(self, result: Result[int]) -> None:
            assert result.number == self.told, "in order"
            self.told += 1

    class Kept(Watching):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep((candidate * 7919) % 13)
        return 0.0

    run_virtual(Study(Kept(), evaluate, window=5, stop=MaxTrials(40)).run_async("async:3"))
    assert seen == [(number, max(0, number - 4)) for number in range(40)]


def test_barrier_free_telling_does_not_wait_for_stragglers() -> None:
    order: list[int] = []

    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(100 if candidate == 0 else 1)
        return 0.0

    def watch(event: Any) -> None:
        if isinstance(event, TrialTold):
            order.append(event.result.number)

    study = sweep(evaluate, in_order=False, window=4)
    run_virtual(study.run_async("async:4", watch=watch))
    assert order[-1] == 0 and sorted(order) == list(range(10))
    order.clear()
    run_virtual(sweep(evaluate, window=4).run_async("async:4", watch=watch))
    assert order == list(range(10))


@pytest.mark.slow
def test_one_study_can_run_twice_and_starts_afresh() -> None:
    study = genetic()
    assert study.run().trace == study.run().trace
    assert genetic(seed=4).run().trace != study.run().trace


def test_a_notebook_with_a_running_loop_can_call_run() -> None:
    async def cell() -> str:
        return genetic().run("async:4").trace

    assert asyncio.run(cell()) == genetic().run().trace


def test_candidates_equal_to_finished_ones_are_not_evaluated_again() -> None:
    calls: list[Any] = []

    def evaluate(candidate: int, case: Case) -> float:
        calls.append(candidate)
        return candidate

    run = sweep(evaluate, [1, 2, 1, 1, 3, 2]).run()
    assert sorted(calls) == [1, 2, 3]
    assert run.progress.reused == 3 and run.progress.told == 6
    calls.clear()
    sweep(evaluate, [1, 1, 1]).run(reuse="never")
    assert calls == [1, 1, 1]


def test_identical_cells_in_flight_share_one_evaluation() -> None:
    calls: list[Any] = []

    async def evaluate(candidate: int, case: Case) -> float:
        calls.append(candidate)
        await asyncio.sleep(1)
        return candidate

    run = run_virtual(sweep(evaluate, [5] * 8).run_async("async:8"))
    assert calls == [5]
    assert [result.score for result in run.results()] == [5.0] * 8


# -- failures are values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,)])
def test_an_array_of_one_number_is_a_score(shape: tuple[int, ...]) -> None:
    numpy = pytest.importorskip("numpy")
    assert sweep(lambda candidate, case: numpy.full(shape, candidate)).run().best.score == 9.0
    assert sweep(lambda candidate, case: numpy.full((2, 1), candidate)).run().failures[0].failure == "bad-score"


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_loss_of_torch_is_a_score_although_it_has_a_gradient() -> None:
    torch = pytest.importorskip("torch")

    def loss(candidate: float, case: Case) -> Any:
        return (torch.ones(3, requires_grad=True) * candidate).mean()

    assert sweep(loss).run("inline").progress.failures == 0


BAD_SCORES = [None, math.nan, math.inf, -math.inf, "high", [1, 2], {"score": 1}, object(), 1 + 2j]


@pytest.mark.parametrize("value", BAD_SCORES, ids=lambda value: repr(value)[:12])
def test_a_score_that_is_no_finite_number_fails_that_evaluation_only(value: Any) -> None:
    run = sweep(lambda candidate, case: value if candidate == 3 else float(candidate)).run()
    results = {result.number: result for result in run.results()}
    failure = results[3].failures["0"]
    assert failure.kind == "bad-score" and ("finite number" in failure.message or "one number" in failure.message)
    assert results[3].score is None
    assert run.best is not None and run.best.candidate == 9 and run.progress.failures == 1


@pytest.mark.slow
def test_an_exception_fails_its_own_evaluation_and_says_where(tmp_path: Any) -> None:
    def evaluate(candidate: int, case: Case) -> float:
        if candidate == 2:
            raise KeyError("missing thing")
        if candidate == 4:
            raise SystemExit(3)
        return candidate

    for where in ("inline", "async:2", "threads:2", "processes:2"):
        run = sweep(evaluate).run(where)
        failures = {result.number: result.failures["0"] for result in run.results() if result.failures}
        assert set(failures) == {2, 4}, where
        assert failures[2].kind == "error" and "KeyError: 'missing thing'" in failures[2].message
        assert "in evaluate" in failures[2].detail, "the traceback is kept"


@pytest.mark.slow
def test_data_that_cannot_be_kept_fails_its_own_evaluation() -> None:
    for where in ("inline", "processes:2"):
        run = sweep(lambda candidate, case: Ok(1.0, data=threading.Lock if candidate == 1 else {"n": candidate})).run(
            where
        )
        results = list(run.results())
        assert [result.score is None for result in results] == [number == 1 for number in range(10)]
        assert results[1].failures["0"].kind in ("bad-data", "error")


def test_a_timeout_fails_its_own_evaluation() -> None:
    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(100 if candidate == 5 else 0.1)
        return candidate

    run = run_virtual(sweep(evaluate, timeout=2.0).run_async("async:4"))
    failure = next(result.failures["0"] for result in run.results() if result.number == 5)
    assert failure == Failed("timeout", "no answer within 2 s")


@pytest.mark.slow
def test_a_timeout_kills_the_worker_process_and_the_run_goes_on() -> None:
    def evaluate(candidate: int, case: Case) -> float:
        if candidate == 5:
            time.sleep(60)
        return os.getpid()

    run = sweep(evaluate, timeout=4.0).run("processes:2")  # a busy machine starts a worker in a second or two
    assert {result.number: result.failures["0"].kind for result in run.results() if result.failures} == {5: "timeout"}


def test_a_timeout_that_cannot_be_enforced_is_refused() -> None:
    with pytest.raises(ConfigError, match="processes:N"):
        sweep(lambda candidate, case: 0.0, timeout=1.0).run("inline")


def test_retries_give_a_failing_evaluation_more_tries() -> None:
    tries: dict[int, int] = {}

    async def evaluate(candidate: int, case: Case) -> float:
        tries[candidate] = tries.get(candidate, 0) + 1
        if tries[candidate] <= candidate:
            raise RuntimeError("not yet")
        return candidate

    run = run_virtual(sweep(evaluate, range(5), retries=2).run_async("async:2"))
    assert [result.score for result in run.results()] == [0.0, 1.0, 2.0, None, None]
    assert tries == {0: 1, 1: 2, 2: 3, 3: 3, 4: 3}


@pytest.mark.slow
def test_a_worker_that_dies_twice_on_one_cell_costs_only_that_cell() -> None:
    def evaluate(candidate: int, case: Case) -> float:
        if candidate == 6:
            os._exit(9)
        return candidate

    run = sweep(evaluate, range(12)).run("processes:3")
    failures = {result.number: result.failures["0"] for result in run.results() if result.failures}
    assert set(failures) == {6} and failures[6].kind == "worker-died" and "2 times" in failures[6].message


def test_a_broken_pool_of_the_user_ends_the_run_with_a_remedy() -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(ExecutorBroken, match="processes:"):
        sweep(_exit_now).run(pool)


def _exit_now(candidate: int, case: Case) -> float:
    os._exit(1)


def test_a_failed_case_leaves_the_trial_without_score_unless_failures_have_one() -> None:
    def evaluate(candidate: int, case: Case) -> float:
        if case.data == "bad" and candidate == 1:
            raise ValueError
        return 1.0

    strict = list(sweep(evaluate, [0, 1], cases=["good", "bad"]).run().results())
    lenient = list(sweep(evaluate, [0, 1], cases=["good", "bad"], failed_score=0.0).run().results())
    assert [result.score for result in strict] == [1.0, None]
    assert [result.score for result in lenient] == [1.0, 0.5]


# -- blocks -----------------------------------------------------------------------------------------------------------


class Vectorised:
    """Evaluates many cells in one call."""

    block_size = 16

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def __call__(self, candidate: int, case: Case) -> float:
        if candidate == 7:
            raise ValueError("seven")
        return candidate + case.data

    def evaluate_block(self, cells: Any) -> list[float]:
        self.blocks.append(len(cells))
        return [self(candidate, case) for candidate, case in cells]


@pytest.mark.slow
def test_an_evaluator_with_blocks_gets_full_ones_and_gives_the_same_results() -> None:
    evaluator = Vectorised()
    blocks = sweep(evaluator, range(100, 200), cases=[0.0, 0.5]).run()
    singles = sweep(lambda candidate, case: candidate + case.data, range(100, 200), cases=[0.0, 0.5]).run()
    assert blocks.trace == singles.trace
    assert max(evaluator.blocks) == 16 and sum(evaluator.blocks) == 200
    assert len(evaluator.blocks) < 30


def test_what_was_told_is_written_while_the_next_block_is_evaluated(tmp_path: Path) -> None:
    ledger, told = tmp_path / "l.db", []

    class Onlooker(Vectorised):
        def evaluate_block(self, cells: Any) -> list[float]:
            end = time.monotonic() + (10 if self.blocks else 0)
            with sqlite3.connect(ledger) as db:
                counted = 0
                while counted < 16 and time.monotonic() < end:
                    (counted,) = db.execute("SELECT count(*) FROM trial WHERE told >= 0").fetchone()
                    time.sleep(0.001)
            told.append(counted)
            return super().evaluate_block(cells)

    sweep(Onlooker(), range(100, 132), cases=[0.0], window=16).run(ledger=ledger)
    assert told == [0, 16]


def test_a_block_that_fails_as_a_whole_fails_only_its_culprit() -> None:
    run = sweep(Vectorised(), range(20), cases=[0.0]).run()
    assert {result.number for result in run.results() if result.failures} == {7}


def test_a_block_that_fails_as_a_whole_is_said_once() -> None:
    class Short(Vectorised):
        def evaluate_block(self, cells: Any) -> list[float]:
            return super().evaluate_block(cells)[1:]

    said: list[str] = []
    watch = lambda event: said.append(event.message) if isinstance(event, Notice) else None  # noqa: E731
    assert sweep(Short(), range(100, 164), cases=[0.0]).run(watch=watch).best.score == 163
    assert len(said) == 1 and "16 cells and gave 15 outcomes" in said[0] and "one by one" in said[0]


# -- continuing -------------------------------------------------------------------------------------------------------


class Climber:
    """Goes on from the case before: what it has done so far is in the outcome's data and in a blob."""

    continues = True

    def __call__(self, candidate: int, case: Case, previous: Ok | None) -> Ok:
        if candidate == 5 and case.id == "1":
            raise ValueError("five")
        before = [] if previous is None else previous.data["done"]
        assert previous is None or previous.data["blob"].read() == f"{candidate}/{before[-1]}".encode()
        return Ok(
            candidate + case.data, {"done": [*before, case.id], "blob": Blob.of(f"{candidate}/{case.id}".encode())}
        )


class Enough(Never):
    """Stops in the middle of the climb."""

    def check(self, progress: Progress) -> str | None:
        return "enough" if progress.told >= 7 else None


class BlockClimber(Climber):
    def evaluate_block(self, cells: Any) -> list[Ok]:
        return [self(*cell) for cell in cells]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "threads:3", "processes:2"])
@pytest.mark.parametrize("evaluator", [Climber(), BlockClimber()])
def test_an_evaluator_that_continues_is_given_what_came_of_the_case_before(evaluator: Any, executor: str) -> None:
    halving = Halving(eta=3, cohort=9)
    run = sweep(evaluator, range(9), cases=[0.0, 1.0, 2.0], schedule=halving, window=9).run(executor)
    done = {result.candidate: list(result.outcomes.values()) for result in run.results()}
    assert [outcome.data["done"] for outcome in done[8]] == [["0"], ["0", "1"], ["0", "1", "2"]]
    assert [len(outcomes) for outcomes in done.values()] == [1, 1, 1, 1, 1, 1, 2, 2, 3]


def test_a_case_without_one_before_it_begins_anew_and_so_does_one_asked_at_the_same_time() -> None:
    run = sweep(Climber(), [3], cases=[0.0, 1.0]).run()
    (result,) = run.results()
    assert [outcome.data["done"] for outcome in result.outcomes.values()] == [["0"], ["1"]]


@pytest.mark.slow
def test_a_continued_evaluation_is_resumed_from_the_ledger(tmp_path: Path) -> None:
    def study(stop: Any) -> Study[int]:
        return sweep(Climber(), range(9), cases=[0.0, 1.0, 2.0], schedule=Halving(3, 9), window=9, stop=stop)

    ledger = tmp_path / "l.db"
    assert study(Enough()).run(ledger=ledger, run="a").progress.told < 9
    again = study(Never()).run(ledger=ledger, run="a")
    assert again.trace == study(Never()).run().trace
    last = list(next(result for result in again.results() if result.candidate == 8).outcomes.values())[-1]
    assert isinstance(last, Ok) and last.data["done"] == ["0", "1", "2"]


# -- stopping ---------------------------------------------------------------------------------------------------------


def test_budgets_are_exact() -> None:
    assert genetic(stop=MaxTrials(17)).run().progress.asked == 17
    run = genetic(stop=MaxEvaluations(50)).run()
    assert run.progress.evaluations == 48, "a row of three that does not fit is not begun"


def test_a_target_ends_the_run_at_the_trial_that_reached_it() -> None:
    run = sweep(lambda candidate, case: candidate, range(100), stop=Target(30)).run("threads:4")
    assert run.progress.told == 31 and run.best is not None and run.best.candidate == 30


@pytest.mark.slow
def test_time_and_cost_end_a_run() -> None:
    async def evaluate(candidate: Any, case: Case) -> Ok:
        await asyncio.sleep(10)
        return Ok(0.0, cost=0.25)

    study = Study(Random(SPACE), evaluate, stop=MaxTime("2m"))
    run = run_virtual(study.run_async("async:4"))
    assert 110 <= run.progress.elapsed <= 130
    study = Study(Random(SPACE), evaluate, stop=MaxCost(5.0))
    run = run_virtual(study.run_async("async:4"))
    assert 5.0 <= run.progress.cost <= 6.0, "no more than what was in flight beyond the budget"


def test_an_evaluation_that_outlasts_the_grace_period_is_abandoned() -> None:
    async def evaluate(candidate: int, case: Case) -> float:
        await asyncio.sleep(1000 if candidate == 3 else 1)
        return candidate

    study = sweep(evaluate, range(10), stop=MaxTime(30))
    run = run_virtual(study.run_async("async:2", grace=5.0))
    assert run.progress.elapsed < 40 and run.progress.told == 3


# -- events -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_events_tell_the_story_and_a_broken_watcher_is_left_out() -> None:
    events: list[Any] = []
    genetic().run(watch=events.append)
    assert isinstance(events[0], RunStarted) and isinstance(events[-1], RunStopped)
    assert sum(isinstance(event, EvaluationFinished) for event in events) == 180
    assert [event.progress.told for event in events if isinstance(event, TrialTold)] == list(range(1, 61))

    def broken(event: Any) -> None:
        raise RuntimeError("display lost")

    with pytest.warns(UserWarning, match="display lost"):
        assert genetic().run(watch=broken).trace == genetic().run().trace


def test_a_window_too_small_for_the_slots_is_said() -> None:
    events: list[Any] = []
    sweep(lambda candidate, case: 0.0, window=2).run("threads:8", watch=events.append)
    assert any(isinstance(event, Notice) and "larger window" in event.message for event in events)


def test_a_named_run_that_no_ledger_keeps_says_so(tmp_path: Path) -> None:
    events: list[Any] = []
    for how in ({"run": "a"}, {"run": "a", "ledger": tmp_path / "a.db"}, {}):
        sweep(lambda candidate, case: 0.0).run(**how, watch=events.append)
    said = [event.message for event in events if isinstance(event, Notice)]
    assert said == ["run 'a' is not kept: give run() a ledger='runs.db' to continue it later"]


def test_slots_for_coroutines_are_a_limit_and_none_is_missed() -> None:
    events: list[Any] = []
    sweep(lambda candidate, case: 0.0, window=2).run("async:256", watch=events.append)
    assert not any(isinstance(event, Notice) and "slots busy" in event.message for event in events)


# -- bad input --------------------------------------------------------------------------------------------------------


class AsksNothing(Strategy[int]):
    def ask(self, n: int) -> list[int]:
        return []


class AsksTooMuch(Strategy[int]):
    def ask(self, n: int) -> list[int]:
        return [0] * (n + 1)


class Duck:
    """Asks and tells, and is no strategy."""

    def ask(self, n: int) -> list[float]:
        return [0.0] * n

    def tell(self, result: Any) -> None:
        pass


class Rungs:
    continues = True

    def __call__(self, candidate: Any, case: Case, previous: Any) -> float:
        return 1.0

    def evaluate(self, candidate: Any, case: Case, previous: Any) -> float:
        return 1.0


def yields(candidate: Any, case: Case) -> Any:
    yield 1.0


def wrapped(function: Any) -> Any:
    """A decorator that calls what takes other arguments than it does."""

    @functools.wraps(function)
    def evaluate(candidate: Any, case: Case) -> Any:
        return function(candidate)

    return evaluate


@pytest.mark.parametrize(
    "evaluate",
    [
        Rungs(),
        wrapped(lambda x: 1.0),
        functools.partial(lambda k, candidate, case: k, 1.0),
        lambda *cell: 1.0,
        lambda candidate, case, k=1.0: k,
        max,
    ],
)
def test_an_evaluator_may_be_anything_that_takes_a_candidate_and_a_case(evaluate: Any) -> None:
    assert sweep(evaluate, cases=None).evaluate is evaluate


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sweep(bowl, cases=[]), "cases is empty"),
        (lambda: sweep(bowl, cases=[Case("a"), Case("a")]), "two cases have the id 'a'"),
        (lambda: sweep(bowl, cases="abc"), "not one str"),
        (lambda: sweep("not a function"), "must be a function"),
        (lambda: Study(object(), bowl), "must be a fanfold.Strategy"),  # type: ignore[arg-type]
        (lambda: Study(Duck(), bowl), r"is not one: let Duck extend fanfold.Strategy"),  # type: ignore[arg-type]
        (lambda: Study(AsksNothing, bowl), r"give an instance, AsksNothing\("),  # type: ignore[arg-type]
        (lambda: Study(Space(x=Float(0, 1)), bowl), r"give Random\(space\)"),  # type: ignore[arg-type]
        (lambda: Study([1, 2], bowl), r"give Sweep\(candidates\)"),  # type: ignore[arg-type]
        (lambda: sweep(lambda candidate: 1.0), r"called with \(candidate, case\), and .*<lambda> does not take that"),
        (
            lambda: sweep(lambda candidate, case, more: 1.0),
            r"'more'\): give it these parameters, and .* functools.partial",
        ),
        (lambda: sweep(Duck), "not the class Duck: give an instance"),
        (lambda: sweep(Rungs().evaluate), r"does not take that"),
        (lambda: sweep(yields), "evaluate is a generator, because it has a `yield`"),
        (lambda: sweep(bowl, cases=5), "cases must be a list of cases, not one int: 5"),
        (lambda: sweep(bowl, stop=5), r"stop must be a rule such as MaxTrials\(100\)"),
        (lambda: sweep(bowl, schedule="racing"), r"schedule must be a Schedule such as Racing\(\)"),
        (lambda: sweep(bowl, aggregate=5), "aggregate must be a function"),
        (lambda: genetic(aggregate=lambda scores: None).run(), "aggregate must give one number, not None"),
        (lambda: genetic(minimize=True, aggregate=lambda scores: "low").run(), "one number, not 'low'"),
        (lambda: sweep(bowl, conclude=5), "conclude must be a function or None"),
        (lambda: sweep(bowl, conclude=lambda run, go: None), "conclude must be a coroutine function"),
        (lambda: sweep(bowl, shown="best"), "shown must be a function"),
        (lambda: sweep(bowl, minimize="no"), "minimize must be True or False, not 'no'"),
        (lambda: sweep(bowl, in_order="no"), "in_order must be True or False, not 'no'"),
        (lambda: sweep(bowl, name=5), "name must be a text, not 5"),
        (lambda: genetic().run(run=5), "run must be a text or none, not 5"),  # type: ignore[arg-type]
        (lambda: genetic().run(ledger=5), "ledger must be a text or none, not 5"),  # type: ignore[arg-type]
        (lambda: genetic().run(accept_changes="no"), "accept_changes must be true or false, not 'no'"),  # type: ignore[arg-type]
        (lambda: sweep(bowl, timeout="5m"), "timeout must be a positive number of seconds"),
        (lambda: sweep(bowl, failed_score="0"), "failed_score must be a finite number"),
        (lambda: sweep(bowl, window=0), "window must be"),
        (lambda: sweep(bowl, retries=-1), "retries must be"),
        (lambda: sweep(bowl, timeout=0), "timeout must be"),
        (lambda: sweep(bowl, failed_score=math.nan), "failed_score must be"),
        (lambda: Study(AsksNothing(), bowl).run(), "gave no candidate"),
        (lambda: Study(AsksTooMuch(), bowl).run(), "gave 65 candidates"),
        (lambda: genetic(stop=MaxEvaluations(2)).run(), "allows no trial"),
        (lambda: sweep(bowl, [object()]).run(), "candidate of trial 0 cannot be written"),
        (lambda: genetic().run("thread:4"), "did you mean 'threads'"),
        (lambda: genetic().run("threads:-2"), "whole number"),
        (lambda: genetic().run(17), "cannot be used"),  # type: ignore[arg-type]
        (lambda: genetic().run(run="../up"), "cannot be a run's name"),
        (lambda: genetic().run(reuse="always"), "reuse must be"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named_with_its_remedy(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def forks(candidate: float, case: Case) -> float:
    """The child returns a score too: at once, before its parent."""
    if (child := os.fork()) == 0:
        return 1000.0
    os.waitpid(child, 0)
    return candidate


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("executor", ["processes:2", "threads:2"])
def test_the_child_of_an_evaluation_that_forks_answers_nothing(executor: str) -> None:
    assert [result.score for result in sweep(forks, range(4)).run(executor).results()] == [0.0, 1.0, 2.0, 3.0]


def dies(candidate: float, case: Case) -> float:
    os._exit(3)


def test_a_worker_that_died_is_said_to_have_run_the_evaluator() -> None:
    failures = list(sweep(dies, range(1)).run("processes:1").failures)
    assert failures[0].message.startswith("the worker process that ran dies exited with code 3")


def test_what_a_data_frame_lacks_is_none_in_its_cases_and_candidates() -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.to_datetime(["2026-01-31", None])
    frame = pandas.DataFrame({"x": [1, None], "note": ["a", None], "day": days, "count": [pandas.NA, 2]})
    study = Study(Sweep(frame), lambda candidate, case: candidate["x"] or 0.0, frame)
    assert [case.data["x"] for case in study.seeded_cases] == [1.0, None]
    assert [case.data["note"] for case in study.seeded_cases] == ["a", None]
    assert study.seeded_cases[1].data["day"] is None and study.seeded_cases[0].data["count"] is None
    assert study.run().best.candidate["x"] == 1.0


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_rows_of_a_data_frame_are_cases(library: str) -> None:
    frame = pytest.importorskip(library).DataFrame({"x": [1, 2, 3], "wanted": [2.0, 4.0, 6.0]})
    study = Study(Sweep([2.0]), lambda slope, case: -abs(slope * case.data["x"] - case.data["wanted"]), frame)
    run = study.run()
    assert run.best.score == 0.0 and len(run.best.outcomes) == 3


def test_interrupted_is_a_keyboard_interrupt() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt)


# -- going on under other rules ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_can_be_extended_and_a_tighter_rule_does_not_lose_what_it_has(tmp_path: Any) -> None:
    ledger = tmp_path / "runs.db"
    whole = genetic(stop=MaxTrials(60)).run()
    genetic(stop=MaxTrials(30)).run(ledger=ledger, run="a")
    tighter = genetic(stop=MaxTrials(5)).run(ledger=ledger, run="a")
    assert tighter.progress.told == 30, "what was told stays told"
    longer = genetic(stop=MaxTrials(60)).run(ledger=ledger, run="a")
    assert longer.trace == whole.trace
