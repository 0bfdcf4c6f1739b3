"""What the engine promises about time limits: an evaluation has all of its own time, and no more, on the virtual clock.

Each of these has been seen to fail on the fault it guards against (`make mutants`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fanfold import Case, Study, Sweep
from fanfold.attempt import off_the_clock
from fanfold.testing import run_virtual


def failures(work: Callable[[], Awaitable[None]]) -> int:
    """How many of one evaluation fail that does this and has ten seconds of its own for it."""

    async def evaluate(candidate: Any, case: Case) -> float:
        await work()
        return 1.0

    return run_virtual(Study(Sweep([0]), evaluate, timeout=10).run_async("async")).progress.failures


async def wait(seconds: float) -> None:
    with off_the_clock():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(("before", "after", "late"), [(4, 5, 0), (6, 6, 1), (0, 11, 1), (9, 0, 0)])
def test_time_before_and_after_a_wait_counts_and_the_wait_does_not(before: float, after: float, late: int) -> None:
    async def work() -> None:
        await asyncio.sleep(before)
        await wait(100)
        await asyncio.sleep(after)

    assert failures(work) == late


@pytest.mark.parametrize(("own", "late"), [(9, 0), (11, 1)])
def test_the_clock_stands_still_until_the_last_of_several_waits_is_over(own: float, late: int) -> None:
    async def work() -> None:
        await asyncio.gather(wait(30), wait(60), wait(90))
        await asyncio.sleep(own)

    assert failures(work) == late


def test_a_wait_that_begins_again_and_again_takes_nothing_from_an_evaluation() -> None:
    async def work() -> None:
        for _ in range(8):
            await asyncio.sleep(1)
            await wait(20)

    assert failures(work) == 0
