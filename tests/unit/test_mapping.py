"""The parallel helpers: order kept, errors named, nothing left running."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanfold import ConfigError, map_parallel, run_parallel, score_batch_parallel


@pytest.mark.slow
@given(items=st.lists(st.integers(0, 20), max_size=30), workers=st.one_of(st.none(), st.integers(1, 8)))
@settings(max_examples=30, deadline=None)
def test_results_come_in_the_order_of_the_items(items: list[int], workers: int | None) -> None:
    def slow(item: int) -> int:
        time.sleep((item * 7 % 5) / 5000)
        return item * item

    assert map_parallel(slow, items, max_workers=workers) == [item * item for item in items]


def test_an_empty_list_gives_an_empty_list() -> None:
    assert map_parallel(str, []) == run_parallel(str, []) == score_batch_parallel(lambda p, q, r: 0.0, []) == []


def test_the_documented_example_scores_triples_in_order() -> None:
    class Critic:
        def score(self, system_prompt: str, query: str, response: str) -> float:
            return len(system_prompt) + 10 * len(query) + 100 * len(response)

    critic = Critic()
    prompts, queries = ["p", "pp"], ["q", "qq", "qqq"]
    items = [(prompt, query, f"{prompt} answers {query}") for prompt in prompts for query in queries]
    scores = score_batch_parallel(critic.score, items, max_workers=8)
    assert scores == [critic.score(*item) for item in items]


def test_tuples_are_spread_over_the_arguments() -> None:
    assert run_parallel(pow, [(2, 3), (3, 2), (5, 0)]) == [8, 9, 1]


@pytest.mark.parametrize(("count", "workers", "expected"), [(2, None, 2), (9, None, 4), (9, 6, 6), (3, 50, 3)])
def test_that_many_run_at_once_and_no_more(count: int, workers: int | None, expected: int) -> None:
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Barrier(expected)
    first = [True] * expected

    def work(item: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            wait = bool(first) and first.pop()
        if wait:
            full.wait(20)  # passes only when `expected` calls are in progress together
        with lock:
            running -= 1

    map_parallel(work, range(count), max_workers=workers)
    assert most == expected


def test_the_first_failing_item_is_raised_with_its_index_after_the_others_ended() -> None:
    finished: list[int] = []
    started: list[int] = []

    def work(item: int) -> int:
        started.append(item)
        if item in (1, 2):
            time.sleep(0.02 if item == 1 else 0.0)  # the later item fails first
            raise ValueError(f"bad {item}")
        time.sleep(0.05)
        finished.append(item)
        return item

    with pytest.raises(ValueError, match="bad 1") as caught:
        map_parallel(work, range(100), max_workers=4)
    assert caught.value.item_index == 1  # type: ignore[attr-defined]
    assert any("item 1 of 100" in note for note in caught.value.__notes__)
    assert set(started) - {1, 2} == set(finished), "what was started has finished"
    assert len(started) < 100, "what was not started is not"


@pytest.mark.parametrize("workers", [0, -3, 2.5, "4"])
def test_a_number_of_workers_below_one_is_an_error(workers: int) -> None:
    with pytest.raises(ConfigError, match="max_workers must be"):
        map_parallel(str, [1], max_workers=workers)


def test_they_work_inside_a_running_event_loop() -> None:
    async def cell() -> list[str]:
        return map_parallel(str, [1, 2, 3])

    assert asyncio.run(cell()) == ["1", "2", "3"]


def test_coroutine_functions_are_awaited() -> None:
    async def double(item: int) -> int:
        await asyncio.sleep(0)
        return 2 * item

    assert map_parallel(double, [1, 2, 3]) == [2, 4, 6]


def test_calls_of_what_is_declared_not_thread_safe_follow_each_other() -> None:
    class Fragile:
        thread_safe = False
        busy = False

        def work(self, item: int) -> int:
            assert not self.busy
            self.busy = True
            time.sleep(0.001)
            self.busy = False
            return item

    assert map_parallel(Fragile().work, range(20), max_workers=8) == list(range(20))
