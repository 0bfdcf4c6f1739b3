"""Time limits, retries and backoff, on a virtual clock."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from fanfold.attempt import Backoff, attempt
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
