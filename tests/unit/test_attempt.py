"""Time limits, retries and backoff, on a virtual clock."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from fanfold.attempt import Backoff, Clock, attempt
from fanfold.testing import run_virtual


def test_each_try_has_its_own_time_limit_and_the_waits_are_bounded() -> None:
    times: list[float] = []

    async def stuck() -> None:
        times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(3600)

    async def main() -> float:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await attempt(stuck, again=Backoff(5, base=1.0, cap=4.0), timeout=10.0)
        return asyncio.get_running_loop().time() - begun

    took = run_virtual(main())
    assert len(times) == 5
    gaps = [later - earlier - 10.0 for earlier, later in pairwise(times)]
    assert all(0 <= gap <= limit + 1e-6 for gap, limit in zip(gaps, [1, 2, 4, 4], strict=True))
    assert 50 <= took <= 61.1


def test_success_after_failures_and_the_last_error_otherwise() -> None:
    tries = 0

    async def flaky() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError(tries)
        return "done"

    assert run_virtual(attempt(flaky, again=Backoff(3))) == "done"
    tries = -5
    with pytest.raises(ValueError, match="-3"):
        run_virtual(attempt(flaky, again=Backoff(2)))


def test_without_a_policy_there_is_one_try() -> None:
    tries = 0

    async def failing() -> None:
        nonlocal tries
        tries += 1
        raise KeyError

    with pytest.raises(KeyError):
        run_virtual(attempt(failing))
    assert tries == 1


def test_cancelling_is_never_retried() -> None:
    tries = 0

    async def waiting() -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(100)

    async def main() -> None:
        task = asyncio.create_task(attempt(waiting, again=Backoff(10)))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    assert tries == 1


def test_backoff_never_overflows() -> None:
    assert 0 <= (Backoff(10**9)(ValueError(), 10**6) or 0) <= 60


@pytest.mark.parametrize(
    ("pauses", "resumes", "over"),
    [
        ([], [], 10.0),
        ([2.0], [5.0], 13.0),
        ([4.0, 6.0], [50.0, 100.0], 106.0),
        ([4.0, 20.0], [15.0, 30.0], 31.0),
        ([9.0, 11.5], [11.0, 12.5], 13.0),
    ],
)
def test_a_clock_counts_the_time_of_the_evaluation_alone(
    pauses: list[float], resumes: list[float], over: float
) -> None:
    """Waits may overlap: the clock stands still from the first pause to the last resume."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        clock = Clock(10.0, loop.time, lambda: ended.set_result(loop.time()))
        begun = loop.time()
        for at in pauses:
            loop.call_at(begun + at, clock.pause)
        for at in resumes:
            loop.call_at(begun + at, clock.resume)
        async with asyncio.timeout(200):
            return float(await ended) - begun

    assert run_virtual(main()) == pytest.approx(over)


def test_a_clock_that_was_stopped_is_never_over() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        clock = Clock(10.0, asyncio.get_running_loop().time, lambda: said.append("over"))
        clock.pause()
        await asyncio.sleep(20)
        clock.stop()
        clock.resume()
        await asyncio.sleep(100)
        return said

    assert run_virtual(main()) == []
