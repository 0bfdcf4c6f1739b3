"""What the engine promises about the work it hands out: everybody gets a turn, and what others have is used.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fanfold import Case, Failed, Halving, MaxTrials, Ok, Result, Strategy, Study, Sweep
from fanfold.calls import Call, Reply
from fanfold.executors.local import Async
from fanfold.executors.parcels import Parcel
from fanfold.models.batch.executor import BatchExecutor
from fanfold.models.batch.slices import MOST
from fanfold.replies import Replies
from fanfold.testing import run_virtual

# -- turns -------------------------------------------------------------------------------------------------------------


def begun_between_turns(executor: Any, many: int) -> int:
    """The most evaluations that begin before anything else on the loop, such as a timer or Ctrl-C, gets its turn."""
    turns, begun = 0, Counter[int]()

    async def evaluate(candidate: int, case: Case) -> float:
        begun[turns] += 1
        return 0.0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        ticking = asyncio.create_task(others())
        await Study(Sweep([0]), evaluate, range(many)).run_async(executor)
        ticking.cancel()

    asyncio.run(main())
    assert begun.total() == many
    return max(begun.values())


def test_evaluations_that_are_to_share_batches_begin_a_few_at_a_time() -> None:
    assert begun_between_turns(BatchExecutor(), 100) <= MOST


def test_a_run_that_begins_hundreds_of_evaluations_lets_others_have_their_turn() -> None:
    assert begun_between_turns("async:260", 260) <= 256


# -- what is shared ----------------------------------------------------------------------------------------------------


class Rooted:
    """Equal to all others, and stays where it is."""

    fingerprint = "rooted"

    def __reduce__(self) -> Any:
        raise TypeError("it stays here")


@pytest.mark.parametrize("place", ["inline", "async:2", "threads:2"])
def test_what_cannot_be_sent_to_a_worker_is_shared_within_the_process(place: str) -> None:
    root, seen = Rooted(), []

    async def evaluate(candidate: int, case: Case, *, index: Rooted) -> float:
        seen.append(index)
        return 0.0

    Study(Sweep(range(3)), evaluate, shared={"index": root}).run(place)
    assert seen == [root] * 3


class Far(Async):
    """Has workers that fetch what is large, and notes what it is given to send."""

    fetches = True

    def __init__(self) -> None:
        super().__init__(2)
        self.sent: set[tuple[str, type]] = set()

    def run(self, fn: Any, *args: Any) -> Any:
        values = [arg.value if isinstance(arg, Parcel) else arg for arg in args]
        self.sent |= {(value.id, type(arg)) for arg, value in zip(args, values, strict=True) if isinstance(value, Case)}
        return super().run(fn, *values)


def test_a_large_case_goes_to_far_workers_by_name_and_a_small_one_as_it_is() -> None:
    async def evaluate(candidate: int, case: Case) -> float:
        return float(len(case.data))

    far = Far()
    run = Study(Sweep(range(3)), evaluate, [Case("large", "x" * 20_000), Case("small", "y")]).run(far)
    assert far.sent == {("large", Parcel), ("small", Case)}
    assert [result.score for result in run.results()] == [10_000.5] * 3


class Others:
    """Other processes, one of which makes the same call and brings its reply a minute later."""

    address = "redis://others"

    def __init__(self, reply: Reply) -> None:
        self.reply, self.looks, self.waited = reply, 0, 0.0

    async def take(self, key: bytes) -> bytes | bool:
        self.looks += 1
        return msgspec.json.encode(self.reply) if self.waited >= 60 else False

    async def news_of(self, key: bytes) -> None:
        await asyncio.sleep(30)
        self.waited += 30

    async def returned(self) -> bool:
        return True


def test_a_call_that_another_sharer_makes_is_waited_for_and_costs_nothing() -> None:
    others = Others(Reply(text="theirs", cost=0.5))
    replies = Replies(None, None, None, "on", others)  # type: ignore[arg-type]
    call = Call("a/model", "http://api.test", "?", 0, 1, 1, None)
    reply = run_virtual(replies.fetched(b"key", call))
    assert reply is not None and (reply.text, reply.cost, reply.cached) == ("theirs", 0.0, True)
    assert (others.looks, others.waited) == (3, 60.0)


# -- what a kill may leave ---------------------------------------------------------------------------------------------


def test_a_score_that_a_kill_kept_from_being_amended_is_amended_by_the_next_resume(tmp_path: Path) -> None:
    """A failure was evaluated again and its outcome is in the file, but the score of its trial is the old one."""
    weather = ["bad"]

    def evaluate(candidate: int, case: Case) -> Any:
        return Failed("network", "no line") if weather == ["bad"] and candidate == 2 else float(candidate)

    evaluate.fingerprint = "weather"  # type: ignore[attr-defined]
    path = tmp_path / "ledger.db"

    def scores(change: str | None = None) -> list[float | None]:
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            if change is not None:
                db.execute(change)
            return [score for (score,) in db.execute("SELECT score FROM trial ORDER BY number")]

    def go(**options: Any) -> None:
        Study(Sweep([1, 2, 3]), evaluate).run(ledger=path, run="it", **options).ledger.close()

    go()
    assert scores() == [1.0, None, 3.0]
    weather.clear()
    go(retry_failed=True)
    assert scores() == [1.0, 2.0, 3.0]
    assert scores("UPDATE trial SET score = NULL WHERE number = 1") == [1.0, None, 3.0]
    go(replay=True)
    assert scores() == [1.0, 2.0, 3.0]


# -- what is changed on the way ----------------------------------------------------------------------------------------


class Layers:
    """Takes candidates and cases apart, as evaluators do that pass the rest of a dict on as arguments."""

    def __call__(self, candidate: dict[str, Any], case: Case) -> Ok:
        layers, weight = candidate.pop("layers"), case.data.pop("weight")
        layers.append(1)
        return Ok(float(weight * sum(layers)), {"seen": layers})


class Wanders(Strategy[Any]):
    """Changes the candidates that it gave, and the results that it is told."""

    window = 3

    def begin(self, seed: int) -> None:
        self.asked: list[dict[str, Any]] = []

    def ask(self, n: int) -> list[dict[str, Any]]:
        for candidate in self.asked:
            candidate["layers"] = [1000]
        first = len(self.asked) + 1
        self.asked += (asked := [{"layers": [number]} for number in range(first, first + n)])
        return asked

    def tell(self, result: Result[Any]) -> None:
        result.candidate["layers"].clear()
        for outcome in result.outcomes.values():
            outcome.data["seen"].clear()  # type: ignore[union-attr]
        result.outcomes.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["inline", "async:2", "threads:2", "processes:2"])
def test_what_an_evaluator_or_a_strategy_changes_is_changed_for_nobody_else(place: str) -> None:
    cases = [{"weight": 1}, {"weight": 3}]
    run = Study(Wanders(), Layers(), cases, stop=MaxTrials(6)).run(place)
    assert [(result.score, result.candidate) for result in run.results()] == [
        (2.0 * (n + 1), {"layers": [n]}) for n in range(1, 7)
    ]
    assert (run.best.score, run.best.candidate) == (14.0, {"layers": [6]})
    assert [outcome.data for outcome in run.best.outcomes.values() if isinstance(outcome, Ok)] == [{"seen": [6, 1]}] * 2
    assert cases == [{"weight": 1}, {"weight": 3}]


class Continues:
    """Adds to the data of the case before."""

    continues = True

    def __call__(self, candidate: int, case: Case, previous: Ok | None) -> Ok:
        steps = [] if previous is None else previous.data
        steps.append(case.data)
        return Ok(float(sum(steps)), steps)


@pytest.mark.parametrize("place", ["inline", "async:2", "threads:2", "processes:2"])
def test_an_evaluation_that_changes_the_data_of_the_case_before_changes_its_own(place: str) -> None:
    best = Study(Sweep([0]), Continues(), [1, 3, 9], schedule=Halving()).run(place).best
    assert [outcome.data for outcome in best.outcomes.values() if isinstance(outcome, Ok)] == [[1], [1, 3], [1, 3, 9]]


@dataclass
class Sizes:
    values: list[int]
    place: Path = Path("here")


def test_a_retry_gets_the_candidate_as_it_was_asked_whatever_it_is_made_of() -> None:
    seen: list[Any] = []

    def evaluate(candidate: Any, case: Case) -> float:
        inner = candidate.values if isinstance(candidate, Sizes) else candidate[0]
        seen.append((type(candidate), [*inner]))
        inner[0] = 9
        raise ValueError("once more")

    array = np.array([[1, 2]])
    Study(Sweep([Sizes([1]), ([1],), array]), evaluate, retries=1, window=1).run("inline", max_failures=None)
    assert seen == [(Sizes, [1])] * 2 + [(tuple, [1])] * 2 + [(np.ndarray, [1, 2])] * 2
    assert array.tolist() == [[1, 2]]
